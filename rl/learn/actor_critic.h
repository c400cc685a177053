/* SPDX-License-Identifier: Apache-2.0 */
/* What learning from one's own experience has in common: a policy with values, a rollout, and the way from a minibatch of it over losses and
 * gradients to an optimiser step.
 *
 *     TRY(rollout_fill(&ac->rollout, learner, &ac->policy));
 *     ... advantages and returns ...
 *     minibatch_gather(&ac->minibatch, &ac->rollout, rows, n);
 *     TRY(actor_critic_gradient(&ac->policy, &ac->minibatch, &losses, &measures, NULL));
 *     TRY(actor_critic_step(ac, learner, &measures));
 */
#ifndef TUNE_ACTOR_CRITIC_H
#define TUNE_ACTOR_CRITIC_H

#include "rl/core/advantages.h"
#include "lib/train/stepper.h"
#include "rl/core/policy_losses.h"
#include "rl/learn/rollout.h"
#include "rl/core/value_losses.h"

/* Rows of a rollout, one after the other. */
typedef struct Minibatch {
    int64_t n, cap, obs_size, action_size;
    double *obs, *actions, *old_logprobs, *old_values, *advantages, *returns; /* old_values NULL: no values are learned */
    double *logprobs, *entropies, *dlogprobs, *dvalues;                       /* scratch of actor_critic_gradient */
    /* Of actor_critic_gradient: sum of squares of the gradients of policy_part(.., false) and (.., true) */
    double grad_squares[2];
} Minibatch;
Status minibatch_init(Minibatch *minibatch, int64_t cap, int64_t obs_size, int64_t action_size, bool values, Arena *arena);
void minibatch_gather(Minibatch *minibatch, const Rollout *rollout, const int64_t *rows, int64_t n);

/* policy loss - ent_coef x entropy + vf_coef x value loss (half the mean squared error, with the clip of value_loss). */
typedef struct Losses {
    const PolicyLoss *policy;
    bool first_pass; /* ratios are 1: minibatch.old_logprobs are not looked at */
    double clip, clip_value, ent_coef, vf_coef;
} Losses;
/* Sums over `steps` optimiser steps, for the metrics. */
typedef struct Measures {
    int64_t steps;
    double loss, policy_loss, value_loss, entropy, approx_kl, clip_fraction, grad_norm, learning_rate;
} Measures;

/* Adds the gradient of the mean over the minibatch to the policy's parameters, and its losses to `measures`. kl: how far the policy has moved from
 * the old one (approx_kl); may be NULL. */
Status actor_critic_gradient(Policy *policy, Minibatch *minibatch, const Losses *losses, Measures *measures, double *kl);

typedef struct ActorCritic {
    Policy policy;
    Rollout rollout;
    Minibatch minibatch;
    Moments observed;
    RewardScale scale;
    Stepper stepper;
    int64_t optimizer_steps;
    int64_t parts; /* minibatches that a rollout is cut into */
    int64_t *rows; /* of the rollout, in the order in which they are learned from */
} ActorCritic;

/* learner->self from the recipe. `values`: with a critic; parts: minibatches that rollouts are cut into, from 1. The functions below are an
 * Algorithm's, for all that begin with this struct. */
Status actor_critic_open(Learner *learner, bool values, int64_t parts);
Status actor_critic_reserve(Learner *learner, TrainMemory *memory);
Status actor_critic_act(Learner *learner, const double *observations, int64_t n, bool greedy, RngKey key, double *actions);
void actor_critic_policy(Learner *learner, StateList *states);
void actor_critic_list_state(Learner *learner, StateList *states);
void actor_critic_close(Learner *learner);

/* The rollout's valid rows in order in ac->rows; n: their number. */
Status actor_critic_rows(ActorCritic *ac, Learner *learner, int64_t *n);
/* Behind actor_critic_gradient of ac->minibatch: clips the gradients to train.max_grad_norm, steps the optimiser, clears the gradients. ST_NUMERIC
 * naming the parameter when a gradient is not finite. */
Status actor_critic_step(ActorCritic *ac, Learner *learner, Measures *measures);
/* All of that for an algorithm that learns once from each rollout, whose advantages and returns are there; `loss`: of policy_losses.def. */
Status actor_critic_one_pass(Learner *learner, const char *loss);
/* Means of the measures, and how well values predicted the returns, as metrics. */
void actor_critic_report(const ActorCritic *ac, Learner *learner, const Measures *measures);

#endif
