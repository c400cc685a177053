/* SPDX-License-Identifier: Apache-2.0 */
/* Dr. GRPO: GRPO without its two biases: differences are not divided by the group's deviation, sums not by the completion's length. Source: arXiv
 * 2503.20783. */
#include "rl/text/text_algorithm.h"

const TextAlgorithm text_dr_grpo = {
    .name = "dr_grpo",
    .help = "GRPO without division by deviation and length (arXiv 2503.20783)",
    .loss = "dr_grpo",
    .least_group = 2,
    .compares = true,
    .scale = SCALE_NONE,
    .advantages = text_advantages_of_groups,
    .keys = KEYS_OF_POLICY_GRADIENTS KEYS_OF_CLIP "scale_rewards",
};
