/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of any file: the table of containers, and the code they share. */
#include "lib/base/system.h"
#include "data/containers/containers.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const Container *const containers[] = {
#define CONTAINER(name) &container_##name,
#include "data/containers/containers.def"
#undef CONTAINER
};

/* ---- code that containers share ---- */

bool row_reader_full(const RowReader *reader) { return reader->config.max_rows > 0 && reader->n_rows >= reader->config.max_rows; }

Status row_is_bad(RowReader *reader, Status failed, size_t number) {
    return reader->config.bad
               ? reader->config.bad(reader->context, &(Row){.file = reader->path, .unit = reader->unit, .line = number, .text = reader->text})
               : failed;
}

Status row_hand_over(RowReader *reader, json_t *row, size_t number) {
    Status status = ST_OK;
    if (!row) {
        status = status_fail(ST_RESOURCE, "out of memory for a row of '%s'", reader->path);
    } else if (!json_is_object(row)) {
        status = status_fail(ST_INPUT, "'%s' %s %zu: a row must be a JSON object", reader->path, reader->unit, number);
        if (json_is_array(row) && strcmp(reader->unit, "line") == 0) status_hint(status, "a file that is one list of rows has a name in .json");
        status = row_is_bad(reader, status, number);
    } else if (reader->n_rows % 1024 == 0 && interrupt_requested()) {
        status = status_fail(ST_INTERRUPTED, "interrupted while reading '%s'", reader->path);
    } else {
        reader->n_rows++;
        status = reader->read(
            reader->context,
            &(Row){.json = row, .file = reader->path, .unit = reader->unit, .line = number, .text = reader->text, .padded = reader->padded});
    }
    json_decref(row);
    return status;
}

static bool is_one_of(const char *text, size_t len, const char *const *words) {
    for (; *words; words++)
        if (slice_is((Slice){text, len}, *words)) return true;
    return false;
}

static json_t *number_cell(const char *text, size_t len) {
    if (len == 0) return json_null();
    json_t *number = json_parse(text, len, JSON_DECODE_ANY, NULL);
    if (json_is_number(number)) return number;
    json_decref(number);
    return json_stringn_nocheck(text, len);
}

json_t *cell_value(const char *column, const char *text, size_t len, const char **fault) {
    static const char *const lists[] = {"messages", "conversations", "history", "ids", "input_ids", "labels", NULL};
    static const char *const yes[] = {"true", "True", "TRUE", "1", NULL}, *const no[] = {"false", "False", "FALSE", "0", NULL};
    static _Thread_local json_error_t error;
    *fault = NULL;
    if (strcmp(column, "weight") == 0) return number_cell(text, len);
    if (strcmp(column, "label") == 0 && is_one_of(text, len, yes)) return json_true();
    if (strcmp(column, "label") == 0 && is_one_of(text, len, no)) return json_false();
    if (len == 0 || !(text[0] == '[' || text[0] == '{') || !is_one_of(column, strlen(column), lists)) return json_stringn_nocheck(text, len);
    json_t *value = json_parse(text, len, JSON_REJECT_DUPLICATES, &error);
    if (!value) *fault = error.text;
    return value;
}

Slice without_mark(Slice text) {
    bool marked = text.len >= 3 && memcmp(text.data, "\xef\xbb\xbf", 3) == 0;
    return marked ? (Slice){text.data + 3, text.len - 3} : text;
}

bool is_blank(Slice text) {
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] == '\0' || !strchr(" \t\r\n", text.data[i])) return false;
    return true;
}

Status fail_at(const char *path, const char *text, size_t at, size_t line, const char *what) {
    size_t column = 1;
    for (size_t i = 0; i < at; i++) {
        column += ((unsigned char)text[i] & 0xC0) != 0x80;
        if (text[i] != '\n') continue;
        line++;
        column = 1;
    }
    return status_fail(ST_INPUT, "'%s' line %zu, column %zu: %s", path, line, column, what);
}

/* ---- reading ---- */

/* The container's ending that the name has, not counting .gz or .zst; NULL: none. */
static const char *ending_of(const Container *container, const char *path) {
    static const char *const packings[] = {"", ".gz", ".zst"};
    for (size_t i = 0; i < COUNT_OF(container->endings) && container->endings[i]; i++) {
        for (size_t j = 0; j < (container->packed ? COUNT_OF(packings) : 1); j++) {
            char ending[24];
            snprintf(ending, sizeof ending, "%s%s", container->endings[i], packings[j]);
            if (text_ends_with(path, ending)) return container->endings[i];
        }
    }
    return NULL;
}

static Status unknown_kind(const char *path) {
    Str known = {0}, packed = {0};
    for (size_t i = 0; i < COUNT_OF(containers); i++)
        for (size_t j = 0; j < COUNT_OF(containers[i]->endings) && containers[i]->endings[j]; j++) {
            Str *list = containers[i]->packed ? &packed : &known;
            str_printf(list, "%s%s", list->len ? ", " : "", containers[i]->endings[j]);
        }
    struct stat info;
    bool there = file_stat(path, &info) == 0;
    if (there && S_ISREG(info.st_mode))
        status_fail(ST_INPUT, "cannot read rows of '%s': its name has no known ending", path);
    else if (there)
        status_fail(ST_INPUT, "cannot read rows of '%s': not a regular file: rows are read from files with a known ending", path);
    else
        status_fail(ST_INPUT, "cannot read rows of '%s': there is no such file", path);
    status_hint(ST_INPUT, "rows are read from %s, each also as .gz or .zst%s%s", str_text(&packed), known.len ? ", and from " : "", str_text(&known));
    str_release(&known);
    str_release(&packed);
    return ST_INPUT;
}

static Status refuse_folder(const char *path) {
    status_fail(ST_INPUT, "cannot read rows of '%s': it is a folder", path);
    return status_hint(ST_INPUT, "name a file in it, or several by a pattern, such as '%s%s*.jsonl'", path, text_ends_with(path, "/") ? "" : "/");
}

Status rows_read_as(const char *path, const RowsConfig *config, RowCallback *read, void *context) {
    if (dir_exists(path)) return refuse_folder(path);
    for (size_t i = 0; i < COUNT_OF(containers); i++) {
        const char *ending = ending_of(containers[i], path);
        if (ending)
            return containers[i]->read(
                &(RowReader){.path = path, .ending = ending, .unit = containers[i]->unit, .config = *config, .read = read, .context = context});
    }
    return unknown_kind(path);
}

Status rows_read_some(const char *path, int64_t max_rows, RowCallback *read, void *context) {
    return rows_read_as(path, &(RowsConfig){.max_rows = max_rows}, read, context);
}

Status rows_read(const char *path, RowCallback *read, void *context) { return rows_read_as(path, &(RowsConfig){0}, read, context); }

/* ---- patterns ---- */

static int compare_paths(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static Status keep_files(const glob_t *found, Arena *arena, const char ***paths, size_t *n) {
    *paths = arena_alloc(arena, MAX(found->gl_pathc, 1) * sizeof **paths);
    if (!*paths) return ST_RESOURCE;
    for (size_t i = 0; i < found->gl_pathc; i++) {
        if (dir_exists(found->gl_pathv[i])) continue;
        if (!((*paths)[*n] = arena_strdup(arena, found->gl_pathv[i]))) return ST_RESOURCE;
        (*n)++;
    }
    qsort(*paths, *n, sizeof **paths, compare_paths);
    return ST_OK;
}

Status rows_expand(const char *pattern, Arena *arena, const char ***paths, size_t *n) {
    glob_t found = {0};
    *n = 0;
    bool itself = file_exists(pattern) || !strpbrk(pattern, "*?[");
    int code = itself ? GLOB_NOMATCH : glob(pattern, GLOB_NOSORT, NULL, &found);
    Status status = code == GLOB_NOSPACE ? status_fail(ST_RESOURCE, "out of memory for the files of '%s'", pattern) : ST_OK;
    if (code == 0) status = keep_files(&found, arena, paths, n);
    if (code == 0) globfree(&found);
    if (status == ST_OK && itself) {
        *paths = arena_alloc(arena, sizeof **paths);
        if (!*paths || !((*paths)[0] = arena_strdup(arena, pattern))) return ST_RESOURCE;
        *n = 1;
    }
    if (status == ST_OK && *n == 0) {
        status_fail(ST_INPUT, "no file matches '%s'", pattern);
        return status_hint(ST_INPUT, "* matches any characters of one name, ? any single one, [ab] one of these");
    }
    return status;
}
