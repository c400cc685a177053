/* SPDX-License-Identifier: Apache-2.0 */
/* Corrections of outputs that rounding has moved. Sources: arXiv 1906.04721 for means. */
#ifndef TUNE_BIAS_H
#define TUNE_BIAS_H

#include "lib/deploy/compress/inputs.h"

/* bias += (weight - rounded) E[x]. weight, rounded: (out, in); bias: (out). */
void bias_by_mean(const double *weight, const double *rounded, int64_t out, const InputSums *sums, double *bias);
/* The factor and the constant of each output that give it back mean and variance: y = gamma * (rounded x) + beta; `bias` is that of the exact
 * layer. An output without variance keeps gamma 1. All (out). ST_RESOURCE. */
Status bias_by_variance(const double *weight, const double *rounded, int64_t out, const InputSums *sums, const GramProducts *gram, const double *bias,
                        double *gamma, double *beta);

#endif
