/* SPDX-License-Identifier: Apache-2.0 */
/* Which elements of the trained parameters belong to which rank. A parameter is cut into units of SHARD_UNIT elements; what is left is a unit, too.
 * Unit u of all U, in list order, belongs to rank floor(u x ranks / U). So a rank owns neighbours in the list of all elements, and a sum of squares
 * by units has the same bits as one over the whole parameter.
 *
 *     TRY(shards_init(&shards, &params, ranks, arena));
 *     for (size_t k = 0; k < shards.n_params; k++) {
 *         ShardPart part = shards_part(&shards, rank, k);
 *         ... elements part.first .. part.first + part.n - 1 of shards_param(&shards, k) ...
 *     }
 */
#ifndef TUNE_SHARDS_H
#define TUNE_SHARDS_H

#include "lib/nn/nn.h"

enum { SHARD_UNIT = 16384 };
typedef struct Shards {
    const Params *params;
    int ranks;
    size_t n_params;     /* trained ones */
    const size_t *index; /* (n_params): their places in `params` */
    int64_t n, n_units;  /* elements and units of all of them */
    /* (n_params + 1): number of elements, and of units, before each */
    const int64_t *before, *units;
    const int64_t *begin; /* (ranks + 1): number of elements before those of a rank */
    const int64_t *unit;  /* (ranks + 1): the same of units */
} Shards;
/* Makes the tables in `arena`. ST_RESOURCE. */
Status shards_init(Shards *shards, const Params *params, int ranks, Arena *arena);
static inline Param *shards_param(const Shards *shards, size_t k) { return &shards->params->items[shards->index[k]]; }
/* Elements first .. first + n - 1 of a parameter. */
typedef struct ShardPart {
    int64_t first, n;
} ShardPart;
ShardPart shards_part(const Shards *shards, int rank, size_t k); /* of trained parameter k that `rank` owns; n = 0: none */
/* The part of trained parameter k in elements begin .. end - 1 of all elements */
ShardPart shards_range(const Shards *shards, int64_t begin, int64_t end, size_t k);
size_t shards_find(const Shards *shards, int64_t element); /* the trained parameter that has this element of all elements */

#endif
