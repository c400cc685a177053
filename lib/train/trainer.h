/* SPDX-License-Identifier: Apache-2.0 */
/* The kind of training whose steps are on rows. It has the rows' order, batches and parts, the gradient of a step, evaluation on held-out rows and
 * early stopping. An objective reads the rows and computes the loss of a batch.
 *
 *     static const Objective objective = {.open = sft_open, .begin = sft_begin, .batch = sft_batch, .release = sft_release};
 *     return trainer_run(&objective, &sft, config, result);   // output/: metrics.jsonl, checkpoints/, adapter/ or model/
 *
 * A step takes train.gradient_accumulation_steps batches in the epoch's order, each of train.batch_size rows or at most train.batch_tokens tokens
 * (DataPlan). A batch, or with more lanes than batches each cut of it, is a leaf of the step (lanes.h). With train.max_memory a leaf goes through the
 * model in parts. Everything is a function of (seed, step).
 */
#ifndef TUNE_TRAINER_H
#define TUNE_TRAINER_H

#include "data/data.h"
#include "lib/train/accumulator.h"
#include "lib/train/training.h"

typedef struct Trainer Trainer;
typedef struct RowSteps RowSteps;
/* Sums over rows. */
typedef struct LossSums {
    double loss_sum, count;      /* of the objective, in nats; what divides it to give the mean */
    int64_t tokens, loss_tokens; /* that the model computes; trained ones */
} LossSums;
/* Rows that go through the model together. */
typedef struct Pass {
    Tape *tape;
    const size_t *rows; /* (n) rows of trainer->train, or of trainer->eval if `held_out` */
    size_t n;
    bool held_out, training; /* training: also compute gradients */
    double divisor;          /* of the step's losses */
    int64_t step;            /* from 0 */
    StepContext dropout;     /* for ModelBatch.step; all zero outside of training */
} Pass;
typedef struct Objective {
    bool scores;                        /* trains a model with a score instead of a head over the vocabulary */
    bool whole_batches;                 /* the loss compares all rows of a batch, so a batch is never split into parts */
    Status (*before)(Trainer *trainer); /* called before the model is opened; may be NULL */
    /* Reads the rows, after the model was opened: sets trainer->train, ->eval (NULL: none) and their fingerprints (trainer_input), and adds lines and
     * values about them to the plan. May replace trainer->recipe by trainer->dated. */
    Status (*open)(Trainer *trainer, RunPlan *plan);
    Status (*check)(Trainer *trainer); /* checks the steps of the run, after they were planned; may be NULL */
    /* For the memory plan, on a device that computes nothing: the largest pass other than over a batch's rows; may be NULL. */
    Status (*plan)(Trainer *trainer, Tape *meta);
    /* Computes what is needed once, before the first step, by passes without gradients over the training rows; may be NULL. */
    Status (*prepare)(Trainer *trainer);
    /* Called with all rows of a step, or of an evaluation, before its first batch. *divisor: number of rows; may be changed. May be NULL. */
    Status (*begin)(Trainer *trainer, const Pass *all, double *divisor);
    /* Adds the losses of the rows to `sums`; in training also d(loss_sum / divisor) to the gradients. The tape has been reset. Computes no values on
     * a device that computes nothing. */
    Status (*batch)(Trainer *trainer, const Pass *pass, LossSums *sums);
    /* The sums for `metrics` that `batch` adds to, *n doubles; NULL: none. The trainer computes them leaf by leaf, and adds the leaves. */
    double *(*numbers)(Trainer *trainer, size_t *n);
    /* Tokens that a pass over this training row computes; NULL: those of dataset_length. */
    int64_t (*tokens)(const Trainer *trainer, size_t row);
    /* Adds further metrics of the step or the evaluation that just ended; NULL: there are none, and an evaluation's loss has a perplexity. */
    void (*metrics)(const Trainer *trainer, Metrics *metrics);
    void (*step_metrics)(const Trainer *trainer, Metrics *metrics); /* the same, of steps alone; may be NULL */
    void (*list_state)(Trainer *trainer, StateList *states);        /* what the next step depends on besides the trained parameters; may be NULL */
    void (*updated)(Trainer *trainer, int64_t done);                /* called after the update of a step; done: steps so far. May be NULL */
    Status (*save)(Trainer *trainer);                               /* writes what the result has besides the model to trainer->run; may be NULL */
    void (*release)(Trainer *trainer);
    const MetricsReader *reader; /* interprets the metrics for the report; NULL: none */
} Objective;
struct Trainer {
    /* from the caller */
    const Objective *objective;
    void *context; /* the objective's */
    const TrainingConfig *config;
    /* opened, the same for the whole run */
    const Recipe *recipe;
    Recipe dated; /* the recipe with the day on which the run began, if the template writes it */
    Model *model;
    const Dataset *train, *eval;
    Tape *tape;
    Comm *comm; /* NULL: one process */
    int rank, ranks;
    AccumulatorConfig division; /* of each step, over lanes and ranks */
    DataPlan order;             /* of the training rows: the batches of each step */
    int64_t total_steps;        /* optimiser steps */
    Lanes lanes;
    size_t beside;       /* bytes that the objective takes in addition to training; set by Objective.open */
    size_t before;       /* bytes of what the objective does before the model is opened; set by Objective.before; 0: nothing */
    int64_t pass_tokens; /* most tokens of a pass, for any memory; 0 = no limit; set by Objective.open */
    int64_t part_tokens; /* a leaf is split into passes of at most so many tokens; 0 = no split */
    TaskInput inputs[TASK_MAX_INPUTS];
    Run *run;
    RowSteps *steps; /* what only steps need (trainer.c); NULL before the first */
    /* of the step `loaded`: rows of all its batches one after the other, the end of each of its n_batches */
    size_t *rows, *batch_ends;
    int64_t loaded, n_batches;
    size_t *examples;       /* rows of one batch */
    const TapeWatch *watch; /* of the leaf's last pass; NULL: none */
};
/* Runs the training from its recipe to its end. ST_CONFIG, ST_INPUT (model, rows), ST_RESOURCE (memory, disk); ST_INTERRUPTED after
 * interrupt_request, with a checkpoint saved; ST_NUMERIC naming step, tensor and rows. */
Status trainer_run(const Objective *objective, void *context, const TrainingConfig *config, TrainResult *result);

/* ---- for objectives ---- */

/* Names an input of the run: a run whose inputs changed cannot be resumed. */
void trainer_input(Trainer *trainer, const char *key, uint64_t fingerprint);
/* The rows of all batches of a step; valid until the next call. */
Status trainer_rows(Trainer *trainer, int64_t step, const size_t **rows, size_t *n);
/* Appends where the rows of a batch are: "FILE line N, ...". batch: number in the step */
void trainer_describe(Trainer *trainer, int64_t step, int64_t batch, Str *text);

#endif
