#include "rl/returns.h"

static bool is_valid(const Trajectory *trajectory, int64_t i) {
    return !trajectory->valid || trajectory->valid[i];
}

/* Whether the episode ends with entry i; `value` is then what counts behind it. */
static bool episode_ends(const Trajectory *trajectory, Bootstrap behind, int64_t i, double *value) {
    bool terminated = trajectory->terminated && trajectory->terminated[i], truncated = trajectory->truncated && trajectory->truncated[i];
    if (!terminated && !truncated) return false;
    *value = !terminated && behind.final_values ? behind.final_values[i] : 0;
    return true;
}

static double last_value(Bootstrap behind, int64_t b) {
    return behind.last_values ? behind.last_values[b] : 0;
}

void returns_discounted(const Trajectory *trajectory, Bootstrap behind, double gamma, double *returns) {
    int64_t B = trajectory->B;
    for (int64_t b = 0; b < B; b++) {
        double ret = last_value(behind, b);
        for (int64_t i = (trajectory->T - 1) * B + b; i >= 0; i -= B) {
            returns[i] = 0;
            if (!is_valid(trajectory, i)) continue;
            episode_ends(trajectory, behind, i, &ret);
            returns[i] = ret = trajectory->rewards[i] + gamma * ret;
        }
    }
}

void returns_td_lambda(const Trajectory *trajectory, Bootstrap behind, double gamma, double lambda, double *returns) {
    int64_t B = trajectory->B;
    for (int64_t b = 0; b < B; b++) {
        double value = last_value(behind, b), ret = value;
        for (int64_t i = (trajectory->T - 1) * B + b; i >= 0; i -= B) {
            returns[i] = 0;
            if (!is_valid(trajectory, i)) continue;
            if (episode_ends(trajectory, behind, i, &value)) ret = value;
            returns[i] = ret = trajectory->rewards[i] + gamma * ((1 - lambda) * value + lambda * ret);
            value = trajectory->values[i];
        }
    }
}

void returns_gae(const Trajectory *trajectory, Bootstrap behind, double gamma, double lambda, double *advantages, double *returns) {
    int64_t B = trajectory->B;
    for (int64_t b = 0; b < B; b++) {
        double next_value = last_value(behind, b), advantage = 0;
        for (int64_t i = (trajectory->T - 1) * B + b; i >= 0; i -= B) {
            advantages[i] = 0;
            if (returns) returns[i] = 0;
            if (!is_valid(trajectory, i)) continue;
            if (episode_ends(trajectory, behind, i, &next_value)) advantage = 0;
            double delta = trajectory->rewards[i] + gamma * next_value - trajectory->values[i];
            advantages[i] = advantage = delta + gamma * lambda * advantage;
            if (returns) returns[i] = advantage + trajectory->values[i];
            next_value = trajectory->values[i];
        }
    }
}
