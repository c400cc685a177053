/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that are dealt to ranks. */
#include <stdlib.h>

#include "cmd/app/ranks.h"
#include "cmd/common/dealt.h"

int dealt_rank(void) { return comm_rank(ranks_world()); }
int dealt_ranks(void) { return comm_size(ranks_world()); }

size_t dealt_first(size_t n, int rank) {
    const size_t ranks = (size_t)dealt_ranks(), r = (size_t)rank;
    return n / ranks * r + (n % ranks * r + ranks - 1) / ranks;
}

Status dealt_check(const Model *model, uint64_t rows) {
    CommFact facts[] = {{"model", "", ST_INPUT}, {"file of rows", "", ST_INPUT}};
    if (dealt_ranks() == 1) return ST_OK;
    comm_fact_hash(&facts[0], model_fingerprint(model));
    comm_fact_hash(&facts[1], rows);
    Status status = comm_agree(ranks_world(), facts, COUNT_OF(facts));
    if (status == ST_INPUT) status_hint(status, "the files have the same names on all hosts, but other contents: copy them again");
    return status;
}

Status dealt_poll(void) { return comm_check(ranks_world()); }

Status dealt_values(const char *name, double *x, const size_t *first) {
    Comm *world = ranks_world();
    if (dealt_ranks() == 1) return ST_OK;
    TRY(comm_gather(world, &(CommGather){COMM_RESULTS, name, x, sizeof *x, first}));
    return comm_finish(world);
}

Status dealt_words(const char *name, const void *mine, size_t bytes, void *all) { return comm_gather_small(ranks_world(), name, mine, bytes, all); }

/* Rank 0 gets one text. */
static Status take_text(int rank, Status (*take)(void *context, const char *text, size_t len), void *context) {
    Comm *world = ranks_world();
    uint64_t len;
    TRY(comm_receive(world, COMM_RESULTS, "length of results", rank, &len, sizeof len));
    char *text = len < SIZE_MAX ? malloc((size_t)len + 1) : NULL;
    Status status = text ? ST_OK : status_fail(ST_RESOURCE, "out of memory for the results of rank %d", rank);
    if (status == ST_OK) status = comm_receive(world, COMM_RESULTS, "results", rank, text, (size_t)len);
    if (status == ST_OK && len > 0) status = take(context, text, (size_t)len);
    free(text);
    return status;
}

Status dealt_texts(const Str *own, Status (*take)(void *context, const char *text, size_t len), void *context) {
    Comm *world = ranks_world();
    const uint64_t len = own->len;
    for (int rank = 1; dealt_rank() == 0 && rank < dealt_ranks(); rank++) TRY(take_text(rank, take, context));
    if (dealt_rank() == 0) return ST_OK;
    TRY(comm_send(world, COMM_RESULTS, "length of results", 0, &len, sizeof len));
    return comm_send(world, COMM_RESULTS, "results", 0, str_text(own), own->len);
}
