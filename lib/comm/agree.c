/* SPDX-License-Identifier: Apache-2.0 */
/* What has to be equal on all ranks before they begin. */
#include "lib/comm/comm_world.h"
#include "lib/base/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void comm_fact_hash(CommFact *fact, uint64_t hash) { snprintf(fact->text, sizeof fact->text, "%016llx", (unsigned long long)hash); }

static Status facts_compare(Comm *comm, const CommFact *facts, size_t n, const char *all) {
    const size_t each = sizeof facts->text;
    char words[96];
    for (size_t i = 0; i < n; i++)
        for (int rank = 1; rank < comm->size; rank++) {
            const char *first = all + i * each, *other = all + ((size_t)rank * n + i) * each;
            if (strcmp(first, other) == 0) continue;
            status_fail(facts[i].code, "%s has another %s: %s, rank 0 %s", rank_words(comm->world, comm->ranks[rank], words), facts[i].what, other,
                        first);
            return world_fail(comm->world, 0, facts[i].code); /* all ranks fail alike, so only rank 0 tells and prints it */
        }
    return ST_OK;
}

Status comm_agree(Comm *comm, const CommFact *facts, size_t n) {
    const size_t each = sizeof facts->text;
    size_t bytes;
    if (!comm || comm->size == 1) return ST_OK;
    char *mine = size_mul(n, each, &bytes) ? calloc(n, each) : NULL, *all = size_mul(bytes, (size_t)comm->size, &bytes) ? malloc(bytes) : NULL;
    Status status = mine && all ? ST_OK : status_fail(ST_RESOURCE, "no memory to compare %d ranks", comm->size);
    for (size_t i = 0; status == ST_OK && i < n; i++) snprintf(mine + i * each, each, "%s", facts[i].text);
    if (status == ST_OK) status = comm_gather_small(comm, "what has to be equal", mine, n * each, all);
    if (status == ST_OK) status = facts_compare(comm, facts, n, all);
    free(mine);
    free(all);
    return status;
}
