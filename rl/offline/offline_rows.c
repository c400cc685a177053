/* SPDX-License-Identifier: Apache-2.0 */
/* Converts rows with rewards to tokens with rewards. */
#include "rl/offline/offline_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

typedef struct Reading {
    OfflineRows *rows;
    DataConfig config;
    const Tokenizer *tokenizer;
    RowNotes notes; /* of the current row */
} Reading;

/* ---- one row ---- */

static const DataFormat *format_of(const Reading *reading, const DataSource *source, const json_t *row) {
    const char *given = source->format ? source->format : reading->config.format;
    if (given && strcmp(given, "auto") != 0) return data_format_find(given);
    for (size_t i = 0; data_format_at(i); i++)
        if (data_format_at(i)->detect(row)) return data_format_at(i);
    return NULL;
}

/* {"prompt_ids", "completion_ids"} as {"input_ids", "labels"}. */
static json_t *joined_ids(const json_t *row) {
    json_t *prompt = json_object_get(row, "prompt_ids"), *completion = json_object_get(row, "completion_ids");
    if (!json_is_array(prompt) || !json_is_array(completion)) return NULL;
    json_t *ids = json_array(), *labels = json_array();
    json_array_extend(ids, prompt);
    json_array_extend(ids, completion);
    for (size_t i = 0; i < json_array_size(prompt); i++) json_array_append_new(labels, json_integer(LABEL_NONE));
    json_array_extend(labels, completion);
    return json_pack("{s:o, s:o}", "input_ids", ids, "labels", labels);
}

static Status offline_rows_encode(const Reading *reading, const DataSource *source, const json_t *row, Encoding *encoding) {
    json_t *ids = joined_ids(row);
    const DataFormat *format = ids ? data_format_find("ids") : format_of(reading, source, row);
    if (!format)
        return status_hint(status_fail(ST_INPUT, "the row is in no known form"),
                           "{\"prompt\", \"completion\", \"reward\"} is the simplest; data.columns gives these names to other columns");
    if (format->needs_tokenizer && !reading->tokenizer) {
        json_decref(ids);
        return status_hint(status_fail(ST_INPUT, "the row holds text, and the model directory has no tokenizer"),
                           "rows with ids need none: {\"prompt_ids\", \"completion_ids\", \"reward\"}");
    }
    Status status = data_format_encode_one(format, ids ? ids : row, &reading->config, reading->tokenizer, encoding);
    json_decref(ids);
    return status == ST_OK ? ids_check(&encoding->ids, reading->config.vocab_size) : status;
}

static bool ends_turn(const OfflineRow *row, int64_t t) { return row->trained[t] && (t + 1 == row->n || !row->trained[t + 1]); }

static Status take_number(const json_t *value, const char *key, double *number) {
    *number = json_number_value(value);
    return json_is_number(value) && isfinite(*number) ? ST_OK : status_fail(ST_INPUT, "'%s' contains something that is not a number", key);
}

static Status read_list(const json_t *list, const OfflineRow *row, double *rewards) {
    int64_t n = (int64_t)json_array_size(list), turns = 0, at = 0;
    for (int64_t t = 0; t < row->n; t++) turns += ends_turn(row, t);
    if (n != row->n_trained && n != turns)
        return status_fail(ST_INPUT, "'rewards' has %lld numbers, the row has %lld trained tokens in %lld turns", (long long)n,
                           (long long)row->n_trained, (long long)turns);
    for (int64_t t = 0; t < row->n; t++)
        if (n == row->n_trained ? row->trained[t] : ends_turn(row, t)) TRY(take_number(json_array_get(list, (size_t)at++), "rewards", &rewards[t]));
    return ST_OK;
}

static Status read_rewards(const json_t *json, OfflineRow *row, double *rewards) {
    const json_t *one = json_object_get(json, "reward"), *list = json_object_get(json, "rewards"), *cut = json_object_get(json, "truncated");
    row->rewards = rewards;
    row->cut = json_is_true(cut);
    if (cut && !json_is_boolean(cut)) return status_fail(ST_INPUT, "'truncated' is neither true nor false");
    if (json_is_array(list)) return read_list(list, row, rewards);
    if (!one || json_is_null(one))
        return status_hint(status_fail(ST_INPUT, "the row has no reward"),
                           "offline learning takes rows with \"reward\": number, or \"rewards\": [...]");
    return take_number(one, "reward", &rewards[row->n - 1]);
}

static Status offline_rows_keep(Reading *reading, const Row *given, const Encoding *encoding) {
    OfflineRows *rows = reading->rows;
    size_t first = 1, end = encoding->ids.n; /* the very first token has no predecessor that predicts it */
    while (first < end && encoding->labels.data[first] == LABEL_NONE) first++;
    while (end > first && encoding->labels.data[end - 1] == LABEL_NONE) end--;
    if (first >= end) return status_fail(ST_INPUT, "no token of the row can be trained");
    int64_t n = (int64_t)(end - first);
    int32_t *ids = arena_alloc(rows->arena, end * sizeof *ids);
    bool *trained = arena_alloc(rows->arena, (size_t)n * sizeof *trained);
    double *rewards = arena_zero(rows->arena, (size_t)n * sizeof *rewards);
    if (!ids || !trained || !rewards) return ST_RESOURCE;
    memcpy(ids, encoding->ids.data, end * sizeof *ids);
    OfflineRow row = {.prompt = {.ids = {ids, first, first}},
                      .ids = ids + first,
                      .trained = trained,
                      .n = n,
                      .file = given->file,
                      .unit = given->unit,
                      .place = (int64_t)given->line};
    for (int64_t t = 0; t < n; t++) row.n_trained += trained[t] = encoding->labels.data[first + (size_t)t] != LABEL_NONE;
    TRY(read_rewards(given->json, &row, rewards));
    TRY(array_grow(&rows->items, &rows->cap, rows->n + 1, sizeof *rows->items, "rows"));
    rows->items[rows->n++] = row;
    rows->tokens += (int64_t)end;
    rows->trained_tokens += row.n_trained;
    rows->longest = MAX(rows->longest, (int64_t)end);
    for (int64_t t = 0; t < n; t++) rows->mean_reward += rewards[t];
    return ST_OK;
}

/* Truncating a row would move its reward to a token that did not earn it. */
static Status offline_rows_fits(Reading *reading, const Encoding *encoding, bool *dropped) {
    const char *how = reading->config.truncation;
    *dropped = (int64_t)encoding->ids.n > reading->config.max_length && strcmp(how, "drop") == 0;
    reading->rows->dropped += *dropped;
    if (*dropped || (int64_t)encoding->ids.n <= reading->config.max_length) return ST_OK;
    status_fail(ST_INPUT, "the row has %zu tokens, more than data.max_length %lld", encoding->ids.n, (long long)reading->config.max_length);
    return status_hint(ST_INPUT, "raise data.max_length, or set data.truncation: drop");
}

static Status read_row(void *context, const DataSource *source, const Row *row) {
    Reading *reading = context;
    Encoding encoding = {0};
    bool dropped = false;
    row_notes_clear(&reading->notes);
    reading->config.notes = &reading->notes;
    reading->config.padded = row->padded;
    Status status = offline_rows_encode(reading, source, row->json, &encoding);
    if (status == ST_OK) status = offline_rows_fits(reading, &encoding, &dropped);
    if (status == ST_OK && !dropped) status = offline_rows_keep(reading, row, &encoding);
    if (status == ST_OK && !dropped) row_notes_add(&reading->rows->table.notes, &reading->notes, row->file, row->unit, row->line);
    encoding_release(&encoding);
    return status;
}

/* ---- all rows ---- */

/* As text_pass_rows counts. */
static int32_t length_of(const void *rows, size_t i) {
    const OfflineRow *row = &((const OfflineRows *)rows)->items[i];
    return (int32_t)((int64_t)row->prompt.ids.n + row->n - 1 + row->cut);
}

static void where_is(const void *rows, size_t i, Str *text) {
    const OfflineRow *row = &((const OfflineRows *)rows)->items[i];
    str_printf(text, "%s %s %lld", row->file, row->unit, (long long)row->place);
}

Status offline_rows_read(const Recipe *recipe, const ModelConfig *model, const Chat *chat, const Tokenizer *tokenizer, OfflineRows *rows) {
    *rows = (OfflineRows){.arena = arena_new(0)};
    if (!rows->arena) return status_fail(ST_RESOURCE, "out of memory for rows");
    Reading reading = {.rows = rows, .config = data_config(recipe, model, chat), .tokenizer = tokenizer};
    SourceReader reader = {
        .config = &reading.config, .use = ROWS_AS_EXAMPLES, .widen = true, .kept = &rows->n, .take = read_row, .context = &reading};
    Status status = data_sources_read(recipe->data_train, "data.train", &reader, rows->arena, &rows->table);
    row_notes_release(&reading.notes);
    TRY(status);
    rows->table.n = rows->n;
    rows->table.counts.tokens = rows->tokens;
    rows->table.row_source = (RowSource){rows, length_of, where_is};
    for (size_t i = 0; i < rows->n; i++) rows->table.longest = MAX(rows->table.longest, length_of(rows, i));
    if (rows->n == 0 && rows->dropped == 0) return status_fail(ST_INPUT, "the files of 'data.train' hold no rows");
    if (rows->n == 0) return status_fail(ST_INPUT, "all %lld rows of 'data.train' are longer than data.max_length", (long long)rows->dropped);
    rows->mean_reward /= (double)rows->n;
    return ST_OK;
}

void offline_rows_free(OfflineRows *rows) {
    free(rows->items);
    row_notes_release(&rows->table.notes);
    arena_free(rows->arena);
    *rows = (OfflineRows){0};
}

uint64_t offline_rows_fingerprint(const OfflineRows *rows) {
    uint64_t hash = 0;
    for (size_t i = 0; i < rows->n; i++) {
        const OfflineRow *row = &rows->items[i];
        hash = XXH3_64bits_withSeed(row->prompt.ids.data, (row->prompt.ids.n + (size_t)row->n) * sizeof(int32_t), hash);
        hash = XXH3_64bits_withSeed(row->rewards, (size_t)row->n * sizeof *row->rewards, hash);
        hash = XXH3_64bits_withSeed(row->trained, (size_t)row->n * sizeof *row->trained, hash);
        int64_t rest[] = {(int64_t)row->prompt.ids.n, row->n, row->cut};
        hash = XXH3_64bits_withSeed(rest, sizeof rest, hash);
    }
    return hash;
}

Status offline_rows_add(const OfflineRows *rows, size_t i, Experience *e) {
    const OfflineRow *row = &rows->items[i];
    int64_t begin = e->n_tokens;
    TRY(experience_open_group(e, &row->prompt));
    TRY(experience_add(e, &(NewSequence){.ids = row->ids, .trained = row->trained, .n = (size_t)row->n, .ended = !row->cut, .reward = (double)NAN}));
    memcpy(e->token_rewards + begin, row->rewards, (size_t)row->n * sizeof *row->rewards);
    return ST_OK;
}
