/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/deploy/compress/inputs.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { GRAM_ROWS = 256, BLOCK = 64, PIECE = 512 };

Status input_sums_new(Arena *arena, int64_t in, bool products, InputSums *sums) {
    *sums = (InputSums){.in = in};
    if (products) sums->gram = arena_zero(arena, (size_t)(in * in) * sizeof *sums->gram);
    sums->sum = arena_zero(arena, (size_t)in * sizeof *sums->sum);
    sums->abs_sum = arena_zero(arena, (size_t)in * sizeof *sums->abs_sum);
    sums->abs_max = arena_zero(arena, (size_t)in * sizeof *sums->abs_max);
    return (sums->gram || !products) && sums->sum && sums->abs_sum && sums->abs_max ? ST_OK : ST_RESOURCE;
}

/* Adds columns first..first+width-1 of one token. */
static void add_values(InputSums *sums, int64_t first, int64_t width, const double *values) {
    double *sum = sums->sum + first, *abs_sum = sums->abs_sum + first, *abs_max = sums->abs_max + first;
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        const double size = fabs(values[i]);
        sum[i] += values[i];
        abs_sum[i] += size;
        abs_max[i] = size > abs_max[i] ? size : abs_max[i];
    }
}

/* Adds columns first..first+width-1 of all tokens, and writes them as rows of `turned`, (in, N); NULL: does not. */
static void add_columns(InputSums *sums, const Tensor *x, int64_t first, int64_t width, Tensor *turned) {
    const int64_t in = sums->in, tokens = tensor_rows(x);
    double values[BLOCK][BLOCK], line[BLOCK];
    for (int64_t t = 0; t < tokens; t += BLOCK) {
        const int64_t n = MIN(BLOCK, tokens - t);
        for (int64_t k = 0; k < n; k++) {
            tensor_read_part(x, (t + k) * in + first, width, values[k]);
            add_values(sums, first, width, values[k]);
        }
        for (int64_t i = 0; i < width && turned; i++) {
            for (int64_t k = 0; k < n; k++) line[k] = values[k][i];
            tensor_write_part(turned, (first + i) * tokens + t, n, line);
        }
    }
}

static void add_product(InputSums *sums, const Tensor *product, int64_t first, int64_t end) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = first; i < end; i++) {
        double values[PIECE];
        for (int64_t j = 0, n; j <= i; j += n) {
            n = MIN(PIECE, i + 1 - j);
            tensor_read_part(product, (i - first) * end + j, n, values);
            for (int64_t k = 0; k < n; k++) sums->gram[i * sums->in + j + k] += values[k];
        }
    }
}

Status input_sums_add(InputSums *sums, const Tensor *x, Arena *scratch) {
    const int64_t in = sums->in, tokens = tensor_rows(x);
    const Device *device = tensor_device(x);
    const DType wide = x->dtype == DT_F64 ? DT_F64 : DT_F32;
    Tensor *turned = sums->gram ? tensor_new(scratch, device, x->dtype, 2, (int64_t[]){in, tokens}) : NULL;
    if (sums->gram && !turned) return ST_RESOURCE;
#pragma omp parallel for schedule(dynamic)
    for (int64_t first = 0; first < in; first += BLOCK) add_columns(sums, x, first, MIN(BLOCK, in - first), turned);
    sums->tokens += tokens;
    sums->epsilon = MAX(sums->epsilon, wide == DT_F64 ? DBL_EPSILON : (double)FLT_EPSILON);
    const ArenaMark mark = arena_mark(scratch);
    for (int64_t first = 0; turned && first < in; first += GRAM_ROWS) { /* the lower half */
        const int64_t end = MIN(first + GRAM_ROWS, in);
        const Tensor rows = matrix_rows(turned, first, end), columns = matrix_rows(turned, 0, end);
        arena_rewind(scratch, mark);
        Tensor *product = tensor_new(scratch, device, wide, 2, (int64_t[]){end - first, end});
        if (!product) return ST_RESOURCE;
        device->matmul(&(Matmul){.a = &rows, .b = &columns, .c = product, .transpose_b = true, .alpha = 1});
        add_product(sums, product, first, end);
    }
    return ST_OK;
}

size_t input_sums_scratch(int64_t in, const Tensor *x) {
    enum { HEADERS = 4096 };
    const int64_t tokens = tensor_rows(x);
    return dtype_bytes(x->dtype, in * tokens) + dtype_bytes(x->dtype == DT_F64 ? DT_F64 : DT_F32, MIN(in, GRAM_ROWS) * in) + HEADERS;
}

void input_sums_add_values(InputSums *sums, const double *x, int64_t n) {
    const int64_t in = sums->in;
    for (int64_t t = 0; t < n; t++) {
        add_values(sums, 0, in, x + t * in);
        for (int64_t i = 0; i < in; i++)
            for (int64_t j = 0; j <= i; j++) sums->gram[i * in + j] += x[t * in + i] * x[t * in + j];
    }
    sums->tokens += n;
    sums->epsilon = MAX(sums->epsilon, DBL_EPSILON);
}

void input_sums_finish(InputSums *sums) {
    const int64_t in = sums->in;
#pragma omp parallel for schedule(dynamic)
    for (int64_t first = 0; first < (sums->gram ? in : 0); first += BLOCK)
        for (int64_t j = 0; j < MIN(first + BLOCK, in); j++)
            for (int64_t i = MAX(first, j + 1); i < MIN(first + BLOCK, in); i++) sums->gram[j * in + i] = sums->gram[i * in + j];
}

Status gram_products_new(Arena *arena, const Device *device, DType compute, const InputSums *sums, GramProducts *gram) {
    const DType wide = compute == DT_F64 ? DT_F64 : DT_F32;
    *gram = (GramProducts){.device = device, .in = sums->in, .tokens = sums->tokens};
    gram->gram = tensor_new(arena, device, wide, 2, (int64_t[]){sums->in, sums->in});
    if (!gram->gram) return ST_RESOURCE;
    tensor_write(gram->gram, sums->gram);
    return ST_OK;
}

Status gram_forms(const GramProducts *gram, const double *rows, int64_t out, double *forms) {
    const int64_t in = gram->in, most = MIN(out, GRAM_FORM_ROWS);
    Arena *arena = arena_new(0);
    Tensor *a = arena ? tensor_new(arena, gram->device, gram->gram->dtype, 2, (int64_t[]){most, in}) : NULL;
    Tensor *c = a ? tensor_new(arena, gram->device, gram->gram->dtype, 2, (int64_t[]){most, in}) : NULL;
    for (int64_t first = 0; c && first < out; first += most) {
        const int64_t n = MIN(most, out - first);
        Tensor left = matrix_rows(a, 0, n), product = matrix_rows(c, 0, n);
        tensor_write_part(a, 0, n * in, rows + first * in);
        gram->device->matmul(&(Matmul){.a = &left, .b = gram->gram, .c = &product, .alpha = 1});
#pragma omp parallel for schedule(static)
        for (int64_t o = 0; o < n; o++) {
            double sum = 0, values[PIECE];
            for (int64_t i = 0, some; i < in; i += some) {
                some = MIN(PIECE, in - i);
                tensor_read_part(c, o * in + i, some, values);
                for (int64_t k = 0; k < some; k++) sum += rows[(first + o) * in + i + k] * values[k];
            }
            forms[first + o] = MAX(sum, 0);
        }
    }
    arena_free(arena);
    return c ? ST_OK : ST_RESOURCE;
}

Status gram_total(const GramProducts *gram, const double *rows, int64_t out, double *total) {
    double *forms = malloc((size_t)out * sizeof *forms);
    if (!forms) return status_fail(ST_RESOURCE, "no memory for the error of %lld rows", (long long)out);
    Status status = gram_forms(gram, rows, out, forms);
    *total = 0;
    for (int64_t o = 0; o < out && status == ST_OK; o++) *total += forms[o];
    free(forms);
    return status;
}
