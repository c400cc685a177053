/* SPDX-License-Identifier: Apache-2.0 */
/* Recipes: reading, overriding, refusing, and writing them back. */
#include "lib/recipe/keys.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>

static const char small[] = "output: runs/a\n"
                            "model: {path: base}\n"
                            "lora:\n"
                            "  rank: 8\n"
                            "  target_modules: [q_proj, v_proj]\n"
                            "  rank_pattern: {down_proj: 4}\n"
                            "data:\n"
                            "  train:\n"
                            "    - {path: 'a, b.jsonl', max_rows: 7}\n"
                            "train:\n"
                            "  learning_rate: 3e-4\n"
                            "  max_steps: null\n";

static Recipe *read_small(const char *const *overrides, size_t n) {
    Recipe *recipe;
    check_ok(recipe_read(temp_text(test_folder, "small.yaml", small), overrides, n, &recipe));
    return recipe;
}

TEST(values_defaults_and_lines) {
    Recipe *recipe = read_small(NULL, 0);
    assert_string_equal(recipe->output, "runs/a");
    assert_int_equal(recipe->seed, 42);
    assert_int_equal(recipe->lora_rank, 8);
    assert_true(recipe->lora_alpha == 32);
    assert_int_equal(recipe->lora_target_modules.n, 2);
    assert_string_equal(recipe->lora_target_modules.items[1], "v_proj");
    assert_string_equal(recipe->lora_rank_pattern.keys[0], "down_proj");
    assert_true(recipe->lora_rank_pattern.values[0] == 4);
    assert_true(recipe->train_learning_rate == 3e-4);
    assert_int_equal(recipe->train_max_steps, -1);
    assert_int_equal(recipe->train_batch_tokens, -1);
    assert_true(recipe->train_betas.items[1] == 0.999);
    assert_null(recipe->model_adapter);
    assert_true(recipe->has_model && recipe->has_lora && recipe->has_data && recipe->has_train);
    assert_false(recipe->has_eval || recipe->has_generate);
    assert_true(recipe_given(recipe, "lora.rank"));
    assert_false(recipe_given(recipe, "lora.alpha"));
    assert_int_equal(recipe_line(recipe, "lora.rank"), 4);
    recipe_free(recipe);
}

TEST(overrides_win) {
    const char *overrides[] = {"lora.rank=16", "data.train=x.jsonl", "lora.target_modules=all-linear", "train.betas=[0.8, 0.9]",
                               "seed=7",       "train.max_steps=3"};
    Recipe *recipe = read_small(overrides, COUNT_OF(overrides));
    assert_int_equal(recipe->lora_rank, 16);
    assert_int_equal(recipe_line(recipe, "lora.rank"), 0);
    assert_string_equal(recipe->data_train->text, "x.jsonl");
    assert_string_equal(recipe->lora_target_modules.items[0], "all-linear");
    assert_true(recipe->train_betas.items[0] == 0.8);
    assert_int_equal(recipe->seed, 7);
    assert_int_equal(recipe->train_max_steps, 3);
    recipe_free(recipe);
    const char *off[] = {"lora=null"}, *on[] = {"lora=null", "lora.rank=2"};
    recipe = read_small(off, 1);
    assert_false(recipe->has_lora);
    recipe_free(recipe);
    recipe = read_small(on, 2);
    assert_true(recipe->has_lora && recipe->lora_rank == 2);
    recipe_free(recipe);
}

TEST(overrides_take_texts_as_they_stand) {
    const char *overrides[] = {"output= runs/my run #2/x \r",
                               "data.train=a #1.jsonl",
                               "data.system=You: answer",
                               "model.path=*model",
                               "model.adapter=null",
                               "data.cache='~'",
                               "generate.stop=a: b",
                               "rl.env=- a\n- b",
                               "data.eval=[a.jsonl, b.jsonl]",
                               "model.chat_template=\"a\\tb\"",
                               "synth.system=# now"};
    Recipe *recipe = read_small(overrides, COUNT_OF(overrides)), *again;
    assert_string_equal(recipe->output, "runs/my run #2/x");
    assert_string_equal(recipe->data_train->text, "a #1.jsonl");
    assert_string_equal(recipe->data_system, "You: answer");
    assert_string_equal(recipe->model_path, "*model");
    assert_null(recipe->model_adapter);
    assert_string_equal(recipe->data_cache, "~");
    assert_int_equal(recipe->generate_stop.n, 1);
    assert_string_equal(recipe->generate_stop.items[0], "a: b");
    assert_int_equal(recipe->rl_env->kind, YAML_LIST);
    assert_int_equal(recipe->data_eval->n, 2);
    assert_string_equal(recipe->model_chat_template, "a\tb");
    assert_string_equal(recipe->synth_system, "# now");
    Str text = {0};
    recipe_write_yaml(recipe, &text);
    check_ok(recipe_read(temp_text(test_folder, "again.yaml", str_text(&text)), NULL, 0, &again));
    assert_string_equal(again->output, recipe->output);
    assert_string_equal(again->data_train->text, recipe->data_train->text);
    str_release(&text);
    recipe_free(again);
    recipe_free(recipe);
    const char *several[] = {"data.train=*.jsonl", "output=a: b"}, *broken[] = {"data.train=[a", "output='a"};
    check_ok(recipe_read(NULL, several, 2, &recipe));
    assert_string_equal(recipe->data_train->text, "*.jsonl");
    assert_string_equal(recipe->output, "a: b");
    recipe_free(recipe);
    check_status(recipe_read(NULL, broken, 1, &recipe), ST_CONFIG);
    check_status(recipe_read(NULL, broken + 1, 1, &recipe), ST_CONFIG);
}

/* Every fault of a recipe: its text or override, and what the message and the hint must hold. */
TEST(faults_are_named) {
    static const struct {
        const char *text, *override, *message, *hint;
    } faults[] = {
        {"lora:\n  rnak: 8\n", NULL, "unknown key 'lora.rnak' in '", "did you mean 'lora.rank'?"},
        {"lora:\n  rnak: 8\n", NULL, "recipe.yaml' line 2", ""},
        {"lrning_rate: 1\n", NULL, "unknown key 'lrning_rate'", ""},
        {"learning_rate: 1\n", NULL, "unknown key 'learning_rate'", "did you mean 'train.learning_rate'?"},
        {"train:\n  rank: 1\n", NULL, "unknown key 'train.rank'", "did you mean 'lora.rank'?"},
        {"trian:\n  epochs: 1\n", NULL, "unknown key 'trian'", "did you mean 'train'?"},
        {"lora:\n  rank: big\n", NULL, "wrong value 'big' for 'lora.rank' in '", ""},
        {"lora:\n  rank: big\n", NULL, "line 2: expected a whole number from 1 to 65536", ""},
        {"lora:\n  rank: 0\n", NULL, "expected a whole number from 1 to 65536", ""},
        {"lora:\n  rank: 1.5\n", NULL, "expected a whole number", ""},
        {"lora:\n  rank: '8'\n", NULL, "expected a whole number", ""},
        {"lora:\n  dropout: 1\n", NULL, "expected a number from 0 to 0.999", ""},
        {"lora:\n  dropout: null\n", NULL, "wrong value null for 'lora.dropout'", ""},
        {"lora:\n  rank: [8]\n", NULL, "wrong value a list for 'lora.rank'", ""},
        {"lora:\n  use_rslora: maybe\n", NULL, "expected true or false", ""},
        {"lora: 5\n", NULL, "wrong value for section 'lora'", ""},
        {"lora:\n  rank: 8\n  rank: 9\n", NULL, "key 'rank' is already on line 2", ""},
        {"data:\n  truncation: cut\n", NULL, "wrong value 'cut' for 'data.truncation'", "error, drop, keep_start, keep_end"},
        {"model:\n  quantize: nf5\n", NULL, "not one of none, nf4, fp4, int8, q8_0", "did you mean 'nf4'?"},
        {"model:\n  quantize_block: 16\n", NULL, "expected a whole number from 32 to 4096", ""},
        {"lora:\n  init: pissa\n", NULL, "line 2: not one of default, gaussian", ""},
        {"train:\n  neftune_alpha: -5\n", NULL, "wrong value '-5' for 'train.neftune_alpha'", ""},
        {"train:\n  optimizer: lion\n", NULL, "wrong value 'lion' for 'train.optimizer'", "the values that work are adamw, sgd"},
        {"train:\n  no_decay: [nrom]\n", NULL, "wrong value 'nrom' for 'train.no_decay'", "did you mean 'norm'?"},
        {"train:\n  betas: [0.9]\n", NULL, "'train.betas'", ""},
        {"train:\n  betas: [0.9, 2]\n", NULL, "expected a number from 0 to 1", ""},
        {"eval:\n  metrics: [loss, accuracy]\n", NULL, "not one of loss, perplexity", ""},
        {"eval:\n  generate: {top_k: 5}\n", NULL, "wrong value a map of keys for 'eval.generate'", ""},
        {"synth:\n  seedz: x\n", NULL, "unknown key 'synth.seedz'", "did you mean 'synth.seeds'?"},
        {"synth:\n  preset: fewshot\n", NULL, "wrong value 'fewshot' for 'synth.preset'", "few_shot"},
        {"data:\n  eval: a\neval:\n  data: b\n", NULL, "both given", ""},
        {"data:\n  eval: a\n  eval_split: 0.1\n", NULL, "both given", ""},
        {"train:\n  early_stopping: 2\n", NULL, "needs evaluation rows", ""},
        {"train:\n  loss: dft\n  label_smoothing: 0.1\n", NULL, "does not work with 'train.label_smoothing'", ""},
        {"seed: 1\n", "lora.rnak=3", "unknown key 'lora.rnak' on the command line", "did you mean 'lora.rank'?"},
        {"seed: 1\n", "lroa.rank=3", "unknown key 'lroa.rank'", "did you mean 'lora.rank'?"},
        {"seed: 1\n", "lora.rank=x", "wrong value 'x' for 'lora.rank' on the command line", ""},
        {"seed: 1\n", "synth.examples=x", "wrong value 'x' for 'synth.examples' on the command line", ""},
        {"- a\n", NULL, "has no keys", ""},
        {"seed: [\n", NULL, "cannot parse", ""},
    };
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        Recipe *recipe;
        const char *path = temp_text(test_folder, "recipe.yaml", faults[i].text);
        check_status(recipe_read(path, &faults[i].override, faults[i].override ? 1 : 0, &recipe), ST_CONFIG);
        assert_null(recipe);
        check_text(faults[i].message);
        check_contains(status_hint_text(), faults[i].hint);
    }
    Recipe *recipe;
    const char *words[] = {"lora.rank"};
    check_status(recipe_read(NULL, words, 1, &recipe), ST_USAGE);
    check_status(recipe_read(temp_file(test_folder, "missing.yaml"), NULL, 0, &recipe), ST_CONFIG);
}

TEST(defaults_that_come_later_are_accepted) {
    static const char text[] =
        "model: {quantize: none, chat_template: null}\nlora: {use_dora: no, init: default}\ndata: {system: null, cache: null}\n"
        "train: {neftune_alpha: 0.0}\neval: {metrics: loss, generate: null}\n";
    Recipe *recipe;
    check_ok(recipe_read(temp_text(test_folder, "later.yaml", text), NULL, 0, &recipe));
    assert_int_equal(recipe->eval_metrics.n, 1);
    recipe_free(recipe);
}

TEST(resolved_recipe_reads_back_the_same) {
    const char *overrides[] = {"train.learning_rate=0.1", "data.eval=['5', yes.jsonl, 'no']", "output='true'", "generate.stop=['a: b', \"\\n\"]"};
    Recipe *recipe = read_small(overrides, COUNT_OF(overrides)), *again;
    recipe->program = "tune 1";
    Str first = {0}, second = {0};
    recipe_write_yaml(recipe, &first);
    check_contains(str_text(&first), "# tune 1\n");
    check_ok(recipe_read(temp_text(test_folder, "resolved.yaml", str_text(&first)), NULL, 0, &again));
    again->program = "tune 1";
    recipe_write_yaml(again, &second);
    assert_string_equal(str_text(&first), str_text(&second));
    assert_string_equal(again->data_train->items[0]->items[0]->text, "a, b.jsonl");
    assert_string_equal(again->generate_stop.items[1], "\n");
    const char *a, *b;
    assert_null(recipe_difference(recipe, again, &a, &b));
    again->train_learning_rate = 0.2;
    again->train_log_every = 9;
    assert_string_equal(recipe_difference(recipe, again, &a, &b), "train.learning_rate");
    assert_string_equal(a, "0.1");
    assert_string_equal(b, "0.2");
    again->has_lora = false;
    assert_string_equal(recipe_difference(recipe, again, &a, &b), "lora");
    str_release(&first);
    str_release(&second);
    recipe_free(recipe);
    recipe_free(again);
}

/* A run without a `data` section keeps its date on resume, too. */
TEST(a_run_keeps_its_day) {
    char own[64], output[600]; /* other tests leave recipes in test_folder that cannot be read */
    temp_dir_make(own, sizeof own);
    snprintf(output, sizeof output, "output=%s", own);
    const char *overrides[] = {output}, *day;
    Recipe *recipe;
    Str text = {0};
    check_ok(recipe_read(NULL, overrides, 1, &recipe));
    check_ok(recipe_day(recipe, true, &day));
    assert_int_equal(strlen(day), strlen("2001-02-03"));
    Recipe dated = recipe_dated(recipe, "2001-02-03");
    assert_null(recipe->data_now);
    recipe_write_yaml(&dated, &text);
    temp_text(own, "recipe.yaml", str_text(&text));
    check_ok(recipe_day(recipe, false, &day));
    assert_string_not_equal(day, "2001-02-03");
    check_ok(recipe_day(recipe, true, &day));
    assert_string_equal(day, "2001-02-03");
    str_release(&text);
    recipe_free(recipe);
    temp_dir_remove(own);
}

enum {
    N_CHOICES = 0
#define CHOICES(field)
#define CHOICE(constant, text) +1
#define CHOICES_END(field)
#include "lib/recipe/choices.def"
};

/* Each word of a choice is read as its constant, and written as it was read. */
TEST(choices_are_constants) {
    size_t n = 0;
    for (size_t i = 0; i < n_recipe_keys; i++) {
        const Key *key = &recipe_keys[i];
        const char *choices = key->choices;
        if (key->type != KEY_CHOICE) continue;
        int constant = 0;
        for (Slice word; choice_next(&choices, &word); constant++, n++) {
            char override[128], line[128], quoted[128];
            Recipe *recipe;
            Str yaml = {0};
            snprintf(override, sizeof override, "%s=%.*s", key->dotted, (int)word.len, word.data);
            snprintf(line, sizeof line, "  %s: %.*s\n", key->name, (int)word.len, word.data);
            snprintf(quoted, sizeof quoted, "  %s: \"%.*s\"\n", key->name, (int)word.len, word.data); /* off is no text in YAML 1.1 */
            check_ok(recipe_read(NULL, (const char *[]){override}, 1, &recipe));
            assert_int_equal(*(const int *)key_field(recipe, key), constant);
            recipe_write_yaml(recipe, &yaml);
            assert_true(strstr(str_text(&yaml), line) || strstr(str_text(&yaml), quoted));
            str_release(&yaml);
            recipe_free(recipe);
        }
        assert_true(constant > 0);
    }
    assert_int_equal(n, N_CHOICES);
    Recipe *recipe;
    check_ok(recipe_read(NULL, (const char *[]){"rl.kl=k2", "rl.kl_in=reward"}, 2, &recipe));
    assert_true(recipe->rl_kl == RL_KL_K2 && recipe->rl_kl_in == RL_KL_IN_REWARD && recipe->rl_scale_rewards == RL_SCALE_REWARDS_AUTO);
    assert_string_equal(rl_kl_text(recipe->rl_kl), "k2");
    assert_string_equal(rl_scale_rewards_text(recipe->rl_scale_rewards), "null");
    recipe_free(recipe);
    check_status(recipe_read(NULL, (const char *[]){"rl.kl=null"}, 1, &recipe), ST_CONFIG);
    check_status(recipe_read(NULL, (const char *[]){"rl.kl=[k1]"}, 1, &recipe), ST_CONFIG);
    check_status(recipe_read(NULL, (const char *[]){"rl.kl_in=both"}, 1, &recipe), ST_CONFIG);
}

TEST(schema_and_help_hold_every_key) {
    Str schema = {0}, help = {0};
    recipe_write_schema(&schema);
    json_t *root;
    check_ok(json_read_text(str_text(&schema), schema.len, "schema", &root));
    json_t *properties = json_object_get(root, "properties");
    assert_non_null(json_object_get(properties, "seed"));
#define TOP_KEY(name, ...) assert_non_null(key_find(#name));
#define KEY(section, name, ...)                    \
    assert_non_null(key_find(#section "." #name)); \
    assert_non_null(json_object_get(json_object_get(json_object_get(properties, #section), "properties"), #name));
#include "lib/recipe/config.def"
#undef KEY
#undef TOP_KEY
    assert_null(json_object_get(json_object_get(json_object_get(json_object_get(properties, "lora"), "properties"), "use_dora"), "enum"));
    key_describe(key_find("model.compute"), &help);
    assert_string_equal(str_text(&help), "precision of matrix products; auto: bf16 if the processor supports it: auto | f32 | bf16");
    str_clear(&help);
    key_describe(key_find("lora.dropout"), &help);
    assert_string_equal(str_text(&help), "fraction of the adapter's inputs set to zero during training (0 to 0.999)");
    json_decref(root);
    str_release(&schema);
    str_release(&help);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_defaults_and_lines),
        cmocka_unit_test(overrides_win),
        cmocka_unit_test(overrides_take_texts_as_they_stand),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(defaults_that_come_later_are_accepted),
        cmocka_unit_test(resolved_recipe_reads_back_the_same),
        cmocka_unit_test(a_run_keeps_its_day),
        cmocka_unit_test(choices_are_constants),
        cmocka_unit_test(schema_and_help_hold_every_key),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
