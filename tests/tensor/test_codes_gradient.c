/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of x and of a LoRA branch on frozen weights of every quantised format, against central differences in double. */
#include "tests/support/check.h"

#include <math.h>
#include <stdlib.h>

#include "lib/tensor/quant/packing.h"
#include "lib/tensor/tensor.h"

enum { TOKENS = 2, OUT = 4, RANK = 2 };

/* The scalar that is differentiated: the products of a linear layer, each with a weight of its own. */
typedef struct Layer {
    Arena *arena;
    Tape *tape;
    Tensor *weight, *x, *a, *b;
} Layer;

static double random_value(uint64_t stream, int64_t i) { return 2 * rng_uniform(rng_key(17, RNG_TEST, stream), (uint64_t)i) - 1; }

static Tensor *trained(Layer *layer, uint64_t stream, int64_t rows, int64_t width) {
    Tensor *tensor = tensor_new(layer->arena, device_reference(), DT_F64, 2, (int64_t[]){rows, width});
    for (int64_t i = 0; i < rows * width; i++) tensor_set(tensor, i, random_value(stream, i));
    tensor->grad = tensor_new(layer->arena, device_reference(), DT_F64, 2, tensor->shape);
    device_reference()->fill(tensor->grad, 0);
    tensor->needs_grad = true;
    return tensor;
}

static double loss_of(Layer *layer, bool backward) {
    double weights[TOKENS * OUT], loss = 0;
    tape_reset(layer->tape);
    tape_record(layer->tape, backward);
    const LoraBranch lora = {.scale = 1.5, .a = layer->a, .b = layer->b};
    Tensor *y = op_linear(layer->tape, layer->x, layer->weight, NULL, &lora, NULL);
    check_ok(tape_status(layer->tape));
    for (int64_t i = 0; i < TOKENS * OUT; i++) loss += (weights[i] = random_value(9, i)) * tensor_get(y, i);
    if (!backward) return loss;
    tensor_seed_grad(layer->tape, y, weights);
    check_ok(tape_backward(layer->tape));
    return loss;
}

static void check_input(const char *name, Layer *layer, Tensor *input) {
    const double step = 1e-4; /* the loss is linear in each element, so a large step has no error of its own */
    for (int64_t i = 0; i < tensor_count(input); i += tensor_count(input) / 8) {
        const double value = tensor_get(input, i), got = tensor_get(input->grad, i);
        tensor_set(input, i, value + step);
        double slope = loss_of(layer, false);
        tensor_set(input, i, value - step);
        slope = (slope - loss_of(layer, false)) / (2 * step);
        tensor_set(input, i, value);
        check_close_f64(name, &got, &slope, 1, 1e-9, 1e-9);
    }
}

static void check_gradients(const char *name, Layer *layer, int64_t width) {
    layer->tape = tape_new(device_reference(), DT_F64, 0);
    layer->x = trained(layer, 1, TOKENS, width);
    layer->a = trained(layer, 2, RANK, width);
    layer->b = trained(layer, 3, OUT, RANK);
    loss_of(layer, true);
    assert_null(layer->weight->grad);
    check_input(name, layer, layer->x);
    check_input(name, layer, layer->a);
    check_input(name, layer, layer->b);
    tape_free(layer->tape);
}

static float *drawn(Arena *arena, int64_t n) {
    float *values = arena_alloc(arena, (size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++) values[i] = (float)random_value(4, i);
    return values;
}

TEST(gradients_on_blocks_are_exact) {
    size_t n;
    const QuantFormat *formats = quant_formats(&n);
    for (size_t f = 0; f < n; f++) {
        Layer layer = {.arena = arena_new(0)};
        const int64_t width = formats[f].block, shape[] = {OUT, width};
        const float *values = drawn(layer.arena, OUT * width);
        uint8_t *blocks = arena_alloc(layer.arena, (size_t)(OUT * formats[f].bytes));
        for (int64_t r = 0; r < OUT; r++) formats[f].write(values + r * width, width, NULL, blocks + r * formats[f].bytes);
        layer.weight = tensor_new(layer.arena, device_reference(), formats[f].dtype, 2, shape);
        check_ok(tensor_upload(layer.weight, 0, OUT * width, blocks));
        check_gradients(formats[f].name, &layer, width);
        arena_free(layer.arena);
    }
}

/* Rows of 40 elements, which blocks of 64 cross. */
TEST(gradients_on_packed_codes_are_exact) {
    enum { WIDTH = 40, COUNT = OUT * WIDTH, BLOCK = 64 };
    static const char *const names[] = {"nf4", "fp4", "int8"};
    for (int k = 0; k < 3; k++) {
        Layer layer = {.arena = arena_new(0)};
        const float *values = drawn(layer.arena, COUNT);
        uint8_t codes[COUNT];
        float scales[OUT];
        const FourBitKind kind = k ? FOUR_BIT_FP4 : FOUR_BIT_NF4;
        const FourBit four = {.packed = codes, .map = four_bit_map(kind), .block = BLOCK, .absmax = scales};
        if (k < 2) four_bit_write(kind, values, COUNT, BLOCK, codes, scales);
        for (int64_t r = 0; k == 2 && r < OUT; r++) scales[r] = int8_row_write(values + r * WIDTH, WIDTH, (int8_t *)codes + r * WIDTH);
        const Packing *packing =
            k < 2 ? packing_of_four_bits(layer.arena, &four, COUNT) : packing_of_int8_rows(layer.arena, (const int8_t *)codes, scales, OUT, WIDTH);
        layer.weight = tensor_packed(layer.arena, device_reference(), 2, (const int64_t[]){OUT, WIDTH}, packing);
        check_gradients(names[k], &layer, WIDTH);
        arena_free(layer.arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_on_blocks_are_exact), cmocka_unit_test(gradients_on_packed_codes_are_exact)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
