/* SPDX-License-Identifier: Apache-2.0 */
/* mlp: a multilayer perceptron as a single op. The backward pass needs the values after each activation, which also determine the activation's slope.
 *
 * The weights are stored in the attributes: they are not results of the step, so x is the only input that the tape knows. */
#include "lib/tensor/tensor.h"

/* Rows are saved in groups of as many as the widest vectors hold. */
enum { ROW_GROUP = 16 };

/* Number of values after f that the backward pass needs of `rows` rows: f32 or f64, in a layout that the device chooses. */
static int64_t mlp_saved_count(const MlpArgs *args, int64_t rows) {
    int64_t width = 0;
    for (int k = 0; k < args->n_layers - !args->activate_last; k++) width += args->weights[k]->shape[0];
    return (rows + ROW_GROUP - 1) / ROW_GROUP * ROW_GROUP * width;
}

/* The gradient of a weight, to add to, or NULL when it is not needed. */
static Tensor *weight_grad(Tape *tape, Tensor *weight) {
    double beta;
    Tensor *grad = tape_grad(tape, weight, &beta);
    if (grad && beta == 0) tape_device(tape)->fill(grad, 0);
    return grad;
}

static void mlp_backward(Tape *tape, Node *node) {
    const MlpArgs *args = node->attributes;
    MlpGrads grads = {.x = NULL};
    for (int k = 0; k < args->n_layers; k++) {
        grads.weights[k] = weight_grad(tape, args->weights[k]);
        grads.biases[k] = weight_grad(tape, args->biases[k]);
    }
    grads.x = tape_grad(tape, node->inputs[0], &grads.beta);
    if (tape_status(tape) == ST_OK) tape_device(tape)->mlp_backward(args, node->inputs[0], node->saved[0], node->outputs[0]->grad, &grads);
}

static bool op_mlp_fits(Tape *tape, const Tensor *x, const MlpArgs *args) {
    ASSERT(args->n_layers > 0 && args->n_layers <= MLP_MAX_LAYERS, "network of %d layers, at most %d", args->n_layers, MLP_MAX_LAYERS);
    ASSERT(args->activation == ACT_TANH || args->activation == ACT_RELU, "activation %d between the layers of a network", (int)args->activation);
    int64_t width = tensor_width(x);
    for (int k = 0; k < args->n_layers; k++) {
        const Tensor *weight = args->weights[k];
        if (weight->shape[1] != width || tensor_count(args->biases[k]) != weight->shape[0]) {
            char have[96];
            tape_fail(tape, ST_INPUT, "cannot multiply %lld values a row with weight '%s' %s", (long long)width, weight->name ? weight->name : "?",
                      tensor_describe(weight, have));
            return false;
        }
        width = weight->shape[0];
    }
    return true;
}

Tensor *op_mlp(Tape *tape, Tensor *x, const MlpArgs *args) {
    if (!x || tape_status(tape) != ST_OK || !op_mlp_fits(tape, x, args)) return NULL;
    Tensor trained = {.needs_grad = false};
    for (int k = 0; k < args->n_layers; k++) trained.needs_grad |= args->weights[k]->needs_grad || args->biases[k]->needs_grad;
    int64_t rows = tensor_rows(x), saved_count = mlp_saved_count(args, rows);
    Tensor *y = tape_tensor(tape, tape_residual(tape), 2, (int64_t[]){rows, args->weights[args->n_layers - 1]->shape[0]}), *saved = NULL;
    bool recorded = tape_needs_backward(tape) && (trained.needs_grad || x->needs_grad);
    if (recorded) saved = tape_tensor(tape, tape_residual(tape), 1, &saved_count);
    if (!y || (recorded && !saved)) return NULL;
    tape_device(tape)->mlp(args, x, saved, y);
    Node *node = tape_push(tape, "mlp", mlp_backward, (Tensor *[]){x, &trained}, 2, &y, 1, args, sizeof *args);
    if (node) {
        node->inputs[1] = NULL;
        node->saved[0] = saved;
    }
    y->state->saved_by_output = true;
    return y;
}

/* All weights once. The backward pass has twice the products, but only once those of the first layer if the gradient with respect to x is not
 * needed. */
OpCost op_mlp_cost(const Node *node, bool backward) {
    const MlpArgs *args = node->attributes;
    const Tensor *x = node->inputs[0];
    double rows = (double)tensor_rows(x);
    OpCost cost = {.bytes = (double)tensor_bytes(x) * (backward && x->needs_grad ? 2 : 1) + (double)tensor_bytes(node->outputs[0])};
    for (int k = 0; k < args->n_layers; k++) {
        const Tensor *weight = args->weights[k];
        double product = 2 * rows * (double)tensor_count(weight);
        cost.flops += backward ? weight->needs_grad * product + (k > 0 || x->needs_grad) * product : product;
        cost.bytes += (double)tensor_bytes(weight) * (backward && weight->needs_grad ? 2 : 1);
    }
    return cost;
}

/* 1 to 4 layers with tanh, then with relu; odd numbers also need the gradient with respect to x; those of four layers also have f after the last
 * one. */
const int op_mlp_variants = 8;

void op_mlp_example(OpExample *example) {
    static const int64_t widths[] = {5, 7, 3, 6, 4};
    int n_layers = example->variant % 4 + 1;
    MlpArgs args = {.n_layers = n_layers, .activation = example->variant < 4 ? ACT_TANH : ACT_RELU, .activate_last = n_layers == 4};
    Tensor *x = example_input(example, true, example->variant % 2, 2, (int64_t[]){19, widths[0]});
    for (int k = 0; k < n_layers; k++) {
        args.weights[k] = example_input(example, false, true, 2, (int64_t[]){widths[k + 1], widths[k]});
        args.biases[k] = example_input(example, false, true, 1, &widths[k + 1]);
        if (!args.weights[k] || !args.biases[k]) return;
    }
    example_output(example, op_mlp(example->tape, x, &args));
}
