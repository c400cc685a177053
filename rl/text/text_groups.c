/* SPDX-License-Identifier: Apache-2.0 */
/* GRPO and its variants: the advantage of each token is the difference of its completion's reward to its group's mean. The variants differ in the
 * columns below; their losses are in policy_losses.def.
 *
 * - grpo: divides the difference by the group's standard deviation; PPO's clipped ratio of tokens. Source: arXiv 2402.03300. - dr_grpo: GRPO without
 * its two biases: does not divide by the group's standard deviation, nor by the completion's length. Source: arXiv
 *   2503.20783.
 * - dapo: a larger upper clip, and every token has the same weight. Prompts whose completions have equal rewards are replaced (rl.sampling_rounds);
 *   its overlong penalty is the reward `length` with max and buffer. Source: arXiv 2503.14476.
 * - gspo: one ratio per completion, the geometric mean over its tokens. Clips are far smaller than GRPO's (the paper: 3e-4 and 4e-4).
 *   Source: arXiv 2507.18071.
 * - cispo: the ratio is a capped weight without gradient, so no token loses its gradient. rl.clip_high is the cap of the ratio. Source: arXiv
 * 2506.13585. - luspo: GSPO with completions weighted by length, so that short ones are not preferred. Clips as small as GSPO's (as published: 2e-3
 * and
 *   2.5e-3).
 * - sapo: a sigmoid around the ratio 1 instead of the clip, so that a token's gradient decreases smoothly. - vespo: the weight of a completion, a
 * function of its sequence ratio, decreases smoothly on both sides of 1 and has no gradient. */
#include "rl/text/text_algorithm.h"

#define COMPARED(id, of, clip, rounds, more_keys, about)                  \
    const TextAlgorithm text_##id = {.name = #id,                         \
                                     .help = about,                       \
                                     .loss = #id,                         \
                                     .least_group = 2,                    \
                                     .compares = true,                    \
                                     .scale = of,                         \
                                     .clip_high = clip,                   \
                                     .sampling_rounds = rounds,           \
                                     .advantages = text_group_advantages, \
                                     .keys = KEYS_OF_POLICY_GRADIENTS more_keys "scale_rewards"};

/* clang-format off */
/*       name     scale        clip_high rounds keys in addition to the common ones */
COMPARED(grpo,    SCALE_GROUP, 0,        0,     KEYS_OF_CLIP, "rewards compared within the group of a prompt, clipped ratios (arXiv 2402.03300)")
COMPARED(dr_grpo, SCALE_NONE,  0,        0,     KEYS_OF_CLIP, "GRPO without division by deviation and length (arXiv 2503.20783)")
COMPARED(dapo,    SCALE_GROUP, 0.28,     10,    KEYS_OF_CLIP, "GRPO, clip-higher, token-level loss, dynamic sampling (arXiv 2503.14476)")
COMPARED(gspo,    SCALE_GROUP, 0,        0,     KEYS_OF_CLIP, "GRPO with one ratio a completion (arXiv 2507.18071)")
COMPARED(cispo,   SCALE_GROUP, 0,        0,     "clip_high ", "GRPO with capped importance weights in place of the clip (arXiv 2506.13585)")
COMPARED(luspo,   SCALE_GROUP, 0,        0,     KEYS_OF_CLIP, "GSPO, where a completion counts by its length")
COMPARED(sapo,    SCALE_GROUP, 0,        0,     "",           "GRPO with a soft gate in place of the clip")
COMPARED(vespo,   SCALE_GROUP, 0,        0,     "",           "GRPO with weights of whole completions that fade smoothly")
/* clang-format on */
