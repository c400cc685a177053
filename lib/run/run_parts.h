/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that keep a run share. */
#ifndef TUNE_RUN_PARTS_H
#define TUNE_RUN_PARTS_H

#include "lib/run/checkpoint.h"
#include "lib/run/events.h"

#include <fcntl.h>

struct Run {
    Arena *arena;
    const char *dir, *metrics_path, *checkpoints_path;
    const char *kept; /* see run_backup_path */
    uint64_t recipe;  /* fingerprint */
    int log_fd;       /* log.txt, locked: one process trains here; -1 = none */
    bool resumed, finished;
    int64_t step;
    Events events;
    Str unwritten;      /* the line that metrics.jsonl has not taken */
    const char *resume; /* the command that goes on with it; NULL: not known */
    const char *hint;   /* of the failure that ended it, without what run_failed says of checkpoints; NULL: run_failed was not asked */
};

/* A lock belongs to the open file where the system has such locks: those of a process are gone as soon as it closes the file anywhere else, as the
 * report does that reads it. */
#ifdef F_OFD_SETLK
#define RUN_SET_LOCK F_OFD_SETLK
#define RUN_ASK_LOCK F_OFD_GETLK
#else
#define RUN_SET_LOCK F_SETLK
#define RUN_ASK_LOCK F_GETLK
#endif

Status run_write_recipe(const Run *run, const Recipe *recipe);
/* Those of later steps go. */
Status checkpoint_remove_after(const Run *run, int64_t step);
/* Opens log.txt, which is the run's lock too; *fd -1: it has none, and is not to make one. ST_CONFIG when another process trains there. */
Status run_lock(const Run *run, bool make, int *fd);
/* Before a new run takes the place of this one: ST_CONFIG where another process trains there, the program runs in it, or the new one is made from
 * parts of it. */
Status run_replace_check(const Run *run, const Recipe *recipe);
Status run_replace(const Run *run, const Recipe *recipe, Str *kept); /* does it: all that was there is in `kept` afterwards */

/* What a run is made from, for its checkpoints: an object from keys to fingerprints, NULL without memory; and whether `state` of one has the same.
 * ST_CONFIG naming the key whose fingerprint is another one now. */
json_t *run_inputs_to_json(const TaskInput inputs[TASK_MAX_INPUTS]);
Status run_check_inputs(const Run *run, const TaskInput inputs[TASK_MAX_INPUTS], const json_t *state);
/* What a checkpoint says of its run when it was made: the length of metrics.jsonl, and the recipe's fingerprint; 0: it does not say. */
typedef struct Manifest {
    uint64_t metrics_bytes, recipe;
} Manifest;
/* Checks every byte of checkpoint `step` below `dir`. ST_INPUT naming what is wrong. */
Status checkpoint_verify(const char *dir, int64_t step, Manifest *manifest);
/* Bytes in a file, 0 when it is missing; what is in it is on the disk afterwards. */
Status file_sync_size(const char *path, uint64_t *size);
/* Shortens metrics.jsonl to its first `bytes` bytes; where the file is missing, or shorter, that is a warning, and its whole lines stay. ST_INPUT
 * when no line ends there: it is another file. */
Status run_cut_metrics(Run *run, uint64_t bytes);
/* The failure `status` of a run stays what it is; save(context) keeps what there is to go on from, and *saved_step is the newest checkpoint's, -1 =
 * none. The hint and log.txt say what that is. */
Status run_failed(Run *run, Status status, Status (*save)(void *context), void *context, const int64_t *saved_step);
/* Says that the checkpoint of `step`, which is saved, is where it was stopped. ST_INTERRUPTED. */
Status run_interrupted(Run *run, int64_t step);
/* "step-12" -> 12; -1 for any other name. */
int64_t checkpoint_step_of(const char *name);

#endif
