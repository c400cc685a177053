/* SPDX-License-Identifier: Apache-2.0 */
/* Two links, torque on the joint between them (Sutton 1996; equations of the book), one Runge-Kutta step of 0.2 s. State: angle 1 (0: hanging), angle
 * 2 (relative), their velocities. */
#include "rl/env/env_kinds.h"

#include <math.h>

#define PI 3.14159265358979323846
#define FASTEST_1 (4 * PI)
#define FASTEST_2 (9 * PI)

static void env_acrobot_start(const void *context, EnvDraws *draws, double *state) {
    (void)context;
    for (int i = 0; i < 4; i++) state[i] = env_uniform(draws, -0.1, 0.1);
}

/* All masses, lengths and moments of inertia are 1, centres of mass in the middle. */
static void derivative(const double *s, double torque, double *d) {
    const double half = 0.5, gravity = 9.8;
    double theta1 = s[0], theta2 = s[1], v1 = s[2], v2 = s[3], c2 = cos(theta2), s2 = sin(theta2);
    double d1 = half * half + (1 + half * half + 2 * half * c2) + 1 + 1;
    double d2 = (half * half + half * c2) + 1;
    double phi2 = half * gravity * cos(theta1 + theta2 - PI / 2);
    double phi1 = -half * (v2 * v2) * s2 - 2 * half * v2 * v1 * s2 + (half + 1) * gravity * cos(theta1 - PI / 2) + phi2;
    double a2 = (torque + d2 / d1 * phi1 - half * (v1 * v1) * s2 - phi2) / (half * half + 1 - d2 * d2 / d1);
    d[0] = v1;
    d[1] = v2;
    d[2] = -(d2 * a2 + phi1) / d1;
    d[3] = a2;
}

static void runge_kutta(double *s, double torque, double dt) {
    double k1[4], k2[4], k3[4], k4[4], at[4];
    derivative(s, torque, k1);
    for (int i = 0; i < 4; i++) at[i] = s[i] + dt / 2 * k1[i];
    derivative(at, torque, k2);
    for (int i = 0; i < 4; i++) at[i] = s[i] + dt / 2 * k2[i];
    derivative(at, torque, k3);
    for (int i = 0; i < 4; i++) at[i] = s[i] + dt * k3[i];
    derivative(at, torque, k4);
    for (int i = 0; i < 4; i++) s[i] += dt / 6 * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]);
}

static double wrapped(double angle) {
    while (angle > PI) angle -= 2 * PI;
    while (angle < -PI) angle += 2 * PI;
    return angle;
}

static bool env_acrobot_step(const void *context, EnvDraws *draws, const double *action, double *state, double *reward) {
    (void)context;
    (void)draws;
    runge_kutta(state, *action - 1, 0.2);
    state[0] = wrapped(state[0]);
    state[1] = wrapped(state[1]);
    state[2] = fmin(fmax(state[2], -FASTEST_1), FASTEST_1);
    state[3] = fmin(fmax(state[3], -FASTEST_2), FASTEST_2);
    bool up = -cos(state[0]) - cos(state[1] + state[0]) > 1;
    *reward = up ? 0 : -1;
    return up;
}

static void env_acrobot_observe(const void *context, const double *state, double *observation) {
    (void)context;
    const double values[6] = {cos(state[0]), sin(state[0]), cos(state[1]), sin(state[1]), state[2], state[3]};
    env_observe_f32(values, 6, observation);
}

/* Rejects huge angles: a step wraps angles into range one turn at a time, which would take for ever. */
static bool is_state(const void *context, const double *state) {
    (void)context;
    return fabs(state[0]) <= 100 * PI && fabs(state[1]) <= 100 * PI && fabs(state[2]) <= FASTEST_1 && fabs(state[3]) <= FASTEST_2;
}

const EnvKind env_kind_acrobot = {
    .id = "Acrobot-v1",
    .max_steps = 500,
    .state_size = 4,
    .action = {.n = 3, .size = 1},
    .observation = {.size = 6,
                    .low = (const double[]){-1, -1, -1, -1, -FASTEST_1, -FASTEST_2},
                    .high = (const double[]){1, 1, 1, 1, FASTEST_1, FASTEST_2}},
    .start = env_acrobot_start,
    .step = env_acrobot_step,
    .observe = env_acrobot_observe,
    .is_state = is_state,
};
