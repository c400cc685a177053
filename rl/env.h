/* Environments as they are sampled: many copies in one array, one call a step. `terminated` (the process ended: no value behind it) and `truncated` (the time limit: the
 * value behind it counts) are kept apart. Ids, dynamics, rewards and time limits are Gymnasium's, in double throughout.
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
 * Random numbers are a function of (seed, copy, how often that copy was started or stepped since env_reset), so a copy's episodes depend neither on threads nor on the
 * number of copies beside it.
 */
#ifndef TUNE_ENV_H
#define TUNE_ENV_H

#include "rl/mdp.h"

#define ENV_WIDTH 8 /* the most numbers an action, an observation or a state has */

/* What an action or an observation is. Discrete: one whole number 0..n-1. Box: `size` numbers, each within its bounds (infinite where there are none). */
typedef struct Space {
    int64_t n;              /* 0: a box */
    int64_t size;           /* numbers; 1 when discrete */
    double low[ENV_WIDTH], high[ENV_WIDTH];
} Space;

typedef struct EnvKind EnvKind;
typedef struct Env {
    const EnvKind *kind;
    const char *id;
    int64_t copies, state_size;
    int64_t max_steps;      /* of an episode, then it is truncated; 0: no limit */
    Space action, observation;

    /* What the last env_reset, env_step or env_set_state left; rows of copies, owned by the environment. */
    double *observations;       /* (copies, observation.size), Gymnasium's float32 values where it gives float32 */
    double *final_observations; /* (copies, observation.size): the last one of an episode; written where the step ended it */
    double *rewards;            /* (copies) */
    bool *terminated, *truncated; /* (copies); both when the last allowed step also ends the process, as in Gymnasium */
    int64_t *lengths;           /* (copies): steps of the episode so far */
    int64_t *final_lengths;     /* (copies): steps of the last episode that ended */

    double *states;             /* (copies, state_size); see env_set_state */
    uint64_t *counts;           /* (copies): starts and steps since env_reset */
    uint64_t seed;
    const void *context;        /* what the kind works with: its arguments, or a Mdp */
    NamedMdp *world;            /* the finite MDP that env_new opened and this environment draws from, owned; NULL: it is none, or somebody else's */
    Arena *arena;
} Env;

/* `spec`: ID or ID:key=value,key=value of envs.def or else worlds.def, or an MDP file. Every id takes max_episode_steps=N (0: none); others are in the files. The environment is not started yet.
 * ST_CONFIG: an unknown id (with the nearest one), an unknown argument or a bad value (named); ST_RESOURCE. The caller calls env_free. */
Status env_new(const char *spec, int64_t copies, Env **env);
/* The environment that draws from a Mdp, which is borrowed and outlives it. A state and its observation are the state's number; an episode begins in a state drawn from `start`
 * (n_states probabilities, borrowed) and terminates on entering a terminal state. ST_INPUT when `start` has a negative number, does not sum to 1 within 1e-9, or starts in no live state. */
Status env_new_mdp(const Mdp *mdp, const double *start, int64_t max_steps, int64_t copies, Env **env);
/* The same over a world, with its start and time limit. ST_INPUT also when it does not say where episodes begin. */
Status env_new_world(const NamedMdp *world, int64_t copies, Env **env);
void env_free(Env *env); /* NULL is fine */

/* Starts an episode in every copy. The same seed gives the same episodes for the same actions. */
void env_reset(Env *env, uint64_t seed);
/* Starts the next episode of one copy. */
void env_start(Env *env, int64_t copy);
/* One step of every copy. `actions`: (copies, action.size), checked before anything moves: ST_INPUT names the copy and what is allowed. Numbers outside of a box's bounds are the kind's
 * to clip, NaN and infinities are refused. With `auto_reset` a copy whose episode ended begins the next one at once: `observations` is its first, `final_observations` the last
 * of the old one. Without it the copy rests: reward 0, flags and state as they are in every further step, until env_start, env_reset or env_set_state. */
Status env_step(Env *env, const double *actions, bool auto_reset);

/* The whole internal state of a copy, state_size numbers, is env->states + copy * state_size. Setting it begins an episode there (length 0). ST_INPUT for numbers that are no state. */
Status env_set_state(Env *env, int64_t copy, const double *state);

#endif
