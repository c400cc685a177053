/* Which rows a step trains on, as a function of (seed, step): orders of epochs, batches, steps. */
#include "data/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows to look at before a bound on the largest batch is good enough. */
#define LOOK_AT_MOST 4000000

size_t data_order_at(const DataOrder *order, int64_t epoch, int64_t index) {
    if (!order->shuffle) return (size_t)index;
    return (size_t)rng_permute(rng_key(order->seed, RNG_SHUFFLE, (uint64_t)epoch), order->dataset->n, (uint64_t)index);
}

Status data_epoch_batches(const DataOrder *order, int64_t epoch, int64_t batch_size, int64_t batch_tokens, int64_t **starts, int64_t *n_batches) {
    int64_t n = (int64_t)order->dataset->n, count = 0, tokens = 0;
    *starts = malloc(((size_t)n + 1) * sizeof **starts);
    if (!*starts) return status_fail(ST_RESOURCE, "out of memory for the order of %lld rows", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        int64_t length = batch_tokens > 0 ? order->dataset->examples[data_order_at(order, epoch, i)].n : 0;
        bool full = batch_tokens > 0 ? tokens + length > batch_tokens : i % batch_size == 0;
        if (i == 0 || full) {
            (*starts)[count++] = i;
            tokens = 0;
        }
        tokens += length;
    }
    (*starts)[count] = n;
    *n_batches = count;
    return ST_OK;
}

void data_plan_init(DataPlan *plan, const DataOrder *order, int64_t batch_size, int64_t batch_tokens, int64_t accumulation) {
    *plan = (DataPlan){.order = *order, .batch_size = batch_size, .batch_tokens = MAX(batch_tokens, 0), .accumulation = accumulation, .epoch = -1};
}

void data_plan_release(DataPlan *plan) {
    free(plan->starts);
    free(plan->first_steps);
    *plan = (DataPlan){.epoch = -1};
}

static Status load_epoch(DataPlan *plan, int64_t epoch) {
    if (plan->epoch == epoch) return ST_OK;
    bool same = plan->epoch >= 0 && plan->batch_tokens == 0; /* the cuts are the same in every epoch */
    if (!same) {
        free(plan->starts);
        plan->starts = NULL;
        plan->epoch = -1;
        TRY(data_epoch_batches(&plan->order, epoch, plan->batch_size, plan->batch_tokens, &plan->starts, &plan->n_batches));
    }
    plan->epoch = epoch;
    return ST_OK;
}

static int64_t steps_of(const DataPlan *plan) { return (plan->n_batches + plan->accumulation - 1) / plan->accumulation; }

/* With batch_tokens epochs differ in length: their first steps are remembered one after the other. */
static Status epoch_start(DataPlan *plan, int64_t epoch, int64_t *first_step) {
    if (plan->batch_tokens == 0) {
        TRY(load_epoch(plan, epoch));
        *first_step = epoch * steps_of(plan);
        return ST_OK;
    }
    while (plan->n_epochs <= epoch) {
        if (plan->n_epochs == plan->cap_epochs) {
            int64_t cap = plan->cap_epochs ? plan->cap_epochs * 2 : 16;
            int64_t *grown = realloc(plan->first_steps, (size_t)cap * sizeof *grown);
            if (!grown) return status_fail(ST_RESOURCE, "out of memory for %lld epochs", (long long)cap);
            plan->first_steps = grown;
            plan->cap_epochs = cap;
        }
        int64_t first = 0;
        if (plan->n_epochs > 0) {
            TRY(load_epoch(plan, plan->n_epochs - 1));
            first = plan->first_steps[plan->n_epochs - 1] + steps_of(plan);
        }
        plan->first_steps[plan->n_epochs++] = first;
    }
    *first_step = plan->first_steps[epoch];
    return ST_OK;
}

Status data_plan_total(DataPlan *plan, double epochs, int64_t *steps) {
    int64_t whole = (int64_t)floor(epochs);
    TRY(epoch_start(plan, whole, steps));
    double part = epochs - (double)whole;
    if (part <= 0) return ST_OK;
    TRY(load_epoch(plan, whole));
    *steps += (int64_t)ceil(part * (double)steps_of(plan));
    return ST_OK;
}

/* The epoch that a step falls into, and that epoch's first step. */
static Status epoch_of_step(DataPlan *plan, int64_t step, int64_t *epoch, int64_t *first) {
    if (plan->batch_tokens == 0) {
        TRY(load_epoch(plan, 0));
        *epoch = step / steps_of(plan);
        return epoch_start(plan, *epoch, first);
    }
    int64_t next;
    *epoch = MAX(plan->n_epochs - 1, 0);
    TRY(epoch_start(plan, *epoch, first));
    while (*first > step) *first = plan->first_steps[--*epoch];
    for (;;) {
        TRY(epoch_start(plan, *epoch + 1, &next));
        if (next > step) return ST_OK;
        *first = next;
        ++*epoch;
    }
}

Status data_plan_step(DataPlan *plan, int64_t step, PlanStep *at) {
    int64_t epoch, first;
    TRY(epoch_of_step(plan, step, &epoch, &first));
    TRY(load_epoch(plan, epoch));
    at->epoch = epoch;
    at->steps_before = first;
    at->epoch_steps = steps_of(plan);
    at->first_batch = (step - first) * plan->accumulation;
    at->n_batches = MIN(plan->accumulation, plan->n_batches - at->first_batch);
    return ST_OK;
}

Status data_plan_batch(DataPlan *plan, int64_t epoch, int64_t batch, size_t **examples, size_t *n) {
    TRY(load_epoch(plan, epoch));
    int64_t begin = plan->starts[batch], end = plan->starts[batch + 1];
    *n = (size_t)(end - begin);
    size_t *grown = realloc(*examples, *n * sizeof *grown);
    if (!grown) return status_fail(ST_RESOURCE, "out of memory for a batch of %zu rows", *n);
    *examples = grown;
    for (int64_t i = begin; i < end; i++) grown[i - begin] = data_order_at(&plan->order, epoch, i);
    return ST_OK;
}

/* ---- the largest batch ---- */

static int64_t batch_length(const DataPlan *plan, int64_t epoch, int64_t batch) {
    int64_t tokens = 0;
    for (int64_t i = plan->starts[batch]; i < plan->starts[batch + 1]; i++) tokens += plan->order.dataset->examples[data_order_at(&plan->order, epoch, i)].n;
    return tokens;
}

static Status search_largest(DataPlan *plan, int64_t steps, size_t **examples, size_t *n) {
    int64_t best = -1, best_epoch = 0, best_batch = 0;
    for (int64_t step = 0; step < steps; step++) {
        PlanStep at;
        TRY(data_plan_step(plan, step, &at));
        if (!plan->order.shuffle && at.epoch > 0) break; /* every epoch is the same */
        for (int64_t batch = at.first_batch; batch < at.first_batch + at.n_batches; batch++) {
            int64_t tokens = batch_length(plan, at.epoch, batch);
            if (tokens <= best) continue;
            best = tokens;
            best_epoch = at.epoch;
            best_batch = batch;
        }
    }
    return data_plan_batch(plan, best_epoch, best_batch, examples, n);
}

typedef struct Length { int32_t tokens; size_t example; } Length;

static int longer_first(const void *a, const void *b) {
    const Length *x = a, *y = b;
    if (x->tokens != y->tokens) return x->tokens < y->tokens ? 1 : -1;
    return (x->example > y->example) - (x->example < y->example);
}

/* No batch of rows can have more tokens than the longest rows together; one filled by tokens has no more than its limit, or one row. */
static Status bound_largest(const DataPlan *plan, size_t **examples, size_t *n) {
    const Dataset *dataset = plan->order.dataset;
    Length *lengths = malloc(dataset->n * sizeof *lengths);
    size_t *longest = lengths ? malloc(dataset->n * sizeof *longest) : NULL;
    if (!longest) {
        free(lengths);
        return status_fail(ST_RESOURCE, "out of memory for the lengths of %zu rows", dataset->n);
    }
    for (size_t i = 0; i < dataset->n; i++) lengths[i] = (Length){dataset->examples[i].n, i};
    qsort(lengths, dataset->n, sizeof *lengths, longer_first);
    int64_t tokens = 0;
    *n = 0;
    while (*n < dataset->n && (plan->batch_tokens > 0 ? *n == 0 || tokens < plan->batch_tokens : (int64_t)*n < plan->batch_size)) {
        tokens += lengths[*n].tokens;
        longest[*n] = lengths[*n].example;
        ++*n;
    }
    free(lengths);
    free(*examples);
    *examples = longest;
    return ST_OK;
}

Status data_plan_largest(DataPlan *plan, int64_t steps, size_t **examples, size_t *n) {
    TRY(load_epoch(plan, 0));
    double epochs = (double)steps / (double)steps_of(plan);
    bool few = (plan->order.shuffle ? fmax(epochs, 1) : 1) * (double)plan->order.dataset->n <= LOOK_AT_MOST;
    return few ? search_largest(plan, steps, examples, n) : bound_largest(plan, examples, n);
}
