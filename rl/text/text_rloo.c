/* SPDX-License-Identifier: Apache-2.0 */
/* RLOO: a completion's reward minus the mean of the others in its group; the ratio is per completion. Source: arXiv 2402.14740. */
#include "rl/text/text_algorithm.h"

static void text_rloo_advantages(const TextAdvantageOptions *options, Experience *e) {
    (void)options;
    advantages_leave_one_out(e->rewards, e->n, e->group_size, e->scores);
    advantages_spread(e->scores, e->n, e->begin, e->advantages);
}

const TextAlgorithm text_rloo = {
    .name = "rloo",
    .help = "rewards minus the mean of the others in the group (arXiv 2402.14740)",
    .loss = "rloo",
    .least_group = 2,
    .compares = true,
    .scale = SCALE_NONE,
    .advantages = text_rloo_advantages,
    .keys = KEYS_OF_POLICY_GRADIENTS KEYS_OF_CLIP,
};
