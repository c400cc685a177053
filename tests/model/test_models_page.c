/* SPDX-License-Identifier: Apache-2.0 */
/* docs/models.md: every family of models.def, its differences from llama, and what test_model.c, test_generate.c and test_golden_cli.c check of it.
 * With TUNE_UPDATE in the environment the page is written instead of compared. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/json.h"
#include "lib/model/family.h"

#define PAGE "docs/models.md"

typedef struct Entry {
    const char *model_type, *models, *beyond;
    const char *golden[3]; /* folders of ../shared/golden */
} Entry;

static const Entry entries[] = {
    {"llama", "Llama 2 and 3, SmolLM2, TinyLlama", "RoPE scaling: Llama 3.1, yarn, linear, dynamic", {"models/llama", "models/llama3-rope"}},
    {"mistral", "Mistral 7B", "a sliding window on every layer, or by `layer_types`", {"models/mistral"}},
    {"qwen2", "Qwen2, Qwen2.5", "biases on q, k and v", {"models/qwen2"}},
    {"qwen3", "Qwen3 dense", "norms over each query and key head", {"models/qwen3"}},
    {"gpt2", "GPT-2", "learned positions, layer norms, one projection for q, k and v", {"models/gpt2"}},
    {"gemma2", "Gemma 2", "norms 1 + w before and after each sublayer, soft caps, windows on every other layer", {"models/gemma2"}},
    {"gemma3_text",
     "Gemma 3 270M, 1B; the text part of 4B and up",
     "as Gemma 2 with q/k norms, without caps; another RoPE on window layers",
     {"models/gemma3"}},
    {"phi3", "Phi-3, Phi-4, Phi-4-mini", "`qkv_proj`, `gate_up_proj`; RoPE on a part of each head; longrope", {"models/phi3"}},
    {"smollm3", "SmolLM3", "every fourth layer without RoPE", {"models/smollm3"}},
    {"olmo2", "OLMo 2", "norms only after each sublayer, and over all queries and keys", {"models/olmo2"}},
    {"olmo3", "OLMo 3", "as OLMo 2 with windows; yarn on the other layers", {"families/olmo3"}},
    {"ministral3", "Ministral 3", "yarn, queries scaled by position", {"families/ministral3"}},
    {"granite", "Granite 3", "four multipliers", {"families/granite"}},
    {"granitemoehybrid",
     "Granite 4 350M, 1B, micro (dense)",
     "as Granite 3 with `shared_mlp.input_linear`; mamba and experts are refused",
     {"families/granitemoehybrid-dense"}},
    {"mixtral", "Mixtral 8x7B, 8x22B", "as Mistral with experts: the best of a softmax, whose weights sum to 1", {"models/mixtral"}},
    {"qwen3_moe", "Qwen3 30B-A3B, 235B-A22B", "as Qwen3 with experts, on all layers or by `mlp_only_layers`", {"models/qwen3_moe"}},
    {"glm4_moe",
     "GLM-4.5 to 4.7",
     "experts chosen by sigmoids with a bias, a shared expert, dense layers first; RoPE on half of each head",
     {"families/glm4_moe"}},
    {"gpt_oss", "gpt-oss 20B, 120B", "sinks, biases, windows on every other layer; experts with a clamped gate, also in MXFP4", {"families/gpt_oss"}},
    {"deepseek_v2", "DeepSeek V2, V2-Lite", "latent attention; experts in groups, shared experts, dense layers first", {"models/deepseek_v2"}},
    {"deepseek_v3", "DeepSeek V3, R1", "as V2, with experts chosen by sigmoids with a bias", {"models/deepseek_v3"}},
    {"glm4_moe_lite", "GLM-4.7-Flash", "as DeepSeek V3, with dense layers by `mlp_layer_types`", {"families/glm4_moe_lite"}},
    {"lfm2", "LFM2, LFM2.5 350M to 2.6B", "short convolutions on most layers, norms over each query and key head", {"families/lfm2"}},
    {"lfm2_moe", "LFM2 8B-A1B", "as LFM2 with experts chosen by sigmoids with a bias, dense layers first", {"families/lfm2_moe"}},
    {"glm4", "GLM-4 9B", "norms before and after each sublayer, `gate_up_proj`, RoPE on pairs of neighbours in half of each head", {"families/glm4"}},
};

static const char *const families[] = {
#define FAMILY(name) #name,
#include "lib/model/models.def"
#undef FAMILY
};

static const Entry *find_entry(const char *model_type) {
    for (size_t i = 0; i < COUNT_OF(entries); i++)
        if (strcmp(entries[i].model_type, model_type) == 0) return &entries[i];
    fail_msg("'%s' is in models.def and not in this test's table, which makes " PAGE, model_type);
    return NULL;
}

static bool read_expected(const char *folder, json_t **json) {
    char name[200], path[600];
    snprintf(name, sizeof name, "golden/%s/expected.json", folder);
    if (!shared_path(name, path, sizeof path)) return false;
    check_ok(json_read_file(path, json));
    return true;
}

static double models_page_number(const json_t *json, const char *key) { return json_number_value(json_object_get(json, key)); }

static bool figures(Str *page) {
    str_append(page,
               "\nThese are the models. The last column has the largest difference between transformers in f32 and in float64, for comparison.\n\n"
               "| model | weights | parameters | loss | norm of its gradient | difference of logits, of gradients |\n"
               "|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < COUNT_OF(families); i++) {
        const Entry *entry = find_entry(families[i]);
        for (size_t g = 0; g < COUNT_OF(entry->golden) && entry->golden[g]; g++) {
            json_t *json;
            if (!read_expected(entry->golden[g], &json)) return false;
            const json_t *library = json_object_get(json, "transformers_float32");
            str_printf(page, "| %s | %s | %.0f | %.6f | %.4f | %.1e, %.1e |\n", strchr(entry->golden[g], '/') + 1,
                       json_string_value(json_object_get(json, "weights_dtype")), models_page_number(json, "n_parameters"),
                       models_page_number(json, "loss"), models_page_number(json, "grad_norm"), models_page_number(library, "max_abs_diff_logits"),
                       models_page_number(library, "max_abs_diff_grads"));
            json_decref(json);
        }
    }
    return true;
}

/* Bytes that the cache takes for a token in bf16: with a key and a value for each head, with one for all heads, and as the model has it. */
static bool cache_bytes(Str *page) {
    static const struct {
        const char *file, *name;
    } models[] = {
        {"Qwen--Qwen3-0.6B", "Qwen3 0.6B"},
        {"Qwen--Qwen3-8B", "Qwen3 8B"},
        {"meta-llama--Meta-Llama-3.1-8B", "Llama 3.1 8B"},
        {"google--gemma-2-2b-it", "Gemma 2 2B"},
        {"mistralai--Mixtral-8x7B-v0.1", "Mixtral 8x7B"},
        {"deepseek-ai--DeepSeek-V3", "DeepSeek V3"},
    };
    str_append(
        page,
        "\n## Bytes of the cache for a token\n\n"
        "In bf16, over all layers. MHA: keys and values of every head. MQA: those of one head for all. GQA: those of the model's key/value heads.\n"
        "MLA: a latent vector and one rotated key. What the model has is marked with a star; a window is not counted.\n\n"
        "| model | layers | heads | MHA | MQA | GQA | MLA |\n|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        char name[200], path[600];
        json_t *json;
        ModelConfig c;
        snprintf(name, sizeof name, "data/configs/%s_config.json", models[i].file);
        if (!shared_path(name, path, sizeof path)) return false;
        Arena *arena = arena_new(0);
        check_ok(json_read_file(path, &json));
        check_ok(model_config_parse(json, path, arena, &c));
        const LatentConfig *l = &c.latent;
        int64_t head = l->kv_rank ? l->nope + l->rope + l->v : 2 * c.head_dim, unit = 2 * c.num_hidden_layers;
        str_printf(page, "| %s | %lld | %lld | %lld | %lld | ", models[i].name, (long long)c.num_hidden_layers, (long long)c.num_attention_heads,
                   (long long)(unit * c.num_attention_heads * head), (long long)(unit * head));
        if (l->kv_rank)
            str_printf(page, "- | %lld * |\n", (long long)(unit * (l->kv_rank + l->rope)));
        else
            str_printf(page, "%lld * | - |\n", (long long)(unit * c.num_key_value_heads * head));
        json_decref(json);
        arena_free(arena);
    }
    return true;
}

static bool write_page(Str *page) {
    str_append(
        page,
        "# Models\n\n`tune inspect DIR` shows whether a model can be read:\n\n"
        "    $ ./tune inspect recipes/demo/model\n"
        "    llama: 4 layers, width 64, 4 heads of 16 (4 for keys and values), feed-forward 176, vocabulary 258, head tied to the embedding\n"
        "    256 positions, tokenizer: yes\n    ...\n\n"
        "`config.json` of transformers 4 and 5 is read. If a field changes the mathematics and is not supported, it is an error that names the\n"
        "field. An unknown kind of RoPE or of layer is an error too.\n\n"
        "| `model_type` | models | differences from llama |\n|---|---|---|\n");
    for (size_t i = 0; i < COUNT_OF(families); i++) {
        const Entry *entry = find_entry(families[i]);
        str_printf(page, "| `%s` | %s | %s |\n", entry->model_type, entry->models, entry->beyond);
    }
    str_append(
        page,
        "\n## What is checked\n\nSmall random models of each family are compared with transformers in float64:\n\n"
        "- logits of two sequences within 5e-5 in f32 (1e-6 in f64), and the residual stream after every layer,\n"
        "- log-probabilities of all next tokens within 5e-5 (1e-9), the loss within 1e-5 (1e-10),\n"
        "- the gradient of every parameter within 2e-5 (1e-7), with each kind of checkpointing,\n"
        "- twelve greedy tokens and their log-probabilities, with the key/value cache,\n"
        "- `config.json` of transformers 4 and 5, if both exist for the family.\n\n"
        "These properties are checked too: gradients against finite differences, sampled log-probabilities equal to scored ones to the bit in f32\n"
        "and bf16 (with latent attention only to 5e-5, since a cache has other products), several answers with one shared prompt equal to separate\n"
        "rows, and memory within 5 % of the plan.\n\n"
        "## Notes\n\n"
        "- LoRA uses the names of the family's projections: `qkv_proj` and `gate_up_proj` in families that have them. Experts and routers get an\n"
        "  adapter only where they are named: [experts](experts.md).\n"
        "- `hidden_act: sigmoid` is GLU as first published (arXiv 1612.08083): sigmoid(gate) x up, with biases if `mlp_bias` is set.\n"
        "- Gemma's embeddings are scaled by sqrt(hidden_size). With `compute: bf16` the factor is rounded to bf16, as in transformers.\n"
        "- longrope has one list of factors for sequences within `original_max_position_embeddings` and one for longer ones. An answer that grows\n"
        "  beyond this limit is computed again. Answers to one prompt that are trained together use the list of the longest one.\n"
        "- This page is generated by `tests/model/test_models_page.c`, which fails if the page is out of date. `TUNE_UPDATE=1` writes it.\n");
    return figures(page) && cache_bytes(page);
}

TEST(the_page_of_models_is_up_to_date) {
    Str page = {0}, have = {0};
    if (!write_page(&page)) skip();
    if (getenv("TUNE_UPDATE")) check_ok(file_write_all(PAGE, page.data, page.len));
    check_ok(file_read(PAGE, 1 << 20, &have));
    if (strcmp(str_text(&page), str_text(&have)) != 0) fail_msg(PAGE " is out of date: TUNE_UPDATE=1 make test T=test_models_page writes it");
    str_release(&page);
    str_release(&have);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_page_of_models_is_up_to_date)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
