/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks: what the sublayers of a decoder compute (attention, feed-forward, ...). A kind of block is a file block_<kind>.c and a line of blocks.def.
 * A family says which kinds its layers are made of (LayerForm).
 *
 *     typedef struct ScaleForm {
 *         const char *scale;                     // name of the part within a layer
 *     } ScaleForm;                               // for families: constant
 *     typedef struct ScaleBlock {
 *         Linear scale;
 *     } ScaleBlock;                              // one for each layer of a model
 *     static void build(BlockBuilder *builder, const void *form, void *block) {
 *         int64_t width = builder->model->config.hidden_size;
 *         build_linear(builder, ((const ScaleForm *)form)->scale, &((ScaleBlock *)block)->scale, width, width, false);
 *     }
 *     static Tensor *forward(const LayerContext *context, const Sublayer *sublayer, Tape *tape, Tensor *x, Tensor *residual) {
 *         const ScaleBlock *block = sublayer->block;
 *         return sublayer_project(context, sublayer, tape, &block->scale, x, residual);
 *     }
 *     const BlockKind block_scale = {sizeof(ScaleBlock), build, forward};
 */
#ifndef TUNE_BLOCK_H
#define TUNE_BLOCK_H

#include "lib/model/model.h"
#include "lib/model/rope.h"

/* ---- what a kind says of its parts ---- */

/* A layer that is being built. */
typedef struct BlockBuilder {
    Model *model;
    int64_t layer;
    int64_t index;      /* replaces '*' in names of parts: "mlp.experts.*.up_proj" */
    bool sparse, fixed; /* of the modules that are added: see Module */
    Status status;      /* the first failure */
} BlockBuilder;
/* Each adds a module to the model, in the order of the forward pass. part: its name within the layer. The slots get their tensors when the model is
 * loaded. */
void build_linear(BlockBuilder *builder, const char *part, Linear *linear, int64_t in, int64_t out, bool bias);
void build_norm(BlockBuilder *builder, const char *part, Norm *norm, int64_t width); /* NULL part: none */
/* A weight that is neither. bare: the tensor has the name of the part alone, without ".weight". n_dims: 1 to 3. */
void build_weight(BlockBuilder *builder, const char *part, bool bare, Tensor **weight, int n_dims, const int64_t *shape);
/* One linear layer of each of `copies` experts, together: see Linear.copies. part: the name of the tensor of three dimensions. stored: the checkpoint
 * has that tensor, (copies, out, in) or with in_out (copies, in, out); else each expert has tensors of its own. */
void build_together(BlockBuilder *builder, const char *part, Linear *linear, int64_t copies, int64_t in, int64_t out, bool in_out, bool stored);
/* Adds a row to the cache: `keys` and `values` numbers of each token. Returns its place there (AttentionArgs.layer). */
int build_cache_row(BlockBuilder *builder, int64_t keys, int64_t values);
/* Adds a state of `width` numbers to what the cache keeps of each sequence. Returns its place there (SequenceStates.items). */
int build_state(BlockBuilder *builder, int64_t width);

/* Adds a tensor that the layer hands on to later ones. Returns its place (LayerContext.shared). A layer has up to LAYER_MOST_SHARED. */
int build_result(BlockBuilder *builder);

/* ---- the forward pass ---- */

/* What the forward pass of a block gets. Valid until the step ends. */
typedef struct LayerContext {
    const Model *model;
    const ModelBatch *batch;
    const RopeTables *ropes; /* indexed by LayerRope */
    Tensor **shared;         /* tensors that layers hand on, Model.n_shared: those of earlier layers may be read, those of this layer are set */
    int64_t index;           /* number of the layer, from 0 */
} LayerContext;
/* A kind of block: a const struct in block_<kind>.c. */
struct BlockKind {
    size_t bytes; /* of the kind's struct for one layer, which starts as zeros */
    /* Fills the struct and lists its parts. form: what the family says of it. */
    void (*build)(BlockBuilder *builder, const void *form, void *block);
    /* Returns the residual stream after the sublayer, (N, C). x: (N, C), its normalised input; residual: (N, C), the stream before it. NULL after a
     * failure, which the tape records. */
    Tensor *(*forward)(const LayerContext *context, const Sublayer *sublayer, Tape *tape, Tensor *x, Tensor *residual);
};

/* Finds state number `state` (build_state) of a segment's sequence in the cache. In the tensor that it returns, the `width` elements from *offset on
 * are the state before the segment, undefined if the segment's `past` is 0. The block overwrites them with the state after the segment. NULL: the
 * batch has no cache. */
Tensor *segment_state(const LayerContext *context, int32_t segment, int state, int64_t *offset);
/* Normalises x. residual: added to the result; NULL = none. */
Tensor *norm_forward(const Model *model, Tape *tape, const Norm *norm, Tensor *x, Tensor *residual);
/* The model's activation, f(x) * up or f(x) if up is NULL, for `reader`, the only layer that reads it. */
Tensor *sublayer_activate(const LayerContext *context, Tape *tape, Tensor *x, Tensor *up, const Linear *reader);
/* The end of a sublayer: returns residual + y. y: the block's output, which is normalised or scaled first if the model does so. */
Tensor *sublayer_add(const LayerContext *context, const Sublayer *sublayer, Tape *tape, Tensor *y, Tensor *residual);
/* The same with y = `last` applied to x, in one op if y is neither normalised nor scaled. */
Tensor *sublayer_project(const LayerContext *context, const Sublayer *sublayer, Tape *tape, const Linear *last, Tensor *x, Tensor *residual);

/* ---- kinds ---- */

#define BLOCK(name) extern const BlockKind block_##name;
#include "lib/model/blocks.def"
#undef BLOCK

/* Softmax attention with grouped heads. */
typedef struct AttentionForm {
    const char *q, *k, *v;
    const char *qkv; /* one projection instead of the three */
    const char *o;
    const char *q_norm, *k_norm; /* before the rotation; NULL: none */
    bool norm_all_heads;         /* these norms are over all heads of a token together, not over each head */
    const char *sinks;           /* a logit for each head whose share of the softmax is dropped; NULL: none */
} AttentionForm;
/* A gated short convolution (op_short_conv) between two projections, over ModelConfig.conv_taps tokens. */
typedef struct ShortConvForm {
    const char *in; /* makes B, C and X */
    const char *kernel, *bias, *out;
} ShortConvForm;
/* act(up x), then down. */
typedef struct MlpForm {
    const char *up, *down;
} MlpForm;
/* act(gate x) * up x, then down. */
typedef struct GatedMlpForm {
    const char *gate, *up;
    const char *gate_up; /* one projection instead of the two, gate first */
    const char *down;
} GatedMlpForm;
/* Softmax attention whose keys and values are made from few numbers of each token (ModelConfig.latent), which are all that the cache keeps. */
typedef struct LatentForm {
    const char *q; /* if q_rank is 0; else the three after it */
    const char *q_a, *q_norm, *q_b;
    const char *kv_a, *kv_norm, *kv_b, *o;
} LatentForm;
/* Gated MLPs, some of which a router chooses for each token (ModelConfig.experts), and one that all tokens pass. A checkpoint has tensors for each
 * expert, or tensors of all of them (`together`). */
typedef struct ExpertsForm {
    const char *router;
    const char *choice_bias;      /* a number for each expert, added to its score for the choice only; NULL: none */
    const char *gate, *up, *down; /* of expert '*' */
    const char *gate_up_together, *down_together;
    bool in_out; /* only together, as (E, in, out), with biases "<name>_bias", columns of gate and up in turn: see op_clamped_glu */
    const char *shared_gate, *shared_up, *shared_down; /* NULL: there is none */
    const char *shared_scale;                          /* its output is multiplied by the sigmoid of this layer; NULL: it is not */
} ExpertsForm;

#endif
