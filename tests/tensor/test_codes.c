/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that read codes of quantised weights: the same bits as with a copy of the values, under each library and instruction set. */
#include "lib/tensor/activations.h"
#include "lib/tensor/quant/packing.h"
#include "lib/tensor/tensor.h"
#include "tests/support/backends.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <xxhash.h>

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

/* ---- weights ---- */

static float *random_floats(int64_t n, uint64_t number) {
    float *values = arena_alloc(arena, (size_t)n * sizeof *values);
    RngKey key = rng_key(11, RNG_TEST, number);
    for (int64_t i = 0; i < n; i++) values[i] = (float)(2 * rng_uniform(key, (uint64_t)i) - 1);
    return values;
}

static uint8_t *random_bytes(int64_t n, uint64_t number) {
    uint8_t *bytes = arena_alloc(arena, (size_t)n);
    RngKey key = rng_key(12, RNG_TEST, number);
    for (int64_t i = 0; i < n; i++) bytes[i] = (uint8_t)(256 * rng_uniform(key, (uint64_t)i));
    return bytes;
}

static Tensor *of_format(const QuantFormat *format, int64_t out, int64_t in) {
    Tensor *weight = tensor_new(arena, device_cpu(), format->dtype, 2, (int64_t[]){out, in});
    const float *values = random_floats(out * in, (uint64_t)format->ggml_type);
    uint8_t *blocks = weight->elements;
    for (int64_t r = 0; r < out; r++) format->write(values + r * in, in, NULL, blocks + dtype_bytes(format->dtype, r * in));
    return weight;
}

static const char *const packings[] = {"nf4", "fp4 nested", "int8", "affine 4", "affine 3", "affine 8", "affine 8 unsigned", "fp8"};

static FourBit four_bits(bool nested, int64_t count) {
    enum { BLOCK = 64 };
    int64_t n = (count + BLOCK - 1) / BLOCK;
    FourBitKind kind = nested ? FOUR_BIT_FP4 : FOUR_BIT_NF4;
    uint8_t *packed = arena_alloc(arena, (size_t)(count + 1) / 2), *codes = arena_alloc(arena, (size_t)n);
    float *absmax = arena_alloc(arena, (size_t)n * sizeof *absmax), *map = arena_alloc(arena, 256 * sizeof *map),
          *upper = arena_alloc(arena, (size_t)(n / FOUR_BIT_NESTED + 1) * sizeof *upper);
    four_bit_write(kind, random_floats(count, 3), count, BLOCK, packed, absmax);
    FourBit four = {.packed = packed, .map = four_bit_map(kind), .block = BLOCK, .absmax = absmax};
    if (!nested) return four;
    four_bit_nest(absmax, n, codes, upper, &four.offset);
    dynamic_map(map);
    four.absmax = NULL;
    four.absmax_codes = codes;
    four.nested_map = map;
    four.nested_absmax = upper;
    four.nested_block = FOUR_BIT_NESTED;
    return four;
}

static Packing *affine(int bits, bool is_signed, int64_t out, int64_t in) {
    int64_t group = in % 64 == 0 ? 64 : 8, line = (in * bits + 7) / 8, n_groups = (in + group - 1) / group;
    AffineCodes codes = {.name = "affine",
                         .bits = bits,
                         .rows = out,
                         .width = in,
                         .n_groups = n_groups,
                         .codes = random_bytes(out * line, (uint64_t)bits),
                         .line = line,
                         .is_signed = is_signed,
                         .scales = random_floats(out * n_groups, 5),
                         .group = group};
    int16_t *zeros = arena_alloc(arena, (size_t)(out * n_groups) * sizeof *zeros);
    int32_t *groups = arena_alloc(arena, (size_t)in * sizeof *groups);
    for (int64_t i = 0; i < out * n_groups; i++) zeros[i] = (int16_t)(i * 5 % (1 << bits));
    for (int64_t i = 0; i < in; i++) groups[i] = (int32_t)(i * 7 % n_groups); /* inputs of a group lie apart, as with act-order */
    if (!is_signed) codes.zeros = zeros;
    if (bits == 3) codes.groups = groups;
    return packing_of_affine(arena, &codes);
}

static Packing *int8_rows(int64_t out, int64_t in) {
    float *absmax = random_floats(out, 4);
    for (int64_t r = 0; r < out; r++) absmax[r] = fabsf(absmax[r]);
    return packing_of_int8_rows(arena, (const int8_t *)random_bytes(out * in, 8), absmax, out, in);
}

static Packing *fp8(int64_t out, int64_t in) {
    enum { DOWN = 16, ACROSS = 24 };
    uint8_t *codes = random_bytes(out * in, 9);
    for (int64_t i = 0; i < out * in; i++) codes[i] = (codes[i] & 127) == 127 ? 3 : codes[i]; /* no NaN */
    return packing_of_fp8(arena, &(Fp8Codes){out, in, DOWN, ACROSS, codes, random_floats((out / DOWN + 1) * (in / ACROSS + 1), 10)});
}

static Tensor *of_packing(size_t which, int64_t out, int64_t in) {
    Packing *packing = NULL;
    FourBit four;
    switch (which) {
    case 0:
    case 1:
        four = four_bits(which == 1, out * in);
        packing = packing_of_four_bits(arena, &four, out * in);
        break;
    case 2: packing = int8_rows(out, in); break;
    case 3: packing = affine(4, false, out, in); break;
    case 4: packing = affine(3, false, out, in); break;
    case 5: packing = affine(8, true, out, in); break;
    case 6: packing = affine(8, false, out, in); break;
    default: packing = fp8(out, in);
    }
    return tensor_packed(arena, device_cpu(), 2, (int64_t[]){out, in}, packing);
}

/* A copy of the values, as ModelOptions.dequantize makes it. */
static Tensor *copy_of(const Tensor *weight) {
    bool rounds = weight->storage->rounds;
    Tensor *copy = tensor_new(arena, device_cpu(), rounds ? DT_BF16 : DT_F32, 2, weight->shape);
    float *values = arena_alloc(arena, (size_t)tensor_count(weight) * sizeof *values);
    tensor_dequantise(weight, 0, tensor_count(weight), values);
    for (int64_t i = 0; i < tensor_count(weight); i++) tensor_set(copy, i, (double)values[i]);
    copy->storage->constant = true;
    return copy;
}

/* Calls check(weight) for a weight of each packing, and of each format of blocks if `all`, about (out, in), and its values in f32 and in bf16. */
static void for_each_of(bool all, int64_t out, int64_t in, void (*check)(Tensor *weight, Tensor *copy, DType compute)) {
    size_t n;
    const QuantFormat *formats = quant_formats(&n);
    for (size_t i = all ? 0 : n; i < n + COUNT_OF(packings); i++)
        for (int rounds = 0; rounds < 2; rounds++) {
            int64_t block = i < n ? formats[i].block : 1;
            Arena *outer = arena;
            arena = arena_new(0);
            Tensor *weight = i < n ? of_format(&formats[i], out, (in + block - 1) / block * block) : of_packing(i - n, out, in);
            weight->storage->rounds = rounds;
            weight->storage->constant = true;
            Tensor *copy = copy_of(weight);
            check(weight, copy, rounds ? DT_BF16 : DT_F32);
            tensor_unpack(copy);
            assert_null(weight->storage->packed);
            arena_free(arena);
            arena = outer;
        }
}

static void for_each_weight(int64_t out, int64_t in, void (*check)(Tensor *weight, Tensor *copy, DType compute)) {
    for_each_of(true, out, in, check);
}

static Tensor *random_tensor(DType dtype, int64_t rows, int64_t cols, uint64_t number) {
    Tensor *tensor = tensor_new(arena, device_cpu(), dtype, 2, (int64_t[]){rows, cols});
    const float *values = random_floats(rows * cols, number);
    for (int64_t i = 0; i < rows * cols; i++) tensor_set(tensor, i, (double)values[i]);
    return tensor;
}

static void check_same(const char *what, const Tensor *weight, const Tensor *got, const Tensor *want) {
    size_t bytes = tensor_bytes(want);
    const uint8_t *a = got->elements, *b = want->elements;
    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i]) {
            char text[96];
            fail_msg("%s of %s: byte %zu of %zu differs, with %s and %s", what, tensor_describe(weight, text), i, bytes, cpu_info()->isa,
                     cpu_info()->gemm_f32);
        }
}

/* ---- products ---- */

static void check_products(Tensor *weight, Tensor *copy, DType compute) {
    static const int64_t rows[] = {3, 40, 1, 131};
    for (size_t i = 0; i < (weight->shape[0] > 100 ? (size_t)2 : COUNT_OF(rows)); i++)
        for (int back = 0; back < 2; back++) {
            Tensor *a = random_tensor(compute, rows[i], weight->shape[back ? 0 : 1], 20 + i), *c[2];
            for (int k = 0; k < 2; k++) {
                c[k] = random_tensor(compute, rows[i], weight->shape[back ? 1 : 0], 30);
                device_cpu()->matmul(
                    &(Matmul){.a = a, .b = k ? copy : weight, .c = c[k], .transpose_b = !back, .alpha = back ? 0.5 : 1, .beta = i % 2});
            }
            check_same(back ? "backward product" : "product", weight, c[0], c[1]);
        }
}

static void check_rows(Tensor *weight, Tensor *copy, DType compute) {
    (void)compute;
    int64_t width = weight->shape[1], n = 5;
    int32_t ids[] = {0, 7, 2, 7, (int32_t)weight->shape[0] - 1};
    Tensor *rows = tensor_view(arena, device_cpu(), DT_I32, 1, &n, ids), *got[2], *whole[2];
    for (int k = 0; k < 2; k++) {
        const Tensor *x = k ? copy : weight;
        got[k] = tensor_new(arena, device_cpu(), DT_F32, 2, (int64_t[]){n, width});
        whole[k] = tensor_new(arena, device_cpu(), DT_F32, 2, weight->shape);
        device_cpu()->gather_rows(x, rows, got[k]);
        device_cpu()->copy(x, whole[k]);
        assert_int_equal(tensor_find_nonfinite(x), -1);
    }
    check_same("rows", weight, got[0], got[1]);
    check_same("copy", weight, whole[0], whole[1]);
}

static void check_head(Tensor *weight, Tensor *copy, DType compute) {
    enum { P = 37 };
    int64_t n = P, vocab = weight->shape[0], width = weight->shape[1];
    int32_t ids[P];
    for (int i = 0; i < P; i++) ids[i] = (int32_t)(i * 13 % vocab);
    Tensor *targets = tensor_view(arena, device_cpu(), DT_I32, 1, &n, ids), *hidden = random_tensor(compute, P, width, 40);
    Tensor *logprob[2], *slope[2], *logits[2], *back[2];
    const LogprobArgs args = {.temperature = 1};
    for (int k = 0; k < 2; k++) {
        const Tensor *head = k ? copy : weight;
        Tensor *logsumexp = tensor_new(arena, device_cpu(), DT_F32, 1, &n), *wide = tensor_new(arena, device_cpu(), DT_F64, 1, &n);
        logprob[k] = tensor_new(arena, device_cpu(), DT_F32, 1, &n);
        slope[k] = tensor_new(arena, device_cpu(), DT_F32, 2, (int64_t[]){P, width});
        logits[k] = tensor_new(arena, device_cpu(), DT_F32, 2, (int64_t[]){P, vocab});
        back[k] = tensor_new(arena, device_cpu(), DT_F32, 2, (int64_t[]){P, width});
        device_cpu()->token_logprobs(&args, hidden, head, targets,
                                     &(LogprobResults){.logprob = logprob[k], .logsumexp = logsumexp, .dlogp_dhidden = slope[k]});
        device_cpu()->token_logits(&args, hidden, head, logits[k], wide);
        device_cpu()->token_logprobs_backward(&args, hidden, head, targets, &(LogprobResults){.logsumexp = logsumexp},
                                              &(TokenLogprobs){.logprob = logprob[k]}, back[k], 0, NULL);
    }
    check_same("log-probabilities", weight, logprob[0], logprob[1]);
    check_same("slopes", weight, slope[0], slope[1]);
    check_same("logits", weight, logits[0], logits[1]);
    check_same("gradient of hidden states", weight, back[0], back[1]);
}

/* Widths that are no multiples of anything: a group of 4 bits begins in the middle of a byte, blocks of 64 cross rows. And one whose rows are whole
 * units, which kernels read as lanes. */
static void all_of_one_backend(void) {
    for_each_weight(37, 77, check_products);
    for_each_of(false, 70, 192, check_products);
    for_each_weight(ALL_OR_FEW(130, 70), ALL_OR_FEW(200, 130), check_products);
    for_each_weight(61, 77, check_head);
    for_each_weight(61, 77, check_rows);
}

TEST(codes_give_the_bits_of_values) { for_each_backend(all_of_one_backend); }

/* ---- against the reference device ---- */

static void check_reference(Tensor *weight, Tensor *copy, DType compute) {
    (void)copy;
    if (compute != DT_F32) return;
    for (int back = 0; back < 2; back++) {
        Tensor *a = random_tensor(DT_F32, 3, weight->shape[back ? 0 : 1], 50), *c[2];
        for (int k = 0; k < 2; k++) {
            c[k] = tensor_new(arena, device_cpu(), DT_F32, 2, (int64_t[]){3, weight->shape[back ? 1 : 0]});
            const Device *device = k ? device_reference() : device_cpu();
            device->matmul(&(Matmul){.a = a, .b = weight, .c = c[k], .transpose_b = !back, .alpha = 1});
        }
        check_close_f32("product", c[0]->elements, c[1]->elements, (size_t)tensor_count(c[1]), 1e-3, 1e-4);
    }
}

TEST(products_equal_the_references) { for_each_weight(9, 40, check_reference); }

/* A row is read from any element on. */
static void check_parts(Tensor *weight, Tensor *copy, DType compute) {
    (void)compute;
    float part[100];
    for (int64_t at = 0; at + 100 <= tensor_count(weight); at += 37) {
        tensor_dequantise(weight, at, 100, part);
        for (int i = 0; i < 100; i++) check_close((double)part[i], tensor_get(copy, at + i), 0);
    }
}

/* The whole of a weight, as experts read it. */
static void check_whole(Tensor *weight, Tensor *copy, DType compute) {
    (void)copy;
    Tensor whole = tensor_part(weight, 0, tensor_count(weight)), *a = random_tensor(compute, 4, weight->shape[1], 70), *c[2];
    whole.n_dims = 2;
    whole.shape[0] = weight->shape[0];
    whole.shape[1] = weight->shape[1];
    for (int k = 0; k < 2; k++) {
        c[k] = random_tensor(compute, 4, weight->shape[0], 71);
        device_cpu()->matmul(&(Matmul){.a = a, .b = k ? &whole : weight, .c = c[k], .transpose_b = true, .alpha = 1});
    }
    check_same("product with the whole", weight, c[0], c[1]);
}

TEST(parts_of_a_whole_are_codes) { for_each_weight(9, 40, check_whole); }

TEST(codes_are_read_from_anywhere) { for_each_weight(5, 300, check_parts); }

/* ---- activations in codes of 8 bits ---- */

/* Plain loops: each row of x as codes times scales, and the largest error of a product with that. */
static void round_row(const float *x, int64_t n, double *rounded, double *off) {
    enum { UNIT = 32 };
    for (int64_t at = 0; at < n; at += UNIT) {
        float most = 0;
        for (int64_t i = at; i < at + UNIT; i++) most = fmaxf(most, fabsf(x[i]));
        for (int64_t i = at; i < at + UNIT; i++) {
            rounded[i] = most > 0 ? (double)rintf(x[i] * (127 / most)) * (double)(most / 127) : 0;
            off[i] = (double)most / 254 * (1 + 1e-5); /* x / d has two roundings */
        }
    }
}

static bool codes_are_integers(const Tensor *weight) {
    const Packing *packing = weight->elements;
    if (weight->dtype == DT_PACKED)
        return packing->int8_rows || (packing->affine && !packing->affine->groups && packing->affine->bits != 3 && packing->affine->group % 32 == 0);
    return weight->dtype != DT_Q2_K && weight->dtype != DT_Q3_K && weight->dtype != DT_MXFP4;
}

/* Of the results of each format with the first instruction set. */
static XXH64_hash_t hashes[64];
static size_t n_hashed;
static bool first_isa;

/* Near the products of rounded activations, within the bound of activations.h from exact ones, with the same bits for each number of threads and
 * rows and each instruction set. */
static void check_rounded(Tensor *weight, Tensor *copy, DType compute) {
    enum { ROWS = 35, WIDTH = 256 };
    int64_t out = weight->shape[0], in = weight->shape[1];
    if (compute != DT_F32 || !codes_are_integers(weight)) return;
    Tensor *x = random_tensor(DT_F32, ROWS, in, 80), *residual = random_tensor(DT_F32, ROWS, out, 81), *y[3];
    for (int i = 0; i < 3; i++) {
        cpu_round_activations(i < 2);
        omp_set_num_threads(i + 1);
        y[i] = tensor_new(arena, device_cpu(), DT_F32, 2, (int64_t[]){ROWS, out});
        device_cpu()->matmul(&(Matmul){.a = x, .b = weight, .c = y[i], .transpose_b = true, .alpha = 1, .beta = 1, .addend = residual});
    }
    check_same("product on two threads", weight, y[0], y[1]);
    int changed = 0;
    for (int64_t r = 0; r < ROWS; r++) {
        double rounded[WIDTH], off[WIDTH];
        round_row((const float *)x->elements + r * in, in, rounded, off);
        for (int64_t c = 0; c < out; c++) {
            double sum = tensor_get(residual, r * out + c), size = fabs(sum), bound = 0, got = tensor_get(y[0], r * out + c);
            for (int64_t k = 0; k < in; k++) {
                double w = tensor_get(copy, c * in + k);
                sum += w * rounded[k];
                size += fabs(w * rounded[k]);
                bound += fabs(w) * off[k];
            }
            check_close(got, sum, 1e-6 * size);
            check_close(got, tensor_get(y[2], r * out + c), bound + 1e-6 * size);
            changed += got != tensor_get(y[2], r * out + c);
        }
    }
    assert_true(changed > ROWS * (int)out / 2);
    Tensor *one = tensor_new(arena, device_cpu(), DT_F32, 2, (int64_t[]){1, out});
    cpu_round_activations(true);
    Tensor first = *x, first_residual = *residual;
    first.shape[0] = first_residual.shape[0] = 1;
    device_cpu()->matmul(&(Matmul){.a = &first, .b = weight, .c = one, .transpose_b = true, .alpha = 1, .beta = 1, .addend = &first_residual});
    check_same("product of one row", weight, y[0], one);
    cpu_round_activations(false);
    XXH64_hash_t hash = XXH3_64bits(y[0]->elements, tensor_bytes(y[0]));
    assert_true(n_hashed < COUNT_OF(hashes));
    if (first_isa)
        hashes[n_hashed] = hash;
    else if (hashes[n_hashed] != hash)
        fail_msg("the bits of format %zu differ with %s", n_hashed, cpu_info()->isa);
    n_hashed++;
}

TEST(rounded_activations_are_within_their_bound) {
    int threads = omp_get_max_threads();
    first_isa = true;
    for (size_t i = 0; i < COUNT_OF(isas); i++) {
        if (cpu_configure(NULL, isas[i]) != ST_OK) continue;
        n_hashed = 0;
        for_each_weight(70, 192, check_rounded);
        assert_true(n_hashed >= 14);
        first_isa = false;
    }
    omp_set_num_threads(threads);
    check_ok(cpu_configure(NULL, NULL));
}

/* ---- faults ---- */

TEST(infinite_scales_are_found) {
    Tensor *weight = of_format(quant_format_named("q8_0"), 4, 64);
    uint8_t *blocks = weight->elements;
    blocks[5 * 34] = 0; /* the scale of block 5 becomes infinite */
    blocks[5 * 34 + 1] = 0x7c;
    int64_t found = tensor_find_nonfinite(weight);
    assert_true(found >= 5 * 32 && found < 6 * 32);
}

static void add_of_codes(void) {
    Tensor *weight = of_format(quant_format_named("q4_0"), 4, 64), *y = random_tensor(DT_F32, 4, 64, 60);
    device_cpu()->add(weight, y, y);
}

TEST(other_kernels_refuse_codes) {
    int status = in_child(add_of_codes);
    assert_true(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) != 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_give_the_bits_of_values),
        cmocka_unit_test(products_equal_the_references),
        cmocka_unit_test(codes_are_read_from_anywhere),
        cmocka_unit_test(infinite_scales_are_found),
        cmocka_unit_test(parts_of_a_whole_are_codes),
        cmocka_unit_test(other_kernels_refuse_codes),
        cmocka_unit_test(rounded_activations_are_within_their_bound),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
