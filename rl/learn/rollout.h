/* SPDX-License-Identifier: Apache-2.0 */
/* Experience of a policy in an environment, as a Trajectory for returns and losses.
 *
 *     TRY(rollout_fill(&rollout, learner, &policy));                  // num_steps of every copy
 *     returns_gae(&rollout.batch, rollout.bootstrap, gamma, lambda, rollout.advantages, rollout.returns);
 */
#ifndef TUNE_ROLLOUT_H
#define TUNE_ROLLOUT_H

#include "rl/learn/learner.h"
#include "rl/learn/normalize.h"
#include "rl/learn/policy.h"
#include "rl/core/returns.h"

typedef struct Rollout {
    Trajectory batch;             /* observations and rewards normalised if the recipe asks for it; its `actions` are not used */
    double *actions;              /* (T, B, action.size), as drawn: those of a box may lie outside its bounds */
    Bootstrap bootstrap;          /* values of final and last observations, if the policy has values */
    double *advantages, *returns; /* (T, B), filled by the algorithm */
    Moments *observed;            /* NULL: observations are not normalised */
    RewardScale *scale;           /* NULL: rewards are not scaled */
    double *final_values, *last_values, *seen,
        *allowed; /* arrays of `bootstrap`; the same; normalised observations of one step; its actions, clipped to the bounds */
    int64_t T;    /* capacity in rows */
} Rollout;

/* observed, scale: borrowed. */
void rollout_init(Rollout *rollout, Moments *observed, RewardScale *scale);
/* Allocates rl.num_steps rows for the learner's copies, without writing to them; only the first call does. The first fill calls it too; evaluation
 * needs no rollout. `values`: the policy has values. */
Status rollout_reserve(Rollout *rollout, const Learner *learner, bool values);
/* Takes rl.num_steps steps of every copy; a new episode starts when one ends. Values are estimated for all rows at once, after the last step.
 * ST_NUMERIC when the policy has diverged; errors of learner_step. */
Status rollout_fill(Rollout *rollout, Learner *learner, Policy *policy);
/* Plays one complete episode of every copy, of at most rl.num_steps steps; longer ones are truncated. Rows after an episode's end are not `valid`;
 * batch.T is the longest episode. */
Status rollout_episodes(Rollout *rollout, Learner *learner, Policy *policy);

#endif
