/* SPDX-License-Identifier: Apache-2.0 */
/* Products of codes of 8 bits as they are compiled for processors with VNNI, with that instruction as plain C: the same bits as those of this
 * processor. */
#include "tests/support/check.h"

#include <string.h>

#include "lib/base/rng.h"
#include "lib/tensor/activations.h"
#include "lib/tensor/cpu/gemm.h"
#include "lib/tensor/quant/packing.h"

extern const CpuProducts cpu_int8_products_emulated; /* the Makefile links it to this test */

enum { ROWS = 5, OUT = 75, IN = 256 };

static Arena *arena;

/* Random bytes with scales that are finite: codes of both signs, -128 among those of q8_0. */
static Tensor *random_weight(const QuantFormat *format) {
    const int64_t shape[] = {OUT, IN};
    float values[IN];
    Tensor *weight = tensor_new(arena, device_cpu(), format->dtype, 2, shape);
    for (int64_t r = 0; r < OUT; r++) {
        uint8_t *row = (uint8_t *)weight->elements + (size_t)r * dtype_bytes(format->dtype, IN);
        for (int64_t i = 0; i < IN; i++) values[i] = (float)rng_uniform(rng_key(3, RNG_TEST, (uint64_t)format->dtype), (uint64_t)(r * IN + i)) - 0.5f;
        format->write(values, IN, NULL, row);
        if (format->dtype == DT_Q8_0) row[2 + r % 32] = 0x80;
    }
    return weight;
}

/* Unsigned codes of 4 bits, whose order in memory differs. */
static Tensor *random_packed(void) {
    const int64_t groups = IN / 32;
    uint8_t *codes = arena_zero(arena, OUT * IN / 2);
    float *scales = arena_alloc(arena, (size_t)(OUT * groups) * sizeof *scales);
    for (int64_t i = 0; i < OUT * IN / 2; i++) codes[i] = (uint8_t)(256 * rng_uniform(rng_key(4, RNG_TEST, 0), (uint64_t)i));
    for (int64_t i = 0; i < OUT * groups; i++) scales[i] = (float)(i % 7 + 1) / 64;
    const AffineCodes affine = {.name = "affine",
                                .bits = 4,
                                .rows = OUT,
                                .width = IN,
                                .n_groups = groups,
                                .codes = codes,
                                .line = IN / 2,
                                .scales = scales,
                                .zero = 7,
                                .group = 32};
    return tensor_packed(arena, device_cpu(), 2, (const int64_t[]){OUT, IN}, packing_of_affine(arena, &affine));
}

static void check_weight(const char *name, Tensor *weight) {
    Tensor *x = tensor_new(arena, device_cpu(), DT_F32, 2, (const int64_t[]){ROWS, IN});
    Tensor *want = tensor_new(arena, device_cpu(), DT_F32, 2, (const int64_t[]){ROWS, OUT}),
           *got = tensor_new(arena, device_cpu(), DT_F32, 2, (const int64_t[]){ROWS, OUT});
    for (int64_t i = 0; i < ROWS * IN; i++) ((float *)x->elements)[i] = (float)rng_uniform(rng_key(5, RNG_TEST, 0), (uint64_t)i) - 0.5f;
    cpu_round_activations(true);
    device_cpu()->matmul(&(Matmul){.a = x, .b = weight, .c = want, .transpose_b = true, .alpha = 1});
    cpu_round_activations(false);
    Product product = {.dtype = DT_F32,
                       .m = ROWS,
                       .n = OUT,
                       .k = IN,
                       .a = operand_of(x->elements, DT_F32, IN, false),
                       .b = operand_of(weight->elements, weight->dtype, IN, true),
                       .c = got->elements,
                       .c_dtype = DT_F32,
                       .ldc = OUT,
                       .alpha = 1};
    product.b.int8 = true;
    cpu_int8_products_emulated.run(&product, 1);
    for (int64_t i = 0; i < ROWS * OUT; i++)
        if (memcmp((float *)got->elements + i, (float *)want->elements + i, sizeof(float)) != 0)
            fail_msg("%s: element %lld is %.9g, not %.9g", name, (long long)i, tensor_get(got, i), tensor_get(want, i));
}

TEST(vnni_gives_the_same_bits) {
    static const char *const names[] = {"q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs"};
    if (cpu_configure("own", "avx2") != ST_OK) skip();
    arena = arena_new(0);
    for (size_t i = 0; i < COUNT_OF(names); i++) check_weight(names[i], random_weight(quant_format_named(names[i])));
    check_weight("affine", random_packed());
    arena_free(arena);
    check_ok(cpu_configure(NULL, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(vnni_gives_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
