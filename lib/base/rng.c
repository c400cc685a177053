/* SPDX-License-Identifier: Apache-2.0 */
/* Stateless random numbers: a block cipher of (seed, stream, index). Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
 * 2011; tested against the known answers of Random123. */
#include "lib/base/base.h"
#include "lib/base/rng.h"

#include <math.h>

#define STREAM_SHIFT 56
#define FEISTEL_ROUNDS 6

RngKey rng_key(uint64_t seed, RngStream stream, uint64_t number) {
    ASSERT(number >> STREAM_SHIFT == 0, "number %llu needs more than %d bits", (unsigned long long)number, STREAM_SHIFT);
    return (RngKey){seed, (uint64_t)stream << STREAM_SHIFT | number};
}

void rng_block(RngKey key, uint64_t index, uint32_t out[4]) {
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = (uint32_t)key.stream, c3 = (uint32_t)(key.stream >> 32);
    uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static uint64_t rng_join(uint32_t low, uint32_t high) { return (uint64_t)high << 32 | low; }

uint64_t rng_u64(RngKey key, uint64_t index) {
    uint32_t out[4];
    rng_block(key, index, out);
    return rng_join(out[0], out[1]);
}

double rng_uniform(RngKey key, uint64_t index) { return (double)(rng_u64(key, index) >> 11) * 0x1p-53; }

double rng_normal(RngKey key, uint64_t index) {
    uint32_t out[4];
    rng_block(key, index, out);
    double radius = (double)((rng_join(out[0], out[1]) >> 11) + 1) * 0x1p-53; /* (0,1], so that its logarithm is finite */
    double angle = (double)(rng_join(out[2], out[3]) >> 11) * 0x1p-53;
    return sqrt(-2 * log(radius)) * cos(6.283185307179586476925 * angle);
}

/* The upper 64 bits of the 128-bit product. */
static uint64_t multiply_high(uint64_t a, uint64_t b) {
    uint64_t a_low = (uint32_t)a, a_high = a >> 32, b_low = (uint32_t)b, b_high = b >> 32;
    uint64_t low = a_low * b_low, cross = a_high * b_low + (low >> 32), middle = a_low * b_high + (uint32_t)cross;
    return a_high * b_high + (cross >> 32) + (middle >> 32);
}

uint64_t rng_below(RngKey key, uint64_t index, uint64_t n) {
    ASSERT(n > 0, "nothing is below %d", 0);
    return multiply_high(rng_u64(key, index), n);
}

/* One pass through a Feistel network over numbers of 2 * half bits: a permutation for any round function. */
static uint64_t feistel(RngKey key, int half, uint64_t value) {
    uint64_t mask = ((uint64_t)1 << half) - 1, left = value >> half, right = value & mask;
    for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
        uint64_t mixed = left ^ (rng_u64(key, round << 32 | right) & mask);
        left = right;
        right = mixed;
    }
    return left << half | right;
}

uint64_t rng_permute(RngKey key, uint64_t n, uint64_t index) {
    ASSERT(index < n, "item %llu of %llu", (unsigned long long)index, (unsigned long long)n);
    int half = 3; /* at least 3, so that short permutations are well mixed too */
    while (half < 32 && (n - 1) >> (2 * half) != 0) half++;
    do {
        index = feistel(key, half, index); /* follows the cycle until it is within 0..n-1: at most 4 steps on average for large n */
    } while (index >= n);
    return index;
}
