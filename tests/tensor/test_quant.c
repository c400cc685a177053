/* SPDX-License-Identifier: Apache-2.0 */
/* Formats of quantised weights: bytes and values of the programs that define them, bit for bit, and blocks made by hand. */
#include "tests/support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/model/model.h"
#include "lib/tensor/quant/quant.h"

/* ---- golden values ---- */

static WeightFile *golden_tensors(const char *name) {
    char path[512];
    WeightFile *set = NULL;
    if (!shared_path(name, path, sizeof path)) skip();
    check_ok(weight_file_open(path, &set));
    return set;
}

/* A copy that is aligned: tensors of the file may be at any address. */
static void *copied(const WeightFile *set, const char *name, size_t *bytes) {
    const StoredTensor *tensor = weight_file_find(set, name);
    if (!tensor) return NULL;
    void *copy = malloc(tensor->bytes + 1);
    assert_non_null(copy);
    memcpy(copy, tensor->data, tensor->bytes);
    *bytes = tensor->bytes;
    return copy;
}

static void *needed(const WeightFile *set, const char *name, size_t *bytes) {
    void *copy = copied(set, name, bytes);
    if (!copy) fail_msg("no '%s' in the expected values", name);
    return copy;
}

static void check_bytes(const char *what, const void *got, const void *want, size_t n) {
    const uint8_t *a = got, *b = want;
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i]) fail_msg("%s: byte %zu of %zu is %d, expected %d", what, i, n, a[i], b[i]);
}

/* "Q4_K" of q4_k, "IQ4_NL" of iq4_nl */
static const char *golden_type(const QuantFormat *format, char *out) {
    size_t n = strlen(format->name);
    for (size_t i = 0; i <= n; i++) out[i] = (char)(format->name[i] >= 'a' && format->name[i] <= 'z' ? format->name[i] - 32 : format->name[i]);
    return out;
}

/* Reads TYPE.bytes, and if `input` is given writes it, row by row. Returns whether the set has the format. */
static bool check_format(const WeightFile *set, const QuantFormat *format, const char *suffix, const float *input, const float *importance,
                         int64_t width) {
    char name[64], type[16];
    size_t n_bytes, n_values;
    snprintf(name, sizeof name, "%s%s.bytes", golden_type(format, type), suffix);
    uint8_t *bytes = copied(set, name, &n_bytes);
    if (!bytes) return false;
    snprintf(name, sizeof name, "%s%s.dequantized", type, suffix);
    float *want = needed(set, name, &n_values), *got = malloc(n_values);
    assert_int_equal(n_bytes % (size_t)format->bytes, 0);
    format->read(bytes, (int64_t)n_bytes / format->bytes, got);
    check_bytes(name, got, want, n_values);
    if (input) {
        uint8_t *written = malloc(n_bytes);
        size_t row_bytes = (size_t)(width / format->block * format->bytes);
        for (size_t r = 0; r * row_bytes < n_bytes; r++) format->write(input + r * (size_t)width, width, importance, written + r * row_bytes);
        check_bytes(name, written, bytes, n_bytes);
        free(written);
    }
    free(bytes);
    free(want);
    free(got);
    return true;
}

TEST(blocks_equal_ggmls) {
    WeightFile *set = golden_tensors("golden/deploy/ggml/blocks.safetensors");
    size_t n, n_bytes;
    const QuantFormat *formats = quant_formats(&n);
    float *input = needed(set, "input", &n_bytes), *importance = needed(set, "imatrix", &n_bytes);
    for (size_t i = 0; i < n; i++) {
        assert_true(check_format(set, &formats[i], "", input, NULL, 512));
        bool guided = strcmp(formats[i].name, "q8_0") != 0 && strcmp(formats[i].name, "mxfp4") != 0;
        assert_int_equal(check_format(set, &formats[i], ".imatrix", input, importance, 512), guided);
    }
    free(input);
    free(importance);
    weight_file_close(set);
}

/* Random blocks for the formats that gguf-py cannot write. */
TEST(random_blocks_equal_gguf_pys) {
    WeightFile *set = golden_tensors("golden/quant/gguf.safetensors");
    size_t n, n_bytes;
    const QuantFormat *formats = quant_formats(&n);
    static const char *const written[] = {"q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4"};
    float *input = needed(set, "input", &n_bytes);
    for (size_t i = 0; i < n; i++) {
        bool own = false;
        for (size_t k = 0; k < COUNT_OF(written); k++) own |= strcmp(written[k], formats[i].name) == 0;
        assert_true(check_format(set, &formats[i], "", own ? input : NULL, NULL, 512));
    }
    free(input);
    weight_file_close(set);
}

/* ---- bitsandbytes ---- */

/* Codes of nested statistics. The library finds the nearest value by a table that is not exact, so a value in the middle of two may get the other. */
static void check_nested_codes(const float *absmax, float offset, const float *nested_absmax, const uint8_t *got, const uint8_t *want, size_t n) {
    float map[256];
    dynamic_map(map);
    for (size_t i = 0; i < n; i++) {
        double x = ((double)absmax[i] - (double)offset) / (double)nested_absmax[i / FOUR_BIT_NESTED];
        double to_got = fabs(x - (double)map[got[i]]), to_want = fabs(x - (double)map[want[i]]),
               gap = fabs((double)map[got[i]] - (double)map[want[i]]);
        if (to_got > to_want || to_want - to_got > 1e-3 * gap) fail_msg("nested code %zu is %d, expected %d for %g", i, got[i], want[i], x);
    }
}

static void check_four_bit(const WeightFile *set, const char *matrix, FourBitKind kind, bool nested) {
    char name[64];
    size_t n_input, n, n_want;
    const char *type = kind == FOUR_BIT_NF4 ? "nf4" : "fp4", *twice = nested ? ".double" : "";
#define GET(suffix, size) (snprintf(name, sizeof name, "%s.%s%s." suffix, matrix, type, twice), needed(set, name, size))
    snprintf(name, sizeof name, "%s.input", matrix);
    float *input = needed(set, name, &n_input), *want = GET("dequantized", &n_want);
    uint8_t *packed = GET("packed", &n);
    int64_t count = (int64_t)(n_input / sizeof *input), n_blocks = (count + 63) / 64;
    uint8_t *got_packed = malloc(n + 1);
    float *absmax = malloc((size_t)n_blocks * sizeof *absmax), *got = malloc(n_want), map[256];
    four_bit_write(kind, input, count, 64, got_packed, absmax);
    check_bytes(name, got_packed, packed, n);
    FourBit four = {.packed = packed, .map = four_bit_map(kind), .block = 64, .absmax = absmax};
    if (nested) {
        size_t n_codes, n_nested, n_offset;
        uint8_t *codes = GET("absmax_u8", &n_codes), *got_codes = malloc(n_codes + 1);
        float *nested_absmax = GET("nested_absmax", &n_nested), *got_nested = malloc(n_nested), *offset = GET("offset", &n_offset), got_offset;
        four_bit_nest(absmax, n_blocks, got_codes, got_nested, &got_offset);
        check_close_f32(name, &got_offset, offset, 1, 0, 2e-7); /* a mean, whose order of additions is not fixed */
        check_close_f32(name, got_nested, nested_absmax, n_nested / 4, 0, 2e-6);
        check_nested_codes(absmax, got_offset, nested_absmax, got_codes, codes, n_codes);
        dynamic_map(map);
        four = (FourBit){packed, four_bit_map(kind), 64, NULL, codes, map, nested_absmax, 256, *offset};
        four_bit_read(&four, 0, count, got);
        free(codes);
        free(got_codes);
        free(nested_absmax);
        free(got_nested);
        free(offset);
    } else {
        float *stored = GET("absmax", &n);
        check_bytes(name, absmax, stored, n);
        for (int64_t at = 0; at < count; at += 37) four_bit_read(&four, at, MIN(37, count - at), got + at); /* in pieces that cross blocks */
        free(stored);
    }
    check_close_f32(matrix, got, want, (size_t)count, 3e-7, 0); /* golden/quant: the library's kernel against this formula */
    free(input);
    free(want);
    free(packed);
    free(got_packed);
    free(absmax);
    free(got);
}

TEST(four_bits_equal_bitsandbytes) {
    WeightFile *set = golden_tensors("golden/quant/bnb.safetensors");
    size_t n;
    float map[256], *want = needed(set, "dynamic_map", &n);
    dynamic_map(map);
    check_bytes("dynamic map", map, want, n);
    free(want);
    want = needed(set, "nf4.code", &n);
    check_bytes("NF4", four_bit_map(FOUR_BIT_NF4), want, n);
    free(want);
    want = needed(set, "fp4.code", &n);
    for (int i = 0; i < 16; i++) check_close((double)four_bit_map(FOUR_BIT_FP4)[i], (double)want[i], 0); /* -0 or 0 at code 8 */
    free(want);
    for (int nested = 0; nested < 2; nested++) {
        check_four_bit(set, "m0", FOUR_BIT_NF4, nested);
        check_four_bit(set, "m0", FOUR_BIT_FP4, nested);
        check_four_bit(set, "m1", FOUR_BIT_NF4, nested);
        check_four_bit(set, "m1", FOUR_BIT_FP4, nested);
    }
    check_four_bit(set, "m2", FOUR_BIT_NF4, true);
    weight_file_close(set);
}

TEST(int8_rows_equal_bitsandbytes) {
    WeightFile *set = golden_tensors("golden/quant/bnb.safetensors");
    static const struct {
        const char *name;
        size_t rows, width;
    } matrices[] = {{"m0", 24, 96}, {"m1", 37, 64}, {"m2", 72, 256}};
    for (size_t m = 0; m < COUNT_OF(matrices); m++) {
        char name[64];
        size_t n, width = matrices[m].width;
#define GET8(suffix) (snprintf(name, sizeof name, "%s." suffix, matrices[m].name), needed(set, name, &n))
        float *input = GET8("input"), *absmax = GET8("int8.absmax"), *want = GET8("int8.dequantized"), got[256];
        int8_t *codes = GET8("int8.q"), got_codes[256];
        for (size_t r = 0; r < matrices[m].rows; r++) {
            float most = int8_row_write(input + r * width, (int64_t)width, got_codes);
            check_close((double)most, (double)absmax[r], 0);
            check_bytes(name, got_codes, codes + r * width, width);
            int8_row_read(codes + r * width, (int64_t)width, absmax[r], got);
            check_bytes("int8", got, want + r * width, width * sizeof *got);
        }
        free(input);
        free(absmax);
        free(want);
        free(codes);
    }
    weight_file_close(set);
}

TEST(small_floats_equal_torch) {
    WeightFile *set = golden_tensors("golden/deploy/hfquant/expected.safetensors");
    size_t n;
    float *e4m3 = needed(set, "f8_e4m3.values", &n), *e5m2 = needed(set, "f8_e5m2.values", &n), got[256];
    for (int i = 0; i < 256; i++) got[i] = e4m3_to_float((uint8_t)i);
    check_close_f32("e4m3", got, e4m3, 256, 0, 0);
    for (int i = 0; i < 256; i++) got[i] = e5m2_to_float((uint8_t)i);
    check_close_f32("e5m2", got, e5m2, 256, 0, 0);
    free(e4m3);
    free(e5m2);
    weight_file_close(set);
}

/* ---- by hand ---- */

/* x = [.1, -.2, .05, .4, -.4, .33, 0, -.07] as one block of NF4: the nearest of its 16 values to x / .4 */
TEST(nf4_by_hand) {
    const float x[8] = {0.1f, -0.2f, 0.05f, 0.4f, -0.4f, 0.33f, 0, -0.07f};
    const float want[8] = {0.09844492f, -0.21002922f, 0.06437208f, 0.4f, -0.4f, 0.28918273f, 0, -0.07390937f};
    uint8_t packed[4];
    float absmax, got[8];
    four_bit_write(FOUR_BIT_NF4, x, 8, 64, packed, &absmax);
    assert_memory_equal(packed, ((const uint8_t[]){0xa2, 0x9f, 0x0e, 0x75}), 4);
    four_bit_read(&(FourBit){.packed = packed, .map = four_bit_map(FOUR_BIT_NF4), .block = 64, .absmax = &absmax}, 0, 8, got);
    check_close_f32("nf4", got, want, 8, 1e-7, 0);
}

TEST(q4_0_by_hand) {
    float x[32], got[32];
    uint8_t block[18];
    for (int i = 0; i < 32; i++) x[i] = (float)(i % 16 - 8) / 4; /* -2..1.75: on the grid with d = 1/4 */
    quant_format_named("q4_0")->write(x, 32, NULL, block);
    assert_memory_equal(block, ((const uint8_t[]){0x00, 0x34, 0x00, 0x11, 0x22, 0x33}), 6); /* f16 0.25; element 16 is as element 0 */
    quant_format_named("q4_0")->read(block, 1, got);
    check_close_f32("q4_0", got, x, 32, 0, 0);
}

/* Scales and minima of 6 bits: group g has the scale 8 g + 1 and the minimum 63 - g. */
TEST(q4_k_by_hand) {
    uint8_t block[144] = {0x00, 0x3c, 0x00, 0x38}; /* d = 1, dmin = 0.5 */
    float got[256];
    for (int g = 0; g < 8; g++) {
        int scale = 8 * g + 1, min = 63 - g;
        uint8_t *s = block + 4;
        if (g < 4) {
            s[g] |= (uint8_t)scale;
            s[g + 4] |= (uint8_t)min;
        } else {
            s[g + 4] = (uint8_t)((scale & 15) | (min & 15) << 4);
            s[g - 4] |= (uint8_t)(scale >> 4 << 6);
            s[g] |= (uint8_t)(min >> 4 << 6);
        }
    }
    for (int i = 0; i < 128; i++) block[16 + i] = (uint8_t)(i % 16 | (15 - i % 16) << 4);
    quant_format_named("q4_k")->read(block, 1, got);
    for (int i = 0; i < 256; i++) {
        int g = i / 32, code = g % 2 ? 15 - i % 16 : i % 16;
        check_close((double)got[i], (8.0 * g + 1) * code - 0.5 * (63 - g), 0);
    }
}

/* What was read is written as the same bytes: the codes of a block with its largest value determine its scale. */
TEST(values_on_the_grid_keep_their_bytes) {
    static const char *const names[] = {"q4_0", "q8_0", "mxfp4"};
    for (size_t f = 0; f < COUNT_OF(names); f++) {
        const QuantFormat *format = quant_format_named(names[f]);
        float values[256], again[256];
        uint8_t bytes[512], written[512];
        for (int i = 0; i < 256; i++) values[i] = sinf((float)(7 * i)) * (i % 32 == 5 ? 2 : 1);
        format->write(values, 256, NULL, bytes);
        format->read(bytes, 256 / format->block, again);
        format->write(again, 256, NULL, written);
        check_bytes(names[f], written, bytes, (size_t)(256 / format->block * format->bytes));
    }
}

/* Zeros stay zeros. */
TEST(errors_are_bounded) {
    size_t n;
    const QuantFormat *formats = quant_formats(&n);
    for (size_t f = 0; f < n; f++) {
        const QuantFormat *format = &formats[f];
        int bits = format->name[strcspn(format->name, "23456789")] - '0';
        double bound = 2.6 * 0.1 / (1 << bits); /* half a step of 2^bits even ones from -0.1 to 0.1, and more for scales and uneven grids */
        float values[512], got[512];
        uint8_t bytes[1024];
        for (int i = 0; i < 512; i++) values[i] = cosf((float)(i * i % 379)) * 0.1f;
        format->write(values, 512, NULL, bytes);
        format->read(bytes, 512 / format->block, got);
        check_close_f32(format->name, got, values, 512, bound, 0);
        memset(values, 0, sizeof values);
        format->write(values, 512, NULL, bytes);
        format->read(bytes, 512 / format->block, got);
        for (int i = 0; i < 512; i++) assert_true(got[i] == 0);
        assert_ptr_equal(quant_format_of_ggml((uint32_t)format->ggml_type), format);
    }
    assert_null(quant_format_named("q9_0"));
    assert_null(quant_format_of_ggml(31));
}

/* Any bytes can be read. */
TEST(any_bytes_are_read) {
    size_t n;
    const QuantFormat *formats = quant_formats(&n);
    for (size_t f = 0; f < n; f++) {
        size_t size = (size_t)formats[f].bytes;
        uint8_t *bytes = malloc(size); /* the address sanitizer watches its end */
        float values[256];
        for (unsigned round = 0; round < 64; round++) {
            for (size_t i = 0; i < size; i++) bytes[i] = round == 0 ? 255 : (uint8_t)((i + 1) * (round + 3) * 2654435761u >> 13);
            formats[f].read(bytes, 1, values);
        }
        free(bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_equal_ggmls),
        cmocka_unit_test(random_blocks_equal_gguf_pys),
        cmocka_unit_test(four_bits_equal_bitsandbytes),
        cmocka_unit_test(int8_rows_equal_bitsandbytes),
        cmocka_unit_test(small_floats_equal_torch),
        cmocka_unit_test(nf4_by_hand),
        cmocka_unit_test(q4_0_by_hand),
        cmocka_unit_test(q4_k_by_hand),
        cmocka_unit_test(values_on_the_grid_keep_their_bytes),
        cmocka_unit_test(errors_are_bounded),
        cmocka_unit_test(any_bytes_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
