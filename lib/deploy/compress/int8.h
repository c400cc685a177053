/* SPDX-License-Identifier: Apache-2.0 */
/* Weights and activations of 8 bits: SmoothQuant's scales, and ranges of activations. Source: arXiv 2211.10438. */
#ifndef TUNE_INT8_H
#define TUNE_INT8_H

#include "lib/deploy/compress/awq.h"

/* Scales of columns, (in): s_j = max|X_j|^alpha / max|W_:j|^(1 - alpha). Inputs are divided, weights multiplied by them. */
void smooth_scales(const WeightGroup *group, const double *abs_max, double alpha, double *scales);
/* The squared error of the outputs of `tokens` rows of x, (tokens, in), if weights have 8 bits a row and inputs 8 bits a token, as a share of the
 * outputs' squares. scales: of columns. Products are computed on the runtime's device, in f32 or f64. ST_RESOURCE. */
Status int8_error(const Runtime *runtime, const WeightGroup *group, const Grid *grid, const float *x, int64_t tokens, const double *scales,
                  double *error);

typedef enum RangeKind { RANGE_ABSMAX, RANGE_PERCENTILE, RANGE_MSE, RANGE_ENTROPY } RangeKind;
/* The bound of |x| that becomes 127, for activations with a fixed scale. percentile: 0 to 100, of that kind. ST_RESOURCE. */
Status activation_range(RangeKind kind, const float *x, int64_t n, double percentile, double *bound);
/* Rounds a token's values to 8 bits, in place: by its own largest value, or by a fixed bound above 0. */
void round_activations(double *x, int64_t n, double bound);

#endif
