/* SPDX-License-Identifier: Apache-2.0 */
/* Experience: what a policy did in an environment and what came of it, as a Trajectory for returns and losses.
 *
 *     TRY(rollout_fill(&rollout, learner, &policy));                  // num_steps of every copy
 *     returns_gae(&rollout.batch, rollout.behind, gamma, lambda, rollout.advantages, rollout.returns);
 */
#ifndef TUNE_ROLLOUT_H
#define TUNE_ROLLOUT_H

#include "rl/learn/learner.h"
#include "rl/learn/normalize.h"
#include "rl/learn/policy.h"
#include "rl/core/returns.h"

typedef struct Rollout {
    Trajectory batch; /* as it is learned from: observations and rewards normalised where that was asked for; its `actions` are not used */
    double *actions;  /* (T, B, action.size), as drawn: those of a box may lie outside of it */
    Bootstrap behind; /* values of final and last observations, where the policy has values */
    double *advantages, *returns;                        /* (T, B), for the algorithm to fill */
    Moments *observed;                                   /* NULL: observations stay as they are */
    RewardScale *scale;                                  /* NULL: rewards do */
    double *final_values, *last_values, *seen, *allowed; /* behind; normalised observations and clipped actions of one step */
    int64_t T;                                           /* rows that there is room for */
} Rollout;

/* observed, scale: borrowed. */
void rollout_init(Rollout *rollout, Moments *observed, RewardScale *scale);
/* Takes memory for rl.num_steps rows of the learner's copies and does not write to it; once. The first fill does the same: a run that is only played
 * needs none. `values`: the policy has them. */
Status rollout_reserve(Rollout *rollout, const Learner *learner, bool values);
/* rl.num_steps steps of every copy, episodes following each other. Values are estimated for all rows at once behind the last step. ST_NUMERIC when
 * the policy has diverged; faults of learner_step. */
Status rollout_fill(Rollout *rollout, Learner *learner, Policy *policy);
/* One whole episode of every copy, of at most rl.num_steps steps: rows behind its end are not `valid`, and batch.T is the longest. One that is longer
 * counts as truncated. */
Status rollout_episodes(Rollout *rollout, Learner *learner, Policy *policy);

#endif
