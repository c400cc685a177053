/* SPDX-License-Identifier: Apache-2.0 */
/* Proximal policy optimisation: several passes over a batch of experience, with a loss that does not reward moving an action's probability beyond the
 * clip. Source: Schulman et al. 2017, arXiv 1707.06347; details as in Huang et al., "The 37 implementation details of PPO" (advantages normalised in
 * each minibatch, values clipped, one norm for all gradients). */
#include <math.h>

#include "rl/learn/actor_critic.h"

/* A new order of the rows for each pass (Fisher-Yates). */
static void shuffle(int64_t *rows, int64_t n, RngKey key) {
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t k = (int64_t)rng_below(key, (uint64_t)i, (uint64_t)i + 1), row = rows[i];
        rows[i] = rows[k];
        rows[k] = row;
    }
}

static Status ppo_update(Learner *learner) {
    const Recipe *recipe = learner->recipe;
    ActorCritic *ac = learner->self;
    Rollout *rollout = &ac->rollout;
    Measures measures = {0};
    Losses losses = {.policy = policy_loss_find("ppo"),
                     .clip = recipe->rl_clip,
                     .clip_value = recipe->rl_clip_value,
                     .ent_coef = recipe->rl_ent_coef,
                     .vf_coef = recipe->rl_vf_coef};
    int64_t n;
    double kl = 0, most = recipe->rl_target_kl >= 0 ? 1.5 * recipe->rl_target_kl : (double)INFINITY;

    TRY(rollout_fill(rollout, learner, &ac->policy));
    returns_gae(&rollout->batch, rollout->bootstrap, recipe->rl_gamma, recipe->rl_gae_lambda, rollout->advantages, rollout->returns);
    TRY(actor_critic_rows(ac, learner, &n));
    for (int64_t pass = 0; pass < recipe->rl_num_iterations && kl <= most; pass++) {
        shuffle(ac->rows, n, learner_key(learner, RNG_SHUFFLE, (uint64_t)pass));
        for (int64_t part = 0; part < ac->parts && kl <= most; part++) {
            int64_t begin = n * part / ac->parts, end = n * (part + 1) / ac->parts;
            minibatch_gather(&ac->minibatch, rollout, ac->rows + begin, end - begin);
            if (recipe->rl_normalize_advantage) advantages_normalise(ac->minibatch.advantages, NULL, end - begin, NORMALISE_STD, 1e-8);
            TRY(actor_critic_gradient(&ac->policy, &ac->minibatch, &losses, &measures, &kl));
            if (kl <= most)
                TRY(actor_critic_step(ac, learner, &measures));
            else
                params_zero_grad(&ac->policy.params);
        }
    }
    actor_critic_report(ac, learner, &measures);
    return ST_OK;
}

static Status ppo_open(Learner *learner) { return actor_critic_open(learner, true, learner->recipe->rl_num_minibatches); }

const Algorithm algorithm_ppo = {
    .name = "ppo",
    .help = "proximal policy optimisation with clip, GAE and a learned value (arXiv 1707.06347)",
    .discrete = true,
    .box = true,
    .keys = KEYS_OF_ROLLOUTS "gae_lambda num_iterations num_minibatches clip clip_value target_kl",
    .open = ppo_open,
    .reserve = actor_critic_reserve,
    .update = ppo_update,
    .act = actor_critic_act,
    .policy = actor_critic_policy,
    .list_state = actor_critic_list_state,
    .close = actor_critic_close,
};
