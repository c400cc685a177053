/* SPDX-License-Identifier: Apache-2.0 */
/* The containers of containers.def, and the code they share: passing rows on and reporting where a file is wrong.
 *
 *     static Status read_rows(RowReader *reader) {
 *         for (size_t i = 0; i < n && !row_reader_full(reader); i++) TRY(row_hand_over(reader, make_row(i), i + 1));
 *         return ST_OK;
 *     }
 *     const Container container_mine = {.name = "mine", .endings = {".mine"}, .packed = true, .unit = "row", .read = read_rows};
 */
#ifndef TUNE_CONTAINERS_H
#define TUNE_CONTAINERS_H

#include "data/data.h"

#define JSON_LIMIT ((size_t)4 << 30) /* limit in bytes of a file that has to be read in full */

typedef struct RowReader {
    const char *path;
    const char *ending; /* the matching ending of the table below, without .gz or .zst: ".tsv" */
    const char *unit;   /* of row numbers */
    RowsConfig config;
    int64_t n_rows; /* rows passed on so far */
    Slice text;     /* of the current row, see Row */
    bool padded;    /* see Row */
    RowCallback *read;
    void *context;
} RowReader;

typedef struct Container {
    const char *name;
    const char *endings[4];
    bool packed; /* also as .gz and .zst */
    const char *unit;
    /* Passes the rows on in order until the reader is full. ST_INPUT with file and place if the file cannot be read. */
    Status (*read)(RowReader *reader);
} Container;

bool row_reader_full(const RowReader *reader);
/* Reports an invalid row with the failure of this thread; the reader's `bad` decides whether reading continues. ST_INPUT */
Status row_is_bad(RowReader *reader, Status failed, size_t number);
/* Calls the reader's callback with row `number`; takes `row` (drops its reference). NULL: out of memory. */
Status row_hand_over(RowReader *reader, json_t *row, size_t number);
/* Converts a text to a JSON value: a string, except in columns with a fixed meaning in every format. `weight` is a number if it looks like one, and
 * null when empty; `label` is a boolean for true, false, 1 or 0; in columns of lists (messages, conversations, ids ...) a text that begins like JSON
 * is parsed: on failure *fault is jansson's message and the value NULL. The text must be UTF-8. */
json_t *cell_value(const char *column, const char *text, size_t len, const char **fault);
/* The text without a byte order mark. */
Slice without_mark(Slice text);
bool is_blank(Slice text); /* spaces, tabs and line ends only */
/* "'PATH' line L, column C", counted in characters from 1, of a byte of `text`, which begins at line `line`. */
Status fail_at(const char *path, const char *text, size_t at, size_t line, const char *what);

#define CONTAINER(name) extern const Container container_##name;
#include "data/containers/containers.def"
#undef CONTAINER

#endif
