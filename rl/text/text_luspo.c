/* SPDX-License-Identifier: Apache-2.0 */
/* LUSPO: GSPO whose completions count as they are long, so that short ones are not preferred. Clips as small as GSPO's (as published: 2e-3 and
 * 2.5e-3). */
#include "rl/text/text_algorithm.h"

const TextAlgorithm text_luspo = {
    .name = "luspo",
    .help = "GSPO, where a completion counts by its length",
    .loss = "luspo",
    .least_group = 2,
    .compares = true,
    .scale = SCALE_GROUP,
    .advantages = text_advantages_of_groups,
    .keys = KEYS_OF_POLICY_GRADIENTS KEYS_OF_CLIP "scale_rewards",
};
