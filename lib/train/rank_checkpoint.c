/* SPDX-License-Identifier: Apache-2.0 */
/* Whole tensors in files, parts of them on ranks. */
#include "lib/train/rank_checkpoint.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 18 }; /* elements that travel at once */

/* What this rank has of one item. */
typedef struct Part {
    RankCheckpoint *checkpoint;
    size_t k;
    Tensor *own;
} Part;

/* ---- pieces of divided tensors ---- */

/* Elements at .. at + n - 1 of a divided tensor, from or to one rank. Rank 0 has or gets `values`. */
static Status pass_from(const Part *part, int owner, ShardPart range, float *values, bool saves) {
    Comm *comm = part->checkpoint->comm;
    const int rank = comm_rank(comm);
    int64_t at = range.first - shards_part(part->checkpoint->shards, rank, part->k).first;
    size_t bytes = (size_t)range.n * sizeof *values;
    if (rank != 0 && rank != owner) return ST_OK;
    if (owner == 0) return saves ? tensor_download(part->own, at, range.n, values) : tensor_upload(part->own, at, range.n, values);
    if (rank == 0)
        return saves ? comm_receive(comm, COMM_CHECKPOINT, "piece of a checkpoint", owner, values, bytes)
                     : comm_send(comm, COMM_CHECKPOINT, "piece of a checkpoint", owner, values, bytes);
    if (saves) {
        TRY(tensor_download(part->own, at, range.n, values));
        return comm_send(comm, COMM_CHECKPOINT, "piece of a checkpoint", 0, values, bytes);
    }
    TRY(comm_receive(comm, COMM_CHECKPOINT, "piece of a checkpoint", 0, values, bytes));
    return tensor_upload(part->own, at, range.n, values);
}

/* The same from or to all ranks that have some of these elements. Pieces come in order. */
static Status pass_piece(const Part *part, int64_t at, int64_t n, float *values, bool saves) {
    RankCheckpoint *checkpoint = part->checkpoint;
    const Shards *shards = checkpoint->shards;
    checkpoint->at = at + n;
    for (int r = 0; r < shards->ranks; r++) {
        ShardPart have = shards_part(shards, r, part->k);
        int64_t first = MAX(have.first, at), end = MIN(have.first + have.n, at + n);
        if (first < end) TRY(pass_from(part, r, (ShardPart){first, end - first}, values + (first - at), saves));
    }
    return ST_OK;
}

static Status pass_item(const CheckpointItem *item, int64_t at, int64_t n, void *values, bool saves) {
    RankCheckpoint *checkpoint = ((const Part *)item->part)->checkpoint;
    checkpoint->item = (size_t)(item - checkpoint->items);
    return pass_piece(item->part, at, n, values, saves);
}

static Status read_piece(const CheckpointItem *item, int64_t at, int64_t n, void *values) { return pass_item(item, at, n, values, true); }

static Status write_piece(const CheckpointItem *item, int64_t at, int64_t n, void *values) { return pass_item(item, at, n, values, false); }

Status rank_checkpoint_part(RankCheckpoint *checkpoint, const char *name, size_t k, Tensor *own, Arena *arena, CheckpointItem *item) {
    const Tensor *like = shards_param(checkpoint->shards, k)->tensor;
    Part *part = arena_zero(arena, sizeof *part);
    Tensor *whole = tensor_header(arena, tensor_device(like), like->dtype, like->n_dims, like->shape);
    if (!part || !whole) return ST_RESOURCE;
    *part = (Part){checkpoint, k, own};
    *item = (CheckpointItem){.name = name, .tensor = whole, .part = part, .read = read_piece, .write = write_piece};
    return ST_OK;
}

/* Passes the pieces of all divided tensors that have not passed yet: on other ranks than 0 all of them. */
static Status pass_rest(RankCheckpoint *checkpoint, bool saves) {
    float *values = malloc(PIECE * sizeof *values);
    Status status = values ? ST_OK : status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    for (; checkpoint->item < checkpoint->n && status == ST_OK; checkpoint->item++, checkpoint->at = 0) {
        const CheckpointItem *item = &checkpoint->items[checkpoint->item];
        int64_t count = item->part ? tensor_count(item->tensor) : 0;
        while (checkpoint->at < count && status == ST_OK)
            status = pass_piece(item->part, checkpoint->at, MIN((int64_t)PIECE, count - checkpoint->at), values, saves);
    }
    free(values);
    return status;
}

/* ---- saving ---- */

Status rank_checkpoint_save(RankCheckpoint *checkpoint, int64_t step, const json_t *state, int64_t keep) {
    Comm *comm = checkpoint->comm;
    Failure failure = {0};
    checkpoint->item = 0;
    checkpoint->at = 0;
    Status status = checkpoint_save(checkpoint->run, step, checkpoint->items, checkpoint->n, state, keep);
    if (comm_size(comm) == 1) return status;
    failure_save(&failure, status);
    TRY(pass_rest(checkpoint, true)); /* also if the disk is full, for others do not know that */
    int32_t word = (int32_t)status;
    TRY(comm_broadcast(comm, COMM_CONTROL, "end of a checkpoint", 0, &word, sizeof word));
    if (comm_rank(comm) == 0) return failure_restore(&failure);
    return word == ST_OK ? ST_OK : status_fail((Status)word, "rank 0 could not save the checkpoint");
}

/* ---- loading ---- */

/* Copies a whole tensor of rank 0 to all. */
static Status copy_tensor(Comm *comm, Tensor *tensor, void *buffer, size_t bytes) {
    const size_t one = dtype_bytes(tensor->dtype, 1);
    const int64_t count = tensor_count(tensor), most = (int64_t)(bytes / one);
    for (int64_t at = 0; at < count; at += most) {
        int64_t n = MIN(most, count - at);
        if (comm_rank(comm) == 0) TRY(tensor_download(tensor, at, n, buffer));
        TRY(comm_broadcast(comm, COMM_CHECKPOINT, "tensor of a checkpoint", 0, buffer, (size_t)n * one));
        if (comm_rank(comm) != 0) TRY(tensor_upload(tensor, at, n, buffer));
    }
    return ST_OK;
}

static Status copy_tensors(const RankCheckpoint *checkpoint) {
    const size_t bytes = PIECE * sizeof(float);
    void *buffer = malloc(bytes);
    Status status = buffer ? ST_OK : status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    for (size_t i = 0; i < checkpoint->n && status == ST_OK; i++)
        if (!checkpoint->items[i].part) status = copy_tensor(checkpoint->comm, checkpoint->items[i].tensor, buffer, bytes);
    free(buffer);
    return status;
}

/* Copies the counters of rank 0 to all. */
static Status copy_state(Comm *comm, json_t **state) {
    char *text = comm_rank(comm) == 0 ? json_text(*state, JSON_COMPACT) : NULL;
    uint64_t size = text ? strlen(text) : 0;
    if (comm_rank(comm) == 0 && !text) return status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    Status status = comm_broadcast(comm, COMM_CONTROL, "size of the counters", 0, &size, sizeof size);
    if (status == ST_OK && !text && !(text = malloc((size_t)size + 1))) status = status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    if (status == ST_OK) status = comm_broadcast(comm, COMM_CONTROL, "counters of the checkpoint", 0, text, (size_t)size);
    if (status == ST_OK && comm_rank(comm) != 0) status = json_read_text(text, (size_t)size, "counters of rank 0", state);
    free(text);
    return status;
}

Status rank_checkpoint_load(RankCheckpoint *checkpoint, int64_t *step, json_t **state) {
    Comm *comm = checkpoint->comm;
    *step = run_step(checkpoint->run);
    *state = NULL;
    checkpoint->item = 0;
    checkpoint->at = 0;
    if (comm_size(comm) > 1) TRY(comm_broadcast(comm, COMM_CONTROL, "step of the checkpoint", 0, step, sizeof *step));
    if (*step < 0) return ST_OK;
    if (comm_rank(comm) == 0) TRY(checkpoint_load(checkpoint->run, *step, checkpoint->items, checkpoint->n, state));
    if (comm_size(comm) == 1) return ST_OK;
    TRY(pass_rest(checkpoint, false));
    TRY(copy_tensors(checkpoint));
    return copy_state(comm, state);
}
