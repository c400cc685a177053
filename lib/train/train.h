/* SPDX-License-Identifier: Apache-2.0 */
/* What every kind of training shares: the recipe and its key table, the run directory, metrics, checkpoints with exact resume, and the
 * accumulate-clip-step core.
 *
 *     Recipe *recipe;
 *     TRY(recipe_read("recipe.yaml", overrides, n_overrides, &recipe));        // misspelt key: error with line and nearest name
 *     TRY(training_run(&kind, &context, &recipe, &options));                   // training.h: from there to the report; opens and closes
 *     Run *run;                                                                 // output/: recipe.yaml, metrics.jsonl, log.txt, checkpoints/
 *     TRY(trainer_run(&(TrainerConfig){.recipe = recipe, .run = run, ...}, &result)); // steps, evaluations, checkpoints, progress; resumes by itself
 */
#ifndef TUNE_TRAIN_H
#define TUNE_TRAIN_H

#include "lib/base/yaml.h"
#include "lib/model/model.h"

/* ---- the recipe: config.def is the one table of keys; --help, the key check, the schema and the resolved recipe are made from it ---- */

typedef struct TextList {
    size_t n;
    const char **items;
} TextList;
typedef struct RealList {
    size_t n;
    double *items;
} RealList;
typedef struct NumberMap {
    size_t n;
    const char **keys;
    double *values;
} NumberMap;
typedef const Yaml *YamlNode; /* a key whose value has its own structure (data.train, reward, synth.teacher); NULL when absent */
typedef struct Recipe {
    Arena *arena;
    const char *path;            /* where it was read; NULL for one made in memory */
    struct UnknownKeys *unknown; /* while it is read */
    const char *program;         /* set by the program: its name and version, for the head of the resolved recipe; NULL = none */
    bool has_model, has_lora, has_data, has_train, has_eval, has_generate, has_rl, has_policy, has_synth; /* the section is there and not null */
    bool lora_declined;                                                                                   /* `lora: null` is written */
    /* One field per line of config.def: section_key, e.g. lora_rank, train_learning_rate; the top level has no prefix: seed, output. */
#define KEY(section, name, type, ...) RECIPE_CTYPE_##type section##_##name;
#define TOP_KEY(name, type, ...) RECIPE_CTYPE_##type name;
#define RECIPE_CTYPE_INT int64_t
#define RECIPE_CTYPE_REAL double
#define RECIPE_CTYPE_BOOL bool
#define RECIPE_CTYPE_TEXT const char *
#define RECIPE_CTYPE_CHOICE const char *
#define RECIPE_CTYPE_LIST TextList
#define RECIPE_CTYPE_REALS RealList
#define RECIPE_CTYPE_MAP NumberMap
#define RECIPE_CTYPE_NODE YamlNode
#include "lib/train/config.def"
#undef KEY
#undef TOP_KEY
    struct Rejected *rejected; /* data.on_bad_row: skip; what was left out so far, whoever reads rows adds to it; else NULL */
    bool *given;               /* per key, in config.def's order: the recipe or the command line set it */
    int *lines;                /* per key: its line in the file; 0 = not from the file */
} Recipe;
/* overrides: "key=value" texts, values are YAML, but a text is taken as it stands unless it is quoted or null. path NULL: overrides only. ST_CONFIG
 * with file, line and the nearest name or the allowed values. A whole number whose default is null is -1 when null; a number NaN, a text NULL. */
Status recipe_read(const char *path, const char *const *overrides, size_t n_overrides, Recipe **recipe);
/* The same where the file's text is at hand; path: where it is from, for messages. */
Status recipe_read_text(const char *path, const Str *text, const char *const *overrides, size_t n_overrides, Recipe **recipe);
void recipe_free(Recipe *recipe);
bool recipe_given(const Recipe *recipe, const char *dotted_key);
bool recipe_same(const Recipe *a, const Recipe *b, const char *dotted_key); /* the same value */
int recipe_line(const Recipe *recipe, const char *dotted_key);              /* for messages; 0 = not in the file */
void recipe_write_yaml(const Recipe *recipe, Str *text);                    /* resolved: every key with its value */
void recipe_write_schema(Str *text);                                        /* JSON schema of a recipe */
/* A number for the values that recipe_difference compares and those of the length, data.now's left out: the same for recipes that are the same
 * run. */
uint64_t recipe_fingerprint(const Recipe *recipe);
/* The first key whose value differs between two recipes, leaving out those that don't change what is trained and those of the run's length
 * (recipe_text.c lists both), and both values as text; NULL when they train the same. The values are in `a`'s arena. */
const char *recipe_difference(const Recipe *a, const Recipe *b, const char **value_a, const char **value_b);
bool recipe_other_length(const Recipe *a, const Recipe *b); /* train.max_steps, train.epochs, rl.total_steps: one of them differs */
/* A key that this run does not read: ST_CONFIG with the hint where it was typed, a warning where it stands in a file, which commands may share.
 * Nothing where it was not given, or holds its default, since the recipe of a run spells out every key. format: what it does not do, behind its name:
 * "does nothing with 'train.optimizer: sgd'". */
Status recipe_unread(const Recipe *recipe, const char *dotted_key, const char *hint, const char *format, ...) PRINTF_LIKE(4, 5);
/* recipe_unread for each key that the chosen optimiser or schedule does not read, and others do: by the lists of optimizers.def and schedules.def;
 * and for train.save_dtype beside a lora section. */
Status recipe_check_choices(const Recipe *recipe);
/* The same of train.batch_size where train.batch_tokens decides. Typed it counts with any value. */
Status recipe_check_batches(const Recipe *recipe);
/* Parts that libraries take. */
Status recipe_lora(const Recipe *recipe, LoraConfig *config);
Status recipe_optimizer(const Recipe *recipe, OptimizerConfig *config);
Status recipe_check_schedule(const Recipe *recipe); /* ST_CONFIG for steps that are not whole */
Status recipe_schedule(const Recipe *recipe, int64_t total_steps, ScheduleConfig *config);
ScheduleConfig recipe_schedule_over(const Recipe *recipe, int64_t total_steps); /* the same of what was checked before; says nothing */
/* The day that the run in recipe->output began, YYYY-MM-DD: today, or with `resume` data.now of the recipe that the run keeps there. Rows must not
 * change when a run is taken up on another day, so where a chat template writes the date and data.now is null, the run goes by this one and keeps it:
 * see recipe_dated. *day lives as long as the recipe. ST_CONFIG, ST_INPUT: the kept recipe cannot be read; ST_RESOURCE. */
Status recipe_day(const Recipe *recipe, bool resume, const char **day);
/* data.template_kwargs as an object, a new reference; NULL: there are none. ST_RESOURCE. */
Status recipe_template_kwargs(const Recipe *recipe, json_t **values);
Recipe recipe_dated(const Recipe *recipe, const char *day); /* the same with data.now: day; all else of it is the recipe's own and lives as long */
/* Keys that came later and whose default means something new: a recipe that a run keeps, and that lacks them, means what it meant then. Here data.as,
 * whose rows were texts. */
void recipe_as_before(Recipe *kept);
/* With --resume: the recipe takes over what recipe_as_before says of the one that the run in recipe->output keeps, where it has one. ST_CONFIG,
 * ST_INPUT: that cannot be read; ST_RESOURCE. */
Status recipe_take_up(Recipe *recipe);
/* ST_CONFIG when a run by this recipe has no step to do: too few rows for train.epochs. */
Status recipe_check_steps(const Recipe *recipe, int64_t total_steps);
/* The rows that are given for evaluation, with the key that names them: data.eval, or eval.data which is the same. NULL: none are. */
const Yaml *recipe_eval_rows(const Recipe *recipe, const char **key);
/* To be asked where rows can be held out: a warning when it asks for evaluations without any */
void recipe_warn_eval_every(const Recipe *recipe);
DType recipe_compute(const Recipe *recipe);              /* auto: bf16 only where the processor multiplies it natively */
Checkpointing checkpointing_from_text(const char *text); /* none | head | selective | layer; checked before */
DType compute_from_text(const char *text);               /* auto | f32 | bf16 */

/* ---- the run directory ---- */

typedef struct Run Run;
/* What is done with the run that is in the output already. */
typedef enum RunTake {
    RUN_NEW,     /* refuse it */
    RUN_RESUME,  /* go on with it */
    RUN_REPLACE, /* begin anew in its place, and keep it as NAME.1, NAME.2, ... */
} RunTake;
/* Makes output/ or takes it up again. RUN_NEW: a directory that holds a run is ST_CONFIG; RUN_RESUME: a recipe that would train something else is
 * too; RUN_REPLACE: it is ST_CONFIG where another process trains there, or where the recipe names something in it. A run that is finished is left as
 * it is: see run_finished. Else the newest whole checkpoint is chosen (run_step), what is newer or damaged is removed, and metrics.jsonl is cut back
 * to the checkpoint. A second process on the same directory is ST_CONFIG. */
Status run_open(const Recipe *recipe, RunTake take, Run **run);
typedef struct Lengthening Lengthening;
/* The same where the run gets another length (lengthen.h); NULL: it keeps its own. */
Status run_open_longer(const Recipe *recipe, RunTake take, const Lengthening *longer, Run **run);
/* What run_open would refuse, without touching anything: to be asked before a model is loaded. Warns where there is nothing to resume. */
Status run_check(const Recipe *recipe, RunTake take, bool *finished);
void run_close(Run *run); /* NULL is fine */
const char *run_dir(const Run *run);
const char *run_path(const Run *run, const char *name); /* "output/name"; lives as long as the run */
const char *run_kept(const Run *run);                   /* where the run is that gave way to this one (RUN_REPLACE); NULL: there was none */
bool run_finished(const Run *run);
bool run_reported(const Run *run); /* it has its report.html */
int64_t run_step(const Run *run);  /* of the checkpoint to start from; -1 = none, from the start */
/* The whole command that goes on with this run, for what is said when it fails; NULL: not known. */
void run_resume_by(Run *run, const char *command);
/* The last act of a run that ends without a result: output/stopped.json with the failure `status`, which is given back with its words (ending.h). One
 * that is finished has none. */
Status run_mark_stopped(Run *run, Status status);
/* The last act: output/finished.json with the run's summary (borrowed). */
Status run_mark_finished(Run *run, const json_t *summary);
Status run_summary(const Run *run, json_t **summary); /* of a finished run; the caller decrefs */
/* output/started.json: what is known before the first step. Its object begins with the program and the command (as typed; NULL: not known); the
 * caller adds to `w` and ends it:
 *
 *     JsonWriter w;
 *     if (!run_started_begin(run, recipe, command, &w)) return ST_OK;
 *     jw_int(&w, "steps", steps);
 *     return run_started_end(run, &w);
 *
 * false: the run has one already, since a resumed run keeps what it began with. ST_RESOURCE. */
bool run_started_begin(const Run *run, const Recipe *recipe, const char *command, JsonWriter *w);
Status run_started_end(const Run *run, JsonWriter *w);
Status run_metric(Run *run, const char *json_line);                 /* appended to metrics.jsonl, whole line or nothing, and to the event file */
void run_log(Run *run, const char *format, ...) PRINTF_LIKE(2, 3);  /* output/log.txt and log_message(LOG_INFO); run NULL: the latter alone */
void run_warn(Run *run, const char *format, ...) PRINTF_LIKE(2, 3); /* the same as LOG_WARNING */
void run_note(Run *run, const char *format, ...) PRINTF_LIKE(2, 3); /* output/log.txt alone: for what the caller shows by itself */

/* A checkpoint: named tensors and a JSON object of counters, in checkpoints/step-N/: tensors.safetensors, state.json and, written last, manifest.json
 * with the size and CRC-32 of both, the length of metrics.jsonl and the recipe's fingerprint. Written aside, synced, renamed: a damaged or
 * half-written one is never taken, the newest whole one is. */
typedef struct CheckpointItem {
    const char *name;
    Tensor *tensor;
} CheckpointItem;
/* The same list as one safetensors file: written whole or not at all; read by name, ST_INPUT when a tensor is missing, of another form, or more than
 * was asked for is there. */
Status tensors_save(const char *path, const CheckpointItem *items, size_t n);
Status tensors_load(const char *path, const CheckpointItem *items, size_t n);
/* Older ones beyond `keep` are removed afterwards. ST_RESOURCE on a full disk; the checkpoints that were there stay. */
Status checkpoint_save(Run *run, int64_t step, const CheckpointItem *items, size_t n, const json_t *state, int64_t keep);
/* The newest whole checkpoint below `dir` (".../checkpoints"); *step = -1 when there is none. */
Status checkpoint_find(const char *dir, int64_t *step);
Status checkpoint_find_up_to(const char *dir, int64_t last, int64_t *step); /* the same of those up to step `last` */
/* Tensors are filled by name; one that is missing or of another shape is ST_INPUT. state: caller decrefs. */
Status checkpoint_load(Run *run, int64_t step, const CheckpointItem *items, size_t n, json_t **state);

/* ---- the core ---- */

/* Sums over trained tokens. loss_sum: of the objective, nats; count: what it is divided by. */
typedef struct LossSums {
    double loss_sum, count;
    int64_t tokens, loss_tokens;
} LossSums;
/* Something that a run is made from, beside its recipe: the key that names it and a number that tells whether it is still the same. */
typedef struct TaskInput {
    const char *key;
    uint64_t fingerprint;
} TaskInput;
enum { TASK_MAX_INPUTS = 6 };
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
    size_t program;              /* what the process holds beside them: code, tokenizer, rows; as measured, and what code takes when it first runs */
    Checkpointing checkpointing; /* it holds with this, and with accumulation steps in parts of at most part_tokens; 0 = whole */
    int64_t part_tokens;
    size_t total;  /* of all: the largest resident size to expect */
    TapeRoom room; /* what `activations` counts */
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
Status trainer_recall(const Run *run, TrainResult *result);
/* Trains from the run's checkpoint (or step 0) to the end, then writes the result. With early_stopping the weights of the best evaluation are what is
 * written, else the last ones. Gradients are zero when it is called. ST_INTERRUPTED after interrupt_request with a checkpoint saved; ST_NUMERIC
 * naming step, tensor and rows. */
Status trainer_run(const TrainerConfig *config, TrainResult *result);

#endif
