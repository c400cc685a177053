/* SPDX-License-Identifier: Apache-2.0 */
/* From a row of logits to a token. What a sequence gets is a function of its prompt, its seed, its numbers and the position alone. */
#include <math.h>
#include <string.h>

#include "lib/infer/generator_parts.h"

#define SECOND_DRAWS ((uint64_t)1 << 63) /* of random numbers: no answer is so long */

/* ---- ids that are never chosen ---- */

bool is_eos(const Generator *g, const GenerateRequest *request, int32_t id) {
    if (request->ignore_eos) return false;
    for (size_t i = 0; i < g->model->config.n_eos; i++)
        if (g->model->config.eos_token_id[i] == id) return true;
    for (size_t i = 0; i < request->n_stop_ids; i++)
        if (request->stop_ids[i] == id) return true;
    return g->tokenizer && tokenizer_eos(g->tokenizer) == id;
}

Status find_absent(Generator *g) {
    int64_t vocab = g->model->config.vocab_size;
    if (!g->tokenizer) return ST_OK;
    for (int32_t id = 0; id < vocab; id++) g->n_absent += !tokenizer_token(g->tokenizer, id);
    g->absent = arena_alloc(g->arena, (g->n_absent + 1) * sizeof *g->absent);
    if (!g->absent) return ST_RESOURCE;
    size_t n = 0;
    for (int32_t id = 0; id < vocab && n < g->n_absent; id++)
        if (!tokenizer_token(g->tokenizer, id)) g->absent[n++] = id;
    return ST_OK;
}

/* Embeddings are padded to round numbers. One that ends an answer is no text, so it may come all the same. */
static bool is_absent(const Generator *g, const GenerateRequest *request, int64_t id) {
    size_t low = 0, high = g->n_absent;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (g->absent[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < g->n_absent && g->absent[low] == id && !is_eos(g, request, (int32_t)id);
}

/* ---- constraints ---- */

static void allow(Sequence *s, int32_t id, bool allowed) {
    uint64_t bit = (uint64_t)1 << id % 64;
    s->allowed[id / 64] = allowed ? s->allowed[id / 64] | bit : s->allowed[id / 64] & ~bit;
}

/* A token that ends the answer may come where the text may end, and only there: it is no part of the text. */
static void allow_ends(const Generator *g, Sequence *s, bool may_end) {
    const GenerateRequest *request = &s->group->request;
    const ModelConfig *config = &g->model->config;
    int32_t eos = tokenizer_eos(g->tokenizer);
    if (request->ignore_eos) return;
    for (size_t i = 0; i < config->n_eos; i++)
        if (config->eos_token_id[i] >= 0 && config->eos_token_id[i] < config->vocab_size) allow(s, (int32_t)config->eos_token_id[i], may_end);
    for (size_t i = 0; i < request->n_stop_ids; i++)
        if (request->stop_ids[i] >= 0 && request->stop_ids[i] < config->vocab_size) allow(s, request->stop_ids[i], may_end);
    if (eos >= 0 && eos < config->vocab_size) allow(s, eos, may_end);
}

Status sequence_constrain(const Generator *g, Sequence *s, bool *ends) {
    const GenerateRequest *request = &s->group->request;
    const Ids *ids = &s->completion.ids;
    size_t vocab = (size_t)g->model->config.vocab_size, n_words = (vocab + 63) / 64;
    TokenMask mask;
    *ends = false;
    if (!request->constraint) return ST_OK;
    if (!s->allowed) TRY(array_resize(&s->allowed, n_words, sizeof *s->allowed, "allowed tokens"));
    TRY(constraint_mask(request->constraint, &s->place, ids->data, ids->n, &mask));
    size_t known = (MIN(vocab, (size_t)tokenizer_vocab_size(g->tokenizer)) + 63) / 64;
    memset(s->allowed, 0, n_words * sizeof *s->allowed);
    memcpy(s->allowed, mask.allowed, known * sizeof *s->allowed);
    allow_ends(g, s, mask.may_end);
    *ends = mask.must_end;
    return ST_OK;
}

/* ---- rows ---- */

/* Where a sequence finds the logits of its newest token. */
typedef struct Source {
    const Logits *logits;
    const Tensor *advice;
    int64_t row;
} Source;

static Source source_of(const Generator *g, const Sequence *s) {
    const Pass *pass = s->at.row == KEPT_ROW ? &g->kept : &g->passes[s->at.pass];
    return (Source){&pass->logits, pass->advice, s->at.row == KEPT_ROW ? 0 : s->at.row};
}

static void row_copy(const Tensor *from, int64_t row, Tensor *to) {
    Tensor part = tensor_part(from, row * tensor_count(to), tensor_count(to));
    tensor_device(to)->copy(&part, to);
}

void row_keep(const Pass *from, int64_t row, Pass *kept) {
    row_copy(from->logits.logits, row, kept->logits.logits);
    row_copy(from->logits.logsumexp, row, kept->logits.logsumexp);
    if (from->advice) row_copy(from->advice, row, kept->advice);
}

static double element(const Tensor *tensor, int64_t row, int64_t column) { return tensor_get(tensor, row * tensor_width(tensor) + column); }

/* All logits of the row, with what is advised; -infinity where the tokenizer has no token, or the constraint allows none. */
static void row_read(const Generator *g, const Sequence *s, const Source *from, double *out) {
    const GenerateRequest *request = &s->group->request;
    const Tensor *logits = from->logits->logits;
    int64_t vocab = tensor_width(logits);
    tensor_read_part(logits, from->row * vocab, vocab, out);
    for (int64_t v = 0; from->advice && v < vocab; v++) out[v] += element(from->advice, from->row, v);
    for (size_t i = 0; i < g->n_absent; i++)
        if (!is_eos(g, request, g->absent[i])) out[g->absent[i]] = -HUGE_VAL;
    for (int64_t v = 0; s->allowed && v < vocab; v++)
        if (!(s->allowed[v / 64] >> v % 64 & 1)) out[v] = -HUGE_VAL;
}

/* Log of the share that is left to the tokens which may come, at the sampling temperature. */
static double log_present(const Generator *g, const GenerateRequest *request, const Source *from, double logsumexp) {
    double absent = 0;
    for (size_t i = 0; i < g->n_absent; i++)
        if (!is_eos(g, request, g->absent[i]))
            absent += exp(element(from->logits->logits, from->row, g->absent[i]) / request->sample.temperature - logsumexp);
    return log1p(-fmin(absent, 1));
}

/* By the logits after advice, constraint, penalties and filters; -1: no token is left. */
static void choose_filtered(const Generator *g, const Source *from, double u, Chooser *chooser, Sequence *s) {
    const GenerateRequest *request = &s->group->request;
    const SampleConfig *sample = &request->sample;
    const Completion *c = &s->completion;
    const Prompt *prompt = &request->prompt;
    int64_t vocab = g->model->config.vocab_size;
    Ids *history = &chooser->history;
    ids_clear(history);
    ids_append(history, prompt->ids, prompt->n);
    ids_append(history, c->ids.data, c->ids.n);
    row_read(g, s, from, chooser->logits);
    if (sample_is_greedy(sample)) {
        s->next = sample_greedy(sample, chooser->logits, vocab, history->data, history->n, prompt->n, &chooser->scratch);
    } else {
        bool any = sample_distribution(sample, chooser->logits, vocab, history->data, history->n, prompt->n, &chooser->scratch);
        s->next = any ? sample_pick(chooser->logits, vocab, u) : -1;
        s->next_filtered = any ? log(chooser->logits[s->next]) : 0;
    }
}

typedef struct Asked {
    const Generator *g;
    const GenerateRequest *request;
} Asked;

static bool may_not_come(const void *context, int32_t id) {
    const Asked *asked = context;
    return is_absent(asked->g, asked->request, id);
}

/* Rows are drawn from as they are, which is fast; where that gives a token that may not come, a second draw is made among the others. */
void generate_choose(const Generator *g, Chooser *chooser, Sequence *s) {
    const GenerateRequest *request = &s->group->request;
    const SampleConfig *sample = &request->sample;
    const Completion *c = &s->completion;
    Source from = source_of(g, s);
    const Tensor *logits = from.logits->logits;
    bool greedy = sample_is_greedy(sample);
    RngKey key = rng_key(request->seed, RNG_SAMPLE, request->prompt.number << 20 | (uint64_t)c->sample);
    double u = rng_uniform(key, c->ids.n), logsumexp = 0;
    int64_t next = 0;
    bool plain = !from.advice && !s->allowed && sample_is_plain(sample);
    if (greedy && plain) tensor_device(logits)->largest(logits, from.row, &next);
    if (!greedy && (plain || sample->temperature != 1)) tensor_device(logits)->draw(logits, from.row, sample->temperature, u, &next, &logsumexp);
    bool again = plain && is_absent(g, request, next);
    s->next = (int32_t)next;
    s->next_filtered =
        greedy || !plain ? 0 : element(logits, from.row, next) / sample->temperature - logsumexp - log_present(g, request, &from, logsumexp);
    if (again) u = rng_uniform(key, SECOND_DRAWS | c->ids.n);
    if (!plain || again) choose_filtered(g, &from, u, chooser, s);
    int32_t told = MAX(s->next, 0); /* where no token is left, that of any tells whether the logits are numbers */
    s->at.row = NO_ROW;
    s->chosen = true;
    s->next_logprob = logits_logprob(from.logits, from.row, told);
    s->next_tempered = greedy || sample->temperature == 1 ? s->next_logprob : element(logits, from.row, told) / sample->temperature - logsumexp;
    if (s->next_top) logits_top(from.logits, from.row, request->n_top, may_not_come, &(Asked){g, request}, chooser->logits, s->next_top);
}
