/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a run's start: what will be trained, its size, and a sample of the mask. */
#include "sft/started.h"

#include "data/branches.h"

enum { SAMPLE_ROWS = 4, SAMPLE_TOKENS = 400 };

static void write_counts(JsonWriter *w, const char *key, const DataCounts *counts) {
    const struct {
        const char *name;
        int64_t n;
    } fields[] = {
        {"rows", counts->rows},
        {"tokens", counts->tokens},
        {"trained_tokens", counts->trained_tokens},
        {"dropped_long", counts->dropped_long},
        {"cut", counts->cut},
        {"dropped_untrained", counts->dropped_untrained},
        {"untrained", counts->untrained},
        {"duplicates", counts->duplicates},
        {"remapped", counts->remapped},
        {"no_eos", counts->no_eos},
        {"weighted", counts->weighted},
        {"turned", counts->turned},
        {"turns", counts->turns},
        {"lost_turns", counts->lost_turns},
    };
    jw_object(w, key);
    for (size_t i = 0; i < COUNT_OF(fields); i++) jw_int(w, fields[i].name, fields[i].n);
    jw_end_object(w);
}

static void write_warning(void *writer, const char *text) { jw_string(writer, NULL, text); }

/* JSON readers stop at a zero byte, so it is shown as the symbol for it. */
static void write_piece(JsonWriter *w, const Str *piece) {
    Str text = {0};
    for (size_t i = 0; i < piece->len; i++) {
        if (piece->data[i])
            str_append_char(&text, piece->data[i]);
        else
            str_append(&text, "\xE2\x90\x80");
    }
    jw_string_n(w, NULL, str_text(&text), text.len);
    str_release(&text);
}

/* The text that each token adds; a character that spans several tokens counts for the last of them. */
static Status write_tokens(JsonWriter *w, const Tokenizer *tokenizer, const int32_t *ids, size_t n) {
    TextStream stream;
    Str text = {0};
    Status status = ST_OK;
    stream_init(&stream, tokenizer, false);
    jw_array(w, "tokens");
    for (size_t i = 0; i < n && status == ST_OK; i++) {
        str_clear(&text);
        status = stream_push(&stream, ids[i], &text);
        if (i + 1 == n && status == ST_OK) status = stream_finish(&stream, &text);
        write_piece(w, &text);
    }
    jw_end_array(w);
    stream_release(&stream);
    str_release(&text);
    return status;
}

typedef struct RowText {
    Ids ids, labels;
    Str where;
} RowText;

static Status write_text(JsonWriter *w, const RowText *text, const Tokenizer *tokenizer) {
    size_t n = MIN(text->ids.n, (size_t)SAMPLE_TOKENS);
    jw_object(w, NULL);
    jw_string(w, "where", str_text(&text->where));
    jw_int(w, "length", (int64_t)text->ids.n);
    jw_array(w, "ids");
    for (size_t i = 0; i < n; i++) jw_int(w, NULL, text->ids.data[i]);
    jw_end_array(w);
    jw_array(w, "trained");
    for (size_t i = 0; i < n; i++) jw_int(w, NULL, text->labels.data[i] != LABEL_NONE);
    jw_end_array(w);
    jw_array(w, "special");
    for (size_t i = 0; i < n; i++) jw_int(w, NULL, tokenizer && tokenizer_is_special(tokenizer, text->ids.data[i]));
    jw_end_array(w);
    Status status = tokenizer ? write_tokens(w, tokenizer, text->ids.data, n) : ST_OK;
    jw_end_object(w);
    return status;
}

/* Text k of a row, as the model sees it. */
static Status write_row(JsonWriter *w, const Dataset *train, size_t row, int32_t k, const Tokenizer *tokenizer) {
    const Example example = dataset_example(train, row);
    int32_t n = example_texts(&example);
    RowText text = {0};
    dataset_where(train, row, &text.where);
    if (n > 1) str_printf(&text.where, " (%d of %d)", (int)k + 1, (int)n);
    example_text(&example, k, &text.ids, &text.labels);
    Status status = write_text(w, &text, tokenizer);
    ids_release(&text.ids);
    ids_release(&text.labels);
    str_release(&text.where);
    return status;
}

Status started_sample(const Dataset *train, const Tokenizer *tokenizer, JsonWriter *sample) {
    Status status = ST_OK;
    int shown = 0;
    jw_array(sample, NULL);
    for (size_t row = 0; row < train->n && shown < SAMPLE_ROWS; row++) {
        const Example example = dataset_example(train, row);
        for (int32_t k = 0; k < example_texts(&example) && shown < SAMPLE_ROWS && status == ST_OK; k++, shown++)
            status = write_row(sample, train, row, k, tokenizer);
    }
    jw_end_array(sample);
    return status;
}

void started_write(JsonWriter *w, const SftPlan *plan, const JsonWriter *sample) {
    jw_int(w, "steps", plan->total_steps);
    jw_double(w, "steps_per_epoch", plan->steps_per_epoch);
    jw_int(w, "largest_step_tokens", plan->largest_batch_tokens);
    jw_int(w, "parameters", plan->parameters);
    jw_int(w, "trained_parameters", plan->trained_parameters);
    jw_string(w, "compute", dtype_name(plan->compute));
    jw_string(w, "format", plan->format);
    jw_string(w, "plain_as", plan->train_rows->plain_as);
    write_counts(w, "train", &plan->train);
    if (plan->eval.rows > 0) write_counts(w, "eval", &plan->eval);
    jw_array(w, "warnings");
    data_counts_warn(&plan->train, "data.train", write_warning, w);
    data_counts_warn(&plan->eval, "data.eval", write_warning, w);
    jw_end_array(w);
    jw_raw(w, "sample", str_text(&sample->text));
}
