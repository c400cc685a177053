/* SPDX-License-Identifier: Apache-2.0 */
/* AWQ: inputs with large values get finer steps, by scaling the columns of the weights that read them. Source: arXiv 2306.00978 and its code. */
#ifndef TUNE_AWQ_H
#define TUNE_AWQ_H

#include "lib/deploy/compress/grid.h"
#include "lib/deploy/compress/inputs.h"

enum { AWQ_RATIOS = 20, AWQ_CLIPS = 10 };
/* Layers that read the same input: `n` weights of (outs[i], in). */
typedef struct WeightGroup {
    int n;
    int64_t in;
    const double *weights[LINEARS_MOST];
    int64_t outs[LINEARS_MOST];
} WeightGroup;
typedef struct AwqSearch {
    double errors[AWQ_RATIOS]; /* mean squared error of the outputs with ratio i / 20 */
    int best;
} AwqSearch;
/* Finds the scale of each column, (in): the weights are multiplied and the inputs divided by it. by_weights: also by the mean size of weights within
 * their groups. ST_RESOURCE. */
Status awq_scales(const WeightGroup *group, const Grid *grid, const InputSums *sums, const GramProducts *gram, bool by_weights, double *scales,
                  AwqSearch *search);
/* The mean squared error of the outputs with these scales of columns. ST_RESOURCE. */
Status awq_error(const WeightGroup *group, const Grid *grid, const GramProducts *gram, const double *scales, double *error);
/* Bounds on the size of the values of each group of a weight whose columns have been scaled: (out, n_groups), of the least error of the outputs.
 * ST_RESOURCE. */
Status awq_clips(const double *scaled, int64_t out, const Grid *grid, const InputSums *sums, const double *scales, double *bounds);
void awq_clip(double *scaled, int64_t out, int64_t in, int64_t group, const double *bounds); /* applies them */

#endif
