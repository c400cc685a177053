/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "rl/core/ratio.h"
#include "rl/core/returns.h"

static bool is_valid(const Trajectory *trajectory, int64_t i) { return !trajectory->valid || trajectory->valid[i]; }

/* Whether the episode ends with entry i; if so, sets *value to the value of the state after it. */
static bool episode_ends(const Trajectory *trajectory, Bootstrap bootstrap, int64_t i, double *value) {
    bool terminated = trajectory->terminated && trajectory->terminated[i], truncated = trajectory->truncated && trajectory->truncated[i];
    if (!terminated && !truncated) return false;
    *value = !terminated && bootstrap.final_values ? bootstrap.final_values[i] : 0;
    return true;
}

static double last_value(Bootstrap bootstrap, int64_t b) { return bootstrap.last_values ? bootstrap.last_values[b] : 0; }

void returns_discounted(const Trajectory *trajectory, Bootstrap bootstrap, double gamma, double *returns) {
    int64_t B = trajectory->B;
    for (int64_t b = 0; b < B; b++) {
        double ret = last_value(bootstrap, b);
        for (int64_t i = (trajectory->T - 1) * B + b; i >= 0; i -= B) {
            returns[i] = 0;
            if (!is_valid(trajectory, i)) continue;
            episode_ends(trajectory, bootstrap, i, &ret);
            returns[i] = ret = trajectory->rewards[i] + gamma * ret;
        }
    }
}

void returns_td_lambda(const Trajectory *trajectory, Bootstrap bootstrap, double gamma, double lambda, double *returns) {
    int64_t B = trajectory->B;
    for (int64_t b = 0; b < B; b++) {
        double value = last_value(bootstrap, b), ret = value;
        for (int64_t i = (trajectory->T - 1) * B + b; i >= 0; i -= B) {
            returns[i] = 0;
            if (!is_valid(trajectory, i)) continue;
            if (episode_ends(trajectory, bootstrap, i, &value)) ret = value;
            returns[i] = ret = trajectory->rewards[i] + gamma * ((1 - lambda) * value + lambda * ret);
            value = trajectory->values[i];
        }
    }
}

/* The n-step return of copy b from entry `start`. */
static double n_step_from(const Trajectory *trajectory, Bootstrap bootstrap, double gamma, int64_t n, int64_t start, int64_t b) {
    double ret = 0, discount = 1, value;
    int64_t steps = 0;
    for (int64_t i = start; i < trajectory->T * trajectory->B; i += trajectory->B) {
        if (!is_valid(trajectory, i)) continue;
        if (steps++ == n) return ret + discount * trajectory->values[i];
        ret += discount * trajectory->rewards[i];
        discount *= gamma;
        if (episode_ends(trajectory, bootstrap, i, &value)) return ret + discount * value;
    }
    return ret + discount * last_value(bootstrap, b);
}

void returns_n_step(const Trajectory *trajectory, Bootstrap bootstrap, double gamma, int64_t n, double *returns) {
    for (int64_t t = 0, i = 0; t < trajectory->T; t++)
        for (int64_t b = 0; b < trajectory->B; b++, i++)
            returns[i] = is_valid(trajectory, i) ? n_step_from(trajectory, bootstrap, gamma, n, i, b) : 0;
}

void returns_gae(const Trajectory *trajectory, Bootstrap bootstrap, double gamma, double lambda, double *advantages, double *returns) {
    int64_t B = trajectory->B;
    for (int64_t b = 0; b < B; b++) {
        double next_value = last_value(bootstrap, b), advantage = 0;
        for (int64_t i = (trajectory->T - 1) * B + b; i >= 0; i -= B) {
            advantages[i] = 0;
            if (returns) returns[i] = 0;
            if (!is_valid(trajectory, i)) continue;
            if (episode_ends(trajectory, bootstrap, i, &next_value)) advantage = 0;
            double delta = trajectory->rewards[i] + gamma * next_value - trajectory->values[i];
            advantages[i] = advantage = delta + gamma * lambda * advantage;
            if (returns) returns[i] = advantage + trajectory->values[i];
            next_value = trajectory->values[i];
        }
    }
}

void returns_vtrace(const Trajectory *trajectory, Bootstrap bootstrap, const double *target_logprobs, double gamma, double lambda, double rho_bar,
                    double c_bar, double *targets, double *advantages) {
    int64_t B = trajectory->B;
    for (int64_t b = 0; b < B; b++) {
        double next_value = last_value(bootstrap, b), next_target = next_value;
        for (int64_t i = (trajectory->T - 1) * B + b; i >= 0; i -= B) {
            targets[i] = advantages[i] = 0;
            if (!is_valid(trajectory, i)) continue;
            if (episode_ends(trajectory, bootstrap, i, &next_value)) next_target = next_value;
            double reward = trajectory->rewards[i], value = trajectory->values[i];
            double weight = exp(log_ratio(target_logprobs[i], trajectory->logprobs[i])), rho = MIN(rho_bar, weight), c = lambda * MIN(c_bar, weight);
            advantages[i] = rho * (reward + gamma * next_target - value);
            targets[i] = value + rho * (reward + gamma * next_value - value) + gamma * c * (next_target - next_value);
            next_target = targets[i];
            next_value = value;
        }
    }
}
