/* SPDX-License-Identifier: Apache-2.0 */
/* A pendulum with a weak motor, to be swung up. State: angle (0: up), its velocity. It never terminates. */
#include "rl/env/env_kinds.h"

#include <math.h>

#define PI 3.14159265358979323846

static void env_pendulum_start(const void *context, EnvDraws *draws, double *state) {
    (void)context;
    state[0] = env_uniform(draws, -PI, PI);
    state[1] = env_uniform(draws, -1, 1);
}

static double normalized(double angle) {
    double turned = fmod(angle + PI, 2 * PI);
    return (turned < 0 ? turned + 2 * PI : turned) - PI;
}

static bool env_pendulum_step(const void *context, EnvDraws *draws, const double *action, double *state, double *reward) {
    (void)draws;
    const double gravity = ((const double *)context)[0], dt = 0.05, torque = fmin(fmax(*action, -2), 2), angle = normalized(state[0]);
    *reward = -(angle * angle + 0.1 * (state[1] * state[1]) + 0.001 * (torque * torque));
    double velocity = state[1] + (3 * gravity / 2 * sin(state[0]) + 3.0 * torque) * dt;
    state[1] = fmin(fmax(velocity, -8), 8);
    state[0] += state[1] * dt;
    return false;
}

static void env_pendulum_observe(const void *context, const double *state, double *observation) {
    (void)context;
    const double values[3] = {cos(state[0]), sin(state[0]), state[1]};
    env_observe_f32(values, 3, observation);
}

const EnvKind env_kind_pendulum = {
    .id = "Pendulum-v1",
    .max_steps = 200,
    .state_size = 2,
    .action = {.size = 1, .low = (const double[]){-2}, .high = (const double[]){2}},
    .observation = {.size = 3, .low = (const double[]){-1, -1, -8}, .high = (const double[]){1, 1, 8}},
    .arguments = {{.name = "g", .value = 10}},
    .start = env_pendulum_start,
    .step = env_pendulum_step,
    .observe = env_pendulum_observe,
};
