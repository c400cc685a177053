/* SPDX-License-Identifier: Apache-2.0 */
/* A language model as an MDP that is small enough to be solved exactly: three tokens, three steps, a state for each prefix. What is learned from text
 * is held against what the MDP core computes. */
#include "lib/base/system.h"
#include "lib/train/trained_model.h"
#include "rl/offline/ilql.h"
#include "rl/mdp/mdp.h"
#include "rl/offline/offline_rows.h"
#include "rl/core/returns.h"
#include "rl/text/text_run.h"
#include "rl/core/value_losses.h"
#include "tests/support/check.h"
#include "tests/support/runs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ACTIONS = 3, STEPS = 3, INNER = 1 + 3 + 9, STATES = INNER + 27, PROMPT = 3 };

/* ---- the world ---- */

/* Prefixes in the order of a tree: the child of state s by action a is 3 s + 1 + a. */
static int child(int s, int a) { return ACTIONS * s + 1 + a; }

static double reward_of(int s, int a) { return sin(3.7 * s + 2.1 * a) * (s == 0 ? 0.3 : 1); }

static NamedMdp *world_of(double gamma) {
    NamedMdp *world;
    MdpBuilder *builder = mdp_builder_new(STATES, ACTIONS, gamma);
    for (int s = 0; s < INNER; s++)
        for (int a = 0; a < ACTIONS; a++) mdp_builder_add(builder, s, a, child(s, a), 1, reward_of(s, a), false);
    for (int s = INNER; s < STATES; s++) mdp_builder_terminal(builder, s);
    mdp_builder_start(builder, 0, 1);
    check_ok(mdp_builder_finish(builder, &world));
    return world;
}

/* Completion i of the 27, its states and its rewards. */
typedef struct Walk {
    int32_t ids[STEPS];
    int states[STEPS];
    double rewards[STEPS], sum;
} Walk;

static Walk walk_of(int i) {
    Walk walk = {0};
    int s = 0, digits[STEPS] = {i / 9, i / 3 % 3, i % 3};
    for (int t = 0; t < STEPS; t++) {
        walk.ids[t] = digits[t];
        walk.states[t] = s;
        walk.rewards[t] = reward_of(s, digits[t]);
        walk.sum += walk.rewards[t];
        s = child(s, digits[t]);
    }
    return walk;
}

/* A model whose tokens are the three actions and the prompt. */
static const char *model_dir(const char *name) {
    static char path[400];
    static const char config[] =
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 4, \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2,"
        " \"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false}";
    snprintf(path, sizeof path, "%s/%s", test_folder, name);
    check_ok(model_write_random(path, config, DT_F32, 5, 0.3));
    return path;
}

static const int32_t prompt_ids[] = {PROMPT};
static const PromptRow prompt = {.ids = {(int32_t *)(uintptr_t)prompt_ids, 1, 1}};

static void add_row(Experience *e, const int32_t *ids) {
    check_ok(experience_open_group(e, &prompt));
    check_ok(experience_add(e, &(NewSequence){.ids = ids, .n = STEPS, .ended = true}));
}

/* All 27 completions. */
static void enumerate(Experience *e) {
    experience_clear(e, 1);
    for (int i = 0; i < 27; i++) {
        Walk walk = walk_of(i);
        add_row(e, walk.ids);
        memcpy(e->token_rewards + 3 * i, walk.rewards, sizeof walk.rewards);
        e->rewards[i] = walk.sum;
    }
}

/* ---- REINFORCE ---- */

/* Expected reward of a completion of the current model; tokens other than the three actions earn nothing. */
static double expected_reward(TextPass *pass, const Model *model, Experience *e) {
    double sum = 0;
    tape_record(pass->tape, false);
    check_ok(text_pass_forward(pass, model, e, 0, e->n, &(TextResults){.logprobs = e->logprobs}));
    tape_record(pass->tape, true);
    for (int64_t i = 0; i < e->n; i++) sum += exp(e->logprobs[3 * i] + e->logprobs[3 * i + 1] + e->logprobs[3 * i + 2]) * e->rewards[i];
    return sum;
}

/* The gradient that REINFORCE follows, in the mean over all completions by their probabilities, is the derivative of the expected reward. A constant
 * baseline does not move it where the completions' probabilities sum to 1. */
TEST(reinforce_follows_the_exact_gradient) {
    Model *model;
    Experience e = {0};
    check_ok(model_load(model_dir("exact"), &(ModelOptions){.device = device_reference(), .compute = DT_F64, .train_all = true}, &model));
    TextPass pass = {.tape = tape_new(device_reference(), DT_F64, 0), .temperature = 1, .max_tokens = 1000};
    enumerate(&e);
    double before = expected_reward(&pass, model, &e), gradients[81], weights[81];
    check_ok(text_pass_forward(&pass, model, &e, 0, e.n, &(TextResults){.logprobs = e.logprobs}));
    for (int64_t i = 0; i < e.n; i++)
        for (int64_t t = e.begin[i]; t < e.begin[i + 1]; t++) {
            e.advantages[t] = e.rewards[i];
            weights[t] = exp(e.logprobs[3 * i] + e.logprobs[3 * i + 1] + e.logprobs[3 * i + 2]) * 27; /* each is weighted by its share of samples */
        }
    PolicyBatch batch = {.n_sequences = e.n, .begin = e.begin, .logprobs = e.logprobs, .advantages = e.advantages, .weights = weights};
    PolicyMetrics metrics;
    policy_loss(policy_loss_find("reinforce"), &(PolicyLossConfig){.aggregation = SEQUENCE_SUM}, &batch, gradients, &metrics);
    check_ok(text_pass_backward(&pass, &(TextGradients){.logprobs = gradients}));
    const double step = 1e-5;
    int checked = 0;
    for (size_t p = 0; p < model->params.n; p++) {
        Tensor *tensor = model->params.items[p].tensor;
        for (int64_t i = 0; i < tensor_count(tensor); i += 1 + tensor_count(tensor) / 3) {
            double value = tensor_get(tensor, i), got = -tensor_get(tensor->grad, i), sides[2];
            for (int side = 0; side < 2; side++) {
                tensor_set(tensor, i, value + (side ? step : -step));
                sides[side] = expected_reward(&pass, model, &e);
            }
            tensor_set(tensor, i, value);
            check_close(got, (sides[1] - sides[0]) / (2 * step), 1e-8);
            checked++;
        }
    }
    assert_true(checked > 40);
    check_close(expected_reward(&pass, model, &e), before, 1e-15);
    tape_free(pass.tape);
    text_pass_release(&pass);
    experience_release(&e);
    model_free(model);
}

/* ---- V by TD ---- */

/* The model's own policy over the three actions in every state, and V of it by the MDP core; probabilities of the fourth token are left out on both
 * sides. */
static void policy_of(TextPass *pass, const Model *model, Experience *e, double policy[STATES * ACTIONS]) {
    enumerate(e);
    tape_record(pass->tape, false);
    check_ok(text_pass_forward(pass, model, e, 0, e->n, &(TextResults){.logprobs = e->logprobs}));
    tape_record(pass->tape, true);
    for (int i = 0; i < 27; i++) {
        Walk walk = walk_of(i);
        for (int t = 0; t < STEPS; t++) policy[ACTIONS * walk.states[t] + walk.ids[t]] = exp(e->logprobs[3 * i + t]);
    }
    for (int s = 0; s < STATES; s++) {
        double sum = policy[3 * s] + policy[3 * s + 1] + policy[3 * s + 2];
        for (int a = 0; a < ACTIONS; a++) policy[3 * s + a] = sum > 0 ? policy[3 * s + a] / sum : 1.0 / 3;
    }
}

static int state_before(const Experience *e, int64_t t) {
    int s = 0;
    for (int64_t k = t - t % STEPS; k < t; k++) s = child(s, e->ids[k]);
    return s;
}

/* V of tokens, learned by one-step targets r + gamma V(s') from completions of the policy, comes to V of the MDP. */
TEST(values_by_td_approach_the_exact_ones) {
    skip_learning_under_sanitizers();
    const double gamma = 0.9;
    double policy[STATES * ACTIONS] = {0}, grad[192], worst = 0;
    Model *model;
    Experience all = {0}, e = {0};
    const char *dir = model_dir("td");
    char setting[3][500];
    snprintf(setting[0], 500, "model.path=%s", dir);
    snprintf(setting[1], 500, "data.train=none");
    const char *settings[] = {setting[0], setting[1], "train.learning_rate=0.01"};
    Recipe *recipe;
    TextValue *value;
    NamedMdp *world = world_of(gamma);
    Arena *arena = arena_new(0);
    MdpSolution exact;
    check_ok(recipe_read(NULL, settings, 3, &recipe));
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    check_ok(text_value_open(recipe, NULL, "base", model, &value));
    /* warm: every state is visited often */
    TextPass pass = {.tape = tape_new(device_cpu(), DT_F32, 0), .temperature = 20, .max_tokens = 1000, .value_head = value->head};
    policy_of(&pass, model, &all, policy);
    check_ok(mdp_evaluate(&world->mdp, policy, &(MdpOptions){.world = world}, arena, &exact));
    Stepper stepper;
    check_ok(stepper_init(&stepper, recipe, 1));
    for (int64_t update = 0; update < 1500; update++) {
        experience_clear(&e, 1);
        for (int64_t i = 0; i < 64; i++) { /* completions of the policy */
            int32_t ids[STEPS];
            int s = 0;
            for (int t = 0; t < STEPS; t++) {
                ids[t] = sample_pick(policy + ACTIONS * s, ACTIONS, rng_uniform(rng_key(9, RNG_SAMPLE, (uint64_t)(64 * update + i)), (uint64_t)t));
                s = child(s, ids[t]);
            }
            add_row(&e, ids);
        }
        check_ok(text_pass_forward(&pass, value->model, &e, 0, e.n, &(TextResults){.values = e.values}));
        for (int64_t t = 0; t < e.n_tokens; t++) e.token_rewards[t] = reward_of(state_before(&e, t), e.ids[t]);
        Trajectory tokens = text_trajectory(&e, true);
        ValueMetrics metrics;
        returns_td_lambda(&tokens, (Bootstrap){0}, gamma, 0, e.targets);
        value_loss(&(ValueBatch){.n = e.n_tokens, .values = e.values, .targets = e.targets}, 0, grad, &metrics);
        check_ok(text_pass_backward(&pass, &(TextGradients){.values = grad}));
        text_value_update(value, recipe, &stepper, stepper_norm(&stepper, &value->model->params), 0.01 / (1 + (double)update / 100), update + 1);
    }
    tape_record(pass.tape, false);
    check_ok(text_pass_forward(&pass, value->model, &all, 0, all.n, &(TextResults){.values = all.values}));
    for (int64_t t = 0; t < all.n_tokens; t++) worst = fmax(worst, fabs(all.values[t] - exact.V[state_before(&all, t)]));
    if (!(worst < 0.1)) fail_msg("values are up to %g from the exact ones", worst);
    named_mdp_free(world);
    arena_free(arena);
    tape_free(pass.tape);
    text_pass_release(&pass);
    experience_release(&all);
    experience_release(&e);
    text_value_free(value);
    model_free(model);
    recipe_free(recipe);
}

/* ---- ILQL ---- */

static const char *write_rows(void) {
    Str text = {0};
    for (int i = 0; i < 27; i++) {
        Walk walk = walk_of(i);
        str_printf(&text, "{\"prompt_ids\": [%d], \"completion_ids\": [%d, %d, %d], \"rewards\": [%.17g, %.17g, %.17g]}\n", PROMPT, walk.ids[0],
                   walk.ids[1], walk.ids[2], walk.rewards[0], walk.rewards[1], walk.rewards[2]);
    }
    const char *path = temp_text(test_folder, "rows.jsonl", str_text(&text));
    str_release(&text);
    return path;
}

static Recipe *ilql_recipe(const char *name, const char *dir, const char *const *more, size_t n_more) {
    char texts[3][500];
    const char *settings[20] = {"rl.algorithm=ilql", "data.max_length=16", "train.batch_size=27", "data.shuffle=false", "train.lr_scheduler=linear"};
    size_t n = 5;
    snprintf(texts[0], 500, "output=%s/%s", test_folder, name);
    snprintf(texts[1], 500, "model.path=%s", dir);
    snprintf(texts[2], 500, "data.train=%s", write_rows());
    for (int i = 0; i < 3; i++) settings[n++] = texts[i];
    for (size_t i = 0; i < n_more; i++) settings[n++] = more[i];
    Recipe *recipe;
    check_ok(recipe_read(NULL, settings, n, &recipe));
    return recipe;
}

/* Q of every state by the heads that a run left: the smaller of the two. */
static void learned_q(const char *name, double q[STATES * ACTIONS], double v[STATES]) {
    char dir[500], path[600];
    Model *model;
    IlqlHeads heads;
    Experience e = {0};
    snprintf(dir, sizeof dir, "%s/%s/model", test_folder, name);
    snprintf(path, sizeof path, "%s/%s/ilql_heads.safetensors", test_folder, name);
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    check_ok(ilql_heads_load(model, path, &heads));
    TextPass pass = {.tape = tape_new(device_cpu(), DT_F32, 0), .temperature = 1, .max_tokens = 1000};
    tape_record(pass.tape, false);
    enumerate(&e);
    check_ok(text_pass_forward(&pass, model, &e, 0, e.n, &(TextResults){.logprobs = e.logprobs}));
    Tensor *heads_q[2] = {ilql_head_forward(pass.tape, &heads.q[0], pass.hidden, pass.places),
                          ilql_head_forward(pass.tape, &heads.q[1], pass.hidden, pass.places)};
    Tensor *heads_v = ilql_head_forward(pass.tape, &heads.v, pass.hidden, pass.places);
    check_ok(tape_status(pass.tape));
    for (int64_t t = 0; t < e.n_tokens; t++) {
        int s = state_before(&e, t);
        v[s] = tensor_get(heads_v, t);
        for (int a = 0; a < ACTIONS; a++) q[3 * s + a] = fmin(tensor_get(heads_q[0], 4 * t + a), tensor_get(heads_q[1], 4 * t + a));
    }
    tape_free(pass.tape);
    text_pass_release(&pass);
    experience_release(&e);
    model_free(model);
}

static void check_q(const char *name, const double *exact_q, const double *exact_v, double tolerance) {
    double q[STATES * ACTIONS], v[STATES], worst = 0, worst_v = 0;
    learned_q(name, q, v);
    for (int i = 0; i < INNER * ACTIONS; i++) worst = fmax(worst, fabs(q[i] - exact_q[i]));
    for (int s = 0; s < INNER; s++) worst_v = fmax(worst_v, fabs(v[s] - exact_v[s]));
    if (!(worst < tolerance && worst_v < tolerance)) fail_msg("%s: Q is up to %g, V up to %g from the exact ones", name, worst, worst_v);
}

/* With the expectile 0.5 V is the mean over the rows' actions, so Q is that of the policy that made the rows; towards 1 it comes to Q of the best
 * policy. */
TEST(ilql_learns_the_exact_q) {
    skip_learning_under_sanitizers();
    static const char *const common[] = {"rl.cql_alpha=0", "rl.gamma=0.9", "rl.tau=0.05", "train.max_steps=700", "train.learning_rate=0.003"};
    const char *mean[8], *best[8];
    double uniform[STATES * ACTIONS];
    NamedMdp *world = world_of(0.9);
    Arena *arena = arena_new(0);
    MdpSolution exact;
    memcpy(mean, common, sizeof common);
    memcpy(best, common, sizeof common);
    mean[5] = "rl.expectile=0.5";
    best[5] = "rl.expectile=0.98";
    const char *dir = model_dir("ilql");
    Recipe *recipes[2] = {ilql_recipe("mean", dir, mean, 6), ilql_recipe("best", dir, best, 6)};
    TrainResult result;
    for (int k = 0; k < 2; k++) check_ok(ilql_run(&(TrainingConfig){.recipe = recipes[k], .runtime = runtime_of(recipes[k])}, &result));
    for (int i = 0; i < STATES * ACTIONS; i++) uniform[i] = 1.0 / 3;
    check_ok(mdp_evaluate(&world->mdp, uniform, &(MdpOptions){.world = world}, arena, &exact));
    check_q("mean", exact.Q, exact.V, 0.08);
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.world = world}, arena, &exact));
    check_q("best", exact.Q, exact.V, 0.15);
    for (int k = 0; k < 2; k++) recipe_free(recipes[k]);
    named_mdp_free(world);
    arena_free(arena);
}

/* What the heads say is what decoding goes by: with a large beta the best completion of all 27 comes out, the model's own likeliest with beta 0. */
TEST(decoding_follows_the_advantage) {
    skip_learning_under_sanitizers();
    static const char *const settings[] = {"rl.cql_alpha=0", "rl.expectile=0.98", "rl.tau=0.1", "train.max_steps=500", "train.learning_rate=0.003"};
    const char *dir = model_dir("decode");
    Recipe *recipe = ilql_recipe("decode_run", dir, settings, 5);
    TrainResult result;
    check_ok(ilql_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, &result));
    char path[600];
    Model *model;
    IlqlHeads heads;
    snprintf(path, sizeof path, "%s/decode_run/model", test_folder);
    check_ok(model_load(path, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    snprintf(path, sizeof path, "%s/decode_run/ilql_heads.safetensors", test_folder);
    check_ok(ilql_heads_load(model, path, &heads));
    double best = -HUGE_VAL, got[2] = {0};
    for (int i = 0; i < 27; i++) best = fmax(best, walk_of(i).sum);
    const PromptRow *asked[] = {&prompt};
    for (int k = 0; k < 2; k++) {
        IlqlBias advice = {&heads, k ? 100 : 0};
        GenerateConfig config = {.sample = {.greedy = true, .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1},
                                 .max_new_tokens = STEPS,
                                 .n = 40,
                                 .logit_bias = ilql_logit_bias,
                                 .logit_bias_context = &advice};
        config.sample.greedy = k == 1;
        Experience e = {0};
        check_ok(experience_sample(model, NULL, asked, 1, 0, &config, NULL, &e));
        for (int64_t i = 0; i < e.n; i++) {
            double sum = 0;
            int s = 0;
            for (int64_t t = e.begin[i]; t < e.begin[i + 1] && e.ids[t] < ACTIONS; t++) {
                sum += reward_of(s, e.ids[t]);
                s = child(s, e.ids[t]);
            }
            got[k] += sum / (double)e.n;
        }
        experience_release(&e);
    }
    check_close(got[1], best, 1e-9);
    assert_true(got[0] < best - 0.1);
    model_free(model);
    recipe_free(recipe);
}

static void interrupt_in_the_middle(void *context, const Progress *progress) {
    (void)context;
    if (progress->step == 3) interrupt_request();
}

TEST(ilql_resumes_to_the_same_bytes) {
    static const char *const settings[] = {"train.max_steps=7", "rl.awac_beta=1", "data.shuffle=true", "train.batch_size=5", "train.save_every=2"};
    const char *dir = model_dir("resume");
    Recipe *recipes[2] = {ilql_recipe("whole", dir, settings, 5), ilql_recipe("parts", dir, settings, 5)};
    TrainResult result;
    check_ok(ilql_run(&(TrainingConfig){.recipe = recipes[0], .runtime = runtime_of(recipes[0])}, &result));
    check_status(
        ilql_run(&(TrainingConfig){.recipe = recipes[1], .runtime = runtime_of(recipes[1]), .on_progress = interrupt_in_the_middle}, &result),
        ST_INTERRUPTED);
    interrupt_clear();
    check_ok(ilql_run(&(TrainingConfig){.recipe = recipes[1], .runtime = runtime_of(recipes[1]), .options.resume = true}, &result));
    static const char *const files[] = {"ilql_heads.safetensors", "model/model.safetensors"};
    for (int k = 0; k < 2; k++) {
        Str texts[2] = {{0}, {0}};
        for (int i = 0; i < 2; i++) {
            char path[600];
            snprintf(path, sizeof path, "%s/%s/%s", test_folder, i ? "parts" : "whole", files[k]);
            check_ok(file_read(path, 1 << 24, &texts[i]));
        }
        assert_true(texts[0].len == texts[1].len && memcmp(texts[0].data, texts[1].data, texts[0].len) == 0);
        for (int i = 0; i < 2; i++) str_release(&texts[i]);
    }
    for (int k = 0; k < 2; k++) recipe_free(recipes[k]);
}

/* Rewards that are missing or no numbers, or too many of them, are told with their row. */
/* What is learned from: a run whose rows tell another thing does not go on. */
TEST(other_rows_have_another_fingerprint) {
    static const char *const rows[] = {
        "{\"input_ids\": [3, 0, 1, 2], \"labels\": [-100, 0, 1, 2], \"reward\": 1}\n",
        "{\"input_ids\": [3, 0, 1, 2], \"labels\": [-100, 0, 1, 2], \"reward\": 1, \"truncated\": true}\n",
        "{\"input_ids\": [3, 0, 1, 2], \"labels\": [-100, 0, -100, 2], \"reward\": 1}\n",
        "{\"input_ids\": [3, 0, 1, 2], \"labels\": [-100, -100, 1, 2], \"reward\": 1}\n",
        "{\"input_ids\": [3, 0, 1, 2], \"labels\": [-100, 0, 1, 2], \"reward\": 2}\n",
        "{\"input_ids\": [3, 0, 2, 2], \"labels\": [-100, 0, 2, 2], \"reward\": 1}\n",
    };
    uint64_t seen[COUNT_OF(rows)];
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char setting[500];
        const char *settings[] = {setting, "rl.algorithm=ilql"};
        snprintf(setting, sizeof setting, "data.train=%s", temp_text(test_folder, "fingerprint.jsonl", rows[i]));
        Recipe *recipe;
        OfflineRows read;
        check_ok(recipe_read(NULL, settings, COUNT_OF(settings), &recipe));
        check_ok(offline_rows_read(recipe, &(ModelConfig){.vocab_size = 4}, NULL, NULL, &read));
        seen[i] = offline_rows_fingerprint(&read);
        for (size_t k = 0; k < i; k++)
            if (seen[k] == seen[i]) fail_msg("rows %zu and %zu have the same fingerprint", k, i);
        offline_rows_free(&read);
        recipe_free(recipe);
    }
}

TEST(bad_rows_are_named) {
    static const struct {
        const char *row, *message;
    } faults[] = {
        {"{\"prompt_ids\": [3], \"completion_ids\": [0, 1]}", "line 1: the row has no reward"},
        {"{\"prompt_ids\": [3], \"completion_ids\": [0, 1], \"reward\": \"good\"}", "'reward' contains something that is not a number"},
        {"{\"prompt_ids\": [3], \"completion_ids\": [0, 1], \"rewards\": [1, 2, 3]}",
         "'rewards' has 3 numbers, the row has 2 trained tokens in 1 turns"},
        {"{\"prompt_ids\": [3], \"completion_ids\": [], \"reward\": 1}", "no token of the row can be trained"},
        {"{\"prompt_ids\": [3], \"completion_ids\": [9], \"reward\": 1}", "is outside of the model's vocabulary"},
        {"{\"prompt_ids\": [3], \"completion_ids\": [0], \"reward\": 1, \"truncated\": 1}", "'truncated' is neither true nor false"},
        {"{\"prompt\": \"a\", \"completion\": \"b\", \"reward\": 1}", "the model directory has no tokenizer"},
    };
    const char *dir = model_dir("faulty");
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        char texts[2][500];
        TrainResult result;
        Recipe *recipe;
        snprintf(texts[0], 500, "model.path=%s", dir);
        snprintf(texts[1], 500, "data.train=%s", temp_text(test_folder, "faulty.jsonl", faults[i].row));
        const char *settings[] = {texts[0], texts[1], "rl.algorithm=ilql", "output=none"};
        check_ok(recipe_read(NULL, settings, 4, &recipe));
        check_status(ilql_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .options.dry_run = true}, &result), ST_INPUT);
        check_text(faults[i].message);
        recipe_free(recipe);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reinforce_follows_the_exact_gradient, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(values_by_td_approach_the_exact_ones, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(ilql_learns_the_exact_q, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(decoding_follows_the_advantage, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(ilql_resumes_to_the_same_bytes, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(other_rows_have_another_fingerprint, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(bad_rows_are_named, test_folder_make, test_folder_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
