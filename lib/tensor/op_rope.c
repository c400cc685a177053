/* SPDX-License-Identifier: Apache-2.0 */
/* rope: rotates pairs (i, i + R), or (2i, 2i + 1), of every head by the token's angles, in place unless the op that made x needs its values in the
 * backward pass. The gradient is the inverse rotation, in place again. */
#include "lib/tensor/tensor.h"

typedef struct RopeArgs {
    const Tensor *cosine, *sine;
    int64_t head_dim;
    bool neighbours;
} RopeArgs;

static void rope_backward(Tape *tape, Node *node) {
    const RopeArgs *args = node->attributes;
    Tensor *x = node->inputs[0], *y = node->outputs[0];
    if (tensor_grad_move(y, x)) {
        tape_device(tape)->rope(x->grad, args->cosine, args->sine, args->head_dim, args->neighbours, true, 0, x->grad);
        return;
    }
    double beta;
    Tensor *dx = tape_grad(tape, x, &beta);
    if (dx) tape_device(tape)->rope(y->grad, args->cosine, args->sine, args->head_dim, args->neighbours, true, beta, dx);
}

Tensor *op_rope(Tape *tape, Tensor *x, const Tensor *cosine, const Tensor *sine, int64_t head_dim, bool neighbours) {
    if (!x || !cosine || !sine) return NULL;
    ASSERT(tensor_width(x) % head_dim == 0 && 2 * tensor_width(cosine) <= head_dim, "rope of width %lld, head_dim %lld, %lld angles",
           (long long)tensor_width(x), (long long)head_dim, (long long)tensor_width(cosine));
    bool saved = x->state && x->state->saved_by_output;
    Tensor *y = saved ? tape_tensor_like(tape, x->dtype, x) : tape_reshape(tape, x, x->n_dims, x->shape);
    if (!y) return NULL;
    if (!x->state || !x->state->restored) tape_device(tape)->rope(x, cosine, sine, head_dim, neighbours, false, 0, y);
    tape_push(tape, "rope", rope_backward, &x, 1, &y, 1, &(RopeArgs){cosine, sine, head_dim, neighbours}, sizeof(RopeArgs));
    return y;
}

OpCost op_rope_cost(const Node *node, bool backward) {
    const RopeArgs *args = node->attributes;
    (void)backward;
    return (OpCost){.bytes = (double)(2 * tensor_bytes(node->inputs[0]) + tensor_bytes(args->cosine) + tensor_bytes(args->sine))};
}

/* 0: rotates the full head, 1: a part of it, 2: the result of a norm that needs it in the backward pass, 3: neighbours of a part. */
const int op_rope_variants = 4;

void op_rope_example(OpExample *example) {
    int64_t head_dim = 6, angles = example->variant % 2 ? 2 : 3;
    Tensor *x = example_input(example, true, true, 2, (int64_t[]){4, 2 * head_dim});
    Tensor *cosine = example_input(example, false, false, 2, (int64_t[]){4, angles});
    Tensor *sine = example_input(example, false, false, 2, (int64_t[]){4, angles});
    /* As in models, x comes from an op: rope must not overwrite a parameter. */
    Tensor *weight = example_input(example, false, false, 2, (int64_t[]){2 * head_dim, 2 * head_dim});
    Tensor *h = op_linear(example->tape, x, weight, NULL, NULL, NULL);
    Tensor *norm = example->variant == 2 ? example_input(example, false, true, 1, (int64_t[]){2 * head_dim}) : NULL;
    example_output(example,
                   op_rope(example->tape, norm ? op_rms_norm(example->tape, h, norm, 1e-5, NULL) : h, cosine, sine, head_dim, example->variant == 3));
}
