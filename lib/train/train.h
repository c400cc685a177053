/* What every kind of training shares: the recipe and its key table, the run directory, metrics, checkpoints with exact resume, and the accumulate-clip-step core.
 *
 *     Recipe *recipe;
 *     TRY(recipe_read("recipe.yaml", overrides, n_overrides, &recipe));        // misspelt key: error with line and nearest name
 *     Run *run;
 *     TRY(run_open(recipe, resume, &run));                                      // output/: recipe.yaml, metrics.jsonl, log.txt, checkpoints/
 *     Trainer *trainer; ...
 *     TRY(trainer_run(trainer));                                                // steps, evaluations, checkpoints, progress; resumes by itself
 */
#ifndef TUNE_TRAIN_H
#define TUNE_TRAIN_H

#include "lib/model/model.h"

/* ---- the recipe: config.def is the one table of keys; --help, the key check, the schema and the resolved recipe are made from it ---- */

typedef struct TextList { size_t n; const char **items; } TextList;
typedef struct NumberMap { size_t n; const char **keys; double *values; } NumberMap;
typedef Yaml *YamlNode; /* a key whose value has its own structure (data.train, reward, synth.teacher); NULL when absent */
typedef struct Recipe {
    Arena *arena;
    const char *path;          /* where it was read; NULL for one made in memory */
    bool has_model, has_lora, has_data, has_train, has_eval, has_generate, has_rl, has_reward, has_synth; /* the section is there and not null */
    /* One field per line of config.def: section_key, e.g. lora_rank, train_learning_rate; the top level has no prefix: seed, output. */
#define KEY(section, name, type, ...) RECIPE_CTYPE_##type section##_##name;
#define TOP_KEY(name, type, ...) RECIPE_CTYPE_##type name;
#define RECIPE_CTYPE_INT int64_t
#define RECIPE_CTYPE_REAL double
#define RECIPE_CTYPE_BOOL bool
#define RECIPE_CTYPE_TEXT const char *
#define RECIPE_CTYPE_CHOICE const char *
#define RECIPE_CTYPE_LIST TextList
#define RECIPE_CTYPE_REALS TextList
#define RECIPE_CTYPE_MAP NumberMap
#define RECIPE_CTYPE_NODE YamlNode
#include "lib/train/config.def"
#undef KEY
#undef TOP_KEY
    uint8_t *given;            /* per key: whether the recipe or the command line set it */
} Recipe;
/* overrides: "key=value" texts, values are YAML. path NULL: overrides only. ST_CONFIG with file, line and the nearest name or the allowed values. */
Status recipe_read(const char *path, const char *const *overrides, size_t n_overrides, Recipe **recipe);
void recipe_free(Recipe *recipe);
bool recipe_given(const Recipe *recipe, const char *dotted_key);
int recipe_line(const Recipe *recipe, const char *dotted_key); /* for messages; 0 = not in the file */
void recipe_write_yaml(const Recipe *recipe, Str *text);    /* resolved: every key with its value */
void recipe_write_schema(Str *text);                        /* JSON schema of a recipe */
void recipe_write_help(const char *section, Str *text);     /* keys, defaults, one line each; section NULL = all */
/* Parts that libraries take. */
Status recipe_lora(const Recipe *recipe, LoraConfig *config);
Status recipe_optimizer(const Recipe *recipe, OptimizerConfig *config);
Status recipe_schedule(const Recipe *recipe, int64_t total_steps, ScheduleConfig *config);
DType recipe_compute(const Recipe *recipe);                 /* auto: bf16 only where the processor multiplies it natively */
DType compute_from_text(const char *text);                  /* auto | f32 | bf16 */

/* ---- the run directory (recipe.md, "Run directory") ---- */

typedef struct Run Run;
/* Makes output/ or takes it up again. Without `resume` a directory that holds a run is ST_CONFIG; with it a recipe that would train something else is too.
 * `finished`: the run is complete already. metrics.jsonl is cut back to the checkpoint that will be taken. */
Status run_open(const Recipe *recipe, bool resume, Run **run);
void run_close(Run *run);
const char *run_dir(const Run *run);
bool run_finished(const Run *run);
Status run_mark_finished(Run *run);
Status run_metric(Run *run, const char *json_line);   /* appended to metrics.jsonl, whole line or nothing */
void run_log(Run *run, const char *format, ...) PRINTF_LIKE(2, 3); /* output/log.txt and log_message(LOG_INFO) */

/* A checkpoint: named tensors and a JSON object of counters, in checkpoints/step-N/, each file with a checksum; written aside, synced, renamed. A damaged or half-written one is
 * never taken; the newest whole one is. */
typedef struct CheckpointItem { const char *name; Tensor *tensor; } CheckpointItem;
Status checkpoint_save(Run *run, int64_t step, const CheckpointItem *items, size_t n, const json_t *state, int keep);
/* *step = -1 when there is none. state: caller decrefs. Tensors are filled by name; one missing or of another shape is ST_INPUT. */
Status checkpoint_find(Run *run, int64_t *step);
Status checkpoint_load(Run *run, int64_t step, const CheckpointItem *items, size_t n, json_t **state);

/* ---- the core ---- */

/* What a trainer asks of SFT (and later reward models and RL): data and losses. */
typedef struct LossSums { double loss_sum; double count; int64_t tokens, loss_tokens; } LossSums;
typedef struct Task {
    void *context;
    int64_t steps_per_epoch;                                            /* optimiser steps */
    /* Tokens that the loss of `step` (from 0) is divided by, over all micro-batches. ST_INPUT when it is 0. */
    Status (*begin_step)(void *context, int64_t step, int64_t *micro_batches, double *divisor);
    /* Forward and backward of one micro-batch: adds d(loss_sum / divisor) to the gradients. */
    Status (*micro_batch)(void *context, Tape *tape, int64_t step, int64_t micro, double divisor, LossSums *sums);
    Status (*evaluate)(void *context, Tape *tape, LossSums *sums);      /* NULL: no evaluation data */
    const char *(*describe_batch)(void *context, int64_t step, int64_t micro, Str *text); /* row numbers for messages */
} Task;
typedef struct Progress {
    int64_t step, total_steps;
    double loss, tokens_per_second, seconds_left, learning_rate, grad_norm;
    uint64_t memory;
    bool evaluation;
    double eval_loss;
} Progress;
typedef struct TrainerConfig {
    const Recipe *recipe;
    Model *model;
    Tape *tape;
    Run *run;
    Task task;
    void (*on_progress)(void *context, const Progress *progress); /* may be NULL */
    void *progress_context;
    Status (*save_result)(void *context, Model *model, const char *dir); /* writes adapter/ or model/ into `dir` */
} TrainerConfig;
typedef struct TrainResult { int64_t steps; double first_loss, last_loss, best_eval_loss; double seconds; int64_t tokens; bool early_stopped, already_finished; } TrainResult;
/* Trains from the newest checkpoint (or step 0) to the end. ST_INTERRUPTED after SIGINT/SIGTERM with a checkpoint saved; ST_NUMERIC naming step, tensor and rows. */
Status trainer_run(const TrainerConfig *config, TrainResult *result);

#endif
