/* SPDX-License-Identifier: Apache-2.0 */
/* Post-training quantisation: rounds a model's linear layers with the help of calibration rows, and writes a directory in the format of
 * compressed-tensors or GPTQ, which every command, transformers and vLLM read.
 *
 *     const PtqConfig config = {.model = "smollm2", .output = "smollm2-w4", .method = "gptq", .bits = 4, .group = 64, .symmetric = true,
 *                               .damp = 0.01, .rows = rows, .n_rows = n, .runtime = runtime};
 *     PtqReport *report;
 *     TRY(ptq_run(&config, &report));
 *     ptq_free(report);
 */
#ifndef TUNE_PTQ_H
#define TUNE_PTQ_H

#include "lib/base/json.h"
#include "lib/infer/compare.h"
#include "lib/model/model.h"

/* What rounding one linear layer cost. Numbers that a method does not have are NaN. */
typedef struct PtqLayer {
    const char *path;        /* "model.layers.0.self_attn.q_proj" */
    int64_t layer;           /* of the decoder, from 0 */
    bool quantised;          /* else it stays as stored */
    bool by_rows;            /* its inputs were seen; else it is rounded to nearest */
    bool fell_back;          /* the method was worse than rounding to nearest, and was not kept */
    bool worse;              /* the method, or the scales of its inputs, was worse, and was kept */
    bool corrected;          /* its bias was */
    int64_t dead;            /* inputs that are 0 in all calibration rows */
    double damp, loss;       /* gptq */
    double ratio;            /* awq: of the scales; int8: SmoothQuant's alpha; NaN: inputs are not scaled */
    double bound;            /* int8 with fixed ranges: of |x| */
    double error, rtn_error; /* of the outputs, relative, on the rows held back; of the method, and of rounding to nearest */
} PtqLayer;
/* Memory that a run needs before the comparison, in bytes. */
typedef struct PtqMemory {
    size_t hidden;  /* the hidden states of all calibration tokens */
    size_t sums;    /* over inputs, of the layers in work, with what the method makes of them */
    size_t layer;   /* weights and codes of one decoder layer, and the work on one of its matrices */
    size_t batch;   /* a pass: activations, workspaces of kernels */
    size_t file;    /* pages of the original that are in use at a time */
    size_t process; /* the program itself with tokenizer and rows: measured, plus an allowance for code that has not run yet */
    size_t total;   /* the sum: the largest resident size to expect */
} PtqMemory;
typedef struct PtqReport {
    PtqLayer *layers; /* n_layers: all linear layers but the head, in order */
    size_t n_layers, n_quantised;
    int64_t group; /* that was used; 0: a row */
    int64_t rows, tokens, held_rows, held_tokens;
    PtqMemory memory;
    bool tied;                      /* the head is the embedding */
    size_t uncorrected;             /* layers whose bias could not be corrected: the format has none for them */
    uint64_t original_bytes, bytes; /* of all weights */
    double bits;                    /* a weight of a quantised layer takes, with scales */
    bool evaluated;
    Comparison comparison; /* of the original and the result on the evaluation rows */
    const char *kept;      /* the new place of the model that was in the output; NULL: there was none */
    Arena *arena;
} PtqReport;
enum { PTQ_GROUP_AUTO = 0, PTQ_GROUP_ROW = -1 };
typedef struct PtqConfig {
    const char *model, *output;
    bool force; /* an existing model directory is kept as OUTPUT.1, OUTPUT.2, ... */
    const char *method;
    const char *format; /* of the directory: ct, gptq; NULL: ct */
    int bits;           /* 2, 3, 4 or 8 */
    int64_t group;      /* inputs that share a scale; PTQ_GROUP_ROW; PTQ_GROUP_AUTO: the largest of 128, 64, 32 that divides all rows, else a row */
    bool symmetric, act_order;
    bool no_clip;                /* awq: values are not cut */
    bool fallback;               /* keep rounding to nearest where it is better */
    double damp;                 /* gptq */
    double alpha;                /* int8: 0 to 1; NaN: the best of 0.3, 0.4, .. 0.9 for each input; 0 or less: inputs are not scaled */
    const char *calibrate;       /* int8: absmax, percentile, mse or entropy: activations have fixed ranges; NULL: each token has its own */
    const char *bias_correction; /* none, mean, mean_var */
    const char *const *skip;     /* n_skip names of linear layers that stay as stored, as of LoRA targets */
    size_t n_skip;
    const IdRow *rows; /* for calibration, n_rows; none: only for rtn */
    size_t n_rows;
    double hold_back; /* the share of rows that errors are measured on and nothing else; 0: they are measured on all rows */
    const IdRow *eval;
    size_t n_eval;
    double max_kl; /* with eval: ST_NUMERIC, and nothing is written, if the divergence is larger; 0: any */
    Runtime runtime;
    void (*on_plan)(void *context, const PtqReport *report);                /* before the first layer; may be NULL */
    void (*on_layer)(void *context, const PtqReport *report, int64_t done); /* after each decoder layer: `done` of them; may be NULL */
    void *context;
} PtqConfig;
/* Quantises layer by layer; the inputs of a layer are those of the layers before it as they are written. The output appears complete or not at all,
 * with quantize.json beside the weights: what each layer cost. The caller calls ptq_free. ST_USAGE: settings that do not fit the model or each
 * other; ST_CONFIG: the output exists, or the base is quantised already; ST_NUMERIC: inputs whose matrix stays singular, or max_kl; ST_INPUT;
 * ST_RESOURCE; ST_INTERRUPTED. */
Status ptq_run(const PtqConfig *config, PtqReport **report);
void ptq_free(PtqReport *report);                                                     /* NULL is fine */
void ptq_write_json(const PtqConfig *config, const PtqReport *report, JsonWriter *w); /* the contents of quantize.json */

#endif
