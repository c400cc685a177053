/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench load, prefill, decode, merge, tokenizer: the uses of a trained model. */
#include <string.h>
#include <sys/stat.h>

#include "lib/infer/infer.h"
#include "lib/base/system.h"
#include "cmd/bench/bench.h"
#include "cmd/common/runtime.h"
#include "sft/merge.h"
#include "lib/model/adapter.h"
#include "lib/train/train.h"

enum { CONTEXT = 128 }; /* tokens before the first new one */

static Status bench_load(Bench *bench, bool skip_nan_check, Model **model) {
    bench->resident = memory_resident();
    bench_mark_start(bench);
    Runtime runtime = runtime_choose(bench->compute);
    return model_load(bench->model, &(ModelOptions){.device = runtime.device, .compute = runtime.compute, .skip_nan_check = skip_nan_check}, model);
}

/* Predicts the memory: the process before the model was loaded, the model, and the step that was planned on the meta device since workspace_clear,
 * with its workspace. */
static void predict(Bench *bench, const Model *model, size_t step) {
    ModelMemory memory = model_memory(model, false);
    bench->row.predicted =
        (double)(bench->resident + memory.mapped + memory.weights + memory.packed + step + model->device->workspace_bytes(model->device));
}

Status bench_load_model(Bench *bench) {
    Model *model;
    TRY(bench_load(bench, false, &model));
    bench->row.seconds = bench->row.first_step = clock_seconds() - bench->start;
    ModelMemory memory = model_memory(model, false);
    bench->row.gbytes_per_second = (double)(memory.mapped + memory.weights) / bench->row.seconds * 1e-9;
    bench->row.predicted = (double)(bench->resident + memory.mapped + memory.weights); /* packed at first use */
    model_free(model);
    return ST_OK;
}

static Status random_ids(const Bench *bench, int64_t n, int32_t **ids) {
    *ids = arena_alloc(bench->command->arena, (size_t)n * sizeof **ids);
    if (!*ids) return ST_RESOURCE;
    for (int64_t i = 0; i < n; i++) (*ids)[i] = (int32_t)rng_below(rng_key(1, RNG_TEST, 0), (uint64_t)i, (uint64_t)bench->n_ids);
    return ST_OK;
}

/* ---- prefill ---- */

/* Runs all sequences at once and computes the logits after the last token of each. */
static Status prefill_once(const Bench *bench, const Model *model, Tape *tape, const int32_t *ids) {
    Segment *segments = arena_alloc(bench->command->arena, (size_t)bench->batch * sizeof *segments);
    int32_t *rows = arena_alloc(bench->command->arena, (size_t)bench->batch * sizeof *rows);
    if (!segments || !rows) return ST_RESOURCE;
    for (int64_t i = 0; i < bench->batch; i++) {
        segments[i] = (Segment){.begin = i * bench->tokens, .end = (i + 1) * bench->tokens, .parent = -1};
        rows[i] = (int32_t)((i + 1) * bench->tokens - 1);
    }
    tape_reset(tape);
    tape_record(tape, false);
    ModelBatch batch = {.ids = ids, .layout = {.n_tokens = bench->batch * bench->tokens, .n_segments = (int32_t)bench->batch, .segments = segments}};
    Tensor *wanted = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &bench->batch, rows);
    Tensor *logits = wanted ? model_logits(model, tape, model_forward(model, tape, &batch), wanted).logits : NULL;
    return logits ? ST_OK : tape_status(tape) != ST_OK ? tape_status(tape) : ST_RESOURCE;
}

static Status predict_prefill(Bench *bench, const Model *model, const int32_t *ids) {
    model->device->workspace_clear(model->device);
    Tape *meta = tape_new(model->device->planner, model->compute, 0);
    if (!meta) return ST_RESOURCE;
    Status status = prefill_once(bench, model, meta, ids);
    predict(bench, model, tape_peak_bytes(meta));
    tape_free(meta);
    return status;
}

Status bench_prefill(Bench *bench) {
    Model *model;
    int32_t *ids;
    TRY(random_ids(bench, bench->batch * bench->tokens, &ids));
    TRY(bench_load(bench, true, &model));
    Tape *tape = tape_new(model->device, model->compute, 0);
    Status status = tape ? predict_prefill(bench, model, ids) : ST_RESOURCE;
    for (int64_t i = 0; status == ST_OK && i <= bench->steps; i++) {
        status = prefill_once(bench, model, tape, ids);
        bench_mark_step(bench, i == 0);
    }
    bench->row.tokens_per_second = (double)(bench->steps * bench->batch * bench->tokens) / (bench->last - bench->first);
    tape_free(tape);
    model_free(model);
    return status;
}

/* ---- decode ---- */

typedef struct Decode {
    Bench *bench;
    int64_t *made, n_begun, n_ended, n_timed;
} Decode; /* made: tokens generated for each prompt */

/* Times the interval in which all sequences are active: from the first token of the last one to the end of the first one that ends. */
static Status keep_token(void *context, size_t prompt, int64_t sample, int32_t id, double logprob, const char *text) {
    Decode *decode = context;
    Bench *bench = decode->bench;
    (void)sample, (void)id, (void)logprob, (void)text;
    if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
    bool all_begun = decode->n_begun == bench->batch;
    if (decode->n_ended == 0) decode->n_timed += all_begun;
    decode->n_begun += decode->made[prompt]++ == 0;
    if (!all_begun && decode->n_begun == bench->batch)
        bench_mark_step(bench, true);
    else if (all_begun && decode->n_ended == 0 && decode->n_timed % bench->batch == 0)
        bench_mark_step(bench, false);
    decode->n_ended += decode->made[prompt] == bench->tokens;
    return ST_OK;
}

static Status keep_nothing(void *context, const Completion *completion) {
    (void)context, (void)completion;
    return ST_OK;
}

Status bench_decode(Bench *bench) {
    Model *model;
    int32_t *ids;
    Arena *arena = bench->command->arena;
    Prompt *prompts = arena_alloc(arena, (size_t)bench->batch * sizeof *prompts);
    Decode decode = {.bench = bench, .made = arena_zero(arena, (size_t)bench->batch * sizeof *decode.made)};
    if (!prompts || !decode.made) return ST_RESOURCE;
    TRY(random_ids(bench, bench->batch * CONTEXT, &ids));
    for (int64_t i = 0; i < bench->batch; i++) prompts[i] = (Prompt){ids + i * CONTEXT, CONTEXT, (uint64_t)i};
    GenerateConfig config = {.sample = {.greedy = true, .top_p = 1, .typical_p = 1, .repetition_penalty = 1},
                             .max_new_tokens = bench->tokens,
                             .n = 1,
                             .ignore_eos = true,
                             .max_batch = bench->batch};
    TRY(bench_load(bench, true, &model));
    model->device->workspace_clear(model->device);
    predict(bench, model, generate_bytes(model, (size_t)bench->batch, CONTEXT, &config));
    Status status = generate(model, NULL, prompts, (size_t)bench->batch, &config, keep_token, keep_nothing, &decode);
    double seconds = bench->last - bench->first;
    if (status == ST_OK && seconds <= 0)
        status = status_fail(ST_USAGE, "%lld tokens are too few to time: the first sequence ends before the last one of %lld has begun",
                             (long long)bench->tokens, (long long)bench->batch);
    bench->row.tokens_per_second = (double)(decode.n_timed / bench->batch * bench->batch) / seconds;
    bench->row.gbytes_per_second = bench->streamed / seconds * 1e-9;
    model_free(model);
    return status;
}

/* ---- merge ---- */

/* Makes an adapter on all linear layers. B is random like A, so that no delta is zero. */
Status bench_make_adapter(Bench *bench) {
    Model *model;
    Arena *arena = bench->command->arena;
    const char *dir = path_join(arena, bench->folder, "adapter");
    if (!dir) return ST_RESOURCE;
    TRY(dir_remove(dir));
    TRY(bench_load(bench, true, &model));
    Status status = model_attach_lora(model, &(LoraConfig){.rank = BENCH_LORA_RANK, .alpha = 2 * BENCH_LORA_RANK}, 1);
    for (size_t i = 0; status == ST_OK && i < model->params.n; i++) {
        Param *param = &model->params.items[i];
        if (!param->trained) continue;
        for (int64_t k = 0; k < tensor_count(param->tensor); k++)
            tensor_set(param->tensor, k, 0.02 * rng_uniform(rng_key(1, RNG_TEST, i), (uint64_t)k) - 0.01);
    }
    if (status == ST_OK) status = adapter_save(model, dir, bench->model);
    model_free(model);
    return status;
}

Status bench_merge(Bench *bench) {
    Arena *arena = bench->command->arena;
    const char *output = path_join(arena, bench->folder, "merged"), *adapter = path_join(arena, bench->folder, "adapter"), *file;
    MergeResult *result;
    Runtime runtime = runtime_choose("f32");
    if (!output || !adapter || !(file = path_join(arena, output, "model.safetensors"))) return ST_RESOURCE;
    TRY(dir_remove(output));
    bench_mark_start(bench);
    TRY(merge_run(
        &(MergeConfig){.base = bench->model, .adapters = &(MergeAdapter){adapter, 1}, .n_adapters = 1, .output = output, .runtime = runtime},
        &result));
    bench->row.seconds = clock_seconds() - bench->start;
    merge_free(result);
    struct stat info;
    if (stat(file, &info) == 0) bench->row.gbytes_per_second = 2 * (double)info.st_size / bench->row.seconds * 1e-9; /* read and written */
    return dir_remove(output);
}

/* ---- tokenizer ---- */

enum { TEXT_BYTES = 4 << 20, VOCABULARY = 8192, LEAST_PASSES = 2 };

/* Makes a text of words from random syllables, short words more often, with numbers and full stops between them. */
static void make_text(Str *text) {
    static const char *const syllables[] = {"ka", "ber", "to", "lin", "sha", "mo", "ret", "u", "an", "dis", "pel", "i", "tor", "wen", "sy", "gra"};
    RngKey key = rng_key(1, RNG_TEST, 9);
    for (uint64_t draw = 0; text->len < TEXT_BYTES;) {
        uint64_t n = 1 + rng_below(key, draw, 3);
        draw++;
        if (rng_below(key, draw, 12) == 0)
            str_printf(text, "%d", (int)rng_below(key, draw + 1, 1000));
        else
            for (uint64_t i = 0; i < n; i++) str_append(text, syllables[rng_below(key, draw + 1 + i, COUNT_OF(syllables))]);
        draw += 4;
        str_append(text, rng_below(key, draw, 16) == 0 ? ".\n" : " ");
        draw++;
    }
}

/* Trains a tokenizer on the random text. */
static Status train_tokenizer(const Bench *bench, const Str *text, Tokenizer **tokenizer) {
    BpeTrainer *trainer;
    BpeTrained trained = {0};
    FileWriter writer;
    const char *path = path_join(bench->command->arena, bench->folder, "tokenizer.json");
    if (!path) return ST_RESOURCE;
    TRY(bpe_trainer_new(VOCABULARY, NULL, 0, &trainer));
    Status status = bpe_trainer_add(trainer, str_text(text), text->len);
    if (status == ST_OK) status = bpe_trainer_finish(trainer, &trained);
    bpe_trainer_free(trainer);
    if (status == ST_OK) status = writer_open(&writer, path);
    if (status == ST_OK) {
        writer_write(&writer, str_text(&trained.json), trained.json.len);
        status = writer_commit(&writer);
    }
    str_release(&trained.json);
    return status == ST_OK ? tokenizer_load(path, tokenizer) : status;
}

/* Reads the text of each row, {"question", "answer"} as one text or {"text"}, each followed by a zero byte. */
static Status read_texts(const char *path, Str *texts) {
    Lines lines;
    Slice line;
    Status status = ST_OK;
    TRY(lines_open(&lines, path));
    while (status == ST_OK && lines_next(&lines, &line)) {
        json_t *row;
        status = json_read_text(line.data, line.len, path, &row);
        if (status != ST_OK) break;
        const char *question = json_string_value(json_object_get(row, "question")), *answer = json_string_value(json_object_get(row, "answer")),
                   *text = json_string_value(json_object_get(row, "text"));
        if (question && answer)
            str_printf(texts, "%s\n%s", question, answer);
        else if (text)
            str_append(texts, text);
        else
            status = status_fail(ST_INPUT, "a row of '%s' has neither 'question' and 'answer' nor 'text'", path);
        str_append_char(texts, '\0');
        json_decref(row);
    }
    Status closed = lines_close(&lines);
    return status == ST_OK ? closed : status;
}

/* *n_bytes: bytes of all texts. */
static Status encode_all(const Tokenizer *tokenizer, const Str *texts, Ids *ids, size_t *n_bytes) {
    ids_clear(ids);
    *n_bytes = 0;
    for (size_t at = 0; at < texts->len;) {
        const char *text = str_text(texts) + at;
        size_t len = strnlen(text, texts->len - at);
        TRY(tokenizer_encode(tokenizer, text, len, TOKENIZE_PLAIN, ids));
        at += len + 1;
        *n_bytes += len;
    }
    return ST_OK;
}

Status bench_tokenizer(Bench *bench) {
    Str texts = {0};
    Ids ids = {0};
    Tokenizer *tokenizer = NULL;
    Status status = ST_OK;
    if (bench->rows)
        status = read_texts(bench->rows, &texts);
    else
        make_text(&texts);
    if (status != ST_OK) return status;
    const char *path = bench->tokenizer ? bench->tokenizer : bench->model;
    bench_mark_start(bench);
    status = bench->tokenizer || tokenizer_in(path) ? tokenizer_load(path, &tokenizer) : train_tokenizer(bench, &texts, &tokenizer);
    double best = 0;
    size_t n_bytes = 0;
    for (int64_t i = 0; status == ST_OK && i < MAX(bench->steps, LEAST_PASSES) + 1; i++) {
        double began = clock_seconds();
        status = encode_all(tokenizer, &texts, &ids, &n_bytes);
        double seconds = clock_seconds() - began;
        if (i == 0)
            bench->row.first_step = clock_seconds() - bench->start; /* later rounds find all words in the cache */
        else
            best = MAX(best, (double)n_bytes / seconds);
    }
    bench->row.mbytes_per_second = best * 1e-6;
    bench->row.tokens_per_second = (double)ids.n * best / (double)n_bytes;
    tokenizer_free(tokenizer);
    ids_release(&ids);
    str_release(&texts);
    return status;
}
