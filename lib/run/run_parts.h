/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that implement a run. */
#ifndef TUNE_RUN_PARTS_H
#define TUNE_RUN_PARTS_H

#include "lib/run/checkpoint.h"
#include "lib/run/events.h"

#include <fcntl.h>

struct Run {
    Arena *arena;
    const char *dir, *metrics_path, *checkpoints_path;
    const char *kept; /* see run_backup_path */
    uint64_t recipe;  /* fingerprint of its recipe */
    int log_fd;       /* log.txt, locked so that one process trains here; -1 = none */
    bool absent;      /* nothing is written: paths are NULL or not used */
    bool resumed, finished;
    json_t *summary; /* as this process marked it; NULL: it has not */
    int64_t step;
    Events events;
    Str unwritten;      /* the line that could not be written to metrics.jsonl */
    const char *resume; /* the command that resumes it; NULL: unknown */
    const char *hint;   /* of the failure that ended it, without run_failed's advice on checkpoints; NULL: run_failed was not called */
};

/* Open file description locks, where the system has them. A process loses its classic locks as soon as it closes the file anywhere else, as the
 * report does after reading it. */
#ifdef F_OFD_SETLK
#define RUN_SET_LOCK F_OFD_SETLK
#define RUN_ASK_LOCK F_OFD_GETLK
#else
#define RUN_SET_LOCK F_SETLK
#define RUN_ASK_LOCK F_GETLK
#endif

Status run_write_recipe(const Run *run, const Recipe *recipe);
/* Removes the checkpoints of later steps. */
Status checkpoint_remove_after(const Run *run, int64_t step);
/* Opens and locks log.txt; *fd -1: there is none, and `make` is false. ST_CONFIG when another process trains there. */
Status run_lock(const Run *run, bool make, int *fd);
/* Checks that a new run may replace this one: ST_CONFIG when another process trains there, the program runs in it, or the new run uses parts of
 * it. */
Status run_replace_check(const Run *run, const Recipe *recipe);
Status run_replace(const Run *run, const Recipe *recipe, Str *kept); /* replaces it; *kept is its new path */

/* Fingerprints of the run's inputs, for its checkpoints: run_inputs_to_json returns an object from keys to fingerprints (NULL without memory);
 * run_check_inputs compares them with a checkpoint's `state`. ST_CONFIG naming the key whose fingerprint changed. */
json_t *run_inputs_to_json(const TaskInput inputs[TASK_MAX_INPUTS]);
Status run_check_inputs(const Run *run, const TaskInput inputs[TASK_MAX_INPUTS], const json_t *state);
/* What a checkpoint records of its run: the length of metrics.jsonl and the recipe's fingerprint; 0: not recorded. */
typedef struct Manifest {
    uint64_t metrics_bytes, recipe;
} Manifest;
/* Checks every byte of checkpoint `step` in `dir`. ST_INPUT naming the fault. */
Status checkpoint_verify(const char *dir, int64_t step, Manifest *manifest);
/* Syncs a file and returns its size in bytes, 0 when it is missing. */
Status file_sync_size(const char *path, uint64_t *size);
/* Truncates metrics.jsonl to its first `bytes` bytes. Warns when the file is missing or shorter; its complete lines then stay. ST_INPUT when no line
 * ends there: then it is another file. */
Status run_cut_metrics(Run *run, uint64_t bytes);
/* Handles the failure `status` of a run, which it returns: calls save(context) to keep what can be resumed. *saved_step: the newest checkpoint's,
 * -1 = none. The hint and log.txt report it. */
Status run_failed(Run *run, Status status, Status (*save)(void *context), void *context, const int64_t *saved_step);
/* Reports an interruption, with the checkpoint of `step` saved. ST_INTERRUPTED. */
Status run_interrupted(Run *run, int64_t step);
/* "step-12" -> 12; -1 for any other name. */
int64_t checkpoint_step_of(const char *name);

#endif
