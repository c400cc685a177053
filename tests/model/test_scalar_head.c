/* SPDX-License-Identifier: Apache-2.0 */
/* Heads of one output: how they start, what they say of a row, where their gradients go. */
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/model/adapter.h"
#include "lib/model/scalar_head.h"
#include "lib/model/weight_file.h"

enum { WIDTH = 24, TOKENS = 9 };
static const char tiny_config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 37, \"hidden_size\": 24, \"intermediate_size\": 20, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2}";

typedef struct Setting {
    char dir[256];
    Model *model;
    Tape *tape;
} Setting;

static void open_setting(Setting *s, const Device *device, DType compute) {
    temp_dir_make(s->dir, sizeof s->dir);
    check_ok(model_write_random(s->dir, tiny_config, DT_F32, 3, 0.3));
    check_ok(model_load(s->dir, &(ModelOptions){.device = device, .compute = compute}, &s->model));
    s->tape = tape_new(device, compute, 0);
}

static void close_setting(Setting *s) {
    tape_free(s->tape);
    model_free(s->model);
    temp_dir_remove(s->dir);
}

static Tensor *scalar_head_forward(Setting *s, const Segment *segments, int32_t n_segments, int64_t n) {
    static const int32_t ids[TOKENS] = {3, 1, 36, 0, 7, 7, 20, 11, 5};
    ModelBatch batch = {.ids = ids, .layout = {.n_tokens = n, .n_segments = n_segments, .segments = segments}};
    return model_forward(s->model, s->tape, &batch);
}

static Tensor *rows_tensor(Tape *tape, const int32_t *rows, int64_t n) {
    Tensor *tensor = tensor_new(tape_arena(tape), tape_device(tape), DT_I32, 1, &n);
    memcpy(tensor->elements, rows, (size_t)n * sizeof *rows);
    return tensor;
}

static const Segment whole = {.end = TOKENS, .parent = -1};

TEST(it_starts_at_zero_or_normal) {
    Setting s;
    open_setting(&s, device_cpu(), DT_F32);
    Tensor *zero, *normal, *again, *other;
    check_ok(scalar_head_add(s.model, &(ScalarHeadConfig){.name = "value", .role = PARAM_CHECKPOINT_ONLY, .trained = true}, &zero));
    check_ok(scalar_head_add(s.model, &(ScalarHeadConfig){.name = "score", .role = PARAM_SAVED, .deviation = 0.5, .seed = 4}, &normal));
    check_ok(scalar_head_add(s.model, &(ScalarHeadConfig){.name = "score", .role = PARAM_SAVED, .deviation = 0.5, .seed = 4}, &again));
    check_ok(scalar_head_add(s.model, &(ScalarHeadConfig){.name = "other", .role = PARAM_SAVED, .deviation = 0.5, .seed = 4}, &other));
    double sum = 0;
    int same = 0;
    for (int64_t i = 0; i < WIDTH; i++) {
        assert_true(tensor_get(zero, i) == 0);
        assert_true(tensor_get(normal, i) == tensor_get(again, i));
        same += tensor_get(normal, i) == tensor_get(other, i);
        sum += tensor_get(normal, i) * tensor_get(normal, i);
    }
    assert_int_equal(same, 0);
    check_close(sqrt(sum / WIDTH), 0.5, 0.25); /* three deviations of a sample of 24 */
    const Param *param = params_find(&s.model->params, "value.weight");
    assert_true(param && param->trained && param->role == PARAM_CHECKPOINT_ONLY && param->tensor->grad);
    assert_false(params_find(&s.model->params, "score.weight")->trained);
    close_setting(&s);
}

/* By hand from the hidden states; in bf16 the products stay f32. */
TEST(values_are_products) {
    const struct {
        const Device *device;
        DType compute;
    } ways[] = {{device_reference(), DT_F64}, {device_cpu(), DT_F32}, {device_cpu(), DT_BF16}};
    for (size_t w = 0; w < COUNT_OF(ways); w++) {
        Setting s;
        Tensor *weight;
        open_setting(&s, ways[w].device, ways[w].compute);
        check_ok(scalar_head_add(s.model, &(ScalarHeadConfig){.name = "score", .role = PARAM_SAVED, .deviation = 0.3, .seed = 1}, &weight));
        static const int32_t rows[] = {8, 0, 3, 8};
        Tensor *hidden = scalar_head_forward(&s, &whole, 1, TOKENS), *values = op_row_scores(s.tape, hidden, weight, rows_tensor(s.tape, rows, 4));
        check_ok(tape_status(s.tape));
        assert_int_equal(tensor_count(values), 4);
        assert_int_equal(values->dtype, ways[w].compute == DT_F64 ? DT_F64 : DT_F32);
        for (int64_t i = 0; i < 4; i++) {
            double want = 0;
            for (int64_t c = 0; c < WIDTH; c++) want += tensor_get(hidden, rows[i] * WIDTH + c) * tensor_get(weight, c);
            check_close(tensor_get(values, i), want, ways[w].compute == DT_F64 ? 1e-13 : 2e-6); /* f32: 24 products of about 0.3 */
        }
        close_setting(&s);
    }
}

/* The gradient of one value by the head is the hidden state; by what is below, what differences say. */
TEST(gradients_reach_head_and_model) {
    Setting s;
    Tensor *weight;
    temp_dir_make(s.dir, sizeof s.dir);
    check_ok(model_write_random(s.dir, tiny_config, DT_F32, 3, 0.3));
    check_ok(model_load(s.dir, &(ModelOptions){.device = device_reference(), .compute = DT_F64, .train_all = true}, &s.model));
    s.tape = tape_new(device_reference(), DT_F64, 0);
    check_ok(
        scalar_head_add(s.model, &(ScalarHeadConfig){.name = "score", .role = PARAM_BASE, .deviation = 0.3, .seed = 1, .trained = true}, &weight));
    static const int32_t rows[] = {8, 2};
    static const double seed[] = {1, -0.5};
    Tensor *hidden = scalar_head_forward(&s, &whole, 1, TOKENS), *values = op_row_scores(s.tape, hidden, weight, rows_tensor(s.tape, rows, 2));
    double want[WIDTH];
    for (int64_t c = 0; c < WIDTH; c++) want[c] = tensor_get(hidden, 8 * WIDTH + c) - 0.5 * tensor_get(hidden, 2 * WIDTH + c);
    tensor_seed_grad(s.tape, values, seed);
    check_ok(tape_backward(s.tape));
    for (int64_t c = 0; c < WIDTH; c++) check_close(tensor_get(weight->grad, c), want[c], 1e-12);

    Tensor *q = s.model->linears[0]->weight;
    for (int64_t e = 0; e < 5; e++) {
        double at = tensor_get(q, e * 50), step = 1e-5, sides[2];
        for (int k = 0; k < 2; k++) {
            tape_reset(s.tape);
            tensor_set(q, e * 50, at + (k ? step : -step));
            values = op_row_scores(s.tape, scalar_head_forward(&s, &whole, 1, TOKENS), weight, rows_tensor(s.tape, rows, 2));
            sides[k] = tensor_get(values, 0) - 0.5 * tensor_get(values, 1);
        }
        tensor_set(q, e * 50, at);
        check_close(tensor_get(q->grad, e * 50), (sides[1] - sides[0]) / (2 * step), 1e-8);
    }
    close_setting(&s);
}

/* The value of a row has the same bits for any number of other rows. */
TEST(a_value_does_not_depend_on_its_neighbours) {
    Setting s;
    Tensor *weight;
    open_setting(&s, device_cpu(), DT_F32);
    check_ok(scalar_head_add(s.model, &(ScalarHeadConfig){.name = "score", .role = PARAM_SAVED, .deviation = 0.3, .seed = 1}, &weight));
    static const int32_t all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    float want[TOKENS];
    Tensor *hidden = scalar_head_forward(&s, &whole, 1, TOKENS), *values = op_row_scores(s.tape, hidden, weight, rows_tensor(s.tape, all, TOKENS));
    memcpy(want, values->elements, sizeof want);
    for (int64_t n = 1; n < TOKENS; n++)
        for (int64_t first = 0; first + n <= TOKENS; first++) {
            values = op_row_scores(s.tape, hidden, weight, rows_tensor(s.tape, all + first, n));
            assert_memory_equal(values->elements, want + first, (size_t)n * sizeof(float));
        }
    close_setting(&s);
}

/* A value function is no part of an adapter; a head that is saved with it is. */
TEST(what_goes_beside_is_not_written) {
    Setting s;
    Tensor *weight;
    LoraConfig lora = {.rank = 2, .alpha = 2, .lr_ratio = 1};
    open_setting(&s, device_cpu(), DT_F32);
    check_ok(model_attach_lora(s.model, &lora, 1));
    check_ok(scalar_head_add(s.model, &(ScalarHeadConfig){.name = "value", .role = PARAM_CHECKPOINT_ONLY, .trained = true}, &weight));
    char adapter[300];
    snprintf(adapter, sizeof adapter, "%s/adapter", s.dir);
    check_ok(adapter_save(s.model, adapter, "base"));
    WeightFile *files;
    check_ok(weight_file_open(temp_file(adapter, "adapter_model.safetensors"), &files));
    assert_int_equal(files->n, 2 * s.model->n_linears);
    weight_file_close(files);
    close_setting(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_starts_at_zero_or_normal),     cmocka_unit_test(values_are_products),
        cmocka_unit_test(gradients_reach_head_and_model),  cmocka_unit_test(a_value_does_not_depend_on_its_neighbours),
        cmocka_unit_test(what_goes_beside_is_not_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
