/* SPDX-License-Identifier: Apache-2.0 */
/* CISPO: GRPO's advantages; the ratio is a capped weight without gradient, so no token drops out. rl.clip_high is the cap itself. Source: arXiv
 * 2506.13585. */
#include "rl/text/text_algorithm.h"

const TextAlgorithm text_cispo = {
    .name = "cispo",
    .help = "GRPO with capped importance weights in place of the clip (arXiv 2506.13585)",
    .loss = "cispo",
    .least_group = 2,
    .compares = true,
    .scale = SCALE_GROUP,
    .advantages = text_advantages_of_groups,
    .keys = KEYS_OF_POLICY_GRADIENTS "clip_high scale_rewards",
};
