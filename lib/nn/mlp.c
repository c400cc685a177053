/* SPDX-License-Identifier: Apache-2.0 */
/* Multilayer perceptrons: names, initial values, and target copies. */
#include "lib/nn/nn.h"

#include <math.h>

/* Number of tensors, and so of random streams, for each network. */
enum { MLP_STREAMS = 2 * MLP_MAX_LAYERS };

/* Makes rows of q, (n, width) with n <= width, orthonormal in order. Twice, because a single pass loses digits where rows are nearly parallel.
 * Each row keeps the sign of its direction, so that rows of a normal matrix become uniformly distributed (as the Q of a QR factorisation whose R
 * has a positive diagonal). */
static void orthonormalise(double *q, int64_t n, int64_t width) {
    for (int64_t i = 0; i < n; i++) {
        double *row = q + i * width;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t j = 0; j < i; j++) {
                const double *other = q + j * width;
                double dot = 0;
                for (int64_t c = 0; c < width; c++) dot += row[c] * other[c];
                for (int64_t c = 0; c < width; c++) row[c] -= dot * other[c];
            }
        double squares = 0;
        for (int64_t c = 0; c < width; c++) squares += row[c] * row[c];
        for (int64_t c = 0; c < width; c++) row[c] /= sqrt(squares);
    }
}

/* Source: Saxe et al. 2013, arXiv 1312.6120. */
static Status fill_orthogonal(Tensor *weight, double gain, RngKey key) {
    int64_t rows = weight->shape[0], cols = weight->shape[1], n = MIN(rows, cols), width = MAX(rows, cols);
    Arena *scratch = arena_new(0);
    double *q = scratch ? arena_alloc(scratch, (size_t)(n * width) * sizeof *q) : NULL;
    if (!q) {
        arena_free(scratch);
        return status_fail(ST_RESOURCE, "out of memory for the first values of '%s'", weight->name);
    }
    for (int64_t i = 0; i < n * width; i++) q[i] = rng_normal(key, (uint64_t)i);
    orthonormalise(q, n, width);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) tensor_set(weight, r * cols + c, gain * (rows <= cols ? q[r * width + c] : q[c * width + r]));
    arena_free(scratch);
    return ST_OK;
}

static void fill_uniform(Tensor *tensor, double bound, RngKey key) {
    for (int64_t i = 0; i < tensor_count(tensor); i++) tensor_set(tensor, i, bound * (2 * rng_uniform(key, (uint64_t)i) - 1));
}

static Status config_check(const MlpConfig *config, const char *prefix) {
    ASSERT(config->activation == ACT_TANH || config->activation == ACT_RELU, "activation %d between the layers of a network",
           (int)config->activation);
    if (config->n_hidden < 0 || config->n_hidden >= MLP_MAX_LAYERS) {
        status_fail(ST_CONFIG, "network '%s' of %d hidden layers is too deep", prefix, config->n_hidden);
        return status_hint(ST_CONFIG, "at most %d hidden layers", MLP_MAX_LAYERS - 1);
    }
    for (int k = 0; k <= config->n_hidden + 1; k++) {
        int64_t width = k == 0 ? config->in : k > config->n_hidden ? config->out : config->hidden[k - 1];
        if (width < 1 || width > INT32_MAX) return status_fail(ST_CONFIG, "network '%s' has a layer of width %lld", prefix, (long long)width);
    }
    return ST_OK;
}

/* Makes one named parameter in the arena. */
static Status tensor_add(Tensor **tensor, const char *prefix, int layer, const char *kind, bool trained, int n_dims, const int64_t *shape,
                         DType dtype, const Device *device, Arena *arena, Params *params) {
    const char *name = arena_printf(arena, "%s.%d.%s", prefix, 2 * layer, kind);
    *tensor = tensor_new(arena, device, dtype, n_dims, shape);
    Param *param = name && *tensor ? params_add(params, name, *tensor, PARAM_BASE) : NULL;
    if (!param) return status_prefix(ST_RESOURCE, "network '%s'", prefix);
    (*tensor)->name = name;
    return trained ? params_train(param, arena) : ST_OK;
}

Status mlp_init(Mlp *mlp, const MlpConfig *config, const char *prefix, bool trained, uint64_t seed, uint64_t number, DType dtype,
                const Device *device, Arena *arena, Params *params) {
    TRY(config_check(config, prefix));
    *mlp = (Mlp){.in = config->in,
                 .out = config->out,
                 .args = {.n_layers = config->n_hidden + 1, .activation = config->activation, .activate_last = config->activate_last}};
    int64_t in = config->in;
    for (int k = 0; k <= config->n_hidden; k++) {
        int64_t out = k < config->n_hidden ? config->hidden[k] : config->out;
        Tensor **weight = &mlp->args.weights[k], **bias = &mlp->args.biases[k];
        RngKey key = rng_key(seed, RNG_INIT, number * MLP_STREAMS + 2 * (uint64_t)k),
               bias_key = rng_key(seed, RNG_INIT, number * MLP_STREAMS + 2 * (uint64_t)k + 1);
        TRY(tensor_add(weight, prefix, k, "weight", trained, 2, (int64_t[]){out, in}, dtype, device, arena, params));
        TRY(tensor_add(bias, prefix, k, "bias", trained, 1, &out, dtype, device, arena, params));
        if (config->init == MLP_ORTHOGONAL) {
            TRY(fill_orthogonal(*weight, k < config->n_hidden ? config->hidden_gain : config->out_gain, key));
            device->fill(*bias, 0);
        } else {
            fill_uniform(*weight, 1 / sqrt((double)in), key);
            fill_uniform(*bias, 1 / sqrt((double)in), bias_key);
        }
        in = out;
    }
    return ST_OK;
}

Tensor *mlp_forward(const Mlp *mlp, Tape *tape, Tensor *x) { return op_mlp(tape, x, &mlp->args); }

void mlp_blend(const Mlp *from, double tau, Mlp *to) {
    for (int k = 0; k < to->args.n_layers; k++) {
        ASSERT(tensor_count(from->args.weights[k]) == tensor_count(to->args.weights[k]), "networks of two shapes");
        tensor_device(to->args.weights[k])->accumulate(from->args.weights[k], tau, 1 - tau, to->args.weights[k]);
        tensor_device(to->args.biases[k])->accumulate(from->args.biases[k], tau, 1 - tau, to->args.biases[k]);
    }
}
