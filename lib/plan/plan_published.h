/* SPDX-License-Identifier: Apache-2.0 */
/* Figures that others have published, each with the figure that our formulas give.
 *
 *     PlanPublished rows[PLAN_PUBLISHED];
 *     size_t n = plan_published(rows);
 */
#ifndef TUNE_PLAN_PUBLISHED_H
#define TUNE_PLAN_PUBLISHED_H

#include "lib/plan/plan_machine.h"

typedef struct PlanPublished {
    const char *source, *what, *unit;
    double theirs, ours;
    const char *remark; /* "" where both agree */
} PlanPublished;
enum { PLAN_PUBLISHED = 128 };
size_t plan_published(PlanPublished rows[PLAN_PUBLISHED]); /* fills the rows and returns their number */

/* Megatron-LM (arXiv 2104.04473, equations 2 to 4), a vocabulary of V and rows of s tokens. */
double megatron_parameters(double layers, double hidden, double V, double s);
double megatron_step_work(double rows, double s, double layers, double hidden, double V); /* with recomputed layers */
double megatron_days(double tokens, double parameters, double gpus, double rate);         /* 8 T P / (n X) */
/* A claim of the kind "a model of psi parameters on so many tokens by n devices in so many hours": the operations per second that each device would
 * need. work: operations per parameter and token, 6 for full training, 4 for adapters. */
double claim_rate(double psi, double tokens, double devices, double hours, double work);

#endif
