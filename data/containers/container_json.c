/* SPDX-License-Identifier: Apache-2.0 */
/* A JSON document: an array of rows, read element by element (memory: one row), or an object of columns, read in full. Files named .json that have
 * one row a line are read as lines. */
#include "data/containers/containers.h"

#define CHUNK ((size_t)64 << 10)

/* ---- an array, element by element ---- */

typedef struct Scanner {
    RowReader *reader;
    ByteStream *stream;
    size_t at, len;      /* of `chunk` */
    size_t line, column; /* of the next character, from 1 */
    Str element;
    size_t element_line, element_column;
    bool in_string, escaped;
    size_t depth;  /* open brackets of the element */
    size_t number; /* of the element, from 1 */
    char chunk[CHUNK];
} Scanner;

/* The next byte, -1 at the end, -2 for a failed read. It remains the next one until scanner_take. */
static int scanner_peek(Scanner *scanner) {
    if (scanner->at == scanner->len) {
        ptrdiff_t got = stream_read(scanner->stream, scanner->chunk, sizeof scanner->chunk);
        if (got <= 0) return got < 0 ? -2 : -1;
        scanner->at = 0;
        scanner->len = (size_t)got;
    }
    return (unsigned char)scanner->chunk[scanner->at];
}

static void scanner_take(Scanner *scanner) {
    unsigned char c = (unsigned char)scanner->chunk[scanner->at++];
    if (c == '\n') {
        scanner->line++;
        scanner->column = 1;
    } else {
        scanner->column += (c & 0xC0) != 0x80;
    }
}

static int scanner_skip_blanks(Scanner *scanner) {
    int c;
    while ((c = scanner_peek(scanner)) == ' ' || c == '\t' || c == '\n' || c == '\r') scanner_take(scanner);
    return c;
}

static Status scanner_fail(Scanner *scanner, int c, const char *expected) {
    if (c == -2) return stream_fault(scanner->stream, "");
    const char *path = scanner->reader->path;
    if (c == -1)
        return status_fail(ST_INPUT, "cannot parse JSON of '%s': line %zu, column %zu: the file ends where %s was expected", path, scanner->line,
                           scanner->column, expected);
    return status_fail(ST_INPUT, "cannot parse JSON of '%s': line %zu, column %zu: expected %s", path, scanner->line, scanner->column, expected);
}

/* Whether `c` still belongs to the element; tracks strings and brackets. The parser reports errors inside the element. */
static bool continues(Scanner *scanner, int c) {
    if (scanner->in_string) {
        bool quote = c == '"' && !scanner->escaped;
        scanner->escaped = c == '\\' && !scanner->escaped;
        scanner->in_string = !quote;
        return true;
    }
    if (scanner->depth == 0 && (c == ',' || c == ']')) return false;
    if (c == '{' || c == '[') scanner->depth++;
    if (c == '}' || c == ']') scanner->depth -= scanner->depth > 0;
    scanner->in_string = c == '"';
    return true;
}

static Status scan_element(Scanner *scanner) {
    int c;
    str_clear(&scanner->element);
    size_t room = scanner->element.cap > 0 ? scanner->element.cap - 1 : 0;
    scanner->element_line = scanner->line;
    scanner->element_column = scanner->column;
    scanner->in_string = scanner->escaped = false;
    scanner->depth = 0;
    while ((c = scanner_peek(scanner)) >= 0 && continues(scanner, c)) {
        if (scanner->element.len == room) {
            if (!str_reserve(&scanner->element, MAX(CHUNK, room)))
                return status_fail(ST_RESOURCE, "out of memory for the row of line %zu of '%s'", scanner->element_line, scanner->reader->path);
            room = scanner->element.cap - 1;
        }
        scanner->element.data[scanner->element.len++] = (char)c;
        scanner_take(scanner);
    }
    return c >= 0 ? ST_OK
                  : scanner_fail(scanner, c,
                                 scanner->in_string   ? "the end of a string"
                                 : scanner->depth > 0 ? "the end of a row"
                                                      : "',' or ']'");
}

static Status hand_element(Scanner *scanner) {
    json_error_t error;
    scanner->reader->text = (Slice){str_text(&scanner->element), scanner->element.len};
    json_t *row = json_load_row(scanner->reader->text.data, scanner->element.len, scanner->reader->config.widen, &error);
    scanner->number++;
    if (row) return row_hand_over(scanner->reader, row, scanner->number);
    size_t line = (size_t)MAX(error.line, 1), column = (size_t)MAX(error.column, 1);
    Status code = json_error_code(&error) == json_error_out_of_memory ? ST_RESOURCE : ST_INPUT;
    status_fail(code, "cannot parse JSON of '%s': line %zu, column %zu: %s", scanner->reader->path, scanner->element_line + line - 1,
                line == 1 ? scanner->element_column + column - 1 : column, error.text);
    return code == ST_INPUT ? row_is_bad(scanner->reader, code, scanner->number) : code;
}

static Status scan_array(Scanner *scanner) {
    scanner_take(scanner);
    int c = scanner_skip_blanks(scanner);
    bool more = c != ']';
    while (more && !row_reader_full(scanner->reader)) {
        TRY(scan_element(scanner));
        TRY(hand_element(scanner));
        more = scanner_peek(scanner) == ',';
        if (more) {
            scanner_take(scanner);
            c = scanner_skip_blanks(scanner);
            if (c < 0 || c == ']') return scanner_fail(scanner, c, "a row after ','");
        }
    }
    if (more) return ST_OK;
    scanner_take(scanner);
    c = scanner_skip_blanks(scanner);
    return c == -1 ? ST_OK : scanner_fail(scanner, c, "nothing after the array");
}

/* ---- columns ---- */

static Status columns_length(const char *path, json_t *columns, size_t *n) {
    const char *name, *first = NULL;
    json_t *column;
    *n = 0;
    json_object_foreach(columns, name, column) {
        if (!json_is_array(column)) {
            status_fail(ST_INPUT, "'%s' is neither an array of rows nor an object of columns: '%s' is not an array", path, name);
            return status_hint(ST_INPUT, "a file with one row a line is named .jsonl");
        }
        if (first && json_array_size(column) != *n)
            return status_fail(ST_INPUT, "columns of '%s' differ in length: '%s' has %zu rows, '%s' has %zu", path, first, *n, name,
                               json_array_size(column));
        first = name;
        *n = json_array_size(column);
    }
    return ST_OK;
}

static Status read_columns(RowReader *reader, json_t *columns) {
    size_t n;
    TRY(columns_length(reader->path, columns, &n));
    for (size_t i = 0; i < n && !row_reader_full(reader); i++) {
        json_t *row = json_object(), *column;
        const char *name;
        json_object_foreach(columns, name, column) json_object_set(row, name, json_array_get(column, i));
        TRY(row_hand_over(reader, row, i + 1));
    }
    return ST_OK;
}

static Status read_whole(RowReader *reader) {
    Str text = {0};
    json_t *root = NULL;
    TRY(file_read(reader->path, JSON_LIMIT, &text));
    Slice whole = without_mark((Slice){str_text(&text), text.len});
    Status status = json_read_text(whole.data, whole.len, reader->path, &root);
    str_release(&text);
    if (status != ST_OK) return status;
    status = json_is_object(root) ? read_columns(reader, root)
                                  : status_fail(ST_INPUT, "'%s' is neither an array of rows nor an object of columns", reader->path);
    json_decref(root);
    return status;
}

/* ---- which of the forms ---- */

/* One row a line: the first line is a complete object, and more text follows it. */
static Status is_lines(const char *path, bool *result) {
    Lines lines;
    Slice line;
    json_error_t error;
    json_t *first = NULL;
    *result = false;
    TRY(lines_open(&lines, path));
    for (bool blank = true; blank && lines_next(&lines, &line);) {
        if (lines.number == 1) line = without_mark(line);
        blank = is_blank(line);
        if (!blank) first = json_load_row(line.data, line.len, true, &error);
    }
    if (json_is_object(first))
        while (!*result && lines_next(&lines, &line)) *result = !is_blank(line);
    json_decref(first);
    return lines_close(&lines);
}

static Status read_scanned(Scanner *scanner) {
    RowReader *reader = scanner->reader;
    scanner_peek(scanner);
    scanner->at = (size_t)(without_mark((Slice){scanner->chunk, scanner->len}).data - scanner->chunk);
    int c = scanner_skip_blanks(scanner);
    if (c == -2) return stream_fault(scanner->stream, "");
    if (c == '[') return scan_array(scanner);
    bool lines = false;
    TRY(is_lines(reader->path, &lines));
    if (!lines) return read_whole(reader);
    reader->unit = container_jsonl.unit;
    return container_jsonl.read(reader);
}

static Status read_document(RowReader *reader) {
    ByteStream *stream;
    TRY(stream_open(reader->path, &stream));
    Scanner scanner = {.reader = reader, .stream = stream, .line = 1, .column = 1};
    Status status = read_scanned(&scanner);
    str_release(&scanner.element);
    stream_close(stream);
    return status;
}

const Container container_json = {.name = "json", .endings = {".json"}, .packed = true, .unit = "row", .read = read_document};
