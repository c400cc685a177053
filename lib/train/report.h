/* SPDX-License-Identifier: Apache-2.0 */
/* report.html: what a run did, or how several compare, as one page without network or scripts of others, made from run directories alone.
 *
 *     TRY(report_write((const char *const[]){"runs/a"}, 1, "runs/a/report.html", NULL, NULL));
 */
#ifndef TUNE_REPORT_H
#define TUNE_REPORT_H

#include "lib/train/train.h"

/* What the page says first about a run. NaN: not known. */
typedef struct RunNumbers {
    int64_t steps, planned_steps; /* planned: -1 = not known */
    bool finished;
    double first_loss, last_loss, eval_loss, best_eval_loss, seconds, tokens_per_second; /* the last: median */
    int64_t peak_rss_bytes;                                                              /* -1 = not known */
    size_t broken_lines;                                                                 /* of metrics.jsonl */
} RunNumbers;

/* Reads the metrics of a run for its page, and knows what they mean: of learning by reward that is rl/loop/rl_doctor.h. */
typedef struct MetricsReader {
    void *(*begin)(void);                           /* one for each run; NULL: out of memory */
    void (*read)(void *reader, const json_t *line); /* each line of metrics.jsonl that is whole, in order */
    /* Calls `warn` for each thing that the reader has to say. */
    void (*conclude)(const void *reader, void (*warn)(void *context, const char *text), void *context);
    void (*end)(void *reader); /* NULL is fine */
} MetricsReader;

/* Several runs are laid over each other, with the settings in which they differ. ST_INPUT: a folder that is no run, a file that cannot be read; what
 * is merely broken (a line that was cut short, a missing started.json) is left out, counted on the page and said by log_message(LOG_WARNING).
 * ST_RESOURCE: the page cannot be written. reader: may be NULL; numbers: n of them, or NULL. */
Status report_write(const char *const *dirs, size_t n, const char *path, const MetricsReader *reader, RunNumbers *numbers);
/* The page of a run in its own folder when it ends with `status`, which is given back with its text: the page is a convenience, without it the run is
 * what it is. A run that ended before its first step has one too: it says why. reader: may be NULL. */
Status report_run(Run *run, const MetricsReader *reader, Status status);

#endif
