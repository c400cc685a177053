/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of models from config.json: parameters, adapters, parts of tensor ranks, work, cache. Expected numbers are counted from the published
 * checkpoints, or follow from the formula next to them. */
#include <string.h>

#include "lib/plan/plan_model.h"
#include "tests/support/check.h"

static const char smollm2_135m[] =
    "{\"model_type\":\"llama\",\"hidden_size\":576,\"intermediate_size\":1536,\"num_hidden_layers\":30,\"num_attention_heads\":9,"
    "\"num_key_value_heads\":3,\"vocab_size\":49152,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\"}";
static const char qwen25_05b[] =
    "{\"model_type\":\"qwen2\",\"hidden_size\":896,\"intermediate_size\":4864,\"num_hidden_layers\":24,\"num_attention_heads\":14,"
    "\"num_key_value_heads\":2,\"vocab_size\":151936,\"tie_word_embeddings\":true}";
static const char llama3_8b[] = "{\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"
                                "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"vocab_size\":128256,\"tie_word_embeddings\":false}";
static const char llama3_70b[] = "{\"model_type\":\"llama\",\"hidden_size\":8192,\"intermediate_size\":28672,\"num_hidden_layers\":80,"
                                 "\"num_attention_heads\":64,\"num_key_value_heads\":8,\"vocab_size\":128256,\"tie_word_embeddings\":false}";

static PlanModel model_of(const char *text) {
    PlanModel model;
    json_t *config = json_parse(text, strlen(text), 0, NULL);
    assert_non_null(config);
    check_ok(plan_model_parse(config, "test", &model));
    json_decref(config);
    return model;
}

static double rank_of(const PlanModel *model, int64_t size, int64_t rank) {
    return plan_stage_parameters(model, plan_whole(model), (PlanRank){size, rank});
}

static double lora_of(const PlanModel *model, int64_t size, int64_t rank) {
    return plan_lora_parameters(model, plan_whole(model), (PlanRank){size, rank}, 16, NULL, 0);
}

#define WHOLE ((PlanRank){1, 0})

TEST(counts_of_known_models) {
    static const struct {
        const char *config;
        double parameters, lora, layer, embedding;
    } known[] = {{smollm2_135m, 134515008, 4884480, 0, 0},
                 {qwen25_05b, 494032768, 8798208, 14912384, 136134656},
                 {llama3_8b, 8030261248, 41943040, 218112000, 525336576},
                 {llama3_70b, 70553706496, 207093760, 855654400, 1050673152}};
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        PlanModel model = model_of(known[i].config);
        check_close(plan_parameters(&model), known[i].parameters, 0);
        check_close(lora_of(&model, 1, 0), known[i].lora, 0);
        if (known[i].layer > 0) check_close(plan_layer_parameters(&model, 0, WHOLE), known[i].layer, 0);
        if (known[i].embedding > 0) check_close(plan_embedding(&model, WHOLE), known[i].embedding, 0);
    }
}

/* The published configurations that are next to the checkout; counts of their model cards and index files. */
TEST(counts_of_published_configs) {
    static const struct {
        const char *file;
        double parameters;
    } known[] = {{"data/configs/Qwen--Qwen3-0.6B_config.json", 596049920},
                 {"data/configs/Qwen--Qwen3-8B_config.json", 8190735360},
                 {"data/configs/google--gemma-2-2b-it_config.json", 2614341888},
                 {"data/configs/meta-llama--Meta-Llama-3.1-8B_config.json", 8030261248},
                 {"data/configs/mistralai--Mixtral-8x7B-v0.1_config.json", 46702792704}};
    char path[512];
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        PlanModel model;
        if (!shared_path(known[i].file, path, sizeof path)) skip();
        check_ok(plan_model_read(path, &model));
        assert_true(model.known);
        check_close(plan_parameters(&model), known[i].parameters, 0);
    }
}

/* DeepSeek-V3: 671 billion, of which a token meets 37; 61 layers, latent of 512 + 64. */
TEST(a_mixture_with_latent_attention) {
    char path[512];
    PlanModel model;
    if (!shared_path("data/configs/deepseek-ai--DeepSeek-V3_config.json", path, sizeof path)) skip();
    check_ok(plan_model_read(path, &model));
    check_close(plan_parameters(&model), 671.026e9, 1e6);
    check_close(plan_elements(&model) + plan_embedding(&model, WHOLE), 37.55e9, 0.1e9);
    assert_int_equal(plan_cache_kind(&model), CACHE_MLA);
    check_close(plan_cache_bytes(&model, CACHE_MLA, 2), 70272, 0);
}

TEST(cache_of_a_token) {
    PlanModel model = model_of(llama3_8b);
    check_close(plan_cache_bytes(&model, CACHE_MHA, 2), 524288, 0);
    check_close(plan_cache_bytes(&model, plan_cache_kind(&model), 2), 131072, 0);
    check_close(plan_cache_bytes(&model, CACHE_MQA, 2), 16384, 0);
}

TEST(parts_of_tensor_ranks) {
    PlanModel small = model_of(smollm2_135m), qwen = model_of(qwen25_05b), eight = model_of(llama3_8b), seventy = model_of(llama3_70b);
    check_close(rank_of(&small, 2, 0), 71698752, 0); /* heads 6 and 3 */
    check_close(rank_of(&small, 2, 1), 62851392, 0);
    for (int64_t r = 0; r < 3; r++) check_close(rank_of(&small, 3, r), 44861760, 0);
    for (int64_t r = 0; r < 2; r++) check_close(rank_of(&qwen, 2, r), 247038336, 0);
    for (int64_t r = 0; r < 4; r++) check_close(rank_of(&qwen, 4, r), r % 2 ? 123541888 : 126295936, 0); /* heads 4, 3, 4, 3 */
    static const double eights[] = {4015263744, 2007764992, 1004015616}, loras[] = {28311552, 21495808, 18087936};
    for (int k = 0; k < 3; k++) {
        check_close(rank_of(&eight, 2 << k, 0), eights[k], 0);
        check_close(lora_of(&eight, 2 << k, 0), loras[k], 0);
    }
    check_close(rank_of(&seventy, 8, 0), 8820367360, 0);
    check_close(rank_of(&seventy, 16, 0), 4494729216, 0);
}

/* The parts of all ranks are the whole, without the norms that each has. */
TEST(parts_add_up) {
    static const char *const configs[] = {smollm2_135m, qwen25_05b, llama3_8b};
    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        PlanModel model = model_of(configs[i]);
        double norms = (double)(model.hidden_size * (2 * model.num_hidden_layers + 1));
        for (int64_t t = 1; t <= model.num_key_value_heads; t++) {
            double sum = 0, o_bias = 0;
            for (int64_t r = 0; r < t; r++) sum += rank_of(&model, t, r);
            check_close(sum - (double)(t - 1) * (norms + o_bias), plan_parameters(&model), 0);
        }
    }
}

TEST(layouts_that_do_not_divide) {
    PlanModel small = model_of(smollm2_135m), qwen = model_of(qwen25_05b);
    check_status(plan_tensor_fits(&small, 4), ST_CONFIG);
    check_text("tensor 4: 9 heads with 3 key/value heads");
    check_contains(status_hint_text(), "1, 2, 3, 6, 9");
    check_ok(plan_tensor_fits(&qwen, 4));
    check_status(plan_tensor_fits(&qwen, 3), ST_CONFIG);
    check_status(plan_tensor_fits(&qwen, 0), ST_CONFIG);
}

TEST(work_of_a_step) {
    PlanModel qwen = model_of(qwen25_05b), eight = model_of(llama3_8b);
    check_close(plan_step_work(&qwen, 8, 512, 8798208), 8625581981696, 0);
    check_close(plan_step_work(&qwen, 8, 512, 0), 12455887503360, 0);
    check_close(plan_step_work(&eight, 1, 2048, 41943040), 65843727695872, 0);
    check_close(plan_step_work(&eight, 1, 2048, 0), 96067412557824, 0);
}

TEST(configs_that_are_refused) {
    static const struct {
        const char *config, *text;
    } bad[] = {
        {"[]", "not a JSON object"},
        {"{\"model_type\":\"llama\"}", "'hidden_size' is missing"},
        {"{\"hidden_size\":-4,\"num_hidden_layers\":1}", "'hidden_size' in 'test' is -4"},
        {"{\"hidden_size\":99999999999}", "99999999999"},
        {"{\"hidden_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":3,\"vocab_size\":9,\"intermediate_size\":8}",
         "not divisible by 3 heads"},
        {"{\"hidden_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":3,\"vocab_size\":9,\"intermediate_size\":8}",
         "4 heads in 'test' are not divisible by 3"},
        {"{\"model_type\":\"lfm2\",\"layer_types\":[\"conv\"]}", "layers of the kind 'conv'"},
        {"{\"model_type\":\"qwen3_next\",\"layer_types\":[\"linear_attention\"]}", "linear_attention"},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        PlanModel model;
        json_t *config = json_parse(bad[i].config, strlen(bad[i].config), 0, NULL);
        assert_non_null(config);
        check_status(plan_model_parse(config, "test", &model), ST_INPUT);
        check_text(bad[i].text);
        json_decref(config);
    }
    PlanModel model;
    check_status(plan_model_read("tests/plan/no-such-folder", &model), ST_INPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_of_known_models),          cmocka_unit_test(counts_of_published_configs),
        cmocka_unit_test(a_mixture_with_latent_attention), cmocka_unit_test(cache_of_a_token),
        cmocka_unit_test(parts_of_tensor_ranks),           cmocka_unit_test(parts_add_up),
        cmocka_unit_test(layouts_that_do_not_divide),      cmocka_unit_test(work_of_a_step),
        cmocka_unit_test(configs_that_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
