/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/deploy/compress/int8.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INT8_MOST = 127, BINS = 2048, LEVELS = 128, MSE_BOUNDS = 80 };

/* ---- scales of columns ---- */

void smooth_scales(const WeightGroup *group, const double *abs_max, double alpha, double *scales) {
    for (int64_t i = 0; i < group->in; i++) {
        double most = 0;
        for (int m = 0; m < group->n; m++)
            for (int64_t o = 0; o < group->outs[m]; o++) most = MAX(most, fabs(group->weights[m][o * group->in + i]));
        scales[i] = MAX(pow(MAX(abs_max[i], 1e-5), alpha) / pow(MAX(most, 1e-5), 1 - alpha), 1e-5);
    }
}

void round_activations(double *x, int64_t n, double bound) {
    double most = bound;
    for (int64_t i = 0; i < n && bound <= 0; i++) most = MAX(most, fabs(x[i]));
    const double scale = most / INT8_MOST;
    for (int64_t i = 0; i < n && scale > 0; i++) x[i] = scale * MIN(MAX(rint(x[i] / scale), -INT8_MOST), INT8_MOST);
}

/* x W^T as it is, and with rows of W of 8 bits and x rounded already: the sums over all outputs of the squares of the first and of the differences.
 * given: x / scales, rounded. */
static Status member_error(const WeightGroup *group, int m, const Grid *grid, Tensor *exact_x, Tensor *given, const double *scales, Arena *arena,
                           double sums[2]) {
    const int64_t out = group->outs[m], in = group->in, tokens = tensor_rows(given);
    const Device *device = tensor_device(given);
    double *values = arena_alloc(arena, (size_t)(out * in) * sizeof *values);
    Tensor *weight = tensor_new(arena, device, given->dtype, 2, (int64_t[]){out, in}), *y[2];
    Codes codes;
    TRY(codes_new(arena, grid, out, in, &codes));
    for (int k = 0; k < 2; k++) y[k] = tensor_new(arena, device, given->dtype, 2, (int64_t[]){tokens, out});
    if (!values || !weight || !y[0] || !y[1]) return ST_RESOURCE;
    tensor_write(weight, group->weights[m]);
    device->matmul(&(Matmul){.a = exact_x, .b = weight, .c = y[0], .transpose_b = true, .alpha = 1});
    for (int64_t at = 0; at < out * in; at++) values[at] = group->weights[m][at] * scales[at % in];
    codes_round(grid, values, &codes);
    codes_values(&codes, values);
    tensor_write(weight, values);
    device->matmul(&(Matmul){.a = given, .b = weight, .c = y[1], .transpose_b = true, .alpha = 1});
    for (int64_t at = 0; at < tokens * out; at++) {
        const double exact = tensor_get(y[0], at), error = exact - tensor_get(y[1], at);
        sums[0] += exact * exact;
        sums[1] += error * error;
    }
    return ST_OK;
}

Status int8_error(const Runtime *runtime, const WeightGroup *group, const Grid *grid, const float *x, int64_t tokens, const double *scales,
                  double *error) {
    const int64_t count = tokens * group->in, shape[] = {tokens, group->in};
    const DType wide = runtime->compute == DT_F64 ? DT_F64 : DT_F32;
    Arena *arena = arena_new(0);
    double *values = arena ? arena_alloc(arena, (size_t)count * sizeof *values) : NULL, sums[2] = {0};
    Tensor *exact = arena ? tensor_new(arena, runtime->device, wide, 2, shape) : NULL,
           *given = arena ? tensor_new(arena, runtime->device, wide, 2, shape) : NULL;
    Status status = values && exact && given ? ST_OK : ST_RESOURCE;
    if (status == ST_OK) {
        for (int64_t at = 0; at < count; at++) values[at] = (double)x[at];
        tensor_write(exact, values);
        for (int64_t at = 0; at < count; at++) values[at] /= scales[at % group->in];
        for (int64_t t = 0; t < tokens; t++) round_activations(values + t * group->in, group->in, 0);
        tensor_write(given, values);
    }
    for (int m = 0; m < group->n && status == ST_OK; m++) {
        const ArenaMark mark = arena_mark(arena);
        status = member_error(group, m, grid, exact, given, scales, arena, sums);
        arena_rewind(arena, mark);
    }
    arena_free(arena);
    *error = sums[0] > 0 ? sums[1] / sums[0] : 0;
    return status;
}

/* ---- ranges ---- */

static int by_size(const void *left, const void *right) {
    const float a = *(const float *)left, b = *(const float *)right;
    return a < b ? -1 : a > b;
}

/* Between the two nearest values, in proportion. sizes: sorted. */
static double percentile_of(const float *sizes, int64_t n, double percentile) {
    const double place = percentile / 100 * (double)(n - 1);
    const int64_t below = (int64_t)floor(place), above = MIN(below + 1, n - 1);
    return (double)sizes[below] + (place - (double)below) * ((double)sizes[above] - (double)sizes[below]);
}

static double mse_bound(const float *sizes, int64_t n) {
    const double top = (double)sizes[n - 1];
    double best = top, errors[MSE_BOUNDS];
#pragma omp parallel for schedule(static)
    for (int b = 0; b < MSE_BOUNDS; b++) {
        const double scale = top * (1 - (double)b / 100) / INT8_MOST;
        errors[b] = 0;
        for (int64_t i = 0; i < n; i++) {
            const double size = (double)sizes[i], error = size - scale * MIN(rint(size / scale), INT8_MOST);
            errors[b] += error * error;
        }
    }
    double least = DBL_MAX;
    for (int b = 0; b < MSE_BOUNDS; b++)
        if (errors[b] < least) least = errors[b], best = top * (1 - (double)b / 100);
    return best;
}

/* KL(P || Q): P, the first `end` bins with all others in the last of them; Q, the same bins averaged into LEVELS levels over those that are not
 * empty. Infinite if P has what Q lacks. */
static double divergence_at(const double *bins, int end, double total) {
    double beyond = 0, kept = 0, kl = 0, q[BINS] = {0};
    for (int i = end; i < BINS; i++) beyond += bins[i];
    for (int level = 0; level < LEVELS; level++) {
        const int from = level * end / LEVELS, to = (level + 1) * end / LEVELS;
        double sum = 0;
        int filled = 0;
        for (int i = from; i < to; i++) {
            sum += bins[i];
            filled += bins[i] > 0;
        }
        for (int i = from; i < to; i++)
            if (bins[i] > 0) q[i] = sum / filled;
        kept += sum;
    }
    for (int i = 0; i < end; i++) {
        const double p = (bins[i] + (i == end - 1 ? beyond : 0)) / total;
        if (p == 0) continue;
        if (q[i] == 0) return (double)INFINITY;
        kl += p * log(p / (q[i] / kept));
    }
    return kl;
}

static double entropy_bound(const float *sizes, int64_t n) {
    const double top = (double)sizes[n - 1];
    double bins[BINS] = {0}, divergences[BINS + 1], least = (double)INFINITY;
    int best = BINS;
    for (int64_t i = 0; i < n; i++) bins[MIN((int)((double)sizes[i] / top * BINS), BINS - 1)]++;
#pragma omp parallel for schedule(dynamic)
    for (int end = LEVELS; end <= BINS; end++) divergences[end] = divergence_at(bins, end, (double)n);
    for (int end = LEVELS; end <= BINS; end++)
        if (divergences[end] < least) least = divergences[end], best = end;
    return best * top / BINS;
}

Status activation_range(RangeKind kind, const float *x, int64_t n, double percentile, double *bound) {
    float *sizes = malloc((size_t)MAX(n, 1) * sizeof *sizes);
    if (!sizes) return status_fail(ST_RESOURCE, "no memory for ranges of activations");
    for (int64_t i = 0; i < n; i++) sizes[i] = fabsf(x[i]);
    qsort(sizes, (size_t)n, sizeof *sizes, by_size);
    *bound = n > 0 ? (double)sizes[n - 1] : 0;
    if (*bound > 0 && kind == RANGE_PERCENTILE) *bound = percentile_of(sizes, n, percentile);
    if (*bound > 0 && kind == RANGE_MSE) *bound = mse_bound(sizes, n);
    if (*bound > 0 && kind == RANGE_ENTROPY) *bound = entropy_bound(sizes, n);
    free(sizes);
    return ST_OK;
}
