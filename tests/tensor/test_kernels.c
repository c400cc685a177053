/* SPDX-License-Identifier: Apache-2.0 */
/* The fast kernels against the plain loops of the reference device, on every instruction set that this processor has, with one thread and with two;
 * the reference against values that a script of the plain formulas gave in double; and attention's promise that a token's bits do not depend on how
 * it is computed. */
#include "tests/support/backends.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#include "lib/tensor/cpu/vector_math.h"
#include "lib/tensor/tensor.h"

/* ---- running a body everywhere ---- */

/* Results of the slow reference, which do not depend on the instruction set: computed with the first set, looked up with the others. */
typedef struct Kept {
    Arena *arena;
    Tensor *list[512];
    size_t n;
} Kept;

/* What a test body gets. Everything it draws is the same in every run, so `hash` of all results must be, too, for any number of threads. The slow
 * reference, which has no threads, is asked once only: with more than one thread, and with ONE_SET, `plain` is the fast device as well. */
typedef struct Run {
    Arena *arena;
    const Device *fast, *plain;
    uint64_t draws, hash;
    Kept *kept;
    size_t n_kept; /* looked up in this run */
} Run;

static void everywhere(void (*body)(Run *)) {
    int threads = omp_get_max_threads();
    size_t most = largest_isa();
    Kept kept = {.arena = arena_new(0)};
    for (size_t i = 0; i < COUNT_OF(isas); i++) {
        if ((ONE_SET && i != most) || cpu_configure(NULL, isas[i]) != ST_OK) continue;
        uint64_t first = 0;
        for (int n = 1; n <= 3; n += ALL_OR_FEW(1, 2)) {
            Run run = {arena_new(0), device_cpu(), n == 1 && !ONE_SET ? device_reference() : device_cpu(), 0, 14695981039346656037u, &kept, 0};
            omp_set_num_threads(n);
            body(&run);
            if (n == 1) first = run.hash;
            if (run.hash != first) fail_msg("%s: the bits with %d threads differ from those with 1", isas[i], n);
            arena_free(run.arena);
        }
    }
    arena_free(kept.arena);
    omp_set_num_threads(threads);
    check_ok(cpu_configure(NULL, NULL));
}

static Tensor *shaped(Run *run, DType dtype, int64_t rows, int64_t width) {
    Tensor *tensor = tensor_new(run->arena, run->plain, dtype, 2, (const int64_t[]){rows, width});
    assert_non_null(tensor);
    return tensor;
}

/* Filled with NaN: a kernel that reads what it should only write shows. */
static Tensor *fresh(Run *run, DType dtype, int64_t rows, int64_t width) {
    Tensor *tensor = shaped(run, dtype, rows, width);
    memset(tensor->elements, 0xff, tensor_bytes(tensor));
    return tensor;
}

static Tensor *drawn(Run *run, DType dtype, int64_t rows, int64_t width, double size) {
    Tensor *tensor = shaped(run, dtype, rows, width);
    RngKey key = rng_key(7, RNG_TEST, 0);
    for (int64_t i = 0; i < rows * width; i++) tensor_set(tensor, i, size * (2 * rng_uniform(key, run->draws++) - 1));
    return tensor;
}

static Tensor *twin(Run *run, const Tensor *original) {
    Tensor *tensor = shaped(run, original->dtype, tensor_rows(original), tensor_width(original));
    memcpy(tensor->elements, original->elements, tensor_bytes(original));
    return tensor;
}

static Tensor *ids(Run *run, int64_t n, int64_t below) {
    Tensor *tensor = tensor_new(run->arena, run->plain, DT_I32, 1, &n);
    for (int64_t i = 0; i < n; i++) ((int32_t *)tensor->elements)[i] = (int32_t)rng_below(rng_key(8, RNG_TEST, 0), run->draws++, (uint64_t)below);
    return tensor;
}

/* Within `tolerance` x (1 + |want|); a bf16 result may also be off by the rounding of its last bit. */
static void kernels_compare(Run *run, const char *what, const Tensor *got, const Tensor *want, double tolerance) {
    size_t count = (size_t)tensor_count(want);
    double *values = arena_alloc(run->arena, 2 * count * sizeof *values + 1);
    tensor_read(got, values);
    tensor_read(want, values + count);
    double relative = got->dtype == DT_BF16 ? tolerance + 1.0 / 128 : tolerance;
    check_close_f64(what, values, values + count, count, tolerance, relative);
    const uint16_t *words = got->elements; /* every dtype has so many bytes or a multiple of them */
    for (size_t i = 0, n = tensor_bytes(got) / sizeof *words; i < n; i++) run->hash = (run->hash ^ words[i]) * 1099511628211u;
}

static void same_bits(const char *what, const Tensor *got, int64_t got_row, const Tensor *want, int64_t want_row, int64_t n_rows) {
    size_t row = (size_t)tensor_width(want) * dtype_size(want->dtype);
    for (int64_t r = 0; r < n_rows; r++)
        if (memcmp((const char *)got->elements + (size_t)(got_row + r) * row, (const char *)want->elements + (size_t)(want_row + r) * row, row) != 0)
            fail_msg("%s: row %lld differs", what, (long long)r);
}

/* ---- elementwise, rows, updates ---- */

static const struct { int64_t rows, width; } shapes[] = {{1, 1}, {3, 7}, {1, 513}, {37, 64}, {131, 192}, {67, 1030}};
static const struct {
    DType in, out;
} mixes[] = {{DT_F32, DT_F32}, {DT_BF16, DT_BF16}, {DT_F32, DT_BF16}, {DT_BF16, DT_F32}, {DT_F16, DT_F32}, {DT_F64, DT_F64}};

typedef struct Case {
    int64_t rows, width;
    DType in, out;
} Case;

static void each_case(Run *run, void (*body)(Run *, Case)) {
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        for (size_t m = 0; m < COUNT_OF(mixes); m++) {
            ArenaMark mark = arena_mark(run->arena);
            body(run, (Case){shapes[s].rows, shapes[s].width, mixes[m].in, mixes[m].out});
            arena_rewind(run->arena, mark); /* memory that was used before need not be cleared by the system */
        }
}

static void elementwise_case(Run *run, Case c) {
    Tensor *x = drawn(run, c.in, c.rows, c.width, 2), *b = drawn(run, c.out, c.rows, c.width, 2), *bias = drawn(run, c.in, 1, c.width, 1);
    Tensor *got = fresh(run, c.out, c.rows, c.width), *want = fresh(run, c.out, c.rows, c.width);
    run->fast->copy(x, got), run->plain->copy(x, want);
    kernels_compare(run, "copy", got, want, 0);
    run->fast->fill(got, 0.3), run->plain->fill(want, 0.3);
    kernels_compare(run, "fill", got, want, 0);
    run->fast->add(x, b, got), run->plain->add(x, b, want);
    kernels_compare(run, "add", got, want, 1e-6);
    for (double beta = 0; beta <= 1; beta++) {
        run->fast->accumulate(x, -0.7, beta, got), run->plain->accumulate(x, -0.7, beta, want);
        kernels_compare(run, "accumulate", got, want, 1e-6);
        RngKey key = rng_key(11, RNG_DROPOUT, 3);
        run->fast->dropout(x, 0.25, key, (uint64_t)(3 * beta), beta, got), run->plain->dropout(x, 0.25, key, (uint64_t)(3 * beta), beta, want);
        kernels_compare(run, "dropout", got, want, 1e-6);
    }
    for (int64_t r = 0; r < c.rows; r += 5) {
        int64_t n = MIN((int64_t)5, c.rows - r);
        run->fast->add_uniform(r, n, 0.6, rng_key(12, RNG_NOISE, (uint64_t)r), got),
            run->plain->add_uniform(r, n, 0.6, rng_key(12, RNG_NOISE, (uint64_t)r), want);
    }
    kernels_compare(run, "add_uniform", got, want, 1e-6);
    run->fast->bias_add(got, bias), run->plain->bias_add(want, bias);
    kernels_compare(run, "bias_add", got, want, 1e-6);
    Tensor *dbias = drawn(run, DT_F32, 1, c.width, 1), *dbias_want = twin(run, dbias);
    run->fast->bias_backward(x, dbias), run->plain->bias_backward(x, dbias_want);
    kernels_compare(run, "bias_backward", dbias, dbias_want, 2e-5);
    double sum, sum_want;
    run->fast->sum_squares(x, &sum), run->plain->sum_squares(x, &sum_want);
    check_close(sum, sum_want, 1e-12 * sum_want);
}

static void elementwise_body(Run *run) { each_case(run, elementwise_case); }

static void rows_case(Run *run, Case c) {
    int64_t n = c.rows + 5;
    Tensor *table = drawn(run, c.in, c.rows, c.width, 1), *rows = ids(run, n, c.rows), *got = fresh(run, c.out, n, c.width),
           *want = fresh(run, c.out, n, c.width);
    run->fast->gather_rows(table, rows, got), run->plain->gather_rows(table, rows, want);
    kernels_compare(run, "gather_rows", got, want, 0);
    Tensor *scale = drawn(run, DT_F32, 1, tensor_rows(got), 2);
    scale->n_dims = 1, scale->shape[0] = tensor_rows(got);
    run->fast->scale_rows(want, scale, got), run->plain->scale_rows(twin(run, want), scale, want);
    kernels_compare(run, "scale_rows", got, want, 1e-6);
    if (c.out != DT_F32 && c.out != DT_F64) return; /* many roundings to bf16 in a row don't compare */
    Tensor *dtable = drawn(run, c.out, c.rows, c.width, 1), *dtable_want = twin(run, dtable), *dy = drawn(run, c.in, n, c.width, 1);
    run->fast->scatter_add_rows(dy, rows, dtable), run->plain->scatter_add_rows(dy, rows, dtable_want);
    kernels_compare(run, "scatter_add_rows", dtable, dtable_want, 1e-5);
}

static void rows_body(Run *run) { each_case(run, rows_case); }

static void norm_case(Run *run, Case c) {
    DType exact = c.out == DT_F64 ? DT_F64 : DT_F32;
    int64_t parts = c.width % 4 == 0 ? 4 : 1, width = c.width / parts, rows = c.rows * parts; /* per-head norms */
    Tensor *x = drawn(run, c.in, c.rows, c.width, 3), *weight = drawn(run, c.in, 1, width, 2), *bias = drawn(run, c.in, 1, width, 1),
           *dy = drawn(run, c.out, c.rows, c.width, 1);
    Tensor *y = fresh(run, c.out, c.rows, c.width), *y_want = twin(run, y), *mean = fresh(run, exact, rows, 1), *mean_want = twin(run, mean);
    Tensor *rstd = fresh(run, exact, rows, 1), *rstd_want = twin(run, rstd), *dx = fresh(run, c.out, c.rows, c.width), *dx_want = twin(run, dx);
    Tensor *dweight = drawn(run, exact, 1, width, 1), *dweight_want = twin(run, dweight), *dbias = drawn(run, exact, 1, width, 1),
           *dbias_want = twin(run, dbias);
    double sums = 2e-6 * sqrt((double)rows) + 2e-5;
    run->fast->rms_norm(x, weight, 1e-5, NULL, y, rstd), run->plain->rms_norm(x, weight, 1e-5, NULL, y_want, rstd_want);
    kernels_compare(run, "rms_norm", y, y_want, 5e-6);
    Tensor *sum = drawn(run, c.out, c.rows, c.width, 1), *sum_want = twin(run, sum);
    run->fast->rms_norm(x, weight, 1e-5, sum, sum, rstd), run->plain->rms_norm(x, weight, 1e-5, sum_want, sum_want, rstd_want);
    kernels_compare(run, "rms_norm added in place", sum, sum_want, 5e-6);
    kernels_compare(run, "rms_norm's rstd", rstd, rstd_want, 5e-6);
    for (double beta = 0; beta <= 1; beta++) {
        run->fast->rms_norm_backward(x, weight, rstd, dy, beta, dx, dweight),
            run->plain->rms_norm_backward(x, weight, rstd, dy, beta, dx_want, dweight_want);
        kernels_compare(run, "rms_norm's dx", dx, dx_want, 2e-5);
        kernels_compare(run, "rms_norm's dweight", dweight, dweight_want, sums);
    }
    Tensor *inverse = drawn(run, exact, 1, width, 3);
    for (double beta = 0; beta <= 1; beta++) {
        run->fast->rms_norm_backward_result(x, weight, inverse, rstd, dy, beta, dx, dweight),
            run->plain->rms_norm_backward_result(x, weight, inverse, rstd, dy, beta, dx_want, dweight_want);
        kernels_compare(run, "rms_norm's dx from its result", dx, dx_want, 2e-5);
        kernels_compare(run, "rms_norm's dweight from its result", dweight, dweight_want, 3 * sums);
    }
    if (width < 4) return; /* the variance of one or two values is nothing but rounding */
    run->fast->layer_norm(x, weight, bias, 1e-5, y, mean, rstd), run->plain->layer_norm(x, weight, bias, 1e-5, y_want, mean_want, rstd_want);
    kernels_compare(run, "layer_norm", y, y_want, 1e-5);
    kernels_compare(run, "layer_norm's mean", mean, mean_want, 5e-6);
    for (double beta = 0; beta <= 1; beta++) {
        run->fast->layer_norm_backward(x, weight, mean, rstd, dy, beta, dx, dweight, dbias);
        run->plain->layer_norm_backward(x, weight, mean, rstd, dy, beta, dx_want, dweight_want, dbias_want);
        kernels_compare(run, "layer_norm's dx", dx, dx_want, 2e-5);
        kernels_compare(run, "layer_norm's dweight", dweight, dweight_want, sums);
        kernels_compare(run, "layer_norm's dbias", dbias, dbias_want, sums);
    }
    run->fast->layer_norm_backward(x, weight, mean, rstd, dy, 0, NULL, dweight, NULL); /* what is not wanted is not touched */
}

static void norm_body(Run *run) { each_case(run, norm_case); }

static void activation_case(Run *run, Case c) {
    Tensor *x = drawn(run, c.in, c.rows, c.width, 6), *up = drawn(run, c.in, c.rows, c.width, 2), *dy = drawn(run, c.out, c.rows, c.width, 1);
    for (int kind = ACT_SILU; kind <= ACT_TANH; kind++)
        for (int gated = 0; gated < 2; gated++) {
            ArenaMark mark = arena_mark(run->arena);
            Tensor *got = fresh(run, c.out, c.rows, c.width), *want = twin(run, got), *dx = twin(run, got), *dx_want = twin(run, got),
                   *dup = twin(run, got), *dup_want = twin(run, got), *again = twin(run, got);
            Tensor *factor = gated ? up : NULL;
            const double beta[] = {0, 0};
            run->fast->activation((Activation)kind, x, factor, got), run->plain->activation((Activation)kind, x, factor, want);
            kernels_compare(run, "activation", got, want, 2e-6);
            run->fast->activation_backward((Activation)kind, x, factor, dy, beta, dx, gated ? dup : NULL, again);
            run->plain->activation_backward((Activation)kind, x, factor, dy, beta, dx_want, gated ? dup_want : NULL, NULL);
            assert_memory_equal(again->elements, got->elements, tensor_bytes(got)); /* to the bit, in dy's place too, whatever else is wanted */
            memcpy(again->elements, dy->elements, tensor_bytes(dy));
            run->fast->activation_backward((Activation)kind, x, factor, again, beta, NULL, NULL, again);
            assert_memory_equal(again->elements, got->elements, tensor_bytes(got));
            kernels_compare(run, "activation's dx", dx, dx_want, 2e-6);
            if (gated) kernels_compare(run, "activation's dup", dup, dup_want, 2e-6);
            arena_rewind(run->arena, mark);
        }
}

/* Rows from..to-1 of a tensor. */
static Tensor rows_of(const Tensor *all, int64_t from, int64_t to) {
    Tensor part = *all;
    part.elements = (char *)all->elements + (size_t)(from * tensor_width(all)) * dtype_size(all->dtype);
    part.shape[0] = to - from;
    return part;
}

/* What is so large that it is written past the caches has the bits of its parts. */
static void activation_large(Run *run) {
    enum { ROWS = 1031, PART = 257, WIDTH = 1037 };
    Tensor *x = drawn(run, DT_F32, ROWS, WIDTH, 6), *up = drawn(run, DT_F32, ROWS, WIDTH, 2), *dy = drawn(run, DT_F32, ROWS, WIDTH, 1),
           *dx = fresh(run, DT_F32, ROWS, WIDTH), *dup = twin(run, dx), *dx_parts = twin(run, dx), *dup_parts = twin(run, dx);
    const double beta[] = {0, 0};
    run->fast->activation_backward(ACT_SILU, x, up, dy, beta, dx, dup, NULL);
    for (int64_t from = 0; from < ROWS; from += PART) {
        int64_t to = MIN((int64_t)ROWS, from + PART);
        Tensor px = rows_of(x, from, to), pup = rows_of(up, from, to), pdy = rows_of(dy, from, to), pdx = rows_of(dx_parts, from, to),
               pdup = rows_of(dup_parts, from, to);
        run->fast->activation_backward(ACT_SILU, &px, &pup, &pdy, beta, &pdx, &pdup, NULL);
    }
    same_bits("a large activation's dx", dx, 0, dx_parts, 0, ROWS);
    same_bits("a large activation's dup", dup, 0, dup_parts, 0, ROWS);
}

/* Both factors in one tensor give the same bits as two tensors. */
static void activation_halves_case(Run *run, Case c) {
    Tensor *gate = drawn(run, c.in, c.rows, c.width, 6), *up = drawn(run, c.in, c.rows, c.width, 2), *dy = drawn(run, c.out, c.rows, c.width, 1),
           *both = fresh(run, c.in, c.rows, 2 * c.width), *dboth = fresh(run, c.out, c.rows, 2 * c.width), *y = fresh(run, c.out, c.rows, c.width),
           *y_both = twin(run, y), *dgate = twin(run, y), *dup = twin(run, y), *again = twin(run, y);
    const double beta[] = {0, 0};
    for (int64_t i = 0; i < c.rows * c.width; i++) {
        int64_t at = i / c.width * 2 * c.width + i % c.width;
        tensor_set(both, at, tensor_get(gate, i));
        tensor_set(both, at + c.width, tensor_get(up, i));
    }
    run->fast->activation(ACT_GELU_TANH, gate, up, y);
    run->fast->activation(ACT_GELU_TANH, both, both, y_both);
    same_bits("an activation of halves", y_both, 0, y, 0, c.rows);
    run->fast->activation_backward(ACT_GELU_TANH, gate, up, dy, beta, dgate, dup, NULL);
    run->fast->activation_backward(ACT_GELU_TANH, both, both, dy, beta, dboth, dboth, again);
    same_bits("its values once more", again, 0, y, 0, c.rows);
    for (int64_t i = 0; i < c.rows * c.width; i++) {
        int64_t at = i / c.width * 2 * c.width + i % c.width;
        if (tensor_get(dboth, at) != tensor_get(dgate, i) || tensor_get(dboth, at + c.width) != tensor_get(dup, i))
            fail_msg("gradient %lld of halves differs", (long long)i);
    }
}

static void activation_body(Run *run) {
    each_case(run, activation_case);
    each_case(run, activation_halves_case);
    activation_large(run);
}

static void rope_body(Run *run) {
    static const struct {
        int64_t tokens, heads, dim, half;
    } sizes[] = {{1, 1, 2, 1}, {5, 3, 10, 3}, {70, 9, 64, 32}, {33, 2, 128, 64}, {7, 3, 6, 3}};
    for (size_t s = 0; s < 2 * COUNT_OF(sizes); s++)
        for (size_t m = 0; m < COUNT_OF(mixes); m++) {
            const bool neighbours = s >= COUNT_OF(sizes);
            const size_t k = s % COUNT_OF(sizes);
            int64_t n = sizes[k].tokens, width = sizes[k].heads * sizes[k].dim, dim = sizes[k].dim;
            DType exact = mixes[m].out == DT_F64 ? DT_F64 : DT_F32;
            Tensor *x = drawn(run, mixes[m].in, n, width, 2), *cosine = drawn(run, exact, n, sizes[k].half, 1),
                   *sine = drawn(run, exact, n, sizes[k].half, 1);
            Tensor *y = fresh(run, mixes[m].out, n, width), *want;
            for (int turn = 0; turn < 2; turn++) {
                want = twin(run, y);
                run->fast->rope(x, cosine, sine, dim, neighbours, turn, turn, y),
                    run->plain->rope(x, cosine, sine, dim, neighbours, turn, turn, want);
                kernels_compare(run, "rope", y, want, 2e-6);
            }
            Tensor *in_place = twin(run, x), *in_place_want = twin(run, x);
            if (x->dtype == DT_F16) continue;
            run->fast->rope(in_place, cosine, sine, dim, neighbours, false, 0, in_place),
                run->plain->rope(in_place_want, cosine, sine, dim, neighbours, false, 0, in_place_want);
            kernels_compare(run, "rope in place", in_place, in_place_want, 2e-6);
        }
}

static void update_case(Run *run, Case c) {
    DType exact = c.out == DT_F64 ? DT_F64 : DT_F32;
    if (c.in == DT_F16) return;
    Tensor *got[3], *want[3], *grad = drawn(run, c.in, c.rows, c.width, 1);
    for (int i = 0; i < 3; i++) {
        got[i] = drawn(run, exact, c.rows, c.width, 1);
        for (int64_t e = 0; i == 2 && e < c.rows * c.width; e++) tensor_set(got[i], e, fabs(tensor_get(got[i], e)));
        want[i] = twin(run, got[i]);
    }
    run->fast->adamw(got[0], grad, got[1], got[2], 0.5, 0.01, 0.9, 0.999, 1e-8, 0.1, 3),
        run->plain->adamw(want[0], grad, want[1], want[2], 0.5, 0.01, 0.9, 0.999, 1e-8, 0.1, 3);
    kernels_compare(run, "adamw's param", got[0], want[0], 1e-4); /* a step of 0.01 is divided by roots that may be small */
    kernels_compare(run, "adamw's m", got[1], want[1], 1e-6);
    kernels_compare(run, "adamw's v", got[2], want[2], 1e-6);
    for (int momentum = 0; momentum < 2; momentum++) {
        run->fast->sgd(got[0], grad, momentum ? got[1] : NULL, 0.5, 0.1, 0.9, 0.1, 1),
            run->plain->sgd(want[0], grad, momentum ? want[1] : NULL, 0.5, 0.1, 0.9, 0.1, 1);
        kernels_compare(run, "sgd's param", got[0], want[0], 1e-4);
        kernels_compare(run, "sgd's velocity", got[1], want[1], 1e-5);
    }
}

static void update_body(Run *run) { each_case(run, update_case); }

static void nonfinite_body(Run *run) {
    for (size_t m = 0; m < 3; m++) {
        Tensor *x = drawn(run, (DType[]){DT_F32, DT_BF16, DT_F16}[m], 97, 331, 1);
        int64_t index = 0;
        run->fast->find_nonfinite(x, &index);
        assert_int_equal(index, -1);
        tensor_set(x, 97 * 331 - 1, -HUGE_VAL);
        run->fast->find_nonfinite(x, &index);
        assert_int_equal(index, 97 * 331 - 1);
        tensor_set(x, 20000, (double)NAN);
        tensor_set(x, 20001, HUGE_VAL);
        run->fast->find_nonfinite(x, &index);
        assert_int_equal(index, 20000);
    }
}

static void choice_body(Run *run) {
    static const int64_t widths[] = {1, 7, 256, 257, 5000};
    for (size_t w = 0; w < COUNT_OF(widths); w++) {
        int64_t width = widths[w], got = -1, want = -1;
        Tensor *x = drawn(run, DT_F32, 3, width, 4);
        for (int64_t i = 0; width > 1 && i < 3 * width; i += 5) tensor_set(x, i, i % 2 ? -HUGE_VAL : -1000);
        if (width > 256) tensor_set(x, width + 300 % width, 20), tensor_set(x, 2 * width - 1, 20); /* equals in two chunks of the second row */
        for (int64_t i = 0; width == 5000 && i < 4500; i++) tensor_set(x, 2 * width + 500 + i, -HUGE_VAL);
        for (int64_t row = 0; row < 3; row++) {
            run->fast->largest(x, row, &got), run->plain->largest(x, row, &want);
            assert_int_equal(got, want);
            for (int draw = 0; draw < 300; draw++) {
                double temperature = (const double[]){1, 0.3, 7, 1e-20, 1e-30}[draw % 5], a, b;
                double u = draw < 3 ? 0 : draw < 6 ? 1 - 0x1p-53 : rng_uniform(rng_key(3, RNG_TEST, w), (uint64_t)draw);
                run->fast->draw(x, row, temperature, u, &got, &a), run->plain->draw(x, row, temperature, u, &want, &b);
                if (draw < 3 || draw >= 6) assert_int_equal(got, want); /* near the last sum, rounding decides */
                assert_true(got >= 0 && got < width && tensor_get(x, row * width + got) > -HUGE_VAL);
                if (!(fabs(a - b) <= 1e-13 * fabs(b) + 1e-13))
                    fail_msg("log-sum-exp of %lld at %g: %.17g, exact %.17g", (long long)width, temperature, a, b);
            }
        }
    }
}

/* One NaN in a row spoils that row and no other. */
static void poison_body(Run *run) {
    Tensor *x = drawn(run, DT_F32, 9, 70, 1), *weight = drawn(run, DT_F32, 1, 70, 1), *y = fresh(run, DT_F32, 9, 70),
           *rstd = fresh(run, DT_F32, 9, 1);
    tensor_set(x, 4 * 70 + 69, (double)NAN);
    run->fast->rms_norm(x, weight, 1e-5, NULL, y, rstd);
    for (int64_t i = 0; i < 9 * 70; i++) assert_int_equal(isnan(tensor_get(y, i)) != 0, i / 70 == 4);
    for (int kind = ACT_SILU; kind <= ACT_TANH; kind++) {
        run->fast->activation((Activation)kind, x, NULL, y);
        for (int64_t i = 0; i < 9 * 70; i++) assert_int_equal(isnan(tensor_get(y, i)) != 0, i == 4 * 70 + 69);
    }
}

TEST(elementwise_kernels) { (void)state, everywhere(elementwise_body); }
TEST(row_kernels) { (void)state, everywhere(rows_body); }
TEST(norm_kernels) { (void)state, everywhere(norm_body); }
TEST(activation_kernels) { (void)state, everywhere(activation_body); }
TEST(rope_kernel) { (void)state, everywhere(rope_body); }
TEST(update_kernels) { (void)state, everywhere(update_body); }
TEST(nonfinite_kernel) { (void)state, everywhere(nonfinite_body); }
TEST(choice_kernels) { (void)state, everywhere(choice_body); }
TEST(nan_stays_in_its_row) { (void)state, everywhere(poison_body); }

/* ---- attention ---- */

typedef struct AttentionCase {
    int32_t n_segments, lengths[6], parents[6];
    int64_t n_heads, n_kv_heads, head_dim, window;
    double softcap;
} AttentionCase;

static const AttentionCase attention_cases[] = {
    {1, {1}, {-1}, 1, 1, 1, 0, 0},
    {1, {200}, {-1}, 6, 2, 64, 0, 0},
    {3, {63, 64, 65}, {-1, -1, -1}, 3, 3, 5, 0, 0},
    {4, {70, 30, 1, 90}, {-1, 0, 0, 2}, 4, 2, 24, 0, 0}, /* a tree: the last segment sees 0, 2 and itself */
    {5, {20, 130, 7, 140, 33}, {-1, -1, 1, 1, 0}, 7, 1, 16, 0, 0},
    {2, {150, 100}, {-1, 0}, 4, 2, 32, 40, 0}, /* windows */
    {2, {150, 100}, {-1, 0}, 2, 2, 33, 1, 0},
    {3, {100, 30, 50}, {-1, 0, 0}, 4, 1, 80, 70, 3},   /* and a soft-cap */
    {3, {100, 30, 50}, {-1, -1, -1}, 4, 2, 80, 70, 3}, /* rows by themselves, enough of them for a thread and too few for two */
    {1, {130}, {-1}, 2, 1, 128, 0, 2},
    {2, {40, 0}, {-1, 0}, 33, 1, 8, 0, 0},                           /* more heads in a group than a chunk has rows; an empty segment */
    {5, {1, 15, 16, 17, 130}, {-1, -1, -1, -1, -1}, 1, 1, 32, 0, 0}, /* tiles' borders */
    {4, {63, 64, 1, 65}, {-1, 0, 1, 1}, 7, 1, 64, 0, 0},
    {3, {16, 200, 15}, {-1, 0, 1}, 6, 2, 80, 65, 0},
    {2, {65, 65}, {-1, 0}, 2, 2, 128, 64, 0},
};

/* With its arrays, which both devices can read. */
static Layout uploaded(Run *run, Layout layout) {
    check_ok(layout_upload(&layout, run->arena, run->plain));
    return layout;
}

static Layout layout_of(Run *run, const AttentionCase *c) {
    Segment *segments = arena_zero(run->arena, sizeof(Segment) * (size_t)c->n_segments);
    int64_t row = 0;
    for (int32_t s = 0; s < c->n_segments; s++) {
        segments[s] = (Segment){.begin = row, .end = row + c->lengths[s], .parent = c->parents[s]};
        row += c->lengths[s];
    }
    return uploaded(run, (Layout){.n_tokens = row, .n_segments = c->n_segments, .segments = segments});
}

static AttentionArgs args_of(const AttentionCase *c, const Layout *layout) {
    return (AttentionArgs){.layout = layout,
                           .n_heads = c->n_heads,
                           .n_kv_heads = c->n_kv_heads,
                           .head_dim = c->head_dim,
                           .scale = 2 / sqrt((double)c->head_dim),
                           .window = c->window,
                           .softcap = c->softcap};
}

/* Compares results and gradients of attention. Products of bf16 tiles round weights and gradients of scores to bf16, so every term of a sum has an
 * error of up to 1/512. If terms cancel, the relative error of a value may be large, but the sum of all differences stays below 1/256 of the sum of
 * all values (measured: 1/320, including 1/900 from rounding the result). */
static void compare_attention(Run *run, const char *what, const Tensor *got, const Tensor *want, double tolerance) {
    bool tiles = got->dtype == DT_BF16 && (strcmp(cpu_info()->isa, "amx") == 0 || strcmp(cpu_info()->isa, "avx512_bf16") == 0);
    kernels_compare(run, what, got, want, tiles ? 1.0 / 32 : tolerance);
    double differences = 0, values = 0;
    for (int64_t i = 0; tiles && i < tensor_count(want); i++) {
        double value = tensor_get(want, i), difference = tensor_get(got, i) - value;
        differences += difference * difference;
        values += value * value;
    }
    check_close(sqrt(differences), 0, sqrt(values) / 256 + 1e-5 * sqrt((double)tensor_count(want)));
}

static void attention_case(Run *run, const AttentionCase *c, DType dtype) {
    Layout layout = layout_of(run, c);
    AttentionArgs args = args_of(c, &layout);
    int64_t n = layout.n_tokens, q_width = c->n_heads * c->head_dim, kv_width = c->n_kv_heads * c->head_dim;
    Tensor *q = drawn(run, dtype, n, q_width, 2), *k = drawn(run, dtype, n, kv_width, 2), *v = drawn(run, dtype, n, kv_width, 2),
           *dy = drawn(run, dtype, n, q_width, 1);
    Tensor *y = fresh(run, dtype, n, q_width), *y_want = twin(run, y), *norms = fresh(run, DT_F32, n, c->n_heads), *norms_want = twin(run, norms);
    run->fast->attention(&args, q, k, v, y, norms), run->plain->attention(&args, q, k, v, y_want, norms_want);
    compare_attention(run, "attention", y, y_want, 5e-6);
    kernels_compare(run, "attention's logsumexp", norms, norms_want, 5e-6);
    Tensor *grads[3] = {fresh(run, dtype, n, q_width), fresh(run, dtype, n, kv_width), drawn(run, dtype, n, kv_width, 1)}, *wants[3];
    for (int i = 0; i < 3; i++) wants[i] = twin(run, grads[i]);
    const double beta[] = {0, 0, 1};
    run->fast->attention_backward(&args, q, k, v, y, norms, dy, beta, grads[0], grads[1], grads[2]);
    run->plain->attention_backward(&args, q, k, v, y, norms, dy, beta, wants[0], wants[1], wants[2]);
    compare_attention(run, "attention's dq", grads[0], wants[0], 5e-5);
    compare_attention(run, "attention's dk", grads[1], wants[1], 5e-5);
    compare_attention(run, "attention's dv", grads[2], wants[2], 5e-5);
    run->fast->attention_backward(&args, q, k, v, y, norms, dy, (const double[]){0, 0, 0}, NULL, grads[1], NULL);
    compare_attention(run, "attention's dk alone", grads[1], wants[1], 5e-5);
}

static void attention_body(Run *run) {
    for (size_t i = 0; i < COUNT_OF(attention_cases); i++)
        for (int b = 0; b < 2; b++) {
            ArenaMark mark = arena_mark(run->arena);
            attention_case(run, &attention_cases[i], b ? DT_BF16 : DT_F32);
            arena_rewind(run->arena, mark);
        }
}

TEST(attention_kernels) { (void)state, everywhere(attention_body); }

/* Rows `from`.. of `whole`, as a separate tensor. */
static Tensor *kernels_cut(Run *run, const Tensor *whole, int64_t from, int64_t n) {
    Tensor *part = shaped(run, whole->dtype, n, tensor_width(whole));
    memcpy(part->elements, (const char *)whole->elements + (size_t)from * (size_t)tensor_width(whole) * dtype_size(whole->dtype), tensor_bytes(part));
    return part;
}

/* A prompt shared by two answers gives the same bits as two whole rows. */
static void parents_case(Run *run, DType dtype, int64_t window) {
    enum { PROMPT = 83, FIRST = 70, SECOND = 5 };
    const AttentionCase shared = {3, {PROMPT, FIRST, SECOND}, {-1, 0, 0}, 6, 2, 64, window, 0},
                        whole = {2, {PROMPT + FIRST, PROMPT + SECOND}, {-1, -1}, 6, 2, 64, window, 0};
    Layout shared_layout = layout_of(run, &shared), whole_layout = layout_of(run, &whole);
    AttentionArgs shared_args = args_of(&shared, &shared_layout), whole_args = args_of(&whole, &whole_layout);
    Tensor *in[3], *in_whole[3], *y = fresh(run, dtype, shared_layout.n_tokens, 6 * 64), *y_whole = fresh(run, dtype, whole_layout.n_tokens, 6 * 64);
    for (int i = 0; i < 3; i++) {
        int64_t width = i == 0 ? 6 * 64 : 2 * 64;
        in[i] = drawn(run, dtype, shared_layout.n_tokens, width, 2);
        in_whole[i] = shaped(run, dtype, whole_layout.n_tokens, width);
        size_t row = (size_t)width * dtype_size(dtype);
        memcpy(in_whole[i]->elements, in[i]->elements, (PROMPT + FIRST) * row);
        memcpy((char *)in_whole[i]->elements + (PROMPT + FIRST) * row, in[i]->elements, PROMPT * row);
        memcpy((char *)in_whole[i]->elements + (2 * PROMPT + FIRST) * row, (char *)in[i]->elements + (PROMPT + FIRST) * row, SECOND * row);
    }
    run->fast->attention(&shared_args, in[0], in[1], in[2], y, NULL);
    run->fast->attention(&whole_args, in_whole[0], in_whole[1], in_whole[2], y_whole, NULL);
    same_bits("prompt and first answer", y, 0, y_whole, 0, PROMPT + FIRST);
    same_bits("second answer", y, PROMPT + FIRST, y_whole, 2 * PROMPT + FIRST, SECOND);
}

enum { LENGTH = 150, SEQUENCES = 2, MOST_PAGES = 80 };

/* Many sequences of all lengths at once, each with one new token, and a few tokens of another one, with a cache that has the whole rows. `want`:
 * the results of the whole rows. */
static void cached_together(Run *run, const AttentionArgs *whole, KvPages *cache, int32_t pages[SEQUENCES][MOST_PAGES], const Tensor *in[3],
                            const Tensor *want, const Tensor *want_norms) {
    static const int32_t at[] = {149, 0, 1, 14, 15, 16, 17, 30, 31, 32, 33, 47, 48, 62, 63, 64, 65, 100, 127, 128, 129, 148}, past_of_many = 90,
                         n_many = 5;
    enum { TOKENS = COUNT_OF(at), BEFORE = 3 };
    Segment segments[TOKENS + 1];
    Tensor *q = shaped(run, want->dtype, TOKENS + n_many, tensor_width(in[0])), *y = fresh(run, want->dtype, TOKENS + n_many, tensor_width(in[0]));
    Tensor *norms = fresh(run, DT_F32, TOKENS + n_many, whole->n_heads);
    size_t row = (size_t)tensor_width(q) * dtype_size(q->dtype);
    for (int32_t s = 0, row_at = 0; s <= TOKENS; s++) { /* the longer one is in the middle */
        int32_t t = s - (s > BEFORE), n = s == BEFORE ? n_many : 1, past = s == BEFORE ? past_of_many : at[t],
                sequence = s == BEFORE ? 0 : t % SEQUENCES;
        segments[s] = (Segment){.begin = row_at, .end = row_at + n, .parent = -1, .past = past, .first_page = sequence * MOST_PAGES};
        memcpy((char *)q->elements + (size_t)row_at * row, (const char *)in[0]->elements + (size_t)(sequence * LENGTH + past) * row, (size_t)n * row);
        row_at += n;
    }
    Layout layout = uploaded(run, (Layout){.n_tokens = TOKENS + n_many,
                                           .n_segments = TOKENS + 1,
                                           .segments = segments,
                                           .cache = cache,
                                           .pages = pages[0],
                                           .n_pages = SEQUENCES * MOST_PAGES});
    AttentionArgs args = *whole;
    args.layout = &layout;
    args.layer = 1;
    run->fast->attention(&args, q, in[1], in[2], y, norms);
    for (int32_t s = 0; s <= TOKENS; s++) {
        int64_t n = segments[s].end - segments[s].begin, from = (segments[s].first_page == 0 ? 0 : LENGTH) + segments[s].past;
        same_bits("a token among others", y, segments[s].begin, want, from, n);
        same_bits("its logsumexp", norms, segments[s].begin, want_norms, from, n);
    }
}

/* Two sequences with scrambled pages, a few tokens or one at a time, give the same bits as whole rows; the reference gives the same within
 * rounding. */
static void cache_case(Run *run, DType dtype, int64_t window, double softcap, int32_t page_size, int64_t n_heads, int64_t n_kv_heads,
                       int64_t head_dim) {
    const AttentionCase whole = {2, {LENGTH, LENGTH}, {-1, -1}, n_heads, n_kv_heads, head_dim, window, softcap};
    int64_t q_width = n_heads * head_dim, kv_width = n_kv_heads * head_dim;
    Layout whole_layout = layout_of(run, &whole);
    AttentionArgs whole_args = args_of(&whole, &whole_layout);
    Tensor *q = drawn(run, dtype, 2 * LENGTH, q_width, 2), *k = drawn(run, dtype, 2 * LENGTH, kv_width, 2),
           *v = drawn(run, dtype, 2 * LENGTH, kv_width, 2);
    /* Far larger scores than before */
    for (int64_t i = (LENGTH + 70) * kv_width; i < (LENGTH + 100) * kv_width; i++) tensor_set(k, i, 6 * tensor_get(k, i));
    Tensor *want = fresh(run, dtype, 2 * LENGTH, q_width), *want_norms = fresh(run, DT_F32, 2 * LENGTH, n_heads);
    run->fast->attention(&whole_args, q, k, v, want, want_norms);

    int32_t per_sequence = (LENGTH + page_size - 1) / page_size, pages[SEQUENCES][MOST_PAGES];
    KvPages cache = {.n_layers = 2, .page_size = page_size, .n_pages = SEQUENCES * per_sequence};
    for (int32_t i = 0; i < cache.n_pages; i++) /* odd pages: every second one where it would be in order, those between elsewhere */
        pages[i / per_sequence][i % per_sequence] =
            page_size % 2 ? i ^ (i % 2 * 2) : (int32_t)rng_permute(rng_key(3, RNG_TEST, 1), (uint64_t)cache.n_pages, (uint64_t)i);
    int64_t page_rows = (int64_t)cache.n_pages * page_size;
    Tensor *k_pages[2] = {NULL, fresh(run, dtype, page_rows, kv_width)}, *v_pages[2] = {NULL, fresh(run, dtype, page_rows, kv_width)};
    cache.k = k_pages, cache.v = v_pages;
    static const int32_t steps[] = {37, 1, 1, 25, 1, 63, 1, 1, 20};
    for (int32_t past = 0, i = 0; past < LENGTH; past += steps[i++]) {
        int32_t n = steps[i];
        Segment segments[SEQUENCES];
        Tensor *in[3] = {shaped(run, dtype, 2 * n, q_width), shaped(run, dtype, 2 * n, kv_width), shaped(run, dtype, 2 * n, kv_width)};
        for (int32_t s = 0; s < SEQUENCES; s++) {
            segments[s] = (Segment){.begin = s * n, .end = (s + 1) * n, .parent = -1, .past = past, .first_page = s * MOST_PAGES};
            const Tensor *from[3] = {q, k, v};
            for (int t = 0; t < 3; t++) {
                const Tensor *part = kernels_cut(run, from[t], s * LENGTH + past, n);
                memcpy((char *)in[t]->elements + (size_t)s * tensor_bytes(part), part->elements, tensor_bytes(part));
            }
        }
        Layout layout = uploaded(run, (Layout){.n_tokens = 2 * n,
                                               .n_segments = SEQUENCES,
                                               .segments = segments,
                                               .cache = &cache,
                                               .pages = pages[0],
                                               .n_pages = SEQUENCES * MOST_PAGES});
        AttentionArgs args = args_of(&whole, &layout);
        args.layer = 1;
        Tensor *y = fresh(run, dtype, 2 * n, q_width);
        run->fast->kv_store(&args, in[1], in[2]);
        run->fast->attention(&args, in[0], in[1], in[2], y, NULL);
        for (int32_t s = 0; s < SEQUENCES; s++) same_bits("cached tokens", y, s * n, want, s * LENGTH + past, n);
        Tensor *kept = run->n_kept < run->kept->n ? run->kept->list[run->n_kept] : NULL;
        if (!kept) {
            assert_true(run->kept->n < COUNT_OF(run->kept->list));
            kept = run->kept->list[run->kept->n++] = tensor_new(run->kept->arena, run->plain, dtype, 2, y->shape);
            run->plain->kv_store(&args, in[1], in[2]);
            run->plain->attention(&args, in[0], in[1], in[2], kept, NULL);
        }
        run->n_kept++;
        compare_attention(run, "attention with a cache", y, kept, 3e-5); /* scores of up to 60 */
    }
    cached_together(run, &whole_args, &cache, pages, (const Tensor *[]){q, k, v}, want, want_norms);
}

static void same_bits_body(Run *run) {
    static const struct {
        double softcap;
        int32_t page_size;
        int64_t n_heads, n_kv_heads, head_dim;
    } cases[] = {{0, 16, 6, 2, 40},   {0, 7, 7, 1, 64}, {0, 16, 9, 3, 64}, {4, 16, 18, 18, 32}, /* more heads than a vector has lanes */
                 {0, 16, 20, 4, 128},                                                           /* lanes for three of four heads */
                 {0, 32, 34, 2, 96}};                                                           /* more queries of a head than lanes */
    for (size_t b = 0; b < 2; b++)
        for (int64_t window = ALL_OR_FEW(0, 50); window <= 50; window += 50) {
            DType dtype = b ? DT_BF16 : DT_F32;
            parents_case(run, dtype, window);
            for (size_t i = ALL_OR_FEW(0, b); i < COUNT_OF(cases); i += ALL_OR_FEW(1, 2)) {
                ArenaMark mark = arena_mark(run->arena);
                cache_case(run, dtype, window, cases[i].softcap, cases[i].page_size, cases[i].n_heads, cases[i].n_kv_heads, cases[i].head_dim);
                arena_rewind(run->arena, mark);
            }
        }
}

TEST(attention_bits_do_not_depend_on_the_batch) { (void)state, everywhere(same_bits_body); }

/* A token alone gives the bits that it gives among others, in all kernels between the products; widths that leave remainders of vectors. */
static void rows_alone_body(Run *run) {
    for (int b = 0; b < 2; b++)
        for (int64_t width = 52; width <= 860; width += 101) {
            enum { ROWS = 11 };
            DType dtype = b ? DT_BF16 : DT_F32;
            Tensor *x = drawn(run, dtype, ROWS, width, 4), *up = drawn(run, dtype, ROWS, width, 4), *weight = drawn(run, DT_F32, 1, width, 1),
                   *bias = drawn(run, DT_F32, 1, width, 1);
            Tensor *whole[8], *rstd = fresh(run, DT_F32, ROWS, 1), *mean = fresh(run, DT_F32, ROWS, 1);
            for (int i = 0; i < 8; i++) whole[i] = fresh(run, dtype, ROWS, width);
            run->fast->rms_norm(x, weight, 1e-5, NULL, whole[0], rstd);
            run->fast->layer_norm(x, weight, bias, 1e-5, whole[1], mean, rstd);
            run->fast->add(x, up, whole[2]);
            for (int kind = ACT_SILU; kind <= ACT_TANH; kind++) run->fast->activation((Activation)kind, x, up, whole[3 + kind]);
            for (int64_t r = 0; r < ROWS; r++) {
                Tensor *x_row = kernels_cut(run, x, r, 1), *up_row = kernels_cut(run, up, r, 1), *alone[8], *number = fresh(run, DT_F32, 1, 1);
                for (int i = 0; i < 8; i++) alone[i] = fresh(run, dtype, 1, width);
                run->fast->rms_norm(x_row, weight, 1e-5, NULL, alone[0], number);
                run->fast->layer_norm(x_row, weight, bias, 1e-5, alone[1], number, number);
                run->fast->add(x_row, up_row, alone[2]);
                for (int kind = ACT_SILU; kind <= ACT_TANH; kind++) run->fast->activation((Activation)kind, x_row, up_row, alone[3 + kind]);
                static const char *const names[] = {"rms_norm", "layer_norm", "add", "silu", "gelu_tanh", "gelu_erf", "relu", "tanh"};
                for (int i = 0; i < 8; i++) same_bits(names[i], alone[i], 0, whole[i], r, 1);
            }
        }
}

TEST(rows_alone_have_the_same_bits) { (void)state, everywhere(rows_alone_body); }

/* Scores far from zero, and a row whose scores are all equal. */
static void extremes_body(Run *run) {
    const AttentionCase c = {1, {70}, {-1}, 1, 1, 16, 0, 0};
    Layout layout = layout_of(run, &c);
    AttentionArgs args = args_of(&c, &layout);
    Tensor *q = drawn(run, DT_F32, 70, 16, 100), *k = drawn(run, DT_F32, 70, 16, 100), *v = drawn(run, DT_F32, 70, 16, 1);
    for (int64_t i = 0; i < 16; i++) tensor_set(q, 69 * 16 + i, 0);
    Tensor *y = fresh(run, DT_F32, 70, 16), *want = twin(run, y), *norms = fresh(run, DT_F32, 70, 1), *norms_want = twin(run, norms);
    run->fast->attention(&args, q, k, v, y, norms), run->plain->attention(&args, q, k, v, want, norms_want);
    kernels_compare(run, "attention with large scores", y, want, 5e-2); /* scores of 1e5 have an ulp of 0.008 */
    kernels_compare(run, "logsumexp of large scores", norms, norms_want, 1e-6);
    tensor_set(q, 5 * 16, (double)NAN);
    run->fast->attention(&args, q, k, v, y, norms);
    for (int64_t i = 0; i < 70 * 16; i++) assert_int_equal(isnan(tensor_get(y, i)) != 0, i / 16 == 5);
}

TEST(attention_extremes) { (void)state, everywhere(extremes_body); }

/* ---- elementary functions ---- */

static double relative_error(double got, double want) { return fabs(got - want) / fmax(fabs(want), 1e-300); }

TEST(functions_are_accurate) {
    double worst[3] = {0};
    for (double x = -86.6; x < 88.7; x += 0.00137) worst[0] = fmax(worst[0], relative_error((double)fast_exp((float)x), exp((double)(float)x)));
    for (double x = -12; x < 12; x += 0.00037) worst[1] = fmax(worst[1], relative_error((double)fast_tanh((float)x), tanh((double)(float)x)));
    for (double x = -5; x < 9; x += 0.00037)
        worst[2] = fmax(worst[2], relative_error((double)fast_normal_cdf((float)x), 0.5 * erfc(-(double)(float)x * sqrt(0.5))));
    check_close(worst[0], 0, 2e-7);
    check_close(worst[1], 0, 4e-7);
    check_close(worst[2], 0, 2e-6);
    assert_true(fast_exp(0) == 1.0f && fast_exp(-INFINITY) == 0.0f && fast_exp(-1e30f) == 0.0f && fast_exp(-100) == 0.0f);
    assert_true(isinf(fast_exp(89)) && isinf(fast_exp(INFINITY)) && isnan(fast_exp(NAN)));
    assert_true(fast_tanh(INFINITY) == 1.0f && fast_tanh(-INFINITY) == -1.0f && fast_tanh(0) == 0.0f && isnan(fast_tanh(NAN)));
    assert_true(fast_normal_cdf(INFINITY) == 1.0f && fast_normal_cdf(-50) == 0.0f && isnan(fast_normal_cdf(NAN)));
}

/* ---- golden values against the reference ---- */

static Tensor *given(Run *run, int64_t n, const double *values) {
    Tensor *tensor = shaped(run, DT_F64, 1, n);
    tensor_write(tensor, values);
    return tensor;
}

static void check_golden(Run *run, const char *what, const Tensor *got, const double *want, double tolerance) {
    double *values = arena_alloc(run->arena, sizeof(double) * (size_t)tensor_count(got));
    tensor_read(got, values);
    check_close_f64(what, values, want, (size_t)tensor_count(got), tolerance, 0);
}

TEST(reference_gives_golden_values) {
    const Device *plain = device_reference();
    Run run = {arena_new(0), plain, plain, 0, 0, NULL, 0};
    Tensor *x = given(&run, 4, (const double[]){1, 2, 3, 4}), *ones = given(&run, 4, (const double[]){1, 1, 1, 1}), *y = fresh(&run, DT_F64, 1, 4),
           *rstd = fresh(&run, DT_F64, 1, 1);
    plain->rms_norm(x, ones, 1e-6, NULL, y, rstd);
    check_golden(&run, "rms_norm", y, (const double[]){.36514835, .73029669, 1.09544504, 1.46059339}, 5e-9);
    Tensor *dy = given(&run, 4, (const double[]){.1, -.2, .3, .4});
    plain->rms_norm_backward(x, ones, rstd, dy, 0, y, NULL);
    check_golden(&run, "rms_norm_backward", y, (const double[]){.00973729, -.12658475, .02921188, .03894917}, 5e-9);
    Tensor *cosine = given(&run, 2, (const double[]){cos(3), cos(.03)}), *sine = given(&run, 2, (const double[]){sin(3), sin(.03)});
    plain->rope(x, cosine, sine, 4, false, false, 0, y);
    check_golden(&run, "rope", y, (const double[]){-1.41335252, 1.87911807, -2.82885748, 4.05819114}, 5e-9);
    plain->rope(y, cosine, sine, 4, false, true, 0, y);
    check_golden(&run, "rope turned back", y, (const double[]){1, 2, 3, 4}, 1e-12);

    static const struct {
        Activation kind;
        double x, y;
    } points[] = {{ACT_SILU, 1.5, 1.2263617143},
                  {ACT_SILU, -1, -.2689414214},
                  {ACT_GELU_TANH, 1.5, 1.3995715770},
                  {ACT_GELU_ERF, 1.5, 1.3997891981},
                  {ACT_RELU, -2, 0},
                  {ACT_RELU, 2, 2}};
    for (size_t i = 0; i < COUNT_OF(points); i++) {
        Tensor *at = given(&run, 1, &points[i].x), *value = fresh(&run, DT_F64, 1, 1);
        plain->activation(points[i].kind, at, NULL, value);
        check_golden(&run, "activation", value, &points[i].y, 6e-11);
    }

    Tensor *param = given(&run, 1, (const double[]){1}), *m = given(&run, 1, (const double[]){0}), *v = given(&run, 1, (const double[]){0});
    static const double grads[] = {.5, -.25, .1}, params[] = {.899000002000, .871467298706, .839071475725};
    for (int64_t step = 1; step <= 3; step++) {
        plain->adamw(param, given(&run, 1, &grads[step - 1]), m, v, 1, .1, .9, .999, 1e-8, .01, step);
        check_golden(&run, "adamw", param, &params[step - 1], 6e-13);
    }

    /* Cross-entropy of logits 2, 1, .5 and target 0: a head of three rows and one hidden value of 1. */
    const int64_t one = 1, shape[] = {3, 1};
    Tensor *head = tensor_new(run.arena, plain, DT_F64, 2, shape), *target = tensor_new(run.arena, plain, DT_I32, 1, &one),
           *hidden = given(&run, 1, (const double[]){1});
    tensor_write(head, (const double[]){2, 1, .5});
    *(int32_t *)target->elements = 0;
    Tensor *logprob = fresh(&run, DT_F64, 1, 1), *entropy = fresh(&run, DT_F64, 1, 1), *norm = fresh(&run, DT_F64, 1, 1),
           *dhead = tensor_new(run.arena, plain, DT_F64, 2, shape);
    const LogprobArgs args = {.temperature = 1};
    const LogprobResults results = {.logprob = logprob, .entropy = entropy, .logsumexp = norm};
    plain->token_logprobs(&args, hidden, head, target, &results);
    check_golden(&run, "logprob", logprob, (const double[]){-.4643687841}, 6e-11);
    check_golden(&run, "entropy", entropy, (const double[]){.9059592565}, 6e-11);
    plain->token_logprobs_backward(&args, hidden, head, target, &results, &(TokenLogprobs){.logprob = given(&run, 1, (const double[]){-1})}, NULL, 0,
                                   dhead);
    check_golden(&run, "dlogits", dhead, (const double[]){-.3714682808, .2312238976, .1402443832}, 6e-11); /* they sum to zero */
    arena_free(run.arena);
}

TEST(unknown_instruction_sets_are_refused) {
    check_status(cpu_configure(NULL, "mmx"), ST_USAGE);
    check_text("'mmx'");
    check_ok(cpu_configure(NULL, "auto"));
    assert_non_null(cpu_info()->isa);
    assert_true(cpu_info()->name[0] != 0);
}

/* ---- short convolutions ---- */

/* A layout of segments with these lengths and parents, or with pasts and a state each. */
static Layout conv_layout(Run *run, const int32_t *lengths, const int32_t *parents, const int32_t *pasts, int32_t n) {
    Segment *segments = arena_zero(run->arena, sizeof *segments * (size_t)n);
    int32_t row = 0;
    for (int32_t s = 0; s < n; s++) {
        segments[s] =
            (Segment){.begin = row, .end = row + lengths[s], .parent = pasts ? -1 : parents[s], .past = pasts ? pasts[s] : 0, .state = n - 1 - s};
        row += lengths[s];
    }
    return uploaded(run, (Layout){.n_tokens = row, .n_segments = n, .segments = segments});
}

static void short_conv_case(Run *run, DType in, DType out, int64_t width, int64_t taps, bool cached) {
    static const int32_t lengths[] = {5, 1, 2, 37, 3}, parents[] = {-1, 0, 1, -1, 3}, pasts[] = {0, 3, 1, 7, 0};
    DType exact = out == DT_F64 ? DT_F64 : DT_F32;
    Layout layout = conv_layout(run, lengths, parents, cached ? pasts : NULL, COUNT_OF(lengths));
    ShortConvArgs args = {.layout = &layout}, want_args = args;
    Tensor *x = drawn(run, in, layout.n_tokens, 3 * width, 1), *weight = drawn(run, exact, width, taps, 1), *bias = drawn(run, exact, 1, width, 1),
           *y = fresh(run, out, layout.n_tokens, width), *want = twin(run, y);
    Tensor kernel = *weight;
    kernel.n_dims = 3;
    kernel.shape[1] = 1, kernel.shape[2] = taps;
    if (cached) {
        args.states = drawn(run, exact, COUNT_OF(lengths), (taps - 1) * width, 1);
        want_args.states = twin(run, args.states);
    }
    run->fast->short_conv(&args, x, &kernel, cached ? NULL : bias, y), run->plain->short_conv(&want_args, x, &kernel, cached ? NULL : bias, want);
    kernels_compare(run, "short_conv", y, want, 2e-6);
    if (cached) {
        kernels_compare(run, "states", args.states, want_args.states, 1e-6);
        return;
    }
    Tensor *dy = drawn(run, out, layout.n_tokens, width, 1), *dx = drawn(run, in == DT_F16 ? DT_F32 : in, layout.n_tokens, 3 * width, 1),
           *dx_want = twin(run, dx), *dweight = drawn(run, exact, width, taps, 1), *dweight_want = twin(run, dweight),
           *dbias = drawn(run, exact, 1, width, 1), *dbias_want = twin(run, dbias);
    run->fast->short_conv_backward(&args, x, &kernel, bias, dy, 1, dx, dweight, dbias),
        run->plain->short_conv_backward(&want_args, x, &kernel, bias, dy, 1, dx_want, dweight_want, dbias_want);
    kernels_compare(run, "short_conv's dx", dx, dx_want, 4e-6);
    kernels_compare(run, "short_conv's dweight", dweight, dweight_want, 2e-5);
    kernels_compare(run, "short_conv's dbias", dbias, dbias_want, 2e-5);
}

static void short_conv_body(Run *run) {
    for (size_t m = 0; m < COUNT_OF(mixes); m++)
        for (int cached = 0; cached < 2; cached++) {
            short_conv_case(run, mixes[m].in, mixes[m].out, 7, 3, cached);
            short_conv_case(run, mixes[m].in, mixes[m].out, 530, 5, cached);
        }
}

TEST(short_conv_kernels) { (void)state, everywhere(short_conv_body); }

/* Tokens in two passes, the second one with the state of the first, have the bits of one pass. */
static void conv_parts_body(Run *run) {
    enum { WIDTH = 70, TAPS = 4, TOKENS = 23 };
    static const int32_t cuts[] = {1, 2, 3, 5, 12};
    const int32_t none = -1, zero = 0, all = TOKENS;
    Tensor *x = drawn(run, DT_BF16, TOKENS, 3 * WIDTH, 1), *weight = drawn(run, DT_BF16, WIDTH, TAPS, 1), *y = fresh(run, DT_BF16, TOKENS, WIDTH);
    Tensor kernel = *weight;
    kernel.n_dims = 3;
    kernel.shape[1] = 1, kernel.shape[2] = TAPS;
    Layout whole = conv_layout(run, &all, &none, NULL, 1);
    run->fast->short_conv(&(ShortConvArgs){.layout = &whole}, x, &kernel, NULL, y);
    for (size_t c = 0; c < COUNT_OF(cuts); c++) {
        const int32_t lengths[] = {cuts[c], TOKENS - cuts[c]};
        Tensor *parts = fresh(run, DT_BF16, TOKENS, WIDTH), *states = fresh(run, DT_F32, 1, (TAPS - 1) * WIDTH);
        Layout first = conv_layout(run, &lengths[0], NULL, &zero, 1), second = conv_layout(run, &lengths[1], NULL, &lengths[0], 1);
        Tensor x1 = rows_of(x, 0, cuts[c]), x2 = rows_of(x, cuts[c], TOKENS), y1 = rows_of(parts, 0, cuts[c]), y2 = rows_of(parts, cuts[c], TOKENS);
        run->fast->short_conv(&(ShortConvArgs){&first, states}, &x1, &kernel, NULL, &y1);
        run->fast->short_conv(&(ShortConvArgs){&second, states}, &x2, &kernel, NULL, &y2);
        same_bits("a convolution in two passes", parts, 0, y, 0, TOKENS);
    }
}

TEST(short_conv_in_parts_has_the_same_bits) { (void)state, everywhere(conv_parts_body); }

/* ---- dropout of chosen rows ---- */

static void dropout_rows_body(Run *run) {
    enum { ALL = 40, CHOSEN = 29, WIDTH = 531, FIRST = 7 };
    const RngKey key = rng_key(3, RNG_DROPOUT, 5);
    for (int t = 0; t < 2; t++) {
        DType dtype = t ? DT_BF16 : DT_F32;
        Tensor *x = drawn(run, dtype, ALL, WIDTH, 1), *rows = ids(run, CHOSEN, ALL), *chosen = fresh(run, dtype, CHOSEN, WIDTH),
               *y = fresh(run, dtype, ALL, WIDTH), *got = fresh(run, dtype, CHOSEN, WIDTH), *want = twin(run, got);
        run->fast->gather_rows(x, rows, chosen);
        run->fast->dropout(x, 0.3, key, FIRST, 0, y);
        run->fast->dropout_rows(chosen, rows, 0.3, key, FIRST, 0, got), run->plain->dropout_rows(chosen, rows, 0.3, key, FIRST, 0, want);
        kernels_compare(run, "dropout of rows", got, want, 1e-6);
        for (int64_t r = 0; r < CHOSEN; r++) same_bits("a row's mask", got, r, y, ((const int32_t *)rows->elements)[r], 1);
    }
}

TEST(dropout_of_rows_is_that_of_all) { (void)state, everywhere(dropout_rows_body); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_gives_golden_values),
        cmocka_unit_test(functions_are_accurate),
        cmocka_unit_test(elementwise_kernels),
        cmocka_unit_test(row_kernels),
        cmocka_unit_test(norm_kernels),
        cmocka_unit_test(activation_kernels),
        cmocka_unit_test(rope_kernel),
        cmocka_unit_test(update_kernels),
        cmocka_unit_test(nonfinite_kernel),
        cmocka_unit_test(choice_kernels),
        cmocka_unit_test(nan_stays_in_its_row),
        cmocka_unit_test(attention_kernels),
        cmocka_unit_test(attention_bits_do_not_depend_on_the_batch),
        cmocka_unit_test(rows_alone_have_the_same_bits),
        cmocka_unit_test(attention_extremes),
        cmocka_unit_test(short_conv_kernels),
        cmocka_unit_test(short_conv_in_parts_has_the_same_bits),
        cmocka_unit_test(dropout_of_rows_is_that_of_all),
        cmocka_unit_test(unknown_instruction_sets_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
