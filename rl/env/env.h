/* SPDX-License-Identifier: Apache-2.0 */
/* Vectorised environments: many copies in one array, one call per step. `terminated` (the process ended, the next state is worth 0) and `truncated`
 * (time limit, the next state keeps its value) are separate flags. Ids, dynamics, rewards and time limits are Gymnasium's, computed in double
 * throughout.
 *
 *     TRY(env_new("CartPole-v1", 8, &env));
 *     env_reset(env, seed);
 *     while (steps--) {
 *         choose(env->observations, actions);              // (copies, observation.size) -> (copies, action.size)
 *         TRY(env_step(env, actions, true));
 *         learn(env->rewards, env->terminated, env->truncated, env->final_observations);
 *     }
 *     env_free(env);
 *
 * Random numbers depend only on (seed, copy, number of starts and steps of that copy since env_reset), so a copy's episodes depend neither on threads
 * nor on the number of copies.
 */
#ifndef TUNE_ENV_H
#define TUNE_ENV_H

#include "rl/mdp/mdp.h"

/* The space of actions or observations. Discrete: one integer 0..n-1. Box: `size` numbers, each within its bounds (infinite if unbounded). */
typedef struct Space {
    int64_t n;                /* 0: a box */
    int64_t size;             /* numbers; 1 when discrete */
    const double *low, *high; /* (size); NULL when discrete */
    /* For discrete actions: (observations, n), whether the action exists for that observation; NULL: always */
    const bool *allowed;
} Space;
static inline bool space_allows(const Space *actions, double observation, int64_t action) {
    return !actions->allowed || actions->allowed[(int64_t)observation * actions->n + action];
}

typedef struct EnvKind EnvKind;
typedef struct Env {
    const EnvKind *kind;
    const char *id;
    int64_t copies, state_size;
    int64_t max_steps; /* limit of an episode, after which it is truncated; 0: no limit */
    Space action, observation;

    /* Results of the last env_reset, env_step or env_set_state; one row per copy, owned by the environment. */
    double *observations;         /* (copies, observation.size), rounded to float32 where Gymnasium returns float32 */
    double *final_observations;   /* (copies, observation.size): the last observation of an episode; written when the step ended it */
    double *rewards;              /* (copies) */
    bool *terminated, *truncated; /* (copies); both are set when the last allowed step also ends the process, as in Gymnasium */
    int64_t *lengths;             /* (copies): steps of the episode so far */
    int64_t *final_lengths;       /* (copies): steps of the last episode that ended */

    double *states;   /* (copies, state_size); see env_set_state */
    uint64_t *counts; /* (copies): starts and steps since env_reset */
    uint64_t seed;
    bool *begins;        /* (copies): scratch */
    const void *context; /* the kind's arguments, or an Mdp */
    NamedMdp *world;     /* the finite MDP that this is, owned; NULL: not one, or owned by the caller */
    void *remote;        /* state of an environment in another program */
    /* of such an environment: actions of the current episodes, at most max_played steps each (copies, max_played, action.size) */
    double *played;
    int64_t max_played;
    Failure failure; /* failure of that program, after which every call fails */
    Arena *arena;
} Env;

/* `spec`: ID or ID:key=value,key=value of envs.def or worlds.def, or an MDP file. Every id takes max_episode_steps=N (0: none); the files of the
 * environments list other arguments. Call env_reset before the first step. ST_CONFIG: an unknown id (with the nearest one), an unknown argument or a
 * bad value (named); ST_RESOURCE. The caller calls env_free. */
Status env_new(const char *spec, int64_t copies, Env **env);
/* mdp_open_discounted for a spec that may name an environment. ST_CONFIG if that is not a finite world: it cannot be solved. */
Status env_open_world(const char *spec, double gamma, NamedMdp **world);
/* An environment that samples from an Mdp, which is borrowed and must outlive it. State and observation are the state's number. An episode starts in
 * a state drawn from `start` (n_states probabilities, borrowed; NULL: uniform over live states) and terminates on entering a terminal state. ST_INPUT
 * when `start` has a negative number, does not sum to 1 within 1e-9, or gives a terminal state a positive probability. */
Status env_new_mdp(const Mdp *mdp, const double *start, int64_t max_steps, int64_t copies, Env **env);
/* The same for a world, with its start distribution, time limit and observations. */
Status env_new_world(const NamedMdp *world, int64_t copies, Env **env);
/* An environment that runs as a program (argv: its n words). It reads requests on stdin and writes answers to stdout: JSON, one line each;
 * docs/protocols.md describes them. Real-valued actions are clipped to their bounds first. `timeout`: seconds for each answer. A program that exits
 * or does not answer is restarted with a warning, after a pause that grows with each failure; its running episodes are truncated. After six failures
 * in a row (100 steps without one start a new row) ST_RESOURCE, with the program's stderr. ST_INPUT: it cannot be started, or an answer is wrong; the
 * text shows it. States cannot be read or set (state_size 0). The calling process must ignore SIGPIPE. */
Status env_new_command(const char *const *argv, size_t n, int64_t copies, double timeout, Env **env);
bool env_is_remote(const Env *env); /* whether it runs in another program, so that its state cannot be read, saved or set */
/* Opens a recipe's rl.env: a name or file with arguments, {id: ..., key: value, ...}, {command: [prog, arg, ...], timeout: 30, max_episode_steps: N}.
 * env->world is its finite MDP, if it is one, even if observations are not state numbers (Blackjack-v1). ST_CONFIG with the line for an invalid
 * value; else fails as env_new, mdp_open and env_new_command do. */
Status env_from_recipe(const Yaml *node, int64_t copies, Env **env);
/* The spec of rl.env as one text for env_new and mdp_open: "FrozenLake-v1:map_name=8x8". ST_CONFIG also for {command: ...}, which has no such
 * text. */
Status env_spec(const Yaml *node, Str *spec);
/* If the observations of a finite world are not its state numbers, replaces *env by the same world with state numbers as observations, not started.
 * Otherwise does nothing. ST_INPUT, ST_RESOURCE: *env is unchanged. */
Status env_number_states(Env **env);
void env_free(Env *env);         /* NULL is fine */
const char *env_id_at(size_t i); /* built-in environments, then worlds; NULL after the last */

/* Starts an episode in every copy. The same seed gives the same episodes for the same actions. Fails only for an environment in another program; the
 * next env_step reports the failure too. */
Status env_reset(Env *env, uint64_t seed);
/* Call it after a resume, when seed, counts, lengths, observations, states and `played` are restored: replays a program's episodes with the same
 * seeds and actions. Episodes that differ in the replay, or are longer than max_played, are truncated in the next step, with a warning. Errors of the
 * program. */
Status env_resume(Env *env);
/* Starts the next episode of one copy. */
Status env_start(Env *env, int64_t copy);
/* One step of every copy. `actions`: (copies, action.size), checked before anything moves: ST_INPUT names the copy and what is allowed. The
 * environment clips numbers outside a box's bounds; NaN and infinities are errors. With `auto_reset` a copy whose episode ended starts the next one
 * at once: `observations` has its first observation, `final_observations` the last one of the old episode. Without it the copy idles, with reward 0
 * and unchanged flags and state, until env_start, env_reset or env_set_state. */
Status env_step(Env *env, const double *actions, bool auto_reset);

/* The internal state of a copy is state_size numbers at env->states + copy * state_size. Setting it starts an episode in that state (length 0).
 * ST_INPUT for an invalid state. */
Status env_set_state(Env *env, int64_t copy, const double *state);

#endif
