/* SPDX-License-Identifier: Apache-2.0 */
/* Finite Markov decision processes: opening (a built-in world, a file), checking, building, and exact solutions.
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

/* An Mdp with names and other information for people. */
typedef struct NamedMdp {
    Mdp mdp;
    double *start;             /* (n_states): probability of starting in each state; NULL: not given */
    const char **state_names;  /* NULL: numbers */
    const char **action_names; /* NULL: numbers */
    bool is_chain;             /* a Markov chain or reward process: a single action, no choice */
    int rows, columns;         /* of a grid whose cell (r, c) is state r * columns + c; 0: none */
    const char *cells;         /* (rows * columns): a letter per cell (S start, G goal, H hole, # wall, . nothing); NULL: none */
    int32_t n_observations;    /* the observation is state % n_observations; 0: the state itself */
    int64_t max_steps;         /* limit of an episode, after which it is truncated; 0: no limit */
    Arena *arena;              /* holds all of it */
} NamedMdp;

/* Opens a built-in world by id, with arguments as in env.h ("ID" or "ID:key=value,..."), or a file, recognised by the ending .yaml, .yml or .json, or
 * a '/': {states: N or [names], actions: N or [names], gamma: G, start: s or {s: p}, terminal: [s, ...], transitions: [[s, a, s2, p, r], [s, a, s2,
 * p, r, done], ...]}, by number or name. A state does not have the actions without transitions. Without `actions` it is a Markov chain or reward
 * process, with transitions [s, s2, p], [s, s2, p, r] or [s, s2, p, r, done] (`done`, as in Gymnasium's tables: the episode ends with the outcome,
 * see Mdp.ends). ST_CONFIG: unknown id or argument, with the nearest. ST_INPUT: an error in a file, with its line, or an Mdp that mdp_check
 * rejects. */
Status mdp_open(const char *spec, NamedMdp **world);
/* The same with `gamma` instead of the world's own, which a file may then omit; NAN: the world's own. */
Status mdp_open_discounted(const char *spec, double gamma, NamedMdp **world);
void named_mdp_free(NamedMdp *world); /* NULL is fine */
/* A hash of the process, independent of the names of states. */
uint64_t named_mdp_fingerprint(const NamedMdp *world);

/* ---- checking ---- */

/* Checks that the probabilities of every live (s, a) with outcomes are within [0, 1] and sum to 1 (to 1e-9), that each live state has an action, that
 * rewards are finite and states exist, that gamma is in [0, 1] and `start` is a distribution. ST_INPUT names state, action and problem. mdp_solve and
 * mdp_evaluate check whether values exist when gamma is 1. */
Status mdp_check(const NamedMdp *world); /* for tests: every world from mdp_builder_finish has passed it */
/* Marks in `reachable` (n_states) the states that can be reached under any policy from the states of `start` (NULL: from all live states).
 * ST_RESOURCE. */
Status mdp_reachable(const NamedMdp *world, bool *reachable);
/* Appends "state 3" or "state 'home'"; "action 'left'". */
void mdp_append_state(Str *text, const NamedMdp *world, int64_t state);
void mdp_append_action(Str *text, const NamedMdp *world, int64_t action);

/* ---- building ---- */

typedef struct MdpBuilder MdpBuilder;
/* n_states and n_actions from 1. NULL when out of memory (recorded). */
MdpBuilder *mdp_builder_new(int64_t n_states, int64_t n_actions, double gamma);
/* Adds an outcome of (state, action), in any order; equal outcomes are not merged. ends: the episode ends with it, whatever state `next` is.
 * mdp_builder_finish returns the first failure. */
void mdp_builder_add(MdpBuilder *builder, int64_t state, int64_t action, int64_t next, double probability, double reward, bool ends);
void mdp_builder_terminal(MdpBuilder *builder, int64_t state);
/* Names of all states or all actions (NULL: numbers), borrowed until mdp_builder_finish copies them; messages use them. */
void mdp_builder_names(MdpBuilder *builder, const char *const *state_names, const char *const *action_names);
void mdp_builder_start(MdpBuilder *builder, int64_t state, double probability); /* the episode may begin there */
void mdp_builder_chain(MdpBuilder *builder);                                    /* a chain: messages do not mention its single action */
/* Outcomes added from now on are from this line of a file, for messages; 0: no file. */
void mdp_builder_line(MdpBuilder *builder, int line);
void mdp_builder_free(MdpBuilder *builder); /* frees a builder that was not finished; NULL is fine */
/* Makes the world and checks it with mdp_check; frees the builder in any case. */
Status mdp_builder_finish(MdpBuilder *builder, NamedMdp **world);

/* ---- exact solutions ---- */

typedef struct MdpOptions {
    const char *method;     /* a name of mdp_solvers.def; NULL: horizon when `horizon` is set, else pi for up to 1024 states and mpi for more */
    double tolerance;       /* wanted certified bound; 0: 1e-12. Rounding may prevent it: `bound` has what was reached */
    int64_t max_iterations; /* 0: 10 million. Reaching it is not an error: `bound` has what was reached */
    int64_t horizon;        /* steps; only for the method horizon */
    /* For mpi: exactly so many sweeps between two improvements; 0: at most 20, fewer where they suffice, with extrapolation at the end */
    int64_t evaluation_sweeps;
    uint64_t seed;         /* of the order of async */
    const NamedMdp *world; /* gives the names in messages; NULL: numbers */
} MdpOptions;

typedef struct MdpSolution {
    const char *method;
    /* (n_states): optimal values, or the policy's; for `horizon`: with all steps to go; for `average`: relative values, 0 in the first live state */
    double *V;
    double *Q;       /* (n_states, n_actions); 0 in terminal states, -INFINITY for an action that the state does not have */
    int32_t *policy; /* (n_states): the lowest action within 1e-12 of the best, -1 in terminal states; NULL from mdp_evaluate */
    /* false: `policy` has only best actions but earns less than V, because it cycles without reward. Only with gamma 1; set by mdp_solve */
    bool policy_attains;
    int32_t *attaining; /* (n_states): equally good actions, to rounding and bound, that earn V; NULL if `policy` does or none was found */
    /* Guaranteed upper limit of max |V - truth|, rounding included; for `average`: of |gain - truth|. INFINITY: no guarantee */
    double bound;
    /* the same for Q, which includes the rounding of actions with large rewards that do not affect V; for `average`: INFINITY */
    double q_bound;
    int64_t iterations;   /* sweeps, policy improvements, simplex steps; for `prioritized`: updates of a state's value */
    double gain;          /* for `average`: reward per step */
    int64_t horizon;      /* for `horizon`: N */
    double *step_V;       /* (N + 1, n_states): with N - t steps to go; the first row is V */
    int32_t *step_policy; /* (N, n_states) */
} MdpSolution;

/* Computes optimal values. "Truth" is the stored Mdp, and any Mdp whose numbers round to it. gamma < 1: V* is the fixed point of the Bellman
 * equation. gamma = 1: V* is the best expected sum of rewards over policies under which the episode ends, or earns nothing more from some time on;
 * ST_INPUT names states if there is no such policy or no best one. All arrays are in `arena`. ST_USAGE: an unknown method, a missing horizon. */
Status mdp_solve(const Mdp *mdp, const MdpOptions *options, Arena *arena, MdpSolution *solution);
/* Computes V and Q of a policy, given as probabilities (n_states, n_actions) that sum to 1 in every live state. LAPACK for up to 1024 states, sparse
 * iterations for more. gamma = 1: ST_INPUT names states from which rewards never end. */
Status mdp_evaluate(const Mdp *mdp, const double *policy, const MdpOptions *options, Arena *arena, MdpSolution *solution);
/* Reads a policy (n_states, n_actions): "uniform", or a JSON file with an entry per state: an action (number or name), a list of probabilities, or
 * null in terminal states; or the output of solve --json. ST_INPUT names the state. */
Status mdp_policy_read(const char *spec, const NamedMdp *world, Arena *arena, double **policy);
/* Makes the Markov reward process under a policy: an Mdp with one action. ST_INPUT names a state with invalid probabilities. */
Status mdp_induced_chain(const Mdp *mdp, const double *policy, const NamedMdp *names, Arena *arena, Mdp *process);
/* Computes the long-run fraction of time in each state (n_states) under a policy, started from world->start (NULL: uniformly over live states); after
 * the end of an episode the next one starts there. It is a limit of averages, so it exists for periodic chains too. If the process can end up in one
 * of several closed classes, each is weighted by its probability. Exact to rounding for up to some thousand states, and in larger worlds whose
 * transitions are local (corridors, grids); in others accurate to 1e-8 in the sum if the process mixes, else ST_NUMERIC. */
Status mdp_stationary(const NamedMdp *world, const double *policy, double *share);
/* Name and help line of method i; NULL after the last. */
const char *mdp_method(size_t i, const char **help);

#endif
