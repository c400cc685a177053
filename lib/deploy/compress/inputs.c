/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/deploy/compress/inputs.h"

#include <math.h>
#include <stdlib.h>

enum { FORM_ROWS = 512 };

Status input_sums_new(Arena *arena, int64_t in, InputSums *sums) {
    *sums = (InputSums){.in = in};
    sums->gram = arena_zero(arena, (size_t)(in * in) * sizeof *sums->gram);
    sums->sum = arena_zero(arena, (size_t)in * sizeof *sums->sum);
    sums->abs_sum = arena_zero(arena, (size_t)in * sizeof *sums->abs_sum);
    sums->abs_max = arena_zero(arena, (size_t)in * sizeof *sums->abs_max);
    return sums->gram && sums->sum && sums->abs_sum && sums->abs_max ? ST_OK : ST_RESOURCE;
}

static void add_columns(InputSums *sums, const double *x, int64_t n) {
    const int64_t in = sums->in, step = 64;
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < in; first += step)
        for (int64_t at = 0; at < n * step; at++) {
            const int64_t t = at / step, i = first + at % step;
            if (i >= in) continue;
            const double value = x[t * in + i];
            sums->sum[i] += value;
            sums->abs_sum[i] += fabs(value);
            sums->abs_max[i] = MAX(sums->abs_max[i], fabs(value));
        }
    sums->tokens += n;
}

Status input_sums_add(InputSums *sums, const Tensor *x, Arena *scratch) {
    const int64_t in = sums->in, n = tensor_rows(x);
    const DType wide = x->dtype == DT_F64 ? DT_F64 : DT_F32;
    Tensor *gram = tensor_new(scratch, tensor_device(x), wide, 2, (int64_t[]){in, in});
    double *values = arena_alloc(scratch, (size_t)(n * in) * sizeof *values);
    if (!gram || !values) return ST_RESOURCE;
    tensor_device(x)->matmul(&(Matmul){.a = x, .b = x, .c = gram, .transpose_a = true, .alpha = 1});
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < in; i++)
        for (int64_t j = 0; j < in; j++) sums->gram[i * in + j] += tensor_get(gram, i * in + j);
    tensor_read(x, values);
    add_columns(sums, values, n);
    return ST_OK;
}

void input_sums_add_values(InputSums *sums, const double *x, int64_t n) {
    const int64_t in = sums->in;
    for (int64_t i = 0; i < in; i++)
        for (int64_t t = 0; t < n; t++)
            for (int64_t j = 0; j < in; j++) sums->gram[i * in + j] += x[t * in + i] * x[t * in + j];
    add_columns(sums, x, n);
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
    const int64_t in = gram->in, most = MIN(out, FORM_ROWS);
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
            double sum = 0;
            for (int64_t i = 0; i < in; i++) sum += rows[(first + o) * in + i] * tensor_get(c, o * in + i);
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
