/* tune rl: a recipe in, a policy in the run directory out. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/pair_command.h"
#include "cmd/train_show.h"
#include "cmd/watch.h"
#include "rl/ilql.h"
#include "rl/learn.h"
#include "rl/preference.h"
#include "rl/text_env.h"
#include "rl/text_rl.h"

static void show_plan(void *context, const Learner *learner) {
    (void)context;
    const Env *env = learner->env;
    Str actions = {0}, observations = {0};
    if (env->action.n) str_printf(&actions, "%lld actions", (long long)env->action.n);
    else str_printf(&actions, "actions of %lld numbers", (long long)env->action.size);
    if (env->observation.n) str_printf(&observations, "%lld states", (long long)env->observation.n);
    else str_printf(&observations, "observations of %lld numbers", (long long)env->observation.size);
    show_line("environment: %s, %s, %s, %lld copies", env->id, str_text(&observations), str_text(&actions), (long long)env->copies);
    show_line("algorithm: %s: %s", learner->algorithm->name, learner->algorithm->help);
    str_release(&actions);
    str_release(&observations);
}

static void show_update(void *context, const LearnProgress *p) {
    const Recipe *recipe = context;
    char left[32];
    if (recipe->train_live && !isnan(p->reward)) show_curve(p->reward);
    if (isnan(p->reward)) show_progress("step %lld/%lld  %.3g steps/s  %s left", (long long)p->steps, (long long)p->total_steps, p->steps_per_second, format_seconds(p->seconds_left, left));
    else
        show_progress("step %lld/%lld  return %.4g  %lld episodes  %.3g steps/s  %s left", (long long)p->steps, (long long)p->total_steps, p->reward, (long long)p->episodes, p->steps_per_second,
                      format_seconds(p->seconds_left, left));
}

static void show_values(void *context, const Learner *learner, const double *learned, const double *exact) {
    (void)context;
    enum { SHOWN = 24 };
    int64_t n = learner->env->observation.n;
    int64_t known = 0;
    double sum = 0, worst = 0;
    end_live_line();
    show_line("values:  state     learned       exact");
    for (int64_t s = 0; s < n; s++) {
        if (isnan(learned[s])) continue;
        double error = learned[s] - exact[s];
        if (known++ < SHOWN) show_line("      %8lld  %10.4f  %10.4f", (long long)s, learned[s], exact[s]);
        sum += error * error;
        worst = fmax(worst, fabs(error));
    }
    if (known > SHOWN) show_line("       ... and %lld more", (long long)(known - SHOWN));
    show_line("values: root mean square error %.4g, largest %.4g", sqrt(sum / (double)MAX(known, 1)), worst);
}

static void summarize(const Command *command, const Recipe *recipe, const LearnResult *result) {
    end_live_line();
    if (command->json) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_int(&w, "steps", result->updates);
        jw_int(&w, "env_steps", result->steps);
        jw_int(&w, "episodes", result->episodes);
        jw_double(&w, "last_reward", result->last_reward);
        jw_double(&w, "best_reward", result->best_reward);
        jw_double(&w, "seconds", result->seconds);
        jw_end_object(&w);
        print_result("%s\n", str_text(&w.text));
        jw_release(&w);
    }
    if (result->already_finished) {
        show_line("'%s' is a finished run: nothing to do", recipe->output);
        return;
    }
    char seconds[32];
    if (result->episodes == 0) show_line("%lld steps in %s, no episode ended", (long long)result->steps, format_seconds(result->seconds, seconds));
    else show_line("%lld steps, %lld episodes in %s: return %.4g, best %.4g (means of an update's episodes)", (long long)result->steps, (long long)result->episodes, format_seconds(result->seconds, seconds),
                   result->last_reward, result->best_reward);
    show_line("wrote %s/policy.safetensors", recipe->output);
    show_line("next: tune eval %s --episodes 100", recipe->output);
}

/* ---- text ---- */

static void show_text_plan(void *context, const TextRlPlan *plan) {
    const RecipeCommand *job = context;
    const Recipe *recipe = job->recipe;
    print_training_plan(job, &(TrainPlan){(int64_t)plan->prompts, -1, -1, (int64_t)plan->eval_prompts, plan->total_steps, -1, plan->parameters, plan->trained_parameters, plan->compute, &plan->memory});
    show_line("algorithm: %s: %s", plan->algorithm->name, plan->algorithm->help);
    if (plan->env) show_line("environment: %s; groups of %lld episodes, %lld groups a step", plan->env, (long long)recipe->rl_num_generations, (long long)recipe->rl_prompts_per_step);
    else show_line("prompts: %zu, the longest %lld tokens; %lld completions of each, %lld prompts a step", plan->prompts, (long long)plan->longest_prompt, (long long)recipe->rl_num_generations,
              (long long)recipe->rl_prompts_per_step);
    if (plan->eval_prompts) show_line("held-out prompts: %zu, answered greedily", plan->eval_prompts);
    if (plan->dropped) show_message("tune: warning: data.train: %lld prompts were longer than data.max_length and left out", (long long)plan->dropped);
    if (plan->cut) show_message("tune: warning: data.train: %lld prompts were cut to data.max_length", (long long)plan->cut);
    show_line("model: %s, %lld parameters, %lld trained (%s), products in %s", recipe->model_path, (long long)plan->parameters, (long long)plan->trained_parameters, recipe->has_lora ? "LoRA" : "all",
              dtype_name(plan->compute));
    show_training_memory(&plan->memory);
    show_line("plan: %lld steps", (long long)plan->total_steps);
}

static void show_text_step(void *context, const TextRlProgress *p) {
    const Recipe *recipe = ((const RecipeCommand *)context)->recipe;
    char left[32];
    if (recipe->train_live) show_curve(p->reward);
    show_progress("step %lld/%lld  reward %.4g  length %.1f  %.0f tokens/s  %s left", (long long)p->step, (long long)p->total_steps, p->reward, p->completion_length, p->tokens_per_second,
                  format_seconds(p->seconds_left, left));
    if (isnan(p->eval_reward)) return;
    end_live_line();
    show_line("step %lld: held-out reward %.4g", (long long)p->step, p->eval_reward);
}

static void summarize_text(const RecipeCommand *job, const TextRlResult *result) {
    const Recipe *recipe = job->recipe;
    const char *part = recipe->has_lora ? "adapter" : "model";
    char seconds[32];
    end_live_line();
    if (job->command->json) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_int(&w, "steps", result->steps);
        jw_double(&w, "first_reward", result->first_reward);
        jw_double(&w, "last_reward", result->last_reward);
        jw_double(&w, "first_eval_reward", result->first_eval);
        jw_double(&w, "last_eval_reward", result->last_eval);
        jw_double(&w, "seconds", result->seconds);
        jw_end_object(&w);
        print_result("%s\n", str_text(&w.text));
        jw_release(&w);
    }
    if (result->already_finished) {
        show_line("'%s' is a finished run: nothing to do", recipe->output);
        return;
    }
    if (!isnan(result->last_eval)) show_line("held-out reward %.4g -> %.4g (greedy answers)", result->first_eval, result->last_eval);
    show_line("%lld steps in %s: reward %.4g -> %.4g", (long long)result->steps, format_seconds(result->seconds, seconds), result->first_reward, result->last_reward);
    show_line("wrote %s/%s", recipe->output, part);
}

static const char *secret(void *context, const char *name) {
    (void)context;
    return getenv(name);
}

static Status learn_text(const RecipeCommand *job, const char *typed) {
    TextRlResult result;
    TextRlConfig config = {
        .recipe = job->recipe,
        .command = typed,
        .resume = job->resume,
        .dry_run = job->dry_run,
        .rewards = {.secret = secret},
        .on_plan = show_text_plan,
        .on_progress = show_text_step,
        .context = (void *)(uintptr_t)job,
    };
    TRY(text_rl_run(&config, &result));
    if (!job->dry_run) summarize_text(job, &result);
    return ST_OK;
}

/* ---- rows with rewards ---- */

static void show_ilql_plan(void *context, const IlqlPlan *plan) {
    const RecipeCommand *job = context;
    const Recipe *recipe = job->recipe;
    print_training_plan(job, &(TrainPlan){(int64_t)plan->rows, plan->tokens, plan->trained_tokens, 0, plan->total_steps, -1, plan->parameters, plan->trained_parameters, plan->compute, &plan->memory});
    show_line("data: %zu rows, %lld tokens, %lld of them trained; mean reward %.4g", plan->rows, (long long)plan->tokens, (long long)plan->trained_tokens, plan->mean_reward);
    if (plan->dropped) show_message("tune: warning: data.train: %lld rows were longer than data.max_length and left out", (long long)plan->dropped);
    show_line("model: %s, %lld parameters, %lld trained (%s and Q and V heads), products in %s", recipe->model_path, (long long)plan->parameters, (long long)plan->trained_parameters, recipe->has_lora ? "LoRA" : "all",
              dtype_name(plan->compute));
    show_training_memory(&plan->memory);
    show_line("plan: %lld steps", (long long)plan->total_steps);
}

static void show_ilql_step(void *context, const IlqlProgress *p) {
    const Recipe *recipe = ((const RecipeCommand *)context)->recipe;
    char left[32];
    if (recipe->train_live) show_curve(p->loss);
    show_progress("step %lld/%lld  loss %.4g  advantage %.4g  %.0f tokens/s  %s left", (long long)p->step, (long long)p->total_steps, p->loss, p->advantage, p->tokens_per_second, format_seconds(p->seconds_left, left));
}

static void summarize_ilql(const RecipeCommand *job, const IlqlResult *result) {
    const Recipe *recipe = job->recipe;
    const char *part = recipe->has_lora ? "adapter" : "model";
    char seconds[32];
    end_live_line();
    if (job->command->json) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_int(&w, "steps", result->steps);
        jw_double(&w, "first_loss", result->first_loss);
        jw_double(&w, "last_loss", result->last_loss);
        jw_double(&w, "seconds", result->seconds);
        jw_end_object(&w);
        print_result("%s\n", str_text(&w.text));
        jw_release(&w);
    }
    if (result->already_finished) {
        show_line("'%s' is a finished run: nothing to do", recipe->output);
        return;
    }
    show_line("%lld steps in %s: loss %.4g -> %.4g", (long long)result->steps, format_seconds(result->seconds, seconds), result->first_loss, result->last_loss);
    show_line("wrote %s/%s and %s/ilql_heads.safetensors", recipe->output, part, recipe->output);
    if (recipe->has_lora) show_line("next: tune generate %s --adapter %s/adapter --ilql 4 --prompt ...", recipe->model_path, recipe->output);
    else show_line("next: tune generate %s/model --ilql 4 --prompt ...", recipe->output);
}

static Status learn_offline(const RecipeCommand *job) {
    Str typed = {0};
    IlqlResult result;
    recipe_command_line(job, &typed);
    IlqlRunConfig config = {
        .recipe = job->recipe, .command = str_text(&typed), .resume = job->resume, .dry_run = job->dry_run, .on_plan = show_ilql_plan, .on_progress = show_ilql_step, .context = (void *)(uintptr_t)job,
    };
    Status status = ilql_run(&config, &result);
    str_release(&typed);
    if (status == ST_OK && !job->dry_run) summarize_ilql(job, &result);
    return status;
}

/* ---- environments ---- */

static Status show_episode(const Recipe *recipe) {
    Watch watch = {0};
    Evaluation found;
    return learn_evaluate(recipe->output, &(EvaluationConfig){.episodes = 1, .seed = 1, .on_step = watch_step, .context = &watch}, &found);
}

static Status learn_environment(const RecipeCommand *job, const char *typed) {
    LearnResult result;
    LearnConfig config = {
        .recipe = job->recipe,
        .command = typed,
        .resume = job->resume,
        .dry_run = job->dry_run,
        .on_plan = show_plan,
        .on_progress = show_update,
        .on_values = show_values,
        .context = job->recipe,
    };
    TRY(learn_run(&config, &result));
    if (job->dry_run) return ST_OK;
    summarize(job->command, job->recipe, &result);
    return job->watch && !job->command->json ? show_episode(job->recipe) : ST_OK;
}

static Status learn(const RecipeCommand *job) {
    Str typed = {0};
    recipe_command_line(job, &typed);
    Status status = job->recipe->rl_env && !text_env_is_meant(job->recipe->rl_env) ? learn_environment(job, str_text(&typed)) : learn_text(job, str_text(&typed));
    str_release(&typed);
    return status;
}

/* The algorithm says what is learned from: rows of preferences, an environment, or prompts with rewards. */
static Status run(const RecipeCommand *job) {
    const Recipe *recipe = job->recipe;
    bool offline = strcmp(recipe->rl_algorithm, "ilql") == 0;
    if (!offline && !preference_algorithm(recipe->rl_algorithm)) return learn(job);
    if (!recipe->rl_env) return offline ? learn_offline(job) : pair_command(job, preference_run);
    status_fail(ST_CONFIG, "algorithm '%s' learns from rows of %s, not from an environment", recipe->rl_algorithm, offline ? "text with rewards" : "preferences");
    return status_hint(ST_CONFIG, "name rows in data.train and leave out rl.env");
}

Status cmd_rl(int argc, char **argv) {
    static const char *const sections[] = {"", "rl", "policy", "reward", "model", "lora", "data", "generate", "train", "eval", NULL};
    return recipe_command(argc, argv, "rl",
                          "Learns a policy by reward, on an environment (rl.env) or a language model's on prompts, from preferences, or offline from rows with rewards (ilql). The result is a run directory with the policy, or with the adapter.\n"
                          "    tune rl recipes/rl_cartpole_ppo.yaml output=runs/cartpole\n"
                          "    tune rl recipes/rl_dpo.yaml model.path=DIR data.train=pairs.jsonl output=runs/dpo",
                          sections, run);
}
