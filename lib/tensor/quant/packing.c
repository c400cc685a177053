/* SPDX-License-Identifier: Apache-2.0 */
/* Reading codes from any element on, and the packings. */
#include "lib/tensor/quant/packing.h"

#include <math.h>
#include <string.h>

/* ---- any quantised dtype ---- */

/* Elements of blocks that contain their own scales; the first and the last block may be needed in part. */
static void blocks_read(const QuantFormat *format, const uint8_t *blocks, int64_t first, int64_t n, float *values) {
    enum { LARGEST_BLOCK = 256 };
    const int64_t block = format->block;
    float part[LARGEST_BLOCK];
    blocks += (size_t)(first / block) * (size_t)format->bytes;
    for (int64_t skip = first % block; n > 0; skip = 0) {
        int64_t whole = skip == 0 ? n / block : 0, taken = whole > 0 ? whole * block : MIN(n, block - skip);
        format->read(blocks, MAX(whole, 1), whole > 0 ? values : part);
        if (whole == 0) memcpy(values, part + skip, (size_t)taken * sizeof *values);
        blocks += (size_t)MAX(whole, 1) * (size_t)format->bytes;
        values += taken;
        n -= taken;
    }
}

void codes_read(DType dtype, const void *elements, int64_t first, int64_t n, bool rounds, float *values) {
    const Packing *packing = elements;
    if (dtype == DT_PACKED)
        packing->read(packing, first, n, values);
    else
        blocks_read(quant_format_of(dtype), elements, first, n, values);
    for (int64_t i = 0; rounds && i < n; i++) values[i] = bf16_to_float(float_to_bf16(values[i]));
}

/* ---- packings ---- */

typedef struct FourBitPacking {
    Packing packing;
    FourBit codes;
} FourBitPacking;

static void read_four_bits(const Packing *packing, int64_t first, int64_t n, float *values) {
    four_bit_read(&((const FourBitPacking *)packing)->codes, first, n, values);
}

Packing *packing_of_four_bits(Arena *arena, const FourBit *codes, int64_t count) {
    int64_t blocks = (count + codes->block - 1) / codes->block;
    size_t bytes = (size_t)((count + 1) / 2) + 16 * sizeof(float);
    if (codes->absmax)
        bytes += (size_t)blocks * sizeof(float);
    else
        bytes += (size_t)blocks + (256 + (size_t)((blocks + codes->nested_block - 1) / codes->nested_block)) * sizeof(float);
    FourBitPacking *made = arena_alloc(arena, sizeof *made);
    if (!made) return NULL;
    *made = (FourBitPacking){{.name = "4 bits", .bytes = bytes, .read = read_four_bits, .four_bits = &made->codes}, *codes};
    return &made->packing;
}

/* See Packing.ordinary. */
static bool scales_are_ordinary(const float *scales, int64_t n, bool negative) {
    bool all = true;
    for (int64_t i = 0; i < n; i++) {
        float size = negative ? fabsf(scales[i]) : scales[i];
        all &= size == 0 || (size > 1e-12f && size < 1e30f);
    }
    return all;
}

typedef struct Int8Packing {
    Packing packing;
    Int8Rows rows;
} Int8Packing;

static void read_int8_rows(const Packing *packing, int64_t first, int64_t n, float *values) {
    const Int8Rows *its = &((const Int8Packing *)packing)->rows;
    for (int64_t at = 0, some; at < n; at += some) {
        int64_t row = (first + at) / its->width;
        some = MIN(n - at, (row + 1) * its->width - first - at);
        int8_row_read(its->codes + first + at, some, its->absmax[row], values + at);
    }
}

Packing *packing_of_int8_rows(Arena *arena, const int8_t *codes, const float *absmax, int64_t rows, int64_t width) {
    Int8Packing *made = arena_alloc(arena, sizeof *made);
    if (!made) return NULL;
    *made = (Int8Packing){{.name = "int8",
                           .bytes = (size_t)(rows * width) + (size_t)rows * sizeof(float),
                           .read = read_int8_rows,
                           .int8_rows = &made->rows,
                           .ordinary = scales_are_ordinary(absmax, rows, false)},
                          {codes, absmax, width}};
    return &made->packing;
}

typedef struct AffinePacking {
    Packing packing;
    AffineCodes codes;
} AffinePacking;

/* Code i of a line; codes may cross bytes. */
static int code_at(const AffineCodes *c, const uint8_t *line, int64_t i) {
    int64_t bit = i * c->bits;
    int shift = (int)(bit % 8), code = line[bit / 8] >> shift;
    if (shift + c->bits > 8) code |= line[bit / 8 + 1] << (8 - shift);
    code &= (1 << c->bits) - 1;
    return c->is_signed && code >> (c->bits - 1) ? code - (1 << c->bits) : code;
}

void affine_put(uint8_t *line, int bits, int64_t i, unsigned code) {
    int64_t bit = i * bits;
    int shift = (int)(bit % 8);
    uint8_t *at = line + bit / 8;
    *at = (uint8_t)((shift ? *at : 0) | code << shift);
    if (shift + bits > 8) at[1] = (uint8_t)(code >> (8 - shift));
}

static void read_affine(const Packing *packing, int64_t first, int64_t n, float *values) {
    const AffineCodes *c = &((const AffinePacking *)packing)->codes;
    int64_t row = first / c->width, i = first % c->width, known = -1;
    float scale = 0;
    int zero = 0;
    for (int64_t at = 0; at < n; at++) {
        int64_t group = c->groups ? c->groups[i] : i / c->group;
        if (group != known) {
            scale = c->scales[row * c->n_groups + group];
            zero = c->zeros ? c->zeros[row * c->n_groups + group] : c->zero;
            known = group;
        }
        values[at] = scale * (float)(code_at(c, c->codes + row * c->line, i) - zero);
        if (++i < c->width) continue;
        i = 0;
        row++;
        known = -1;
    }
}

Packing *packing_of_affine(Arena *arena, const AffineCodes *codes) {
    AffinePacking *made = arena_alloc(arena, sizeof *made);
    if (!made) return NULL;
    size_t bytes = (size_t)(codes->rows * codes->line) + (size_t)(codes->rows * codes->n_groups) * (sizeof(float) + (codes->zeros ? 2 : 0)) +
                   (codes->groups ? (size_t)codes->width * sizeof *codes->groups : 0);
    *made = (AffinePacking){{.name = codes->name,
                             .bytes = bytes,
                             .read = read_affine,
                             .affine = &made->codes,
                             .ordinary = scales_are_ordinary(codes->scales, codes->rows * codes->n_groups, true)},
                            *codes};
    return &made->packing;
}

typedef struct Fp8Packing {
    Packing packing;
    Fp8Codes codes;
    int64_t across;    /* blocks of a row */
    float values[256]; /* of the codes */
} Fp8Packing;

static void read_fp8(const Packing *packing, int64_t first, int64_t n, float *values) {
    const Fp8Packing *its = (const Fp8Packing *)packing;
    const Fp8Codes *c = &its->codes;
    for (int64_t at = 0; at < n;) {
        int64_t row = (first + at) / c->width, i = (first + at) % c->width, block = i / c->block_width;
        int64_t end = at + MIN(n - at, MIN(c->width, (block + 1) * c->block_width) - i);
        float scale = c->scales[row / c->block_rows * its->across + block];
        for (; at < end; at++) values[at] = its->values[c->codes[first + at]] * scale;
    }
}

Packing *packing_of_fp8(Arena *arena, const Fp8Codes *codes) {
    Fp8Packing *made = arena_alloc(arena, sizeof *made);
    if (!made) return NULL;
    int64_t across = (codes->width + codes->block_width - 1) / codes->block_width, down = (codes->rows + codes->block_rows - 1) / codes->block_rows;
    size_t bytes = (size_t)(codes->rows * codes->width) + (size_t)(down * across) * sizeof(float);
    *made = (Fp8Packing){{.name = "fp8", .bytes = bytes, .read = read_fp8}, *codes, across, {0}};
    for (int i = 0; i < 256; i++) made->values[i] = e4m3_to_float((uint8_t)i);
    return &made->packing;
}
