/* SPDX-License-Identifier: Apache-2.0 */
/* A pole on a cart (Barto, Sutton, Anderson 1983), explicit Euler: positions move with the old velocities. State: x m, its velocity, angle rad, its
 * velocity. */
#include "rl/env/env_kinds.h"

#include <math.h>

#define FAR 2.4
#define ANGLE (12 * 2 * 3.14159265358979323846 / 360)

static void env_cart_pole_start(const void *context, EnvDraws *draws, double *state) {
    (void)context;
    for (int i = 0; i < 4; i++) state[i] = env_uniform(draws, -0.05, 0.05);
}

static bool env_cart_pole_step(const void *context, EnvDraws *draws, const double *action, double *state, double *reward) {
    (void)draws;
    const double gravity = 9.8, pole_mass = 0.1, mass = 1.0 + pole_mass, half_length = 0.5, tau = 0.02;
    const double force = *action > 0 ? 10.0 : -10.0, moment = pole_mass * half_length; /* kg m */
    const double x_dot = state[1], theta_dot = state[3], cosine = cos(state[2]), sine = sin(state[2]);
    double push = (force + moment * (theta_dot * theta_dot) * sine) / mass;
    double theta_acc = (gravity * sine - cosine * push) / (half_length * (4.0 / 3.0 - pole_mass * (cosine * cosine) / mass));
    double x_acc = push - moment * theta_acc * cosine / mass;
    state[0] += tau * x_dot;
    state[1] += tau * x_acc;
    state[2] += tau * theta_dot;
    state[3] += tau * theta_acc;
    bool fell = fabs(state[0]) > FAR || fabs(state[2]) > ANGLE;
    bool sutton_barto = ((const double *)context)[0] > 0;
    *reward = sutton_barto ? (fell ? -1 : 0) : 1;
    return fell;
}

static void env_cart_pole_observe(const void *context, const double *state, double *observation) {
    (void)context;
    env_observe_f32(state, 4, observation);
}

const EnvKind env_kind_cart_pole = {
    .id = "CartPole-v1",
    .max_steps = 500,
    .state_size = 4,
    .action = {.n = 2, .size = 1},
    .observation = {.size = 4,
                    .low = (const double[]){-2 * FAR, -(double)INFINITY, -2 * ANGLE, -(double)INFINITY},
                    .high = (const double[]){2 * FAR, (double)INFINITY, 2 * ANGLE, (double)INFINITY}},
    .arguments = {{.name = "sutton_barto_reward", .value = 0, .is_bool = true}},
    .start = env_cart_pole_start,
    .step = env_cart_pole_step,
    .observe = env_cart_pole_observe,
};
