/* SPDX-License-Identifier: Apache-2.0 */
/* All completions of some prompts, in their order: a generator that is large enough, and a loop. */
#include <omp.h>
#include <stdlib.h>

#include "lib/base/system.h"
#include "lib/infer/generator_parts.h"

enum { DEFAULT_BATCH = 32 };

/* ---- how large ---- */

static int64_t slots_for(const GenerateConfig *config, size_t n_prompts) {
    return MIN(config->max_batch > 0 ? config->max_batch : DEFAULT_BATCH, (int64_t)n_prompts * config->n);
}

/* Pages that a prompt of n tokens and all of its samples need at most: the pages that the prompt fills are shared, the last one is copied for
 * each. */
static int64_t group_pages(const Model *model, const GenerateConfig *config, size_t n) {
    int64_t longest = (int64_t)n + config->max_new_tokens, shared = shared_pages(model, (int64_t)n, longest);
    return kv_pages_for((int64_t)n) + config->n * (kv_pages_for(longest) - shared);
}

/* Pages for all slots with the longest sequence each, and for the last queued prompt, which may not have slots yet. Fewer if all prompts together
 * need only `shared` pages. */
static int64_t cache_pages(int64_t n_slots, int64_t per_sequence, int64_t shared) { return MIN((n_slots + 1) * per_sequence, shared); }

size_t generate_bytes(const Model *model, size_t n_prompts, size_t longest, const GenerateConfig *config) {
    int64_t n_slots = slots_for(config, n_prompts), n_pages = cache_pages(n_slots, kv_pages_for((int64_t)longest + config->max_new_tokens),
                                                                          (int64_t)n_prompts * group_pages(model, config, longest));
    StepSize size = {.prompt_tokens = MIN((int64_t)(n_prompts * longest), STEP_TOKENS),
                     .n_prompts = MIN((STEP_TOKENS + (int64_t)longest - 1) / (int64_t)longest, (int64_t)n_prompts),
                     .n_single = n_slots,
                     .n_rows = n_slots};
    return (size_t)n_pages * kv_page_bytes(model) + step_bytes(model, &size) + chooser_bytes(model, n_slots);
}

GeneratorConfig generator_size(const Model *model, int64_t n_sequences, int64_t longest, const GenerateConfig *config) {
    int64_t n_slots = MIN(config->max_batch > 0 ? config->max_batch : DEFAULT_BATCH, n_sequences), each = kv_pages_for(longest),
            most = (int64_t)(cache_budget(config->memory) / kv_page_bytes(model));
    return (GeneratorConfig){.max_sequences = n_slots,
                             .max_pages = MIN((n_slots + 1) * each, MAX(most, each + 1)), /* a prompt's last page is copied when its samples begin */
                             .logit_bias = config->logit_bias,
                             .logit_bias_context = config->logit_bias_context,
                             .memory = config->memory,
                             .session = config->session};
}

/* As many slots as there is memory for; one is asked for in any case. */
static GeneratorConfig size_for(const Model *model, const Tokenizer *tokenizer, const Prompt *prompts, size_t n_prompts,
                                const GenerateConfig *config) {
    size_t page = kv_page_bytes(model), budget = cache_budget(config->memory), longest = 0;
    int64_t shared = 0, n_slots = slots_for(config, n_prompts);
    for (size_t i = 0; i < n_prompts; i++) {
        longest = MAX(longest, prompts[i].n);
        shared += group_pages(model, config, prompts[i].n);
    }
    int64_t per_sequence = kv_pages_for((int64_t)longest + config->max_new_tokens);
    while (n_slots > 1 && (size_t)cache_pages(n_slots, per_sequence, shared) * page > budget) n_slots--;
    return (GeneratorConfig){.max_sequences = n_slots,
                             .max_pages = cache_pages(n_slots, per_sequence, shared),
                             .logit_bias = config->logit_bias,
                             .logit_bias_context = config->logit_bias_context,
                             .memory = config->memory,
                             .session = config->session,
                             .constraint_bytes = config->constraint ? constraints_bytes(tokenizer, 1) : 0};
}

/* ---- completions in order ---- */

typedef struct InOrder {
    OnToken *on_token;
    OnDone *on_done;
    void *context;
    int64_t n;            /* samples of a prompt */
    Completion **waiting; /* finished ones whose turn has not come, by prompt and sample */
    size_t n_all, next;
} InOrder;

static Status pass_token(void *context, size_t prompt, int64_t sample, int32_t id, double logprob, const char *text) {
    InOrder *order = context;
    return order->on_token(order->context, prompt, sample, id, logprob, text);
}

static Status hand_on(InOrder *order, Completion *completion) {
    order->next++;
    Status status = order->on_done(order->context, completion);
    completion_release(completion);
    return status;
}

static Status take_completion(void *context, Completion *completion) {
    InOrder *order = context;
    if (completion->finish == FINISH_FAILED) return completion->status;
    size_t at = completion->prompt * (size_t)order->n + (size_t)completion->sample;
    if (at > order->next) {
        Completion *kept = malloc(sizeof *kept);
        if (!kept) return status_fail(ST_RESOURCE, "out of memory");
        *kept = *completion;
        *completion = (Completion){0};
        order->waiting[at] = kept;
        return ST_OK;
    }
    TRY(hand_on(order, completion));
    while (order->next < order->n_all && order->waiting[order->next]) {
        Completion *kept = order->waiting[order->next];
        order->waiting[order->next] = NULL;
        Status status = hand_on(order, kept);
        free(kept);
        TRY(status);
    }
    return ST_OK;
}

static Status order_new(InOrder *order, size_t n_prompts) {
    order->n_all = n_prompts * (size_t)order->n;
    order->waiting = calloc(order->n_all, sizeof(Completion *));
    return order->waiting ? ST_OK : status_fail(ST_RESOURCE, "out of memory for %zu completions", order->n_all);
}

static void order_release(InOrder *order) {
    for (size_t i = order->next; order->waiting && i < order->n_all; i++) {
        if (!order->waiting[i]) continue;
        completion_release(order->waiting[i]);
        free(order->waiting[i]);
    }
    free(order->waiting);
}

/* ---- the loop ---- */

static GenerateRequest request_of(const GenerateConfig *config, const Prompt *prompts, size_t i, InOrder *order) {
    return (GenerateRequest){.prompt = prompts[i],
                             .prompt_index = i,
                             .n_samples = config->n,
                             .seed = config->seed,
                             .sample = config->sample,
                             .max_new_tokens = config->max_new_tokens,
                             .n_stop = config->n_stop,
                             .stop = config->stop,
                             .n_stop_ids = config->n_stop_ids,
                             .stop_ids = config->stop_ids,
                             .ignore_eos = config->ignore_eos,
                             .n_top = config->n_top,
                             .constraint = config->constraint,
                             .on_token = order->on_token ? pass_token : NULL,
                             .on_done = take_completion,
                             .context = order};
}

static Status run_all(Generator *g, const Prompt *prompts, size_t n_prompts, const GenerateConfig *config, InOrder *order) {
    size_t next = 0;
    while (next < n_prompts || generator_busy(g)) {
        for (GenerateHandle handle = 1; next < n_prompts && handle; next += handle != 0) {
            GenerateRequest request = request_of(config, prompts, next, order);
            TRY(generator_admit(g, &request, &handle));
        }
        TRY(interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted") : generator_step(g));
    }
    return ST_OK;
}

Status generate(const Model *model, const Tokenizer *tokenizer, const Prompt *prompts, size_t n_prompts, const GenerateConfig *config,
                OnToken *on_token, OnDone *on_done, void *context) {
    if (n_prompts == 0) return ST_OK;
    ASSERT(config->n > 0 && config->n < 1 << 20 && config->max_new_tokens > 0, "%lld samples of %lld tokens", (long long)config->n,
           (long long)config->max_new_tokens);
    ASSERT(!config->session || (n_prompts == 1 && config->n == 1), "%zu prompts of a session", n_prompts);
    InOrder order = {.on_token = on_token, .on_done = on_done, .context = context, .n = config->n};
    for (size_t i = 0; i < n_prompts; i++) {
        GenerateRequest request = request_of(config, prompts, i, &order);
        TRY(request_check(model, tokenizer, config->session, &request));
    }
    GeneratorConfig size = size_for(model, tokenizer, prompts, n_prompts, config);
    Generator *g = NULL;
    Status status = order_new(&order, n_prompts);
    if (status == ST_OK) status = generator_open(model, tokenizer, &size, &g);
    if (status == ST_OK) status = run_all(g, prompts, n_prompts, config, &order);
    generator_close(g);
    order_release(&order);
    return status;
}
