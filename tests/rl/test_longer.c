/* SPDX-License-Identifier: Apache-2.0 */
/* Runs resumed with another length: the same bytes as a run with that length from the start if the schedule allows it, else a report of what
 * differs. */
#include "lib/run/run_parts.h"
#include "rl/learn/learn.h"
#include "rl/offline/ilql.h"
#include "rl/pairs/preference.h"
#include "rl/pairs/reward_training.h"
#include "rl/text/text_rl.h"
#include "sft/sft.h"
#include "tests/support/check.h"
#include "tests/support/runs.h"

#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char tiny_config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 64, \"hidden_size\": 16, \"intermediate_size\": 32, "
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, "
    "\"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"bos_token_id\": 1, \"eos_token_id\": 2}";
static const char rows[] = "{\"input_ids\": [1, 5, 9, 7]}\n{\"input_ids\": [1, 6, 8, 7, 3]}\n{\"input_ids\": [1, 20, 30]}\n";
static const char pairs[] = "{\"prompt_ids\": [1, 5], \"chosen_ids\": [9, 2], \"rejected_ids\": [8, 2]}\n"
                            "{\"prompt_ids\": [1, 6], \"chosen_ids\": [7, 2], \"rejected_ids\": [9, 3, 2]}\n"
                            "{\"prompt_ids\": [1, 7], \"chosen_ids\": [30, 2], \"rejected_ids\": [20, 2]}\n";
static const char prompts[] = "{\"ids\": [1, 5]}\n{\"ids\": [1, 6, 8]}\n{\"ids\": [1, 7]}\n";
static const char rewarded[] = "{\"prompt_ids\": [1, 5], \"completion_ids\": [9, 2], \"reward\": 1}\n"
                               "{\"prompt_ids\": [1, 6], \"completion_ids\": [7, 2], \"reward\": 0}\n";

typedef enum Kind { SFT, REWARD, DPO, GRPO, ILQL, ENVIRONMENT } Kind;
static const struct {
    const char *rows, *settings;
} kinds[] = {
    [SFT] = {rows, "lora.rank=2\nlora.dropout=0.1\ntrain.neftune_alpha=5\ntrain.batch_size=2\ntrain.gradient_accumulation_steps=2"},
    [REWARD] = {pairs, "lora.rank=2\ntrain.batch_size=2"},
    [DPO] = {pairs, "rl.algorithm=dpo\nlora.rank=2\ntrain.batch_size=2"},
    [GRPO] = {prompts,
              "rl.algorithm=grpo\nlora.rank=2\nrl.num_generations=2\nrl.prompts_per_step=2\nrl.num_minibatches=2\ngenerate.max_new_tokens=4\n"
              "reward=[{type: length, target: 3}]"},
    [ILQL] = {rewarded, "rl.algorithm=ilql\nlora.rank=2\ntrain.batch_size=1"},
    [ENVIRONMENT] = {NULL, ""},
};

static Recipe *recipe_for(Kind kind, const char *name, const char *settings, const char *length) {
    const char *model = temp_file(test_folder, "model");
    Str text = {0};
    if (!dir_exists(model)) check_ok(model_write_random(model, tiny_config, DT_F32, 3, 0.1));
    str_printf(&text, "output=%s\n", temp_file(test_folder, name));
    if (kind != ENVIRONMENT) {
        char file[32];
        snprintf(file, sizeof file, "rows-%d.jsonl", (int)kind);
        str_printf(&text, "model.path=%s\nmodel.compute=f32\n", model);
        str_printf(&text, "data.train=%s\ntrain.learning_rate=1e-2\n", temp_text(test_folder, file, kinds[kind].rows));
    }
    str_printf(&text, "%s%s%s\n%s", kinds[kind].settings, *kinds[kind].settings ? "\n" : "", settings, length);
    Recipe *recipe = recipe_of_lines("%s", str_text(&text));
    str_release(&text);
    return recipe;
}

static Status longer_train(Kind kind, const Recipe *recipe, RunOptions options, bool *finished_before) {
    const TrainingConfig config = {.recipe = recipe, .runtime = runtime_of(recipe), .options = options};
    TrainResult result = {.numbers.n = 0};
    Status status = ST_OK;
    switch (kind) {
    case SFT: status = sft_run(&config, &result); break;
    case REWARD: status = reward_training_run(&config, &result); break;
    case DPO: status = preference_run(&config, &result); break;
    case GRPO: status = text_rl_run(&config, &(RewardOptions){0}, &result); break;
    case ILQL: status = ilql_run(&config, &result); break;
    case ENVIRONMENT: status = learn_run(&config, NULL, &result); break;
    }
    if (finished_before) *finished_before = result.already_finished;
    return status;
}

static Status longer_run(Kind kind, const char *name, const char *settings, const char *length, bool resume) {
    Recipe *recipe = recipe_for(kind, name, settings, length);
    Status status = longer_train(kind, recipe, (RunOptions){.resume = resume}, NULL);
    recipe_free(recipe);
    return status;
}

/* What extended.json says last: under `key`; borrowed from *json. */
static const json_t *said(const char *name, const char *key, json_t **json) {
    check_ok(json_read_file(temp_file(temp_file(test_folder, name), "extended.json"), json));
    const json_t *list = json_object_get(*json, "extensions");
    assert_true(json_array_size(list) > 0);
    return json_object_get(json_array_get(list, json_array_size(list) - 1), key);
}

static void check_said(const char *name, bool same, const char *part) {
    json_t *json;
    const json_t *is_same = said(name, "same", &json); /* json_is_true reads its argument twice */
    assert_int_equal(json_is_true(is_same), same);
    json_decref(json);
    check_contains(json_string_value(said(name, "text", &json)), part);
    json_decref(json);
}

static void check_same(const char *name, const char *reference, const char *result) {
    Str a = {0}, b = {0};
    check_same_file(test_folder, name, reference, result);
    metrics_text(temp_file(test_folder, reference), &a);
    metrics_text(temp_file(test_folder, name), &b);
    assert_string_equal(str_text(&b), str_text(&a));
    str_release(&a);
    str_release(&b);
}

static const char adapter[] = "adapter/adapter_model.safetensors", whole[] = "model/model.safetensors", policy[] = "policy.safetensors";

TEST(longer_runs_are_those_that_had_been_so_long) {
    static const struct {
        Kind kind;
        const char *settings, *first, *then, *result;
    } cases[] = {
        {SFT, "train.lr_scheduler=constant", "train.max_steps=4", "train.max_steps=7", adapter},
        {SFT, "train.lr_scheduler=constant\ntrain.warmup_steps=2\ntrain.optimizer=sgd", "train.epochs=2", "train.max_steps=5", adapter},
        {SFT, "train.lr_scheduler=inverse_sqrt\ntrain.warmup_steps=2", "train.max_steps=3", "train.max_steps=5", adapter},
        {SFT, "train.lr_scheduler=constant\nlora=null", "train.epochs=1", "train.epochs=3.5", whole},
        {SFT, "train.lr_scheduler=wsd\ntrain.lr_decay_steps=2\ntrain.save_every=3", "train.max_steps=5", "train.max_steps=8", adapter},
        {SFT, "train.lr_scheduler=constant\ndata.eval_split=0.4\ntrain.eval_every=3\ntrain.early_stopping=2", "train.max_steps=4",
         "train.max_steps=7", adapter},
        {SFT, "train.lr_scheduler=constant\ndata.eval_split=0.4\ntrain.eval_every=2\ntrain.early_stopping=1\ntrain.learning_rate=0.5",
         "train.max_steps=5", "train.max_steps=20", adapter},
        {REWARD, "train.lr_scheduler=constant", "train.max_steps=2", "train.max_steps=4", adapter},
        {DPO, "train.lr_scheduler=constant", "train.max_steps=1", "train.max_steps=4", adapter},
        {GRPO, "train.lr_scheduler=constant\ntrain.eval_every=3", "train.max_steps=2", "train.max_steps=4", adapter},
        {ILQL, "train.lr_scheduler=constant", "train.max_steps=2", "train.max_steps=4", adapter},
        {ENVIRONMENT, "rl.algorithm=q_learning\nrl.env=FrozenLake-v1\nrl.num_steps=16\nrl.epsilon_end=1", "rl.total_steps=300", "rl.total_steps=900",
         policy},
        {ENVIRONMENT, "rl.algorithm=a2c\nrl.env=CartPole-v1\nrl.num_steps=8\ntrain.lr_scheduler=constant", "rl.total_steps=100", "rl.total_steps=300",
         policy},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char name[32], reference[32];
        snprintf(name, sizeof name, "longer-%zu", i);
        snprintf(reference, sizeof reference, "reference-%zu", i);
        check_ok(longer_run(cases[i].kind, name, cases[i].settings, cases[i].first, false));
        check_ok(longer_run(cases[i].kind, name, cases[i].settings, cases[i].then, true));
        check_ok(longer_run(cases[i].kind, reference, cases[i].settings, cases[i].then, false));
        check_same(name, reference, cases[i].result);
        check_said(name, true, "has the same bytes as");
    }
    json_t *json;
    assert_int_equal(json_integer_value(said("longer-4", "from", &json)), 3); /* that of step 5 is in the decay */
    json_decref(json);
}

TEST(longer_runs_say_what_differs) {
    static const struct {
        Kind kind;
        const char *settings, *first, *then, *text;
    } cases[] = {
        {SFT, "train.lr_scheduler=linear", "train.max_steps=2", "train.max_steps=4",
         "'train.lr_scheduler: linear' over 2 steps differs from that over 4: in step 2 it was 0.005 and would have been 0.0075"},
        {SFT, "train.lr_scheduler=constant\ntrain.warmup_steps=0.5", "train.max_steps=4", "train.max_steps=8",
         "'train.lr_scheduler: constant' with a warmup that is a fraction of all steps over 4 steps differs from that over 8: in step 2 it was 0.005 and would "
         "have been 0.0025"},
        {SFT, "train.lr_scheduler=wsd\ntrain.lr_decay_steps=2", "train.max_steps=4", "train.max_steps=8",
         "continues from the checkpoint of step 4 until it has 8, and the result differs from that of a run with this length from the start"},
        {GRPO, "train.lr_scheduler=linear", "train.max_steps=1", "train.max_steps=2", "over 2 steps differs from that over 4: in step 2"},
        {ENVIRONMENT, "rl.algorithm=q_learning\nrl.env=FrozenLake-v1\nrl.num_steps=16", "rl.total_steps=300", "rl.total_steps=600",
         "'rl.epsilon_fraction' depends on the fraction of rl.total_steps that is done"},
        {ENVIRONMENT, "rl.algorithm=a2c\nrl.env=CartPole-v1\nrl.num_steps=8", "rl.total_steps=100", "rl.total_steps=300",
         "'train.lr_scheduler: cosine'"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char name[32];
        snprintf(name, sizeof name, "differs-%zu", i);
        check_ok(longer_run(cases[i].kind, name, cases[i].settings, cases[i].first, false));
        check_ok(longer_run(cases[i].kind, name, cases[i].settings, cases[i].then, true));
        check_said(name, false, cases[i].text);
    }
    double rates[8];
    assert_int_equal(metrics_read(temp_file(test_folder, "differs-0"), "learning_rate", rates, 8), 4);
    static const double want[] = {0.01, 0.005, 0.005, 0.0025}; /* 1 and 1/2 of the line over 2 steps, then 2/4 and 1/4 */
    check_close_f64("learning rates", rates, want, 4, 1e-15, 0);
}

TEST(lengths_that_cannot_be) {
    static const char constant[] = "train.lr_scheduler=constant";
    check_ok(longer_run(SFT, "short", constant, "train.max_steps=4", false));
    check_status(longer_run(SFT, "short", constant, "train.max_steps=3", true), ST_CONFIG);
    check_text("it has done 4 steps, more than the 3 asked for");
    check_status(longer_run(SFT, "short", "train.lr_scheduler=constant\ntrain.max_grad_norm=2", "train.max_steps=8", true), ST_CONFIG);
    check_text("'train.max_grad_norm' was 1, now it is 2");
    check_ok(longer_run(SFT, "gone", "train.lr_scheduler=constant\ntrain.save_last=false", "train.max_steps=2", false));
    check_status(longer_run(SFT, "gone", constant, "train.max_steps=3", true), ST_INPUT);
    check_text("it has no checkpoint in '");
    static const char stops[] =
        "train.lr_scheduler=constant\ndata.eval_split=0.4\ntrain.eval_every=1\ntrain.early_stopping=1\ntrain.learning_rate=0.5";
    check_ok(longer_run(SFT, "early", stops, "train.max_steps=20", false));
    check_status(longer_run(SFT, "early", stops, "train.max_steps=30", true), ST_CONFIG);
    check_text("stopped early after evaluations without improvement");
    static const char remembers[] = "rl.algorithm=dqn\nrl.env=CartPole-v1\nrl.num_steps=8\nrl.learning_starts=50";
    check_ok(longer_run(ENVIRONMENT, "replay", remembers, "rl.total_steps=100", false));
    check_status(longer_run(ENVIRONMENT, "replay", remembers, "rl.total_steps=200", true), ST_CONFIG);
    check_text("its replay has space for only 100 transitions");
}

/* A run killed between any two of its actions is resumed by the same command, to the same bytes. */
TEST(longer_runs_that_were_killed) {
    static const char constant[] = "train.lr_scheduler=constant\ntrain.save_every=2\ntrain.keep_checkpoints=9";
    check_ok(longer_run(SFT, "killed", constant, "train.max_steps=4", false));
    check_ok(longer_run(SFT, "undisturbed", constant, "train.max_steps=7", false));
    Str before = {0};
    check_ok(file_read(temp_file(temp_file(test_folder, "killed"), "recipe.yaml"), 1 << 20, &before));
    assert_int_equal(unlink(temp_file(temp_file(test_folder, "killed"), "finished.json")), 0); /* before its recipe is written */
    check_ok(longer_run(SFT, "killed", constant, "train.max_steps=7", true));
    check_same("killed", "undisturbed", adapter);
    const char *again = temp_file(test_folder, "killed");
    check_ok(dir_remove(temp_file(again, "checkpoints/step-6"))); /* before its first new checkpoint: that of step 4 is by the recipe before */
    check_ok(dir_remove(temp_file(again, "checkpoints/step-7")));
    assert_int_equal(unlink(temp_file(again, "finished.json")), 0);
    check_ok(longer_run(SFT, "killed", constant, "train.max_steps=7", true));
    check_same("killed", "undisturbed", adapter);
    Recipe *recipe = recipe_for(SFT, "killed", constant, "train.max_steps=7");
    bool finished = false;
    check_ok(longer_train(SFT, recipe, (RunOptions){.resume = true}, &finished));
    assert_true(finished);
    recipe_free(recipe);
    str_release(&before);
}

/* ---- a run that gives way ---- */

TEST(a_run_gives_way_but_not_while_it_trains) {
    Recipe *recipe = recipe_for(SFT, "taken", "", "train.max_steps=1");
    Run *run, *other;
    bool finished;
    check_ok(run_open(recipe, RUN_NEW, &run));
    check_status(run_check(recipe, RUN_REPLACE, &finished), ST_CONFIG);
    check_text("another process is training in");
    check_status(run_open(recipe, RUN_REPLACE, &other), ST_CONFIG);
    run_close(run);
    for (int n = 1; n <= 2; n++) {
        char mark[32];
        snprintf(mark, sizeof mark, "%d", n);
        check_ok(file_write_all(temp_file(temp_file(test_folder, "taken"), "mark"), mark, strlen(mark)));
        check_ok(run_open(recipe, RUN_REPLACE, &run));
        assert_false(file_exists(run_path(run, "mark")));
        assert_int_equal(run_step(run), -1);
        check_contains(run_backup_path(run), n == 1 ? "taken.1" : "taken.2");
        run_close(run);
    }
    for (int n = 1; n <= 2; n++) {
        char name[32];
        Str mark = {0};
        snprintf(name, sizeof name, "taken.%d", n);
        check_ok(file_read(temp_file(temp_file(test_folder, name), "mark"), 16, &mark));
        assert_int_equal(str_text(&mark)[0], '0' + n);
        str_release(&mark);
    }
    recipe_free(recipe);
}

int main(void) {
    omp_set_num_threads(1); /* next to nothing is computed; threads would wait for each other */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(longer_runs_are_those_that_had_been_so_long),
        cmocka_unit_test(longer_runs_say_what_differs),
        cmocka_unit_test(lengths_that_cannot_be),
        cmocka_unit_test(longer_runs_that_were_killed),
        cmocka_unit_test(a_run_gives_way_but_not_while_it_trains),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
