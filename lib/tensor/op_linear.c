/* linear: x W^T + bias, the low-rank branch beside it: scale * B (A dropout(x)), and the residual stream that the sum is added to. numerics.md section 2.
 *
 * Backward, with h = A x~ kept from the forward pass and dh = scale * B^T dy:
 *     dB = scale * dy h^T      dA = dh x~^T      dx = W^T dy + (A^T dh through the dropout mask) */
#include "lib/tensor/tensor.h"

#include <string.h>

enum { X, WEIGHT, BIAS, LORA_A, LORA_B, RESIDUAL };

static void weight_backward(Tape *tape, const Tensor *a, const Tensor *b, double beta, Tensor *dweight) {
    tape_device(tape)->matmul(&(Matmul){.a = a, .b = b, .c = dweight, .transpose_a = true, .alpha = 1, .beta = beta, .read_late = true});
}

static void product(Tape *tape, const Tensor *a, bool transpose_a, const Tensor *b, bool transpose_b, double alpha, double beta, Tensor *c) {
    tape_device(tape)->matmul(&(Matmul){.a = a, .b = b, .c = c, .transpose_a = transpose_a, .transpose_b = transpose_b, .alpha = alpha, .beta = beta});
}

/* The branch's input: x, or x through the dropout mask in scratch memory. */
static const Tensor *branch_input(Tape *tape, const LoraBranch *lora, const Tensor *x) {
    if (lora->dropout == 0) return x;
    Tensor *dropped = tape_scratch(tape, x->dtype, x->n_dims, x->shape);
    if (dropped) tape_device(tape)->dropout(x, lora->dropout, lora->key, lora->first_draw, 0, dropped);
    return dropped;
}

static void factors_backward(Tape *tape, Node *node, const LoraBranch *lora, const Tensor *dy, const Tensor *dh) {
    double beta;
    Tensor *db = tape_grad(tape, node->inputs[LORA_B], &beta);
    if (db) product(tape, dy, true, node->saved[0], false, lora->scale, beta, db);
    Tensor *da = tape_grad(tape, node->inputs[LORA_A], &beta);
    if (!da) return;
    const Tensor *x = branch_input(tape, lora, node->inputs[X]);
    if (x) product(tape, dh, true, x, false, 1, beta, da);
}

/* What the branch adds to dx behind its dropout mask. */
static void masked_backward(Tape *tape, const LoraBranch *lora, const Tensor *dh, Tensor *dx) {
    Tensor *masked = tape_scratch(tape, dx->dtype, dx->n_dims, dx->shape);
    if (!masked) return;
    product(tape, dh, false, lora->a, false, 1, 0, masked);
    tape_device(tape)->dropout(masked, lora->dropout, lora->key, lora->first_draw, 1, dx);
}

/* The gradient of y in the dtype that products run in; that of the residual stream has another one. */
static const Tensor *products_dy(Tape *tape, const Tensor *dy) {
    if (dy->dtype == tape_compute(tape)) return dy;
    Tensor *converted = tape_scratch(tape, tape_compute(tape), dy->n_dims, dy->shape);
    if (converted) tape_device(tape)->copy(dy, converted);
    return converted;
}

static void linear_backward(Tape *tape, Node *node) {
    Tensor *x = node->inputs[X], *weight = node->inputs[WEIGHT];
    const Tensor *dy = products_dy(tape, node->outputs[0]->grad);
    if (!dy) return;
    double beta;
    Tensor *dbias = tape_grad(tape, node->inputs[BIAS], &beta);
    if (dbias) {
        if (beta == 0) tape_device(tape)->fill(dbias, 0);
        tape_device(tape)->bias_backward(dy, dbias);
    }
    Tensor *dweight = tape_grad(tape, weight, &beta);
    if (dweight) weight_backward(tape, weight->in_out ? x : dy, weight->in_out ? dy : x, beta, dweight);
    const LoraBranch *lora = node->attributes;
    Tensor *dh = lora ? tape_scratch(tape, node->saved[0]->dtype, 2, node->saved[0]->shape) : NULL;
    if (lora && !dh) return;
    Tensor *dx = tape_grad(tape, x, &beta);
    bool together = dx && lora && lora->dropout == 0;
    if (lora && !together) product(tape, dy, false, lora->b, false, lora->scale, 0, dh);
    if (dx) {
        Matmul args = {.a = dy, .b = weight, .c = dx, .transpose_b = weight->in_out, .alpha = 1, .beta = beta};
        if (together) args.more_a = args.low = dh, args.down = lora->b, args.down_alpha = lora->scale, args.more_b = lora->a, args.more_alpha = 1;
        tape_device(tape)->matmul(&args);
        if (lora && !together) masked_backward(tape, lora, dh, dx);
    }
    if (lora) factors_backward(tape, node, lora, dy, dh);
    Tensor *residual = node->inputs[RESIDUAL];
    if (!residual || tape_grad_move(tape, node->outputs[0], residual)) return;
    Tensor *dresidual = tape_grad(tape, residual, &beta);
    if (dresidual) tape_device(tape)->accumulate(node->outputs[0]->grad, 1, beta, dresidual);
}

/* In the wider dtype of the residual stream a short product takes half the operations for its bytes that others take: a checkpointed layer does not keep it. */
static Tensor *result_of(Tape *tape, int64_t rows, int64_t in, int64_t out, bool residual, bool *there) {
    if (!residual || in > out) return tape_result(tape, residual ? tape_residual(tape) : tape_compute(tape), 2, (int64_t[]){rows, out}, there);
    *there = false;
    return tape_tensor(tape, tape_residual(tape), 2, (int64_t[]){rows, out});
}

/* A call on its way: what it gives, and the product that computes it. */
typedef struct Call { Tensor *x, *residual, *h, *y; LinearArgs layer; bool have_y; Matmul product; } Call;

/* y = x W + bias + residual + scale * h B: one product, with what can be added in it; h = x A too, unless it is there. */
static Matmul product_of(const Call *call, bool have_h) {
    const LinearArgs *layer = &call->layer;
    const LoraBranch *lora = layer->lora;
    const Tensor *addend = call->residual ? call->residual : layer->bias;
    Matmul args = {.a = call->x, .b = layer->weight, .c = call->y, .transpose_b = !layer->weight->in_out, .alpha = 1, .beta = addend ? 1 : 0, .addend = addend};
    if (lora) args.more_a = call->h, args.more_b = lora->b, args.transpose_more_b = true, args.more_alpha = lora->scale;
    if (lora && !have_h) args.down = lora->a, args.transpose_down = true, args.down_alpha = 1, args.low = call->h;
    return args;
}

static bool call_begin(Tape *tape, Tensor *x, LinearArgs layer, Tensor *residual, Call *call) {
    if (!x || !layer.weight) return false;
    const Tensor *weight = layer.weight;
    const LoraBranch *lora = layer.lora;
    int64_t in = weight->shape[weight->in_out ? 0 : 1], out = weight->shape[weight->in_out ? 1 : 0];
    if (tensor_width(x) != in) {
        char have[96], want[96];
        tape_fail(tape, ST_INPUT, "cannot multiply %s with weight '%s' %s", tensor_describe(x, have), weight->name ? weight->name : "?", tensor_describe(weight, want));
        return false;
    }
    ASSERT(!residual || (tensor_width(residual) == out && tensor_rows(residual) == tensor_rows(x)), "a residual of width %lld beside %lld outputs", residual ? (long long)tensor_width(residual) : 0, (long long)out);
    bool have_h = true;
    *call = (Call){.x = x, .residual = residual, .layer = layer};
    call->h = lora ? tape_result(tape, tape_compute(tape), 2, (int64_t[]){tensor_rows(x), lora->a->shape[0]}, &have_h) : NULL;
    call->y = result_of(tape, tensor_rows(x), in, out, residual != NULL, &call->have_y);
    if (!call->y || (lora && !call->h)) return false;
    if (!have_h && (call->have_y || lora->dropout != 0)) {
        const Tensor *input = branch_input(tape, lora, x);
        if (!input) return false;
        product(tape, input, false, lora->a, true, 1, 0, call->h);
        have_h = true;
    }
    call->product = product_of(call, have_h);
    return true;
}

static Tensor *call_end(Tape *tape, const Call *call) {
    const LinearArgs *layer = &call->layer;
    const LoraBranch *lora = layer->lora;
    if (!call->have_y && call->residual && layer->bias) tape_device(tape)->bias_add(call->y, layer->bias);
    Tensor *y = call->y;
    Node *node = tape_push(tape, "linear", linear_backward, (Tensor *[]){call->x, layer->weight, layer->bias, lora ? lora->a : NULL, lora ? lora->b : NULL, call->residual}, 6, &y, 1, lora, lora ? sizeof *lora : 0);
    if (node) node->saved[0] = call->h;
    return y;
}

Tensor *op_linear(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, const LoraBranch *lora, Tensor *residual) {
    Call call;
    if (!call_begin(tape, x, (LinearArgs){weight, bias, lora}, residual, &call)) return NULL;
    if (!call.have_y) tape_device(tape)->matmul(&call.product);
    return call_end(tape, &call);
}

/* Going back gives memory back op by op, so there an op's memory begins where that of the one before ends. */
void op_linears(Tape *tape, Tensor *x, const LinearArgs *layers, int n, Tensor **y) {
    Call calls[LINEARS_MOST];
    const Matmul *first = NULL;
    ASSERT(n <= LINEARS_MOST, "%d linear layers at once", n);
    if (tape_needs_backward(tape)) {
        for (int i = 0; i < n; i++) y[i] = op_linear(tape, x, layers[i].weight, layers[i].bias, layers[i].lora, NULL);
        return;
    }
    memset(y, 0, (size_t)n * sizeof *y);
    for (int i = 0; i < n; i++)
        if (!call_begin(tape, x, layers[i], NULL, &calls[i])) return;
    for (int i = n; i-- > 0;)
        if (!calls[i].have_y) {
            calls[i].product.next = first;
            first = &calls[i].product;
        }
    if (first) tape_device(tape)->matmul(first);
    for (int i = 0; i < n; i++) y[i] = call_end(tape, &calls[i]);
}

/* Forward x W, x A and h B; going back those gradients of the factors that are wanted, and h's. The residual's gradient is handed on as it is. */
OpCost op_linear_cost(const Node *node, bool backward) {
    const Tensor *x = node->inputs[X], *weight = node->inputs[WEIGHT], *a = node->inputs[LORA_A], *b = node->inputs[LORA_B];
    double rows = (double)tensor_rows(x), in = (double)tensor_width(x), out = (double)tensor_width(node->outputs[0]), rank = a ? (double)a->shape[0] : 0;
    const Tensor *residual = backward ? node->inputs[RESIDUAL] : NULL;
    double full = 2 * rows * in * out, by_a = 2 * rows * in * rank, by_b = 2 * rows * out * rank, bytes = node_bytes(node, backward) - (residual ? (double)(tensor_bytes(residual) * (residual->needs_grad ? 2 : 1)) : 0);
    if (!backward) return (OpCost){full + by_a + by_b, bytes};
    return (OpCost){x->needs_grad * (full + by_a) + weight->needs_grad * full + by_b + (a && a->needs_grad ? by_a : 0) + (b && b->needs_grad ? by_b : 0), bytes};
}

/* 0: frozen, 1: trained with bias, 2: frozen with LoRA, 3: LoRA with dropout, 4: (in, out) layout trained, 5: (in, out) layout frozen with LoRA, 6: trained, with a residual,
 * 7: LoRA with a residual that is the input too. */
const int op_linear_variants = 8;

void op_linear_example(OpExample *example) {
    int variant = example->variant;
    bool trained = variant == 1 || variant == 4 || variant == 6, in_out = variant == 4 || variant == 5;
    int64_t in = 7, out = variant == 7 ? in : 6;
    Tensor *x = example_input(example, true, true, 2, (int64_t[]){5, in});
    Tensor *weight = example_input(example, false, trained, 2, in_out ? (int64_t[]){in, out} : (int64_t[]){out, in});
    if (weight) weight->in_out = in_out;
    Tensor *bias = trained ? example_input(example, false, true, 1, (int64_t[]){out}) : NULL, *residual = variant == 6 ? example_input(example, false, true, 2, (int64_t[]){5, out}) : variant == 7 ? x : NULL;
    LoraBranch lora = {.scale = 1.5, .dropout = variant == 3 ? 0.4 : 0, .key = rng_key(example->seed, RNG_DROPOUT, 1), .first_draw = 21};
    bool branch = variant == 2 || variant == 3 || variant == 5 || variant == 7;
    if (branch) {
        lora.a = example_input(example, false, true, 2, (int64_t[]){3, in});
        lora.b = example_input(example, false, true, 2, (int64_t[]){out, 3});
        if (!lora.a || !lora.b) return;
    }
    example_output(example, op_linear(example->tape, x, weight, bias, branch ? &lora : NULL, residual));
}
