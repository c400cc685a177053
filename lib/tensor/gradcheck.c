/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient check: every op of ops.def, on its own example, against central differences in double on the reference device. */
#include "lib/tensor/tensor.h"

#include <math.h>

const OpInfo op_infos[] = {
#define OP(result, name, arguments) {#name, op_##name##_example, &op_##name##_variants, op_##name##_cost},
#include "lib/tensor/ops.def"
#undef OP
};
const int n_op_infos = (int)COUNT_OF(op_infos);

Tensor *example_input(OpExample *example, bool activation, bool grad, int n_dims, const int64_t *shape) {
    ASSERT(example->n_inputs < (int)COUNT_OF(example->inputs), "example with more than %d inputs", example->n_inputs);
    int index = example->n_inputs++;
    DType parameter = example->dtype == DT_F64 ? DT_F64 : DT_F32;
    Tensor *input = tensor_new(example->arena, tape_device(example->tape), activation ? example->dtype : parameter, n_dims, shape);
    if (!input) return NULL;
    RngKey key = rng_key(example->seed, RNG_TEST, (uint64_t)index);
    int64_t count = tensor_count(input);
    for (int64_t i = 0; i < count; i++) {
        double value = example->given[index] ? example->given[index][i] : 2 * rng_uniform(key, (uint64_t)i) - 1;
        tensor_set(input, i, value);
    }
    if (grad) {
        input->needs_grad = true;
        input->grad = tensor_new(example->arena, tape_device(example->tape), input->dtype, n_dims, shape);
        if (!input->grad) return NULL;
        for (int64_t i = 0; i < count; i++) tensor_set(input->grad, i, 0);
    }
    return example->inputs[index] = input;
}

Tensor *example_ids(OpExample *example, int64_t n, const int32_t *ids) {
    Tensor *tensor = tensor_new(example->arena, tape_device(example->tape), DT_I32, 1, &n);
    for (int64_t i = 0; tensor && i < n; i++) tensor_set(tensor, i, ids[i]);
    return tensor;
}

void example_output(OpExample *example, Tensor *output) {
    if (output) example->outputs[example->n_outputs++] = output;
}

/* The scalar that is differentiated: a fixed random weighting of all outputs. */
static double output_weight(const OpExample *example, int output, int64_t i) {
    return rng_normal(rng_key(example->seed, RNG_TEST, 100 + (uint64_t)output), (uint64_t)i);
}

static double example_loss(const OpExample *example) {
    double loss = 0;
    for (int o = 0; o < example->n_outputs; o++)
        for (int64_t i = 0; i < tensor_count(example->outputs[o]); i++) loss += output_weight(example, o, i) * tensor_get(example->outputs[o], i);
    return loss;
}

static void example_run(const OpInfo *op, OpExample *example) {
    tape_reset(example->tape);
    arena_reset(example->arena);
    example->n_inputs = example->n_outputs = 0;
    op->example(example);
    ASSERT(tape_status(example->tape) == ST_OK && example->n_outputs > 0, "example of op '%s' failed: %s", op->name, status_text());
}

static double loss_at(const OpInfo *op, OpExample *example) {
    example_run(op, example);
    return example_loss(example);
}

enum { MAX_ELEMENTS = 512 };

static GradCheck check_variant(const OpInfo *op, Arena *arena, Tape *tape, int variant) {
    static const double step = 1e-5;
    OpExample example = {.tape = tape, .arena = arena, .seed = 7, .dtype = DT_F64, .variant = variant};
    GradCheck check = {.op = op->name, .variant = variant, .input = -1};
    double values[COUNT_OF(example.inputs)][MAX_ELEMENTS], gradients[COUNT_OF(example.inputs)][MAX_ELEMENTS];
    int64_t counts[COUNT_OF(example.inputs)] = {0};

    example_run(op, &example);
    for (int o = 0; o < example.n_outputs; o++) {
        double seeds[MAX_ELEMENTS];
        int64_t count = tensor_count(example.outputs[o]);
        ASSERT(count <= MAX_ELEMENTS, "example of op '%s' is too large: %lld elements", op->name, (long long)count);
        for (int64_t i = 0; i < count; i++) seeds[i] = output_weight(&example, o, i);
        tensor_seed_grad(tape, example.outputs[o], seeds);
    }
    int n_inputs = example.n_inputs;
    for (int k = 0; k < n_inputs; k++) tensor_read(example.inputs[k], values[k]);
    Status status = tape_backward(tape);
    ASSERT(status == ST_OK, "backward of op '%s' failed: %s", op->name, status_text());
    for (int k = 0; k < n_inputs; k++) {
        counts[k] = example.inputs[k]->needs_grad ? tensor_count(example.inputs[k]) : 0;
        ASSERT(tensor_count(example.inputs[k]) <= MAX_ELEMENTS, "example of op '%s' is too large", op->name);
        if (counts[k]) tensor_read(example.inputs[k]->grad, gradients[k]);
    }
    for (int k = 0; k < n_inputs; k++) example.given[k] = values[k];
    for (int k = 0; k < n_inputs; k++)
        for (int64_t i = 0; i < counts[k]; i++) {
            double value = values[k][i];
            values[k][i] = value + step;
            double above = loss_at(op, &example);
            values[k][i] = value - step;
            double below = loss_at(op, &example);
            values[k][i] = value;
            double expected = (above - below) / (2 * step), error = fabs(expected - gradients[k][i]) / fmax(1, fabs(expected));
            if (!(error <= check.max_error)) check = (GradCheck){op->name, variant, error, k, i, expected, gradients[k][i]};
        }
    return check;
}

int gradcheck_ops(GradCheck *worst, int cap) {
    Arena *arena = arena_new(0);
    Tape *tape = tape_new(device_reference(), DT_F64, 0);
    int n = 0;
    for (int i = 0; arena && tape && i < n_op_infos; i++)
        for (int variant = 0; variant < *op_infos[i].variants && n < cap; variant++) worst[n++] = check_variant(&op_infos[i], arena, tape, variant);
    tape_free(tape);
    arena_free(arena);
    return n;
}
