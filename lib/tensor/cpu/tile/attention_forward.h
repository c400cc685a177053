/* SPDX-License-Identifier: Apache-2.0 */
/* Code that the two forward passes of attention in tiles share: the one for full rows and the one for single tokens with a cache. Included only by
 * attention.c and attention_token.c. */
#ifndef TUNE_TILE_ATTENTION_FORWARD_H
#define TUNE_TILE_ATTENTION_FORWARD_H

#include "lib/tensor/cpu/tile/attention.h"

enum {
    KEY_ROWS = KEY_TILE / TILE_ROWS, /* height of a tile of keys in tiles */
    KEY_CHUNKS = KEY_TILE / TILE_K   /* its length in tiles, where the sum runs along the keys */
};
#define EXPONENT_HEADROOM 8.0f /* weights may be up to 2^EXPONENT_HEADROOM */

/* Whether a segment is a single token with a cache whose queries fit the lanes of a vector: attention_tokens computes it. */
static inline bool attends_alone(const AttentionShape *shape, const Segment *segment) {
    return shape->args->layout->cache && segment->end - segment->begin == 1 && shape->group <= LANES;
}

/* Attention of n such tokens, all bf16; k and v are the cache's. `parallel`: worth several threads. */
void ISA_FN(attention_tokens)(const AttentionShape *shape, const AttentionTask *tokens, int64_t n, bool parallel, const Tensor *q, const Tensor *k,
                              const Tensor *v, Tensor *y, Tensor *logsumexp);

/* ---- keys and values ---- */

/* Rows of k and v of the KEY_TILE keys from position `start` on; -1 where there is none, that is before start + from and from start + to on. */
static inline void rows_find(const AttentionShape *shape, int32_t segment, int64_t start, int64_t from, int64_t to, int64_t rows[KEY_TILE]) {
    for (int64_t j = 0; j < KEY_TILE; j++) rows[j] = -1;
    for (int64_t j = from; j < to;) {
        int64_t n, row = key_run(shape, segment, start + j, &n);
        for (int64_t end = MIN(to, j + n); j < end; j++) rows[j] = row++;
    }
}

static inline const uint16_t *values_at(const AttentionShape *shape, const Tensor *tensor, int64_t row, int64_t kv_head) {
    return row < 0 ? NULL : (const uint16_t *)tensor->elements + row * shape->kv_width + kv_head * shape->dim;
}

/* 16 rows of keys for the load of a tile: in place, or copied; bytes from line to line, and from each 32 values of the head to the next. */
typedef struct KeyRows {
    const char *at;
    int64_t line, column;
} KeyRows;

/* Finds 16 keys of a head, at positions that begin with a multiple of 16. Complete tiles are read in place; at the end of a cache's page this
 * includes keys that no query sees yet. Others are copied to tiles i of `copy`, padded with zeros. */
static inline KeyRows keys_find(const AttentionShape *shape, const Tensor *k, const int64_t rows[TILE_ROWS], int64_t kv_head, Tiles copy, int64_t i) {
    const KvPages *cache = shape->args->layout->cache;
    /* Parents come before their children, and so do their rows */
    bool there = rows[0] >= 0 && (cache ? cache->page_size % TILE_ROWS == 0 : rows[TILE_ROWS - 1] == rows[0] + TILE_ROWS - 1);
    if (there && shape->dim == shape->padded) return (KeyRows){(const char *)values_at(shape, k, rows[0], kv_head), shape->kv_width * 2, TILE_K * 2};
    for (int64_t r = 0; r < TILE_ROWS; r++) line_put(copy, i * TILE_ROWS + r, values_at(shape, k, rows[r], kv_head), shape->dim);
    return (KeyRows){tile_at(copy, i, 0), 64, TILE_BYTES};
}

#ifdef __AVX512F__

/* 32 values of a row from value c on, with zeros after them and where there is no row. */
static inline __m512i values_32(const uint16_t *values, int64_t c, int64_t dim) {
    return values && c < dim ? _mm512_maskz_loadu_epi16(dim - c >= TILE_K ? 0xffffffffu : (1u << (dim - c)) - 1, values + c) : _mm512_setzero_si512();
}

/* ---- scores and weights ---- */

/* Applies the soft-cap to scores of keys begin..end-1 of a tile. */
static inline void scores_cap(const AttentionShape *shape, Columns keys, float *scores) {
    float cap = (float)shape->args->softcap, scale = (float)shape->args->scale / cap;
    if (cap == 0) return;
    for (int64_t i = keys.begin * LANES; i < keys.end * LANES; i++) scores[i] = cap * fast_tanh(scores[i] * scale);
}

/* Turns scores of keys begin..end-1 of a tile, (KEY_TILE, LANES), into weights 2^(score x log2 e - base) as bf16, and adds them to total (LANES). The
 * base (LANES) of a query increases only if a weight would exceed 2^EXPONENT_HEADROOM; then the function returns true, and the caller must multiply
 * the sums so far by shrunk (LANES). */
static inline bool softmax_lanes(const AttentionShape *shape, Columns keys, const float *scores, float *base, float *total, char *weights,
                                 float *shrunk) {
    const __m512i pairs =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512 none = _mm512_set1_ps(-INFINITY), most[4] = {none, none, none, none}, added[4] = {0}, before = _mm512_loadu_ps(base);
    __m512 scale = _mm512_set1_ps(LOG2_E * (shape->args->softcap != 0 ? 1 : (float)shape->args->scale));
    for (int64_t j = keys.begin; j < keys.end; j += 4)
#pragma GCC unroll 4
        for (int64_t i = 0; i < 4; i++) most[i] = _mm512_max_ps(_mm512_loadu_ps(scores + (j + i) * LANES), most[i]);
    __m512 largest = _mm512_mul_ps(_mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3])), scale);
    __m512 now =
        _mm512_mask_mov_ps(before, _mm512_cmp_ps_mask(largest, _mm512_add_ps(before, _mm512_set1_ps(EXPONENT_HEADROOM)), _CMP_GT_OQ), largest);
    __m512 finite = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(now, none, _CMP_NEQ_UQ), now), old = exp2_lanes(_mm512_sub_ps(before, finite));
    for (int64_t j = keys.begin; j < keys.end; j += 4)
#pragma GCC unroll 2
        for (int64_t i = 0; i < 4; i += 2) {
            __m512 even = exp2_lanes(_mm512_fmsub_ps(_mm512_loadu_ps(scores + (j + i) * LANES), scale, finite));
            __m512 odd = exp2_lanes(_mm512_fmsub_ps(_mm512_loadu_ps(scores + (j + i + 1) * LANES), scale, finite));
            added[i] = _mm512_add_ps(added[i], even);
            added[i + 1] = _mm512_add_ps(added[i + 1], odd);
            _mm512_storeu_si512(weights + (j + i) * 32, _mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh(odd, even)));
        }
    __m512 all = _mm512_add_ps(_mm512_add_ps(added[0], added[1]), _mm512_add_ps(added[2], added[3]));
    _mm512_storeu_ps(base, now);
    _mm512_storeu_ps(total, _mm512_fmadd_ps(_mm512_loadu_ps(total), old, all));
    _mm512_storeu_ps(shrunk, old);
    return (_mm512_cmp_ps_mask(now, before, _CMP_NEQ_UQ) & _mm512_cmp_ps_mask(before, none, _CMP_NEQ_UQ)) != 0;
}

#endif

#endif
