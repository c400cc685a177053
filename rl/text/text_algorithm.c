/* SPDX-License-Identifier: Apache-2.0 */
/* The table of policy gradients on text, and functions that several of them share. */
#include "rl/text/text_algorithm.h"

#include <string.h>

#include "rl/core/returns.h"

static const TextAlgorithm *const algorithms[] = {
#define TEXT_ALGORITHM(name) &text_##name,
#include "rl/text/text_algorithms.def"
#undef TEXT_ALGORITHM
};

const TextAlgorithm *text_algorithm_at(size_t i) { return i < COUNT_OF(algorithms) ? algorithms[i] : NULL; }

const TextAlgorithm *text_algorithm_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(algorithms); i++)
        if (strcmp(algorithms[i]->name, name) == 0) return algorithms[i];
    return NULL;
}

void text_group_advantages(const TextAdvantageOptions *options, Experience *e) {
    advantages_group(e->rewards, e->n, e->group_size, options->scale, e->scores);
    advantages_spread(e->scores, e->n, e->begin, e->advantages);
}

void text_add_rewards(Experience *e) {
    for (int64_t i = 0; i < e->n; i++) {
        double earned = 0;
        for (int64_t t = e->begin[i]; t < e->begin[i + 1]; t++) {
            e->token_rewards[t] += e->earned[t];
            earned += e->earned[t];
        }
        e->token_rewards[e->begin[i + 1] - 1] += e->rewards[i] - earned;
    }
}

Trajectory text_trajectory(const Experience *e, bool values) {
    return (Trajectory){.T = e->n_tokens,
                        .B = 1,
                        .rewards = e->token_rewards,
                        .values = values ? e->values : NULL,
                        .terminated = e->terminated,
                        .truncated = e->truncated,
                        .valid = e->trained};
}

void text_advantages_by_values(const TextAdvantageOptions *options, double lambda, Experience *e) {
    Trajectory tokens = text_trajectory(e, true);
    returns_gae(&tokens, (Bootstrap){.final_values = e->final_values}, options->recipe->rl_gamma, lambda, e->advantages, NULL);
    if (options->recipe->rl_normalize_advantage) advantages_normalise(e->advantages, e->trained, e->n_tokens, NORMALISE_VARIANCE, 1e-8);
}
