/* SPDX-License-Identifier: Apache-2.0 */
/* report.html: what a run did, or how several compare, as one page without network or scripts of others, made from run directories alone.
 *
 *     TRY(report_write((const char *const[]){"runs/a"}, 1, "runs/a/report.html", NULL));
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

/* Several runs are laid over each other, with the settings in which they differ. ST_INPUT: a folder that is no run, a file that cannot be read; what
 * is merely broken (a line that was cut short, a missing started.json) is left out, counted on the page and said by log_message(LOG_WARNING).
 * ST_RESOURCE: the page cannot be written. numbers: n of them, or NULL. */
Status report_write(const char *const *dirs, size_t n, const char *path, RunNumbers *numbers);
/* The page of a run in its own folder when it ends with `status`, which is given back with its text: the page is a convenience, without it the run is
 * what it is. A run that ended before its first step has one too: it says why. */
Status report_run(Run *run, Status status);

#endif
