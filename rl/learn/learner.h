/* SPDX-License-Identifier: Apache-2.0 */
/* Algorithms that learn from an environment. An algorithm is a table of functions; the loop (learn.h) calls `update` until rl.total_steps are done,
 * and writes metrics, checkpoints and evaluations.
 *
 *     static Status update(Learner *learner) {                          // one update of, say, Q-learning
 *         for (int64_t t = 0; t < learner->recipe->rl_num_steps; t++) {
 *             choose(table, env->observations, actions);
 *             TRY(learner_step(learner, actions)); // env_step, and counts the episodes that end
 *             learn(table, env->rewards, env->terminated, env->final_observations);
 *         }
 *         learner_metric(learner, "epsilon", epsilon);
 *         return ST_OK;
 *     }
 */
#ifndef TUNE_LEARNER_H
#define TUNE_LEARNER_H

#include "lib/base/tally.h"
#include "lib/train/training.h"
#include "rl/env/env.h"
#include "rl/mdp/mdp.h"

typedef struct Learner Learner;
struct Step; /* of table.h */

/* Keys that several algorithms read (Algorithm.keys). Each list ends with a blank. */
#define KEYS_OF_OPTIMIZER                                                                                                                                   \
    "train.learning_rate train.optimizer train.betas train.eps train.momentum train.weight_decay train.lr_scheduler train.warmup_steps train.min_lr_ratio " \
    "train.lr_num_cycles train.lr_power train.lr_timescale train.lr_decay_steps train.max_grad_norm "
#define KEYS_OF_NETWORKS KEYS_OF_OPTIMIZER "policy.hidden policy.activation policy.orthogonal "
#define KEYS_OF_ROLLOUTS \
    KEYS_OF_NETWORKS "policy.shared policy.log_std_init ent_coef vf_coef normalize_advantage normalize_observations normalize_rewards "
#define KEYS_OF_REPLAY KEYS_OF_NETWORKS "train.batch_size n_step buffer_size learning_starts train_every gradient_steps tau target_every "
#define KEYS_OF_TABLES "initial_value tilings tiles tile_low tile_high "
#define KEYS_OF_EXPLORING "epsilon_start epsilon_end epsilon_fraction epsilon_schedule epsilon_visits "
#define KEYS_OF_STEP_SIZES "alpha alpha_schedule alpha_end alpha_visits "

/* One file algorithm_<name>.c and one line of algorithms.def each. */
typedef struct Algorithm {
    const char *name;   /* rl.algorithm */
    const char *help;   /* one line, with the source */
    bool tabular;       /* learns a table of numbered states, or of tiles (rl.tilings) */
    bool discrete, box; /* kinds of action spaces that it supports */
    const char *keys;   /* recipe keys that it reads in addition to those that all algorithms read (algorithm_keys.h) */
    /* Makes learner->self in learner->arena, from learner->recipe and learner->env. ST_CONFIG for keys that exclude each other. */
    Status (*open)(Learner *learner);
    /* Allocates further memory that updates need, without writing to it, and adds the weights, gradients, optimizer states and activations of its
     * networks to `memory`. NULL: there is nothing to add. */
    Status (*reserve)(Learner *learner, TrainMemory *memory);
    /* Takes some environment steps and learns from them; gives the same bits for any number of threads. */
    Status (*update)(Learner *learner);
    void (*learn)(Learner *learner, const struct Step *step); /* called by tabular_update for each step; NULL: `update` is another function */
    /* Writes actions (n, action.size) for n observations; greedy: the best actions, else sampled as in training, from `key`. Does not change what was
     * learned. */
    Status (*act)(Learner *learner, const double *observations, int64_t n, bool greedy, RngKey key, double *actions);
    /* Lists the policy, as written to policy.safetensors. */
    void (*policy)(Learner *learner, StateList *states);
    /* Lists all other state that the next update depends on: optimiser, replay, traces. NULL: none. */
    void (*list_state)(Learner *learner, StateList *states);
    /* Writes the learned values of all states, if states are numbered, and the exact values, if the world is known; each n_states. `learned` is NaN
     * for states that no episode reaches. Returns false if there are none. NULL: never. */
    bool (*values)(Learner *learner, double *learned, double *exact);
    void (*close)(Learner *learner); /* frees what is not in the arena; may be NULL */
} Algorithm;

#define ALGORITHM(name) extern const Algorithm algorithm_##name;
#include "rl/learn/algorithms.def"
#undef ALGORITHM
const Algorithm *algorithm_at(size_t i); /* NULL after the last */

/* Sums over the episodes that ended since the last report. */
typedef struct Episodes {
    Tally returns, lengths;
} Episodes;

struct Learner {
    const Recipe *recipe;
    const Device *device; /* of networks */
    const Algorithm *algorithm;
    Env *env;              /* rl.num_envs copies, owned */
    const NamedMdp *world; /* the environment's finite MDP, borrowed; NULL: it has none */
    Arena *arena;
    void *self; /* the algorithm's own struct */
    uint64_t seed;
    int64_t steps;          /* environment steps done, all copies together */
    int64_t updates;        /* finished */
    int64_t total_steps;    /* environment steps of the run; 0 when only evaluated */
    double *returns;        /* (copies): of the episode so far */
    bool *between_episodes; /* (copies): the episode is over and no other was begun (learner_play) */
    Episodes episodes;
    int64_t all_episodes;
    Metrics *metrics; /* metrics of this update; NULL: not wanted */
};

/* Opens the recipe's environment and algorithm, untrained, and starts the first episode of every copy. ST_CONFIG: an unknown algorithm, or one that
 * does not support the environment's actions or observations (both named). The caller calls learner_free. */
Status learner_new(const Recipe *recipe, const Device *device, int64_t copies, Learner **learner);
void learner_free(Learner *learner); /* NULL is fine */
/* Writes the memory that learning will use into `memory`, before the first update. resident: resident bytes of the process before learner_new.
 * ST_RESOURCE when the machine has less; the hint says what to lower. */
Status learner_memory(Learner *learner, uint64_t resident, TrainMemory *memory);
/* For Algorithm.reserve: adds the memory of trained parameters. */
void memory_add_networks(TrainMemory *memory, const Params *params, const OptimizerConfig *optimizer);
/* env_step with auto-reset; counts steps and sums returns. Rewards are those of the environment, not normalised. */
Status learner_step(Learner *learner, const double *actions);
/* One complete episode of each copy: learner_restart starts them, learner_play takes a step. A copy whose episode has ended rests: its actions are
 * ignored and do not count as steps. */
Status learner_restart(Learner *learner);
Status learner_play(Learner *learner, const double *actions);
/* Sets a metric of this update for metrics.jsonl, as metric_set. */
void learner_metric(Learner *learner, const char *name, double value);
/* Linear schedule from `start` to `end` over the first `share` of the run. */
double learner_linear(const Learner *learner, double start, double end, double share);
/* Key of this update's random numbers: draw i does not depend on other draws. `stream`: RNG_SAMPLE, RNG_EXPLORE, RNG_SHUFFLE... */
RngKey learner_key(const Learner *learner, RngStream stream, uint64_t number);
/* Lists the state that a checkpoint saves. */
void learner_list_state(Learner *learner, StateList *states);

#endif
