/* SPDX-License-Identifier: Apache-2.0 */
/* Multilayer perceptrons: golden values of torch, the fast kernel against the plain one, first values, target copies. */
#include "tests/support/backends.h"

#include <math.h>
#include <omp.h>

#include "lib/nn/nn.h"
#include "lib/tensor/cpu/vector_math.h"

/* The numbers of nested arrays, one after the other; returns how many. */
static size_t mlp_flatten(const json_t *value, double *out, size_t n) {
    if (!json_is_array(value)) {
        out[n] = json_number_value(value);
        return n + 1;
    }
    size_t i;
    json_t *item;
    json_array_foreach(value, i, item) n = mlp_flatten(item, out, n);
    return n;
}

enum { MOST = 8192 };

static Tensor *golden_tensor(Arena *arena, const json_t *from, const char *name, DType dtype, const Device *device, int n_dims,
                             const int64_t *shape) {
    double values[MOST];
    Tensor *tensor = tensor_new(arena, device, dtype, n_dims, shape);
    assert_non_null(tensor);
    size_t n = mlp_flatten(json_object_get(from, name), values, 0);
    assert_int_equal((int64_t)n, tensor_count(tensor));
    tensor_write(tensor, values);
    return tensor;
}

/* The file's network is a trunk of two layers under two heads. */
static void check_network(const json_t *golden, DType dtype, const Device *device, double tolerance) {
    const json_t *weights = json_object_get(golden, "weights");
    Arena *arena = arena_new(0);
    Tape *tape = tape_new(device, dtype, 0);
    double want[MOST], got[MOST];
    int64_t hidden = (int64_t)json_array_size(json_object_get(weights, "l1.bias")), rows = (int64_t)json_array_size(json_object_get(golden, "obs"));
    int64_t actions = (int64_t)json_array_size(json_object_get(weights, "pi.bias")), one = 1;
    int64_t in = (int64_t)json_array_size(json_array_get(json_object_get(weights, "l1.weight"), 0));
    MlpArgs trunk = {.n_layers = 2, .activation = ACT_TANH, .activate_last = true}, policy = {.n_layers = 1, .activation = ACT_TANH}, value = policy;
    trunk.weights[0] = golden_tensor(arena, weights, "l1.weight", dtype, device, 2, (int64_t[]){hidden, in});
    trunk.biases[0] = golden_tensor(arena, weights, "l1.bias", dtype, device, 1, &hidden);
    trunk.weights[1] = golden_tensor(arena, weights, "l2.weight", dtype, device, 2, (int64_t[]){hidden, hidden});
    trunk.biases[1] = golden_tensor(arena, weights, "l2.bias", dtype, device, 1, &hidden);
    policy.weights[0] = golden_tensor(arena, weights, "pi.weight", dtype, device, 2, (int64_t[]){actions, hidden});
    policy.biases[0] = golden_tensor(arena, weights, "pi.bias", dtype, device, 1, &actions);
    value.weights[0] = golden_tensor(arena, weights, "v.weight", dtype, device, 2, (int64_t[]){1, hidden});
    value.biases[0] = golden_tensor(arena, weights, "v.bias", dtype, device, 1, &one);
    Tensor *x = golden_tensor(arena, golden, "obs", dtype, device, 2, (int64_t[]){rows, in});
    Tensor *h = op_mlp(tape, x, &trunk), *logits = op_mlp(tape, h, &policy), *values = op_mlp(tape, h, &value);
    check_ok(tape_status(tape));
    size_t n = mlp_flatten(json_object_get(golden, "logits"), want, 0);
    assert_int_equal((int64_t)n, tensor_count(logits));
    tensor_read(logits, got);
    check_close_f64("logits", got, want, n, tolerance, tolerance);
    n = mlp_flatten(json_object_get(golden, "values"), want, 0);
    assert_int_equal((int64_t)n, tensor_count(values));
    tensor_read(values, got);
    check_close_f64("values", got, want, n, tolerance, tolerance);
    tape_free(tape);
    arena_free(arena);
}

TEST(golden_network) {
    char path[512];
    json_t *golden = NULL;
    if (!shared_path("golden/rl/mlp.json", path, sizeof path)) skip();
    check_ok(json_read_file(path, &golden));
    check_network(golden, DT_F64, device_reference(), 1e-13);
    check_network(golden, DT_F32, device_cpu(), 2e-6); /* sums of a dozen products of size 1 */
    json_decref(golden);
}

/* ---- the fast kernel ---- */

typedef struct Shape {
    int64_t rows, in, out;
    int n_hidden;
    int64_t hidden[3];
    bool activate_last;
} Shape;
/* Blocks of rows, ranges of outputs and vectors that come out even, and such that don't; more rows than go back at once. */
static const Shape shapes[] = {
    {1, 1, 1, 0, {0}, false},        {3, 4, 2, 2, {64, 64}, false},        {64, 4, 1, 2, {64, 64}, false},
    {33, 6, 3, 1, {37}, true},       {70, 17, 33, 3, {5, 129, 31}, false}, {129, 3, 5, 2, {120, 84}, true},
    {515, 8, 4, 2, {16, 40}, false}, {40, 376, 17, 2, {256, 70}, false},
};

static Tensor *drawn(Arena *arena, const Device *device, DType dtype, uint64_t number, int64_t rows, int64_t width) {
    Tensor *tensor = tensor_new(arena, device, dtype, 2, (int64_t[]){rows, width});
    assert_non_null(tensor);
    for (int64_t i = 0; i < rows * width; i++) tensor_set(tensor, i, (double)(float)rng_normal(rng_key(3, RNG_TEST, number), (uint64_t)i));
    return tensor;
}

/* The network's output, gradient by x and gradients of all parameters; the caller frees the arena that they are in. Returns how many. */
static size_t network_run(const Shape *shape, Activation activation, const Device *device, DType dtype, Arena *arena, double **results) {
    Params params = {0};
    Mlp mlp;
    MlpConfig config = {.in = shape->in,
                        .out = shape->out,
                        .n_hidden = shape->n_hidden,
                        .hidden = shape->hidden,
                        .activation = activation,
                        .activate_last = shape->activate_last,
                        .init = MLP_UNIFORM};
    check_ok(mlp_init(&mlp, &config, "net", true, 5, 0, dtype, device, arena, &params));
    if (dtype == DT_F64) /* the same numbers as the f32 network */
        for (size_t i = 0; i < params.n; i++)
            for (int64_t j = 0; j < tensor_count(params.items[i].tensor); j++)
                tensor_set(params.items[i].tensor, j, (double)(float)tensor_get(params.items[i].tensor, j));
    Tape *tape = tape_new(device, dtype, 0);
    Tensor *x = drawn(arena, device, dtype, 0, shape->rows, shape->in), *seed = drawn(arena, device, dtype, 1, shape->rows, shape->out);
    x->needs_grad = true;
    x->grad = drawn(arena, device, dtype, 2, shape->rows, shape->in);
    Tensor *y = mlp_forward(&mlp, tape, x);
    assert_non_null(y);
    size_t count = (size_t)(tensor_count(y) + tensor_count(x) + params_count(&params, true)), n = (size_t)tensor_count(y);
    double *values = *results = arena_alloc(arena, count * sizeof *values), *seeds = arena_alloc(arena, n * sizeof *seeds);
    tensor_read(y, values);
    tensor_read(seed, seeds);
    tensor_seed_grad(tape, y, seeds);
    check_ok(tape_backward(tape));
    tensor_read(x->grad, values + n);
    n += (size_t)tensor_count(x);
    for (size_t i = 0; i < params.n; i++) {
        tensor_read(params.items[i].tensor->grad, values + n);
        n += (size_t)tensor_count(params.items[i].tensor);
    }
    tape_free(tape);
    params_release(&params);
    return n;
}

static void check_shape(const Shape *shape, Activation activation) {
    Arena *arena = arena_new(0);
    double *want, *first = NULL, *got;
    size_t n = network_run(shape, activation, device_reference(), DT_F64, arena, &want);
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        assert_int_equal(network_run(shape, activation, device_cpu(), DT_F32, arena, &got), n);
        /* Sums over the rows of products of size 1: the error grows as the sum does. */
        check_close_f64("network", got, want, n, 2e-6 * sqrt((double)MAX(shape->rows, shape->in)), 2e-6);
        if (!first) first = got;
        assert_memory_equal(got, first, n * sizeof *got);
    }
    arena_free(arena);
}

TEST(fast_matches_plain) {
    int threads = omp_get_max_threads();
    for (size_t i = 0; i < COUNT_OF(isas); i++) {
        if (cpu_configure(NULL, isas[i]) != ST_OK) continue;
        for (size_t s = 0; s < COUNT_OF(shapes); s++) {
            check_shape(&shapes[s], ACT_TANH);
            check_shape(&shapes[s], ACT_RELU);
        }
    }
    omp_set_num_threads(threads);
    check_ok(cpu_configure(NULL, NULL));
}

/* The values of a row do not depend on the other rows, so that acting and training see the same policy. */
TEST(rows_alone_have_the_same_bits) {
    Arena *arena = arena_new(0);
    Params params = {0};
    Mlp mlp;
    MlpConfig config = {.in = 5, .out = 3, .n_hidden = 2, .hidden = (const int64_t[]){33, 64}, .activation = ACT_TANH, .init = MLP_UNIFORM};
    check_ok(mlp_init(&mlp, &config, "net", true, 5, 0, DT_F32, device_cpu(), arena, &params));
    Tape *tape = tape_new(device_cpu(), DT_F32, 0);
    Tensor *x = drawn(arena, device_cpu(), DT_F32, 0, 100, 5), *y = mlp_forward(&mlp, tape, x);
    for (int64_t r = 0; r < 100; r++) {
        Tensor *row = tensor_view(arena, device_cpu(), DT_F32, 2, (int64_t[]){1, 5}, (float *)x->elements + 5 * r),
               *alone = mlp_forward(&mlp, tape, row);
        assert_memory_equal(alone->elements, (float *)y->elements + 3 * r, 3 * sizeof(float));
    }
    tape_free(tape);
    params_release(&params);
    arena_free(arena);
}

TEST(tanh_is_exact_to_two_units) {
    for (uint32_t bits = 0; bits < 0x41800000u; bits += 4099) { /* 0 to 16, all magnitudes */
        float x = float_of_bits(bits), got = exact_tanh(x), want = tanhf(x), unit = nextafterf(want, 2) - want;
        double truth = tanh((double)x), error = fabs((double)got - truth);
        if (!(error <= 2 * (double)(want < 1 ? unit : unit / 2)) || got > 1 || exact_tanh(-x) != -got)
            fail_msg("tanh of %.9g is %.9g, not %.12g", (double)x, (double)got, truth);
    }
    assert_true(exact_tanh(INFINITY) == 1 && exact_tanh(-INFINITY) == -1 && isnan(exact_tanh(NAN)));
}

/* ---- first values ---- */

static void check_orthogonal(const Tensor *weight, double gain, double tolerance) {
    int64_t rows = weight->shape[0], cols = weight->shape[1], n = MIN(rows, cols), width = MAX(rows, cols);
    double values[MOST];
    tensor_read(weight, values);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double dot = 0;
            for (int64_t c = 0; c < width; c++)
                dot += rows <= cols ? values[i * cols + c] * values[j * cols + c] : values[c * cols + i] * values[c * cols + j];
            check_close(dot, i == j ? gain * gain : 0, tolerance);
        }
}

static const int64_t hidden_widths[] = {64, 48};

static MlpConfig config_of(MlpInit init) {
    return (MlpConfig){
        .in = 5, .out = 3, .n_hidden = 2, .hidden = hidden_widths, .activation = ACT_TANH, .init = init, .hidden_gain = sqrt(2), .out_gain = 0.01};
}

TEST(orthogonal_values) {
    Arena *arena = arena_new(0);
    Params params = {0};
    Mlp mlp, other;
    MlpConfig config = config_of(MLP_ORTHOGONAL);
    check_ok(mlp_init(&mlp, &config, "actor", true, 1, 0, DT_F64, device_reference(), arena, &params));
    check_ok(mlp_init(&other, &config, "critic", true, 1, 1, DT_F64, device_reference(), arena, &params));
    static const char *const names[] = {"actor.0.weight", "actor.0.bias", "actor.2.weight", "actor.2.bias",
                                        "actor.4.weight", "actor.4.bias", "critic.0.weight"};
    for (size_t i = 0; i < COUNT_OF(names); i++) assert_string_equal(params.items[i].name, names[i]);
    assert_int_equal(params_count(&params, true), 2 * (5 * 64 + 64 + 64 * 48 + 48 + 48 * 3 + 3));
    for (int k = 0; k < 3; k++) {
        check_orthogonal(mlp.args.weights[k], k < 2 ? sqrt(2) : 0.01, 1e-14);
        for (int64_t i = 0; i < tensor_count(mlp.args.biases[k]); i++) assert_true(tensor_get(mlp.args.biases[k], i) == 0);
        assert_true(tensor_get(mlp.args.weights[k], 0) != tensor_get(other.args.weights[k], 0));
    }
    int positive = 0; /* both signs on the diagonal: no direction is preferred */
    for (int64_t i = 0; i < 48; i++) positive += tensor_get(mlp.args.weights[1], i * 65) > 0;
    assert_true(positive > 8 && positive < 40);
    params_release(&params);
    arena_free(arena);
}

TEST(uniform_values) {
    Arena *arena = arena_new(0);
    Params params = {0};
    Mlp mlp;
    MlpConfig config = config_of(MLP_UNIFORM);
    check_ok(mlp_init(&mlp, &config, "q", false, 1, 0, DT_F32, device_cpu(), arena, &params));
    assert_int_equal(params_count(&params, true), 0);
    double squares = 0, bound = 1.0 / 8; /* 1 / sqrt(64) */
    for (int64_t i = 0; i < 64 * 48; i++) {
        double value = tensor_get(mlp.args.weights[1], i);
        assert_true(fabs(value) <= bound);
        squares += value * value;
    }
    check_close(squares / (64 * 48), bound * bound / 3, 0.05 * bound * bound / 3); /* five times the deviation of 3072 draws */
    assert_true(tensor_get(mlp.args.biases[1], 0) != 0 && fabs(tensor_get(mlp.args.biases[1], 0)) <= bound);
    params_release(&params);
    arena_free(arena);
}

TEST(bad_shapes_are_refused) {
    Arena *arena = arena_new(0);
    Params params = {0};
    Mlp mlp;
    MlpConfig config = config_of(MLP_UNIFORM);
    config.n_hidden = MLP_MAX_LAYERS;
    check_status(mlp_init(&mlp, &config, "q", true, 1, 0, DT_F32, device_cpu(), arena, &params), ST_CONFIG);
    check_text("too deep");
    config = config_of(MLP_UNIFORM);
    config.hidden = (const int64_t[]){64, 0};
    check_status(mlp_init(&mlp, &config, "q", true, 1, 0, DT_F32, device_cpu(), arena, &params), ST_CONFIG);
    check_text("width 0");
    config = config_of(MLP_UNIFORM);
    check_ok(mlp_init(&mlp, &config, "q", true, 1, 0, DT_F32, device_cpu(), arena, &params));
    Tape *tape = tape_new(device_cpu(), DT_F32, 0);
    assert_null(mlp_forward(&mlp, tape, tensor_new(arena, device_cpu(), DT_F32, 2, (int64_t[]){3, 6})));
    check_status(tape_status(tape), ST_INPUT);
    check_text("'q.0.weight'");
    tape_free(tape);
    params_release(&params);
    arena_free(arena);
}

TEST(targets_follow) {
    Arena *arena = arena_new(0);
    Params params = {0}, targets = {0};
    Mlp mlp, target;
    MlpConfig config = config_of(MLP_UNIFORM);
    check_ok(mlp_init(&mlp, &config, "q", true, 1, 0, DT_F32, device_cpu(), arena, &params));
    check_ok(mlp_init(&target, &config, "q", false, 1, 1, DT_F32, device_cpu(), arena, &targets));
    double before = tensor_get(target.args.weights[1], 7), from = tensor_get(mlp.args.weights[1], 7);
    mlp_blend(&mlp, 0.25, &target);
    check_close(tensor_get(target.args.weights[1], 7), 0.75 * before + 0.25 * from, 1e-8);
    mlp_blend(&mlp, 1, &target);
    for (size_t i = 0; i < params.n; i++)
        assert_memory_equal(params.items[i].tensor->elements, targets.items[i].tensor->elements, tensor_bytes(params.items[i].tensor));
    params_release(&params);
    params_release(&targets);
    arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_network),
        cmocka_unit_test(fast_matches_plain),
        cmocka_unit_test(rows_alone_have_the_same_bits),
        cmocka_unit_test(tanh_is_exact_to_two_units),
        cmocka_unit_test(orthogonal_values),
        cmocka_unit_test(uniform_values),
        cmocka_unit_test(bad_shapes_are_refused),
        cmocka_unit_test(targets_follow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
