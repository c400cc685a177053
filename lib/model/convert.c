/* SPDX-License-Identifier: Apache-2.0 */
/* Converts float elements between dtypes, through float (or double if one side is f64). */
#include "lib/model/convert.h"
#include "lib/tensor/quant/quant.h"

#include <math.h>
#include <string.h>

DType dtype_from_text(const char *text) { return !strcmp(text, "bf16") ? DT_BF16 : !strcmp(text, "f16") ? DT_F16 : DT_F32; }

static double element_get(const uint8_t *at, DType dtype) {
    union {
        float f;
        double d;
        uint16_t h;
        int32_t i;
    } value;
    memcpy(&value, at, dtype_bytes(dtype, 1));
    switch (dtype) {
    case DT_F32: return (double)value.f;
    case DT_BF16: return (double)bf16_to_float(value.h);
    case DT_F16: return (double)f16_to_float(value.h);
    case DT_F64: return value.d;
    case DT_I32: return (double)value.i;
    default: break; /* blocks are read as a whole */
    }
    return 0;
}

static void element_put(uint8_t *at, DType dtype, double x) {
    union {
        float f;
        double d;
        uint16_t h;
        int32_t i;
    } value = {.d = 0};
    switch (dtype) {
    case DT_F32: value.f = (float)x; break;
    case DT_BF16: value.h = float_to_bf16((float)x); break;
    case DT_F16: value.h = float_to_f16((float)x); break;
    case DT_F64: value.d = x; break;
    case DT_I32: value.i = (int32_t)x; break;
    default: break;
    }
    memcpy(at, &value, dtype_bytes(dtype, 1));
}

/* Dequantises `count` elements, a multiple of the block. */
static void read_blocks(const uint8_t *in, DType from, uint8_t *out, DType to, size_t count) {
    enum { PIECE = 256 };
    const QuantFormat *format = quant_format_of(from);
    ASSERT(format && PIECE % format->block == 0, "%s is no format of blocks", dtype_name(from));
#pragma omp parallel for schedule(static) if (count > 64 * PIECE)
    for (size_t at = 0; at < count; at += PIECE) {
        float values[PIECE];
        int64_t n = (int64_t)MIN(count - at, (size_t)PIECE);
        format->read(in + dtype_bytes(from, (int64_t)at), n / format->block, values);
        convert_elements(values, DT_F32, out + dtype_bytes(to, (int64_t)at), to, (size_t)n);
    }
}

void convert_elements(const void *from, DType from_dtype, void *to, DType to_dtype, size_t count) {
    const uint8_t *in = from;
    uint8_t *out = to;
    if (from_dtype == to_dtype) { /* in parallel, since the system clears new pages first, which takes as long */
        size_t bytes = dtype_bytes(from_dtype, (int64_t)count), piece = (size_t)2 << 20;
#pragma omp parallel for schedule(static) if (bytes > 4 * piece)
        for (size_t at = 0; at < bytes; at += piece) memcpy(out + at, in + at, MIN(piece, bytes - at));
        return;
    }
    if (dtype_block(from_dtype) > 1) {
        read_blocks(in, from_dtype, out, to_dtype, count);
        return;
    }
    size_t in_size = dtype_bytes(from_dtype, 1), out_size = dtype_bytes(to_dtype, 1);
    if (from_dtype == DT_BF16 && to_dtype == DT_F32) { /* the two common cases of large models */
        for (size_t i = 0; i < count; i++) {
            uint16_t bits;
            memcpy(&bits, in + 2 * i, 2);
            float value = bf16_to_float(bits);
            memcpy(out + 4 * i, &value, 4);
        }
        return;
    }
    if (from_dtype == DT_F32 && to_dtype == DT_BF16) {
        for (size_t i = 0; i < count; i++) {
            float value;
            memcpy(&value, in + 4 * i, 4);
            uint16_t bits = float_to_bf16(value);
            memcpy(out + 2 * i, &bits, 2);
        }
        return;
    }
    for (size_t i = 0; i < count; i++) element_put(out + i * out_size, to_dtype, element_get(in + i * in_size, from_dtype));
}

enum { PIECE = 1024 }; /* doubles */

Status tensor_convert(Tensor *tensor, int64_t at, const void *from, DType dtype, int64_t n) {
    double buffer[PIECE];
    for (int64_t done = 0, some; done < n && !tensor_device(tensor)->planned; done += some) {
        some = n - done;
        void *piece = tensor_stage(tensor, at + done, &some, buffer, sizeof buffer);
        convert_elements((const uint8_t *)from + dtype_bytes(dtype, done), dtype, piece, tensor->dtype, (size_t)some);
        TRY(tensor_upload(tensor, at + done, some, piece));
    }
    return ST_OK;
}

Status tensor_floats(const Tensor *tensor, int64_t at, int64_t n, float *out) {
    double buffer[PIECE];
    if (dtype_is_quantised(tensor->dtype)) {
        tensor_dequantise(tensor, at, n, out);
        return ST_OK;
    }
    for (int64_t done = 0, some; done < n; done += some) {
        some = n - done;
        const void *piece = tensor_piece(tensor, at + done, &some, buffer, sizeof buffer);
        if (!piece) return ST_RESOURCE;
        convert_elements(piece, tensor->dtype, out + done, DT_F32, (size_t)some);
    }
    return ST_OK;
}

/* ---- rounding loss of a change ---- */

static void store_and_read_back(const float *sums, size_t n, DType dtype, uint8_t *stored, float *back) {
    if (dtype != DT_BF16) { /* f32 is copied, f16 is rare */
        convert_elements(sums, DT_F32, stored, dtype, n);
        convert_elements(stored, dtype, back, DT_F32, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t bits = float_to_bf16(sums[i]);
        memcpy(stored + 2 * i, &bits, sizeof bits);
        back[i] = bf16_to_float(bits);
    }
}

double round_sums(const float *sums, const float *base, const float *change, size_t n, DType dtype, void *stored, RoundingLoss *loss) {
    float back[ROUNDING_PIECE];
    double error = 0;
    ASSERT(n <= ROUNDING_PIECE, "%zu sums in a piece of %d", n, ROUNDING_PIECE);
    store_and_read_back(sums, n, dtype, stored, back);
    for (size_t i = 0; i < n; i++) {
        double distance = isfinite(back[i]) ? fabs((double)base[i] + (double)change[i] - (double)back[i]) : (double)INFINITY;
        error = MAX(error, distance);
        loss->change += (double)change[i] * (double)change[i];
        loss->lost += distance * distance;
        loss->n_moved += change[i] != 0;
        loss->n_unmoved += change[i] != 0 && back[i] == base[i];
    }
    return error;
}

void rounding_add(RoundingLoss *loss, const RoundingLoss *more) {
    loss->change += more->change;
    loss->lost += more->lost;
    loss->n_moved += more->n_moved;
    loss->n_unmoved += more->n_unmoved;
}

double rounding_lost(const RoundingLoss *loss) { return loss->change > 0 ? sqrt(loss->lost / loss->change) : 0; }
double rounding_unmoved(const RoundingLoss *loss) { return loss->n_moved > 0 ? (double)loss->n_unmoved / (double)loss->n_moved : 0; }
