/* SPDX-License-Identifier: Apache-2.0 */
/* MXFP4 as gpt-oss is published: NAME_blocks (experts, out, in / 32, 16), byte b of a block with input 2 b in its low half and 2 b + 1 in its high
 * half, and NAME_scales (experts, out, in / 32), powers of two. The weight is NAME of shape (experts, in, out), as transformers keeps it. */
#include "lib/model/quantized/quantized.h"
#include "lib/tensor/quant/quant.h"

#include <string.h>

enum { MX_BLOCK = 32, MX_BYTES = 16 };
typedef struct Mxfp4 {
    const uint8_t *blocks, *scales;
    int64_t experts, out, in;
} Mxfp4;

/* Elements first.. of the flattened weight. */
static void mxfp4_values(const Mxfp4 *m, int64_t first, int64_t n, float *values) {
    for (int64_t at = 0; at < n; at++) {
        int64_t row = (first + at) / m->out, o = (first + at) % m->out, i = row % m->in;
        int64_t block = (row / m->in * m->out + o) * (m->in / MX_BLOCK) + i / MX_BLOCK;
        uint8_t byte = m->blocks[block * MX_BYTES + i % MX_BLOCK / 2];
        values[at] = e2m1_values[i % 2 ? byte >> 4 : byte & 15] * e8m0_to_float(m->scales[block]);
    }
}

static void mxfp4_rows(const void *parts, int64_t first, int64_t rows, float *values) {
    const Mxfp4 *m = parts;
    mxfp4_values(m, first * m->out, rows * m->out, values);
}

/* ---- codes in place ---- */

typedef float Pair[2]; /* the values of a byte */
typedef struct MxStack {
    Packing packing;
    const Mxfp4 *parts;
    Pair pairs[256];
} MxStack;
/* An expert's weight, (out, in): its codes in their order. */
typedef struct MxMatrix {
    Packing packing;
    const uint8_t *blocks, *scales;
    const Pair *pairs;
} MxMatrix;

static void read_stack(const Packing *packing, int64_t first, int64_t n, float *values) {
    mxfp4_values(((const MxStack *)packing)->parts, first, n, values);
}

static void read_matrix(const Packing *packing, int64_t first, int64_t n, float *values) {
    const MxMatrix *m = (const MxMatrix *)packing;
    for (int64_t at = 0; at < n;) {
        const int64_t i = first + at, end = MIN(n, at + MX_BLOCK - i % MX_BLOCK);
        const uint8_t *byte = m->blocks + i / 2;
        const float scale = e8m0_to_float(m->scales[i / MX_BLOCK]);
        if (i % 2) values[at++] = m->pairs[*byte++][1] * scale;
        for (; at + 2 <= end; at += 2, byte++) {
            values[at] = m->pairs[*byte][0] * scale;
            values[at + 1] = m->pairs[*byte][1] * scale;
        }
        if (at < end) values[at++] = m->pairs[*byte][0] * scale;
    }
}

static Status pack_mxfp4(const void *parts, const CodeRoom *room, Packing **packing) {
    const Mxfp4 *m = parts;
    const int64_t blocks = m->out * (m->in / MX_BLOCK); /* of an expert */
    const size_t bytes = (size_t)blocks * (MX_BYTES + 1);
    MxStack *stack = arena_alloc(room->arena, sizeof *stack);
    MxMatrix *matrices = arena_alloc(room->arena, (size_t)m->experts * sizeof *matrices);
    const Packing **list = arena_alloc(room->arena, (size_t)m->experts * sizeof *list);
    if (!stack || !matrices || !list) return ST_RESOURCE;
    for (int i = 0; i < 256; i++)
        for (int k = 0; k < 2; k++) stack->pairs[i][k] = e2m1_values[i >> (4 * k) & 15];
    for (int64_t e = 0; e < m->experts; e++) {
        matrices[e] = (MxMatrix){{.name = "mxfp4", .bytes = bytes, .read = read_matrix},
                                 m->blocks + e * blocks * MX_BYTES,
                                 m->scales + e * blocks,
                                 (const Pair *)stack->pairs};
        list[e] = &matrices[e].packing;
    }
    stack->parts = m;
    stack->packing = (Packing){.name = "mxfp4", .bytes = bytes * (size_t)m->experts, .read = read_stack, .matrices = list};
    *packing = &stack->packing;
    return ST_OK;
}

/* ---- finding the tensors ---- */

static Status join_mxfp4(Joining *joining, const char *name) {
    Str full = {0};
    str_printf(&full, "%s_blocks", name);
    const StoredTensor *blocks = weight_file_find(joining->file, str_text(&full));
    str_clear(&full);
    str_printf(&full, "%s_scales", name);
    const StoredTensor *scales = weight_file_find(joining->file, str_text(&full));
    str_release(&full);
    bool fits = scales && strcmp(blocks->dtype_text, "U8") == 0 && strcmp(scales->dtype_text, "U8") == 0 && blocks->n_dims == 4 &&
                scales->n_dims == 3 && blocks->shape[3] == MX_BYTES && blocks->count > 0;
    for (int i = 0; i < 3 && fits; i++) fits = blocks->shape[i] == scales->shape[i];
    if (!fits) return joining_wrong(joining, name, "its blocks and scales do not fit together");
    joining->taken[blocks - joining->file->tensors] = joining->taken[scales - joining->file->tensors] = true;
    Mxfp4 *m = joining_alloc(joining, sizeof *m);
    if (!m) return ST_RESOURCE;
    *m = (Mxfp4){blocks->data, scales->data, blocks->shape[0], blocks->shape[1], blocks->shape[2] * MX_BLOCK};
    TRY(joining_add(joining, name, 3, (const int64_t[]){m->experts, m->in, m->out}, "MXFP4", blocks, scales->bytes, mxfp4_rows, pack_mxfp4, m));
    joining->joined[joining->n_joined - 1].packs_in_place = true;
    return ST_OK;
}

Status quantized_mxfp4(Joining *joining) { return joining_each(joining, "_blocks", join_mxfp4); }
