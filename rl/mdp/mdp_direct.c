/* SPDX-License-Identifier: Apache-2.0 */
/* Values of one policy: n linear equations (I - gamma P) V = r. */
#include "lib/base/system.h"
#include "lib/tensor/openblas.h"
#include "rl/mdp/mdp_form.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

typedef struct System {
    const MdpForm *form;
    const int64_t *rows;
    const double *reward;
    double gamma;
} System;

static double expect(const System *system, int64_t s, const double *V) { return system->gamma * form_expect(system->form, system->rows[s], V); }

/* out = r - (I - gamma P) V; r = 0 if `without_reward`. Returns the largest absolute entry. */
static double residual(const System *system, const double *V, bool without_reward, double *out) {
    double most = 0;
    const MdpForm *form = system->form;
#pragma omp parallel for schedule(static, 1024) reduction(max : most) if (form->n > 4096)
    for (int64_t s = 0; s < form->n; s++) {
        out[s] = form_is_nonterminal(form, s) ? (without_reward ? 0 : system->reward[system->rows[s]]) + expect(system, s, V) - V[s] : 0;
        if (!(fabs(out[s]) <= most)) most = fabs(out[s]);
    }
    out[form->n] = 0;
    return most;
}

/* ---- by LU factors, with one step of refinement ---- */

/* A matrix for LAPACK, by columns: full, or the band around the diagonal with all nonzero entries. */
typedef struct Matrix {
    double *a;
    int *pivots;
    int n, rows, below, above;
    bool banded;
    const OpenBlas *blas;
} Matrix;

/* Largest distances of entries from the diagonal. */
static void measure_band(const System *system, const int *index, Matrix *matrix) {
    const MdpForm *form = system->form;
    for (int32_t s = 0; s < form->n; s++) {
        if (!form_is_nonterminal(form, s)) continue;
        for (int64_t k = form->begin[system->rows[s]]; k < form->begin[system->rows[s] + 1]; k++) {
            int32_t next = form->next[k];
            if (next >= form->n || !form_is_nonterminal(form, next)) continue;
            int right = index ? index[next] - index[s] : next - s;
            matrix->above = MAX(matrix->above, right);
            matrix->below = MAX(matrix->below, -right);
        }
    }
    matrix->banded = form->n > FORM_DIRECT && 4 * ((int64_t)matrix->below + matrix->above) < form->n;
    matrix->rows = matrix->banded ? 2 * matrix->below + matrix->above + 1 : matrix->n;
}

/* Number of operations of solve_direct; INFINITY if it needs too much memory. */
static double direct_cost(const System *system) {
    Matrix matrix = {.n = system->form->n};
    measure_band(system, NULL, &matrix);
    double n = matrix.n, below = matrix.below;
    if (n * matrix.rows > (1 << 26)) return (double)INFINITY;
    return matrix.banded ? 2 * n * below * (below + matrix.above + 1) : n * n * n * 2 / 3;
}

static double *matrix_at(const Matrix *matrix, int row, int column) {
    return matrix->a + (matrix->banded ? matrix->below + matrix->above + row - column : row) + (size_t)column * (size_t)matrix->rows;
}

static void matrix_factor(const Matrix *matrix, int *info) {
    if (matrix->banded)
        matrix->blas->dgbtrf(&matrix->n, &matrix->n, &matrix->below, &matrix->above, matrix->a, &matrix->rows, matrix->pivots, info);
    else
        matrix->blas->dgetrf(&matrix->n, &matrix->n, matrix->a, &matrix->n, matrix->pivots, info);
}

static void matrix_solve(const Matrix *matrix, double *x) {
    int one = 1, info;
    if (matrix->banded)
        matrix->blas->dgbtrs("N", &matrix->n, &matrix->below, &matrix->above, &one, matrix->a, &matrix->rows, matrix->pivots, x, &matrix->n, &info,
                             1);
    else
        matrix->blas->dgetrs("N", &matrix->n, &one, matrix->a, &matrix->n, matrix->pivots, x, &matrix->n, &info, 1);
}

static Status solve_direct(const System *system, double *V) {
    const MdpForm *form = system->form;
    int n = 0, info;
    int *index = malloc(((size_t)form->n + 1) * sizeof *index);
    if (!index) return status_fail(ST_RESOURCE, "out of memory");
    for (int32_t s = 0; s < form->n; s++) index[s] = form_is_nonterminal(form, s) ? n++ : -1;
    index[form->n] = -1;
    Matrix matrix = {.n = n};
    measure_band(system, index, &matrix);
    double *a = matrix.a = calloc((size_t)matrix.rows * (size_t)n + 1, sizeof *a), *x = malloc(((size_t)n + 1) * sizeof *x),
           *r = malloc(((size_t)form->n + 1) * sizeof *r);
    int *pivots = matrix.pivots = malloc(((size_t)n + 1) * sizeof *pivots);
    Status status = a && x && r && pivots ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    if (n > 0 && status == ST_OK) status = openblas_load(1, &matrix.blas);
    if (status == ST_OK && n > 0) {
        for (int32_t s = 0; s < form->n; s++) {
            if (index[s] < 0) continue;
            int64_t row = system->rows[s];
            *matrix_at(&matrix, index[s], index[s]) += 1;
            for (int64_t k = form->begin[row]; k < form->begin[row + 1]; k++)
                if (index[form->next[k]] >= 0) *matrix_at(&matrix, index[s], index[form->next[k]]) -= system->gamma * form->probability[k];
        }
        int threads = omp_get_max_threads();
        omp_set_num_threads(1); /* rounding depends on the number of threads */
        matrix_factor(&matrix, &info);
        omp_set_num_threads(threads);
        if (info != 0) status = status_fail(ST_NUMERIC, "the equations of the policy's values are singular");
        memset(V, 0, ((size_t)form->n + 1) * sizeof *V);
        for (int pass = 0; pass < 2 && status == ST_OK; pass++) {
            residual(system, V, false, r);
            for (int32_t s = 0; s < form->n; s++)
                if (index[s] >= 0) x[index[s]] = r[s];
            matrix_solve(&matrix, x);
            for (int32_t s = 0; s < form->n; s++)
                if (index[s] >= 0) V[s] += x[index[s]];
        }
    }
    free(index);
    free(a);
    free(x);
    free(r);
    free(pivots);
    return status;
}

/* ---- BiCGSTAB (van der Vorst 1992), sums by blocks so that threads change nothing ---- */

static double mdp_direct_dot(const double *a, const double *b, int64_t n) {
    enum { BLOCK = 4096 };
    double sums[64] = {0}, sum = 0;
    for (int64_t first = 0; first < n; first += BLOCK * 64) {
        int64_t blocks = MIN(64, (n - first + BLOCK - 1) / BLOCK);
#pragma omp parallel for if (blocks > 4)
        for (int64_t i = 0; i < blocks; i++) {
            sums[i] = 0;
            for (int64_t k = first + i * BLOCK; k < MIN(n, first + (i + 1) * BLOCK); k++) sums[i] += a[k] * b[k];
        }
        for (int64_t i = 0; i < blocks; i++) sum += sums[i];
    }
    return sum;
}

/* out = (I - gamma P) x */
static void multiply(const System *system, const double *x, double *out) {
    residual(system, x, true, out);
    for (int64_t s = 0; s < system->form->n; s++) out[s] = -out[s];
}

static Status bicgstab(const System *system, double target, int64_t limit, double *V, int64_t *iterations) {
    enum { VECTORS = 6 };
    int64_t n = system->form->n;
    double *memory = calloc((size_t)(n + 1) * VECTORS, sizeof *memory);
    if (!memory) return status_fail(ST_RESOURCE, "out of memory");
    double *r = memory, *r0 = r + n + 1, *p = r0 + n + 1, *v = p + n + 1, *s = v + n + 1, *t = s + n + 1;
    double rho = 1, alpha = 1, omega = 1;
    double most = residual(system, V, false, r);
    memcpy(r0, r, (size_t)n * sizeof *r);
    for (int64_t i = 0; i < limit && most > target && isfinite(most) && !interrupt_requested(); i++, ++*iterations) {
        double new_rho = mdp_direct_dot(r0, r, n), beta = new_rho / rho * (alpha / omega);
        if (!isfinite(beta) || new_rho == 0) break;
        rho = new_rho;
        for (int64_t k = 0; k < n; k++) p[k] = r[k] + beta * (p[k] - omega * v[k]);
        multiply(system, p, v);
        alpha = rho / mdp_direct_dot(r0, v, n);
        if (!isfinite(alpha)) break;
        for (int64_t k = 0; k < n; k++) s[k] = r[k] - alpha * v[k];
        multiply(system, s, t);
        double tt = mdp_direct_dot(t, t, n);
        omega = tt > 0 ? mdp_direct_dot(t, s, n) / tt : 0;
        most = 0;
        for (int64_t k = 0; k < n; k++) {
            V[k] += alpha * p[k] + omega * s[k];
            r[k] = s[k] - omega * t[k];
            most = fmax(most, fabs(r[k]));
        }
        if (omega == 0) break;
    }
    free(memory);
    return ST_OK;
}

/* Gauss-Seidel sweeps: slow, but they make progress where BiCGSTAB is stuck. */
static double gauss_seidel(const System *system, double *V) {
    const MdpForm *form = system->form;
    double most = 0;
    for (int32_t s = 0; s < form->n; s++) {
        if (!form_is_nonterminal(form, s)) continue;
        double value = system->reward[system->rows[s]] + expect(system, s, V);
        most = fmax(most, fabs(value - V[s]));
        V[s] = value;
    }
    return most;
}

static double size_of(const MdpForm *form, const double *V) {
    double size = 0;
    for (int64_t s = 0; s < form->n; s++) size = fmax(size, fabs(V[s]));
    return size;
}

/* BiCGSTAB as long as it makes progress, `limit` iterations at a time. *off: the largest remaining residual. */
static Status solve_iterative(const System *system, double target, int64_t limit, double *V, double *off, int64_t *count) {
    enum { ROUNDS = 4 };
    size_t bytes = ((size_t)system->form->n + 1) * sizeof(double);
    double *r = malloc(bytes), *best = malloc(bytes);
    Status status = r && best ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    if (status == ST_OK) *off = residual(system, V, false, r);
    for (int round = 0; round < ROUNDS && status == ST_OK && *off > target; round++) {
        memcpy(best, V, bytes);
        status = bicgstab(system, target / 2, limit, V, count); /* its recursive residual drifts from the true one: restart from the true one */
        double now = residual(system, V, false, r);
        if (!(now < *off)) {
            memcpy(V, best, bytes);
            break;
        }
        *off = now;
    }
    free(r);
    free(best);
    return status;
}

/* A residual that counts as solved. A policy's rewards are at most twice as large as its values. */
static double rounding_of(const MdpForm *form, const double *V) { return 128 * UNIT_ROUNDOFF * size_of(form, V); }

enum { ITERATIONS = 2000 };
#define DIRECT_AT_LAST 1.44e11 /* operations: a full matrix of 6000 states, a band in a much larger world */
#define DIRECT_AT_FIRST 2e8    /* tried before any iterations: corridors, in which iterations take as many steps as there are states */

FormJump form_policy_jump(const MdpForm *form, const int64_t *rows, double target, double *sweeps, double *V, double *scratch) {
    enum { ROUNDS = 4, SWEEPS_OF_ONE = 10 }; /* costs in sweeps: an iteration of BiCGSTAB is SWEEPS_OF_ONE */
    System system = {form, rows, form->reward, form->gamma};
    int64_t count = 0, limit = (int64_t)fmin(fmax(*sweeps / (ROUNDS * SWEEPS_OF_ONE), 1), ITERATIONS);
    double before = residual(&system, V, false, scratch), off = before, n = (double)form->n;
    memcpy(scratch, V, ((size_t)form->n + 1) * sizeof *V);
    double direct = direct_cost(&system);
    Status status = form->n > FORM_DIRECT && direct > DIRECT_AT_FIRST ? solve_iterative(&system, target, limit, V, &off, &count) : ST_OK;
    bool solved = off <= fmax(target, rounding_of(form, V));
    /* Direct solution takes about 0.1 ns per operation, a sweep 0.6 ns per entry */
    double entries = n * (double)form->begin[form->n_rows] / (double)form->n_rows, of_direct = direct / (6 * entries);
    bool affordable = direct <= DIRECT_AT_LAST && of_direct < *sweeps;
    *sweeps = (double)(SWEEPS_OF_ONE * count);
    if (status == ST_OK && !solved && affordable) {
        status = solve_direct(&system, V);
        solved = status == ST_OK && isfinite(size_of(form, V));
        off = solved ? 0 : before;
        *sweeps += of_direct;
    }
    if (status == ST_OK && solved) return JUMP_SOLVED;
    if (status == ST_OK && off < 0.1 * before) return JUMP_NEARER;
    memcpy(V, scratch, ((size_t)form->n + 1) * sizeof *V);
    return JUMP_NONE;
}

Status form_policy_values(const MdpForm *form, const int64_t *rows, const double *reward, double gamma, double target, double *V, int64_t *sweeps) {
    enum { LIMIT = 100000 };
    System system = {form, rows, reward ? reward : form->reward, gamma};
    int64_t count = 0;
    double off, direct = form->n > FORM_DIRECT ? direct_cost(&system) : 0;
    if (direct > DIRECT_AT_FIRST) {
        TRY(solve_iterative(&system, target, ITERATIONS, V, &off, &count));
        bool stuck = off > target && off > rounding_of(form, V);
        if (stuck && direct <= DIRECT_AT_LAST) TRY(solve_direct(&system, V));
        for (int64_t i = 0; stuck && direct > DIRECT_AT_LAST && i < LIMIT && off > target && !interrupt_requested(); i++, count++) {
            off = gauss_seidel(&system, V);
            if (i % 256 == 0 && off <= 8 * UNIT_ROUNDOFF * size_of(form, V)) break;
        }
    } else
        TRY(solve_direct(&system, V));
    if (sweeps) *sweeps = MAX(count, 1);
    return ST_OK;
}
