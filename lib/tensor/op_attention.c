/* SPDX-License-Identifier: Apache-2.0 */
/* attention: softmax attention by segments, optionally with the cache's pages. The backward pass computes the scores again from the kept
 * log-sum-exp.
 *
 * Sinks: p = softmax of [scores, sink], and y = sum p_j v_j over the keys alone. So y is that without the sink, times the keys' share of the sum; and
 * with this y and the log-sum-exp of all scores, p_j = exp(score_j - logsumexp) and dscore_j = p_j (dy v_j - dy y) hold unchanged. */
#include "lib/tensor/tensor.h"

#include <math.h>

static void attention_backward(Tape *tape, Node *node) {
    double beta[3];
    Tensor *d[3];
    for (int i = 0; i < 3; i++) d[i] = tape_grad(tape, node->inputs[i], &beta[i]);
    if (!d[0] && !d[1] && !d[2]) return;
    tape_device(tape)->attention_backward(node->attributes, node->inputs[0], node->inputs[1], node->inputs[2], node->outputs[0], node->saved[0],
                                          node->outputs[0]->grad, beta, d[0], d[1], d[2]);
}

static void attention_with_sinks_backward(Tape *tape, Node *node) {
    double beta;
    Tensor *sinks = node->inputs[3], *dsinks = tape_grad(tape, sinks, &beta);
    if (dsinks && beta == 0) tape_device(tape)->fill(dsinks, 0);
    if (dsinks) tape_device(tape)->attention_sinks_backward(sinks, node->outputs[0], node->saved[0], node->outputs[0]->grad, dsinks);
    attention_backward(tape, node);
}

Tensor *op_attention(Tape *tape, Tensor *q, Tensor *k, Tensor *v, const AttentionArgs *args) {
    if (!q || !k || !v) return NULL;
    ASSERT(tensor_width(q) == args->n_heads * args->head_dim && tensor_width(k) == args->n_kv_heads * args->head_dim,
           "attention of widths %lld and %lld with %lld heads of %lld", (long long)tensor_width(q), (long long)tensor_width(k),
           (long long)args->n_heads, (long long)args->head_dim);
    ASSERT(args->layout->arrays.segments, "attention with a layout that is not uploaded");
    const Device *device = tape_device(tape);
    bool cached = args->layout->cache != NULL, keep = tape_needs_backward(tape) && !cached, there, have_sums = true;
    Tensor *logsumexp = keep ? tape_result(tape, tape_residual(tape), 2, (int64_t[]){tensor_rows(q), args->n_heads}, &have_sums) : NULL;
    Tensor *y = tape_result(tape, tape_compute(tape), q->n_dims, q->shape, &there);
    if (args->sinks && !keep) logsumexp = tape_tensor(tape, tape_residual(tape), 2, (int64_t[]){tensor_rows(q), args->n_heads});
    if (!y || ((keep || args->sinks) && !logsumexp)) return NULL;
    if (cached && !args->stored) device->kv_store(args, k, v);
    if (!there || !have_sums) {
        device->attention(args, q, k, v, y, logsumexp);
        if (args->sinks) device->attention_sinks(args->sinks, y, logsumexp);
    }
    Node *node = tape_push(tape, "attention", args->sinks ? attention_with_sinks_backward : attention_backward, (Tensor *[]){q, k, v, args->sinks},
                           cached        ? 0
                           : args->sinks ? 4
                                         : 3,
                           &y, 1, args, sizeof *args);
    if (node) node->saved[0] = logsumexp;
    y->state->saved_by_output = true;
    return y;
}

/* Number of pairs of a token and a token that it sees. */
static double seen_pairs(const AttentionArgs *args) {
    double pairs = 0;
    for (int32_t s = 0; s < args->layout->n_segments; s++) {
        const Segment *segment = &args->layout->segments[s];
        double first = (double)layout_offset(args->layout->segments, s) + 1, n = (double)(segment->end - segment->begin), last = first + n - 1,
               window = (double)args->window;
        double cut = args->window && last > window ? fmin(n, last - window) : 0; /* only tokens that see a full window */
        pairs += (n - cut) * (first + last - cut) / 2 + cut * window;
    }
    return pairs;
}

/* Forward: q k^T and p v. Backward: the first again, and the gradients of both products' factors. Keys and values of earlier tokens are read from
 * the cache, once for each segment. */
OpCost op_attention_cost(const Node *node, bool backward) {
    const AttentionArgs *args = node->attributes;
    double queries = (double)(args->n_heads * args->head_dim), keys = (double)(args->n_kv_heads * args->head_dim),
           elements = 2 * (double)args->layout->n_tokens * (queries + keys);
    if (backward) elements *= 2;
    for (int32_t s = 0; s < args->layout->n_segments; s++) elements += 2 * (double)args->layout->segments[s].past * keys;
    return (OpCost){(backward ? 10 : 4) * seen_pairs(args) * queries, elements * (double)dtype_size(node->outputs[0]->dtype)};
}

/* 0: one sequence; 1: two sequences, grouped heads; 2: a prompt with two continuations; 3: a window; 4: soft-capped scores; 5: a grandchild and a
 * window; 6: sinks, a window, grouped heads. */
const int op_attention_variants = 7;

void op_attention_example(OpExample *example) {
    static const Segment plain[] = {{0, 9, -1, 0, 0, 0}};
    static const Segment packed[] = {{0, 4, -1, 0, 0, 0}, {4, 9, -1, 0, 0, 0}};
    static const Segment shared[] = {{0, 3, -1, 0, 0, 0}, {3, 6, 0, 0, 0, 0}, {6, 9, 0, 0, 0, 0}};
    static const Segment nested[] = {{0, 3, -1, 0, 0, 0}, {3, 5, 0, 0, 0, 0}, {5, 7, 1, 0, 0, 0}, {7, 9, 0, 0, 0, 0}};
    static const struct {
        const Segment *segments;
        int n;
        int64_t n_kv_heads, window;
        double softcap;
    } cases[] = {
        {plain, 1, 2, 0, 0},    {packed, 2, 1, 0, 0}, {shared, 3, 1, 0, 0}, {plain, 1, 2, 3, 0},
        {shared, 3, 2, 0, 1.5}, {nested, 4, 1, 4, 0}, {packed, 2, 1, 3, 0},
    };
    int c = example->variant;
    int64_t n = 9, head_dim = 4;
    Layout *layout = arena_zero(example->arena, sizeof *layout);
    if (!layout) return;
    *layout = (Layout){.n_tokens = n, .n_segments = cases[c].n, .segments = cases[c].segments};
    if (layout_upload(layout, example->arena, tape_device(example->tape)) != ST_OK) return;
    AttentionArgs args = {.layout = layout,
                          .n_heads = 2,
                          .n_kv_heads = cases[c].n_kv_heads,
                          .head_dim = head_dim,
                          .scale = 1 / sqrt((double)head_dim),
                          .window = cases[c].window,
                          .softcap = cases[c].softcap};
    Tensor *q = example_input(example, true, true, 2, (int64_t[]){n, args.n_heads * head_dim});
    Tensor *k = example_input(example, true, true, 2, (int64_t[]){n, args.n_kv_heads * head_dim});
    Tensor *v = example_input(example, true, true, 2, (int64_t[]){n, args.n_kv_heads * head_dim});
    if (c == 6) args.sinks = example_input(example, false, true, 1, &args.n_heads);
    example_output(example, op_attention(example->tape, q, k, v, &args));
}
