/* SPDX-License-Identifier: Apache-2.0 */
/* Language models from Hugging Face directories: one decoder, with a family file for each model type. Other headers of this folder: weight_file.h
 * (stored tensors), safetensors.h (writing them), convert.h (their numbers), config.h (config.json), rope.h, adapter.h (LoRA).
 *
 *     Model *model;
 *     TRY(model_load("model-dir", &(ModelOptions){.device = runtime.device, .compute = runtime.compute}, &model));
 *     Tensor *hidden = model_forward(model, tape, &batch);             // (N, C), after the final norm
 *     TokenLogprobs p = op_token_logprobs(tape, hidden, model->head, rows, targets, &model->logprob);
 *     model_free(model);
 */
#ifndef TUNE_MODEL_H
#define TUNE_MODEL_H

#include "lib/model/config.h"
#include "lib/model/convert.h"
#include "lib/model/weight_file.h"
#include "lib/nn/nn.h"

/* A weight in the checkpoint: module path, the slots of its tensors in the model, and their shapes by config.json. */
typedef struct Module {
    const char *path;        /* "model.layers.0.self_attn.q_proj" */
    bool bare;               /* its tensor is named `path`, not "path.weight" */
    Tensor **weight, **bias; /* bias NULL = there is none */
    int n_dims;
    int64_t shape[3]; /* of the weight */
    int64_t bias_width;
    bool in_out;
    Linear *linear; /* the linear layer with this weight; NULL for other weights and for the head */
    bool sparse;    /* a step reads only some of these weights (experts): they stay in the mapped file, and are not read when the model is loaded */
    bool fixed;     /* not trained with the model: other programs set it (a router's bias for the choice) */
} Module;
int64_t module_count(const Module *module); /* elements of the weight */
typedef struct Norm {
    Tensor *weight, *bias; /* weight NULL: the model has no norm in this place */
} Norm;
/* x + output_norm(block(input_norm(x))) */
typedef struct Sublayer {
    const BlockKind *kind;
    void *block; /* the kind's struct */
    Norm input_norm, output_norm;
} Sublayer;
typedef struct DecoderLayer {
    Sublayer *sublayers;
    int n_sublayers;
} DecoderLayer;
/* What a sequence keeps of each token for one block: attention's keys and values. */
typedef struct CacheRow {
    int64_t keys, values; /* how many numbers */
} CacheRow;
typedef struct Model {
    ModelConfig config;
    const char *dir; /* that it was loaded from */
    const Device *device;
    DType compute;
    Tensor *embed;          /* (V, C) */
    Tensor *position_embed; /* (max positions, C) or NULL */
    DecoderLayer *layers;
    Norm final_norm;
    Tensor *head;  /* (V, C); the same tensor as embed if tied; NULL if there is a score */
    Tensor *score; /* (1, C): one number for each sequence, at its last token; NULL = none */
    Params params;
    Linear **linears; /* all linear layers but the head, in order; n_linears */
    size_t n_linears;
    Module *modules; /* every part with weights, in the order of the forward pass; n_modules */
    size_t n_modules;
    CacheRow *cache_rows; /* of all blocks that have one, in order; n_cache_rows */
    int n_cache_rows;
    int64_t *state_widths; /* of the states of all blocks that have one, in order; n_states */
    int n_states;
    int n_shared;  /* tensors that layers hand on (op_layer_shared) */
    int n_routers; /* layers of experts */
    struct {
        const AttentionArgs *args; /* NULL: not asked for by model_show_attention */
        int place;                 /* among the shared tensors: queries; the next one: keys */
    } shown;
    LogprobArgs logprob; /* the model's soft cap; its temperature is the model's divisor of logits */
    LoraConfig lora;     /* of the attached adapter; rank 0 = none */
    Checkpointing checkpointing;
    WeightFile *files;
    HostMemory *shared;               /* owned: copies of frozen weights that the ranks of this machine have once; NULL: none */
    const StoredTensor **passthrough; /* n_passthrough: tensors that are not used, but saved with the model */
    size_t n_passthrough;
    Arena *arena; /* owned: weights, adapters, gradients */
} Model;
typedef struct Quantise Quantise;
typedef struct Comm Comm; /* lib/comm/comm.h */
typedef struct ModelOptions {
    const Device *device;
    DType compute;  /* f32 or bf16 (f64 on the reference device) */
    bool train_all; /* full fine-tuning: every weight becomes a trained f32 copy */
    bool lends;     /* with train_all: gradients have memory only while a tape lends it (params_train_lent) */
    /* Ranks that load this model at the same time, all of them. Those of one machine have frozen weights once: in the mapped file, or, what is
     * converted or packed for products, in common memory. NULL: this process alone */
    Comm *comm;
    bool apart;          /* with comm: the ranks load it at different times, so that only the mapped file is common to them */
    bool backward;       /* with comm: weights are also packed for backward passes */
    bool dequantize;     /* quantised weights become values in `compute`; else products read their codes */
    bool skip_nan_check; /* weights are checked for NaN and infinities unless set */
    /* For callers that read each weight once: weights stay in the mapped file, and checked pages are released (model_drop_pages) */
    bool streamed;
    /* a reward model: with `score` instead of the head over the vocabulary. If the checkpoint has no score, a new one is drawn by `seed` with
     * initializer_range */
    bool scores;
    uint64_t seed;
    const Quantise *quantise; /* weights of linear layers are quantised first (quantise.h); NULL: as they are stored */
    /* called before the weights are read, with their number; may be NULL */
    Status (*admit)(const void *context, int64_t n_weights);
    const void *context;
} ModelOptions;
/* Weights stay mapped in their stored form, or are copied if products read them in place, quantised ones too; norms and biases become f32
 * copies. ST_INPUT names file and
 * tensor: a weight that is missing, unexpected, of another shape than config.json says, or with a NaN or an infinity; a reward model in place of a
 * language model. The other parts of a wrapped model are not checked, and are carried along when the model is saved or merged. */
Status model_load(const char *dir, const ModelOptions *options, Model **model);
void model_free(Model *model);
/* A hash that identifies the model: of all weights and adapters, and of the settings of config.json that change the mathematics. */
uint64_t model_fingerprint(const Model *model);
/* The SHA-256 of the weights of all linear layers but the head, as 64 digits: of lines "NAME DIGEST", in the order of the forward pass, with the
 * SHA-256 of each weight's values in float32. Equal for a quantised model and one with its dequantised values. model: with its files.
 * ST_RESOURCE. */
Status model_base_digest(const Model *model, char digest[65]);
const Mapping *model_mapping(const Model *model, const void *data); /* the mapped file that contains these bytes; NULL if none does */
/* Lets the system reclaim the memory of a weight in the mapped file. The next access reads it from the file again. */
void model_drop_pages(const Model *model, const void *data, size_t bytes);
/* A second model on the same frozen weights, to carry another adapter: nothing is copied, and its only parameters are those attached to it. `model`
 * must outlive it, and none of its weights may be trained or replaced (model_can_share_weights). ST_RESOURCE. */
Status model_share_weights(const Model *model, Model **twin);
Status model_share_weights_scored(const Model *model, uint64_t seed, Model **twin); /* with a score as by ModelOptions.scores and seed */
bool model_can_share_weights(const Model *model);

/* Uniform noise on the embeddings of each segment: at most alpha / sqrt(tokens of its sequence x hidden_size), drawn by keys[segment]. For a segment
 * shared by several sequences the longest of them counts. alpha 0: none. Source: NEFTune, arXiv 2310.05914, algorithm 1. */
typedef struct EmbedNoise {
    double alpha;
    const RngKey *keys;
} EmbedNoise;
/* What recurrences keep of the sequences in a cache, whatever their length (kv_cache.h). */
typedef struct SequenceStates {
    Tensor **items; /* items[i]: (n_pages of the cache, width) in the residual dtype, n of them; Segment.state: a sequence's row */
    int n;
} SequenceStates;
/* Queries (N, H x D) and keys (N, KV x D) of the last layer, as its attention gets them; on the tape, until the step ends. */
typedef struct ShownAttention {
    Tensor *q, *k;
    AttentionArgs args;
} ShownAttention;
/* A flat batch of tokens. ids: N. Data that the layout points to must stay valid until the step ends. */
typedef struct ModelBatch {
    const int32_t *ids;
    Layout layout;
    StepContext step;
    EmbedNoise noise;
    SequenceStates *states; /* with a cache; may be NULL if the model has no states */
    RouterLoad *loads;      /* n_routers of them: each layer of experts adds what its router did; NULL: not wanted */
    ShownAttention *shown;  /* receives the queries and keys of the last layer, after model_show_attention; NULL: not wanted */
} ModelBatch;
/* Hidden states after the final norm: (N, C) compute dtype. ST_INPUT on the tape for an id outside the vocabulary or a position beyond learned
 * positions. */
Tensor *model_forward(const Model *model, Tape *tape, const ModelBatch *batch);
/* Makes ModelBatch.shown possible. ST_CONFIG: the last layer has no plain softmax attention (a window, sinks, keys of another layer). */
Status model_show_attention(Model *model);
/* The residual stream (N, C) after the first `n_layers` layers, before the final norm. */
Tensor *model_residual(const Model *model, Tape *tape, const ModelBatch *batch, int64_t n_layers);
/* The residual stream after layers first..end-1; x: that before them, (N, C) in the tape's residual dtype, or NULL: the embedding, with first 0. Not
 * with first above 0 for models whose layers read results of earlier ones (Model.n_shared is not 0). */
Tensor *model_layers(const Model *model, Tape *tape, const ModelBatch *batch, Tensor *x, int64_t first, int64_t end);
/* Logits of chosen rows: (P, V) f32 (f64 if compute is f64) after soft cap, and f64 (P) log-sum-exp of each row, NaN if one of its logits is not
 * finite. For sampling and for `score --logits`. rows: i32 (P). Not recorded. Both NULL after a failure, which the tape stores. */
typedef struct Logits {
    Tensor *logits, *logsumexp;
} Logits;
Logits model_logits(const Model *model, Tape *tape, Tensor *hidden, const Tensor *rows);
/* log p of token `id` by row `row`: equal to the bit to the result of op_token_logprobs. */
double logits_logprob(const Logits *logits, int64_t row, int32_t id);

/* Writes the full model (full fine-tuning) as a Hugging Face directory in `dtype`, or with NULL each tensor in its original dtype; config, tokenizer,
 * template and processor files are copied, as are tensors that the decoder does not use. The folder appears complete or not at all. loss: the effect
 * of rounding on the changes relative to the original files; may be NULL. ST_NUMERIC: a value exceeds the dtype's range; the tensor is named. */
Status model_save(const Model *model, const char *dir, const DType *dtype, RoundingLoss *loss);
/* Copies generation_config.json, tokenizer, template and processor files, those that exist. Returns failures of reading and writing. */
Status model_copy_files(const char *from, const char *to);
/* Writes config.json of `from` to `to` with another dtype, under its existing key (dtype or torch_dtype). untie: the head has separate weights now.
 * class_name: the model became this family's ...ForSequenceClassification with one label; NULL = no change of class. For such a model a padding token
 * that is also an end token is left out, since transformers would score the token before it. */
Status model_copy_config(const char *from, const char *to, DType dtype, bool untie, const char *class_name);
/* Writes a Hugging Face directory of random weights in the shape of a config: for benchmarks and the demo's start. scale: standard deviation of
 * matrices, which are drawn uniformly; norm weights are 1, biases 0. config_json: the text of config.json, in which the dtype is set to `dtype`. */
Status model_write_random(const char *dir, const char *config_json, DType dtype, uint64_t seed, double scale);

/* Bytes that a model takes, computed from shapes alone. mapped: parameters in a mapped file, whose pages the system can release; shared: what the
 * ranks of this machine have once; weights: other parameters; packed: packed copies for products, also for those of a backward pass if `backward`;
 * gradients: of trained parameters. */
typedef struct ModelMemory {
    size_t mapped, shared, weights, packed, gradients;
} ModelMemory;
ModelMemory model_memory(const Model *model, bool backward);

#endif
