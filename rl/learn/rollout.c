/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "rl/learn/rollout.h"

void rollout_init(Rollout *rollout, Moments *observed, RewardScale *scale) { *rollout = (Rollout){.observed = observed, .scale = scale}; }

Status rollout_reserve(Rollout *rollout, const Learner *learner, bool values) {
    if (rollout->T) return ST_OK;
    Trajectory *batch = &rollout->batch;
    const Env *env = learner->env;
    Arena *arena = learner->arena;
    size_t n, T = (size_t)learner->recipe->rl_num_steps, B = (size_t)env->copies, obs_size = (size_t)env->observation.size,
              size = (size_t)env->action.size;
    if (!size_mul(T, B, &n) || n > SIZE_MAX / sizeof(double) / (obs_size + size))
        return status_fail(ST_RESOURCE, "%zu steps of %zu copies do not fit into memory", T, B);
    *batch = (Trajectory){.T = (int64_t)T, .B = (int64_t)B, .obs_size = (int64_t)obs_size};
    if (!(batch->obs = arena_alloc(arena, n * obs_size * sizeof(double))) || !(batch->logprobs = arena_alloc(arena, n * sizeof(double))) ||
        !(batch->rewards = arena_alloc(arena, n * sizeof(double))) || !(batch->terminated = arena_alloc(arena, n)) ||
        !(batch->truncated = arena_alloc(arena, n)) || !(batch->valid = arena_alloc(arena, n)) ||
        !(rollout->actions = arena_alloc(arena, n * size * sizeof(double))) || !(rollout->advantages = arena_alloc(arena, n * sizeof(double))) ||
        !(rollout->returns = arena_alloc(arena, n * sizeof(double))) || !(rollout->seen = arena_alloc(arena, B * obs_size * sizeof(double))) ||
        !(rollout->allowed = arena_alloc(arena, B * size * sizeof(double))))
        return ST_RESOURCE;
    rollout->T = batch->T;
    if (!values) return ST_OK;
    batch->values = arena_alloc(arena, n * sizeof(double));
    rollout->bootstrap.final_values = rollout->final_values = arena_zero(arena, n * sizeof(double));
    rollout->bootstrap.last_values = rollout->last_values = arena_zero(arena, B * sizeof(double));
    return batch->values && rollout->final_values && rollout->last_values ? ST_OK : ST_RESOURCE;
}

/* Observations of all copies, normalised if the recipe asks for it. */
static const double *as_seen(Rollout *rollout, const Env *env, const double *observations) {
    if (!rollout->observed) return observations;
    moments_normalise(rollout->observed, observations, env->copies, rollout->seen);
    return rollout->seen;
}

static Status estimate(Policy *policy, const double *seen, int64_t n, double *values) {
    TRY(policy_forward(policy, seen, n, POLICY_VALUES, false));
    memcpy(values, policy->values, (size_t)n * sizeof *values);
    return ST_OK;
}

/* Draws the actions of row t. */
static Status rollout_choose(Rollout *rollout, Learner *learner, Policy *policy, int64_t t) {
    const Env *env = learner->env;
    int64_t B = env->copies, obs_size = env->observation.size, size = env->action.size;
    double *obs = rollout->batch.obs + t * B * obs_size, *actions = rollout->actions + t * B * size;
    bool *valid = rollout->batch.valid + t * B;
    for (int64_t b = 0; b < B; b++) valid[b] = !learner->between_episodes[b];
    if (rollout->observed) moments_add(rollout->observed, env->observations, valid, B);
    memcpy(obs, as_seen(rollout, env, env->observations), (size_t)(B * obs_size) * sizeof *obs);
    TRY(policy_forward(policy, obs, B, POLICY_ACTIONS, false));
    policy_sample(policy, learner_key(learner, RNG_SAMPLE, (uint64_t)t), actions, rollout->batch.logprobs + t * B);
    memcpy(rollout->allowed, actions, (size_t)(B * size) * sizeof *actions);
    space_clip(&env->action, rollout->allowed, B);
    return ST_OK;
}

/* Stores the results of the step of row t. The next step overwrites final observations, so their values are estimated now, if a time limit ended the
 * episode. */
static Status record(Rollout *rollout, Learner *learner, Policy *policy, int64_t t) {
    Trajectory *batch = &rollout->batch;
    const Env *env = learner->env;
    int64_t B = env->copies;
    bool cut = false;
    memcpy(batch->rewards + t * B, env->rewards, (size_t)B * sizeof *batch->rewards);
    memcpy(batch->terminated + t * B, env->terminated, (size_t)B);
    memcpy(batch->truncated + t * B, env->truncated, (size_t)B);
    if (rollout->scale) reward_scale_apply(rollout->scale, batch->rewards + t * B, env->terminated, env->truncated, batch->valid + t * B);
    for (int64_t b = 0; b < B; b++) cut |= env->truncated[b] && !env->terminated[b];
    return cut && rollout->final_values ? estimate(policy, as_seen(rollout, env, env->final_observations), B, rollout->final_values + t * B) : ST_OK;
}

/* Estimates the values of all rows, and of the observations after the last row. */
static Status value_rows(Rollout *rollout, Learner *learner, Policy *policy) {
    Trajectory *batch = &rollout->batch;
    if (!batch->values) return ST_OK;
    TRY(estimate(policy, batch->obs, batch->T * batch->B, batch->values));
    return estimate(policy, as_seen(rollout, learner->env, learner->env->observations), batch->B, rollout->last_values);
}

Status rollout_fill(Rollout *rollout, Learner *learner, Policy *policy) {
    TRY(rollout_reserve(rollout, learner, policy->has_values));
    for (int64_t t = 0; t < rollout->T; t++) {
        TRY(rollout_choose(rollout, learner, policy, t));
        TRY(learner_step(learner, rollout->allowed));
        TRY(record(rollout, learner, policy, t));
    }
    return value_rows(rollout, learner, policy);
}

Status rollout_episodes(Rollout *rollout, Learner *learner, Policy *policy) {
    TRY(rollout_reserve(rollout, learner, policy->has_values));
    int64_t B = rollout->batch.B, playing = B;
    TRY(learner_restart(learner));
    if (rollout->scale) reward_scale_restart(rollout->scale);
    for (rollout->batch.T = 0; playing > 0 && rollout->batch.T < rollout->T; rollout->batch.T++) {
        int64_t t = rollout->batch.T;
        TRY(rollout_choose(rollout, learner, policy, t));
        TRY(learner_play(learner, rollout->allowed));
        TRY(record(rollout, learner, policy, t));
        playing = 0;
        for (int64_t b = 0; b < B; b++) playing += !learner->between_episodes[b];
    }
    return value_rows(rollout, learner, policy);
}
