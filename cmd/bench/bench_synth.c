/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench synth: runs tune data synth with a local model, then generates answers to the same questions, stage by stage, as tune generate does.
 * Both give the same tokens, so the ratio of times is the overhead of synthesis. */
#include "cmd/app/folders.h"
#include "cmd/app/terminal.h"
#include "lib/base/system.h"
#include "cmd/bench/bench.h"
#include "cmd/common/runtime.h"

#include <stdlib.h>
#include <string.h>

#include "data/data.h"
#include "data/synth/synth.h"
#include "data/synth/teacher.h"

enum { ROWS = 64, SEEDS = 24, BATCH = 32, WORDS = 49152 };
static const char config_json[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 49152, \"hidden_size\": 576, \"intermediate_size\": 1536, \"num_hidden_layers\": 30, \"num_attention_heads\": 9,"
    " \"num_key_value_heads\": 3, \"max_position_embeddings\": 8192, \"rms_norm_eps\": 1e-5, \"rope_theta\": 100000, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\"}";

typedef struct SynthBench {
    const Command *command;
    const char *folder, *model;
    bool made;                                                    /* the model has random weights, so its tokens are nearly uniform */
    double seconds, cpu_seconds, teacher_seconds, filter_seconds; /* times of the synthesis */
    double generate_seconds, generate_cpu_seconds;
    int64_t tokens, generated, rows, candidates;
} SynthBench;

/* ---- model and seeds ---- */

/* Writes a tokenizer with one token a word. */
static Status write_tokenizer(const char *dir, Arena *arena) {
    FileWriter w;
    TRY(writer_open(&w, path_join(arena, dir, "tokenizer.json")));
    writer_printf(
        &w,
        "{\"version\": \"1.0\", \"added_tokens\": [], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"Whitespace\"}, \"post_processor\": null, \"decoder\": null,"
        " \"model\": {\"type\": \"WordLevel\", \"unk_token\": \"w0\", \"vocab\": {");
    for (int i = 0; i < WORDS; i++) writer_printf(&w, "%s\"w%d\": %d", i ? ", " : "", i, i);
    writer_printf(&w, "}}}\n");
    return writer_commit(&w);
}

static Status write_seeds(const char *path) {
    FileWriter w;
    TRY(writer_open(&w, path));
    for (uint64_t i = 0; i < SEEDS; i++) {
        writer_printf(&w, "{\"task_type\": \"%s\", \"instruction\": \"", i % 2 ? "first" : "second");
        for (uint64_t k = 0; k < 12 + rng_below(rng_key(3, RNG_TEST, i), 0, 30); k++)
            writer_printf(&w, "%sw%llu", k ? " " : "", (unsigned long long)rng_below(rng_key(3, RNG_TEST, i), 1 + k, WORDS));
        writer_printf(&w, "\", \"output\": \"w%llu\"}\n", (unsigned long long)i);
    }
    return writer_commit(&w);
}

static Status prepare(SynthBench *b) {
    Arena *arena = b->command->arena;
    if (b->made) {
        b->model = path_join(arena, b->folder, "model");
        if (!b->model) return ST_RESOURCE;
        TRY(model_write_random(b->model, config_json, DT_BF16, 1, 0.02));
        TRY(write_tokenizer(b->model, arena));
    }
    return write_seeds(path_join(arena, b->folder, "seeds.jsonl"));
}

/* ---- synthesis ---- */

/* A random model never ends by itself. The stop texts end a prompt after 28 tokens on average, an answer after 55. */
static Status make_recipe(const SynthBench *b, Recipe **recipe) {
    Arena *arena = b->command->arena;
    const char *prompt_stop = b->made ? ", stop: ['77']" : "", *answer_stop = b->made ? ", stop: ['770', '551', '338', '116', '429', '204']" : "";
    const char *items[] = {
        arena_printf(arena, "output=%s/run", b->folder),
        arena_printf(arena, "synth.seeds=%s/seeds.jsonl", b->folder),
        "synth.preset=few_shot",
        arena_printf(arena, "synth.num_rows=%d", ROWS),
        arena_printf(arena, "synth.teacher={model: '%s', max_batch: %d}", b->model, BATCH),
        "synth.min_acceptance=0",
        "synth.keep_cut=true",
        arena_printf(
            arena,
            "synth.sampling={prompt: {temperature: 1, top_p: 1, max_new_tokens: 128%s}, answer: {temperature: 1, top_p: 1, max_new_tokens: 256%s}}",
            prompt_stop, answer_stop),
        "synth.filters={words: true, repetition: true, equal: true, script: Latin, minhash: 0.8, ascii_start: true, punctuation_start: true, blacklist: true}",
    };
    for (size_t i = 0; i < COUNT_OF(items); i++)
        if (!items[i]) return ST_RESOURCE;
    return recipe_read(NULL, items, COUNT_OF(items), recipe);
}

static Status synthesize(SynthBench *b, const Recipe *recipe) {
    const char *folders[RECIPE_FOLDERS];
    SynthResult result;
    SynthConfig config = {.recipe = recipe, .device = runtime_choose(NULL).device, .folders = folders};
    TRY(recipe_folders(b->command->arena, folders, &config.n_folders));
    double cpu = cpu_seconds();
    TRY(synth_run(&config, &result));
    b->cpu_seconds = cpu_seconds() - cpu; /* includes loading, as for generation below */
    b->seconds = result.seconds;
    b->teacher_seconds = result.teacher_seconds;
    b->filter_seconds = result.filter_seconds;
    b->tokens = result.tokens;
    b->rows = result.rows;
    b->candidates = result.rows + result.rejected;
    return ST_OK;
}

/* ---- the same questions, by the generator alone ---- */

typedef struct Questions {
    json_t *lines;
} Questions;

static Status take_question(void *context, const Row *row) {
    Questions *questions = context;
    return json_array_append(questions->lines, row->json) == 0 ? ST_OK : status_fail(ST_RESOURCE, "out of memory for the questions");
}

static Status count_tokens(void *context, const Completion *completion) {
    *(int64_t *)context += (int64_t)completion->ids.n;
    return ST_OK;
}

typedef struct Generator {
    Model *model;
    Tokenizer *tokenizer;
    Chat *chat;
} Generator;

static Status encode_question(const Generator *g, const json_t *line, Ids *ids) {
    const char *text = json_string_value(json_object_get(line, "prompt"));
    if (text) return encode_prompt(g->tokenizer, text, strlen(text), ids);
    json_t *row = json_pack("{s:O}", "messages", json_object_get(line, "messages"));
    Status status =
        row ? row_question(row, &(DataConfig){.chat = g->chat}, g->tokenizer, ids) : status_fail(ST_RESOURCE, "out of memory for a question");
    json_decref(row);
    return status;
}

/* Generates answers to all questions of one stage in one call. */
static Status generate_stage(SynthBench *b, const Generator *g, const json_t *lines, const char *stage, const TeacherSampling *sampling) {
    size_t n = 0, i;
    json_t *line;
    Ids *ids = calloc(json_array_size(lines) + 1, sizeof *ids);
    Prompt *prompts = calloc(json_array_size(lines) + 1, sizeof *prompts);
    Status status = ids && prompts ? ST_OK : status_fail(ST_RESOURCE, "out of memory for the questions");
    json_array_foreach((json_t *)lines, i, line) {
        if (status != ST_OK || strcmp(json_string_value(json_object_get(line, "stage")), stage) != 0) continue;
        status = encode_question(g, line, &ids[n]);
        prompts[n] = (Prompt){ids[n].data, ids[n].n, (uint64_t)json_integer_value(json_object_get(line, "number"))};
        n++;
    }
    int32_t end = chat_end_of_turn(g->chat);
    GenerateConfig config = {.sample = sampling->sample,
                             .max_new_tokens = sampling->max_new_tokens,
                             .n = 1,
                             .seed = 42,
                             .n_stop = sampling->stop.n,
                             .stop = sampling->stop.items,
                             .n_stop_ids = end >= 0,
                             .stop_ids = &end,
                             .max_batch = BATCH};
    double began = clock_seconds();
    if (status == ST_OK && n > 0) status = generate(g->model, g->tokenizer, prompts, n, &config, NULL, count_tokens, &b->generated);
    b->generate_seconds += clock_seconds() - began;
    for (size_t k = 0; ids && k < n; k++) ids_release(&ids[k]);
    free(ids);
    free(prompts);
    return status;
}

/* The stage's sampling settings, read from its first request in the log. */
static Status stage_sampling(const json_t *lines, const char *stage, Arena *arena, TeacherSampling *sampling) {
    size_t i;
    json_t *line;
    *sampling = teacher_sampling();
    json_array_foreach((json_t *)lines, i, line) {
        if (strcmp(json_string_value(json_object_get(line, "stage")), stage) != 0) continue;
        char *text = json_text(json_object_get(line, "sampling"), JSON_COMPACT);
        Yaml *map;
        Status status = text ? yaml_read_text(text, strlen(text), "the log", arena, &map) : ST_RESOURCE;
        free(text);
        return status == ST_OK ? teacher_sampling_read(map, stage, NULL, arena, sampling) : status;
    }
    return ST_OK;
}

static Status generate_all(SynthBench *b) {
    static const char *const stages[] = {"prompt", "answer"};
    Arena *arena = b->command->arena;
    Generator g = {0};
    Questions questions = {json_array()};
    double cpu = cpu_seconds();
    Status status = rows_read(arena_printf(arena, "%s/run/requests.jsonl", b->folder), take_question, &questions);
    Runtime runtime = runtime_choose(NULL);
    if (status == ST_OK) status = model_load(b->model, &(ModelOptions){.device = runtime.device, .compute = runtime.compute}, &g.model);
    if (status == ST_OK) status = tokenizer_load_if_any(b->model, &g.tokenizer);
    if (status == ST_OK) status = chat_open(b->model, NULL, NULL, NULL, g.tokenizer, &g.chat);
    for (size_t i = 0; i < COUNT_OF(stages) && status == ST_OK; i++) {
        TeacherSampling sampling;
        status = stage_sampling(questions.lines, stages[i], arena, &sampling);
        if (status == ST_OK) status = generate_stage(b, &g, questions.lines, stages[i], &sampling);
    }
    b->generate_cpu_seconds = cpu_seconds() - cpu;
    model_free(g.model);
    tokenizer_free(g.tokenizer);
    chat_close(g.chat);
    json_decref(questions.lines);
    return status;
}

/* ---- the command ---- */

static void print(const SynthBench *b) {
    double rate = (double)b->tokens / b->seconds, generate_rate = (double)b->generated / b->generate_seconds;
    if (b->command->json) {
        print_result(
            "{\"work\": \"synth\", \"rows\": %lld, \"candidates\": %lld, \"tokens\": %lld, \"generated_tokens\": %lld, \"tokens_per_second\": %.1f, \"generate_tokens_per_second\": %.1f, \"ratio\": %.4f,"
            " \"cpu_seconds\": %.2f, \"generate_cpu_seconds\": %.2f, \"filter_share\": %.6f}\n",
            (long long)b->rows, (long long)b->candidates, (long long)b->tokens, (long long)b->generated, rate, generate_rate, rate / generate_rate,
            b->cpu_seconds, b->generate_cpu_seconds, b->filter_seconds / b->seconds);
        return;
    }
    print_result(
        "Synthesis, few_shot, batch %d: %lld rows of %lld candidates, %lld tokens: %.0f a second; generation alone of the same answers %.0f a second: ratio %.3f\n",
        BATCH, (long long)b->rows, (long long)b->candidates, (long long)b->tokens, rate, generate_rate, rate / generate_rate);
    print_result("  processor time %.1f s, generation alone %.1f s: ratio %.3f; filters take %.3f %% of the time\n", b->cpu_seconds,
                 b->generate_cpu_seconds, b->generate_cpu_seconds / b->cpu_seconds, 100 * b->filter_seconds / b->seconds);
}

static Status measure(SynthBench *b) {
    Recipe *recipe;
    TRY(prepare(b));
    TRY(make_recipe(b, &recipe));
    Status status = synthesize(b, recipe);
    recipe_free(recipe);
    if (status == ST_OK) status = generate_all(b);
    if (status == ST_OK) print(b);
    return status;
}

Status bench_synth(const Command *command) {
    const char *temporary = getenv("TMPDIR");
    char *folder = arena_printf(command->arena, "%s/tune-bench-XXXXXX", temporary && *temporary ? temporary : "/tmp");
    if (!folder || !mkdtemp(folder)) return status_fail(ST_RESOURCE, "cannot make a folder like '%s'", folder ? folder : "");
    SynthBench b = {
        .command = command, .folder = folder, .made = command->n_arguments < 2, .model = command->n_arguments < 2 ? NULL : command->arguments[1]};
    Status status = measure(&b);
    if (status != ST_OK)
        dir_remove(folder);
    else
        status = dir_remove(folder);
    return status;
}
