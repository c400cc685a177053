/* SPDX-License-Identifier: Apache-2.0 */
/* GPTQ: columns are rounded one after the other, and the error of each is passed on to those after it. Source: arXiv 2210.17323 and its code.
 *
 *     GptqFactor factor;
 *     TRY(gptq_factor(&sums, 0.01, false, arena, &factor));          // once for all layers of the same input
 *     gptq_round(&factor, &grid, false, weight, &codes, &loss);
 */
#ifndef TUNE_GPTQ_H
#define TUNE_GPTQ_H

#include "lib/deploy/compress/grid.h"
#include "lib/deploy/compress/inputs.h"
#include "lib/tensor/openblas.h"

/* Rows and columns that a thread rounds together, in memory that it takes and gives back: (GPTQ_ROWS, in + GPTQ_COLUMNS) doubles. */
enum { GPTQ_ROWS = 64, GPTQ_COLUMNS = 64 };

/* H = 2 / tokens * sum x x^T + damp * mean(diagonal) * identity, with 1 on the diagonal for inputs that are always 0. */
typedef struct GptqFactor {
    int64_t in;
    double *upper;  /* (in, in): U with U^T U = inverse of H, in the order of columns */
    int64_t *order; /* the input of each column */
    bool *dead;     /* of each input: it is always 0 */
    int64_t n_dead;
    double damp;          /* that was used */
    const OpenBlas *blas; /* NULL: all columns are in one block, which needs no products */
} GptqFactor;
/* Loads OpenBLAS if layers of so many inputs need it, else *blas is NULL. ST_RESOURCE: see openblas_load. */
Status gptq_load(int64_t in, const OpenBlas **blas);
/* act_order: columns by descending diagonal of H. If H is not positive definite, or nearer to that than the rounding errors of the sums, damp is
 * multiplied by 10, up to 1, with a warning each time that names `what`. ST_NUMERIC: it still is, or the sums are not finite; ST_RESOURCE, also
 * without OpenBLAS. */
Status gptq_factor(const InputSums *sums, double damp, bool act_order, const char *what, Arena *arena, GptqFactor *factor);
/* Rounds weight, (out, in), whose columns of dead inputs become 0. static_groups: grids are those of the given weights, as with act_order; else of
 * the weights as they are when the group's first column is rounded. *loss: half the sum of squared errors, each divided by U's diagonal.
 * ST_RESOURCE. */
Status gptq_round(const GptqFactor *factor, const Grid *grid, bool static_groups, double *weight, Codes *codes, double *loss);

#endif
