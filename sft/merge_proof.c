/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a merge: runs the base with its adapters, and the merged model, on a few tokens. */
#include "sft/merge_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/infer/compare.h"

/* The probe: a few sequences of tokens drawn evenly from the vocabulary, the same ones each time. */
enum { PROBE_ROWS = 4, PROBE_TOKENS = 16, PROBE_SIZE = PROBE_ROWS * PROBE_TOKENS };

/* The sum of the adapters' ranks. */
static int64_t joint_rank(const Merge *merge, size_t module) {
    LoraBranch lora;
    Tensor parts[2];
    int64_t rank = 0;
    for (size_t k = 0; k < merge->config->n_adapters; k++)
        if (module_change(merge->adapted[k], module, 0, &lora, parts)) rank += lora.a->shape[0];
    return rank;
}

/* Puts the branches of all adapters, of one expert's rows, side by side into the factors `a` and `b`. */
static void join_branches(const Merge *merge, size_t module, int64_t expert, int64_t rank, const LoraBranch *all) {
    const Linear *linear = merge->base->modules[module].linear;
    for (size_t k = 0, at = 0; k < merge->config->n_adapters; k++) {
        LoraBranch lora;
        Tensor parts[2];
        if (!module_change(merge->adapted[k], module, expert, &lora, parts)) continue;
        int64_t own = lora.a->shape[0], first = expert * rank + (int64_t)at;
        double scale = lora.scale * merge->config->adapters[k].weight;
        Tensor part = tensor_part(all->a, first * linear->in, tensor_count(lora.a));
        merge->base->device->copy(lora.a, &part);
        for (int64_t o = 0; o < linear->out; o++)
            for (int64_t r = 0; r < own; r++)
                tensor_set(all->b, (expert * linear->out + o) * rank + (int64_t)at + r, scale * tensor_get(lora.b, o * own + r));
        at += (size_t)own;
    }
}

/* Attaches all adapters to the base, unmerged: as one branch with the sum of their ranks. */
static Status attach_branches(const Merge *merge, size_t module) {
    const Model *base = merge->base;
    Linear *linear = base->modules[module].linear;
    int64_t rank = joint_rank(merge, module), n = module_experts(base, module);
    if (rank == 0) return ST_OK;
    LoraBranch *all = arena_zero(merge->arena, sizeof *all);
    if (!all || !(all->a = tensor_new(merge->arena, base->device, DT_F32, 2, (int64_t[]){n * rank, linear->in})) ||
        !(all->b = tensor_new(merge->arena, base->device, DT_F32, 2, (int64_t[]){n * linear->out, rank})))
        return ST_RESOURCE;
    for (int64_t e = 0; e < n; e++) join_branches(merge, module, e, rank, all);
    all->magnitude = module_magnitude(merge->adapted[0], module); /* of the only adapter */
    if (all->magnitude) {
        all->squares = tensor_new(merge->arena, base->device, DT_F32, 1, &linear->out);
        if (!all->squares) return ST_RESOURCE;
        base->device->dora_squares(linear->weight, all->squares);
    }
    all->scale = 1;
    linear->lora = all;
    return ST_OK;
}

static Status attach_saved(const Merge *merge, size_t module, bool bias) {
    const Tensor *tensor = module_tensor(merge->base, module, bias);
    bool saved = false;
    for (size_t k = 0; k < merge->config->n_adapters; k++) saved |= module_saved(merge->adapted[k], module, bias) != NULL;
    if (!saved) return ST_OK;
    Tensor *sum = tensor_new(merge->arena, merge->base->device, DT_F32, tensor->n_dims, tensor->shape);
    if (!sum) return ST_RESOURCE;
    Arena *arena = arena_new(0);
    Block block;
    Status status = arena ? block_new(merge, arena, module, tensor_rows(tensor), tensor_width(tensor), &block) : ST_RESOURCE;
    for (int64_t first = 0, step = status == ST_OK ? block.n : 1; status == ST_OK && first < tensor_rows(tensor); first += step) {
        status = block_fill(merge, module, bias, first, MIN(step, tensor_rows(tensor) - first), &block);
        for (int64_t i = 0; i < block.n * block.cols; i++) block.change[i] += block.base[i];
        if (status == ST_OK) status = tensor_upload(sum, first * block.cols, block.n * block.cols, block.change);
    }
    arena_free(arena);
    sum->in_out = tensor->in_out;
    if (status == ST_OK) *(bias ? merge->base->modules[module].bias : merge->base->modules[module].weight) = sum;
    return status;
}

static Tensor *merge_proof_outputs(const Model *model, Tape *tape, Tensor *hidden, Tensor *rows) {
    return model->score ? op_row_scores(tape, hidden, model->score, rows) : model_logits(model, tape, hidden, rows).logits;
}

/* Next-token logits of the probe, or scores: (PROBE_SIZE, V or 1), the caller frees them. */
static Status probe(const Model *model, double **seen) {
    int32_t ids[PROBE_SIZE], rows[PROBE_SIZE];
    Segment segments[PROBE_ROWS];
    int64_t size = PROBE_SIZE;
    for (int32_t i = 0; i < PROBE_SIZE; i++) {
        ids[i] = (int32_t)rng_below(rng_key(0, RNG_TEST, 0), (uint64_t)i, (uint64_t)model->config.vocab_size);
        rows[i] = i;
    }
    for (int i = 0; i < PROBE_ROWS; i++) segments[i] = (Segment){.begin = i * PROBE_TOKENS, .end = (i + 1) * PROBE_TOKENS, .parent = -1};
    Tape *tape = tape_new(model->device, model->compute, 0);
    if (!tape) return ST_RESOURCE;
    tape_record(tape, false);
    ModelBatch batch = {.ids = ids, .layout = {.n_tokens = PROBE_SIZE, .n_segments = PROBE_ROWS, .segments = segments}};
    Tensor *wanted = tensor_view(tape_arena(tape), model->device, DT_I32, 1, &size, rows);
    Tensor *result = merge_proof_outputs(model, tape, model_forward(model, tape, &batch), wanted);
    Status status = result && wanted ? ST_OK : tape_status(tape) != ST_OK ? tape_status(tape) : ST_RESOURCE;
    if (status == ST_OK && !(*seen = malloc((size_t)tensor_count(result) * sizeof **seen)))
        status = status_fail(ST_RESOURCE, "out of memory for the proof's logits");
    if (status == ST_OK) status = model->device->synchronise(model->device);
    if (status == ST_OK) tensor_read(result, *seen);
    tape_free(tape);
    return status;
}

static void merge_proof_compare(const double *p, const double *q, int64_t vocab, MergeResult *result) {
    for (int row = 0; row < PROBE_SIZE; row++, p += vocab, q += vocab) {
        bool same_top;
        result->kl += logits_divergence(p, q, vocab, &same_top) / PROBE_SIZE;
        result->top1_agreement += same_top / (double)PROBE_SIZE;
    }
}

static void compare_scores(const double *before, const double *after, MergeResult *result) {
    for (int row = 0; row < PROBE_SIZE; row++) {
        double error = fabs(before[row] - after[row]);
        if (isnan(error) || error > result->score_error) result->score_error = error; /* keeps NaN */
    }
}

static Status prove_base(Merge *merge) {
    for (size_t m = 0; m < merge->base->n_modules; m++) {
        TRY(attach_branches(merge, m));
        TRY(attach_saved(merge, m, false));
        if (merge->base->modules[m].bias) TRY(attach_saved(merge, m, true));
    }
    Model *merged = NULL;
    double *before = NULL, *after = NULL;
    Status status = model_load(
        merge->made,
        &(ModelOptions){
            .device = merge->config->runtime.device, .compute = merge->config->runtime.compute, .scores = merge->scores, .skip_nan_check = true},
        &merged);
    if (status == ST_OK) status = probe(merge->base, &before);
    if (status == ST_OK) status = probe(merged, &after);
    if (status == ST_OK && merge->scores)
        compare_scores(before, after, merge->result);
    else if (status == ST_OK)
        merge_proof_compare(before, after, merged->config.vocab_size, merge->result);
    free(before);
    free(after);
    model_free(merged);
    return status;
}

Status merge_prove(Merge *merge) {
    const MergeConfig *config = merge->config;
    Model *target = merge->base, *trained = NULL;
    if (!config->onto) return prove_base(merge);
    TRY(model_load(
        config->base,
        &(ModelOptions){
            .device = config->runtime.device, .compute = config->runtime.compute, .streamed = true, .scores = merge->scores, .skip_nan_check = true},
        &trained));
    Status status = ST_OK;
    if (trained->n_modules != target->n_modules) {
        status = status_fail(ST_INPUT, "'%s' and '%s' are different models", config->base, config->onto);
    } else {
        merge->base = trained;
        status = prove_base(merge);
        merge->base = target;
    }
    model_free(trained);
    return status;
}
