/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that a run leaves out because they cannot be used, with data.on_bad_row: skip; without it the first of them ends the run.
 *
 *     Status status = read(row);
 *     if (rejected_accepts(recipe->rejected, status)) status = rejected_add(recipe->rejected, &(RejectedRow){file, unit, line, json}, status_text());
 */
#ifndef TUNE_REJECTED_H
#define TUNE_REJECTED_H

#include "lib/base/json.h"

typedef struct Rejected {
    int64_t n, listed; /* listed: the first so many, which are in `lines` */
    Str lines;         /* the contents of rejected.jsonl: {"file", "line", "reason", "row"}, and "unit" unless it is a line */
    Str first;         /* the first few, for a warning */
} Rejected;
typedef struct RejectedRow {
    const char *file, *unit; /* unit: "line", "row" */
    size_t line;
    const json_t *row; /* a text if the row could not be parsed; NULL: unknown */
} RejectedRow;
/* Whether a row that failed with `status` is left out: faults of rows are ST_INPUT. rejected NULL: never. */
bool rejected_accepts(const Rejected *rejected, Status status);
Status rejected_add(Rejected *rejected, const RejectedRow *row, const char *reason); /* ST_OK */
void rejected_restore(Rejected *rejected, int64_t n, const char *lines);             /* n rows that were found earlier */
/* The current end of the list; rejected_rewind removes what was added after it. */
typedef struct RejectedMark {
    int64_t n, listed;
    size_t lines, first;
} RejectedMark;
RejectedMark rejected_mark(const Rejected *rejected);
void rejected_rewind(Rejected *rejected, RejectedMark mark);
bool rejected_describe(const Rejected *rejected, Str *text);         /* one sentence; false: there are none */
Status rejected_write(const Rejected *rejected, const char *folder); /* writes rejected.jsonl if there are any. ST_RESOURCE */
void rejected_release(Rejected *rejected);

#endif
