/* tune bench dpo and grpo: steps of preference training and of a policy gradient on a language model, with the settings of TRL's trainers that they are compared with. */
#include <math.h>
#include <stdlib.h>

#include "cmd/bench.h"
#include "rl/preference.h"
#include "rl/text_rl.h"

enum { GENERATIONS = 8, PROMPT_LEAST = 64, PROMPT_MOST = 200 }; /* tokens of GSM8K's prompts in a chat template */

/* From low to high, evenly in the logarithm, as lengths of answers are: about the medians and means of hh-rlhf. */
static int64_t draw_length(uint64_t stream, uint64_t i, double low, double high) {
    double u = (double)(rng_u64(rng_key(1, RNG_TEST, stream), i) >> 11) * 0x1p-53;
    return (int64_t)fmax(low * pow(high / low, u), 1);
}

static void write_ids(JsonWriter *w, const Bench *bench, const char *key, uint64_t stream, int64_t n) {
    jw_array(w, key);
    for (int64_t k = 0; k < n; k++) jw_int(w, NULL, (int64_t)rng_below(rng_key(1, RNG_TEST, stream), (uint64_t)k, (uint64_t)bench->config.vocab_size));
    jw_end_array(w);
}

static Status write_rows(const Bench *bench, const char *path, int64_t n, void (*fill)(JsonWriter *w, const Bench *bench, uint64_t i)) {
    FileWriter writer;
    TRY(writer_open(&writer, path));
    for (int64_t i = 0; i < n; i++) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        fill(&w, bench, (uint64_t)i);
        jw_end_object(&w);
        writer_printf(&writer, "%s\n", str_text(&w.text));
        jw_release(&w);
    }
    return writer_commit(&writer);
}

/* The recipe of a run in the bench's folder on rows.jsonl there, with `more` settings. */
static Status make_recipe(const Bench *bench, const char *const *more, size_t n_more, Recipe **recipe) {
    enum { MOST = 24 };
    Arena *arena = bench->command->arena;
    const char *output = path_join(arena, bench->folder, "run"), *settings[MOST] = {
        arena_printf(arena, "model.path=%s", bench->model), arena_printf(arena, "model.compute=%s", bench->compute), arena_printf(arena, "data.train=%s/rows.jsonl", bench->folder),
        arena_printf(arena, "output=%s", output), "data.shuffle=false", "data.max_length=1000000", arena_printf(arena, "lora.rank=%d", BENCH_LORA_RANK),
        arena_printf(arena, "train.max_steps=%d", BENCH_STEPS), "train.learning_rate=1e-5",
    };
    size_t n = 9;
    ASSERT(n + n_more <= MOST, "%zu settings", n_more);
    for (size_t i = 0; i < n_more; i++) settings[n++] = more[i];
    for (size_t i = 0; i < n; i++)
        if (!settings[i]) return ST_RESOURCE;
    TRY(dir_remove(output));
    return recipe_read(NULL, settings, n, recipe);
}

/* ---- dpo ---- */

typedef struct PairLengths { int64_t prompt, chosen, rejected; } PairLengths;
typedef struct DpoBench { Bench *bench; double planned; } DpoBench; /* planned: clock when the reference is about to be asked */

static PairLengths pair_lengths(const Bench *bench, uint64_t i) {
    double most = (double)bench->tokens;
    return (PairLengths){draw_length(2, i, most / 32, most), draw_length(3, i, most / 100, most * 0.3), draw_length(4, i, most / 100, most * 0.35)};
}

static void fill_pair(JsonWriter *w, const Bench *bench, uint64_t i) {
    PairLengths n = pair_lengths(bench, i);
    write_ids(w, bench, "prompt_ids", 16 + 4 * i, n.prompt);
    write_ids(w, bench, "chosen_ids", 17 + 4 * i, n.chosen);
    write_ids(w, bench, "rejected_ids", 18 + 4 * i, n.rejected);
}

static void keep_pair_plan(void *context, const PairRun *run, const PairPlan *plan) {
    DpoBench *dpo = context;
    (void)run;
    dpo->bench->row.predicted = (double)plan->memory.total;
    dpo->planned = clock_seconds();
}

static void keep_pair_step(void *context, const Progress *progress) {
    Bench *bench = ((DpoBench *)context)->bench;
    if (progress->evaluation) return;
    bench_mark_step(bench, progress->step == 1);
    bench->n_done = progress->step;
}

/* Tokens as they are computed: the prompt once for both answers. The reference's forward pass over the timed rows counts, in work and in time: what was done before the first step's end beyond a step. */
static void count_pairs(const DpoBench *dpo) {
    Bench *bench = dpo->bench;
    const ModelConfig *c = &bench->config;
    double tokens = 0, trained = 0, attention = 0, steps = (double)(bench->n_done - 1), step = (bench->last - bench->first) / steps;
    double reference = fmax(0, bench->first - dpo->planned - step) * steps / (double)bench->n_done, seconds = steps * step + reference;
    for (int64_t i = bench->batch; i < bench->batch * bench->n_done; i++) {
        PairLengths n = pair_lengths(bench, (uint64_t)i);
        double prompt = (double)n.prompt, chosen = (double)n.chosen, rejected = (double)n.rejected;
        tokens += prompt + chosen + rejected;
        trained += chosen + rejected;
        attention += bench_attention_flops(c, prompt + chosen) + bench_attention_flops(c, prompt + rejected) - bench_attention_flops(c, prompt);
    }
    double flops = 3 * 2 * (tokens * bench_linear_weights(c) + trained * bench_head_weights(c)) + 3 * 2 * tokens * bench_lora_weights(c) + 4 * attention;
    bench->row.tokens_per_second = tokens / seconds;
    bench->row.trained_per_second = trained / seconds;
    bench->row.rows_per_second = (double)bench->batch * steps / seconds;
    bench->row.gflops = flops / seconds * 1e-9;
    bench->row.first_step = bench->first - bench->start;
}

Status bench_dpo(Bench *bench) {
    Arena *arena = bench->command->arena;
    DpoBench dpo = {.bench = bench};
    const char *more[] = {"rl.algorithm=dpo", arena_printf(arena, "train.batch_size=%lld", (long long)bench->batch)}, *rows = path_join(arena, bench->folder, "rows.jsonl");
    Recipe *recipe;
    TrainResult result;
    if (!rows) return ST_RESOURCE;
    TRY(write_rows(bench, rows, bench->batch * BENCH_STEPS, fill_pair));
    TRY(make_recipe(bench, more, COUNT_OF(more), &recipe));
    bench->start = clock_seconds();
    Status status = preference_run(&(PairRunConfig){.recipe = recipe, .on_plan = keep_pair_plan, .on_progress = keep_pair_step, .context = &dpo}, &result);
    if (status == ST_OK) count_pairs(&dpo);
    recipe_free(recipe);
    return status;
}

/* ---- grpo ---- */

static int64_t prompt_length(uint64_t i) { return draw_length(5, i, PROMPT_LEAST, PROMPT_MOST); }

static void fill_prompt(JsonWriter *w, const Bench *bench, uint64_t i) { write_ids(w, bench, "ids", 16 + i, prompt_length(i)); }

typedef struct GrpoBench { Bench *bench; double made; } GrpoBench; /* made: tokens of completions in the timed steps; a model that knows an end may stop early */

static void keep_text_step(void *context, const TextRlProgress *progress) {
    GrpoBench *grpo = context;
    Bench *bench = grpo->bench;
    if (progress->step > 1) grpo->made += progress->completion_length * (double)(bench->batch * GENERATIONS);
    bench_mark_step(bench, progress->step == 1);
    bench->n_done = progress->step;
}

/* Sampling computes each token once, training forward and the gradient of what goes in; prompts are computed once for their group. */
static void count_completions(const GrpoBench *grpo) {
    Bench *bench = grpo->bench;
    const ModelConfig *c = &bench->config;
    double prompts = 0, attention = 0, seconds = bench->last - bench->first, made = grpo->made, completions = (double)(bench->batch * GENERATIONS * (bench->n_done - 1));
    for (int64_t i = bench->batch; i < bench->batch * bench->n_done; i++) {
        double n = (double)prompt_length((uint64_t)i), alone = bench_attention_flops(c, n);
        prompts += n;
        attention += alone + GENERATIONS * (bench_attention_flops(c, n + made / completions) - alone);
    }
    double tokens = prompts + made;
    double flops = 3 * 2 * (tokens * bench_linear_weights(c) + made * bench_head_weights(c)) + 4 * 2 * tokens * bench_lora_weights(c) + 4 * attention;
    bench->row.tokens_per_second = made / seconds;
    bench->row.trained_per_second = made / seconds;
    bench->row.rows_per_second = completions / seconds;
    bench->row.gflops = flops / seconds * 1e-9;
    bench->row.first_step = bench->first - bench->start;
}

Status bench_grpo(Bench *bench) {
    Arena *arena = bench->command->arena;
    const char *more[] = {
        "rl.algorithm=grpo", arena_printf(arena, "rl.prompts_per_step=%lld", (long long)bench->batch), arena_printf(arena, "rl.num_generations=%d", GENERATIONS),
        arena_printf(arena, "generate.max_new_tokens=%lld", (long long)bench->tokens), "reward=[{type: repetition, unit: tokens, ngram: 1}]",
    };
    const char *rows = path_join(arena, bench->folder, "rows.jsonl");
    GrpoBench grpo = {.bench = bench};
    Recipe *recipe;
    TextRlResult result;
    if (!rows) return ST_RESOURCE;
    TRY(write_rows(bench, rows, bench->batch * BENCH_STEPS, fill_prompt));
    TRY(make_recipe(bench, more, COUNT_OF(more), &recipe));
    bench->start = clock_seconds();
    Status status = text_rl_run(&(TextRlConfig){.recipe = recipe, .on_progress = keep_text_step, .context = &grpo}, &result);
    if (status == ST_OK) count_completions(&grpo);
    recipe_free(recipe);
    return status;
}
