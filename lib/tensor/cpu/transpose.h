/* SPDX-License-Identifier: Apache-2.0 */
/* Loads lines of memory as lanes of vectors: as many lines as a vector has lanes, each running along a sum, 16 bytes at a time.
 *
 * Sixteen bytes of lines 0, 4, 8, 12 are loaded into one vector, those of lines 1, 5, 9, 13 into the next, and so on. Two rounds of shuffles within
 * 128 bits then make four vectors with 32 bits of each line: a float, or a pair of 16-bit numbers. Loading a full vector of each line would take two
 * more rounds.
 */
#ifndef TUNE_TRANSPOSE_H
#define TUNE_TRANSPOSE_H

#include "lib/tensor/cpu/vec.h"
#include "lib/tensor/tensor.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { TRANSPOSE_BYTES = 16, TRANSPOSE_WORDS = 4 }; /* bytes of a line at a time */

typedef int32_t VecBits __attribute__((vector_size(VEC_FLOATS * 4)));

/* VEC_FLOATS lines, read piece by piece: addresses of the first four, and the distance in bytes from each to the line four further on. */
typedef struct TransposeLines {
    const char *line[4];
    int64_t four;
} TransposeLines;

static inline TransposeLines transpose_lines(const void *at, int64_t line) {
    const char *first = at;
    return (TransposeLines){{first, first + line, first + 2 * line, first + 3 * line}, 4 * line};
}

/* Loads the pieces of lines `line`, `line` + 4, ... into one vector. */
static inline VecBits transpose_load(const char *line, int64_t four) {
#if defined(__AVX512F__)
    __m512i pieces = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)line));
    pieces = _mm512_inserti32x4(pieces, _mm_loadu_si128((const __m128i *)(line + four)), 1);
    pieces = _mm512_inserti32x4(pieces, _mm_loadu_si128((const __m128i *)(line + 2 * four)), 2);
    return (VecBits)_mm512_inserti32x4(pieces, _mm_loadu_si128((const __m128i *)(line + 3 * four)), 3);
#elif defined(__AVX2__)
    return (VecBits)_mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)line)),
                                            _mm_loadu_si128((const __m128i *)(line + four)), 1);
#else
    typedef int32_t Piece __attribute__((vector_size(TRANSPOSE_BYTES), aligned(2), may_alias));
    (void)four;
    return *(const Piece *)line;
#endif
}

/* a0 b0 a1 b1 within each 128 bits, and a2 b2 a3 b3. */
static inline VecBits transpose_low(VecBits a, VecBits b) {
#if defined(__AVX512F__)
    return (VecBits)_mm512_unpacklo_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (VecBits)_mm256_unpacklo_epi32((__m256i)a, (__m256i)b);
#else
    return (VecBits)QUAD_SHUFFLE((Quad)a, (Quad)b, 0, 4, 1, 5);
#endif
}

static inline VecBits transpose_high(VecBits a, VecBits b) {
#if defined(__AVX512F__)
    return (VecBits)_mm512_unpackhi_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (VecBits)_mm256_unpackhi_epi32((__m256i)a, (__m256i)b);
#else
    return (VecBits)QUAD_SHUFFLE((Quad)a, (Quad)b, 2, 6, 3, 7);
#endif
}

/* The same for halves of 128 bits. */
static inline VecBits transpose_low_halves(VecBits a, VecBits b) {
#if defined(__AVX512F__)
    return (VecBits)_mm512_unpacklo_epi64((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (VecBits)_mm256_unpacklo_epi64((__m256i)a, (__m256i)b);
#else
    return (VecBits)QUAD_SHUFFLE((Quad)a, (Quad)b, 0, 1, 4, 5);
#endif
}

static inline VecBits transpose_high_halves(VecBits a, VecBits b) {
#if defined(__AVX512F__)
    return (VecBits)_mm512_unpackhi_epi64((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (VecBits)_mm256_unpackhi_epi64((__m256i)a, (__m256i)b);
#else
    return (VecBits)QUAD_SHUFFLE((Quad)a, (Quad)b, 2, 3, 6, 7);
#endif
}

/* The four words of a piece, each for all lines; advances to the next piece. */
static inline __attribute__((always_inline)) void transpose_piece(TransposeLines *lines, VecBits words[TRANSPOSE_WORDS]) {
    VecBits pieces[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        pieces[i] = transpose_load(lines->line[i], lines->four);
        lines->line[i] += TRANSPOSE_BYTES;
    }
    VecBits low = transpose_low(pieces[0], pieces[1]), high = transpose_high(pieces[0], pieces[1]);
    VecBits low2 = transpose_low(pieces[2], pieces[3]), high2 = transpose_high(pieces[2], pieces[3]);
    words[0] = transpose_low_halves(low, low2);
    words[1] = transpose_high_halves(low, low2);
    words[2] = transpose_low_halves(high, high2);
    words[3] = transpose_high_halves(high, high2);
}

/* Prefetches while lines are loaded, some cache lines with each piece. */
enum { ASKED = VEC_FLOATS * TRANSPOSE_BYTES / 64 }; /* cache lines of each of the two, for VEC_FLOATS lines */
typedef struct Prefetch {
    /* along: the same lines a bit further on, because otherwise all lines would miss the first-level cache at once. upcoming: as many bytes from
     * several other places, because memory delivers several streams faster than one; NULL: none, as for lines that continue past their end */
    const char *along, *upcoming;
    int turn; /* number of pieces so far */
} Prefetch;

static inline Prefetch prefetch_new(const char *lines, const char *upcoming) { return (Prefetch){lines + 128, upcoming, 0}; }
static inline Prefetch prefetch_streams(const char *lines) { return (Prefetch){lines + 512, NULL, 0}; }

/* The share for each piece of vectors x VEC_FLOATS lines. */
static inline __attribute__((always_inline)) void prefetch(Prefetch *prefetched, const int vectors, int64_t line) {
    const int n = vectors * ASKED, streams = MIN(n, 4);
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        __builtin_prefetch(prefetched->along + i * line, 0, 3);
        if (prefetched->upcoming)
            __builtin_prefetch(prefetched->upcoming + i % streams * (vectors * VEC_FLOATS / streams) * line + i / streams * 64, 0, 2);
    }
    bool last = ++prefetched->turn % (64 / TRANSPOSE_BYTES) == 0;
    prefetched->along += last ? 64 - (vectors * VEC_FLOATS - n) * line : n * line;
    if (prefetched->upcoming) prefetched->upcoming += n / streams * 64;
}

/* Number of values in a piece of a line. */
static inline int64_t piece_values(DType dtype) { return TRANSPOSE_BYTES / (int64_t)dtype_size(dtype); }

/* Converts the 16-bit value in the low half of each lane to a float, as half_to_float does. */
static inline Vec halves_widened(VecBits bits) {
    VecBits magnitude = (bits & 0x7fff) << 13, special = magnitude >= 0x0f800000;
    VecBits scaled = (VecBits)((Vec)magnitude * 5.192296858534828e33f); /* 2^112 */
    return (Vec)((special & (magnitude | 0x7f800000)) | (~special & scaled) | (bits & 0x8000) << 16);
}

/* Loads VEC_FLOATS values of one line, in f32. */
static inline __attribute__((always_inline)) Vec line_widened(const char *at, DType dtype) {
    typedef uint16_t Halves __attribute__((vector_size(VEC_FLOATS * 2), aligned(2), may_alias));
    if (dtype == DT_F32) return *(const VecInMemory *)at;
    VecBits bits = __builtin_convertvector(*(const Halves *)at, VecBits);
    return dtype == DT_BF16 ? (Vec)(bits << 16) : halves_widened(bits);
}

/* Extracts a value of a word of each line, in f32: the first if `which` is 0; for 16-bit values the second if it is 1. */
static inline __attribute__((always_inline)) Vec word_widened(VecBits word, DType dtype, int which) {
    if (dtype == DT_F32) return (Vec)word;
    if (dtype == DT_BF16) return (Vec)(which ? word & (int32_t)0xffff0000 : word << 16);
    return halves_widened(which ? (word >> 16) & 0xffff : word);
}

#endif
