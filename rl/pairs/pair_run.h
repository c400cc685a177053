/* SPDX-License-Identifier: Apache-2.0 */
/* A run over rows of preferences: what `tune rl` with a preference loss and `tune reward` have in common. The recipe's rows, order and steps,
 * evaluation, run directory; an objective says what is done with a batch of rows.
 *
 * A step takes train.gradient_accumulation_steps batches of the epoch's order, of train.batch_size rows or at most train.batch_tokens tokens
 * (DataPlan); all is a function of (seed, step).
 */
#ifndef TUNE_PAIR_RUN_H
#define TUNE_PAIR_RUN_H

#include "lib/train/trained_model.h"
#include "lib/train/training.h"
#include "rl/pairs/pairs.h"

typedef struct PairRun PairRun;
/* Numbers of a step or of an evaluation, as sums. chosen, rejected: what the means are over: pairs, or KTO's answers of either kind. */
typedef struct PairNumbers {
    double pairs, chosen, rejected;
    double rewards_chosen, rewards_rejected, margin, accuracy, logps_chosen, logps_rejected;
} PairNumbers;
typedef struct PairObjective {
    const char *reader;           /* for messages: "algorithm 'dpo'" */
    bool unpaired, stepwise;      /* rows of one answer (KTO); of one answer in steps */
    bool scores;                  /* trains a reward model: with a score, on whole answers */
    bool together;                /* its loss compares all rows of a batch, so a batch is never cut into parts */
    Status (*open)(PairRun *run); /* model, rows and steps are there: what is computed once; may be NULL */
    /* While memory is planned, on the meta device: the largest pass that is not over a batch's own rows; may be NULL. */
    Status (*plan)(PairRun *run, Tape *tape);
    /* All rows of a step, or of an evaluation, before the first of their batches; may be NULL. */
    Status (*begin)(PairRun *run, Tape *tape, const Pairs *pairs, const size_t *rows, size_t n);
    /* Losses of a batch's rows, of which the step has `total`: adds to run->numbers and `sums`; with `training` their gradients by the whole step's
     * mean. On the meta device nothing is computed. */
    Status (*batch)(PairRun *run, Tape *tape, const Pairs *pairs, const size_t *rows, size_t n, bool training, double total, LossSums *sums);
    void (*write_metrics)(const PairRun *run, const char *prefix, JsonWriter *w);
    Status (*save)(PairRun *run, const char *run_dir);
    void (*use)(const PairRun *run, Str *text); /* how the result is used, for the run's page; may be NULL */
} PairObjective;
typedef struct PairPlan {
    int64_t total_steps, largest_batch_tokens;
    double steps_per_epoch;
    int64_t trained_parameters, parameters;
    TrainMemory memory;
} PairPlan;
typedef struct PairRunConfig {
    const Recipe *recipe;
    TrainingOptions options;
    void (*on_plan)(void *context, const PairRun *run, const PairPlan *plan); /* may be NULL */
    void (*on_progress)(void *context, const Progress *progress);             /* may be NULL */
    void *context;
} PairRunConfig;
struct PairRun {
    const PairRunConfig *config;
    const Recipe *recipe;
    const PairObjective *objective;
    void *context; /* the objective's */
    Recipe dated;  /* the recipe with the day the run began, where the template writes it */
    Model *model;
    Pairs *train, *eval; /* eval NULL: none */
    bool at_turn;        /* see PairSource: it goes on a run that began so */
    Tape *tape;
    uint64_t reference; /* reference_fingerprint of the objective's, 0: it has none */
    int64_t total_steps;
    DataPlan plan;                        /* which rows a step takes */
    size_t *rows, *batch_ends, *examples; /* rows of the step `loaded`, batch after batch, and behind each of its n_batches; of one batch */
    int64_t loaded, n_batches;
    int64_t part_tokens; /* a batch goes through the model in parts of at most so many tokens; 0 = at once */
    PairBatch batch;
    StepContext step; /* of the part in work; all zero outside of training */
    PairNumbers numbers;
};
/* The run's model is opened here unless `run->model` is there already; everything of the run is released in the end, but the objective's context.
 * ST_CONFIG, ST_INPUT, ST_RESOURCE, ST_NUMERIC, ST_INTERRUPTED. */
Status pair_run(PairRun *run, TrainResult *result);
/* The n rows of a step, into run->rows; valid until the next call. */
Status pair_run_rows(PairRun *run, int64_t step, size_t *n);
/* How many of n > 0 rows a pass takes that is not a batch of the plan: as many as a batch, or a part of one, may have. other_rows: as
 * PairBatchOptions. *tokens: that they have then; may be NULL. */
size_t pair_run_fit(const PairRun *run, const Pairs *pairs, const size_t *rows, const size_t *other_rows, size_t n, int64_t *tokens);

#endif
