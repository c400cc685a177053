/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluates a run on text: rewards of greedy answers to held-out prompts. */
#include "lib/train/trained_model.h"
#include "lib/train/train.h"
#include "rl/text/text_run.h"
#include "lib/model/adapter.h"

#include <math.h>
#include <stdlib.h>

enum { EPISODES = 64 }; /* at a time */

bool text_evaluate_due(const TextRl *rl, int64_t step) {
    int64_t every = rl->recipe->train_eval_every;
    return rl->eval.n > 0 && (step == 0 || step == rl->total_steps || (every > 0 && step % every == 0));
}

/* Takes as many prompts at a time as a rollout has completions, as the memory plan assumes (text_memory.c). */
static Status ask_all(TextRl *rl, const PromptRow **asked, RolloutSums *sums) {
    GenerateConfig config = text_sampling(rl, 0);
    size_t most = (size_t)(rl->recipe->rl_prompts_per_step * rl->recipe->rl_num_generations);
    config.sample.greedy = true;
    config.n = 1;
    for (size_t i = 0; i < rl->eval.n; i++) asked[i] = &rl->eval.items[i];
    for (size_t first = 0, n; first < rl->eval.n; first += n) {
        n = MIN(most, rl->eval.n - first);
        TRY(text_sample(rl, rl->model, asked + first, n, first, &config, &rl->step.round));
        TRY(text_score(rl, &rl->step.round, sums));
    }
    return ST_OK;
}

Status text_evaluate(TextRl *rl, RolloutSums *sums) {
    const PromptRow **asked = malloc((rl->eval.n + 1) * sizeof *asked);
    *sums = (RolloutSums){0};
    Status status = asked ? ask_all(rl, asked, sums) : status_fail(ST_RESOURCE, "out of memory for %zu prompts", rl->eval.n);
    free(asked);
    return status;
}

Status text_evaluate_report(TextRl *rl, const RolloutSums *sums, Metrics *metrics) {
    double n = sums->completions;
    metric_set(metrics, "eval_reward", tally_mean(&sums->rewards));
    metric_set(metrics, "eval_reward_std", tally_std(&sums->rewards));
    metric_set(metrics, "eval_completion_length", sums->tokens / n);
    metric_set(metrics, "eval_eos_fraction", sums->ended / n);
    return text_columns_report(rl, sums, "eval_reward", "eval_reward_numbers_missing", "eval_reward_unjudged", metrics);
}

/* ---- a finished run ---- */

static Status describe(const TextRl *rl, const RolloutSums *sums, TextEvaluation *evaluation) {
    double n = sums->completions;
    evaluation->rows = rl->eval.n;
    evaluation->reward = tally_mean(&sums->rewards);
    evaluation->reward_std = tally_std(&sums->rewards);
    evaluation->completion_length = sums->tokens / n;
    evaluation->eos_fraction = sums->ended / n;
    evaluation->names = arena_zero(evaluation->arena, REWARD_COLUMNS * sizeof *evaluation->names);
    evaluation->columns = arena_zero(evaluation->arena, REWARD_COLUMNS * sizeof *evaluation->columns);
    if (!evaluation->names || !evaluation->columns) return ST_RESOURCE;
    for (size_t k = 0; sums->n_columns > 1 && k < sums->n_columns; k++) {
        evaluation->names[k] = arena_strdup(evaluation->arena, sums->columns[k].name);
        evaluation->columns[k] = reward_sum_mean(&sums->columns[k]);
        evaluation->n_columns++;
    }
    return ST_OK;
}

static Status read_recipe(const char *dir, const char *data, Arena *arena, Recipe **recipe) {
    const char *path = path_join(arena, dir, "recipe.yaml"),
               *changes[] = {"data.eval_split=0", "eval.data=null", data ? arena_printf(arena, "data.eval=%s", data) : ""};
    if (!path || !changes[2]) return ST_RESOURCE;
    TRY(recipe_read(path, changes, data ? COUNT_OF(changes) : 0, recipe));
    recipe_set_old_defaults(*recipe);
    return ST_OK;
}

/* Points the recipe at the trained result of the run instead of the initial model. */
static Status open_trained(const Recipe *recipe, const Device *device, Comm *comm, const char *dir, Arena *arena, Model **model) {
    const char *adapter = path_join(arena, dir, "adapter"), *whole = path_join(arena, dir, "model");
    if (!adapter || !whole) return ST_RESOURCE;
    bool lora = dir_exists(adapter);
    if (!lora && !dir_exists(whole))
        return status_hint(status_fail(ST_INPUT, "'%s' holds neither an adapter nor a model", dir), "finish the run: tune rl RECIPE --resume");
    ModelOptions options = {.device = device, .compute = recipe_compute(recipe), .comm = recipe_sharing(recipe, comm)};
    const char *base = whole;
    if (lora) TRY(trained_base(recipe, adapter, arena, &base));
    TRY(model_load(base, &options, model));
    return lora ? adapter_load(*model, adapter, false) : ST_OK;
}

static Status open_eval(TextRl *rl) {
    const Recipe *r = rl->recipe;
    const char *key;
    const Yaml *eval = recipe_eval_rows(r, &key);
    if (eval) return text_prompts_read(rl, eval, key, &rl->eval);
    if (r->data_eval_split <= 0) return status_hint(status_fail(ST_CONFIG, "the run's recipe has no held-out prompts"), "name a file: --data FILE");
    TRY(text_prompts_read(rl, r->data_train, "data.train", &rl->prompts));
    return prompts_split(&rl->prompts, r->data_eval_split, (uint64_t)r->seed, &rl->eval);
}

/* Opens the run, calls `judge`, closes the run. */
static Status evaluate_run(const Device *device, Comm *comm, const char *dir, const char *data, const RewardOptions *rewards,
                           Status (*judge)(TextRl *rl, void *context, TextEvaluation *evaluation), void *context, TextEvaluation *evaluation) {
    *evaluation = (TextEvaluation){.arena = arena_new(0)};
    TextRl rl = {.comm = comm, .arena = arena_new(0), .stop_id = -1};
    Recipe *recipe = NULL;
    Status status = evaluation->arena && rl.arena ? read_recipe(dir, data, rl.arena, &recipe) : ST_RESOURCE;
    rl.recipe = recipe;
    if (status == ST_OK) status = open_trained(recipe, device, comm, dir, rl.arena, &rl.model);
    if (status == ST_OK) status = text_open_policy(&rl, rewards);
    if (status == ST_OK) status = judge(&rl, context, evaluation);
    text_release(&rl);
    if (recipe) recipe_free(recipe);
    return status;
}

static Status ask_prompts(TextRl *rl, void *context, TextEvaluation *evaluation) {
    (void)context;
    RolloutSums sums;
    CommFact fact = {"model", "", ST_INPUT};
    if (comm_size(rl->comm) > 1) comm_fact_hash(&fact, model_fingerprint(rl->model));
    TRY(comm_agree(rl->comm, &fact, 1));
    TRY(open_eval(rl));
    TRY(text_evaluate(rl, &sums));
    return describe(rl, &sums, evaluation);
}

Status text_rl_evaluate(const Device *device, Comm *comm, const char *dir, const char *data, const RewardOptions *rewards,
                        TextEvaluation *evaluation) {
    return evaluate_run(device, comm, dir, data, rewards, ask_prompts, NULL, evaluation);
}

/* ---- episodes ---- */

static bool succeeded(const Experience *e, int64_t i) {
    double earned = 0;
    for (int64_t t = e->begin[i]; t < e->begin[i + 1]; t++) earned += e->earned[t];
    return e->ended[i] && earned > 0;
}

static Status play_batch(TextRl *rl, const TextPlay *play, int64_t first, int64_t n, RolloutSums *sums, TextEvaluation *evaluation) {
    GenerateConfig config = text_sampling(rl, 0);
    config.sample.greedy = !play->sample;
    config.seed = play->seed;
    config.n = 1;
    TRY(turns_begin(&rl->turns, (size_t)n));
    TRY(turns_sample(&rl->turns, n, (uint64_t)first, &config, &rl->step.round));
    for (int64_t i = 0; i < n; i++) evaluation->success += succeeded(&rl->step.round, i);
    evaluation->turns += rl->turns.played;
    TRY(text_score(rl, &rl->step.round, sums));
    for (int64_t i = 0; i < n && play->on_episode; i++)
        play->on_episode(play->context, first + i + 1, text_prompt(rl->step.round.prompts[i]).data, str_text(&rl->step.round.texts[i]),
                         rl->step.round.rewards[i]);
    return ST_OK;
}

static Status play_episodes(TextRl *rl, void *context, TextEvaluation *evaluation) {
    const TextPlay *play = context;
    int64_t most = MIN(MIN(EPISODES, rl->recipe->rl_prompts_per_step * rl->recipe->rl_num_generations), play->episodes);
    RolloutSums sums = {0};
    TRY(text_open_turns(rl, most, 1));
    for (int64_t first = 0; first < play->episodes; first += most)
        TRY(play_batch(rl, play, first, MIN(most, play->episodes - first), &sums, evaluation));
    TRY(describe(rl, &sums, evaluation));
    evaluation->rows = (size_t)play->episodes;
    evaluation->turns /= (double)play->episodes;
    evaluation->success /= (double)play->episodes;
    return ST_OK;
}

Status text_rl_play(const char *dir, const TextPlay *play, TextEvaluation *evaluation) {
    return evaluate_run(play->device, NULL, dir, NULL, &play->rewards, play_episodes, (void *)(uintptr_t)play, evaluation);
}
