/* SPDX-License-Identifier: Apache-2.0 */
/* Policy and value networks with the distributions of heads.h: categorical for discrete actions, Gaussian with a standard deviation independent of
 * the observation for boxes.
 *
 *     PolicyConfig config = {.n_hidden = 2, .hidden = {64, 64}, .activation = ACT_TANH, .orthogonal = true, .values = true};
 *     TRY(policy_init(&policy, &config, &env->observation, &env->action, seed, device, DT_F32, arena));
 *     TRY(policy_forward(&policy, observations, n, POLICY_ACTIONS, false));
 *     policy_sample(&policy, key, actions, logprobs);                             // or policy_mode
 *     ...
 *     TRY(policy_forward(&policy, observations, n, POLICY_ACTIONS | POLICY_VALUES, true));
 *     policy_evaluate(&policy, actions, logprobs, entropies);
 *     TRY(policy_backward(&policy, actions, dlogprobs, dentropy, dvalues));       // into policy.params' gradients
 *     policy_release(&policy);
 *
 * Parameters are named as in a torch Sequential: "actor.0.weight", "actor.0.bias", "actor.2.weight", ..., "critic.0.weight", ...; "log_std" of a
 * Gaussian policy; with a shared network "trunk.0.weight", ..., "actor.0.weight", "critic.0.weight".
 */
#ifndef TUNE_POLICY_H
#define TUNE_POLICY_H

#include "lib/train/train.h"
#include "rl/env/env.h"
#include "rl/core/heads.h"

/* Number of network inputs for an observation (one-hot if it is discrete), or of outputs for an action (logits or means). */
int64_t space_width(const Space *space);
/* Converts observations (n, space->size) to network input (n, space_width) in step memory. NULL after a failure of the tape. */
Tensor *space_input(const Space *space, Tape *tape, const double *observations, int64_t n);
/* Clips actions (n, space->size) to the bounds of a box. */
void space_clip(const Space *space, double *actions, int64_t n);
/* Sets values or logits (n, actions->n) to minus infinity for actions that do not exist for these observations. */
void space_mask(const Space *actions, const double *observations, int64_t n, double *values);

typedef struct PolicyConfig {
    int n_hidden;
    int64_t hidden[MLP_MAX_LAYERS];
    Activation activation;
    /* initialisation: orthogonal with gain sqrt(2), gain 0.01 in the actor's last layer and 1 in the critic's; false: torch's uniform one */
    bool orthogonal;
    bool shared;    /* actor and critic share the hidden layers */
    bool values;    /* with a critic */
    double log_std; /* initial value, of Gaussian policies */
} PolicyConfig;
/* Reads the recipe's section `policy`. ST_CONFIG for widths that are not integers, or too many. */
Status policy_config(const Recipe *recipe, bool values, PolicyConfig *config);

typedef struct Policy {
    Space observation, action;
    bool gaussian, has_values, shared;
    Mlp trunk, actor, critic;
    Tensor *log_std;         /* (action.size); NULL: categorical */
    Params params;           /* all parameters, trained */
    size_t first_of_critic;  /* index in params of the critic's first parameter */
    Tape *tape, *value_tape; /* value_tape: the critic's, so that both can run at the same time; the same tape with a shared network */
    /* Results of the last policy_forward, in step memory. */
    int64_t n;
    Tensor *output, *value; /* (n, space_width(action)), (n, 1); NULL where not requested */
    double *outputs;        /* logits or means */
    double *values;         /* (n) */
    double *log_stds;       /* log_std in double (action.size) */
} Policy;
/* Parameters live in `arena`; the caller calls policy_release also after a failure. dtype: DT_F32, DT_F64 on the reference device. */
Status policy_init(Policy *policy, const PolicyConfig *config, const Space *observation, const Space *action, uint64_t seed, const Device *device,
                   DType dtype, Arena *arena);
void policy_release(Policy *policy);

enum { POLICY_ACTIONS = 1, POLICY_VALUES = 2 };
/* Forward pass on n observations, already normalised if the recipe asks for it. Discards the previous forward pass. learn: policy_backward may
 * follow. ST_NUMERIC when an output is not finite. */
Status policy_forward(Policy *policy, const double *observations, int64_t n, int what, bool learn);
/* policy_sample draws actions (n, action.size) with log-probabilities (n); policy_mode takes the best actions. Draw i of row r does not depend on
 * other draws. Gaussian actions may lie outside the bounds (see space_clip). */
void policy_sample(const Policy *policy, RngKey key, double *actions, double *logprobs);
void policy_mode(const Policy *policy, double *actions);
/* Log-probabilities of the given actions, and entropies; each (n). */
void policy_evaluate(const Policy *policy, const double *actions, double *logprobs, double *entropies);
/* Adds to the gradients of all parameters. dlogprobs: (n), d loss / d log-probability; dentropy: d loss / d entropy, the same for each row; dvalues:
 * (n), NULL without values. */
Status policy_backward(Policy *policy, const double *actions, const double *dlogprobs, double dentropy, const double *dvalues);

/* Forward and backward of the actor or the critic alone, if they share no layers. The two halves share no data and may run in two threads. The caller
 * sets policy->n first. */
bool policy_has_halves(const Policy *policy);
Params policy_part(const Policy *policy, bool critic); /* the critic's parameters, or all others; borrowed */
Status policy_forward_actions(Policy *policy, const double *observations, bool learn);
Status policy_forward_values(Policy *policy, const double *observations, bool learn);
Status policy_backward_actions(Policy *policy, const double *actions, const double *dlogprobs, double dentropy);
Status policy_backward_values(Policy *policy, const double *dvalues);

/* Largest number of rows of one pass: when drawing actions, when estimating values, when learning both. */
typedef struct PolicyRows {
    int64_t acting, valued, learned;
} PolicyRows;
/* Bytes that the tapes will use after such passes, found by running them on the meta device. */
Status policy_plan(const Policy *policy, const PolicyRows *rows, size_t *bytes);

#endif
