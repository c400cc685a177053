/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of post-training quantisation share: ptq.c (the life of a run), ptq_pass.c (inputs of layers), ptq_methods.c, ptq_write.c. */
#ifndef TUNE_PTQ_PARTS_H
#define TUNE_PTQ_PARTS_H

#include "lib/deploy/compress/awq.h"
#include "lib/deploy/compress/gptq.h"
#include "lib/deploy/compress/ptq.h"
#include "lib/model/block.h"
#include "lib/model/safetensors.h"

typedef struct Ptq Ptq;
/* A linear layer in work. Arrays are of the decoder layer's arena. */
typedef struct PtqMatrix {
    Linear *linear;
    PtqLayer *report;
    const StoredTensor *stored; /* its weight */
    double *weight;             /* (out, in): as stored, with rows folded; columns are not scaled */
    const double *columns;      /* (in): scales; NULL: 1 */
    Codes codes;                /* of the weight with scaled columns */
    bool done;
    double *bias; /* (out): the bias to write, if it is changed or new; NULL: as it is */
    Tensor *weight_before, *bias_before;
} PtqMatrix;
/* Some of the tokens of an input as they are, at even distances: every `step`-th of those that were seen. */
typedef struct InputSample {
    float *x; /* (n, in); NULL: none is wanted */
    int64_t n, step, seen;
} InputSample;
/* The tensor that some linear layers read, in the order of a decoder layer's forward pass. */
typedef struct PtqInputs {
    PtqMatrix *matrices[LINEARS_MOST]; /* n of them, those that are quantised */
    int n, n_readers;                  /* n_readers: all layers that read it */
    const Sublayer *sublayer;
    bool first; /* of its sublayer: it is the normalised residual stream */
    InputSums sums, held;
    InputSample sample, held_sample; /* int8 only */
    GramProducts gram, held_gram;    /* of the method and of errors; made when all rows were seen, of sums that have them */
    GptqFactor factor;
    double *columns; /* (in): scales, applied to all matrices; NULL: none */
    double ratio;
} PtqInputs;
enum { PTQ_MOST_INPUTS = 16 };
enum { PTQ_ERROR_TOKENS = 128 }; /* that errors of rounded inputs are measured on, at most */

typedef struct PtqMethod {
    const char *name;
    bool needs_rows;
    bool scales_inputs;                             /* scales of columns are found with the inputs of the original model, as published */
    bool rounds_inputs;                             /* activations are rounded too */
    Status (*prepare)(Ptq *ptq, PtqInputs *inputs); /* once for the layers of an input; NULL: nothing */
    Status (*round)(Ptq *ptq, PtqInputs *inputs, PtqMatrix *matrix); /* inputs NULL: its inputs were not seen. Fills codes */
} PtqMethod;
#define PTQ(name, help) extern const PtqMethod ptq_##name;
#include "lib/deploy/compress/ptq.def"
#undef PTQ
const PtqMethod *ptq_method_named(const char *name); /* NULL: there is none */

/* A form of the directory that is written. */
typedef struct PtqFormat {
    const char *name;
    bool half_scales;                /* scales are f16, whatever the model's dtype */
    bool keeps_zeros;                /* zeros are stored for symmetric grids too */
    Status (*check)(const Ptq *ptq); /* ST_USAGE: it cannot hold what is asked for; NULL: it holds everything */
    Status (*declare)(Ptq *ptq, const Linear *linear, const StoredTensor *stored); /* the tensors of a weight; stored: the original's */
    Status (*write)(const Ptq *ptq, const PtqMatrix *matrix);                      /* in the same order */
    json_t *(*settings)(const Ptq *ptq);                                           /* quantization_config, new */
} PtqFormat;
#define PTQ_FORMAT(name, help) extern const PtqFormat ptq_format_##name;
#include "lib/deploy/compress/ptq_formats.def"
#undef PTQ_FORMAT
const PtqFormat *ptq_format_named(const char *name); /* name NULL: ct. NULL: there is none */

/* Rows that a pass computes together. */
typedef struct PtqBatch {
    const int32_t *ids;
    const Segment *segments;
    int32_t n_segments;
    int64_t n_tokens, at; /* at: its first token in the hidden states */
    bool held;
} PtqBatch;

struct Ptq {
    const PtqConfig *config;
    const PtqMethod *method;
    const PtqFormat *format;
    Model *model;
    /* of the run; of a decoder layer; of the inputs gathered in one pass; of the work on one matrix */
    Arena *arena, *layer_arena, *inputs_arena, *work_arena;
    PtqReport *report;
    size_t resident;      /* of the process before the model is loaded, bytes */
    DType scales, biases; /* in which scales, and biases that are added, are written */
    bool adds_bias[2];    /* attention, feed-forward: all their layers get a bias */
    json_t *settings;     /* quantization_config */
    SafetensorsWriter *writer;
    size_t n_written; /* modules of the model so far */
    uint64_t bytes;
    /* rows */
    PtqBatch *batches;
    size_t n_batches;
    int64_t n_tokens;
    uint8_t *hidden;       /* (n_tokens, hidden_size) in model->compute: made by what is quantised already */
    uint8_t *plain_hidden; /* the same of the original model; NULL unless the method needs it */
    Tape *tape;
    /* the decoder layer in work */
    int64_t layer;
    PtqMatrix *matrices;
    size_t n_matrices;
    PtqInputs inputs[PTQ_MOST_INPUTS], plain[PTQ_MOST_INPUTS]; /* plain: of the original model */
    int n_inputs, n_plain;
};

/* ---- ptq.c ---- */

Grid ptq_grid(const Ptq *ptq, const Linear *linear);
int64_t ptq_layer_of(const Model *model, const char *path); /* the decoder layer that a module is in; -1: none */
/* Whether the linear layer is in an attention block (0) or a feed-forward block (1) of its decoder layer; -1: neither. */
int ptq_block_of(const Model *model, const Linear *linear, const Sublayer **sublayer);

/* ---- ptq_plan.c ---- */

Status ptq_plan(Ptq *ptq); /* fills report->memory, and reserves it */

/* ---- ptq_pass.c ---- */

/* What is gathered of each input: sums of products and tokens, of the rows for the method and of those held back. plain: of the original model. */
typedef struct PtqWanted {
    bool products, held_products;
    bool ranges;                 /* fixed ranges are found with the sample */
    int64_t sample, held_sample; /* tokens */
} PtqWanted;
PtqWanted ptq_wanted(const Ptq *ptq, bool plain);
ModelBatch ptq_model_batch(const PtqBatch *batch); /* valid as long as the batch */
Status ptq_rows_begin(Ptq *ptq);                   /* makes batches, and the hidden states of the embedding */
void ptq_rows_end(Ptq *ptq);
/* Runs the decoder layer in work on all rows up to product number `call`, and gathers its inputs in ptq->inputs[call]. *reached: false if the layer
 * has no such product; then its outputs are kept for the next layer. PTQ_PLAIN: runs it on the hidden states of the original model, gathers all
 * inputs in ptq->plain, and keeps its outputs. */
enum { PTQ_PLAIN = -1 };
Status ptq_pass(Ptq *ptq, int call, bool *reached);
/* A copy of x, in the tape's memory, rounded to 8 bits: by a fixed bound, or if that is not above 0 each token by its own values. */
Tensor *ptq_rounded_inputs(Tape *tape, Tensor *x, double bound);

/* ---- ptq_methods.c ---- */

Status ptq_quantise(Ptq *ptq, PtqInputs *inputs, PtqMatrix *matrix); /* rounds, measures, corrects, and puts the values into the model */

/* ---- ptq_write.c ---- */

enum { PTQ_COPIED_PIECE = 8 << 20 };                /* bytes of a tensor that are copied at a time */
Status ptq_write_begin(Ptq *ptq, const char *made); /* declares all tensors */
Status ptq_write_until(Ptq *ptq, int64_t layer);    /* writes the modules up to and with this decoder layer; INT64_MAX: all */
Status ptq_write_end(Ptq *ptq, const char *made);   /* completes weights, config.json and the other files */

/* For formats. Declares the tensor "NAME.part" of the weight "NAME.weight"; element: bytes of one. */
Status ptq_declare(Ptq *ptq, const StoredTensor *weight, const char *part, const char *dtype, int64_t element, int n_dims, const int64_t *shape);
const char *ptq_dtype_text(DType dtype); /* "BF16" */
int64_t ptq_words(int64_t n, int bits);  /* 32-bit words of n codes */
/* Packs n codes one after the other into words that are `step` apart, lowest bits first; a code may cross words. */
void ptq_pack(int bits, const uint8_t *codes, int64_t n, uint32_t *words, int64_t step);

#endif
