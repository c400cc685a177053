/* SPDX-License-Identifier: Apache-2.0 */
/* REINFORCE: the gradient of a completion's log-probability times its reward minus the mean reward of the batch; with values: each token's return
 * minus its value. Sources: Williams 1992; Sutton and Barto, section 13.4. */
#include "rl/text/text_algorithm.h"

static void text_reinforce_advantages(const TextAdvantageOptions *options, Experience *e) {
    if (options->values) {
        text_advantages_by_values(options, 1, e);
        return;
    }
    advantages_group(e->rewards, e->n, e->n, options->scale, e->scores);
    advantages_spread(e->scores, e->n, e->begin, e->advantages);
}

const TextAlgorithm text_reinforce = {
    .name = "reinforce",
    .help = "rewards minus their mean or a learned value, times the gradient of the log-probability (Williams 1992)",
    .loss = "reinforce",
    .least_group = 1,
    .scale = SCALE_NONE,
    .values = VALUES_POSSIBLE,
    .advantages = text_reinforce_advantages,
    .keys = KEYS_OF_POLICY_GRADIENTS KEYS_OF_VALUES "scale_rewards gamma",
};
