/* SPDX-License-Identifier: Apache-2.0 */
/* Examples side by side in one flat batch: no padding, nobody sees a neighbour. */
#include "data/data.h"

#include <stdlib.h>
#include <string.h>

/* Exactly as much as is needed: the plan of a run's memory counts on it. */
static Status batch_reserve(Batch *batch, size_t n_tokens, size_t n_segments) {
    if (n_tokens > batch->cap_tokens) {
        static const char what[] = "tokens of a batch";
        TRY(array_resize(&batch->ids, n_tokens, sizeof *batch->ids, what));
        TRY(array_resize(&batch->rows, n_tokens, sizeof *batch->rows, what));
        TRY(array_resize(&batch->targets, n_tokens, sizeof *batch->targets, what));
        TRY(array_resize(&batch->weights, n_tokens, sizeof *batch->weights, what));
        batch->cap_tokens = n_tokens;
    }
    if (n_segments > batch->cap_segments) {
        TRY(array_resize(&batch->segments, n_segments, sizeof *batch->segments, "rows of a batch"));
        batch->cap_segments = n_segments;
    }
    return ST_OK;
}

/* What the row's trained tokens are predicted from: the position before. `at`: of its first token. */
static void add_targets(Batch *batch, const Example *example, int64_t at) {
    for (int32_t i = 0; i < example->n_runs; i++)
        for (int32_t t = example->runs[i].begin; t < example->runs[i].end; t++) {
            batch->rows[batch->n_targets] = (int32_t)at + t - 1;
            batch->weights[batch->n_targets] = example->weight;
            batch->targets[batch->n_targets++] = example->targets[t];
        }
}

Status batch_build(const Dataset *dataset, const size_t *examples, size_t n, Batch *batch) {
    size_t n_tokens = (size_t)dataset_tokens(dataset, examples, n);
    if (n_tokens > INT32_MAX) return status_fail(ST_RESOURCE, "a batch of %zu tokens is too large", n_tokens);
    TRY(batch_reserve(batch, n_tokens, n));
    int64_t at = 0;
    batch->n_targets = 0;
    for (size_t i = 0; i < n; i++) {
        Example example = dataset_example(dataset, examples[i]);
        memcpy(batch->ids + at, example.ids, (size_t)example.n * sizeof *batch->ids);
        batch->segments[i] = (Segment){.begin = at, .end = at + example.n, .parent = -1};
        add_targets(batch, &example, at);
        at += example.n;
    }
    batch->model = (ModelBatch){.ids = batch->ids, .layout = {.n_tokens = at, .n_segments = (int32_t)n, .segments = batch->segments}};
    profile_lap("data");
    return ST_OK;
}

void batch_release(Batch *batch) {
    free(batch->ids);
    free(batch->segments);
    free(batch->rows);
    free(batch->targets);
    free(batch->weights);
    *batch = (Batch){0};
}
