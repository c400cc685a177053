/* SPDX-License-Identifier: Apache-2.0 */
/* The doctor of reinforcement learning: looks at the numbers of a run as they come and says in plain words what usually goes wrong before the curves
 * show it. It knows metrics by their names alone, so runs on text and on environments, while they train and afterwards from metrics.jsonl, are looked
 * at in the same way. Its rules are one table (rl_doctor.c).
 *
 *     RlDoctor *doctor = rl_doctor_new();
 *     for each line, for each number:
 *         if (rl_doctor_add(doctor, step, "entropy", 0.02, &finding)) run_warn(run, "%s; %s", finding.text, finding.hint);
 *     for (size_t i = 0; rl_doctor_warning(doctor, i, &finding); i++) ...                  // what was found in the whole run
 *     rl_doctor_free(doctor);
 */
#ifndef TUNE_RL_DOCTOR_H
#define TUNE_RL_DOCTOR_H

#include "lib/run/report.h"

typedef struct RlDoctor RlDoctor;
typedef struct RlWarning {
    const char *rule;              /* its name, such as "entropy" */
    char text[400];                /* what is wrong, with numbers */
    const char *hint;              /* what helps */
    int64_t first_step, last_step; /* where it was found first and last */
    bool holds;                    /* still, with the last number */
} RlWarning;

RlDoctor *rl_doctor_new(void);         /* NULL: out of memory */
void rl_doctor_free(RlDoctor *doctor); /* NULL is fine */
/* One number of a step's line, in the order of the file; NaN: not known there. Runs without a metric `reward` are not judged: the numbers of other
 * kinds of training mean other things. true: `finding` is to be said now: for the first time, or again after three times as many lines. */
bool rl_doctor_add(RlDoctor *doctor, int64_t step, const char *metric, double value, RlWarning *finding);
/* Number i of all that was found, in the order of the table; false behind the last. */
bool rl_doctor_warning(const RlDoctor *doctor, size_t i, RlWarning *finding);
/* Steps in which nothing could be learned, since all that is compared earned the same: how many of how many, and whether the first ones were; true
 * where there were ten of them, or half of all. To be asked at the end. first_step and last_step: the first and the last such step. */
bool rl_doctor_no_signal(const RlDoctor *doctor, RlWarning *finding);
/* The same as rl_doctor_add for all numbers of one line of metrics.jsonl, of which nothing is said. */
void rl_doctor_read(RlDoctor *doctor, const json_t *line);
/* The doctor of a run that is over: what it found in metrics.jsonl is warned of on the page. */
extern const MetricsReader rl_report_reader;

#endif
