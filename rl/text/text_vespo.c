/* SPDX-License-Identifier: Apache-2.0 */
/* VESPO: GRPO's advantages; a completion's weight, from the ratio of its probability as a whole, fades smoothly on both sides of 1 and has no
 * gradient. */
#include "rl/text/text_algorithm.h"

const TextAlgorithm text_vespo = {
    .name = "vespo",
    .help = "GRPO with weights of whole completions that fade smoothly",
    .loss = "vespo",
    .least_group = 2,
    .compares = true,
    .scale = SCALE_GROUP,
    .advantages = text_advantages_of_groups,
    .keys = KEYS_OF_POLICY_GRADIENTS "scale_rewards",
};
