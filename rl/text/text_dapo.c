/* SPDX-License-Identifier: Apache-2.0 */
/* DAPO: GRPO with a wider clip above and every token counting the same. Prompts whose completions all earn the same are replaced by
 * others (rl.sampling_rounds); its overlong penalty is the reward `length` with max and buffer. Source: arXiv 2503.14476. */
#include "rl/text/text_algorithm.h"

const TextAlgorithm text_dapo = {
    .name = "dapo",
    .help = "GRPO, clip-higher, token-level loss, dynamic sampling (arXiv 2503.14476)",
    .loss = "dapo",
    .least_group = 2,
    .compares = true,
    .clip_high = 0.28,
    .sampling_rounds = 10,
    .scale = SCALE_GROUP,
    .advantages = text_advantages_of_groups,
    .keys = KEYS_OF_POLICY_GRADIENTS KEYS_OF_CLIP "scale_rewards",
};
