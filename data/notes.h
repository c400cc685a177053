/* SPDX-License-Identifier: Apache-2.0 */
/* What is odd about rows that are used all the same: counted by kind, with the places of the first of each.
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
    char *text; /* goes on behind "3 rows" */
    int64_t n;  /* rows */
    Str places; /* of the first of them: "FILE line N, ..." */
} RowNote;
typedef struct RowNotes {
    RowNote *items;
    size_t n, cap;
    int64_t more; /* kinds beyond those that are kept, once for each row that has one */
} RowNotes;       /* {0} is empty */

/* Notes something about a row, once however often it is said. notes NULL: nobody wants to know. */
void row_note(RowNotes *notes, const char *format, ...) PRINTF_LIKE(2, 3);
void row_notes_add(RowNotes *all, const RowNotes *of_row, const char *file, const char *unit, size_t line);
void row_notes_clear(RowNotes *notes); /* keeps the memory */
void row_notes_release(RowNotes *notes);
/* One sentence each, behind `what` and a colon. */
void row_notes_report(const RowNotes *notes, const char *what, void (*say)(void *context, const char *text), void *context);
void row_notes_warn(const RowNotes *notes, const char *what); /* to the log */
/* As a member "notes" of an object that is being written, and back. ST_INPUT. */
void row_notes_write(const RowNotes *notes, JsonWriter *w);
Status row_notes_read(const json_t *about, RowNotes *notes);

#endif
