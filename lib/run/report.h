/* SPDX-License-Identifier: Apache-2.0 */
/* report.html: one run, or several compared, as one page generated from run directories alone, without network or third-party scripts.
 *
 *     TRY(report_write((const char *const[]){"runs/a"}, 1, "runs/a/report.html", NULL, NULL));
 */
#ifndef TUNE_REPORT_H
#define TUNE_REPORT_H

#include "lib/run/run.h"

/* The key numbers of a run. NaN: unknown. */
typedef struct RunNumbers {
    int64_t steps, planned_steps; /* planned_steps: -1 = unknown */
    bool finished;
    double first_loss, last_loss, eval_loss, best_eval_loss, seconds, tokens_per_second; /* tokens_per_second: the median */
    double step_seconds, planned_step_seconds, planned_bytes; /* of a step the median, with what is done between steps; planned: by plan.json */
    int64_t peak_rss_bytes;                                   /* -1 = unknown */
    size_t broken_lines;                                      /* of metrics.jsonl */
} RunNumbers;

/* Interprets a run's metrics for its page; for runs that learn from rewards see rl/common/rl_doctor.h. */
typedef struct MetricsReader {
    void *(*begin)(void);                           /* called once per run; NULL: out of memory */
    void (*read)(void *reader, const json_t *line); /* called for each complete line of metrics.jsonl, in order */
    /* Calls `warn` for each finding. */
    void (*conclude)(const void *reader, void (*warn)(void *context, const char *text), void *context);
    void (*end)(void *reader); /* NULL is fine */
} MetricsReader;

/* Writes the page of n runs; several are drawn over each other, with the settings that differ. Damaged parts (a truncated line, a missing
 * started.json) are left out, counted on the page and reported with log_message(LOG_WARNING). ST_INPUT: a folder is not a run, or a file cannot be
 * read. ST_RESOURCE: the page cannot be written. reader: may be NULL; numbers: n of them, or NULL. */
Status report_write(const char *const *dirs, size_t n, const char *path, const MetricsReader *reader, RunNumbers *numbers);
/* Writes report.html of a run that ends with `status`, and returns `status` with its text: a page that cannot be written does not change the run's
 * outcome. A run that ended before its first step gets a page too, with the reason. reader: may be NULL. */
Status report_run(Run *run, const MetricsReader *reader, Status status);

#endif
