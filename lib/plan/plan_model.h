/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of a decoder, from its config.json alone: parameters, work, key/value cache, and what each rank of a tensor group holds. No weights are
 * read. A family that the program cannot train yet can still be planned.
 *
 *     PlanModel model;
 *     TRY(plan_model_read("model-dir", &model));
 *     double psi = plan_parameters(&model), work = plan_forward_work(&model, rows, tokens);
 */
#ifndef TUNE_PLAN_MODEL_H
#define TUNE_PLAN_MODEL_H

#include "lib/base/json.h"

/* Norms of queries and keys. */
typedef enum QkNorm {
    QK_NORM_NONE,
    QK_NORM_HEAD, /* over each head */
    QK_NORM_WHOLE /* over all heads of a token together */
} QkNorm;
/* Sizes under Hugging Face's names. */
typedef struct PlanModel {
    char model_type[48];
    bool known;    /* false: a family that is not in plan_families.def, planned by llama's rules */
    double stored; /* bytes of a stored weight: 2 for bf16 and f16, 4 for f32 */
    int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim;
    int64_t positions; /* rows of a learned table of positions; 0 = none */
    bool tie_word_embeddings, qkv_bias, o_bias, mlp_bias, gated, fused;
    int64_t norms;  /* of a layer, of hidden_size numbers each */
    bool norm_bias; /* layer norms, which have a bias */
    QkNorm qk_norm;
    /* mixtures of experts; num_experts 0 = none */
    int64_t num_experts, num_experts_per_tok, moe_intermediate_size, n_shared_experts, first_k_dense_replace;
    /* latent attention (MLA); kv_lora_rank 0 = none. q_lora_rank 0: queries are one product */
    int64_t q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim;
} PlanModel;
/* Reads config.json in `dir`, or the file itself. ST_INPUT: it cannot be read, a size is missing or no positive number, heads do not divide, or
 * layers that are not attention (mamba, convolutions, linear attention). */
Status plan_model_read(const char *dir, PlanModel *model);
Status plan_model_parse(const json_t *config, const char *where, PlanModel *model); /* where: for messages */

/* How the ranks of a tensor group divide one side of a matrix. */
typedef enum PlanSplit {
    SPLIT_WHOLE,    /* not at all */
    SPLIT_HEADS,    /* by query heads */
    SPLIT_KV_HEADS, /* by key/value heads, which ranks share if there are fewer heads than ranks */
    SPLIT_FFN       /* evenly */
} PlanSplit;
/* A linear layer, or `copies` of them (experts). A token uses `active` of these. */
typedef struct PlanMatrix {
    const char *name; /* "q_proj" */
    int64_t in, out;
    PlanSplit split_in, split_out;
    bool bias, adapted; /* adapted: `all-linear` gives it a branch */
    int64_t copies, active;
} PlanMatrix;
enum { PLAN_MATRICES = 12 };
/* The matrices of layer `layer`, from 0; returns their number. */
int plan_matrices(const PlanModel *model, int64_t layer, PlanMatrix matrices[PLAN_MATRICES]);

/* Rank number `rank`, from 0, of a tensor group of `size` ranks. {1, 0}: a rank that has everything. */
typedef struct PlanRank {
    int64_t size, rank;
} PlanRank;
/* ST_CONFIG unless `size` ranks can divide the heads: whole key/value groups, or a multiple of the key/value heads. The text names what does not fit,
 * the hint the sizes that do. */
Status plan_tensor_fits(const PlanModel *model, int64_t size);
int64_t plan_even(int64_t n, int64_t ranks, int64_t rank); /* the part of `rank` when n is divided as evenly as possible */
int64_t plan_heads(const PlanModel *model, PlanRank rank); /* query heads of a rank */
int64_t plan_side(const PlanModel *model, int64_t whole, PlanSplit split, PlanRank rank); /* the rank's part of a side of `whole` numbers */
double plan_embedding(const PlanModel *model, PlanRank rank); /* parameters of the rank's block of the embedding, or of the head */

/* A run of layers with or without the ends of the model. */
typedef struct PlanStage {
    int64_t first, layers;
    bool embedding, head; /* head: with the final norm. A tied head on another stage than the embedding is a copy */
} PlanStage;
PlanStage plan_whole(const PlanModel *model); /* a stage with all layers and both ends */
/* Numbers of parameters: of a rank in a stage, of a rank in a layer, of the model. */
double plan_stage_parameters(const PlanModel *model, PlanStage stage, PlanRank rank);
double plan_layer_parameters(const PlanModel *model, int64_t layer, PlanRank rank);
double plan_parameters(const PlanModel *model);
/* Parameters of LoRA factors of width r on a stage. targets: names of matrices; NULL = all of them. Experts have one pair each. */
double plan_lora_parameters(const PlanModel *model, PlanStage stage, PlanRank rank, int64_t r, const char *const *targets, size_t n_targets);

/* Number of matrix elements that one token is multiplied with: in a layer, and in all layers and the head. */
double plan_layer_elements(const PlanModel *model, int64_t layer);
double plan_elements(const PlanModel *model);
double plan_attention_work(const PlanModel *model, double tokens); /* operations of a layer's attention, forward, over one causal row */
/* Operations over `rows` rows of `tokens` tokens. Forward: 2 for each matrix element and token, and attention. Step: 6 for each element and token (4
 * if only an adapter is trained, with 6 for each of its parameters), and 3.5 x attention, whose backward pass computes the scores again. lora:
 * parameters of the adapter, 0 = full training. */
double plan_forward_work(const PlanModel *model, double rows, double tokens);
double plan_step_work(const PlanModel *model, double rows, double tokens, double lora);

/* Which keys and values a token leaves in the cache. */
typedef enum CacheKind {
    CACHE_MHA, /* of every query head */
    CACHE_GQA, /* of every key/value head */
    CACHE_MQA, /* of a single head */
    CACHE_MLA  /* latent attention: one compressed vector */
} CacheKind;
CacheKind plan_cache_kind(const PlanModel *model);                                     /* that of the model */
double plan_cache_bytes(const PlanModel *model, CacheKind kind, double element_bytes); /* bytes of a token in a cache of this kind, all layers */

#endif
