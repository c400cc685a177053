/* SPDX-License-Identifier: Apache-2.0 */
/* SAPO: GRPO's advantages; a sigmoid around the ratio 1 in place of the clip, so that the gradient of a token fades instead of stopping. */
#include "rl/text/text_algorithm.h"

const TextAlgorithm text_sapo = {
    .name = "sapo",
    .help = "GRPO with a soft gate in place of the clip",
    .loss = "sapo",
    .least_group = 2,
    .compares = true,
    .scale = SCALE_GROUP,
    .advantages = text_advantages_of_groups,
    .keys = KEYS_OF_POLICY_GRADIENTS "scale_rewards",
};
