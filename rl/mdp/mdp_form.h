/* SPDX-License-Identifier: Apache-2.0 */
/* The form of an Mdp that solvers work on. Every action of a state is a row with its expected reward and its entries (next state, probability).
 * Outcomes that end an episode lead to an extra state n, whose value is always 0, so loops need no test for the end.
 *
 *     q(row) = reward[row] + gamma sum_k probability[k] V[next[k]]        V(s) = max of q over the rows of s
 *
 * When gamma is 1 values exist only under conditions, which mdp_form_make checks. Sets of states within which a policy can move for ever without
 * reward are then joined into one state (see mdp_graph.c).
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
    const int64_t *begin; /* (n_rows + 1): entries of row r are begin[r] .. begin[r + 1] - 1 */
    int32_t branching;    /* number of entries of every row if all are equal (begin[row] = row * branching), else 0 */
    const int32_t *next;
    const double *probability;
    double *reward;      /* (n_rows) */
    double *row_size;    /* (n_rows): sum of probability x |reward| */
    int32_t *state_of;   /* (states of the Mdp): the corresponding state of the form; NULL: the same number */
    int64_t *proper_row; /* (n): rows of a policy under which every episode ends; NULL when gamma < 1 */

    /* Numbers for bounds of rounding errors. */
    double mass;        /* largest sum of probabilities of a row that do not end the episode */
    double imbalance;   /* largest |sum of all probabilities of a row - 1| */
    double reward_size; /* largest sum of probability x |reward| of a row */
    int64_t longest;    /* entries of the longest row */
    bool closed;        /* no row ends an episode: adding c to V adds gamma c to every q */
    int reach;          /* prefetch distance of sweeps of a large world: see form_choose_reach */
    FormTiles *tiles;   /* the entries sorted into tiles, for full sweeps (mdp_tiles.c); NULL: none */
    Arena *arena;       /* borrowed */
} MdpForm;

/* Makes the form. What is not borrowed from the Mdp is in `arena`. ST_INPUT when gamma is 1 and values do not exist, naming states that show it;
 * ST_RESOURCE. needs_values false: skips the checks for gamma 1 (finite horizon, average reward). */
Status mdp_form_make(const NamedMdp *world, bool needs_values, Arena *arena, MdpForm *form);

static inline int64_t form_first(const MdpForm *form, int64_t state) { return form->rows ? form->rows[state] : state * form->width; }
static inline bool form_is_nonterminal(const MdpForm *form, int64_t state) { return !form->ended || !form->ended[state]; }
static inline double form_expect(const MdpForm *form, int64_t row, const double *V) {
    double sum = 0;
    for (int64_t k = form->begin[row]; k < form->begin[row + 1]; k++) sum += form->probability[k] * V[form->next[k]];
    return sum;
}
static inline double form_q(const MdpForm *form, int64_t row, const double *V) { return form->reward[row] + form->gamma * form_expect(form, row, V); }
double *form_vector(const MdpForm *form, Arena *arena); /* n + 1 zeros; NULL when out of memory */

/* ---- mdp_sweep.c: sweeps over all states, with the same bits for any number of threads ---- */

typedef struct Change {
    double least, most;
} Change; /* range of new minus old values over live states; 0, 0 if there are none */
static inline double change_size(Change change) { return change.most > -change.least ? change.most : -change.least; }
/* Whether a sweep takes longer than starting and joining a team of threads. */
bool form_is_worth_threads(const MdpForm *form);
/* Chooses the prefetch distance and cache level by timing a few parts of a large world (some ms), since processors differ. Results do not depend on
 * it. ST_RESOURCE. */
Status form_choose_reach(MdpForm *form);

/* A policy: if its rows have about equal length they are copied to contiguous memory, where a sweep takes half the time. */
typedef struct FormPolicy {
    int64_t *rows; /* (n): the row taken in each live state */
    MdpForm form;  /* the copies */
    int32_t *next; /* its entries; NULL: no copies */
    double *probability;
} FormPolicy;
/* Allocates in `arena`. ST_RESOURCE. */
Status form_policy_init(const MdpForm *form, Arena *arena, FormPolicy *policy);

typedef struct Sweep {
    const double *V; /* NULL: all values are 0 */
    double *new_V;
    double *Q;              /* (n_rows): receives q of each row under V; may be NULL */
    FormPolicy *policy;     /* receives the first best row of each state; may be NULL */
    const bool *eliminated; /* (n_rows): rows that are left out, never all of a live state; NULL: none */
} Sweep;
/* form_sweep updates all live states with their best rows, form_sweep_policy with the policy's rows. Returns the change of values. */
Change form_sweep(const MdpForm *form, Sweep sweep);
Change form_sweep_policy(const MdpForm *form, const FormPolicy *policy, const double *V, double *new_V);

/* Sweeps with action elimination (MacQueen 1967): after a sweep from any V, rows that are below the best of their state by more than the remaining
 * uncertainty cannot be optimal and are skipped from then on. The last sweep before an answer must therefore be an ordinary one. */
typedef struct ActionElimination {
    double *Q;                /* (n_rows), borrowed: scratch */
    bool *eliminated;         /* (n_rows) */
    double uncertainty, used; /* uncertainty after the last sweep; uncertainty when rows were last eliminated */
} ActionElimination;
Status elimination_init(const MdpForm *form, double *Q, Arena *arena, ActionElimination *elimination); /* Q NULL: no elimination. ST_RESOURCE */
Change form_sweep_eliminating(const MdpForm *form, Sweep sweep, ActionElimination *elimination);

/* ---- mdp_tiles.c ---- */

/* Whether tiles are faster: the values do not fit into a near cache, entries are spread over them, a second-level cache of cache_bytes can hold the
 * data of a tile, and there is memory for a copy of the entries. */
bool form_gains_by_tiles(const MdpForm *form, int64_t cache_bytes);
/* Makes form->tiles, unless a state has more rows than a tile. ST_RESOURCE. */
Status form_tile(MdpForm *form);
/* form_sweep with tiles, for a sweep with V, without a policy and without elimination; returns `none` if no state is live. */
Change form_sweep_tiles(const MdpForm *form, Sweep sweep, Change none);

/* The best value of one state; *best, unless NULL, receives its first row. */
double form_best(const MdpForm *form, int64_t state, const double *V, int64_t *best);
/* Sets V[state] to its best value; returns the change, 0 for a terminal state. */
double form_set_best(const MdpForm *form, int64_t state, double *V);
/* The difference by which a row must be better than another: more than `least`, and more than `times` the rounding error of both. */
typedef struct Margin {
    double least, times;
} Margin;
/* Sets rows[i] to the first best row of state i if that is better than rows[i] by the margin; returns the number of changes. rows[i] < 0: none
 * yet. */
int64_t form_improve(const MdpForm *form, const double *V, Margin margin, int64_t *rows);
/* Number of states in which form_improve would change the row. */
int64_t form_count_better(const MdpForm *form, const double *V, Margin margin, const int64_t *rows);

/* ---- mdp_graph.c ---- */

/* Joins every set of states within which a policy can move for ever without reward, adds a row "stay: reward 0", and checks that values exist.
 * `world` is for messages. */
Status form_join(const NamedMdp *world, MdpForm *form);
/* For processes without end: checks that the best reward per step is the same for all states. ST_INPUT, naming states of two parts with different
 * rewards, if it is certainly not. */
Status form_check_one_gain(const NamedMdp *world, MdpForm *form);

/* ---- mdp_direct.c ---- */

/* V of the policy that takes rows[i] in state i: V = reward + gamma P V, `reward` by row (NULL: the form's). LAPACK for up to FORM_DIRECT states and
 * for banded systems; else BiCGSTAB and sweeps, started from V, until all residuals are at most `target` or rounding allows no better. *sweeps (may
 * be NULL) counts iterations, 1 for LAPACK. ST_NUMERIC when the equations are singular. */
enum { FORM_DIRECT = 1024 };
Status form_policy_values(const MdpForm *form, const int64_t *rows, const double *reward, double gamma, double target, double *V, int64_t *sweeps);
/* Moves V towards the policy's values within about the time of *sweeps sweeps of its rows; *sweeps receives the cost. JUMP_SOLVED: all residuals are
 * at most `target` or rounding; JUMP_NEARER: at most a tenth of before; JUMP_NONE: V is unchanged, the policy may have no values. scratch: n + 1. */
typedef enum FormJump { JUMP_NONE, JUMP_NEARER, JUMP_SOLVED } FormJump;
FormJump form_policy_jump(const MdpForm *form, const int64_t *rows, double target, double *sweeps, double *V, double *scratch);

/* ---- mdp_bias.c ---- */

/* Replaces h, over states of the form, by the bias of the policy that is greedy in h, relative to one of the n members, which the rows in use never
 * leave. Accurate to rounding, without a guarantee. place[s]: index of state s among the members. Returns false and leaves h unchanged if that takes
 * longer than about `sweeps` sweeps of the policy's rows, or if the policy does not always return to one state. */
bool form_policy_bias(const MdpForm *form, const bool *use, const int32_t *members, int32_t n, const int32_t *place, double sweeps, double *h);

/* ---- mdp_certify.c ---- */

/* The largest row_size among rows that may be the best of their states under V: the rounding of rows far below the best does not matter. */
double form_reward_size(const MdpForm *form, const double *V);
/* Bound on the error of one best q of `form_sweep` from V due to rounding in the computation, in the stored probabilities and rewards, and in row
 * sums that are not exactly 1. */
double form_rounding(const MdpForm *form, const double *V);
/* The same for one row, from the values of its next states. */
double form_row_rounding(const MdpForm *form, int64_t row, const double *V);
/* Guaranteed upper bound of max |V - V*|; INFINITY if none is found. V* is the form's optimal value; with one row per state, the policy's. Q as for
 * form_sweep. */
double form_bound(const MdpForm *form, const double *V, double *Q);
/* The same for a V whose largest change in a sweep is known. */
double form_bound_of_change(const MdpForm *form, const double *V, double change);

/* ---- methods: one file mdp_solver_<name>.c and one line of mdp_solvers.def each ---- */

typedef struct MdpWork {
    const MdpForm *form;
    const NamedMdp *world;
    const MdpOptions *options;
    double *V;          /* (n + 1): initial values, later the answer */
    double *Q;          /* (n_rows): for q of the rows under V; NULL if they are not the Mdp's */
    double change;      /* |TV - V| of exactly this V if the method has computed it, with Q; else below 0 */
    double target;      /* |TV - V| at which to stop; rounding may stop it earlier */
    int64_t limit;      /* limit of iterations */
    int64_t iterations; /* done so far */
    Arena *arena, *answer_arena;
} MdpWork;
Status values_overflow(void); /* ST_NUMERIC: a value is not finite */
/* True if `change` is small enough or cannot become smaller because of rounding, if the limit is reached, or after an interrupt. */
bool work_is_done(const MdpWork *work, double change);
/* If no row ends an episode, V* - V lies between gamma / (1 - gamma) times the least and the greatest change that led to V (MacQueen 1966). True if
 * both are within `target` of each other. */
bool changes_are_alike(const MdpForm *form, Change change, double target);
/* Adds the mean of both bounds to V, the result of the sweep with this change. */
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
