/* SPDX-License-Identifier: Apache-2.0 */
/* What a model says of answers: their losses behind their prompts and by themselves; for filters logprob and ifd. */
#include "data/filter/filter_kinds.h"
#include "data/formats/formats.h"
#include "lib/infer/infer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

Status filter_model_open(Filter *filter) {
    if (filter->config->model && filter->config->tokenizer) return ST_OK;
    return status_hint(filter_refuse(filter, 0, "it needs a model with a tokenizer"), "tune data filter has --model DIR");
}

/* The format whose encoding is the row as training would see it; NULL: its texts are taken as they are. */
static const DataFormat *format_of(const Filter *filter, const FilterRow *row) {
    static const char *const formats[] = {"messages", "sharegpt", "prompt_completion", "alpaca", "text"};
    bool has_template = filter->config->chat && chat_has_template(filter->config->chat),
         has_messages = json_is_array(json_object_get(row->json, "prompt"));
    for (size_t i = 0; row->json && !json_object_get(row->json, "instances") && i < COUNT_OF(formats); i++) {
        const DataFormat *format = data_format_find(formats[i]);
        if (format->detect(row->json)) return has_template || (i >= 2 && !has_messages) ? format : NULL;
    }
    return NULL;
}

/* Where the row's form is not one that training takes, or it is a conversation and the model has no template: prompt, line end and answer. */
static Status encode(const Filter *filter, const FilterRow *row, Encoding *encoding) {
    const FilterConfig *config = filter->config;
    DataConfig data = {.chat = config->chat};
    const DataFormat *format = format_of(filter, row);
    if (format) return data_format_encode(format, row->json, &data, config->tokenizer, encoding);
    Str room = {0}, prompt = {0}, completion = {0};
    Slice asked = filter_field(row, "prompt", &room);
    str_append_n(&prompt, asked.data ? asked.data : "", asked.len);
    if (asked.len > 0) str_append_char(&prompt, '\n');
    str_append_n(&completion, row->completion.data, row->completion.len);
    Status status = encode_pair(config->tokenizer, &data, str_text(&prompt), str_text(&completion), encoding);
    str_release(&room);
    str_release(&prompt);
    str_release(&completion);
    return status;
}

typedef struct Answer {
    Encoding whole;
    Ids alone;
    double *logprobs, *alone_logprobs;
} Answer;

/* Of the answer's own: an end that training puts behind it is none of its words, and on a model that was never trained so the least likely of all. */
static bool is_word(const Filter *filter, const Encoding *whole, size_t t) {
    int32_t id = whole->ids.data[t];
    const Chat *chat = filter->config->chat;
    return whole->labels.data[t] != LABEL_NONE && id != tokenizer_eos(filter->config->tokenizer) && !(chat && id == chat_end_of_turn(chat));
}

/* The answer's tokens, behind BOS where the tokenizer begins texts with it. */
static void list_alone(const Filter *filter, Answer *answer) {
    const Tokenizer *tokenizer = filter->config->tokenizer;
    if (tokenizer_adds_bos(tokenizer) && tokenizer_bos(tokenizer) >= 0) ids_push(&answer->alone, tokenizer_bos(tokenizer));
    for (size_t t = 1; t < answer->whole.ids.n; t++)
        if (is_word(filter, &answer->whole, t)) ids_push(&answer->alone, answer->whole.ids.data[t]);
}

/* Means over the same tokens: the first of an answer by itself has no probability unless BOS stands before it. */
static void mean_losses(const Filter *filter, const Answer *answer, double *behind, double *alone) {
    bool skip = alone && !(tokenizer_adds_bos(filter->config->tokenizer) && tokenizer_bos(filter->config->tokenizer) >= 0);
    double sum = 0, sum_alone = 0;
    size_t n = 0, n_alone = 0;
    for (size_t t = 1; t < answer->whole.ids.n; t++) {
        if (!is_word(filter, &answer->whole, t)) continue;
        if (!skip) sum -= answer->logprobs[t], n++;
        skip = false;
    }
    for (size_t t = 1; alone && t < answer->alone.n; t++) sum_alone -= answer->alone_logprobs[t], n_alone++;
    *behind = n ? sum / (double)n : (double)NAN;
    if (alone) *alone = n_alone ? sum_alone / (double)n_alone : (double)NAN;
}

/* What stands before nothing, or behind nothing, has no loss, or nothing to compare it with. */
static bool has_losses(const FilterRow *row, bool alone) { return row->completion.data && (!alone || row->instruction.data); }

static double *push_row(ScoreRow *rows, size_t *n, const Ids *ids, Arena *arena) {
    double *logprobs = arena_alloc(arena, (ids->n + 1) * sizeof *logprobs);
    if (logprobs && ids->n > 1) rows[(*n)++] = (ScoreRow){ids->data, ids->n, logprobs};
    return logprobs;
}

static Status score_answers(Filter *filter, const FilterRow *rows, size_t n, Answer *answers, bool alone, Arena *arena) {
    ScoreRow *scored = arena_alloc(arena, 2 * n * sizeof *scored);
    size_t n_scored = 0;
    if (!scored) return ST_RESOURCE;
    for (size_t r = 0; r < n; r++) {
        if (!has_losses(&rows[r], alone)) continue;
        Status status = encode(filter, &rows[r], &answers[r].whole);
        if (status != ST_OK) return status_prefix(status, "filter '%s', row '%s'", filter->info.name, rows[r].id ? rows[r].id : "?");
        if (alone) list_alone(filter, &answers[r]);
        if (!(answers[r].logprobs = push_row(scored, &n_scored, &answers[r].whole.ids, arena))) return ST_RESOURCE;
        if (alone && !(answers[r].alone_logprobs = push_row(scored, &n_scored, &answers[r].alone, arena))) return ST_RESOURCE;
    }
    return score_rows(filter->config->model, scored, n_scored, NULL, NULL);
}

Status filter_model_losses(Filter *filter, const FilterRow *rows, size_t n, double *behind, double *alone) {
    Arena *arena = arena_new(0);
    Answer *answers = calloc(n + 1, sizeof *answers);
    Status status = arena && answers ? score_answers(filter, rows, n, answers, alone != NULL, arena) : status_errno(ENOMEM, "cannot score the rows");
    for (size_t r = 0; status == ST_OK && r < n; r++) mean_losses(filter, &answers[r], &behind[r], alone ? &alone[r] : NULL);
    for (size_t r = 0; answers && r < n; r++) {
        ids_release(&answers[r].whole.ids);
        ids_release(&answers[r].whole.labels);
        ids_release(&answers[r].alone);
    }
    free(answers);
    arena_free(arena);
    return status;
}
