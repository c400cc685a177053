/* SPDX-License-Identifier: Apache-2.0 */
/* Q networks that give the values of all actions of an observation, their target copies, and their loss.
 *
 *     TRY(q_network_init(&online, &config, true, seed, device, DT_F32, arena));
 *     TRY(q_network_init(&target, &config, false, seed, device, DT_F32, arena));
 *     TRY(q_loss_init(&loss, batch_size, n_actions, arena));
 *     TRY(q_learn(&loss, &online, &target, tape, &batch));                            // gradients of online.params
 *     q_network_blend(&online, 1, &target);
 */
#ifndef TUNE_Q_NETWORK_H
#define TUNE_Q_NETWORK_H

#include "lib/train/stepper.h"
#include "rl/learn/policy.h"
#include "rl/learn/replay.h"

/* Writes observations (n, space->size) as network input into the first space_width columns of `x`, which may have more columns. */
void observation_write(const Space *space, const double *observations, int64_t n, Tensor *x);
/* A network with the shape given by the recipe's section `policy`; orthogonal initialisation uses gain 1 in the last layer, as for values. */
MlpConfig network_config(const PolicyConfig *shape, int64_t in, int64_t out);

typedef struct QNetworkConfig {
    PolicyConfig shape;
    Space observation;
    int64_t n_actions;
    const bool *allowed; /* Space.allowed of the actions: others get the value minus infinity; NULL: all actions exist */
    bool dueling;        /* Q = V + A - mean A: two streams of one hidden layer each, after the shared layers. Source: arXiv 1511.06581, eq. 9 */
} QNetworkConfig;

/* Parameters: "q.0.weight", ...; dueling: "trunk.0.weight", ..., "value.0.weight", ..., "advantage.0.weight", ... */
typedef struct QNetwork {
    QNetworkConfig config;
    Mlp trunk, value, q; /* q: the advantages if dueling */
    bool has_trunk;
    Params params;
    Tensor *q_output, *v_output; /* results of the last q_network_forward, in step memory */
} QNetwork;
/* Allocates in `arena`; the caller calls q_network_release, also after a failure. */
Status q_network_init(QNetwork *network, const QNetworkConfig *config, bool trained, uint64_t seed, const Device *device, DType dtype, Arena *arena);
void q_network_release(QNetwork *network);
/* Resets the tape and writes q (n, n_actions). learn: q_network_backward may follow. ST_NUMERIC when a value is not finite. */
Status q_network_forward(QNetwork *network, Tape *tape, const double *observations, int64_t n, bool learn, double *q);
/* Adds to the gradients of all parameters. dq: (n, n_actions). */
Status q_network_backward(QNetwork *network, Tape *tape, const double *dq);
/* Bytes that `tape` will use for choosing actions in `acting` rows and learning from `learned` rows, found by running both on the meta device. */
Status q_network_plan(QNetwork *network, const Tape *tape, int64_t acting, int64_t learned, size_t *bytes);
void q_network_blend(const QNetwork *from, double tau, QNetwork *to); /* mlp_blend of all parts */

/* Lists all parameters, with `prefix` before their names. */
void state_copy(StateList *states, const char *kind, const Params *params);

/* The Q-learning loss on a batch of n transitions, with its scratch memory. */
typedef struct QLoss {
    bool double_q;                      /* the online network selects the next action, the target network evaluates it */
    double huber;                       /* as td_loss */
    double *q, *next_q, *choose_q, *dq; /* (n, n_actions) */
    double *chosen, *targets, *grad;    /* (n) */
    double *errors;                     /* (n), of the last q_learn: target minus value */
    double loss, mean_q;                /* from the last q_learn: weighted mean loss, mean value of the actions taken */
} QLoss;
Status q_loss_init(QLoss *loss, int64_t n, int64_t n_actions, Arena *arena);
/* Adds the gradient of the weighted loss over a batch to the gradients of online->params. Fails as q_network_forward does. */
Status q_learn(QLoss *loss, QNetwork *online, QNetwork *target, Tape *tape, const ReplayBatch *batch);

/* Makes the optimiser and the schedule of a run that learns from stored transitions. ST_CONFIG as stepper_init, and if rl.learning_starts is after
 * the end of the run. */
Status replay_stepper_init(const Learner *learner, Stepper *stepper);
/* Clips the gradients, takes an optimiser step and clears the gradients. number: of the step, from 1; norm: receives the gradient norm before
 * clipping. ST_NUMERIC names the parameter whose gradient is not finite. */
Status replay_step(const Stepper *stepper, const Learner *learner, Params *params, int64_t number, double *norm);

#endif
