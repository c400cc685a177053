/* SPDX-License-Identifier: Apache-2.0 */
/* Oddities of rows that are used all the same: counted by kind, with the places of the first rows of each.
 *
 *     RowNotes of_row = {0}, all = {0};
 *     row_note(&of_row, "with a message of role '%s', which is read as '%s'", "human", "user");
 *     row_notes_add(&all, &of_row, "rows.jsonl", "line", 7);        // and row_notes_clear(&of_row) before the next row
 *     row_notes_warn(&all, "data.train");   // "data.train: 1 row with a message of role 'human', which is read as 'user' (rows.jsonl line 7)"
 */
#ifndef TUNE_NOTES_H
#define TUNE_NOTES_H

#include "lib/base/json.h"

typedef struct RowNote {
    char *text; /* text that follows "3 rows" */
    int64_t n;  /* number of rows */
    Str places; /* places of the first rows: "FILE line N, ..." */
} RowNote;
typedef struct RowNotes {
    RowNote *items;
    size_t n, cap;
    int64_t more; /* oddities of kinds that are not kept, counted once a row */
} RowNotes;       /* {0} is empty */

/* Notes an oddity of the current row; the same text is counted once a row. notes NULL: does nothing. */
void row_note(RowNotes *notes, const char *format, ...) PRINTF_LIKE(2, 3);
void row_notes_add(RowNotes *all, const RowNotes *of_row, const char *file, const char *unit, size_t line);
void row_notes_clear(RowNotes *notes); /* keeps the memory */
void row_notes_release(RowNotes *notes);
/* Calls `say` with one sentence for each kind, after `what` and a colon. */
void row_notes_report(const RowNotes *notes, const char *what, void (*say)(void *context, const char *text), void *context);
void row_notes_warn(const RowNotes *notes, const char *what); /* logs them as warnings */
/* Writes them as a member "notes" of an open object, and reads them back. ST_INPUT. */
void row_notes_write(const RowNotes *notes, JsonWriter *w);
Status row_notes_read(const json_t *about, RowNotes *notes);

#endif
