/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of answers under a model, with and without their prompts; for filters logprob and ifd. */
#include "data/filter/filter_kinds.h"
#include "data/formats/formats.h"
#include "data/formats/row_form.h"
#include "lib/infer/infer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

Status filter_model_open(Filter *filter) {
    if (filter->config->model && filter->config->tokenizer) return ST_OK;
    return status_hint(filter_refuse(filter, 0, "it needs a model with a tokenizer"), "tune data filter has --model DIR");
}

/* A form that training does not read, such as self-instruct's seeds: prompt, line end and answer. */
static Status encode_texts(const FilterConfig *config, const FilterRow *row, Encoding *encoding) {
    Str room = {0}, prompt = {0}, completion = {0};
    Slice asked = filter_field(row, "prompt", &room);
    str_append_n(&prompt, asked.data ? asked.data : "", asked.len);
    if (asked.len > 0) str_append_char(&prompt, '\n');
    str_append_n(&completion, row->completion.data, row->completion.len);
    Status status = encode_pair(config->tokenizer, &(DataConfig){.chat = config->chat}, str_text(&prompt), str_text(&completion), encoding);
    str_release(&room);
    str_release(&prompt);
    str_release(&completion);
    return status;
}

/* Reads the row as training does: public forms are converted, plain texts follow data.as, conversations use the template. */
static Status filter_model_encode(const FilterConfig *config, const FilterRow *row, Encoding *encoding) {
    DataConfig data = {.chat = config->chat, .as = config->as ? config->as : "auto", .system = config->system, .turns = "auto"};
    RowForm form = row_form(&data, ROWS_AS_EXAMPLES);
    json_t *formed = NULL, *plain = NULL;
    RowFound found;
    if (!row->json || json_object_get(row->json, "instances")) return encode_texts(config, row, encoding);
    Status status = row_formed(&form, row->json, &formed, &plain, &found);
    const DataFormat *format = status == ST_OK ? data_format_of(formed) : NULL;
    if (format)
        status = data_format_encode(format, formed, &data, config->tokenizer, encoding);
    else if (status == ST_OK)
        status = encode_texts(config, row, encoding);
    row_form_release(&form);
    json_decref(formed);
    json_decref(plain);
    return status;
}

typedef struct Answer {
    Encoding whole;
    Ids alone;
    double *logprobs, *alone_logprobs;
} Answer;

/* Only tokens of the answer itself count: the end that training appends is none of its words, and is the least likely of all on a model that was not
 * trained this way. */
static bool is_word(const Filter *filter, const Encoding *whole, size_t t) {
    int32_t id = whole->ids.data[t];
    const Chat *chat = filter->config->chat;
    return whole->labels.data[t] != LABEL_NONE && id != tokenizer_eos(filter->config->tokenizer) && !(chat && id == chat_end_of_turn(chat));
}

/* The answer's tokens, after BOS if the tokenizer begins texts with it. */
static void list_alone(const Filter *filter, Answer *answer) {
    const Tokenizer *tokenizer = filter->config->tokenizer;
    if (tokenizer_adds_bos(tokenizer) && tokenizer_bos(tokenizer) >= 0) ids_push(&answer->alone, tokenizer_bos(tokenizer));
    for (size_t t = 1; t < answer->whole.ids.n; t++)
        if (is_word(filter, &answer->whole, t)) ids_push(&answer->alone, answer->whole.ids.data[t]);
}

/* Means over the same tokens: the first token of an answer without its prompt has no probability unless BOS precedes it. */
static void mean_losses(const Filter *filter, const Answer *answer, double *prompted, double *alone) {
    bool skip = alone && !(tokenizer_adds_bos(filter->config->tokenizer) && tokenizer_bos(filter->config->tokenizer) >= 0);
    double sum = 0, sum_alone = 0;
    size_t n = 0, n_alone = 0;
    for (size_t t = 1; t < answer->whole.ids.n; t++) {
        if (!is_word(filter, &answer->whole, t)) continue;
        if (!skip) sum -= answer->logprobs[t], n++;
        skip = false;
    }
    for (size_t t = 1; alone && t < answer->alone.n; t++) sum_alone -= answer->alone_logprobs[t], n_alone++;
    *prompted = n ? sum / (double)n : (double)NAN;
    if (alone) *alone = n_alone ? sum_alone / (double)n_alone : (double)NAN;
}

/* A row without an answer has no loss, and one without a prompt has nothing to compare it with. */
static bool has_losses(const FilterRow *row, bool alone) { return row->completion.data && (!alone || row->instruction.data); }

typedef struct Scored {
    ScoreRow *rows;
    size_t n, cap;
} Scored;

/* ends: of concatenated texts, which are scored separately; empty: it is one text. */
static Status push_row(Scored *scored, const Ids *ids, const Ids *ends, Arena *arena, double **logprobs) {
    size_t n = ends && ends->n ? ends->n : 1, begin = 0;
    if (!(*logprobs = arena_alloc(arena, (ids->n + 1) * sizeof **logprobs))) return ST_RESOURCE;
    TRY(array_grow(&scored->rows, &scored->cap, scored->n + n, sizeof *scored->rows, "rows to score"));
    for (size_t k = 0, end; k < n; k++, begin = end) {
        end = ends && ends->n ? (size_t)ends->data[k] : ids->n;
        if (end - begin > 1) scored->rows[scored->n++] = (ScoreRow){ids->data + begin, end - begin, *logprobs + begin};
    }
    return ST_OK;
}

static Status lay_out(Filter *filter, const FilterRow *row, bool alone, Arena *arena, Scored *scored, Answer *answer) {
    Status status = filter_model_encode(filter->config, row, &answer->whole);
    if (status != ST_OK) return status_prefix(status, "filter '%s', row '%s'", filter->info.name, row->id ? row->id : "?");
    TRY(push_row(scored, &answer->whole.ids, &answer->whole.ends, arena, &answer->logprobs));
    if (!alone) return ST_OK;
    list_alone(filter, answer);
    return push_row(scored, &answer->alone, NULL, arena, &answer->alone_logprobs);
}

static Status score_answers(Filter *filter, const FilterRow *rows, size_t n, Answer *answers, bool alone, Arena *arena) {
    Scored scored = {0};
    Status status = ST_OK;
    for (size_t r = 0; r < n && status == ST_OK; r++)
        if (has_losses(&rows[r], alone)) status = lay_out(filter, &rows[r], alone, arena, &scored, &answers[r]);
    if (status == ST_OK) status = score_rows(filter->config->model, scored.rows, scored.n, NULL, NULL);
    free(scored.rows);
    return status;
}

Status filter_model_losses(Filter *filter, const FilterRow *rows, size_t n, double *prompted, double *alone) {
    Arena *arena = arena_new(0);
    Answer *answers = calloc(n + 1, sizeof *answers);
    Status status = arena && answers ? score_answers(filter, rows, n, answers, alone != NULL, arena) : status_errno(ENOMEM, "cannot score the rows");
    for (size_t r = 0; status == ST_OK && r < n; r++) mean_losses(filter, &answers[r], &prompted[r], alone ? &alone[r] : NULL);
    for (size_t r = 0; answers && r < n; r++) {
        encoding_release(&answers[r].whole);
        ids_release(&answers[r].alone);
    }
    free(answers);
    arena_free(arena);
    return status;
}
