/* The steps of reinforcement learning on text. */
#include "rl/text_rl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/train/loop.h"
#include "lib/train/report.h"
#include "lib/train/trained_model.h"
#include "rl/kl.h"
#include "rl/reference.h"
#include "rl/text_pass.h"

enum { PASS_TOKENS = 2048 };

static const double not_known = (double)NAN;

typedef struct TextRl {
    const TextRlConfig *config;
    const Recipe *recipe;
    const TextAlgorithm *algorithm;
    PolicyLossConfig loss;
    GroupScale scale;
    Model *model;
    Tokenizer *tokenizer;      /* NULL: prompts are ids, and rewards see no text */
    Chat *chat;
    PromptSet prompts;
    RewardSet *rewards;
    const char **reward_names; /* of their columns in metrics, where there are several; NULL before the first step */
    Reference *reference;      /* NULL: no KL */
    TextPass pass;
    Experience experience;
    const PromptRow **asked;   /* (prompts_per_step) */
    RewardRow *rows;           /* (sequences) */
    double *gradients, *entropy_gradients; /* (tokens) */
    int64_t cap_tokens;
    OptimizerConfig optimizer;
    ScheduleConfig schedule;
    Run *run;
    Arena *arena;
    int32_t stop_id;
    int64_t total_steps, began_step;
    int64_t updates;           /* optimiser steps done */
    double first_reward, last_reward;
} TextRl;

/* ---- rollouts ---- */

/* Prompt `place` of an endless stream that goes through all of them again and again, in a new order each time. */
static const PromptRow *prompt_at(const TextRl *rl, int64_t place) {
    int64_t n = (int64_t)rl->prompts.n, epoch = place / n, index = place % n;
    if (rl->recipe->data_shuffle) index = (int64_t)rng_permute(rng_key((uint64_t)rl->recipe->seed, RNG_SHUFFLE, (uint64_t)epoch), (uint64_t)n, (uint64_t)index);
    return &rl->prompts.items[index];
}

static GenerateConfig sampling(const TextRl *rl, int64_t step) {
    const Recipe *r = rl->recipe;
    return (GenerateConfig){
        .sample = {.temperature = r->generate_temperature, .top_k = r->generate_top_k, .top_p = r->generate_top_p, .min_p = r->generate_min_p, .repetition_penalty = r->generate_repetition_penalty, .typical_p = 1},
        .max_new_tokens = r->generate_max_new_tokens,
        .n = r->rl_num_generations,
        .seed = rng_u64(rng_key((uint64_t)r->seed, RNG_SAMPLE, (uint64_t)step), 0),
        .n_stop = r->generate_stop.n,
        .stop = r->generate_stop.items,
        .n_stop_ids = rl->stop_id >= 0,
        .stop_ids = &rl->stop_id,
    };
}

static Status reserve(TextRl *rl) {
    int64_t n = rl->experience.n_tokens;
    if (n <= rl->cap_tokens) return ST_OK;
    double *gradients = realloc(rl->gradients, (size_t)n * sizeof *gradients);
    if (gradients) rl->gradients = gradients;
    double *entropies = realloc(rl->entropy_gradients, (size_t)n * sizeof *entropies);
    if (entropies) rl->entropy_gradients = entropies;
    if (!gradients || !entropies) return status_fail(ST_RESOURCE, "out of memory for %lld tokens", (long long)n);
    rl->cap_tokens = n;
    return ST_OK;
}

static Status roll_out(TextRl *rl, int64_t step) {
    int64_t n = rl->recipe->rl_prompts_per_step;
    GenerateConfig config = sampling(rl, step);
    for (int64_t i = 0; i < n; i++) rl->asked[i] = prompt_at(rl, step * n + i);
    TRY(experience_sample(rl->model, rl->tokenizer, rl->asked, (size_t)n, &config, &rl->experience));
    Experience *e = &rl->experience;
    for (int64_t i = 0; rl->recipe->rl_mask_truncated && i < e->n; i++)
        for (int64_t t = e->begin[i]; t < e->begin[i + 1]; t++) e->trained[t] = e->ended[i];
    return reserve(rl);
}

/* ---- rewards ---- */

static Slice prompt_text(const PromptRow *row) {
    const char *text = json_string_value(json_object_get(row->json, "prompt"));
    return (Slice){text ? text : "", text ? strlen(text) : 0};
}

enum { REWARD_COLUMNS = 24 };

/* The mean of each reward, where there are several. */
static Status rewards_tell(TextRl *rl, const RewardScores *scores, Metrics *metrics) {
    size_t n = scores->n_columns > 1 ? MIN(scores->n_columns, (size_t)REWARD_COLUMNS) : 0;
    if (n > 0 && !rl->reward_names) {
        rl->reward_names = arena_zero(rl->arena, REWARD_COLUMNS * sizeof *rl->reward_names);
        if (!rl->reward_names) return ST_RESOURCE;
    }
    for (size_t k = 0; k < n; k++) {
        double sum = 0;
        int64_t known = 0;
        for (size_t i = 0; i < scores->n_rows; i++) {
            if (isnan(scores->columns[k].values[i])) continue;
            sum += scores->columns[k].values[i];
            known++;
        }
        if (!rl->reward_names[k]) rl->reward_names[k] = arena_printf(rl->arena, "reward/%s", scores->columns[k].name);
        if (!rl->reward_names[k]) return ST_RESOURCE;
        metric_set(metrics, rl->reward_names[k], known > 0 ? sum / (double)known : not_known);
    }
    return ST_OK;
}

static Status judge(TextRl *rl, Metrics *metrics) {
    Experience *e = &rl->experience;
    for (int64_t i = 0; i < e->n; i++) {
        const PromptRow *prompt = e->prompts[i / e->group_size];
        rl->rows[i] = (RewardRow){
            .number = (int64_t)prompt->line,
            .prompt = prompt_text(prompt),
            .completion = {str_text(&e->texts[i]), e->texts[i].len},
            .prompt_ids = prompt->ids.data,
            .n_prompt_ids = prompt->ids.n,
            .completion_ids = e->ids + e->begin[i],
            .n_completion_ids = (size_t)(e->begin[i + 1] - e->begin[i]),
            .finish_reason = e->ended[i] ? "stop" : "length",
            .columns = prompt->json,
        };
    }
    const RewardScores *scores;
    TRY(rewards_score(rl->rewards, rl->rows, (size_t)e->n, &scores));
    for (int64_t i = 0; i < e->n; i++) e->rewards[i] = scores->sums[i] - (e->ended[i] ? 0 : rl->recipe->rl_missing_eos_penalty);
    return rewards_tell(rl, scores, metrics);
}

static void describe(const TextRl *rl, Metrics *metrics) {
    const Experience *e = &rl->experience;
    double sum = 0, square = 0, ended = 0, flat = 0;
    for (int64_t i = 0; i < e->n; i++) {
        sum += e->rewards[i];
        square += e->rewards[i] * e->rewards[i];
        ended += e->ended[i];
    }
    for (int64_t g = 0; g < e->n_groups; g++) flat += group_is_flat(e->rewards + g * e->group_size, e->group_size);
    double n = (double)e->n, mean = sum / n;
    metric_set(metrics, "reward", mean);
    metric_set(metrics, "reward_std", sqrt(fmax(0, square / n - mean * mean)));
    metric_set(metrics, "zero_std_fraction", flat / (double)e->n_groups);
    metric_set(metrics, "completion_length", (double)e->n_tokens / n);
    metric_set(metrics, "eos_fraction", ended / n);
}

/* ---- passes that learn nothing: log-probs under the policy as it is, or under the reference ---- */

static Status logprobs_of(TextRl *rl, const Model *model, double *logprobs) {
    Experience *e = &rl->experience;
    Status status = ST_OK;
    tape_record(rl->pass.tape, false);
    for (int64_t i = 0, n; i < e->n && status == ST_OK; i += n) {
        n = text_pass_fit(&rl->pass, e, i, e->n);
        status = interrupt_requested() ? ST_INTERRUPTED : text_pass_forward(&rl->pass, model, e, i, n, &(TextResults){.logprobs = logprobs + e->begin[i]});
    }
    tape_record(rl->pass.tape, true);
    return status;
}

static Status ask_reference(TextRl *rl) {
    if (!rl->reference) return ST_OK;
    const Model *model = reference_begin(rl->reference);
    Status status = logprobs_of(rl, model, rl->experience.ref_logprobs);
    reference_end(rl->reference);
    return status;
}

static bool kl_in_reward(const TextRl *rl) { return rl->recipe->rl_beta > 0 && (rl->algorithm->token_kl || strcmp(rl->recipe->rl_kl_in, "reward") == 0); }

static int64_t steps_per_rollout(const TextRl *rl) { return rl->recipe->rl_num_iterations * rl->recipe->rl_num_minibatches; }

/* With one optimiser step a rollout the policy that learns is the one that sampled: every ratio is exactly 1, and nothing is computed twice. */
static bool needs_old(const TextRl *rl) { return steps_per_rollout(rl) > 1 || kl_in_reward(rl) || rl->algorithm->token_kl; }

static Status weigh(TextRl *rl) {
    Experience *e = &rl->experience;
    TRY(ask_reference(rl));
    if (needs_old(rl)) TRY(logprobs_of(rl, rl->model, e->old_logprobs));
    if (!rl->reference) memcpy(e->ref_logprobs, e->old_logprobs, (size_t)e->n_tokens * sizeof(double));
    if (kl_in_reward(rl) && !rl->algorithm->token_kl)
        kl_scores(kl_from_text(rl->recipe->rl_kl), rl->recipe->rl_beta, e->old_logprobs, e->ref_logprobs, e->n, e->begin, e->rewards);
    rl->algorithm->advantages(rl->recipe, rl->scale, e);
    return ST_OK;
}

/* ---- learning ---- */

/* Sums over the tokens of a step's passes. */
typedef struct Sums { double loss, kl, entropy, clip_low, clip_high, approx_kl, grad_norm, diff; int64_t tokens, updates; } Sums;

static void add(Sums *sums, const PolicyMetrics *m) {
    double n = (double)m->tokens;
    sums->loss += m->loss;
    sums->kl += m->kl * n;
    sums->entropy += m->entropy * n;
    sums->clip_low += m->clip_low * n;
    sums->clip_high += m->clip_high * n;
    sums->approx_kl += m->approx_kl * n;
    sums->tokens += m->tokens;
}

/* How far the trainer's numbers are from the sampler's, before anything was learned. */
static Status compare(TextRl *rl, const double *logprobs, int64_t begin, int64_t end, Sums *sums) {
    const Experience *e = &rl->experience;
    for (int64_t t = begin; t < end; t++) sums->diff = fmax(sums->diff, fabs(logprobs[t] - e->sampled[t]));
    if (isnan(rl->recipe->rl_max_logprob_diff) || sums->diff <= rl->recipe->rl_max_logprob_diff) return ST_OK;
    status_fail(ST_NUMERIC, "the sampler's and the trainer's log-probabilities differ by %.3g, more than rl.max_logprob_diff %.3g", sums->diff, rl->recipe->rl_max_logprob_diff);
    return status_hint(ST_NUMERIC, "model.compute: f32 brings them together");
}

static Status learn_from(TextRl *rl, int64_t first, int64_t n, PolicyLossConfig *loss, bool fresh, Sums *sums) {
    Experience *e = &rl->experience;
    int64_t begin = e->begin[first], tokens = e->begin[first + n] - begin;
    TextResults results = {.logprobs = e->logprobs + begin, .entropies = e->entropies + begin};
    TRY(text_pass_forward(&rl->pass, rl->model, e, first, n, &results));
    if (fresh) TRY(compare(rl, e->logprobs, begin, begin + tokens, sums));
    PolicyBatch batch = {
        .n_sequences = n,
        .begin = e->begin + first,
        .logprobs = e->logprobs,
        .old_logprobs = steps_per_rollout(rl) > 1 ? e->old_logprobs : NULL,
        .ref_logprobs = rl->reference ? e->ref_logprobs : NULL,
        .advantages = e->advantages,
        .entropies = e->entropies,
        .trained = e->trained,
    };
    PolicyMetrics metrics;
    policy_loss(policy_loss_find(rl->algorithm->loss), loss, &batch, rl->gradients, &metrics);
    if (!isfinite(metrics.loss)) return status_hint(status_fail(ST_NUMERIC, "the loss is not finite in optimiser step %lld", (long long)rl->updates + 1), "lower train.learning_rate");
    add(sums, &metrics);
    for (int64_t t = begin; t < begin + tokens; t++) rl->entropy_gradients[t] = e->trained[t] ? metrics.grad_entropy : 0;
    return text_pass_backward(&rl->pass, &(TextGradients){.logprobs = rl->gradients + begin, .entropies = rl->recipe->rl_ent_coef != 0 ? rl->entropy_gradients + begin : NULL});
}

static Status update_weights(TextRl *rl, Sums *sums) {
    Params *params = &rl->model->params;
    double norm = params_grad_norm(params);
    if (!isfinite(norm)) return status_hint(status_fail(ST_NUMERIC, "the gradient is not finite in optimiser step %lld", (long long)rl->updates + 1), "lower train.learning_rate");
    double lr = rl->recipe->train_learning_rate * schedule_factor(&rl->schedule, rl->updates);
    optimizer_step(&rl->optimizer, params, clip_scale(norm, rl->recipe->train_max_grad_norm), lr, rl->updates + 1);
    params_zero_grad(params);
    sums->grad_norm += norm;
    sums->updates++;
    rl->updates++;
    return ST_OK;
}

/* One optimiser step on the sequences first .. end - 1. Whole groups, so that prompts are shared. */
static Status learn_minibatch(TextRl *rl, int64_t first, int64_t end, bool fresh, Sums *sums) {
    const Experience *e = &rl->experience;
    PolicyLossConfig loss = rl->loss;
    loss.total_sequences = end - first;
    for (int64_t t = e->begin[first]; t < e->begin[end]; t++) loss.total_tokens += e->trained[t];
    if (loss.total_tokens == 0) return ST_OK;
    for (int64_t i = first, n; i < end; i += n) {
        if (sums->updates == 0 && interrupt_requested()) return ST_INTERRUPTED; /* later the step is finished first: half of it could not be done again */
        n = text_pass_fit(&rl->pass, e, i, end);
        TRY(learn_from(rl, i, n, &loss, fresh, sums));
    }
    return update_weights(rl, sums);
}

static Status learn(TextRl *rl, Sums *sums) {
    const Experience *e = &rl->experience;
    int64_t parts = MIN(rl->recipe->rl_num_minibatches, e->n_groups);
    for (int64_t pass = 0; pass < rl->recipe->rl_num_iterations; pass++)
        for (int64_t part = 0; part < parts; part++) {
            int64_t first = part * e->n_groups / parts * e->group_size, end = (part + 1) * e->n_groups / parts * e->group_size;
            TRY(learn_minibatch(rl, first, end, pass == 0 && part == 0, sums));
        }
    return ST_OK;
}

static void report(const TextRl *rl, const Sums *sums, Metrics *metrics) {
    double n = fmax(1, (double)sums->tokens), updates = fmax(1, (double)sums->updates);
    metric_set(metrics, "loss", sums->loss / updates);
    metric_set(metrics, "grad_norm", sums->grad_norm / updates);
    metric_set(metrics, "learning_rate", rl->recipe->train_learning_rate * schedule_factor(&rl->schedule, MAX(rl->updates - 1, 0)));
    metric_set(metrics, "kl", rl->reference ? sums->kl / n : not_known);
    metric_set(metrics, "entropy", sums->entropy / n);
    metric_set(metrics, "clip_fraction", (sums->clip_low + sums->clip_high) / n);
    metric_set(metrics, "approx_kl", sums->approx_kl / n);
    metric_set(metrics, "sampler_logprob_diff", sums->diff);
    metric_count(metrics, "tokens", rl->experience.n_tokens);
}

/* ---- samples.jsonl ---- */

/* JSON readers stop at a zero byte, so it is shown as its picture. */
static void write_text(JsonWriter *w, const char *key, const char *text, size_t len) {
    Str shown = {0};
    for (size_t i = 0; i < len; i++) {
        if (text[i]) str_append_char(&shown, text[i]);
        else str_append(&shown, "\xE2\x90\x80");
    }
    jw_string_n(w, key, str_text(&shown), shown.len);
    str_release(&shown);
}

static Status write_samples(const TextRl *rl, int64_t step) {
    const Experience *e = &rl->experience;
    int64_t every = rl->recipe->rl_samples_every;
    if (every == 0 || (step % every != 0 && step + 1 != rl->total_steps)) return ST_OK;
    Str lines = {0};
    for (int64_t i = 0; i < MIN(e->n, 2 * e->group_size); i++) {
        JsonWriter w = {0};
        Slice prompt = prompt_text(e->prompts[i / e->group_size]);
        jw_object(&w, NULL);
        jw_int(&w, "step", step + 1);
        write_text(&w, "prompt", prompt.data, prompt.len);
        write_text(&w, "completion", str_text(&e->texts[i]), e->texts[i].len);
        jw_double(&w, "reward", e->rewards[i]);
        jw_double(&w, "advantage", e->advantages[e->begin[i]]);
        jw_string(&w, "finish_reason", e->ended[i] ? "stop" : "length");
        jw_end_object(&w);
        str_append_n(&lines, str_text(&w.text), w.text.len);
        str_append_char(&lines, '\n');
        jw_release(&w);
    }
    Status status = file_append(run_path(rl->run, "samples.jsonl"), str_text(&lines), lines.len);
    str_release(&lines);
    return status;
}

/* A resumed run samples the same again: what lies behind its checkpoint goes. */
static Status cut_samples(const TextRl *rl, int64_t steps) {
    const char *path = run_path(rl->run, "samples.jsonl");
    Str text = {0}, kept = {0};
    if (!path) return ST_RESOURCE;
    if (!file_exists(path)) return ST_OK;
    TRY(file_read(path, (size_t)1 << 32, &text));
    for (const char *line = str_text(&text), *end; (end = strchr(line, '\n')); line = end + 1) {
        long long step = 0;
        if (sscanf(line, "{\"step\": %lld", &step) == 1 && step <= steps) str_append_n(&kept, line, (size_t)(end + 1 - line));
    }
    Status status = file_write_all(path, str_text(&kept), kept.len);
    str_release(&text);
    str_release(&kept);
    return status;
}

/* ---- what the loop asks ---- */

static bool done(void *context) {
    const TextRl *rl = context;
    return rl->updates >= rl->total_steps * steps_per_rollout(rl);
}

static Status step(void *context, int64_t number, Metrics *metrics) {
    TextRl *rl = context;
    Sums sums = {0};
    if (rl->began_step < 0) {
        rl->began_step = number;
        TRY(cut_samples(rl, number));
    }
    TRY(roll_out(rl, number));
    TRY(judge(rl, metrics));
    describe(rl, metrics);
    TRY(weigh(rl));
    TRY(learn(rl, &sums));
    rl->updates = (number + 1) * steps_per_rollout(rl); /* minibatches without a trained token take part in the count */
    report(rl, &sums, metrics);
    metric_set(metrics, "epoch", (double)((number + 1) * rl->recipe->rl_prompts_per_step) / (double)rl->prompts.n);
    rl->last_reward = metric_get(metrics, "reward");
    if (number == 0) rl->first_reward = rl->last_reward;
    return write_samples(rl, number);
}

static void keep(void *context, Keeper *keeper) {
    TextRl *rl = context;
    keep_weights(keeper, &rl->model->params);
    keep_optimizer(keeper, &rl->model->params);
    keep_count(keeper, "updates", &rl->updates);
    keep_real(keeper, "first_reward", &rl->first_reward);
    keep_real(keeper, "last_reward", &rl->last_reward);
}

static void on_step(void *context, int64_t number, const Metrics *metrics, double seconds, double elapsed) {
    const TextRl *rl = context;
    if (!rl->config->on_progress) return;
    double each = elapsed / fmax(1, (double)(number - rl->began_step));
    rl->config->on_progress(rl->config->context, &(TextRlProgress){
                                                     .step = number,
                                                     .total_steps = rl->total_steps,
                                                     .reward = metric_get(metrics, "reward"),
                                                     .completion_length = metric_get(metrics, "completion_length"),
                                                     .tokens_per_second = metric_get(metrics, "tokens") / fmax(seconds, 1e-9),
                                                     .seconds_left = each * (double)(rl->total_steps - number),
                                                 });
}

static Status finish(void *context, Run *run) {
    const TextRl *rl = context;
    return trained_model_save(rl->recipe, rl->model, run_dir(run));
}

static json_t *real_or_null(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static json_t *summary(void *context) {
    const TextRl *rl = context;
    return json_pack("{s:o, s:o}", "first_reward", real_or_null(rl->first_reward), "last_reward", real_or_null(rl->last_reward));
}

/* ---- opening ---- */

static Status choose_algorithm(TextRl *rl) {
    const Recipe *r = rl->recipe;
    rl->algorithm = text_algorithm_find(r->rl_algorithm);
    if (!rl->algorithm) {
        status_fail(ST_CONFIG, "'rl.algorithm: %s' needs an environment", r->rl_algorithm);
        return status_hint(ST_CONFIG, "give rl.env, or an algorithm for text such as grpo, rloo, reinforce++");
    }
    if (r->rl_num_generations < rl->algorithm->least_group) {
        status_fail(ST_CONFIG, "algorithm '%s' compares completions of the same prompt, and rl.num_generations is %lld", r->rl_algorithm, (long long)r->rl_num_generations);
        return status_hint(ST_CONFIG, "take at least %lld", (long long)rl->algorithm->least_group);
    }
    if (r->generate_temperature <= 0 || r->generate_greedy) return status_hint(status_fail(ST_CONFIG, "a policy gradient samples, and generate asks for greedy answers"), "set generate.temperature above 0");
    if (r->has_lora && r->lora_dropout > 0)
        return status_hint(status_fail(ST_CONFIG, "'lora.dropout' would make the trainer's log-probabilities differ from the sampler's"), "leave it at 0 for rl");
    if (!r->reward) return status_hint(status_fail(ST_CONFIG, "'reward' is missing"), "say what is good: reward: [{type: exact}]");
    rl->scale = r->rl_scale_rewards ? group_scale_from_text(r->rl_scale_rewards) : rl->algorithm->scale;
    rl->loss = (PolicyLossConfig){
        .clip = r->rl_clip,
        .clip_high = isnan(r->rl_clip_high) ? rl->algorithm->clip_high : r->rl_clip_high,
        .beta = kl_in_reward(rl) ? 0 : r->rl_beta,
        .kl = kl_from_text(r->rl_kl),
        .ent_coef = r->rl_ent_coef,
        .aggregation = aggregation_from_text(r->rl_loss_aggregation),
        .max_length = r->generate_max_new_tokens,
    };
    return ST_OK;
}

static Status check_lengths(const TextRl *rl) {
    const ModelConfig *config = &rl->model->config;
    int64_t whole = rl->prompts.longest + rl->recipe->generate_max_new_tokens;
    if (!config->learned_positions || whole <= config->max_position_embeddings) return ST_OK;
    status_fail(ST_CONFIG, "the longest prompt with its completion has %lld tokens, more than the %lld that the model has positions for", (long long)whole, (long long)config->max_position_embeddings);
    return status_hint(ST_CONFIG, "lower generate.max_new_tokens or data.max_length");
}

static Status open_parts(TextRl *rl) {
    const Recipe *r = rl->recipe;
    RewardOptions options = rl->config->rewards;
    options.max_new_tokens = r->generate_max_new_tokens;
    TRY(choose_algorithm(rl));
    TRY(rewards_open(r->reward, r->path, &options, &rl->rewards));
    TRY(trained_model_open(r, &rl->model));
    TRY(tokenizer_load_if_any(r->model_path, &rl->tokenizer));
    if (rl->tokenizer) TRY(chat_open(r->model_path, r->model_chat_template, r->data_now, rl->tokenizer, &rl->chat));
    rl->stop_id = rl->chat ? chat_end_of_turn(rl->chat) : -1;
    TRY(prompts_read(r->data_train, "data.train", r, &rl->model->config, rl->chat, rl->tokenizer, &rl->prompts));
    TRY(check_lengths(rl));
    if (r->rl_beta > 0) TRY(reference_open(r, rl->model, &rl->reference));
    rl->pass = (TextPass){.tape = tape_new(device_cpu(), rl->model->compute, 0), .temperature = r->generate_temperature, .max_tokens = r->train_batch_tokens > 0 ? r->train_batch_tokens : PASS_TOKENS};
    rl->asked = arena_zero(rl->arena, (size_t)r->rl_prompts_per_step * sizeof *rl->asked);
    rl->rows = arena_zero(rl->arena, (size_t)(r->rl_prompts_per_step * r->rl_num_generations) * sizeof *rl->rows);
    if (!rl->pass.tape || !rl->asked || !rl->rows) return status_fail(ST_RESOURCE, "out of memory for the run");
    int64_t per_epoch = ((int64_t)rl->prompts.n + r->rl_prompts_per_step - 1) / r->rl_prompts_per_step;
    rl->total_steps = r->train_max_steps > 0 ? r->train_max_steps : (int64_t)ceil(r->train_epochs * (double)per_epoch);
    if (rl->total_steps < 1) return status_fail(ST_CONFIG, "'train.epochs' leaves no step to do");
    TRY(recipe_optimizer(r, &rl->optimizer));
    TRY(recipe_schedule(r, rl->total_steps * steps_per_rollout(rl), &rl->schedule));
    return optimizer_init(&rl->optimizer, &rl->model->params, rl->arena);
}

/* ---- the run ---- */

static Status write_started(const TextRl *rl) {
    const char *path = run_path(rl->run, "started.json");
    if (!path) return ST_RESOURCE;
    if (run_resumed(rl->run) && file_exists(path)) return ST_OK;
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "program", rl->recipe->program);
    jw_string(&w, "command", rl->config->command);
    jw_string(&w, "algorithm", rl->algorithm->name);
    jw_int(&w, "steps", rl->total_steps);
    jw_int(&w, "prompts", (int64_t)rl->prompts.n);
    jw_int(&w, "parameters", params_count(&rl->model->params, false));
    jw_int(&w, "trained_parameters", params_count(&rl->model->params, true));
    jw_end_object(&w);
    str_append_char(&w.text, '\n');
    Status status = file_write_all(path, str_text(&w.text), w.text.len);
    jw_release(&w);
    return status;
}

static void write_report(Run *run) {
    const char *dir = run_dir(run), *path = run_path(run, "report.html");
    if (path && report_write(&dir, 1, path, NULL) != ST_OK) run_warn(run, "no report.html: %s", status_text());
}

static double real_of(const json_t *json, const char *key) {
    const json_t *value = json_object_get(json, key);
    return json_is_number(value) ? json_number_value(value) : not_known;
}

static Status already_finished(const Run *run, TextRlResult *result) {
    json_t *json;
    TRY(run_summary(run, &json));
    *result = (TextRlResult){.already_finished = true, .first_reward = real_of(json, "first_reward"), .last_reward = real_of(json, "last_reward"), .seconds = real_of(json, "seconds")};
    Status status = json_get_int(json, "finished.json", "steps", &result->steps);
    json_decref(json);
    return status;
}

static Status begin(TextRl *rl, TextRlResult *result) {
    const TextRlConfig *config = rl->config;
    bool finished = false;
    LoopResult all;
    if (!config->dry_run) TRY(run_check(rl->recipe, config->resume, &finished));
    if (!finished) TRY(open_parts(rl));
    if (!config->dry_run) TRY(run_open(rl->recipe, config->resume, &rl->run));
    if (finished) return already_finished(rl->run, result);
    if (config->on_plan) {
        const Params *params = &rl->model->params;
        TextRlPlan plan = {rl->algorithm, rl->prompts.n, rewards_count(rl->rewards), rl->prompts.longest, rl->total_steps, params_count(params, false), params_count(params, true), rl->prompts.dropped, rl->prompts.cut, rl->model->compute};
        config->on_plan(config->context, &plan);
    }
    if (config->dry_run) return ST_OK;
    TRY(write_started(rl));
    LoopTask task = {
        .context = rl,
        .inputs = {{"model.path", params_fingerprint(&rl->model->params)}, {"data.train", prompts_fingerprint(&rl->prompts)}},
        .done = done, .step = step, .keep = keep, .rate = "tokens", .on_step = on_step, .finish = finish, .summary = summary,
    };
    TRY(loop_run(rl->recipe, rl->run, &task, &all));
    *result = (TextRlResult){all.steps, rl->first_reward, rl->last_reward, all.seconds, false};
    return ST_OK;
}

static void release(TextRl *rl) {
    Tape *tape = rl->pass.tape;
    text_pass_release(&rl->pass);
    tape_free(tape);
    experience_release(&rl->experience);
    free(rl->gradients);
    free(rl->entropy_gradients);
    reference_free(rl->reference);
    rewards_close(rl->rewards);
    prompts_free(&rl->prompts);
    chat_close(rl->chat);
    tokenizer_free(rl->tokenizer);
    if (rl->model) model_free(rl->model);
    arena_free(rl->arena);
}

Status text_rl_run(const TextRlConfig *config, TextRlResult *result) {
    *result = (TextRlResult){.first_reward = not_known, .last_reward = not_known};
    TextRl rl = {.config = config, .recipe = config->recipe, .arena = arena_new(0), .began_step = -1, .first_reward = not_known, .last_reward = not_known, .stop_id = -1};
    if (!rl.arena) return status_fail(ST_RESOURCE, "out of memory for the run");
    Status status = begin(&rl, result);
    if (status == ST_OK && rl.run && !result->already_finished) write_report(rl.run);
    run_close(rl.run);
    release(&rl);
    return status;
}
