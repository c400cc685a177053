/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a file as token ids, for the commands that use a model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cmd/cmd.h"
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

/* tune chat, and training by data.as, would put them otherwise. */
static void tell_texts(const char *file, const Reading *reading) {
    int64_t n = reading->counts.texts;
    if (n == 0 || reading->config->as || !chat_has_template(reading->opened->chat)) return;
    show_message(
        "tune: warning: '%s': %lld row%s of plain texts %s taken as %s: --as chat makes turns of the chat template of them, as training with data.as: chat",
        file, (long long)n, plural(n), n == 1 ? "is" : "are", n == 1 ? "it stands" : "they stand");
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
                       .form = row_form(&with_chat, questions ? ROWS_ASKED : ROWS_TRAINED)};
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

/* ---- outputs ---- */

/* Devices and pipes may be read and written. */
static bool same_file(const struct stat *file, const char *path) {
    struct stat other;
    return stat(path, &other) == 0 && S_ISREG(other.st_mode) && other.st_dev == file->st_dev && other.st_ino == file->st_ino;
}

/* What commands left beside a model may be replaced. */
static bool belongs_to_model(const char *name) {
    static const char *const files[] = {"config.json",
                                        "generation_config.json",
                                        "model.safetensors",
                                        "model.safetensors.index.json",
                                        "adapter_config.json",
                                        "adapter_model.safetensors",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "vocab.txt",
                                        "merges.txt",
                                        "tokenizer.model",
                                        "chat_template.jinja",
                                        "chat_template.json"};
    for (size_t i = 0; i < COUNT_OF(files); i++)
        if (strcmp(name, files[i]) == 0) return true;
    return text_starts_with(name, "model-") && strstr(name, "-of-"); /* a shard */
}

static bool in_model(const struct stat *file, const char *dir) {
    char **names;
    size_t n = 0;
    bool found = false;
    Arena *arena = arena_new(0);
    if (arena && dir_list(dir, arena, &names, &n) != ST_OK) n = 0;
    for (size_t i = 0; i < n && !found; i++) {
        const char *path = belongs_to_model(names[i]) ? path_join(arena, dir, names[i]) : NULL;
        found = path && same_file(file, path);
    }
    arena_free(arena);
    return found;
}

Status check_output(const char *output, const char *const *inputs, size_t n) {
    struct stat file;
    if (!output || stat(output, &file) != 0 || !S_ISREG(file.st_mode)) return ST_OK;
    for (size_t i = 0; i < n; i++) {
        if (!inputs[i] || !(dir_exists(inputs[i]) ? in_model(&file, inputs[i]) : same_file(&file, inputs[i]))) continue;
        status_fail(ST_CONFIG, "output '%s' is one of the inputs", output);
        return status_hint(ST_CONFIG, "give it a name of its own");
    }
    return ST_OK;
}

Status check_page(const char *path) {
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (!file) return ST_OK;
    int first = fgetc(file);
    while (first == ' ' || first == '\n' || first == '\r' || first == '\t') first = fgetc(file);
    fclose(file);
    if (first == EOF || first == '<' || first == 0xef) return ST_OK; /* empty, or a page, which may begin with a byte order mark */
    status_fail(ST_CONFIG, "'%s' is there, and is no page: it would be overwritten", path);
    return status_hint(ST_CONFIG, "give the page a name of its own, such as page.html, or remove the file first");
}

/* ---- results: lines to stdout, or to a file that appears when all of it is there ---- */

/* Whoever reads the file believes its name. */
static Status check_lines_name(const char *path) {
    static const char *const others[] = {".gz", ".zst", ".csv", ".tsv", ".parquet"};
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (text_ends_with(path, others[i]))
            return status_hint(status_fail(ST_CONFIG, "output '%s': rows are written as lines of JSON, not as %s", path, others[i]),
                               "give it a name in .jsonl");
    return ST_OK;
}

Status result_open(ResultFile *result, const char *path) {
    *result = (ResultFile){.to_file = path != NULL, .writer = {.fd = -1}};
    if (path) TRY(check_lines_name(path));
    return path ? writer_open(&result->writer, path) : ST_OK;
}

Status result_line(ResultFile *result, const Str *line) {
    result->n++;
    if (result->to_file) {
        writer_write(&result->writer, str_text(line), line->len);
        writer_write(&result->writer, "\n", 1);
    } else {
        print_text(str_text(line), line->len);
        print_text("\n", 1);
    }
    return result->writer.status;
}

Status result_flush(ResultFile *result) { return result->to_file ? writer_flush(&result->writer) : ST_OK; }

Status result_close(ResultFile *result, Status status) {
    if (!result->to_file) return status;
    if (status == ST_OK) status = result_flush(result);
    if (status == ST_OK) return writer_commit(&result->writer);
    Str path = {0};
    str_append(&path, result->writer.path ? result->writer.path : "");
    size_t n = writer_keep_lines(&result->writer);
    if (n > 0)
        show_message("tune: warning: %sthe %zu row%s done so far %s in '%s.partial'", status == ST_INTERRUPTED ? "interrupted: " : "", n,
                     plural((int64_t)n), n == 1 ? "is" : "are", str_text(&path));
    str_release(&path);
    return status;
}
