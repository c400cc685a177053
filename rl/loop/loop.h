/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of runs that make their own data as they go (reinforcement learning): steps, metrics, checkpoints with exact resume, the end. What a run
 * is, is said by one list of all that the next step depends on: it is written into checkpoints, read back and compared in form.
 *
 *     static void table_list_state(void *context, StateList *states) {
 *         state_f64(states, "Q", table->Q, table->n);
 *         state_count(states, "episodes", &table->episodes);
 *     }
 *     TRY(loop_run(recipe, run, &(LoopTask){.context = table, .list_state = table_list_state, .step = table_step, ...}, &result));
 */
#ifndef TUNE_LOOP_H
#define TUNE_LOOP_H

#include "lib/train/train.h"

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
void state_f64(StateList *states, const char *name, double *values, int64_t n);
void state_f32(StateList *states, const char *name, float *values, int64_t n);
void state_bytes(StateList *states, const char *name, void *bytes,
                 size_t n); /* n a multiple of 4: integers of any width; flags in arrays rounded up */
void state_tensor(StateList *states, const char *name, Tensor *tensor);
void state_count(StateList *states, const char *name, int64_t *value); /* the name is a constant text, as in state_real */
void state_real(StateList *states, const char *name, double *value);   /* NaN stays NaN */
/* Trained parameters under their own names, and the optimiser's states of each. */
void state_weights(StateList *states, const Params *params);
void state_optimizer(StateList *states, const Params *params);

/* The numbers of one step, in the order in which they were first set. Names are constant texts. */
enum { METRICS_MAX = 128 };
typedef struct Metric {
    const char *name;
    double value;
    bool whole;
} Metric;
typedef struct Metrics {
    Metric items[METRICS_MAX];
    size_t n;
} Metrics;
void metric_set(Metrics *metrics, const char *name, double value);    /* NaN: not known in this step, null in the file */
void metric_count(Metrics *metrics, const char *name, int64_t value); /* the same, written as a whole number */
double metric_get(const Metrics *metrics, const char *name);          /* NaN when it is not set */

typedef struct LoopTask {
    void *context;
    TaskInput inputs[TASK_MAX_INPUTS]; /* as in Task */
    bool (*done)(void *context);       /* asked before each step */
    /* A step (from 0) is three calls; the first and the last may be NULL. Any of them may give up with ST_INTERRUPTED when it sees
     * interrupt_requested. What is done again after a resume begins with the call that failed. */
    /* What is learned from: samples, their rewards. Leaves what is kept as it was; when it fails, that is saved */
    Status (*gather)(void *context, int64_t step, Metrics *metrics);
    /* learns. With ST_INTERRUPTED what is kept is as it was, unless it is fragile; after other failures it is lost, but see there */
    Status (*step)(void *context, int64_t step, Metrics *metrics);
    /* evaluates. Changes numbers that are kept only when it succeeds; when it fails, what was learned is saved, with the metrics so far */
    Status (*evaluate)(void *context, int64_t step, Metrics *metrics);
    /* `step` itself may fail for another program's fault, or be interrupted while it waits for that: a copy of what is kept, of the newest step or
     * one shortly before, is held for that and saved then */
    bool step_may_fail;
    void (*list_state)(void *context, StateList *states);
    Status (*resumed)(void *context); /* all that is kept has been read from a checkpoint; NULL: that is enough */
    /* "tokens": the metric that says how many were done in the step; the file also gets "tokens_per_second", which like "seconds" no two runs share.
     * NULL: none */
    const char *rate;
    /* Step from 1; seconds: of this one; elapsed: of this process; may be NULL */
    void (*on_step)(void *context, int64_t step, const Metrics *metrics, double seconds, double elapsed);
    Status (*finish)(void *context, Run *run); /* writes the result; after the last step */
    json_t *(*summary)(void *context);         /* what finished.json says beside steps, seconds, memory; NULL: nothing */
} LoopTask;
typedef struct LoopResult {
    int64_t steps;
    double seconds;
} LoopResult;
/* From the run's checkpoint (or the start) until `done`. The run is not finished. ST_INTERRUPTED after interrupt_request with a checkpoint saved;
 * ST_NUMERIC naming what was kept and is not finite any more, or a metric that is infinite: nothing is saved then. Other failures of the task: the
 * newest whole step is saved, and the hint says which. */
Status loop_run(const Recipe *recipe, Run *run, const LoopTask *task, LoopResult *result);

#endif
