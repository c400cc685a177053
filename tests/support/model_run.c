/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/model_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"

void model_run_open(ModelRun *run, const char *dir, const Device *device, DType compute) {
    memset(run, 0, sizeof *run);
    check_ok(model_load(dir, &(ModelOptions){.device = device, .compute = compute}, &run->model));
    run->tape = tape_new(device, compute, 0);
}

void model_run_close(ModelRun *run) {
    tape_free(run->tape);
    model_free(run->model);
}

void model_run_ids(ModelRun *run, int64_t n) {
    tape_reset(run->tape);
    run->segment = (Segment){.end = n, .parent = -1};
    run->batch = (ModelBatch){.ids = run->ids, .layout = {.n_tokens = n, .n_segments = 1, .segments = &run->segment}, .loads = run->batch.loads};
    for (int64_t i = 0; i < n; i++) run->rows[i] = (int32_t)i;
}

static Tensor *ids_tensor(Tape *tape, int32_t *ids, int64_t n) { return tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &n, ids); }

double *model_run_logits(ModelRun *run, size_t *count) {
    int64_t n = run->batch.layout.n_tokens;
    Tensor *logits =
        model_logits(run->model, run->tape, model_forward(run->model, run->tape, &run->batch), ids_tensor(run->tape, run->rows, n)).logits;
    check_ok(tape_status(run->tape));
    *count = (size_t)tensor_count(logits);
    double *values = malloc(*count * sizeof *values);
    tensor_read(logits, values);
    return values;
}

/* Adds the gradient of the summed -log p / n_total of the next tokens; returns the sum. */
double model_run_backward(ModelRun *run, double n_total) {
    int64_t n = run->batch.layout.n_tokens - 1;
    double seed[MODEL_RUN_MOST], loss = 0;
    Tensor *hidden = model_forward(run->model, run->tape, &run->batch);
    Tensor *logprob = op_token_logprobs(run->tape, hidden, run->model->head, ids_tensor(run->tape, run->rows, n),
                                        ids_tensor(run->tape, run->ids + 1, n), &run->model->logprob)
                          .logprob;
    check_ok(tape_status(run->tape));
    for (int64_t i = 0; i < n; i++) {
        loss -= tensor_get(logprob, i) / n_total;
        seed[i] = -1 / n_total;
    }
    tensor_seed_grad(run->tape, logprob, seed);
    check_ok(tape_backward(run->tape));
    return loss;
}

int64_t stored_ids(const WeightFile *set, int s, int32_t *ids) {
    const StoredTensor *stored = weight_file_find(set, s ? "seq1.input_ids" : "seq0.input_ids");
    assert_non_null(stored);
    assert_true(stored->count <= MODEL_RUN_MOST);
    for (int64_t i = 0; i < stored->count; i++) ids[i] = (int32_t)stored_get(stored, i);
    return stored->count;
}

void check_stored(const char *what, const double *got, const WeightFile *set, const char *name, double tolerance) {
    const StoredTensor *stored = weight_file_find(set, name);
    if (!stored) fail_msg("no '%s'", name);
    size_t count = (size_t)stored->count;
    double *want = malloc(count * sizeof *want);
    for (size_t i = 0; i < count; i++) want[i] = stored_get(stored, (int64_t)i);
    char label[256];
    snprintf(label, sizeof label, "%s %s", what, name);
    check_close_f64(label, got, want, count, tolerance, 0);
    free(want);
}

WeightFile *weights_open(const char *dir, const char *name) {
    WeightFile *set;
    check_ok(weight_file_open(temp_file(dir, name), &set));
    return set;
}
