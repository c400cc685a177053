/* SPDX-License-Identifier: Apache-2.0 */
/* The log of requests: one line of JSON for each answer, appended as it comes, so that nothing is asked twice. A line that was cut short by a crash
 * is taken off.
 *
 *     Journal *journal;
 *     TRY(journal_open("runs/x/requests.jsonl", false, &journal));
 *     if (!journal_find(journal, key, &answer)) ...ask...; TRY(journal_add(journal, key, line));
 *     journal_close(journal);
 */
#ifndef TUNE_SYNTH_JOURNAL_H
#define TUNE_SYNTH_JOURNAL_H

#include "lib/base/file.h"
#include "lib/base/json.h"

enum { JOURNAL_KEY = 32 }; /* characters */

typedef struct Journal Journal;
/* A file that is missing is empty, unless read_only. ST_INPUT: a line that is none of a log, with its number. */
Status journal_open(const char *path, bool read_only, Journal **journal);
void journal_close(Journal *journal);         /* NULL is fine */
size_t journal_count(const Journal *journal); /* lines in it when it was opened */
/* The line with this key as JSON, for the caller's json_decref; *line is NULL when there is none. Answers that were added since it was opened are not
 * found. */
Status journal_find(const Journal *journal, const char *key, json_t **line);
Status journal_first(const Journal *journal, json_t **line); /* the same of its first line; NULL when it is empty */
/* Appends {"key": key, fields}; `fields`: a JSON object's text. ST_RESOURCE: a full disk, with nothing written. */
Status journal_add(Journal *journal, const char *key, const Str *fields);
Status journal_sync(const Journal *journal); /* what was added is on the disk, as is the file's name */

#endif
