/* SPDX-License-Identifier: Apache-2.0 */
/* Whole runs on ranks that are processes, in the folder test_folder.
 *
 *     run_on(1, &(RankedRun){sft_run, "one", lines, "", .resume = false}, ST_OK);
 *     run_on(3, &(RankedRun){sft_run, "three", lines, "parallel.shard=optimizer", .resume = false}, ST_OK);
 *     check_same_run("one", "three", "model/model.safetensors", "checkpoints/step-4/tensors.safetensors");
 */
#ifndef TUNE_RANKED_RUN_H
#define TUNE_RANKED_RUN_H

#include "lib/train/training.h"
#include "tests/support/ranks.h"

typedef Status RunFn(const TrainingConfig *config, TrainResult *result);
typedef struct RankedRun {
    RunFn *run;
    const char *name, *settings, *more; /* settings: "key=value" lines, those of `more` after them. The output is `name` in test_folder */
    bool resume;
    int64_t stop_after; /* interrupts the last rank after this step; 0: none */
    bool no_memory;     /* it gets no more memory then, instead */
    const char *last;   /* "key=value" lines of the last rank alone; NULL: none */
    const char *folder; /* the last rank works in this folder, and `name` is a path from there; NULL: as the others */
    int killed, at;     /* at > 0: rank `killed` is killed at its message number `at`; the others wait 2 s for it */
    int64_t file_limit; /* of rank 0, in bytes, as on a full disk; 0: none */
    const char *gemm;   /* the library for products; NULL: the usual one */
} RankedRun;
/* Runs the demo's model on so many ranks, each with one thread, and fails the test unless it ends with this status. */
void run_on(int ranks, const RankedRun *ranked, Status wanted);
/* Fails unless two runs left the same metrics without times, result and checkpoint. */
void check_same_run(const char *a, const char *b, const char *result, const char *checkpoint);
void check_same_metrics(const char *a, const char *b);
/* What a rank sent in a step of a run, by ranks.jsonl; fails the test if the file has no such line. 0: nothing of this kind. */
double bytes_sent(const char *name, int64_t step, int rank, const char *kind);
/* Another number of that line. map: the object with the key; NULL: the line itself */
double rank_noted(const char *name, int64_t step, int rank, const char *map, const char *key);

#endif
