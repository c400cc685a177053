/* SPDX-License-Identifier: Apache-2.0 */
/* Generation by continuous batching: requests come in while there is room for them to their end, each step runs all of them through the model at
 * once, and what is done makes room for the next. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/system.h"
#include "lib/infer/generator_parts.h"
#include "lib/model/rope.h"

/* ---- longrope ---- */

bool is_long(const Model *model, int64_t n) {
    const RopeConfig *rope = &model->config.rope;
    return rope->type == ROPE_LONGROPE && n > rope->original_max_position_embeddings;
}

/* Of so many tokens in the cache, of a sequence of `whole`, those that are what they would be in a sequence that ends there. */
static int64_t usable(const Model *model, int64_t whole, int64_t cached) { return is_long(model, whole) == is_long(model, cached) ? cached : 0; }

int64_t shared_pages(const Model *model, int64_t n, int64_t longest) { return is_long(model, n) == is_long(model, longest) ? n / KV_PAGE_SIZE : 0; }

/* ---- memory ---- */

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

size_t cache_budget(const GenerateMemory *memory) { return ((size_t)memory_available() + (memory ? arena_resident(memory->arena) : 0)) / 2; }

/* ---- open and close ---- */

static Status open_cache(Generator *g, size_t budget) {
    if (g->config.session) {
        g->cache = session_cache(g->config.session);
        g->most_pages = INT32_MAX; /* request_check compares with the session */
        return ST_OK;
    }
    size_t page = kv_page_bytes(g->model);
    g->most_pages = g->config.max_pages;
    if (g->most_pages > INT32_MAX || (size_t)g->most_pages > budget / page) {
        char need[32], have[32];
        status_fail(ST_RESOURCE, "the key/value cache needs %s, %s are left", format_bytes((double)g->most_pages * (double)page, need),
                    format_bytes((double)budget, have));
        return status_hint(ST_RESOURCE, "lower max_new_tokens or shorten the prompts");
    }
    arena_reserve(g->arena, generator_bytes(g->model, &g->config));
    return kv_cache_new(g->arena, g->model, (int32_t)g->most_pages, &g->cache);
}

/* There are none where the angles of all tokens depend on the length of their sequence, and none for recurrences: a known page has no state. */
static Status open_prefixes(Generator *g) {
    const RopeConfig *ropes[] = {&g->model->config.rope, &g->model->config.window_rope};
    for (size_t i = 0; i < COUNT_OF(ropes); i++)
        if (rope_by_length(ropes[i]) && ropes[i]->type != ROPE_LONGROPE) return ST_OK;
    if (g->config.session || g->cache->states.n > 0) return ST_OK;
    g->prefixes = prefixes_new(g->arena, g->cache, g->config.keep_prefixes);
    return g->prefixes ? ST_OK : ST_RESOURCE;
}

static Status open_choosers(Generator *g) {
    size_t vocab = (size_t)g->model->config.vocab_size;
    g->n_threads = (int)MIN((int64_t)omp_get_max_threads(), g->n_slots);
    g->choosers = arena_zero(g->arena, (size_t)g->n_threads * sizeof *g->choosers);
    for (int i = 0; g->choosers && i < g->n_threads; i++) {
        Chooser *c = &g->choosers[i];
        c->logits = arena_alloc(g->arena, vocab * sizeof *c->logits);
        c->scratch.ids = arena_alloc(g->arena, vocab * sizeof *c->scratch.ids);
        c->scratch.keys = arena_alloc(g->arena, vocab * sizeof *c->scratch.keys);
        if (!c->logits || !c->scratch.ids || !c->scratch.keys) return ST_RESOURCE;
    }
    return g->choosers ? ST_OK : ST_RESOURCE;
}

static Status open_kept(Generator *g) {
    int64_t row[2] = {1, g->model->config.vocab_size};
    g->kept.logits.logits = tensor_new(g->arena, g->model->device, tape_residual(g->tape), 2, row);
    g->kept.logits.logsumexp = tensor_new(g->arena, g->model->device, DT_F64, 1, row);
    g->kept.advice = g->config.logit_bias ? tensor_new(g->arena, g->model->device, DT_F32, 2, row) : NULL;
    bool whole = g->kept.logits.logits && g->kept.logits.logsumexp && (g->kept.advice || !g->config.logit_bias);
    return whole ? ST_OK : ST_RESOURCE;
}

/* Of those that wait, each has a slot, so there are at most as many in the queue as there are slots. */
static Status open_tables(Generator *g) {
    size_t n_slots = (size_t)g->n_slots, n_rows = 2 * n_slots, n_tokens = n_slots + STEP_TOKENS;
    g->n_groups = (int64_t)n_rows;
    g->groups = arena_zero(g->arena, n_rows * sizeof *g->groups);
    g->slots = arena_zero(g->arena, n_slots * sizeof *g->slots);
    g->queue = arena_zero(g->arena, n_slots * sizeof *g->queue);
    g->passes = arena_zero(g->arena, n_rows * sizeof *g->passes);
    g->adapters = arena_alloc(g->arena, n_rows * sizeof *g->adapters);
    g->ids = arena_alloc(g->arena, n_tokens * sizeof *g->ids);
    g->segments = arena_alloc(g->arena, n_rows * sizeof *g->segments);
    g->lengths = arena_alloc(g->arena, n_rows * sizeof *g->lengths);
    g->rows = arena_alloc(g->arena, n_rows * sizeof *g->rows);
    bool whole = g->groups && g->slots && g->queue && g->passes && g->adapters && g->ids && g->segments && g->lengths && g->rows;
    return whole ? ST_OK : ST_RESOURCE;
}

static Status open_parts(Generator *g) {
    g->memory = g->config.memory ? g->config.memory : generate_memory_new(g->model);
    if (!g->memory) return ST_RESOURCE;
    ASSERT(g->memory->model == g->model, "memory of another model");
    size_t budget = cache_budget(g->memory), had = arena_resident(g->memory->arena) + tape_peak_bytes(g->memory->tape);
    g->arena = g->memory->arena;
    g->tape = g->memory->tape;
    arena_reset(g->arena);
    tape_record(g->tape, false);
    TRY(open_cache(g, budget));
    if (!g->config.session) TRY(generator_fits(g->model, &g->config, (size_t)memory_available() + had));
    TRY(open_prefixes(g));
    TRY(find_absent(g));
    TRY(open_tables(g));
    TRY(open_kept(g));
    return open_choosers(g);
}

Status generator_open(const Model *model, const Tokenizer *tokenizer, const GeneratorConfig *config, Generator **result) {
    ASSERT(config->max_sequences > 0 && (config->session || config->max_pages > 0), "%lld sequences of %lld pages", (long long)config->max_sequences,
           (long long)config->max_pages);
    Generator *g = calloc(1, sizeof *g);
    *result = NULL;
    if (!g) return status_fail(ST_RESOURCE, "out of memory for sampling");
    *g = (Generator){.model = model, .tokenizer = tokenizer, .config = *config, .n_slots = config->session ? 1 : config->max_sequences};
    Status status = open_parts(g);
    if (status == ST_OK)
        *result = g;
    else
        generator_close(g);
    return status;
}

static void drop_group(Generator *g, Group *group);

void generator_close(Generator *g) {
    if (!g) return;
    for (int64_t i = 0; g->groups && i < g->n_groups; i++)
        if (g->groups[i].handle) drop_group(g, &g->groups[i]);
    for (int i = 0; g->choosers && i < g->n_threads; i++) ids_release(&g->choosers[i].history);
    if (!g->config.memory) generate_memory_free(g->memory);
    free(g->pages.items);
    free(g);
}

/* ---- requests come and go ---- */

static int64_t longest_of(const GenerateRequest *request) { return (int64_t)request->prompt.n + request->max_new_tokens; }

Status request_check(const Model *model, const Tokenizer *tokenizer, const Session *session, const GenerateRequest *request) {
    const ModelConfig *config = &model->config;
    const Prompt *prompt = &request->prompt;
    size_t number = request->prompt_index + 1;
    if (prompt->n == 0) return status_fail(ST_INPUT, "prompt %zu is empty", number);
    for (size_t t = 0; t < prompt->n; t++)
        if (prompt->ids[t] < 0 || prompt->ids[t] >= config->vocab_size)
            return status_fail(ST_INPUT, "prompt %zu has the unknown token id %d, the model's vocabulary has %lld", number, prompt->ids[t],
                               (long long)config->vocab_size);
    if (config->learned_positions && longest_of(request) - 1 > config->max_position_embeddings) {
        status_fail(ST_INPUT, "prompt %zu of %zu tokens and %lld new ones are more than the model's %lld positions", number, prompt->n,
                    (long long)request->max_new_tokens, (long long)config->max_position_embeddings);
        return status_hint(ST_INPUT, "make the prompt shorter or lower max_new_tokens");
    }
    if (request->n_stop && !tokenizer) return status_fail(ST_INPUT, "stop texts need a tokenizer, and the model has none");
    if (request->constraint && !tokenizer) return status_fail(ST_INPUT, "a constraint needs a tokenizer, and the model has none");
    if (request->constraint) TRY(constraint_mask(request->constraint, &(ConstraintState){0}, NULL, 0, &(TokenMask){0}));
    for (size_t i = 0; i < request->sample.n_bias; i++)
        if (request->sample.bias[i].id < 0 || request->sample.bias[i].id >= config->vocab_size)
            return status_fail(ST_INPUT, "a bias of the unknown token id %d, the model's vocabulary has %lld", request->sample.bias[i].id,
                               (long long)config->vocab_size);
    if (session && longest_of(request) - 1 > session_max_tokens(session))
        return status_fail(ST_INPUT, "prompt and answer are %lld tokens, more than the %lld of the session", (long long)longest_of(request) - 1,
                           (long long)session_max_tokens(session));
    return ST_OK;
}

static int64_t pages_for_first(const Group *group) {
    return group->own_pages - (group->request.n_samples == 1 ? group->prompt_pages - group->shared_pages : 0);
}

/* pages: those that the prompt takes, without known ones in use.
 * The prompts that wait leave room for a sample of each, so that the first of them can always begin when nothing else runs. */
static bool has_room(const Generator *g, const Group *group, int64_t pages) {
    int64_t slots = g->n_slots - g->n_active, tokens = 0, waiting = group->prompt_pages, most = pages_for_first(group);
    for (int64_t i = 0; i < g->n_queue; i++) {
        const Group *other = g->queue[i];
        slots -= other->request.n_samples - other->begun;
        tokens += (int64_t)other->request.prompt.n - other->done;
        waiting += other->prompt_pages;
        most = MAX(most, other->own_pages);
    }
    return slots > 0 && tokens < STEP_TOKENS && waiting + most <= g->most_pages && g->promised_pages + pages <= g->most_pages;
}

static Group *free_group(const Generator *g) {
    for (int64_t i = 0; i < g->n_groups; i++)
        if (!g->groups[i].handle) return &g->groups[i];
    return NULL;
}

/* Not where an adapter has an embedding, a head or other weights of its own. */
static bool same_weights(const Model *model, const Model *other) {
    bool same = model->n_modules == other->n_modules;
    for (size_t i = 0; i < model->n_modules && same; i++) {
        const Module *module = &model->modules[i], *its = &other->modules[i];
        same = *module->weight == *its->weight && (!module->bias || *module->bias == *its->bias);
    }
    return same;
}

Status generator_admit(Generator *g, const GenerateRequest *request, GenerateHandle *handle) {
    int64_t n = (int64_t)request->prompt.n, longest = longest_of(request), shared = shared_pages(g->model, n, longest);
    const Model *model = request->adapter ? request->adapter : g->model;
    Group group = {.request = *request,
                   .model = model,
                   .pass = model == g->model || same_weights(model, g->model) ? g->model : model,
                   .at = {0, NO_ROW},
                   .prompt_pages = kv_pages_for(n),
                   .shared_pages = shared,
                   .own_pages = kv_pages_for(longest) - shared};
    group.shares = g->prefixes && is_long(g->model, n) == is_long(g->model, longest);
    group.family = (PrefixFamily){model, is_long(g->model, n)};
    *handle = 0;
    if (group.prompt_pages + pages_for_first(&group) > g->most_pages) {
        status_fail(ST_RESOURCE, "prompt %zu of %lld tokens and %lld new ones need %lld pages of keys and values, there are %lld",
                    request->prompt_index + 1, (long long)n, (long long)request->max_new_tokens,
                    (long long)(group.prompt_pages + pages_for_first(&group)), (long long)g->most_pages);
        return status_hint(ST_RESOURCE, "lower max_new_tokens or shorten the prompts");
    }
    int64_t unused = 0, known = group.shares ? prefix_find(g->prefixes, &group.family, request->prompt.ids, n - 1, &unused) : 0,
            pages = group.prompt_pages - known + unused;
    Group *place = free_group(g);
    if (!place || !has_room(g, &group, pages)) return ST_OK;
    if (known > 0) TRY(prefix_take(g->prefixes, &group.family, request->prompt.ids, known, &group.pages));
    group.n_known = known;
    group.done = known * KV_PAGE_SIZE;
    group.handle = *handle = ++g->last_handle;
    *place = group;
    if (g->config.session) place->done = session_resume(g->config.session, &request->prompt, &place->pages);
    g->promised_pages += pages;
    g->prompt_tokens += n;
    g->found_tokens += place->done;
    g->queue[g->n_queue++] = place;
    return ST_OK;
}

Status generator_add(Generator *g, const GenerateRequest *request, GenerateHandle *handle) {
    ASSERT(request->n_samples > 0 && request->first_sample >= 0 && request->first_sample + request->n_samples <= 1 << 20 &&
               request->max_new_tokens > 0,
           "%lld samples of %lld tokens", (long long)request->n_samples, (long long)request->max_new_tokens);
    ASSERT(!g->config.session || request->n_samples == 1, "%lld samples of a session", (long long)request->n_samples);
    const Model *adapter = request->adapter;
    ASSERT(!adapter || (adapter->compute == g->model->compute && adapter->config.num_hidden_layers == g->model->config.num_hidden_layers),
           "an adapter of another model, of %lld layers", (long long)adapter->config.num_hidden_layers);
    *handle = 0;
    TRY(request_check(g->model, g->tokenizer, g->config.session, request));
    return generator_admit(g, request, handle);
}

/* ---- pages that requests share ---- */

void know_prompts(Generator *g) {
    for (int64_t i = 0; i < g->n_queue; i++) {
        Group *group = g->queue[i];
        const Prompt *prompt = &group->request.prompt;
        int64_t end = MIN(group->done, (int64_t)prompt->n - 1) / KV_PAGE_SIZE; /* the last token may be computed again */
        if (!group->shares || end <= group->n_known) continue;
        int64_t newly = prefix_add(g->prefixes, &group->family, prompt->ids, group->n_known, end, &group->pages);
        g->promised_pages += newly - (end - group->n_known);
        group->n_known = end;
    }
}

/* The pages of prompt and answer, for requests to come. */
static void know_answer(Generator *g, Sequence *s, int64_t cached) {
    const Group *group = s->group;
    const Prompt *prompt = &group->request.prompt;
    int64_t end = cached / KV_PAGE_SIZE;
    if (!group->shares || !g->config.keep_prefixes || end <= group->n_known) return;
    Ids ids = {0};
    ids_append(&ids, prompt->ids, prompt->n);
    ids_append(&ids, s->completion.ids.data, s->completion.ids.n);
    g->promised_pages += prefix_add(g->prefixes, &group->family, ids.data, group->n_known, end, &s->pages);
    g->promised_pages -= prefix_leave(g->prefixes, &s->pages, group->n_known, end);
    ids_release(&ids);
}

/* ---- samples and requests end ---- */

static void end_group(Generator *g, Group *group) {
    g->promised_pages -= group->shared_pages - group->n_known;
    if (group->n_known > 0) g->promised_pages -= prefix_leave(g->prefixes, &group->pages, 0, group->n_known);
    kv_pages_release(g->cache, &group->pages);
    *group = (Group){0};
}

/* The group goes with its last sample. */
static void end_sample(Generator *g, Group *group) {
    g->promised_pages -= group->own_pages;
    if (--group->running == 0 && group->begun == group->request.n_samples) end_group(g, group);
}

void sequence_keep(Generator *g, Sequence *s, int64_t cached) {
    if (g->config.session)
        session_keep(g->config.session, &s->group->request.prompt, &s->completion.ids, cached, &s->pages);
    else
        know_answer(g, s, cached);
}

void sequence_release(Generator *g, Sequence *s) {
    kv_pages_release(g->cache, &s->pages);
    completion_release(&s->completion);
    stream_release(&s->stream);
    free(s->next_top);
    free(s->allowed);
    end_sample(g, s->group);
    *s = (Sequence){0};
    g->n_active--;
}

/* Tokens of the cache that a session may go on from, of a sequence of `whole`: none where a step did not get to its end. */
static int64_t computed(const Generator *g, int64_t whole, int64_t cached) { return g->broken ? 0 : usable(g->model, whole, cached); }

/* A prompt that waits leaves the queue; its samples that have not begun never do. */
static void leave_queue(Generator *g, Group *group) {
    for (int64_t i = 0; i < g->n_queue; i++) {
        if (g->queue[i] != group) continue;
        const Prompt *prompt = &group->request.prompt;
        if (g->config.session && group->begun == 0)
            session_keep(g->config.session, prompt, &(Ids){0}, computed(g, (int64_t)prompt->n, group->done), &group->pages);
        kv_pages_truncate(g->cache, &group->pages, group->n_known * KV_PAGE_SIZE);
        memmove(g->queue + i, g->queue + i + 1, (size_t)(--g->n_queue - i) * sizeof(Group *));
        g->promised_pages -= group->prompt_pages - group->shared_pages;
        group->request.n_samples = group->begun;
        return;
    }
}

static void drop_group(Generator *g, Group *group) {
    leave_queue(g, group);
    if (group->running == 0) end_group(g, group); /* none had begun */
    for (int64_t i = 0; group->handle && i < g->n_slots; i++) {
        Sequence *s = &g->slots[i];
        int64_t whole = (int64_t)(group->request.prompt.n + s->completion.ids.n);
        if (s->group != group) continue;
        sequence_keep(g, s, computed(g, whole, s->cached));
        sequence_release(g, s);
    }
}

static void drop_cancelled(Generator *g) {
    for (int64_t i = 0; i < g->n_groups; i++)
        if (g->groups[i].handle && g->groups[i].cancelled) drop_group(g, &g->groups[i]);
}

/* While a step is in work, what it walks through stays until it has ended. */
bool generator_cancel(Generator *g, GenerateHandle handle) {
    for (int64_t i = 0; handle && i < g->n_groups; i++) {
        Group *group = &g->groups[i];
        if (group->handle != handle || group->cancelled) continue;
        group->cancelled = true;
        if (!g->in_step) drop_group(g, group);
        return true;
    }
    return false;
}

/* ---- a step ---- */

static Status extend_chosen(Generator *g) {
    for (int64_t i = 0; i < g->n_slots; i++) {
        Sequence *s = &g->slots[i];
        if (s->group && s->chosen && !s->group->cancelled) TRY(extend(g, s));
    }
    return ST_OK;
}

/* Every sequence that has logits gets its token. */
static Status choose_tokens(Generator *g) {
#pragma omp parallel for schedule(dynamic) num_threads(g->n_threads)
    for (int64_t i = 0; i < g->n_slots; i++)
        if (g->slots[i].group && g->slots[i].at.row != NO_ROW) generate_choose(g, &g->choosers[omp_get_thread_num()], &g->slots[i]);
    return extend_chosen(g);
}

/* A sequence that ends with its token makes room for the next sample of a prompt that is there already. */
static Status use_logits(Generator *g) {
    do {
        drop_cancelled(g);
        TRY(begin_samples(g));
        TRY(choose_tokens(g));
    } while (can_begin(g));
    keep_row(g);
    profile_lap("sampling");
    return ST_OK;
}

static Status run_step(Generator *g) {
    TRY(extend_chosen(g)); /* where a callback ended the last step */
    drop_cancelled(g);
    if (can_begin(g)) TRY(use_logits(g));
    g->broken = true;
    TRY(step_compute(g));
    g->broken = false;
    know_prompts(g);
    return g->n_passes ? use_logits(g) : ST_OK;
}

Status generator_step(Generator *g) {
    g->in_step = true;
    Status status = run_step(g);
    g->in_step = false;
    forget_rows(g);
    drop_cancelled(g);
    return status;
}

bool generator_busy(const Generator *g) { return g->n_active > 0 || g->n_queue > 0; }

static void count_tokens(GeneratorStats *stats, const GenerateRequest *request, int64_t n_pages, int64_t cached) {
    stats->lost_tokens += n_pages * KV_PAGE_SIZE - cached;
    stats->cached_tokens += cached;
    stats->longest_tokens += longest_of(request);
}

GeneratorStats generator_stats(const Generator *g) {
    int64_t kept = g->prefixes ? prefix_kept(g->prefixes) : 0, n_pages = g->cache->pages.n_pages;
    GeneratorStats stats = {.running = g->n_active,
                            .waiting = g->n_queue,
                            .pages = n_pages,
                            .used = n_pages - g->cache->n_free - kept,
                            .reserved = g->promised_pages,
                            .shared = g->prefixes ? prefix_shared(g->prefixes) : 0,
                            .kept = kept,
                            .prompt_tokens = g->prompt_tokens,
                            .found_tokens = g->found_tokens};
    for (int64_t i = 0; i < g->n_slots; i++)
        if (g->slots[i].group) count_tokens(&stats, &g->slots[i].group->request, g->slots[i].pages.n, g->slots[i].cached);
    for (int64_t i = 0; i < g->n_queue; i++) count_tokens(&stats, &g->queue[i]->request, g->queue[i]->pages.n, g->queue[i]->done);
    return stats;
}

void generator_forget(Generator *g, const Model *adapter) {
    for (int64_t i = 0; i < g->n_groups; i++)
        ASSERT(!g->groups[i].handle || g->groups[i].model != adapter, "request %llu uses the adapter", (unsigned long long)g->groups[i].handle);
    if (g->prefixes) prefix_forget(g->prefixes, adapter);
}

int64_t generator_free_pages(const Generator *g) { return g->most_pages - g->promised_pages; }

Status generator_drain(Generator *g) {
    while (generator_busy(g)) TRY(interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted") : generator_step(g));
    return ST_OK;
}
