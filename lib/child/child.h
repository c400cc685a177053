/* SPDX-License-Identifier: Apache-2.0 */
/* A program beside this one, asked in lines. The program that uses it ignores SIGPIPE. */
#ifndef TUNE_CHILD_H
#define TUNE_CHILD_H

#include "lib/base/str.h"

typedef struct Child Child;
/* A program that is not trusted runs in a sandbox (Linux): namespaces of its own, a read-only view of the system and of its own folder, a private
 * /tmp, few environment variables, a filter of system calls, 256 processes and open files, 256 MiB a file. It ends with the thread that started
 * it. */
typedef struct ChildLimits {
    bool best_effort;                   /* a part that the system refuses is left out and warned of once; else it is ST_RESOURCE */
    uint64_t memory_bytes, cpu_seconds; /* address space and processor time of each process; 0 = no limit */
    const char *hidden;                 /* a folder that it does not see: the run's. NULL: none */
    const char *const *readable;        /* files and folders that it sees beyond its program, and those that its arguments name */
    size_t n_readable;
} ChildLimits;
/* Starts argv[0], looked for along PATH, with n - 1 arguments in a process group of its own. limits: NULL = as this one. ST_INPUT: it can't be
 * started; ST_RESOURCE, also where the system refuses a part of the sandbox. The caller calls child_stop. */
Status child_start(const char *const *argv, size_t n, const ChildLimits *limits, Child **child);
/* Sends `text` and appends its next `n_lines` lines (1 or more), with their ends, to `reply`; at most `seconds` in all. ST_RESOURCE: it ended (with
 * its exit code or signal) or did not answer in time; ST_INTERRUPTED. After a failure it is of no more use. */
Status child_request(Child *child, const char *text, size_t len, size_t n_lines, double seconds, Str *reply);
/* The same in two steps, for up to 64 programs at once: `text` stays where it is until the answer. children_next waits until one of those that were
 * begun has answered or failed: its index, its answer and its status; *which = n when none was begun. ST_INTERRUPTED: nothing has answered yet, and
 * all of them are of no more use. A child that is NULL is passed over. */
void child_begin(Child *child, const char *text, size_t len, size_t n_lines, double seconds);
Status children_next(Child *const *children, size_t n, size_t *which, Str *reply);
bool child_has_ended(const Child *child); /* as a failure has shown */
/* What it has said so far beyond what it was asked for, between an answer and the next question. Borrowed until the next call */
Slice child_unrequested(Child *child);
/* The last line that it wrote to stderr, where programs say why they end; empty: none, also without a child. Borrowed until the next call */
Slice child_last_line(const Child *child);
Status child_add_last_line(const Child *child, Status status); /* the same as a hint to the failure `status`, which it returns */
/* Sends `farewell` (NULL: none), closes its input, gives it `patience` seconds to end, ends it and what it started, frees. Records no failure. NULL
 * is fine. */
void child_stop(Child *child, const char *last_message, double patience);

#endif
