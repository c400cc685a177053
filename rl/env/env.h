/* SPDX-License-Identifier: Apache-2.0 */
/* Environments as they are sampled: many copies in one array, one call a step. `terminated` (the process ended: no value behind it) and `truncated`
 * (the time limit: the value behind it counts) are kept apart. Ids, dynamics, rewards and time limits are Gymnasium's, in double throughout.
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
 * Random numbers are a function of (seed, copy, how often that copy was started or stepped since env_reset), so a copy's episodes depend neither on
 * threads nor on the number of copies beside it.
 */
#ifndef TUNE_ENV_H
#define TUNE_ENV_H

#include "rl/mdp/mdp.h"

/* What an action or an observation is. Discrete: one whole number 0..n-1. Box: `size` numbers, each within its bounds (infinite where there are
 * none). */
typedef struct Space {
    int64_t n;                /* 0: a box */
    int64_t size;             /* numbers; 1 when discrete */
    const double *low, *high; /* (size); NULL when discrete */
    /* Of discrete actions: (observations, n), whether there is the action where that observation is seen; NULL: always */
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
    int64_t max_steps; /* of an episode, then it is truncated; 0: no limit */
    Space action, observation;

    /* What the last env_reset, env_step or env_set_state left; rows of copies, owned by the environment. */
    double *observations;         /* (copies, observation.size), Gymnasium's float32 values where it gives float32 */
    double *final_observations;   /* (copies, observation.size): the last one of an episode; written where the step ended it */
    double *rewards;              /* (copies) */
    bool *terminated, *truncated; /* (copies); both when the last allowed step also ends the process, as in Gymnasium */
    int64_t *lengths;             /* (copies): steps of the episode so far */
    int64_t *final_lengths;       /* (copies): steps of the last episode that ended */

    double *states;   /* (copies, state_size); see env_set_state */
    uint64_t *counts; /* (copies): starts and steps since env_reset */
    uint64_t seed;
    bool *begins;        /* (copies): scratch */
    const void *context; /* what the kind works with: its arguments, or a Mdp */
    NamedMdp *world;     /* the finite MDP that this is, owned; NULL: it is none, or somebody else's */
    void *remote;        /* of an environment that lives in another program ... */
    double *played;      /* ... and actions of the episodes so far, of at most max_played steps each (copies, max_played, action.size) */
    int64_t max_played;
    Failure failure; /* which that program had; nothing works any more */
    Arena *arena;
} Env;

/* `spec`: ID or ID:key=value,key=value of envs.def or else worlds.def, or an MDP file. Every id takes max_episode_steps=N (0: none); others are in
 * the files. The environment is not started yet. ST_CONFIG: an unknown id (with the nearest one), an unknown argument or a bad value (named);
 * ST_RESOURCE. The caller calls env_free. */
Status env_new(const char *spec, int64_t copies, Env **env);
/* mdp_open_discounted of what may be the name of an environment: one that is no finite world is ST_CONFIG, which says that it cannot be solved. */
Status env_open_world(const char *spec, double gamma, NamedMdp **world);
/* The environment that draws from a Mdp, which is borrowed and outlives it. A state and its observation are the state's number; an episode begins in
 * a state drawn from `start` (n_states probabilities, borrowed; NULL: every live state alike) and terminates on entering a terminal state. ST_INPUT
 * when `start` has a negative number, does not sum to 1 within 1e-9, or starts in no live state. */
Status env_new_mdp(const Mdp *mdp, const double *start, int64_t max_steps, int64_t copies, Env **env);
/* The same over a world, with its start, its time limit and what is seen of its states. */
Status env_new_world(const NamedMdp *world, int64_t copies, Env **env);
/* An environment that is a program (argv: its n words). It is asked in JSON lines on its stdin, and answers with one line each on its stdout:
 * docs/protocols.md has the requests. Real-valued actions are clipped to their bounds first. `timeout`: seconds for each answer. A program that ends
 * or does not answer is started again, with a warning and after a pause that grows with each failure; its running episodes are truncated. After six
 * failures in a row (100 steps end a row): ST_RESOURCE with what it wrote to stderr. ST_INPUT: it cannot be started, or an answer is wrong; the text
 * shows it. States cannot be read or set (state_size 0). The calling program ignores SIGPIPE. */
Status env_new_command(const char *const *argv, size_t n, int64_t copies, double timeout, Env **env);
bool env_is_remote(const Env *env); /* lives in another program: has no state to read, keep or set */
/* What a recipe's rl.env says: a name or file with arguments, {id: ..., key: value, ...}, {command: [prog, arg, ...], timeout: 30, max_episode_steps:
 * N}. The finite MDP behind it is env->world, also where observations are not the numbers of its states (Blackjack-v1). ST_CONFIG with the line for
 * what makes no sense; else as env_new, mdp_open and env_new_command. */
Status env_from_recipe(const Yaml *node, int64_t copies, Env **env);
/* The same as one text, for env_new and mdp_open: "FrozenLake-v1:map_name=8x8". ST_CONFIG also for {command: ...}, which has none. */
Status env_spec(const Yaml *node, Str *spec);
/* Where the environment has a world whose states it does not show by their numbers: the same game with those, in its place, not started. Else
 * nothing. ST_INPUT, ST_RESOURCE: it stays as it was. */
Status env_number_states(Env **env);
void env_free(Env *env);         /* NULL is fine */
const char *env_id_at(size_t i); /* built-in environments and worlds by turns; NULL behind the last */

/* Starts an episode in every copy. The same seed gives the same episodes for the same actions. Fails only where another program is asked, which the
 * next env_step says too. */
Status env_reset(Env *env, uint64_t seed);
/* Behind a resume, when seed, counts, lengths, observations, states and `played` are what they were: brings a program's episodes to where they were,
 * with the same seeds and actions. Episodes that do not come out the same, or are longer than max_played, are truncated in the next step, with a
 * warning. Faults of the program. */
Status env_resume(Env *env);
/* Starts the next episode of one copy. */
Status env_start(Env *env, int64_t copy);
/* One step of every copy. `actions`: (copies, action.size), checked before anything moves: ST_INPUT names the copy and what is allowed. Numbers
 * outside of a box's bounds are the kind's to clip, NaN and infinities are refused. With `auto_reset` a copy whose episode ended begins the next one
 * at once: `observations` is its first, `final_observations` the last of the old one. Without it the copy rests: reward 0, flags and state as they
 * are in every further step, until env_start, env_reset or env_set_state. */
Status env_step(Env *env, const double *actions, bool auto_reset);

/* The whole internal state of a copy, state_size numbers, is env->states + copy * state_size. Setting it begins an episode there (length 0). ST_INPUT
 * for numbers that are no state. */
Status env_set_state(Env *env, int64_t copy, const double *state);

#endif
