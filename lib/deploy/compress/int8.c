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

typedef struct Rounded {
    const float *x;
    const double *given, *scales; /* x, and x / scales rounded: (tokens, in) */
    int64_t tokens, in;
} Rounded;

/* Adds the squares of a row's exact outputs and of their errors. */
static void add_row(const Rounded *r, const double *row, const Codes *codes, int64_t o, double *squares, double *errors) {
    for (int64_t t = 0; t < r->tokens; t++) {
        double exact = 0, rounded = 0;
        for (int64_t i = 0; i < r->in; i++) {
            exact += (double)r->x[t * r->in + i] * row[i];
            rounded += r->given[t * r->in + i] * (codes->codes[o * r->in + i] - codes->zeros[o]);
        }
        const double error = exact - rounded * codes->scales[o];
        *squares += exact * exact;
        *errors += error * error;
    }
}

static Status member_error(const WeightGroup *group, int m, const Grid *grid, const Rounded *rounded, Arena *arena, double *squares, double *errors) {
    const int64_t out = group->outs[m], in = group->in;
    double *scaled = arena_alloc(arena, (size_t)(out * in) * sizeof *scaled), *sums = arena_zero(arena, (size_t)(2 * out) * sizeof *sums);
    Codes codes;
    TRY(codes_new(arena, grid, out, in, &codes));
    if (!scaled || !sums) return ST_RESOURCE;
    for (int64_t at = 0; at < out * in; at++) scaled[at] = group->weights[m][at] * rounded->scales[at % in];
    codes_round(grid, scaled, &codes);
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < out; o++) add_row(rounded, group->weights[m] + o * in, &codes, o, &sums[2 * o], &sums[2 * o + 1]);
    for (int64_t o = 0; o < out; o++) {
        *squares += sums[2 * o];
        *errors += sums[2 * o + 1];
    }
    return ST_OK;
}

Status int8_error(const WeightGroup *group, const Grid *grid, const float *x, int64_t tokens, const double *scales, double *error) {
    Arena *arena = arena_new(0);
    double *given = arena ? arena_alloc(arena, (size_t)(tokens * group->in) * sizeof *given) : NULL, squares = 0, errors = 0;
    Status status = given ? ST_OK : ST_RESOURCE;
    for (int64_t at = 0; at < tokens * group->in && given; at++) given[at] = (double)x[at] / scales[at % group->in];
    for (int64_t t = 0; t < tokens && given; t++) round_activations(given + t * group->in, group->in, 0);
    const Rounded rounded = {x, given, scales, tokens, group->in};
    for (int m = 0; m < group->n && status == ST_OK; m++) status = member_error(group, m, grid, &rounded, arena, &squares, &errors);
    arena_free(arena);
    *error = squares > 0 ? errors / squares : 0;
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
