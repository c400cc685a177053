/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of a quantised weight as lanes of vectors: VEC_FLOATS lines become the lanes, as in transpose.h, and values are made from words of codes in
 * registers. The bits are those of codes (cpu.h).
 *
 *     if (ISA_FN(lanes_fit)(&b, k)) ISA_FN(lanes_multiply)(&b, col, k, a, sums);
 */
#ifndef TUNE_CODE_LANES_H
#define TUNE_CODE_LANES_H

#include "lib/tensor/cpu/blocks.h"
#include "lib/tensor/cpu/gemm.h"
#include "lib/tensor/cpu/vec.h"

enum {
    LANES_VECTORS = 4,                       /* vectors of lines in lanes_multiply: two chains of sums would leave multipliers idle */
    LANES_COLS = LANES_VECTORS * VEC_FLOATS, /* lines */
    LANES_STEP = 256,                        /* elements from which lanes_read begins are multiples of it */
    LANES_UNIT = 32                          /* elements of a row that share a scale in CodedRows */
};

/* Whether the functions below can read elements 0..k-1 of the lines of b. */
bool ISA_FN(lanes_fit)(const Operand *b, int64_t k);
/* values[i * vectors * VEC_FLOATS + lane] = element from + i of line col + lane. vectors: up to LANES_VECTORS; from: a multiple of LANES_STEP; depth:
 * such a multiple too, or all that is left. */
void ISA_FN(lanes_read)(const Operand *b, int64_t col, int vectors, int64_t from, int64_t depth, float *values);
/* sums[lane] += a[i] times element i of line col + lane, in order of i, for LANES_COLS lines and all i below k. b->rounds must be false. */
void ISA_FN(lanes_multiply)(const Operand *b, int64_t col, int64_t k, const float *a, float *sums);

/* ---- with rows in codes of 8 bits (int8_product.c) ---- */

/* Rows whose element i is codes[i] * scales[i / LANES_UNIT]. Codes are from -127 to 127. */
typedef struct CodedRows {
    int64_t rows, k;     /* k: a multiple of LANES_UNIT */
    const int8_t *codes; /* (rows, k). In each unit, if lanes_are_pairs: first the codes of even elements, then those of odd ones */
    const float *scales; /* (rows, k / LANES_UNIT) */
    const int32_t *sums; /* likewise: of the codes of a unit */
} CodedRows;
/* Whether lanes_dot can read elements 0..k-1 of the lines of b: its codes are integers. */
bool ISA_FN(lanes_have_integers)(const Operand *b, int64_t k);
bool ISA_FN(lanes_are_pairs)(const Operand *b);
/* Adds the products of the rows with lines col.. to sums, (rows, LANES_COLS). Each unit adds scale of the line * (scale of the row * integer sum), in
 * order of the units, in the same way with every instruction set. */
void ISA_FN(lanes_dot)(const Operand *b, int64_t col, const CodedRows *rows, float *sums);

/* CpuRows.int8_fits */
bool ISA_FN(int8_fits)(const Operand *b, int64_t n, int64_t k);

#endif
