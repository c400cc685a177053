/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of the processor's device against plain loops in double, under each library and instruction set that this build and processor have.
 */
#include "lib/base/system.h"
#include "lib/tensor/tensor.h"
#include "tests/support/backends.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

static Arena *arena;

static bool configure(const char *gemm, const char *isa) { return cpu_configure(gemm, isa) == ST_OK; }

static int setup(void **state) {
    (void)state;
    arena = arena_new(0);
    return arena ? 0 : 1;
}

static int teardown(void **state) {
    (void)state;
    arena_free(arena);
    return cpu_configure(NULL, NULL) == ST_OK ? 0 : 1;
}

static Tensor *random_tensor(DType dtype, int64_t rows, int64_t cols, uint64_t number) {
    Tensor *tensor = tensor_new(arena, device_cpu(), dtype, 2, (int64_t[]){rows, cols});
    RngKey key = rng_key(7, RNG_TEST, number);
    for (int64_t i = 0; i < rows * cols; i++) tensor_set(tensor, i, 2 * rng_uniform(key, (uint64_t)i) - 1);
    return tensor;
}

static Matmul product(Tensor *a, Tensor *b, Tensor *c, bool transpose_a, bool transpose_b, double alpha, double beta) {
    return (Matmul){.a = a, .b = b, .c = c, .transpose_a = transpose_a, .transpose_b = transpose_b, .alpha = alpha, .beta = beta};
}

/* Everything that Matmul says, in double; beta 0 leaves c unread. */
static double *values_of(const Tensor *tensor, bool transposed) {
    int64_t rows = tensor->shape[0], cols = tensor->shape[1];
    double *values = arena_alloc(arena, (size_t)(rows * cols + 1) * sizeof *values), *out = values;
    tensor_read(tensor, values);
    if (!transposed) return values;
    out = arena_alloc(arena, (size_t)(rows * cols + 1) * sizeof *out);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) out[j * rows + i] = values[i * cols + j];
    return out;
}

static void add_product(double *c, double alpha, const double *a, const double *b, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t l = 0; l < k; l++) {
            double factor = alpha * a[i * k + l];
#pragma omp simd
            for (int64_t j = 0; j < n; j++) c[i * n + j] += factor * b[l * n + j];
        }
}

static double *expected(const Matmul *args) {
    int64_t m = args->c->shape[0], n = args->c->shape[1], k = args->a->shape[args->transpose_a ? 0 : 1];
    double *want = arena_zero(arena, (size_t)(m * n + 1) * sizeof *want);
    if (args->addend || args->beta != 0)
        for (int64_t i = 0; i < m * n; i++)
            want[i] = args->beta * (args->addend ? tensor_get(args->addend, args->addend->n_dims == 1 ? i % n : i) : tensor_get(args->c, i));
    add_product(want, args->alpha, values_of(args->a, args->transpose_a), values_of(args->b, args->transpose_b), m, n, k);
    if (args->more_a)
        add_product(want, args->more_alpha, values_of(args->more_a, false), values_of(args->more_b, args->transpose_more_b), m, n,
                    args->more_a->shape[1]);
    return want;
}

/* One product: the memory of C before it, and what plain loops give, which depends on no backend. */
static struct {
    Matmul args;
    const void *before;
    const double *want;
    const char *kind;
    int variant;
} current;

/* f32: sums of k products of values below 1, each with a rounding error of 6e-8; allows 8 times that. A long sequential sum, as in OpenBLAS for
 * armv8, has a measured error of 1.9e-5 for k = 576; allows twice that. bf16 results: half a step of 2^-8, again for each further rounding. b rounded
 * to bf16 if a is bf16: up to 2e-3 a term; measured 0.021 for k = 31 and a result of 2.4. */
static void compare_product(void) {
    const Matmul *args = &current.args;
    int64_t m = args->c->shape[0], n = args->c->shape[1], k = args->a->shape[args->transpose_a ? 0 : 1];
    ArenaMark mark = arena_mark(arena);
    double *got = arena_alloc(arena, (size_t)(m * n + 1) * sizeof *got);
    memcpy(args->c->elements, current.before, tensor_bytes(args->c));
    device_cpu()->matmul(args);
    tensor_read(args->c, got);
    bool rounded_b = args->a->dtype == DT_BF16 && args->b->dtype != DT_BF16;
    double absolute = args->a->dtype == DT_F64
                          ? 1e-13 * (double)(k + 1)
                          : fmax(4.8e-7 * sqrt((double)(k + 1)), 6e-8 * (double)(k + 1)) + (rounded_b ? 3e-3 * sqrt((double)(k + 1)) : 0);
    if (args->more_a && args->a->dtype == DT_BF16) absolute += 6e-3 * sqrt((double)args->more_a->shape[1] + 1);
    if (args->c->dtype == DT_BF16 && (args->more_a || args->addend)) absolute += 8e-3 * sqrt((double)(k + 1));
    char what[160];
    snprintf(what, sizeof what, "%s %s%s %lldx%lldx%lld variant %d", cpu_info()->gemm_f32, cpu_info()->isa, current.kind, (long long)m, (long long)n,
             (long long)k, current.variant);
    if (current.want) check_close_f64(what, got, current.want, (size_t)(m * n), absolute, args->c->dtype == DT_BF16 ? 1.0 / 256 : 1e-6);
    tensor_unpack((Tensor *)(uintptr_t)args->b);
    arena_rewind(arena, mark);
}

static void check_product(const Matmul *args, const char *kind, int variant) {
    size_t bytes = tensor_bytes(args->c);
    void *before = arena_alloc(arena, bytes + 1);
    memcpy(before, args->c->elements, bytes);
    current.args = *args;
    current.before = before;
    current.want = ONE_SET ? NULL : expected(args); /* plain loops have no threads */
    current.kind = kind;
    current.variant = variant;
    for_each_backend(compare_product);
}

TEST(shapes_dtypes_and_transposes) {
    static const int64_t shapes[][3] = {{1, 1, 1},      {0, 5, 7},       {3, 5, 0},       {2, 33, 17},  {9, 31, 65},     {64, 32, 576},
                                        {129, 300, 31}, {257, 65, 40},   {16, 96, 700},   {5, 700, 16}, {150, 70, 2100}, {16, 100, 70},
                                        {90, 16, 1000}, {45, 1100, 100}, {1100, 40, 130}, {27, 64, 96}, {33, 48, 8300},  {3, 40, 16500}};
    static const DType as[] = {DT_F32, DT_BF16}, bs[] = {DT_F32, DT_BF16, DT_F16}, cs[] = {DT_F32, DT_BF16};
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        for (int variant = 0; variant < 96; variant += ALL_OR_FEW(1, 7)) {
            if (s >= 6 && variant % 5 != (int)s % 5) continue; /* the larger ones: a share of the variants */
            int64_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2];
            bool ta = variant & 1, tb = variant & 2, constant = variant & 4, beta = variant & 8;
            DType a = as[variant / 16 % 2], b = bs[variant / 32 % 3], c = cs[(variant / 16 + s) % 2];
            ArenaMark mark = arena_mark(arena);
            Matmul args = product(random_tensor(a, ta ? k : m, ta ? m : k, 1), random_tensor(b, tb ? n : k, tb ? k : n, 2), random_tensor(c, m, n, 3),
                                  ta, tb, variant & 4 ? 1 : 0.75, beta ? 0.5 : 0);
            args.b->storage->constant = constant;
            if (!beta) memset(args.c->elements, 0xff, tensor_bytes(args.c)); /* NaN that must not be read */
            check_product(&args, "", variant);
            arena_rewind(arena, mark);
        }
}

/* A low-rank branch and an initial C, each alone and both, with results of either dtype. */
TEST(branches_and_addends) {
    static const int64_t shapes[][4] = {{1, 33, 17, 3},     {40, 96, 64, 16}, {150, 70, 130, 40}, {300, 64, 31, 8},
                                        {7, 300, 2100, 16}, {27, 64, 96, 17}, {33, 48, 8300, 3},  {0, 5, 7, 2}};
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        for (int variant = 0; variant < 48; variant += ALL_OR_FEW(1, 5)) {
            int64_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2], rank = shapes[s][3];
            if (k > 4096 && variant % 7) continue; /* a share of the variants */
            bool tb = variant & 1;
            int addend = variant / 4 % 3; /* none, a vector, a matrix */
            DType a = variant & 2 ? DT_BF16 : DT_F32, c = variant / 12 % 2 ? DT_BF16 : DT_F32;
            ArenaMark mark = arena_mark(arena);
            Matmul args = product(random_tensor(a, m, k, 1), random_tensor(a, tb ? n : k, tb ? k : n, 2), random_tensor(c, m, n, 3), false, tb, 1,
                                  addend ? 1 : 0);
            if (variant / 24 || !addend) {
                args.more_a = random_tensor(a, m, rank, 4);
                args.more_b = random_tensor(DT_F32, tb ? n : rank, tb ? rank : n, 5);
                args.transpose_more_b = tb;
                args.more_alpha = 1.75;
            }
            if (addend == 1) args.addend = tensor_view(arena, device_cpu(), DT_F32, 1, &n, random_tensor(DT_F32, 1, n, 6)->elements);
            if (addend == 2) args.addend = random_tensor(variant & 2 ? DT_F32 : DT_BF16, m, n, 6);
            if (args.beta == 0 || addend) memset(args.c->elements, 0xff, tensor_bytes(args.c));
            check_product(&args, " branch", variant);
            arena_rewind(arena, mark);
        }
}

/* With A in bf16, B and the branch in another type count as if rounded to bf16 first, natively or not. */
static void run_rounding(void) {
    static const int64_t shapes[][3] = {{1, 33, 17}, {5, 300, 64}, {64, 70, 576}, {150, 600, 40}};
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        for (int variant = 0; variant < 16; variant++) {
            int64_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2], rank = 8;
            bool ta = variant & 1, tb = variant & 2, branch = variant & 8 && !ta;
            ArenaMark mark = arena_mark(arena);
            Tensor *a = random_tensor(DT_BF16, ta ? k : m, ta ? m : k, 1), *b[2], *more_b[2], *c[2], *more_a = random_tensor(DT_BF16, m, rank, 4);
            for (int i = 0; i < 2; i++) {
                DType dtype = i == 0 ? DT_BF16 : DT_F32;
                b[i] = random_tensor(dtype, tb ? n : k, tb ? k : n, 2);
                b[i]->storage->constant = variant & 4;
                more_b[i] = random_tensor(dtype, tb ? n : rank, tb ? rank : n, 5);
                c[i] = random_tensor(DT_F32, m, n, 3);
                Matmul args = product(a, b[i], c[i], ta, tb, 1, 0);
                /* Native products take the branch times alpha, then round */
                if (branch) args.more_a = more_a, args.more_b = more_b[i], args.transpose_more_b = tb, args.more_alpha = 2;
                device_cpu()->matmul(&args);
                tensor_unpack(b[i]);
            }
            /* the same numbers, which a library may add up in another order: f32's rounding of k terms below 1, not the 2e-3 of bf16's */
            for (int64_t i = 0; i < m * n; i++)
                if (fabs(tensor_get(c[0], i) - tensor_get(c[1], i)) > 1e-6 * sqrt((double)k))
                    fail_msg("%s %s %lldx%lldx%lld variant %d: element %lld is %.9g, %.9g of rounded factors", cpu_info()->gemm_f32, cpu_info()->isa,
                             (long long)m, (long long)n, (long long)k, variant, (long long)i, tensor_get(c[1], i), tensor_get(c[0], i));
            arena_rewind(arena, mark);
        }
}

TEST(bf16_rounds_both_factors) { for_each_backend(run_rounding); }

TEST(doubles) {
    for (int variant = 0; variant < 8; variant++) {
        bool ta = variant & 1, tb = variant & 2;
        Matmul args = product(random_tensor(DT_F64, ta ? 19 : 7, ta ? 7 : 19, 1), random_tensor(DT_F64, tb ? 11 : 19, tb ? 19 : 11, 2),
                              random_tensor(DT_F64, 7, 11, 3), ta, tb, 1.5, variant & 4 ? 1 : 0);
        if (args.beta == 0) memset(args.c->elements, 0xff, tensor_bytes(args.c));
        check_product(&args, "", variant);
    }
}

static uint64_t bits_of(const Tensor *c, int64_t first_row, int64_t rows) {
    size_t row_bytes = (size_t)c->shape[1] * dtype_size(c->dtype);
    const uint8_t *bytes = (const uint8_t *)c->elements + (size_t)first_row * row_bytes;
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < (size_t)rows * row_bytes; i += 2) { /* all values have so many bytes or twice as many */
        uint16_t word;
        memcpy(&word, bytes + i, sizeof word);
        hash = (hash ^ word) * 1099511628211u;
    }
    return hash;
}

/* Shapes with several tiles each way, long sums, and the low-rank ones. {m, n, k, transpose_a, transpose_b} */
static const int64_t many_tiles[][5] = {{300, 576, 576, 0, 1},  {140, 576, 1536, 0, 0}, {16, 576, 1000, 1, 0}, {576, 16, 1000, 1, 0},
                                        {200, 16, 576, 0, 1},   {200, 576, 16, 0, 1},   {40, 5000, 64, 0, 1},  {150, 700, 1000, 1, 0},
                                        {500, 150, 2100, 1, 0}, {100, 176, 300, 1, 0},  {208, 112, 300, 1, 0}, {128, 300, 4864, 0, 1}};

/* Written past the caches, where it may be, or as always: the same bits, also at the edges and where lines of memory begin elsewhere. */
static void check_read_late(Matmul args, uint64_t bits) {
    Tensor *room = tensor_new(arena, device_cpu(), DT_F32, 1, (int64_t[]){tensor_count(args.c) + 1}), c = *args.c;
    args.nontemporal = true;
    args.c = &c;
    for (int shift = 0; shift <= 1; shift++) {
        memset(room->elements, 0xff, tensor_bytes(room));
        c.elements = (float *)room->elements + shift;
        device_cpu()->matmul(&args);
        if (bits_of(&c, 0, c.shape[0]) != bits)
            fail_msg("%s: (%lld,%lld), shifted by %d, has other bits when it is read late", cpu_info()->gemm_f32, (long long)c.shape[0],
                     (long long)c.shape[1], shift);
    }
}

static void run_threads(void) {
    int threads = omp_get_max_threads();
    for (size_t s = 0; s < COUNT_OF(many_tiles); s++)
        for (size_t variant = ALL_OR_FEW(0, s % 4); variant < 4; variant += ALL_OR_FEW(1, 4)) {
            const int64_t *shape = many_tiles[s];
            DType dtype = variant & 1 ? DT_BF16 : DT_F32;
            ArenaMark mark = arena_mark(arena);
            Tensor *b = random_tensor(dtype, shape[4] ? shape[1] : shape[2], shape[4] ? shape[2] : shape[1], 2);
            b->storage->constant = variant & 2;
            Matmul args = product(random_tensor(dtype, shape[3] ? shape[2] : shape[0], shape[3] ? shape[0] : shape[2], 1), b,
                                  random_tensor(DT_F32, shape[0], shape[1], 3), shape[3], shape[4], 1, 0);
            uint64_t first = 0;
            for (int t = 1; t <= 4; t += ALL_OR_FEW(1, 3)) {
                omp_set_num_threads(t);
                device_cpu()->matmul(&args);
                uint64_t bits = bits_of(args.c, 0, shape[0]);
                if (t == 1) first = bits;
                if (bits != first) fail_msg("%s: shape %zu variant %zu has other bits on %d threads", cpu_info()->gemm_f32, s, variant, t);
                if (t == 1 || t == 4) check_read_late(args, first);
            }
            tensor_unpack(b);
            arena_rewind(arena, mark);
        }
    omp_set_num_threads(threads);
}

TEST(bits_are_those_of_any_number_of_threads) { for_each_backend(run_threads); }

/* A branch whose inner factor is made on the way has the bits of two products. */
static void run_down(void) {
    static const int64_t shapes[][4] = {{1, 33, 17, 3},      {4, 300, 576, 16},    {33, 1100, 64, 16}, {128, 96, 576, 40},
                                        {129, 192, 130, 16}, {300, 1100, 576, 33}, {40, 64, 2100, 16}, {150, 100, 64, 65},
                                        {27, 64, 96, 17},    {60, 100, 96, 40},    {0, 5, 7, 2}};
    int threads = omp_get_max_threads();
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        for (size_t variant = ALL_OR_FEW(0, s % 3); variant < 8; variant += ALL_OR_FEW(1, 3)) {
            int64_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2], rank = shapes[s][3];
            bool tb = variant & 1, forward = variant & 4;
            DType dtype = variant & 2 ? DT_BF16 : DT_F32;
            ArenaMark mark = arena_mark(arena);
            Tensor *given = random_tensor(dtype, m, rank, 6), *made = random_tensor(dtype, m, rank, 7), *want = random_tensor(DT_F32, m, n, 8),
                   *got = random_tensor(DT_F32, m, n, 9);
            Matmul args = product(random_tensor(dtype, m, k, 1), random_tensor(dtype, tb ? n : k, tb ? k : n, 2), want, false, tb, 1, 0);
            Tensor *down = random_tensor(DT_F32, forward ? rank : k, forward ? k : rank, 3);
            device_cpu()->matmul(&(Matmul){.a = args.a, .b = down, .c = given, .transpose_b = forward, .alpha = 1.5});
            args.more_a = given, args.more_b = random_tensor(DT_F32, forward ? n : rank, forward ? rank : n, 4), args.transpose_more_b = forward,
            args.more_alpha = 0.75;
            device_cpu()->matmul(&args);
            args.more_a = args.low = made, args.down = down, args.transpose_down = forward, args.down_alpha = 1.5, args.c = got;
            for (int t = 1; t <= 4; t += ALL_OR_FEW(1, 3)) {
                omp_set_num_threads(t);
                memset(made->elements, 0xff, tensor_bytes(made));
                memset(got->elements, 0xff, tensor_bytes(got));
                device_cpu()->matmul(&args);
                if (bits_of(made, 0, m) != bits_of(given, 0, m))
                    fail_msg("%s %s: shape %zu variant %zu: another inner factor on %d threads", cpu_info()->gemm_f32, cpu_info()->isa, s, variant,
                             t);
                if (bits_of(got, 0, m) != bits_of(want, 0, m))
                    fail_msg("%s %s: shape %zu variant %zu: another result on %d threads", cpu_info()->gemm_f32, cpu_info()->isa, s, variant, t);
            }
            omp_set_num_threads(threads);
            arena_rewind(arena, mark);
        }
}

TEST(branches_made_on_the_way) { for_each_backend(run_down); }

/* Branches of some rows: each row has the bits of a product of which all rows have its branch. OpenBLAS takes other paths for other rows. */
static void check_branches(int64_t m, int64_t n, int64_t k, int variant) {
    static const int64_t ranks[] = {3, 40, 8, 1, 16};
    bool bf16 = variant & 1, c_f32 = variant & 2, with_addend = variant & 4, apart = variant & 8;
    DType dtype = bf16 ? DT_BF16 : DT_F32, c_dtype = c_f32 ? DT_F32 : DT_BF16;
    bool exact = !text_starts_with(cpu_info()->gemm_f32, "openblas");
    double tolerance = bf16 || !c_f32 ? 2e-2 : 1e-4; /* a last bit that rounding to bf16 makes large, twice */
    RowBranch branches[5] = {0};
    int n_branches = 0;
    for (int64_t at = apart; at < m && n_branches < 5; n_branches++) { /* with rows between them that have none */
        int64_t rows = n_branches == 4 ? m - at - apart : MIN(1 + (m / 5) * (n_branches % 3), m - at), rank = ranks[n_branches];
        branches[n_branches] = (RowBranch){.begin = at,
                                           .end = at + MAX(rows, 0),
                                           .down = random_tensor(DT_F32, rank, k, 10 + (uint64_t)n_branches),
                                           .b = random_tensor(DT_F32, n, rank, 20 + (uint64_t)n_branches),
                                           .alpha = 0.3 + n_branches,
                                           .low = random_tensor(dtype, MAX(rows, 0), rank, 30)};
        if (n_branches > 0) branches[n_branches - 1].next = &branches[n_branches];
        at = branches[n_branches].end + apart;
    }
    Tensor *x = random_tensor(dtype, m, k, 1), *got = random_tensor(c_dtype, m, n, 3), *addend = random_tensor(c_dtype, m, n, 4);
    Matmul args = product(x, random_tensor(dtype, n, k, 2), got, false, true, 1, with_addend ? 1 : 0);
    Matmul whole = args; /* C is the addend in half of the cases */
    if (with_addend && variant & 16) args.addend = whole.addend = addend;
    args.branches = n_branches > 0 ? branches : NULL;
    Tensor *want = random_tensor(c_dtype, m, n, 3);
    device_cpu()->matmul(&args);
    int64_t at = 0;
    for (int i = -1; i < n_branches; i++) { /* -1: the rows without one */
        const RowBranch *branch = i < 0 ? NULL : &branches[i];
        want = random_tensor(c_dtype, m, n, 3);
        whole.c = want;
        if (branch) {
            whole.more_a = whole.low = random_tensor(dtype, m, branch->b->shape[1], 31);
            whole.more_b = branch->b, whole.transpose_more_b = true, whole.more_alpha = branch->alpha;
            whole.down = branch->down, whole.transpose_down = true, whole.down_alpha = 1;
        }
        device_cpu()->matmul(&whole);
        for (int64_t r = 0; r < m; r++) {
            bool its = branch ? r >= branch->begin && r < branch->end : true;
            for (int j = 0; !branch && j < n_branches; j++) its &= r < branches[j].begin || r >= branches[j].end;
            if (!its) continue;
            at++;
            if (exact && bits_of(want, r, 1) != bits_of(got, r, 1))
                fail_msg("%s %s: (%lld,%lld,%lld) variant %d: other bits in row %lld, branch %d", cpu_info()->gemm_f32, cpu_info()->isa, (long long)m,
                         (long long)n, (long long)k, variant, (long long)r, i);
            for (int64_t j = 0; !exact && j < n; j++)
                if (fabs(tensor_get(want, r * n + j) - tensor_get(got, r * n + j)) > tolerance * fmax(1, fabs(tensor_get(want, r * n + j))))
                    fail_msg("openblas: row %lld of variant %d, branch %d: %g, %g alone", (long long)r, variant, i, tensor_get(got, r * n + j),
                             tensor_get(want, r * n + j));
        }
    }
    assert_int_equal(at, m);
}

static void run_branches(void) {
    static const int64_t shapes[][3] = {{1, 33, 17}, {5, 300, 576}, {33, 100, 64}, {140, 96, 130}, {300, 40, 64}, {7, 64, 2100}, {0, 5, 7}};
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        for (int variant = 0; variant < 32; variant += ALL_OR_FEW(1, 3)) {
            ArenaMark mark = arena_mark(arena);
            check_branches(shapes[s][0], shapes[s][1], shapes[s][2], variant);
            arena_rewind(arena, mark);
        }
}

TEST(rows_with_branches_of_their_own) { for_each_backend(run_branches); }

/* Several products in one call have the same bits as each alone: with one input, some with a branch, a bias or fewer columns; and with other
 * inputs, dtypes and directions. */
static void run_next(void) {
    enum { PRODUCTS = 8 };
    static const int64_t rows[] = {1, 8, 32, 33, 300}, widths[PRODUCTS] = {576, 192, 192, 97, 64, 576, 33, 1100};
    int threads = omp_get_max_threads();
    for (size_t s = 0; s < COUNT_OF(rows); s++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            int64_t m = rows[s], k = 576;
            DType dtype = bf16 ? DT_BF16 : DT_F32;
            ArenaMark mark = arena_mark(arena);
            Tensor *x = random_tensor(dtype, m, k, 1), *turned = random_tensor(dtype, k, m, 2), *doubles = random_tensor(DT_F64, m, 5, 3),
                   *want[PRODUCTS];
            Matmul list[PRODUCTS];
            for (int i = 0; i < PRODUCTS; i++) {
                bool f64 = i == 6;
                Tensor *b = random_tensor(f64 ? DT_F64 : DT_BF16, widths[i], f64 ? 5 : k, 10 + (uint64_t)i);
                want[i] = random_tensor(f64 ? DT_F64 : dtype, m, widths[i], 4);
                list[i] = product(i == 5 ? turned : f64 ? doubles : x, b, want[i], i == 5, true, 1, 0);
                b->storage->constant = i == 0;
                if (i == 2) list[i].addend = random_tensor(DT_F32, widths[i], 1, 5), list[i].beta = 1;
                if (i == 2) ((Tensor *)(uintptr_t)list[i].addend)->n_dims = 1;
                if (i == 0 || i == 3)
                    list[i].more_a = random_tensor(dtype, m, 16, 6), list[i].more_b = random_tensor(DT_F32, widths[i], 16, 7),
                    list[i].transpose_more_b = true, list[i].more_alpha = 2;
                if (i == 0)
                    list[i].down = random_tensor(DT_F32, 16, k, 9), list[i].transpose_down = true, list[i].down_alpha = 1,
                    list[i].low = (Tensor *)(uintptr_t)list[i].more_a;
                device_cpu()->matmul(&list[i]);
            }
            for (int i = 0; i < PRODUCTS; i++) {
                list[i].c = random_tensor(want[i]->dtype, m, widths[i], 8);
                list[i].next = i + 1 < PRODUCTS ? &list[i + 1] : NULL;
            }
            uint64_t low = bits_of(list[0].low, 0, m);
            for (int t = 1; t <= 4; t += ALL_OR_FEW(1, 3)) {
                omp_set_num_threads(t);
                memset(list[0].low->elements, 0xff, tensor_bytes(list[0].low));
                for (int i = 0; i < PRODUCTS; i++) memset(list[i].c->elements, 0xff, tensor_bytes(list[i].c));
                device_cpu()->matmul(&list[0]);
                assert_true(bits_of(list[0].low, 0, m) == low);
                for (int i = 0; i < PRODUCTS; i++)
                    if (memcmp(list[i].c->elements, want[i]->elements, tensor_bytes(want[i])) != 0)
                        fail_msg("%s %s: product %d of %lld rows has other bits among others, on %d threads", cpu_info()->gemm_f32, cpu_info()->isa,
                                 i, (long long)m, t);
            }
            omp_set_num_threads(threads);
            tensor_unpack((Tensor *)(uintptr_t)list[0].b);
            arena_rewind(arena, mark);
        }
}

/* A factor may be the columns of one product and the rows of the next: what was made of it for one must not be taken for the other. */
static void run_next_roles(void) {
    static const int64_t sizes[] = {1, 8, 20, 33, 60};
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        int64_t m = sizes[s], k = 96;
        ArenaMark mark = arena_mark(arena);
        Tensor *x = random_tensor(DT_BF16, m, k, 1), *weight = random_tensor(DT_BF16, 100, k, 2), *z = random_tensor(DT_BF16, 200, k, 3);
        Tensor *want = random_tensor(DT_F32, 200, m, 4), *got = random_tensor(DT_F32, 200, m, 5);
        Matmul second = product(z, x, want, false, true, 1, 0), first = product(x, weight, random_tensor(DT_F32, m, 100, 6), false, true, 1, 0);
        device_cpu()->matmul(&second);
        second.c = got;
        first.next = &second;
        device_cpu()->matmul(&first);
        if (memcmp(got->elements, want->elements, tensor_bytes(want)) != 0)
            fail_msg("%s %s: a factor of %lld lines was taken as it was for another product", cpu_info()->gemm_f32, cpu_info()->isa, (long long)m);
        arena_rewind(arena, mark);
    }
    omp_set_num_threads(threads);
}

TEST(products_of_one_call) {
    for_each_backend(run_next);
    for_each_backend(run_next_roles);
}

/* Gradients of weights in one call, which share the first factor, the second, or none: a^T b. */
static void run_gradients(void) {
    enum { CASES = 26, FEW = 20, MOST = 3 }; /* from FEW on: a few rows each, as of LoRA's factors, with another factor in common */
    static const int64_t sizes[] = {1, 17, 32, 33, 96, 130, 288, 340}, sums[] = {1, 31, 64, 300, 700, 2500};
    int threads = omp_get_max_threads();
    for (int c = 0; c < CASES; c++) {
        ArenaMark mark = arena_mark(arena);
        int n = 2 + c % 2;
        int64_t k = sums[c % 6], common = sizes[(5 * c + 3) % 8];
        DType dtype = c % 4 == 3 ? DT_F32 : DT_BF16;
        Tensor *shared = random_tensor(dtype, k, common, 1), *want[MOST];
        Matmul list[MOST];
        for (int i = 0; i < n; i++) {
            bool first = c % 5 == 4 && i == 1 ? c / 2 % 2 == 0 : c / 2 % 2 == 1; /* now and then nothing is shared by all */
            first &= c < FEW;
            Tensor *other = random_tensor(dtype, k, sizes[c < FEW ? (c + 3 * i) % 8 : (c + i) % 3], 2 + (uint64_t)i), *a = first ? shared : other,
                   *b = first ? other : shared;
            want[i] = random_tensor(c % 9 == 8 ? DT_BF16 : DT_F32, tensor_width(a), tensor_width(b), 7);
            list[i] = product(a, b, want[i], true, false, 1, c % 3 == 2 ? 1 : 0);
            list[i].nontemporal = c % 2;
            device_cpu()->matmul(&list[i]);
        }
        for (int t = 1; t <= 4; t += 3) {
            omp_set_num_threads(t);
            for (int i = 0; i < n; i++) {
                list[i].c = random_tensor(want[i]->dtype, want[i]->shape[0], want[i]->shape[1], 7);
                list[i].next = i + 1 < n ? &list[i + 1] : NULL;
            }
            device_cpu()->matmul(&list[0]);
            for (int i = 0; i < n; i++)
                if (memcmp(list[i].c->elements, want[i]->elements, tensor_bytes(want[i])) != 0)
                    fail_msg("%s %s: gradient %d of case %d has other bits among others, on %d threads", cpu_info()->gemm_f32, cpu_info()->isa, i, c,
                             t);
        }
        omp_set_num_threads(threads);
        arena_rewind(arena, mark);
    }
}

TEST(gradients_of_one_call) { for_each_backend(run_gradients); }

/* Row 0 of the product of the first `rows` rows, against the row alone; then the last row against itself alone. */
static void run_rows(void) {
    static const int64_t shapes[][2] = {{576, 576}, {16, 576}, {576, 16}, {192, 1536}, {97, 333}, {1100, 64}};
    enum { MOST = 300 };
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        for (int variant = 0; variant < 12; variant += ALL_OR_FEW(1, 3)) {
            bool transpose_b = variant & 4 || variant >= 8, half = variant >= 8; /* half: a weight of f16 and another alpha */
            int64_t n = shapes[s][0], k = shapes[s][1];
            DType dtype = variant & 1 ? DT_BF16 : DT_F32;
            ArenaMark mark = arena_mark(arena);
            Tensor *a = random_tensor(dtype, MOST, k, 1), *b = random_tensor(half ? DT_F16 : dtype, transpose_b ? n : k, transpose_b ? k : n, 2),
                   *all = random_tensor(DT_F32, MOST, n, 3);
            b->storage->constant = variant & 2;
            Tensor *branch = random_tensor(dtype, MOST, 16, 4), *factor = random_tensor(DT_F32, n, 16, 5);
            Matmul args = {.a = a,
                           .b = b,
                           .c = all,
                           .transpose_b = transpose_b,
                           .alpha = half && variant & 1 ? 0.75 : 1,
                           .more_a = branch,
                           .more_b = factor,
                           .transpose_more_b = true,
                           .more_alpha = 0.5};
            device_cpu()->matmul(&args);
            static const int64_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 25, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200, 299};
            for (size_t i = 0; i < COUNT_OF(counts); i += half ? 4 : ALL_OR_FEW(1, 3)) {
                int64_t rows = counts[i], shift = MOST - rows;
                Tensor *some = tensor_new(arena, device_cpu(), DT_F32, 2, (int64_t[]){rows, n});
                for (int end = 0; end < 2; end++) { /* the first rows of all, then the last ones: another place in their tile */
                    Tensor *part = tensor_view(arena, device_cpu(), dtype, 2, (int64_t[]){rows, k},
                                               (char *)a->elements + (size_t)(end ? shift * k : 0) * dtype_size(dtype));
                    args.a = part;
                    args.c = some;
                    args.more_a = tensor_view(arena, device_cpu(), dtype, 2, (int64_t[]){rows, 16},
                                              (char *)branch->elements + (size_t)(end ? shift * 16 : 0) * dtype_size(dtype));
                    device_cpu()->matmul(&args);
                    if (bits_of(some, 0, rows) != bits_of(all, end ? shift : 0, rows))
                        fail_msg("%s: shape %zu variant %d: %lld rows have other bits than among %d", cpu_info()->gemm_f32, s, variant,
                                 (long long)rows, MOST);
                }
            }
            tensor_unpack(b);
            arena_rewind(arena, mark);
        }
}

/* A branch whose last step is nearer to zero than any number: what is left has the same sign in any batch. */
static void run_underflow_of(int64_t rank) {
    enum { ROWS = 70, K = 32, N = 64 };
    ArenaMark mark = arena_mark(arena);
    Tensor *a = random_tensor(DT_BF16, ROWS, K, 1), *b = random_tensor(DT_BF16, N, K, 2), *branch = random_tensor(DT_BF16, ROWS, rank, 3),
           *factor = random_tensor(DT_BF16, N, rank, 4);
    Tensor *zeroed[] = {a, b, branch, factor};
    int64_t step = (rank - 1) / 2 * 2; /* steps are pairs */
    for (size_t i = 0; i < COUNT_OF(zeroed); i++) device_cpu()->fill(zeroed[i], 0);
    for (int64_t i = 0; i < ROWS; i++) tensor_set(branch, i * rank + step, -ldexp(1, -80));
    for (int64_t i = 0; i < N; i++) tensor_set(factor, i * rank + step, ldexp(1, -80));
    Matmul args = {.a = a, .b = b, .transpose_b = true, .alpha = 1, .more_a = branch, .more_b = factor, .transpose_more_b = true, .more_alpha = 1};
    uint64_t bits = 0;
    for (int64_t rows = ROWS; rows > 0; rows--) {
        args.a = tensor_view(arena, device_cpu(), DT_BF16, 2, (int64_t[]){rows, K}, a->elements);
        args.more_a = tensor_view(arena, device_cpu(), DT_BF16, 2, (int64_t[]){rows, rank}, branch->elements);
        args.c = tensor_new(arena, device_cpu(), DT_F32, 2, (int64_t[]){rows, N});
        device_cpu()->matmul(&args);
        if (rows == ROWS) bits = bits_of(args.c, 0, 1);
        if (bits_of(args.c, 0, 1) != bits)
            fail_msg("%s: rank %lld: the first of %lld rows has another zero than that of %d", cpu_info()->gemm_bf16, (long long)rank,
                     (long long)rows, ROWS);
    }
    arena_rewind(arena, mark);
}

static void run_underflow(void) {
    static const int64_t ranks[] = {16, 10, 5, 3}; /* ends of a tile's length, and within a quarter of it */
    for (size_t i = 0; i < COUNT_OF(ranks); i++) run_underflow_of(ranks[i]);
}

/* Products, sums and factors around the least normal number: what counts as zero does so in any batch. */
static void run_tiny(void) {
    enum { ROWS = 70, K = 64, N = 64 };
    ArenaMark mark = arena_mark(arena);
    Tensor *a = random_tensor(DT_BF16, ROWS, K, 1), *b = random_tensor(DT_BF16, N, K, 2);
    for (int64_t i = 0; i < ROWS * K; i++) tensor_set(a, i, ldexp(tensor_get(a, i), i % K < 40 ? -128 : -120));
    for (int64_t i = 0; i < N * K; i++) tensor_set(b, i, ldexp(tensor_get(b, i), i / K % 4 == 0 ? 0 : -8));
    Matmul args = {.b = b, .transpose_b = true, .alpha = 1};
    uint64_t bits = 0;
    for (int64_t rows = ROWS; rows > 0; rows--) {
        args.a = tensor_view(arena, device_cpu(), DT_BF16, 2, (int64_t[]){rows, K}, a->elements);
        args.c = tensor_new(arena, device_cpu(), DT_F32, 2, (int64_t[]){rows, N});
        device_cpu()->matmul(&args);
        if (rows == ROWS) bits = bits_of(args.c, 0, 1);
        if (bits_of(args.c, 0, 1) != bits)
            fail_msg("%s: tiny values: the first of %lld rows has other bits than that of %d", cpu_info()->gemm_bf16, (long long)rows, ROWS);
    }
    arena_rewind(arena, mark);
}

TEST(bits_of_a_row_are_those_of_the_row_alone) {
    int ran = 0;
    for (size_t i = 0; i < COUNT_OF(libraries); i++) {
        if (strcmp(libraries[i], "openblas") == 0) continue; /* its rows depend on their place: gemm.h */
        for (size_t j = 0; j < COUNT_OF(isas); j++) {
            if (strcmp(isas[j], "avx512_widened") == 0) continue; /* AVX-512's */
            if ((strcmp(libraries[i], "own") == 0 || j + 1 == COUNT_OF(isas)) &&
                configure(libraries[i], strcmp(libraries[i], "own") == 0 ? isas[j] : NULL)) {
                run_rows();
                run_underflow();
                run_tiny();
                ran++;
            }
        }
    }
    check_ok(cpu_configure(NULL, NULL));
    if (ran > 0) return;
    print_message("skipped: neither oneDNN nor products of our own\n");
    skip();
}

static void run_packed(void) {
    for (int variant = 0; variant < 12; variant++) {
        DType stored = (const DType[]){DT_F32, DT_BF16, DT_F16}[variant / 4];
        bool transpose_b = variant & 1;
        DType compute = variant & 2 ? DT_BF16 : DT_F32;
        Tensor *a = random_tensor(compute, 50, 200, 1), *b = random_tensor(stored, transpose_b ? 600 : 200, transpose_b ? 200 : 600, 2),
               *c = random_tensor(DT_F32, 50, 600, 3);
        b->storage->constant = true;
        size_t before = cpu_packed_bytes();
        device_cpu()->matmul(&(Matmul){.a = a, .b = b, .c = c, .transpose_b = transpose_b, .alpha = 1});
        size_t once = cpu_packed_bytes() - before;
        device_cpu()->matmul(&(Matmul){.a = a, .b = b, .c = c, .transpose_b = transpose_b, .alpha = 1});
        assert_int_equal(cpu_packed_bytes() - before, once);                                  /* packed once */
        assert_int_equal(once, device_cpu()->packed_bytes(600, 200, stored, compute, false)); /* as announced */
        tensor_unpack(b);
        assert_null(b->storage->packed);
        assert_int_equal(cpu_packed_bytes(), before);
    }
}

TEST(packing_happens_once_and_as_announced) { for_each_backend(run_packed); }

/* A narrower set than the processor's computes what a processor without the rest does, whatever library runs. */
TEST(bf16_goes_by_the_instruction_set) {
    for (size_t i = 0; i < COUNT_OF(libraries); i++)
        for (size_t j = 0; j < COUNT_OF(isas); j++) {
            if (!configure(libraries[i], isas[j])) continue;
            bool native = device_cpu()->product_dtype(DT_BF16) == DT_BF16, has = strcmp(isas[j], "avx512_bf16") == 0 || strcmp(isas[j], "amx") == 0;
            if (HAVE_TILES && native && !has) fail_msg("'%s' multiplies bf16 with '%s'", libraries[i], isas[j]);
            if (has && strcmp(libraries[i], "own") == 0) assert_true(native);
        }
    check_ok(cpu_configure(NULL, NULL));
}

/* By what the system says of the processor: the widest set, but for pairs of bf16 where multiplying them takes longer than widening them. */
TEST(the_usual_set_is_the_fastest) {
    Str cpu = {0};
    if (!HAVE_TILES || !file_exists("/proc/cpuinfo") || file_read("/proc/cpuinfo", (size_t)1 << 24, &cpu) != ST_OK ||
        !strstr(cpu.data, " avx512dq")) {
        str_release(&cpu);
        print_message("skipped: no processor with AVX-512, or none that the system describes\n");
        skip();
    }
    bool bf16 = strstr(cpu.data, " avx512_bf16"), slow = strstr(cpu.data, "GenuineIntel") && strstr(cpu.data, " avx512_fp16");
    str_release(&cpu);
    bool amx = cpu_configure(NULL, "amx") == ST_OK;
    check_ok(cpu_configure(NULL, NULL));
    const char *want = amx ? "amx" : bf16 && !slow ? "avx512_bf16" : bf16 ? "avx512_widened" : "avx512";
    assert_string_equal(cpu_info()->isa, want);
    assert_int_equal(device_cpu()->product_dtype(DT_BF16), amx || (bf16 && !slow) ? DT_BF16 : DT_F32);
}

TEST(unknown_names_are_refused) {
    check_status(cpu_configure("mkl", NULL), ST_USAGE);
    check_text("mkl");
    check_status(cpu_configure("openblas", "mmx"), ST_USAGE);
    check_ok(cpu_configure("auto", "auto"));
    if (!cpu_info()->has_onednn) check_status(cpu_configure("onednn", NULL), ST_USAGE);
    check_ok(cpu_configure(NULL, NULL));
}

TEST(speed_is_measured) {
#ifdef SANITIZED
    skip(); /* 40 s of the processor's peaks; the release build runs it */
#endif
    CpuSpeed speed;
    double before = clock_seconds();
    check_ok(cpu_measure_speed(&speed));
    assert_true(speed.gflops_f32 > 0.01 && speed.gflops_bf16 > 0.01 && speed.memory_gbs > 0.01);
    assert_true(speed.gflops_f32 < 1e6 && speed.memory_gbs < 1e5);
    print_message("%.1f GF/s f32, %.1f GF/s bf16 (%s), %.1f GB/s, %.1f s\n", speed.gflops_f32, speed.gflops_bf16, cpu_info()->gemm_bf16,
                  speed.memory_gbs, clock_seconds() - before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_dtypes_and_transposes),
        cmocka_unit_test(bf16_rounds_both_factors),
        cmocka_unit_test(branches_and_addends),
        cmocka_unit_test(branches_made_on_the_way),
        cmocka_unit_test(rows_with_branches_of_their_own),
        cmocka_unit_test(products_of_one_call),
        cmocka_unit_test(gradients_of_one_call),
        cmocka_unit_test(doubles),
        cmocka_unit_test(bits_are_those_of_any_number_of_threads),
        cmocka_unit_test(bits_of_a_row_are_those_of_the_row_alone),
        cmocka_unit_test(packing_happens_once_and_as_announced),
        cmocka_unit_test(bf16_goes_by_the_instruction_set),
        cmocka_unit_test(the_usual_set_is_the_fastest),
        cmocka_unit_test(unknown_names_are_refused),
        cmocka_unit_test(speed_is_measured),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
