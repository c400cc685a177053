/* DAPO: GRPO with a wider clip above and every token counting the same. Its overlong penalty is the reward `length`; prompts that teach nothing are not replaced by others. Source: arXiv 2503.14476. */
#include "rl/text_algorithm.h"

const TextAlgorithm text_dapo = {
    .name = "dapo", .help = "GRPO, clip-higher, token-level loss (arXiv 2503.14476)", .loss = "dapo", .least_group = 2, .compares = true, .clip_high = 0.28, .scale = SCALE_GROUP, .advantages = text_advantages_of_groups,
};
