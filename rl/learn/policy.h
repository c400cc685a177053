/* SPDX-License-Identifier: Apache-2.0 */
/* Policies and values as networks, with the heads of heads.h: categorical for discrete actions, Gaussian with one deviation for all observations for
 * boxes.
 *
 *     PolicyConfig config = {.n_hidden = 2, .hidden = {64, 64}, .activation = ACT_TANH, .orthogonal = true, .values = true};
 *     TRY(policy_init(&policy, &config, &env->observation, &env->action, seed, device_cpu(), DT_F32, arena));
 *     TRY(policy_forward(&policy, observations, n, POLICY_ACTIONS, false));
 *     policy_sample(&policy, key, actions, logprobs);                             // or policy_mode
 *     ...
 *     TRY(policy_forward(&policy, observations, n, POLICY_ACTIONS | POLICY_VALUES, true));
 *     policy_evaluate(&policy, actions, logprobs, entropies);
 *     TRY(policy_backward(&policy, actions, dlogprobs, dentropy, dvalues));       // into policy.params' gradients
 *     policy_release(&policy);
 *
 * Parameters have torch's names of a Sequential: "actor.0.weight", "actor.0.bias", "actor.2.weight", ..., "critic.0.weight", ...; "log_std" of a
 * Gaussian policy; with a shared network "trunk.0.weight", ..., "actor.0.weight", "critic.0.weight".
 */
#ifndef TUNE_POLICY_H
#define TUNE_POLICY_H

#include "lib/train/train.h"
#include "rl/env/env.h"
#include "rl/core/heads.h"

/* Numbers that a network gets of an observation (1 of n in a row of zeros when it is discrete), or says about an action (logits, or means). */
int64_t space_width(const Space *space);
/* Observations (n, space->size) as a network's input (n, space_width) in the step's memory. NULL after a failure of the tape. */
Tensor *space_input(const Space *space, Tape *tape, const double *observations, int64_t n);
/* Keeps actions (n, space->size) within the bounds of a box. */
void space_clip(const Space *space, double *actions, int64_t n);
/* Values or logits (n, actions->n) of actions that are not there where these observations are seen become minus infinity. */
void space_mask(const Space *actions, const double *observations, int64_t n, double *values);

typedef struct PolicyConfig {
    int n_hidden;
    int64_t hidden[MLP_MAX_LAYERS];
    Activation activation;
    /* First values: orthogonal with gain sqrt(2), 0.01 of the actor's last layer and 1 of the critic's; else torch's uniform ones */
    bool orthogonal;
    bool shared;    /* one network under both heads */
    bool values;    /* there is a critic */
    double log_std; /* first value, of Gaussian policies */
} PolicyConfig;
/* From the recipe's section `policy`. ST_CONFIG for widths that are no whole numbers, or too many. */
Status policy_config(const Recipe *recipe, bool values, PolicyConfig *config);

typedef struct Policy {
    Space observation, action;
    bool gaussian, has_values, shared;
    Mlp trunk, actor, critic;
    Tensor *log_std;         /* (action.size); NULL: categorical */
    Params params;           /* all of it, trained */
    size_t first_of_critic;  /* params from here on are the critic's */
    Tape *tape, *value_tape; /* the critic's own, so that both may work at the same time; one and the same with a shared network */
    /* Of the last policy_forward, in the step's memory. */
    int64_t n;
    Tensor *output, *value; /* (n, space_width(action)), (n, 1); NULL where not asked for */
    double *outputs;        /* logits or means */
    double *values;         /* (n) */
    double *log_stds;       /* log_std in double (action.size) */
} Policy;
/* Parameters live in `arena`; the caller calls policy_release also after a failure. dtype: DT_F32, DT_F64 on the reference device. */
Status policy_init(Policy *policy, const PolicyConfig *config, const Space *observation, const Space *action, uint64_t seed, const Device *device,
                   DType dtype, Arena *arena);
void policy_release(Policy *policy);

enum { POLICY_ACTIONS = 1, POLICY_VALUES = 2 };
/* What the networks say about n observations, which have been normalised if they are to be. Forgets the forward pass before. learn: policy_backward
 * may follow. ST_NUMERIC when an output is not finite. */
Status policy_forward(Policy *policy, const double *observations, int64_t n, int what, bool learn);
/* Actions (n, action.size), drawn with log-probabilities (n), or the best ones. Number i of row r is the same whatever else is drawn. Gaussian ones
 * may lie outside of the bounds (space_clip). */
void policy_sample(const Policy *policy, RngKey key, double *actions, double *logprobs);
void policy_mode(const Policy *policy, double *actions);
/* Log-probabilities of these actions, and entropies; each (n). */
void policy_evaluate(const Policy *policy, const double *actions, double *logprobs, double *entropies);
/* Adds to the gradients of all parameters. dlogprobs: (n) d loss / d log-probability; dentropy: d loss / d entropy of each row; dvalues: (n), NULL
 * without values. */
Status policy_backward(Policy *policy, const double *actions, const double *dlogprobs, double dentropy, const double *dvalues);

/* The same where actor and critic have a network each: their halves, which touch nothing of each other and may run in two threads. policy->n is the
 * caller's to set before. */
bool policy_has_halves(const Policy *policy);
Params policy_part(const Policy *policy, bool critic); /* borrowed: the critic's parameters, or all others */
Status policy_forward_actions(Policy *policy, const double *observations, bool learn);
Status policy_forward_values(Policy *policy, const double *observations, bool learn);
Status policy_backward_actions(Policy *policy, const double *actions, const double *dlogprobs, double dentropy);
Status policy_backward_values(Policy *policy, const double *dvalues);

/* The most rows of one pass: where actions are drawn, values estimated, both learned. */
typedef struct PolicyRows {
    int64_t acting, valued, learned;
} PolicyRows;
/* What its tapes will hold after such passes, bytes, by running them on the meta device. */
Status policy_plan(const Policy *policy, const PolicyRows *rows, size_t *bytes);

#endif
