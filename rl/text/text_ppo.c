/* SPDX-License-Identifier: Apache-2.0 */
/* PPO on text: each token is an action. Its advantage is GAE on learned values, whitened over the batch, with rewards of minus the KL at each token
 * plus the completion's reward at the last. Sources: arXiv 1707.06347, arXiv 1909.08593. */
#include "rl/text/text_algorithm.h"

static void text_ppo_advantages(const TextAdvantageOptions *options, Experience *e) {
    text_advantages_by_values(options, options->recipe->rl_gae_lambda, e);
}

const TextAlgorithm text_ppo = {
    .name = "ppo",
    .help = "clipped ratios of tokens, GAE on learned values, KL in the reward (arXiv 1707.06347, 1909.08593)",
    .loss = "ppo",
    .least_group = 1,
    .token_rewards = true,
    .kl_in_reward = true,
    .values = VALUES_NEEDED,
    .scale = SCALE_NONE,
    .advantages = text_ppo_advantages,
    .keys = KEYS_OF_POLICY_GRADIENTS KEYS_OF_CLIP KEYS_OF_VALUES "gamma gae_lambda",
};
