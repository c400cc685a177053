/* SPDX-License-Identifier: Apache-2.0 */
/* GSPO: GRPO's advantages with one ratio for the whole completion, the geometric mean of its tokens'. Clips are far smaller than GRPO's (the paper:
 * 3e-4 and 4e-4). Source: arXiv 2507.18071. */
#include "rl/text/text_algorithm.h"

const TextAlgorithm text_gspo = {
    .name = "gspo",
    .help = "GRPO with one ratio a completion (arXiv 2507.18071)",
    .loss = "gspo",
    .least_group = 2,
    .compares = true,
    .scale = SCALE_GROUP,
    .advantages = text_advantages_of_groups,
    .keys = KEYS_OF_POLICY_GRADIENTS KEYS_OF_CLIP "scale_rewards",
};
