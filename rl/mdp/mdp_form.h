/* SPDX-License-Identifier: Apache-2.0 */
/* The form of a Mdp that solvers work on: every choice of a state is a row with its expected reward, and entries (next state, probability) to where
 * it goes on. What ends an episode leads to one place more, whose value is always 0, so no loop asks whether something ended.
 *
 *     q(row) = reward[row] + gamma sum_k probability[k] V[next[k]]        V(s) = max of q over the rows of s
 *
 * When gamma is 1 values exist only under conditions, which mdp_form_make checks; states between which one may wander for nothing then are one state
 * (see mdp_graph.c).
 */
#ifndef TUNE_MDP_FORM_H
#define TUNE_MDP_FORM_H

#include "rl/mdp/mdp_parts.h"

typedef struct FormTiles FormTiles;

typedef struct MdpForm {
    int32_t n; /* states; vectors over states have n + 1 entries, the last one 0 */
    int64_t n_rows;
    double gamma;
    const bool *ended;   /* (n): no rows, value 0; NULL: none */
    const int64_t *rows; /* (n + 1): rows of state i are rows[i] .. rows[i + 1] - 1; NULL: i * width .., the Mdp's own */
    int32_t width;
    const int64_t *begin; /* (n_rows + 1): entries of a row */
    int32_t branching;    /* entries of every row when all have as many (begin[row] = row * fan), else 0 */
    const int32_t *next;
    const double *probability;
    double *reward;      /* (n_rows) */
    double *row_size;    /* (n_rows): sum of probability x |reward| */
    int32_t *state_of;   /* (states of the Mdp): the state here that stands for it; NULL: the same number */
    int64_t *proper_row; /* (n): rows of a policy under which every episode ends; NULL when gamma < 1 */

    /* What rounding is judged by. */
    double mass;        /* largest sum of probabilities of a row that go on */
    double imbalance;   /* largest |sum of all probabilities of a row - 1| */
    double reward_size; /* largest sum of probability x |reward| of a row */
    int64_t longest;    /* entries of the longest row */
    bool closed;        /* no row ends anything: a constant added to V adds gamma times it to every q */
    int reach;          /* how far ahead sweeps of a large world fetch: see form_choose_reach */
    FormTiles *tiles;   /* its entries in another order, for sweeps over all of them (mdp_tiles.c); NULL: none */
    Arena *arena;       /* borrowed */
} MdpForm;

/* `arena` holds all that is not borrowed from mdp. ST_INPUT when gamma is 1 and values do not exist, with states that show it; ST_RESOURCE.
 * needs_values false: gamma 1 is not looked into (finite horizon, average reward). */
Status mdp_form_make(const NamedMdp *world, bool needs_values, Arena *arena, MdpForm *form);

static inline int64_t form_first(const MdpForm *form, int64_t state) { return form->rows ? form->rows[state] : state * form->width; }
static inline bool form_is_nonterminal(const MdpForm *form, int64_t state) { return !form->ended || !form->ended[state]; }
static inline double form_expect(const MdpForm *form, int64_t row, const double *V) {
    double sum = 0;
    for (int64_t k = form->begin[row]; k < form->begin[row + 1]; k++) sum += form->probability[k] * V[form->next[k]];
    return sum;
}
static inline double form_q(const MdpForm *form, int64_t row, const double *V) { return form->reward[row] + form->gamma * form_expect(form, row, V); }
double *form_vector(const MdpForm *form, Arena *arena); /* n + 1 zeros; NULL when memory is full */

/* ---- mdp_sweep.c: all states once, the same bits for any number of threads ---- */

typedef struct Change {
    double least, most;
} Change; /* of new minus old values, over live states; 0, 0 when there are none */
static inline double change_size(Change change) { return change.most > -change.least ? change.most : -change.least; }
/* Whether a sweep takes longer than it takes to wake a team of threads and to gather it again. */
bool form_is_worth_threads(const MdpForm *form);
/* How far ahead values are fetched, and into which cache, is tried out on a few parts of a large world (some ms): processors differ. It changes no
 * result. ST_RESOURCE. */
Status form_choose_reach(MdpForm *form);

/* A policy: its rows, copied behind each other where they are about equally long, which are swept in half the time that the same rows take where they
 * are. */
typedef struct FormPolicy {
    int64_t *rows; /* (n): the row taken in each live state */
    MdpForm form;  /* the copies */
    int32_t *next; /* its entries; NULL: no copies */
    double *probability;
} FormPolicy;
/* All of it in `arena`. ST_RESOURCE. */
Status form_policy_init(const MdpForm *form, Arena *arena, FormPolicy *policy);

typedef struct Sweep {
    const double *V; /* NULL: all values are 0 */
    double *new_V;
    double *Q;              /* (n_rows): gets what each row is worth by V; may be NULL */
    FormPolicy *policy;     /* becomes the first best row of each state; may be NULL */
    const bool *eliminated; /* (n_rows): rows that are left out, never all of a live state; NULL: none */
} Sweep;
/* Of all live states by their best rows; of a policy by its own. What the values changed by. */
Change form_sweep(const MdpForm *form, Sweep sweep);
Change form_sweep_policy(const MdpForm *form, const FormPolicy *policy, const double *V, double *new_V);

/* Sweeps that leave out rows which cannot be best by the true values: after a sweep from any V, those which are below the best of their state by more
 * than its changes leave in doubt (MacQueen 1967). What is left out is not looked at again, so the last sweep before an answer is to be an ordinary
 * one. */
typedef struct ActionElimination {
    double *Q;                /* (n_rows), borrowed: scratch */
    bool *eliminated;         /* (n_rows) */
    double uncertainty, used; /* in doubt after the last sweep; when rows were left out last */
} ActionElimination;
Status elimination_init(const MdpForm *form, double *Q, Arena *arena,
                        ActionElimination *elimination); /* Q NULL: nothing will be left out. ST_RESOURCE */
Change form_sweep_eliminating(const MdpForm *form, Sweep sweep, ActionElimination *elimination);

/* ---- mdp_tiles.c ---- */

/* Whether to: the values fit into no near cache, entries lead all over them, a second-level cache of that many bytes holds what a tile touches, and
 * memory for as many bytes as the entries have is at hand. */
bool form_gains_by_tiles(const MdpForm *form, int64_t cache_bytes);
/* Makes form->tiles, unless a state has more rows than a tile. ST_RESOURCE. */
Status form_tile(MdpForm *form);
/* What form_sweep does with them, for a sweep with V, without a policy and rows left out; `none` where no state is live. */
Change form_sweep_tiles(const MdpForm *form, Sweep sweep, Change none);

/* The best value of one state; *best, unless NULL, is its first row. */
double form_best(const MdpForm *form, int64_t state, const double *V, int64_t *best);
/* V[state] becomes it; says by how much V changed, 0 where the state has ended. */
double form_set_best(const MdpForm *form, int64_t state, double *V);
/* By how much a row has to be better than another: by more than `least`, and than `times` what rounding may have made of both. */
typedef struct Margin {
    double least, times;
} Margin;
/* rows[i] becomes the first best row of state i where that is better than rows[i] by the margin; says how many changed. rows[i] < 0: none yet. */
int64_t form_improve(const MdpForm *form, const double *V, Margin margin, int64_t *rows);
/* In how many states form_improve would change the row. */
int64_t form_count_better(const MdpForm *form, const double *V, Margin margin, const int64_t *rows);

/* ---- mdp_graph.c ---- */

/* Joins the states of every set within which one may wander for ever for nothing, with "stay there: 0" as one more row, and checks that values exist.
 * `world` is for messages. */
Status form_join(const NamedMdp *world, MdpForm *form);
/* Of processes that go on for ever: whether the best reward per step is one number, whatever the state. ST_INPUT, naming states of two parts that
 * earn differently, when it surely is not. */
Status form_check_one_gain(const NamedMdp *world, MdpForm *form);

/* ---- mdp_direct.c ---- */

/* V of the policy that takes rows[i] in state i: V = reward + gamma P V, `reward` by row (NULL: the form's). LAPACK for up to FORM_DIRECT states and
 * where states lead only to those with numbers near to theirs, else BiCGSTAB and sweeps, begun from V, until no equation is off by more than `target`
 * or rounding allows no better. *sweeps (may be NULL) counts iterations, 1 for LAPACK. ST_NUMERIC when the equations are singular. */
enum { FORM_DIRECT = 1024 };
Status form_policy_values(const MdpForm *form, const int64_t *rows, const double *reward, double gamma, double target, double *V, int64_t *sweeps);
/* From V towards the policy's values, as near as about the time of *sweeps sweeps of its rows brings it; *sweeps becomes what it took. JUMP_SOLVED:
 * no equation is off by more than `target` or some rounding; JUMP_NEARER: by a tenth of what it was; JUMP_NONE: V is as it was, the policy may have
 * no values. scratch: n + 1. */
typedef enum FormJump { JUMP_NONE, JUMP_NEARER, JUMP_SOLVED } FormJump;
FormJump form_policy_jump(const MdpForm *form, const int64_t *rows, double target, double *sweeps, double *V, double *scratch);

/* ---- mdp_bias.c ---- */

/* h, over states of the form, becomes what the policy that is best by it is worth relative to one of the n members, which it never leaves by rows in
 * use: to rounding, with no promise beyond. place[s]: the number of state s among the members. False, and h as it was, where that takes longer than
 * about so many sweeps of the policy's rows, or the policy does not always come back to one state. */
bool form_policy_bias(const MdpForm *form, const bool *use, const int32_t *members, int32_t n, const int32_t *place, double sweeps, double *h);

/* ---- mdp_certify.c ---- */

/* The largest row_size of those rows that may be the best of their states by V: what rounding makes of one that is far below does not matter. */
double form_reward_size(const MdpForm *form, const double *V);
/* The most that one best q of `form_sweep` from V is off by rounding of the computation, of the probabilities and rewards themselves, and of sums of
 * rows that are not quite 1. */
double form_rounding(const MdpForm *form, const double *V);
/* The same of one row, by the values that it leads to. */
double form_row_rounding(const MdpForm *form, int64_t row, const double *V);
/* A number that max |V - V*| is certainly not above; INFINITY when none is found. V* is the form's optimal value; with one row a state, the policy's.
 * Q as for form_sweep. */
double form_bound(const MdpForm *form, const double *V, double *Q);
/* The same for a V whose largest change in a sweep is known. */
double form_bound_of_change(const MdpForm *form, const double *V, double change);

/* ---- methods: one file mdp_solver_<name>.c and one line of mdp_solvers.def each ---- */

typedef struct MdpWork {
    const MdpForm *form;
    const NamedMdp *world;
    const MdpOptions *options;
    double *V;          /* (n + 1): where to begin, and the answer */
    double *Q;          /* (n_rows): for what V's rows are worth; NULL when they are not the Mdp's */
    double change;      /* |TV - V| of just this V, when the method has found it, and Q with it; else below 0 */
    double target;      /* largest |TV - V| to stop at; rounding may stop it before */
    int64_t limit;      /* of iterations */
    int64_t iterations; /* done so far */
    Arena *arena, *answer_arena;
} MdpWork;
Status values_overflow(void); /* ST_NUMERIC: a value is not finite */
/* True when `change` is small enough or cannot become smaller for rounding, or the limit is reached, or the user wants to stop. */
bool work_is_done(const MdpWork *work, double change);
/* Where no row ends anything, V* - V lies between gamma / (1 - gamma) times the least and the greatest change that led to V (MacQueen 1966). True
 * when both are that near to each other. */
bool changes_are_alike(const MdpForm *form, Change change, double target);
/* Adds the middle of both to V, the result of the sweep that changed so. */
void add_missing(const MdpForm *form, Change change, double *V);

typedef enum MdpAnswer { ANSWER_VALUES, ANSWER_HORIZON, ANSWER_AVERAGE } MdpAnswer;
typedef struct MdpSolver {
    const char *name, *help;
    MdpAnswer answer;
    Status (*solve)(MdpWork *work, MdpSolution *solution);
} MdpSolver;
#define MDP_SOLVER(name, answer, help) Status mdp_solver_##name(MdpWork *work, MdpSolution *solution);
#include "rl/mdp/mdp_solvers.def"
#undef MDP_SOLVER

#endif
