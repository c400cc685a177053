/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/deploy/compress/gptq.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"

enum { PANEL = GPTQ_COLUMNS, SLICE = 256 };

/* C -= A op(B), with C (m, n). Called by one thread for a fixed part of the work, so the bits do not depend on the number of threads. */
static void subtract_product(const OpenBlas *blas, int transpose_b, int64_t m, int64_t n, int64_t k, const double *a, int64_t lda, const double *b,
                             int64_t ldb, double *c, int64_t ldc) {
    blas->dgemm(BLAS_ROW_MAJOR, BLAS_AS_IT_IS, transpose_b, (int)m, (int)n, (int)k, -1, a, (int)lda, b, (int)ldb, 1, c, (int)ldc);
}

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

/* Columns first..end-1 of the factor, in the rows of these columns. The columns before them are subtracted already. False: a square of the
 * diagonal is not above `least`. */
static bool factor_corner(double *a, int64_t n, int64_t first, int64_t end, double least) {
    for (int64_t j = first; j < end; j++) {
        double *row = a + j * n;
        for (int64_t k = first; k < j; k++) row[k] = (row[k] - dot(row + first, a + k * n + first, k - first)) / a[k * n + k];
        const double square = row[j] - dot(row + first, row + first, j - first);
        if (!(square > least) || !isfinite(square)) return false;
        row[j] = sqrt(square);
    }
    return true;
}

/* Replaces the lower half of a symmetric matrix (n, n) by L with L L^T = the matrix. False: it is not positive definite, or nearer to that than
 * `least`, the rounding errors of its elements. */
static bool cholesky(const OpenBlas *blas, double *a, int64_t n, double least) {
    for (int64_t first = 0; first < n; first += PANEL) {
        const int64_t end = MIN(first + PANEL, n);
#pragma omp parallel for schedule(dynamic) if (first > 0)
        for (int64_t i = first; i < n; i += SLICE)
            if (first > 0)
                subtract_product(blas, BLAS_TRANSPOSED, MIN(SLICE, n - i), end - first, first, a + i * n, n, a + first * n, n, a + i * n + first, n);
        if (!factor_corner(a, n, first, end, least)) return false;
#pragma omp parallel for schedule(static)
        for (int64_t i = end; i < n; i++) {
            double *row = a + i * n;
            for (int64_t j = first; j < end; j++) row[j] = (row[j] - dot(row + first, a + j * n + first, j - first)) / a[j * n + j];
        }
    }
    return true;
}

/* Rows begin..end-1 of a slice of the inverse, whose columns start at `first`: x holds what the rows above add. */
static void invert_corner(const double *l, int64_t n, int64_t begin, int64_t end, int64_t first, int64_t width, double *x) {
    for (int64_t i = begin; i < end; i++) {
        double *row = x + i * n + first;
        if (i - first < width) row[i - first] += 1;
        for (int64_t k = begin; k < i; k++) {
            const double factor = l[i * n + k], *above = x + k * n + first;
#pragma omp simd
            for (int64_t c = 0; c < width; c++) row[c] -= factor * above[c];
        }
        for (int64_t c = 0; c < width; c++) row[c] /= l[i * n + i];
    }
}

/* The inverse of L, lower too, by slices of columns. x: zeros. */
static void invert_lower(const OpenBlas *blas, const double *l, int64_t n, double *x) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t first = 0; first < n; first += SLICE) {
        const int64_t width = MIN(SLICE, n - first);
        for (int64_t i = first; i < n; i += PANEL) {
            const int64_t end = MIN(i + PANEL, n);
            if (i > first)
                subtract_product(blas, BLAS_AS_IT_IS, end - i, width, i - first, l + i * n + first, n, x + first * n + first, n, x + i * n + first,
                                 n);
            invert_corner(l, n, i, end, first, width, x);
        }
    }
}

/* The lower half of H with damping, its rows and columns in the reverse order. diagonal: (in), of H before damping, by input. */
static void fill_reversed(const InputSums *sums, const GptqFactor *factor, const double *diagonal, double added, double *work) {
    const int64_t n = factor->in, last = n - 1;
    const double unit = 2 / (double)MAX(sums->tokens, 1);
#pragma omp parallel for schedule(dynamic, PANEL)
    for (int64_t i = 0; i < n; i++) {
        const int64_t input = factor->order[last - i];
        for (int64_t j = 0; j < i; j++) work[i * n + j] = unit * sums->gram[input * n + factor->order[last - j]];
        work[i * n + i] = diagonal[input] + added;
    }
}

/* H = L L^T with the order of rows and columns reversed, so H = R R^T with R upper, and U is the inverse of R. */
static bool factor_with(const InputSums *sums, const double *diagonal, double mean, double *work, GptqFactor *factor) {
    const int64_t n = factor->in;
    double *upper = factor->upper;
    fill_reversed(sums, factor, diagonal, factor->damp * mean, work);
    if (!cholesky(factor->blas, work, n, (double)n * sums->epsilon * mean)) return false;
    memset(upper, 0, (size_t)(n * n) * sizeof *upper);
    invert_lower(factor->blas, work, n, upper);
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
    status_fail(ST_NUMERIC,
                "the inputs of %s have a matrix that is not positive definite, or nearer to that than its rounding errors, even with damping %g",
                what, damp);
    return status_hint(ST_NUMERIC, "give more, and more varied, calibration rows, or use --method rtn");
}

static Status factor_damped(const InputSums *sums, const double *diagonal, double damp, const char *what, Arena *arena, GptqFactor *factor) {
    double *work = arena_alloc(arena, (size_t)(factor->in * factor->in) * sizeof *work), mean = 0;
    if (!work) return ST_RESOURCE;
    for (int64_t i = 0; i < factor->in; i++) mean += diagonal[i] / (double)factor->in;
    for (factor->damp = damp; !factor_with(sums, diagonal, mean, work, factor);) {
        if (factor->damp >= 1) return not_definite(what, factor->damp);
        const double next = factor->damp > 0 ? MIN(10 * factor->damp, 1) : 0.01;
        log_message(
            LOG_WARNING,
            "the inputs of %s have a matrix that is not positive definite, or nearer to that than its rounding errors, with damping %g: it is "
            "raised to %g",
            what, factor->damp, next);
        factor->damp = next;
    }
    return ST_OK;
}

Status gptq_load(int64_t in, const OpenBlas **blas) {
    *blas = NULL;
    return in > PANEL ? openblas_load(omp_get_max_threads(), blas) : ST_OK;
}

Status gptq_factor(const InputSums *sums, double damp, bool act_order, const char *what, Arena *arena, GptqFactor *factor) {
    const int64_t n = sums->in;
    double *diagonal = arena_alloc(arena, (size_t)n * sizeof *diagonal);
    *factor = (GptqFactor){.in = n,
                           .upper = arena_alloc(arena, (size_t)(n * n) * sizeof *factor->upper),
                           .order = arena_alloc(arena, (size_t)n * sizeof *factor->order),
                           .dead = arena_zero(arena, (size_t)n * sizeof *factor->dead)};
    if (!diagonal || !factor->upper || !factor->order || !factor->dead) return ST_RESOURCE;
    TRY(gptq_load(n, &factor->blas));
    for (int64_t i = 0; i < n; i++) {
        factor->dead[i] = sums->gram[i * n + i] == 0;
        factor->n_dead += factor->dead[i];
        diagonal[i] = factor->dead[i] ? 1 : 2 / (double)MAX(sums->tokens, 1) * sums->gram[i * n + i];
    }
    TRY(order_columns(diagonal, act_order, arena, factor));
    return factor_damped(sums, diagonal, damp, what, arena, factor);
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

/* Columns that are rounded before the others get their errors: a group's grid is found when all columns before it were subtracted. */
static int64_t block_of(const Codes *codes, bool fixed) {
    if (fixed || codes->n_groups == 1 || codes->group % PANEL == 0) return PANEL;
    return codes->group < PANEL ? PANEL / codes->group * codes->group : codes->group;
}

/* Rows that are rounded together, so that U is read once for all of them. */
typedef struct Rows {
    int64_t first, n;
    double *rest;   /* (n, in): weights in the order of columns, less the errors so far */
    double *errors; /* (n, block) */
    double *losses; /* (n) */
} Rows;

/* Rounds columns begin..end-1. */
static void round_block(const GptqFactor *factor, const Grid *grid, bool fixed, int64_t begin, int64_t end, const Rows *rows, Codes *codes) {
    const int64_t in = factor->in, width = end - begin;
    for (int64_t p = begin; p < end; p++)
        for (int64_t r = 0; r < rows->n; r++) {
            double *row = rows->rest + r * in;
            const double *upper = factor->upper + p * in, error = round_column(factor, grid, fixed, p, row, rows->first + r, codes);
#pragma omp simd
            for (int64_t k = p + 1; k < end; k++) row[k] -= error * upper[k];
            rows->errors[r * width + p - begin] = error;
            rows->losses[r] += error * error / 2;
        }
    if (end < in)
        subtract_product(factor->blas, BLAS_AS_IT_IS, rows->n, in - end, width, rows->errors, width, factor->upper + begin * in + end, in,
                         rows->rest + end, in);
}

static void round_rows(const GptqFactor *factor, const Grid *grid, bool fixed, double *weight, const Rows *rows, Codes *codes) {
    const int64_t in = factor->in, block = block_of(codes, fixed);
    for (int64_t r = 0; r < rows->n; r++) {
        double *row = weight + (rows->first + r) * in;
        for (int64_t i = 0; i < in; i++)
            if (factor->dead[i]) row[i] = 0;
        if (fixed) find_grids(grid, row, rows->first + r, codes);
        for (int64_t p = 0; p < in; p++) rows->rest[r * in + p] = row[factor->order[p]];
        rows->losses[r] = 0;
    }
    for (int64_t begin = 0; begin < in; begin += block) round_block(factor, grid, fixed, begin, MIN(begin + block, in), rows, codes);
}

Status gptq_round(const GptqFactor *factor, const Grid *grid, bool static_groups, double *weight, Codes *codes, double *loss) {
    const int64_t out = codes->out, in = factor->in;
    double *losses = malloc((size_t)out * sizeof *losses);
    bool full = !losses, ordered = false;
    for (int64_t p = 0; p < in; p++) ordered |= factor->order[p] != p;
    const bool fixed = static_groups || ordered;
#pragma omp parallel for schedule(dynamic) reduction(|| : full)
    for (int64_t first = 0; first < out; first += GPTQ_ROWS) {
        const int64_t n = MIN(GPTQ_ROWS, out - first);
        double *room = losses ? malloc((size_t)(n * (in + block_of(codes, fixed))) * sizeof *room) : NULL;
        if (room) round_rows(factor, grid, fixed, weight, &(Rows){first, n, room, room + n * in, losses + first}, codes);
        full = full || !room;
        free(room);
    }
    *loss = 0;
    for (int64_t o = 0; o < out && !full; o++) *loss += losses[o];
    free(losses);
    return full ? status_fail(ST_RESOURCE, "no memory to round %lld rows", (long long)out) : ST_OK;
}
