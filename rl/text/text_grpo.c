/* SPDX-License-Identifier: Apache-2.0 */
/* GRPO: a completion's reward less the mean of its group, over the group's standard deviation; PPO's clipped ratio of tokens. Source: arXiv
 * 2402.03300. */
#include "rl/text/text_algorithm.h"

const TextAlgorithm text_grpo = {
    .name = "grpo",
    .help = "rewards compared within the group of a prompt, clipped ratios (arXiv 2402.03300)",
    .loss = "grpo",
    .least_group = 2,
    .compares = true,
    .scale = SCALE_GROUP,
    .advantages = text_advantages_of_groups,
    .keys = KEYS_OF_POLICY_GRADIENTS KEYS_OF_CLIP "scale_rewards",
};
