/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters by name, linear layers with their LoRA branch, optimisers and schedules.
 *
 *     Params params = {0};
 *     Param *p = params_add(&params, "model.norm.weight", weight, PARAM_BASE);
 *     TRY(params_train(p, arena));                                    // makes the gradient
 *     TRY(optimizer_init(&config, &params, arena));
 *     double norm = params_grad_norm(&params);                        // step k = 0, 1, ... after its backward pass
 *     optimizer_step(&config, &params, clip_scale(norm, 1.0), schedule_factor(&schedule, k) * 2e-4, k + 1);
 *     params_zero_grad(&params);
 */
#ifndef TUNE_NN_H
#define TUNE_NN_H

#include "lib/tensor/tensor.h"

/* ---- parameters: loading, saving, LoRA, clipping, the optimiser and `inspect` all walk this one list ---- */

typedef enum ParamRole {
    PARAM_BASE,            /* a weight of the checkpoint */
    PARAM_LORA_A,          /* (rank, in) */
    PARAM_LORA_B,          /* (out, rank) */
    PARAM_MAGNITUDE,       /* (out): DoRA's lengths of rows */
    PARAM_SAVED,           /* a full weight trained together with the adapter (modules_to_save); the frozen original has an entry of its own */
    PARAM_CHECKPOINT_ONLY, /* a head that is not saved with the model or adapter (a value function); checkpoints include it */
} ParamRole;
enum { OPTIMIZER_MAX_STATES = 2 };
typedef struct Param {
    const char *name; /* as in the checkpoint: "model.layers.0.mlp.up_proj.weight"; LoRA: "model.layers.0.mlp.up_proj.lora_A.weight" */
    Tensor *tensor;
    ParamRole role;
    bool trained;
    double lr_scale; /* factor on the learning rate (LoRA+: B matrices) */
    bool decay;      /* weight decay applies */
    /* divided: other processes update the other elements; this one updates first .. first + n - 1, and its states are of these (n) */
    bool divided;
    int64_t first, n;
    Tensor *own_grad;                    /* (n): the gradient of these elements, if it is apart from the tensor's; NULL: it is a part of that */
    Tensor *state[OPTIMIZER_MAX_STATES]; /* owned by the optimiser */
} Param;
typedef struct Params {
    Param *items;
    size_t n, cap;
} Params;
/* Appends a parameter. name is borrowed. Pointers to items become invalid when the list grows. NULL when memory runs out (recorded). */
Param *params_add(Params *params, const char *name, Tensor *tensor, ParamRole role);
Param *params_find(const Params *params, const char *name); /* NULL when there is none */
void params_release(Params *params);                        /* frees the list, not the tensors */
/* A hash of all names, shapes and values. Reads all values. */
uint64_t params_fingerprint(const Params *params);
/* Marks a parameter as trained: sets needs_grad, and makes a zeroed gradient of its own dtype in `arena`. The tensor must be f32 (f64 on the
 * reference device). ST_RESOURCE. */
Status params_train(Param *param, Arena *arena);
/* The same without memory for the gradient: it has some only while a tape lends it (Tensor.lent). */
Status params_train_lent(Param *param, Arena *arena);
void params_return_grads(const Params *params);              /* lent gradients have no memory any more: their tape is reset next */
Status params_own_grads(const Params *params, Arena *arena); /* gives lent gradients memory of their own in `arena`; ST_RESOURCE */
/* Bytes, in whole pages, of `copies` tensors for each trained parameter, of its shape and dtype (states of an optimiser, saved weights). Call
 * params_expect_copies before they are made in `arena`, so that they take no more than this (arena_expect). */
size_t params_copies_bytes(const Params *params, int copies);
void params_expect_copies(const Params *params, int copies, Arena *arena);
void params_zero_grad(const Params *params); /* touches no memory: see Tensor.blank */
Tensor *param_grad(const Param *param);      /* the gradient of a trained parameter, to read or write: zeros where nothing was added */
Tensor param_own_grad(const Param *param);   /* the same of the elements that this process updates, first .. first + n - 1 of a divided parameter */
/* L2 norm over all gradients of trained parameters, summed in double in list order. */
double params_grad_norm(const Params *params);
/* Factor that brings a norm down to `max_norm` (0 = never): min(1, max_norm / (norm + 1e-6)), as torch. */
double clip_scale(double norm, double max_norm);
/* The first trained parameter whose values (or gradient) are not finite; NULL when all are. */
const Param *params_nonfinite(const Params *params, bool gradient);
int64_t params_count(const Params *params, bool trained_only); /* elements */

/* ---- linear layers ---- */

typedef struct LoraConfig {
    int64_t rank;
    double alpha, dropout;
    size_t n_targets; /* names ("q_proj") or suffixes ("self_attn.q_proj"); n_targets = 0: all linear layers but the head */
    const char **targets;
    size_t n_parameters; /* target_parameters: names or suffixes of the layers of all experts together, "mlp.experts.gate_up_proj" */
    const char **parameters;
    bool only_parameters;     /* no other targets: n_targets 0 means none */
    const char *target_regex; /* a regex for the full module path that replaces targets, as in adapter_config.json; NULL = none */
    size_t n_saved;           /* modules trained in full: "lm_head", "embed_tokens" */
    const char **saved;
    size_t n_rank_pattern, n_alpha_pattern; /* keys match the module path as the regex (.*\.)?(key)$; as in PEFT the first match wins */
    const char **rank_keys, **alpha_keys;
    int64_t *rank_values;
    double *alpha_values;
    bool use_rslora;
    bool use_dora;   /* the weight becomes magnitude * (W + scale B A) / norm of its rows. Source: DoRA, arXiv 2402.09353 */
    bool gaussian;   /* init: A ~ N(0, (1/rank)^2) instead of U(-1/sqrt(in), 1/sqrt(in)); B = 0 in both */
    double lr_ratio; /* learning rate of B divided by that of A; unless it is 1, magnitudes have B's and no weight decay, as in PEFT */
} LoraConfig;

typedef struct Linear {
    const char *path; /* module path: "model.layers.0.self_attn.q_proj" */
    Tensor *weight;   /* (out, in), or (in, out) if weight->in_out */
    Tensor *bias;     /* (out) or NULL */
    int64_t in, out;
    LoraBranch *lora; /* NULL = none */
    uint64_t index;   /* the layer's number in the model, for random streams */
    /* Not 0: one layer of each of so many experts, together. Its weight is (copies, out, in), or (copies, in, out), or NULL if each expert has a
     * Linear too; its branch has A (copies x rank, in) and B (copies x out, rank). To PEFT it is a parameter, not a module. */
    int64_t copies;
    bool no_dora;    /* its products are not only those of linear_forward */
    bool only_named; /* gets a branch only where the targets name it: experts and routers */
    /* Of an expert's own layer: the layers of all experts together, the expert's number, and its first row there. NULL: it is not an expert's */
    const struct Linear *together;
    int64_t number, first_row;
} Linear;
/* Rows begin..end-1 of a batch, and their adapter: the branches of `linears`, which are all linear layers of a model, in order. */
typedef struct AdapterRows {
    Linear *const *linears;
    int64_t begin, end;
} AdapterRows;
/* Sees the inputs of linear layers in a pass without a backward pass; layers of experts are not among them. */
typedef struct LinearWatch {
    void *context;
    /* Called before `n` layers with the same input are applied to it, x: (N, in). Returns the input that they get: x or another tensor. NULL: the
     * pass ends here, with ST_INTERRUPTED on the tape unless that has a failure. */
    Tensor *(*see)(void *context, Tape *tape, const Linear *const *linears, int n, Tensor *x);
} LinearWatch;
/* What a forward pass must know of the step that it belongs to. */
typedef struct StepContext {
    bool training;         /* dropout is on */
    uint64_t seed, number; /* dropout masks are a function of (seed, number, layer): give every forward pass of a run a different number */
    /* of a pass over a part of a batch: the index of the part's first token in the batch, so that dropout masks do not depend on the parts */
    int64_t first_token;
    /* n_adapters > 0: these branches instead of the layers' own; the ranges are in order, and the other rows have no branch. No backward pass */
    const AdapterRows *adapters;
    int n_adapters;
    const LinearWatch *watch; /* NULL: none */
} StepContext;
/* Applies the layer. residual: added to the result; NULL = none. */
Tensor *linear_forward(const Linear *linear, Tape *tape, Tensor *x, Tensor *residual, const StepContext *step);
/* Whether linear_forward reads its input once, so that it may be a lazy activation (op_activation_passing). */
bool linear_reads_once(const Linear *linear, const StepContext *step);
/* The branch that changes the layer's weight, its own or its part of that of all experts together, as a branch of the two tensors in `parts`. False:
 * there is none. expert: of a layer of all experts together, which of them; else 0. */
bool linear_change(const Linear *linear, int64_t expert, LoraBranch *branch, Tensor parts[2]);
/* Sets the dropout mask of a copy of the layer's branch in this step. */
void linear_mask(const Linear *linear, const StepContext *step, LoraBranch *branch);
/* The layer's low-rank branches in this step, in the step's memory; NULL: none, or after a failure. */
const LoraBranch *linear_branch(const Linear *linear, Tape *tape, const StepContext *step);
/* Applies several layers to the same input, without residual (op_linears). */
void linears_forward(const Linear *const *linears, int n, Tape *tape, Tensor *x, const StepContext *step, Tensor **y);
/* Gets the rank, scale and alpha that `config` specifies for the module at `path`. */
void lora_rank_and_scale(const LoraConfig *config, const char *path, int64_t *rank, double *scale, double *alpha);
/* Adds a branch of uninitialised matrices to `linear`, in `arena`, and appends the parameters to `params`: A, B, and the magnitude of DoRA. dtype:
 * f32 (f64 on the reference device). The weight must be there if it is DoRA: its values are read once. ST_RESOURCE. */
Status lora_add_branch(Linear *linear, const LoraConfig *config, DType dtype, const Device *device, Arena *arena, Params *params);
/* Like lora_add_branch, but trained, with A random by (seed, linear->index) and B zero; the magnitude of DoRA is the length of the weight's rows. A
 * does not depend on which other layers have a branch. ST_RESOURCE. */
Status lora_attach(Linear *linear, const LoraConfig *config, uint64_t seed, DType dtype, const Device *device, Arena *arena, Params *params);
/* A DoRA branch never changes: its norms are computed once and kept in `arena`. Does nothing for plain LoRA. ST_RESOURCE. */
Status lora_keep_norms(LoraBranch *lora, Arena *arena);
/* Sets the learning rates of B and of magnitudes to `ratio` times that of A (LoraConfig.lr_ratio). */
void lora_set_lr_ratio(const Params *params, double ratio);
/* Whether the targets of `config` include the linear layer. */
bool lora_targets(const LoraConfig *config, const Linear *linear);
/* Whether one of the names is the full path or its last components. */
bool module_matches(const char *path, const char *const *names, size_t n);
/* Whether the regex matches the full path. False for an invalid regex, which pattern_check reports (ST_CONFIG). */
bool pattern_matches(const char *pattern, const char *path);
Status pattern_check(const char *pattern);
/* Whether a key of rank_pattern or alpha_pattern, a name or a regex, matches the end of the path. */
bool pattern_key_matches(const char *key, const char *path);
/* ST_CONFIG if the pattern, or one of `config`, needs too many steps: the functions above then return false. */
Status pattern_decides(const char *pattern, const char *path);
Status lora_decides(const LoraConfig *config, const char *path);

/* ---- multilayer perceptrons: policies and values of small environments ---- */

typedef enum MlpInit {
    MLP_ORTHOGONAL, /* rows (or columns, if there are fewer) are orthonormal times a gain, biases are zero; the usual start of policy gradients */
    MLP_UNIFORM,    /* weights and biases U(-1/sqrt(in), 1/sqrt(in)), the default of torch's layers */
} MlpInit;
typedef struct MlpConfig {
    int64_t in, out;
    int n_hidden;          /* 0..MLP_MAX_LAYERS - 1 */
    const int64_t *hidden; /* widths of the hidden layers, n_hidden of them */
    Activation activation; /* ACT_TANH or ACT_RELU, after each hidden layer */
    bool activate_last;    /* also after the last layer: a trunk that several heads share */
    MlpInit init;
    /* gain of MLP_ORTHOGONAL for all layers but the last, and for the last: sqrt(2) and 0.01 for a policy, 1 for a value */
    double hidden_gain, out_gain;
} MlpConfig;
typedef struct Mlp {
    MlpArgs args;
    int64_t in, out;
} Mlp;
/* Makes the layers in `arena` and appends them to `params` as "<prefix>.0.weight" (out, in), "<prefix>.0.bias" (out), "<prefix>.2.weight", ...:
 * torch's names for a Sequential with an activation between the layers. dtype: f32 (f64 on the reference device). Values are drawn by (seed,
 * number): give each network of a run a different number. trained: with gradients; a target network has none and needs a separate list. ST_CONFIG
 * for widths below 1 and for too many layers. */
Status mlp_init(Mlp *mlp, const MlpConfig *config, const char *prefix, bool trained, uint64_t seed, uint64_t number, DType dtype,
                const Device *device, Arena *arena, Params *params);
/* x: (N, in) -> (N, out); NULL after a failure, which the tape records. */
Tensor *mlp_forward(const Mlp *mlp, Tape *tape, Tensor *x);
/* to = (1 - tau) to + tau from; both have the same shape. tau = 1 copies; a small tau makes a target network follow slowly. */
void mlp_blend(const Mlp *from, double tau, Mlp *to);

/* ---- optimisers: one file optimizer_<name>.c and one line in optimizers.def each ---- */

typedef struct OptimizerConfig {
    const char *name;
    double beta1, beta2, eps, weight_decay, momentum;
} OptimizerConfig;
typedef struct OptimizerInfo {
    const char *name;
    const char *help;
    const char *keys; /* the recipe keys among betas, eps, momentum that it uses, separated by spaces */
    /* Number of state tensors, each of the parameter's shape and dtype. An element's update depends on no other element, so ranks divide them. */
    int (*states)(const OptimizerConfig *config);
    void (*update)(const OptimizerConfig *config, Param *param, double grad_scale, double lr, int64_t step); /* step counts from 1 */
} OptimizerInfo;
#define OPTIMIZER(name) extern const OptimizerInfo optimizer_##name;
#include "lib/nn/optimizers.def"
#undef OPTIMIZER
const OptimizerInfo *optimizer_find(const char *name); /* NULL when unknown */
const OptimizerInfo *optimizer_at(size_t i);           /* NULL past the end */
/* Makes the states (zeroed) of all trained parameters in `arena`. ST_RESOURCE. */
Status optimizer_init(const OptimizerConfig *config, Params *params, Arena *arena);
size_t optimizer_bytes(const OptimizerConfig *config, const Params *params); /* memory that optimizer_init will take */
/* Updates every trained parameter once. lr: learning rate of this step, multiplied by the parameter's lr_scale. */
void optimizer_step(const OptimizerConfig *config, Params *params, double grad_scale, double lr, int64_t step);

/* ---- learning-rate schedules: one line in schedules.def and one function each. Formulas of transformers' optimization.py; reference values:
 * golden/optim/schedules.json ---- */

typedef struct ScheduleConfig {
    const char *name;
    int64_t warmup_steps, total_steps;
    double min_lr_ratio; /* floor of cosine_with_min_lr and wsd */
    double num_cycles;   /* 0 = half a wave for cosine and wsd, one full cycle for cosine_with_restarts */
    double power;        /* polynomial; 0 = 1 */
    double lr_end_ratio; /* polynomial: the factor at the end; transformers uses 1e-7 / learning rate */
    int64_t decay_steps; /* wsd: length of the last phase; 0 = a tenth of all steps */
    int64_t timescale;   /* inverse_sqrt: 0 = warmup_steps, or 10000 without warmup */
} ScheduleConfig;
/* Factor on the learning rate after `k` finished steps: the first step uses k = 0. The name must be known: schedule_check returns ST_CONFIG if
 * not. */
double schedule_factor(const ScheduleConfig *config, int64_t k);
Status schedule_check(const ScheduleConfig *config);
/* Name of a schedule, and the recipe keys that it uses and not all schedules do; NULL past the end. */
const char *schedule_at(size_t i, const char **keys);

#endif
