/* SPDX-License-Identifier: Apache-2.0 */
/* config.json: the settings of a model. */
#ifndef TUNE_MODEL_CONFIG_H
#define TUNE_MODEL_CONFIG_H

#include "lib/base/json.h"
#include "lib/tensor/tensor.h"

/* How rotary positions are scaled to longer contexts (rope_type). Source: transformers' modeling_rope_utils. */
typedef enum RopeType {
    ROPE_NONE,    /* no rotary positions */
    ROPE_DEFAULT, /* no scaling */
    ROPE_LINEAR,  /* all frequencies are divided by factor */
    ROPE_DYNAMIC, /* theta grows with the length of the sequence (NTK) */
    ROPE_YARN,    /* low frequencies are divided by factor, high ones are kept. arXiv 2309.00071 */
    ROPE_LLAMA3,  /* the same by wavelengths, between low_freq_factor and high_freq_factor */
    ROPE_LONGROPE /* a divisor for each frequency, from one list for short and one for long sequences. arXiv 2402.13753 */
} RopeType;
/* Names are those of rope_parameters in config.json, where it has the value. */
typedef struct RopeConfig {
    RopeType type;
    double rope_theta, factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    int64_t original_max_position_embeddings;
    double beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim; /* yarn; attention_factor (also longrope) 0 = computed from factor */
    bool truncate;                                                         /* yarn */
    double partial;                                                        /* share of each head's numbers that is rotated; 0 = all */
    bool neighbours;                                                       /* pairs (2i, 2i + 1) instead of (i, i + half) */
    double query_beta;        /* ministral3: queries grow with the logarithm of their position; 0 = off */
    int64_t n_factors;        /* longrope: length of each list */
    const double *factors[2]; /* divisors of the frequencies: for sequences within the original context, and for longer ones */
} RopeConfig;
/* Which of the model's ropes rotates a layer's queries and keys. */
typedef enum LayerRope {
    LAYER_ROPE,        /* ModelConfig.rope */
    LAYER_WINDOW_ROPE, /* ModelConfig.window_rope */
    LAYER_NO_ROPE      /* none: the layer does not rotate */
} LayerRope;
typedef enum NormKind {
    NORM_RMS,  /* x / rms(x) * weight */
    NORM_LAYER /* (x - mean) / deviation * weight + bias */
} NormKind;
/* Layers of experts; n 0: the model has none. */
typedef struct ExpertsConfig {
    int64_t n, width;     /* of each expert's inner values */
    int64_t shared_width; /* of the expert that all tokens pass; 0 = none */
    RouterArgs router;
    bool wide_router;    /* logits of the router are in f32, also in a step of bf16 */
    double limit, alpha; /* of op_clamped_glu */
    bool together;       /* the checkpoint has one tensor of three dimensions for all experts of a layer */
} ExpertsConfig;
/* Latent attention (MLA): keys and values of all heads come from kv_rank numbers of a token. kv_rank 0: the model has none. */
typedef struct LatentConfig {
    int64_t q_rank, kv_rank; /* q_rank 0: queries come from the token itself */
    int64_t nope, rope, v;   /* numbers of a head: of queries and keys without and with rotation, of values */
} LatentConfig;
/* The parts outside the layers that have a name in the checkpoint. */
typedef struct PartNames {
    const char *prefix; /* prefix that some checkpoints omit: "model." */
    const char *layers; /* "model.layers": part P of layer N is "model.layers.N.P" */
    const char *embed, *final_norm, *head;
    const char *positions;  /* NULL: none */
    const char *ignored[4]; /* last path components of tensors in checkpoints that have no use */
} PartNames;
/* What a layer is made of: x += output_norm(block(input_norm(x))) for each sublayer, one after the other. */
typedef struct BlockKind BlockKind; /* block.h */
typedef struct SublayerForm {
    const BlockKind *kind;                /* NULL: the layer has no more */
    const void *form;                     /* of the kind's type: the names of its parts within the layer, and variants */
    const char *input_norm, *output_norm; /* names within the layer; NULL: none */
} SublayerForm;
enum { MOST_SUBLAYERS = 4 };
typedef struct LayerForm {
    SublayerForm sublayers[MOST_SUBLAYERS];
} LayerForm;
typedef struct TextNames TextNames; /* text_part.h */
typedef struct ConfigReader ConfigReader;
typedef struct ModelConfig ModelConfig;
/* The definitions in a family file; see family.h. */
typedef struct ModelFamily {
    const char *model_type;
    /* Fills `config` from config.json. A field that changes the mathematics and is not supported fails and is named. */
    void (*read_config)(ConfigReader *reader, ModelConfig *config);
    const PartNames *names;
    const LayerForm *layer; /* of all layers, unless read_config sets ModelConfig.layer_forms */
    const char *class_name; /* prefix of its classes in transformers: "Llama" of LlamaForCausalLM */
} ModelFamily;
/* One decoder serves all families; a family file fills this from config.json. Names are Hugging Face's. */
struct ModelConfig {
    const char *model_type;
    const ModelFamily *family;
    const char *architecture; /* "" if the file names none */
    bool scores;              /* ...ForSequenceClassification with one label: a reward model without a head over the vocabulary */
    double initializer_range; /* standard deviation of new weights */
    int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim,
        max_position_embeddings;
    NormKind norm;
    double norm_eps, norm_offset;  /* offset: added to the weights of rms norms; 1 if files store them minus 1 */
    RopeConfig rope, window_rope;  /* window_rope: of layers for which layer_rope is LAYER_WINDOW_ROPE */
    LayerRope *layer_rope;         /* per layer; NULL = `rope` on all */
    const LayerForm **layer_forms; /* per layer; NULL = the family's on all */
    int64_t *layer_kv;      /* per layer: the layer whose keys and values its attention reads, itself or an earlier one; NULL = itself on all */
    bool learned_positions; /* gpt2 */
    bool qkv_bias, o_bias, mlp_bias;
    ExpertsConfig experts;
    LatentConfig latent;
    int64_t conv_taps; /* of short convolutions: tokens that each one reads; 0: the model has none */
    bool conv_bias;    /* of them and of their projections */
    Activation activation;
    bool in_out_weights; /* Conv1D layout */
    bool tie_word_embeddings;
    int64_t *layer_window;  /* per layer; 0 = full attention */
    double attention_scale; /* 0 = 1 / sqrt(head_dim) */
    double attn_softcap, final_softcap;
    double embed_scale;     /* factor of the embedding's rows */
    bool round_embed_scale; /* gemma: rounded to the compute dtype */
    double residual_scale;  /* factor of the outputs of attention and MLP */
    double logits_scaling;  /* divisor of the logits */
    double dropout;         /* the largest rate in the file; never applied */
    bool has_pad;
    int64_t pad_token_id; /* has_pad; of config.json */
    size_t n_eos;
    int64_t eos_token_id[8];     /* config.json and generation_config.json together */
    DType stored_dtype;          /* "dtype" / "torch_dtype"; of a loaded model: the dtype of the stored embedding */
    const char *wrapper;         /* model_type of the wrapper that this is the text part of; NULL: it is not wrapped */
    const TextNames *text_names; /* naming of the modules' paths; NULL: the family's */
    int64_t prediction_layers;   /* num_nextn_predict_layers: in the checkpoint, after the last layer; not used */
};
/* Reads config.json and generation_config.json of a directory. ST_INPUT: no such directory, an unsupported model_type or field, which is named.
 * Unknown keys are a warning. */
Status model_config_read(const char *dir, Arena *arena, ModelConfig *config);
Status model_config_parse(const json_t *json, const char *path, Arena *arena, ModelConfig *config); /* path: for messages */

/* Counts sequences beyond the model's context (max_position_embeddings). With learned positions such a sequence is an error; otherwise it is
 * computed, with a warning. */
typedef struct ContextCount {
    int64_t positions, n, longest; /* the limit, 0: none; number of longer sequences; tokens of the longest of them */
} ContextCount;
ContextCount context_count(const ModelConfig *config);
void context_add(ContextCount *count, int64_t tokens); /* counts a sequence of so many tokens if it is beyond the limit */
/* Appends "12 rows are longer than ...". one, many: the subject for one and for several, with its verb: "row is", "rows are". False: no sequence was
 * counted. */
bool context_describe(const ContextCount *count, const char *one, const char *many, Str *text);

#endif
