/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes that answer requests line by line. A program that uses them must ignore SIGPIPE. */
#ifndef TUNE_CHILD_H
#define TUNE_CHILD_H

#include "lib/base/str.h"

typedef struct Child Child;
/* Limits for a program that is not trusted. It runs in a sandbox (Linux only): its own namespaces, a read-only view of the system and of its own
 * folder, a private /tmp, few environment variables, a filter of system calls, at most 256 processes, 256 open files and 256 MiB per file. It ends
 * with the thread that started it. */
typedef struct ChildLimits {
    bool best_effort;                   /* true: parts that the system refuses are left out, with one warning; false: they are ST_RESOURCE */
    uint64_t memory_bytes, cpu_seconds; /* address space and processor time of each process; 0 = no limit */
    const char *hidden;                 /* a folder that the program does not see (the run's); NULL = none */
    const char *const *readable;        /* files and folders that it may read besides its program and the files that its arguments name */
    size_t n_readable;
} ChildLimits;
/* Starts argv[0], found through PATH, with n - 1 arguments in its own process group. limits NULL: no sandbox. The caller calls child_stop. ST_INPUT:
 * the program cannot be started. ST_RESOURCE: no memory or processes, or the system refuses a part of the sandbox. */
Status child_start(const char *const *argv, size_t n, const ChildLimits *limits, Child **child);
/* Sends `text` and appends the program's next `n_lines` lines (1 or more), with their line ends, to `reply`. ST_RESOURCE: the program ended (the
 * message gives its exit code or signal) or did not answer within `seconds`. ST_INTERRUPTED: the user interrupted. After a failure the child can only
 * be stopped. */
Status child_request(Child *child, const char *text, size_t len, size_t n_lines, double seconds, Str *reply);
/* The same in two steps, for up to 64 programs at once. child_begin sends `text`, which must stay valid until the answer. children_next waits until
 * one of the children that were begun has answered or failed; it sets *which to that child's index and returns its status. *which = n: none was
 * begun. ST_INTERRUPTED: none has answered yet, and all of them can only be stopped. NULL children are skipped. */
void child_begin(Child *child, const char *text, size_t len, size_t n_lines, double seconds);
Status children_next(Child *const *children, size_t n, size_t *which, Str *reply);
/* Whether a child that was begun has answered or failed, without waiting; then returns its status, and `reply` is extended. It goes on with the
 * request, so long texts need several calls. An answer that is there at the call counts, whatever the time limit. ST_OK as long as *answered is
 * false. */
Status child_poll(Child *child, bool *answered, Str *reply);
bool child_has_ended(const Child *child); /* true after a failure that showed it */
/* What the program has written beyond the lines that were requested, between an answer and the next request. Valid until the next call. */
Slice child_unrequested(Child *child);
/* The last line that the program wrote to stderr, where programs say why they end; empty when there is none or child is NULL. Valid until the next
 * call. */
Slice child_last_line(const Child *child);
Status child_add_last_line(const Child *child, Status status); /* adds that line as a hint to the failure `status`, which it returns */
/* Sends `last_message` (NULL: none), closes the program's input, waits up to `patience` seconds for it to end, kills it with everything that it
 * started, and frees the child. Records no failure. NULL is fine. */
void child_stop(Child *child, const char *last_message, double patience);

#endif
