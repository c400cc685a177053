/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of quantised weights as kernels read them.
 *
 * A weight of a dtype with blocks (quant_formats.def) needs nothing else. A weight whose statistics lie apart, or cross its rows, has the dtype
 * PACKED, and the `elements` of its tensor are a Packing: the place of codes and statistics, and the function that reads them.
 *
 *     Packing *packing = packing_of_four_bits(arena, &codes, count);        // NF4; the arrays of `codes` stay the caller's
 *     Tensor *weight = tensor_packed(arena, device, 2, shape, packing);
 *     tensor_dequantise(weight, row * width + column, n, values);
 *
 * A new format is a struct that begins with a Packing, and its read function.
 */
#ifndef TUNE_PACKING_H
#define TUNE_PACKING_H

#include "lib/base/arena.h"
#include "lib/tensor/quant/quant.h"

typedef struct Packing Packing;
typedef struct AffineCodes AffineCodes;
typedef struct Int8Rows Int8Rows;
struct Packing {
    const char *name; /* of the format, for messages */
    size_t bytes;     /* of codes and statistics */
    /* Dequantises elements first..first+n-1 of the flattened tensor, rounded to float32 as the format defines it. Called by several threads. */
    void (*read)(const Packing *packing, int64_t first, int64_t n, float *values);
    /* The codes, for kernels with a faster reader of the same bits (cpu/simd/codes.c, code_lanes.c); NULL: of another kind. */
    const FourBit *four_bits;
    const AffineCodes *affine;
    const Int8Rows *int8_rows;
    bool ordinary; /* of affine codes and int8 rows: scales are 0 or from 1e-12 to 1e30, those of int8 rows not negative: kernels may divide them */
    /* Of a stack of matrices (n, in, out): each of them transposed, (out, in), which is the order of its codes. NULL: not a stack. */
    const Packing *const *matrices;
};

/* Dequantises elements first..first+n-1 of a flattened tensor of a quantised dtype, from any element on. elements: as in the tensor. rounds: the
 * values are rounded to bf16. */
void codes_read(DType dtype, const void *elements, int64_t first, int64_t n, bool rounds, float *values);

/* Each makes a packing in `arena`, which refers to the caller's arrays. NULL: out of memory. */

/* NF4 and FP4 with `count` elements, with or without nested statistics; blocks may cross rows. */
Packing *packing_of_four_bits(Arena *arena, const FourBit *codes, int64_t count);
/* LLM.int8: codes (rows, width) and the absmax of each row, float32. */
struct Int8Rows {
    const int8_t *codes;
    const float *absmax;
    int64_t width;
};
Packing *packing_of_int8_rows(Arena *arena, const int8_t *codes, const float *absmax, int64_t rows, int64_t width);

/* Codes of a grid with a scale, and perhaps a zero point, for each group of inputs of a row: value = scale * (code - zero). */
struct AffineCodes {
    const char *name;
    int bits;             /* 1 to 8 */
    int64_t rows, width;  /* width: inputs */
    int64_t n_groups;     /* of a row */
    const uint8_t *codes; /* lines of `line` bytes; code i of a row is in bits i * bits .. of its line, lowest bits first */
    int64_t line;
    bool is_signed;       /* codes are two's complement; else they begin at 0 */
    const float *scales;  /* (rows, n_groups) */
    const int16_t *zeros; /* likewise; NULL: `zero` for all */
    int zero;
    const int32_t *groups; /* the group of each input; NULL: of `group` inputs each, in order */
    int64_t group;
};
Packing *packing_of_affine(Arena *arena, const AffineCodes *codes);
/* Writes code i of a line; a line is written from its beginning. */
void affine_put(uint8_t *line, int bits, int64_t i, unsigned code);

/* Floats of 8 bits (E4M3) with a scale for each block of block_rows x block_width; blocks at the edges are smaller. */
typedef struct Fp8Codes {
    int64_t rows, width, block_rows, block_width;
    const uint8_t *codes; /* (rows, width) */
    const float *scales;  /* (blocks down, blocks across) */
} Fp8Codes;
Packing *packing_of_fp8(Arena *arena, const Fp8Codes *codes);

#endif
