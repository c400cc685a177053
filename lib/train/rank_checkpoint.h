/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of a run that ranks train together. The files are those of one process: whole tensors by name. Rank 0 writes and reads them; other
 * ranks send it their parts of divided tensors piece by piece, and get from it what they need.
 *
 *     RankCheckpoint checkpoint = {.comm = comm, .shards = shards, .run = run, .items = items, .n = n};
 *     items[i] = rank_checkpoint_part(&checkpoint, name, parameter, own, arena);            // a tensor of which each rank has its own elements
 *     TRY(rank_checkpoint_load(&checkpoint, &step, &state));
 *     TRY(rank_checkpoint_save(&checkpoint, step, state, keep));
 */
#ifndef TUNE_RANK_CHECKPOINT_H
#define TUNE_RANK_CHECKPOINT_H

#include "lib/comm/comm.h"
#include "lib/parallel/shards.h"
#include "lib/run/checkpoint.h"

typedef struct RankCheckpoint {
    Comm *comm;           /* NULL: one process, which has all tensors */
    const Shards *shards; /* who has which elements of divided tensors */
    Run *run;
    const CheckpointItem *items;
    size_t n;
    /* pieces that have passed between ranks so far */
    size_t item;
    int64_t at;
} RankCheckpoint;
/* The item of a tensor with the shape of trained parameter k, of whose elements this rank has its own ones in `own` (NULL: none). ST_RESOURCE. */
Status rank_checkpoint_part(RankCheckpoint *checkpoint, const char *name, size_t k, Tensor *own, Arena *arena, CheckpointItem *item);
/* All ranks call these together. Fail as checkpoint_save and checkpoint_load on rank 0, and as comm_wait. *step: the run's; -1: there is none, and
 * nothing was read. */
Status rank_checkpoint_save(RankCheckpoint *checkpoint, int64_t step, const json_t *state, int64_t keep);
Status rank_checkpoint_load(RankCheckpoint *checkpoint, int64_t *step, json_t **state);

#endif
