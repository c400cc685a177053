/* SPDX-License-Identifier: Apache-2.0 */
/* A run over rows of preferences: the common part of `tune rl` with a preference loss and of `tune reward`. It handles the recipe's rows, their
 * order, steps, evaluation and the run directory; an objective computes losses of a batch of rows.
 *
 * A step takes train.gradient_accumulation_steps batches in the epoch's order, each of train.batch_size rows or at most train.batch_tokens tokens
 * (DataPlan); everything depends only on (seed, step).
 */
#ifndef TUNE_PAIR_RUN_H
#define TUNE_PAIR_RUN_H

#include "lib/train/trained_model.h"
#include "lib/train/training.h"
#include "rl/pairs/pairs.h"

typedef struct PairRun PairRun;
/* Sums over a step or an evaluation. chosen, rejected: the counts for means: pairs, or for KTO the answers of either kind. */
typedef struct PairNumbers {
    double pairs, chosen, rejected;
    double rewards_chosen, rewards_rejected, margin, accuracy, logps_chosen, logps_rejected;
} PairNumbers;
typedef struct PairObjective {
    const char *reader;           /* for messages: "algorithm 'dpo'" */
    bool unpaired, stepwise;      /* unpaired: rows of one answer (KTO); stepwise: rows of one answer in steps */
    bool scores;                  /* trains a reward model: a model with a score, on complete answers */
    bool together;                /* the loss compares all rows of a batch, so a batch is never split into parts */
    Status (*open)(PairRun *run); /* computes what is needed once, after model, rows and steps are set; may be NULL */
    /* For the memory plan, on the meta device: runs the largest pass other than over a batch's rows; may be NULL. */
    Status (*plan)(PairRun *run, Tape *tape);
    /* Called with all rows of a step, or of an evaluation, before its first batch; may be NULL. */
    Status (*begin)(PairRun *run, Tape *tape, const Pairs *pairs, const size_t *rows, size_t n);
    /* Adds the losses of a batch's rows to run->numbers and `sums`; with `training` also computes gradients of the mean over the step's `total` rows.
     * Computes no values on the meta device. */
    Status (*batch)(PairRun *run, Tape *tape, const Pairs *pairs, const size_t *rows, size_t n, bool training, double total, LossSums *sums);
    void (*write_metrics)(const PairRun *run, const char *prefix, JsonWriter *w);
    Status (*save)(PairRun *run, const char *run_dir);
    void (*use)(const PairRun *run, Str *text); /* how to use the result, for the run's report page; may be NULL */
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
    Recipe dated;  /* the recipe with the date on which the run began, if the template writes the date */
    Model *model;
    Pairs *train, *eval; /* eval NULL: none */
    bool at_turn;        /* see PairSource: continues a run that began this way */
    Tape *tape;
    uint64_t reference; /* reference_fingerprint of the objective's reference, 0: none */
    int64_t total_steps;
    DataPlan plan; /* the rows of each step */
    /* rows: of the step `loaded`, all batches concatenated; batch_ends: end of each of its n_batches; examples: rows of one batch */
    size_t *rows, *batch_ends, *examples;
    int64_t loaded, n_batches;
    int64_t part_tokens; /* a batch is split into passes of at most so many tokens; 0 = no split */
    PairBatch batch;
    StepContext step; /* of the current part; all zero outside of training */
    PairNumbers numbers;
};
/* Executes the run. Opens the model unless `run->model` is set; releases everything of the run at the end except the objective's context. ST_CONFIG,
 * ST_INPUT, ST_RESOURCE, ST_NUMERIC, ST_INTERRUPTED. */
Status pair_run(PairRun *run, TrainResult *result);
/* Writes the n rows of a step into run->rows; valid until the next call. */
Status pair_run_rows(PairRun *run, int64_t step, size_t *n);
/* Number of the n > 0 rows that fit into a pass outside the plan: as many as a batch, or a part of one, may have. other_rows: as in PairBatchOptions.
 * *tokens: their number of tokens; may be NULL. */
size_t pair_run_fit(const PairRun *run, const Pairs *pairs, const size_t *rows, const size_t *other_rows, size_t n, int64_t *tokens);

#endif
