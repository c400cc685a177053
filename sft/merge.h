/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters merged into their base: W + sum of weight_i x delta_i, written as a Hugging Face directory.
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
    const char *base; /* Hugging Face directory */
    const MergeAdapter *adapters;
    size_t n_adapters;
    const char *output;
    bool force;   /* a model directory that is there gives way: it is kept as NAME.1, NAME.2, ... */
    bool convert; /* all weights in `dtype` (f32, bf16, f16); else each as the base has it */
    DType dtype;
    bool prove; /* run both models on a few tokens and compare; in `compute` */
    DType compute;
    void (*on_tensor)(void *context, size_t done, size_t n); /* may be NULL */
    void *context;
} MergeConfig;
/* A tensor as written. error: the largest distance of a stored value from base value + delta; what rounding to the stored dtype took. */
typedef struct MergedTensor {
    const char *name;
    bool changed;
    double error;
} MergedTensor;
typedef struct MergeResult {
    size_t n;
    MergedTensor *tensors;     /* in the order of the files */
    size_t n_changed;          /* those that an adapter changed */
    const MergedTensor *worst; /* of the largest error */
    /* What rounding to the stored dtype takes of what the adapters change: its norm as a share of theirs, over all changed tensors; and the share of
     * the weights which they move that are stored as they were. */
    double delta_lost, unmoved;
    const char *kept; /* where the model is that was in the output before; NULL: there was none */
    bool scores;      /* a reward model came out */
    /* With `prove`, of language models: mean KL(unmerged || merged) in nats, and the share of positions where both find the same token likeliest */
    double kl, top1_agreement;
    double score_error; /* of reward models: how far the scores of unmerged and merged model are apart at most */
    Arena *arena;
} MergeResult;
/* Works tensor by tensor: beyond the mapped files it holds blocks of one tensor at a time. The delta of a LoRA layer is weight x scale x B A, of a
 * module that was trained whole (modules_to_save) weight x (trained - base). An embedding or head trained whole over a base that ties them makes them
 * two: lm_head.weight is written and config.json says so. Adapters of reward models (modules_to_save: [score]) make a ...ForSequenceClassification
 * with one label; a base without a score counts as one of zeros. Files are divided into shards as the base's. The directory is made aside as
 * .OUTPUT.tune-partial and appears whole. ST_INPUT: a broken base or adapter, an adapter of another model; ST_CONFIG: the output is taken;
 * ST_NUMERIC: a value beyond the dtype's range; ST_RESOURCE; ST_INTERRUPTED. */
Status merge_run(const MergeConfig *config, MergeResult **result);
void merge_free(MergeResult *result);

#endif
