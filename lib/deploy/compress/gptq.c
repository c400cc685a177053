/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/deploy/compress/gptq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"

enum { PANEL = 64, TILE = 8 };

/* ---- U ---- */

/* Sums in a fixed order, in eight parts so that the compiler can use vectors. */
static double dot(const double *a, const double *b, int64_t n) {
    double parts[8] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
#pragma omp simd
        for (int k = 0; k < 8; k++) parts[k] += a[i + k] * b[i + k];
    for (; i < n; i++) sum += a[i] * b[i];
    return ((parts[0] + parts[1]) + (parts[2] + parts[3])) + ((parts[4] + parts[5]) + (parts[6] + parts[7])) + sum;
}

/* Replaces the lower half of a symmetric matrix (n, n) by L with L L^T = the matrix. False: it is not positive definite. */
static bool cholesky(double *a, int64_t n) {
    for (int64_t first = 0; first < n; first += PANEL) {
        const int64_t end = MIN(first + PANEL, n);
        for (int64_t j = first; j < end; j++) {
            double *row = a + j * n;
            for (int64_t k = first; k < j; k++) row[k] = (row[k] - dot(row, a + k * n, k)) / a[k * n + k];
            const double square = row[j] - dot(row, row, j);
            if (!(square > 0) || !isfinite(square)) return false;
            row[j] = sqrt(square);
        }
#pragma omp parallel for schedule(static)
        for (int64_t i = end; i < n; i++) {
            double *row = a + i * n;
            for (int64_t j = first; j < end; j++) row[j] = (row[j] - dot(row, a + j * n, j)) / a[j * n + j];
        }
    }
    return true;
}

/* The inverse of L, lower too, by slices of columns. x: zeros. */
static void invert_lower(const double *l, int64_t n, double *x) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t first = 0; first < n; first += PANEL) {
        const int64_t width = MIN(PANEL, n - first);
        for (int64_t i = first; i < n; i++) {
            double row[PANEL] = {0};
            if (i - first < width) row[i - first] = 1;
            for (int64_t k = first; k < i; k++) {
                const double factor = l[i * n + k], *above = x + k * n + first;
#pragma omp simd
                for (int64_t c = 0; c < width; c++) row[c] -= factor * above[c];
            }
            for (int64_t c = 0; c < width; c++) x[i * n + first + c] = row[c] / l[i * n + i];
        }
    }
}

/* With the order of rows and columns reversed, H = L L^T, so H = R R^T with R upper, and U is the inverse of R. */
static bool factor_with(const double *h, double added, int64_t n, double *work, double *upper) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) work[i * n + j] = h[(n - 1 - i) * n + (n - 1 - j)] + (i == j ? added : 0);
    if (!cholesky(work, n)) return false;
    memset(upper, 0, (size_t)(n * n) * sizeof *upper);
    invert_lower(work, n, upper);
    for (int64_t i = 0, last = n * n - 1; i < n * n / 2; i++) {
        const double other = upper[last - i];
        upper[last - i] = upper[i];
        upper[i] = other;
    }
    return true;
}

typedef struct Ranked {
    double diagonal;
    int64_t input;
} Ranked;

static int by_diagonal(const void *left, const void *right) {
    const Ranked *a = left, *b = right;
    if (a->diagonal != b->diagonal) return a->diagonal > b->diagonal ? -1 : 1;
    return a->input < b->input ? -1 : a->input > b->input;
}

static Status order_columns(const double *diagonal, bool act_order, Arena *arena, GptqFactor *factor) {
    Ranked *ranked = arena_alloc(arena, (size_t)factor->in * sizeof *ranked);
    if (!ranked) return ST_RESOURCE;
    for (int64_t i = 0; i < factor->in; i++) ranked[i] = (Ranked){diagonal[i], i};
    if (act_order) qsort(ranked, (size_t)factor->in, sizeof *ranked, by_diagonal);
    for (int64_t i = 0; i < factor->in; i++) factor->order[i] = ranked[i].input;
    return ST_OK;
}

static Status not_definite(const char *what, double damp) {
    status_fail(ST_NUMERIC, "the inputs of %s have a matrix that is not positive definite, even with damping %g", what, damp);
    return status_hint(ST_NUMERIC, "give more, and more varied, calibration rows, or use --method rtn");
}

static Status factor_damped(const double *h, double mean, double damp, const char *what, Arena *arena, GptqFactor *factor) {
    const int64_t n = factor->in;
    double *work = arena_alloc(arena, (size_t)(n * n) * sizeof *work);
    if (!work) return ST_RESOURCE;
    for (factor->damp = damp; !factor_with(h, factor->damp * mean, n, work, factor->upper);) {
        if (factor->damp >= 1) return not_definite(what, factor->damp);
        const double next = factor->damp > 0 ? MIN(10 * factor->damp, 1) : 0.01;
        log_message(LOG_WARNING, "the inputs of %s have a matrix that is not positive definite with damping %g: it is raised to %g", what,
                    factor->damp, next);
        factor->damp = next;
    }
    return ST_OK;
}

Status gptq_factor(const InputSums *sums, double damp, bool act_order, const char *what, Arena *arena, GptqFactor *factor) {
    const int64_t n = sums->in;
    double *h = arena_alloc(arena, (size_t)(n * n) * sizeof *h), *diagonal = arena_alloc(arena, (size_t)n * sizeof *diagonal), mean = 0;
    *factor = (GptqFactor){.in = n,
                           .upper = arena_alloc(arena, (size_t)(n * n) * sizeof *factor->upper),
                           .order = arena_alloc(arena, (size_t)n * sizeof *factor->order),
                           .dead = arena_zero(arena, (size_t)n * sizeof *factor->dead)};
    if (!h || !diagonal || !factor->upper || !factor->order || !factor->dead) return ST_RESOURCE;
    const double unit = 2 / (double)MAX(sums->tokens, 1);
    for (int64_t i = 0; i < n; i++) {
        factor->dead[i] = sums->gram[i * n + i] == 0;
        factor->n_dead += factor->dead[i];
        diagonal[i] = factor->dead[i] ? 1 : unit * sums->gram[i * n + i];
        mean += diagonal[i] / (double)n;
    }
    TRY(order_columns(diagonal, act_order, arena, factor));
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            h[i * n + j] = i == j ? diagonal[factor->order[i]] : unit * sums->gram[factor->order[i] * n + factor->order[j]];
    return factor_damped(h, mean, damp, what, arena, factor);
}

/* ---- columns ---- */

/* The grids of natural groups of the given weights. */
static void find_grids(const Grid *grid, const double *row, int64_t o, Codes *codes) {
    for (int64_t g = 0; g < codes->n_groups; g++)
        grid_of_values(grid, row + g * codes->group, codes->group, &codes->scales[o * codes->n_groups + g], &codes->zeros[o * codes->n_groups + g]);
}

/* Rounds column p of row o; rest: the row's weights in the order of columns. Returns the error to pass on. */
static double round_column(const GptqFactor *factor, const Grid *grid, bool fixed, int64_t p, const double *rest, int64_t o, Codes *codes) {
    const int64_t input = factor->order[p], at = o * codes->n_groups + input / codes->group;
    if (!fixed && input % codes->group == 0) grid_of_values(grid, rest + p, codes->group, &codes->scales[at], &codes->zeros[at]);
    const int code = grid_code(grid, rest[p], codes->scales[at], codes->zeros[at]);
    codes->codes[o * codes->in + input] = (uint8_t)code;
    return (rest[p] - codes->scales[at] * (code - codes->zeros[at])) / factor->upper[p * factor->in + p];
}

/* Several rows at a time, so that a row of U is read from memory once for all of them. */
static void round_rows(const GptqFactor *factor, const Grid *grid, bool fixed, int64_t first, int64_t n, double *weight, double *rest, Codes *codes,
                       double *losses) {
    const int64_t in = factor->in;
    for (int64_t r = 0; r < n; r++) {
        double *row = weight + (first + r) * in;
        for (int64_t i = 0; i < in; i++)
            if (factor->dead[i]) row[i] = 0;
        if (fixed) find_grids(grid, row, first + r, codes);
        for (int64_t p = 0; p < in; p++) rest[r * in + p] = row[factor->order[p]];
        losses[first + r] = 0;
    }
    for (int64_t p = 0; p < in; p++)
        for (int64_t r = 0; r < n; r++) {
            const double *upper = factor->upper + p * in, error = round_column(factor, grid, fixed, p, rest + r * in, first + r, codes);
            double *row = rest + r * in;
#pragma omp simd
            for (int64_t k = p + 1; k < in; k++) row[k] -= error * upper[k];
            losses[first + r] += error * error / 2;
        }
}

Status gptq_round(const GptqFactor *factor, const Grid *grid, bool static_groups, double *weight, Codes *codes, double *loss) {
    const int64_t out = codes->out, in = factor->in;
    double *losses = malloc((size_t)out * sizeof *losses);
    bool full = !losses, ordered = false;
    for (int64_t p = 0; p < in; p++) ordered |= factor->order[p] != p;
#pragma omp parallel for schedule(dynamic) reduction(|| : full)
    for (int64_t first = 0; first < out; first += TILE) {
        double *rest = losses ? malloc((size_t)(TILE * in) * sizeof *rest) : NULL;
        if (rest) round_rows(factor, grid, static_groups || ordered, first, MIN(TILE, out - first), weight, rest, codes, losses);
        full = full || !rest;
        free(rest);
    }
    *loss = 0;
    for (int64_t o = 0; o < out && !full; o++) *loss += losses[o];
    free(losses);
    return full ? status_fail(ST_RESOURCE, "no memory to round %lld rows", (long long)out) : ST_OK;
}
