/* SPDX-License-Identifier: Apache-2.0 */
/* Episodes of several turns: which tokens are trained and what they were sampled from, rewards, ends, templates, resume, learning, and programs that
 * misbehave. The program is this test itself, called with --play and how it behaves. */
#include "lib/base/log.h"
#include "lib/base/system.h"
#include "data/formats/conversation.h"
#include "lib/train/trained_model.h"
#include "rl/core/returns.h"
#include "rl/text/text_rl.h"
#include "rl/text/turns.h"
#include "tests/support/check.h"
#include "tests/support/runs.h"

#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the other side: asks for the reverse of a word, three times ---- */

enum { COPIES = 64, LONGEST = 3 };
typedef struct Play {
    const char *how, *file;
    int copies, turns[COPIES];
    long long seeds[COPIES];
} Play;

static bool turns_is(const Play *play, const char *how) { return strcmp(play->how, how) == 0; }

static void say_observation(const Play *play, int copy) {
    static const char *const words[] = {"'no'", "'pirate'", "'at'", "'lip'"};
    const char *word = words[(play->seeds[copy] + play->turns[copy] + (turns_is(play, "moody") ? copy : 0)) % 4];
    if (turns_is(play, "messages"))
        printf("%s{\"role\": \"%s\", \"content\": \"< %s =\"}%s", play->turns[copy] ? "" : "[{\"role\": \"system\", \"content\": \"be short\"}, ",
               play->turns[copy] % 2 ? "tool" : "user", word, play->turns[copy] ? "" : "]");
    else
        printf("\"%s< %s =\"", play->turns[copy] ? "\\n" : "", word);
}

static void say_reset(Play *play, const json_t *pairs) {
    size_t i;
    json_t *pair;
    printf("{\"observations\": [");
    json_array_foreach(pairs, i, pair) {
        int copy = (int)json_integer_value(json_array_get(pair, 0));
        play->turns[copy] = 0;
        play->seeds[copy] = json_integer_value(json_array_get(pair, 1));
        if (i) printf(", ");
        say_observation(play, copy);
    }
    printf("]}\n");
}

/* Whether a copy acts while another one, whose episode goes on, has not spoken yet. */
static bool goes_ahead(const Play *play, const json_t *actions) {
    bool acts = false, rests = false;
    for (int c = 0; c < play->copies; c++) {
        bool rest = json_is_null(json_array_get(actions, (size_t)c));
        acts |= !rest;
        rests |= rest && play->turns[c] < LONGEST - (int)(play->seeds[c] % 2);
    }
    return acts && rests;
}

/* Rewards: 'o' in the action; "counts": 1, 10, 100. Odd seeds last one turn less. */
static void say_step(Play *play, const json_t *actions) {
    static const int powers[] = {1, 10, 100};
    if (turns_is(play, "slow")) usleep(20000);
    if (turns_is(play, "slow") && goes_ahead(play, actions)) check_ok(file_write_all(play->file, "", 0));
    printf("{\"observations\": [");
    for (int c = 0; c < play->copies; c++) {
        bool rests = json_is_null(json_array_get(actions, (size_t)c));
        if (c) printf(", ");
        play->turns[c] += !rests;
        if (rests || play->turns[c] >= LONGEST)
            printf("null");
        else
            say_observation(play, c);
    }
    printf("], \"rewards\": [");
    for (int c = 0; c < play->copies; c++) {
        const char *said = json_string_value(json_array_get(actions, (size_t)c));
        printf("%s%d", c ? ", " : "", !said ? 0 : turns_is(play, "counts") ? powers[play->turns[c] - 1] : strchr(said, 'o') != NULL);
    }
    for (int flag = 0; flag < 2; flag++) {
        printf("], \"%s\": [", flag ? "truncated" : "terminated");
        for (int c = 0; c < play->copies; c++)
            printf("%s%s", c ? ", " : "",
                   !flag && !turns_is(play, "endless") && play->turns[c] >= LONGEST - (int)(play->seeds[c] % 2) ? "true" : "false");
    }
    printf("]}\n");
}

/* What it does instead of a second step. */
static bool misbehaves(const Play *play) {
    static const struct {
        const char *how, *answer;
    } wrong[] = {
        {"chats", "step done!"},
        {"short", "{\"observations\": [\"a\"], \"rewards\": [0], \"terminated\": [false], \"truncated\": [false]}"},
        {"numbers", "{\"observations\": [1, 2], \"rewards\": [0, 0], \"terminated\": [false, false], \"truncated\": [false, false]}"},
        {"rewardless", "{\"observations\": [\"a\", \"b\"], \"rewards\": [0, null], \"terminated\": [false, false], \"truncated\": [false, false]}"},
        {"flags", "{\"observations\": [\"a\", \"b\"], \"rewards\": [0, 0], \"terminated\": [0, 0], \"truncated\": [false, false]}"},
        {"error", "{\"error\": \"no more words\"}"},
    };
    if (play->turns[0] < 1) return false;
    if (turns_is(play, "dies") || (turns_is(play, "dies once") && !file_exists(play->file))) {
        check_ok(file_write_all(play->file, "", 0));
        fprintf(stderr, "out of words\n");
        exit(7);
    }
    if (turns_is(play, "hangs")) sleep(100);
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        if (turns_is(play, wrong[i].how)) {
            printf("%s\n", wrong[i].answer);
            return true;
        }
    return false;
}

static int turns_play(const char *how, const char *file) {
    Play play = {.how = how, .file = file};
    static char line[1 << 16];
    while (fgets(line, sizeof line, stdin)) {
        json_t *request = json_loads(line, JSON_ALLOW_NUL, NULL), *part; /* policies say anything */
        ASSERT(request, "no JSON: %s", line);
        if ((part = json_object_get(request, "open"))) {
            play.copies = (int)json_integer_value(json_object_get(part, "copies"));
            ASSERT(play.copies <= COPIES, "%d copies", play.copies);
            printf(turns_is(&play, "cart") ? "{\"action\": {\"n\": 2}, \"observation\": {\"n\": 4}}\n"
                                           : "{\"id\": \"Words\", \"action\": \"text\", \"observation\": \"text\"}\n");
        }
        if ((part = json_object_get(request, "reset"))) say_reset(&play, part);
        if ((part = json_object_get(request, "step")) && !misbehaves(&play)) say_step(&play, part);
        bool closes = json_object_get(request, "close");
        json_decref(request);
        fflush(stdout);
        if (closes) return 0;
    }
    return 0;
}

/* ---- this side ---- */

static const char *self;
static char folder[256];
static int warnings;

static void on_message(void *context, LogLevel level, const char *text) {
    (void)context, (void)text;
    warnings += level == LOG_WARNING;
}

static int turns_before(void **state) {
    (void)state;
    temp_dir_make(folder, sizeof folder);
    warnings = 0;
    return 0;
}

static int turns_after(void **state) {
    (void)state;
    temp_dir_remove(folder);
    return 0;
}

/* The recipe of a run: the common settings, then `lines`, one setting a line. */
static Recipe *recipe_of(const char *name, const char *how, const char *lines) {
    return recipe_of_lines(
        "model.path=recipes/demo/model\nmodel.compute=f32\nlora.rank=4\noutput=%s/%s\nrl.env={command: [%s, --play, '%s', %s], text: true, timeout: 20}\nrl.prompts_per_step=2\nrl.num_generations=3\n"
        "generate.max_new_tokens=8\ngenerate.temperature=2\ntrain.learning_rate=0.003\ntrain.max_steps=4\nrl.samples_every=1\n%s",
        folder, name, self, how, temp_file(folder, "mark"), lines);
}

/* One call of turns_sample, with all that it needs. */
typedef struct Table {
    Recipe *recipe;
    Model *model;
    Tokenizer *tokenizer;
    Chat *chat;
    Turns turns;
    Experience experience;
    GenerateConfig config;
} Table;

static Status sit_down(Table *table, const char *how, const char *lines, const char *template) {
    *table = (Table){.recipe = recipe_of("table", how, lines)};
    const Recipe *r = table->recipe;
    check_ok(trained_model_open(r, runtime_of(r), &table->model));
    check_ok(tokenizer_load(r->model_path, &table->tokenizer));
    check_ok(chat_open(r->model_path, NULL, template, NULL, table->tokenizer, &table->chat));
    table->config = (GenerateConfig){.sample = {.temperature = r->generate_temperature, .top_p = 1, .typical_p = 1, .repetition_penalty = 1},
                                     .max_new_tokens = r->generate_max_new_tokens,
                                     .n = r->rl_num_generations,
                                     .seed = 5};
    table->turns = (Turns){.recipe = r, .model = table->model, .tokenizer = table->tokenizer, .chat = table->chat, .gamma = r->rl_gamma};
    TRY(text_env_open(r->rl_env, r->rl_prompts_per_step * r->rl_num_generations, &table->turns.env));
    TRY(turns_begin(&table->turns, (size_t)r->rl_prompts_per_step));
    return turns_sample(&table->turns, r->rl_prompts_per_step, 0, &table->config, &table->experience);
}

static void stand_up(Table *table) {
    experience_release(&table->experience);
    text_env_close(table->turns.env);
    turns_release(&table->turns);
    chat_close(table->chat);
    tokenizer_free(table->tokenizer);
    model_free(table->model);
    recipe_free(table->recipe);
}

/* Trained tokens have the log-probabilities with which they were sampled, when each row is scored alone. Tolerance 2e-5: logits at temperature 2,
 * other batches. */
static void check_sampled(const Table *table) {
    const Experience *e = &table->experience;
    for (int64_t i = 0; i < e->n; i++) {
        const Ids *prompt = &e->prompts[i / e->group_size]->ids;
        size_t length = (size_t)(e->begin[i + 1] - e->begin[i]), n = prompt->n + length, spoken = 0;
        int32_t *ids = malloc(n * sizeof *ids);
        double *logprobs = malloc(n * sizeof *logprobs);
        assert_true(ids && logprobs);
        memcpy(ids, prompt->data, prompt->n * sizeof *ids);
        memcpy(ids + prompt->n, e->ids + e->begin[i], length * sizeof *ids);
        check_ok(score_rows(table->model, &(ScoreRow){ids, n, logprobs}, 1, NULL, NULL));
        for (size_t t = 0; t < length; t++) {
            if (!e->trained[e->begin[i] + (int64_t)t]) continue;
            check_close(e->sampled[e->begin[i] + (int64_t)t], logprobs[prompt->n + t], 2e-5);
            spoken++;
        }
        assert_true(spoken > 0 && e->trained[e->begin[i]] && e->trained[e->begin[i + 1] - 1]); /* it begins and ends with what the policy said */
        free(ids);
        free(logprobs);
    }
}

TEST(turns_are_played) {
    Table table;
    check_ok(sit_down(&table, "counts", "rl.gamma=0.5\ngenerate.temperature=1\nrl.prompts_per_step=4", NULL));
    const Experience *e = &table.experience;
    assert_int_equal(e->n, 12);
    check_sampled(&table);
    bool two = false, three = false;
    for (int64_t i = 0; i < e->n; i++) {
        int64_t told = 0;
        Str heard = {0};
        for (int64_t t = e->begin[i]; t < e->begin[i + 1]; t++) {
            told += !e->trained[t] && (t == e->begin[i] || e->trained[t - 1]);
            if (!e->trained[t]) check_ok(tokenizer_decode(table.tokenizer, &e->ids[t], 1, false, &heard));
        }
        assert_true(told == 1 || told == 2); /* observations after the first one */
        assert_true(strncmp(str_text(&heard), "\n< '", 4) == 0);
        two |= told == 1, three |= told == 2;
        check_close(e->rewards[i], told == 1 ? 1 + 10 * 0.5 : 1 + 10 * 0.5 + 100 * 0.25, 0);
        assert_true(e->ended[i] && e->terminated[e->begin[i + 1] - 1]);
        str_release(&heard);
    }
    assert_true(two && three);
    stand_up(&table);
}

/* The environment answers some episodes while others speak, and the episodes are the same. */
TEST(a_slow_environment_changes_nothing) {
    Table fast, slow;
    const char *lines = "rl.prompts_per_step=4\ngenerate.max_new_tokens=20";
    check_ok(sit_down(&fast, "plays", lines, NULL));
    assert_false(file_exists(temp_file(folder, "mark")));
    check_ok(sit_down(&slow, "slow", lines, NULL));
    assert_true(file_exists(temp_file(folder, "mark")));
    const Experience *a = &fast.experience, *b = &slow.experience;
    assert_true(a->n == 12 && b->n == 12 && a->n_tokens == b->n_tokens);
    size_t n = (size_t)a->n_tokens;
    check_ids("tokens", b->ids, n, a->ids, n);
    assert_memory_equal(b->sampled, a->sampled, n * sizeof *a->sampled);
    assert_memory_equal(b->filtered, a->filtered, n * sizeof *a->filtered);
    assert_memory_equal(b->earned, a->earned, n * sizeof *a->earned);
    assert_memory_equal(b->trained, a->trained, n * sizeof *a->trained);
    for (int64_t i = 0; i < a->n; i++) {
        assert_true(a->begin[i] == b->begin[i] && a->ended[i] == b->ended[i] && a->rewards[i] == b->rewards[i]);
        assert_string_equal(str_text(&a->texts[i]), str_text(&b->texts[i]));
    }
    stand_up(&fast);
    stand_up(&slow);
}

/* By the number of turns, and by the tokens of an episode. */
TEST(limits_truncate) {
    Table table;
    check_ok(sit_down(&table, "endless", "generate.max_new_tokens=4\ndata.max_length=34", NULL));
    for (int64_t i = 0; i < table.experience.n; i++) {
        int64_t n = (int64_t)table.experience.prompts[i / 3]->ids.n + table.experience.begin[i + 1] - table.experience.begin[i];
        assert_true(n <= 34 && !table.experience.ended[i] && table.experience.truncated[table.experience.begin[i + 1] - 1]);
    }
    stand_up(&table);
    check_status(sit_down(&table, "endless", "data.max_length=12", NULL), ST_INPUT);
    check_text("starts with");
    check_text("more than data.max_length 12");
    stand_up(&table);
}

/* Prompt and continuation together are the template's rendering of the whole conversation. */
TEST(templates_are_kept) {
    Table table;
    check_ok(sit_down(&table, "messages",
                      "generate.max_new_tokens=5\ngenerate.temperature=1\nrl.prompts_per_step=1\nrl.num_generations=2\ndata.system=unused",
                      "chatml"));
    const Experience *e = &table.experience;
    check_sampled(&table);
    const char *prompt = json_string_value(json_object_get(e->prompts[0]->json, "prompt"));
    assert_true(strstr(prompt, "<|im_start|>system\nbe short<|im_end|>\n<|im_start|>user\n< '") != NULL && !strstr(prompt, "unused"));
    assert_string_equal(prompt + strlen(prompt) - strlen("<|im_start|>assistant\n"), "<|im_start|>assistant\n");
    const char *between = strstr(str_text(&e->texts[0]), "<|im_end|>\n<|im_start|>tool\n< '");
    if (!between) between = strstr(str_text(&e->texts[0]), "\n<|im_start|>tool\n< '");
    assert_non_null(between);
    assert_non_null(strstr(between, "' =<|im_end|>\n<|im_start|>assistant\n"));
    stand_up(&table);
}

static void turns_run(const Recipe *recipe, bool resume, void (*on_progress)(void *, const Progress *), Status wanted) {
    TrainResult result;
    Status status =
        text_rl_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .options.resume = resume, .on_progress = on_progress},
                    &(RewardOptions){0}, &result);
    interrupt_clear();
    check_status_at(__FILE__, __LINE__, recipe->rl_algorithm, status, wanted);
}

static void interrupt_in_the_middle(void *context, const Progress *progress) {
    (void)context;
    if (progress->step == 2) interrupt_request();
}

/* Two episodes, by hand: turns "a b" and "c d" that end, with 0.5 added to the environment's reward; turns "e" and "f" that are cut off before a
 * state of value 4. Observations (T) are not steps. */
TEST(values_step_over_what_was_told) {
    enum { a, b, T1, T2, c, d, e, T3, f, N };
    static const double values[N] = {[a] = 0.5, [b] = 0.25, [T1] = 9, [T2] = 9, [c] = -1, [d] = 2, [e] = 1, [T3] = 9, [f] = 3};
    static const double wanted[N] = {[a] = -0.1796875, [b] = 0.78125, [c] = 2.125, [d] = 0.5, [e] = -0.75, [f] = -1};
    static const double rewards[N] = {[b] = 1, [d] = 2.5, [e] = -1};
    const int32_t ids[N] = {0};
    const bool chosen[] = {true, true, false, false, true, true, true, false, true};
    const double earned[N] = {[b] = 1, [d] = 2, [e] = -1};
    const Recipe recipe = {.rl_gamma = 0.5, .rl_gae_lambda = 0.5};
    double targets[N];
    PromptRow prompt = {0};
    Experience x = {0};
    experience_clear(&x, 2);
    check_ok(experience_open_group(&x, &prompt));
    check_ok(
        experience_add(&x, &(NewSequence){.ids = ids, .trained = chosen, .earned = earned, .n = e, .text = {"", 0}, .ended = true, .reward = 3.5}));
    check_ok(experience_add(&x, &(NewSequence){.ids = ids, .trained = chosen + e, .earned = earned + e, .n = N - e, .text = {"", 0}, .reward = -1}));
    assert_true(experience_trained(&x, 0) == 4 && experience_trained(&x, 1) == 2);
    memset(x.token_rewards, 0, N * sizeof *x.token_rewards);
    memset(x.final_values, 0, N * sizeof *x.final_values);
    memcpy(x.values, values, sizeof values);
    x.final_values[f] = 4;
    text_add_rewards(&x);
    text_advantages_by_values(&(TextAdvantageOptions){.recipe = &recipe, .values = true}, recipe.rl_gae_lambda, &x);
    Trajectory tokens = text_trajectory(&x, true);
    returns_td_lambda(&tokens, (Bootstrap){.final_values = x.final_values}, recipe.rl_gamma, recipe.rl_gae_lambda, targets);
    for (int t = 0; t < N; t++) {
        check_close(x.token_rewards[t], rewards[t], 0);
        check_close(x.advantages[t], wanted[t], 1e-15);
        if (x.trained[t]) check_close(targets[t], wanted[t] + values[t], 1e-15);
    }
    experience_release(&x);
}

/* Also whatever the threads; the sampler's numbers are the trainer's. */
TEST(algorithms_resume_to_the_same_bytes) {
    static const char *const algorithms[] = {"grpo", "rloo", "reinforce++", "online_dpo", "dapo", "ppo"};
    int threads = omp_get_max_threads();
    for (size_t i = 0; i < COUNT_OF(algorithms); i += ALL_OR_FEW(1, 3)) {
        char lines[200], names[3][40];
        double diffs[4], turns[4];
        Recipe *recipes[3];
        const char *kl_in = strcmp(algorithms[i], "online_dpo") == 0 ? "null" : i % 2 ? "reward" : "loss";
        snprintf(lines, sizeof lines, "rl.algorithm=%s\nrl.num_iterations=2\nrl.num_minibatches=2\nrl.beta=0.05\nrl.kl_in=%s", algorithms[i], kl_in);
        for (int k = 0; k < 3; k++) {
            snprintf(names[k], sizeof names[k], "%zu-%d", i, k);
            recipes[k] = recipe_of(names[k], "plays", lines);
        }
        turns_run(recipes[0], false, NULL, ST_OK);
        turns_run(recipes[1], false, interrupt_in_the_middle, ST_INTERRUPTED);
        turns_run(recipes[1], true, NULL, ST_OK);
        omp_set_num_threads(threads > 1 ? 1 : 2);
        turns_run(recipes[2], false, NULL, ST_OK);
        omp_set_num_threads(threads);
        for (int k = 0; k < 3; k++) {
            if (k > 0) check_same_file(folder, names[k], names[0], "adapter/adapter_model.safetensors");
            if (k > 0) check_same_file(folder, names[k], names[0], "samples.jsonl");
            recipe_free(recipes[k]);
        }
        assert_int_equal(metrics_read(temp_file(folder, names[0]), "sampler_logprob_diff", diffs, 4), 4);
        assert_int_equal(metrics_read(temp_file(folder, names[0]), "turns", turns, 4), 4);
        for (int s = 0; s < 4; s++) assert_true(!(diffs[s] > 1e-5) && turns[s] >= 2 && turns[s] <= 3); /* NaN in a step without a pair */
    }
}

/* The adaptive KL counts all generated tokens, also of cut episodes that are not trained, and no observation tokens. */
TEST(kl_is_of_all_that_was_generated) {
    double kl[2][2], coef[2][2];
    char lines[500];
    Recipe *recipe = recipe_of("reference", "plays", "rl.algorithm=grpo\ntrain.learning_rate=0.03\nrl.ent_coef=0.1");
    turns_run(recipe, false, NULL, ST_OK);
    recipe_free(recipe);
    for (int masked = 0; masked < 2; masked++) {
        const char *name = masked ? "masked" : "trained";
        snprintf(
            lines, sizeof lines,
            "rl.algorithm=grpo\ngenerate.max_new_tokens=4\ndata.max_length=34\ntrain.max_steps=2\nrl.beta=0.05\nrl.adaptive_kl=0.1\nrl.kl_horizon=10\nrl.reference=%s/reference/adapter\nrl.mask_truncated=%s",
            folder, masked ? "true" : "false");
        recipe = recipe_of(name, "endless", lines);
        turns_run(recipe, false, NULL, ST_OK);
        recipe_free(recipe);
        assert_int_equal(metrics_read(temp_file(folder, name), "kl_per_completion", kl[masked], 2), 2);
        assert_int_equal(metrics_read(temp_file(folder, name), "kl_coef", coef[masked], 2), 2);
    }
    assert_true(kl[0][0] != 0 && coef[0][1] != coef[0][0]);
    check_close(kl[1][0], kl[0][0], 0);
    check_close(coef[1][1], coef[0][1], 0);
}

TEST(rewards_are_learned) {
    skip_learning_under_sanitizers();
    double rewards[50], before_training = 0, after_training = 0;
    Recipe *recipe =
        recipe_of("learns", "plays", "rl.algorithm=grpo\ntrain.max_steps=50\nrl.prompts_per_step=4\nrl.num_generations=8\ngenerate.temperature=3");
    turns_run(recipe, false, NULL, ST_OK);
    assert_int_equal(metrics_read(temp_file(folder, "learns"), "reward", rewards, 50), 50);
    for (int i = 0; i < 10; i++) before_training += rewards[i] / 10, after_training += rewards[40 + i] / 10;
    if (!(after_training > before_training + 0.4)) fail_msg("mean return %g of the first ten steps, %g of the last", before_training, after_training);
    recipe_free(recipe);
}

/* A crash costs the running episodes; one after the other, the run. */
TEST(crashes) {
    Table table;
    check_ok(sit_down(&table, "dies once", "", NULL));
    assert_int_equal(warnings, 1);
    for (int64_t i = 0; i < table.experience.n; i++) assert_true(!table.experience.ended[i]);
    stand_up(&table);
    Recipe *recipe = recipe_of("dies", "dies", "train.max_steps=20");
    turns_run(recipe, false, NULL, ST_RESOURCE);
    check_text("'Words' failed 6 times in a row");
    check_text("exit code 7");
    recipe_free(recipe);
}

TEST(a_hang_is_noticed) {
    Table table;
    char lines[300];
    snprintf(lines, sizeof lines, "rl.env={command: [%s, --play, hangs, x], text: true, timeout: 0.3}", self);
    check_ok(sit_down(&table, "hangs", lines, NULL));
    assert_int_equal(warnings, 1);
    stand_up(&table);
}

TEST(an_interrupt_does_not_wait_for_an_answer) {
    Table table;
    char lines[300];
    snprintf(lines, sizeof lines, "rl.env={command: [%s, --play, hangs, x], text: true, timeout: 90}", self);
    double before = clock_seconds();
    interrupt_after(3000);
    check_status(sit_down(&table, "hangs", lines, NULL), ST_INTERRUPTED);
    stand_up(&table);
    interrupt_clear();
    assert_true(clock_seconds() - before < 60 && warnings == 0);
}

TEST(wrong_answers_are_shown) {
    static const struct {
        const char *how, *message;
    } faults[] = {
        {"chats", "no JSON object: 'step done!'"},
        {"short", "'observations' is not a list of 2"},
        {"numbers", "its observation is not a text"},
        {"rewardless", "copy 1: its reward is not a number"},
        {"flags", "'terminated' and 'truncated' are not true or false"},
        {"error", "reports: no more words"},
        {"moody", "gives different observations for the same seed"},
        {"cart", "its actions and observations are not texts"},
    };
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        Table table;
        check_status(sit_down(&table, faults[i].how, "rl.prompts_per_step=1\nrl.num_generations=2", NULL), ST_INPUT);
        check_text(faults[i].message);
        stand_up(&table);
    }
}

TEST(wrong_recipes) {
    static const struct {
        const char *lines, *message;
    } faults[] = {
        {"rl.env={command: [], text: true}", "no 'command' that is a list of words"},
        {"rl.env={command: [cat], text: true, max_turn: 3}", "unknown key 'max_turn'"},
        {"rl.env={command: [cat], text: true, max_turns: 0}", "'max_turns' that is not a whole number of at least 1"},
        {"rl.env={command: [cat], text: true, timeout: soon}", "'timeout' that is not a number of seconds"},
        {"data.train=rows.jsonl", "both give prompts"},
        {"train.max_steps=null", "'train.max_steps' is missing"},
    };
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        TrainResult result;
        Recipe *recipe = recipe_of("fault", "plays", faults[i].lines);
        check_status(text_rl_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, &(RewardOptions){0}, &result), ST_CONFIG);
        check_text(faults[i].message);
        recipe_free(recipe);
    }
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "--play") == 0) return turns_play(argv[2], argc > 3 ? argv[3] : "");
    self = argv[0];
    signal(SIGPIPE, SIG_IGN);
    log_set_sink(on_message, NULL, LOG_WARNING);
#define ENTRY(name) cmocka_unit_test_setup_teardown(name, turns_before, turns_after)
    const struct CMUnitTest tests[] = {
        ENTRY(turns_are_played),
        ENTRY(a_slow_environment_changes_nothing),
        ENTRY(limits_truncate),
        ENTRY(templates_are_kept),
        ENTRY(values_step_over_what_was_told),
        ENTRY(algorithms_resume_to_the_same_bytes),
        ENTRY(kl_is_of_all_that_was_generated),
        ENTRY(rewards_are_learned),
        ENTRY(crashes),
        ENTRY(a_hang_is_noticed),
        ENTRY(an_interrupt_does_not_wait_for_an_answer),
        ENTRY(wrong_answers_are_shown),
        ENTRY(wrong_recipes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
