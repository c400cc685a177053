/* SPDX-License-Identifier: Apache-2.0 */
/* Reads rows of a file as token ids, for the commands that use a model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cmd/common/rows.h"
#include "cmd/app/terminal.h"
#include "data/formats/row_form.h"

typedef struct Reading {
    const OpenedModel *opened;
    DataConfig *config;
    bool questions;
    TokenRows *rows;
    RowForm form;
    DataCounts counts;
    RowNotes of_row, notes;
} Reading;

static Status check_ids(const Ids *ids, const ModelConfig *model) {
    if (ids->n == 0) return status_fail(ST_INPUT, "the row has no tokens");
    TRY(ids_check(ids, model->vocab_size));
    if (model->learned_positions && (int64_t)ids->n > model->max_position_embeddings)
        return status_fail(ST_INPUT, "the row has %zu tokens, more than the %lld that the model has positions for", ids->n,
                           (long long)model->max_position_embeddings);
    return ST_OK;
}

static Status push_row(TokenRows *rows, const TokenRow *row) {
    TRY(array_grow(&rows->items, &rows->cap, rows->n + 1, sizeof *rows->items, "rows"));
    rows->items[rows->n++] = *row;
    return ST_OK;
}

static Status read_row(void *context, const Row *row) {
    Reading *reading = context;
    const OpenedModel *opened = reading->opened;
    TokenRow made = {.json = json_incref(row->json)};
    json_t *formed, *plain;
    RowFound found = {0};
    row_notes_clear(&reading->of_row);
    reading->config->notes = &reading->of_row;
    reading->config->padded = row->padded;
    Status status = row_formed(&reading->form, row->json, &formed, &plain, &found);
    if (status == ST_OK)
        status = reading->questions ? row_question(formed, reading->config, opened->tokenizer, &made.ids)
                                    : row_whole(formed, reading->config, opened->tokenizer, &made.ids);
    json_decref(formed);
    json_decref(plain);
    row_found_count(&found, &reading->counts);
    if (status == ST_OK) status = check_ids(&made.ids, &opened->model->config);
    if (status != ST_OK) status_prefix(status, "'%s' %s %zu", row->file, row->unit, row->line);
    if (status == ST_OK) status = push_row(reading->rows, &made);
    if (status == ST_OK) row_notes_add(&reading->notes, &reading->of_row, row->file, row->unit, row->line);
    if (status == ST_OK) return ST_OK;
    json_decref(made.json);
    ids_release(&made.ids);
    return status;
}

/* Warns that rows of plain text were read as text: tune chat, and training with data.as: chat, would make turns of them. */
static void tell_texts(const char *file, const Reading *reading) {
    int64_t n = reading->counts.texts;
    if (n == 0 || reading->config->as || !chat_has_template(reading->opened->chat)) return;
    show_message(
        "tune: warning: '%s': %lld row%s of plain text %s read unchanged: --as chat makes chat turns of them, as training with data.as: chat does",
        file, (long long)n, plural(n), n == 1 ? "is" : "are");
}

Status token_rows_read(const char *file, const OpenedModel *opened, const DataConfig *config, bool questions, TokenRows *rows) {
    DataConfig with_chat = *config;
    with_chat.chat = opened->chat;
    *rows = (TokenRows){0};
    ContextCount beyond = context_count(&opened->model->config);
    Str text = {0};
    Reading reading = {.opened = opened,
                       .config = &with_chat,
                       .questions = questions,
                       .rows = rows,
                       .form = row_form(&with_chat, questions ? ROWS_AS_PROMPTS : ROWS_AS_EXAMPLES)};
    Status status = rows_read_as(file, &(RowsConfig){.widen = true}, read_row, &reading);
    row_form_release(&reading.form);
    if (status == ST_OK) tell_texts(file, &reading);
    if (status == ST_OK) row_notes_warn(&reading.notes, "rows");
    row_notes_release(&reading.of_row);
    row_notes_release(&reading.notes);
    if (status == ST_OK && rows->n == 0) status = status_fail(ST_INPUT, "'%s' has no rows", file);
    for (size_t i = 0; status == ST_OK && !questions && i < rows->n; i++) context_add(&beyond, (int64_t)rows->items[i].ids.n);
    if (context_describe(&beyond, "row is", "rows are", &text)) show_message("tune: warning: '%s': %s", file, str_text(&text));
    str_release(&text);
    if (status != ST_OK) token_rows_release(rows);
    return status;
}

void token_rows_release(TokenRows *rows) {
    for (size_t i = 0; i < rows->n; i++) {
        json_decref(rows->items[i].json);
        ids_release(&rows->items[i].ids);
    }
    free(rows->items);
    *rows = (TokenRows){0};
}

uint64_t token_rows_hash(const TokenRows *rows) {
    uint64_t hash = rows->n;
    for (size_t i = 0; i < rows->n; i++) {
        const Ids *ids = &rows->items[i].ids;
        hash = mix64(hash ^ ids->n);
        for (size_t t = 0; t < ids->n; t++) hash = mix64(hash ^ (uint32_t)ids->data[t]);
    }
    return hash;
}
