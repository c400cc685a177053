/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench codes: measures products of one, eight and many tokens with quantised weights, and the same with weights in bf16 and f32. */
#include "lib/base/system.h"
#include "cmd/app/terminal.h"
#include "cmd/bench/bench.h"
#include "cmd/common/runtime.h"
#include "lib/tensor/quant/packing.h"

#include <string.h>

/* A weight larger than the usual caches in each format; its values repeat those of some rows, since quantising takes longer than multiplying. */
enum { OUT = 24576, IN = 4096, DISTINCT = 64, GROUP = 128, BLOCK = 64, MANY = 512, FEW = 8 };

static const char *const packings[] = {"nf4", "int8", "affine4"};

static float *distinct_values(Arena *arena) {
    float *values = arena_alloc(arena, (size_t)DISTINCT * IN * sizeof *values);
    for (int64_t i = 0; values && i < (int64_t)DISTINCT * IN; i++) values[i] = (float)(0.02 * rng_normal(rng_key(1, RNG_TEST, 0), (uint64_t)i));
    return values;
}

/* An array of all rows that repeats the bytes of some. NULL: out of memory. */
static void *repeated(Arena *arena, const void *bytes, size_t n) {
    char *all = bytes ? arena_alloc(arena, n * (OUT / DISTINCT)) : NULL;
    for (size_t i = 0; all && i < OUT / DISTINCT; i++) memcpy(all + i * n, bytes, n);
    return all;
}

static Packing *nf4(const float *values, Arena *arena) {
    enum { COUNT = DISTINCT * IN, BLOCKS = COUNT / BLOCK };
    FourBit codes = {.map = four_bit_map(FOUR_BIT_NF4), .block = BLOCK, .nested_block = FOUR_BIT_NESTED};
    uint8_t *packed = arena_alloc(arena, COUNT / 2), *scales = arena_alloc(arena, BLOCKS);
    float *absmax = arena_alloc(arena, BLOCKS * sizeof *absmax), *map = arena_alloc(arena, 256 * sizeof *map),
          *upper = arena_alloc(arena, BLOCKS * sizeof *upper);
    if (!packed || !scales || !absmax || !map || !upper) return NULL;
    four_bit_write(FOUR_BIT_NF4, values, COUNT, BLOCK, packed, absmax);
    four_bit_nest(absmax, BLOCKS, scales, upper, &codes.offset);
    dynamic_map(map);
    codes.packed = repeated(arena, packed, COUNT / 2);
    codes.absmax_codes = repeated(arena, scales, BLOCKS);
    codes.nested_map = map;
    codes.nested_absmax = repeated(arena, upper, BLOCKS / FOUR_BIT_NESTED * sizeof *upper);
    return codes.packed && codes.absmax_codes && codes.nested_absmax ? packing_of_four_bits(arena, &codes, (int64_t)OUT * IN) : NULL;
}

static Packing *int8_rows(const float *values, Arena *arena) {
    int8_t *codes = arena_alloc(arena, (size_t)DISTINCT * IN);
    float *absmax = arena_alloc(arena, DISTINCT * sizeof *absmax);
    if (!codes || !absmax) return NULL;
    for (int64_t r = 0; r < DISTINCT; r++) absmax[r] = int8_row_write(values + r * IN, IN, codes + r * IN);
    codes = repeated(arena, codes, (size_t)DISTINCT * IN);
    absmax = repeated(arena, absmax, DISTINCT * sizeof *absmax);
    return codes && absmax ? packing_of_int8_rows(arena, codes, absmax, OUT, IN) : NULL;
}

/* As GPTQ and AWQ: 4 bits, a scale and a zero point for 128 inputs. */
static Packing *affine4(const float *values, Arena *arena) {
    enum { GROUPS = IN / GROUP };
    uint8_t *codes = arena_alloc(arena, (size_t)DISTINCT * IN / 2);
    float *scales = arena_alloc(arena, (size_t)DISTINCT * GROUPS * sizeof *scales);
    int16_t *zeros = arena_alloc(arena, (size_t)DISTINCT * GROUPS * sizeof *zeros);
    if (!codes || !scales || !zeros) return NULL;
    for (int64_t i = 0; i < (int64_t)DISTINCT * IN; i++)
        affine_put(codes + i / IN * IN / 2, 4, i % IN, (unsigned)MAX(0, MIN(15, (int)(values[i] * 100) + 8)));
    for (int64_t i = 0; i < (int64_t)DISTINCT * GROUPS; i++) {
        scales[i] = 0.01f;
        zeros[i] = 8;
    }
    AffineCodes affine = {.name = "affine4",
                          .bits = 4,
                          .rows = OUT,
                          .width = IN,
                          .n_groups = GROUPS,
                          .codes = repeated(arena, codes, (size_t)DISTINCT * IN / 2),
                          .line = IN / 2,
                          .scales = repeated(arena, scales, (size_t)DISTINCT * GROUPS * sizeof *scales),
                          .zeros = repeated(arena, zeros, (size_t)DISTINCT * GROUPS * sizeof *zeros),
                          .group = GROUP};
    return affine.codes && affine.scales && affine.zeros ? packing_of_affine(arena, &affine) : NULL;
}

/* The weight in the format of that name, with its bytes. NULL: out of memory. */
static Tensor *weight_new(Arena *arena, const Device *device, const char *name, size_t *bytes) {
    const float *values = distinct_values(arena);
    const QuantFormat *format = quant_format_named(name);
    const int64_t shape[] = {OUT, IN};
    Tensor *weight = NULL;
    if (!values) return NULL;
    if (!format && strcmp(name, "f32") != 0 && strcmp(name, "bf16") != 0) {
        Packing *packing = strcmp(name, "nf4") == 0    ? nf4(values, arena)
                           : strcmp(name, "int8") == 0 ? int8_rows(values, arena)
                                                       : affine4(values, arena);
        if (!packing || !(weight = tensor_packed(arena, device, 2, shape, packing))) return NULL;
        *bytes = packing->bytes;
    } else {
        DType dtype = format ? format->dtype : strcmp(name, "f32") == 0 ? DT_F32 : DT_BF16;
        size_t part = dtype_bytes(dtype, (int64_t)DISTINCT * IN);
        uint8_t *some = arena_alloc(arena, part);
        if (!some || !(weight = tensor_new(arena, device, dtype, 2, shape))) return NULL;
        for (int64_t i = 0; !format && i < (int64_t)DISTINCT * IN; i++)
            if (dtype == DT_F32)
                memcpy(some + (size_t)i * sizeof *values, &values[i], sizeof *values);
            else
                memcpy(some + (size_t)i * sizeof(uint16_t), &(uint16_t){float_to_bf16(values[i])}, sizeof(uint16_t));
        if (format) format->write(values, (int64_t)DISTINCT * IN, NULL, some);
        for (int64_t i = 0; i < OUT / DISTINCT; i++)
            if (tensor_upload(weight, i * DISTINCT * IN, (int64_t)DISTINCT * IN, some) != ST_OK) return NULL;
        *bytes = tensor_bytes(weight);
    }
    weight->storage->constant = true;
    return weight;
}

/* Seconds of a product of `rows` tokens, the best of some, since other programs disturb some of them. */
static double product_seconds(Arena *arena, const Device *device, const Tensor *weight, int64_t rows, bool back) {
    const int most = rows > FEW ? 2 : 8;
    Tensor *a = tensor_new(arena, device, DT_F32, 2, (int64_t[]){rows, back ? OUT : IN});
    Tensor *c = tensor_new(arena, device, DT_F32, 2, (int64_t[]){rows, back ? IN : OUT});
    double best = 1e9;
    if (!a || !c) return best;
    device->fill(a, 0.5);
    for (int i = 0; i <= most && !interrupt_requested(); i++) {
        double began = clock_seconds();
        device->matmul(&(Matmul){.a = a, .b = weight, .c = c, .transpose_b = !back, .alpha = 1});
        if (i > 0) best = MIN(best, clock_seconds() - began);
    }
    return best;
}

static Status bench_format(const Command *command, const char *name) {
    const Device *device = runtime_choose(NULL).device;
    Arena *arena = arena_new(0);
    size_t bytes = 0;
    Tensor *weight = arena ? weight_new(arena, device, name, &bytes) : NULL;
    if (!weight) {
        arena_free(arena);
        return status_fail(ST_RESOURCE, "out of memory for a weight of %d x %d", OUT, IN);
    }
    double one = product_seconds(arena, device, weight, 1, false), few = product_seconds(arena, device, weight, FEW, false);
    double many = product_seconds(arena, device, weight, MANY, false), back = product_seconds(arena, device, weight, MANY, true);
    const double operations = 2.0 * MANY * OUT * IN;
    arena_free(arena);
    if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
    if (command->json)
        print_result("{\"format\":\"%s\",\"bytes\":%zu,\"seconds\":{\"one\":%.6f,\"eight\":%.6f,\"many\":%.6f,\"back\":%.6f}}\n", name, bytes, one,
                     few, many, back);
    else
        print_result("%-8s %6.2f %10.1f %10.1f %10.1f %10.1f %10.1f\n", name, 8.0 * (double)bytes / ((double)OUT * IN), 1e-9 * (double)bytes / one,
                     1e-9 * OUT * IN / one, 1e-9 * FEW * OUT * IN / few, 1e-9 * operations / many, 1e-9 * operations / back);
    return ST_OK;
}

Status bench_codes(const Command *command) {
    const char *only = command->arguments[1];
    size_t n;
    const QuantFormat *formats = quant_formats(&n);
    if (!command->json)
        print_result("%-8s %6s %10s %10s %10s %10s %10s\n", "format", "bits", "1: GB/s", "1: G/s", "8: G/s", "512: GF/s", "back: GF/s");
    for (size_t i = 0; i < 2 + n + COUNT_OF(packings); i++) {
        const char *name = i < 2 ? (i ? "bf16" : "f32") : i < 2 + n ? formats[i - 2].name : packings[i - 2 - n];
        if (!only || strcmp(only, name) == 0) TRY(bench_format(command, name));
    }
    return ST_OK;
}
