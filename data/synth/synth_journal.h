/* SPDX-License-Identifier: Apache-2.0 */
/* The log of requests: one line of JSON for each answer, appended on arrival, so that nothing is requested twice. A line that a crash truncated is
 * removed.
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
/* A missing file counts as empty, unless read_only. ST_INPUT: an invalid line, with its number. */
Status journal_open(const char *path, bool read_only, Journal **journal);
void journal_close(Journal *journal);         /* NULL is fine */
size_t journal_count(const Journal *journal); /* number of lines when it was opened */
/* The line with this key as JSON, for the caller's json_decref; *line is NULL if there is none. Answers added since the log was opened are not
 * found. */
Status journal_find(const Journal *journal, const char *key, json_t **line);
Status journal_first(const Journal *journal, json_t **line); /* the same for its first line; NULL if it is empty */
/* Appends {"key": key, fields}; `fields`: the text of a JSON object. ST_RESOURCE: a full disk; nothing is written then. */
Status journal_add(Journal *journal, const char *key, const Str *fields);
Status journal_sync(const Journal *journal); /* makes added lines, and the file's name, durable on the disk */

#endif
