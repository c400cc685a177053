/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors, the tape, and the ops of a language model.
 *
 *     Tape *tape = tape_new(device_cpu(), DT_F32, 0);
 *     Tensor *h = op_rms_norm(tape, x, norm_weight, 1e-5);              // an op computes at once and records itself
 *     Tensor *y = op_linear(tape, h, weight, NULL, NULL, NULL);
 *     tensor_seed_grad(tape, y, dy);                                    // dy: gradient of the loss with respect to y
 *     TRY(tape_backward(tape));                                         // adds to weight->grad
 *     tape_reset(tape);                                                 // frees the activations; their memory is reused
 *
 * Tensors are dense and row-major. A tensor is a shape over memory of a device. An op reads and writes that memory only by kernels of the device
 * (kernels.def). The host copies values by tensor_upload and tensor_download, or by functions that call these. So a new device is a new folder, and
 * no op changes. There are three devices: `cpu` (fast); `reference` (plain loops in double for every dtype: the fast kernels are tested against it
 * and the gradient check runs on it); and `meta`, which computes nothing: a step that runs on it shows how much memory the same step takes on `cpu`.
 *
 * Names of sizes: N tokens of a flat batch, C width, H heads, KV key/value heads, D head size, F feed-forward width, V vocabulary.
 */
#ifndef TUNE_TENSOR_H
#define TUNE_TENSOR_H

#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "lib/tensor/dtype.h"

/* ---- tensors ---- */

enum { TENSOR_MAX_DIMS = 4 };
typedef struct Device Device;
typedef struct Tensor Tensor;
typedef struct StepState StepState;

/* Where packed copies of weights go. */
typedef struct PackMemory {
    void *(*take)(void *context, size_t bytes); /* aligned to 64; outlives the tensors. NULL: there is none, recorded */
    void *context;
    bool filled; /* what `take` gives has the copy already, from another process */
} PackMemory;

/* Who owns the memory of the elements. */
typedef enum StorageKind {
    STORAGE_OWNED,    /* an arena, which took it from the device */
    STORAGE_BORROWED, /* the caller: an array of the host, which stays valid as long as the tensor */
    STORAGE_MAPPED,   /* a mapped file: the system can release its pages and read them again */
    STORAGE_SHARED,   /* memory that processes of one machine have once (lib/comm/host_memory.h); nobody writes it */
} StorageKind;
/* What a device knows of the memory of elements. Views of one tensor share one storage. */
typedef struct Storage {
    const Device *device;
    void *packed; /* the device's packed copies for products; tensor_unpack frees them */
    StorageKind kind;
    bool constant; /* the contents never change, so the device may keep packed copies */
    bool rounds;   /* of a quantised dtype: each value is rounded to bf16 when it is read, as a copy in bf16 would be */
} Storage;

struct Tensor {
    DType dtype;
    int n_dims;
    int64_t shape[TENSOR_MAX_DIMS];
    void *elements; /* address on the device, which only lib/tensor reads (`make layers`); NULL: no memory yet */
    Storage *storage;
    const char *name; /* for messages; may be NULL */
    Tensor *grad;     /* same shape; NULL until the first gradient is added */
    bool needs_grad;
    bool in_out;      /* a weight stored as (in, out) instead of (out, in), as GPT-2's Conv1D does */
    bool blank;       /* a gradient that counts as zeros: the first op that adds to it writes instead (tape_grad) */
    bool lent;        /* a gradient whose elements are a tape's: from the first op that adds to it to tape_grad_free; NULL else */
    int uses;         /* of a tensor made outside the tape: ops that have not run backward yet, while a tape is watched (tape_watch) */
    StepState *state; /* facts that ops need of a tensor that the tape made; NULL for other tensors */
};
enum { TENSOR_HEADER = sizeof(Tensor) + sizeof(Storage) }; /* bytes that a tensor takes in an arena besides its elements */

/* Makes an uninitialised tensor. `arena` owns it and its elements, which are memory of the device. NULL: out of memory, recorded. */
Tensor *tensor_new(Arena *arena, const Device *device, DType dtype, int n_dims, const int64_t *shape);
/* The same in two steps, so that other data can take memory of the arena in between: tensor_header makes the tensor without elements (NULL: out of
 * memory, recorded), tensor_allocate gives it elements. ST_RESOURCE. */
Tensor *tensor_header(Arena *arena, const Device *device, DType dtype, int n_dims, const int64_t *shape);
Status tensor_allocate(Tensor *tensor, Arena *arena);
static inline bool tensor_is_allocated(const Tensor *tensor) { return tensor->elements != NULL; }
/* Makes a tensor with the values of an array of the host. On a device that shares the host's memory it is a view of the array, which the caller
 * keeps valid as long as the tensor; on another device it is a copy, made at once. A device that plans takes the memory of the copy, and reads the
 * array. NULL: out of memory, or the device failed. */
Tensor *tensor_view(Arena *arena, const Device *device, DType dtype, int n_dims, const int64_t *shape, void *values);
/* Makes a view of an array in a mapped file, which the caller keeps mapped. The device must share the host's memory. NULL: out of memory. */
Tensor *tensor_mapped(Arena *arena, const Device *device, DType dtype, int n_dims, const int64_t *shape, const void *values);
/* The same in memory that processes share. */
Tensor *tensor_shared(Arena *arena, const Device *device, DType dtype, int n_dims, const int64_t *shape, void *values);
/* Makes a tensor of dtype PACKED, which the packing (quant/packing.h) must outlive. Its values are those that packing->read gives. The device
 * must share the host's memory. NULL: out of memory. */
typedef struct Packing Packing;
Tensor *tensor_packed(Arena *arena, const Device *device, int n_dims, const int64_t *shape, const Packing *packing);
/* Makes a CPU tensor that is a view of the host's array `values` (n), so that a list of tensors can contain the array. Not for ops. NULL: out of
 * memory. */
Tensor *tensor_of_host(Arena *arena, DType dtype, int64_t n, void *values);
/* Makes a tensor of another shape over the elements of `tensor`. Both shapes have the same number of elements. NULL: out of memory. */
Tensor *tensor_reshape(Arena *arena, const Tensor *tensor, int n_dims, const int64_t *shape);
/* Returns elements at..at+n-1 of the flattened tensor as a tensor of one dimension, (n). It shares their memory. */
Tensor tensor_part(const Tensor *tensor, int64_t at, int64_t n);
/* Exchanges the elements of two tensors of the same shape and dtype, without copying them. */
void tensor_swap(Tensor *a, Tensor *b);
static inline const Device *tensor_device(const Tensor *tensor) { return tensor->storage->device; }
int64_t tensor_count(const Tensor *tensor); /* elements */
size_t tensor_bytes(const Tensor *tensor);
int64_t tensor_width(const Tensor *tensor); /* the last dimension */
int64_t tensor_rows(const Tensor *tensor);  /* elements / width: every op reads its input as (rows, width) */
/* Returns rows begin..end-1 of a matrix, for use as an argument of kernels. They share the matrix's memory. */
Tensor matrix_rows(const Tensor *matrix, int64_t begin, int64_t end);
/* Returns matrix `i` of a PACKED tensor of three dimensions (n, in, out), transposed: (out, in). It shares the codes. */
Tensor packed_matrix(const Tensor *stack, int64_t i);
/* Writes text like "f32 (12,64)" for messages; returns `out`. */
const char *tensor_describe(const Tensor *tensor, char out[96]);
/* Copy elements at..at+n-1 of the flattened tensor from (upload) or to (download) an array of its dtype. Nothing is copied if the array is where the
 * elements are. Both return the device's failure. A device that plans has no values: an upload has no effect, a download writes zeros. */
Status tensor_upload(Tensor *tensor, int64_t at, int64_t n, const void *from);
Status tensor_download(const Tensor *tensor, int64_t at, int64_t n, void *to);
/* For loops over large tensors: returns elements from `at` on, in the device's memory if the host can read it, else copied to `buffer` of `size`
 * bytes. *n: the number of elements that the caller wants; on return the number that it gets. NULL when the device fails.
 *
 *     for (int64_t at = 0, n; at < count; at += n) {
 *         n = count - at;
 *         const void *piece = tensor_piece(tensor, at, &n, buffer, sizeof buffer);
 *         if (!piece) return ST_RESOURCE;
 *         ...
 *     } */
const void *tensor_piece(const Tensor *tensor, int64_t at, int64_t *n, void *buffer, size_t size);
/* The same for writing: the caller fills what it gets, and gives it to tensor_upload. */
void *tensor_stage(Tensor *tensor, int64_t at, int64_t *n, void *buffer, size_t size);
/* Read and write element `i` of the flattened tensor, for tests, messages and small host loops. Any dtype without blocks. These functions and the
 * next four return no status: after a fault of the device values that are read are NaN, and device->synchronise returns the fault. */
double tensor_get(const Tensor *tensor, int64_t i);
void tensor_set(Tensor *tensor, int64_t i, double value);
/* Copy between a tensor of any dtype without blocks and an array of doubles, and convert. A part: elements at..at+n-1. */
void tensor_read(const Tensor *tensor, double *out);
void tensor_read_part(const Tensor *tensor, int64_t at, int64_t n, double *out);
void tensor_write(Tensor *tensor, const double *values);
void tensor_write_part(Tensor *tensor, int64_t at, int64_t n, const double *values);
/* Computes elements at..at+n-1 of a flattened tensor of a quantised dtype, from any element on. The device must share the host's memory. */
void tensor_dequantise(const Tensor *tensor, int64_t at, int64_t n, float *values);
void tensor_unpack(Tensor *tensor); /* frees the packed copies; call it before the memory of a constant tensor is freed */
/* Index of the first element that is NaN or infinite, or -1. */
int64_t tensor_find_nonfinite(const Tensor *tensor);

/* ---- attention layout of a flat batch: which tokens a token sees ---- */

/* A run of consecutive tokens of one sequence. Each token sees itself, the tokens before it in the segment, all tokens of the ancestors, and the
 * sequence's earlier tokens in the cache. */
typedef struct Segment {
    int32_t begin, end; /* rows begin..end-1 of the flat batch; segments are in order and cover the batch */
    int32_t parent;     /* index of an earlier segment whose tokens precede these; -1 = none. Must be -1 with a cache */
    int32_t past;       /* tokens of this sequence that are in the cache already; positions start at this number */
    /* With a cache: index of its first page in Layout.pages, where its pages are in order, cache->page_size tokens each, enough for past +
     * (end - begin) tokens; and the row of its sequence in the tensors of SequenceStates, if the model has states. Else 0. */
    int32_t first_page, state;
} Segment;
enum { SEGMENT_NUMBERS = sizeof(Segment) / sizeof(int32_t) };

/* Keys and values of earlier tokens, in pages that sequences may share. Token t of page p is row p * page_size + t. */
typedef struct KvPages {
    Tensor **k, **v; /* of each block that has keys and values: (n_pages x page_size, KV x D) in the compute dtype */
    int n_layers;    /* number of these blocks */
    int32_t page_size, n_pages;
} KvPages;

typedef struct Layout {
    int64_t n_tokens;
    int32_t n_segments;
    const Segment *segments;
    KvPages *cache;       /* NULL: tokens see only tokens of the batch */
    const int32_t *pages; /* with a cache: the pages of all segments, n_pages; a page may be there several times */
    int64_t n_pages;
    /* With a cache: number of tokens of the whole sequence for each segment, where more tokens come in later batches. NULL: no sequence goes
     * beyond this batch. */
    const int64_t *lengths;
    /* The arrays that kernels read, i32 on the device: (n_segments, SEGMENT_NUMBERS), each row a Segment, and (n_pages). layout_upload makes them. */
    struct {
        const Tensor *segments, *pages;
    } arrays;
} Layout;
/* Makes layout->arrays for kernels of `device`, in `arena`; of arrays that the host shares with the device, they are views. ST_RESOURCE: out of
 * memory, or the device failed. */
Status layout_upload(Layout *layout, Arena *arena, const Device *device);
/* Makes the positions of the tokens in their sequences: (N) i32, in `arena`. NULL: out of memory, or the device failed. */
Tensor *layout_positions(const Layout *layout, Arena *arena, const Device *device);
/* Number of tokens before the first token of `segment`: the lengths of its ancestors plus `past`. */
int64_t layout_offset(const Segment *segments, int32_t segment);
/* The row of the token that is `back` tokens before `row` in the sequence of `segment`; row: from the segment's first one to its end. -n: the token
 * is not in the batch, it is the n-th one before the sequence's first token there. */
int64_t layout_before(const Segment *segments, int32_t segment, int64_t row, int64_t back);

/* ---- arguments of the larger ops ---- */

/* The trained low-rank branch of a linear layer: y += scale * B (A dropout(x)). a: (rank, in), b: (out, rank), both f32 (f64 in the gradient
 * check). */
typedef struct LoraBranch {
    Tensor *a, *b;
    double scale;   /* alpha / rank, or alpha / sqrt(rank) */
    double dropout; /* probability of a zero; 0 when not training */
    RngKey key;     /* of the dropout mask; element i of x uses draw first_draw + i */
    uint64_t first_draw;
    /* end > 0: only rows begin..end-1 have the branch, and the next one has later rows. Such a list has no dropout and no backward pass. */
    int64_t begin, end;
    const struct LoraBranch *next;
    /* DoRA: the trained length of each row of the changed weight, and the squared lengths of the rows of the weight: (out) each. NULL: plain LoRA.
     * op_linear does not read them. */
    Tensor *magnitude, *squares;
    Tensor *norms; /* of a branch that never changes: dora_norms as soon as norms_known. NULL: they are computed in each pass */
    bool norms_known;
} LoraBranch;

/* DoRA of rows begin..end-1, or of all rows if end is 0: their columns are multiplied by magnitude / norms. A list (next) has no backward
 * pass; rows without an entry are multiplied by 1. */
typedef struct DoraScale {
    Tensor *magnitude;   /* (out) */
    const Tensor *norms; /* (out), of dora_norms: no gradient passes through them. A norm of 0 counts as infinite */
    int64_t begin, end;
    const struct DoraScale *next;
} DoraScale;

typedef struct AttentionArgs {
    const Layout *layout;
    int layer;   /* with a cache: index into KvPages.k and v */
    bool stored; /* with a cache: an earlier block of this `layer` has stored k and v */
    int64_t n_heads, n_kv_heads, head_dim;
    double scale;   /* usually 1 / sqrt(head_dim) */
    int64_t window; /* a token sees itself and the window - 1 before it; 0 = all */
    double softcap; /* scores become softcap * tanh(score / softcap); 0 = off */
    Tensor *sinks;  /* (H): a score of each head that takes a share of the softmax and has no value; NULL: none. Source: gpt-oss, arXiv 2508.10925 */
} AttentionArgs;

/* A gated short convolution over the tokens of each sequence. Source: LFM2, arXiv 2511.23404. */
typedef struct ShortConvArgs {
    const Layout *layout;
    /* With a cache: the last K - 1 products B X of each sequence, the oldest first, (sequences, (K - 1) C); a segment has row Segment.state,
     * undefined if its `past` is 0. Overwritten with those after the segment. NULL: without a cache */
    Tensor *states;
} ShortConvArgs;

/* Columns of a result of op_columns, in units of equal width. */
typedef struct ColumnOrder {
    int64_t unit, n;     /* width of a unit; units of the result */
    const int32_t *from; /* of each: the unit of x, or those of `more` after them; -1: zeros. Lives until the step ends */
} ColumnOrder;

/* Result of op_split; all NULL after a failure. */
typedef struct Split {
    Tensor *parts[3];
} Split;

/* How a layer's router chooses experts for a token. Scores are computed in f32 (f64 on the reference device). Sources: Mixtral, arXiv 2401.04088;
 * DeepSeek V2 and V3, arXiv 2405.04434 and 2412.19437. */
typedef enum RouterKind {
    ROUTER_SOFTMAX, /* scores are the softmax of a token's logits */
    ROUTER_SIGMOID, /* scores are sigmoids of the logits, one by one */
} RouterKind;
typedef struct RouterArgs {
    RouterKind kind;
    int64_t n_experts, top_k;
    int64_t n_groups, top_groups; /* groups of consecutive experts; only those of the best top_groups can be chosen. 0 or 1: no groups */
    bool group_pairs;             /* a group counts as much as its two best experts together, instead of its best one */
    bool normalise;               /* the scores of the chosen experts are divided by their sum + eps */
    double eps, scale;            /* scale: of the weights, at last */
} RouterArgs;
/* What a layer's router did in a pass, for its load and its auxiliary loss. */
typedef struct RouterLoad {
    int64_t n_parts;
    const int64_t *ends;     /* of each part of the pass, such as a row: the token after its last one */
    double *counts, *scores; /* (n_parts, E), added to: slots of each expert; its scores of all tokens, divided by the token's sum */
    double *balance; /* (n_parts, E): added to the gradient of each token's scores, set before the backward pass; NULL: nothing. Softmax only */
} RouterLoad;
/* Which tokens each expert of a layer gets, and with which weight. A slot is a choice: token and expert. Slots are in order of experts, within an
 * expert in order of tokens. All arrays live until the step ends. */
typedef struct Routing {
    int64_t n_tokens, n_experts, top_k;
    Tensor *weights;       /* (N, k) f32 (f64 on the reference device), with gradients; NULL after a failure */
    Tensor *rows, *places; /* (N x k) i32: the token of each slot; its place in `weights` */
    const int32_t *tokens; /* the values of `rows` for the host */
    const int64_t *ends;   /* for the host: slots ends[e - 1] .. ends[e] - 1 are those of expert e */
} Routing;
/* For devices: chooses args->top_k experts, the best first; among equals the first. scores: n_experts, overwritten. */
void router_choose(const RouterArgs *args, double *scores, int32_t *chosen);

/* Low-rank branches of one linear layer of each expert. */
typedef struct ExpertLora {
    Tensor *a, *b;       /* of all experts: (E r, in) and (E rows, r), expert after expert */
    int64_t rows, first; /* of the rows of B that an expert has, those from `first` on are this layer's; rows 0: `out` */
    double scale;
    /* instead: a branch of its own for each expert; NULL entries: none. Token t uses draws first_draw + t * in and so on of a branch's dropout */
    const LoraBranch *const *each;
    /* end > 0: only tokens begin..end-1 have these branches, and the next list has later tokens. Without a backward pass */
    int64_t begin, end;
    const struct ExpertLora *next;
} ExpertLora;
/* One linear layer of each of E experts. */
typedef struct ExpertLinear {
    int64_t in, out;
    Tensor *whole;       /* (E, out, in), or (E, in, out) if whole->in_out */
    Tensor *const *each; /* instead: E tensors (out, in) */
    Tensor *bias;        /* (E, out) or NULL */
    const ExpertLora *lora;
} ExpertLinear;

typedef enum Activation {
    ACT_SILU,      /* x sigmoid(x) */
    ACT_GELU_TANH, /* x times an approximation of the normal distribution function by tanh: "gelu_new", "gelu_pytorch_tanh" */
    ACT_GELU_ERF,  /* x times the normal distribution function: "gelu" */
    ACT_RELU,      /* max(x, 0) */
    ACT_TANH,
    ACT_SIGMOID /* with a second factor: GLU as first published, arXiv 1612.08083 */
} Activation;

/* A multilayer perceptron: linear layers with f between them, y = W_n f(.. f(W_1 x + b_1) ..) + b_n. weights[k]: (out, in), biases[k]: (out), all f32
 * (f64 in the gradient check); they must outlive the step. */
enum { MLP_MAX_LAYERS = 8 };
typedef struct MlpArgs {
    int n_layers;
    Tensor *weights[MLP_MAX_LAYERS], *biases[MLP_MAX_LAYERS];
    Activation activation; /* f; its slope must be a function of its value: ACT_TANH or ACT_RELU */
    bool activate_last;    /* f also after the last layer, for a trunk that several heads share */
} MlpArgs;
/* Gradients that the backward kernel computes; NULL: not computed. It adds to those of weights and biases. dx = result + beta * dx, with beta 0 or
 * 1. */
typedef struct MlpGrads {
    Tensor *weights[MLP_MAX_LAYERS], *biases[MLP_MAX_LAYERS], *x;
    double beta;
} MlpGrads;

typedef struct LogprobArgs {
    double softcap;     /* on logits; 0 = off */
    double temperature; /* logits are divided by it; 1 = plain */
    bool entropy;       /* also the entropy of each distribution, nats */
    bool mean;          /* also the mean log-probability over the vocabulary (label smoothing) */
    bool only_logprob;  /* entropy and mean are computed without gradients */
} LogprobArgs;
/* Each is (P), f32 (f64 on the reference device), or NULL if not requested. All carry gradients unless args say otherwise. */
typedef struct TokenLogprobs {
    Tensor *logprob, *entropy, *mean;
} TokenLogprobs;
/* Results of the kernel for P rows of hidden states; (P) unless noted. All but logprob and logsumexp may be NULL. The last three serve a backward
 * pass in which logprob alone has a gradient. */
typedef struct LogprobResults {
    Tensor *logprob, *entropy, *mean;
    Tensor *logsumexp; /* of logits after soft-cap and temperature */
    /* (P, C): gradient of each logprob with respect to its hidden row, so that the gradient of the hidden states needs no further matrix product */
    Tensor *dlogp_dhidden;
    /* Used together with dlogp_dhidden, without soft-cap: one value a row that the device needs to compute the gradient of a trained head from
     * `weights`. */
    Tensor *reference;
    /* Used together with `reference`: (K, V) in hidden's dtype, in a layout that the device chooses. Probabilities of the first K rows, each row
     * up to a factor, so that the backward pass does not compute their logits again. K is P or a multiple of LOGPROB_BLOCK. */
    Tensor *weights;
} LogprobResults;
enum { LOGPROB_BLOCK = 2048 }; /* rows */

/* How a student's distribution s over the vocabulary differs from a teacher's distribution t; both are softmaxes of logits / temperature. */
typedef enum DivergenceKind {
    DIVERGENCE_KL,         /* sum t log(t / s) */
    DIVERGENCE_REVERSE_KL, /* sum s log(s / t) */
    DIVERGENCE_JSD,        /* beta KL(t || m) + (1 - beta) KL(s || m), m = beta t + (1 - beta) s. Source: GKD, arXiv 2306.13649 */
    DIVERGENCE_TOP_K       /* KL(t || s) over the teacher's top_k tokens, and one more outcome for all others */
} DivergenceKind;
/* The loss of a token: alpha x divergence (x temperature^2) + (1 - alpha) x cross-entropy at temperature 1. Source: arXiv 1503.02531. */
typedef struct DivergenceArgs {
    DivergenceKind kind;
    double temperature, alpha, beta;
    bool squared; /* multiply the divergence by temperature^2, so that its gradients keep their size */
    int top_k;    /* of DIVERGENCE_TOP_K; the lower id first among equal logits */
    /* Instead of a teacher, of DIVERGENCE_TOP_K at temperature 1: for each row its k likeliest tokens, (P, k) i32, and their log-probabilities,
     * (P, k + 1), the last one that of all other tokens together; over the first `top_vocab` tokens. NULL: there is a teacher */
    const Tensor *top_ids, *top_logprobs;
    int64_t top_vocab;
    double softcap, teacher_softcap; /* on logits; 0 = off */
    double scaling, teacher_scaling; /* each model's logits are divided by this, after the soft-cap; 1 = plain */
    /* (P): the gradient of each loss, which a recording op then seeds itself; a trained head's gradient is added at once, without computing logits
     * twice. NULL: the caller seeds the losses */
    const double *upstream;
} DivergenceArgs;
/* Each is (P), f32 (f64 on the reference device). Only the loss carries a gradient. */
typedef struct Divergences {
    Tensor *loss, *divergence, *logprob; /* logprob: of the target, by the student at temperature 1 */
    Tensor *agreement;                   /* 1 where the teacher's likeliest token is also the student's, else 0 */
} Divergences;

/* A low-rank branch of rows begin..end-1 of a product: low = A down^T, and C += alpha * low b^T, with these rows of A and C. */
typedef struct RowBranch {
    int64_t begin, end;
    const Tensor *down, *b; /* (rank, k), (n, rank) */
    double alpha;
    Tensor *low;                  /* (end - begin, rank) in A's dtype: a result */
    const struct RowBranch *next; /* of later rows */
} RowBranch;

/* C = alpha * op(A) op(B) + beta * C, all 2-D, with op the identity or the transpose. The dtype of A decides how the device multiplies: f32 x f32,
 * bf16 x bf16 with f32 sums, or f64; B is converted to it. C may be f32 or bf16 (f64 with f64). A row of C does not depend on the other rows of A, as
 * far as the underlying library allows it, and never on the number of threads. The optional terms (NULL = none) are added in the same pass; a device
 * without such a kernel adds them one after the other, with C's rounding between them. */
typedef struct Matmul {
    const Tensor *a, *b;
    Tensor *c;
    bool transpose_a, transpose_b;
    double alpha, beta;
    const Tensor *more_a, *more_b; /* a low-rank branch: + more_alpha * more_a op(more_b) */
    bool transpose_more_b;
    double more_alpha;
    const Tensor *down; /* then more_a is a result too, `low` = down_alpha * A op(down), and A is read once for both products */
    bool transpose_down;
    double down_alpha;
    Tensor *low; /* with `down`: the same tensor as more_a */
    /* Instead of more_a, with A not transposed: branches of some rows. A row has the same bits as in a product of which all rows have its branch. */
    const RowBranch *branches;
    const Tensor *addend;      /* (m, n), or (n) for all rows: replaces C in beta * C; beta is 1 with a vector */
    bool nontemporal;          /* C is not read soon: with beta 0 the kernel may bypass the caches when it writes C */
    const struct Matmul *next; /* another product of the same call, which needs no result of this one: threads go to it without a barrier */
} Matmul;

/* For devices: computes a product that has `branches` as one product for each range of rows, with matmul. */
void matmul_by_rows(const Matmul *args, void (*matmul)(const Matmul *args));

/* ---- devices ---- */

/* A device: its memory and its kernels. `upload`, `download` and `synchronise` get the device as an argument, so that it may have a state of its own;
 * a kernel takes it from one of its tensors (tensor_device). Kernels return no status: the device remembers its first fault, and `synchronise`,
 * `upload` and `download` return it. */
struct Device {
    const char *name;
    bool host_memory; /* the host reads and writes the elements of tensors where they are */
    /* Gives arenas the memory of tensors; NULL: arenas take it from the host. */
    const BlockSource *source;
    /* Copy bytes between the host and the device, after the kernels before. */
    Status (*upload)(const Device *device, void *to, const void *from, size_t bytes);
    Status (*download)(const Device *device, void *to, const void *from, size_t bytes);
    Status (*synchronise)(const Device *device); /* waits for the kernels */
    const Device *planner;                       /* the device that plans steps of this one: it computes nothing, and shows the memory of a step */
    const Device *planned;                       /* of a device that plans: the other one. NULL: the device computes */
#define KERNEL(name, arguments, values) void(*name) arguments;
#include "lib/tensor/kernels.def"
#undef KERNEL
    /* Bytes of the packed copy of a constant (rows, cols) weight for the forward product and, if `backward`, for the backward product too; 0 = the
     * device makes no copy. */
    size_t (*packed_bytes)(int64_t rows, int64_t cols, DType stored, DType compute, bool backward);
    void (*packed_free)(void *packed); /* frees Storage.packed */
    /* Packs a constant weight now, for the forward product and, if `backward`, for the backward product too, into memory that `memory` gives. NULL:
     * the device makes no copies. */
    Status (*pack)(const Tensor *weight, DType compute, bool backward, const PackMemory *memory);
    DType (*product_dtype)(DType a); /* dtype in which products of `a` run: bf16 may be widened to f32 */
    /* Bytes of scratch memory that the kernels will allocate beyond what they have, for the steps planned since workspace_clear. Leaves out a few
     * kilobytes of kernels other than products and attention. */
    size_t (*workspace_bytes)(const Device *device);
    void (*workspace_clear)(const Device *device);
};
/* The devices live as long as the program. */
const Device *device_cpu(void);
const Device *device_reference(void);
const Device *device_meta(void); /* the planner of device_cpu() */

/* The device and the dtype that a command computes with. The command passes it to the libraries that it calls. */
typedef struct Runtime {
    const Device *device;
    DType compute; /* dtype of activations between ops */
} Runtime;
/* Whether kernels of the device compute values; a device that plans only shows the memory of a step. */
static inline bool device_computes(const Device *device) { return !device->planned; }
/* The device that plans steps of this one. */
static inline const Device *device_plan(const Device *device) { return device->planned ? device : device->planner; }

/* Runs task(context, i) for i = 0..n-1 on the calling thread and on the team's threads (as many threads as OpenMP has). The team polls for a
 * moment before it sleeps, so a job starts in less than a microsecond; an OpenMP parallel region takes ten. A task must not start a parallel
 * region, so it may use only kernels on small tensors. A job started inside a task runs on that task's thread alone. */
typedef void CpuTask(void *context, int64_t i);
void cpu_team_run(int64_t n, CpuTask *task, void *context);

/* Selects how the CPU device works. Call before the first use of the device; NULL or "auto" lets the processor decide.
 * gemm: own | openblas | onednn. isa: base | avx2 | avx512 | avx512_widened (bf16 is multiplied in f32) | avx512_bf16 | amx. ST_USAGE for an unknown
 * name and for a choice that this build or processor does not support. */
Status cpu_configure(const char *gemm, const char *isa);
typedef struct CpuInfo {
    const char *isa;                  /* the set of kernels in use */
    const char *gemm_f32, *gemm_bf16; /* e.g. "avx512", "openblas 0.3.21 (Zen)", "onednn 2.6.3", "widened to f32" */
    /* what `compute: auto` follows: true if the processor multiplies bf16 natively, even where widened products are faster */
    bool auto_bf16;
    bool has_onednn;
    int threads;
    char name[64];      /* the processor's */
    char features[128]; /* "avx2 fma avx512f avx512_bf16 amx_bf16" */
} CpuInfo;
const CpuInfo *cpu_info(void);
size_t cpu_scratch_bytes(void);   /* for tests: bytes of the kernels' own scratch memory so far, all threads */
double cpu_product_seconds(void); /* seconds in matrix products so far, the head's log-probabilities included */
size_t cpu_packed_bytes(void);    /* for tests: bytes of packed weights now */
/* Speed of products and memory on all threads, measured in about two seconds on the layer sizes of a small model. */
typedef struct CpuSpeed {
    double gflops_f32, gflops_bf16; /* best of the products, 10^9 operations per second; bf16 also where it is widened */
    double memory_gbs;              /* reading memory, 10^9 bytes per second */
} CpuSpeed;
Status cpu_measure_speed(CpuSpeed *speed); /* ST_RESOURCE when memory for it runs out */
Status cpu_measure_reading(double *gbs);   /* CpuSpeed.memory_gbs alone, in half a second; fails likewise */

/* ---- the tape ---- */

typedef struct Tape Tape;
/* Makes a tape. compute: dtype of activations between ops (f32, bf16; f64 on the reference device). The residual stream, norms, softmax and losses
 * are always f32 (f64 with compute f64). limit: bytes of activations and gradients at most, 0 = no limit. NULL when memory runs out. */
Tape *tape_new(const Device *device, DType compute, size_t limit);
void tape_free(Tape *tape);
void tape_reset(Tape *tape);               /* forgets the step; the next one reuses its memory */
void tape_record(Tape *tape, bool record); /* off: no backward pass is possible, and each layer's memory is freed at its end */
/* Activation checkpointing: what op_layer keeps of a layer for the backward pass. It computes the rest again, with the same bits. */
typedef enum Checkpointing {
    CHECKPOINT_NONE, /* all that the backward pass reads, and the probabilities of a trained head */
    CHECKPOINT_HEAD, /* the same without those probabilities */
    /* The input, attention, and products whose sums are at least as long as their rows. Norms, gate and up are computed again; so is attention's last
     * product, unless it is longer than it is wide. */
    CHECKPOINT_SELECTIVE,
    CHECKPOINT_LAYER, /* the input only */
} Checkpointing;
void tape_checkpoint(Tape *tape, Checkpointing kind);
Checkpointing tape_checkpointing(const Tape *tape);
Arena *tape_arena(Tape *tape); /* its memory lives until the step ends */
const Device *tape_device(const Tape *tape);
DType tape_compute(const Tape *tape);
DType tape_residual(const Tape *tape); /* f32, or f64 when compute is f64 */
/* The first failure of any op since the reset. Ops after it do nothing and return NULL. */
Status tape_status(const Tape *tape);
/* Bytes of activations and their gradients at the peak so far, rounded up to whole pages. */
size_t tape_peak_bytes(const Tape *tape);
/* Peak bytes of the memory that a tape uses, by lifetime. Of a step on the meta device: what the same step will need. */
typedef struct TapeBytes {
    size_t meta;        /* tensor headers, nodes and attributes: until the step ends */
    size_t activations; /* results of ops: until the step ends or their layer does */
    size_t kept;        /* results that a checkpointed layer keeps for its backward pass */
    size_t gradients;   /* gradients of activations, and other short-lived values */
} TapeBytes;
TapeBytes tape_bytes(const Tape *tape);
size_t tape_bytes_total(const TapeBytes *bytes); /* in whole pages */
/* Forgets the step and reserves memory for the largest step to come, one contiguous block for each lifetime. Otherwise smaller steps before it
 * would fragment the memory, and the step would need more than its plan says. */
void tape_reserve(Tape *tape, const TapeBytes *bytes);

/* Adds `values`, one double per element, to the gradient of the loss with respect to `tensor`. The meta device ignores `values`. */
void tensor_seed_grad(Tape *tape, Tensor *tensor, const double *values);
/* Runs backward from the last op. Adds to ->grad of trained tensors (needs_grad, made outside the tape), which the caller allocated, or writes
 * there if it is blank. Frees the results of ops, so read what you need of them before the call. Returns tape_status: the first failure of an op, or
 * the device's fault. */
Status tape_backward(Tape *tape);
double tape_backward_seconds(const Tape *tape); /* in tape_backward since tape_new */

/* Work between the ops of a tape, such as sending gradients that are complete. */
typedef struct TapeWatch {
    void *context;
    /* No further op adds to the gradient of this tensor, which was made outside the tape. */
    void (*ready)(void *context, Tape *tape, Tensor *tensor);
    void (*poll)(void *context); /* after each op, forward and backward */
} TapeWatch;
/* Watches the tape from its next op on; NULL: no longer. Set it before the forward pass of a step with one backward pass, with `uses` of all trained
 * tensors 0. A tensor whose ops were not all reached is not reported. */
void tape_watch(Tape *tape, const TapeWatch *watch);

/* Runs one layer of a model as a unit: y = layer(tape, x, context). A plain call when the tape records everything; see tape_record and
 * tape_checkpoint for the other cases. When the tape does not record and x is itself the result of a layer, y reuses x's memory: read x before the
 * next layer runs. `context` must stay valid until the step ends. */
typedef Tensor *LayerFn(Tape *tape, Tensor *x, void *context);
Tensor *op_layer(Tape *tape, LayerFn *layer, Tensor *x, void *context);
/* The same for a layer with several results: tensors that later layers read in addition to the residual stream. shared: n_shared places, NULL before
 * the first layer, which stay valid until the step ends. A layer may read the places that layers before it have set, and set up to LAYER_MOST_SHARED
 * others. Nothing may overwrite these tensors. Their gradients are the sums over all layers that read them. */
enum { LAYER_MOST_SHARED = 3 };
Tensor *op_layer_shared(Tape *tape, LayerFn *layer, Tensor *x, void *context, Tensor **shared, int n_shared);

/* ---- for op_*.c files ---- */

typedef struct Recompute Recompute;
/* What ops record of a tensor that the tape made. */
struct StepState {
    int readers;          /* number of readers so far, that is nodes with it as input and lazy activations made from it */
    bool dead_after_use;  /* its reader's backward pass does not need the values (op_rms_norm) */
    bool saved_by_output; /* the backward pass of its own op needs the values, so nothing may overwrite them in place */
    bool restored;        /* the values were kept from the forward pass, and include every change made to them in place */
    /* A lazy activation (op_activation_passing): it has no memory except while op_linear reads the values, which it computes for that. NULL: an
     * ordinary tensor. */
    const Recompute *recompute;
};

enum { NODE_MAX_INPUTS = 14, NODE_MAX_OUTPUTS = 1 + LAYER_MOST_SHARED, NODE_MAX_SAVED = 4 };
typedef struct Node Node;
struct Node {
    void (*backward)(Tape *tape, Node *node);
    const char *op;
    Tensor *inputs[NODE_MAX_INPUTS]; /* NULL where an optional input is missing */
    Tensor *outputs[NODE_MAX_OUTPUTS];
    Tensor *saved[NODE_MAX_SAVED]; /* values of the forward pass that the backward pass needs */
    void *attributes;              /* copy of the op's plain arguments, in the step's arena */
};
Tensor *tape_header(Tape *tape, DType dtype, int n_dims, const int64_t *shape); /* without memory yet: see tape_temp. NULL after a failure */
Tensor *tape_reshape(Tape *tape, const Tensor *tensor, int n_dims, const int64_t *shape); /* as tensor_reshape; NULL after a failure */
/* Makes a tensor in the step's memory. NULL after a failure. */
Tensor *tape_tensor(Tape *tape, DType dtype, int n_dims, const int64_t *shape);
Tensor *tape_tensor_like(Tape *tape, DType dtype, const Tensor *like);
/* Like tape_tensor, for a result that is expensive to compute. *there is true when a checkpointed layer runs again and has kept the values; then
 * do not compute them. Each run of a layer must make these calls in the same order. */
Tensor *tape_result(Tape *tape, DType dtype, int n_dims, const int64_t *shape, bool *there);
/* A tensor that takes over the memory and values of `dead`, which is marked `dead_after_use`: the next sum of a residual stream. NULL while the
 * values are still needed: by another reader, by the op that made them, or by a checkpointed layer that will run again. */
Tensor *tape_reuse(Tape *tape, const Tensor *dead);
/* Reports a shape error in an op's arguments that a user's data can cause. Returns NULL. */
Tensor *tape_fail(Tape *tape, Status code, const char *format, ...) PRINTF_LIKE(3, 4);
/* Ends an op: marks the outputs, and records the op if the tape records and an input needs a gradient. Copies `size` bytes of attributes; 0: none.
 * Returns the node, so that the op can fill `saved`, or NULL when nothing is recorded. */
Node *tape_push(Tape *tape, const char *op, void (*backward)(Tape *, Node *), Tensor *const *inputs, int n_inputs, Tensor *const *outputs,
                int n_outputs, const void *attributes, size_t size);
void *tape_copy(Tape *tape, const void *bytes, size_t size); /* the copy lives until the step ends; NULL after a failure, which the tape records */
bool tape_recording(const Tape *tape);
bool tape_repeats(const Tape *tape);        /* a checkpointed layer runs again, in the backward pass */
bool tape_needs_backward(const Tape *tape); /* this run of the op, or its repetition in a checkpointed layer, will have a backward pass */
/* The gradient buffer of `tensor`. *beta is 0 when the buffer is fresh (write) and 1 when it has a value already (add): backward kernels take
 * `beta` and compute y = result + beta * y. NULL when no gradient is needed. */
Tensor *tape_grad(Tape *tape, Tensor *tensor, double *beta);
/* Gives the memory of a lent gradient back to the tape that it is from; it is blank from then on. tape NULL: the tape has been reset since. */
void tape_grad_free(Tape *tape, Tensor *grad);
/* Moves the gradient buffer of `from`, which no longer needs it, to `to`. False when `to` has one already or differs in shape or dtype. */
bool tensor_grad_move(Tensor *from, Tensor *to);
/* Short-lived memory for values, taken from the memory that gradients of activations use in turn. False after a failure. tape_temp_free ends the
 * life of the values and of a gradient in the same memory. */
bool tape_temp(Tape *tape, Tensor *tensor);
void tape_temp_free(Tape *tape, Tensor *tensor);
/* Scratch memory for one op. In the backward pass it is freed when the op's backward ends; in the forward pass it lives until the step ends. */
Tensor *tape_scratch(Tape *tape, DType dtype, int n_dims, const int64_t *shape);

/* ---- where the time goes ---- */

/* The work of a call: floating-point operations of its matrix products (a multiplication and an addition count as two, other work as none), and
 * the bytes of everything that it reads and writes, each element once, as stored. Extra work and traffic inside a kernel do not count. */
typedef struct OpCost {
    double flops, bytes;
} OpCost;
/* Bytes of a node's tensors. Forward: inputs and outputs. Backward: inputs, gradients of outputs and the requested gradients of inputs. */
double node_bytes(const Node *node, bool backward);

/* A profile of the process: seconds by kind of work. A call at the end of a piece of work adds the seconds since the call before to the row of its
 * kind, so that the rows add up to the wall time. The tape makes such calls around every op. When the profile is off, a call is one test. Only for
 * the thread that runs the tapes. */
typedef struct ProfileRow {
    const char *name;
    bool backward;
    int64_t calls;
    double seconds;
    OpCost cost;
} ProfileRow;
void profile_start(void); /* starts from zero */
void profile_stop(void);  /* rows stay valid */
bool profile_running(void);
void profile_lap(const char *name); /* adds to the row `name`, a string literal; NULL: the row "other" */
/* Like profile_lap, for a call of known work; a device that plans adds to "other". */
void profile_call(const Device *device, const char *name, bool backward, OpCost cost);
/* Like profile_call, but counts no call: for the first part of a call that other work interrupts. Does nothing for a device that plans. */
void profile_part(const Device *device, const char *name, bool backward);
/* Returns the number of rows: "other", up to now, then the others in order of appearance. Valid until profile_start. */
size_t profile_rows(const ProfileRow **rows);

/* ---- ops: one file op_<name>.c and one line in ops.def each ---- */

#define OP(result, name, arguments) result op_##name arguments;
#include "lib/tensor/ops.def"
#undef OP

/* op_linear for up to LINEARS_MOST layers of the same input, without residuals, as one node: the device computes their products in one call. y[i]:
 * the result of layer i, NULL after a failure. */
enum { LINEARS_MOST = 3, EXPERT_LINEARS_MOST = 2 };
/* Products of each head with its rows of a weight (H x rows, k), of which those from `first` on, `count` of them, take part. Not recorded: for passes
 * with a cache. */
typedef struct HeadProducts {
    int64_t n_heads, rows, first, count;
    bool transposed; /* x: (N, H x k) -> (N, H x count); else x: (N, H x count) -> (N, H x k) */
    const Tensor *weight;
    const LoraBranch *lora; /* the weight's branch, or branches of some rows each; NULL: none */
} HeadProducts;
/* NULL after a failure, which the tape records. */
Tensor *head_products(Tape *tape, const Tensor *x, const HeadProducts *args);
typedef struct LinearArgs {
    Tensor *weight, *bias;
    const LoraBranch *lora;
} LinearArgs;
void op_linears(Tape *tape, Tensor *x, const LinearArgs *layers, int n, Tensor **y);

/* The lengths of the rows of W + scale B A for a branch with `squares`: (out) residual dtype. Not recorded. NULL after a failure. */
Tensor *dora_norms(Tape *tape, const Tensor *weight, const LoraBranch *lora);

/* A lazy op_activation whose only reader is one op_linear or op_linears. The step does not keep its values: they are computed when the product
 * runs, and again when the gradient passes the activation. */
Tensor *op_activation_passing(Tape *tape, Activation kind, Tensor *x, Tensor *up);
/* For that reader; all three do nothing if y is an ordinary tensor. recompute_run computes y's values. recompute_backward passes y's gradient,
 * which must be complete, on to x and up, and puts y's values in its place; reader: the op that called it, whose seconds the profile counts until
 * here. recompute_end frees the values. */
void recompute_run(Tape *tape, Tensor *y);
void recompute_backward(Tape *tape, Tensor *y, const char *reader);
void recompute_end(Tape *tape, Tensor *y);

/* ---- the gradient check, driven by ops.def: every op supplies an example ---- */

enum { EXAMPLE_MAX_INPUTS = 10 };
typedef struct OpExample {
    Tape *tape;
    Arena *arena;
    uint64_t seed;
    int n_inputs;
    Tensor *inputs[EXAMPLE_MAX_INPUTS]; /* made by example_input, in order */
    int n_outputs;
    Tensor *outputs[NODE_MAX_OUTPUTS];
    const double *given[EXAMPLE_MAX_INPUTS]; /* values for the inputs; NULL: random values */
    DType dtype;                             /* of activations; weights are f32 (f64 when this is f64) */
    int variant;                             /* selects one of the op's examples, 0..: one for each way that the op can run */
} OpExample;
/* A float input of the example, random in about [-1,1]. `activation`: in the compute dtype, else in the parameters' dtype. `grad`: its gradient is
 * checked. */
Tensor *example_input(OpExample *example, bool activation, bool grad, int n_dims, const int64_t *shape);
Tensor *example_ids(OpExample *example, int64_t n, const int32_t *ids);
void example_output(OpExample *example, Tensor *output);
typedef struct OpInfo {
    const char *name;
    void (*example)(OpExample *example);             /* calls the op once on small inputs and names its outputs */
    const int *variants;                             /* number of the op's examples */
    OpCost (*cost)(const Node *node, bool backward); /* from shapes and attributes only; in the forward pass the node has no `saved` yet */
} OpInfo;
/* Every op file defines `const int op_<name>_variants` and these functions. */
#define OP(result, name, arguments)               \
    extern const int op_##name##_variants;        \
    void op_##name##_example(OpExample *example); \
    OpCost op_##name##_cost(const Node *node, bool backward);
#include "lib/tensor/ops.def"
#undef OP
extern const OpInfo op_infos[];
extern const int n_op_infos;
typedef struct GradCheck {
    const char *op;
    int variant;
    double max_error;     /* the largest error over all elements of all inputs */
    int input;            /* the input of that error, by OpExample.inputs */
    int64_t element;      /* its element */
    double expected, got; /* the gradient by differences, and by the op */
} GradCheck;
/* Compares every op of the table with central differences in double on the reference device. `worst` gets one entry per (op, variant), at most
 * `cap`; returns their number. An error is relative to max(1, |gradient|); below 1e-6 is fine. */
int gradcheck_ops(GradCheck *worst, int cap);

#endif
