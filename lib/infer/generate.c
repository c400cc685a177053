/* SPDX-License-Identifier: Apache-2.0 */
/* Generation by continuous batching: each step runs the newest token of every sequence and, as far as the step has room, parts of waiting prompts,
 * through the model together. A prompt is computed once for all its samples, which share its cache pages. What a sequence gets depends only on its
 * prompt, the seed, its number and the position. */
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/system.h"
#include "lib/infer/infer.h"
#include "lib/infer/kv_cache.h"

enum { STEP_TOKENS = 1024, DEFAULT_BATCH = 32 }; /* STEP_TOKENS: of prompts */
enum { NO_ROW = -1, KEPT_ROW = -2 };             /* special values of a row index; others are rows of a step's logits */
#define SECOND_DRAWS ((uint64_t)1 << 63)         /* positions of second random draws: no answer is that long */

/* A prompt that still has samples to begin. */
typedef struct Prefill {
    size_t prompt;
    int64_t done; /* tokens in the cache */
    int64_t next_sample;
    KvPageList pages;
    int64_t row; /* logits of its last token */
} Prefill;

typedef struct Sequence {
    Completion completion;
    KvPageList pages;
    int64_t cached; /* tokens in the cache: prompt and completion without the newest token, or fewer while they are computed again */
    bool outgrown;  /* the sequence is computed again, because it became longer than the original context of a longrope */
    TextStream stream;
    size_t shown; /* bytes of text that on_token has received */
    size_t cap_logprobs;
    bool active;
    int64_t row;  /* logits of its newest token; NO_ROW when it has its next one */
    int32_t next; /* the token chosen by these logits, and its log-probabilities as Completion names them */
    double next_logprob, next_tempered, next_filtered;
} Sequence;

/* A thread's memory for choosing a token: V values each. */
typedef struct Chooser {
    double *logits;
    SampleScratch scratch;
} Chooser;

typedef struct Generator {
    const Model *model;
    const Tokenizer *tokenizer;
    const Prompt *prompts;
    size_t n_prompts;
    const GenerateConfig *config;
    OnToken *on_token;
    OnDone *on_done;
    void *context;

    GenerateMemory *memory;
    Arena *arena; /* owned by the GenerateMemory */
    Tape *tape;
    KvCache *cache;
    Sequence *slots;
    int64_t n_slots, n_active;
    Prefill *queue; /* prompts being computed, in order; all but the last have slots reserved for all of their samples */
    int64_t n_queue;
    size_t next_prompt;
    Tensor *advice; /* the bias on the current step's logits; NULL: none */
    Logits kept;    /* logits of the first prompt of the queue while it is done and waits for slots: a single row */
    Tensor *kept_advice;
    Completion **waiting; /* finished completions that wait for earlier ones, by prompt and sample */
    size_t next_done;
    Chooser *choosers; /* one for each thread */
    int n_threads;
    int32_t *ids; /* of the step */
    Segment *segments;
    int64_t *lengths;
    int32_t *rows;
    int32_t *absent; /* ids that the model has and the tokenizer lacks, in order: never chosen */
    size_t n_absent;
} Generator;

/* ---- longrope: in a sequence longer than the original context all tokens have other angles ---- */

static bool is_long(const Model *model, int64_t n) {
    const RopeConfig *rope = &model->config.rope;
    return rope->type == ROPE_LONGROPE && n > rope->original_max_position_embeddings;
}

/* Of `cached` tokens of a sequence of `whole` tokens: how many have the same keys as in a sequence that ends there. */
static int64_t usable(const Model *model, int64_t whole, int64_t cached) { return is_long(model, whole) == is_long(model, cached) ? cached : 0; }

/* ---- sessions ---- */

struct Session {
    const Model *model;
    Arena *arena;
    KvCache *cache;
    KvPageList pages;
    Ids ids;
    int64_t max_tokens;
}; /* the tokens that the pages contain */

Status session_new(const Model *model, int64_t max_tokens, Session **result) {
    Session *session = calloc(1, sizeof *session);
    *result = NULL;
    if (!session) return status_fail(ST_RESOURCE, "out of memory");
    session->model = model;
    session->max_tokens = max_tokens;
    session->arena = arena_new(0);
    /* One page more: the last page of a prompt is copied when its answer begins */
    Status status = session->arena ? kv_cache_new(session->arena, model, kv_pages_for(max_tokens) + 1, &session->cache)
                                   : status_fail(ST_RESOURCE, "out of memory for the key/value cache");
    if (status == ST_OK)
        *result = session;
    else
        session_free(session);
    return status;
}

void session_free(Session *session) {
    if (!session) return;
    free(session->pages.items);
    ids_release(&session->ids);
    arena_free(session->arena);
    free(session);
}

int64_t session_max_tokens(const Session *session) { return session->max_tokens; }

/* Keeps the pages of the prefix that the new prompt shares with the conversation. The prompt's last token is always computed, for its logits. */
static int64_t session_resume(Session *session, const Prompt *prompt, KvPageList *pages) {
    size_t same = 0, most = is_long(session->model, (int64_t)session->ids.n) == is_long(session->model, (int64_t)prompt->n) ? session->ids.n : 0;
    while (same < most && same + 1 < prompt->n && session->ids.data[same] == prompt->ids[same]) same++;
    kv_pages_truncate(session->cache, &session->pages, (int64_t)same);
    *pages = session->pages;
    session->pages = (KvPageList){0};
    ids_clear(&session->ids);
    return (int64_t)same;
}

/* Moves the pages of the first `cached` tokens of prompt and completion into the session. */
static void session_keep(Session *session, const Prompt *prompt, const Ids *completion, int64_t cached, KvPageList *pages) {
    size_t n = (size_t)cached;
    ids_clear(&session->ids);
    ids_append(&session->ids, prompt->ids, MIN(n, prompt->n));
    if (n > prompt->n) ids_append(&session->ids, completion->data, MIN(n - prompt->n, completion->n));
    session->pages = *pages;
    *pages = (KvPageList){0};
}

/* ---- memory ---- */

struct GenerateMemory {
    const Model *model;
    Arena *arena;
    Tape *tape;
};

GenerateMemory *generate_memory_new(const Model *model) {
    GenerateMemory *memory = calloc(1, sizeof *memory);
    if (memory) *memory = (GenerateMemory){model, arena_new(0), tape_new(model->device, model->compute, 0)};
    if (memory && memory->arena && memory->tape) return memory;
    generate_memory_free(memory);
    status_fail(ST_RESOURCE, "out of memory for sampling");
    return NULL;
}

void generate_memory_free(GenerateMemory *memory) {
    if (!memory) return;
    tape_free(memory->tape);
    arena_free(memory->arena);
    free(memory);
}

/* ---- set-up ---- */

static int64_t longest_sequence(const Generator *g) {
    size_t longest = 0;
    for (size_t i = 0; i < g->n_prompts; i++) longest = MAX(longest, g->prompts[i].n);
    return (int64_t)longest + g->config->max_new_tokens;
}

static Status check_prompts(const Generator *g) {
    const ModelConfig *config = &g->model->config;
    for (size_t i = 0; i < g->n_prompts; i++) {
        const Prompt *prompt = &g->prompts[i];
        if (prompt->n == 0) return status_fail(ST_INPUT, "prompt %zu is empty", i + 1);
        for (size_t t = 0; t < prompt->n; t++)
            if (prompt->ids[t] < 0 || prompt->ids[t] >= config->vocab_size)
                return status_fail(ST_INPUT, "prompt %zu has the unknown token id %d, the model's vocabulary has %lld", i + 1, prompt->ids[t],
                                   (long long)config->vocab_size);
        if (config->learned_positions && (int64_t)prompt->n + g->config->max_new_tokens - 1 > config->max_position_embeddings) {
            status_fail(ST_INPUT, "prompt %zu of %zu tokens and %lld new ones are more than the model's %lld positions", i + 1, prompt->n,
                        (long long)g->config->max_new_tokens, (long long)config->max_position_embeddings);
            return status_hint(ST_INPUT, "make the prompt shorter or lower max_new_tokens");
        }
    }
    if (g->config->n_stop && !g->tokenizer) return status_fail(ST_INPUT, "stop texts need a tokenizer, and the model has none");
    return ST_OK;
}

static int64_t slots_for(const GenerateConfig *config, size_t n_prompts) {
    return MIN(config->max_batch > 0 ? config->max_batch : DEFAULT_BATCH, (int64_t)n_prompts * config->n);
}

/* Runs one step of the largest kind on the device that computes nothing: a full load of prompt tokens, and a row of logits for each sequence. */
static size_t step_bytes(const Model *model, size_t n_prompts, size_t longest, int64_t n_slots) {
    Arena *arena = arena_new(0);
    Tape *meta = tape_new(device_meta(), model->compute, 0);
    size_t n_segments = MIN((STEP_TOKENS + longest - 1) / longest, n_prompts), bytes = 0;
    int64_t n_tokens = (int64_t)(n_segments * longest) + n_slots, n_rows = n_slots + (int64_t)n_segments;
    Segment *segments = arena ? arena_zero(arena, (n_segments + (size_t)n_slots) * sizeof *segments) : NULL;
    int32_t *ids = arena ? arena_zero(arena, (size_t)n_tokens * sizeof *ids) : NULL,
            *rows = arena ? arena_zero(arena, (size_t)n_rows * sizeof *rows) : NULL;
    if (meta && segments && ids && rows) {
        int64_t at = 0;
        for (size_t i = 0; i < n_segments + (size_t)n_slots; i++) {
            segments[i] = (Segment){.begin = at, .end = at + (i < n_segments ? (int64_t)longest : 1), .parent = -1};
            at = segments[i].end;
        }
        tape_record(meta, false);
        Tensor *hidden = model_forward(
            model, meta,
            &(ModelBatch){.ids = ids, .layout = {.n_tokens = n_tokens, .n_segments = (int32_t)(n_segments + (size_t)n_slots), .segments = segments}});
        Tensor *which = hidden ? tensor_view(tape_arena(meta), device_meta(), DT_I32, 1, &n_rows, rows) : NULL;
        if (which) (void)model_logits(model, meta, hidden, which);
        bytes = tape_peak_bytes(meta);
    }
    tape_free(meta);
    arena_free(arena);
    return bytes;
}

/* Pages that a prompt of n tokens and all of its samples need at most: the pages that the prompt fills are shared, the last one is copied for
 * each. */
static int64_t group_pages(const Model *model, const GenerateConfig *config, size_t n) {
    int64_t longest = (int64_t)n + config->max_new_tokens,
            shared = is_long(model, (int64_t)n) == is_long(model, longest) ? (int64_t)n / KV_PAGE_SIZE : 0;
    return kv_pages_for((int64_t)n) + config->n * (kv_pages_for(longest) - shared);
}

/* Pages for all slots with the longest sequence each, and for the last queued prompt, which may not have slots yet. Fewer if all prompts together
 * need only `shared` pages. */
static int64_t cache_pages(int64_t n_slots, int64_t per_sequence, int64_t shared) { return MIN((n_slots + 1) * per_sequence, shared); }

size_t generate_bytes(const Model *model, size_t n_prompts, size_t longest, const GenerateConfig *config) {
    int64_t n_slots = slots_for(config, n_prompts), n_pages = cache_pages(n_slots, kv_pages_for((int64_t)longest + config->max_new_tokens),
                                                                          (int64_t)n_prompts * group_pages(model, config, longest));
    size_t choosers = (size_t)MIN((int64_t)omp_get_max_threads(), n_slots), vocab = (size_t)model->config.vocab_size;
    return (size_t)n_pages * kv_page_bytes(model) + step_bytes(model, n_prompts, longest, n_slots) +
           choosers * vocab * (2 * sizeof(double) + sizeof(int32_t));
}

static Status make_cache(Generator *g) {
    Session *session = g->config->session;
    if (session) {
        ASSERT(g->n_prompts == 1 && g->config->n == 1, "%zu prompts of a session", g->n_prompts);
        g->n_slots = 1;
        g->cache = session->cache;
        if (longest_sequence(g) - 1 <= session->max_tokens) return ST_OK;
        return status_fail(ST_INPUT, "prompt and answer are %lld tokens, more than the %lld of the session", (long long)longest_sequence(g) - 1,
                           (long long)session->max_tokens);
    }
    size_t page = kv_page_bytes(g->model), budget = ((size_t)memory_available() + arena_resident(g->arena)) / 2;
    int64_t per_sequence = kv_pages_for(longest_sequence(g)), shared = 0;
    for (size_t i = 0; i < g->n_prompts; i++) shared += group_pages(g->model, g->config, g->prompts[i].n);
    g->n_slots = slots_for(g->config, g->n_prompts);
    while (g->n_slots > 1 && (size_t)cache_pages(g->n_slots, per_sequence, shared) * page > budget) g->n_slots--;
    int64_t n_pages = cache_pages(g->n_slots, per_sequence, shared);
    if ((size_t)n_pages * page > budget || n_pages > INT32_MAX) {
        char need[32], have[32];
        status_fail(ST_RESOURCE, "the key/value cache needs %s, %s are left", format_bytes((double)n_pages * (double)page, need),
                    format_bytes((double)budget, have));
        return status_hint(ST_RESOURCE, "lower max_new_tokens or shorten the prompts");
    }
    return kv_cache_new(g->arena, g->model, (int32_t)n_pages, &g->cache);
}

static bool is_eos(const Generator *g, int32_t id) {
    if (g->config->ignore_eos) return false;
    for (size_t i = 0; i < g->model->config.n_eos; i++)
        if (g->model->config.eos_token_id[i] == id) return true;
    for (size_t i = 0; i < g->config->n_stop_ids; i++)
        if (g->config->stop_ids[i] == id) return true;
    return g->tokenizer && tokenizer_eos(g->tokenizer) == id;
}

/* Finds the ids without a token: embeddings are padded to round sizes. An id that ends an answer has no text, so it remains allowed. */
static Status find_absent(Generator *g) {
    int64_t vocab = g->model->config.vocab_size;
    if (!g->tokenizer) return ST_OK;
    for (int32_t id = 0; id < vocab; id++) g->n_absent += !tokenizer_token(g->tokenizer, id) && !is_eos(g, id);
    g->absent = arena_alloc(g->arena, (g->n_absent + 1) * sizeof *g->absent);
    if (!g->absent) return ST_RESOURCE;
    size_t n = 0;
    for (int32_t id = 0; id < vocab && n < g->n_absent; id++)
        if (!tokenizer_token(g->tokenizer, id) && !is_eos(g, id)) g->absent[n++] = id;
    return ST_OK;
}

static Status set_up(Generator *g) {
    size_t vocab = (size_t)g->model->config.vocab_size;
    TRY(check_prompts(g));
    g->memory = g->config->memory ? g->config->memory : generate_memory_new(g->model);
    if (!g->memory) return ST_RESOURCE;
    ASSERT(g->memory->model == g->model, "memory of another model");
    g->arena = g->memory->arena;
    g->tape = g->memory->tape;
    arena_reset(g->arena);
    tape_record(g->tape, false);
    TRY(make_cache(g));
    TRY(find_absent(g));
    size_t n_slots = (size_t)g->n_slots, n_rows = 2 * n_slots, n_tokens = n_slots + STEP_TOKENS;
    g->n_threads = (int)MIN((int64_t)omp_get_max_threads(), g->n_slots);
    g->slots = arena_zero(g->arena, n_slots * sizeof *g->slots);
    g->queue = arena_zero(g->arena, n_slots * sizeof *g->queue);
    g->waiting = arena_zero(g->arena, g->n_prompts * (size_t)g->config->n * sizeof *g->waiting);
    int64_t row[2] = {1, (int64_t)vocab};
    g->kept.logits = tensor_new(g->arena, g->model->device, tape_residual(g->tape), 2, row);
    g->kept.logsumexp = tensor_new(g->arena, g->model->device, DT_F64, 1, row);
    g->kept_advice = g->config->logit_bias ? tensor_new(g->arena, g->model->device, DT_F32, 2, row) : NULL;
    g->choosers = arena_zero(g->arena, (size_t)g->n_threads * sizeof *g->choosers);
    g->ids = arena_alloc(g->arena, n_tokens * sizeof *g->ids);
    g->segments = arena_alloc(g->arena, n_rows * sizeof *g->segments);
    g->lengths = arena_alloc(g->arena, n_rows * sizeof *g->lengths);
    g->rows = arena_alloc(g->arena, n_rows * sizeof *g->rows);
    bool whole = (g->kept_advice || !g->config->logit_bias) && g->slots && g->queue && g->waiting && g->kept.logits && g->kept.logsumexp &&
                 g->choosers && g->ids && g->segments && g->lengths && g->rows;
    for (int i = 0; whole && i < g->n_threads; i++) {
        Chooser *c = &g->choosers[i];
        c->logits = arena_alloc(g->arena, vocab * sizeof *c->logits);
        c->scratch.ids = arena_alloc(g->arena, vocab * sizeof *c->scratch.ids);
        c->scratch.keys = arena_alloc(g->arena, vocab * sizeof *c->scratch.keys);
        whole = c->logits && c->scratch.ids && c->scratch.keys;
    }
    return whole ? ST_OK : ST_RESOURCE;
}

static void completion_release(Completion *completion) {
    ids_release(&completion->ids);
    free(completion->logprobs);
    free(completion->tempered);
    free(completion->filtered);
    str_release(&completion->text);
}

static void tear_down(Generator *g) {
    Session *session = g->config->session;
    for (int64_t i = 0; session && g->slots && i < g->n_slots; i++) { /* interrupted: the session keeps what was computed */
        Sequence *s = &g->slots[i];
        int64_t whole = (int64_t)(g->prompts[0].n + s->completion.ids.n);
        if (s->active) session_keep(session, &g->prompts[0], &s->completion.ids, usable(g->model, whole, s->cached), &s->pages);
    }
    for (int64_t i = 0; session && i < g->n_queue; i++)
        session_keep(session, &g->prompts[0], &(Ids){0}, usable(g->model, (int64_t)g->prompts[0].n, g->queue[i].done), &g->queue[i].pages);
    for (int64_t i = 0; g->slots && i < g->n_slots; i++) {
        completion_release(&g->slots[i].completion);
        stream_release(&g->slots[i].stream);
        free(g->slots[i].pages.items);
    }
    for (size_t i = 0; g->waiting && i < g->n_prompts * (size_t)g->config->n; i++)
        if (g->waiting[i]) {
            completion_release(g->waiting[i]);
            free(g->waiting[i]);
        }
    for (int64_t i = 0; i < g->n_queue; i++) free(g->queue[i].pages.items);
    if (!g->config->memory) generate_memory_free(g->memory);
}

/* ---- choosing a sequence's next token ---- */

/* Location of the logits of a sequence's newest token. */
typedef struct Source {
    const Logits *logits;
    const Tensor *advice;
    int64_t row;
} Source;

static Source source_of(const Generator *g, const Logits *step, const Sequence *s) {
    return s->row == KEPT_ROW ? (Source){&g->kept, g->kept_advice, 0} : (Source){step, g->advice, s->row};
}

static double element(const Tensor *tensor, int64_t row, int64_t column) { return tensor_get(tensor, row * tensor_width(tensor) + column); }

/* Copies all logits of the row, with the bias; -infinity where the tokenizer has no token. */
static void row_read(const Generator *g, const Source *from, double *out) {
    const Tensor *logits = from->logits->logits;
    int64_t vocab = tensor_width(logits);
    const float *values = logits->dtype == DT_F32 ? (const float *)logits->data + from->row * vocab : NULL;
    for (int64_t v = 0; v < vocab; v++) out[v] = values ? (double)values[v] : element(logits, from->row, v);
    for (int64_t v = 0; from->advice && v < vocab; v++) out[v] += element(from->advice, from->row, v);
    for (size_t i = 0; i < g->n_absent; i++) out[g->absent[i]] = -HUGE_VAL;
}

static bool is_absent(const Generator *g, int64_t id) {
    size_t low = 0, high = g->n_absent;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (g->absent[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < g->n_absent && g->absent[low] == id;
}

/* Log of the probability mass of the allowed tokens, at the sampling temperature. */
static double log_present(const Generator *g, const Source *from, double logsumexp) {
    double absent = 0;
    for (size_t i = 0; i < g->n_absent; i++)
        absent += exp(element(from->logits->logits, from->row, g->absent[i]) / g->config->sample.temperature - logsumexp);
    return log1p(-fmin(absent, 1));
}

/* Chooses by the logits after bias, penalties and filters; -1: no token is left. */
static void choose_filtered(const Generator *g, const Source *from, double u, Chooser *chooser, Sequence *s) {
    const SampleConfig *sample = &g->config->sample;
    const Completion *c = &s->completion;
    const Prompt *prompt = &g->prompts[c->prompt];
    int64_t vocab = g->model->config.vocab_size;
    Ids history = {0};
    ids_append(&history, prompt->ids, prompt->n);
    ids_append(&history, c->ids.data, c->ids.n);
    row_read(g, from, chooser->logits);
    if (sample_is_greedy(sample)) {
        s->next = sample_greedy(sample, chooser->logits, vocab, history.data, history.n, prompt->n, &chooser->scratch);
    } else {
        bool any = sample_distribution(sample, chooser->logits, vocab, history.data, history.n, prompt->n, &chooser->scratch);
        s->next = any ? sample_pick(chooser->logits, vocab, u) : -1;
        s->next_filtered = any ? log(chooser->logits[s->next]) : 0;
    }
    ids_release(&history);
}

/* Chooses the next token of `s`. Reads what all threads share, writes only `s` and `chooser`. Without filters it draws from the row directly,
 * which is fast; if the result is not an allowed token, it makes a second draw among the allowed ones. */
static void generate_choose(const Generator *g, const Logits *step, Chooser *chooser, Sequence *s) {
    const SampleConfig *sample = &g->config->sample;
    const Completion *c = &s->completion;
    Source from = source_of(g, step, s);
    const Tensor *logits = from.logits->logits;
    bool greedy = sample_is_greedy(sample);
    RngKey key = rng_key(g->config->seed, RNG_SAMPLE, g->prompts[c->prompt].number << 20 | (uint64_t)c->sample);
    double u = rng_uniform(key, c->ids.n), logsumexp = 0;
    int64_t next = 0;
    bool plain = !from.advice && sample_is_plain(sample);
    if (greedy && plain) logits->device->largest(logits, from.row, &next);
    if (!greedy && (plain || sample->temperature != 1)) logits->device->draw(logits, from.row, sample->temperature, u, &next, &logsumexp);
    bool again = plain && is_absent(g, next);
    s->next = (int32_t)next;
    s->next_filtered = greedy || !plain ? 0 : element(logits, from.row, next) / sample->temperature - logsumexp - log_present(g, &from, logsumexp);
    if (again) u = rng_uniform(key, SECOND_DRAWS | c->ids.n);
    if (!plain || again) choose_filtered(g, &from, u, chooser, s);
    int32_t told = MAX(s->next, 0); /* where no token is left, the log-probability of any token shows whether the logits are finite */
    s->next_logprob = logits_logprob(from.logits, from.row, told);
    s->next_tempered = greedy || sample->temperature == 1 ? s->next_logprob : element(logits, from.row, told) / sample->temperature - logsumexp;
}

/* Length of the text's beginning that cannot contain the start of a stop text. */
static size_t settled(const Generator *g, const Str *text) {
    size_t keep = text->len;
    for (size_t i = 0; i < g->config->n_stop; i++) {
        size_t len = strlen(g->config->stop[i]);
        for (size_t n = MIN(len, text->len); n > 0; n--)
            if (!memcmp(text->data + text->len - n, g->config->stop[i], n)) {
                keep = MIN(keep, text->len - n);
                break;
            }
    }
    return keep;
}

/* Position of `part` in text[from..], or text->len. The text may contain zero bytes. */
static size_t find_text(const Str *text, size_t from, const char *part, size_t len) {
    for (size_t at = from; at + len <= text->len; at++)
        if (!memcmp(text->data + at, part, len)) return at;
    return text->len;
}

/* Cuts the text at its first stop text. The text before `from` has been searched already. */
static bool cut_at_stop(const Generator *g, Str *text, size_t from) {
    size_t first = text->len;
    for (size_t i = 0; i < g->config->n_stop; i++) {
        size_t len = strlen(g->config->stop[i]);
        if (len) first = MIN(first, find_text(text, from > len ? from - len : 0, g->config->stop[i], len));
    }
    if (first == text->len) return false;
    text->len = first;
    text->data[first] = '\0';
    return true;
}

static Status generate_show(Generator *g, Sequence *s, int32_t id, double logprob, bool finished) {
    if (!g->on_token) return ST_OK;
    Completion *c = &s->completion;
    size_t end = finished ? c->text.len : settled(g, &c->text);
    Str piece = {0};
    if (end > s->shown) str_append_n(&piece, c->text.data + s->shown, end - s->shown);
    s->shown = MAX(s->shown, end);
    Status status = g->on_token(g->context, c->prompt, c->sample, id, logprob, str_text(&piece));
    str_release(&piece);
    return status;
}

/* Passes finished completions to on_done, in order. */
static Status hand_out(Generator *g) {
    size_t all = g->n_prompts * (size_t)g->config->n;
    while (g->next_done < all && g->waiting[g->next_done]) {
        Completion *completion = g->waiting[g->next_done];
        Status status = g->on_done(g->context, completion);
        completion_release(completion);
        free(completion);
        g->waiting[g->next_done++] = NULL;
        TRY(status);
    }
    return ST_OK;
}

static Status generate_finish(Generator *g, Sequence *s, FinishReason reason) {
    Completion *c = &s->completion;
    c->finish = reason;
    if (g->config->session)
        session_keep(g->config->session, &g->prompts[c->prompt], &c->ids, s->cached, &s->pages);
    else
        kv_pages_release(g->cache, &s->pages);
    stream_release(&s->stream);
    Completion *kept = malloc(sizeof *kept);
    if (!kept) return status_fail(ST_RESOURCE, "out of memory");
    *kept = *c;
    g->waiting[c->prompt * (size_t)g->config->n + (size_t)c->sample] = kept;
    *s = (Sequence){0};
    g->n_active--;
    return hand_out(g);
}

static Status push_logprobs(Sequence *s) {
    Completion *c = &s->completion;
    if (c->ids.n > s->cap_logprobs) {
        size_t cap = MAX(64, s->cap_logprobs * 2);
        TRY(array_resize(&c->logprobs, cap, sizeof *c->logprobs, "log-probabilities"));
        TRY(array_resize(&c->tempered, cap, sizeof *c->tempered, "log-probabilities"));
        TRY(array_resize(&c->filtered, cap, sizeof *c->filtered, "log-probabilities"));
        s->cap_logprobs = cap;
    }
    c->logprobs[c->ids.n - 1] = s->next_logprob;
    c->tempered[c->ids.n - 1] = s->next_tempered;
    c->filtered[c->ids.n - 1] = s->next_filtered;
    return ST_OK;
}

static Status none_left(const Completion *c) {
    status_fail(ST_NUMERIC, "no token can follow the first %zu of the answer to prompt %zu: each would repeat an n-gram", c->ids.n, c->prompt + 1);
    return status_hint(ST_NUMERIC, "make no_repeat_ngram_size larger, or max_new_tokens smaller");
}

/* Appends the chosen token to its sequence. */
static Status extend(Generator *g, Sequence *s) {
    Completion *c = &s->completion;
    int32_t id = s->next;
    double logprob = s->next_logprob;
    s->row = NO_ROW;
    if (!isfinite(logprob)) return status_fail(ST_NUMERIC, "a logit of prompt %zu is not finite", c->prompt + 1);
    if (id < 0) return none_left(c);
    ids_push(&c->ids, id);
    TRY(push_logprobs(s));
    bool eos = is_eos(g, id), full = (int64_t)c->ids.n >= g->config->max_new_tokens, stopped = false;
    if (g->tokenizer) {
        size_t before = c->text.len;
        if (!eos) TRY(stream_push(&s->stream, id, &c->text));
        if (eos || full) TRY(stream_finish(&s->stream, &c->text));
        stopped = cut_at_stop(g, &c->text, before);
    }
    TRY(generate_show(g, s, id, logprob, eos || full || stopped));
    return eos || stopped || full ? generate_finish(g, s, eos || stopped ? FINISH_STOP : FINISH_LENGTH) : ST_OK;
}

/* ---- admitting prompts ---- */

static Sequence *free_slot(Generator *g) {
    for (int64_t i = 0; i < g->n_slots; i++)
        if (!g->slots[i].active) return &g->slots[i];
    return NULL;
}

static bool prompt_done(const Generator *g, const Prefill *p) { return p->done == (int64_t)g->prompts[p->prompt].n; }

static Status begin_sample(Generator *g, Prefill *p, Sequence *s) {
    int64_t n = (int64_t)g->prompts[p->prompt].n;
    *s = (Sequence){.active = true, .completion = {.prompt = p->prompt, .sample = p->next_sample++}, .cached = n, .row = p->row};
    g->n_active++;
    if (g->tokenizer) stream_init(&s->stream, g->tokenizer, true);
    return kv_pages_share(g->cache, &p->pages, n, &s->pages);
}

static void row_keep(const Tensor *from, int64_t row, Tensor *to) {
    memcpy(to->data, (const char *)from->data + (size_t)row * tensor_bytes(to), tensor_bytes(to));
}

/* Copies the logits, because the step's memory is freed with the step. */
static void keep_logits(Generator *g, const Logits *step, Prefill *p) {
    if (p->row == KEPT_ROW) return;
    row_keep(step->logits, p->row, g->kept.logits);
    row_keep(step->logsumexp, p->row, g->kept.logsumexp);
    if (g->advice) row_keep(g->advice, p->row, g->kept_advice);
    p->row = KEPT_ROW;
}

/* Begins samples of computed prompts while there are free slots. A prompt whose samples have all begun leaves the queue. */
static Status begin_samples(Generator *g, const Logits *step) {
    while (g->n_queue > 0 && prompt_done(g, &g->queue[0])) {
        Prefill *p = &g->queue[0];
        Sequence *s;
        while (p->next_sample < g->config->n && (s = free_slot(g))) TRY(begin_sample(g, p, s));
        if (p->next_sample < g->config->n) {
            keep_logits(g, step, p);
            return ST_OK;
        }
        kv_pages_release(g->cache, &p->pages);
        memmove(g->queue, g->queue + 1, (size_t)--g->n_queue * sizeof *g->queue);
    }
    return ST_OK;
}

/* Adds prompts to the queue while there will be slots for them and the step has room for their tokens. */
static void admit_prompts(Generator *g) {
    int64_t slots = g->n_slots - g->n_active, tokens = 0;
    for (int64_t i = 0; i < g->n_queue; i++) {
        slots -= g->config->n - g->queue[i].next_sample;
        tokens += (int64_t)g->prompts[g->queue[i].prompt].n - g->queue[i].done;
    }
    for (; g->next_prompt < g->n_prompts && slots > 0 && tokens < STEP_TOKENS; g->next_prompt++) {
        Prefill *p = &g->queue[g->n_queue++];
        *p = (Prefill){.prompt = g->next_prompt, .row = NO_ROW};
        if (g->config->session) p->done = session_resume(g->config->session, &g->prompts[g->next_prompt], &p->pages);
        slots -= g->config->n;
        tokens += (int64_t)g->prompts[g->next_prompt].n;
    }
}

/* Chooses a token for every sequence that has logits. `step` may be NULL when there are only kept logits. */
static Status choose_tokens(Generator *g, const Logits *step) {
#pragma omp parallel for schedule(dynamic) num_threads(g->n_threads)
    for (int64_t i = 0; i < g->n_slots; i++)
        if (g->slots[i].active && g->slots[i].row != NO_ROW) generate_choose(g, step, &g->choosers[omp_get_thread_num()], &g->slots[i]);
    for (int64_t i = 0; i < g->n_slots; i++)
        if (g->slots[i].active && g->slots[i].row != NO_ROW) TRY(extend(g, &g->slots[i]));
    return ST_OK;
}

/* Uses the logits of a step. A sequence that ends with its token frees a slot for the next sample of a prompt that is computed already. */
static Status use_logits(Generator *g, const Logits *step) {
    do {
        TRY(begin_samples(g, step));
        TRY(choose_tokens(g, step));
    } while (g->n_queue > 0 && prompt_done(g, &g->queue[0]) && free_slot(g));
    profile_lap("sampling");
    return ST_OK;
}

/* ---- a step ---- */

typedef struct Step {
    int64_t n_tokens, n_rows;
    int32_t n_segments;
} Step;

/* whole: number of tokens of the sequence, which may continue after these. */
static void add_segment(Generator *g, Step *step, int64_t n, int64_t past, int64_t whole, const KvPageList *pages) {
    g->lengths[step->n_segments] = whole;
    g->segments[step->n_segments++] = (Segment){step->n_tokens, step->n_tokens + n, -1, (int32_t)past, pages->items};
    step->n_tokens += n;
}

/* Requests the logits of the last token so far. */
static int64_t add_row(Generator *g, Step *step) {
    g->rows[step->n_rows] = (int32_t)(step->n_tokens - 1);
    return step->n_rows++;
}

static int32_t token_of(const Prompt *prompt, const Sequence *s, int64_t i) {
    return i < (int64_t)prompt->n ? prompt->ids[i] : s->completion.ids.data[i - (int64_t)prompt->n];
}

/* Adds the sequence's newest token, or, while it is computed again, as many of its tokens as the step has room for. */
static Status plan_sequence(Generator *g, Step *step, Sequence *s, int64_t *room) {
    const Prompt *prompt = &g->prompts[s->completion.prompt];
    int64_t whole = (int64_t)(prompt->n + s->completion.ids.n), n = whole - s->cached;
    if (!s->outgrown && is_long(g->model, whole) && !is_long(g->model, (int64_t)prompt->n)) {
        s->outgrown = true;
        s->cached = 0;
        n = whole;
    }
    if (n > 1) *room -= n = MIN(n, *room);
    if (n == 0) return ST_OK;
    TRY(kv_pages_write(g->cache, &s->pages, s->cached, s->cached + n));
    for (int64_t i = 0; i < n; i++) g->ids[step->n_tokens + i] = token_of(prompt, s, s->cached + i);
    add_segment(g, step, n, s->cached, whole, &s->pages);
    s->cached += n;
    if (s->cached == whole) s->row = add_row(g, step);
    return ST_OK;
}

/* Adds as many of the prompt's tokens as the step has room for. */
static Status plan_prompt(Generator *g, Step *step, Prefill *p, int64_t *room) {
    const Prompt *prompt = &g->prompts[p->prompt];
    int64_t n = MIN((int64_t)prompt->n - p->done, *room);
    if (n == 0) return ST_OK;
    TRY(kv_pages_write(g->cache, &p->pages, p->done, p->done + n));
    memcpy(g->ids + step->n_tokens, prompt->ids + p->done, (size_t)n * sizeof *g->ids);
    add_segment(g, step, n, p->done, (int64_t)prompt->n, &p->pages);
    p->done += n;
    *room -= n;
    if (prompt_done(g, p)) p->row = add_row(g, step);
    return ST_OK;
}

static Status run_step(Generator *g) {
    Step step = {0};
    int64_t room = STEP_TOKENS;
    tape_reset(g->tape);
    for (int64_t i = 0; i < g->n_slots; i++)
        if (g->slots[i].active) TRY(plan_sequence(g, &step, &g->slots[i], &room));
    for (int64_t i = 0; i < g->n_queue; i++) TRY(plan_prompt(g, &step, &g->queue[i], &room));
    ModelBatch batch = {.ids = g->ids, .layout = {step.n_tokens, step.n_segments, g->segments, &g->cache->pages, g->lengths}};
    Tensor *hidden = model_forward(g->model, g->tape, &batch);
    if (step.n_rows == 0) return tape_status(g->tape);
    Tensor *rows = tensor_view(tape_arena(g->tape), g->model->device, DT_I32, 1, &step.n_rows, g->rows);
    if (!rows) return ST_RESOURCE;
    Logits logits = model_logits(g->model, g->tape, hidden, rows);
    g->advice = g->config->logit_bias ? g->config->logit_bias(g->config->logit_bias_context, g->tape, hidden, rows) : NULL;
    TRY(tape_status(g->tape));
    return use_logits(g, &logits);
}

Status generate(const Model *model, const Tokenizer *tokenizer, const Prompt *prompts, size_t n_prompts, const GenerateConfig *config,
                OnToken *on_token, OnDone *on_done, void *context) {
    if (n_prompts == 0) return ST_OK;
    ASSERT(config->n > 0 && config->n < 1 << 20 && config->max_new_tokens > 0, "%lld samples of %lld tokens", (long long)config->n,
           (long long)config->max_new_tokens);
    Generator g = {.model = model,
                   .tokenizer = tokenizer,
                   .prompts = prompts,
                   .n_prompts = n_prompts,
                   .config = config,
                   .on_token = on_token,
                   .on_done = on_done,
                   .context = context};
    Status status = set_up(&g);
    while (status == ST_OK && (g.n_active > 0 || g.n_queue > 0 || g.next_prompt < n_prompts)) {
        admit_prompts(&g);
        status = interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted") : run_step(&g);
    }
    tear_down(&g);
    return status;
}
