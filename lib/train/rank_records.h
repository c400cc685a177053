/* SPDX-License-Identifier: Apache-2.0 */
/* What each rank did in each step: its time by kind of work, the bytes and messages that it sent, and for whom it waited. Rank 0 writes a line for
 * each rank to ranks.jsonl in the run directory. One process writes nothing.
 *
 *     rank_record_begin(&record, comm);
 *     rank_record_add(&record, RANK_FORWARD, seconds); ...
 *     TRY(rank_record_write(&record, run, step));          // all ranks call it; begins the next step
 */
#ifndef TUNE_RANK_RECORDS_H
#define TUNE_RANK_RECORDS_H

#include "lib/parallel/reducer.h"
#include "lib/run/run.h"

typedef enum RankWork {
    RANK_FORWARD,
    RANK_BACKWARD,
    RANK_REDUCE,    /* sums of gradients, after the backward pass of the last leaf; copies of weights */
    RANK_OPTIMIZER, /* clipping, update */
    RANK_ROLLOUT,   /* samples and their rewards; other kinds of training have none */
    RANK_WORKS
} RankWork;
typedef struct RankRecord {
    Comm *comm;
    double seconds[RANK_WORKS], waited; /* waited: when the step began; waits are also part of the other times */
    CommCount counts[COMM_N_KINDS];     /* when the step began */
    BucketCount buckets;                /* of gradients; the caller sets it before rank_record_write */
} RankRecord;
void rank_record_begin(RankRecord *record, Comm *comm);
void rank_record_add(RankRecord *record, RankWork work, double seconds);
/* Gathers the records of all ranks. Fails as comm_wait; warns if the line cannot be written. */
Status rank_record_write(RankRecord *record, Run *run, int64_t step);

#endif
