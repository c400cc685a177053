/* SPDX-License-Identifier: Apache-2.0 */
/* MXFP4 as gpt-oss is published: NAME_blocks (experts, out, in / 32, 16), byte b of a block with input 2 b in its low half and 2 b + 1 in its high
 * half, and NAME_scales (experts, out, in / 32), powers of two. The weight is NAME of shape (experts, in, out), as transformers keeps it. */
#include "lib/model/quantized/quantized.h"
#include "lib/tensor/quant/quant.h"

#include <string.h>

enum { MX_BLOCK = 32, MX_BYTES = 16 };
typedef struct Mxfp4 {
    const uint8_t *blocks, *scales;
    int64_t out, in;
} Mxfp4;

/* A row is an expert's input. */
static void mxfp4_rows(const void *parts, int64_t first, int64_t rows, float *values) {
    const Mxfp4 *m = parts;
    for (int64_t r = 0; r < rows; r++) {
        int64_t expert = (first + r) / m->in, i = (first + r) % m->in;
        for (int64_t o = 0; o < m->out; o++) {
            int64_t block = (expert * m->out + o) * (m->in / MX_BLOCK) + i / MX_BLOCK;
            uint8_t byte = m->blocks[block * MX_BYTES + i % MX_BLOCK / 2];
            values[r * m->out + o] = e2m1_values[i % 2 ? byte >> 4 : byte & 15] * e8m0_to_float(m->scales[block]);
        }
    }
}

static Status join_mxfp4(Joining *joining, const char *name) {
    Str full = {0};
    str_printf(&full, "%s_blocks", name);
    const StoredTensor *blocks = weight_file_find(joining->file, str_text(&full));
    str_clear(&full);
    str_printf(&full, "%s_scales", name);
    const StoredTensor *scales = weight_file_find(joining->file, str_text(&full));
    str_release(&full);
    bool fits = scales && strcmp(blocks->dtype_text, "U8") == 0 && strcmp(scales->dtype_text, "U8") == 0 && blocks->n_dims == 4 &&
                scales->n_dims == 3 && blocks->shape[3] == MX_BYTES;
    for (int i = 0; i < 3 && fits; i++) fits = blocks->shape[i] == scales->shape[i];
    if (!fits) return joining_wrong(joining, name, "its blocks and scales do not fit together");
    joining->taken[blocks - joining->file->tensors] = joining->taken[scales - joining->file->tensors] = true;
    Mxfp4 *m = joining_alloc(joining, sizeof *m);
    if (!m) return ST_RESOURCE;
    *m = (Mxfp4){blocks->data, scales->data, blocks->shape[1], blocks->shape[2] * MX_BLOCK};
    return joining_add(joining, name, 3, (const int64_t[]){blocks->shape[0], m->in, m->out}, "MXFP4", blocks, scales->bytes, mxfp4_rows, NULL, m);
}

Status quantized_mxfp4(Joining *joining) { return joining_each(joining, "_blocks", join_mxfp4); }
