/* SPDX-License-Identifier: Apache-2.0 */
/* Uniform grids of quantised weights: a scale and a zero point for each group of inputs of a row, value = scale * (code - zero).
 *
 *     const Grid grid = {.kind = GRID_SYMMETRIC, .bits = 4, .group = 128, .scales = DT_BF16};
 *     Codes codes;
 *     TRY(codes_new(arena, &grid, out, in, &codes));
 *     codes_round(&grid, weight, &codes);                 // round to nearest
 */
#ifndef TUNE_GRID_H
#define TUNE_GRID_H

#include "lib/base/arena.h"
#include "lib/tensor/tensor.h"

typedef enum GridKind {
    GRID_SYMMETRIC,  /* scale = 2 max |w| / (2^bits - 1), zero = 2^(bits - 1) */
    GRID_ASYMMETRIC, /* from the least to the largest value and 0: scale = (max - min) / (2^bits - 1), zero = -min / scale, rounded */
    GRID_INT8        /* scale = max |w| / 127, zero = 128, codes 1..255 */
} GridKind;
typedef struct Grid {
    GridKind kind;
    int bits;      /* 2 to 8 */
    int64_t group; /* inputs that share a scale; it divides the width */
    DType scales;  /* scales are rounded to it before codes are chosen: bf16, f16; others: they are not */
} Grid;
/* A quantised matrix. Arrays are of the arena that codes_new got. */
typedef struct Codes {
    int64_t out, in, n_groups, group;
    uint8_t *codes; /* (out, in), from 0 on */
    double *scales; /* (out, n_groups) */
    int32_t *zeros; /* likewise */
} Codes;
Status codes_new(Arena *arena, const Grid *grid, int64_t out, int64_t in, Codes *codes); /* ST_RESOURCE */
/* The grid of values from `low` to `high`; of zeros alone it is that of -1..1. The scale is infinite beyond the range of grid->scales. */
void grid_of_range(const Grid *grid, double low, double high, double *scale, int32_t *zero);
void grid_of_values(const Grid *grid, const double *values, int64_t n, double *scale, int32_t *zero);
/* The nearest code; of a quotient in the middle the even one. */
int grid_code(const Grid *grid, double value, double scale, int32_t zero);
double scale_rounded(DType dtype, double scale);                        /* never 0 for a scale above 0 */
void codes_round(const Grid *grid, const double *weight, Codes *codes); /* weight: (out, in) */
void codes_values(const Codes *codes, double *values);                  /* (out, in) */

#endif
