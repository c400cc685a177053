/* SPDX-License-Identifier: Apache-2.0 */
/* Language models from Hugging Face directories: safetensors, config.json of both generations, one decoder with a family file for each model type,
 * PEFT adapters.
 *
 *     Model *model;
 *     TRY(model_load("model-dir", &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
 *     TRY(adapter_load(model, "adapter-dir", false));
 *     Tensor *hidden = model_forward(model, tape, &batch);             // (N, C), after the final norm
 *     TokenLogprobs p = op_token_logprobs(tape, hidden, model->head, rows, targets, &model->logprob);
 *     model_free(model);
 */
#ifndef TUNE_MODEL_H
#define TUNE_MODEL_H

#include "lib/base/json.h"
#include "lib/nn/nn.h"

/* ---- safetensors (github.com/huggingface/safetensors, "Format"). Mapped, not read; every length is checked ---- */

typedef struct StoredTensor {
    const char *name;
    DType dtype; /* F32 F16 BF16 F64; I32 for "I32". Others (I64, ...) have known = false */
    bool known;
    const char *dtype_text; /* as in the file: "BF16" */
    int n_dims;
    int64_t shape[8];
    int64_t count;       /* number of elements */
    const uint8_t *data; /* points into the mapping, any alignment */
    size_t bytes;
    const char *file; /* path of its file */
} StoredTensor;
typedef struct Safetensors {
    StoredTensor *tensors; /* in file order, files in the order of their names */
    size_t n;
    StoredTensor **by_name; /* the same, sorted by name */
    size_t n_files;
    const char **files; /* names of the shards within the directory */
    Mapping *mappings;
    Arena *arena;
    json_t *metadata; /* of the first file; may be NULL */
} Safetensors;
/* A file, or a directory with model.safetensors or model.safetensors.index.json. ST_INPUT: missing, truncated, header too long or no JSON, holes or
 * overlaps, sizes that contradict shapes, a tensor of the index that no shard contains. */
Status safetensors_open(const char *path, Safetensors **set);
/* For tests: a file's bytes in memory, which the caller owns and which must outlive the set. path: for messages. */
Status safetensors_parse(const void *bytes, size_t size, const char *path, Safetensors **set);
void safetensors_close(Safetensors *set);
const StoredTensor *safetensors_find(const Safetensors *set, const char *name);
/* For tests: element `i` of any float dtype or I32, I64; NaN for other dtypes. */
double stored_get(const StoredTensor *tensor, int64_t i);

/* Writes one file: declare all tensors, each with a unique name, then pass their bytes in the same order (any piece size). The file appears complete
 * or not at all. */
typedef struct SafetensorsWriter SafetensorsWriter;
Status safetensors_writer_new(const char *path, SafetensorsWriter **writer); /* __metadata__ starts with {"format":"pt"} */
void safetensors_declare(SafetensorsWriter *writer, const char *name, DType dtype, int n_dims, const int64_t *shape);
void safetensors_declare_as(SafetensorsWriter *writer, const StoredTensor *tensor); /* under its own name, in its own dtype of any kind */
void safetensors_metadata(SafetensorsWriter *writer, const char *key, const char *value);
void safetensors_write(SafetensorsWriter *writer, const void *bytes, size_t size);
/* Converts and writes `count` elements. */
void safetensors_write_as(SafetensorsWriter *writer, const void *elements, DType from_dtype, DType to_dtype, size_t count);
void safetensors_write_tensor(SafetensorsWriter *writer, const Tensor *tensor, DType to_dtype); /* all of its elements, converted */
bool safetensors_failed(const SafetensorsWriter *writer); /* tells the caller not to compute the remaining tensors: commit returns the failure */
Status safetensors_commit(SafetensorsWriter *writer);     /* frees the writer, also on failure */
void safetensors_abandon(SafetensorsWriter *writer);      /* frees it and leaves no file */
/* Writes model.safetensors.index.json in `dir`, for weights in several files. file: the name of the tensor's file within `dir`. bytes: of all
 * tensors. */
typedef struct IndexedTensor {
    const char *name, *file;
} IndexedTensor;
Status safetensors_write_index(const char *dir, const IndexedTensor *tensors, size_t n, uint64_t bytes);
/* Converts `count` elements between float dtypes (host memory; unaligned source is fine). */
void convert_elements(const void *from, DType from_dtype, void *to, DType to_dtype, size_t count);
/* Fills elements at..at+n-1 of a tensor with n elements of `dtype`, converted. Fails as the device does. */
Status tensor_convert(Tensor *tensor, int64_t at, const void *from, DType dtype, int64_t n);
Status tensor_floats(const Tensor *tensor, int64_t at, int64_t n, float *out); /* the other way, to f32 */
DType dtype_from_text(const char *text);                                       /* f32, bf16 or f16, for lists of options */

/* The effect of storing weights in a dtype on their changes: sums of squares of the changes and of the rounding errors; the number of changed
 * weights, and of those whose stored value is unchanged. Starts as all zeros. */
typedef struct RoundingLoss {
    double change, lost;
    int64_t n_moved, n_unmoved;
} RoundingLoss;
enum { ROUNDING_PIECE = 256 };
/* Stores `n` sums base + change, at most ROUNDING_PIECE, in `dtype` (f32, bf16, f16), and adds to `loss`. Returns the largest distance from the exact
 * sum; infinite if one exceeds the dtype's range. */
double round_sums(const float *sums, const float *base, const float *change, size_t n, DType dtype, void *stored, RoundingLoss *loss);
void rounding_add(RoundingLoss *loss, const RoundingLoss *more);
double rounding_lost(const RoundingLoss *loss);    /* the norm of the rounding errors as a share of that of the changes; 0 if nothing changed */
double rounding_unmoved(const RoundingLoss *loss); /* share of the changed weights whose stored value is unchanged */
#define ROUNDING_TOO_COARSE 0.3                    /* a larger loss causes a warning */

/* ---- config.json ---- */

typedef enum RopeType { ROPE_NONE, ROPE_DEFAULT, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_YARN, ROPE_LLAMA3, ROPE_LONGROPE } RopeType;
typedef struct RopeConfig {
    RopeType type;
    double rope_theta, factor;
    double low_freq_factor, high_freq_factor;
    int64_t original_max_position_embeddings;
    double beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim; /* attention_factor 0 = computed from factor */
    bool truncate;
    double partial;           /* share of each head's numbers that is rotated; 0 = all */
    bool neighbours;          /* pairs (2i, 2i + 1) instead of (i, i + half) */
    double query_beta;        /* ministral3: queries grow with the logarithm of their position; 0 = off */
    int64_t n_factors;        /* longrope: length of each list */
    const double *factors[2]; /* divisors of the frequencies: for sequences within the original context, and for longer ones */
} RopeConfig;
/* Which of the model's ropes rotates a layer's queries and keys. */
typedef enum LayerRope { LAYER_ROPE, LAYER_WINDOW_ROPE, LAYER_NO_ROPE } LayerRope;
typedef enum NormKind { NORM_RMS, NORM_LAYER } NormKind;
/* The parts of a decoder that have a name in the checkpoint; every layer has those from PART_INPUT_NORM on. */
typedef enum Part {
    PART_EMBED,
    PART_POSITIONS,
    PART_FINAL_NORM,
    PART_HEAD,
    PART_INPUT_NORM,     /* before attention */
    PART_ATTENTION_NORM, /* of the output of attention, before it is added */
    PART_POST_NORM,      /* before the MLP */
    PART_MLP_NORM,       /* of the output of the MLP, before it is added */
    PART_Q_NORM,
    PART_K_NORM,
    PART_Q,
    PART_K,
    PART_V,
    PART_QKV,
    PART_O,
    PART_GATE,
    PART_UP,
    PART_GATE_UP, /* both in one, gate first */
    PART_DOWN,
    N_PARTS
} Part;
typedef struct PartNames {
    const char *prefix;         /* prefix that some checkpoints omit: "model." */
    const char *layers;         /* "model.layers": part P of layer N is "model.layers.N.P" */
    const char *parts[N_PARTS]; /* NULL = the family has none */
    const char *ignored[4];     /* last path components of tensors in checkpoints that have no use */
} PartNames;
typedef struct TextNames TextNames; /* text_part.h */
typedef struct ConfigReader ConfigReader;
typedef struct ModelConfig ModelConfig;
/* The definitions in a family file; see family.h. */
typedef struct ModelFamily {
    const char *model_type;
    /* Fills `config` from config.json. A field that changes the mathematics and is not supported fails and is named. */
    void (*read_config)(ConfigReader *reader, ModelConfig *config);
    const PartNames *names;
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
    double norm_eps, norm_offset; /* offset: added to the weights of rms norms; 1 if files store them minus 1 */
    RopeConfig rope, window_rope; /* window_rope: of layers with that value in layer_rope */
    LayerRope *layer_rope;        /* per layer; NULL = `rope` on all */
    bool learned_positions;       /* gpt2 */
    bool qkv_bias, o_bias, mlp_bias;
    bool qk_norm;       /* qwen3: rms norm over each head before rope */
    bool qk_norm_whole; /* olmo2: over all heads together */
    bool gated_mlp;     /* gate and up, or one fc */
    bool fused_gate_up; /* phi3: one projection for gate and up */
    Activation activation;
    bool in_out_weights; /* Conv1D layout */
    bool fused_qkv;      /* gpt2: c_attn computes q, k and v together */
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

/* ---- models ---- */

/* A weight in the checkpoint: module path, the slots of its tensors in the model, and their shapes by config.json. */
typedef struct Module {
    const char *path;        /* "model.layers.0.self_attn.q_proj" */
    Tensor **weight, **bias; /* bias NULL = there is none */
    int64_t shape[2];        /* of the weight; shape[1] 0 = one dimension (norms) */
    int64_t bias_width;
    bool in_out;
} Module;
typedef struct Norm {
    const char *path;
    Tensor *weight, *bias;
} Norm;
typedef struct DecoderLayer {
    Norm input_norm, attention_norm, post_norm, mlp_norm, q_norm, k_norm; /* no weight: the part is missing */
    Linear q, k, v, o, qkv;                                               /* qkv instead of q, k, v if fused */
    Linear gate, up, gate_up, down;                                       /* up alone if not gated, gate_up instead of both if fused */
} DecoderLayer;
typedef struct Model {
    ModelConfig config;
    const char *dir;
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
    LogprobArgs logprob; /* the model's soft cap; its temperature is the model's divisor of logits */
    LoraConfig lora;     /* of the attached adapter; rank 0 = none */
    Checkpointing checkpointing;
    Safetensors *files;
    const StoredTensor **passthrough; /* n_passthrough: tensors that are not used, but saved with the model */
    size_t n_passthrough;
    Arena *arena; /* of the run: weights, adapters, gradients */
} Model;
typedef struct ModelOptions {
    const Device *device;
    DType compute;       /* f32 or bf16 (f64 on the reference device) */
    bool train_all;      /* full fine-tuning: every weight becomes a trained f32 copy */
    bool skip_nan_check; /* weights are checked for NaN and infinities unless set */
    /* For callers that read each weight once: weights stay in the mapped file, and checked pages are released (model_drop_pages) */
    bool streamed;
    /* a reward model: with `score` instead of the head over the vocabulary. If the checkpoint has no score, a new one is drawn by `seed` with
     * initializer_range */
    bool scores;
    uint64_t seed;
    /* called before the weights are read, with their number; may be NULL */
    Status (*admit)(const void *context, int64_t n_weights);
    const void *context;
} ModelOptions;
/* Weights stay mapped in their stored form, or are copied if products read them in place; norms and biases become f32 copies. ST_INPUT names file and
 * tensor: a weight that is missing, unexpected, of another shape than config.json says, or with a NaN or an infinity; a reward model in place of a
 * language model. The other parts of a wrapped model are not checked, and are carried along when the model is saved or merged. */
Status model_load(const char *dir, const ModelOptions *options, Model **model);
void model_free(Model *model);
/* A hash that identifies the model: of all weights and adapters, and of the settings of config.json that change the mathematics. */
uint64_t model_fingerprint(const Model *model);
const Mapping *model_mapping(const Model *model, const void *data); /* the mapped file that contains these bytes; NULL if none does */
/* For a weight in the mapped file that is not needed for now: lets the system reclaim its memory */
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
/* A flat batch of tokens. ids: N. Data that the layout points to must stay valid until the step ends. */
typedef struct ModelBatch {
    const int32_t *ids;
    Layout layout;
    StepContext step;
    EmbedNoise noise;
} ModelBatch;
/* Counts sequences beyond the model's context (max_position_embeddings). With learned positions such a sequence is an error; otherwise it is
 * computed, with a warning. */
typedef struct ContextCount {
    int64_t positions, n, longest;
} ContextCount; /* positions 0: no limit; longest: tokens of the longest counted sequence */
ContextCount context_count(const ModelConfig *config);
void context_add(ContextCount *count, int64_t tokens);
/* Appends "12 rows are longer than ..."; false: there is none */
bool context_describe(const ContextCount *count, const char *one, const char *many, Str *text);

/* Hidden states after the final norm: (N, C) compute dtype. ST_INPUT on the tape for an id outside the vocabulary or a position beyond learned
 * positions. */
Tensor *model_forward(const Model *model, Tape *tape, const ModelBatch *batch);
/* The residual stream (N, C) after the first `n_layers` layers, before the final norm. */
Tensor *model_residual(const Model *model, Tape *tape, const ModelBatch *batch, int64_t n_layers);
/* Logits of chosen rows: (P, V) f32 (f64 if compute is f64) after soft cap, and f64 (P) log-sum-exp of each row, NaN if one of its logits is not
 * finite. For sampling and for `score --logits`. rows: i32 (P). Not recorded. Both NULL after a failure, which the tape stores. */
typedef struct Logits {
    Tensor *logits, *logsumexp;
} Logits;
Logits model_logits(const Model *model, Tape *tape, Tensor *hidden, const Tensor *rows);
/* log p of token `id` by row `row`: equal to the bit to the result of op_token_logprobs. */
double logits_logprob(const Logits *logits, int64_t row, int32_t id);

/* Angles for positions 0..: fills inv_freq (dims / 2) and the factor on cos and sin. dims: how many numbers of a head are rotated. seq_len: for
 * scaling by length. Source: transformers' modeling_rope_utils. */
int64_t rope_dims(const RopeConfig *rope, int64_t head_dim);
bool rope_by_length(const RopeConfig *rope);
void rope_frequencies(const RopeConfig *rope, int64_t dims, int64_t max_position_embeddings, int64_t seq_len, double *inv_freq,
                      double *attention_factor);

/* Tokens of the longest sequence that contains segment `s`: the length for scaling by length. */
int64_t tree_length(const Layout *layout, int32_t s);
/* cos and sin of every token's angles, times the scaling's factor: (N, dims / 2) each. Those of queries are the same tensors unless queries are
 * scaled by their position. */
typedef struct RopeTables {
    Tensor *cosine, *sine, *query_cosine, *query_sine;
} RopeTables;
Status rope_tables(const ModelConfig *config, const RopeConfig *rope, const Layout *layout, Arena *arena, const Device *device, DType dtype,
                   RopeTables *tables);

/* The linear layer of the module's weight; NULL: it is none. */
Linear *module_linear(const Model *model, const Module *module);
/* Attaches new LoRA branches to the targets, and full copies of modules_to_save. The names in `config` must outlive the model. ST_CONFIG names a
 * target that matches nothing, and lists the existing names. */
Status model_attach_lora(Model *model, const LoraConfig *config, uint64_t seed);
/* Reads a PEFT directory (adapter_config.json, adapter_model.safetensors) into the model. trained: its tensors are trained further. ST_INPUT: missing
 * files, another model's shapes, an unsupported adapter kind (DoRA, embedding LoRA, ...: named), unused tensors. */
Status adapter_load(Model *model, const char *dir, bool trained);
/* The LoRA settings of adapter_config.json. ST_INPUT as above. */
Status adapter_config_read(const char *dir, Arena *arena, LoraConfig *config);
/* The base that adapter_config.json names, "" if none. */
Status adapter_base(const char *dir, Arena *arena, const char **base);
/* Appends the layers with a branch: "28 linear layers: 4 q_proj, 4 k_proj, ...", for a wrapped model with their place; nothing if there are none. */
void adapter_describe(const Model *model, Str *text);
/* Writes adapter_config.json and adapter_model.safetensors in PEFT's format. base: name_or_path of the base model. The folder appears complete or not
 * at all. */
Status adapter_save(const Model *model, const char *dir, const char *base);
/* Writes the full model (full fine-tuning) as a Hugging Face directory in `dtype`, or with NULL each tensor in its original dtype; config, tokenizer,
 * template and processor files are copied, as are tensors that the decoder does not use. The folder appears complete or not at all. loss: the effect
 * of rounding on the changes relative to the original files; may be NULL. ST_NUMERIC: a value exceeds the dtype's range; the tensor is named. */
Status model_save(const Model *model, const char *dir, const DType *dtype, RoundingLoss *loss);
/* Copies generation_config.json, tokenizer, template and processor files. */
Status model_copy_files(const char *from, const char *to);
/* Writes config.json of `from` to `to` with another dtype, under its existing key (dtype or torch_dtype). untie: the head has separate weights now.
 * class_name: the model became this family's ...ForSequenceClassification with one label; NULL = no change of class. For such a model a padding token
 * that is also an end token is left out, since transformers would score the token before it. */
Status model_copy_config(const char *from, const char *to, DType dtype, bool untie, const char *class_name);
/* Writes a Hugging Face directory of random weights in the shape of a config: for benchmarks and the demo's start. scale: standard deviation of
 * matrices, which are drawn uniformly; norm weights are 1, biases 0. config_json: the text of config.json, in which the dtype is set to `dtype`. */
Status model_write_random(const char *dir, const char *config_json, DType dtype, uint64_t seed, double scale);

/* The memory that a run takes, computed from shapes alone. */
typedef struct ModelMemory {
    size_t mapped, weights, packed, gradients;
} ModelMemory;
ModelMemory model_memory(const Model *model, bool backward);

#endif
