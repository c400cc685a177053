/* SPDX-License-Identifier: Apache-2.0 */
/* Long work tells how far it is: libraries say it in their loops, the program shows it once it has taken a while.
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
    const char *what;     /* "checking rows"; NULL: it is over */
    uint64_t done, total; /* total 0: not known */
    bool bytes;           /* of a file, else things */
} Work;
typedef void WorkSink(void *context, const Work *work);
void work_set_sink(WorkSink *sink, void *context); /* the program sets this once; NULL: nobody wants to know */
/* A look at the clock; of one work the sink hears ten times a second at most. what: a constant text. From any thread: what comes while another
 * tells is lost. */
void work_at(const char *what, uint64_t done, uint64_t total);
void work_at_bytes(const char *what, uint64_t done, uint64_t total);
void work_end(const char *what); /* after a failure too; harmless where it is not told */
/* From now on this work alone is told, not what it consists of, such as the saving of what is merged; until work_end of it. */
void work_pause_at(const char *what);

/* When a line about work is due. {0} begins with the first call. Nothing in the first 2 seconds; then on a terminal that redraws its line ten times a
 * second, else a line in 10 seconds, and after the first minute a line a minute. Work that follows within a second goes on with the same pace. */
typedef struct ProgressTimer {
    bool at_once; /* the first line is due at once */
    bool begun, over, shown;
    double began, asked, last; /* last: when a line was due; asked: when it was asked last */
} ProgressTimer;
bool progress_due(ProgressTimer *pace, double now, bool redraws);
void progress_ended(ProgressTimer *pace); /* the work has ended */

#endif
