/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench: measures training and use of models, and what else the program does, beside what this machine can do. main.c says which words are
 * a work of their own; works on a model are in the table of bench_models.c. */
#ifndef TUNE_BENCH_H
#define TUNE_BENCH_H

#include "cmd/app/options.h"
#include "lib/model/model.h"

/* ---- works on a language model: each runs in a process of its own, so that its memory is its own ---- */

enum { BENCH_LORA_RANK = 16, BENCH_MOST_ROWS = 64 };

/* row: what is printed; a NaN is a value that the work has not. rows_per_second: pairs, completions. seconds: of the whole work, where that is what
 * counts. */
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
    const char *shape, *model, *folder, *compute, *checkpointing; /* folder: for what is made, removed at the end */
    const char *rows, *tokenizer;                                 /* options; NULL: rows are drawn, the model's own tokenizer */
    int64_t batch, tokens, steps;                                 /* steps: timed ones; another one goes before them, which packs weights */
    double scale;                                                 /* of drawn and read lengths */
    ModelConfig config;
    int64_t n_ids; /* ids are drawn below it: the vocabulary's size, or the tokenizer's, which can show them; 0: the model is not made or read yet */
    CpuSpeed speed;
    /* Reading memory around a work that streams, mean of before and behind: it may change within seconds */
    double read_gbs;
    double start, first, last;            /* clock: work begun, first step done, last step done */
    double products_first, products_last; /* seconds spent in products up to then */
    OpCost before, timed;                 /* work up to the first step's end, work since then */
    double streamed;                      /* of timed.bytes: weights in products, keys and values */
    int64_t n_done;
    Measured row;
    uint64_t peak, resident; /* bytes resident at most; before the model was loaded */
    size_t n_profile;
    ProfileRow profile[BENCH_MOST_ROWS]; /* from the first step's end to the last one's */
    Failure failure;                     /* of the work */
} Bench;
/* The work that counts begins; then its steps are done, the first of which is not timed itself. */
void bench_mark_start(Bench *bench);
void bench_mark_step(Bench *bench, bool is_first);

/* Lengths of rows: those of --rows in file order, as far as they are of that kind, else drawn from the quantiles of GSM8K (prompts and answers in a
 * chat template) and hh-rlhf (pairs). */
typedef enum BenchKind { BENCH_CHAT, BENCH_PAIRS } BenchKind;
Status bench_rows(const Bench *bench, BenchKind kind, size_t n, BenchRows *rows);
/* Writes rows.jsonl in the bench's folder, `n` objects filled by `fill`. */
typedef void BenchFill(JsonWriter *w, const Bench *bench, const void *context, size_t i);
Status bench_write_rows(const Bench *bench, size_t n, BenchFill *fill, const void *context);
void bench_write_ids(JsonWriter *w, const Bench *bench, const char *key, uint64_t stream, int64_t n);
/* The recipe of a run over rows.jsonl, with `more` settings; NULL ones are memory that could not be had. */
Status bench_recipe(const Bench *bench, const char *const *more, size_t n_more, Recipe **recipe);

Status bench_sft(Bench *bench);
Status bench_sft_mix(Bench *bench);
Status bench_full(Bench *bench);
/* DPO: bench->batch pairs a step. What the reference takes, once before the first step, is counted in. */
Status bench_dpo(Bench *bench);
/* GRPO: bench->batch prompts with 8 completions of bench->tokens tokens each; sampling, rewards and the step. */
Status bench_grpo(Bench *bench);
Status bench_prefill(Bench *bench);
Status bench_decode(Bench *bench);
Status bench_load_model(Bench *bench);
/* tune, which lies in the folder of this program, from its start until its first step is done: the best of `steps` runs. */
Status bench_start(Bench *bench);
Status bench_make_adapter(Bench *bench); /* for bench_merge */
Status bench_merge(Bench *bench);
/* One thread encodes --rows, or made text, again and again. */
Status bench_tokenizer(Bench *bench);

/* bench.json as markdown tables, one a shape. */
Status bench_table(const char *path);

/* What was asked for of works on models, and which table. */
typedef struct BenchJob {
    const char *list, *compute, *checkpointing, *rows, *tokenizer, *output, *table;
    int64_t batch, tokens, steps;
} BenchJob;
/* Works of job->list, on the models or shapes that are the command's arguments. */
Status bench_models(const Command *command, const BenchJob *job);

/* ---- works that need none ---- */

/* Acting and training of a tiny network: microseconds, and the share of what products reach on all threads. */
Status bench_mlp(const Command *command);
/* PPO on CartPole with the settings of other programs: environment steps a second of the whole run, and of its best update. */
Status bench_ppo(const Command *command);
double cpu_seconds(void); /* of this process, all threads */
/* ROUGE-L and all filters of texts over as many instructions as Alpaca has. */
Status bench_filter(const Command *command);
/* tune data synth with random weights of shape S, or those of the second argument, beside generation of the same answers. */
Status bench_synth(const Command *command);
/* Time and memory by the length of a row, the number of rows and of steps. */
Status bench_growth(const Command *command);
/* Sweeps and solutions of a world; it has options of its own. */
Status bench_mdp(int argc, char **argv);

#endif
