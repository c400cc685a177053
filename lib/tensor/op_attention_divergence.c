/* SPDX-License-Identifier: Apache-2.0 */
/* attention_divergence: how a student's attention differs from a teacher's. Both see the same tokens. With s and t the probabilities of keys, each
 * the mean over the model's heads, the result of a query is KL(t || s). The forward pass keeps t / s for each query and key, (N, longest sequence);
 * the backward pass goes head by head: dscore = -(dy / H) p (t/s - sum p t/s), with p the probabilities of the head. */
#include "lib/tensor/tensor.h"

#include <math.h>

static void attention_divergence_backward(Tape *tape, Node *node) {
    const Device *device = tape_device(tape);
    Tensor *q = node->inputs[0], *k = node->inputs[1];
    double beta[2];
    Tensor *dq = tape_grad(tape, q, &beta[0]), *dk = tape_grad(tape, k, &beta[1]);
    Tensor *q_sums = tape_scratch(tape, tape_residual(tape), 2, q->shape), *k_sums = tape_scratch(tape, tape_residual(tape), 2, k->shape);
    if (tape_status(tape) != ST_OK) return;
    device->attention_divergence_backward(node->attributes, q, k, node->saved[0], node->outputs[0]->grad, q_sums, k_sums);
    if (dq) device->accumulate(q_sums, 1, beta[0], dq);
    if (dk) device->accumulate(k_sums, 1, beta[1], dk);
}

static int64_t longest_sequence(const Layout *layout) {
    int64_t longest = 0;
    for (int32_t s = 0; s < layout->n_segments; s++)
        longest = MAX(longest, layout_offset(layout->segments, s) + layout->segments[s].end - layout->segments[s].begin);
    return longest;
}

Tensor *op_attention_divergence(Tape *tape, Tensor *q, Tensor *k, const AttentionArgs *args, const Tensor *teacher_q, const Tensor *teacher_k,
                                const AttentionArgs *teacher) {
    if (!q || !k || !teacher_q || !teacher_k) return NULL;
    ASSERT(!args->layout->cache && !args->window && !args->sinks && !teacher->window && !teacher->sinks, "attention with a cache, a window or sinks");
    int64_t n = tensor_rows(q);
    Tensor *y = tape_tensor(tape, tape_residual(tape), 1, &n),
           *ratios = tape_tensor(tape, tape_residual(tape), 2, (int64_t[]){n, longest_sequence(args->layout)});
    if (!y || !ratios) return NULL;
    tape_device(tape)->attention_divergence(args, q, k, teacher, teacher_q, teacher_k, y, ratios);
    Node *node = tape_push(tape, "attention_divergence", attention_divergence_backward, (Tensor *[]){q, k}, 2, &y, 1, args, sizeof *args);
    if (node) node->saved[0] = ratios;
    return y;
}

/* Scores of the student, and about as many of the teacher; backward: the scores again, and two products with their gradients. */
OpCost op_attention_divergence_cost(const Node *node, bool backward) {
    const Layout *layout = ((const AttentionArgs *)node->attributes)->layout;
    double pairs = 0, width = (double)tensor_width(node->inputs[0]);
    for (int32_t s = 0; s < layout->n_segments; s++) {
        double first = (double)layout_offset(layout->segments, s) + 1, n = (double)(layout->segments[s].end - layout->segments[s].begin);
        pairs += n * (2 * first + n - 1) / 2;
    }
    return (OpCost){(backward ? 6 : 4) * pairs * width, node_bytes(node, backward)};
}

/* 0: two sequences; 1: a prompt with two continuations, soft-capped scores, fewer heads of the teacher. */
const int op_attention_divergence_variants = 2;

void op_attention_divergence_example(OpExample *example) {
    static const Segment packed[] = {{0, 4, -1, 0, 0, 0}, {4, 9, -1, 0, 0, 0}};
    static const Segment shared[] = {{0, 3, -1, 0, 0, 0}, {3, 6, 0, 0, 0, 0}, {6, 9, 0, 0, 0, 0}};
    const bool second = example->variant == 1;
    const int64_t n = 9;
    Layout *layout = arena_zero(example->arena, sizeof *layout);
    if (!layout) return;
    *layout = (Layout){.n_tokens = n, .n_segments = second ? 3 : 2, .segments = second ? shared : packed};
    if (layout_upload(layout, example->arena, tape_device(example->tape)) != ST_OK) return;
    AttentionArgs args = {.layout = layout, .n_heads = 4, .n_kv_heads = 2, .head_dim = 4, .scale = 0.7, .softcap = second ? 1.5 : 0};
    AttentionArgs teacher = {.layout = layout, .n_heads = second ? 2 : 4, .n_kv_heads = second ? 2 : 4, .head_dim = 6, .scale = 0.5};
    Tensor *q = example_input(example, true, true, 2, (int64_t[]){n, 16}), *k = example_input(example, true, true, 2, (int64_t[]){n, 8});
    Tensor *teacher_q = example_input(example, true, false, 2, (int64_t[]){n, teacher.n_heads * 6});
    Tensor *teacher_k = example_input(example, true, false, 2, (int64_t[]){n, teacher.n_kv_heads * 6});
    example_output(example, op_attention_divergence(example->tape, q, k, &args, teacher_q, teacher_k, &teacher));
}
