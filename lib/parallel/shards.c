/* SPDX-License-Identifier: Apache-2.0 */
/* Who owns which elements. */
#include "lib/parallel/shards.h"

static int64_t units_of(int64_t elements) { return (elements + SHARD_UNIT - 1) / SHARD_UNIT; }

/* Number of elements before a unit of all units. */
static int64_t elements_before(const Shards *shards, int64_t unit) {
    size_t k = 0;
    while (k < shards->n_params && shards->units[k + 1] <= unit) k++;
    return k == shards->n_params ? shards->n : shards->before[k] + (unit - shards->units[k]) * SHARD_UNIT;
}

Status shards_init(Shards *shards, const Params *params, int ranks, Arena *arena) {
    *shards = (Shards){.params = params, .ranks = ranks};
    size_t *index = arena_alloc(arena, MAX(params->n, 1) * sizeof *index);
    int64_t *elements = arena_zero(arena, (params->n + 1) * sizeof *elements), *units = arena_zero(arena, (params->n + 1) * sizeof *units);
    int64_t *begin = arena_zero(arena, ((size_t)ranks + 1) * sizeof *begin), *unit = arena_zero(arena, ((size_t)ranks + 1) * sizeof *unit);
    if (!index || !elements || !units || !begin || !unit) return ST_RESOURCE;
    for (size_t i = 0; i < params->n; i++) {
        if (!params->items[i].trained) continue;
        size_t k = shards->n_params++;
        int64_t n = tensor_count(params->items[i].tensor);
        index[k] = i;
        elements[k + 1] = elements[k] + n;
        units[k + 1] = units[k] + units_of(n);
    }
    shards->index = index, shards->before = elements, shards->units = units, shards->begin = begin, shards->unit = unit;
    shards->n = elements[shards->n_params];
    shards->n_units = units[shards->n_params];
    for (int r = 0; r <= ranks; r++) {
        unit[r] = (r * shards->n_units + ranks - 1) / ranks;
        begin[r] = elements_before(shards, unit[r]);
    }
    return ST_OK;
}

ShardPart shards_range(const Shards *shards, int64_t begin, int64_t end, size_t k) {
    int64_t first = MAX(begin, shards->before[k]), last = MIN(end, shards->before[k + 1]);
    return first < last ? (ShardPart){first - shards->before[k], last - first} : (ShardPart){0, 0};
}

ShardPart shards_part(const Shards *shards, int rank, size_t k) { return shards_range(shards, shards->begin[rank], shards->begin[rank + 1], k); }

size_t shards_find(const Shards *shards, int64_t element) {
    size_t low = 0, high = shards->n_params;
    while (low + 1 < high) {
        size_t middle = low + (high - low) / 2;
        if (shards->before[middle] <= element)
            low = middle;
        else
            high = middle;
    }
    return low;
}
