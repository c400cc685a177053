/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of runs that generate their own data (reinforcement learning): steps, metrics, checkpoints with exact resume, the end. One list names all
 * state that the next step depends on; checkpoints save that list, and a resumed run reads it back and checks that its entries have the same names
 * and sizes.
 *
 *     static void table_list_state(void *context, StateList *states) {
 *         state_f64(states, "Q", table->Q, table->n);
 *         state_count(states, "episodes", &table->episodes);
 *     }
 *     TRY(loop_run(config, recipe, run, &(LoopTask){.context = table, .list_state = table_list_state, .step = table_step, ...}));
 */
#ifndef TUNE_LOOP_H
#define TUNE_LOOP_H

#include "lib/train/rank_checkpoint.h"
#include "lib/run/metrics.h"
#include "lib/train/training.h"

typedef struct StateCount {
    const char *name;
    int64_t *value;
} StateCount;
typedef struct StateReal {
    const char *name;
    double *value;
} StateReal;
enum { STATE_NUMBERS = 16 };
typedef struct StateList {
    Arena *arena;
    CheckpointItem *items;
    size_t n, cap;
    StateCount counts[STATE_NUMBERS];
    StateReal reals[STATE_NUMBERS];
    size_t n_counts, n_reals;
    Status status; /* the first failure */
} StateList;
/* Each appends an entry to the list. The list borrows the memory, which a checkpoint writes and a resumed run reads back. */
void state_f64(StateList *states, const char *name, double *values, int64_t n);
void state_f32(StateList *states, const char *name, float *values, int64_t n);
void state_bytes(StateList *states, const char *name, void *bytes,
                 size_t n); /* n is a multiple of 4: integers of any width; round up the size of arrays of flags */
void state_tensor(StateList *states, const char *name, Tensor *tensor);
void state_count(StateList *states, const char *name, int64_t *value); /* `name` is a string constant, also in state_real */
void state_real(StateList *states, const char *name, double *value);   /* NaN is preserved */
/* All trained parameters under their own names, and all optimiser states of trained parameters. */
void state_weights(StateList *states, const Params *params);
void state_optimizer(StateList *states, const Params *params);

typedef struct LoopTask {
    void *context;
    TaskInput inputs[TASK_MAX_INPUTS]; /* key NULL = unused. A run whose inputs changed cannot be resumed: ST_CONFIG */
    /* The run ends when *counter, which steps count up, is `total` or more; counter NULL: the number of steps. */
    const int64_t *counter;
    int64_t total;
    /* A step (from 0) is three calls; `gather` and `evaluate` may be NULL. Each may stop with ST_INTERRUPTED when interrupt_requested is true. A
     * resumed run repeats the call that failed and continues from there. */
    /* Collects samples and rewards. Must not change the listed state; when it fails, that state is saved. */
    Status (*gather)(void *context, int64_t step, Metrics *metrics);
    /* Learns. After ST_INTERRUPTED the listed state must be unchanged, unless step_may_fail; after other failures it is lost, unless
     * step_may_fail. */
    Status (*step)(void *context, int64_t step, Metrics *metrics);
    /* Evaluates. Changes listed state only when it succeeds; when it fails, what the step learned is saved, with the metrics so far. */
    Status (*evaluate)(void *context, int64_t step, Metrics *metrics);
    /* `step` may fail because of another program, or be interrupted while it waits for one. The loop then keeps a copy in memory of the listed state
     * of the newest step or of one shortly before, and saves that copy. */
    bool step_may_fail;
    void (*list_state)(void *context, StateList *states);
    Status (*resumed)(void *context); /* called after the listed state was read from a checkpoint; may be NULL */
    /* For progress. rate: a metric that counts the work of a step, such as "tokens"; rate_kept: metrics.jsonl gets "tokens_per_second" too, which like
     * "seconds" differs between runs. evaluated: the metric that an evaluation sets, shown as the first of `shown`; NULL: none */
    const Shown *shown;
    const char *rate, *evaluated;
    bool rate_kept;
    Status (*finish)(void *context, Run *run); /* writes the result after the last step */
    json_t *(*summary)(void *context);         /* fields of finished.json in addition to steps, seconds, memory; may be NULL */
} LoopTask;
/* Runs steps from the run's checkpoint (or the start) to the end. ST_INTERRUPTED after interrupt_request, with a checkpoint saved. ST_NUMERIC names
 * the state that is no longer finite, or a metric that is infinite; nothing is saved then. After other failures of the task the newest complete
 * step is saved, and the hint names it. */
Status loop_run(const TrainingConfig *config, const Recipe *recipe, Run *run, const LoopTask *task);

#endif
