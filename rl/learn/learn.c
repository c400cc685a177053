/* SPDX-License-Identifier: Apache-2.0 */
/* The kind of training whose steps are updates of an algorithm in an environment. */
#include "lib/base/system.h"
#include "rl/learn/learn.h"

#include "rl/common/rl_watch.h"

#include <math.h>
#include <string.h>

static const double not_known = (double)NAN;

typedef struct Learn {
    const TrainingConfig *config;
    ShowValues *values; /* may be NULL */
    const Recipe *recipe;
    Learner *learner;
    Run *run;
    RlDoctor *doctor;
    double last_reward, best_reward; /* mean return in the last (best) update in which episodes ended; NaN: none */
} Learn;

/* ---- a step ---- */

static Status learn_step(void *context, int64_t number, Metrics *metrics) {
    Learn *learn = context;
    Learner *learner = learn->learner;
    const Episodes *episodes = &learner->episodes;
    int64_t before = learner->steps;
    Metrics own = {.n = 0};
    (void)number;
    learner->episodes = (Episodes){0};
    learner->metrics = &own;
    Status status = learner->algorithm->update(learner);
    learner->metrics = NULL;
    TRY(status);
    learner->updates++;
    double reward = tally_mean(&episodes->returns);
    metric_count(metrics, "env_steps", learner->steps);
    metric_count(metrics, "steps", learner->steps - before);
    metric_set(metrics, "reward", reward);
    metric_set(metrics, "reward_std", tally_std(&episodes->returns));
    metric_count(metrics, "episodes", learner->all_episodes);
    metric_set(metrics, "episode_length", tally_mean(&episodes->lengths));
    for (size_t i = 0; i < own.n; i++) metric_set(metrics, own.items[i].name, own.items[i].value);
    if (isnan(reward)) return ST_OK;
    learn->last_reward = reward;
    learn->best_reward = fmax(reward, learn->best_reward); /* NaN before the first update with a return */
    return ST_OK;
}

static void learn_list_state(void *context, StateList *states) {
    Learn *learn = context;
    learner_list_state(learn->learner, states);
    state_real(states, "last_reward", &learn->last_reward);
    state_real(states, "best_reward", &learn->best_reward);
}

static Status learn_resumed(void *context, int64_t done) {
    Learn *learn = context;
    TRY(env_resume(learn->learner->env));
    return rl_watch_resume(learn->doctor, learn->run, done);
}

static void learn_recorded(void *context, int64_t done, const Metrics *metrics) {
    Learn *learn = context;
    rl_watch_line(learn->doctor, learn->run, done, metrics);
}

/* ---- the end ---- */

static Status show_values(Learn *learn) {
    Learner *learner = learn->learner;
    if (!learner->algorithm->values || !learn->values) return ST_OK;
    size_t n = (size_t)learner->env->observation.n;
    if (n == 0) return ST_OK;
    double *learned = arena_zero(learner->arena, 2 * n * sizeof *learned);
    if (!learned) return ST_RESOURCE;
    if (learner->algorithm->values(learner, learned, learned + n)) learn->values(learn->config->context, learner, learned, learned + n);
    return ST_OK;
}

static Status learn_finish(void *context, Run *run) {
    Learn *learn = context;
    if (learn->learner->all_episodes == 0)
        run_warn(run, "no episode ended in %lld step%s, so no return is known; max_episode_steps of rl.env, or more rl.total_steps, ends them",
                 (long long)learn->learner->steps, plural(learn->learner->steps));
    StateList policy = {.arena = learn->learner->arena};
    learn->learner->algorithm->policy(learn->learner, &policy);
    TRY(policy.status);
    TRY(tensors_save(run_path(run, "policy.safetensors"), policy.items, policy.n));
    return show_values(learn);
}

static json_t *learn_summary(void *context, int64_t done) {
    const Learn *learn = context;
    return json_pack("{s:o, s:I, s:I, s:o, s:o}", "warnings", rl_watch_end(learn->doctor, learn->run, done), "env_steps",
                     (json_int_t)learn->learner->steps, "episodes", (json_int_t)learn->learner->all_episodes, "last_reward",
                     json_real_or_null(learn->last_reward), "best_reward", json_real_or_null(learn->best_reward));
}

/* ---- the run ---- */

static void say_environment(const Learner *learner, RunPlan *plan) {
    const Env *env = learner->env;
    Str actions = {0}, observations = {0};
    if (env->action.n)
        str_printf(&actions, "%lld action%s%s", (long long)env->action.n, plural(env->action.n),
                   env->action.allowed ? " (not all in every state)" : "");
    else
        str_printf(&actions, "actions of %lld number%s", (long long)env->action.size, plural(env->action.size));
    if (env->observation.n)
        str_printf(&observations, "%lld state%s", (long long)env->observation.n, plural(env->observation.n));
    else
        str_printf(&observations, "observations of %lld number%s", (long long)env->observation.size, plural(env->observation.size));
    run_plan_say(plan, "environment: %s, %s, %s, %lld %s", env->id, str_text(&observations), str_text(&actions), (long long)env->copies,
                 env->copies == 1 ? "copy" : "copies");
    run_plan_say(plan, "algorithm: %s: %s", learner->algorithm->name, learner->algorithm->help);
    str_release(&actions);
    str_release(&observations);
}

static Status learn_open(void *context, RunPlan *plan) {
    Learn *learn = context;
    uint64_t resident = memory_resident();
    TRY(learner_new(learn->recipe, learn->config->runtime.device, learn->recipe->rl_num_envs, &learn->learner));
    TRY(learner_memory(learn->learner, resident, &plan->memory));
    const Learner *learner = learn->learner;
    run_plan_text(plan, PLAN_RECORD, "environment", learner->env->id);
    run_plan_text(plan, PLAN_PRINT, "env", learner->env->id);
    run_plan_text(plan, PLAN_BOTH, "algorithm", learner->algorithm->name);
    run_plan_count(plan, PLAN_PRINT, "num_envs", learner->env->copies);
    run_plan_count(plan, PLAN_BOTH, "env_steps", learn->recipe->rl_total_steps);
    say_environment(learner, plan);
    run_plan_memory(plan);
    return ST_OK;
}

static Status learn_begin(void *context, Run *run, RunSteps *steps) {
    Learn *learn = context;
    const NamedMdp *world = learn->learner->env->world;
    learn->run = run;
    learn->doctor = rl_doctor_new();
    if (!learn->doctor) return status_fail(ST_RESOURCE, "out of memory for the run");
    if (world) steps->inputs[0] = (TaskInput){"rl.env", named_mdp_fingerprint(world)};
    steps->done = &learn->learner->steps;
    steps->total = learn->recipe->rl_total_steps;
    steps->step_may_fail = env_is_remote(learn->learner->env);
    return ST_OK;
}

static void learn_release(void *context) {
    Learn *learn = context;
    rl_doctor_free(learn->doctor);
    learner_free(learn->learner);
}

/* ---- a longer run ---- */

static bool reads(const Learn *learn, const char *key) { return strstr(learn->learner->algorithm->keys, key) != NULL; }

/* The schedule counts updates; each update takes rl.num_steps steps of every copy. */
static Status learn_length(void *context, const Recipe *recipe, RunLength *length) {
    double per_update = (double)recipe->rl_num_steps * (double)recipe->rl_num_envs;
    bool scheduled = reads(context, "train.lr_scheduler");
    length->steps = recipe->rl_total_steps;
    length->schedule_steps = scheduled ? (int64_t)ceil((double)recipe->rl_total_steps / per_update) : 0;
    length->schedule_rate = 1;
    return ST_OK;
}

/* Keys whose effect depends on the fraction of the run that is done. */
static Status lengthen(void *context, const Recipe *before, Str *differs) {
    const Learn *learn = context;
    const Recipe *r = learn->recipe;
    const struct {
        const char *key;
        bool moves;
    } shares[] = {
        {"epsilon_fraction",
         r->rl_epsilon_schedule != RL_EPSILON_SCHEDULE_HARMONIC && r->rl_epsilon_start != r->rl_epsilon_end && r->rl_epsilon_fraction > 0},
        {"alpha_end", r->rl_alpha_schedule == RL_ALPHA_SCHEDULE_LINEAR && r->rl_alpha != r->rl_alpha_end},
        {"priority_beta", r->rl_prioritized && r->rl_priority_beta != 1},
    };
    for (size_t i = 0; i < COUNT_OF(shares); i++)
        if (shares[i].moves && reads(learn, shares[i].key))
            str_printf(differs, "%s'rl.%s' depends on the fraction of rl.total_steps that is done", differs->len ? "; " : "", shares[i].key);
    if (!reads(learn, "buffer_size") || MIN(r->rl_buffer_size, r->rl_total_steps) == MIN(r->rl_buffer_size, before->rl_total_steps)) return ST_OK;
    status_fail(
        ST_CONFIG,
        "cannot make the run in '%s' longer: its replay has space for only %lld transitions, that of a longer run for more of 'rl.buffer_size: %lld'",
        r->output, (long long)MIN(r->rl_buffer_size, before->rl_total_steps), (long long)r->rl_buffer_size);
    return status_hint(ST_CONFIG, "runs whose rl.buffer_size is at most rl.total_steps can be made longer; start this one again with --force");
}

Status learn_run(const TrainingConfig *config, ShowValues *values, TrainResult *result) {
    static const char *const results[] = {"steps", "env_steps", "episodes", "last_reward", "best_reward", "seconds", NULL};
    static const Shown shown[] = {{.metric = "reward", .label = "return"}, {.metric = "episodes", .label = "episode", .counts = true}, {0}};
    static const TrainingKind kind = {.open = learn_open,
                                      .begin = learn_begin,
                                      .release = learn_release,
                                      .length = learn_length,
                                      .lengthen = lengthen,
                                      .step = learn_step,
                                      .list_state = learn_list_state,
                                      .resumed = learn_resumed,
                                      .recorded = learn_recorded,
                                      .finish = learn_finish,
                                      .summary = learn_summary,
                                      .results = results,
                                      .counter = "env_steps",
                                      .reader = &rl_report_reader,
                                      .shown = shown,
                                      .rate = "steps"};
    Learn learn = {.config = config, .values = values, .recipe = config->recipe, .last_reward = not_known, .best_reward = not_known};
    if (learn.recipe->rl_total_steps < 1)
        return status_hint(status_fail(ST_CONFIG, "'rl.total_steps' is missing"), "give the number of environment steps of the run");
    return training_run(&kind, &learn, &learn.recipe, config, result);
}

/* ---- evaluation ---- */

static Status fill_policy(Learner *learner, const char *path) {
    StateList policy = {.arena = learner->arena};
    learner->algorithm->policy(learner, &policy);
    TRY(policy.status);
    TRY(tensors_load(path, policy.items, policy.n));
    for (size_t i = 0; i < policy.n; i++)
        if (tensor_find_nonfinite(policy.items[i].tensor) >= 0)
            return status_fail(ST_INPUT, "tensor '%s' of '%s' holds a NaN or an infinity", policy.items[i].name, path);
    return ST_OK;
}

enum { LONGEST_EPISODE = 10000, LONGEST_WATCHED = 300 };
typedef struct Played {
    Episodes episodes;
    int64_t cut;
} Played;

/* Every copy plays its share of the episodes; later episodes are not counted. */
static Status learn_play(Learner *learner, const EvaluationConfig *config, Played *played) {
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
            played->cut +=
                env->truncated[copy] && !env->terminated[copy]; /* both flags: the process ended in the last allowed step, so it was not cut */
            tally_add(&played->episodes.returns, total);
            tally_add(&played->episodes.lengths, (double)env->final_lengths[copy]);
        }
    }
    return ST_OK;
}

enum { EVALUATION_COPIES = 32 };

/* With on_step there is a single copy; an environment program gets at most the run's number of copies. */
static int64_t copies_for(const Recipe *recipe, const EvaluationConfig *config) {
    if (config->on_step) return 1;
    bool program = recipe->rl_env && recipe->rl_env->kind == YAML_MAP && yaml_get(recipe->rl_env, "command");
    return MIN(config->episodes, program ? MIN(recipe->rl_num_envs, EVALUATION_COPIES) : EVALUATION_COPIES);
}

/* The best actions of an unfinished policy may cycle for ever. Returns the limit that this sets, 0 where the environment has one. */
static int64_t limit_episodes(Env *env, bool watched) {
    if (env->max_steps > 0) return 0;
    return env->max_steps = watched ? LONGEST_WATCHED : LONGEST_EPISODE;
}

Status learn_evaluate(const char *dir, const EvaluationConfig *config, Evaluation *evaluation) {
    Arena *arena = arena_new(0);
    const char *recipe_path = arena ? path_join(arena, dir, "recipe.yaml") : NULL,
               *policy_path = arena ? path_join(arena, dir, "policy.safetensors") : NULL;
    Recipe *recipe = NULL;
    Learner *learner = NULL;
    Played played = {0};
    Status status = recipe_path && policy_path ? ST_OK : ST_RESOURCE;
    if (status == ST_OK && !file_exists(policy_path))
        status = status_hint(status_fail(ST_INPUT, "'%s' has no finished run on an environment: '%s' is missing", dir, policy_path),
                             "give the output directory of tune rl");
    if (status == ST_OK) status = recipe_read(recipe_path, NULL, 0, &recipe);
    if (status == ST_OK) status = learner_new(recipe, config->device, copies_for(recipe, config), &learner);
    if (status == ST_OK) status = fill_policy(learner, policy_path);
    if (status == ST_OK) learner->steps = learner->total_steps; /* --sample explores as at the end of training */
    int64_t limit = status == ST_OK ? limit_episodes(learner->env, config->on_step) : 0;
    if (status == ST_OK) env_reset(learner->env, config->seed);
    if (status == ST_OK) status = learn_play(learner, config, &played);
    if (status == ST_OK) {
        const Episodes *episodes = &played.episodes;
        *evaluation = (Evaluation){
            .episodes = episodes->returns.n,
            .mean_return = tally_mean(&episodes->returns),
            .std_return = tally_std(&episodes->returns),
            .mean_length = tally_mean(&episodes->lengths),
            .cut = played.cut,
            .limit = limit,
        };
    }
    learner_free(learner);
    if (recipe) recipe_free(recipe);
    arena_free(arena);
    return status;
}
