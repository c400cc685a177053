/* Works of tune bench. */
#ifndef TUNE_BENCH_H
#define TUNE_BENCH_H

#include "cmd/cmd.h"
#include "lib/model/model.h"

/* ---- works on a language model ---- */

enum { BENCH_LORA_RANK = 16, BENCH_STEPS = 4 }; /* of the steps the first is not timed: it packs weights */

/* row: what is printed; a NaN is a value that the work has not. rows_per_second: pairs, completions. */
typedef struct Measured { double tokens_per_second, trained_per_second, rows_per_second, gflops, gbytes_per_second, predicted, first_step, product_share; } Measured;
typedef struct Bench {
    const Command *command;
    const char *shape, *model, *folder, *compute; /* folder: for what is made, removed at the end */
    int64_t batch, tokens;
    ModelConfig config;
    CpuSpeed speed;
    double start, first, last;                    /* clock: work begun, first step done, last step done */
    double products_first, products_last;         /* seconds spent in products up to then */
    int64_t n_done;
    Measured row;
} Bench;
/* A step is done; `is_first`: it is not timed itself. */
void bench_mark_step(Bench *bench, bool is_first);
/* Weights in the layers' products, those of LoRA on all of them, those of the head. */
double bench_linear_weights(const ModelConfig *config);
double bench_lora_weights(const ModelConfig *config);
double bench_head_weights(const ModelConfig *config);
/* Scores and sums of one sequence of n tokens, each of which sees half of them on average. */
double bench_attention_flops(const ModelConfig *config, double n);

/* DPO on pairs with the lengths of hh-rlhf's; bench->batch: pairs, bench->tokens: of the longest prompt. What the reference takes, once before the first step, is counted in. */
Status bench_dpo(Bench *bench);
/* GRPO: bench->batch prompts with 8 completions of bench->tokens tokens each; sampling, rewards and the step. */
Status bench_grpo(Bench *bench);

/* ---- works that need none ---- */

/* Acting and training of a tiny network: microseconds, and the share of what products reach on all threads. */
Status bench_mlp(const Command *command);
/* PPO on CartPole with the settings of other programs: environment steps a second of the whole run, and of its best update. */
Status bench_ppo(const Command *command);
/* ROUGE-L and all filters of texts over as many instructions as Alpaca has. */
Status bench_filter(const Command *command);

#endif
