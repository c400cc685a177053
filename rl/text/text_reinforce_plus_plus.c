/* SPDX-License-Identifier: Apache-2.0 */
/* REINFORCE++: returns of tokens, with rewards of minus the KL at each token plus the completion's reward at the last, normalised over the whole
 * batch. Source: arXiv 2501.03262. */
#include "rl/core/returns.h"
#include "rl/text/text_algorithm.h"

static void text_reinforce_plus_plus_advantages(const TextAdvantageOptions *options, Experience *e) {
    Trajectory tokens = text_trajectory(e, false);
    returns_discounted(&tokens, (Bootstrap){0}, options->recipe->rl_gamma, e->advantages);
    advantages_normalise(e->advantages, e->trained, e->n_tokens, NORMALISE_POPULATION, 1e-8);
}

const TextAlgorithm text_reinforce_plus_plus = {
    .name = "reinforce++",
    .help = "returns of tokens with the KL subtracted, normalised over the batch (arXiv 2501.03262)",
    .loss = "reinforce_plus_plus",
    .least_group = 1,
    .token_rewards = true,
    .kl_in_reward = true,
    .scale = SCALE_BATCH,
    .advantages = text_reinforce_plus_plus_advantages,
    .keys = KEYS_OF_POLICY_GRADIENTS KEYS_OF_CLIP "gamma",
};
