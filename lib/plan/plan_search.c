/* SPDX-License-Identifier: Apache-2.0 */
/* All layouts of a number of ranks: the fastest that fit, why the others do not, and what more ranks gain. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/plan/plan.h"

enum { MOST_RANKS = 65536, MOST_TENSOR = 64, MOST_MICRO_CHOICES = 4 };

/* Time, then fewer tensor ranks, fewer stages, less sharding. */
static bool better(const PlanLayout *a, const PlanLayout *b) {
    double difference = a->step_seconds - b->step_seconds, same = 1e-9 * b->step_seconds;
    if (fabs(difference) > same) return difference < 0;
    if (a->tensor != b->tensor) return a->tensor < b->tensor;
    if (a->pipeline != b->pipeline) return a->pipeline < b->pipeline;
    if (a->shard != b->shard) return a->shard < b->shard;
    return a->micro < b->micro;
}

static void keep_best(PlanSearch *search, const PlanLayout *layout) {
    size_t at = search->n_best;
    while (at > 0 && better(layout, &search->best[at - 1])) at--;
    if (at == PLAN_BEST) return;
    search->n_best = MIN(search->n_best + 1, (size_t)PLAN_BEST);
    memmove(&search->best[at + 1], &search->best[at], (search->n_best - at - 1) * sizeof *search->best);
    search->best[at] = *layout;
}

/* Counts a reason. Those of memory differ in their numbers: the first one stands for all. */
static void count_reason(PlanSearch *search, const char *why) {
    size_t kind = strcspn(why, "0123456789"), at = 0;
    while (at < search->n_reasons && strncmp(search->reasons[at].why, why, kind) != 0) at++;
    if (at == PLAN_REASONS) return;
    if (at == search->n_reasons) {
        search->n_reasons++;
        memcpy(search->reasons[at].why, why, sizeof search->reasons[at].why);
    }
    search->reasons[at].n++;
}

typedef struct Search {
    const PlanTask *task;
    Arena *arena;
    PlanSearch *result;
    bool any_memory; /* layouts count as if they fit: for the curve over ranks */
} Search;

static Status try_layout(Search *search, PlanLayout layout) {
    PlanSearch *result = search->result;
    ArenaMark mark = arena_mark(search->arena);
    TRY(plan_layout(search->task, search->arena, &layout));
    result->n_tried++;
    bool computed = layout.peak_bytes > 0;
    if (computed && (result->least.peak_bytes == 0 || layout.peak_bytes < result->least.peak_bytes))
        result->least = layout, result->least.layers = NULL;
    if (layout.fits || (search->any_memory && computed)) {
        result->n_fit++;
        int64_t counts[4096];
        size_t bytes = (size_t)layout.pipeline * sizeof *counts;
        if (layout.pipeline <= (int64_t)COUNT_OF(counts)) memcpy(counts, layout.layers, bytes);
        arena_rewind(search->arena, mark);
        int64_t *kept = layout.pipeline <= (int64_t)COUNT_OF(counts) ? arena_alloc(search->arena, bytes) : NULL;
        if (kept) memcpy(kept, counts, bytes);
        layout.layers = kept;
        keep_best(result, &layout);
        return ST_OK;
    }
    count_reason(result, layout.why);
    arena_rewind(search->arena, mark);
    return ST_OK;
}

/* Micro-batches of all rows of an accumulation step, of half of them, ... */
static Status try_micro(Search *search, PlanLayout layout) {
    const PlanRun *run = &search->task->run;
    int64_t rows = MAX(MIN(run->rows, run->rows * run->accumulation / layout.data), 1);
    for (int i = 0; i < MOST_MICRO_CHOICES && rows >= 1; i++, rows /= 2) {
        layout.micro_rows = rows;
        TRY(try_layout(search, layout));
        if (layout.pipeline == 1 && !search->any_memory && search->result->n_best > 0 && i == 1) break;
    }
    return ST_OK;
}

static Status try_schedules(Search *search, PlanLayout layout) {
    layout.schedule = PIPE_1F1B;
    layout.chunks = 1;
    TRY(try_micro(search, layout));
    const int64_t layers = search->task->model.num_hidden_layers;
    if (layout.pipeline == 1 || layers % layout.pipeline != 0) return ST_OK;
    layout.schedule = PIPE_INTERLEAVED;
    for (layout.chunks = 2; layout.chunks <= layers / layout.pipeline && layout.chunks <= 8; layout.chunks++)
        if (layers / layout.pipeline % layout.chunks == 0) TRY(try_micro(search, layout));
    return ST_OK;
}

static Status try_shards(Search *search, PlanLayout layout) {
    for (layout.shard = SHARD_NONE; layout.shard < N_SHARDS; layout.shard++) {
        if (layout.data == 1 && layout.shard != SHARD_NONE) break;
        if (layout.shard == SHARD_GRADIENTS && search->task->run.lora_rank > 0) continue; /* an adapter's gradients stay whole */
        TRY(try_schedules(search, layout));
    }
    return ST_OK;
}

static Status try_all(Search *search) {
    const PlanTask *task = search->task;
    int64_t on_machine = MAX(task->machine.per_machine, (task->ranks + task->machines - 1) / task->machines), n = task->ranks;
    for (int64_t t = 1; t <= n && t <= MIN(on_machine, MOST_TENSOR); t++) {
        if (n % t != 0) continue;
        for (int64_t p = 1; p <= n / t; p++) {
            if (n / t % p != 0) continue;
            if ((task->tensor && t != task->tensor) || (task->pipeline && p != task->pipeline) || (task->data && n / t / p != task->data)) continue;
            if (p > 1 && task->run.prompts > 0) continue; /* stages do not generate */
            TRY(try_shards(search, (PlanLayout){.data = n / t / p, .tensor = t, .pipeline = p, .chunks = 1}));
        }
    }
    return ST_OK;
}

/* The best time with `ranks` ranks, memory aside. */
static Status best_seconds(const PlanTask *task, int64_t ranks, Arena *arena, double *seconds) {
    PlanTask other = *task;
    PlanSearch *result = arena_zero(arena, sizeof *result);
    if (!result) return ST_RESOURCE;
    other.ranks = ranks;
    other.data = other.tensor = other.pipeline = 0;
    other.machines = MAX((ranks + task->machine.per_machine - 1) / task->machine.per_machine, 1);
    if (other.machines > task->machines) other.machines = task->machines;
    Search search = {&other, arena, result, true};
    TRY(try_all(&search));
    *seconds = result->n_best > 0 ? result->best[0].step_seconds : (double)NAN;
    return ST_OK;
}

static Status fill_curve(const PlanTask *task, Arena *arena, PlanSearch *search) {
    double speedups[PLAN_CURVE];
    for (int64_t ranks = 1; ranks <= task->ranks && search->n_curve < PLAN_CURVE;
         ranks = ranks < task->ranks ? MIN(2 * ranks, task->ranks) : ranks + 1) {
        double seconds;
        TRY(best_seconds(task, ranks, arena, &seconds));
        if (isnan(seconds)) continue;
        search->curve_ranks[search->n_curve] = (double)ranks;
        search->curve_seconds[search->n_curve] = seconds;
        speedups[search->n_curve] = search->curve_seconds[0] / seconds;
        search->n_curve++;
    }
    search->divided = search->n_curve > 1 ? speedup_fit(search->curve_ranks, speedups, search->n_curve) : (double)NAN;
    return ST_OK;
}

/* ---- roofline by kind of op ---- */

static void add_op(PlanSearch *search, const PlanTask *task, const char *name, double work, double bytes) {
    double rate = plan_rate(&task->machine, task->run.half) * task->machine.efficiency, bandwidth = task->machine.bytes_per_second;
    if (work <= 0 && bytes <= 0) return;
    search->ops[search->n_ops++] = (PlanOp){name, work, bytes, roofline_seconds(work, bytes, rate, bandwidth), bytes / bandwidth > work / rate};
}

static void fill_ops(const PlanTask *task, PlanSearch *search) {
    const PlanModel *model = &task->model;
    const PlanRun *run = &task->run;
    const double tokens = plan_step_tokens(run), rows = (double)(run->rows * run->accumulation), L = (double)model->num_hidden_layers,
                 c = run->half ? 2 : 4, psi = plan_parameters(model), factor = run->lora_rank > 0 ? 2 : 3, leaves = (double)run->accumulation,
                 head = (double)(model->vocab_size * model->hidden_size), products = plan_elements(model) - head,
                 stored = run->lora_rank > 0 ? run->frozen_bytes : 4,
                 lora = plan_lora_parameters(model, plan_whole(model), (PlanRank){1, 0}, run->lora_rank, run->targets, run->n_targets);
    double width = (double)(model->num_attention_heads * model->head_dim),
           ffn = (double)(model->num_experts > 0 ? model->num_experts_per_tok * model->moe_intermediate_size : model->intermediate_size);
    add_op(search, task, "products of layers", factor * 2 * products * tokens,
           factor * leaves * (psi - head) * stored + factor * tokens * L * (3 * ffn + 4 * (double)model->hidden_size) * c);
    add_op(search, task, "head", factor * 2 * head * tokens, factor * leaves * head * stored);
    add_op(search, task, "attention", 3.5 * L * plan_attention_work(model, run->mean_row) * rows, 3 * L * 4 * tokens * width * c);
    add_op(search, task, "norms, activations", 0,
           3 * L * tokens * ((double)model->norms * (double)model->hidden_size * (4 + c) + (3 * ffn + 4 * width) * c));
    add_op(search, task, "adapters", run->lora_rank > 0 ? 6 * lora * tokens : 0, 0);
    add_op(search, task, "optimiser", 0, 28 * (run->lora_rank > 0 ? lora : psi));
}

/* ---- the whole ---- */

/* The sizes that were asked for: their product is the number of ranks, or divides it. */
static Status check_sizes(const PlanTask *task) {
    const int64_t data = MAX(task->data, 1), tensor = MAX(task->tensor, 1), pipeline = MAX(task->pipeline, 1), product = data * tensor * pipeline;
    if (task->tensor > 0) TRY(plan_tensor_fits(&task->model, task->tensor));
    if (task->pipeline > task->model.num_hidden_layers)
        return status_fail(ST_CONFIG, "pipeline %lld: the model has %lld layers", (long long)task->pipeline,
                           (long long)task->model.num_hidden_layers);
    bool all = task->data > 0 && task->tensor > 0 && task->pipeline > 0;
    if (task->ranks % product == 0 && (!all || task->ranks == product)) return ST_OK;
    status_fail(ST_CONFIG, "%lld ranks are not data %lld x tensor %lld x pipeline %lld", (long long)task->ranks, (long long)data, (long long)tensor,
                (long long)pipeline);
    Str divisors = {0};
    for (int64_t i = 1; i <= task->ranks; i++)
        if (task->ranks % i == 0) str_printf(&divisors, "%s%lld", divisors.len ? ", " : "", (long long)i);
    status_hint(ST_CONFIG, "%lld is divisible by %s", (long long)task->ranks, str_text(&divisors));
    str_release(&divisors);
    return ST_CONFIG;
}

static Status check_task(const PlanTask *task) {
    const PlanRun *run = &task->run;
    if (task->ranks < 1 || task->ranks > MOST_RANKS)
        return status_fail(ST_CONFIG, "%lld ranks: expected 1 to %d", (long long)task->ranks, MOST_RANKS);
    TRY(check_sizes(task));
    if (task->machines < 1 || run->rows < 1 || run->accumulation < 1 || !(run->mean_row >= 1) || !(run->longest_row >= run->mean_row))
        return status_fail(ST_CONFIG, "a plan needs machines, rows and tokens of at least 1");
    return ST_OK;
}

Status plan_search(const PlanTask *task, Arena *arena, PlanSearch *result) {
    *result = (PlanSearch){0};
    TRY(check_task(task));
    Search search = {task, arena, result, false};
    TRY(try_all(&search));
    TRY(fill_curve(task, arena, result));
    fill_ops(task, result);
    for (size_t i = 0; i < result->n_best && result->n_curve > 0; i++) {
        result->best[i].speedup = result->curve_seconds[0] / result->best[i].step_seconds;
        result->best[i].efficiency = result->best[i].speedup / (double)task->ranks;
    }
    result->load_seconds = plan_parameters(&task->model) * task->model.stored / task->disk;
    return ST_OK;
}

/* Whether a variant fits anywhere. */
static Status variant_fits(const PlanTask *task, Arena *arena, bool *fits) {
    PlanSearch *result = arena_zero(arena, sizeof *result);
    if (!result) return ST_RESOURCE;
    Search search = {task, arena, result, false};
    TRY(try_all(&search));
    *fits = result->n_fit > 0;
    return ST_OK;
}

Status plan_what_would_fit(const PlanTask *task, Arena *arena, Str *text) {
    PlanTask other = *task;
    bool fits = false;
    other.run.keep = KEEP_LAYERS;
    TRY(variant_fits(&other, arena, &fits));
    if (fits) {
        str_append(text, "train.checkpointing: layer would fit");
        return ST_OK;
    }
    if (task->run.lora_rank == 0) {
        other.run.lora_rank = 16;
        TRY(variant_fits(&other, arena, &fits));
        if (fits) {
            str_append(text, "an adapter (lora.rank: 16) with train.checkpointing: layer would fit");
            return ST_OK;
        }
        other.run.lora_rank = 0;
    }
    for (other.machines = 2 * task->machines; other.machines <= 1024; other.machines *= 2) {
        other.ranks = task->ranks * other.machines / task->machines;
        if (other.ranks > MOST_RANKS) break;
        TRY(variant_fits(&other, arena, &fits));
        if (!fits) continue;
        str_printf(text, "%lld machines (%lld ranks) with train.checkpointing: layer would fit", (long long)other.machines, (long long)other.ranks);
        return ST_OK;
    }
    str_append(text, "no number of these machines would fit: take shorter rows, fewer rows a step, or machines with more memory");
    return ST_OK;
}
