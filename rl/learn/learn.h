/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that learn from an environment: the training loop with its run directory, and the evaluation of the learned policy.
 *
 *     TRY(learn_run(&(LearnConfig){.recipe = recipe}, &result));                         // metrics, checkpoints, output/policy.safetensors
 *     TRY(learn_evaluate("runs/cartpole", &(EvaluationConfig){.episodes = 100}, &evaluation));
 */
#ifndef TUNE_LEARN_H
#define TUNE_LEARN_H

#include "lib/train/training.h"
#include "rl/learn/learner.h"

typedef struct LearnProgress {
    int64_t update, steps, total_steps; /* steps: of the environment */
    int64_t episodes;                   /* ended so far */
    double reward;                      /* mean return of the episodes that ended in this update; NaN: none */
    double steps_per_second, seconds_left;
} LearnProgress;

typedef struct LearnConfig {
    const Recipe *recipe;
    TrainingOptions options;
    void (*on_plan)(void *context, const Learner *learner, const TrainMemory *memory); /* before the first step; may be NULL */
    void (*on_progress)(void *context, const LearnProgress *progress);                 /* after each update; may be NULL */
    /* Called at the end if the algorithm has values of numbered states; may be NULL */
    void (*on_values)(void *context, const Learner *learner, const double *learned, const double *exact);
    void *context;
} LearnConfig;

typedef struct LearnResult {
    int64_t updates, steps, episodes;
    double last_reward, best_reward; /* mean return in the last (best) update in which episodes ended; NaN: none */
    double seconds;
    bool already_finished;
} LearnResult;

/* Learns from the run's checkpoint (or from the start) until rl.total_steps. ST_INTERRUPTED after interrupt_request with a checkpoint saved;
 * ST_NUMERIC when a metric of an update or a learned number is not finite; otherwise fails as run_open and learner_new do. rl_check_keys, not this
 * function, checks for keys that the algorithm does not read. */
Status learn_run(const LearnConfig *config, LearnResult *result);

typedef struct EvaluationConfig {
    int64_t episodes; /* from 1 */
    bool sample;      /* sample actions as in training instead of taking the best ones */
    uint64_t seed;
    void (*on_step)(void *context, const Env *env, const double *actions); /* called with copy 0 after each step; may be NULL */
    void *context;
} EvaluationConfig;
/* std: of the population, 0 for one episode; cut: episodes ended by a step limit; limit: the step limit set by the evaluation, 0: the environment's
 * own
 */
typedef struct Evaluation {
    int64_t episodes;
    double mean_return, std_return, mean_length;
    int64_t cut, limit;
} Evaluation;
/* Plays episodes with the policy of a run directory. Where the environment has no step limit, episodes have at most 10000 steps (300 with on_step).
 * All copies play the same number of episodes, so that short episodes are not over-represented. ST_INPUT: no such run, or no policy in it. */
Status learn_evaluate(const char *run_dir, const EvaluationConfig *config, Evaluation *evaluation);

#endif
