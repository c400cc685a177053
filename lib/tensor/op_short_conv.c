/* SPDX-License-Identifier: Apache-2.0 */
/* short_conv: a causal convolution of each channel over the last few tokens of its sequence, between two gates. Its tokens are those that attention
 * sees: a segment goes on from its parent, or from the state in the cache. */
#include "lib/tensor/tensor.h"

enum { X, WEIGHT, BIAS, INPUTS };

static void short_conv_backward(Tape *tape, Node *node) {
    double betas[INPUTS] = {0};
    Tensor *d[INPUTS];
    for (int i = 0; i < INPUTS; i++) {
        d[i] = tape_grad(tape, node->inputs[i], &betas[i]);
        if (i != X && d[i] && betas[i] == 0) tape_device(tape)->fill(d[i], 0);
    }
    if (!d[X] && !d[WEIGHT] && !d[BIAS]) return;
    tape_device(tape)->short_conv_backward(node->attributes, node->inputs[X], node->inputs[WEIGHT], node->inputs[BIAS], node->outputs[0]->grad,
                                           betas[X], d[X], d[WEIGHT], d[BIAS]);
}

Tensor *op_short_conv(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, const ShortConvArgs *args) {
    if (!x) return NULL;
    int64_t width = weight->shape[0];
    ASSERT(tensor_width(x) == 3 * width && weight->n_dims == 3 && weight->shape[1] == 1 && (!bias || tensor_count(bias) == width),
           "a convolution of %lld channels over width %lld", (long long)width, (long long)tensor_width(x));
    ASSERT(args->layout->arrays.segments, "a convolution with a layout that is not uploaded");
    Tensor *y = tape_tensor(tape, tape_compute(tape), 2, (int64_t[]){tensor_rows(x), width});
    if (!y) return NULL;
    tape_device(tape)->short_conv(args, x, weight, bias, y);
    tape_push(tape, "short_conv", short_conv_backward, (Tensor *[]){x, weight, bias}, args->states ? 0 : INPUTS, &y, 1, args, sizeof *args);
    return y;
}

OpCost op_short_conv_cost(const Node *node, bool backward) { return (OpCost){.bytes = node_bytes(node, backward)}; }

/* 0: two sequences; 1: a bias, and a prompt with two continuations, one of which has another; 2: more taps than tokens. */
const int op_short_conv_variants = 3;

void op_short_conv_example(OpExample *example) {
    static const Segment packed[] = {{0, 4, -1, 0, 0, 0}, {4, 9, -1, 0, 0, 0}};
    static const Segment nested[] = {{0, 3, -1, 0, 0, 0}, {3, 4, 0, 0, 0, 0}, {4, 7, 1, 0, 0, 0}, {7, 9, 0, 0, 0, 0}};
    int v = example->variant;
    Layout *layout = arena_zero(example->arena, sizeof *layout);
    if (!layout) return;
    *layout = (Layout){.n_tokens = 9, .n_segments = v == 1 ? 4 : 2, .segments = v == 1 ? nested : packed};
    if (layout_upload(layout, example->arena, tape_device(example->tape)) != ST_OK) return;
    Tensor *x = example_input(example, true, true, 2, (int64_t[]){9, 6});
    Tensor *weight = example_input(example, false, true, 3, (int64_t[]){2, 1, v == 2 ? 6 : 3});
    Tensor *bias = v == 1 ? example_input(example, false, true, 1, (int64_t[]){2}) : NULL;
    if (x && weight && (v != 1 || bias)) example_output(example, op_short_conv(example->tape, x, weight, bias, &(ShortConvArgs){.layout = layout}));
}
