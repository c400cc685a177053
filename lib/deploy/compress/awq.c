/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/deploy/compress/awq.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* ---- scales ---- */

/* The mean over all rows of |w| divided by the largest |w| of its group. */
static void mean_sizes(const WeightGroup *group, int64_t shared, double *sizes) {
    double rows = 0;
    for (int64_t i = 0; i < group->in; i++) sizes[i] = 0;
    for (int m = 0; m < group->n; m++) {
        rows += (double)group->outs[m];
        for (int64_t at = 0; at < group->outs[m] * group->in; at += shared) {
            const double *values = group->weights[m] + at;
            double most = 0;
            for (int64_t i = 0; i < shared; i++) most = MAX(most, fabs(values[i]));
            for (int64_t i = 0; i < shared; i++) sizes[at % group->in + i] += fabs(values[i]) / (most + 1e-6);
        }
    }
    for (int64_t i = 0; i < group->in; i++) sizes[i] /= MAX(rows, 1);
}

static void scales_of_ratio(const InputSums *sums, const double *sizes, double ratio, double *scales) {
    double least = DBL_MAX, most = 0;
    for (int64_t i = 0; i < sums->in; i++) {
        const double mean = sums->abs_sum[i] / (double)MAX(sums->tokens, 1);
        scales[i] = MAX(pow(mean, ratio) / (sizes ? pow(sizes[i], 1 - ratio) + 1e-4 : 1), 1e-4);
        least = MIN(least, scales[i]);
        most = MAX(most, scales[i]);
    }
    for (int64_t i = 0; i < sums->in; i++) scales[i] /= sqrt(most * least);
}

/* The change of one weight, in the coordinates of the unscaled input: W - Q(W s) / s. change: (out, in). */
static Status change_of(const double *weight, int64_t out, const Grid *grid, int64_t in, const double *scales, double *change) {
    Arena *arena = arena_new(0);
    Codes codes;
    Status status = arena ? codes_new(arena, grid, out, in, &codes) : ST_RESOURCE;
    for (int64_t o = 0; o < out && status == ST_OK; o++)
        for (int64_t i = 0; i < in; i++) change[o * in + i] = weight[o * in + i] * scales[i];
    if (status == ST_OK) codes_round(grid, change, &codes);
    for (int64_t o = 0; o < out && status == ST_OK; o++)
        for (int64_t i = 0; i < in; i++) change[o * in + i] = weight[o * in + i] - codes_get(&codes, o, i) / scales[i];
    arena_free(arena);
    return status;
}

Status awq_error(const WeightGroup *group, const Grid *grid, const GramProducts *gram, const double *scales, double *error) {
    double outputs = 0, total = 0;
    for (int m = 0; m < group->n; m++) {
        double *change = malloc((size_t)(group->outs[m] * group->in) * sizeof *change), sum = 0;
        Status status = change ? change_of(group->weights[m], group->outs[m], grid, group->in, scales, change)
                               : status_fail(ST_RESOURCE, "no memory for a changed weight");
        if (status == ST_OK) status = gram_total(gram, change, group->outs[m], &sum);
        free(change);
        TRY(status);
        total += sum;
        outputs += (double)group->outs[m];
    }
    *error = total / (outputs * (double)MAX(gram->tokens, 1));
    return ST_OK;
}

Status awq_scales(const WeightGroup *group, const Grid *grid, const InputSums *sums, const GramProducts *gram, bool by_weights, double *scales,
                  AwqSearch *search) {
    double *sizes = malloc((size_t)group->in * sizeof *sizes);
    if (!sizes) return status_fail(ST_RESOURCE, "no memory for scales");
    Status status = ST_OK;
    search->best = 0;
    mean_sizes(group, grid->group, sizes);
    for (int r = 0; r < AWQ_RATIOS && status == ST_OK; r++) {
        scales_of_ratio(sums, by_weights ? sizes : NULL, (double)r / AWQ_RATIOS, scales);
        status = awq_error(group, grid, gram, scales, &search->errors[r]);
        if (search->errors[r] < search->errors[search->best]) search->best = r;
    }
    scales_of_ratio(sums, by_weights ? sizes : NULL, (double)search->best / AWQ_RATIOS, scales);
    free(sizes);
    return status;
}

/* ---- clipping ---- */

/* The squared error of the outputs of one group of a row whose values are cut at `bound`. */
static double clip_error(const Grid *grid, const InputSums *sums, const double *scales, const double *values, int64_t first, double bound,
                         double *change) {
    double scale, error = 0;
    int32_t zero;
    double low = 0, high = 0;
    for (int64_t i = 0; i < grid->group; i++) {
        low = MIN(low, MAX(values[i], -bound));
        high = MAX(high, MIN(values[i], bound));
    }
    grid_of_range(grid, low, high, &scale, &zero);
    for (int64_t i = 0; i < grid->group; i++) {
        const double cut = MIN(MAX(values[i], -bound), bound);
        change[i] = (values[i] - scale * (grid_code(grid, cut, scale, zero) - zero)) / scales[first + i];
    }
    for (int64_t i = 0; i < grid->group; i++) {
        double sum = 0;
        for (int64_t j = 0; j < grid->group; j++) sum += sums->gram[(first + i) * sums->in + first + j] * change[j];
        error += change[i] * sum;
    }
    return error;
}

static double best_bound(const Grid *grid, const InputSums *sums, const double *scales, const double *values, int64_t first, double *change) {
    double most = 0, best = 0, least = DBL_MAX;
    for (int64_t i = 0; i < grid->group; i++) most = MAX(most, fabs(values[i]));
    for (int c = 0; c < AWQ_CLIPS; c++) {
        const double bound = most * (1 - (double)c / 20), error = clip_error(grid, sums, scales, values, first, bound, change);
        if (error < least) least = error, best = bound;
    }
    return best;
}

Status awq_clips(const double *scaled, int64_t out, const Grid *grid, const InputSums *sums, const double *scales, double *bounds) {
    const int64_t in = sums->in, n_groups = in / grid->group;
    bool full = false;
#pragma omp parallel for schedule(dynamic) reduction(|| : full)
    for (int64_t o = 0; o < out; o++) {
        double *change = malloc((size_t)grid->group * sizeof *change);
        for (int64_t g = 0; g < n_groups && change; g++)
            bounds[o * n_groups + g] = best_bound(grid, sums, scales, scaled + o * in + g * grid->group, g * grid->group, change);
        full = full || !change;
        free(change);
    }
    return full ? status_fail(ST_RESOURCE, "no memory for bounds of weights") : ST_OK;
}

void awq_clip(double *scaled, int64_t out, int64_t in, int64_t group, const double *bounds) {
    for (int64_t at = 0; at < out * in; at++) {
        const double bound = bounds[at / group];
        scaled[at] = MIN(MAX(scaled[at], -bound), bound);
    }
}
