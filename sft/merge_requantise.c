/* SPDX-License-Identifier: Apache-2.0 */
/* How much of the adapters' change the base's own quantised forms would keep, if the merged weights were quantised again. */
#include "lib/model/quantized/quantized.h"
#include "sft/merge_parts.h"

#include <math.h>
#include <string.h>

/* The sums of one weight, and what is left of them: adds to `loss`. */
static Status requantise_weight(Merge *merge, const Job *job, const StoredTensor *stored, Arena *arena, RoundingLoss *loss) {
    const Tensor *weight = module_tensor(merge->base, job->module, false);
    const int64_t rows = tensor_rows(weight), cols = tensor_width(weight);
    float *sums = arena_alloc(arena, (size_t)(rows * cols) * sizeof *sums), *again = arena_alloc(arena, (size_t)(rows * cols) * sizeof *again);
    Block block;
    if (!sums || !again) return ST_RESOURCE;
    TRY(block_new(merge, arena, job->module, rows, cols, &block));
    TRY(block_find_norms(merge, job->module, arena, &block));
    double change = 0, lost = 0;
    for (int64_t first = 0, step = block.n; first < rows; first += step) {
        TRY(block_fill(merge, job->module, false, first, MIN(step, rows - first), &block));
        for (int64_t i = 0; i < block.n * cols; i++) {
            sums[first * cols + i] = block.base[i] + block.change[i];
            change += (double)block.change[i] * (double)block.change[i];
        }
    }
    memcpy(again, sums, (size_t)(rows * cols) * sizeof *again);
    if (!quantized_round(stored, again)) return ST_OK;
    for (int64_t i = 0; i < rows * cols; i++) lost += ((double)again[i] - (double)sums[i]) * ((double)again[i] - (double)sums[i]);
    loss->change += change;
    loss->lost += lost;
    return ST_OK;
}

Status merge_requantise(Merge *merge) {
    RoundingLoss loss = {0};
    Status status = ST_OK;
    for (size_t i = 0; i < merge->n_jobs && status == ST_OK; i++) {
        const Job *job = &merge->jobs[i];
        const Tensor *weight = job->passthrough || job->bias ? NULL : module_tensor(merge->base, job->module, false);
        const StoredTensor *stored = weight && weight->name && job->result->changed ? weight_file_find(merge->base->files, weight->name) : NULL;
        if (!stored || !stored_is_quantised(stored)) continue;
        Arena *arena = arena_new(0);
        status = arena ? requantise_weight(merge, job, stored, arena, &loss) : ST_RESOURCE;
        arena_free(arena);
    }
    merge->result->requantised = loss.change > 0;
    merge->result->requantised_lost = rounding_lost(&loss);
    return status;
}
