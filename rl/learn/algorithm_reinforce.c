/* SPDX-License-Identifier: Apache-2.0 */
/* REINFORCE: on complete episodes, raises the log-probability of each action in proportion to the return after it, minus a learned value with
 * rl.baseline. As usual in deep learning the factor gamma^t of the exact gradient is left out, so that late steps count as much as early ones.
 * Source: Williams 1992; Sutton & Barto 13.3 and 13.4.
 *
 * After a time limit the learned value counts; without a baseline there is no value, and the limit counts as termination. */
#include "rl/learn/actor_critic.h"

static Status reinforce_update(Learner *learner) {
    const Recipe *recipe = learner->recipe;
    ActorCritic *ac = learner->self;
    Rollout *rollout = &ac->rollout;
    TRY(rollout_episodes(rollout, learner, &ac->policy));
    returns_discounted(&rollout->batch, rollout->bootstrap, recipe->rl_gamma, rollout->returns);
    for (int64_t i = 0; i < rollout->batch.T * rollout->batch.B; i++)
        rollout->advantages[i] = rollout->returns[i] - (recipe->rl_baseline ? rollout->batch.values[i] : 0);
    return actor_critic_one_pass(learner, "reinforce");
}

static Status reinforce_open(Learner *learner) { return actor_critic_open(learner, learner->recipe->rl_baseline, 1); }

const Algorithm algorithm_reinforce = {
    .name = "reinforce",
    .help = "REINFORCE on complete episodes, with or without a baseline (Williams 1992)",
    .discrete = true,
    .box = true,
    .keys = KEYS_OF_ROLLOUTS "baseline",
    .open = reinforce_open,
    .reserve = actor_critic_reserve,
    .update = reinforce_update,
    .act = actor_critic_act,
    .policy = actor_critic_policy,
    .list_state = actor_critic_list_state,
    .close = actor_critic_close,
};
