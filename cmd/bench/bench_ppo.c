/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench ppo: environment steps per second of PPO on CartPole, including updates, with the settings with which other programs are measured. */
#include "cmd/app/terminal.h"
#include "lib/base/system.h"
#include "cmd/bench/bench.h"
#include "cmd/common/runtime.h"

#include "rl/learn/learner.h"

typedef struct PpoCase {
    const char *name, *settings[16];
} PpoCase;
#define SHARED                                                                                                                 \
    "output=none", "rl.algorithm=ppo", "rl.env=CartPole-v1", "rl.gamma=0.99", "train.lr_scheduler=constant", "train.eps=1e-5", \
        "train.max_grad_norm=0.5"
static const PpoCase cases[] = {
    /* defaults of stable-baselines3: 10 passes over 16384 steps in batches of 64 */
    {"sb3",
     {SHARED, "rl.total_steps=131072", "rl.num_envs=8", "rl.num_steps=2048", "rl.num_iterations=10", "rl.num_minibatches=256", "rl.clip_value=0",
      "rl.vf_coef=1"}},
    /* defaults of cleanrl: 4 passes over 512 steps in batches of 128 */
    {"cleanrl",
     {SHARED, "rl.total_steps=131072", "rl.num_envs=4", "rl.num_steps=128", "rl.num_iterations=4", "rl.num_minibatches=4", "rl.clip_value=0.2",
      "rl.ent_coef=0.01", "rl.vf_coef=0.5"}},
};
#undef SHARED

/* Seconds of the whole run and of its best update, the one that other programs disturbed least. */
static Status learn(Learner *learner, double *seconds, double *best) {
    double began = clock_seconds();
    *best = 0;
    while (learner->steps < learner->total_steps) {
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
        double before = clock_seconds();
        int64_t steps = learner->steps;
        TRY(learner->algorithm->update(learner));
        learner->updates++;
        *best = MAX(*best, (double)(learner->steps - steps) / (clock_seconds() - before));
    }
    *seconds = clock_seconds() - began;
    return ST_OK;
}

static Status run_case(const Command *command, const PpoCase *settings) {
    size_t n = 0;
    Recipe *recipe;
    Learner *learner = NULL;
    double seconds = 0, best = 0;
    while (settings->settings[n]) n++;
    TRY(recipe_read(NULL, settings->settings, n, &recipe));
    Status status = learner_new(recipe, runtime_choose("f32").device, recipe->rl_num_envs, &learner);
    if (status == ST_OK) status = learn(learner, &seconds, &best);
    if (status == ST_OK && command->json)
        print_result(
            "{\"work\":\"ppo\",\"settings\":\"%s\",\"env_steps\":%lld,\"seconds\":%.3f,\"steps_per_second\":%.0f,\"best_steps_per_second\":%.0f}\n",
            settings->name, (long long)learner->steps, seconds, (double)learner->steps / seconds, best);
    else if (status == ST_OK)
        print_result("%-8s %10lld %10.3f %10.0f %10.0f\n", settings->name, (long long)learner->steps, seconds, (double)learner->steps / seconds,
                     best);
    learner_free(learner);
    recipe_free(recipe);
    return status;
}

Status bench_ppo(const Command *command) {
    if (!command->json) print_result("%-8s %10s %10s %10s %10s\n", "as in", "steps", "seconds", "steps/s", "best");
    for (size_t i = 0; i < COUNT_OF(cases); i++) TRY(run_case(command, &cases[i]));
    return ST_OK;
}
