/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors, the tape, and the ops that a language model is made of.
 *
 *     Tape *tape = tape_new(device_cpu(), DT_F32, 0);
 *     Tensor *h = op_rms_norm(tape, x, norm_weight, 1e-5);              // an op computes at once and records itself
 *     Tensor *y = op_linear(tape, h, weight, NULL, NULL, NULL);
 *     tensor_seed_grad(tape, y, dy);                                    // what the loss says about y
 *     TRY(tape_backward(tape));                                         // weight->grad has been added to
 *     tape_reset(tape);                                                 // activations are gone, their memory stays
 *
 * Tensors are dense and row-major. A tensor lives on a device; ops reach its memory only through that device's kernels (kernels.def), so a new
 * device is one more folder and no op changes. There are three: `cpu` (fast), `reference` (plain loops in double over any dtype: what the fast
 * kernels are tested against and what the gradient check runs on) and `meta` (computes nothing: the same run on it tells the memory that it takes,
 * cpu_planned_bytes included).
 *
 * Names of sizes: N tokens of a flat batch, C width, H heads, KV key/value heads, D head size, F feed-forward width, V vocabulary.
 */
#ifndef TUNE_TENSOR_H
#define TUNE_TENSOR_H

#include "lib/base/file.h"
#include "lib/base/rng.h"

/* ---- tensors ---- */

typedef enum DType { DT_F32, DT_BF16, DT_F16, DT_F64, DT_I32 } DType;
/* Bytes of one element. Here, since where the dtype is known in a kernel it must cost nothing: a call there spills all vectors. */
static inline size_t dtype_size(DType dtype) {
    switch (dtype) {
    case DT_F32:
    case DT_I32: return 4;
    case DT_BF16:
    case DT_F16: return 2;
    case DT_F64: return 8;
    }
    return 0;
}
const char *dtype_name(DType dtype); /* "f32", ... */
static inline float bf16_to_float(uint16_t bits);
static inline uint16_t float_to_bf16(float value); /* round to nearest, ties to even; NaN stays NaN */
float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float value);

enum { TENSOR_MAX_DIMS = 4 };
typedef struct Device Device;
typedef struct Tensor Tensor;
typedef struct Recompute Recompute;
struct Tensor {
    DType dtype;
    int n_dims;
    int64_t shape[TENSOR_MAX_DIMS];
    void *data;
    const Device *device;
    const char *name; /* for messages; may be NULL */
    Tensor *grad;     /* same shape; NULL when there is none (yet) */
    bool needs_grad;
    bool constant;        /* contents never change: the device may keep a packed copy in `packed` */
    bool in_out;          /* a weight stored (in, out) instead of (out, in), as GPT-2's Conv1D */
    bool blank;           /* a gradient that counts as zeros: the first one that adds to it writes instead (tape_grad) */
    bool result;          /* of an op */
    int readers;          /* of a result: nodes that have it as input, and activations that are not kept, so far */
    bool dead_after_use;  /* a result whose reader goes back without its values (op_rms_norm) */
    bool saved_by_output; /* a result whose own op goes back by its values: nothing may be done to them in place */
    bool restored;        /* a result that was kept for the backward pass, with all that was done to it in place */
    /* Values are not kept but made where op_linear reads them (op_activation_passing), and `data` is NULL before and after; NULL: they are there */
    const Recompute *recompute;
    void *packed; /* owned by the device; tensor_unpack frees it */
};

/* An uninitialised tensor in `arena`. NULL when the arena is full (recorded). */
Tensor *tensor_new(Arena *arena, const Device *device, DType dtype, int n_dims, const int64_t *shape);
/* A tensor over memory that somebody else keeps (a mapped file, a caller's array). */
Tensor *tensor_view(Arena *arena, const Device *device, DType dtype, int n_dims, const int64_t *shape, void *data);
int64_t tensor_count(const Tensor *tensor); /* elements */
size_t tensor_bytes(const Tensor *tensor);
int64_t tensor_width(const Tensor *tensor); /* the last dimension */
int64_t tensor_rows(const Tensor *tensor);  /* elements / width: every op reads its input as (rows, width) */
/* Text like "f32 (12,64)" for messages; returns `out`. */
const char *tensor_describe(const Tensor *tensor, char out[96]);
/* Element `i` of the flattened tensor, any float dtype; for tests, messages and small host loops. */
double tensor_get(const Tensor *tensor, int64_t i);
void tensor_set(Tensor *tensor, int64_t i, double value);
/* Copies with conversion between a tensor and host doubles (any float dtype). */
void tensor_read(const Tensor *tensor, double *out);
void tensor_write(Tensor *tensor, const double *values);
void tensor_unpack(Tensor *tensor); /* frees the packed copies; call before a constant tensor's memory goes away */
/* Index of the first element that is NaN or infinite, or -1. */
int64_t tensor_find_nonfinite(const Tensor *tensor);

/* ---- who sees whom: the attention layout of a flat batch ---- */

/* A run of tokens of one sequence. Its tokens see those before them in the segment, all of its ancestors' tokens, and what the cache holds before. */
typedef struct Segment {
    int64_t begin, end;   /* rows begin..end-1 of the flat batch; segments come in order and cover it */
    int32_t parent;       /* an earlier segment whose tokens come before; -1 = none. Only without cache pages */
    int32_t past;         /* tokens of this sequence that are in the cache already; positions start here */
    const int32_t *pages; /* with a cache: page of tokens 0.., 1 page = cache->page_size tokens, room for past + (end - begin); else NULL */
} Segment;

/* Keys and values of earlier tokens, in pages that sequences may share. k[layer], v[layer]: (n_pages x page_size, KV x D) in the compute dtype. */
typedef struct KvPages {
    Tensor **k, **v;
    int n_layers;
    int32_t page_size, n_pages;
} KvPages;

typedef struct Layout {
    int64_t n_tokens;
    int32_t n_segments;
    const Segment *segments;
    KvPages *cache; /* NULL: attention among the batch's own tokens only */
    /* With a cache: by segment, tokens of the whole sequence, of which more may come in later batches; NULL: what is in cache and batch is all */
    const int64_t *lengths;
} Layout;
/* Position of each token in its sequence: (N) i32, in `arena`. */
Tensor *layout_positions(const Layout *layout, Arena *arena, const Device *device);
/* Tokens before the first one of `segment`: its ancestors' lengths plus `past`. */
int64_t layout_offset(const Layout *layout, int32_t segment);

/* ---- arguments of the larger ops ---- */

/* The trained low-rank branch of a linear layer: y += scale * B (A dropout(x)). a: (rank, in), b: (out, rank), both f32 (f64 in the gradient check).
 */
typedef struct LoraBranch {
    Tensor *a, *b;
    double scale;   /* alpha / rank, or alpha / sqrt(rank) */
    double dropout; /* probability of a zero; 0 when not training */
    RngKey key;     /* of the dropout mask; element i of x uses draw first_draw + i */
    uint64_t first_draw;
} LoraBranch;

typedef struct AttentionArgs {
    const Layout *layout;
    int layer; /* which cache pages */
    int64_t n_heads, n_kv_heads, head_dim;
    double scale;   /* usually 1 / sqrt(head_dim) */
    int64_t window; /* a token sees itself and the window - 1 before it; 0 = all */
    double softcap; /* scores become softcap * tanh(score / softcap); 0 = off */
} AttentionArgs;

typedef struct Split {
    Tensor *parts[3];
} Split;

typedef enum Activation { ACT_SILU, ACT_GELU_TANH, ACT_GELU_ERF, ACT_RELU, ACT_TANH } Activation;

/* A multilayer perceptron: linear layers with f between them, y = W_n f(.. f(W_1 x + b_1) ..) + b_n. weights[k]: (out, in), biases[k]: (out), all f32
 * (f64 in the gradient check); they must outlive the step. */
enum { MLP_MAX_LAYERS = 8 };
typedef struct MlpArgs {
    int n_layers;
    Tensor *weights[MLP_MAX_LAYERS], *biases[MLP_MAX_LAYERS];
    Activation activation; /* f: one whose slope its value tells, ACT_TANH or ACT_RELU */
    bool activate_last;    /* f also after the last layer: the trunk that several heads share */
} MlpArgs;
/* Gradients that the backward kernel adds to: NULL ones are not computed. x is written with `beta` 0 and added to with 1. */
typedef struct MlpGrads {
    Tensor *weights[MLP_MAX_LAYERS], *biases[MLP_MAX_LAYERS], *x;
    double beta;
} MlpGrads;

typedef struct LogprobArgs {
    double softcap;     /* on logits; 0 = off */
    double temperature; /* logits are divided by it; 1 = plain */
    bool entropy;       /* also the entropy of each distribution, nats */
    bool mean;          /* also the mean log-probability over the vocabulary (label smoothing) */
    bool only_logprob;  /* entropy and mean are to be read, and carry no gradients */
} LogprobArgs;
/* Each (P), f32 (f64 on the reference device); those not asked for are NULL. All carry gradients unless args say otherwise. */
typedef struct TokenLogprobs {
    Tensor *logprob, *entropy, *mean;
} TokenLogprobs;
/* What the kernel finds of P rows of hidden states, (P) where nothing is said; all but logprob and logsumexp may be NULL. The last three are for
 * going back by logprob alone. */
typedef struct LogprobResults {
    Tensor *logprob, *entropy, *mean;
    Tensor *logsumexp;     /* of logits after soft-cap and temperature */
    Tensor *dlogp_dhidden; /* (P, C): gradient of each logprob by its row, so that the gradient of the hidden states takes no more products */
    /* Beside dlogp_dhidden, without soft-cap: what the device must remember of a row to make the gradient of a trained head of weights as they are in
     * `weights` */
    Tensor *reference;
    /* Beside reference: (K, V) in hidden's dtype, arranged as the device likes. Probabilities of the first K rows, each row up to a factor: their
     * logits are not computed again. K is P or a multiple of LOGPROB_BLOCK. */
    Tensor *weights;
} LogprobResults;
enum { LOGPROB_BLOCK = 2048 }; /* rows */

/* C = alpha * op(A) op(B) + beta * C, all 2-D. The dtype of A decides the product: f32 x f32, bf16 x bf16 with f32 sums, or f64; B is converted to
 * it. C may be f32 or bf16 (f64 with f64). The bits of a row of C depend on that row of A only as far as the library underneath allows it, never on
 * the number of threads. What else may be added at once, NULL = nothing: a low-rank branch, more_alpha * more_a op(more_b); and `addend`, (m, n) or
 * (n) for all rows, which takes C's place in beta * C (beta 1 with a vector). A device that has no such product adds one after the other, with C's
 * rounding between them. With `down`, more_a is a result too, `low` = down_alpha * A op(down), and A is read once for both. `next` is another product
 * for the same call, which needs no result of this one: threads then go from one to the other without waiting for each other. */
typedef struct Matmul {
    const Tensor *a, *b;
    Tensor *c;
    bool transpose_a, transpose_b;
    double alpha, beta;
    const Tensor *more_a, *more_b;
    bool transpose_more_b;
    double more_alpha;
    const Tensor *down;
    bool transpose_down;
    double down_alpha;
    Tensor *low; /* with `down`; more_a is the same tensor */
    const Tensor *addend;
    bool nontemporal; /* C is not read soon: with beta 0 it may be written past the caches */
    const struct Matmul *next;
} Matmul;

/* ---- devices ---- */

struct Device {
    const char *name;
#define KERNEL(name, arguments) void(*name) arguments;
#include "lib/tensor/kernels.def"
#undef KERNEL
    /* Bytes of a packed copy of a constant (rows, cols) weight, for the forward and, if `backward`, for the backward product too; 0 = none is made.
     */
    size_t (*packed_bytes)(int64_t rows, int64_t cols, DType stored, DType compute, bool backward);
    void (*packed_free)(void *packed);
    DType (*product_dtype)(DType a); /* what products of this dtype run in: bf16 may be widened */
};
const Device *device_cpu(void);
const Device *device_reference(void);
const Device *device_meta(void);
/* Runs task(context, i) for i = 0..n-1 on this thread and on those of the team, which watch for work for a moment before they sleep: a job for them
 * starts in less than a microsecond where a parallel region takes ten. As many threads as OpenMP has. A task must not start a parallel region, so
 * what it asks of kernels is small; a job that it starts, as kernels of networks do, is done by its thread alone. */
typedef void CpuTask(void *context, int64_t i);
void cpu_team_run(int64_t n, CpuTask *task, void *context);

/* How the processor's device works. Call before its first use; NULL or "auto" chooses by the processor.
 * gemm: own | openblas | onednn. isa: base | avx2 | avx512 | avx512_widened (bf16 is multiplied in f32) | avx512_bf16 | amx. ST_USAGE for a name that
 * is not known or that this build or processor can't do. */
Status cpu_configure(const char *gemm, const char *isa);
typedef struct CpuInfo {
    const char *isa;                  /* which set of kernels runs */
    const char *gemm_f32, *gemm_bf16; /* e.g. "avx512", "openblas 0.3.21 (Zen)", "onednn 2.6.3", "widened to f32" */
    bool auto_bf16;                   /* what compute: auto goes by: the processor multiplies bf16, though widened it may be sooner done */
    bool has_onednn;
    int threads;
    char name[64];      /* the processor's */
    char features[128]; /* "avx2 fma avx512f avx512_bf16 amx_bf16" */
} CpuInfo;
const CpuInfo *cpu_info(void);
size_t cpu_scratch_bytes(void); /* for tests: what kernels keep for themselves so far, all threads, bytes */
/* What they will keep beyond that for what has run on the meta device since cpu_plan_clear, bytes; without the few kilobytes of those that are not
 * products or attention. */
size_t cpu_planned_bytes(void);
void cpu_plan_clear(void);
void cpu_plan(bool on);           /* for the meta device: on, kernels of products and attention only note what they would keep */
double cpu_product_seconds(void); /* spent in matrix products so far, the head's log-probabilities with them */
size_t cpu_packed_bytes(void);    /* for tests: what packed weights take now, bytes */
/* What products and memory reach on all threads, measured in about two seconds on the sizes of a small model's layers. */
typedef struct CpuSpeed {
    double gflops_f32, gflops_bf16; /* best of the products, 10^9 operations per second; bf16 also where it is converted */
    double memory_gbs;              /* reading memory, 10^9 bytes per second */
} CpuSpeed;
Status cpu_measure_speed(CpuSpeed *speed); /* ST_RESOURCE without memory for it */
Status cpu_measure_reading(double *gbs);   /* CpuSpeed.memory_gbs by itself, in half a second; as above */

/* ---- the tape ---- */

typedef struct Tape Tape;
/* compute: dtype of activations between ops (f32, bf16; f64 on the reference device). The residual stream, norms, softmax and losses are f32 (f64)
 * always. limit: bytes of activations and gradients at most, 0 = no limit. NULL when memory can't be had. */
Tape *tape_new(const Device *device, DType compute, size_t limit);
void tape_free(Tape *tape);
void tape_reset(Tape *tape);               /* forgets the step; memory stays for the next */
void tape_record(Tape *tape, bool record); /* off: nothing can be run backward, and layers give their memory back at once */
/* What op_layer keeps of a layer for the backward pass: what its ops read going back, so neither a residual stream under norms (tape_reuse) nor
 * what a linear layer makes of an activation; its input and what is dear for its bytes, attention and products whose sums are at least as long as
 * their rows, so that norms, gate and up, and attention's last product unless it is longer than it is wide, are computed again; its input alone. Of a
 * trained head probabilities are kept with CHECKPOINT_NONE only. The bits are the same. */
typedef enum Checkpointing { CHECKPOINT_NONE, CHECKPOINT_HEAD, CHECKPOINT_SELECTIVE, CHECKPOINT_LAYER } Checkpointing;
void tape_checkpoint(Tape *tape, Checkpointing kind);
Checkpointing tape_checkpointing(const Tape *tape);
Arena *tape_arena(Tape *tape); /* for things that live as long as the step */
const Device *tape_device(const Tape *tape);
DType tape_compute(const Tape *tape);
DType tape_residual(const Tape *tape); /* f32, or f64 when compute is f64 */
/* The first failure of any op since the reset sticks; ops after it return NULL and do nothing. */
Status tape_status(const Tape *tape);
/* What it holds of memory for the largest use so far, activations and their gradients, in whole pages */
size_t tape_peak_bytes(const Tape *tape);
/* Bytes of what lives on a tape, by how long: the most that was in use. Of a plan, a step on the meta device, it is what the same step will take. */
typedef struct TapeBytes {
    size_t meta, activations, kept, gradients;
} TapeBytes;
TapeBytes tape_bytes(const Tape *tape);
size_t tape_bytes_total(const TapeBytes *bytes); /* in whole pages */
/* Forgets the step, and makes room for the largest one to come in one piece each: else smaller steps before it would leave gaps, and it would take
 * more than its plan says. */
void tape_reserve(Tape *tape, const TapeBytes *bytes);

/* Gradient of the loss by `tensor`, given from outside: `values` holds one double per element. Added to what is there. On the meta device `values` is
 * not looked at. */
void tensor_seed_grad(Tape *tape, Tensor *tensor, const double *values);
/* Walks back from the last op; gradients of trained tensors (needs_grad, made outside the tape) are added into their ->grad, which the caller made,
 * or written there if it is blank. The step's memory is given up on the way, ops' results first: read what you need of them before. */
Status tape_backward(Tape *tape);

/* One layer of a model as a unit: y = layer(tape, x, context). Plainly run when recording; see tape_record and tape_checkpoint for the rest. Not
 * recorded, y takes the place of an x that is a layer's result itself: what other layers come after is read before. `context` must stay valid until
 * the step ends. */
typedef Tensor *LayerFn(Tape *tape, Tensor *x, void *context);
Tensor *op_layer(Tape *tape, LayerFn *layer, Tensor *x, void *context);

/* ---- for op_*.c files ---- */

enum { NODE_MAX_INPUTS = 14, NODE_MAX_OUTPUTS = 3, NODE_MAX_SAVED = 4 };
typedef struct Node Node;
struct Node {
    void (*backward)(Tape *tape, Node *node);
    const char *op;
    Tensor *inputs[NODE_MAX_INPUTS]; /* NULL where an optional input is missing */
    Tensor *outputs[NODE_MAX_OUTPUTS];
    Tensor *saved[NODE_MAX_SAVED]; /* what the forward pass computed on the way */
    void *attributes;              /* copy of the op's plain arguments, in the step's arena */
};
/* A new tensor in the step's memory, NULL after a failure. */
Tensor *tape_tensor(Tape *tape, DType dtype, int n_dims, const int64_t *shape);
Tensor *tape_tensor_like(Tape *tape, DType dtype, const Tensor *like);
/* The same for a result that is dear to compute, which a checkpointed layer may have kept: then *there is true, and the values are not to be computed
 * again. In each run of a layer the calls must come in the same order. */
Tensor *tape_result(Tape *tape, DType dtype, int n_dims, const int64_t *shape, bool *there);
/* A tensor in the place of one that is `dead_after_use`, whose values it begins with: the next sum of a residual stream. NULL where they are still
 * wanted: by another reader, by the op that made them, or by a checkpointed layer that will run again. */
Tensor *tape_reuse(Tape *tape, const Tensor *dead);
/* Shape fault in an op's arguments that a user's data can cause. Returns NULL. */
Tensor *tape_fail(Tape *tape, Status code, const char *format, ...) PRINTF_LIKE(3, 4);
/* The end of an op: records it if the tape records and an input needs a gradient; marks the outputs. `size` bytes of attributes are copied; 0: there
 * are none. Returns the node to fill `saved`, or NULL when nothing is recorded. */
Node *tape_push(Tape *tape, const char *op, void (*backward)(Tape *, Node *), Tensor *const *inputs, int n_inputs, Tensor *const *outputs,
                int n_outputs, const void *attributes, size_t size);
void *tape_copy(Tape *tape, const void *bytes, size_t size); /* lives until the step ends; NULL after a failure, which the tape has */
bool tape_recording(const Tape *tape);
bool tape_needs_backward(const Tape *tape); /* this run of the op, or what it leaves in a checkpointed layer, will be gone back over */
/* The gradient of `tensor` to write or add to: *beta is 0 when it is fresh (write), 1 when something is there already (add). NULL when no gradient is
 * wanted. Kernels of the backward pass take `beta` and do y = result + beta * y. */
Tensor *tape_grad(Tape *tape, Tensor *tensor, double *beta);
/* Hands the gradient buffer of `from`, which is done with it, to `to` if that has none yet and is of the same form; false when it can't. */
bool tensor_grad_move(Tensor *from, Tensor *to);
/* Memory for values that are there for a moment, out of that which gradients of activations take in turn; false after a failure. tape_temp_free: the
 * values' end, and that of a gradient in the same memory. */
bool tape_temp(Tape *tape, Tensor *tensor);
void tape_temp_free(Tape *tape, Tensor *tensor);
/* Scratch during one op's forward or backward: freed when the op's backward ends; in the forward pass it lives with the step. */
Tensor *tape_scratch(Tape *tape, DType dtype, int n_dims, const int64_t *shape);

/* ---- where the time goes ---- */

/* The work of a call: operations of its products (a multiplication and an addition are two; what is not a product has none), and the bytes of all
 * that it reads and writes, each element once, as it is stored. What kernels do beyond that is theirs. */
typedef struct OpCost {
    double flops, bytes;
} OpCost;
/* Bytes of a node's tensors: inputs and outputs; going back inputs, gradients of outputs and those gradients of inputs that are wanted. */
double node_bytes(const Node *node, bool backward);

/* One clock for the process, cut into laps: at its end a piece of work takes the time since the last cut, so that all rows together are the wall
 * time. The tape cuts around every op. Off, a cut is one test. Only for the thread that runs the tapes. */
typedef struct ProfileRow {
    const char *name;
    bool backward;
    int64_t calls;
    double seconds;
    OpCost cost;
} ProfileRow;
void profile_start(void); /* from zero */
void profile_stop(void);  /* rows stay */
bool profile_running(void);
void profile_lap(const char *name); /* a literal; NULL: nobody's, the row "other" */
/* The same for a call of known work; on the meta device it is nobody's */
void profile_call(const Device *device, const char *name, bool backward, OpCost cost);
void profile_part(const Device *device, const char *name, bool backward); /* the same before the call is over: something else comes in between */
size_t profile_rows(const ProfileRow **rows);                             /* "other", up to now, first; the rest as they came */

/* ---- ops: one file op_<name>.c and one line in ops.def each ---- */

#define OP(result, name, arguments) result op_##name arguments;
#include "lib/tensor/ops.def"
#undef OP

/* op_linear for each of up to LINEARS_MOST layers of one input, without residuals, as one node: their products are one call of the device. y[i]: NULL
 * after a failure. */
enum { LINEARS_MOST = 3 };
typedef struct LinearArgs {
    Tensor *weight, *bias;
    const LoraBranch *lora;
} LinearArgs;
void op_linears(Tape *tape, Tensor *x, const LinearArgs *layers, int n, Tensor **y);

/* op_activation for one op_linear or op_linears, the only reader: the step keeps no values of it. They are made when the product runs, and once more
 * when its gradient goes back through the activation. */
Tensor *op_activation_passing(Tape *tape, Activation kind, Tensor *x, Tensor *up);
/* For that reader; all do nothing where y is an ordinary tensor. recompute_run: y's values are there. recompute_backward: passes y's gradient, which
 * is complete, on to x and up; y's values take its place. recompute_end: the values are gone again. */
void recompute_run(Tape *tape, Tensor *y);
void recompute_backward(Tape *tape, Tensor *y);
void recompute_end(Tape *tape, Tensor *y);

/* ---- the gradient check, driven by ops.def: every op brings an example ---- */

enum { EXAMPLE_MAX_INPUTS = 10 };
typedef struct OpExample {
    Tape *tape;
    Arena *arena;
    uint64_t seed;
    int n_inputs;
    Tensor *inputs[EXAMPLE_MAX_INPUTS]; /* those made by example_input, in order */
    int n_outputs;
    Tensor *outputs[NODE_MAX_OUTPUTS];
    const double *given[EXAMPLE_MAX_INPUTS]; /* values for the inputs instead of random ones; NULL entries are drawn */
    DType dtype;                             /* of activations; weights are f32 (f64 when this is f64) */
    int variant;                             /* ops with several ways to run have several examples, 0.. */
} OpExample;
/* A float input of the example, random in about [-1,1]; `activation` picks the compute dtype, else parameters' dtype. Checked if `grad`. */
Tensor *example_input(OpExample *example, bool activation, bool grad, int n_dims, const int64_t *shape);
Tensor *example_ids(OpExample *example, int64_t n, const int32_t *ids);
void example_output(OpExample *example, Tensor *output);
typedef struct OpInfo {
    const char *name;
    void (*example)(OpExample *example); /* calls the op once on small inputs and names its outputs */
    const int *variants;
    OpCost (*cost)(const Node *node, bool backward); /* by shapes and attributes alone; the node has no `saved` yet when it goes forward */
} OpInfo;
/* What every op file defines: `const int op_<name>_variants` and these. */
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
    double max_error;
    int input;
    int64_t element;
    double expected, got;
} GradCheck;
/* Central differences in double on the reference device for every op of the table. `worst` gets one entry per (op, variant), at most `cap`; returns
 * their number. An error is relative to max(1, |gradient|); below 1e-6 is fine. */
int gradcheck_ops(GradCheck *worst, int cap);

/* ---- inline parts ---- */

static inline float bf16_to_float(uint16_t bits) {
    union {
        uint32_t u;
        float f;
    } pun = {.u = (uint32_t)bits << 16};
    return pun.f;
}

static inline uint16_t float_to_bf16(float value) {
    union {
        float f;
        uint32_t u;
    } pun = {.f = value};
    if ((pun.u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((pun.u >> 16) | 0x40u);
    return (uint16_t)((pun.u + 0x7fffu + ((pun.u >> 16) & 1u)) >> 16);
}

#endif
