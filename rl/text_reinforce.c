/* REINFORCE: a completion's reward less the mean of all rewards of the batch, times the gradient of its log-probability. Source: Williams 1992. */
#include "rl/text_algorithm.h"

static void advantages(const Recipe *recipe, GroupScale scale, Experience *e) {
    (void)recipe;
    advantages_group(e->rewards, e->n, e->n, scale, e->scores);
    advantages_spread(e->scores, e->n, e->begin, e->advantages);
}

const TextAlgorithm text_reinforce = {
    .name = "reinforce", .help = "rewards less their mean, times the gradient of the log-probability (Williams 1992)", .loss = "reinforce", .least_group = 1, .scale = SCALE_NONE, .advantages = advantages,
    .keys = "scale_rewards",
};
