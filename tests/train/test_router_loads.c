/* SPDX-License-Identifier: Apache-2.0 */
/* The auxiliary loss of routers: against transformers, and its gradient against differences. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/train/router_loads.h"

enum { MOST = 64 };

static const char tiny_config[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 29, \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, \"num_experts\": 5, \"num_experts_per_tok\": 2,"
    " \"moe_intermediate_size\": 6, \"norm_topk_prob\": true}";

/* The mean loss of the rows; with `backward` also its gradient. */
static double aux_loss(const Model *model, RouterLoads *loads, const int32_t *ids, const Segment *segments, int32_t n, bool backward) {
    Tape *tape = tape_new(model->device, model->compute, 0);
    ModelBatch batch = {.ids = ids, .layout = {.n_tokens = segments[n - 1].end, .n_segments = n, .segments = segments}};
    router_loads_begin(loads, (size_t)n);
    tape_record(tape, backward);
    check_ok(router_loads_pass(loads, &batch));
    Tensor *hidden = model_forward(model, tape, &batch);
    check_ok(tape_status(tape));
    router_loads_count(loads);
    if (backward) {
        double *zeros = calloc((size_t)tensor_count(hidden), sizeof *zeros);
        tensor_seed_grad(tape, hidden, zeros);
        check_ok(tape_backward(tape));
        free(zeros);
    }
    tape_free(tape);
    Metrics metrics = {.n = 0};
    router_loads_metrics(loads, &metrics);
    double even = 0;
    for (size_t e = 0; e < metrics.n_list; e++) even += metrics.list[e];
    check_close(even, (double)metrics.n_list, 1e-9);
    assert_true(metric_get(&metrics, "expert_load_max") >= 1 && metric_get(&metrics, "expert_load_min") <= 1);
    return metric_get(&metrics, "router_aux_loss");
}

TEST(the_loss_of_a_sequence_is_that_of_transformers) {
    static const char *const names[] = {"mixtral", "qwen3_moe"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char name[100], dir[512], path[600];
        snprintf(name, sizeof name, "golden/models/%s", names[i]);
        if (!shared_path(name, dir, sizeof dir)) skip();
        WeightFile *expected;
        json_t *json;
        Model *model;
        RouterLoads loads;
        snprintf(path, sizeof path, "%s/expected.safetensors", dir);
        check_ok(weight_file_open(path, &expected));
        snprintf(path, sizeof path, "%s/expected.json", dir);
        check_ok(json_read_file(path, &json));
        check_ok(model_load(dir, &(ModelOptions){.device = device_reference(), .compute = DT_F64}, &model));
        check_ok(router_loads_open(&loads, model, 0));
        double both[2];
        int32_t ids[2 * MOST];
        Segment segments[2];
        for (int s = 0, at = 0; s < 2; s++) {
            const StoredTensor *stored = weight_file_find(expected, s ? "seq1.input_ids" : "seq0.input_ids");
            assert_true(stored && stored->count <= MOST);
            for (int64_t k = 0; k < stored->count; k++) ids[at + k] = (int32_t)stored_get(stored, k);
            segments[s] = (Segment){.begin = at, .end = at + stored->count, .parent = -1};
            both[s] = json_number_value(json_array_get(json_object_get(json, "router_aux_loss_per_sequence"), (size_t)s));
            check_close(aux_loss(model, &loads, ids + at, &(Segment){.end = stored->count, .parent = -1}, 1, false), both[s], 1e-9);
            at += (int)stored->count;
        }
        check_close(aux_loss(model, &loads, ids, segments, 2, false), (both[0] + both[1]) / 2, 1e-9); /* packed */
        router_loads_release(&loads);
        model_free(model);
        json_decref(json);
        weight_file_close(expected);
    }
}

TEST(the_gradient_is_that_of_the_scores) {
    static const Segment segments[] = {{.begin = 0, .end = 7, .parent = -1},
                                       {.begin = 7, .end = 9, .parent = 0},
                                       {.begin = 9, .end = 14, .parent = -1}}; /* two rows, one of them continued */
    const double coef = 0.3, step = 1e-6;
    int32_t ids[14];
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, tiny_config, DT_F32, 5, 0.4));
    for (int i = 0; i < 14; i++) ids[i] = (int32_t)rng_below(rng_key(7, RNG_TEST, 0), (uint64_t)i, 29);
    for (Checkpointing kind = CHECKPOINT_NONE; kind <= CHECKPOINT_LAYER; kind++) {
        Model *model;
        RouterLoads loads;
        check_ok(model_load(dir, &(ModelOptions){.device = device_reference(), .compute = DT_F64, .train_all = true}, &model));
        model->checkpointing = kind;
        check_ok(router_loads_open(&loads, model, coef));
        aux_loss(model, &loads, ids, segments, 3, true);
        for (int64_t layer = 0; layer < 2; layer++) {
            char name[100];
            snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", (int)layer);
            const Param *param = params_find(&model->params, name);
            assert_non_null(param);
            for (int64_t i = 0; i < tensor_count(param->tensor); i += 7) {
                double value = tensor_get(param->tensor, i), loss[2];
                for (int side = 0; side < 2; side++) {
                    tensor_set(param->tensor, i, value + (side ? step : -step));
                    loss[side] = aux_loss(model, &loads, ids, segments, 3, false);
                }
                tensor_set(param->tensor, i, value);
                /* begin counts segments as rows: 3, and there are 2 */
                check_close(tensor_get(param_grad(param), i), coef * (loss[1] - loss[0]) / (2 * step) * 2 / 3, 1e-7);
            }
        }
        router_loads_release(&loads);
        model_free(model);
    }
    temp_dir_remove(dir);
}

TEST(routers_by_sigmoids_have_no_such_loss) {
    static const char config[] =
        "{\"model_type\": \"glm4_moe\", \"vocab_size\": 29, \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 2,"
        " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, \"n_routed_experts\": 6, \"num_experts_per_tok\": 2,"
        " \"moe_intermediate_size\": 10}";
    char dir[512];
    Model *model;
    RouterLoads loads;
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, config, DT_F32, 5, 0.4));
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    check_status(router_loads_open(&loads, model, 0.1), ST_CONFIG);
    check_text("no auxiliary loss");
    check_ok(router_loads_open(&loads, model, 0));
    router_loads_release(&loads);
    model_free(model);
    temp_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loss_of_a_sequence_is_that_of_transformers),
        cmocka_unit_test(the_gradient_is_that_of_the_scores),
        cmocka_unit_test(routers_by_sigmoids_have_no_such_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
