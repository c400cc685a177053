/* SPDX-License-Identifier: Apache-2.0 */
/* Optimisers, schedules and clipping against torch and transformers; how LoRA starts, and which modules PEFT's patterns mean. */
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>

#include "lib/nn/nn.h"

static json_t *read_golden(const char *name) {
    char path[512];
    if (!shared_path(name, path, sizeof path)) return NULL;
    json_t *json;
    check_ok(json_read_file(path, &json));
    return json;
}

/* Numbers of a nested list, in order. */
static size_t nn_flatten(const json_t *value, double *out) {
    if (json_is_number(value)) {
        *out = json_number_value(value);
        return 1;
    }
    size_t n = 0, i;
    json_t *item;
    json_array_foreach(value, i, item) n += nn_flatten(item, out + n);
    return n;
}

/* ---- schedules ---- */

TEST(schedules_equal_transformers) {
    static const struct {
        const char *golden;
        ScheduleConfig config;
    } cases[] = {
        {"constant", {.name = "constant"}},
        {"constant_with_warmup", {.name = "constant", .warmup_steps = 7}},
        {"linear", {.name = "linear", .warmup_steps = 7, .total_steps = 50}},
        {"linear_no_warmup", {.name = "linear", .total_steps = 50}},
        {"cosine", {.name = "cosine", .warmup_steps = 7, .total_steps = 50}},
        {"cosine_1.25_cycles", {.name = "cosine", .warmup_steps = 7, .total_steps = 50, .num_cycles = 1.25}},
        {"cosine_with_restarts", {.name = "cosine_with_restarts", .warmup_steps = 7, .total_steps = 50, .num_cycles = 3}},
        {"polynomial", {.name = "polynomial", .warmup_steps = 7, .total_steps = 50, .lr_end_ratio = 1e-7}},
        {"polynomial_power2", {.name = "polynomial", .warmup_steps = 7, .total_steps = 50, .lr_end_ratio = 0.05, .power = 2}},
        {"inverse_sqrt", {.name = "inverse_sqrt", .warmup_steps = 7}},
        {"inverse_sqrt_timescale", {.name = "inverse_sqrt", .warmup_steps = 7, .timescale = 20}},
        {"cosine_with_min_lr", {.name = "cosine_with_min_lr", .warmup_steps = 7, .total_steps = 50, .min_lr_ratio = 0.1}},
        {"warmup_stable_decay_cosine", {.name = "wsd", .warmup_steps = 7, .total_steps = 50, .decay_steps = 20}},
    };
    json_t *golden = read_golden("golden/optim/schedules.json");
    if (!golden) skip();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const json_t *want = json_object_get(json_object_get(golden, cases[i].golden), "factor_at_step_k_from_0");
        if (!want) fail_msg("no schedule '%s'", cases[i].golden);
        double wanted[64], got[64];
        size_t n = nn_flatten(want, wanted);
        check_ok(schedule_check(&cases[i].config));
        for (size_t k = 0; k < n; k++) got[k] = schedule_factor(&cases[i].config, (int64_t)k);
        check_close_f64(cases[i].golden, got, wanted, n, 1e-14, 0);
    }
    json_decref(golden);
}

TEST(schedules_stay_in_range) {
    static const char *const names[] = {"constant",   "linear",       "cosine", "cosine_with_min_lr", "cosine_with_restarts",
                                        "polynomial", "inverse_sqrt", "wsd"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        for (int64_t warmup = 0; warmup <= 5; warmup += 5) {
            ScheduleConfig config = {.name = names[i], .warmup_steps = warmup, .total_steps = 5, .min_lr_ratio = 0.25};
            for (int64_t k = 0; k < 12; k++) {
                double factor = schedule_factor(&config, k);
                if (!(factor >= 0 && factor <= 1)) fail_msg("%s: factor %g at step %d with a warmup of %d", names[i], factor, (int)k, (int)warmup);
            }
        }
    check_status(schedule_check(&(ScheduleConfig){.name = "cosin"}), ST_CONFIG);
    check_text("unknown schedule 'cosin'");
    check_contains(status_hint_text(), "'cosine'");
}

/* ---- optimisers ---- */

typedef struct Trio {
    Arena *arena;
    Params params;
} Trio; /* the tensors w, v and b of optimizers.json */

static const char *const trio_names[] = {"w", "v", "b"};

static void trio_init(Trio *trio, const Device *device, DType dtype, const json_t *init) {
    *trio = (Trio){.arena = arena_new(0)};
    for (int i = 0; i < 3; i++) {
        double values[64];
        int64_t n = (int64_t)nn_flatten(json_object_get(init, trio_names[i]), values);
        Tensor *tensor = tensor_new(trio->arena, device, dtype, 1, &n);
        tensor_write(tensor, values);
        Param *param = params_add(&trio->params, trio_names[i], tensor, PARAM_BASE);
        assert_non_null(param);
        check_ok(params_train(param, trio->arena));
    }
}

static void trio_release(Trio *trio) {
    params_release(&trio->params);
    arena_free(trio->arena);
}

static void check_steps(const json_t *golden, const char *name, const OptimizerConfig *base, const Device *device, DType dtype, double tolerance) {
    const json_t *run = json_object_get(json_object_get(golden, "runs"), name), *settings = json_object_get(run, "hyper");
    if (!run) fail_msg("no case '%s' in optimizers.json", name);
    OptimizerConfig config = *base;
    double lr = json_number_value(json_object_get(settings, "lr")), betas[2] = {0.9, 0.999};
    nn_flatten(json_object_get(settings, "betas"), betas);
    config.beta1 = betas[0];
    config.beta2 = betas[1];
    config.eps = 1e-8;
    check_ok(json_get_double(settings, name, "eps", &config.eps));
    check_ok(json_get_double(settings, name, "weight_decay", &config.weight_decay));
    check_ok(json_get_double(settings, name, "momentum", &config.momentum));
    Trio trio;
    trio_init(&trio, device, dtype, json_object_get(golden, "init"));
    size_t bytes = optimizer_bytes(&config, &trio.params);
    check_ok(optimizer_init(&config, &trio.params, trio.arena));
    size_t states = 0;
    for (int i = 0; i < 3; i++)
        for (int s = 0; s < OPTIMIZER_MAX_STATES; s++) states += trio.params.items[i].state[s] ? tensor_bytes(trio.params.items[i].state[s]) : 0;
    assert_true(bytes >= states && bytes <= arena_pages(states + 6 * 512));
    const json_t *grads = json_object_get(golden, "grads"), *after = json_object_get(run, "after_step");
    assert_true(json_array_size(after) > 0 && json_array_size(after) == json_array_size(grads));
    for (size_t k = 0; k < json_array_size(grads); k++) {
        double values[64];
        for (int i = 0; i < 3; i++) {
            nn_flatten(json_object_get(json_array_get(grads, k), trio_names[i]), values);
            for (int64_t e = 0; e < tensor_count(trio.params.items[i].tensor); e++) values[e] *= 4; /* undone by grad_scale */
            tensor_write(trio.params.items[i].tensor->grad, values);
        }
        optimizer_step(&config, &trio.params, 0.25, lr, (int64_t)k + 1);
        for (int i = 0; i < 3; i++) {
            double want[64], got[64];
            char label[64];
            size_t n = nn_flatten(json_object_get(json_array_get(after, k), trio_names[i]), want);
            snprintf(label, sizeof label, "%s step %zu %s", name, k, trio_names[i]);
            tensor_read(trio.params.items[i].tensor, got);
            check_close_f64(label, got, want, n, tolerance, tolerance);
        }
    }
    trio_release(&trio);
}

TEST(optimisers_equal_torch) {
    json_t *golden = read_golden("golden/optim/optimizers.json");
    if (!golden) skip();
    static const struct {
        const char *name;
        OptimizerConfig config;
    } cases[] = {{"adamw", {.name = "adamw"}}, {"sgd", {.name = "sgd"}}, {"sgd_momentum", {.name = "sgd"}}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        check_steps(golden, cases[i].name, &cases[i].config, device_reference(), DT_F64, 1e-12);
        check_steps(golden, cases[i].name, &cases[i].config, device_cpu(), DT_F32, 2e-6);
    }
    json_decref(golden);
}

TEST(decay_alone_shrinks_by_its_factor) {
    Arena *arena = arena_new(0);
    Params params = {0};
    for (int i = 0; i < 2; i++) {
        Tensor *tensor = tensor_new(arena, device_reference(), DT_F64, 1, (int64_t[]){1});
        tensor_set(tensor, 0, 3);
        Param *param = params_add(&params, i ? "exempt" : "decayed", tensor, PARAM_BASE);
        param->decay = i == 0;
        check_ok(params_train(param, arena));
    }
    OptimizerConfig config = {.name = "adamw", .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.5};
    check_ok(optimizer_init(&config, &params, arena));
    optimizer_step(&config, &params, 1, 0.1, 1);
    check_close(tensor_get(params.items[0].tensor, 0), 3 * (1 - 0.1 * 0.5), 1e-15);
    check_close(tensor_get(params.items[1].tensor, 0), 3, 0);
    assert_non_null(optimizer_find("adamw"));
    assert_null(optimizer_find("adam"));
    params_release(&params);
    arena_free(arena);
}

TEST(clipping_equals_torch) {
    json_t *golden = read_golden("golden/optim/clip.json");
    if (!golden) skip();
    const json_t *grads = json_object_get(golden, "grads");
    Trio trio;
    trio_init(&trio, device_reference(), DT_F64, grads);
    for (int i = 0; i < 3; i++) {
        double values[64];
        nn_flatten(json_object_get(grads, trio_names[i]), values);
        tensor_write(trio.params.items[i].tensor->grad, values);
    }
    const json_t *cases = json_object_get(golden, "cases"), *one;
    size_t index;
    assert_true(json_array_size(cases) > 0);
    json_array_foreach(cases, index, one) {
        double norm = params_grad_norm(&trio.params), scale = clip_scale(norm, json_number_value(json_object_get(one, "max_norm")));
        check_close(norm, json_number_value(json_object_get(one, "norm_before")), 1e-12);
        for (int i = 0; i < 3; i++) {
            double want[64], got[64];
            size_t n = nn_flatten(json_object_get(json_object_get(one, "grads_after"), trio_names[i]), want);
            tensor_read(trio.params.items[i].tensor->grad, got);
            for (size_t e = 0; e < n; e++) got[e] *= scale;
            check_close_f64(trio_names[i], got, want, n, 1e-13, 0);
        }
    }
    trio_release(&trio);
    json_decref(golden);
}

TEST(clipping_by_hand) {
    check_close(clip_scale(2, 1), 1 / (2 + 1e-6), 1e-15);
    check_close(clip_scale(0.5, 1), 1, 0);
    check_close(clip_scale(5, 0), 1, 0);
    check_close(clip_scale((double)NAN, 1), 1, 0); /* a norm that is no number scales nothing: the caller has to look */
}

TEST(a_nan_is_found_by_name) {
    Arena *arena = arena_new(0);
    Params params = {0};
    for (int i = 0; i < 3; i++) {
        Tensor *tensor = tensor_new(arena, device_cpu(), DT_F32, 1, (int64_t[]){5});
        tensor_device(tensor)->fill(tensor, 1);
        Param *param = params_add(&params, trio_names[i], tensor, PARAM_BASE);
        if (i > 0) check_ok(params_train(param, arena));
    }
    assert_int_equal(params_count(&params, false), 15);
    assert_int_equal(params_count(&params, true), 10);
    assert_null(params_nonfinite(&params, true));
    tensor_set(params.items[2].tensor->grad, 4, (double)INFINITY);
    assert_null(params_nonfinite(&params, false));
    assert_string_equal(params_nonfinite(&params, true)->name, "b");
    params_zero_grad(&params); /* its memory may still hold it */
    check_close(params_grad_norm(&params), 0, 0);
    assert_null(params_nonfinite(&params, true));
    params_release(&params);
    arena_free(arena);
}

/* ---- LoRA ---- */

static Tensor *new_branch(Arena *arena, Params *params, uint64_t seed, uint64_t index, bool gaussian) {
    Linear *linear = arena_zero(arena, sizeof *linear);
    *linear = (Linear){.path = "model.layers.0.self_attn.q_proj", .in = 400, .out = 30, .index = index};
    LoraConfig config = {.rank = 50, .alpha = 25, .gaussian = gaussian, .lr_ratio = 16};
    check_ok(lora_attach(linear, &config, seed, DT_F32, device_cpu(), arena, params));
    check_close(linear->lora->scale, 0.5, 0);
    for (int64_t i = 0; i < tensor_count(linear->lora->b); i++) check_close(tensor_get(linear->lora->b, i), 0, 0);
    return linear->lora->a;
}

TEST(lora_starts_as_peft_does_and_repeatably) {
    Arena *arena = arena_new(0);
    Params params = {0};
    const Tensor *uniform = new_branch(arena, &params, 1, 2, false), *same = new_branch(arena, &params, 1, 2, false);
    const Tensor *other_layer = new_branch(arena, &params, 1, 3, false), *other_seed = new_branch(arena, &params, 2, 2, false);
    const Tensor *gaussian = new_branch(arena, &params, 1, 2, true);
    size_t bytes = tensor_bytes(uniform);
    assert_memory_equal(uniform->elements, same->elements, bytes);
    assert_memory_not_equal(uniform->elements, other_layer->elements, bytes);
    assert_memory_not_equal(uniform->elements, other_seed->elements, bytes);
    double n = (double)tensor_count(uniform), mean = 0, square = 0, largest = 0, g_mean = 0, g_square = 0;
    for (int64_t i = 0; i < tensor_count(uniform); i++) {
        double x = tensor_get(uniform, i), g = tensor_get(gaussian, i);
        mean += x / n, square += x * x / n, g_mean += g / n, g_square += g * g / n;
        largest = fmax(largest, fabs(x));
    }
    double bound = 1 / sqrt(400), error = 4 / sqrt(n); /* 20000 draws: four standard errors */
    assert_true(largest <= bound && largest > 0.999 * bound);
    check_close(mean / bound, 0, error * sqrt(1 / 3.0));
    check_close(square / (bound * bound / 3), 1, error * sqrt(0.8));
    check_close(g_mean * 50, 0, error);
    check_close(g_square * 2500, 1, error * sqrt(2));
    params_release(&params);
    arena_free(arena);
}

TEST(patterns_mean_what_they_mean_to_peft) {
    static const char *const names[] = {"q_proj", "mlp.up_proj"};
    assert_true(module_matches("model.layers.3.self_attn.q_proj", names, 2));
    assert_true(module_matches("q_proj", names, 2));
    assert_true(module_matches("model.layers.3.mlp.up_proj", names, 2));
    assert_false(module_matches("model.layers.3.self_attn.xq_proj", names, 2));
    assert_false(module_matches("model.layers.3.other.up_proj", names, 2));
    assert_false(module_matches("proj", names, 2));

    static const char *const rank_keys[] = {"layers.1.self_attn.v_proj", "(q|v)_proj", "v_proj"}, *const alpha_keys[] = {
                                                                                                      "k_proj", "model.layers.2.self_attn.q_proj"};
    int64_t ranks[] = {6, 2, 3};
    double alphas[] = {12, 3};
    LoraConfig config = {.rank = 4,
                         .alpha = 8,
                         .n_rank_pattern = 3,
                         .rank_keys = (const char **)rank_keys,
                         .rank_values = ranks,
                         .n_alpha_pattern = 2,
                         .alpha_keys = (const char **)alpha_keys,
                         .alpha_values = alphas};
    static const struct {
        const char *path;
        int64_t rank;
        double alpha;
    } cases[] = {
        {"model.layers.1.self_attn.v_proj", 6, 8},  {"model.layers.11.self_attn.v_proj", 2, 8}, {"model.layers.2.self_attn.q_proj", 2, 3},
        {"model.layers.0.self_attn.k_proj", 4, 12}, {"model.layers.0.self_attn.o_proj", 4, 8},  {"model.layers.0.self_attn.xk_proj", 4, 8},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        for (int rslora = 0; rslora < 2; rslora++) {
            int64_t rank;
            double scale, alpha;
            config.use_rslora = rslora;
            lora_rank_and_scale(&config, cases[i].path, &rank, &scale, &alpha);
            assert_int_equal(rank, cases[i].rank);
            check_close(alpha, cases[i].alpha, 0);
            check_close(scale, cases[i].alpha / (rslora ? sqrt((double)rank) : (double)rank), 1e-15);
        }
    config.target_regex = ".*layers\\.[01]\\..*q_proj";
    assert_true(lora_targets(&config, &(Linear){.path = "model.layers.1.self_attn.q_proj"}));
    assert_false(lora_targets(&config, &(Linear){.path = "model.layers.1.self_attn.q_proj.base"}));
    assert_false(lora_targets(&config, &(Linear){.path = "model.layers.2.self_attn.q_proj"}));
    check_status(pattern_check("a(b"), ST_CONFIG);
    check_text("'a(b' is not a regular expression");
}

/* A pattern that neither matches nor fails to match is an error, so that no layer is left out silently. */
TEST(patterns_that_take_too_many_steps) {
    static const char path[] = "model.layers.0.self_attn.rather_long_q_proj", bomb[] = "(([a-z._0-9])+)+[XY]";
    static const char *const keys[] = {bomb};
    assert_false(pattern_matches(bomb, path));
    check_ok(pattern_decides(".*q_proj", path));
    check_status(pattern_decides(bomb, path), ST_CONFIG);
    check_text("the pattern '(([a-z._0-9])+)+[XY]' takes too many steps on 'model.layers.0.self_attn.rather_long_q_proj'");
    check_status(lora_decides(&(LoraConfig){.target_regex = bomb}, path), ST_CONFIG);
    check_status(lora_decides(&(LoraConfig){.n_alpha_pattern = 1, .alpha_keys = (const char **)keys}, path), ST_CONFIG);
    check_ok(lora_decides(&(LoraConfig){.n_rank_pattern = 0}, path));
}

/* For several tensors of some MiB in a used arena: takes whole pages, and no page more. */
TEST(states_take_what_was_said) {
    OptimizerConfig config = {.name = "adamw"};
    Params params = {0};
    Arena *arena = arena_new(0), *states = arena_new(0);
    for (int i = 0; i < 5; i++) {
        char name[16];
        int64_t n = (1 << 20) + 100 * i;
        snprintf(name, sizeof name, "w%d", i);
        Param *param = params_add(&params, arena_strdup(arena, name), tensor_new(arena, device_cpu(), DT_F32, 1, &n), PARAM_BASE);
        check_ok(params_train(param, arena));
    }
    assert_non_null(arena_alloc(states, 3 << 20));
    size_t before = arena_resident(states);
    check_ok(optimizer_init(&config, &params, states));
    assert_int_equal(arena_resident(states) - before, optimizer_bytes(&config, &params));
    params_release(&params);
    arena_free(arena);
    arena_free(states);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_take_what_was_said),
        cmocka_unit_test(schedules_equal_transformers),
        cmocka_unit_test(schedules_stay_in_range),
        cmocka_unit_test(optimisers_equal_torch),
        cmocka_unit_test(decay_alone_shrinks_by_its_factor),
        cmocka_unit_test(clipping_equals_torch),
        cmocka_unit_test(clipping_by_hand),
        cmocka_unit_test(a_nan_is_found_by_name),
        cmocka_unit_test(lora_starts_as_peft_does_and_repeatably),
        cmocka_unit_test(patterns_mean_what_they_mean_to_peft),
        cmocka_unit_test(patterns_that_take_too_many_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
