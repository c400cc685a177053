/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that learn from an environment: the training loop with its run directory, and the evaluation of the learned policy.
 *
 *     TRY(learn_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime}, NULL, &result));   // metrics, checkpoints, output/policy.safetensors
 *     TRY(learn_evaluate("runs/cartpole", &(EvaluationConfig){.episodes = 100}, &evaluation));
 */
#ifndef TUNE_LEARN_H
#define TUNE_LEARN_H

#include "lib/train/training.h"
#include "rl/learn/learner.h"

/* Gets the values of the environment's numbered states, learned and exact (Algorithm.values), at the end of a run whose algorithm has them. */
typedef void ShowValues(void *context, const Learner *learner, const double *learned, const double *exact);
/* Learns from the run's checkpoint (or from the start) until rl.total_steps. ST_INTERRUPTED after interrupt_request with a checkpoint saved;
 * ST_NUMERIC when a metric of an update or a learned number is not finite; otherwise fails as run_open and learner_new do. rl_check_keys, not this
 * function, checks for keys that the algorithm does not read. values: gets the config's context; may be NULL. */
Status learn_run(const TrainingConfig *config, ShowValues *values, TrainResult *result);

typedef struct EvaluationConfig {
    const Device *device;
    int64_t episodes; /* from 1 */
    bool sample;      /* sample actions as in training instead of taking the best ones */
    uint64_t seed;
    void (*on_step)(void *context, const Env *env, const double *actions); /* called with copy 0 after each step; may be NULL */
    void *context;
} EvaluationConfig;
typedef struct Evaluation {
    int64_t episodes;
    double mean_return, std_return, mean_length; /* std: of the population, 0 for one episode; length: environment steps */
    int64_t cut, limit; /* number of episodes that a step limit ended; the step limit that the evaluation set, 0: only the environment's own */
} Evaluation;
/* Plays episodes with the policy of a run directory. Where the environment has no step limit, episodes have at most 10000 steps (300 with on_step).
 * All copies play the same number of episodes, so that short episodes are not over-represented. ST_INPUT: no such run, or no policy in it. */
Status learn_evaluate(const char *run_dir, const EvaluationConfig *config, Evaluation *evaluation);

#endif
