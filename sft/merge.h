/* SPDX-License-Identifier: Apache-2.0 */
/* Merges adapters into their base: W + sum of weight_i x delta_i, written as a Hugging Face directory.
 *
 *     MergeConfig config = {.base = "smollm2", .adapters = &(MergeAdapter){"runs/a/adapter", 1}, .n_adapters = 1, .output = "merged"};
 *     MergeResult *result;
 *     TRY(merge_run(&config, &result));
 *     merge_free(result);
 */
#ifndef TUNE_MERGE_H
#define TUNE_MERGE_H

#include "lib/model/model.h"

typedef struct MergeAdapter {
    const char *dir;
    double weight;
} MergeAdapter;
typedef struct MergeConfig {
    const char *base; /* Hugging Face directory or GGUF file; quantised weights are merged as their values, rounded once */
    /* The adapters, which were trained on `base`, are added to this model instead, from which `base` was quantised; NULL: to `base` itself */
    const char *onto;
    const MergeAdapter *adapters;
    size_t n_adapters;
    const char *output;
    bool force;   /* an existing model directory is replaced; the old one is renamed to NAME.1, NAME.2, ... */
    bool convert; /* all weights in `dtype` (f32, bf16, f16); otherwise each in the dtype of the base */
    DType dtype;
    bool prove; /* run both models on a few tokens and compare; always with `onto` or a quantised base */
    Runtime runtime;
    void (*on_tensor)(void *context, size_t done, size_t n); /* may be NULL */
    void *context;
} MergeConfig;
/* A written tensor. */
typedef struct MergedTensor {
    const char *name;
    bool changed; /* by an adapter */
    double error; /* the largest distance of a stored value from base value + delta, caused by rounding to the stored dtype */
} MergedTensor;
typedef struct MergeResult {
    size_t n;
    MergedTensor *tensors;     /* in the order of the files */
    size_t n_changed;          /* those that an adapter changed */
    const MergedTensor *worst; /* of the largest error */
    /* The effect of rounding to the stored dtype on the adapters' changes: the norm of the rounding error as a share of the norm of the changes, over
     * all changed tensors; and the share of changed weights whose stored value did not change. */
    double delta_lost, unmoved;
    const char *kept; /* the new place of the model that was in the output before; NULL: there was none */
    bool scores;      /* the result is a reward model */
    bool quantised;   /* the model that the adapters were added to */
    /* Of a quantised model: if the merged weights were quantised again in the same forms, the norm of the rounding error as a share of the norm of
     * the adapters' changes; requantised: it is known */
    bool requantised;
    double requantised_lost;
    bool proved; /* the following are known */
    /* For language models: mean KL(unmerged || merged) in nats, and the share of positions with the same most likely token */
    double kl, top1_agreement;
    double score_error; /* for reward models: the largest difference between scores of the unmerged and the merged model */
    Arena *arena;
} MergeResult;
/* Merges, and writes the directory as .OUTPUT.tune-partial, which it renames when it is complete. Works tensor by tensor: in addition to the mapped
 * files it needs memory for blocks of one tensor at a time. The delta of a LoRA layer is weight x scale x B A; that of a fully trained module
 * (modules_to_save) is weight x (trained - base). If the base ties embedding and head and one of them is fully trained, they are untied:
 * lm_head.weight is written and config.json says so. Adapters of reward models (modules_to_save: [score]) make a ...ForSequenceClassification with
 * one label; if the base has no score, its score counts as zeros. Tensors are divided into files as in the base. ST_INPUT: a broken base or adapter,
 * an adapter of another model; ST_CONFIG: the output exists, DoRA with other
 * adapters or weights; ST_NUMERIC: a value exceeds the dtype's range; ST_RESOURCE; ST_INTERRUPTED. The caller
 * calls merge_free. */
Status merge_run(const MergeConfig *config, MergeResult **result);
void merge_free(MergeResult *result);

#endif
