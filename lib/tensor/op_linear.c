/* SPDX-License-Identifier: Apache-2.0 */
/* linear: x W^T + bias, plus the low-rank branch scale * B (A dropout(x)), plus the residual stream. LoRA's source: arXiv 2106.09685. Several layers
 * with the same input are a single node, so that their products are joint calls that share the converted input.
 *
 * Backward, with h = A x~ kept from the forward pass and dh = scale * B^T dy:
 *     dB = scale * dy h^T      dA = dh x~^T      dx = W^T dy + (A^T dh through the dropout mask)
 * dx comes first: if x is a lazy activation, this computes its values again.
 *
 * Branches of some rows each (LoraBranch.next) have no backward pass and are no inputs of the node. */
#include "lib/tensor/tensor.h"

#include <string.h>

enum { X, RESIDUAL, LAYERS };
enum { WEIGHT, BIAS, LORA_A, LORA_B, PER_LAYER };

/* One layer of a node; lora: NULL = none. */
typedef struct Layer {
    Tensor *weight, *bias, *a, *b, *h, *y;
    const LoraBranch *lora;
} Layer;

static int n_layers(const Node *node) {
    int n = 0;
    while (n < LINEARS_MOST && node->outputs[n]) n++;
    return n;
}

static Layer layer_of(const Node *node, int i) {
    Tensor *const *inputs = node->inputs + LAYERS + i * PER_LAYER;
    const LoraBranch *branches = node->attributes;
    return (Layer){
        inputs[WEIGHT], inputs[BIAS], inputs[LORA_A], inputs[LORA_B], node->saved[i], node->outputs[i], inputs[LORA_A] ? &branches[i] : NULL};
}

static void product(Tape *tape, const Tensor *a, bool transpose_a, const Tensor *b, bool transpose_b, double alpha, double beta, Tensor *c) {
    tape_device(tape)->matmul(
        &(Matmul){.a = a, .b = b, .c = c, .transpose_a = transpose_a, .transpose_b = transpose_b, .alpha = alpha, .beta = beta});
}

/* Scratch memory that the layers of a node use in turn: x, or its gradient, after a dropout mask. */
typedef struct Room {
    Tensor *dropped, *masked;
} Room;

static Tensor *room_for(Tape *tape, Tensor **room, const Tensor *like) {
    if (!*room) *room = tape_scratch(tape, like->dtype, like->n_dims, like->shape);
    return *room;
}

/* The branch's input: x, or x through the dropout mask. */
static const Tensor *branch_input(Tape *tape, const LoraBranch *lora, const Tensor *x, Room *room) {
    if (lora->dropout == 0) return x;
    Tensor *dropped = room_for(tape, &room->dropped, x);
    if (dropped) tape_device(tape)->dropout(x, lora->dropout, lora->key, lora->first_draw, 0, dropped);
    return dropped;
}

/* Gradients of both factors of all branches; those with the same input are one call. */
static void factors_backward(Tape *tape, const Node *node, const Tensor *const *dy, const Tensor *const *dh, int n, Room *room) {
    Matmul products[LINEARS_MOST], *first = NULL;
    for (int i = n; i-- > 0;) {
        Layer layer = layer_of(node, i);
        double beta;
        Tensor *db = dh[i] ? tape_grad(tape, layer.b, &beta) : NULL;
        if (db) product(tape, dy[i], true, layer.h, false, layer.lora->scale, beta, db);
        Tensor *da = dh[i] ? tape_grad(tape, layer.a, &beta) : NULL;
        const Tensor *x = da ? branch_input(tape, layer.lora, node->inputs[X], room) : NULL;
        if (!x) continue;
        products[i] = (Matmul){.a = dh[i], .b = x, .c = da, .transpose_a = true, .alpha = 1, .beta = beta};
        if (layer.lora->dropout != 0) { /* the next layer has another mask, in the same memory */
            tape_device(tape)->matmul(&products[i]);
            continue;
        }
        products[i].next = first;
        first = &products[i];
    }
    if (first) tape_device(tape)->matmul(first);
}

/* The branch's part of dx, after its dropout mask. */
static void masked_backward(Tape *tape, const LoraBranch *lora, const Tensor *dh, Tensor *dx, Room *room) {
    Tensor *masked = room_for(tape, &room->masked, dx);
    if (!masked) return;
    product(tape, dh, false, lora->a, false, 1, 0, masked);
    tape_device(tape)->dropout(masked, lora->dropout, lora->key, lora->first_draw, 1, dx);
}

/* The gradient of y in the dtype of products; that of the residual stream has another one. */
static const Tensor *products_dy(Tape *tape, const Tensor *dy) {
    if (!dy || dy->dtype == tape_compute(tape)) return dy;
    Tensor *converted = tape_scratch(tape, tape_compute(tape), dy->n_dims, dy->shape);
    if (converted) tape_device(tape)->copy(dy, converted);
    return converted;
}

/* Gradients of the trained weights, in one call. */
static void weights_backward(Tape *tape, const Node *node, const Tensor *const *dy, int n) {
    Matmul products[LINEARS_MOST], *first = NULL;
    for (int i = n; i-- > 0;) {
        Layer layer = layer_of(node, i);
        double beta;
        Tensor *x = node->inputs[X], *dweight = dy[i] ? tape_grad(tape, layer.weight, &beta) : NULL;
        if (!dweight) continue;
        bool in_out = layer.weight->in_out;
        products[i] = (Matmul){.a = in_out ? x : dy[i],
                               .b = in_out ? dy[i] : x,
                               .c = dweight,
                               .transpose_a = true,
                               .alpha = 1,
                               .beta = beta,
                               .nontemporal = true,
                               .next = first};
        first = &products[i];
    }
    if (first) tape_device(tape)->matmul(first);
}

/* Gradients of the bias and of x; returns dh, or NULL without a branch. */
static const Tensor *layer_backward(Tape *tape, const Node *node, const Layer *layer, const Tensor *dy, Room *room) {
    double beta;
    Tensor *x = node->inputs[X], *dbias = tape_grad(tape, layer->bias, &beta);
    if (dbias) {
        if (beta == 0) tape_device(tape)->fill(dbias, 0);
        tape_device(tape)->bias_backward(dy, dbias);
    }
    const LoraBranch *lora = layer->lora;
    Tensor *dh = lora ? tape_scratch(tape, layer->h->dtype, 2, layer->h->shape) : NULL;
    if (lora && !dh) return NULL;
    Tensor *dx = tape_grad(tape, x, &beta);
    bool together = dx && lora && lora->dropout == 0;
    if (lora && !together) product(tape, dy, false, lora->b, false, lora->scale, 0, dh);
    if (dx) {
        Matmul args = {.a = dy, .b = layer->weight, .c = dx, .transpose_b = layer->weight->in_out, .alpha = 1, .beta = beta};
        if (together) args.more_a = args.low = dh, args.down = lora->b, args.down_alpha = lora->scale, args.more_b = lora->a, args.more_alpha = 1;
        tape_device(tape)->matmul(&args);
        if (lora && !together) masked_backward(tape, lora, dh, dx, room);
    }
    return dh;
}

static void linear_backward(Tape *tape, Node *node) {
    int n = n_layers(node);
    const Tensor *dy[LINEARS_MOST], *dh[LINEARS_MOST] = {0};
    for (int i = 0; i < n; i++) dy[i] = products_dy(tape, node->outputs[i]->grad);
    Room room = {0};
    for (int i = n; i-- > 0;) {
        Layer layer = layer_of(node, i);
        if (dy[i] && tape_status(tape) == ST_OK) dh[i] = layer_backward(tape, node, &layer, dy[i], &room);
    }
    recompute_backward(tape, node->inputs[X], node->op); /* its values exist again, its gradient does not */
    if (tape_status(tape) != ST_OK) return;
    factors_backward(tape, node, dy, dh, n, &room);
    weights_backward(tape, node, dy, n);
    recompute_end(tape, node->inputs[X]);
    double beta;
    Tensor *residual = node->inputs[RESIDUAL];
    if (!residual || tensor_grad_move(node->outputs[0], residual)) return;
    Tensor *dresidual = tape_grad(tape, residual, &beta);
    if (dresidual) tape_device(tape)->accumulate(node->outputs[0]->grad, 1, beta, dresidual);
}

/* A checkpointed layer keeps a product whose sums are at least as long as its rows: `in` operations per element. Longer rows (gate, up), and short
 * products in the wider dtype of the residual stream, take too much memory for their cost. */
static Tensor *result_of(Tape *tape, const Tensor *x, int64_t in, int64_t out, const Tensor *residual, bool *there) {
    const int64_t rows = tensor_rows(x);
    DType dtype = residual ? tape_residual(tape) : tape_compute(tape);
    Tensor *in_place = residual && residual->elements != x->elements ? tape_reuse(tape, residual) : NULL;
    *there = false;
    if (in_place || tape_status(tape) != ST_OK) return in_place;
    if (residual ? in > out : in >= out) return tape_result(tape, dtype, 2, (int64_t[]){rows, out}, there);
    return tape_tensor(tape, dtype, 2, (int64_t[]){rows, out});
}

/* A call in preparation: its result, and the product that computes it. */
typedef struct Call {
    Tensor *x, *residual, *h, *y;
    LinearArgs layer; /* lora: NULL if `branches` are instead */
    RowBranch *branches;
    bool have_y;
    Matmul product;
} Call;

/* The branches of some rows each, in place of the layer's, with memory for their inner results; false after a failure. */
static bool branches_begin(Tape *tape, Call *call) {
    RowBranch *last = NULL;
    const LoraBranch *lora = call->layer.lora;
    call->layer.lora = NULL;
    ASSERT(!tape_needs_backward(tape), "a backward pass of branches of some rows of %lld", (long long)tensor_rows(call->x));
    for (; lora; lora = lora->next) {
        RowBranch *branch = tape_copy(tape, &(RowBranch){.begin = lora->begin, .end = lora->end, .down = lora->a, .b = lora->b, .alpha = lora->scale},
                                      sizeof *branch);
        Tensor *low = tape_tensor(tape, tape_compute(tape), 2, (int64_t[]){lora->end - lora->begin, lora->a->shape[0]});
        if (!branch || !low) return false;
        branch->low = low;
        if (last)
            last->next = branch;
        else
            call->branches = branch;
        last = branch;
    }
    return true;
}

/* y = x W + bias + residual + scale * h B: one product, with every term that can be added in it; also h = x A, unless it exists already. */
static Matmul product_of(const Call *call, bool have_h) {
    const LinearArgs *layer = &call->layer;
    const LoraBranch *lora = layer->lora;
    const Tensor *addend = call->residual ? call->residual : layer->bias;
    Matmul args = {.a = call->x,
                   .b = layer->weight,
                   .c = call->y,
                   .transpose_b = !layer->weight->in_out,
                   .alpha = 1,
                   .beta = addend ? 1 : 0,
                   .addend = addend && addend->elements != call->y->elements ? addend : NULL,
                   .branches = call->branches};
    if (lora) args.more_a = call->h, args.more_b = lora->b, args.transpose_more_b = true, args.more_alpha = lora->scale;
    if (lora && !have_h) args.down = lora->a, args.transpose_down = true, args.down_alpha = 1, args.low = call->h;
    return args;
}

static bool call_begin(Tape *tape, Tensor *x, LinearArgs layer, Tensor *residual, Room *room, Call *call) {
    if (!x || !layer.weight) return false;
    const Tensor *weight = layer.weight;
    int64_t in = weight->shape[weight->in_out ? 0 : 1], out = weight->shape[weight->in_out ? 1 : 0];
    if (tensor_width(x) != in) {
        char have[96], want[96];
        tape_fail(tape, ST_INPUT, "cannot multiply %s with weight '%s' %s", tensor_describe(x, have), weight->name ? weight->name : "?",
                  tensor_describe(weight, want));
        return false;
    }
    ASSERT(!residual || (tensor_width(residual) == out && tensor_rows(residual) == tensor_rows(x)), "a residual of width %lld for %lld outputs",
           residual ? (long long)tensor_width(residual) : 0, (long long)out);
    bool have_h = true;
    *call = (Call){.x = x, .residual = residual, .layer = layer};
    if (layer.lora && layer.lora->end > 0 && !branches_begin(tape, call)) return false;
    const LoraBranch *lora = call->layer.lora;
    call->h = lora ? tape_result(tape, tape_compute(tape), 2, (int64_t[]){tensor_rows(x), lora->a->shape[0]}, &have_h) : NULL;
    call->y = result_of(tape, x, in, out, residual, &call->have_y);
    if (!call->y || (lora && !call->h)) return false;
    if (!have_h && (call->have_y || lora->dropout != 0)) {
        recompute_run(tape, x);
        if (tape_status(tape) != ST_OK) return false;
        const Tensor *input = branch_input(tape, lora, x, room);
        if (!input) return false;
        product(tape, input, false, lora->a, true, 1, 0, call->h);
        have_h = true;
    }
    call->product = product_of(call, have_h);
    return true;
}

static bool wants_grad(const Tensor *tensor) { return tensor && tensor->needs_grad; }

/* Runs the products of all calls as one, and records the node; false after a failure. */
static bool calls_end(Tape *tape, Call *calls, int n) {
    Tensor *inputs[LAYERS + LINEARS_MOST * PER_LAYER] = {calls->x, calls->residual}, *outputs[LINEARS_MOST] = {0};
    LoraBranch branches[LINEARS_MOST] = {0};
    const Matmul *first = NULL;
    for (int i = n; i-- > 0;) {
        Call *call = &calls[i];
        const LinearArgs *layer = &call->layer;
        memcpy(inputs + LAYERS + i * PER_LAYER,
               (Tensor *[PER_LAYER]){layer->weight, layer->bias, layer->lora ? layer->lora->a : NULL, layer->lora ? layer->lora->b : NULL},
               PER_LAYER * sizeof *inputs);
        if (layer->lora) branches[i] = *layer->lora;
        outputs[i] = call->y;
        if (call->have_y) continue;
        call->product.next = first;
        first = &call->product;
    }
    if (first) recompute_run(tape, calls->x);
    if (tape_status(tape) != ST_OK) return false;
    if (first) tape_device(tape)->matmul(first);
    recompute_end(tape, calls->x);
    for (int i = 0; i < n; i++)
        if (!calls[i].have_y && calls[i].residual && calls[i].layer.bias) tape_device(tape)->bias_add(calls[i].y, calls[i].layer.bias);
    Node *node = tape_push(tape, "linear", linear_backward, inputs, LAYERS + n * PER_LAYER, outputs, n, branches, (size_t)n * sizeof *branches);
    for (int i = 0; node && i < n; i++) {
        Tensor *const *its = inputs + LAYERS + i * PER_LAYER;
        bool wanted = wants_grad(calls->x) || wants_grad(calls->residual);
        for (int k = 0; k < PER_LAYER; k++) wanted |= wants_grad(its[k]);
        outputs[i]->needs_grad = wanted; /* not because of another layer */
        node->saved[i] = calls[i].h;
    }
    return true;
}

Tensor *op_linear(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, const LoraBranch *lora, Tensor *residual) {
    Call call;
    if (!call_begin(tape, x, (LinearArgs){weight, bias, lora}, residual, &(Room){0}, &call)) return NULL;
    return calls_end(tape, &call, 1) ? call.y : NULL;
}

void op_linears(Tape *tape, Tensor *x, const LinearArgs *layers, int n, Tensor **y) {
    Call calls[LINEARS_MOST];
    Room room = {0};
    ASSERT(n <= LINEARS_MOST, "%d linear layers at once", n);
    memset(y, 0, (size_t)n * sizeof *y);
    for (int i = 0; i < n; i++)
        if (!call_begin(tape, x, layers[i], NULL, &room, &calls[i])) return;
    bool done = calls_end(tape, calls, n);
    for (int i = 0; done && i < n; i++) y[i] = calls[i].y;
}

/* Forward: x W, x A and h B. Backward: the requested gradients of the factors, and h's. The residual's gradient is passed on unchanged. */
static OpCost layer_cost(const Node *node, const Layer *layer, bool backward) {
    const Tensor *x = node->inputs[X], *residual = backward ? NULL : node->inputs[RESIDUAL], *a = layer->a, *b = layer->b;
    double rows = (double)tensor_rows(x), in = (double)tensor_width(x), out = (double)tensor_width(layer->y), rank = a ? (double)a->shape[0] : 0;
    Node alone = {.inputs = {node->inputs[X], residual ? node->inputs[RESIDUAL] : NULL, layer->weight, layer->bias, layer->a, layer->b},
                  .outputs = {layer->y}};
    double full = 2 * rows * in * out, by_a = 2 * rows * in * rank, by_b = 2 * rows * out * rank, bytes = node_bytes(&alone, backward);
    if (!backward) return (OpCost){full + by_a + by_b, bytes};
    return (OpCost){x->needs_grad * (full + by_a) + layer->weight->needs_grad * full + by_b + (a && a->needs_grad ? by_a : 0) +
                        (b && b->needs_grad ? by_b : 0),
                    bytes};
}

/* For several layers, the sum of their costs. */
OpCost op_linear_cost(const Node *node, bool backward) {
    OpCost sum = {0};
    for (int i = 0; i < n_layers(node); i++) {
        Layer layer = layer_of(node, i);
        OpCost cost = layer_cost(node, &layer, backward);
        sum = (OpCost){sum.flops + cost.flops, sum.bytes + cost.bytes};
    }
    return sum;
}

/* 0: frozen, 1: trained with bias, 2: frozen with LoRA, 3: LoRA with dropout, 4: (in, out) layout trained, 5: (in, out) layout frozen with LoRA,
 * 6: trained, with a residual, 7: LoRA with a residual that is also the input, 8: three at once: trained, trained in (in, out) layout, LoRA. Of a
 * lazy activation, 9: gated, LoRA with dropout, 10: plain, trained, 11: LoRA, frozen, 12: three at once. */
const int op_linear_variants = 13;

static void linears_example(OpExample *example, Tensor *x) {
    Tensor *y[LINEARS_MOST];
    LinearArgs layers[LINEARS_MOST] = {
        {.weight = example_input(example, false, true, 2, (int64_t[]){6, 7}), .bias = example_input(example, false, true, 1, (int64_t[]){6})},
        {.weight = example_input(example, false, true, 2, (int64_t[]){7, 4})},
        {.weight = example_input(example, false, false, 2, (int64_t[]){3, 7})}};
    LoraBranch lora = {
        .scale = 1.5, .a = example_input(example, false, true, 2, (int64_t[]){2, 7}), .b = example_input(example, false, true, 2, (int64_t[]){3, 2})};
    if (!layers[1].weight || !lora.a || !lora.b) return;
    layers[1].weight->in_out = true;
    layers[2].lora = &lora;
    op_linears(example->tape, x, layers, LINEARS_MOST, y);
    for (int i = 0; i < LINEARS_MOST; i++) example_output(example, y[i]);
}

void op_linear_example(OpExample *example) {
    int variant = example->variant;
    bool passing = variant >= 9;
    bool trained = variant == 1 || variant == 4 || variant == 6 || variant == 10, in_out = variant == 4 || variant == 5;
    int64_t in = 7, out = variant == 7 ? in : 6;
    Tensor *x = example_input(example, true, variant != 11, 2, (int64_t[]){5, in}),
           *up = variant == 9 || variant == 12 ? example_input(example, true, true, 2, (int64_t[]){5, in}) : NULL;
    if (passing) x = op_activation_passing(example->tape, ACT_SILU, x, up);
    if (variant == 8 || variant == 12) {
        linears_example(example, x);
        return;
    }
    Tensor *weight = example_input(example, false, trained, 2, in_out ? (int64_t[]){in, out} : (int64_t[]){out, in});
    if (weight) weight->in_out = in_out;
    Tensor *bias = trained ? example_input(example, false, true, 1, (int64_t[]){out}) : NULL,
           *residual = variant == 6   ? example_input(example, false, true, 2, (int64_t[]){5, out})
                       : variant == 7 ? x
                                      : NULL;
    LoraBranch lora = {
        .scale = 1.5, .dropout = variant == 3 || variant == 9 ? 0.4 : 0, .key = rng_key(example->seed, RNG_DROPOUT, 1), .first_draw = 21};
    bool branch = variant == 2 || variant == 3 || variant == 5 || variant == 7 || variant == 9 || variant == 11;
    if (branch) {
        lora.a = example_input(example, false, true, 2, (int64_t[]){3, in});
        lora.b = example_input(example, false, true, 2, (int64_t[]){out, 3});
        if (!lora.a || !lora.b) return;
    }
    example_output(example, op_linear(example->tape, x, weight, bias, branch ? &lora : NULL, residual));
}
