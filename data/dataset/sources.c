/* SPDX-License-Identifier: Apache-2.0 */
/* The sources in data.train and data.eval: files, and how each is read. */
#include "data/formats/formats.h"
#include "data/formats/row_form.h"
#include "lib/recipe/rejected.h"

#include <string.h>

static Status source_text(const Yaml *node, const char *key, const char **text) {
    if (node->kind != YAML_SCALAR || node->text[0] == '\0')
        return status_fail(ST_CONFIG, "wrong value for '%s': expected a file, or a list of files", key);
    *text = node->text;
    return ST_OK;
}

static Status source_rows(const Yaml *node, const char *key, const char *name, int64_t *value) {
    if (!yaml_as_int(node, value) || *value < 1)
        return status_fail(ST_CONFIG, "wrong value for '%s' of '%s': expected a whole number of at least 1", name, key);
    return ST_OK;
}

static Status source_weight(const Yaml *node, const char *key, double *weight) {
    if (yaml_as_double(node, weight) && *weight >= 0.001 && *weight <= 1000) return ST_OK;
    status_fail(ST_CONFIG, "wrong value for 'weight' of '%s': expected a number from 0.001 to 1000", key);
    return status_hint(ST_CONFIG, "it says how often an epoch takes each row: 2 is twice, 0.5 every second epoch");
}

/* line: in the recipe; 0: from the command line. */
static Status unknown(const char *what, const char *name, const char *key, int line) {
    if (line > 0) return status_fail(ST_CONFIG, "unknown %s '%s' in '%s' line %d", what, name, key, line);
    return status_fail(ST_CONFIG, "unknown %s '%s' in '%s' on the command line", what, name, key);
}

static Status source_entry(const Yaml *value, const char *key, const char *name, int line, DataSource *source) {
    static const char *const names[] = {"path", "format", "columns", "separator", "weight", "max_rows"};
    if (strcmp(name, "path") == 0) return source_text(value, key, &source->path);
    if (strcmp(name, "columns") == 0) {
        source->names = value;
        return columns_check(value, "columns");
    }
    if (strcmp(name, "separator") == 0) return source_text(value, key, &source->separator);
    if (strcmp(name, "max_rows") == 0) return source_rows(value, key, name, &source->max_rows);
    if (strcmp(name, "weight") == 0) return source_weight(value, key, &source->weight);
    if (strcmp(name, "format") == 0) {
        TRY(source_text(value, key, &source->format));
        if (strcmp(source->format, "auto") == 0 || data_format_find(source->format)) return ST_OK;
        return unknown("format", source->format, key, line);
    }
    return status_hint_nearest(unknown("key", name, key, line), name, names, COUNT_OF(names), NULL);
}

static Status source_map(const Yaml *node, const char *key, DataSource *source) {
    for (size_t i = 0; i < node->n; i++) TRY(source_entry(node->items[i], key, node->keys[i], node->key_lines[i], source));
    return source->path ? ST_OK : status_fail(ST_CONFIG, "an entry of '%s' lacks 'path'", key);
}

Status data_sources(const Yaml *node, const char *key, Arena *arena, DataSource **sources, size_t *n) {
    bool list = node && node->kind == YAML_LIST;
    *n = list ? node->n : 1;
    if (!node || node->kind == YAML_NULL || *n == 0)
        return status_hint(status_fail(ST_CONFIG, "'%s' is missing", key), "name a file of rows: %s: rows.jsonl", key);
    *sources = arena_zero(arena, *n * sizeof **sources);
    if (!*sources) return ST_RESOURCE;
    for (size_t i = 0; i < *n; i++) {
        const Yaml *item = list ? node->items[i] : node;
        if (item->kind == YAML_MAP) {
            TRY(source_map(item, key, &(*sources)[i]));
        } else {
            TRY(source_text(item, key, &(*sources)[i].path));
        }
        TRY(dataset_info_resolve(arena, &(*sources)[i]));
    }
    return ST_OK;
}

Status fail_no_valid_row(const char *path, int64_t n_bad, const Failure *first) {
    failure_restore(first);
    return status_prefix(ST_INPUT, "no row of '%s' can be used, with data.on_bad_row: skip (%lld left out); the first of them", path,
                         (long long)n_bad);
}

/* ---- rows of all sources, for callers that store them ---- */

typedef struct Reading {
    const SourceReader *reader;
    RowForm *form;
    DataCounts *counts;
    const DataSource *source;
    int64_t n_read; /* rows of the current file */
    int64_t *n_bad; /* of the source */
    Failure *first;
} Reading;

/* Handles a row with the failure of this thread. json: a text if it could not be parsed */
static Status reject(const Reading *reading, const Row *row, const json_t *json) {
    if ((*reading->n_bad)++ == 0) failure_save(reading->first, ST_INPUT);
    return rejected_add(reading->reader->config->rejected, &(RejectedRow){row->file, row->unit, row->line, json}, status_text());
}

static Status take_bad(void *context, const Row *row) {
    const Reading *reading = context;
    json_t *text = json_stringn(row->text.data ? row->text.data : "", row->text.len);
    Status status = reject(reading, row, text);
    json_decref(text);
    return status;
}

static Status take_row(void *context, const Row *row) {
    Reading *reading = context;
    Row formed = *row;
    RowFound found = {0};
    reading->n_read++;
    Status status = row_formed(reading->form, row->json, &formed.json, &formed.plain, &found);
    if (status == ST_OK) status = reading->reader->take(reading->reader->context, reading->source, &formed);
    if (status == ST_OK) row_found_count(&found, reading->counts);
    json_decref(formed.json);
    json_decref(formed.plain);
    if (rejected_accepts(reading->reader->config->rejected, status)) return reject(reading, row, row->json);
    return status == ST_OK || status == ST_RESOURCE ? status : status_prefix(status, "'%s' %s %zu", row->file, row->unit, row->line);
}

static Status read_source(const SourceReader *reader, const DataSource *source, RowForm *form, Arena *arena, Dataset *table) {
    const char **paths;
    size_t n, before = *reader->kept;
    int64_t left = source->max_rows, n_bad = 0;
    Failure first = {0};
    TRY(row_form_begin(form, source));
    TRY(rows_expand(source->path, arena, &paths, &n));
    for (size_t i = 0; i < n && (left > 0 || source->max_rows == 0); i++) {
        Reading reading = {.reader = reader, .form = form, .counts = &table->counts, .source = source, .n_bad = &n_bad, .first = &first};
        RowsConfig how = {
            .max_rows = left, .separator = source->separator, .widen = reader->widen, .bad = reader->config->rejected ? take_bad : NULL};
        TRY(rows_read_as(paths[i], &how, take_row, &reading));
        left -= reading.n_read;
    }
    return n_bad > 0 && *reader->kept == before ? fail_no_valid_row(source->path, n_bad, &first) : ST_OK;
}

Status data_sources_read(const Yaml *node, const char *key, const SourceReader *reader, Arena *arena, Dataset *table) {
    TRY(data_sources(node, key, arena, &table->sources, &table->n_sources));
    table->source_begins = arena_zero(arena, (table->n_sources + 1) * sizeof *table->source_begins);
    if (!table->source_begins) return ST_RESOURCE;
    RowForm form = row_form(reader->config, reader->use);
    Status status = ST_OK;
    for (size_t i = 0; i < table->n_sources && status == ST_OK; i++) {
        status = read_source(reader, &table->sources[i], &form, arena, table);
        table->source_begins[i + 1] = *reader->kept;
    }
    if (status == ST_OK) status = row_form_end(&form);
    table->shape = form.shape;
    table->plain_as = row_form_describe(&form, &table->counts);
    row_form_release(&form);
    return status;
}
