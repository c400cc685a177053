/* SPDX-License-Identifier: Apache-2.0 */
/* Finite Markov decision processes: where they come from (a built-in world, a file), what makes them sound, and their exact solution.
 *
 *     NamedMdp *world;
 *     TRY(mdp_open("FrozenLake-v1:map_name=8x8", &world));        // or a file: world.yaml, world.json
 *     MdpSolution solution;
 *     TRY(mdp_solve(&world->mdp, &(MdpOptions){.method = "pi"}, arena, &solution));
 *     printf("%g, at most %g from the truth\n", solution.V[0], solution.bound);
 *     named_mdp_free(world);
 */
#ifndef TUNE_MDP_H
#define TUNE_MDP_H

#include "rl/core/rl.h"

/* A Mdp with what people know about it. */
typedef struct NamedMdp {
    Mdp mdp;
    double *start;             /* probability of each state to begin in (n_states); NULL: not said */
    const char **state_names;  /* NULL: numbers */
    const char **action_names; /* NULL: numbers */
    bool is_chain;             /* a Markov chain or reward process: one action, which nobody chooses */
    int rows, columns;         /* of a grid whose cell (r, c) is state r * columns + c; 0: none */
    const char *cells;         /* a letter a cell (S start, G goal, H hole, # wall, . nothing), rows * columns; NULL: none */
    int32_t n_observations;    /* one who acts in it sees state % n_observations; 0: the state itself */
    int64_t max_steps;         /* of an episode, then it is truncated; 0: no limit */
    Arena *arena;              /* holds all of it */
} NamedMdp;

/* A built-in world by id, with arguments as in env.h ("ID" or "ID:key=value,..."), or a file, told by its name's end .yaml, .yml or .json, or a '/':
 * {states: N or [names], actions: N or [names], gamma: G, start: s or {s: p}, terminal: [s, ...], transitions: [[s, a, s2, p, r], [s, a, s2, p, r,
 * done], ...]}, by number or name; an action that a state does not have is left out there; without `actions` a Markov chain or reward process, whose
 * transitions are [s, s2, p], [s, s2, p, r] or [s, s2, p, r, done]
 * (`done`, the word of Gymnasium's tables and of this file alone, says that the episode ends with the outcome: Mdp.ends).
 * ST_CONFIG: unknown id or argument, with the nearest. ST_INPUT: a file's fault with its line, or a Mdp that mdp_check refuses. */
Status mdp_open(const char *spec, NamedMdp **world);
/* The same with another gamma than the world's own, which a file then need not have; NAN: its own. */
Status mdp_open_discounted(const char *spec, double gamma, NamedMdp **world);
void named_mdp_free(NamedMdp *world); /* NULL is fine */
/* A number that another process would hardly have, whatever its states are called. */
uint64_t named_mdp_fingerprint(const NamedMdp *world);

/* ---- what makes one sound ---- */

/* Probabilities of every live (s, a) that has outcomes within [0, 1] and with the sum 1 (to 1e-9), at least one such action in each live state,
 * rewards finite, states that exist, gamma in [0, 1], a sound `start`.
 * ST_INPUT names state, action and what is wrong. Whether values exist when gamma is 1 is for mdp_solve and mdp_evaluate to say. */
Status mdp_check(const NamedMdp *world); /* for tests: a world that was made has passed it */
/* Marks in `reachable` (n_states) what can happen from the states of `start` (from any live state when it is NULL) under any policy. ST_RESOURCE. */
Status mdp_reachable(const NamedMdp *world, bool *reachable);
/* Appends "state 3" or "state 'home'"; "action 'left'". */
void mdp_append_state(Str *text, const NamedMdp *world, int64_t state);
void mdp_append_action(Str *text, const NamedMdp *world, int64_t action);

/* ---- making one ---- */

typedef struct MdpBuilder MdpBuilder;
/* n_states and n_actions from 1. NULL when memory can't be had (recorded). */
MdpBuilder *mdp_builder_new(int64_t n_states, int64_t n_actions, double gamma);
/* One outcome of (state, action), in any order; outcomes of the same (s, a) that lead to the same place with the same reward are kept apart. ends:
 * the episode ends with it, whatever state `next` is. The first failure sticks and is what mdp_builder_finish returns. */
void mdp_builder_add(MdpBuilder *builder, int64_t state, int64_t action, int64_t next, double probability, double reward, bool ends);
void mdp_builder_terminal(MdpBuilder *builder, int64_t state);
/* Names of all states or all actions (NULL: numbers), borrowed until mdp_builder_finish copies them; messages use them. */
void mdp_builder_names(MdpBuilder *builder, const char *const *state_names, const char *const *action_names);
void mdp_builder_start(MdpBuilder *builder, int64_t state, double probability); /* the episode may begin there */
void mdp_builder_chain(MdpBuilder *builder);                                    /* its one action is no choice: messages do not speak of it */
/* What is added from now on stands in this line of a file, which messages name; 0: no file. */
void mdp_builder_line(MdpBuilder *builder, int line);
void mdp_builder_free(MdpBuilder *builder); /* one that is not finished; NULL is fine */
/* The finished world, checked by mdp_check; frees the builder in any case. */
Status mdp_builder_finish(MdpBuilder *builder, NamedMdp **world);

/* ---- exact solutions ---- */

typedef struct MdpOptions {
    const char *method;     /* a name of mdp_solvers.def; NULL: horizon when `horizon` is set, else pi for up to 1024 states and mpi for more */
    double tolerance;       /* largest certified bound wanted; 0: 1e-12. Rounding may not allow it: the bound says what was reached */
    int64_t max_iterations; /* 0: 10 million. Reaching it is no failure: the bound says what was reached */
    int64_t horizon;        /* steps; only for the method horizon */
    /* Of mpi, exactly so many between two improvements; 0: 20 at most, fewer where they suffice, and what is missing added */
    int64_t evaluation_sweeps;
    uint64_t seed;         /* of async's order */
    const NamedMdp *world; /* whose names messages use; NULL: numbers */
} MdpOptions;

typedef struct MdpSolution {
    const char *method;
    /* (n_states): optimal values, or the policy's; of `horizon`: with all steps to go; of `average`: relative values, the first live state's is 0 */
    double *V;
    double *Q;       /* (n_states, n_actions); 0 in terminal states, -INFINITY of an action that the state does not have */
    int32_t *policy; /* (n_states): the lowest action within 1e-12 of the best, -1 in terminal states; NULL from mdp_evaluate */
    /* false: `policy`, though of best actions, earns less than V, going round for nothing. Only with gamma 1, and looked into by mdp_solve */
    bool policy_attains;
    int32_t *attaining; /* (n_states): actions as good, to rounding and bound, that do earn V; NULL where `policy` does or none was found */
    /* Max |V - truth| is certainly not above, rounding included; of `average`: |gain - truth|. INFINITY: nothing is certain */
    double bound;
    double q_bound;       /* the same of Q, in which rounding of actions with large rewards counts that V does not know; of `average`: INFINITY */
    int64_t iterations;   /* sweeps, improvements of a policy, simplex steps; of `prioritized`: changes of one state's value */
    double gain;          /* of `average`: reward per step */
    int64_t horizon;      /* of `horizon`: N */
    double *step_V;       /* (N + 1, n_states): with N - t steps to go; the first row is V */
    int32_t *step_policy; /* (N, n_states) */
} MdpSolution;

/* Optimal values. "Truth" is the Mdp as it is stored, and any whose numbers round to it. gamma < 1: V* is the fixed point of the Bellman equation.
 * gamma = 1: V* is the best expected sum of rewards of policies under which the episode ends, or nothing more is earned from some time on; ST_INPUT
 * names states when there is no such policy or no best one. All arrays are in `arena`. ST_USAGE: an unknown method, a horizon that is missing. */
Status mdp_solve(const Mdp *mdp, const MdpOptions *options, Arena *arena, MdpSolution *solution);
/* V and Q of a policy, probabilities (n_states, n_actions) that sum to 1 in every live state. LAPACK for up to 1024 states, sparse iterations for
 * more. gamma = 1: ST_INPUT names states from which the rewards do not end. */
Status mdp_evaluate(const Mdp *mdp, const double *policy, const MdpOptions *options, Arena *arena, MdpSolution *solution);
/* A policy (n_states, n_actions): "uniform", or a JSON file with an entry a state: an action (number or name), a list of probabilities, null in
 * terminal states; or what solve --json wrote. ST_INPUT names the state. */
Status mdp_policy_read(const char *spec, const NamedMdp *world, Arena *arena, double **policy);
/* The Markov reward process under a policy: a Mdp with one action. ST_INPUT names a state whose probabilities are not sound. */
Status mdp_induced_chain(const Mdp *mdp, const double *policy, const NamedMdp *names, Arena *arena, Mdp *process);
/* Long-run share of time in each state (n_states) under a policy, begun from world->start, or evenly from all live states when that is NULL; an
 * episode that ends begins anew there. A limit of averages, so a periodic chain has one; where the run may end up in one of several places it cannot
 * leave, each is weighed by how likely that is. Exact to rounding up to some thousand states, and in larger worlds of which one sees little from each
 * place (corridors, grids); in others 1e-8 in the sum, as far as the process mixes, else ST_NUMERIC. */
Status mdp_stationary(const NamedMdp *world, const double *policy, double *share);
/* The i-th method's name and its line of help; NULL behind the last. */
const char *mdp_method(size_t i, const char **help);

#endif
