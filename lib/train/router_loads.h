/* SPDX-License-Identifier: Apache-2.0 */
/* What the routers of a model with experts do in a step: the load of each expert, and the auxiliary loss that keeps loads even.
 *
 *     TRY(router_loads_open(&loads, model, recipe->train_router_aux_loss_coef));
 *     router_loads_begin(&loads, n_rows);                     // of a step or an evaluation
 *     TRY(router_loads_pass(&loads, &batch));                 // for each pass, before model_forward
 *     router_loads_count(&loads);                             // after it, before tape_backward
 *     router_loads_metrics(&loads, metrics);
 *     router_loads_release(&loads);
 *
 * The loss of a row is E sum_e f_e P_e, with f_e the slots of expert e for each token, P_e its mean score, both over the row's tokens and all layers;
 * the loss of a step is the mean over its rows, so it does not depend on how a step is split. f has no gradient. Source: Switch Transformers, arXiv
 * 2101.03961, section 2.2; transformers' load_balancing_loss_func.
 */
#ifndef TUNE_ROUTER_LOADS_H
#define TUNE_ROUTER_LOADS_H

#include "lib/model/model.h"
#include "lib/run/metrics.h"

typedef struct RouterLoads {
    const Model *model;
    double coef;   /* of the loss */
    size_t n_rows; /* of the step */
    /* of a pass */
    RouterLoad *loads; /* one for each router */
    int64_t n_parts, cap, *ends;
    double *numbers, *balance; /* counts and scores of all routers; shared by all routers */
    double *sums, *shares;     /* sums: of the step so far, see router_loads_numbers; shares: loads, the even one is 1 */
} RouterLoads;
/* Does nothing for models without experts. ST_CONFIG: a coefficient for routers by sigmoids, which have no such loss; ST_RESOURCE. */
Status router_loads_open(RouterLoads *loads, const Model *model, double coef);
void router_loads_begin(RouterLoads *loads, size_t n_rows);
/* Makes room for the rows of the batch, and sets batch->loads. ST_RESOURCE. */
Status router_loads_pass(RouterLoads *loads, ModelBatch *batch);
/* Adds what the pass did, and sets the gradient of the loss for its backward pass. */
void router_loads_count(RouterLoads *loads);
/* The sums of the step so far, for Objective.numbers: losses of rows, their number, slots of each expert. NULL, *n = 0: a model without experts */
double *router_loads_numbers(const RouterLoads *loads, size_t *n);
/* router_aux_loss, expert_load_max, expert_load_min, and the list expert_load, which lives until the next step; nothing without experts. */
void router_loads_metrics(const RouterLoads *loads, Metrics *metrics);
void router_loads_release(RouterLoads *loads);

#endif
