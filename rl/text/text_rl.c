/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a run of reinforcement learning on text, runs its steps and ends it. */
#include "lib/base/log.h"
#include "rl/text/text_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/system.h"
#include "lib/train/distil_teacher.h"
#include "lib/train/rank_inputs.h"
#include "lib/train/trained_model.h"
#include "lib/train/training.h"
#include "rl/core/kl.h"
#include "rl/common/run_chat.h"

enum { PASS_TOKENS = 1024, LARGE_PASS_TOKENS = 2048 };

static const double not_known = (double)NAN;

/* ---- a step ---- */

static Status evaluate_first(TextRl *rl) {
    RolloutSums sums;
    TRY(text_evaluate(rl, &sums));
    rl->counts.first_eval = rl->counts.best_eval = tally_mean(&sums.rewards);
    return ST_OK;
}

static Status text_rl_evaluate_step(void *context, int64_t number, Metrics *metrics) {
    TextRl *rl = context;
    RolloutSums sums;
    if (!text_evaluate_due(rl, number + 1)) return ST_OK;
    TRY(text_evaluate(rl, &sums));
    TRY(text_evaluate_report(rl, &sums, metrics));
    rl->counts.last_eval = tally_mean(&sums.rewards);
    rl->counts.best_eval = fmax(rl->counts.best_eval, rl->counts.last_eval);
    return ST_OK;
}

static Status text_rl_gather(void *context, int64_t number, Metrics *metrics) {
    TextRl *rl = context;
    rl->step.next_place = rl->counts.place;
    if (number == 0 && text_evaluate_due(rl, 0)) TRY(evaluate_first(rl));
    rl->step.number = number + 1;
    comm_phase(rl->comm, rl->step.number, "rollout", -1);
    const double began = clock_seconds();
    TRY(text_roll_out(rl, number, &rl->step.next_place, metrics));
    const double sampled = clock_seconds();
    rank_record_add(&rl->update.record, RANK_ROLLOUT, sampled - began);
    TRY(text_advantages(rl, metrics));
    rank_record_add(&rl->update.record, RANK_FORWARD, clock_seconds() - sampled);
    return text_samples_write(rl, number);
}

static Status text_rl_step(void *context, int64_t number, Metrics *metrics) {
    TextRl *rl = context;
    TRY(text_learn(rl, metrics));
    rl->update.record.buckets = accumulator_buckets(&rl->update.accumulator);
    TRY(rank_record_write(&rl->update.record, rl->run, number + 1));
    rl->counts.place = rl->step.next_place;
    rl->counts.samples_bytes = rl->step.next_samples_bytes;
    rl->counts.updates = (number + 1) * text_steps_per_rollout(rl); /* minibatches without a trained token are counted */
    if (!rl->turns.env) metric_set(metrics, "epoch", (double)rl->counts.place / (double)prompts_per_epoch(&rl->prompts));
    rl->counts.last_reward = metric_get(metrics, "reward");
    if (number == 0) rl->counts.first_reward = rl->counts.last_reward;
    return ST_OK;
}

static void text_rl_list_state(void *context, StateList *states) {
    TextRl *rl = context;
    state_weights(states, &rl->model->params);
    text_list_optimizer(rl, states);
    if (rl->value) text_value_list_state(rl->value, states);
    if (rl->reference) state_real(states, "beta", &rl->counts.beta);
    state_count(states, "updates", &rl->counts.updates);
    state_count(states, "prompts", &rl->counts.place);
    state_count(states, "samples_bytes", &rl->counts.samples_bytes);
    state_real(states, "first_reward", &rl->counts.first_reward);
    state_real(states, "last_reward", &rl->counts.last_reward);
    state_real(states, "first_eval_reward", &rl->counts.first_eval);
    state_real(states, "last_eval_reward", &rl->counts.last_eval);
    state_real(states, "best_eval_reward", &rl->counts.best_eval);
}

static Status text_rl_resumed(void *context, int64_t done) {
    TextRl *rl = context;
    TRY(text_samples_cut(rl));
    return rl_watch_resume(rl->doctor, rl->run, done);
}

static void text_rl_recorded(void *context, int64_t done, const Metrics *metrics) {
    TextRl *rl = context;
    rl_watch_line(rl->doctor, rl->run, done, metrics);
}

static Status text_rl_finish(void *context, Run *run) {
    const TextRl *rl = context;
    if (rl->value) TRY(text_value_save(rl->value, rl->recipe, run_dir(run)));
    return trained_model_save(rl->recipe, rl->model, run_dir(run));
}

static json_t *text_rl_summary(void *context, int64_t done) {
    const TextRl *rl = context;
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "warnings", rl_watch_end(rl->doctor, rl->run, done), "first_reward",
                     json_real_or_null(rl->counts.first_reward), "last_reward", json_real_or_null(rl->counts.last_reward), "first_eval_reward",
                     json_real_or_null(rl->counts.first_eval), "last_eval_reward", json_real_or_null(rl->counts.last_eval), "best_eval_reward",
                     json_real_or_null(rl->counts.best_eval));
}

/* ---- opening ---- */

/* Rejects settings that would have no effect, or that are mathematically invalid. */
static Status check_switches(const TextRl *rl) {
    const Recipe *r = rl->recipe;
    if (r->rl_beta == 0 && !isnan(r->rl_adaptive_kl))
        return status_hint(status_fail(ST_CONFIG, "'rl.adaptive_kl' adapts rl.beta, which is 0"), "give an initial beta, such as rl.beta=0.05");
    if (r->rl_kl_corrected && (r->rl_beta == 0 || text_kl_in_reward(rl)))
        return status_hint(status_fail(ST_CONFIG, "'rl.kl_corrected' applies to a KL in the loss, but there is none"),
                           "give rl.beta and rl.kl_in: loss, or leave it out");
    if (r->rl_mask_truncated && rl->algorithm->paired)
        return status_hint(
            status_fail(ST_CONFIG, "'rl.mask_truncated' would leave pairs with one side, but algorithm '%s' learns from both", rl->algorithm->name),
            "give rl.missing_eos_penalty instead");
    if (r->rl_num_minibatches > r->rl_prompts_per_step) {
        status_fail(ST_CONFIG, "'rl.num_minibatches' is %lld, but a step has only %lld prompts, and a prompt's completions stay together",
                    (long long)r->rl_num_minibatches, (long long)r->rl_prompts_per_step);
        return status_hint(ST_CONFIG, "use fewer minibatches, or more rl.prompts_per_step");
    }
    if (r->rl_correction_low > r->rl_correction_high)
        return status_hint(status_fail(ST_CONFIG, "'rl.correction_low' is above 'rl.correction_high'"),
                           "weights are limited to this range: 0 and 3 are usual");
    return ST_OK;
}

static Status choose_loss(TextRl *rl) {
    const Recipe *r = rl->recipe;
    static const GroupScale scales[] = {
        [RL_SCALE_REWARDS_GROUP] = SCALE_GROUP, [RL_SCALE_REWARDS_BATCH] = SCALE_BATCH, [RL_SCALE_REWARDS_NONE] = SCALE_NONE};
    static const KlKind kl_kinds[] = {[RL_KL_K1] = KL_K1, [RL_KL_K2] = KL_K2, [RL_KL_K3] = KL_K3};
    static const Aggregation aggregations[] = {[RL_LOSS_AGGREGATION_AUTO] = AGGREGATE_OWN,
                                               [RL_LOSS_AGGREGATION_TOKEN_MEAN] = TOKEN_MEAN,
                                               [RL_LOSS_AGGREGATION_SEQUENCE_MEAN] = SEQUENCE_MEAN,
                                               [RL_LOSS_AGGREGATION_SEQUENCE_SUM] = SEQUENCE_SUM,
                                               [RL_LOSS_AGGREGATION_CONSTANT] = CONSTANT};
    rl->scale = r->rl_scale_rewards == RL_SCALE_REWARDS_AUTO ? rl->algorithm->scale : scales[r->rl_scale_rewards];
    rl->policy_loss = rl->algorithm->paired || rl->algorithm->taught ? NULL : policy_loss_find(rl->algorithm->loss);
    rl->loss = (PolicyLossConfig){
        .clip = r->rl_clip,
        .clip_high = isnan(r->rl_clip_high) ? rl->algorithm->clip_high : r->rl_clip_high,
        .dual_clip = r->rl_dual_clip,
        .ratio_cap = r->rl_ratio_cap,
        .kl = kl_kinds[r->rl_kl],
        .kl_corrected = r->rl_kl_corrected,
        .ent_coef = r->rl_ent_coef,
        .aggregation = aggregations[r->rl_loss_aggregation],
        .max_length = r->generate_max_new_tokens,
    };
    return check_switches(rl);
}

static Status choose_algorithm(TextRl *rl) {
    const Recipe *r = rl->recipe;
    rl->algorithm = text_algorithm_find(r->rl_algorithm);
    if (!rl->algorithm) {
        if (r->rl_env)
            return status_hint(status_fail(ST_CONFIG, "'rl.algorithm: %s' learns from numbers, but 'rl.env' is a text environment", r->rl_algorithm),
                               "use an algorithm for text such as grpo, rloo, reinforce++");
        status_fail(ST_CONFIG, "'rl.algorithm: %s' needs an environment", r->rl_algorithm);
        return status_hint(ST_CONFIG, "give rl.env, or an algorithm for text such as grpo, rloo, reinforce++");
    }
    if (r->rl_num_generations < rl->algorithm->least_group) {
        status_fail(ST_CONFIG, "algorithm '%s' compares completions of the same prompt, but rl.num_generations is %lld", r->rl_algorithm,
                    (long long)r->rl_num_generations);
        return status_hint(ST_CONFIG, "use at least %lld", (long long)rl->algorithm->least_group);
    }
    if (text_temperature(r) <= 0 || r->generate_greedy)
        return status_hint(status_fail(ST_CONFIG, "a policy gradient needs sampled answers, but generate is set to greedy"),
                           "set generate.temperature above 0");
    if (r->has_lora && r->lora_dropout > 0)
        return status_hint(status_fail(ST_CONFIG, "'lora.dropout' would make the trainer's log-probabilities differ from the sampler's"),
                           "leave it at 0 for rl");
    if (rl->algorithm->taught && r->rl_env)
        return status_hint(status_fail(ST_CONFIG, "'rl.algorithm: %s' learns on completions of prompts, not in an environment", r->rl_algorithm),
                           "give data.train in place of rl.env");
    if (!r->reward && !r->rl_env && !rl->algorithm->taught)
        return status_hint(status_fail(ST_CONFIG, "'reward' is missing"), "define the reward, such as reward: [{type: exact}]");
    rl->sampling_rounds = r->rl_sampling_rounds > 0 ? r->rl_sampling_rounds : MAX(rl->algorithm->sampling_rounds, 1);
    if (rl->sampling_rounds > 1 && !rl->algorithm->compares) {
        status_fail(ST_CONFIG, "'rl.sampling_rounds' replaces groups whose rewards are all equal, but algorithm '%s' learns from these too",
                    r->rl_algorithm);
        return status_hint(ST_CONFIG, "leave it out, or use an algorithm that compares the completions of a prompt, such as dapo");
    }
    TRY(text_gkd_check(r, rl->algorithm->taught));
    return choose_loss(rl);
}

static Status check_lengths(const TextRl *rl) {
    const ModelConfig *config = &rl->model->config;
    int64_t prompt = MAX(rl->prompts.longest, rl->eval.longest), whole = prompt + rl->recipe->generate_max_new_tokens;
    if (whole <= config->max_position_embeddings) return ST_OK;
    if (prompt >= config->max_position_embeddings) {
        status_fail(ST_CONFIG, "the longest prompt has %lld tokens, and the model knows contexts of %lld", (long long)prompt,
                    (long long)config->max_position_embeddings);
        return status_hint(ST_CONFIG, "lower data.max_length");
    }
    if (!config->learned_positions) {
        log_message(
            LOG_WARNING,
            "the longest prompt with its completion has %lld token%s, but the model supports contexts of up to %lld: its output beyond that may make no sense",
            (long long)whole, plural(whole), (long long)config->max_position_embeddings);
        return ST_OK;
    }
    status_fail(ST_CONFIG, "the longest prompt with its completion has %lld tokens, more than the %lld that the model has positions for",
                (long long)whole, (long long)config->max_position_embeddings);
    return status_hint(ST_CONFIG, "lower generate.max_new_tokens or data.max_length");
}

static Status open_values(TextRl *rl) {
    const char *which = rl->recipe->rl_value_model;
    if (!which && rl->algorithm->values == VALUES_NEEDED) which = "head";
    return which ? text_value_open(rl->recipe, rl->comm, which, rl->model, &rl->value) : ST_OK;
}

Status text_prompts_read(TextRl *rl, YamlNode node, const char *key, PromptSet *set) {
    TRY(prompts_read(node, key, rl->recipe, &rl->model->config, rl->chat, rl->tokenizer, set));
    row_notes_warn(&set->table.notes, key);
    return prompts_check(set, rl->rewards, rl->recipe->rejected);
}

static Status open_prompts(TextRl *rl) {
    const Recipe *r = rl->recipe;
    TRY(text_prompts_read(rl, r->data_train, "data.train", &rl->prompts));
    const char *key;
    const Yaml *eval = recipe_eval_rows(r, &key);
    if (rl->algorithm->taught && !r->reward && (eval || r->data_eval_split > 0))
        return status_hint(status_fail(ST_CONFIG, "held-out prompts are judged by rewards, but there are none"),
                           "define 'reward', or leave data.eval and data.eval_split out");
    if (eval) return text_prompts_read(rl, eval, key, &rl->eval);
    recipe_warn_eval_every(r);
    return r->data_eval_split > 0 ? prompts_split(&rl->prompts, r->data_eval_split, (uint64_t)r->seed, &rl->eval) : ST_OK;
}

Status text_open_policy(TextRl *rl, const RewardOptions *rewards) {
    const Recipe *r = rl->recipe;
    RewardOptions options = *rewards;
    options.run_folder = r->output;
    options.comm = rl->comm;
    options.max_new_tokens = r->generate_max_new_tokens * (r->rl_env ? text_env_max_turns_in_recipe(r->rl_env) : 1);
    if (r->reward) TRY(rewards_open(r->reward, r->path, &options, &rl->rewards));
    TRY(run_chat_open(&rl->recipe, rl->config && rl->config->options.resume, &rl->dated, &rl->tokenizer, &rl->chat));
    rl->sampling = generate_memory_new(rl->model);
    if (!rl->sampling) return ST_RESOURCE;
    if (rl->rewards) TRY(rewards_attach(rl->rewards, &(RewardPolicy){rl->model, rl->tokenizer, rl->chat}));
    rl->stop_id = rl->chat ? chat_end_of_turn(rl->chat) : -1;
    rl->step.rows = arena_zero(rl->arena, (size_t)(r->rl_prompts_per_step * r->rl_num_generations) * sizeof *rl->step.rows);
    return rl->step.rows ? ST_OK : ST_RESOURCE;
}

Status text_open_turns(TextRl *rl, int64_t copies, double gamma) {
    if (!rl->tokenizer) return status_fail(ST_INPUT, "a text environment needs a tokenizer, but the model directory has none");
    TRY(text_env_open(rl->recipe->rl_env, copies, &rl->turns.env));
    rl->turns.recipe = rl->recipe;
    rl->turns.gamma = gamma;
    rl->turns.model = rl->model;
    rl->turns.tokenizer = rl->tokenizer;
    rl->turns.chat = rl->chat;
    return ST_OK;
}

/* Opens a text environment instead of prompts. */
static Status open_turns(TextRl *rl) {
    const Recipe *r = rl->recipe;
    if (comm_size(rl->config->comm) > 1)
        return status_hint(status_fail(ST_CONFIG, "'rl.env' runs in one process, not on %d ranks", comm_size(rl->config->comm)),
                           "start it without the launcher");
    if (r->data_train || r->data_eval || r->eval_data || r->data_eval_split > 0)
        return status_hint(status_fail(ST_CONFIG, "'data.train' and 'rl.env' both give prompts"), "leave out data.train or rl.env");
    if (r->train_max_steps < 1)
        return status_hint(status_fail(ST_CONFIG, "'train.max_steps' is missing: an environment has no epochs"),
                           "give the number of steps of the run");
    /* Per-token rewards are already discounted by rl.gamma: discounting the turns as well would apply it twice */
    return text_open_turns(rl, r->rl_prompts_per_step * r->rl_num_generations, text_rewards_tokens(rl) ? 1 : r->rl_gamma);
}

/* Tokens per pass. Passes of about a thousand tokens are as fast as larger ones and need a fraction of their activations. But each pass computes its
 * prompts again, so a group of up to twice as many tokens is one pass. */
static int64_t pass_tokens(const TextRl *rl) {
    const Recipe *r = rl->recipe;
    int64_t group = rl->prompts.longest + r->rl_num_generations * (r->generate_max_new_tokens - 1);
    return r->train_batch_tokens > 0 ? r->train_batch_tokens : MIN(MAX(group, PASS_TOKENS), LARGE_PASS_TOKENS);
}

/* Filters change the distribution that tokens are drawn from, and the importance ratios do not account for it. */
static void warn_filters(const Recipe *r) {
    const struct {
        const char *key;
        bool used;
    } filters[] = {
        {"generate.top_k", r->generate_top_k > 0},
        {"generate.top_p", r->generate_top_p < 1},
        {"generate.min_p", r->generate_min_p > 0},
        {"generate.repetition_penalty", r->generate_repetition_penalty != 1},
    };
    for (size_t i = 0; i < COUNT_OF(filters); i++)
        if (filters[i].used)
            log_message(LOG_WARNING,
                        "'%s' filters the sampled tokens, but the loss uses probabilities before the filter: leave it out unless that is intended",
                        filters[i].key);
}

static int64_t total_of(const TextRl *rl, const Recipe *r) {
    int64_t per_epoch = (prompts_per_epoch(&rl->prompts) + r->rl_prompts_per_step - 1) / r->rl_prompts_per_step;
    return r->train_max_steps > 0 ? r->train_max_steps : (int64_t)ceil(r->train_epochs * (double)per_epoch);
}

static Status text_rl_length(void *context, const Recipe *recipe, RunLength *length) {
    const TextRl *rl = context;
    length->steps = total_of(rl, recipe);
    length->schedule_rate = text_steps_per_rollout(rl);
    length->schedule_steps = length->steps * length->schedule_rate;
    return ST_OK;
}

static Status open_parts(TextRl *rl) {
    const Recipe *r = rl->recipe;
    TRY(choose_algorithm(rl));
    if (rl->algorithm->paired) TRY(text_pairs_open(rl));
    TRY(trained_model_open_as(r, rl->config->runtime, &(ModelUse){.divides = true, .comm = rl->comm}, &rl->model));
    TRY(text_open_policy(rl, rl->reward_options));
    if (r->rl_env)
        TRY(open_turns(rl));
    else
        TRY(open_prompts(rl));
    TRY(check_lengths(rl));
    warn_filters(r);
    rl->counts.beta = r->rl_beta;
    TRY(open_values(rl));
    if ((r->rl_beta > 0 && !rl->algorithm->taught) || rl->algorithm->paired) TRY(reference_open(r, rl->comm, rl->model, &rl->reference));
    rl->pass =
        (TextPass){.tape = tape_new(rl->model->device, rl->model->compute, 0), .temperature = text_temperature(r), .max_tokens = pass_tokens(rl)};
    if (rl->algorithm->taught) TRY(text_gkd_open(rl));
    if (rl->value) rl->pass.value_head = rl->value->head;
    TRY(router_loads_open(&rl->routers, rl->model, 0));
    rl->step.pair_scratch = arena_new(0);
    rl->step.asked = arena_zero(rl->arena, (size_t)r->rl_prompts_per_step * sizeof *rl->step.asked);
    if (!rl->pass.tape || !rl->step.pair_scratch || !rl->step.asked) return status_fail(ST_RESOURCE, "out of memory for the run");
    rl->total_steps = total_of(rl, r);
    TRY(recipe_check_steps(r, rl->total_steps));
    return stepper_init(&rl->update.stepper, r, rl->total_steps * text_steps_per_rollout(rl));
}

/* ---- the run ---- */

static void say_prompts(const TextRl *rl, RunPlan *plan) {
    const Recipe *r = rl->recipe;
    const PromptSet *prompts = &rl->prompts;
    char text[128];
    run_plan_say(plan, "algorithm: %s: %s", rl->algorithm->name, rl->algorithm->help);
    if (rl->turns.env)
        run_plan_say(plan, "environment: %s; groups of %lld episode%s, %lld groups a step", text_env_id(rl->turns.env),
                     (long long)r->rl_num_generations, plural(r->rl_num_generations), (long long)r->rl_prompts_per_step);
    else
        run_plan_say(plan, "prompts: %zu, the longest %lld token%s; %lld completion%s of each, %lld prompt%s a step", prompts->n,
                     (long long)prompts->longest, plural(prompts->longest), (long long)r->rl_num_generations, plural(r->rl_num_generations),
                     (long long)r->rl_prompts_per_step, plural(r->rl_prompts_per_step));
    if (rl->eval.n) run_plan_say(plan, "held-out prompts: %zu, answered greedily", rl->eval.n);
    run_plan_form(plan, &prompts->table);
    row_notes_report(&prompts->table.notes, "data.train", run_plan_note, plan);
    data_counts_warn(&prompts->table.counts, "data.train", run_plan_warn, plan);
    if (prompts->dropped) {
        snprintf(text, sizeof text, "data.train: %lld prompt%s longer than data.max_length left out", (long long)prompts->dropped,
                 plural(prompts->dropped));
        run_plan_warn(plan, text);
    }
    if (prompts->cut) {
        snprintf(text, sizeof text, "data.train: %lld prompt%s cut to data.max_length", (long long)prompts->cut, plural(prompts->cut));
        run_plan_warn(plan, text);
    }
}

static void add_input(TaskInput *inputs, size_t *n, const char *key, uint64_t fingerprint) { inputs[(*n)++] = (TaskInput){key, fingerprint}; }

static void list_inputs(const TextRl *rl, TaskInput inputs[TASK_MAX_INPUTS]) {
    const uint64_t reference = reference_fingerprint(rl->reference), judges = rewards_fingerprint(rl->rewards);
    size_t n = 0;
    add_input(inputs, &n, "model.path", model_fingerprint(rl->model));
    add_input(inputs, &n, "data.train", prompts_fingerprint(&rl->prompts));
    if (rl->eval.n > 0) add_input(inputs, &n, "data.eval", prompts_fingerprint(&rl->eval));
    if (rl->value && rl->value->own) add_input(inputs, &n, "rl.value_model", model_fingerprint(rl->value->model));
    if (reference) add_input(inputs, &n, "rl.reference", reference);
    if (judges) add_input(inputs, &n, "reward", judges);
    if (rl->teacher) add_input(inputs, &n, "distil.teacher", model_fingerprint(rl->teacher));
}

static Status text_rl_open(void *context, RunPlan *plan) {
    TextRl *rl = context;
    TaskInput inputs[TASK_MAX_INPUTS] = {{0}};
    TRY(open_parts(rl));
    list_inputs(rl, inputs);
    TRY(rank_inputs_agree(rl->comm, rl->recipe, inputs));
    TRY(text_memory(rl, &plan->memory));
    say_prompts(rl, plan);
    if (rl->teacher) distil_teacher_say(rl->recipe, rl->teacher, plan);
    text_say_lanes(rl, plan);
    run_plan_text(plan, PLAN_RECORD, "algorithm", rl->algorithm->name);
    run_plan_count(plan, PLAN_RECORD, "prompts", (int64_t)rl->prompts.n);
    run_plan_count(plan, PLAN_PRINT, "rows", (int64_t)rl->prompts.n);
    run_plan_count(plan, PLAN_PRINT, "eval_rows", (int64_t)rl->eval.n);
    run_plan_count(plan, PLAN_BOTH, "steps", rl->total_steps);
    run_plan_model(plan, rl->recipe, rl->model, "");
    run_plan_ranks(plan, rl->recipe, rl->comm);
    run_plan_say(plan, "plan: %lld step%s", (long long)rl->total_steps, plural(rl->total_steps));
    return ST_OK;
}

static Status text_rl_begin(void *context, Run *run, RunSteps *steps) {
    TextRl *rl = context;
    rl->run = run;
    rl->doctor = rl_doctor_new();
    if (!rl->doctor) return status_fail(ST_RESOURCE, "out of memory for the run");
    TRY(optimizer_init(&rl->update.stepper.optimizer, &rl->model->params, rl->arena));
    TRY(text_division_init(rl));
    rank_record_begin(&rl->update.record, rl->comm);
    list_inputs(rl, steps->inputs);
    steps->total = rl->total_steps;
    steps->shards = accumulator_shards(&rl->update.accumulator, 0);
    return run_step(run) < 0 ? text_samples_cut(rl) : ST_OK; /* samples of a run that ended before its first checkpoint */
}

void text_release(TextRl *rl) {
    Tape *tape = rl->pass.tape;
    rl_doctor_free(rl->doctor);
    accumulator_release(&rl->update.accumulator);
    text_pass_release(&rl->pass);
    router_loads_release(&rl->routers);
    tape_free(tape);
    generate_memory_free(rl->sampling);
    experience_release(&rl->step.experience);
    experience_release(&rl->step.round);
    experience_release(&rl->step.own);
    free(rl->step.gradients);
    arena_free(rl->step.pair_scratch);
    free(rl->step.entropy_gradients);
    free(rl->step.value_gradients);
    free(rl->step.weights);
    generate_memory_free(rl->teacher_sampling);
    if (rl->teacher) model_free(rl->teacher);
    reference_free(rl->reference);
    text_value_free(rl->value);
    rewards_close(rl->rewards);
    text_env_close(rl->turns.env);
    turns_release(&rl->turns);
    prompts_free(&rl->eval);
    prompts_free(&rl->prompts);
    chat_close(rl->chat);
    tokenizer_free(rl->tokenizer);
    if (rl->model) model_free(rl->model);
    arena_free(rl->arena);
}

static void text_rl_release(void *context) { text_release(context); }

Status text_rl_run(const TrainingConfig *config, const RewardOptions *rewards, TrainResult *result) {
    static const char *const results[] = {"steps", "first_reward", "last_reward", "first_eval_reward", "last_eval_reward", "seconds", NULL};
    static const Shown shown[] = {{.metric = "reward", .label = "reward"},
                                  {.metric = "divergence", .label = "divergence", .digits = 4},
                                  {.metric = "agreement", .label = "agreement", .digits = 2},
                                  {.metric = "completion_length", .label = "length", .digits = 1},
                                  {0}};
    static const TrainingKind kind = {.open = text_rl_open,
                                      .begin = text_rl_begin,
                                      .release = text_rl_release,
                                      .length = text_rl_length,
                                      .gather = text_rl_gather,
                                      .step = text_rl_step,
                                      .evaluate = text_rl_evaluate_step,
                                      .list_state = text_rl_list_state,
                                      .resumed = text_rl_resumed,
                                      .recorded = text_rl_recorded,
                                      .finish = text_rl_finish,
                                      .summary = text_rl_summary,
                                      .results = results,
                                      .reader = &rl_report_reader,
                                      .shown = shown,
                                      .rate = "tokens",
                                      .rate_kept = true,
                                      .evaluated = "eval_reward",
                                      .has_template = true,
                                      .over_ranks = true};
    TextRl rl = {
        .config = config,
        .comm = config->comm,
        .reward_options = rewards,
        .recipe = config->recipe,
        .arena = arena_new(0),
        .counts = {.first_reward = not_known, .last_reward = not_known, .first_eval = not_known, .last_eval = not_known, .best_eval = not_known},
        .stop_id = -1};
    if (!rl.arena) return status_fail(ST_RESOURCE, "out of memory for the run");
    return training_run(&kind, &rl, &rl.recipe, config, result);
}
