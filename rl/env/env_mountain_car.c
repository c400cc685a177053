/* SPDX-License-Identifier: Apache-2.0 */
/* A car whose engine is too weak for the hill (Moore 1990). State: position, velocity. */
#include "rl/env/env_kinds.h"

#include <math.h>

static void env_mountain_car_start(const void *context, EnvDraws *draws, double *state) {
    (void)context;
    state[0] = env_uniform(draws, -0.6, -0.4);
    state[1] = 0;
}

static bool env_mountain_car_step(const void *context, EnvDraws *draws, const double *action, double *state, double *reward) {
    (void)draws;
    double velocity = state[1] + ((*action - 1) * 0.001 + cos(3 * state[0]) * -0.0025);
    velocity = fmin(fmax(velocity, -0.07), 0.07);
    double position = fmin(fmax(state[0] + velocity, -1.2), 0.6);
    if (position <= -1.2 && velocity < 0) velocity = 0;
    state[0] = position;
    state[1] = velocity;
    *reward = -1;
    double goal_velocity = ((const double *)context)[0];
    return position >= 0.5 && velocity >= goal_velocity;
}

static void env_mountain_car_observe(const void *context, const double *state, double *observation) {
    (void)context;
    env_observe_f32(state, 2, observation);
}

const EnvKind env_kind_mountain_car = {
    .id = "MountainCar-v0",
    .max_steps = 200,
    .state_size = 2,
    .action = {.n = 3, .size = 1},
    .observation = {.size = 2, .low = (const double[]){-1.2, -0.07}, .high = (const double[]){0.6, 0.07}},
    .arguments = {{.name = "goal_velocity", .value = 0}},
    .start = env_mountain_car_start,
    .step = env_mountain_car_step,
    .observe = env_mountain_car_observe,
};
