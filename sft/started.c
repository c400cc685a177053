/* SPDX-License-Identifier: Apache-2.0 */
/* What a run says of its rows before the first step: counts, notes, and a sample of the mask. */
#include "sft/started.h"

#include "data/branches.h"

enum { SAMPLE_ROWS = 4, SAMPLE_TOKENS = 400 };

static void write_counts(RunPlan *plan, const char *key, const DataCounts *counts) {
    JsonWriter w = {0};
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
    jw_object(&w, NULL);
    for (size_t i = 0; i < COUNT_OF(fields); i++) jw_int(&w, fields[i].name, fields[i].n);
    jw_end_object(&w);
    run_plan_json(plan, PLAN_RECORD, key, str_text(&w.text));
    jw_release(&w);
}

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

Status started_sample(const Dataset *train, const Tokenizer *tokenizer, RunPlan *plan) {
    JsonWriter sample = {0};
    Status status = ST_OK;
    int shown = 0;
    jw_array(&sample, NULL);
    for (size_t row = 0; row < train->n && shown < SAMPLE_ROWS; row++) {
        const Example example = dataset_example(train, row);
        for (int32_t k = 0; k < example_texts(&example) && shown < SAMPLE_ROWS && status == ST_OK; k++, shown++)
            status = write_row(&sample, train, row, k, tokenizer);
    }
    jw_end_array(&sample);
    if (status == ST_OK) run_plan_json(plan, PLAN_RECORD, "sample", str_text(&sample.text));
    jw_release(&sample);
    return status;
}

/* ---- lines ---- */

static void say_data(void *plan, const char *text) { run_plan_say(plan, "data: %s", text); }

static void say_check(const RecipeRows *rows, const DataCheck *check, RunPlan *plan) {
    Str summary = {0};
    data_check_summary(rows, check, &summary);
    run_plan_say(plan, "check: %s%s", str_text(&summary), check->n_warnings ? ": see tune data check" : "");
    if (check->wrong) run_plan_warn(plan, "the model would learn nothing useful from these rows");
    str_release(&summary);
}

void started_rows(const RecipeRows *rows, const DataCheck *check, RunPlan *plan) {
    const Dataset *table = rows->train;
    const DataCounts *train = &table->counts, *eval = rows->eval ? &rows->eval->counts : &(DataCounts){0};
    run_plan_say(plan, "data: %lld row%s (%s), %lld token%s, %lld of them trained%s", (long long)train->rows, plural(train->rows), table->format,
                 (long long)train->tokens, plural(train->tokens), (long long)train->trained_tokens, table->cached ? ", from data.cache" : "");
    run_plan_form(plan, table);
    data_files_report(table, table->n_files > 1 ? say_data : run_plan_note, plan);
    data_turns_report(train, "data.train", say_data, plan);
    data_counts_warn(train, "data.train", run_plan_warn, plan);
    if (eval->rows)
        run_plan_say(plan, "held out: %lld row%s, %lld trained token%s", (long long)eval->rows, plural(eval->rows), (long long)eval->trained_tokens,
                     plural(eval->trained_tokens));
    data_counts_warn(eval, "data.eval", run_plan_warn, plan);
    say_check(rows, check, plan);
    run_plan_count(plan, PLAN_PRINT, "rows", train->rows);
    run_plan_count(plan, PLAN_PRINT, "tokens", train->tokens);
    run_plan_count(plan, PLAN_PRINT, "trained_tokens", train->trained_tokens);
    run_plan_count(plan, PLAN_PRINT, "eval_rows", eval->rows);
    run_plan_count(plan, PLAN_KEPT, "conversations", train->conversations);
    run_plan_text(plan, PLAN_RECORD, "format", table->format);
    run_plan_text(plan, PLAN_RECORD, "plain_as", table->plain_as);
    write_counts(plan, "train", train);
    if (eval->rows > 0) write_counts(plan, "eval", eval);
}
