/* SPDX-License-Identifier: Apache-2.0 */
/* What learns from an environment. An algorithm is a table of functions; the loop (learn.h) calls `update` until rl.total_steps are done, and keeps
 * metrics, checkpoints and evaluations.
 *
 *     static Status update(Learner *learner) {                          // one update of, say, Q-learning
 *         for (int64_t t = 0; t < learner->recipe->rl_num_steps; t++) {
 *             choose(table, env->observations, actions);
 *             TRY(learner_step(learner, actions));                      // env_step, and account of the episodes that end
 *             learn(table, env->rewards, env->terminated, env->final_observations);
 *         }
 *         learner_metric(learner, "epsilon", epsilon);
 *         return ST_OK;
 *     }
 */
#ifndef TUNE_LEARNER_H
#define TUNE_LEARNER_H

#include "lib/base/tally.h"
#include "rl/loop/loop.h"
#include "rl/env/env.h"
#include "rl/mdp/mdp.h"

typedef struct Learner Learner;
struct Step; /* of table.h */

/* Keys that several read (Algorithm.keys). Each list ends with a blank. */
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
    bool discrete, box; /* the actions that it can choose */
    const char *keys;   /* of the recipe that it reads, beside those that all do (algorithm_keys.h) */
    /* Makes learner->self in learner->arena, from learner->recipe and learner->env. ST_CONFIG for keys that don't go together. */
    Status (*open)(Learner *learner);
    /* Takes what memory updates need beyond that, without writing to it, and adds to `memory` the weights, gradients, optimizer and activations of
     * its networks. NULL: there is nothing to add. */
    Status (*reserve)(Learner *learner, TrainMemory *memory);
    /* Some environment steps and what is learned from them; the same bits for any number of threads. */
    Status (*update)(Learner *learner);
    void (*learn)(Learner *learner, const struct Step *step); /* what tabular_update calls for each step; NULL: `update` is another one */
    /* Actions (n, action.size) for n observations; greedy: the best ones, else as while training, drawn from `key`. Changes nothing of what is
     * learned. */
    Status (*act)(Learner *learner, const double *observations, int64_t n, bool greedy, RngKey key, double *actions);
    /* What acts: the policy as it is written to policy.safetensors. */
    void (*policy)(Learner *learner, StateList *states);
    /* All else that the next update depends on, beside the policy: optimiser, replay, traces. NULL: nothing. */
    void (*list_state)(Learner *learner, StateList *states);
    /* Values of all states, where the states are numbers, and the exact ones to compare with where the world is known: each n_states; learned is NaN
     * where no episode comes to. false: there are none. NULL: never. */
    bool (*values)(Learner *learner, double *learned, double *exact);
    void (*close)(Learner *learner); /* what is not in the arena; NULL: nothing */
} Algorithm;

#define ALGORITHM(name) extern const Algorithm algorithm_##name;
#include "rl/learn/algorithms.def"
#undef ALGORITHM
const Algorithm *algorithm_at(size_t i); /* NULL behind the last */

/* Episodes that ended since the last report. */
typedef struct Episodes {
    Tally returns, lengths;
} Episodes;

struct Learner {
    const Recipe *recipe;
    const Algorithm *algorithm;
    Env *env;              /* rl.num_envs copies, owned */
    const NamedMdp *world; /* what is known of it where it is a finite Mdp, else NULL; the environment's */
    Arena *arena;
    void *self; /* the algorithm's */
    uint64_t seed;
    int64_t steps;          /* environment steps done, all copies together */
    int64_t updates;        /* finished */
    int64_t total_steps;    /* of the whole run; 0 when only evaluated */
    double *returns;        /* (copies): of the episode so far */
    bool *between_episodes; /* (copies): the episode is over and no other was begun (learner_play) */
    Episodes episodes;
    int64_t all_episodes;
    Metrics *metrics; /* of this update; NULL: nobody asks */
};

/* Opens the recipe's environment and algorithm, untrained, with the environment's copies in their first episodes. ST_CONFIG: unknown algorithm, or
 * one that does not fit the environment's actions or observations (both named). The caller calls learner_free. */
Status learner_new(const Recipe *recipe, int64_t copies, Learner **learner);
void learner_free(Learner *learner); /* NULL is fine */
/* All that learning will hold, into `memory`, before the first update. resident: of the process before learner_new. ST_RESOURCE with what to lower
 * when the machine has not as much. */
Status learner_memory(Learner *learner, uint64_t resident, TrainMemory *memory);
/* For Algorithm.reserve: adds what trained parameters take. */
void memory_add_networks(TrainMemory *memory, const Params *params, const OptimizerConfig *optimizer);
/* env_step with copies that begin again, and account of steps and returns. The rewards are the environment's own. */
Status learner_step(Learner *learner, const double *actions);
/* Whole episodes, one of each copy: learner_restart begins them, with learner_play a copy whose episode has ended rests (its actions are not looked
 * at, and are no steps). */
Status learner_restart(Learner *learner);
Status learner_play(Learner *learner, const double *actions);
/* A number of this update for metrics.jsonl; as metric_set. */
void learner_metric(Learner *learner, const char *name, double value);
/* A number key of the recipe that goes from `start` to `end` in the first `share` of the run. */
double learner_linear(const Learner *learner, double start, double end, double share);
/* Draws of this update: number i is the same whatever else was drawn. `stream`: RNG_SAMPLE, RNG_EXPLORE, RNG_SHUFFLE... */
RngKey learner_key(const Learner *learner, RngStream stream, uint64_t number);
/* All that a checkpoint holds. */
void learner_list_state(Learner *learner, StateList *states);

#endif
