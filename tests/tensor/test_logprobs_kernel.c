/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities of tokens on the processor's device against the reference device, under each library and instruction set that is here. */
#include "lib/tensor/tensor.h"
#include "tests/support/backends.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

static Arena *arena;

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

static Tensor *tensor_of(const Device *device, DType dtype, int64_t rows, int64_t cols) {
    return cols ? tensor_new(arena, device, dtype, 2, (int64_t[]){rows, cols}) : tensor_new(arena, device, dtype, 1, &rows);
}

static Tensor *random_tensor(DType dtype, int64_t rows, int64_t cols, double scale, uint64_t number) {
    Tensor *tensor = tensor_of(device_cpu(), dtype, rows, cols);
    RngKey key = rng_key(11, RNG_TEST, number);
    for (int64_t i = 0; i < tensor_count(tensor); i++) tensor_set(tensor, i, scale * rng_normal(key, (uint64_t)i));
    return tensor;
}

static Tensor *random_targets(int64_t rows, int64_t n_vocab) {
    Tensor *targets = tensor_new(arena, device_cpu(), DT_I32, 1, &rows);
    for (int64_t i = 0; i < rows; i++)
        ((int32_t *)targets->elements)[i] = (int32_t)rng_below(rng_key(12, RNG_TEST, 0), (uint64_t)i, (uint64_t)n_vocab);
    return targets;
}

/* by_logprob: gradient of the head by log-probabilities alone; by_weights: the same of weights. */
typedef struct Results {
    LogprobResults found;
    Tensor *dhidden, *dhead, *by_logprob, *by_weights, *logits, *norms;
} Results;

/* The first gradient of the head overwrites its memory, whatever that contains. */
static void check_written(const Device *device, DType dtype, const LogprobArgs *args, const Tensor *hidden, const Tensor *head, const Tensor *targets,
                          Tensor *const grads[3], const Results *r) {
    Tensor *written = tensor_of(device, dtype, head->shape[0], head->shape[1]);
    memset(written->elements, 0xff, tensor_bytes(written));
    device->token_logprobs_backward(args, hidden, head, targets, &r->found,
                                    &(TokenLogprobs){grads[0], args->entropy ? grads[1] : NULL, args->mean ? grads[2] : NULL}, NULL, 0, written);
    for (int64_t i = 0; i < tensor_count(written); i++) {
        double added = tensor_get(r->dhead, i) - 0.25;
        if (isfinite(added)) check_close(tensor_get(written, i), added, 1e-6 * (1 + fabs(added)));
    }
}

/* The earlier value of the gradient, of the same magnitude. */
static double head_before(const Tensor *dlogprob) { return 0.25 * fabs(tensor_get(dlogprob, 0)); }

/* The head's gradient by log-probabilities alone, added to what is there: kept < 0: the general way, else by weights, those of as many rows kept. */
static Tensor *head_gradient(const Device *device, DType dtype, const LogprobArgs *args, const Tensor *hidden, const Tensor *head,
                             const Tensor *targets, Tensor *dlogprob, LogprobResults found, int64_t kept) {
    Tensor *dhead = tensor_of(device, dtype, head->shape[0], head->shape[1]);
    device->fill(dhead, head_before(dlogprob));
    if (kept >= 0) {
        found.reference = tensor_of(device, dtype, hidden->shape[0], 0);
        found.weights = kept > 0 ? tensor_of(device, hidden->dtype, kept, head->shape[0]) : NULL;
        device->token_logprobs(args, hidden, head, targets, &found);
    }
    device->token_logprobs_backward(args, hidden, head, targets, &found, &(TokenLogprobs){.logprob = dlogprob}, NULL, 1, dhead);
    return dhead;
}

static Results logprobs_kernel_run(const Device *device, DType dtype, DType hidden_grad, const LogprobArgs *args, const Tensor *hidden,
                                   const Tensor *head, const Tensor *targets, Tensor *const grads[3]) {
    int64_t rows = hidden->shape[0];
    Results r = {.found = {.logprob = tensor_of(device, dtype, rows, 0),
                           .entropy = args->entropy ? tensor_of(device, dtype, rows, 0) : NULL,
                           .mean = args->mean ? tensor_of(device, dtype, rows, 0) : NULL,
                           .logsumexp = tensor_of(device, dtype, rows, 0),
                           .dlogp_dhidden = tensor_of(device, dtype, rows, hidden->shape[1])},
                 .dhidden = tensor_of(device, hidden_grad, rows, hidden->shape[1]),
                 .dhead = tensor_of(device, dtype, head->shape[0], head->shape[1]),
                 .logits = tensor_of(device, dtype, rows, head->shape[0]),
                 .norms = tensor_of(device, DT_F64, rows, 0)};
    memset(r.dhidden->elements, 0xff, tensor_bytes(r.dhidden));
    device->fill(r.dhead, 0.25); /* is added to */
    device->token_logprobs(args, hidden, head, targets, &r.found);
    device->token_logprobs_backward(args, hidden, head, targets, &r.found,
                                    &(TokenLogprobs){grads[0], args->entropy ? grads[1] : NULL, args->mean ? grads[2] : NULL}, r.dhidden, 1, r.dhead);
    check_written(device, dtype, args, hidden, head, targets, grads, &r);
    device->token_logits(args, hidden, head, r.logits, r.norms);
    if (args->softcap == 0) {
        r.by_logprob = r.by_weights = head_gradient(device, dtype, args, hidden, head, targets, grads[0], r.found, -1);
        if (device == device_reference()) return r; /* it has one way only */
        r.by_weights = head_gradient(device, dtype, args, hidden, head, targets, grads[0], r.found, 0);
        for (int64_t kept = MIN(rows, (int64_t)LOGPROB_BLOCK); kept <= rows; kept = kept == rows ? rows + 1 : MIN(rows, kept + LOGPROB_BLOCK)) {
            Tensor *dhead = head_gradient(device, dtype, args, hidden, head, targets, grads[0], r.found, kept);
            assert_memory_equal(r.by_weights->elements, dhead->elements, tensor_bytes(dhead));
        }
    }
    return r;
}

/* Sampler and trainer get the same numbers. */
static void check_same_logprobs(const Results *r, const Tensor *targets) {
    int64_t n_vocab = tensor_width(r->logits);
    for (int64_t p = 0; p < tensor_rows(r->logits); p++) {
        float logprob = (float)(tensor_get(r->logits, p * n_vocab + ((const int32_t *)targets->elements)[p]) - tensor_get(r->norms, p));
        assert_memory_equal(&logprob, (const float *)r->found.logprob->elements + p, sizeof logprob);
    }
}

static void check_tensor(const char *what, const Tensor *got, const Tensor *want, double absolute, double relative) {
    if (!want) return;
    int64_t n = tensor_count(want);
    double *x = arena_alloc(arena, (size_t)n * sizeof *x), *y = arena_alloc(arena, (size_t)n * sizeof *y);
    tensor_read(got, x);
    tensor_read(want, y);
    check_close_f64(what, x, y, (size_t)n, absolute, relative);
}

/* One case: its inputs, and the reference's results, which depend on no backend. */
static struct {
    LogprobArgs args;
    Tensor *hidden, *head, *targets, *grads[3];
    Results want;
    int variant;
} current;

/* f32: 5e-6 on log-probabilities is what the program promises; gradients are sums of up to `rows` of them. bf16 rounds dz and results to 2^-9. */
static void compare_case(void) {
    ArenaMark mark = arena_mark(arena);
    DType dtype = current.hidden->dtype, head_dtype = current.head->dtype;
    Results got = logprobs_kernel_run(device_cpu(), DT_F32, dtype, &current.args, current.hidden, current.head, current.targets, current.grads);
    bool rounded = dtype == DT_BF16 && (device_cpu()->product_dtype(DT_BF16) == DT_BF16 || head_dtype == DT_F32);
    double logit = rounded && head_dtype == DT_F32 ? 5e-2 : 5e-6; /* the head's values of about 1 in bf16 move logits by 2^-9 each, measured 0.012 */
    char what[160];
#define CHECK(field, absolute, relative)                                                                                            \
    snprintf(what, sizeof what, #field " %s %s %lldx%lldx%lld variant %d", cpu_info()->gemm_f32, cpu_info()->isa,                   \
             (long long)tensor_rows(current.hidden), (long long)tensor_rows(current.head), (long long)tensor_width(current.hidden), \
             current.variant);                                                                                                      \
    check_tensor(what, got.field, current.want.field, absolute, relative)
    CHECK(found.logprob, logit, 0);
    CHECK(found.entropy, 2 * logit, 0);
    CHECK(found.mean, logit, 0);
    CHECK(found.logsumexp, logit, 0);
    CHECK(logits, logit, 5e-6);
    CHECK(norms, logit, 0);
    check_same_logprobs(&got, current.targets);
    CHECK(dhidden, rounded ? fmax(2e-2, logit) : 1e-5, dtype == DT_BF16 ? 1.0 / 256 : 1e-5);
    CHECK(found.dlogp_dhidden, rounded ? fmax(2e-2, logit) : 1e-5, 1e-5);
    CHECK(dhead, rounded ? fmax(2e-2, logit) : 1e-5, 1e-5);
    CHECK(by_logprob, rounded ? fmax(2e-2, logit) : 1e-5, 1e-5);
    CHECK(by_weights, rounded ? fmax(2e-2, logit) : 1e-5, 1e-5);
#undef CHECK
    tensor_unpack(current.head);
    arena_rewind(arena, mark);
}

static void check_case(int64_t rows, int64_t n_vocab, int64_t width, DType dtype, DType head_dtype, int variant) {
    ArenaMark mark = arena_mark(arena);
    current.variant = variant;
    current.args = (LogprobArgs){.softcap = variant & 1 ? 5 : 0,
                                 .temperature = variant & 1   ? 0.7
                                                : variant & 8 ? 1.7
                                                              : 1,
                                 .entropy = variant & 2,
                                 .mean = variant & 2};
    current.hidden = random_tensor(dtype, rows, width, 2 / sqrt((double)width), 1);
    current.head = random_tensor(head_dtype, n_vocab, width, 1, 2);
    current.head->storage->constant = variant & 4;
    current.targets = random_targets(rows, n_vocab);
    for (int i = 0; i < 3; i++) current.grads[i] = random_tensor(DT_F32, rows, 0, 1, 3 + (uint64_t)i);
    current.want = (Results){0};
    if (!ONE_SET) /* the reference has no threads */
        current.want =
            logprobs_kernel_run(device_reference(), DT_F64, DT_F64, &current.args, current.hidden, current.head, current.targets, current.grads);
    for_each_backend(compare_case);
    arena_rewind(arena, mark);
}

TEST(values_and_gradients_agree_with_the_reference) {
    for (int variant = 0; variant < 9; variant += ALL_OR_FEW(1, 3)) {
        check_case(5, 11, 7, DT_F32, DT_F32, variant);
        check_case(3, 4500, 8, DT_F32, DT_BF16, variant);
        check_case(130, 700, 16, variant & 1 ? DT_BF16 : DT_F32, DT_F32, variant);
        check_case(9, 9000, 6, DT_BF16, DT_BF16, variant);
        if (variant % 4 < 2) check_case(9, 1003, 64, DT_BF16, DT_BF16, variant); /* few rows, whole tiles of width: rows of the head in streams */
        if (variant % 4 == 3) check_case(520, 300, 12, DT_F32, DT_F16, variant);
        check_case(1, 1, 1, DT_F32, DT_F32, variant);
    }
}

static void run_threads(void) {
    int threads = omp_get_max_threads();
    for (int variant = 0; variant < 4; variant += ALL_OR_FEW(1, 3)) {
        ArenaMark mark = arena_mark(arena);
        DType dtype = variant & 1 ? DT_BF16 : DT_F32;
        LogprobArgs args = {.softcap = variant & 2 ? 5 : 0, .temperature = 0.7, .entropy = true, .mean = true};
        Tensor *hidden = random_tensor(dtype, 140, 48, 0.3, 1), *head = random_tensor(dtype, 4500, 48, 1, 2), *targets = random_targets(140, 4500);
        Tensor *grads[3] = {random_tensor(DT_F32, 140, 0, 1, 3), random_tensor(DT_F32, 140, 0, 1, 4), random_tensor(DT_F32, 140, 0, 1, 5)};
        Results one = {0};
        for (int t = 1; t <= 10; t += ALL_OR_FEW(3, 9)) { /* up to more threads than a chunk has columns of tiles */
            omp_set_num_threads(t);
            Results r = logprobs_kernel_run(device_cpu(), DT_F32, dtype, &args, hidden, head, targets, grads);
            if (t == 1) one = r;
            assert_memory_equal(r.found.logprob->elements, one.found.logprob->elements, tensor_bytes(r.found.logprob));
            assert_memory_equal(r.found.entropy->elements, one.found.entropy->elements, tensor_bytes(r.found.entropy));
            assert_memory_equal(r.found.mean->elements, one.found.mean->elements, tensor_bytes(r.found.mean));
            assert_memory_equal(r.logits->elements, one.logits->elements, tensor_bytes(r.logits));
            assert_memory_equal(r.norms->elements, one.norms->elements, tensor_bytes(r.norms));
            assert_memory_equal(r.dhidden->elements, one.dhidden->elements, tensor_bytes(r.dhidden));
            assert_memory_equal(r.dhead->elements, one.dhead->elements, tensor_bytes(r.dhead));
            if (r.by_weights) assert_memory_equal(r.by_weights->elements, one.by_weights->elements, tensor_bytes(r.dhead));
            assert_memory_equal(r.found.dlogp_dhidden->elements, one.found.dlogp_dhidden->elements, tensor_bytes(r.found.dlogp_dhidden));
        }
        arena_rewind(arena, mark);
    }
    omp_set_num_threads(threads);
}

TEST(bits_are_those_of_any_number_of_threads) { for_each_backend(run_threads); }

TEST(no_rows_leave_zeros) {
    const Device *devices[] = {device_cpu(), device_reference()};
    LogprobArgs args = {.temperature = 1};
    Tensor *head = random_tensor(DT_F32, 50, 8, 1, 2), *dhead = tensor_of(device_cpu(), DT_F32, 50, 8),
           *none = tensor_new(arena, device_cpu(), DT_F32, 2, (int64_t[]){0, 8}), *empty = tensor_new(arena, device_cpu(), DT_F32, 1, (int64_t[]){0});
    Tensor *targets = tensor_new(arena, device_cpu(), DT_I32, 1, (int64_t[]){0});
    const LogprobResults found = {.logprob = empty, .logsumexp = empty};
    const TokenLogprobs grads = {.logprob = empty};
    for (size_t d = 0; d < COUNT_OF(devices); d++) {
        memset(dhead->elements, 0xff, tensor_bytes(dhead));
        devices[d]->token_logprobs_backward(&args, none, head, targets, &found, &grads, none, 0, dhead);
        for (int64_t i = 0; i < tensor_count(dhead); i++) assert_true(tensor_get(dhead, i) == 0);
        devices[d]->fill(dhead, 2);
        devices[d]->token_logprobs_backward(&args, none, head, targets, &found, &grads, none, 1, dhead);
        for (int64_t i = 0; i < tensor_count(dhead); i++) assert_true(tensor_get(dhead, i) == 2);
    }
}

TEST(a_row_does_not_see_the_others) {
    if (cpu_configure("onednn", NULL) != ST_OK) { /* OpenBLAS's rows depend on their place: lib/tensor/cpu/gemm.h */
        print_message("skipped: no oneDNN in this build\n");
        skip();
    }
    LogprobArgs args = {.temperature = 1, .entropy = true};
    Tensor *hidden = random_tensor(DT_F32, 200, 64, 0.3, 1), *head = random_tensor(DT_F32, 5000, 64, 1, 2), *targets = random_targets(200, 5000);
    Tensor *grads[3] = {random_tensor(DT_F32, 200, 0, 1, 3), random_tensor(DT_F32, 200, 0, 1, 4), NULL};
    head->storage->constant = true;
    Results all = logprobs_kernel_run(device_cpu(), DT_F32, DT_F32, &args, hidden, head, targets, grads);
    for (int64_t row = 0; row < 200; row += 33)
        for (int64_t rows = 1; rows < 4 && row + rows <= 200; rows++) {
            Tensor *part = tensor_view(arena, device_cpu(), DT_F32, 2, (int64_t[]){rows, 64}, (float *)hidden->elements + row * 64);
            Tensor *few = tensor_view(arena, device_cpu(), DT_I32, 1, &rows, (int32_t *)targets->elements + row), *g[3] = {NULL};
            for (int i = 0; i < 2; i++) g[i] = tensor_view(arena, device_cpu(), DT_F32, 1, &rows, (float *)grads[i]->elements + row);
            Results r = logprobs_kernel_run(device_cpu(), DT_F32, DT_F32, &args, part, head, few, g);
            assert_memory_equal(r.found.logprob->elements, (float *)all.found.logprob->elements + row, (size_t)rows * sizeof(float));
            assert_memory_equal(r.found.entropy->elements, (float *)all.found.entropy->elements + row, (size_t)rows * sizeof(float));
            assert_memory_equal(r.dhidden->elements, (float *)all.dhidden->elements + row * 64, (size_t)(rows * 64) * sizeof(float));
            assert_memory_equal(r.found.dlogp_dhidden->elements, (float *)all.found.dlogp_dhidden->elements + row * 64,
                                (size_t)(rows * 64) * sizeof(float));
        }
    tensor_unpack(head);
    check_ok(cpu_configure(NULL, NULL));
}

/* Logits of 1000 apart, as an untrained soft-cap or a broken checkpoint makes them; and NaN, which must show. */
TEST(extremes) {
    LogprobArgs args = {.temperature = 1, .entropy = true, .mean = true};
    Tensor *hidden = tensor_of(device_cpu(), DT_F32, 3, 1), *head = tensor_of(device_cpu(), DT_F32, 600, 1), *targets = random_targets(3, 600);
    for (int64_t v = 0; v < 600; v++) tensor_set(head, v, v == 77 ? 1 : 0);
    for (int64_t p = 0; p < 3; p++) tensor_set(hidden, p, p == 0 ? 1000 : p == 1 ? -1000 : (double)NAN), ((int32_t *)targets->elements)[p] = 77;
    Tensor *grads[3] = {random_tensor(DT_F32, 3, 0, 1, 3), random_tensor(DT_F32, 3, 0, 1, 4), random_tensor(DT_F32, 3, 0, 1, 5)};
    Results r = logprobs_kernel_run(device_cpu(), DT_F32, DT_F32, &args, hidden, head, targets, grads);
    check_close(tensor_get(r.found.logprob, 0), 0, 0);
    check_close(tensor_get(r.found.entropy, 0), 0, 1e-12);
    check_close(tensor_get(r.found.logprob, 1), -1000 - log(599), 1e-4);
    check_close(tensor_get(r.found.entropy, 1), log(599), 1e-6);
    assert_true(isnan(tensor_get(r.found.logprob, 2)) && isnan(tensor_get(r.dhidden, 2)));
    assert_true(isfinite(tensor_get(r.norms, 0)) && isfinite(tensor_get(r.norms, 1)) && isnan(tensor_get(r.norms, 2)));
    assert_true(isfinite(tensor_get(r.dhidden, 0)) && isfinite(tensor_get(r.dhidden, 1)));
    check_close(tensor_get(r.found.dlogp_dhidden, 0), 0, 1e-6);
    check_close(tensor_get(r.found.dlogp_dhidden, 1), 1, 1e-6);
    assert_true(isnan(tensor_get(r.found.dlogp_dhidden, 2)));
    /* Targets as far from the likeliest token as goes without a second try */
    for (int p = 0; p < 3; p++) tensor_set(hidden, p, 59.9 - p), ((int32_t *)targets->elements)[p] = 500 + p;
    r = logprobs_kernel_run(device_cpu(), DT_F32, DT_F32, &args, hidden, head, targets, grads);
    for (int p = 0; p < 3; p++) {
        check_close(tensor_get(r.found.logprob, p), p - 59.9, 1e-4);
        check_close(tensor_get(r.found.dlogp_dhidden, p), -1, 1e-6);
    }
}

/* A block of rows that takes the general path, then one that does not: they do not affect each other. */
static void run_blocks(void) {
    enum { ROWS = 2150, VOCAB = 2100, WIDTH = 4 };
    for (int variant = 0; variant < 2; variant++) {
        ArenaMark mark = arena_mark(arena);
        DType dtype = variant ? DT_BF16 : DT_F32;
        LogprobArgs args = {.temperature = 1};
        Tensor *hidden = random_tensor(dtype, ROWS, WIDTH, 0.5, 1), *head = random_tensor(dtype, VOCAB, WIDTH, 1, 2),
               *targets = random_targets(ROWS, VOCAB), *grads[3] = {random_tensor(DT_F32, ROWS, 0, 1, 3)};
        for (int64_t c = 0; c < WIDTH; c++) tensor_set(hidden, 5 * WIDTH + c, c ? 0 : 100), tensor_set(head, c, c ? 0 : -1);
        ((int32_t *)targets->elements)[5] = 0;
        Results all = logprobs_kernel_run(device_cpu(), DT_F32, dtype, &args, hidden, head, targets, grads);
        for (int64_t begin = 0; begin < ROWS; begin += 2048) {
            int64_t n = MIN((int64_t)2048, ROWS - begin);
            Tensor *x = tensor_view(arena, device_cpu(), dtype, 2, (int64_t[]){n, WIDTH},
                                    (char *)hidden->elements + (size_t)(begin * WIDTH) * dtype_size(dtype));
            Tensor *t = tensor_view(arena, device_cpu(), DT_I32, 1, &n, (int32_t *)targets->elements + begin);
            LogprobResults part = {.logprob = tensor_of(device_cpu(), DT_F32, n, 0),
                                   .logsumexp = tensor_of(device_cpu(), DT_F32, n, 0),
                                   .dlogp_dhidden = tensor_of(device_cpu(), DT_F32, n, WIDTH)};
            device_cpu()->token_logprobs(&args, x, head, t, &part);
            assert_memory_equal(part.logprob->elements, (float *)all.found.logprob->elements + begin, (size_t)n * sizeof(float));
            assert_memory_equal(part.dlogp_dhidden->elements, (float *)all.found.dlogp_dhidden->elements + begin * WIDTH,
                                (size_t)(n * WIDTH) * sizeof(float));
        }
        check_tensor("head's gradient by weights, one block of two", all.by_weights, all.by_logprob, variant ? 0.02 : 2e-5, variant ? 0.01 : 1e-5);
        for (int64_t p = 0; p < ROWS; p += 7)
            for (int64_t c = 0; c < WIDTH; c++) { /* what comes back for a gradient of 1 */
                double g = tensor_get(grads[0], p);
                if (fabs(g) > 0.1)
                    check_close(tensor_get(all.found.dlogp_dhidden, p * WIDTH + c), tensor_get(all.dhidden, p * WIDTH + c) / g,
                                variant ? 0.05 : 2e-5);
            }
        arena_rewind(arena, mark);
    }
}

/* More rows than a block; all, some or none of them keep their weights. Also rows whose target is so unlikely that the head's gradient does not
 * use the weights. */
static void run_backup_path(void) {
    enum { ROWS = 4200, VOCAB = 300, WIDTH = 16 };
    static const double distances[] = {0, 38, 58}; /* of the target from all others, in nats */
    for (int variant = 0; variant < 6; variant++) {
        ArenaMark mark = arena_mark(arena);
        DType dtype = variant & 1 ? DT_BF16 : DT_F32;
        double distance = distances[variant / 2];
        int64_t rows = distance > 0 ? 40 : ROWS;
        LogprobArgs args = {.temperature = 0.8};
        Tensor *hidden = random_tensor(dtype, rows, WIDTH, 0.2, 1), *head = random_tensor(DT_F32, VOCAB, WIDTH, 1, 2),
               *targets = random_targets(rows, VOCAB), *grads[3] = {random_tensor(DT_F32, rows, 0, distance > 0 ? 1e-9 : 1, 3)};
        if (distance > 0) {
            for (int64_t v = 0; v < VOCAB; v++) tensor_set(head, v * WIDTH, v == 0 ? -1 : 1);
            for (int64_t p = 0; p < rows; p++)
                tensor_set(hidden, p * WIDTH, 0.5 * distance * args.temperature), ((int32_t *)targets->elements)[p] = 0;
        }
        Results all = logprobs_kernel_run(device_cpu(), DT_F32, dtype, &args, hidden, head, targets, grads);
        double error = 0, size = 0, before = head_before(grads[0]);
        for (int64_t i = 0; i < tensor_count(head); i++) {
            double want = tensor_get(all.by_logprob, i);
            error += pow(tensor_get(all.by_weights, i) - want, 2), size += pow(want - before, 2);
        }
        if (!(error <= 0.01 * 0.01 * size))
            fail_msg("%s %s: variant %d: the head's gradient by weights is off by %g of its size", cpu_info()->gemm_f32, cpu_info()->isa, variant,
                     sqrt(error / size));
        arena_rewind(arena, mark);
    }
}

TEST(weights_are_kept_by_blocks) { for_each_backend(run_backup_path); }

TEST(blocks_do_not_see_each_other) { for_each_backend(run_blocks); }

/* A token that is all but certain: what is left of the target's row is small, and must not be its rounding. */
static void run_certain(void) {
    static const DType heads[] = {DT_F32, DT_F16, DT_BF16};
    for (size_t h = 0; h < COUNT_OF(heads); h++) {
        ArenaMark mark = arena_mark(arena);
        enum { VOCAB = 700, WIDTH = 64 };
        LogprobArgs args = {.temperature = 1};
        Tensor *hidden = random_tensor(DT_BF16, 1, WIDTH, 0.1, 1), *head = random_tensor(heads[h], VOCAB, WIDTH, 1, 2),
               *targets = random_targets(1, VOCAB), *grads[3] = {random_tensor(DT_F32, 1, 0, 1, 3)};
        int32_t target = *(int32_t *)targets->elements;
        for (int64_t c = 0; c < WIDTH; c++) tensor_set(hidden, c, 0.25 * tensor_get(head, target * WIDTH + c));
        tensor_set(grads[0], 0, 1);
        Results got = logprobs_kernel_run(device_cpu(), DT_F32, DT_F32, &args, hidden, head, targets, grads);
        assert_true(tensor_get(got.found.logprob, 0) > -0.05 && tensor_get(got.found.logprob, 0) < -1e-5);
        double error = 0, size = 0, head_error = 0, head_size = 0;
        for (int64_t c = 0; c < WIDTH; c++) {
            double want = tensor_get(got.dhidden, c), head_want = tensor_get(got.by_logprob, target * WIDTH + c) - 0.25;
            error += pow(tensor_get(got.found.dlogp_dhidden, c) - want, 2), size += want * want;
            head_error += pow(tensor_get(got.by_weights, target * WIDTH + c) - 0.25 - head_want, 2), head_size += head_want * head_want;
        }
        if (!(head_error <= 0.01 * 0.01 * head_size))
            fail_msg("%s %s: the gradient of the target's row is off by %g of its size", cpu_info()->gemm_f32, cpu_info()->isa,
                     sqrt(head_error / head_size));
        if (!(error <= 0.02 * 0.02 * size))
            fail_msg("%s %s: a head in %s gives a slope that is off by %g of its size", cpu_info()->gemm_f32, cpu_info()->isa, dtype_name(heads[h]),
                     sqrt(error / size));
        arena_rewind(arena, mark);
    }
}

TEST(certain_tokens_keep_their_gradients) { for_each_backend(run_certain); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_gradients_agree_with_the_reference),
        cmocka_unit_test(bits_are_those_of_any_number_of_threads),
        cmocka_unit_test(a_row_does_not_see_the_others),
        cmocka_unit_test(extremes),
        cmocka_unit_test(no_rows_leave_zeros),
        cmocka_unit_test(blocks_do_not_see_each_other),
        cmocka_unit_test(weights_are_kept_by_blocks),
        cmocka_unit_test(certain_tokens_keep_their_gradients),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
