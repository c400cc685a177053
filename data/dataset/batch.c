/* SPDX-License-Identifier: Apache-2.0 */
/* Concatenates examples into one flat batch: no padding, and no attention between examples. */
#include "data/branches.h"

#include <stdlib.h>
#include <string.h>

/* Allocates exactly the needed size, since the memory plan of a run relies on it. */
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

/* Lists the rows that predict the trained tokens: the position before each in its text. `at`: index of the row's first token. */
static void add_targets(Batch *batch, const Example *example, int64_t at) {
    for (int32_t i = 0; i < example->n_runs; i++)
        for (int32_t t = example->runs[i].begin; t < example->runs[i].end; t++) {
            batch->rows[batch->n_targets] = (int32_t)at + example_before(example, t);
            batch->weights[batch->n_targets] = example->weight;
            batch->targets[batch->n_targets++] = example->targets[t];
        }
}

/* A segment for each branch, or one for the full row. */
static void add_segments(Batch *batch, const Example *example, int64_t at) {
    int32_t first = batch->model.layout.n_segments;
    if (example->n_branches == 0) batch->segments[batch->model.layout.n_segments++] = (Segment){.begin = at, .end = at + example->n, .parent = -1};
    for (int32_t i = 0; i < example->n_branches; i++) {
        const Branch *branch = &example->branches[i];
        int32_t end = i + 1 < example->n_branches ? branch[1].begin : example->n;
        batch->segments[batch->model.layout.n_segments++] =
            (Segment){.begin = at + branch->begin, .end = at + end, .parent = branch->parent < 0 ? -1 : first + branch->parent};
    }
}

static size_t count_segments(const Dataset *dataset, const size_t *examples, size_t n) {
    size_t segments = 0;
    for (size_t i = 0; i < n; i++) segments += (size_t)MAX(dataset_example(dataset, examples[i]).n_branches, 1);
    return segments;
}

Status batch_build(const Dataset *dataset, const size_t *examples, size_t n, Batch *batch) {
    size_t n_tokens = (size_t)dataset_tokens(dataset, examples, n);
    if (n_tokens > INT32_MAX) return status_fail(ST_RESOURCE, "a batch of %zu tokens is too large", n_tokens);
    TRY(batch_reserve(batch, n_tokens, count_segments(dataset, examples, n)));
    int64_t at = 0;
    batch->model = (ModelBatch){.ids = batch->ids, .layout = {.segments = batch->segments}};
    batch->n_targets = 0;
    for (size_t i = 0; i < n; i++) {
        Example example = dataset_example(dataset, examples[i]);
        memcpy(batch->ids + at, example.ids, (size_t)example.n * sizeof *batch->ids);
        add_segments(batch, &example, at);
        add_targets(batch, &example, at);
        at += example.n;
    }
    batch->model.layout.n_tokens = at;
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
