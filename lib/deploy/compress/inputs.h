/* SPDX-License-Identifier: Apache-2.0 */
/* What calibration keeps of the inputs of linear layers, and how far a changed weight moves their outputs. */
#ifndef TUNE_INPUTS_H
#define TUNE_INPUTS_H

#include "lib/base/arena.h"
#include "lib/tensor/tensor.h"

/* Sums over the tokens of one input, x: (tokens, in). */
typedef struct InputSums {
    int64_t in, tokens;
    double *gram;                    /* (in, in): sum of x x^T, its lower half before input_sums_finish; NULL: not wanted */
    double *sum, *abs_sum, *abs_max; /* (in) */
    double epsilon;                  /* of the dtype in which products were computed; 0: none were */
} InputSums;
Status input_sums_new(Arena *arena, int64_t in, bool products, InputSums *sums); /* zeros; products: with gram. ST_RESOURCE */
/* Adds all rows of x, (N, in). Products are computed in x's dtype on its device and added in double. scratch: reset by the caller. ST_RESOURCE. */
Status input_sums_add(InputSums *sums, const Tensor *x, Arena *scratch);
size_t input_sums_scratch(int64_t in, const Tensor *x); /* the bytes of scratch that it takes */
/* The same for values of the host, (n, in): for tests. */
void input_sums_add_values(InputSums *sums, const double *x, int64_t n);
void input_sums_finish(InputSums *sums); /* after all rows were added: fills the upper half of gram */

/* Products with the sums' matrix, on a device: f64 if it computes in f64, else f32. */
typedef struct GramProducts {
    const Device *device;
    Tensor *gram; /* (in, in) */
    int64_t in, tokens;
} GramProducts;
Status gram_products_new(Arena *arena, const Device *device, DType compute, const InputSums *sums, GramProducts *gram); /* ST_RESOURCE */
enum { GRAM_FORM_ROWS = 512 }; /* that gram_forms computes together, in memory that it takes and gives back: twice (rows, in) on the device */
/* forms[o] = sum over tokens of (x . row o)^2. rows: (out, in). ST_RESOURCE. */
Status gram_forms(const GramProducts *gram, const double *rows, int64_t out, double *forms);
/* The sum of all of them. */
Status gram_total(const GramProducts *gram, const double *rows, int64_t out, double *total);

#endif
