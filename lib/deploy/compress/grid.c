/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/deploy/compress/grid.h"

#include <float.h>
#include <math.h>

#include "lib/model/convert.h"

Status codes_new(Arena *arena, const Grid *grid, int64_t out, int64_t in, Codes *codes) {
    const int64_t n_groups = in / grid->group;
    ASSERT(grid->group > 0 && in % grid->group == 0, "groups of %lld inputs in a row of %lld", (long long)grid->group, (long long)in);
    *codes = (Codes){.out = out, .in = in, .group = grid->group, .n_groups = n_groups};
    codes->codes = arena_zero(arena, (size_t)(out * in));
    codes->scales = arena_zero(arena, (size_t)(out * n_groups) * sizeof *codes->scales);
    codes->zeros = arena_zero(arena, (size_t)(out * n_groups) * sizeof *codes->zeros);
    return codes->codes && codes->scales && codes->zeros ? ST_OK : ST_RESOURCE;
}

double scale_rounded(DType dtype, double scale) {
    static const double least_f16 = 5.9604644775390625e-8; /* 2^-24 */
    if (dtype != DT_BF16 && dtype != DT_F16) return scale;
    uint16_t stored;
    double rounded;
    convert_elements(&scale, DT_F64, &stored, dtype, 1);
    convert_elements(&stored, dtype, &rounded, DT_F64, 1);
    if (rounded > 0 || !(scale > 0)) return rounded;
    return dtype == DT_F16 ? least_f16 : (double)FLT_MIN;
}

void grid_of_range(const Grid *grid, double low, double high, double *scale, int32_t *zero) {
    const int steps = (1 << grid->bits) - 1, middle = 1 << (grid->bits - 1);
    low = MIN(low, 0);
    high = MAX(high, 0);
    if (low == 0 && high == 0) low = -1, high = 1;
    const double most = MAX(-low, high);
    *zero = middle;
    switch (grid->kind) {
    case GRID_SYMMETRIC: *scale = scale_rounded(grid->scales, 2 * most / steps); break;
    case GRID_INT8: *scale = scale_rounded(grid->scales, most / (middle - 1)); break;
    case GRID_ASYMMETRIC:
        *scale = scale_rounded(grid->scales, (high - low) / steps);
        *zero = (int32_t)MIN(MAX(rint(-low / *scale), 0), steps);
        break;
    }
}

void grid_of_values(const Grid *grid, const double *values, int64_t n, double *scale, int32_t *zero) {
    double low = 0, high = 0;
    for (int64_t i = 0; i < n; i++) {
        low = MIN(low, values[i]);
        high = MAX(high, values[i]);
    }
    grid_of_range(grid, low, high, scale, zero);
}

int grid_code(const Grid *grid, double value, double scale, int32_t zero) {
    const double least = grid->kind == GRID_INT8, most = (1 << grid->bits) - 1;
    return (int)MIN(MAX(rint(value / scale) + zero, least), most);
}

void codes_round(const Grid *grid, const double *weight, Codes *codes) {
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < codes->out; o++)
        for (int64_t g = 0; g < codes->n_groups; g++) {
            const double *values = weight + o * codes->in + g * codes->group;
            double *scale = &codes->scales[o * codes->n_groups + g];
            int32_t *zero = &codes->zeros[o * codes->n_groups + g];
            grid_of_values(grid, values, codes->group, scale, zero);
            for (int64_t i = 0; i < codes->group; i++)
                codes->codes[o * codes->in + g * codes->group + i] = (uint8_t)grid_code(grid, values[i], *scale, *zero);
        }
}

void codes_values(const Codes *codes, double *values) {
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < codes->out; o++)
        for (int64_t g = 0; g < codes->n_groups; g++) {
            const double scale = codes->scales[o * codes->n_groups + g];
            const int zero = codes->zeros[o * codes->n_groups + g];
            const int64_t at = o * codes->in + g * codes->group;
            for (int64_t i = 0; i < codes->group; i++) values[at + i] = scale * (codes->codes[at + i] - zero);
        }
}
