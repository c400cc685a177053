/* Readers: a file of rows, one row after the other. */
#include "data/data.h"

#include <stdio.h>
#include <string.h>

#define JSON_LIMIT ((size_t)4 << 30)

typedef Status RowCallback(void *context, const Row *row);
typedef struct Reader { const char *path, *unit; int64_t max_rows, n_rows; RowCallback *read; void *context; } Reader;

static bool reader_full(const Reader *reader) { return reader->max_rows > 0 && reader->n_rows >= reader->max_rows; }

static Status hand_over(Reader *reader, json_t *json, size_t line) {
    if (!json_is_object(json)) return status_fail(ST_INPUT, "'%s' %s %zu: a row must be a JSON object", reader->path, reader->unit, line);
    if (reader->n_rows % 1024 == 0 && interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted while reading '%s'", reader->path);
    reader->n_rows++;
    return reader->read(reader->context, &(Row){json, reader->path, reader->unit, line});
}

/* ---- one row a line ---- */

static bool is_blank(Slice line) {
    for (size_t i = 0; i < line.len; i++)
        if (line.data[i] == '\0' || !strchr(" \t\r\n", line.data[i])) return false;
    return true;
}

static Slice without_mark(Slice line, size_t number) {
    bool marked = number == 1 && line.len >= 3 && memcmp(line.data, "\xef\xbb\xbf", 3) == 0;
    return marked ? (Slice){line.data + 3, line.len - 3} : line;
}

static Status read_line(Reader *reader, Slice line, size_t number) {
    char where[512];
    snprintf(where, sizeof where, "%s line %zu", reader->path, number);
    json_t *json;
    TRY(json_read_text(line.data, line.len, where, &json));
    Status status = hand_over(reader, json, number);
    json_decref(json);
    return status;
}

static Status read_lines(Reader *reader) {
    Lines lines;
    TRY(lines_open(&lines, reader->path));
    Slice line;
    Status status = ST_OK;
    while (status == ST_OK && !reader_full(reader) && lines_next(&lines, &line)) {
        line = without_mark(line, lines.number);
        if (!is_blank(line)) status = read_line(reader, line, lines.number);
    }
    Status closed = lines_close(&lines);
    return status != ST_OK ? status : closed;
}

/* ---- a whole JSON document ---- */

static Status read_array(Reader *reader, const json_t *array) {
    Status status = ST_OK;
    for (size_t i = 0; i < json_array_size(array) && status == ST_OK && !reader_full(reader); i++) status = hand_over(reader, json_array_get(array, i), i + 1);
    return status;
}

static Status columns_length(const char *path, json_t *columns, size_t *n) {
    const char *name, *first = NULL;
    json_t *column;
    *n = 0;
    json_object_foreach(columns, name, column) {
        if (!json_is_array(column)) {
            status_fail(ST_INPUT, "'%s' is neither an array of rows nor an object of columns: '%s' is no array", path, name);
            return status_hint(ST_INPUT, "a file with one row a line is named .jsonl");
        }
        if (first && json_array_size(column) != *n)
            return status_fail(ST_INPUT, "columns of '%s' differ in length: '%s' has %zu rows, '%s' has %zu", path, first, *n, name, json_array_size(column));
        first = name;
        *n = json_array_size(column);
    }
    return ST_OK;
}

static Status read_columns(Reader *reader, json_t *columns) {
    size_t n;
    TRY(columns_length(reader->path, columns, &n));
    Status status = ST_OK;
    for (size_t i = 0; i < n && status == ST_OK && !reader_full(reader); i++) {
        json_t *row = json_object(), *column;
        const char *name;
        json_object_foreach(columns, name, column) json_object_set(row, name, json_array_get(column, i));
        status = hand_over(reader, row, i + 1);
        json_decref(row);
    }
    return status;
}

/* Files named .json often hold one row a line: told by a first line that is an object of its own, with more behind it. */
static bool is_lines(const Str *text) {
    const char *end = memchr(str_text(text), '\n', text->len);
    if (!end || is_blank((Slice){end + 1, text->len - (size_t)(end + 1 - text->data)})) return false;
    json_t *first;
    Slice line = without_mark((Slice){text->data, (size_t)(end - text->data)}, 1);
    if (json_read_text(line.data, line.len, "first line", &first) != ST_OK) return false;
    bool object = json_is_object(first);
    json_decref(first);
    return object;
}

static Status read_document(Reader *reader) {
    Str text = {0};
    TRY(file_read(reader->path, JSON_LIMIT, &text));
    if (is_lines(&text)) {
        str_release(&text);
        return read_lines(reader);
    }
    reader->unit = "row";
    json_t *root = NULL;
    Slice whole = without_mark((Slice){str_text(&text), text.len}, 1);
    Status status = json_read_text(whole.data, whole.len, reader->path, &root);
    str_release(&text);
    if (status != ST_OK) return status;
    if (json_is_array(root)) {
        status = read_array(reader, root);
    } else if (json_is_object(root)) {
        status = read_columns(reader, root);
    } else {
        status = status_fail(ST_INPUT, "'%s' is neither an array of rows nor an object of columns", reader->path);
    }
    json_decref(root);
    return status;
}

/* "x.jsonl.gz" ends with ".jsonl". */
static bool named(const char *path, const char *ending) {
    if (text_ends_with(path, ending)) return true;
    char packed[16];
    snprintf(packed, sizeof packed, "%s.gz", ending);
    return text_ends_with(path, packed);
}

Status rows_read_some(const char *path, int64_t max_rows, RowCallback *read, void *context) {
    Reader reader = {.path = path, .unit = "line", .max_rows = max_rows, .read = read, .context = context};
    if (named(path, ".jsonl") || named(path, ".ndjson")) return read_lines(&reader);
    if (named(path, ".json")) return read_document(&reader);
    bool later = named(path, ".csv") || named(path, ".parquet") || named(path, ".txt");
    status_fail(ST_INPUT, later ? "cannot read rows of '%s': this kind of file comes with a later version" : "cannot read rows of '%s': its name tells no kind of file", path);
    return status_hint(ST_INPUT, "rows are read from .jsonl and .json, each also as .gz");
}

Status rows_read(const char *path, RowCallback *read, void *context) { return rows_read_some(path, 0, read, context); }
