/* SPDX-License-Identifier: Apache-2.0 */
/* The mountain car with a force from [-1, 1]. State: position, velocity. Gymnasium rounds the state to float32 after each step; here it stays double.
 */
#include "rl/env/env_kinds.h"

#include <math.h>

static void env_mountain_car_continuous_start(const void *context, EnvDraws *draws, double *state) {
    (void)context;
    state[0] = env_uniform(draws, -0.6, -0.4);
    state[1] = 0;
}

static bool env_mountain_car_continuous_step(const void *context, EnvDraws *draws, const double *action, double *state, double *reward) {
    (void)draws;
    double force = fmin(fmax(*action, -1), 1);
    double velocity = state[1] + (force * 0.0015 - 0.0025 * cos(3 * state[0]));
    velocity = fmin(fmax(velocity, -0.07), 0.07);
    double position = fmin(fmax(state[0] + velocity, -1.2), 0.6);
    if (position <= -1.2 && velocity < 0) velocity = 0;
    state[0] = position;
    state[1] = velocity;
    double goal_velocity = ((const double *)context)[0];
    bool arrived = position >= 0.45 && velocity >= goal_velocity;
    *reward = (arrived ? 100.0 : 0.0) - *action * *action * 0.1; /* the cost is of the action before clipping */
    return arrived;
}

static void env_mountain_car_continuous_observe(const void *context, const double *state, double *observation) {
    (void)context;
    env_observe_f32(state, 2, observation);
}

const EnvKind env_kind_mountain_car_continuous = {
    .id = "MountainCarContinuous-v0",
    .max_steps = 999,
    .state_size = 2,
    .action = {.size = 1, .low = (const double[]){-1}, .high = (const double[]){1}},
    .observation = {.size = 2, .low = (const double[]){-1.2, -0.07}, .high = (const double[]){0.6, 0.07}},
    .arguments = {{.name = "goal_velocity", .value = 0}},
    .start = env_mountain_car_continuous_start,
    .step = env_mountain_car_continuous_step,
    .observe = env_mountain_car_continuous_observe,
};
