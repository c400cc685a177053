/* SPDX-License-Identifier: Apache-2.0 */
/* Diagnosis of reinforcement learning runs: watches the metrics as they arrive and warns in plain words about common failures. It knows metrics by
 * name only, so it serves runs on text and on environments, during training and afterwards from metrics.jsonl. Its rules are one table (rl_doctor.c).
 *
 *     RlDoctor *doctor = rl_doctor_new();
 *     for each line, for each number:
 *         if (rl_doctor_add(doctor, step, "entropy", 0.02, &finding)) run_warn(run, "%s; %s", finding.text, finding.hint);
 *     for (size_t i = 0; rl_doctor_warning(doctor, i, &finding); i++) ...                  // all findings of the run
 *     rl_doctor_free(doctor);
 */
#ifndef TUNE_RL_DOCTOR_H
#define TUNE_RL_DOCTOR_H

#include "lib/run/report.h"

typedef struct RlDoctor RlDoctor;
typedef struct RlWarning {
    const char *rule;              /* name of the rule, such as "entropy" */
    char text[400];                /* the problem, with numbers */
    const char *hint;              /* the remedy */
    int64_t first_step, last_step; /* first and last step of the finding */
    bool holds;                    /* the finding is still true at the last value of its metrics */
} RlWarning;

RlDoctor *rl_doctor_new(void);         /* NULL: out of memory */
void rl_doctor_free(RlDoctor *doctor); /* NULL is fine */
/* Adds one number of a step's line, in the order of the file; NaN: unknown. Runs without a metric `reward` are not judged, since their metrics mean
 * other things. Returns true if `finding` should be reported now: the first time, and again after three times as many lines. */
bool rl_doctor_add(RlDoctor *doctor, int64_t step, const char *metric, double value, RlWarning *finding);
/* Finding i, in the order of the table; false after the last. */
bool rl_doctor_warning(const RlDoctor *doctor, size_t i, RlWarning *finding);
/* Steps without a signal, in which all compared rewards were equal: their number, and whether the run began with them. True if there were ten, or
 * half of all steps. Call it at the end of a run. first_step and last_step: the first and the last such step. */
bool rl_doctor_no_signal(const RlDoctor *doctor, RlWarning *finding);
/* rl_doctor_add for all numbers of one line of metrics.jsonl, without reporting. */
void rl_doctor_read(RlDoctor *doctor, const json_t *line);
/* Diagnosis of a finished run: puts findings from metrics.jsonl on the report page. */
extern const MetricsReader rl_report_reader;

#endif
