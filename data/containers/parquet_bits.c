/* SPDX-License-Identifier: Apache-2.0 */
/* Integers as Parquet packs them: runs of bits, and differences in blocks. Both are read one number at a time, so memory does not depend on the
 * length of a run that a file claims. */
#include "data/containers/parquet.h"

uint64_t pq_little_endian(const uint8_t *bytes, size_t n) {
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++) value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

static bool read_varint(const uint8_t **at, const uint8_t *end, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; shift < 64 && *at < end; shift += 7) {
        uint8_t byte = *(*at)++;
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

/* Reads `width` bits (up to 64) from bit `*bit` (0..7) of **at, lowest bit first; moves past them. */
static bool read_bits(const uint8_t **at, const uint8_t *end, unsigned *bit, unsigned width, uint64_t *value) {
    size_t left = (size_t)(end - *at), need = (*bit + width + 7) / 8;
    if (left < need) return false;
    if (left >= 8) {
        *value = pq_little_endian(*at, 8) >> *bit;
        if (need > 8) *value |= (uint64_t)(*at)[8] << (64 - *bit);
    } else {
        *value = pq_little_endian(*at, need) >> *bit;
    }
    if (width < 64) *value &= ((uint64_t)1 << width) - 1;
    *at += (*bit + width) / 8;
    *bit = (*bit + width) % 8;
    return true;
}

static bool next_run(PqRuns *runs) {
    uint64_t head;
    if (!read_varint(&runs->at, runs->end, &head)) return false;
    runs->packed = head & 1;
    runs->bit = 0;
    runs->left = runs->packed ? (head >> 1 <= UINT64_MAX / 8 ? (head >> 1) * 8 : 0) : head >> 1;
    if (runs->packed) return true;
    size_t bytes = (runs->width + 7) / 8;
    if ((size_t)(runs->end - runs->at) < bytes) return false;
    runs->value = (uint32_t)pq_little_endian(runs->at, bytes);
    runs->at += bytes;
    return true;
}

bool pq_runs_next(PqRuns *runs, uint32_t *value) {
    while (runs->left == 0)
        if (!next_run(runs)) return false;
    runs->left--;
    *value = runs->value;
    if (!runs->packed) return true;
    uint64_t bits;
    if (!read_bits(&runs->at, runs->end, &runs->bit, runs->width, &bits)) return false;
    *value = (uint32_t)bits;
    return true;
}

static uint64_t unzigzag(uint64_t raw) { return (raw >> 1) ^ (0 - (raw & 1)); }

bool pq_deltas_start(PqDeltas *deltas, const uint8_t *at, const uint8_t *end) {
    uint64_t block, first;
    *deltas = (PqDeltas){.end = end, .first = true};
    if (!read_varint(&at, end, &block) || !read_varint(&at, end, &deltas->n_minis) || !read_varint(&at, end, &deltas->left) ||
        !read_varint(&at, end, &first))
        return false;
    if (deltas->n_minis == 0 || block == 0 || block > INT32_MAX || block % deltas->n_minis != 0 || block / deltas->n_minis % 8 != 0) return false;
    deltas->per_mini = block / deltas->n_minis;
    deltas->mini = deltas->n_minis;
    deltas->value = unzigzag(first);
    deltas->at = deltas->mini_end = at;
    return true;
}

/* Starts the next miniblock, and the next block if the last one is used up. */
static bool next_mini(PqDeltas *deltas) {
    const uint8_t *at = deltas->mini_end;
    if (deltas->mini == deltas->n_minis) {
        uint64_t min_delta;
        if (!read_varint(&at, deltas->end, &min_delta) || (uint64_t)(deltas->end - at) < deltas->n_minis) return false;
        deltas->min_delta = unzigzag(min_delta);
        deltas->widths = at;
        deltas->mini = 0;
        at += deltas->n_minis;
    }
    deltas->width = deltas->widths[deltas->mini++];
    uint64_t bytes = deltas->width * (deltas->per_mini / 8);
    if (deltas->width > 64 || bytes > (uint64_t)(deltas->end - at)) return false;
    deltas->at = at;
    deltas->bit = 0;
    deltas->mini_end = at + bytes;
    deltas->left_in_mini = deltas->per_mini;
    return true;
}

bool pq_deltas_next(PqDeltas *deltas, uint64_t *value) {
    if (deltas->left == 0) return false;
    deltas->left--;
    if (!deltas->first) {
        uint64_t delta;
        if (deltas->left_in_mini == 0 && !next_mini(deltas)) return false;
        if (!read_bits(&deltas->at, deltas->mini_end, &deltas->bit, deltas->width, &delta)) return false;
        deltas->left_in_mini--;
        deltas->value += deltas->min_delta + delta;
    }
    deltas->first = false;
    *value = deltas->value;
    return true;
}

const uint8_t *pq_deltas_skip(PqDeltas deltas) {
    if (deltas.first && deltas.left > 0) {
        deltas.left--;
        deltas.first = false;
    }
    while (deltas.left > deltas.left_in_mini) {
        deltas.left -= deltas.left_in_mini;
        if (!next_mini(&deltas)) return NULL;
    }
    return deltas.mini_end;
}
