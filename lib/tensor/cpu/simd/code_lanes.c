/* SPDX-License-Identifier: Apache-2.0 */
/* See code_lanes.h. A format makes units of 32 elements of VEC_FLOATS lines: four codes in each word, and scales. What is done with a unit is the
 * same for all formats: either its values are multiplied at once, or they are stored.
 *
 * A code is moved to the top byte of its word, where it has its sign, so the scale is divided by 2^24. That loses no bit: the scales of blocks are
 * products of float16 and small integers, and those of packings are checked (Packing.ordinary). */
#include "lib/tensor/cpu/simd/code_lanes.h"
#include "lib/tensor/cpu/transpose.h"
#include "lib/tensor/quant/packing.h"

#include <math.h>

enum { UNIT = 32, UNIT_WORDS = UNIT / 4, SUPER_UNITS = 8 /* of a block of 256 */ };
static const float TOP = 0x1p-24f;

/* How values are made from codes. */
typedef enum Form {
    FORM_SCALED, /* code * scale[0]. Word w has codes 4w to 4w + 3 */
    FORM_HALVES, /* code * scale[0] for the first 16 codes, and scale[1] for the others */
    FORM_ADDED,  /* code * scale[0] + add: the product is exact */
    FORM_DOUBLE, /* code * (scale[0] + add), rounded once */
    FORM_OFFSET, /* (code + add) * scale[0] */
    FORM_PAIRS,  /* the same; word w has codes 8w, 8w + 2, 8w + 4, 8w + 6, word 4 + w the codes that follow each of them */
    FORM_TABLE   /* scale[0] * table[code]; words as in FORM_PAIRS */
} Form;

typedef struct Unit {
    VecBits words[UNIT_WORDS];
    Vec scale[2], add;
} Unit;

/* ---- tables of 16 values ---- */

#if defined(__AVX512BW__)
typedef struct Table {
    Vec values;
} Table;

static inline Table table_new(const float *values) { return (Table){*(const VecInMemory *)values}; }

static inline __attribute__((always_inline)) void table_values(const Table *table, VecBits word, Vec scale, Vec *values) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) values[2 * i] = (Vec)_mm512_permutexvar_ps(_mm512_srli_epi32((__m512i)word, 8 * i), (__m512)table->values) * scale;
}
#elif defined(__AVX2__)
typedef struct Table {
    __m256i bytes[4]; /* byte i of all values */
} Table;

static inline Table table_new(const float *values) {
    Table table;
    __m128i four[4], low[2], high[2];
    for (int i = 0; i < 4; i++)
        four[i] =
            _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(values + 4 * i)), _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    for (int i = 0; i < 2; i++) {
        low[i] = _mm_unpacklo_epi32(four[2 * i], four[2 * i + 1]);
        high[i] = _mm_unpackhi_epi32(four[2 * i], four[2 * i + 1]);
    }
    table.bytes[0] = _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(low[0], low[1]));
    table.bytes[1] = _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(low[0], low[1]));
    table.bytes[2] = _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(high[0], high[1]));
    table.bytes[3] = _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(high[0], high[1]));
    return table;
}

/* values[2i]: of the codes in byte i of a word. */
static inline __attribute__((always_inline)) void table_values(const Table *table, VecBits word, Vec scale, Vec *values) {
    const __m256i turn = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m256i codes = _mm256_shuffle_epi8((__m256i)word, turn), bytes[4]; /* now each word has the codes of four lines */
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) bytes[j] = _mm256_shuffle_epi8(table->bytes[j], codes);
    __m256i low = _mm256_unpacklo_epi8(bytes[0], bytes[1]), low2 = _mm256_unpacklo_epi8(bytes[2], bytes[3]);
    __m256i high = _mm256_unpackhi_epi8(bytes[0], bytes[1]), high2 = _mm256_unpackhi_epi8(bytes[2], bytes[3]);
    values[0] = (Vec)_mm256_unpacklo_epi16(low, low2) * scale;
    values[2] = (Vec)_mm256_unpackhi_epi16(low, low2) * scale;
    values[4] = (Vec)_mm256_unpacklo_epi16(high, high2) * scale;
    values[6] = (Vec)_mm256_unpackhi_epi16(high, high2) * scale;
}
#else
/* lanes_fit says that there are no tables. */
typedef struct Table {
    const float *values;
} Table;

static inline Table table_new(const float *values) { return (Table){values}; }

static inline void table_values(const Table *table, VecBits word, Vec scale, Vec *values) {
    for (int i = 0; i < 4; i++)
        for (int lane = 0; lane < VEC_FLOATS; lane++) values[2 * i][lane] = table->values[word[lane] >> (8 * i) & 15] * scale[lane];
}
#endif

/* What is done with units, which advances with each. */
typedef struct Sink {
    const float *a; /* the next element of a row */
    float *sums;    /* of LANES_COLS lines; NULL: values are stored */
    float *values;
    int vectors;
    bool rounds;
    Table table;
    const CodedRows *rows; /* sums (rows, LANES_COLS) are of products of integers; NULL: of floats */
    int64_t at;            /* the element of the rows where the next unit begins */
} Sink;

/* ---- values ---- */

/* Byte i of each word, as the top byte of a word of zeros. */
static inline __attribute__((always_inline)) VecBits byte_on_top(VecBits word, const int i) {
#if defined(__AVX512BW__)
    return (VecBits)_mm512_shuffle_epi8((__m512i)word, _mm512_broadcast_i32x4(_mm_setr_epi8(-1, -1, -1, (char)i, -1, -1, -1, (char)(4 + i), -1, -1,
                                                                                            -1, (char)(8 + i), -1, -1, -1, (char)(12 + i))));
#elif defined(__AVX2__)
    return (VecBits)_mm256_shuffle_epi8((__m256i)word, _mm256_broadcastsi128_si256(_mm_setr_epi8(-1, -1, -1, (char)i, -1, -1, -1, (char)(4 + i), -1,
                                                                                                 -1, -1, (char)(8 + i), -1, -1, -1, (char)(12 + i))));
#else
    return (word << (24 - 8 * i)) & (int32_t)0xff000000;
#endif
}

static inline Vec floats_of(VecBits integers) { return __builtin_convertvector(integers, Vec); }

static inline Vec multiplied_and_added(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    for (int i = 0; i < VEC_FLOATS; i++) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

/* Value k of the codes in words `first` and `second`, with the scales of one half. */
static inline __attribute__((always_inline)) Vec code_value(const Form form, VecBits first, VecBits second, const int k, Vec scale, Vec add) {
    VecBits top = form == FORM_PAIRS ? byte_on_top(k % 2 ? second : first, k / 2) : byte_on_top(first, k);
    Vec code = __builtin_convertvector(top, Vec);
    switch (form) {
    case FORM_ADDED: return multiplied_and_added(code, scale, add);
    case FORM_DOUBLE: return multiplied_and_added(code, scale, code * add);
    case FORM_OFFSET:
    case FORM_PAIRS: return (code + add) * scale;
    default: return code * scale;
    }
}

enum { STEP_MOST = 8 }; /* codes of one word, or of two if they alternate */
static inline int step_of(const Form form) { return form >= FORM_PAIRS ? STEP_MOST : STEP_MOST / 2; }

/* ---- what is done with a unit ---- */

/* Makes the values of one step, at most STEP_MOST. */
static inline __attribute__((always_inline)) void step_values(const Form form, const Table *table, const Unit *unit, int step, Vec *values) {
    const int n = step_of(form), word = step / n, half = form == FORM_HALVES ? step / (UNIT / 2) : 0;
    VecBits first = unit->words[word], second = unit->words[form >= FORM_PAIRS ? word + UNIT_WORDS / 2 : word];
    if (form == FORM_TABLE) {
        table_values(table, first, unit->scale[0], values);
        table_values(table, second, unit->scale[0], values + 1);
        return;
    }
#pragma GCC unroll 8
    for (int k = 0; k < n; k++) values[k] = code_value(form, first, second, k, unit->scale[half], unit->add);
}

static inline __attribute__((always_inline)) void unit_multiply(const Form form, const Unit *units, Sink *sink) {
    const int n = step_of(form);
    Vec sum[LANES_VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < LANES_VECTORS; v++) sum[v] = *(const VecInMemory *)(sink->sums + v * VEC_FLOATS);
    for (int step = 0; step < UNIT; step += n) {
        Vec values[LANES_VECTORS][STEP_MOST];
        const int word = step / n, half = form == FORM_HALVES ? step / (UNIT / 2) : 0;
        if (form == FORM_TABLE)
#pragma GCC unroll 4
            for (int v = 0; v < LANES_VECTORS; v++) step_values(form, &sink->table, &units[v], step, values[v]);
#pragma GCC unroll 8
        for (int k = 0; k < n; k++) {
            float a = sink->a[step + k];
#pragma GCC unroll 4
            for (int v = 0; v < LANES_VECTORS; v++) {
                const Unit *unit = &units[v];
                const int other = form >= FORM_PAIRS ? word + UNIT_WORDS / 2 : word;
                sum[v] += a * (form == FORM_TABLE ? values[v][k]
                                                  : code_value(form, unit->words[word], unit->words[other], k, unit->scale[half], unit->add));
            }
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < LANES_VECTORS; v++) *(VecInMemory *)(sink->sums + v * VEC_FLOATS) = sum[v];
}

static inline __attribute__((always_inline)) void unit_store(const Form form, const Unit *units, Sink *sink) {
    const int n = step_of(form);
    for (int v = 0; v < sink->vectors; v++) {
        float *to = sink->values + v * VEC_FLOATS;
        for (int step = 0; step < UNIT; step += n) {
            Vec values[STEP_MOST];
            step_values(form, &sink->table, &units[v], step, values);
#pragma GCC unroll 8
            for (int k = 0; k < n; k++, to += sink->vectors * VEC_FLOATS) *(VecInMemory *)to = values[k];
        }
    }
}

#if defined(__AVX2__)
/* sums[lane] += the products of four bytes of a word, unsigned ones with signed ones. All forms give the same integers: without VNNI products are
 * added in pairs first, which 16 bits hold (128 x 127 x 2). */
static inline __attribute__((always_inline)) VecBits bytes_dot(VecBits sums, VecBits without_sign, VecBits with_sign) {
#if defined(VNNI_EMULATED) /* for tests/tensor/test_vnni.c */
    for (int i = 0; i < 4; i++) sums += (without_sign >> (8 * i) & 255) * (with_sign << (24 - 8 * i) >> 24);
    return sums;
#elif defined(__AVX512VNNI__)
    return (VecBits)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)without_sign, (__m512i)with_sign);
#elif defined(__AVXVNNI__)
    return (VecBits)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)without_sign, (__m256i)with_sign);
#elif defined(__AVX512BW__)
    __m512i pairs = _mm512_maddubs_epi16((__m512i)without_sign, (__m512i)with_sign);
    return sums + (VecBits)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#else
    __m256i pairs = _mm256_maddubs_epi16((__m256i)without_sign, (__m256i)with_sign);
    return sums + (VecBits)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
}
#endif

/* sums[lane] += the products of four codes of each line with four codes of a row. magnitude: of the codes of the lines. */
static inline __attribute__((always_inline)) VecBits codes_dot(VecBits sums, VecBits word, VecBits magnitude, int32_t four) {
#if defined(__AVX512BW__)
    __m512i row = _mm512_set1_epi32(four), by_sign = _mm512_mask_sub_epi8(row, _mm512_movepi8_mask((__m512i)word), _mm512_setzero_si512(), row);
    return bytes_dot(sums, magnitude, (VecBits)by_sign);
#elif defined(__AVX2__)
    return bytes_dot(sums, magnitude, (VecBits)_mm256_sign_epi8(_mm256_set1_epi32(four), (__m256i)word));
#else
    (void)magnitude;
    for (int i = 0; i < 4; i++) sums += (word << (24 - 8 * i) >> 24) * (int32_t)(int8_t)((uint32_t)four >> (8 * i));
    return sums;
#endif
}

static inline VecBits magnitudes(VecBits word) {
#if defined(__AVX512BW__)
    return (VecBits)_mm512_abs_epi8((__m512i)word);
#elif defined(__AVX2__)
    return (VecBits)_mm256_abs_epi8((__m256i)word);
#else
    return word;
#endif
}

/* The scales of the unit of a row are multiplied with those of the lines first. */
static inline __attribute__((always_inline)) void unit_dot(const Form form, const Unit *units, Sink *sink) {
    const CodedRows *rows = sink->rows;
    for (int v = 0; v < LANES_VECTORS; v++) {
        const Unit *unit = &units[v];
        VecBits magnitude[UNIT_WORDS];
#pragma GCC unroll 8
        for (int w = 0; w < UNIT_WORDS; w++) magnitude[w] = magnitudes(unit->words[w]);
        for (int64_t r = 0; r < rows->rows; r++) {
            int64_t at = (r * rows->k + sink->at) / UNIT;
            VecBits sums[2] = {{0}, {0}};
            int32_t words[UNIT_WORDS];
            memcpy(words, rows->codes + at * UNIT, sizeof words);
#pragma GCC unroll 8
            for (int w = 0; w < UNIT_WORDS; w++) {
                const int half = form == FORM_HALVES ? w / (UNIT_WORDS / 2) : 0;
                sums[half] = codes_dot(sums[half], unit->words[w], magnitude[w], words[w]);
            }
            Vec scale = (Vec){0} + rows->scales[at] / TOP, total = (Vec){0} + (float)rows->sums[at], first = floats_of(sums[0]);
            float *to = sink->sums + r * LANES_COLS + v * VEC_FLOATS;
            Vec sum = *(const VecInMemory *)to;
            if (form == FORM_ADDED) sum = multiplied_and_added(unit->add, total * rows->scales[at], sum);
            if (form == FORM_OFFSET || form == FORM_PAIRS) first = multiplied_and_added(unit->add * TOP, total, first);
            sum = multiplied_and_added(unit->scale[0] * scale, first, sum);
            if (form == FORM_HALVES) sum = multiplied_and_added(unit->scale[1] * scale, floats_of(sums[1]), sum);
            *(VecInMemory *)to = sum;
        }
    }
    sink->at += UNIT;
}

static void values_round(float *values, int64_t n) {
    for (int64_t i = 0; i < n; i++) values[i] = float_of_bits((uint32_t)round_to_bf16(values[i]) << 16);
}

/* Takes a unit of each vector of lines. */
#define UNIT_TAKE(form, name)                                                               \
    static __attribute__((noinline)) void unit_take_##name(const Unit *units, Sink *sink) { \
        if (sink->rows) {                                                                   \
            if (form != FORM_TABLE) unit_dot(form, units, sink);                            \
            return;                                                                         \
        }                                                                                   \
        if (sink->sums) {                                                                   \
            unit_multiply(form, units, sink);                                               \
            sink->a += UNIT;                                                                \
            return;                                                                         \
        }                                                                                   \
        unit_store(form, units, sink);                                                      \
        if (sink->rounds) values_round(sink->values, UNIT * sink->vectors * VEC_FLOATS);    \
        sink->values += UNIT * sink->vectors * VEC_FLOATS;                                  \
    }
UNIT_TAKE(FORM_SCALED, scaled)
UNIT_TAKE(FORM_HALVES, halves)
UNIT_TAKE(FORM_ADDED, added)
UNIT_TAKE(FORM_DOUBLE, double)
UNIT_TAKE(FORM_OFFSET, offset)
UNIT_TAKE(FORM_PAIRS, pairs)
UNIT_TAKE(FORM_TABLE, table)
typedef void UnitTake(const Unit *units, Sink *sink);

/* ---- from memory to words ---- */

/* Words of `bytes` bytes, a multiple of 16, of VEC_FLOATS lines. */
static inline __attribute__((always_inline)) void words_load(const char *b, int64_t line, const int bytes, VecBits *words) {
    enum { CACHE_LINE = 64, AHEAD = 192 };
    const int distance = bytes > AHEAD ? bytes : AHEAD;
    TransposeLines lines = transpose_lines(b, line);
    for (int i = 0; i < VEC_FLOATS; i++)
        for (int j = 0; j < bytes; j += CACHE_LINE) __builtin_prefetch(b + i * line + distance + j);
    for (int i = 0; i < bytes / TRANSPOSE_BYTES; i++) transpose_piece(&lines, words + i * TRANSPOSE_WORDS);
}

/* Two bytes of each line, as a float16. */
static inline Vec halves_load(const char *b, int64_t line) {
    uint16_t half[VEC_FLOATS];
#if defined(__AVX2__)
    __m128i bits[VEC_FLOATS / 8];
    for (int i = 0; i < VEC_FLOATS / 8; i++, b += 8 * line) {
        for (int j = 0; j < 8; j++) memcpy(&half[j], b + j * line, sizeof *half);
        bits[i] = _mm_setr_epi16((short)half[0], (short)half[1], (short)half[2], (short)half[3], (short)half[4], (short)half[5], (short)half[6],
                                 (short)half[7]);
    }
#if defined(__AVX512F__)
    return (Vec)_mm512_cvtph_ps(_mm256_set_m128i(bits[1], bits[0]));
#else
    return (Vec)_mm256_cvtph_ps(bits[0]);
#endif
#else
    VecBits bits;
    for (int i = 0; i < VEC_FLOATS; i++) {
        memcpy(&half[i], b + i * line, sizeof *half);
        bits[i] = half[i];
    }
    return halves_widened(bits);
#endif
}

/* Four bytes of each line. */
static inline VecBits words_gathered(const char *b, int64_t line) {
    int32_t word[VEC_FLOATS];
    for (int i = 0; i < VEC_FLOATS; i++) memcpy(&word[i], b + i * line, sizeof *word);
#if defined(__AVX512F__)
    return (VecBits)_mm512_setr_epi32(word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7], word[8], word[9], word[10], word[11],
                                      word[12], word[13], word[14], word[15]);
#elif defined(__AVX2__)
    return (VecBits)_mm256_setr_epi32(word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]);
#else
    return *(const VecBits *)word;
#endif
}

static inline VecBits bytes_of(int byte) { return (VecBits){0} + (int32_t)((uint32_t)byte * 0x01010101u); }

/* The low halves of all bytes, or the high ones. */
static inline VecBits nibbles(VecBits word, int high) { return (word >> (4 * high)) & bytes_of(15); }

static inline VecBits bytes_less(VecBits word, int byte) {
    typedef int8_t VecBytes __attribute__((vector_size(VEC_FLOATS * 4)));
    return (VecBits)((VecBytes)word - (VecBytes)bytes_of(byte));
}

/* Byte i of each word, from 0 to 255. */
static inline VecBits byte_at(VecBits word, int i) { return (word >> (8 * i)) & 255; }

/* ---- blocks that contain their scales: `read` loads a block, `make` makes its unit u ---- */

typedef struct Block {
    VecBits words[(256 + 16) / 4];
    Vec d, m;
} Block;
typedef void BlockRead(const char *b, int64_t line, Block *block);
typedef void UnitMake(const Block *block, int u, Unit *unit);

static inline void q8_0_block(const char *b, int64_t line, Block *block) {
    block->d = halves_load(b, line) * TOP;
    words_load(b + 2, line, 32, block->words);
}

static inline void q8_0_make(const Block *block, int u, Unit *unit) {
    (void)u;
    for (int i = 0; i < UNIT_WORDS; i++) unit->words[i] = block->words[i];
    unit->scale[0] = block->d;
}

static inline void q4_0_block(const char *b, int64_t line, Block *block) {
    block->d = halves_load(b, line) * TOP;
    words_load(b + 2, line, 16, block->words);
}

static inline void q4_0_make(const Block *block, int u, Unit *unit) {
    (void)u;
    for (int i = 0; i < UNIT_WORDS; i++) unit->words[i] = bytes_less(nibbles(block->words[i % 4], i / 4), 8);
    unit->scale[0] = block->d;
}

/* A scale and a minimum in one word. */
static inline void two_halves(VecBits word, Block *block) {
    block->d = halves_widened(word & 0xffff) * TOP;
    block->m = halves_widened((word >> 16) & 0xffff);
}

static inline void q4_1_block(const char *b, int64_t line, Block *block) {
    two_halves(words_gathered(b, line), block);
    words_load(b + 4, line, 16, block->words);
}

static inline void q4_1_make(const Block *block, int u, Unit *unit) {
    (void)u;
    for (int i = 0; i < UNIT_WORDS; i++) unit->words[i] = nibbles(block->words[i % 4], i / 4);
    unit->scale[0] = block->d;
    unit->add = block->m;
}

/* Bits 4w to 4w + 3 of each word as the bytes 0 or 16. */
static inline VecBits fifth_bits(VecBits bits, const int w) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    __m256i mask = (__m256i)((VecBits){0} + (w % 2 ? (int32_t)0x80402010 : 0x08040201));
    __m256i bytes = _mm256_shuffle_epi8((__m256i)bits, _mm256_add_epi8(spread, _mm256_set1_epi8((char)(w / 2))));
    return (VecBits)_mm256_cmpeq_epi8(_mm256_and_si256(bytes, mask), mask) & bytes_of(16);
#else
    return ((((bits >> (4 * w)) & 15) * 0x00204081) & bytes_of(1)) << 4;
#endif
}

static inline __attribute__((always_inline)) void five_bits(const Block *block, VecBits fifth, int offset, Unit *unit) {
#pragma GCC unroll 8
    for (int i = 0; i < UNIT_WORDS; i++) unit->words[i] = bytes_less(nibbles(block->words[i % 4], i / 4) | fifth_bits(fifth, i), offset);
    unit->scale[0] = block->d;
}

enum { FIFTH = 64 }; /* the word of a block that has the fifth bits */

static inline void q5_0_block(const char *b, int64_t line, Block *block) {
    block->d = halves_load(b, line) * TOP;
    block->words[FIFTH] = words_gathered(b + 2, line);
    words_load(b + 6, line, 16, block->words);
}

static inline void q5_0_make(const Block *block, int u, Unit *unit) {
    (void)u;
    five_bits(block, block->words[FIFTH], 16, unit);
}

static inline void q5_1_block(const char *b, int64_t line, Block *block) {
    two_halves(words_gathered(b, line), block);
    block->words[FIFTH] = words_gathered(b + 4, line);
    words_load(b + 8, line, 16, block->words);
}

static inline void q5_1_make(const Block *block, int u, Unit *unit) {
    (void)u;
    five_bits(block, block->words[FIFTH], 0, unit);
    unit->add = block->m;
}

/* Scale and minimum of unit u of q4_k and q5_k, whose scales are words 1 to 3. */
static inline void six_bits(const Block *block, int u, Unit *unit) {
    const VecBits *s = block->words + 1;
    VecBits scale, min;
    if (u < 4) {
        scale = byte_at(s[0], u) & 63;
        min = byte_at(s[1], u) & 63;
    } else {
        VecBits both = byte_at(s[2], u - 4);
        scale = (both & 15) | (byte_at(s[0], u - 4) >> 6) << 4;
        min = both >> 4 | (byte_at(s[1], u - 4) >> 6) << 4;
    }
    unit->scale[0] = block->d * floats_of(scale);
    unit->add = -(block->m * floats_of(min));
}

static inline void q4_k_block(const char *b, int64_t line, Block *block) {
    words_load(b, line, 144, block->words);
    two_halves(block->words[0], block);
}

static inline void q4_k_make(const Block *block, int u, Unit *unit) {
    const VecBits *codes = block->words + 4 + u / 2 * UNIT_WORDS;
    for (int i = 0; i < UNIT_WORDS; i++) unit->words[i] = nibbles(codes[i], u % 2);
    six_bits(block, u, unit);
}

static inline void q5_k_block(const char *b, int64_t line, Block *block) {
    words_load(b, line, 176, block->words);
    two_halves(block->words[0], block);
}

static inline void q5_k_make(const Block *block, int u, Unit *unit) {
    const VecBits *fifth = block->words + 4, *codes = block->words + 12 + u / 2 * UNIT_WORDS;
    for (int i = 0; i < UNIT_WORDS; i++) unit->words[i] = nibbles(codes[i], u % 2) | ((fifth[i] >> u) & bytes_of(1)) << 4;
    six_bits(block, u, unit);
}

static inline void q6_k_block(const char *b, int64_t line, Block *block) {
    words_load(b, line, 208, block->words);
    block->d = halves_load(b + 208, line) * TOP;
}

static inline void q6_k_make(const Block *block, int u, Unit *unit) {
    const int half = u / 4, quarter = u % 4;
    const VecBits *low = block->words + 16 * half + quarter % 2 * UNIT_WORDS, *high = block->words + 32 + UNIT_WORDS * half;
    for (int i = 0; i < UNIT_WORDS; i++)
        unit->words[i] = bytes_less(nibbles(low[i], quarter / 2) | ((high[i] >> (2 * quarter)) & bytes_of(3)) << 4, 32);
    for (int i = 0; i < 2; i++) unit->scale[i] = block->d * floats_of(block->words[48 + u / 2] << (24 - 8 * (u % 2 * 2 + i)) >> 24);
}

/* Codes of an uneven grid become its integers. */
static inline VecBits looked_up(VecBits codes) {
    static const int8_t uneven[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
#if defined(__AVX512BW__)
    return (VecBits)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)uneven)), (__m512i)codes);
#elif defined(__AVX2__)
    return (VecBits)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)uneven)), (__m256i)codes);
#else
    int8_t bytes[4 * VEC_FLOATS];
    memcpy(bytes, &codes, sizeof bytes);
    for (int i = 0; i < 4 * VEC_FLOATS; i++) bytes[i] = uneven[bytes[i]];
    memcpy(&codes, bytes, sizeof bytes);
    return codes;
#endif
}

static inline void iq4_nl_make(const Block *block, int u, Unit *unit) {
    (void)u;
    for (int i = 0; i < UNIT_WORDS; i++) unit->words[i] = looked_up(nibbles(block->words[i % 4], i / 4));
    unit->scale[0] = block->d;
}

static inline void iq4_xs_block(const char *b, int64_t line, Block *block) {
    words_load(b, line, 16, block->words);
    block->d = halves_widened(block->words[0] & 0xffff) * TOP;
    words_load(b + 8, line, 128, block->words + 4);
}

static inline void iq4_xs_make(const Block *block, int u, Unit *unit) {
    const VecBits *codes = block->words + 4 + u * UNIT_WORDS / 2;
    VecBits high = (block->words[0] >> (16 + 2 * u)) & 3, low = (block->words[1] >> (4 * u)) & 15;
    for (int i = 0; i < UNIT_WORDS; i++) unit->words[i] = looked_up(nibbles(codes[i % 4], i / 4));
    unit->scale[0] = block->d * floats_of((low | high << 4) - 32);
}

/* Prefetches the lines that follow, as many bytes as are read. */
static inline __attribute__((always_inline)) const char *lines_ahead(const char *ahead, int64_t bytes) {
    enum { CACHE_LINE = 64 };
    for (int64_t i = 0; i < bytes; i += CACHE_LINE) __builtin_prefetch(ahead + i, 0, 2);

    return ahead + bytes;
}

/* Walks through blocks of `bytes` bytes and `units` units. */
static inline __attribute__((always_inline)) void blocks_walk(UnitTake *take, BlockRead *read, UnitMake *make, const int bytes, const int units,
                                                              const char *b, int64_t line, int64_t depth, Sink *sink) {
    Block blocks[LANES_VECTORS];
    Unit made[LANES_VECTORS];
    const int lanes = sink->vectors * VEC_FLOATS;
    const char *ahead = b + lanes * line;
    for (; depth > 0; depth -= units * UNIT, b += bytes)
        for (int u = 0; u < units; u++) {
            ahead = lines_ahead(ahead, lanes * bytes / units);
            for (int v = 0; v < sink->vectors; v++) {
                if (u == 0) read(b + v * VEC_FLOATS * line, line, &blocks[v]);
                make(&blocks[v], u, &made[v]);
            }
            take(made, sink);
        }
}

/* ---- packings ---- */

enum { AT_ONCE = 32 }; /* units whose scales are read together */
typedef struct Scales {
    _Alignas(64) float scale[AT_ONCE + 1][LANES_COLS], add[AT_ONCE + 1][LANES_COLS]; /* of each group */
} Scales;

/* Groups of elements that share a scale; all lines have the same ones. */
typedef struct Groups {
    int64_t index, line, size, into; /* number of the first group; groups of a line; elements; elements of the first group that are left out */
} Groups;

typedef void UnitWords(const char *b, int64_t line, Unit *unit);

static inline void eight_bits(const char *b, int64_t line, Unit *unit) { words_load(b, line, 32, unit->words); }

/* Unsigned codes less 128. */
static inline void eight_bits_less(const char *b, int64_t line, Unit *unit) {
    words_load(b, line, 32, unit->words);
    for (int i = 0; i < UNIT_WORDS; i++) unit->words[i] ^= bytes_of(128);
}

/* Pairs of codes: the one in the low half of a byte comes first, or the other one. */
static inline void low_first(const char *b, int64_t line, Unit *unit) {
    words_load(b, line, 16, unit->words);
    for (int i = 0; i < UNIT_WORDS / 2; i++) unit->words[i + UNIT_WORDS / 2] = nibbles(unit->words[i], 1);
    for (int i = 0; i < UNIT_WORDS / 2; i++) unit->words[i] = nibbles(unit->words[i], 0);
}

static inline void high_first(const char *b, int64_t line, Unit *unit) {
    words_load(b, line, 16, unit->words);
    for (int i = 0; i < UNIT_WORDS / 2; i++) unit->words[i + UNIT_WORDS / 2] = nibbles(unit->words[i], 0);
    for (int i = 0; i < UNIT_WORDS / 2; i++) unit->words[i] = nibbles(unit->words[i], 1);
}

/* Loads the scales of n groups from number `first` on. */
typedef void ScalesLoad(const Packing *packing, int64_t first, int64_t n, int lane, Scales *scales);

static inline void four_bit_scales_load(const Packing *packing, int64_t first, int64_t n, int lane, Scales *scales) {
    float of_blocks[AT_ONCE + 1];
    four_bit_scales(packing->four_bits, first, n, of_blocks);
    for (int64_t i = 0; i < n; i++) scales->scale[i][lane] = of_blocks[i];
}

static inline void int8_scales_load(const Packing *packing, int64_t first, int64_t n, int lane, Scales *scales) {
    double factor = (double)packing->int8_rows->absmax[first] / 127;
    float high = (float)factor, low = (float)(factor - (double)high);
    (void)n;
    scales->scale[0][lane] = high * TOP;
    scales->add[0][lane] = low * TOP;
}

static inline void affine_scales_load(const Packing *packing, int64_t first, int64_t n, int lane, Scales *scales) {
    const AffineCodes *c = packing->affine;
    int base = c->bits == 8 && !c->is_signed ? 128 : 0;
    for (int64_t i = 0; i < n; i++) {
        scales->scale[i][lane] = c->scales[first + i] * TOP;
        scales->add[i][lane] = (float)(base - (c->zeros ? c->zeros[first + i] : c->zero)) / TOP;
    }
}

/* Walks through codes of `bytes` bytes a unit. */
static inline __attribute__((always_inline)) void packing_walk(UnitTake *take, UnitWords *words, ScalesLoad *load, const int bytes,
                                                               const Packing *packing, const char *b, int64_t line, Groups groups, int64_t depth,
                                                               Sink *sink) {
    Scales scales;
    Unit made[LANES_VECTORS];
    const int lanes = sink->vectors * VEC_FLOATS;
    const char *ahead = b + lanes * line;
    for (int64_t left = depth / UNIT, units; left > 0; left -= units) {
        units = MIN((int64_t)AT_ONCE, left);
        int64_t n = (groups.into + units * UNIT - 1) / groups.size + 1, slot = 0;
        for (int lane = 0; lane < lanes; lane++) load(packing, groups.index + lane * groups.line, n, lane, &scales);
        for (int64_t u = 0; u < units; u++, b += bytes) {
            ahead = lines_ahead(ahead, lanes * bytes);
            for (int v = 0; v < sink->vectors; v++) {
                words(b + v * VEC_FLOATS * line, line, &made[v]);
                made[v].scale[0] = *(const Vec *)(scales.scale[slot] + v * VEC_FLOATS);
                made[v].add = *(const Vec *)(scales.add[slot] + v * VEC_FLOATS);
            }
            take(made, sink);
            groups.into += UNIT;
            if (groups.into < groups.size) continue;
            groups.into = 0;
            groups.index++;
            slot++;
        }
    }
}

/* ---- any format ---- */

#if defined(__AVX2__)
enum { HAS_TABLES = true };
#else
enum { HAS_TABLES = false };
#endif

static bool four_bits_fit(const FourBit *codes, const Operand *b) {
    return codes->block % UNIT == 0 && b->ld % codes->block == 0 && b->first % codes->block == 0;
}

static bool affine_fits(const AffineCodes *c, const Operand *b) {
    bool codes = c->bits == 8 || (c->bits == 4 && !c->is_signed);
    return codes && !c->groups && c->group % UNIT == 0 && b->ld == c->width && b->first % c->width == 0;
}

static bool int8_fits(const Int8Rows *rows, const Operand *b) { return b->ld == rows->width && b->first % rows->width == 0; }

static bool packing_fits(const Packing *packing, const Operand *b) {
    if (packing->four_bits) return HAS_TABLES && four_bits_fit(packing->four_bits, b);
    if (!packing->ordinary) return false;
    return packing->affine ? affine_fits(packing->affine, b) : packing->int8_rows && int8_fits(packing->int8_rows, b);
}

bool ISA_FN(lanes_fit)(const Operand *b, int64_t k) {
    switch (b->dtype) {
    case DT_Q8_0:
    case DT_Q4_0:
    case DT_Q4_1:
    case DT_Q5_0:
    case DT_Q5_1:
    case DT_Q4_K:
    case DT_Q5_K:
    case DT_Q6_K:
    case DT_IQ4_NL:
    case DT_IQ4_XS: return true;
    case DT_PACKED: return k % UNIT == 0 && packing_fits(b->data, b);
    default: return false;
    }
}

static void packings_walk(const Operand *b, int64_t first, int64_t depth, Sink *sink) {
    const Packing *packing = b->data;
    int64_t row = first / b->ld, at = first % b->ld;
    if (packing->four_bits) {
        const FourBit *c = packing->four_bits;
        sink->table = table_new(c->map);
        packing_walk(unit_take_table, high_first, four_bit_scales_load, UNIT / 2, packing, (const char *)c->packed + first / 2, b->ld / 2,
                     (Groups){first / c->block, b->ld / c->block, c->block, first % c->block}, depth, sink);
        return;
    }
    if (packing->int8_rows) {
        packing_walk(unit_take_double, eight_bits, int8_scales_load, UNIT, packing, (const char *)packing->int8_rows->codes + first, b->ld,
                     (Groups){row, 1, b->ld, at}, depth, sink);
        return;
    }
    const AffineCodes *c = packing->affine;
    const Groups groups = {row * c->n_groups + at / c->group, c->n_groups, c->group, at % c->group};
    const char *codes = (const char *)c->codes + row * c->line + at * c->bits / 8;
    if (c->bits == 4)
        packing_walk(unit_take_pairs, low_first, affine_scales_load, UNIT / 2, packing, codes, c->line, groups, depth, sink);
    else
        packing_walk(unit_take_offset, c->is_signed ? eight_bits : eight_bits_less, affine_scales_load, UNIT, packing, codes, c->line, groups, depth,
                     sink);
}

#define BLOCKS(id, form, read, make, bytes, units) \
    case DT_##id: blocks_walk(unit_take_##form, read##_block, make##_make, bytes, units, at, line, depth, sink); break
static void lanes_walk(const Operand *b, int64_t col, int64_t from, int64_t depth, Sink *sink) {
    int64_t first = b->first + col * b->ld + from;
    if (b->dtype == DT_PACKED) {
        packings_walk(b, first, depth, sink);
        return;
    }
    const char *at = (const char *)b->data + dtype_bytes(b->dtype, first);
    int64_t line = (int64_t)dtype_bytes(b->dtype, b->ld);
    switch (b->dtype) {
        BLOCKS(Q8_0, scaled, q8_0, q8_0, 34, 1);
        BLOCKS(Q4_0, scaled, q4_0, q4_0, 18, 1);
        BLOCKS(Q4_1, added, q4_1, q4_1, 20, 1);
        BLOCKS(Q5_0, scaled, q5_0, q5_0, 22, 1);
        BLOCKS(Q5_1, added, q5_1, q5_1, 24, 1);
        BLOCKS(Q4_K, added, q4_k, q4_k, 144, SUPER_UNITS);
        BLOCKS(Q5_K, added, q5_k, q5_k, 176, SUPER_UNITS);
        BLOCKS(Q6_K, halves, q6_k, q6_k, 210, SUPER_UNITS);
        BLOCKS(IQ4_NL, scaled, q4_0, iq4_nl, 18, 1);
        BLOCKS(IQ4_XS, scaled, iq4_xs, iq4_xs, 136, SUPER_UNITS);
    default: break;
    }
}
#undef BLOCKS

void ISA_FN(lanes_read)(const Operand *b, int64_t col, int vectors, int64_t from, int64_t depth, float *values) {
    lanes_walk(b, col, from, depth, &(Sink){.values = values, .vectors = vectors, .rounds = b->rounds});
}

void ISA_FN(lanes_multiply)(const Operand *b, int64_t col, int64_t k, const float *a, float *sums) {
    lanes_walk(b, col, 0, k, &(Sink){.a = a, .sums = sums, .vectors = LANES_VECTORS});
}

bool ISA_FN(lanes_have_integers)(const Operand *b, int64_t k) {
    return ISA_FN(lanes_fit)(b, k) && (b->dtype != DT_PACKED || !((const Packing *)b->data)->four_bits);
}

bool ISA_FN(lanes_are_pairs)(const Operand *b) {
    const AffineCodes *codes = b->dtype == DT_PACKED ? ((const Packing *)b->data)->affine : NULL;
    return codes && codes->bits == 4;
}

void ISA_FN(lanes_dot)(const Operand *b, int64_t col, const CodedRows *rows, float *sums) {
    lanes_walk(b, col, 0, rows->k, &(Sink){.rows = rows, .sums = sums, .vectors = LANES_VECTORS});
}
