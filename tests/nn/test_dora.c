/* SPDX-License-Identifier: Apache-2.0 */
/* DoRA against its definition, written out in double. Gradients: test_adapter.c (PEFT), test_ops.c. */
#include "tests/support/check.h"

#include <math.h>
#include <string.h>

#include "lib/nn/nn.h"

enum { ROWS = 5, IN = 7, OUT = 6, RANK = 2 };

typedef struct Fixture {
    Arena *arena;
    Params params;
    Linear linear;
    Tensor *x, *residual;
    Tape *tape;
} Fixture;

static void fill_random(Tensor *tensor, uint64_t stream) {
    RngKey key = rng_key(5, RNG_TEST, stream);
    for (int64_t i = 0; i < tensor_count(tensor); i++) tensor_set(tensor, i, 2 * rng_uniform(key, (uint64_t)i) - 1);
}

static Tensor *random_tensor(Arena *arena, int n_dims, const int64_t *shape, uint64_t stream) {
    Tensor *tensor = tensor_new(arena, device_reference(), DT_F64, n_dims, shape);
    fill_random(tensor, stream);
    return tensor;
}

static void open_fixture(Fixture *f, bool in_out, double dropout) {
    *f = (Fixture){.arena = arena_new(0), .tape = tape_new(device_reference(), DT_F64, 0)};
    f->linear = (Linear){.path = "layers.0.q_proj",
                         .weight = random_tensor(f->arena, 2, in_out ? (int64_t[]){IN, OUT} : (int64_t[]){OUT, IN}, 1),
                         .bias = random_tensor(f->arena, 1, (int64_t[]){OUT}, 2),
                         .in = IN,
                         .out = OUT};
    f->linear.weight->in_out = in_out;
    f->x = random_tensor(f->arena, 2, (int64_t[]){ROWS, IN}, 3);
    f->residual = random_tensor(f->arena, 2, (int64_t[]){ROWS, OUT}, 4);
    const LoraConfig config = {.rank = RANK, .alpha = 3, .dropout = dropout, .use_dora = true};
    check_ok(lora_attach(&f->linear, &config, 1, DT_F64, device_reference(), f->arena, &f->params));
}

static void close_fixture(Fixture *f) {
    tape_free(f->tape);
    params_release(&f->params);
    arena_free(f->arena);
}

static double weight_at(const Fixture *f, int64_t o, int64_t i) {
    return tensor_get(f->linear.weight, f->linear.weight->in_out ? i * OUT + o : o * IN + i);
}

/* Element (o, i) of scale B A. */
static double delta_at(const LoraBranch *lora, int64_t o, int64_t i) {
    double sum = 0;
    for (int64_t r = 0; r < RANK; r++) sum += tensor_get(lora->b, o * RANK + r) * tensor_get(lora->a, r * IN + i);
    return lora->scale * sum;
}

/* magnitude / norm of row o. */
static double factor_at(const Fixture *f, const LoraBranch *lora, int64_t o) {
    double square = 0;
    for (int64_t i = 0; i < IN; i++) {
        double sum = weight_at(f, o, i) + delta_at(lora, o, i);
        square += sum * sum;
    }
    return tensor_get(lora->magnitude, o) / sqrt(square);
}

/* The layer's result for row r and output o, by the definition; dropped: x after dropout, or x. */
static double result_at(const Fixture *f, const LoraBranch *lora, const Tensor *dropped, int64_t r, int64_t o) {
    double plain = 0, low = 0, masked = 0, factor = lora ? factor_at(f, lora, o) : 1;
    for (int64_t i = 0; i < IN; i++) {
        double x = tensor_get(f->x, r * IN + i), kept = tensor_get(dropped, r * IN + i);
        plain += x * weight_at(f, o, i);
        masked += kept * weight_at(f, o, i);
        if (lora) low += kept * delta_at(lora, o, i);
    }
    return tensor_get(f->residual, r * OUT + o) + tensor_get(f->linear.bias, o) + plain + (factor - 1) * masked + factor * low;
}

TEST(a_new_branch_changes_nothing) {
    for (int in_out = 0; in_out < 2; in_out++) {
        Fixture f;
        open_fixture(&f, in_out, 0);
        assert_int_equal(f.params.n, 3);
        assert_string_equal(f.params.items[2].name, "layers.0.q_proj.lora_magnitude_vector");
        const Tensor *y = linear_forward(&f.linear, f.tape, f.x, f.residual, &(StepContext){0});
        check_ok(tape_status(f.tape));
        for (int64_t i = 0; i < ROWS * OUT; i++) check_close(tensor_get(y, i), result_at(&f, NULL, f.x, i / OUT, i % OUT), 1e-12);
        close_fixture(&f);
    }
}

TEST(rows_have_the_trained_length) {
    for (int kind = 0; kind < 4; kind++) {
        Fixture f;
        const bool dropout = kind >= 2;
        open_fixture(&f, kind % 2, dropout ? 0.4 : 0);
        const LoraBranch *lora = f.linear.lora;
        fill_random(lora->b, 6);
        fill_random(lora->magnitude, 7);
        const StepContext step = {.training = true, .seed = 3, .number = 2};
        Tensor *dropped = tensor_new(f.arena, device_reference(), DT_F64, 2, f.x->shape);
        device_reference()->dropout(f.x, lora->dropout, rng_key(3, RNG_DROPOUT, (uint64_t)2 << 20), 0, 0, dropped);
        const Tensor *y = linear_forward(&f.linear, f.tape, f.x, f.residual, &step);
        check_ok(tape_status(f.tape));
        for (int64_t i = 0; i < ROWS * OUT; i++) check_close(tensor_get(y, i), result_at(&f, lora, dropout ? dropped : f.x, i / OUT, i % OUT), 1e-12);
        assert_true(linear_reads_once(&f.linear, &step) == !dropout);
        close_fixture(&f);
    }
}

/* Rows of two adapters, and of none, in one batch; a branch that never changes keeps its norms. */
TEST(rows_have_their_own_adapters) {
    Fixture f, other;
    open_fixture(&f, false, 0);
    open_fixture(&other, false, 0);
    tape_record(f.tape, false);
    fill_random(f.linear.lora->b, 6);
    fill_random(other.linear.lora->b, 8);
    fill_random(other.linear.lora->magnitude, 9);
    check_ok(lora_keep_norms(other.linear.lora, other.arena));
    Linear *first = &f.linear, *second = &other.linear;
    const AdapterRows rows[] = {{&first, 0, 2}, {&second, 3, 5}};
    const Linear base = {.path = "base", .weight = f.linear.weight, .bias = f.linear.bias, .in = IN, .out = OUT};
    for (int pass = 0; pass < 2; pass++) {
        const Tensor *y = linear_forward(&base, f.tape, f.x, f.residual, &(StepContext){.adapters = rows, .n_adapters = 2});
        check_ok(tape_status(f.tape));
        for (int64_t i = 0; i < ROWS * OUT; i++) {
            const LoraBranch *lora = i / OUT < 2 ? f.linear.lora : i / OUT < 3 ? NULL : other.linear.lora;
            check_close(tensor_get(y, i), result_at(&f, lora, f.x, i / OUT, i % OUT), 1e-12);
        }
        assert_true(other.linear.lora->norms_known && !f.linear.lora->norms_known);
        tape_reset(f.tape);
    }
    close_fixture(&other);
    close_fixture(&f);
}

TEST(a_row_of_zeros_stays_zero) {
    Fixture f;
    open_fixture(&f, false, 0);
    for (int64_t i = 0; i < IN; i++) tensor_set(f.linear.weight, i, 0);
    device_reference()->dora_squares(f.linear.weight, f.linear.lora->squares);
    tensor_set(f.linear.lora->magnitude, 0, 0);
    const Tensor *y = linear_forward(&f.linear, f.tape, f.x, NULL, &(StepContext){0});
    check_ok(tape_status(f.tape));
    for (int64_t r = 0; r < ROWS; r++) check_close(tensor_get(y, r * OUT), tensor_get(f.linear.bias, 0), 0);
    close_fixture(&f);
}

/* As PEFT's LoRA+ groups: vectors have the rate of B and no decay. */
TEST(magnitudes_learn_like_b) {
    Fixture f;
    open_fixture(&f, false, 0);
    lora_set_lr_ratio(&f.params, 1);
    assert_true(f.params.items[2].decay);
    lora_set_lr_ratio(&f.params, 16);
    check_close(f.params.items[0].lr_scale, 1, 0);
    check_close(f.params.items[1].lr_scale, 16, 0);
    check_close(f.params.items[2].lr_scale, 16, 0);
    assert_true(f.params.items[1].decay && !f.params.items[2].decay);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_branch_changes_nothing), cmocka_unit_test(rows_have_the_trained_length),
        cmocka_unit_test(rows_have_their_own_adapters), cmocka_unit_test(a_row_of_zeros_stays_zero),
        cmocka_unit_test(magnitudes_learn_like_b),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
