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

/* The change of a group of a row, in the coordinates of the unscaled input: w - Q(w s) / s. */
static void change_group(const Grid *grid, const double *values, const double *scales, double *change) {
    double scale;
    int32_t zero;
    for (int64_t i = 0; i < grid->group; i++) change[i] = values[i] * scales[i];
    grid_of_values(grid, change, grid->group, &scale, &zero);
    for (int64_t i = 0; i < grid->group; i++) change[i] = values[i] - scale * (grid_code(grid, change[i], scale, zero) - zero) / scales[i];
}

/* change: (out, in). */
static void change_of(const double *weight, int64_t out, const Grid *grid, int64_t in, const double *scales, double *change) {
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < out; o++)
        for (int64_t g = 0; g < in; g += grid->group) change_group(grid, weight + o * in + g, scales + g, change + o * in + g);
}

Status awq_error(const WeightGroup *group, const Grid *grid, const GramProducts *gram, const double *scales, double *error) {
    double outputs = 0, total = 0;
    Arena *arena = arena_new(0); /* unlike malloc it gives all pages back */
    Status status = arena ? ST_OK : ST_RESOURCE;
    for (int m = 0; m < group->n && status == ST_OK; m++) {
        double *change = arena_alloc(arena, (size_t)(group->outs[m] * group->in) * sizeof *change), sum = 0;
        if (change) change_of(group->weights[m], group->outs[m], grid, group->in, scales, change);
        status = change ? gram_total(gram, change, group->outs[m], &sum) : ST_RESOURCE;
        total += sum;
        outputs += (double)group->outs[m];
        arena_reset(arena);
    }
    arena_free(arena);
    *error = total / (outputs * (double)MAX(gram->tokens, 1));
    return status;
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

/* The inputs of one group: what its errors cost. */
typedef struct ClipGroup {
    const Grid *grid;
    const double *gram, *scales; /* rows and columns of the group: (group, group), `line` apart; (group) */
    int64_t line;
    double *change, *product; /* room: (group) */
} ClipGroup;

/* The squared error of the outputs of one group of a row whose values are cut at `bound`. */
static double clip_error(const ClipGroup *group, const double *values, double bound) {
    const int64_t n = group->grid->group;
    double scale, error = 0, low = 0, high = 0;
    int32_t zero;
    for (int64_t i = 0; i < n; i++) {
        low = MIN(low, MAX(values[i], -bound));
        high = MAX(high, MIN(values[i], bound));
    }
    grid_of_range(group->grid, low, high, &scale, &zero);
    for (int64_t i = 0; i < n; i++) {
        const double cut = MIN(MAX(values[i], -bound), bound);
        group->change[i] = (values[i] - scale * (grid_code(group->grid, cut, scale, zero) - zero)) / group->scales[i];
        group->product[i] = 0;
    }
    for (int64_t j = 0; j < n; j++) {
        const double factor = group->change[j], *row = group->gram + j * group->line;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) group->product[i] += factor * row[i];
    }
    for (int64_t i = 0; i < n; i++) error += group->change[i] * group->product[i];
    return error;
}

static double best_bound(const ClipGroup *group, const double *values) {
    double most = 0, best = 0, least = DBL_MAX;
    for (int64_t i = 0; i < group->grid->group; i++) most = MAX(most, fabs(values[i]));
    for (int c = 0; c < AWQ_CLIPS; c++) {
        const double bound = most * (1 - (double)c / 20), error = clip_error(group, values, bound);
        if (error < least) least = error, best = bound;
    }
    return best;
}

Status awq_clips(const double *scaled, int64_t out, const Grid *grid, const InputSums *sums, const double *scales, double *bounds) {
    enum { ROWS = 64 };
    const int64_t in = sums->in, n_groups = in / grid->group;
    bool full = false;
#pragma omp parallel for schedule(dynamic) collapse(2) reduction(|| : full)
    for (int64_t g = 0; g < n_groups; g++)
        for (int64_t first = 0; first < out; first += ROWS) {
            const int64_t at = g * grid->group;
            double *room = malloc((size_t)(2 * grid->group) * sizeof *room);
            const ClipGroup group = {grid, sums->gram + at * in + at, scales + at, in, room, room ? room + grid->group : NULL};
            for (int64_t o = first; o < MIN(first + ROWS, out) && room; o++) bounds[o * n_groups + g] = best_bound(&group, scaled + o * in + at);
            full = full || !room;
            free(room);
        }
    return full ? status_fail(ST_RESOURCE, "no memory for bounds of weights") : ST_OK;
}

void awq_clip(double *scaled, int64_t out, int64_t in, int64_t group, const double *bounds) {
    for (int64_t at = 0; at < out * in; at++) {
        const double bound = bounds[at / group];
        scaled[at] = MIN(MAX(scaled[at], -bound), bound);
    }
}
