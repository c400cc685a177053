/* SPDX-License-Identifier: Apache-2.0 */
/* The doctor of a run that goes on: what it finds is a warning of the run, reported once and rarely again, and what still holds at the end is in
 * finished.json. */
#ifndef TUNE_RL_WATCH_H
#define TUNE_RL_WATCH_H

#include "lib/run/metrics.h"
#include "rl/common/rl_doctor.h"

/* Gives the doctor of a resumed run the lines before the checkpoint of step `done`; their findings were reported then. ST_INPUT, ST_RESOURCE. */
Status rl_watch_resume(RlDoctor *doctor, const Run *run, int64_t done);
void rl_watch_line(RlDoctor *doctor, Run *run, int64_t step, const Metrics *metrics); /* a line of metrics.jsonl */
/* The texts of findings that still hold at the end, and of the number of steps without a signal; the caller decrefs the list. */
json_t *rl_watch_end(RlDoctor *doctor, Run *run, int64_t step);

#endif
