/* SPDX-License-Identifier: Apache-2.0 */
/* MinHash; see minhash.h. */
#include "lib/base/rng.h"
#include "data/filter/minhash.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct BandSlot {
    uint64_t key;
    uint32_t last;
} BandSlot; /* last: index + 1 of the newest signature with this band; 0: empty slot */

struct MinHash {
    size_t k, bands, rows;
    uint64_t *multiply, *add; /* h(x) = (multiply x + add) >> 32 of 32-bit x: 2-universal (Dietzfelbinger 1996) */
    uint32_t *signatures;     /* n x k */
    uint32_t *before;         /* n x bands: index + 1 of the next older signature with the same band */
    size_t n, cap;
    BandSlot *slots;
    size_t n_slots, cap_slots;
};

static Status no_memory(void) { return status_errno(ENOMEM, "cannot keep the signatures of all rows"); }

static size_t choose_rows(size_t k, double threshold) {
    size_t rows = 1;
    for (size_t r = 2; r <= k; r++)
        if (1 - pow(1 - pow(threshold, (double)r), (double)(k / r)) >= 0.98) rows = r;
    return rows;
}

Status minhash_new(size_t permutations, double threshold, uint64_t seed, MinHash **out) {
    MinHash *m = calloc(1, sizeof *m);
    *out = m;
    ASSERT(permutations >= 1 && permutations <= 4096, "%zu permutations", permutations);
    if (m) {
        m->k = permutations;
        m->rows = choose_rows(permutations, threshold);
        m->bands = permutations / m->rows;
        m->multiply = malloc(permutations * sizeof *m->multiply);
        m->add = malloc(permutations * sizeof *m->add);
    }
    if (!m || !m->multiply || !m->add) {
        minhash_free(m);
        *out = NULL;
        return no_memory();
    }
    for (size_t i = 0; i < permutations; i++) {
        m->multiply[i] = rng_u64(rng_key(seed, RNG_INIT, 1), i) | 1;
        m->add[i] = rng_u64(rng_key(seed, RNG_INIT, 2), i);
    }
    return ST_OK;
}

void minhash_free(MinHash *m) {
    if (!m) return;
    free(m->multiply);
    free(m->add);
    free(m->signatures);
    free(m->before);
    free(m->slots);
    free(m);
}

size_t minhash_bands(const MinHash *m) { return m->bands; }
size_t minhash_rows(const MinHash *m) { return m->rows; }

void minhash_sketch(const MinHash *m, const uint32_t *shingles, size_t n, uint32_t *signature) {
    memset(signature, 0xff, m->k * sizeof *signature);
    for (size_t s = 0; s < n; s++) {
        uint64_t x = shingles[s];
#pragma omp simd
        for (size_t i = 0; i < m->k; i++) {
            uint32_t h = (uint32_t)((m->multiply[i] * x + m->add[i]) >> 32);
            signature[i] = h < signature[i] ? h : signature[i];
        }
    }
}

double minhash_similarity(const MinHash *m, const uint32_t *a, const uint32_t *b) {
    size_t same = 0;
    for (size_t i = 0; i < m->k; i++) same += a[i] == b[i];
    return (double)same / (double)m->k;
}

/* ---- bands ---- */

static uint64_t band_key(const MinHash *m, const uint32_t *signature, size_t band) {
    uint64_t key = band + 1;
    for (size_t i = 0; i < m->rows; i++) {
        key = (key ^ signature[band * m->rows + i]) * 0xff51afd7ed558ccdu;
        key ^= key >> 32;
    }
    return key;
}

static BandSlot *band_slot(const MinHash *m, uint64_t key) {
    size_t at = key & (m->cap_slots - 1);
    while (m->slots[at].last && m->slots[at].key != key) at = (at + 1) & (m->cap_slots - 1);
    return &m->slots[at];
}

static bool slots_fit(MinHash *m) {
    if (2 * (m->n_slots + m->bands) <= m->cap_slots) return true;
    MinHash wider = {.cap_slots = m->cap_slots ? m->cap_slots * 2 : 16384};
    if (!(wider.slots = calloc(wider.cap_slots, sizeof *wider.slots))) return false;
    for (size_t i = 0; i < m->cap_slots; i++)
        if (m->slots[i].last) *band_slot(&wider, m->slots[i].key) = m->slots[i];
    free(m->slots);
    m->slots = wider.slots;
    m->cap_slots = wider.cap_slots;
    return true;
}

static bool signatures_fit(MinHash *m) {
    if (m->n < m->cap) return true;
    size_t cap = m->cap ? m->cap * 2 : 256;
    uint32_t *signatures = cap < UINT32_MAX ? realloc(m->signatures, cap * m->k * sizeof *signatures) : NULL;
    if (signatures) m->signatures = signatures;
    uint32_t *before = signatures ? realloc(m->before, cap * m->bands * sizeof *before) : NULL;
    if (!before) return false;
    m->before = before;
    m->cap = cap;
    return true;
}

Status minhash_add(MinHash *m, const uint32_t *signature) {
    if (!signatures_fit(m) || !slots_fit(m)) return no_memory();
    memcpy(m->signatures + m->n * m->k, signature, m->k * sizeof *signature);
    for (size_t b = 0; b < m->bands; b++) {
        uint64_t key = band_key(m, signature, b);
        BandSlot *slot = band_slot(m, key);
        m->n_slots += slot->last == 0;
        m->before[m->n * m->bands + b] = slot->last;
        *slot = (BandSlot){key, (uint32_t)m->n + 1};
    }
    m->n++;
    return ST_OK;
}

void minhash_best(const MinHash *m, const uint32_t *signature, size_t from, double *similarity, size_t *best) {
    if (m->n == 0) return;
    for (size_t b = 0; b < m->bands; b++)
        for (size_t next = band_slot(m, band_key(m, signature, b))->last; next > from; next = m->before[(next - 1) * m->bands + b]) {
            double likeness = minhash_similarity(m, signature, m->signatures + (next - 1) * m->k);
            if (likeness < *similarity || (likeness == *similarity && next - 1 >= *best)) continue;
            *similarity = likeness;
            *best = next - 1;
        }
}
