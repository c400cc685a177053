/* REINFORCE++: returns of tokens, with the KL taken off at each and the reward at the last, normalised over the whole batch. Source: arXiv 2501.03262. */
#include "rl/returns.h"
#include "rl/text_algorithm.h"

static void advantages(const Recipe *recipe, GroupScale scale, Experience *e) {
    (void)scale;
    text_token_rewards(recipe, e);
    Trajectory tokens = {.T = e->n_tokens, .B = 1, .rewards = e->token_rewards, .terminated = e->terminated, .truncated = e->truncated};
    returns_discounted(&tokens, (Bootstrap){0}, recipe->rl_gamma, e->advantages);
    advantages_normalise(e->advantages, e->trained, e->n_tokens, NORMALISE_POPULATION, 1e-8);
}

const TextAlgorithm text_reinforce_plus_plus = {
    .name = "reinforce++", .help = "returns of tokens less KL, normalised over the batch (arXiv 2501.03262)", .loss = "reinforce_plus_plus", .least_group = 1, .token_kl = true, .scale = SCALE_BATCH,
    .advantages = advantages,
    .keys = "gamma clip clip_high",
};
