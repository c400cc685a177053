/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of on-policy algorithms: a policy with values, a rollout, and the loss, gradient and optimiser step of a minibatch.
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

/* Selected rows of a rollout, contiguous. */
typedef struct Minibatch {
    int64_t n, cap, obs_size, action_size;
    double *obs, *actions, *old_logprobs, *old_values, *advantages, *returns; /* old_values NULL: no values are learned */
    double *logprobs, *entropies, *dlogprobs, *dvalues;                       /* scratch of actor_critic_gradient */
    /* Written by actor_critic_gradient: sums of squared gradients of policy_part(.., false) and policy_part(.., true) */
    double grad_squares[2];
} Minibatch;
Status minibatch_init(Minibatch *minibatch, int64_t cap, int64_t obs_size, int64_t action_size, bool values, Arena *arena);
void minibatch_gather(Minibatch *minibatch, const Rollout *rollout, const int64_t *rows, int64_t n);

/* policy loss - ent_coef x entropy + vf_coef x value loss (half the mean squared error, with the clip of value_loss). */
typedef struct Losses {
    const PolicyLoss *policy;
    bool first_pass; /* all ratios are 1: minibatch.old_logprobs is not read */
    double clip, clip_value, ent_coef, vf_coef;
} Losses;
/* Sums over `steps` optimiser steps, for the metrics. */
typedef struct Measures {
    int64_t steps;
    double loss, policy_loss, value_loss, entropy, approx_kl, clip_fraction, grad_norm, learning_rate;
} Measures;

/* Adds the gradient of the mean loss over the minibatch to the policy's parameters' gradients, and the losses to `measures`. kl: receives the KL
 * between the old and the current policy (approx_kl); may be NULL. */
Status actor_critic_gradient(Policy *policy, Minibatch *minibatch, const Losses *losses, Measures *measures, double *kl);

typedef struct ActorCritic {
    Policy policy;
    Rollout rollout;
    Minibatch minibatch;
    Moments observed;
    RewardScale scale;
    Stepper stepper;
    int64_t optimizer_steps;
    int64_t parts; /* minibatches per rollout */
    int64_t *rows; /* rows of the rollout, in learning order */
} ActorCritic;

/* Makes learner->self from the recipe. `values`: with a critic; parts: minibatches per rollout, from 1. The functions below serve as an Algorithm's,
 * if its struct begins with this one. */
Status actor_critic_open(Learner *learner, bool values, int64_t parts);
Status actor_critic_reserve(Learner *learner, TrainMemory *memory);
Status actor_critic_act(Learner *learner, const double *observations, int64_t n, bool greedy, RngKey key, double *actions);
void actor_critic_policy(Learner *learner, StateList *states);
void actor_critic_list_state(Learner *learner, StateList *states);
void actor_critic_close(Learner *learner);

/* Writes the rollout's valid rows, in order, into ac->rows, and their number into n. */
Status actor_critic_rows(ActorCritic *ac, Learner *learner, int64_t *n);
/* Call it after actor_critic_gradient of ac->minibatch. Clips the gradients to train.max_grad_norm, steps the optimiser, clears the gradients.
 * ST_NUMERIC naming the parameter when a gradient is not finite. */
Status actor_critic_step(ActorCritic *ac, Learner *learner, Measures *measures);
/* Gradient and step for an algorithm that learns once from each rollout. The rollout's advantages and returns must be set; `loss`: a name of
 * policy_losses.def. */
Status actor_critic_one_pass(Learner *learner, const char *loss);
/* Reports as metrics the means of the measures and the explained variance of the values. */
void actor_critic_report(const ActorCritic *ac, Learner *learner, const Measures *measures);

#endif
