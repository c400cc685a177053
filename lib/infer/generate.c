/* Generation by continuous batching: each step runs the newest token of every sequence and, as room allows, parts of waiting prompts, through the model at once. A prompt is
 * computed once for all its samples, which share its cache pages. What a sequence gets is a function of its prompt, the seed, its number and the position alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/infer/infer.h"
#include "lib/infer/kv_cache.h"

enum { STEP_TOKENS = 1024, DEFAULT_BATCH = 32 };

/* A prompt whose samples have not all begun. */
typedef struct Prefill {
    size_t prompt;
    int64_t done;            /* tokens in the cache */
    int64_t next_sample;
    KvPageList pages;
    double *logits;          /* of its last token, once it is done */
} Prefill;

typedef struct Sequence {
    Completion completion;
    KvPageList pages;
    int64_t cached;          /* tokens in the cache: prompt and completion but the newest */
    TextStream stream;
    size_t shown;            /* bytes of text that on_token has seen */
    size_t cap_logprobs;
    bool active;
} Sequence;

typedef struct Generator {
    const Model *model;
    const Tokenizer *tokenizer;
    const Prompt *prompts;
    size_t n_prompts;
    const GenerateConfig *config;
    OnToken *on_token;
    OnDone *on_done;
    void *context;

    Arena *arena;
    Tape *tape;
    KvCache *cache;
    Sequence *slots;
    int64_t n_slots, n_active;
    Prefill prefill;         /* one prompt at a time is on its way in */
    bool prefilling;
    size_t next_prompt;
    Completion **waiting;    /* finished ones whose turn has not come, by prompt and sample */
    size_t next_done;
    double *logits;          /* V, of the token being chosen */
    SampleScratch scratch;
    int32_t *ids;            /* of the step */
    Segment *segments;
    int32_t *rows;
    int64_t *row_owner;      /* slot, or -1 for the prompt */
} Generator;

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
                return status_fail(ST_INPUT, "prompt %zu has the unknown token id %d, the model's vocabulary has %lld", i + 1, prompt->ids[t], (long long)config->vocab_size);
        if (config->learned_positions && (int64_t)prompt->n + g->config->max_new_tokens - 1 > config->max_position_embeddings) {
            status_fail(ST_INPUT, "prompt %zu of %zu tokens and %lld new ones are more than the model's %lld positions", i + 1, prompt->n, (long long)g->config->max_new_tokens,
                        (long long)config->max_position_embeddings);
            return status_hint(ST_INPUT, "make the prompt shorter or lower max_new_tokens");
        }
    }
    if (g->config->n_stop && !g->tokenizer) return status_fail(ST_INPUT, "stop texts need a tokenizer, and the model has none");
    return ST_OK;
}

static Status make_cache(Generator *g) {
    size_t page = kv_page_bytes(g->model), budget = (size_t)(memory_available() / 2);
    int64_t per_sequence = kv_pages_for(longest_sequence(g)), all = (int64_t)g->n_prompts * g->config->n;
    g->n_slots = MIN(g->config->max_batch > 0 ? g->config->max_batch : DEFAULT_BATCH, all);
    while (g->n_slots > 1 && (size_t)((g->n_slots + 1) * per_sequence) * page > budget) g->n_slots--;
    int64_t n_pages = (g->n_slots + 1) * per_sequence; /* one more for the prompt on its way in */
    if ((size_t)n_pages * page > budget || n_pages > INT32_MAX) {
        char need[32], have[32];
        status_fail(ST_RESOURCE, "the key/value cache needs %s, %s are left", format_bytes((double)n_pages * (double)page, need), format_bytes((double)budget, have));
        return status_hint(ST_RESOURCE, "lower max_new_tokens or shorten the prompts");
    }
    return kv_cache_new(g->model, (int32_t)n_pages, &g->cache);
}

static Status set_up(Generator *g) {
    size_t vocab = (size_t)g->model->config.vocab_size;
    TRY(check_prompts(g));
    TRY(make_cache(g));
    g->arena = arena_new(0);
    g->tape = tape_new(g->model->device, g->model->compute, 0);
    if (!g->arena || !g->tape) return status_fail(ST_RESOURCE, "out of memory");
    tape_record(g->tape, false);
    size_t n_rows = (size_t)g->n_slots + 1, n_tokens = (size_t)g->n_slots + STEP_TOKENS;
    g->slots = arena_zero(g->arena, (size_t)g->n_slots * sizeof *g->slots);
    g->waiting = arena_zero(g->arena, g->n_prompts * (size_t)g->config->n * sizeof *g->waiting);
    g->logits = arena_alloc(g->arena, vocab * sizeof *g->logits);
    g->prefill.logits = arena_alloc(g->arena, vocab * sizeof *g->prefill.logits);
    g->scratch.ids = arena_alloc(g->arena, vocab * sizeof *g->scratch.ids);
    g->scratch.keys = arena_alloc(g->arena, vocab * sizeof *g->scratch.keys);
    g->ids = arena_alloc(g->arena, n_tokens * sizeof *g->ids);
    g->segments = arena_alloc(g->arena, n_rows * sizeof *g->segments);
    g->rows = arena_alloc(g->arena, n_rows * sizeof *g->rows);
    g->row_owner = arena_alloc(g->arena, n_rows * sizeof *g->row_owner);
    bool whole = g->slots && g->waiting && g->logits && g->prefill.logits && g->scratch.ids && g->scratch.keys && g->ids && g->segments && g->rows && g->row_owner;
    return whole ? ST_OK : ST_RESOURCE;
}

static void completion_release(Completion *completion) {
    ids_release(&completion->ids);
    free(completion->logprobs);
    str_release(&completion->text);
}

static void tear_down(Generator *g) {
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
    free(g->prefill.pages.items);
    kv_cache_free(g->cache);
    tape_free(g->tape);
    arena_free(g->arena);
}

/* ---- a sequence gets its next token ---- */

static bool is_eos(const Generator *g, int32_t id) {
    if (g->config->ignore_eos) return false;
    for (size_t i = 0; i < g->model->config.n_eos; i++)
        if (g->model->config.eos_token_id[i] == id) return true;
    return g->tokenizer && tokenizer_eos(g->tokenizer) == id;
}

static int32_t choose(Generator *g, const Sequence *s, const double *logits, double *logprob) {
    const SampleConfig *sample = &g->config->sample;
    const Completion *c = &s->completion;
    const Prompt *prompt = &g->prompts[c->prompt];
    int64_t vocab = g->model->config.vocab_size;
    double top = -HUGE_VAL, sum = 0;
    for (int64_t v = 0; v < vocab; v++) top = fmax(top, logits[v]);
    for (int64_t v = 0; v < vocab; v++) sum += exp(logits[v] - top);

    bool penalties = sample->repetition_penalty != 1 || sample->presence_penalty != 0 || sample->frequency_penalty != 0 || sample->no_repeat_ngram_size > 0;
    Ids history = {0};
    if (penalties) {
        ids_append(&history, prompt->ids, prompt->n);
        ids_append(&history, c->ids.data, c->ids.n);
    }
    size_t prompt_length = penalties ? prompt->n : 0;
    memcpy(g->logits, logits, (size_t)vocab * sizeof *logits);
    int32_t id;
    if (sample->greedy || sample->temperature == 0) {
        id = sample_greedy(sample, g->logits, vocab, history.data, history.n, prompt_length, &g->scratch);
    } else {
        sample_distribution(sample, g->logits, vocab, history.data, history.n, prompt_length, &g->scratch);
        RngKey key = rng_key(g->config->seed, RNG_SAMPLE, prompt->number << 20 | (uint64_t)c->sample);
        id = sample_pick(g->logits, vocab, rng_uniform(key, c->ids.n));
    }
    ids_release(&history);
    *logprob = logits[id] - top - log(sum);
    return id;
}

/* Bytes of text that no stop text can still begin in. */
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

/* Where `part` begins in text[from..], or text->len. The text may hold zero bytes. */
static size_t find_text(const Str *text, size_t from, const char *part, size_t len) {
    for (size_t at = from; at + len <= text->len; at++)
        if (!memcmp(text->data + at, part, len)) return at;
    return text->len;
}

/* Cuts the text at the first stop text in it; what is before `from` has been looked at. */
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

static Status show(Generator *g, Sequence *s, int32_t id, double logprob, bool finished) {
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

/* Hands finished completions out in order. */
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

static Status finish(Generator *g, Sequence *s, FinishReason reason) {
    Completion *c = &s->completion;
    c->finish = reason;
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

static Status push_logprob(Sequence *s, double logprob) {
    Completion *c = &s->completion;
    if (c->ids.n > s->cap_logprobs) {
        size_t cap = MAX(64, s->cap_logprobs * 2);
        double *grown = realloc(c->logprobs, cap * sizeof *grown);
        if (!grown) return status_fail(ST_RESOURCE, "out of memory");
        c->logprobs = grown;
        s->cap_logprobs = cap;
    }
    c->logprobs[c->ids.n - 1] = logprob;
    return ST_OK;
}

static Status extend(Generator *g, Sequence *s, const double *logits) {
    Completion *c = &s->completion;
    double logprob;
    int32_t id = choose(g, s, logits, &logprob);
    ids_push(&c->ids, id);
    TRY(push_logprob(s, logprob));
    bool eos = is_eos(g, id), full = (int64_t)c->ids.n >= g->config->max_new_tokens, stopped = false;
    if (g->tokenizer) {
        size_t before = c->text.len;
        if (!eos) TRY(stream_push(&s->stream, id, &c->text));
        if (eos || full) TRY(stream_finish(&s->stream, &c->text));
        stopped = cut_at_stop(g, &c->text, before);
    }
    TRY(show(g, s, id, logprob, eos || full || stopped));
    return eos || stopped || full ? finish(g, s, eos || stopped ? FINISH_STOP : FINISH_LENGTH) : ST_OK;
}

/* ---- prompts come in ---- */

static Sequence *free_slot(Generator *g) {
    for (int64_t i = 0; i < g->n_slots; i++)
        if (!g->slots[i].active) return &g->slots[i];
    return NULL;
}

/* Samples of a computed prompt begin while there is room. */
static Status begin_samples(Generator *g) {
    Prefill *p = &g->prefill;
    const Prompt *prompt = &g->prompts[p->prompt];
    while (p->next_sample < g->config->n) {
        Sequence *s = free_slot(g);
        if (!s) return ST_OK;
        s->active = true;
        s->completion = (Completion){.prompt = p->prompt, .sample = p->next_sample++};
        s->cached = (int64_t)prompt->n;
        g->n_active++;
        if (g->tokenizer) stream_init(&s->stream, g->tokenizer, true);
        TRY(kv_pages_share(g->cache, &p->pages, (int64_t)prompt->n, &s->pages));
        TRY(extend(g, s, p->logits));
    }
    kv_pages_release(g->cache, &p->pages);
    g->prefilling = false;
    return ST_OK;
}

static bool prompt_done(const Generator *g) { return g->prefilling && g->prefill.done == (int64_t)g->prompts[g->prefill.prompt].n; }

static void next_prompt(Generator *g) {
    if (g->prefilling || g->next_prompt == g->n_prompts || !free_slot(g)) return;
    g->prefill.prompt = g->next_prompt++;
    g->prefill.done = g->prefill.next_sample = 0;
    g->prefilling = true;
}

/* ---- a step ---- */

typedef struct Step { int64_t n_tokens, n_rows; int32_t n_segments; } Step;

static void add_segment(Generator *g, Step *step, int64_t n, int64_t past, const KvPageList *pages) {
    g->segments[step->n_segments++] = (Segment){step->n_tokens, step->n_tokens + n, -1, (int32_t)past, pages->items};
    step->n_tokens += n;
}

static void add_row(Generator *g, Step *step, int64_t owner) {
    g->rows[step->n_rows] = (int32_t)(step->n_tokens - 1);
    g->row_owner[step->n_rows++] = owner;
}

static Status plan_step(Generator *g, Step *step) {
    for (int64_t i = 0; i < g->n_slots; i++) {
        Sequence *s = &g->slots[i];
        if (!s->active) continue;
        TRY(kv_pages_write(g->cache, &s->pages, s->cached, s->cached + 1));
        g->ids[step->n_tokens] = s->completion.ids.data[s->completion.ids.n - 1];
        add_segment(g, step, 1, s->cached++, &s->pages);
        add_row(g, step, i);
    }
    if (!g->prefilling || prompt_done(g)) return ST_OK;
    Prefill *p = &g->prefill;
    const Prompt *prompt = &g->prompts[p->prompt];
    int64_t n = MIN((int64_t)prompt->n - p->done, STEP_TOKENS);
    TRY(kv_pages_write(g->cache, &p->pages, p->done, p->done + n));
    memcpy(g->ids + step->n_tokens, prompt->ids + p->done, (size_t)n * sizeof *g->ids);
    add_segment(g, step, n, p->done, &p->pages);
    p->done += n;
    if (prompt_done(g)) add_row(g, step, -1);
    return ST_OK;
}

static Status run_step(Generator *g) {
    Step step = {0};
    int64_t vocab = g->model->config.vocab_size;
    tape_reset(g->tape);
    TRY(plan_step(g, &step));
    ModelBatch batch = {.ids = g->ids, .layout = {step.n_tokens, step.n_segments, g->segments, &g->cache->pages}};
    Tensor *hidden = model_forward(g->model, g->tape, &batch);
    Tensor *rows = tensor_view(tape_arena(g->tape), g->model->device, DT_I32, 1, &step.n_rows, g->rows);
    if (!rows) return ST_RESOURCE;
    Tensor *logits = step.n_rows ? model_logits(g->model, g->tape, hidden, rows) : NULL;
    TRY(tape_status(g->tape));
    double *row = arena_alloc(tape_arena(g->tape), (size_t)vocab * sizeof *row);
    if (!row) return ST_RESOURCE;
    for (int64_t r = 0; r < step.n_rows; r++) {
        int64_t owner = g->row_owner[r];
        double *out = owner < 0 ? g->prefill.logits : row;
        bool finite = true;
        for (int64_t v = 0; v < vocab; v++) {
            out[v] = tensor_get(logits, r * vocab + v);
            finite = finite && isfinite(out[v]);
        }
        size_t prompt = owner < 0 ? g->prefill.prompt : g->slots[owner].completion.prompt;
        if (!finite) return status_fail(ST_NUMERIC, "a logit of prompt %zu is not finite", prompt + 1);
        if (owner >= 0) TRY(extend(g, &g->slots[owner], row));
    }
    return prompt_done(g) ? begin_samples(g) : ST_OK;
}

Status generate(const Model *model, const Tokenizer *tokenizer, const Prompt *prompts, size_t n_prompts, const GenerateConfig *config, OnToken *on_token, OnDone *on_done, void *context) {
    if (n_prompts == 0) return ST_OK;
    ASSERT(config->n > 0 && config->n < 1 << 20 && config->max_new_tokens > 0, "%lld samples of %lld tokens", (long long)config->n, (long long)config->max_new_tokens);
    Generator g = {.model = model, .tokenizer = tokenizer, .prompts = prompts, .n_prompts = n_prompts, .config = config, .on_token = on_token, .on_done = on_done, .context = context};
    Status status = set_up(&g);
    while (status == ST_OK && (g.n_active > 0 || g.prefilling || g.next_prompt < n_prompts)) {
        if (interrupt_requested()) {
            status = status_fail(ST_INTERRUPTED, "interrupted");
            break;
        }
        if (prompt_done(&g)) status = begin_samples(&g);
        next_prompt(&g);
        if (status == ST_OK && (g.n_active > 0 || g.prefilling)) status = run_step(&g);
    }
    tear_down(&g);
    return status;
}
