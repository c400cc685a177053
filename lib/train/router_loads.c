/* SPDX-License-Identifier: Apache-2.0 */
/* See router_loads.h. */
#include "lib/train/router_loads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Places in `sums` */
enum { LOSS, ROWS, SLOTS };

static const RouterArgs *router_of(const RouterLoads *loads) { return &loads->model->config.experts.router; }

Status router_loads_open(RouterLoads *loads, const Model *model, double coef) {
    *loads = (RouterLoads){.model = model, .coef = coef};
    if (model->n_routers == 0) return ST_OK;
    if (coef > 0 && router_of(loads)->kind == ROUTER_SIGMOID) {
        status_fail(ST_CONFIG, "train.router_aux_loss_coef %g for '%s': its routers have sigmoids and a bias, and no auxiliary loss", coef,
                    model->dir);
        return status_hint(ST_CONFIG, "leave it at 0: the load of the experts is reported");
    }
    size_t n = (size_t)router_of(loads)->n_experts;
    loads->loads = calloc((size_t)model->n_routers, sizeof *loads->loads);
    loads->sums = calloc(SLOTS + 2 * n, sizeof *loads->sums);
    if (!loads->loads || !loads->sums) return status_fail(ST_RESOURCE, "out of memory for the loads of %zu experts", n);
    loads->shares = loads->sums + SLOTS + n;
    return ST_OK;
}

double *router_loads_numbers(const RouterLoads *loads, size_t *n) {
    *n = loads->sums ? SLOTS + (size_t)router_of(loads)->n_experts : 0;
    return loads->sums;
}

void router_loads_begin(RouterLoads *loads, size_t n_rows) {
    size_t n;
    double *sums = router_loads_numbers(loads, &n);
    loads->n_rows = n_rows;
    if (n) memset(sums, 0, n * sizeof *sums);
}

/* Tokens of a prompt and of its continuations are one part. */
static void find_parts(RouterLoads *loads, const Layout *layout) {
    loads->n_parts = 0;
    for (int32_t s = 0; s < layout->n_segments; s++) {
        if (layout->segments[s].parent < 0) loads->n_parts++;
        loads->ends[loads->n_parts - 1] = layout->segments[s].end;
    }
}

Status router_loads_pass(RouterLoads *loads, ModelBatch *batch) {
    batch->loads = NULL;
    if (!loads->loads) return ST_OK;
    int64_t n = batch->layout.n_segments, n_experts = router_of(loads)->n_experts;
    size_t n_routers = (size_t)loads->model->n_routers, each = (size_t)(n * n_experts);
    if (n > loads->cap) {
        loads->cap = 0;
        TRY(array_resize(&loads->ends, (size_t)n, sizeof *loads->ends, "rows of a batch"));
        TRY(array_resize(&loads->numbers, (2 * n_routers + 1) * each, sizeof *loads->numbers, "loads of experts"));
        loads->cap = n;
    }
    find_parts(loads, &batch->layout);
    memset(loads->numbers, 0, (2 * n_routers + 1) * each * sizeof *loads->numbers);
    loads->balance = loads->numbers + 2 * n_routers * each;
    for (size_t r = 0; r < n_routers; r++)
        loads->loads[r] = (RouterLoad){.n_parts = loads->n_parts,
                                       .ends = loads->ends,
                                       .counts = loads->numbers + 2 * r * each,
                                       .scores = loads->numbers + (2 * r + 1) * each,
                                       .balance = loads->coef > 0 ? loads->balance : NULL};
    batch->loads = loads->loads;
    return ST_OK;
}

void router_loads_count(RouterLoads *loads) {
    if (!loads->loads) return;
    int64_t E = router_of(loads)->n_experts;
    for (int64_t part = 0; part < loads->n_parts; part++) {
        double tokens = (double)(loads->ends[part] - (part ? loads->ends[part - 1] : 0)) * loads->model->n_routers;
        for (int64_t e = 0; e < E; e++) {
            double slots = 0, score = 0;
            for (int r = 0; r < loads->model->n_routers; r++) {
                slots += loads->loads[r].counts[part * E + e];
                score += loads->loads[r].scores[part * E + e];
            }
            loads->sums[SLOTS + e] += slots;
            loads->sums[LOSS] += (double)E * (slots / tokens) * (score / tokens);
            loads->balance[part * E + e] = loads->coef * (double)E * (slots / tokens) / tokens / (double)MAX(loads->n_rows, (size_t)1);
        }
        loads->sums[ROWS]++;
    }
}

void router_loads_metrics(const RouterLoads *loads, Metrics *metrics) {
    if (!loads->loads || loads->sums[ROWS] == 0) return;
    int64_t E = router_of(loads)->n_experts;
    const double *slots = loads->sums + SLOTS;
    double all = 0, most = 0, least = (double)INFINITY;
    for (int64_t e = 0; e < E; e++) all += slots[e];
    for (int64_t e = 0; e < E; e++) {
        loads->shares[e] = slots[e] / all * (double)E;
        most = fmax(most, loads->shares[e]);
        least = fmin(least, loads->shares[e]);
    }
    metric_set(metrics, "router_aux_loss", loads->sums[LOSS] / loads->sums[ROWS]);
    metric_set(metrics, "expert_load_max", most);
    metric_set(metrics, "expert_load_min", least);
    metric_list(metrics, "expert_load", loads->shares, (size_t)E);
}

void router_loads_release(RouterLoads *loads) {
    free(loads->loads);
    free(loads->ends);
    free(loads->numbers);
    free(loads->sums);
}
