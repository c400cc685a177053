/* SPDX-License-Identifier: Apache-2.0 */
/* Networks that value all actions of an observation at once, their target copies, and the loss that they learn by.
 *
 *     TRY(q_network_init(&online, &config, true, seed, device_cpu(), DT_F32, arena));
 *     TRY(q_network_init(&target, &config, false, seed, device_cpu(), DT_F32, arena));
 *     TRY(q_loss_init(&loss, batch_size, n_actions, arena));
 *     TRY(q_learn(&loss, &online, &target, tape, &batch));                            // gradients of online.params
 *     q_network_blend(&online, 1, &target);
 */
#ifndef TUNE_Q_NETWORK_H
#define TUNE_Q_NETWORK_H

#include "lib/train/stepper.h"
#include "rl/learn/policy.h"
#include "rl/learn/replay.h"

/* Writes observations (n, space->size) as a network's input into the first space_width columns of `x`, whose rows are as wide or wider. */
void observation_write(const Space *space, const double *observations, int64_t n, Tensor *x);
/* A network of the shape that the recipe's section `policy` says; orthogonal first values have gain 1 in the last layer, as of values. */
MlpConfig network_config(const PolicyConfig *shape, int64_t in, int64_t out);

typedef struct QNetworkConfig {
    PolicyConfig shape;
    Space observation;
    int64_t n_actions;
    const bool *allowed; /* Space.allowed of the actions: others are worth minus infinity; NULL: all are there */
    bool dueling;        /* Q = V + A - mean A: two streams of one hidden layer behind what they share. Source: arXiv 1511.06581, eq. 9 */
} QNetworkConfig;

/* Parameters: "q.0.weight", ...; dueling: "trunk.0.weight", ..., "value.0.weight", ..., "advantage.0.weight", ... */
typedef struct QNetwork {
    QNetworkConfig config;
    Mlp trunk, value, q; /* q: the advantages of a dueling one */
    bool has_trunk;
    Params params;
    Tensor *q_output, *v_output; /* of the last q_network_forward, in the step's memory */
} QNetwork;
/* In `arena`; the caller calls q_network_release, also after a failure. */
Status q_network_init(QNetwork *network, const QNetworkConfig *config, bool trained, uint64_t seed, const Device *device, DType dtype, Arena *arena);
void q_network_release(QNetwork *network);
/* q: (n, n_actions). The tape is reset before. learn: q_network_backward may follow. ST_NUMERIC when a value is not finite. */
Status q_network_forward(QNetwork *network, Tape *tape, const double *observations, int64_t n, bool learn, double *q);
/* Adds to the gradients of all parameters. dq: (n, n_actions). */
Status q_network_backward(QNetwork *network, Tape *tape, const double *dq);
/* What `tape` will hold when actions are chosen for `acting` rows and learned of `learned` ones, bytes, by running both on the meta device. */
Status q_network_plan(QNetwork *network, const Tape *tape, int64_t acting, int64_t learned, size_t *bytes);
void q_network_blend(const QNetwork *from, double tau, QNetwork *to); /* mlp_blend */

/* All parameters of a copy, under their names behind `prefix`. */
void state_copy(StateList *states, const char *prefix, const Params *params);

/* The loss of Q-learning on a batch of n transitions, with the memory that it takes. */
typedef struct QLoss {
    bool double_q;                      /* the online network says which next action is best, the target network what it is worth */
    double huber;                       /* as td_loss */
    double *q, *next_q, *choose_q, *dq; /* (n, n_actions) */
    double *chosen, *targets, *grad;    /* (n) */
    double *errors;                     /* (n), of the last q_learn: target minus value */
    double loss, mean_q;                /* of the last q_learn: weighted mean loss, mean value of the actions taken */
} QLoss;
Status q_loss_init(QLoss *loss, int64_t n, int64_t n_actions, Arena *arena);
/* Adds the gradient of the weighted loss over a batch to online->params. Faults as q_network_forward. */
Status q_learn(QLoss *loss, QNetwork *online, QNetwork *target, Tape *tape, const ReplayBatch *batch);

/* The optimiser and the schedule of a run that learns from stored transitions. ST_CONFIG as stepper_init, and where rl.learning_starts comes after
 * the end of the run. */
Status replay_stepper_init(const Learner *learner, Stepper *stepper);
/* Clips, updates and sets gradients to zero. number: of the step, from 1; norm: of the gradient before clipping. ST_NUMERIC names the parameter whose
 * gradient is not finite. */
Status replay_step(const Stepper *stepper, const Learner *learner, Params *params, int64_t number, double *norm);

#endif
