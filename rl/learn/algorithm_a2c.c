/* SPDX-License-Identifier: Apache-2.0 */
/* Advantage actor-critic: one optimiser step from a few steps of many copies, with advantages from a learned value. Source: Mnih et al. 2016, arXiv
 * 1602.01783, in its synchronous form. */
#include "rl/learn/actor_critic.h"

static Status a2c_update(Learner *learner) {
    const Recipe *recipe = learner->recipe;
    ActorCritic *ac = learner->self;
    Rollout *rollout = &ac->rollout;
    TRY(rollout_fill(rollout, learner, &ac->policy));
    returns_gae(&rollout->batch, rollout->bootstrap, recipe->rl_gamma, recipe->rl_gae_lambda, rollout->advantages, rollout->returns);
    return actor_critic_one_pass(learner, "a2c");
}

static Status a2c_open(Learner *learner) { return actor_critic_open(learner, true, 1); }

const Algorithm algorithm_a2c = {
    .name = "a2c",
    .help = "advantage actor-critic, synchronous (arXiv 1602.01783)",
    .discrete = true,
    .box = true,
    .keys = KEYS_OF_ROLLOUTS "gae_lambda",
    .open = a2c_open,
    .reserve = actor_critic_reserve,
    .update = a2c_update,
    .act = actor_critic_act,
    .policy = actor_critic_policy,
    .list_state = actor_critic_list_state,
    .close = actor_critic_close,
};
