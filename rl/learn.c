/* The loop around an algorithm: updates, metrics, checkpoints, and the same bytes whether it was interrupted or not. */
#include "rl/learn.h"

#include "lib/train/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double not_known = (double)NAN;

typedef struct Learn {
    const LearnConfig *config;
    const Recipe *recipe;
    Learner *learner;
    Run *run;
    Keeper keeper;
    double last_reward, best_reward;
    int64_t saved_update;   /* of the newest checkpoint; -1: none */
    double began, seconds_before;
    int64_t began_steps;
} Learn;

static double elapsed(const Learn *learn) { return learn->seconds_before + (clock_seconds() - learn->began); }

static bool done(const Learn *learn) { return learn->learner->steps >= learn->recipe->rl_total_steps; }

/* ---- checkpoints ---- */

static json_t *real_or_null(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static double real_of(const json_t *state, const char *key) {
    const json_t *value = json_object_get(state, key);
    return json_is_number(value) ? json_number_value(value) : not_known;
}

static json_t *state_to_json(const Learn *learn) {
    const Learner *learner = learn->learner;
    return json_pack("{s:I, s:I, s:I, s:o, s:o, s:f}", "updates", (json_int_t)learner->updates, "steps", (json_int_t)learner->steps, "episodes", (json_int_t)learner->all_episodes,
                     "last_reward", real_or_null(learn->last_reward), "best_reward", real_or_null(learn->best_reward), "seconds", elapsed(learn));
}

static Status state_from_json(Learn *learn, const json_t *json, const char *where) {
    Learner *learner = learn->learner;
    TRY(json_get_int(json, where, "updates", &learner->updates));
    TRY(json_get_int(json, where, "steps", &learner->steps));
    TRY(json_get_int(json, where, "episodes", &learner->all_episodes));
    TRY(json_get_double(json, where, "seconds", &learn->seconds_before));
    learn->last_reward = real_of(json, "last_reward");
    learn->best_reward = real_of(json, "best_reward");
    return ST_OK;
}

static Status save_checkpoint(Learn *learn) {
    if (learn->saved_update == learn->learner->updates) return ST_OK;
    json_t *json = state_to_json(learn);
    if (!json) return status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    Status status = checkpoint_save(learn->run, learn->learner->updates, learn->keeper.items, learn->keeper.n, json, learn->recipe->train_keep_checkpoints);
    json_decref(json);
    if (status == ST_OK) learn->saved_update = learn->learner->updates;
    return status;
}

static Status load_checkpoint(Learn *learn) {
    int64_t update = run_step(learn->run);
    json_t *json;
    if (update < 0) return ST_OK;
    TRY(checkpoint_load(learn->run, update, learn->keeper.items, learn->keeper.n, &json));
    Status status = state_from_json(learn, json, "state.json");
    json_decref(json);
    learn->saved_update = update;
    if (status == ST_OK) run_log(learn->run, "resumed from the checkpoint of update %lld", (long long)update);
    return status;
}

static Status interrupted(Learn *learn) {
    TRY(save_checkpoint(learn));
    long long update = (long long)learn->learner->updates;
    run_log(learn->run, "interrupted after update %lld", update);
    status_fail(ST_INTERRUPTED, "interrupted after update %lld, a checkpoint is saved in '%s'", update, run_dir(learn->run));
    return status_hint(ST_INTERRUPTED, "continue with --resume");
}

/* ---- one update ---- */

static double mean(double sum, int64_t n) { return n > 0 ? sum / (double)n : not_known; }

static Status write_update(const Learn *learn, double seconds, int64_t steps) {
    const Learner *learner = learn->learner;
    const Episodes *episodes = &learner->episodes;
    if (learner->updates % learn->recipe->train_log_every != 0 && !done(learn)) return ST_OK;
    double reward = mean(episodes->return_sum, episodes->n), square = mean(episodes->square_sum, episodes->n);
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_int(&w, "step", learner->updates);
    jw_int(&w, "env_steps", learner->steps);
    jw_double(&w, "reward", reward);
    jw_double(&w, "reward_std", sqrt(fmax(0, square - reward * reward)));
    jw_int(&w, "episodes", learner->all_episodes);
    jw_double(&w, "episode_length", mean(episodes->length_sum, episodes->n));
    for (size_t i = 0; i < learner->n_metrics; i++) jw_double(&w, learner->metrics[i].name, learner->metrics[i].value);
    jw_double(&w, "steps_per_second", (double)steps / fmax(seconds, 1e-9));
    jw_double(&w, "seconds", elapsed(learn));
    jw_end_object(&w);
    Status status = run_metric(learn->run, str_text(&w.text));
    jw_release(&w);
    return status;
}

static void report(const Learn *learn, double reward, double seconds, int64_t steps) {
    const Learner *learner = learn->learner;
    if (!learn->config->on_progress) return;
    double taken = clock_seconds() - learn->began, left = (double)(learn->recipe->rl_total_steps - learner->steps);
    learn->config->on_progress(learn->config->context, &(LearnProgress){
                                                           .update = learner->updates,
                                                           .steps = learner->steps,
                                                           .total_steps = learn->recipe->rl_total_steps,
                                                           .episodes = learner->all_episodes,
                                                           .reward = reward,
                                                           .steps_per_second = (double)steps / fmax(seconds, 1e-9),
                                                           .seconds_left = taken / fmax((double)(learner->steps - learn->began_steps), 1) * fmax(left, 0),
                                                       });
}

static Status check_finite(const Learn *learn) {
    const Learner *learner = learn->learner;
    for (size_t i = 0; i < learner->n_metrics; i++)
        if (isinf(learner->metrics[i].value)) {
            status_fail(ST_NUMERIC, "'%s' is infinite in update %lld", learner->metrics[i].name, (long long)learner->updates);
            return status_hint(ST_NUMERIC, "lower the step size");
        }
    return ST_OK;
}

/* The tensors of the policy come first in the keeper. */
static Status check_policy(Learn *learn) {
    Keeper policy = {.arena = arena_new(0)};
    if (!policy.arena) return ST_RESOURCE;
    learn->learner->algorithm->policy(learn->learner, &policy);
    Status status = policy.status;
    for (size_t i = 0; i < policy.n && status == ST_OK; i++) {
        int64_t bad = policy.items[i].tensor->dtype == DT_I32 ? -1 : tensor_find_nonfinite(policy.items[i].tensor);
        if (bad < 0) continue;
        status = status_fail(ST_NUMERIC, "'%s' holds a NaN or an infinity after update %lld", policy.items[i].name, (long long)learn->learner->updates);
        status_hint(status, "lower the step size (train.learning_rate, rl.alpha)");
    }
    arena_free(policy.arena);
    return status;
}

static Status update(Learn *learn) {
    Learner *learner = learn->learner;
    double began = clock_seconds();
    int64_t steps = learner->steps;
    learner->episodes = (Episodes){0};
    learner->n_metrics = 0;
    TRY(learner->algorithm->update(learner));
    learner->updates++;
    TRY(check_finite(learn));
    double reward = mean(learner->episodes.return_sum, learner->episodes.n), seconds = clock_seconds() - began;
    if (!isnan(reward)) {
        learn->last_reward = reward;
        learn->best_reward = fmax(reward, learn->best_reward); /* NaN before the first */
    }
    TRY(write_update(learn, seconds, learner->steps - steps));
    report(learn, reward, seconds, learner->steps - steps);
    return ST_OK;
}

static Status learn_loop(Learn *learn) {
    int64_t every = learn->recipe->train_save_every;
    while (!done(learn)) {
        if (interrupt_requested()) return interrupted(learn);
        TRY(update(learn));
        if (every > 0 && learn->learner->updates % every == 0) TRY(save_checkpoint(learn));
    }
    return ST_OK;
}

/* ---- the end ---- */

static Status show_values(Learn *learn) {
    Learner *learner = learn->learner;
    if (!learner->algorithm->values || !learn->config->on_values) return ST_OK;
    size_t n = (size_t)learner->env->observation.n;
    double *learned = arena_zero(learner->arena, 2 * n * sizeof *learned);
    if (!learned) return ST_RESOURCE;
    if (learner->algorithm->values(learner, learned, learned + n)) learn->config->on_values(learn->config->context, learner, learned, learned + n);
    return ST_OK;
}

static Status save_policy(Learn *learn) {
    Keeper policy = {.arena = arena_new(0)};
    if (!policy.arena) return ST_RESOURCE;
    learn->learner->algorithm->policy(learn->learner, &policy);
    Status status = policy.status;
    if (status == ST_OK) status = tensors_save(run_path(learn->run, "policy.safetensors"), policy.items, policy.n);
    arena_free(policy.arena);
    return status;
}

static Status finish(Learn *learn) {
    const Learner *learner = learn->learner;
    TRY(check_policy(learn));
    TRY(save_policy(learn));
    TRY(show_values(learn));
    json_t *summary = json_pack("{s:I, s:I, s:I, s:o, s:o, s:f, s:I}", "steps", (json_int_t)learner->updates, "env_steps", (json_int_t)learner->steps, "episodes", (json_int_t)learner->all_episodes,
                                "last_reward", real_or_null(learn->last_reward), "best_reward", real_or_null(learn->best_reward), "seconds", elapsed(learn), "peak_rss_bytes", (json_int_t)memory_peak());
    Status status = summary ? run_mark_finished(learn->run, summary) : status_fail(ST_RESOURCE, "out of memory for the run's summary");
    json_decref(summary);
    return status;
}

static LearnResult result_of(const Learn *learn) {
    const Learner *learner = learn->learner;
    return (LearnResult){.updates = learner->updates, .steps = learner->steps, .episodes = learner->all_episodes, .last_reward = learn->last_reward, .best_reward = learn->best_reward, .seconds = elapsed(learn)};
}

static Status already_finished(const Run *run, LearnResult *result) {
    json_t *summary;
    TRY(run_summary(run, &summary));
    *result = (LearnResult){.already_finished = true, .last_reward = real_of(summary, "last_reward"), .best_reward = real_of(summary, "best_reward"), .seconds = real_of(summary, "seconds")};
    Status status = json_get_int(summary, "finished.json", "steps", &result->updates);
    if (status == ST_OK) status = json_get_int(summary, "finished.json", "env_steps", &result->steps);
    if (status == ST_OK) status = json_get_int(summary, "finished.json", "episodes", &result->episodes);
    json_decref(summary);
    return status;
}

/* ---- the run ---- */

/* The page is a convenience: when it can't be written, the run is what it is. */
static void write_report(Run *run) {
    const char *dir = run_dir(run), *path = run_path(run, "report.html");
    if (path && report_write(&dir, 1, path, NULL) != ST_OK) run_warn(run, "no report.html: %s", status_text());
}

static Status write_started(const Learn *learn) {
    const Learner *learner = learn->learner;
    const char *path = run_path(learn->run, "started.json");
    if (!path) return ST_RESOURCE;
    if (run_resumed(learn->run) && file_exists(path)) return ST_OK;
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "program", learn->recipe->program);
    jw_string(&w, "command", learn->config->command);
    jw_string(&w, "environment", learner->env->id);
    jw_string(&w, "algorithm", learner->algorithm->name);
    jw_int(&w, "env_steps", learn->recipe->rl_total_steps);
    jw_end_object(&w);
    str_append_char(&w.text, '\n');
    Status status = file_write_all(path, str_text(&w.text), w.text.len);
    jw_release(&w);
    return status;
}

static Status learn_all(Learn *learn, LearnResult *result) {
    learn->keeper.arena = learn->learner->arena;
    learner_keep(learn->learner, &learn->keeper);
    TRY(learn->keeper.status);
    TRY(write_started(learn));
    TRY(load_checkpoint(learn));
    learn->began = clock_seconds();
    learn->began_steps = learn->learner->steps;
    TRY(learn_loop(learn));
    TRY(finish(learn));
    *result = result_of(learn);
    return ST_OK;
}

/* The directory is made only when nothing can be refused any more. */
static Status learn_begin(Learn *learn, LearnResult *result) {
    const LearnConfig *config = learn->config;
    bool finished = false;
    if (learn->recipe->rl_total_steps < 1) return status_hint(status_fail(ST_CONFIG, "'rl.total_steps' is missing"), "say how many steps of the environment the run may take");
    if (!config->dry_run) TRY(run_check(learn->recipe, config->resume, &finished));
    if (!finished) TRY(learner_new(learn->recipe, learn->recipe->rl_num_envs, &learn->learner));
    if (!config->dry_run) TRY(run_open(learn->recipe, config->resume, &learn->run));
    if (finished) return already_finished(learn->run, result);
    if (config->on_plan) config->on_plan(config->context, learn->learner);
    return config->dry_run ? ST_OK : learn_all(learn, result);
}

Status learn_run(const LearnConfig *config, LearnResult *result) {
    *result = (LearnResult){.last_reward = not_known, .best_reward = not_known};
    Learn learn = {.config = config, .recipe = config->recipe, .last_reward = not_known, .best_reward = not_known, .saved_update = -1};
    Status status = learn_begin(&learn, result);
    if (status == ST_OK && learn.run && !result->already_finished) write_report(learn.run);
    run_close(learn.run);
    learner_free(learn.learner);
    return status;
}

/* ---- evaluation ---- */

static Status fill_policy(Learner *learner, const char *path) {
    Keeper policy = {.arena = learner->arena};
    learner->algorithm->policy(learner, &policy);
    TRY(policy.status);
    return tensors_load(path, policy.items, policy.n);
}

typedef struct Played { int64_t n; double sum, square_sum, length_sum; } Played;

/* Every copy plays its share of the episodes and then no longer counts. */
static Status play(Learner *learner, const EvaluationConfig *config, Played *played) {
    Env *env = learner->env;
    double *actions = arena_zero(learner->arena, (size_t)(env->copies * env->action.size) * sizeof *actions);
    int64_t *left = arena_zero(learner->arena, (size_t)env->copies * sizeof *left), waiting = config->episodes;
    if (!actions || !left) return ST_RESOURCE;
    for (int64_t copy = 0; copy < env->copies; copy++) left[copy] = config->episodes / env->copies + (copy < config->episodes % env->copies);
    for (uint64_t t = 0; waiting > 0; t++) {
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
        RngKey key = rng_key(config->seed, RNG_SAMPLE, t);
        TRY(learner->algorithm->act(learner, env->observations, env->copies, !config->sample, key, actions));
        TRY(env_step(env, actions, true));
        if (config->on_step) config->on_step(config->context, env, actions);
        for (int64_t copy = 0; copy < env->copies; copy++) {
            learner->returns[copy] += env->rewards[copy];
            if (!env->terminated[copy] && !env->truncated[copy]) continue;
            double total = learner->returns[copy];
            learner->returns[copy] = 0;
            if (left[copy] == 0) continue;
            left[copy]--;
            waiting--;
            played->n++;
            played->sum += total;
            played->square_sum += total * total;
            played->length_sum += (double)env->final_lengths[copy];
        }
    }
    return ST_OK;
}

enum { EVALUATION_COPIES = 32 };

Status learn_evaluate(const char *dir, const EvaluationConfig *config, Evaluation *evaluation) {
    Arena *arena = arena_new(0);
    const char *recipe_path = arena ? path_join(arena, dir, "recipe.yaml") : NULL, *policy_path = arena ? path_join(arena, dir, "policy.safetensors") : NULL;
    Recipe *recipe = NULL;
    Learner *learner = NULL;
    Played played = {0};
    Status status = recipe_path && policy_path ? ST_OK : ST_RESOURCE;
    if (status == ST_OK && !file_exists(policy_path))
        status = status_hint(status_fail(ST_INPUT, "'%s' holds no finished run on an environment: '%s' is missing", dir, policy_path), "give the output directory of tune rl");
    if (status == ST_OK) status = recipe_read(recipe_path, NULL, 0, &recipe);
    if (status == ST_OK) status = learner_new(recipe, config->on_step ? 1 : MIN(config->episodes, (int64_t)EVALUATION_COPIES), &learner);
    if (status == ST_OK) status = fill_policy(learner, policy_path);
    if (status == ST_OK) learner->steps = learner->total_steps; /* --sample explores as at the end */
    if (status == ST_OK) env_reset(learner->env, config->seed);
    if (status == ST_OK) status = play(learner, config, &played);
    if (status == ST_OK) {
        double n = (double)played.n, average = played.sum / n;
        *evaluation = (Evaluation){played.n, average, sqrt(fmax(0, played.square_sum / n - average * average)), played.length_sum / n};
    }
    learner_free(learner);
    if (recipe) recipe_free(recipe);
    arena_free(arena);
    return status;
}
