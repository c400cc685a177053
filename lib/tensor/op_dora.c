/* SPDX-License-Identifier: Apache-2.0 */
/* dora: the columns of x (W + scale B A)^T times magnitude / norm. Source: DoRA, arXiv 2402.09353; as in PEFT the norms are constants for the
 * backward pass (section 4.3 of the paper).
 *
 * The norms need no sum W + scale B A: |w + s b A|^2 = |w|^2 + 2 s (A w) . b + s^2 b (A A^T) b^T for a row w of W and b of B. |w|^2 never changes. */
#include "lib/tensor/tensor.h"

enum { X, MAGNITUDE, ADDEND };

static void dora_backward(Tape *tape, Node *node) {
    const DoraScale *scale = node->attributes;
    const Device *device = tape_device(tape);
    Tensor *x = node->inputs[X], *addend = node->inputs[ADDEND], *y = node->outputs[0];
    double beta, none;
    Tensor *dmagnitude = tape_grad(tape, node->inputs[MAGNITUDE], &none);
    if (dmagnitude && none == 0) device->fill(dmagnitude, 0);
    Tensor *dx = tape_grad(tape, x, &beta);
    if (dx || dmagnitude) device->dora_backward(y->grad, x, scale->magnitude, scale->norms, beta, dx, dmagnitude);
    if (!addend || tensor_grad_move(y, addend)) return;
    Tensor *daddend = tape_grad(tape, addend, &beta);
    if (daddend) device->accumulate(y->grad, 1, beta, daddend);
}

/* Rows begin..end-1 of the result; scale NULL: times 1. */
static void dora_rows(const Device *device, const Tensor *x, const DoraScale *scale, const Tensor *addend, Tensor *y, int64_t begin, int64_t end) {
    if (begin >= end) return;
    const Tensor from = matrix_rows(x, begin, end), added = addend ? matrix_rows(addend, begin, end) : (Tensor){0};
    Tensor to = matrix_rows(y, begin, end);
    if (scale)
        device->dora(&from, scale->magnitude, scale->norms, addend ? &added : NULL, &to);
    else if (addend)
        device->add(&added, &from, &to);
    else
        device->copy(&from, &to);
}

Tensor *op_dora(Tape *tape, Tensor *x, const DoraScale *scale, const Tensor *bias, Tensor *addend) {
    if (!x || !scale || tape_status(tape) != ST_OK) return NULL;
    const Device *device = tape_device(tape);
    ASSERT(!bias || !bias->needs_grad, "a trained bias of %lld columns with DoRA", (long long)tensor_width(x));
    ASSERT(!addend || tensor_count(addend) == tensor_count(x), "%lld elements to add to %lld", (long long)tensor_count(addend),
           (long long)tensor_count(x));
    Tensor *in_place = addend ? tape_reuse(tape, addend) : NULL,
           *y = in_place ? in_place : tape_tensor_like(tape, addend ? addend->dtype : tape_compute(tape), x);
    if (!y) return NULL;
    if (scale->end == 0) {
        device->dora(x, scale->magnitude, scale->norms, addend, y);
    } else {
        ASSERT(!tape_needs_backward(tape), "a backward pass of DoRA of some rows of %lld", (long long)tensor_rows(x));
        int64_t done = 0;
        for (const DoraScale *rows = scale; rows; done = rows->end, rows = rows->next) {
            dora_rows(device, x, NULL, addend, y, done, rows->begin);
            dora_rows(device, x, rows, addend, y, rows->begin, rows->end);
        }
        dora_rows(device, x, NULL, addend, y, done, tensor_rows(x));
    }
    if (bias) device->bias_add(y, bias);
    Tensor *magnitude = scale->end == 0 ? scale->magnitude : NULL;
    tape_push(tape, "dora", dora_backward, (Tensor *[]){x, magnitude, addend}, 3, &y, 1, scale, sizeof *scale);
    return y;
}

/* ---- norms ---- */

/* Short-lived memory for a matrix; NULL after a failure. */
static Tensor *temp(Tape *tape, DType dtype, int64_t rows, int64_t cols) {
    Tensor *tensor = tape_header(tape, dtype, 2, (int64_t[]){rows, cols});
    return tensor && tape_temp(tape, tensor) ? tensor : NULL;
}

static void fill_norms(Tape *tape, const Tensor *weight, const LoraBranch *lora, const Tensor *a, Tensor *products, Tensor *gram, Tensor *norms) {
    const Device *device = tape_device(tape);
    device->matmul(&(Matmul){.a = a, .b = weight, .c = products, .transpose_b = !weight->in_out, .alpha = 1});
    device->matmul(&(Matmul){.a = a, .b = a, .c = gram, .transpose_b = true, .alpha = 1});
    device->dora_norms(lora->squares, products, gram, lora->b, lora->scale, norms);
    profile_call(device, "dora norms", false,
                 (OpCost){2 * (double)tensor_rows(a) * (double)tensor_count(weight), (double)(tensor_bytes(weight) + tensor_bytes(products))});
}

/* A has the dtype of the layer's own products, so that the weight needs no second packed copy. */
Tensor *dora_norms(Tape *tape, const Tensor *weight, const LoraBranch *lora) {
    const int64_t out = tensor_count(lora->squares), rank = tensor_rows(lora->a);
    const DType wide = tape_residual(tape), compute = tape_compute(tape);
    Tensor *norms = tape_tensor(tape, wide, 1, &out),
           *rounded = norms && lora->a->dtype != compute ? temp(tape, compute, rank, tensor_width(lora->a)) : NULL;
    Tensor *products = norms ? temp(tape, wide, rank, out) : NULL, *gram = products ? temp(tape, wide, rank, rank) : NULL;
    bool there = gram && (rounded || lora->a->dtype == compute);
    if (there && rounded) tape_device(tape)->copy(lora->a, rounded);
    if (there) fill_norms(tape, weight, lora, rounded ? rounded : lora->a, products, gram, norms);
    Tensor *const temps[] = {gram, products, rounded};
    for (size_t i = 0; i < COUNT_OF(temps); i++)
        if (temps[i]) tape_temp_free(tape, temps[i]);
    return there ? norms : NULL;
}

OpCost op_dora_cost(const Node *node, bool backward) { return (OpCost){.bytes = node_bytes(node, backward)}; }

/* 0: norms of a weight (out, in); 1: of one (in, out), with a bias; 2: with a tensor to add in the residual dtype. */
const int op_dora_variants = 3;

void op_dora_example(OpExample *example) {
    const int64_t out = 9, in = 6;
    const bool in_out = example->variant == 1;
    Tensor *x = example_input(example, true, true, 2, (int64_t[]){5, out}), *magnitude = example_input(example, false, true, 1, &out);
    Tensor *weight = example_input(example, false, false, 2, in_out ? (int64_t[]){in, out} : (int64_t[]){out, in});
    LoraBranch lora = {.scale = 0.5,
                       .a = example_input(example, false, false, 2, (int64_t[]){2, in}),
                       .b = example_input(example, false, false, 2, (int64_t[]){out, 2}),
                       .squares = tape_tensor(example->tape, tape_residual(example->tape), 1, &out)};
    const Tensor *bias = in_out ? example_input(example, false, false, 1, &out) : NULL;
    Tensor *addend = example->variant == 2 ? example_input(example, false, true, 2, (int64_t[]){5, out}) : NULL;
    if (!weight || !lora.a || !lora.b || !lora.squares) return;
    weight->in_out = in_out;
    tape_device(example->tape)->dora_squares(weight, lora.squares);
    DoraScale scale = {.magnitude = magnitude, .norms = dora_norms(example->tape, weight, &lora)};
    if (scale.norms && magnitude) example_output(example, op_dora(example->tape, x, &scale, bias, addend));
}
