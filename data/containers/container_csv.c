/* SPDX-License-Identifier: Apache-2.0 */
/* Comma- or tab-separated values after RFC 4180: a header, quoted cells with any content, "" for a quote in them; lines end with LF, CRLF or CR.
 * Cells are strings; see cell_value for exceptions. Blank lines are no rows. Memory: one row.
 *
 * If bad rows are skipped, a row with a bad cell, or with too few or too many cells, ends at its usual place; a row with wrong quotes ends with the
 * line that shows the fault. A quote that is never closed may contain any number of rows: it is an error, unless no line follows. */
#include "data/containers/containers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK ((size_t)128 << 10)
#define CELL_LIMIT ((size_t)1 << 30)

enum { AT_END = -1, AT_FAULT = -2 };
typedef struct Place {
    size_t line, column;
} Place; /* from 1; columns in characters */

typedef struct Csv {
    RowReader *reader;
    ByteStream *stream;
    char delimiter;
    bool plain[256]; /* ASCII without a special meaning in any dialect */
    json_t *header;  /* an array of names */
    json_t *names;   /* the names as keys, to look them up */
    Place place;     /* of the next character */
    Str cell;
    Place cell_place;
    size_t n_cells; /* of the current row */
    struct BadRow {
        bool may, is, unquoted; /* may: bad rows are skipped, and this is one; unquoted: the row ends with its line */
        Failure why;            /* the first fault */
        Str text;               /* text of the row, except the part that is in `chunk` */
        size_t from;            /* start of that part */
    } bad;
    size_t at, len; /* of `chunk` */
    char chunk[CHUNK];
} Csv;

static Status csv_fail(const Csv *csv, Place place, const char *format, ...) PRINTF_LIKE(3, 4);
static Status csv_fail(const Csv *csv, Place place, const char *format, ...) {
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return status_fail(ST_INPUT, "'%s' line %zu, column %zu: %s", csv->reader->path, place.line, place.column, what);
}

/* Records the fault of a row that may be bad, so that reading continues. */
static Status spoil(Csv *csv, Status failed) {
    if (failed != ST_INPUT || !csv->bad.may) return failed;
    if (!csv->bad.is) failure_save(&csv->bad.why, failed);
    csv->bad.is = true;
    return ST_OK;
}

/* ---- characters ---- */

/* Makes `need` bytes available if the file has them; false if reading fails. */
static bool container_csv_fill(Csv *csv, size_t need) {
    if (csv->len - csv->at >= need) return true;
    if (csv->bad.may) str_append_n(&csv->bad.text, csv->chunk + csv->bad.from, csv->at - csv->bad.from);
    csv->bad.from = 0;
    csv->len -= csv->at;
    memmove(csv->chunk, csv->chunk + csv->at, csv->len);
    csv->at = 0;
    while (csv->len < need) {
        ptrdiff_t got = stream_read(csv->stream, csv->chunk + csv->len, CHUNK - csv->len);
        if (got <= 0) return got == 0;
        csv->len += (size_t)got;
    }
    return true;
}

static int container_csv_peek(Csv *csv) {
    if (csv->at == csv->len && !container_csv_fill(csv, 1)) return AT_FAULT;
    return csv->at < csv->len ? (unsigned char)csv->chunk[csv->at] : AT_END;
}

static Status read_fault(Csv *csv) {
    char place[48];
    snprintf(place, sizeof place, " after line %zu", csv->place.line - 1);
    return stream_fault(csv->stream, place);
}

/* Steps over one ASCII character. */
static void container_csv_take(Csv *csv) {
    bool line = csv->chunk[csv->at++] == '\n';
    csv->place = line ? (Place){csv->place.line + 1, 1} : (Place){csv->place.line, csv->place.column + 1};
}

/* Steps over LF, CRLF or CR. */
static void take_line_end(Csv *csv) {
    size_t line = csv->place.line;
    if (container_csv_peek(csv) == '\r') container_csv_take(csv);
    if (container_csv_peek(csv) == '\n') container_csv_take(csv);
    csv->place = (Place){line + 1, 1};
}

static Status container_csv_keep(Csv *csv, size_t n) {
    if (csv->cell.len + n > CELL_LIMIT) {
        csv_fail(csv, csv->cell_place, "the cell that begins here is longer than 1 GiB");
        return status_hint(ST_INPUT, "is a closing quote missing?");
    }
    if (!str_reserve(&csv->cell, n))
        return status_fail(ST_RESOURCE, "out of memory for the cell of line %zu of '%s'", csv->cell_place.line, csv->reader->path);
    str_append_n(&csv->cell, csv->chunk + csv->at, n);
    return ST_OK;
}

/* Adds a run of plain characters, or one special character, to the cell. */
static Status keep_some(Csv *csv) {
    size_t n = 0;
    while (csv->at + n < csv->len && csv->plain[(unsigned char)csv->chunk[csv->at + n]]) n++;
    if (n == 0 && (unsigned char)csv->chunk[csv->at] < 0x80) {
        TRY(container_csv_keep(csv, 1));
        container_csv_take(csv);
        return ST_OK;
    }
    size_t width = n;
    if (n == 0) {
        uint32_t c;
        width = 1;
        if (!container_csv_fill(csv, 4)) return read_fault(csv);
        n = utf8_decode(csv->chunk + csv->at, csv->len - csv->at, &c);
        if (n == 0) {
            csv_fail(csv, csv->place, "byte 0x%02X is not UTF-8", (unsigned)(unsigned char)csv->chunk[csv->at]);
            TRY(spoil(csv, status_hint(ST_INPUT, "save the file with the encoding UTF-8")));
            n = 1;
        }
    }
    TRY(container_csv_keep(csv, n));
    csv->at += n;
    csv->place.column += width;
    return ST_OK;
}

/* ---- cells and records ---- */

static bool ends_cell(const Csv *csv, int c) { return c == csv->delimiter || c == '\r' || c == '\n' || c == AT_END; }
static const char *delimiter_name(const Csv *csv) { return csv->delimiter == '\t' ? "a tab" : "','"; }

static Status read_quoted(Csv *csv) {
    container_csv_take(csv);
    for (int c; (c = container_csv_peek(csv)) != AT_END;) {
        if (c == AT_FAULT) return read_fault(csv);
        if (c == '"') {
            container_csv_take(csv);
            c = container_csv_peek(csv);
            if (c == AT_FAULT) return read_fault(csv);
            if (ends_cell(csv, c)) return ST_OK;
            if (c != '"') {
                csv->bad.unquoted = true;
                csv_fail(csv, csv->place, "expected %s or the end of the line after the closing quote", delimiter_name(csv));
                return status_hint(ST_INPUT, "a quote inside of a quoted cell is written twice: \"\"");
            }
        }
        TRY(keep_some(csv));
    }
    size_t lines = csv->place.line - csv->cell_place.line;
    csv->bad.unquoted = lines == 0 || (lines == 1 && csv->place.column == 1); /* it is the last line */
    csv_fail(csv, csv->cell_place, "the quote that opens here is never closed");
    return csv->bad.may && !csv->bad.unquoted ? status_hint(ST_INPUT, "close it: after an open quote, the next rows look like a part of the cell")
                                              : ST_INPUT;
}

static Status read_plain(Csv *csv) {
    for (int c; !ends_cell(csv, c = container_csv_peek(csv));) {
        if (c == AT_FAULT) return read_fault(csv);
        if (c == '"') {
            csv->bad.unquoted = true;
            csv_fail(csv, csv->place, "stray quote: expected a cell that is quoted from end to end or has no quotes");
            return status_hint(ST_INPUT, "put the cell in quotes and write each quote in it twice: \"\"");
        }
        TRY(keep_some(csv));
    }
    return ST_OK;
}

/* Reads one record and its line end; `add` gets each cell. */
static Status read_record(Csv *csv, Status (*add)(Csv *csv, json_t *record), json_t *record, size_t *n) {
    for (*n = 0;; container_csv_take(csv)) {
        str_clear(&csv->cell);
        csv->cell_place = csv->place;
        TRY(container_csv_peek(csv) == '"' ? read_quoted(csv) : read_plain(csv));
        TRY(add(csv, record));
        ++*n;
        if (container_csv_peek(csv) != csv->delimiter) break;
    }
    if (container_csv_peek(csv) == AT_FAULT) return read_fault(csv);
    return ST_OK;
}

static Status add_name(Csv *csv, json_t *header) {
    char unnamed[40];
    size_t n = json_array_size(header);
    if (csv->cell.len != strlen(str_text(&csv->cell))) return csv_fail(csv, csv->cell_place, "the name of a column holds a NUL character");
    snprintf(unnamed, sizeof unnamed, "Unnamed: %zu", n); /* as in pandas, whose index column has no name */
    const char *name = csv->cell.len > 0 ? str_text(&csv->cell) : unnamed;
    if (json_object_get(csv->names, name) && csv->cell.len == 0)
        return csv_fail(csv, csv->cell_place, "column %zu has no name, and '%s' is another one's", n + 1, unnamed);
    if (json_object_get(csv->names, name)) return csv_fail(csv, csv->cell_place, "a second column '%s': expected each name once", name);
    if (json_array_append_new(header, json_string_nocheck(name)) != 0 || json_object_set_new_nocheck(csv->names, name, json_true()) != 0)
        return status_fail(ST_RESOURCE, "out of memory for the header of '%s'", csv->reader->path);
    return ST_OK;
}

static Status read_header(Csv *csv) {
    size_t n;
    if (!container_csv_fill(csv, 3)) return read_fault(csv);
    csv->at = (size_t)(without_mark((Slice){csv->chunk, csv->len}).data - csv->chunk);
    while (container_csv_peek(csv) == '\r' || container_csv_peek(csv) == '\n') take_line_end(csv);
    if (container_csv_peek(csv) == AT_END) return csv_fail(csv, csv->place, "expected a header with the names of the columns, the file is empty");
    Place place = csv->place;
    TRY(read_record(csv, add_name, csv->header, &n));
    const char *name = json_string_value(json_array_get(csv->header, 0));
    if (n > 1 || !strpbrk(name, ";\t,")) return ST_OK;
    csv_fail(csv, place, "the header is one column, '%.100s': expected columns separated by %s", name, delimiter_name(csv));
    return status_hint(ST_INPUT, "commas separate the columns of .csv, tabs those of .tsv");
}

static Status add_cell(Csv *csv, json_t *row) {
    size_t n = csv->n_cells++;
    const char *name = json_string_value(json_array_get(csv->header, n)), *fault;
    if (!name) return spoil(csv, csv_fail(csv, csv->cell_place, "one cell more than the %zu columns of the header", n));
    if (csv->bad.is) return ST_OK; /* and may be no UTF-8 */
    json_t *value = cell_value(name, str_text(&csv->cell), csv->cell.len, &fault);
    if (fault) return spoil(csv, csv_fail(csv, csv->cell_place, "the cell of '%s' begins like JSON but is not valid: %s", name, fault));
    if (!value || json_object_set_new_nocheck(row, name, value) != 0)
        return status_fail(ST_RESOURCE, "out of memory for a row of '%s'", csv->reader->path);
    return ST_OK;
}

static Status skip_line(Csv *csv) {
    for (int c; (c = container_csv_peek(csv)) != AT_END && c != '\r' && c != '\n'; csv->at++)
        if (c == AT_FAULT) return read_fault(csv);
    return ST_OK;
}

/* Reads a complete record, with as many cells as the header. */
static Status read_cells(Csv *csv, json_t *row) {
    size_t n;
    csv->n_cells = 0;
    Status status = read_record(csv, add_cell, row, &n);
    if (status == ST_INPUT && csv->bad.may && csv->bad.unquoted) {
        TRY(spoil(csv, status));
        return skip_line(csv);
    }
    TRY(status);
    if (n >= json_array_size(csv->header)) return ST_OK;
    const char *name = json_string_value(json_array_get(csv->header, n));
    return spoil(csv, csv_fail(csv, csv->place, "the row ends after %zu of %zu cells: expected %s and '%s'", n, json_array_size(csv->header),
                               delimiter_name(csv), name));
}

static Status tell_bad(Csv *csv, size_t line) {
    RowReader *reader = csv->reader;
    str_append_n(&csv->bad.text, csv->chunk + csv->bad.from, csv->at - csv->bad.from);
    reader->text = (Slice){str_text(&csv->bad.text), csv->bad.text.len};
    Status status = row_is_bad(reader, failure_restore(&csv->bad.why), line);
    reader->text = (Slice){0};
    return status;
}

static Status read_row(Csv *csv) {
    size_t line = csv->place.line;
    json_t *row = json_object();
    if (!row) return status_fail(ST_RESOURCE, "out of memory for a row of '%s'", csv->reader->path);
    str_clear(&csv->bad.text);
    csv->bad.from = csv->at;
    csv->bad.may = csv->reader->config.bad != NULL;
    csv->bad.is = csv->bad.unquoted = false;
    Status status = read_cells(csv, row);
    if (status == ST_OK && csv->bad.is) status = tell_bad(csv, line);
    csv->bad.may = false;
    if (status == ST_OK && !csv->bad.is) return row_hand_over(csv->reader, row, line);
    json_decref(row);
    return status;
}

static Status read_records(Csv *csv) {
    TRY(read_header(csv));
    for (int c; (c = container_csv_peek(csv)) != AT_END && !row_reader_full(csv->reader);) {
        if (c == AT_FAULT) return read_fault(csv);
        if (c == '\r' || c == '\n') {
            take_line_end(csv);
        } else {
            TRY(read_row(csv));
        }
    }
    return ST_OK;
}

static Status read_csv(RowReader *reader) {
    Csv *csv = malloc(sizeof *csv);
    json_t *header = json_array(), *names = json_object();
    Status status = csv && header && names ? ST_OK : status_fail(ST_RESOURCE, "out of memory for '%s'", reader->path);
    if (status == ST_OK) {
        memset(csv, 0, offsetof(Csv, chunk));
        csv->reader = reader;
        csv->delimiter = strcmp(reader->ending, ".tsv") == 0 ? '\t' : ',';
        for (int c = 0; c < 0x80; c++) csv->plain[c] = c != '"' && c != '\r' && c != '\n' && c != csv->delimiter;
        csv->header = header;
        csv->names = names;
        csv->place = (Place){1, 1};
        status = stream_open(reader->path, &csv->stream);
        if (status == ST_OK) status = read_records(csv);
        stream_close(csv->stream);
        str_release(&csv->cell);
        str_release(&csv->bad.text);
    }
    json_decref(header);
    json_decref(names);
    free(csv);
    return status;
}

const Container container_csv = {.name = "csv", .endings = {".csv", ".tsv"}, .packed = true, .unit = "line", .read = read_csv};
