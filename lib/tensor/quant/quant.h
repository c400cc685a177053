/* SPDX-License-Identifier: Apache-2.0 */
/* Formats of quantised weights, as plain loops: from blocks of codes and scales to float32, and back. The values are those of the programs that
 * define the formats, bit for bit, so these files are compiled without fused multiply-adds.
 *
 *     const QuantFormat *format = quant_format_named("q4_k");
 *     int64_t blocks = count / format->block;                       // count: a multiple of it
 *     format->write(values, count, NULL, bytes);                    // blocks * format->bytes bytes
 *     format->read(bytes, blocks, values);
 */
#ifndef TUNE_QUANT_H
#define TUNE_QUANT_H

#include "lib/tensor/dtype.h"

/* A format of blocks that contain their own scales. A row consists of whole blocks. Formats live as long as the program. Source: ggml-quants.c of
 * llama.cpp. */
typedef struct QuantFormat {
    const char *name;
    DType dtype;
    int ggml_type; /* its number in GGUF files */
    int block;     /* elements of a block */
    int bytes;     /* of a block */
    /* Dequantises n blocks, at any address. Any bytes are valid; a scale may be infinite or NaN. */
    void (*read)(const uint8_t *blocks, int64_t n, float *values);
    /* Quantises a row of finite values; count: a multiple of `block`. importance: a weight above 0 for the squared error of each element, or NULL. A
     * scale beyond the range of float16 becomes infinite. */
    void (*write)(const float *values, int64_t count, const float *importance, uint8_t *blocks);
    const char *help; /* one line for people */
} QuantFormat;
const QuantFormat *quant_format_named(const char *name); /* NULL: there is none of that name */
const QuantFormat *quant_format_of(DType dtype);         /* NULL: its elements are stored one by one */
const QuantFormat *quant_format_of_ggml(uint32_t type);  /* NULL: it is not supported, or not quantised */
const QuantFormat *quant_formats(size_t *n);             /* all of them */

/* ---- bitsandbytes: a code of 4 bits an element, and a scale (absmax) for each block of the flattened tensor, so that blocks may cross rows.
 * Source: csrc/ of bitsandbytes ---- */

typedef enum FourBitKind {
    FOUR_BIT_NF4, /* quantiles of the normal distribution. Source: QLoRA, arXiv 2305.14314 */
    FOUR_BIT_FP4  /* floats of 4 bits */
} FourBitKind;
enum { FOUR_BIT_NESTED = 256 }; /* scales in a block of nested statistics */
/* A quantised tensor. Arrays are at any address, in the byte order of the machine. With nested statistics ("double quantisation") the scales are
 * quantised as well, to codes of 8 bits: scale i is nested_map[absmax_codes[i]] * nested_absmax[i / nested_block] + offset. */
typedef struct FourBit {
    const uint8_t *packed; /* (count + 1) / 2 bytes; element 2j is in the high half of byte j */
    const float *map;      /* 16 values */
    int64_t block;         /* elements that share a scale */
    const void *absmax;    /* float32; NULL: nested statistics */
    const uint8_t *absmax_codes;
    const void *nested_map; /* 256 float32 */
    const void *nested_absmax;
    int64_t nested_block; /* scales that share an element of nested_absmax */
    float offset;
} FourBit;
const float *four_bit_map(FourBitKind kind);                                        /* the 16 values of its codes */
float four_bit_scale(const FourBit *from, int64_t i);                               /* of block i */
void four_bit_scales(const FourBit *from, int64_t first, int64_t n, float *scales); /* of blocks first .. first + n - 1 */
/* Dequantises elements first .. first + n - 1 of the flattened tensor. */
void four_bit_read(const FourBit *from, int64_t first, int64_t n, float *values);
/* Quantises `count` finite values. packed: (count + 1) / 2 bytes, written; absmax: one scale for each block, written. The last block may be short. */
void four_bit_write(FourBitKind kind, const float *values, int64_t count, int64_t block, uint8_t *packed, float *absmax);
/* Quantises n scales: codes (n), nested_absmax (one for each FOUR_BIT_NESTED of them), and their mean, the offset. */
void four_bit_nest(const float *absmax, int64_t n, uint8_t *codes, float *nested_absmax, float *offset);
void dynamic_map(float map[256]); /* the values of the signed 8-bit map of nested statistics, in ascending order */

/* ---- 8 bits ---- */

/* LLM.int8: codes of a row and its absmax; value = code * absmax / 127, rounded once. */
void int8_row_read(const int8_t *codes, int64_t n, float absmax, float *values);
float int8_row_write(const float *values, int64_t n, int8_t *codes); /* returns the absmax */
float e4m3_to_float(uint8_t bits);                                   /* 4 bits of exponent, no infinity; 0x7f and 0xff are NaN */
float e5m2_to_float(uint8_t bits);                                   /* 5 bits of exponent, as IEEE 754 */
float e8m0_to_float(uint8_t bits);                                   /* 2^(bits - 127); 0xff is NaN */
extern const float e2m1_values[16];                                  /* of the 4-bit floats of MXFP4 */

#endif
