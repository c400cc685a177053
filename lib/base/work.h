/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of long work: libraries report it in their loops, the program shows it once the work has taken a while.
 *
 *     for (size_t i = 0; i < n; i++) {
 *         work_at("checking rows", i, n);
 *         ...
 *     }
 *     work_end("checking rows");
 */
#ifndef TUNE_WORK_H
#define TUNE_WORK_H

#include "lib/base/base.h"

typedef struct Work {
    const char *what;     /* "checking rows"; NULL: it has ended */
    uint64_t done, total; /* total 0: unknown */
    bool bytes;           /* done and total count bytes of a file */
} Work;
typedef void WorkSink(void *context, const Work *work);
void work_set_sink(WorkSink *sink, void *context); /* the program sets this once; NULL: progress is not shown */
/* Reports progress; the sink gets at most ten reports a second for one work. what: a constant text. From any thread: a report during another thread's
 * report is dropped. */
void work_at(const char *what, uint64_t done, uint64_t total);
void work_at_bytes(const char *what, uint64_t done, uint64_t total);
void work_end(const char *what); /* also after a failure; harmless when the work was never reported */
/* Reports this work alone and none of its parts (such as saving while merging) until work_end(what). */
void work_pause_at(const char *what);

/* Decides when a line about work is due. {0} starts with the first call. Nothing is due in the first 2 seconds; then ten lines a second on a terminal
 * that redraws its line, else one every 10 seconds, and after the first minute one a minute. Work that follows within a second keeps the pace. */
typedef struct ProgressTimer {
    bool at_once; /* the first line is due at once */
    bool begun, over, shown;
    double began, asked, last; /* last: when a line was due; asked: the latest call */
} ProgressTimer;
bool progress_due(ProgressTimer *pace, double now, bool redraws);
void progress_ended(ProgressTimer *pace); /* the work has ended */

#endif
