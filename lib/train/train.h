/* SPDX-License-Identifier: Apache-2.0 */
/* What every kind of training shares: what libraries take of the recipe, the memory that training takes, and the accumulate-clip-step core.
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

/* ---- what libraries take of a recipe ---- */

Status recipe_lora(const Recipe *recipe, LoraConfig *config);
Status recipe_optimizer(const Recipe *recipe, OptimizerConfig *config);
Status recipe_schedule(const Recipe *recipe, int64_t total_steps, ScheduleConfig *config);
ScheduleConfig recipe_schedule_over(const Recipe *recipe, int64_t total_steps); /* the same of what was checked before; says nothing */
DType recipe_compute(const Recipe *recipe);                                     /* auto: bf16 only where the processor multiplies it natively */
Checkpointing recipe_checkpointing(const Recipe *recipe);                       /* train.checkpointing */
DType compute_from_text(const char *text); /* auto | f32 | bf16, as options of commands list them; checked before */
/* recipe_unread for each key that the chosen optimiser or schedule does not read, and others do: by the lists of optimizers.def and schedules.def;
 * and for train.save_dtype beside a lora section. */
Status recipe_check_choices(const Recipe *recipe);

/* ---- the core ---- */

/* Sums over trained tokens. loss_sum: of the objective, nats; count: what it is divided by. */
typedef struct LossSums {
    double loss_sum, count;
    int64_t tokens, loss_tokens;
} LossSums;
/* What trainer_run asks of a kind of run: its data and its losses. All is a function of (seed, step), so that a resumed run does the same. */
typedef struct Task {
    void *context;
    TaskInput inputs[TASK_MAX_INPUTS]; /* key NULL = unused. A run whose inputs changed is not resumed: ST_CONFIG */
    int64_t total_steps;               /* optimiser steps of the whole run */
    /* Epoch reached after `steps` steps, e.g. 1.5. */
    double (*epoch)(void *context, int64_t steps);
    /* Number of accumulation steps of `step` (from 0), and what its loss is divided by: the weights of trained tokens over all of them. ST_INPUT when
     * that is 0. */
    Status (*begin_step)(void *context, int64_t step, int64_t *micro_batches, double *divisor);
    /* Forward and backward of one accumulation step: adds d(loss_sum / divisor) to the gradients and to `sums`. The tape has been reset. */
    Status (*micro_batch)(void *context, Tape *tape, int64_t step, int64_t micro, double divisor, LossSums *sums);
    /* The same for the largest accumulation step of the run, to learn its memory: on the meta device, where nothing is computed. */
    Status (*largest_batch)(void *context, Tape *tape);
    /* From now on accumulation steps go through their rows in parts of at most this many tokens (at least a row), with the gradients of all of it; 0
     * = at once. NULL: they can't. */
    void (*split)(void *context, int64_t most_tokens);
    Status (*evaluate)(void *context, Tape *tape, LossSums *sums);                 /* NULL: no evaluation data */
    void (*describe_batch)(void *context, int64_t step, int64_t micro, Str *text); /* the rows of an accumulation step, for messages */
    /* Further numbers of the step (or of the evaluation) that just ended, into the object that goes to metrics.jsonl; NULL: none. Where there are
     * some, the evaluation's loss has no perplexity. */
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
    const size_t *beside; /* bytes that the run takes beside training, such as for sampling: looked at after task.largest_batch; NULL = none */
    void (*on_progress)(void *context, const Progress *progress); /* after each step and each evaluation; may be NULL */
    void *progress_context;
    Status (*save_result)(void *context, const char *run_dir); /* writes adapter/ or model/ into it; context: the task's */
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

/* Memory that training will take, from shapes; bytes. */
typedef struct TrainMemory {
    size_t mapped; /* frozen weights where the file is mapped: the system may take these pages back and read them again */
    size_t weights, packed, gradients, optimizer, best, activations;
    size_t scratch;              /* what kernels keep for themselves */
    size_t rollout;              /* of sampling: key/value cache, activations of a step, logits; 0 where nothing is sampled */
    size_t experience;           /* environments, and what happened in them; 0 where there are none */
    size_t baseline;             /* what the process holds beside them: code, tokenizer, rows; as measured, and what code takes when it first runs */
    Checkpointing checkpointing; /* it holds with this, and with accumulation steps in parts of at most part_tokens; 0 = whole */
    int64_t part_tokens;
    size_t total;         /* of all: the largest resident size to expect */
    TapeBytes tape_bytes; /* what `activations` counts */
} TrainMemory;
/* With train.max_memory the model's checkpointing and the task's split are set to the cheapest that stays below it: a trained head's logits computed
 * again, norms and activations, parts, whole layers computed again, smaller parts. ST_RESOURCE when none does. Without it they are as the recipe
 * says, but a trained head's logits are computed again where the machine has no room to keep them. A resumed run takes what it began with
 * (started.json in `run_dir`; NULL = a new run): parts round sums otherwise.
 *
 * The same recipe on the same machine is meant to get the same choice: scratch memory is always counted for 8 threads, or for those that there are if
 * they are more, and what the process holds in steps of 2 MiB of its own memory and 4 MiB of files' pages (or 1/256 of the limit). Not guaranteed:
 * what it holds is measured, so where that lies at a step's edge and a choice just fits, runs may differ; so may runs with more than 8 threads, where
 * generation keeps a table for each thread, and on another machine or build. Where nothing but the least choice is left, the limit is compared with
 * what this run needs. The tape gets the room that is planned. */
Status trainer_memory(const TrainerConfig *config, const char *run_dir, TrainMemory *memory);
/* Before a model of `n_weights` numbers is loaded to be trained whole: ST_RESOURCE when weights, gradients and the optimiser's state are more than
 * the machine has left. */
Status trainer_check_weights(const Recipe *recipe, int64_t n_weights);
/* ST_RESOURCE with what to change when `memory` is more than the machine has left. */
Status trainer_check_memory(const Recipe *recipe, const TrainMemory *memory);
void train_memory_describe(const TrainMemory *memory, Str *text);  /* one line for people */
void train_memory_write(JsonWriter *w, const TrainMemory *memory); /* as "memory": {...}, for started.json */

/* Of a run that is finished already: its result again. ST_INPUT: finished.json lacks some of it. */
Status trainer_load_result(const Run *run, TrainResult *result);
/* Trains from the run's checkpoint (or step 0) to the end, then writes the result. With early_stopping the weights of the best evaluation are what is
 * written, else the last ones. Gradients are zero when it is called. ST_INTERRUPTED after interrupt_request with a checkpoint saved; ST_NUMERIC
 * naming step, tensor and rows. */
Status trainer_run(const TrainerConfig *config, TrainResult *result);

#endif
