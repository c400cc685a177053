/* SPDX-License-Identifier: Apache-2.0 */
/* Products of activations in codes of 8 bits with codes of quantised weights: sums of 32 products are integers.
 *
 * Of each 32 elements of a row, d = the largest magnitude / 127 and codes = x / d, rounded to nearest, so that each element is off by at most d / 2.
 * A sum over a row is one chain, in f32, of multiply-adds of the integer sums with the scale of the weight times d, in order of the blocks; a minimum
 * of the weight's block is added times d times the sum of the codes. So every instruction set and number of threads gives the same bits. This file
 * and code_lanes.c are also compiled for processors that add four products of bytes in one instruction (VNNI). */
#include "lib/tensor/cpu/simd/code_lanes.h"
#include "lib/tensor/cpu/simd/vector_product.h"

#include <math.h>

enum { UNIT = LANES_UNIT, ROWS_AT_ONCE = 32 };

/* Codes that are being made. */
typedef struct Coding {
    int64_t k;
    int8_t *codes;
    float *scales;
    int32_t *sums;
} Coding;

/* Memory for the codes of `rows` rows. */
static Coding coding_new(int slot, int64_t rows, int64_t k) {
    int64_t units = rows * k / UNIT;
    float *memory = cpu_scratch(slot, (size_t)(rows * k) + (size_t)units * (sizeof(float) + sizeof(int32_t)));
    return (Coding){k, (int8_t *)(memory + 2 * units), memory, (int32_t *)(void *)(memory + units)};
}

static CodedRows coded_rows(const Coding *coding, int64_t rows) { return (CodedRows){rows, coding->k, coding->codes, coding->scales, coding->sums}; }

/* Codes of a unit, in the order that the format of the weight needs. A value that is not finite makes the scale NaN. */
static void unit_code(const float *x, bool pairs, int8_t *codes, float *scale, int32_t *sum) {
    uint32_t bits[UNIT], largest = 0;
    int32_t rounded[UNIT], total = 0;
    const uint32_t infinite = 0x7f800000u;
    memcpy(bits, x, sizeof bits);
    for (int i = 0; i < UNIT; i++) largest = MAX(largest, bits[i] & 0x7fffffffu);
    float most = float_of_bits(largest), inverse = largest < infinite && most > 1e-30f ? 127 / most : 0;
    for (int i = 0; i < UNIT; i++) rounded[i] = inverse != 0 ? (int32_t)rintf(x[i] * inverse) : 0;
    for (int i = 0; i < UNIT; i++) total += rounded[i];
    for (int i = 0; i < UNIT; i++) codes[pairs ? i % 2 * (UNIT / 2) + i / 2 : i] = (int8_t)rounded[i];
    *scale = largest >= infinite ? (float)NAN : most / 127;
    *sum = total;
}

/* n values of a line of floats, times `scale`. */
static void floats_load(const Operand *from, int64_t line, int64_t at, int64_t n, float scale, float *to) {
    floats_from(&(Tensor){.dtype = from->dtype, .elements = (void *)(uintptr_t)from->data}, line * from->ld + at, n, to);
    for (int64_t i = 0; scale != 1 && i < n; i++) to[i] *= scale;
}

static void row_code(const Operand *a, int64_t row, bool pairs, const Coding *to) {
    float values[RUN];
    for (RUNS(at, n, 0, to->k)) {
        floats_load(a, row, at, n, 1, values);
        for (int64_t i = 0; i < n; i += UNIT) {
            int64_t unit = (row * to->k + at + i) / UNIT;
            unit_code(values + i, pairs, to->codes + unit * UNIT, to->scales + unit, to->sums + unit);
        }
    }
}

/* Columns of C in a task: LANES_COLS lines of B, of which the first `skip` belong to another task where C has no more columns. */
typedef struct Columns {
    int64_t line, skip, count;
} Columns;

static Columns columns_at(int64_t col, int64_t end, int64_t n) {
    int64_t line = MIN(col, n - LANES_COLS);
    return (Columns){line, col - line, MIN((int64_t)LANES_COLS - (col - line), end - col)};
}

/* Adds the products of some rows with LANES_COLS lines to sums (rows, LANES_COLS). */
static void rows_dot(const Operand *b, const CodedRows *coded, int64_t row, int64_t rows, int64_t line, float *sums) {
    int64_t unit = row * coded->k / UNIT;
    CodedRows part = {rows, coded->k, coded->codes + row * coded->k, coded->scales + unit, coded->sums + unit};
    ISA_FN(lanes_dot)(b, line, &part, sums);
}

static void task_run(const Product *p, const CodedRows *coded, int64_t row, int64_t rows, int64_t col) {
    _Alignas(64) float sums[ROWS_AT_ONCE * LANES_COLS] = {0};
    Columns columns = columns_at(col, p->n, p->n);
    Tensor c = {.dtype = p->c_dtype, .elements = p->c};
    Operand d = p->d ? operand_of(p->d, p->d_dtype, p->ldd, false) : operand_of(p->c, p->c_dtype, p->ldc, false);
    for (int64_t r = 0; p->beta != 0 && r < rows; r++) floats_load(&d, row + r, col, columns.count, p->beta, sums + r * LANES_COLS + columns.skip);
    rows_dot(&p->b, coded, row, rows, columns.line, sums);
    for (int64_t r = 0; r < rows; r++) run_write(&c, (row + r) * p->ldc + col, columns.count, sums + r * LANES_COLS + columns.skip, 0);
}

bool ISA_FN(int8_fits)(const Operand *b, int64_t n, int64_t k) {
    return b->transposed && n >= LANES_COLS && k % UNIT == 0 && ISA_FN(lanes_have_integers)(b, k);
}

static void int8_product(const Product *p) {
    Coding coding = coding_new(CPU_TRANSPOSED, p->m, p->k);
    if (cpu_planning()) return;
    const CodedRows coded = coded_rows(&coding, p->m);
    int64_t blocks = blocks_of(p->n, LANES_COLS), parts = blocks_of(p->m, ROWS_AT_ONCE);
    bool parallel = p->n * p->k > SERIAL_WEIGHT || 2.0 * (double)p->m * (double)p->n * (double)p->k > PRODUCT_SERIAL;
    bool pairs = ISA_FN(lanes_are_pairs)(&p->b);
#pragma omp parallel if (parallel)
    {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < p->m; r++) row_code(&p->a, r, pairs, &coding);
#pragma omp for schedule(dynamic, 4)
        for (int64_t i = 0; i < blocks * parts; i++) {
            int64_t row = i % parts * ROWS_AT_ONCE;
            task_run(p, &coded, row, MIN((int64_t)ROWS_AT_ONCE, p->m - row), i / parts * LANES_COLS);
        }
    }
}

static void int8_run(const Product *products, int n) {
    for (int i = 0; i < n; i++) int8_product(&products[i]);
}

/* ---- tile by tile: a column of tiles begins with the codes of all rows ---- */

static int64_t row_tile(void) { return ROWS_AT_ONCE; }
static int64_t col_tile(int64_t n, int64_t k) {
    enum { USUAL = 1024 };
    (void)k;
    return MIN(n, (int64_t)USUAL);
}

static void int8_column(const Product *p, int64_t col, int64_t cols) {
    Coding coding = coding_new(CPU_TILE_A, p->m, p->k);
    (void)col, (void)cols;
    for (int64_t r = 0; !cpu_planning() && r < p->m; r++) row_code(&p->a, r, ISA_FN(lanes_are_pairs)(&p->b), &coding);
}

static void int8_tile(const Product *p, int64_t row, int64_t rows, int64_t col, int64_t cols, float *c) {
    Coding coding = coding_new(CPU_TILE_A, p->m, p->k); /* as int8_column left it */
    if (cpu_planning()) return;
    const CodedRows coded = coded_rows(&coding, p->m);
    for (int64_t j = 0; j < cols; j += LANES_COLS) {
        _Alignas(64) float sums[ROWS_AT_ONCE * LANES_COLS] = {0};
        Columns columns = columns_at(col + j, col + cols, p->n);
        rows_dot(&p->b, &coded, row, rows, columns.line, sums);
        for (int64_t r = 0; r < rows; r++) memcpy(c + r * cols + j, sums + r * LANES_COLS + columns.skip, (size_t)columns.count * sizeof *sums);
    }
}

const CpuProducts ISA_FN(int8_products) = {int8_run, row_tile, col_tile, int8_column, int8_tile, NULL};
