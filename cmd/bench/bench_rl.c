/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench dpo and grpo: steps of preference training and of a policy gradient on a language model, with the same settings as the TRL trainers
 * that they are compared with. */
#include <math.h>

#include "lib/base/system.h"
#include "cmd/bench/bench.h"
#include "cmd/common/runtime.h"
#include "rl/pairs/preference.h"
#include "rl/text/text_rl.h"

enum { GENERATIONS = 8, PROMPT_LEAST = 64, PROMPT_MOST = 200 }; /* PROMPT_*: range of lengths of GSM8K's prompts in a chat template, in tokens */

/* ---- dpo ---- */

typedef struct DpoBench {
    Bench *bench;
    BenchRows rows;
    double planned;
} DpoBench; /* planned: clock before the reference's forward pass */

static void fill_pair(JsonWriter *w, const Bench *bench, const void *context, size_t i) {
    const BenchRow *row = &((const BenchRows *)context)->items[i];
    bench_write_ids(w, bench, "prompt_ids", 16 + 4 * i, row->prompt);
    bench_write_ids(w, bench, "chosen_ids", 17 + 4 * i, row->answer);
    bench_write_ids(w, bench, "rejected_ids", 18 + 4 * i, row->rejected);
}

static void keep_pair_plan(void *context, const RunPlan *plan) {
    DpoBench *dpo = context;
    dpo->bench->row.predicted = (double)plan->memory.total;
    dpo->planned = clock_seconds();
    profile_start();
}

static void keep_pair_step(void *context, const Progress *progress) {
    Bench *bench = ((DpoBench *)context)->bench;
    if (progress->evaluation) return;
    bench_mark_step(bench, progress->step == 1);
    bench->n_done = progress->step;
}

/* Counts the computed tokens: a prompt counts once for both answers. The reference's forward pass over the timed rows is included in operations
 * and time, as the part before the end of the first step that exceeds one step. */
static void count_pairs(const DpoBench *dpo) {
    Bench *bench = dpo->bench;
    double tokens = 0, trained = 0, steps = (double)(bench->n_done - 1), step = (bench->last - bench->first) / steps,
           share = steps / (double)bench->n_done;
    double seconds = steps * step + fmax(0, bench->first - dpo->planned - step) * share,
           flops = bench->timed.flops + fmax(0, bench->before.flops - bench->timed.flops / steps) * share;
    for (int64_t i = bench->batch; i < bench->batch * bench->n_done; i++) {
        const BenchRow *row = &dpo->rows.items[i];
        tokens += (double)(row->prompt + row->answer + row->rejected);
        trained += (double)(row->answer + row->rejected);
    }
    bench->row.tokens_per_second = tokens / seconds;
    bench->row.trained_per_second = trained / seconds;
    bench->row.rows_per_second = (double)bench->batch * steps / seconds;
    bench->row.gflops = flops / seconds * 1e-9;
}

Status bench_dpo(Bench *bench) {
    Arena *arena = bench->command->arena;
    DpoBench dpo = {.bench = bench};
    size_t n = (size_t)(bench->batch * (bench->steps + 1));
    const char *more[] = {"rl.algorithm=dpo", arena_printf(arena, "train.batch_size=%lld", (long long)bench->batch),
                          arena_printf(arena, "lora.rank=%d", BENCH_LORA_RANK)};
    Recipe *recipe;
    TrainResult result;
    TRY(bench_rows(bench, BENCH_PAIRS, n, &dpo.rows));
    TRY(bench_write_rows(bench, n, fill_pair, &dpo.rows));
    TRY(bench_recipe(bench, more, COUNT_OF(more), &recipe));
    bench_mark_start(bench);
    Status status = preference_run(&(TrainingConfig){.recipe = recipe,
                                                     .runtime = runtime_choose(model_compute_text(recipe->model_compute)),
                                                     .on_plan = keep_pair_plan,
                                                     .on_progress = keep_pair_step,
                                                     .context = &dpo},
                                   &result);
    if (status == ST_OK) count_pairs(&dpo);
    recipe_free(recipe);
    return status;
}

/* ---- grpo ---- */

static void fill_prompt(JsonWriter *w, const Bench *bench, const void *context, size_t i) {
    bench_write_ids(w, bench, "ids", 16 + i, ((const BenchRows *)context)->items[i].prompt);
}

/* Takes the first `n` prompts whose length is within PROMPT_LEAST and PROMPT_MOST. */
static Status choose_prompts(const Bench *bench, size_t n, BenchRows *prompts) {
    BenchRows rows;
    TRY(bench_rows(bench, BENCH_CHAT, 4 * n, &rows));
    *prompts = (BenchRows){rows.items, 0};
    for (size_t i = 0; i < rows.n && prompts->n < n; i++)
        if ((double)rows.items[i].prompt >= PROMPT_LEAST * bench->scale && (double)rows.items[i].prompt <= PROMPT_MOST * bench->scale)
            prompts->items[prompts->n++] = rows.items[i];
    for (size_t had = prompts->n; had > 0 && prompts->n < n; prompts->n++) prompts->items[prompts->n] = prompts->items[prompts->n - had];
    return prompts->n == n ? ST_OK : status_fail(ST_INPUT, "no row has a prompt of %d to %d tokens", PROMPT_LEAST, PROMPT_MOST);
}

/* made: tokens of completions in the timed steps, counted because a model with an end token may stop early */
typedef struct GrpoBench {
    Bench *bench;
    double made;
} GrpoBench;

static void keep_text_plan(void *context, const RunPlan *plan) { ((GrpoBench *)context)->bench->row.predicted = (double)plan->memory.total; }

static void keep_text_step(void *context, const Progress *progress) {
    GrpoBench *grpo = context;
    Bench *bench = grpo->bench;
    if (progress->step > 1) grpo->made += metric_get(progress->metrics, "completion_length") * (double)(bench->batch * GENERATIONS);
    bench_mark_step(bench, progress->step == 1);
    bench->n_done = progress->step;
}

static void count_completions(const GrpoBench *grpo) {
    Bench *bench = grpo->bench;
    double seconds = bench->last - bench->first, made = grpo->made, completions = (double)(bench->batch * GENERATIONS * (bench->n_done - 1));
    bench->row.tokens_per_second = made / seconds;
    bench->row.trained_per_second = made / seconds;
    bench->row.rows_per_second = completions / seconds;
}

Status bench_grpo(Bench *bench) {
    Arena *arena = bench->command->arena;
    const char *more[] = {
        "rl.algorithm=grpo",
        arena_printf(arena, "rl.prompts_per_step=%lld", (long long)bench->batch),
        arena_printf(arena, "rl.num_generations=%d", GENERATIONS),
        arena_printf(arena, "generate.max_new_tokens=%lld", (long long)bench->tokens),
        "reward=[{type: repetition, unit: tokens, ngram: 1}]",
        arena_printf(arena, "lora.rank=%d", BENCH_LORA_RANK),
    };
    GrpoBench grpo = {.bench = bench};
    size_t n = (size_t)(bench->batch * (bench->steps + 1));
    BenchRows prompts;
    Recipe *recipe;
    TrainResult result;
    TRY(choose_prompts(bench, n, &prompts));
    TRY(bench_write_rows(bench, n, fill_prompt, &prompts));
    TRY(bench_recipe(bench, more, COUNT_OF(more), &recipe));
    bench_mark_start(bench);
    Status status = text_rl_run(&(TrainingConfig){.recipe = recipe,
                                                  .runtime = runtime_choose(model_compute_text(recipe->model_compute)),
                                                  .on_plan = keep_text_plan,
                                                  .on_progress = keep_text_step,
                                                  .context = &grpo},
                                &(RewardOptions){0}, &result);
    if (status == ST_OK) count_completions(&grpo);
    recipe_free(recipe);
    return status;
}
