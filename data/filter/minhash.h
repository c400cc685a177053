/* SPDX-License-Identifier: Apache-2.0 */
/* MinHash (Broder 1997) with locality-sensitive hashing by bands: finds near-duplicates among very many texts without comparing all of them.
 *
 * A text is a set of shingles. The share of `permutations` minima that two signatures have in common estimates the Jaccard similarity J of the sets
 * without bias, with standard deviation sqrt(J (1 - J) / permutations): at most 0.044 for 128. Two texts are compared if all minima of one of `bands`
 * bands of `rows` minima agree, which happens with probability 1 - (1 - J^rows)^bands; rows is the largest number for which that is at least 0.98 at
 * J = threshold. */
#ifndef TUNE_MINHASH_H
#define TUNE_MINHASH_H

#include "lib/base/file.h"

typedef struct MinHash MinHash;
Status minhash_new(size_t permutations, double threshold, uint64_t seed, MinHash **minhash); /* permutations: 1 to 4096; ST_RESOURCE */
void minhash_free(MinHash *minhash);                                                         /* NULL is fine */
size_t minhash_bands(const MinHash *minhash);                                                /* for tests: number of bands, */
size_t minhash_rows(const MinHash *minhash);                                                 /* and minima in each */
/* Minima of n shingles, given as hashes; signature: `permutations` entries. */
void minhash_sketch(const MinHash *minhash, const uint32_t *shingles, size_t n, uint32_t *signature);
double minhash_similarity(const MinHash *minhash, const uint32_t *a, const uint32_t *b);
/* Adds a copy; signatures are numbered in this order. ST_RESOURCE. */
Status minhash_add(MinHash *minhash, const uint32_t *signature);
/* Among signatures from number `from` on that share a band: finds the largest similarity, the first of equals, if it is larger than *similarity, or
 * equal and before *best (SIZE_MAX: none). */
void minhash_best(const MinHash *minhash, const uint32_t *signature, size_t from, double *similarity, size_t *best);

#endif
