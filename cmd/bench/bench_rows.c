/* SPDX-License-Identifier: Apache-2.0 */
/* Rows for tune-bench: lengths of real data, random ids. */
#include <math.h>

#include "lib/text/text.h"
#include "cmd/bench/bench.h"

/* Every 16th part of the sorted lengths, in tokens of SmolLM2's tokenizer: GSM8K train (7473 rows) as chat prompt
 * `<|im_start|>user\n..<|im_end|>\n<|im_start|>assistant\n` and answer
 * `..<|im_end|>\n`; hh-rlhf harmless test, pairs whose prompts are the same up to the last "Assistant:". */
enum { QUANTILES = 17 };
static const int16_t gsm8k_prompt[QUANTILES] = {21, 43, 47, 51, 54, 56, 59, 62, 65, 69, 72, 76, 80, 86, 95, 107, 232};
static const int16_t gsm8k_answer[QUANTILES] = {32, 62, 71, 79, 86, 93, 100, 107, 115, 124, 133, 144, 155, 170, 189, 222, 456};
static const int16_t hh_prompt[QUANTILES] = {12, 18, 21, 24, 33, 51, 67, 82, 98, 114, 131, 148, 170, 200, 253, 323, 835};
static const int16_t hh_chosen[QUANTILES] = {1, 7, 9, 12, 15, 17, 20, 23, 27, 31, 37, 43, 52, 63, 79, 109, 269};
static const int16_t hh_rejected[QUANTILES] = {1, 7, 10, 14, 17, 21, 25, 30, 36, 41, 49, 56, 65, 77, 97, 130, 556};

static int64_t draw(const int16_t quantiles[QUANTILES], uint64_t stream, size_t i) {
    double at = rng_uniform(rng_key(1, RNG_TEST, stream), i) * (QUANTILES - 1);
    int k = (int)fmin(at, QUANTILES - 2);
    return (int64_t)(quantiles[k] + (at - k) * (quantiles[k + 1] - quantiles[k]));
}

static BenchRow draw_row(BenchKind kind, size_t i) {
    if (kind == BENCH_CHAT) return (BenchRow){draw(gsm8k_prompt, 2, i), draw(gsm8k_answer, 3, i), 0};
    return (BenchRow){draw(hh_prompt, 4, i), draw(hh_chosen, 5, i), draw(hh_rejected, 6, i)};
}

/* ---- rows of a file ---- */

static Status count_tokens(const Tokenizer *tokenizer, const char *before, const char *text, const char *after, int64_t *n) {
    Str whole = {0};
    Ids ids = {0};
    str_printf(&whole, "%s%s%s", before, text, after);
    Status status = tokenizer_encode(tokenizer, str_text(&whole), whole.len, TOKENIZE_PLAIN, &ids);
    *n = (int64_t)ids.n;
    ids_release(&ids);
    str_release(&whole);
    return status;
}

static const char *content_of(const json_t *row, size_t i) {
    return json_string_value(json_object_get(json_array_get(json_object_get(row, "messages"), i), "content"));
}

/* Reads the lengths of a row: {"question", "answer"} or two messages; or {"prompt", "chosen", "rejected"}. */
static Status read_row(const Tokenizer *tokenizer, const json_t *row, BenchKind kind, const char *path, BenchRow *result) {
    const char *prompt, *answer, *rejected = NULL;
    bool pair = kind == BENCH_PAIRS, messages = json_object_get(row, "messages") != NULL;
    prompt = messages ? content_of(row, 0) : json_string_value(json_object_get(row, pair ? "prompt" : "question"));
    answer = messages ? content_of(row, 1) : json_string_value(json_object_get(row, pair ? "chosen" : "answer"));
    if (pair) rejected = json_string_value(json_object_get(row, "rejected"));
    if (!prompt || !answer || (pair && !rejected))
        return status_fail(ST_INPUT, "a row of '%s' has no texts '%s'", path, pair ? "prompt', 'chosen' and 'rejected" : "question' and 'answer");
    TRY(count_tokens(tokenizer, pair ? "" : "<|im_start|>user\n", prompt, pair ? "" : "<|im_end|>\n<|im_start|>assistant\n", &result->prompt));
    TRY(count_tokens(tokenizer, "", answer, pair ? "" : "<|im_end|>\n", &result->answer));
    return pair ? count_tokens(tokenizer, "", rejected, "", &result->rejected) : ST_OK;
}

static Status read_rows(const Bench *bench, const Tokenizer *tokenizer, BenchKind kind, size_t n, BenchRows *rows) {
    Lines lines;
    Slice line;
    Status status = ST_OK;
    TRY(lines_open(&lines, bench->rows));
    while (status == ST_OK && rows->n < n && lines_next(&lines, &line)) {
        json_t *row;
        status = json_read_text(line.data, line.len, bench->rows, &row);
        if (status != ST_OK) break;
        bool fits = (json_object_get(row, "chosen") != NULL) == (kind == BENCH_PAIRS);
        if (fits) status = read_row(tokenizer, row, kind, bench->rows, &rows->items[rows->n++]);
        json_decref(row);
        if (!fits) break;
    }
    Status closed = lines_close(&lines);
    return status == ST_OK ? closed : status;
}

Status bench_rows(const Bench *bench, BenchKind kind, size_t n, BenchRows *rows) {
    *rows = (BenchRows){arena_zero(bench->command->arena, n * sizeof *rows->items), 0};
    if (!rows->items) return ST_RESOURCE;
    if (bench->rows) {
        Tokenizer *tokenizer;
        TRY(tokenizer_load(bench->tokenizer ? bench->tokenizer : bench->model, &tokenizer));
        Status status = read_rows(bench, tokenizer, kind, n, rows);
        tokenizer_free(tokenizer);
        if (status != ST_OK) return status;
    }
    for (; rows->n < n; rows->n++) rows->items[rows->n] = draw_row(kind, rows->n);
    for (BenchRow *row = rows->items; row < rows->items + n; row++) {
        row->prompt = (int64_t)fmax(1, (double)row->prompt * bench->scale);
        row->answer = (int64_t)fmax(1, (double)row->answer * bench->scale);
        row->rejected = (int64_t)fmax(1, (double)row->rejected * bench->scale);
    }
    return ST_OK;
}

/* ---- files for a run ---- */

void bench_write_ids(JsonWriter *w, const Bench *bench, const char *key, uint64_t stream, int64_t n) {
    jw_array(w, key);
    for (int64_t k = 0; k < n; k++) jw_int(w, NULL, (int64_t)rng_below(rng_key(1, RNG_TEST, stream), (uint64_t)k, (uint64_t)bench->n_ids));
    jw_end_array(w);
}

Status bench_write_rows(const Bench *bench, size_t n, BenchFill *fill, const void *context) {
    FileWriter writer;
    const char *path = path_join(bench->command->arena, bench->folder, "rows.jsonl");
    if (!path) return ST_RESOURCE;
    TRY(writer_open(&writer, path));
    for (size_t i = 0; i < n; i++) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        fill(&w, bench, context, i);
        jw_end_object(&w);
        writer_printf(&writer, "%s\n", str_text(&w.text));
        jw_release(&w);
    }
    return writer_commit(&writer);
}

Status bench_recipe(const Bench *bench, const char *const *more, size_t n_more, Recipe **recipe) {
    enum { MOST = 24 };
    Arena *arena = bench->command->arena;
    const char *output = path_join(arena, bench->folder, "run"), *settings[MOST] = {
                                                                     arena_printf(arena, "model.path=%s", bench->model),
                                                                     arena_printf(arena, "model.compute=%s", bench->compute),
                                                                     arena_printf(arena, "data.train=%s/rows.jsonl", bench->folder),
                                                                     arena_printf(arena, "output=%s", output),
                                                                     arena_printf(arena, "train.max_steps=%lld", (long long)bench->steps + 1),
                                                                     "data.shuffle=false",
                                                                     "data.max_length=1000000",
                                                                     "train.learning_rate=1e-5",
                                                                     arena_printf(arena, "train.checkpointing=%s", bench->checkpointing),
                                                                 };
    size_t n = 9;
    ASSERT(n + n_more <= MOST, "%zu settings", n_more);
    for (size_t i = 0; i < n_more; i++) settings[n++] = more[i];
    for (size_t i = 0; i < n; i++)
        if (!settings[i]) return ST_RESOURCE;
    TRY(dir_remove(output));
    return recipe_read(NULL, settings, n, recipe);
}
