/* SPDX-License-Identifier: Apache-2.0 */
/* Packs sequences into one flat batch and runs the model forward and backward. */
#include "rl/text/text_pass.h"

#include <stdlib.h>
#include <string.h>

static int64_t length_of(const Experience *e, int64_t i) { return e->begin[i + 1] - e->begin[i]; }

static int64_t prompt_of(const Experience *e, int64_t i) { return i / e->group_size; }

/* Number of batch rows of sequence i: its prompt if it is the first of its group in the pass, and all its tokens but the last. */
static int64_t rows_of(const Experience *e, int64_t i, int64_t first) {
    bool opens = i == first || prompt_of(e, i) != prompt_of(e, i - 1);
    return (opens ? (int64_t)e->prompts[prompt_of(e, i)]->ids.n : 0) + length_of(e, i) - 1;
}

int64_t text_pass_rows(const Experience *e, int64_t first, int64_t n) {
    int64_t rows = 0;
    for (int64_t i = first; i < first + n; i++) rows += rows_of(e, i, first);
    return rows;
}

int64_t text_pass_fit(const TextPass *pass, const Experience *e, int64_t first, int64_t end) {
    int64_t n = 1, tokens = rows_of(e, first, first);
    while (first + n < end && tokens + rows_of(e, first + n, first) <= pass->max_tokens) tokens += rows_of(e, first + n++, first);
    return n;
}

/* ---- the batch ---- */

/* Allocates exactly what is needed: the memory plan relies on it. */
static Status text_pass_resize(void *array, size_t *cap, size_t n, size_t size) {
    if (n <= *cap) return ST_OK;
    TRY(array_resize(array, n, size, "tokens of a pass"));
    *cap = n;
    return ST_OK;
}

static Status text_pass_reserve(TextPass *pass, const Experience *e, int64_t first, int64_t n) {
    size_t tokens = (size_t)(text_pass_rows(e, first, n) + n), targets = (size_t)(e->begin[first + n] - e->begin[first] + n),
           rows_cap = pass->cap_targets; /* each sequence may need a row for its last token */
    TRY(text_pass_resize(&pass->ids, &pass->cap_tokens, tokens, sizeof *pass->ids));
    TRY(text_pass_resize(&pass->rows, &rows_cap, targets, sizeof *pass->rows));
    TRY(text_pass_resize(&pass->targets, &pass->cap_targets, targets, sizeof *pass->targets));
    return text_pass_resize(&pass->segments, &pass->cap_segments, (size_t)(2 * n), sizeof *pass->segments);
}

/* Number of batch rows of a completion: its last token predicts nothing, but the value after it may be needed. */
static int64_t completion_rows(const Experience *e, int64_t i, bool finals) { return length_of(e, i) - (finals && !e->ended[i] ? 0 : 1); }

static void text_pass_build(TextPass *pass, const Experience *e, int64_t first, int64_t n, bool finals) {
    int64_t at = 0, final = e->begin[first + n] - e->begin[first];
    int32_t n_segments = 0, prompt_segment = -1;
    pass->n_targets = pass->n_finals = 0;
    for (int64_t i = first; i < first + n; i++) {
        const Ids *prompt = &e->prompts[prompt_of(e, i)]->ids;
        if (i == first || prompt_of(e, i) != prompt_of(e, i - 1)) {
            memcpy(pass->ids + at, prompt->data, prompt->n * sizeof *prompt->data);
            prompt_segment = n_segments;
            pass->segments[n_segments++] = (Segment){.begin = at, .end = at + (int64_t)prompt->n, .parent = -1};
            at += (int64_t)prompt->n;
        }
        const int32_t *ids = e->ids + e->begin[i];
        int64_t length = length_of(e, i), last_of_prompt = pass->segments[prompt_segment].end - 1;
        for (int64_t t = 0; t < length; t++) {
            pass->rows[pass->n_targets] = (int32_t)(t == 0 ? last_of_prompt : at + t - 1);
            pass->targets[pass->n_targets++] = ids[t];
        }
        int64_t rows = completion_rows(e, i, finals);
        if (rows == length) pass->rows[final + pass->n_finals++] = (int32_t)(at + length - 1);
        if (rows == 0) continue;
        memcpy(pass->ids + at, ids, (size_t)rows * sizeof *ids);
        pass->segments[n_segments++] = (Segment){.begin = at, .end = at + rows, .parent = prompt_segment};
        at += rows;
    }
    pass->batch = (ModelBatch){.ids = pass->ids, .layout = {.n_tokens = at, .n_segments = n_segments, .segments = pass->segments}};
}

/* ---- forward and backward ---- */

static void text_pass_read(const Tensor *tensor, double *out) {
    if (tensor && out) tensor_read(tensor, out);
}

static Tensor *step_view(Tape *tape, int64_t n, int32_t *values) { return tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &n, values); }

static void read_values(const TextPass *pass, const Experience *e, int64_t first, int64_t n, const TextResults *results) {
    if (!pass->values) return;
    for (int64_t t = 0; t < pass->n_targets; t++) results->values[t] = tensor_get(pass->values, t);
    int64_t final = pass->n_targets;
    for (int64_t i = first; results->final_values && i < first + n; i++)
        if (!e->ended[i]) results->final_values[e->begin[i + 1] - 1 - e->begin[first]] = tensor_get(pass->values, final++);
}

Status text_pass_forward(TextPass *pass, const Model *model, const Experience *e, int64_t first, int64_t n, const TextResults *results) {
    Tape *tape = pass->tape;
    TRY(text_pass_reserve(pass, e, first, n));
    text_pass_build(pass, e, first, n, pass->finals || results->final_values != NULL);
    tape_reset(tape);
    Tensor *rows = step_view(tape, pass->n_targets, pass->rows), *targets = step_view(tape, pass->n_targets, pass->targets);
    pass->places = step_view(tape, pass->n_targets + pass->n_finals, pass->rows);
    if (!rows || !targets || !pass->places) return ST_RESOURCE;
    if (pass->loads) TRY(router_loads_pass(pass->loads, &pass->batch));
    Tensor *hidden = pass->hidden = model_forward(model, tape, &pass->batch);
    LogprobArgs args = model->logprob;
    args.temperature *= pass->temperature;
    args.entropy = results->entropies != NULL;
    args.only_logprob = !results->entropies_trained;
    pass->logprobs = results->logprobs ? op_token_logprobs(tape, hidden, model->head, rows, targets, &args) : (TokenLogprobs){0};
    pass->values = results->values ? op_row_scores(tape, hidden, pass->value_head, pass->places) : NULL;
    TRY(tape_status(tape));
    if (!device_computes(tape_device(tape))) return ST_OK; /* the meta device computes no values */
    if (pass->loads) router_loads_count(pass->loads);
    text_pass_read(pass->logprobs.logprob, results->logprobs);
    text_pass_read(pass->logprobs.entropy, results->entropies);
    read_values(pass, e, first, n, results);
    return ST_OK;
}

Status text_pass_taught(TextPass *pass, const Model *model, const Model *teacher, const Experience *e, int64_t first, int64_t n,
                        const DivergenceArgs *args, Divergences *d) {
    Tape *tape = pass->tape;
    TRY(text_pass_reserve(pass, e, first, n));
    text_pass_build(pass, e, first, n, false);
    tape_reset(tape);
    Tensor *rows = step_view(tape, pass->n_targets, pass->rows), *targets = step_view(tape, pass->n_targets, pass->targets);
    if (!rows || !targets) return ST_RESOURCE;
    tape_record(tape, false);
    Tensor *theirs = model_forward(teacher, tape, &pass->batch);
    tape_record(tape, true);
    *d = op_token_divergence(tape, model_forward(model, tape, &pass->batch), model->head, theirs, teacher->head, rows, targets, args);
    return tape_status(tape);
}

Status text_pass_backward(TextPass *pass, const TextGradients *gradients) {
    if (gradients->logprobs) tensor_seed_grad(pass->tape, pass->logprobs.logprob, gradients->logprobs);
    if (gradients->entropies) tensor_seed_grad(pass->tape, pass->logprobs.entropy, gradients->entropies);
    if (gradients->values) tensor_seed_grad(pass->tape, pass->values, gradients->values);
    return tape_backward(pass->tape);
}

void text_pass_release(TextPass *pass) {
    free(pass->ids);
    free(pass->rows);
    free(pass->targets);
    free(pass->segments);
    *pass = (TextPass){0};
}
