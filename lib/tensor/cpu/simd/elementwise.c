/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that process each element or row separately. */
#include "lib/tensor/cpu/blocks.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

/* Runs the body for every block of `size` of the `count` elements, in parallel if there are more than a few: it covers begin..begin + size - 1. */
#define PRAGMA(text) _Pragma(#text)
#define PARALLEL_BLOCKS_OF(size)                                                         \
    PRAGMA(omp parallel for schedule(static) if (count > CPU_SERIAL / CPU_BLOCK * size)) \
    for (int64_t begin = 0; begin < count; begin += size)
#define PARALLEL_BLOCKS PARALLEL_BLOCKS_OF(CPU_BLOCK)

/* y[at + i] = x[from + i] of a quantised x. */
static void codes_copy(Tensor *y, int64_t at, const Tensor *x, int64_t from, int64_t n) {
    float buffer[RUN];
    for (RUNS(i, some, 0, n)) run_write(y, at + i, some, ISA_FN(weight_read)(x, from + i, some, buffer), 0);
}

void ISA_FN(copy)(const Tensor *x, Tensor *y) {
    int64_t count = tensor_count(x);
    if (!cpu_reads_weight(x) || !CPU_WRITES(y)) {
        device_reference()->copy(x, y);
        return;
    }
    if (dtype_is_quantised(x->dtype)) {
        PARALLEL_BLOCKS codes_copy(y, begin, x, begin, MIN((int64_t)CPU_BLOCK, count - begin));
        return;
    }
    PARALLEL_BLOCKS run_copy(y, begin, x, begin, MIN((int64_t)CPU_BLOCK, count - begin));
}

/* Kernels that a training step of a tiny network calls avoid OpenMP there: a parallel region of one thread costs more than their work. */
static void fill_block(Tensor *y, int64_t begin, int64_t end, float value) {
    if (y->dtype == DT_F32)
        for (int64_t i = begin; i < end; i++) ((float *)y->elements)[i] = value;
    else
        for (int64_t i = begin; i < end; i++) ((uint16_t *)y->elements)[i] = round_to_bf16(value);
}

void ISA_FN(fill)(Tensor *y, double value) {
    int64_t count = tensor_count(y);
    if (!CPU_WRITES(y)) {
        device_reference()->fill(y, value);
        return;
    }
    if (count <= CPU_SERIAL) {
        fill_block(y, 0, count, (float)value);
        return;
    }
    PARALLEL_BLOCKS fill_block(y, begin, MIN(begin + CPU_BLOCK, count), (float)value);
}

void ISA_FN(add)(const Tensor *a, const Tensor *b, Tensor *y) {
    int64_t count = tensor_count(y);
    if (!CPU_READS(a, b) || !CPU_WRITES(y)) {
        device_reference()->add(a, b, y);
        return;
    }
    PARALLEL_BLOCKS {
        float buffer_a[RUN], buffer_b[RUN], sum[RUN];
        for (RUNS(at, n, begin, MIN(begin + CPU_BLOCK, count))) {
            const float *left = run_read(a, at, n, buffer_a), *right = run_read(b, at, n, buffer_b);
            for (int64_t i = 0; i < n; i++) sum[i] = left[i] + right[i];
            run_write(y, at, n, sum, 0);
        }
    }
}

static void accumulate_block(const Tensor *x, float scale, float beta, Tensor *y, int64_t begin, int64_t end) {
    float buffer[RUN], scaled[RUN];
    for (RUNS(at, n, begin, end)) {
        const float *values = run_read(x, at, n, buffer);
        for (int64_t i = 0; i < n; i++) scaled[i] = scale * values[i];
        run_write(y, at, n, scaled, beta);
    }
}

void ISA_FN(accumulate)(const Tensor *x, double scale, double beta, Tensor *y) {
    int64_t count = tensor_count(y);
    if (!CPU_READS(x) || !CPU_WRITES(y)) {
        device_reference()->accumulate(x, scale, beta, y);
        return;
    }
    if (count <= CPU_SERIAL) {
        accumulate_block(x, (float)scale, (float)beta, y, 0, count);
        return;
    }
    PARALLEL_BLOCKS accumulate_block(x, (float)scale, (float)beta, y, begin, MIN(begin + CPU_BLOCK, count));
}

void ISA_FN(bias_add)(Tensor *y, const Tensor *bias) {
    int64_t width = tensor_width(y), rows = tensor_rows(y);
    if (!CPU_READS(bias) || !CPU_WRITES(y)) {
        device_reference()->bias_add(y, bias);
        return;
    }
#pragma omp parallel for schedule(static) if (rows * width > CPU_SERIAL)
    for (int64_t r = 0; r < rows; r++) {
        float buffer[RUN];
        for (RUNS(at, n, 0, width)) run_write(y, r * width + at, n, run_read(bias, at, n, buffer), 1);
    }
}

void ISA_FN(bias_backward)(const Tensor *dy, Tensor *dbias) {
    if (!CPU_READS(dy) || !CPU_WRITES(dbias)) {
        device_reference()->bias_backward(dy, dbias);
        return;
    }
    int64_t width = tensor_width(dy), rows = tensor_rows(dy);
    RowSums sums = row_sums_begin(rows, width, 1);
#pragma omp parallel for schedule(static) if (rows * width > CPU_SERIAL)
    for (int64_t block = 0; block < sums.n_blocks; block++) {
        float *sum = row_sums_of(&sums, block, 0), buffer[RUN];
        for (int64_t r = block * sums.block_rows; r < MIN(rows, (block + 1) * sums.block_rows); r++)
            for (RUNS(at, n, 0, width)) {
                const float *d = run_read(dy, r * width + at, n, buffer);
                for (int64_t i = 0; i < n; i++) sum[at + i] += d[i];
            }
    }
    row_sums_add(&sums, 0, dbias);
}

/* Computes rng_block for 16 indices at once, so that the compiler vectorises it: one at a time would take longer than the products of a LoRA
 * layer. */
enum { DRAW_BLOCKS = 16, DRAWS = 4 * DRAW_BLOCKS };

static void draw_blocks(RngKey key, uint64_t index, uint32_t *restrict draws) {
    uint32_t c0[DRAW_BLOCKS], c1[DRAW_BLOCKS], c2[DRAW_BLOCKS], c3[DRAW_BLOCKS], k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);
    for (uint64_t i = 0; i < DRAW_BLOCKS; i++) {
        c0[i] = (uint32_t)(index + i);
        c1[i] = (uint32_t)((index + i) >> 32);
        c2[i] = (uint32_t)key.stream;
        c3[i] = (uint32_t)(key.stream >> 32);
    }
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
        for (int i = 0; i < DRAW_BLOCKS; i++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0[i], p1 = (uint64_t)0xCD9E8D57u * c2[i];
            c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
            c1[i] = (uint32_t)p1;
            c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c3[i] = (uint32_t)p0;
        }
    for (int i = 0; i < DRAW_BLOCKS; i++) {
        draws[4 * i] = c0[i];
        draws[4 * i + 1] = c1[i];
        draws[4 * i + 2] = c2[i];
        draws[4 * i + 3] = c3[i];
    }
}

/* Elements begin..end-1 of x; that at `begin` uses draw `first`. */
static void drop_run(const Tensor *x, int64_t begin, int64_t end, double p, RngKey key, uint64_t first, float beta, Tensor *y) {
    float buffer[RUN], kept[RUN];
    uint32_t draws[RUN + DRAWS], threshold = (uint32_t)fmin(ceil(ldexp(p, 32)), 4294967295.0); /* draws below it become zeros */
    float factor = (float)(1 / (1 - p));
    int64_t shift = (int64_t)(first % 4); /* blocks have four draws */
    for (RUNS(at, n, begin, end)) {
        const float *values = run_read(x, at, n, buffer);
        for (int64_t i = 0; i < n + shift; i += DRAWS) draw_blocks(key, (first + (uint64_t)(at - begin + i)) / 4, draws + i);
        for (int64_t i = 0; i < n; i++) kept[i] = draws[i + shift] >= threshold ? values[i] * factor : 0.0f;
        run_write(y, at, n, kept, beta);
    }
}

void ISA_FN(dropout)(const Tensor *x, double p, RngKey key, uint64_t first, double beta, Tensor *y) {
    int64_t count = tensor_count(x);
    if (!CPU_READS(x) || !CPU_WRITES(y)) {
        device_reference()->dropout(x, p, key, first, beta, y);
        return;
    }
    PARALLEL_BLOCKS drop_run(x, begin, MIN(begin + CPU_BLOCK, count), p, key, first + (uint64_t)begin, (float)beta, y);
}

void ISA_FN(dropout_rows)(const Tensor *x, const Tensor *rows, double p, RngKey key, uint64_t first, double beta, Tensor *y) {
    if (!CPU_READS(x) || !CPU_WRITES(y)) {
        device_reference()->dropout_rows(x, rows, p, key, first, beta, y);
        return;
    }
    int64_t width = tensor_width(x), n = tensor_rows(x);
    const int32_t *its = rows->elements;
#pragma omp parallel for schedule(static) if (n * width > CPU_SERIAL)
    for (int64_t r = 0; r < n; r++) drop_run(x, r * width, (r + 1) * width, p, key, first + (uint64_t)(its[r] * width), (float)beta, y);
}

void ISA_FN(add_uniform)(int64_t first, int64_t n_rows, double magnitude, RngKey key, Tensor *y) {
    if (!CPU_WRITES(y)) {
        device_reference()->add_uniform(first, n_rows, magnitude, key, y);
        return;
    }
    int64_t width = tensor_width(y), count = n_rows * width;
    float factor = (float)ldexp(magnitude, -31);
    PARALLEL_BLOCKS {
        float noise[RUN];
        uint32_t draws[RUN];
        for (RUNS(at, n, begin, MIN(begin + CPU_BLOCK, count))) {
            for (int64_t i = 0; i < n; i += DRAWS) draw_blocks(key, (uint64_t)(at + i) / 4, draws + i);
            for (int64_t i = 0; i < n; i++) noise[i] = factor * (float)(int32_t)draws[i];
            run_write(y, first * width + at, n, noise, 1);
        }
    }
}

void ISA_FN(gather_rows)(const Tensor *x, const Tensor *rows, Tensor *y) {
    if (!cpu_reads_weight(x) || !CPU_WRITES(y)) {
        device_reference()->gather_rows(x, rows, y);
        return;
    }
    int64_t width = tensor_width(y), n_rows = tensor_rows(y);
    const int32_t *from = rows->elements;
    void (*copy)(Tensor *, int64_t, const Tensor *, int64_t, int64_t) = dtype_is_quantised(x->dtype) ? codes_copy : run_copy;
#pragma omp parallel for schedule(static) if (n_rows * width > CPU_SERIAL)
    for (int64_t r = 0; r < n_rows; r++) copy(y, r * width, x, from[r] * width, width);
}

/* Rows may repeat, so threads share the columns instead of the rows. */
void ISA_FN(scatter_add_rows)(const Tensor *dy, const Tensor *rows, Tensor *dx) {
    if (!CPU_READS(dy) || !CPU_WRITES(dx)) {
        device_reference()->scatter_add_rows(dy, rows, dx);
        return;
    }
    int64_t width = tensor_width(dy), n_rows = tensor_rows(dy);
    const int32_t *to = rows->elements;
    enum { COLUMNS = 128 };
#pragma omp parallel for schedule(static) if (n_rows * width > CPU_SERIAL)
    for (int64_t at = 0; at < width; at += COLUMNS) {
        float buffer[COLUMNS];
        int64_t n = MIN((int64_t)COLUMNS, width - at);
        for (int64_t r = 0; r < n_rows; r++) run_write(dx, to[r] * width + at, n, run_read(dy, r * width + at, n, buffer), 1);
    }
}

void ISA_FN(scale_rows)(const Tensor *x, const Tensor *scale, Tensor *y) {
    if (!CPU_READS(x, scale) || !CPU_WRITES(y)) {
        device_reference()->scale_rows(x, scale, y);
        return;
    }
    int64_t width = tensor_width(x), n_rows = tensor_rows(x);
#pragma omp parallel for schedule(static) if (n_rows * width > CPU_SERIAL)
    for (int64_t r = 0; r < n_rows; r++) {
        float buffer[RUN], scaled[RUN], factor;
        floats_from(scale, r, 1, &factor);
        for (RUNS(at, n, r * width, (r + 1) * width)) {
            const float *values = run_read(x, at, n, buffer);
            for (int64_t i = 0; i < n; i++) scaled[i] = factor * values[i];
            run_write(y, at, n, scaled, 0);
        }
    }
}

/* f(x) and f'(x); a caller that uses only one of them does not pay for the other. */
typedef struct Activated {
    float value, slope;
} Activated;

static inline Activated silu_at(float x) {
    float s = fast_sigmoid(x);
    return (Activated){x * s, s * (1.0f + x * (1.0f - s))};
}

/* (1 + tanh u) / 2 = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3) */
static inline Activated gelu_tanh_at(float x) {
    float square = x * x, s = fast_sigmoid(1.59576912f * (x + 0.044715f * square * x));
    return (Activated){x * s, s + x * s * (1.0f - s) * 1.59576912f * (1.0f + 0.134145f * square)};
}

static inline Activated gelu_erf_at(float x) {
    float cdf = fast_normal_cdf(x);
    return (Activated){x * cdf, cdf + x * 0.398942280f * fast_exp(-0.5f * x * x)};
}

static inline Activated relu_at(float x) { return (Activated){x < 0.0f ? 0.0f : x, x > 0.0f ? 1.0f : x != x ? x : 0.0f}; }

static inline Activated tanh_at(float x) {
    float t = fast_tanh(x);
    return (Activated){t, 1.0f - t * t};
}

static inline Activated sigmoid_at(float x) {
    float s = fast_sigmoid(x);
    return (Activated){s, s * (1.0f - s)};
}

/* A separate loop for each kind, so that each is vectorised. */
#define FOR_EACH(function, result)     \
    for (int64_t i = 0; i < n; i++) {  \
        Activated at = function(x[i]); \
        result;                        \
    }                                  \
    break
#define ACTIVATE(kind, result)                          \
    switch (kind) {                                     \
    case ACT_SILU: FOR_EACH(silu_at, result);           \
    case ACT_GELU_TANH: FOR_EACH(gelu_tanh_at, result); \
    case ACT_GELU_ERF: FOR_EACH(gelu_erf_at, result);   \
    case ACT_RELU: FOR_EACH(relu_at, result);           \
    case ACT_TANH: FOR_EACH(tanh_at, result);           \
    case ACT_SIGMOID: FOR_EACH(sigmoid_at, result);     \
    }

static void elementwise_activate(Activation kind, int64_t n, const float *restrict x, float *restrict value) { ACTIVATE(kind, value[i] = at.value) }

static void activate_with_slope(Activation kind, int64_t n, const float *restrict x, float *restrict value, float *restrict slope) {
    ACTIVATE(kind, (value[i] = at.value, slope[i] = at.slope))
}

/* An element takes an exponential, so smaller blocks are worth a thread, such as those of a few decoded tokens. */
enum { ACTIVATION_BLOCK = CPU_BLOCK / 4 };

/* Results at..at+n-1, at most as many as requested, and the start of their two factors: both in x's rows where up is x. */
typedef struct Run {
    int64_t at, x, up, n;
} Run;

static inline Run run_of(const Tensor *x, const Tensor *up, int64_t at, int64_t end) {
    int64_t n = MIN((int64_t)RUN, end - at);
    if (up != x || !up) return (Run){at, at, at, n};
    int64_t width = tensor_width(x) / 2, column = at % width, begin = 2 * at - column;
    return (Run){at, begin, begin + width, MIN(n, width - column)};
}

/* for (ACTIVATION_RUNS(run, begin, end)): visits pieces of the results begin..end-1. */
#define ACTIVATION_RUNS(run, begin, end) \
    Run run = run_of(x, up, begin, end); \
    run.at < (end);                      \
    run = run_of(x, up, run.at + run.n, MAX((end), run.at + run.n))

void ISA_FN(activation)(Activation kind, const Tensor *x, const Tensor *up, Tensor *y) {
    int64_t count = tensor_count(y);
    if (!CPU_READS(x, up) || !CPU_WRITES(y)) {
        device_reference()->activation(kind, x, up, y);
        return;
    }
    PARALLEL_BLOCKS_OF(ACTIVATION_BLOCK) {
        float buffer[RUN], value[RUN];
        for (ACTIVATION_RUNS(run, begin, MIN(begin + ACTIVATION_BLOCK, count))) {
            const int64_t n = run.n;
            run_ahead(x, run.x + RUN, n);
            run_ahead(up, run.up + RUN, n);
            elementwise_activate(kind, n, run_read(x, run.x, n, buffer), value);
            if (up) {
                const float *factor = run_read(up, run.up, n, buffer);
                for (int64_t i = 0; i < n; i++) value[i] *= factor[i];
            }
            run_write(y, run.at, n, value, 0);
        }
    }
}

/* Writes floats that do not fit a second-level cache past the caches, so that a line is not read before it is written in full. */
typedef struct Past {
    Tensor *y;
    bool past;
} Past;

static Past past_begin(Tensor *y, double beta) {
    enum { MOST = 4 << 20 };
    return (Past){y, y && (uintptr_t)y->elements % 64 == 0 && y->dtype == DT_F32 && beta == 0 && tensor_bytes(y) > MOST};
}

static void past_write(Past to, int64_t at, int64_t n, const float *values, float beta) {
#ifdef __AVX2__
    enum { LINE = 16 };
    if (to.past && at % LINE == 0 && n % LINE == 0) {
        for (float *y = (float *)to.y->elements + at, *end = y + n; y < end; y += LINE, values += LINE) {
#ifdef __AVX512F__
            _mm512_stream_ps(y, _mm512_loadu_ps(values));
#else
            _mm256_stream_ps(y, _mm256_loadu_ps(values));
            _mm256_stream_ps(y + LINE / 2, _mm256_loadu_ps(values + LINE / 2));
#endif
        }
        return;
    }
#endif
    run_write(to.y, at, n, values, beta);
}

/* Call after a thread's last past_write: makes its writes visible to all threads. */
static inline void past_end(void) {
#ifdef __AVX2__
    _mm_sfence();
#endif
}

void ISA_FN(activation_backward)(Activation kind, const Tensor *x, const Tensor *up, const Tensor *dy, const double beta[2], Tensor *dx, Tensor *dup,
                                 Tensor *y) {
    int64_t count = tensor_count(dy);
    if (!CPU_READS(x, up, dy) || !CPU_WRITES(dx, dup, y)) {
        device_reference()->activation_backward(kind, x, up, dy, beta, dx, dup, y);
        return;
    }
    const double up_beta = beta[up == x ? 0 : 1];
    Past to_x = past_begin(dx, beta[0]), to_up = past_begin(dup, up_beta);
    PARALLEL_BLOCKS_OF(ACTIVATION_BLOCK) {
        float buffer_x[RUN], buffer_d[RUN], buffer_up[RUN], value[RUN], slope[RUN], again[RUN];
        for (ACTIVATION_RUNS(run, begin, MIN(begin + ACTIVATION_BLOCK, count))) {
            const int64_t n = run.n;
            run_ahead(x, run.x + RUN, n);
            run_ahead(up, run.up + RUN, n);
            run_ahead(dy, run.at + RUN, n);
            const float *d = run_read(dy, run.at, n, buffer_d);
            activate_with_slope(kind, n, run_read(x, run.x, n, buffer_x), value, slope);
            const float *factor = up && (dx || y) ? run_read(up, run.up, n, buffer_up) : NULL;
            for (int64_t i = 0; y && i < n; i++) again[i] = factor ? value[i] * factor[i] : value[i];
            if (dup) {
                for (int64_t i = 0; i < n; i++) value[i] *= d[i];
                past_write(to_up, run.up, n, value, (float)up_beta);
            }
            for (int64_t i = 0; dx && i < n; i++) slope[i] *= factor ? d[i] * factor[i] : d[i];
            if (dx) past_write(to_x, run.x, n, slope, (float)beta[0]);
            if (y) run_write(y, run.at, n, again, 0); /* last, because it overwrites d */
        }
        if (to_x.past || to_up.past) past_end();
    }
}

static double squares_block(const Tensor *x, int64_t begin, int64_t end) {
    float buffer[RUN];
    double sum = 0;
    for (RUNS(at, n, begin, end)) {
        run_ahead(x, at + RUN, n);
        const float *values = run_read(x, at, n, buffer);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) sum += (double)values[i] * (double)values[i];
    }
    return sum;
}

void ISA_FN(sum_squares)(const Tensor *x, double *result) {
    if (!CPU_READS(x)) {
        device_reference()->sum_squares(x, result);
        return;
    }
    int64_t count = tensor_count(x), n_blocks = blocks_of(count, CPU_SERIAL);
    if (n_blocks <= 1) {
        *result = squares_block(x, 0, count);
        return;
    }
    double *sums = cpu_scratch(CPU_SHARED, (size_t)n_blocks * sizeof *sums);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < n_blocks; block++) sums[block] = squares_block(x, block * CPU_SERIAL, MIN(count, (block + 1) * CPU_SERIAL));
    *result = 0;
    for (int64_t block = 0; block < n_blocks; block++) *result += sums[block];
}

void ISA_FN(find_nonfinite)(const Tensor *x, int64_t *index) {
    if (!cpu_reads_weight(x)) {
        device_reference()->find_nonfinite(x, index);
        return;
    }
    int64_t count = tensor_count(x), first = count;
#pragma omp parallel for schedule(static) reduction(min : first) if (count > CPU_SERIAL)
    for (int64_t begin = 0; begin < count; begin += CPU_BLOCK) {
        float buffer[RUN];
        for (RUNS(at, n, begin, MIN(begin + CPU_BLOCK, count))) {
            const float *values = ISA_FN(weight_read)(x, at, n, buffer);
            uint32_t found = 0;
            for (int64_t i = 0; i < n; i++) found |= (bits_of_float(values[i]) & 0x7f800000u) == 0x7f800000u;
            for (int64_t i = 0; found && i < n; i++)
                if (!isfinite(values[i])) first = MIN(first, at + i);
        }
    }
    *index = first < count ? first : -1;
}
