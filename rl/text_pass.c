/* Sequences to one flat batch, through the model, and back. */
#include "rl/text_pass.h"

#include <stdlib.h>
#include <string.h>

static int64_t length_of(const Experience *e, int64_t i) { return e->begin[i + 1] - e->begin[i]; }

static int64_t prompt_of(const Experience *e, int64_t i) { return i / e->group_size; }

/* Rows of the batch that sequence i takes: its prompt where it is the first of its group here, and all of its tokens but the last. */
static int64_t rows_of(const Experience *e, int64_t i, int64_t first) {
    bool opens = i == first || prompt_of(e, i) != prompt_of(e, i - 1);
    return (opens ? (int64_t)e->prompts[prompt_of(e, i)]->ids.n : 0) + length_of(e, i) - 1;
}

int64_t text_pass_fit(const TextPass *pass, const Experience *e, int64_t first, int64_t end) {
    int64_t n = 1, tokens = rows_of(e, first, first);
    while (first + n < end && tokens + rows_of(e, first + n, first) <= pass->max_tokens) tokens += rows_of(e, first + n++, first);
    return n;
}

/* ---- the batch ---- */

static Status grow(void *array, size_t *cap, size_t n, size_t size) {
    void **at = array;
    if (n <= *cap) return ST_OK;
    void *grown = realloc(*at, n * size);
    if (!grown) return status_fail(ST_RESOURCE, "out of memory for a pass of %zu tokens", n);
    *at = grown;
    *cap = n;
    return ST_OK;
}

static Status reserve(TextPass *pass, const Experience *e, int64_t first, int64_t n) {
    size_t tokens = 0, targets = (size_t)(e->begin[first + n] - e->begin[first]), rows_cap = pass->cap_targets;
    for (int64_t i = first; i < first + n; i++) tokens += (size_t)rows_of(e, i, first);
    TRY(grow(&pass->ids, &pass->cap_tokens, tokens, sizeof *pass->ids));
    TRY(grow(&pass->rows, &rows_cap, targets, sizeof *pass->rows));
    TRY(grow(&pass->targets, &pass->cap_targets, targets, sizeof *pass->targets));
    return grow(&pass->segments, &pass->cap_segments, (size_t)(2 * n), sizeof *pass->segments);
}

static void build(TextPass *pass, const Experience *e, int64_t first, int64_t n) {
    int64_t at = 0;
    int32_t n_segments = 0, prompt_segment = -1;
    pass->n_targets = 0;
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
        if (length < 2) continue;
        memcpy(pass->ids + at, ids, (size_t)(length - 1) * sizeof *ids);
        pass->segments[n_segments++] = (Segment){.begin = at, .end = at + length - 1, .parent = prompt_segment};
        at += length - 1;
    }
    pass->batch = (ModelBatch){.ids = pass->ids, .layout = {.n_tokens = at, .n_segments = n_segments, .segments = pass->segments}};
}

/* ---- forward and backward ---- */

static void read(const Tensor *tensor, double *out) {
    if (tensor && out) tensor_read(tensor, out);
}

Status text_pass_forward(TextPass *pass, const Model *model, const Experience *e, int64_t first, int64_t n, const TextResults *results) {
    Tape *tape = pass->tape;
    TRY(reserve(pass, e, first, n));
    build(pass, e, first, n);
    tape_reset(tape);
    Tensor *rows = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &pass->n_targets, pass->rows);
    Tensor *targets = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &pass->n_targets, pass->targets);
    if (!rows || !targets) return ST_RESOURCE;
    Tensor *hidden = model_forward(model, tape, &pass->batch);
    LogprobArgs args = model->logprob;
    args.temperature = pass->temperature;
    args.entropy = results->entropies != NULL;
    pass->logprobs = op_token_logprobs(tape, hidden, model->head, rows, targets, &args);
    TRY(tape_status(tape));
    read(pass->logprobs.logprob, results->logprobs);
    read(pass->logprobs.entropy, results->entropies);
    return ST_OK;
}

Status text_pass_backward(TextPass *pass, const TextGradients *gradients) {
    tensor_seed_grad(pass->tape, pass->logprobs.logprob, gradients->logprobs);
    if (gradients->entropies) tensor_seed_grad(pass->tape, pass->logprobs.entropy, gradients->entropies);
    return tape_backward(pass->tape);
}

void text_pass_release(TextPass *pass) {
    free(pass->ids);
    free(pass->rows);
    free(pass->targets);
    free(pass->segments);
    *pass = (TextPass){0};
}
