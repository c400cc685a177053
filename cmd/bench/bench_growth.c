/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench growth: how time and memory grow with the length of a row, the number of rows and the number of steps. Expected: time per token
 * outside attention and memory per token are constant, the cost of attention follows its operations, and a data set takes no memory for its rows.
 * The model is tiny, so that attention and data dominate. */
#include <stdlib.h>
#include <string.h>

#include "cmd/app/terminal.h"
#include "lib/base/system.h"
#include "cmd/bench/bench.h"
#include "cmd/common/runtime.h"
#include "sft/sft.h"

enum { VOCAB = 512, ROW_TOKENS = 64, ROWS_PER_STEP = 16, STEPS = 60, PART = 20 };
static const char model_config[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 128, \"intermediate_size\": 256, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"max_position_embeddings\": 65536, \"rms_norm_eps\": 1e-5, \"vocab_size\": 512, \"tie_word_embeddings\": true}";

/* ---- one segment, doubled in length ---- */

static void sum_profile(double *attention, double *rest, double *attention_flops, double *all_flops) {
    const ProfileRow *rows;
    size_t n = profile_rows(&rows);
    *attention = *rest = *attention_flops = *all_flops = 0;
    for (size_t i = 0; i < n; i++) {
        bool is_attention = strcmp(rows[i].name, "attention") == 0;
        *(is_attention ? attention : rest) += rows[i].seconds;
        *all_flops += rows[i].cost.flops;
        if (is_attention) *attention_flops += rows[i].cost.flops;
    }
}

/* Forward and backward with the losses of all tokens. */
static Status train_segment(const Model *model, Tape *tape, const int32_t *ids, int32_t *rows, int32_t *targets, const double *seeds, int64_t n) {
    Segment segment = {.begin = 0, .end = n, .parent = -1};
    ModelBatch batch = {.ids = ids, .layout = {.n_tokens = n, .n_segments = 1, .segments = &segment}};
    tape_reset(tape);
    Tensor *at = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &n, rows),
           *wanted = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &n, targets);
    if (!at || !wanted) return ST_RESOURCE;
    TokenLogprobs p = op_token_logprobs(tape, model_forward(model, tape, &batch), model->head, at, wanted, &model->logprob);
    TRY(tape_status(tape));
    tensor_seed_grad(tape, p.logprob, seeds);
    return tape_backward(tape);
}

static Status measure_segment(const Command *command, const Model *model, int64_t n) {
    int32_t *ids = arena_alloc(command->arena, (size_t)n * sizeof *ids), *rows = arena_alloc(command->arena, (size_t)n * sizeof *rows);
    double *seeds = arena_alloc(command->arena, (size_t)n * sizeof *seeds), attention, rest, attention_flops, all_flops;
    if (!ids || !rows || !seeds) return ST_RESOURCE;
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)rng_below(rng_key(1, RNG_TEST, 0), (uint64_t)i, VOCAB);
        rows[i] = (int32_t)i;
        seeds[i] = -1 / (double)n;
    }
    Tape *tape = tape_new(model->device, model->compute, 0);
    if (!tape) return ST_RESOURCE;
    Status status = train_segment(model, tape, ids, rows, ids, seeds, n); /* warm-up: packs the weights, maps memory */
    profile_start();
    if (status == ST_OK) status = train_segment(model, tape, ids, rows, ids, seeds, n);
    profile_stop();
    sum_profile(&attention, &rest, &attention_flops, &all_flops);
    double bytes = (double)tape_peak_bytes(tape), tokens = (double)n;
    tape_free(tape);
    TRY(status);
    if (command->json)
        print_result(
            "{\"work\":\"segment\",\"tokens\":%lld,\"attention_seconds\":%.6f,\"other_seconds\":%.6f,\"other_nanoseconds_per_token\":%.1f,\"attention_gflops\":%.2f,\"attention_share_of_operations\":%.4f,"
            "\"bytes_per_token\":%.1f}\n",
            (long long)n, attention, rest, 1e9 * rest / tokens, 1e-9 * attention_flops / attention, attention_flops / all_flops, bytes / tokens);
    else
        print_result(
            "segment of %6lld tokens: %8.0f ns a token outside attention; attention %6.1f GF/s, %4.1f %% of operations; %6.0f bytes a token\n",
            (long long)n, 1e9 * rest / tokens, 1e-9 * attention_flops / attention, 100 * attention_flops / all_flops, bytes / tokens);
    return ST_OK;
}

static Status measure_segments(const Command *command, const char *dir) {
    static const int64_t lengths[] = {1024, 2048, 4096, 8192, 16384, 32768};
    Model *model;
    TRY(model_load(dir, &(ModelOptions){.device = runtime_choose(NULL).device, .compute = DT_F32, .train_all = true}, &model));
    Status status = ST_OK;
    for (size_t i = 0; i < COUNT_OF(lengths) && status == ST_OK; i++)
        status = interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted") : measure_segment(command, model, lengths[i]);
    model_free(model);
    return status;
}

/* ---- more rows and steps ---- */

typedef struct Growth {
    double began, clock[STEPS + 1];
    uint64_t resident, peak;
} Growth;

static void at_step(void *context, const Progress *progress) {
    Growth *growth = context;
    if (progress->evaluation) return;
    growth->clock[progress->step] = clock_seconds();
    growth->resident = memory_resident();
    growth->peak = memory_peak();
}

static Status write_rows(const char *path, int64_t n) {
    FileWriter writer;
    TRY(writer_open(&writer, path));
    for (int64_t i = 0; i < n; i++) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_array(&w, "input_ids");
        for (int64_t k = 0; k < ROW_TOKENS; k++) jw_int(&w, NULL, (int64_t)rng_below(rng_key(2, RNG_TEST, (uint64_t)i), (uint64_t)k, VOCAB));
        jw_end_array(&w);
        jw_end_object(&w);
        writer_printf(&writer, "%s\n", str_text(&w.text));
        jw_release(&w);
    }
    return writer_commit(&writer);
}

static Status measure_rows(const Command *command, const char *folder, const char *model, int64_t n) {
    const char *rows = path_join(command->arena, folder, "rows.jsonl"), *output = path_join(command->arena, folder, "run");
    if (!rows || !output) return ST_RESOURCE;
    const char *settings[] = {arena_printf(command->arena, "model.path=%s", model),
                              arena_printf(command->arena, "data.train=%s", rows),
                              arena_printf(command->arena, "output=%s", output),
                              "model.compute=f32",
                              "lora.rank=8",
                              arena_printf(command->arena, "train.max_steps=%d", STEPS),
                              arena_printf(command->arena, "train.batch_size=%d", ROWS_PER_STEP)};
    Growth growth = {0};
    Recipe *recipe;
    TrainResult result;
    TRY(write_rows(rows, n));
    TRY(dir_remove(output));
    TRY(recipe_read(NULL, settings, COUNT_OF(settings), &recipe));
    growth.began = clock_seconds();
    Status status = sft_run(
        &(TrainingConfig){
            .recipe = recipe, .runtime = runtime_choose(model_compute_text(recipe->model_compute)), .on_progress = at_step, .context = &growth},
        &result);
    recipe_free(recipe);
    TRY(status);
    double tokens = (double)PART * ROWS_PER_STEP * ROW_TOKENS, early = (growth.clock[1 + PART] - growth.clock[1]) / tokens,
           late = (growth.clock[STEPS] - growth.clock[STEPS - PART]) / tokens;
    char resident[32], peak[32];
    if (command->json)
        print_result(
            "{\"work\":\"rows\",\"rows\":%lld,\"seconds_to_first_step\":%.3f,\"early_nanoseconds_per_token\":%.1f,\"late_nanoseconds_per_token\":%.1f,\"resident_bytes\":%llu,\"peak_bytes\":%llu}\n",
            (long long)n, growth.clock[1] - growth.began, 1e9 * early, 1e9 * late, (unsigned long long)growth.resident,
            (unsigned long long)growth.peak);
    else
        print_result("%7lld rows: first step after %6.2f s; %6.0f ns a token in the first steps, %6.0f in the last; %s resident, at most %s so far\n",
                     (long long)n, growth.clock[1] - growth.began, 1e9 * early, 1e9 * late, format_bytes((double)growth.resident, resident),
                     format_bytes((double)growth.peak, peak));
    return ST_OK;
}

static Status measure(const Command *command, const char *folder) {
    static const int64_t numbers[] = {1000, 10000, 100000};
    const char *model = path_join(command->arena, folder, "model");
    if (!model) return ST_RESOURCE;
    TRY(model_write_random(model, model_config, DT_F32, 1, 0.05));
    for (size_t i = 0; i < COUNT_OF(numbers); i++) TRY(measure_rows(command, folder, model, numbers[i]));
    return measure_segments(command, model);
}

Status bench_growth(const Command *command) {
    const char *temporary = getenv("TMPDIR");
    char *folder = arena_printf(command->arena, "%s/tune-bench-XXXXXX", temporary && *temporary ? temporary : "/tmp");
    if (!folder) return ST_RESOURCE;
    if (!mkdtemp(folder)) return status_fail(ST_RESOURCE, "cannot make a folder like '%s'", folder);
    Status status = measure(command, folder);
    if (status != ST_OK)
        dir_remove(folder);
    else
        status = dir_remove(folder);
    return status;
}
