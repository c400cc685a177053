/* SPDX-License-Identifier: Apache-2.0 */
/* Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011, Random123). The same on every machine, in any order, in any thread. */
#ifndef TUNE_RNG_H
#define TUNE_RNG_H

#include <stdint.h>

typedef enum RngStream { RNG_INIT = 1, RNG_SHUFFLE, RNG_DROPOUT, RNG_SAMPLE, RNG_EXPLORE, RNG_NOISE, RNG_TEST } RngStream;
typedef struct RngKey {
    uint64_t seed;
    uint64_t stream;
} RngKey; /* stream: an RngStream in the top 8 bits, the caller's number below */
RngKey rng_key(uint64_t seed, RngStream stream, uint64_t number);
void rng_block(RngKey key, uint64_t index, uint32_t out[4]);
uint64_t rng_u64(RngKey key, uint64_t index);
double rng_uniform(RngKey key, uint64_t index);             /* [0,1), 53 bits */
double rng_normal(RngKey key, uint64_t index);              /* mean 0, variance 1, Box-Muller */
uint64_t rng_below(RngKey key, uint64_t index, uint64_t n); /* 0..n-1, unbiased to 2^-64 n */
/* Item `index` of a random permutation of 0..n-1 that is never stored (Feistel network, cycle walking). */
uint64_t rng_permute(RngKey key, uint64_t n, uint64_t index);

#endif
