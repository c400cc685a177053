/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench: benchmarks training, use of models, and other parts of the program, compared with the peak rates of this machine. Benchmarks of a
 * model ("works") are in the table of bench_models.c; main.c has the others, chosen by the first argument. */
#ifndef TUNE_BENCH_H
#define TUNE_BENCH_H

#include "cmd/app/options.h"
#include "lib/model/model.h"

/* ---- works on a language model: each runs in its own process, so that its memory can be measured ---- */

enum { BENCH_LORA_RANK = 16, BENCH_MOST_ROWS = 64 };

/* The printed results of a work. NaN: the work has no such value. rows_per_second: pairs or completions. seconds: of a work that is measured as a
 * whole. */
typedef struct Measured {
    double tokens_per_second, trained_per_second, rows_per_second, mbytes_per_second, gflops, gbytes_per_second, predicted, first_step, seconds,
        product_share;
} Measured;
typedef struct BenchRow {
    int64_t prompt, answer, rejected;
} BenchRow; /* tokens; rejected: of pairs */
typedef struct BenchRows {
    BenchRow *items;
    size_t n;
} BenchRows;
typedef struct Bench {
    const Command *command;
    const char *shape, *model, *folder, *compute, *checkpointing; /* folder: for temporary files, removed at the end */
    const char *rows, *tokenizer;                                 /* options; NULL: random rows, the model's own tokenizer */
    int64_t batch, tokens, steps;                                 /* steps: the timed ones; an untimed step before them packs the weights */
    double scale;                                                 /* factor on the lengths of rows */
    ModelConfig config;
    int64_t n_ids; /* random ids are below it: the size of the vocabulary or of the tokenizer; 0: the model is not made or read yet */
    CpuSpeed speed;
    /* memory bandwidth, for works that stream weights: the mean of before and after the work, since it may change within seconds */
    double read_gbs;
    double start, first, last;            /* clock at: start of the work, end of the first step, end of the last step */
    double products_first, products_last; /* seconds spent in matrix products up to these ends */
    OpCost before, timed;                 /* operations and bytes up to the end of the first step, and after it */
    double streamed;                      /* the part of timed.bytes that is weights of products, keys and values */
    int64_t n_done;
    Measured row;
    uint64_t peak, resident; /* most resident bytes; resident bytes before the model was loaded */
    size_t n_profile;
    ProfileRow profile[BENCH_MOST_ROWS]; /* from the end of the first step to the end of the last one */
    Failure failure;                     /* why the work failed */
} Bench;
/* bench_mark_start: the measured part begins. bench_mark_step: a step is done; the first one is not timed. */
void bench_mark_start(Bench *bench);
void bench_mark_step(Bench *bench, bool is_first);

/* Lengths of rows: from the file --rows in its order, if its rows are of that kind; else drawn from the quantiles of GSM8K (prompts and answers in
 * a chat template) and hh-rlhf (pairs). */
typedef enum BenchKind { BENCH_CHAT, BENCH_PAIRS } BenchKind;
Status bench_rows(const Bench *bench, BenchKind kind, size_t n, BenchRows *rows);
/* Writes rows.jsonl into bench->folder: `n` objects, filled by `fill`. */
typedef void BenchFill(JsonWriter *w, const Bench *bench, const void *context, size_t i);
Status bench_write_rows(const Bench *bench, size_t n, BenchFill *fill, const void *context);
void bench_write_ids(JsonWriter *w, const Bench *bench, const char *key, uint64_t stream, int64_t n);
/* Makes the recipe of a run on rows.jsonl with `more` settings. A NULL among them means that its allocation failed: ST_RESOURCE. */
Status bench_recipe(const Bench *bench, const char *const *more, size_t n_more, Recipe **recipe);

Status bench_sft(Bench *bench);
Status bench_sft_mix(Bench *bench);
Status bench_full(Bench *bench);
/* DPO: bench->batch pairs a step. Includes the reference's forward pass, which runs once before the first step. */
Status bench_dpo(Bench *bench);
/* GRPO: bench->batch prompts a step, with 8 completions of bench->tokens tokens each. Includes sampling, rewards and the step. */
Status bench_grpo(Bench *bench);
Status bench_prefill(Bench *bench);
Status bench_decode(Bench *bench);
Status bench_load_model(Bench *bench);
/* The time from the start of tune (in the folder of this program) to the end of its first step: the best of `steps` runs. */
Status bench_start(Bench *bench);
Status bench_make_adapter(Bench *bench); /* for bench_merge */
Status bench_merge(Bench *bench);
/* One thread encodes --rows, or random text, repeatedly. */
Status bench_tokenizer(Bench *bench);

/* Prints bench.json as markdown tables, one for each shape. */
Status bench_table(const char *path);

/* The options of tune-bench on models. */
typedef struct BenchJob {
    const char *list, *compute, *checkpointing, *rows, *tokenizer, *output, *table;
    int64_t batch, tokens, steps;
} BenchJob;
/* Runs the works of job->list on the models or shapes that are the command's arguments. */
Status bench_models(const Command *command, const BenchJob *job);

/* ---- benchmarks without a model ---- */

/* Acting with and training of a tiny network: microseconds, and the share of the peak rate of products on all threads. */
Status bench_mlp(const Command *command);
/* PPO on CartPole with the settings of other programs: environment steps per second of the whole run and of its best update. */
Status bench_ppo(const Command *command);
double cpu_seconds(void); /* processor time of this process, all threads */
/* ROUGE-L and all text filters on as many instructions as Alpaca has. */
Status bench_filter(const Command *command);
/* tune data synth compared with plain generation of the same answers. The model has random weights of shape S, or is the second argument. */
Status bench_synth(const Command *command);
/* Growth of time and memory with the length of a row, the number of rows and the number of steps. */
Status bench_growth(const Command *command);
Status bench_comm(const Command *command); /* messages between ranks */
/* Products of a layer of experts, next to those of a dense layer, on 2048 tokens or as many as the second argument says; and the bytes that decoding
 * reads. */
Status bench_experts(const Command *command);
/* Products with a weight in each quantised format, or in the one that the second argument names. */
Status bench_codes(const Command *command);
/* Sweeps over and solutions of an MDP. It parses its own options. */
Status bench_mdp(int argc, char **argv);

#endif
