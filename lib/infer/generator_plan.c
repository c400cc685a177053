/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a step: the newest one of every sequence and, as room allows, parts of prompts that wait. A prompt is computed once for all its
 * samples, which share its cache pages. */
#include <string.h>

#include "lib/infer/generator_parts.h"

/* ---- samples begin ---- */

bool prompt_done(const Group *group) { return group->done == (int64_t)group->request.prompt.n; }

static Sequence *free_slot(const Generator *g) {
    for (int64_t i = 0; i < g->n_slots; i++)
        if (!g->slots[i].group) return &g->slots[i];
    return NULL;
}

/* With the last sample, the pages of the prompt that samples do not share go over to it. */
static int64_t pages_to_begin(const Group *group) {
    bool last = group->begun + 1 == group->request.n_samples;
    return group->own_pages - (last ? group->prompt_pages - group->shared_pages : 0);
}

static bool fits(const Generator *g, const Group *group) {
    return g->n_active < g->n_slots && g->promised_pages + pages_to_begin(group) <= g->most_pages;
}

bool can_begin(const Generator *g) { return g->n_queue > 0 && prompt_done(g->queue[0]) && fits(g, g->queue[0]); }

static Status begin_sample(Generator *g, Group *group) {
    const GenerateRequest *request = &group->request;
    int64_t n = (int64_t)request->prompt.n;
    Sequence *s = free_slot(g);
    g->promised_pages += pages_to_begin(group);
    *s = (Sequence){
        .group = group,
        .completion = {.prompt = request->prompt_index, .handle = group->handle, .sample = request->first_sample + group->begun++},
        .cached = n,
        .at = group->at,
    };
    group->running++;
    g->n_active++;
    if (g->tokenizer) stream_init(&s->stream, g->tokenizer, !request->keep_special);
    bool ends;
    TRY(sequence_constrain(g, s, &ends)); /* an empty answer is the model's choice: its first token is one that ends it */
    if (request->n_top > 0) TRY(array_resize(&s->next_top, (size_t)request->n_top, sizeof *s->next_top, "log-probabilities"));
    return kv_pages_share(g->cache, &group->pages, n, &s->pages);
}

/* Samples of computed prompts begin while there is room. A prompt whose samples have all begun leaves the queue. */
Status begin_samples(Generator *g) {
    while (g->n_queue > 0 && prompt_done(g->queue[0])) {
        Group *group = g->queue[0];
        while (group->begun < group->request.n_samples && fits(g, group)) TRY(begin_sample(g, group));
        if (group->begun < group->request.n_samples) return ST_OK;
        kv_pages_truncate(g->cache, &group->pages, group->n_known * KV_PAGE_SIZE);
        memmove(g->queue, g->queue + 1, (size_t)--g->n_queue * sizeof(Group *));
    }
    return ST_OK;
}

void keep_row(Generator *g) {
    Group *group = g->n_queue > 0 ? g->queue[0] : NULL;
    if (!group || !prompt_done(group) || group->at.row == KEPT_ROW) return;
    row_keep(&g->passes[group->at.pass], group->at.row, &g->kept);
    group->at.row = KEPT_ROW;
}

void forget_rows(Generator *g) {
    for (int64_t i = 0; i < g->n_queue; i++) {
        Group *group = g->queue[i];
        if (prompt_done(group) && group->at.row != KEPT_ROW) group->done--;
    }
}

/* ---- a pass ---- */

/* Its arrays are parts of the step's. */
typedef struct Plan {
    int32_t *ids, *rows;
    Segment *segments;
    int64_t *lengths;
    int64_t n_tokens, n_rows;
    int32_t n_segments;
    KvPageList *pages; /* of the step; those of this pass begin at first_page */
    int32_t first_page;
    AdapterRows *adapters; /* one for each model */
    int n_adapters;
    const Model *first; /* of the first rows */
} Plan;

/* whole: tokens of the sequence, of which these may not be the last. */
static Status add_segment(const Generator *g, Plan *plan, int64_t n, int64_t past, int64_t whole, const KvPageList *pages) {
    const int32_t n_pages = kv_pages_for(past + n), first = plan->pages->n;
    TRY(kv_pages_room(plan->pages, first + n_pages));
    memcpy(plan->pages->items + first, pages->items, (size_t)n_pages * sizeof *pages->items);
    plan->pages->n += n_pages;
    plan->lengths[plan->n_segments] = whole;
    plan->segments[plan->n_segments++] = (Segment){.begin = (int32_t)plan->n_tokens,
                                                   .end = (int32_t)(plan->n_tokens + n),
                                                   .parent = -1,
                                                   .past = (int32_t)past,
                                                   .first_page = first - plan->first_page,
                                                   .state = kv_state_row(g->cache, pages, past + n)};
    plan->n_tokens += n;
    return ST_OK;
}

/* Asks for the logits that follow the last token so far. */
static RowAt add_row(const Generator *g, Plan *plan) {
    plan->rows[plan->n_rows] = (int32_t)(plan->n_tokens - 1);
    return (RowAt){g->n_passes, plan->n_rows++};
}

static int32_t token_of(const Prompt *prompt, const Sequence *s, int64_t i) {
    return i < (int64_t)prompt->n ? prompt->ids[i] : s->completion.ids.data[i - (int64_t)prompt->n];
}

/* The newest token; where all of them are computed again, as many as there is room for. */
static Status plan_sequence(Generator *g, Plan *plan, Sequence *s, int64_t *room) {
    const Prompt *prompt = &s->group->request.prompt;
    int64_t whole = (int64_t)(prompt->n + s->completion.ids.n), n = whole - s->cached;
    if (!s->outgrown && is_long(g->model, whole) && !is_long(g->model, (int64_t)prompt->n)) {
        s->outgrown = true;
        s->cached = 0;
        n = whole;
    }
    if (n > 1) *room -= n = MIN(n, *room);
    if (n == 0) return ST_OK;
    TRY(kv_pages_write(g->cache, &s->pages, s->cached, s->cached + n));
    for (int64_t i = 0; i < n; i++) plan->ids[plan->n_tokens + i] = token_of(prompt, s, s->cached + i);
    TRY(add_segment(g, plan, n, s->cached, whole, &s->pages));
    s->cached += n;
    if (s->cached == whole) s->at = add_row(g, plan);
    return ST_OK;
}

/* As many of the prompt's tokens as there is room for. Where an earlier prompt waits, whose logits are kept, the last token waits too. */
static Status plan_prompt(Generator *g, Plan *plan, Group *group, int64_t *room) {
    const Prompt *prompt = &group->request.prompt;
    bool waits = group != g->queue[0] && prompt_done(g->queue[0]) && g->queue[0]->at.row == KEPT_ROW;
    int64_t n = MIN((int64_t)prompt->n - waits - group->done, *room);
    if (n <= 0) return ST_OK;
    TRY(kv_pages_write(g->cache, &group->pages, group->done, group->done + n));
    memcpy(plan->ids + plan->n_tokens, prompt->ids + group->done, (size_t)n * sizeof *plan->ids);
    TRY(add_segment(g, plan, n, group->done, (int64_t)prompt->n, &group->pages));
    group->done += n;
    *room -= n;
    if (prompt_done(group)) group->at = add_row(g, plan);
    return ST_OK;
}

/* The rows of one model: they are in one piece. */
static Status plan_model(Generator *g, const Model *model, Plan *plan, int64_t *room) {
    int64_t begin = plan->n_tokens;
    for (int i = 0; i < plan->n_adapters; i++)
        if (plan->adapters[i].linears == model->linears) return ST_OK;
    for (int64_t i = 0; i < g->n_slots; i++)
        if (g->slots[i].group && g->slots[i].group->model == model) TRY(plan_sequence(g, plan, &g->slots[i], room));
    for (int64_t i = 0; i < g->n_queue; i++)
        if (g->queue[i]->model == model) TRY(plan_prompt(g, plan, g->queue[i], room));
    if (plan->n_tokens == begin) return ST_OK;
    if (plan->n_adapters == 0) plan->first = model;
    plan->adapters[plan->n_adapters++] = (AdapterRows){model->linears, begin, plan->n_tokens};
    return ST_OK;
}

static Status plan_pass(Generator *g, const Model *pass, Plan *plan, int64_t *room) {
    for (int64_t i = 0; i < g->n_slots; i++)
        if (g->slots[i].group && g->slots[i].group->pass == pass) TRY(plan_model(g, g->slots[i].group->model, plan, room));
    for (int64_t i = 0; i < g->n_queue; i++)
        if (g->queue[i]->pass == pass) TRY(plan_model(g, g->queue[i]->model, plan, room));
    return ST_OK;
}

/* Rows of a single model run with it, rows of several ones with the weights that they share. */
static Status run_pass(Generator *g, const Model *base, const Plan *plan) {
    bool mixed = plan->n_adapters > 1;
    const Model *model = mixed ? base : plan->first;
    ModelBatch batch = {.ids = plan->ids,
                        .layout = {.n_tokens = plan->n_tokens,
                                   .n_segments = plan->n_segments,
                                   .segments = plan->segments,
                                   .cache = &g->cache->pages,
                                   .pages = plan->pages->items + plan->first_page,
                                   .n_pages = plan->pages->n - plan->first_page,
                                   .lengths = plan->lengths},
                        .step = {.adapters = plan->adapters, .n_adapters = mixed ? plan->n_adapters : 0},
                        .states = &g->cache->states};
    Pass *pass = &g->passes[g->n_passes++];
    *pass = (Pass){.model = base};
    Tensor *hidden = model_forward(model, g->tape, &batch);
    if (plan->n_rows == 0) return tape_status(g->tape);
    Tensor *rows = tensor_view(tape_arena(g->tape), g->model->device, DT_I32, 1, &plan->n_rows, plan->rows);
    if (!rows) return ST_RESOURCE;
    pass->logits = model_logits(model, g->tape, hidden, rows);
    pass->advice = g->config.logit_bias ? g->config.logit_bias(g->config.logit_bias_context, g->tape, hidden, rows) : NULL;
    return tape_status(g->tape);
}

static bool is_computed(const Generator *g, const Model *pass) {
    for (int32_t i = 0; i < g->n_passes; i++)
        if (g->passes[i].model == pass) return true;
    return false;
}

/* One pass. It uses the step's arrays after the parts of the other passes. */
static Status compute_with(Generator *g, const Model *pass, Plan *step, int64_t *room) {
    if (is_computed(g, pass)) return ST_OK;
    Plan plan = {.ids = step->ids + step->n_tokens,
                 .rows = step->rows + step->n_rows,
                 .segments = step->segments + step->n_segments,
                 .lengths = step->lengths + step->n_segments,
                 .pages = &g->pages,
                 .first_page = g->pages.n,
                 .adapters = step->adapters};
    TRY(plan_pass(g, pass, &plan, room));
    if (plan.n_tokens == 0) return ST_OK;
    step->n_tokens += plan.n_tokens;
    step->n_rows += plan.n_rows;
    step->n_segments += plan.n_segments;
    return run_pass(g, pass, &plan);
}

Status step_compute(Generator *g) {
    Plan step = {.ids = g->ids, .rows = g->rows, .segments = g->segments, .lengths = g->lengths, .adapters = g->adapters};
    int64_t room = STEP_TOKENS;
    tape_reset(g->tape);
    g->n_passes = 0;
    g->pages.n = 0;
    for (int64_t i = 0; i < g->n_slots; i++)
        if (g->slots[i].group) TRY(compute_with(g, g->slots[i].group->pass, &step, &room));
    for (int64_t i = 0; i < g->n_queue; i++) TRY(compute_with(g, g->queue[i]->pass, &step, &room));
    return ST_OK;
}
