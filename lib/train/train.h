/* SPDX-License-Identifier: Apache-2.0 */
/* What every kind of training shares: the recipe's parts for libraries, the memory that training takes, and the accumulate-clip-step core.
 *
 *     Recipe *recipe;
 *     TRY(recipe_read("recipe.yaml", overrides, n_overrides, &recipe));        // misspelt key: error with line and nearest name
 *     TRY(training_run(&kind, &context, &recipe, &options));                   // training.h: from there to the report; opens and closes
 *     Run *run;                                                                 // output/: recipe.yaml, metrics.jsonl, log.txt, checkpoints/
 *     TRY(trainer_run(&(TrainerConfig){.recipe = recipe, .run = run, ...}, &result)); // steps, evaluations, checkpoints, progress; resumes by itself
 */
#ifndef TUNE_TRAIN_H
#define TUNE_TRAIN_H

#include "lib/model/model.h"
#include "lib/run/checkpoint.h"

/* ---- parts of a recipe that libraries take ---- */

Status recipe_lora(const Recipe *recipe, LoraConfig *config);
Status recipe_optimizer(const Recipe *recipe, OptimizerConfig *config);
Status recipe_schedule(const Recipe *recipe, int64_t total_steps, ScheduleConfig *config);
/* recipe_schedule without its checks and messages, for a schedule that was checked. */
ScheduleConfig recipe_schedule_over(const Recipe *recipe, int64_t total_steps);
DType recipe_compute(const Recipe *recipe);               /* auto: bf16 only if the processor multiplies bf16 natively */
Checkpointing recipe_checkpointing(const Recipe *recipe); /* train.checkpointing */
DType compute_from_text(const char *text);                /* auto | f32 | bf16, as options of commands list them; the text must be valid */
/* recipe_unread for each key that the chosen optimiser or schedule does not read and others do, by the lists of optimizers.def and schedules.def;
 * and for train.save_dtype with a lora section. */
Status recipe_check_choices(const Recipe *recipe);

/* ---- the training loop ---- */

/* Sums over trained tokens. loss_sum: of the objective, nats; count: its divisor. */
typedef struct LossSums {
    double loss_sum, count;
    int64_t tokens, loss_tokens;
} LossSums;
/* The functions by which trainer_run trains one kind of run: its data and its losses. They depend only on (seed, step), so that a resumed run does
 * the same. */
typedef struct Task {
    void *context;
    TaskInput inputs[TASK_MAX_INPUTS]; /* key NULL = unused. A run whose inputs changed cannot be resumed: ST_CONFIG */
    int64_t total_steps;               /* optimiser steps of the entire run */
    /* The epoch after `steps` steps, e.g. 1.5. */
    double (*epoch)(void *context, int64_t steps);
    /* Begins `step` (from 0): returns its number of accumulation steps and the divisor of its loss, which is the total weight of its trained
     * tokens. ST_INPUT when that is 0. */
    Status (*begin_step)(void *context, int64_t step, int64_t *micro_batches, double *divisor);
    /* Forward and backward of one accumulation step: adds d(loss_sum / divisor) to the gradients and to `sums`. The tape has been reset. */
    Status (*micro_batch)(void *context, Tape *tape, int64_t step, int64_t micro, double divisor, LossSums *sums);
    /* The same for the run's largest accumulation step, to plan its memory: on the meta device, which computes nothing. */
    Status (*largest_batch)(void *context, Tape *tape);
    /* From now on accumulation steps process their rows in parts of at most this many tokens (at least one row) and sum the gradients; 0 = at
     * once. NULL: not supported. */
    void (*split)(void *context, int64_t most_tokens);
    Status (*evaluate)(void *context, Tape *tape, LossSums *sums);                 /* NULL: no evaluation rows */
    void (*describe_batch)(void *context, int64_t step, int64_t micro, Str *text); /* the rows of an accumulation step, for messages */
    /* Writes further metrics of the step (or the evaluation) that just ended; NULL: none. With it the evaluation's loss has no perplexity. */
    void (*write_metrics)(void *context, bool evaluation, JsonWriter *w);
} Task;
typedef struct Progress {
    int64_t step, total_steps;
    double loss, tokens_per_second, seconds_left, learning_rate, grad_norm;
    uint64_t memory; /* peak of the process, bytes */
    bool evaluation; /* eval_loss is new */
    double eval_loss;
} Progress;
typedef struct TrainerConfig {
    const Recipe *recipe;
    Model *model;
    Tape *tape;
    Run *run;
    Task task;
    const size_t *beside; /* bytes that the run takes besides training, e.g. for sampling; set by task.largest_batch; NULL = none */
    void (*on_progress)(void *context, const Progress *progress); /* after each step and each evaluation; may be NULL */
    void *progress_context;
    Status (*save_result)(void *context, const char *run_dir); /* writes adapter/ or model/ into run_dir; context: the task's */
} TrainerConfig;
typedef struct TrainResult {
    int64_t steps;
    double first_loss, last_loss;
    double eval_loss, best_eval_loss; /* NaN without evaluation */
    int64_t best_step;                /* steps done at the best evaluation; -1 = none */
    double seconds;
    int64_t tokens, loss_tokens;
    bool early_stopped, already_finished;
} TrainResult;

/* The memory that training will take, computed from shapes; bytes. */
typedef struct TrainMemory {
    size_t mapped; /* frozen weights in a mapped file: the system may reclaim these pages and read them again */
    size_t weights, packed, gradients, optimizer, best, activations;
    size_t scratch;              /* workspaces of kernels */
    size_t rollout;              /* sampling: key/value cache, activations of a step, logits; 0 without sampling */
    size_t experience;           /* environments and their transitions; 0 without environments */
    size_t baseline;             /* the process without all that: code, tokenizer, rows; measured, plus an allowance for code that has not run yet */
    Checkpointing checkpointing; /* the choice that the sizes are for */
    int64_t part_tokens;         /* accumulation steps run in parts of at most this many tokens; 0 = not split */
    size_t total;                /* the sum: the largest resident size to expect */
    TapeBytes tape_bytes;        /* the details of `activations` */
} TrainMemory;
/* Plans the memory of a run and reserves the tape's. With train.max_memory it sets the model's checkpointing and the task's split to the cheapest
 * choice below the limit, in this order: recompute a trained head's logits, norms and activations, split into parts, recompute entire layers,
 * smaller parts. ST_RESOURCE when none fits. Without it they follow the recipe, but a trained head's logits are recomputed when the machine lacks
 * the memory to keep them. A resumed run keeps its first choice (started.json in `run_dir`; NULL = a new run), because parts change the rounding
 * of sums.
 *
 * The same recipe on the same machine should get the same choice. So scratch memory is counted for 8 threads (more if there are more), and the
 * process's memory in steps of 2 MiB, its file pages in steps of 4 MiB (or 1/256 of the limit). This is not guaranteed: the process's memory is
 * measured, so runs may differ when it is near the edge of a step and a choice just fits; with more than 8 threads, when generation has a table
 * per thread; and on another machine or build. The last choice is compared with what this run really needs. */
Status trainer_memory(const TrainerConfig *config, const char *run_dir, TrainMemory *memory);
/* Called before a model of `n_weights` numbers is loaded for full training: ST_RESOURCE when weights, gradients and the optimiser's state exceed
 * the machine's free memory. */
Status trainer_check_weights(const Recipe *recipe, int64_t n_weights);
/* ST_RESOURCE, with a hint what to change, when `memory` exceeds the machine's free memory. */
Status trainer_check_memory(const Recipe *recipe, const TrainMemory *memory);
void train_memory_describe(const TrainMemory *memory, Str *text);  /* one line for people */
void train_memory_write(JsonWriter *w, const TrainMemory *memory); /* as "memory": {...}, for started.json */

/* Reads the result of a finished run. ST_INPUT: finished.json lacks a part of it. */
Status trainer_load_result(const Run *run, TrainResult *result);
/* Trains from the run's checkpoint (or step 0) to the end, then writes the result: the weights of the best evaluation with early_stopping, else
 * the last ones. Gradients must be zero. ST_INTERRUPTED after interrupt_request, with a checkpoint saved; ST_NUMERIC naming step, tensor and rows. */
Status trainer_run(const TrainerConfig *config, TrainResult *result);

#endif
