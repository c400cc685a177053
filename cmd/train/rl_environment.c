/* SPDX-License-Identifier: Apache-2.0 */
/* tune rl in an environment: shows plan and progress, the learned and the exact values if these are known, and with --watch an episode at
 * the end. */
#include <math.h>

#include "cmd/app/terminal.h"
#include "cmd/train/cmd_rl.h"
#include "cmd/train/train_show.h"
#include "cmd/train/watch.h"
#include "rl/learn/learn.h"

static void print_plan(const Learner *learner, const TrainMemory *memory) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "env", learner->env->id);
    jw_string(&w, "algorithm", learner->algorithm->name);
    jw_int(&w, "num_envs", learner->env->copies);
    jw_int(&w, "env_steps", learner->total_steps);
    train_memory_write(&w, memory);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

static void show_plan(void *context, const Learner *learner, const TrainMemory *memory) {
    const RecipeCommand *job = context;
    const Env *env = learner->env;
    if (job->options.dry_run && job->command->json) print_plan(learner, memory);
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
    show_line("environment: %s, %s, %s, %lld %s", env->id, str_text(&observations), str_text(&actions), (long long)env->copies,
              env->copies == 1 ? "copy" : "copies");
    show_line("algorithm: %s: %s", learner->algorithm->name, learner->algorithm->help);
    show_memory(memory);
    str_release(&actions);
    str_release(&observations);
}

static void show_update(void *context, const LearnProgress *p) {
    const Recipe *recipe = ((const RecipeCommand *)context)->recipe;
    char left[32], reward[32], speed[32];
    if (recipe->train_live && !isnan(p->reward)) show_curve(p->reward);
    if (isnan(p->reward))
        show_progress("step %lld/%lld  %s steps/s  %s left", (long long)p->steps, (long long)p->total_steps, short_number(p->steps_per_second, speed),
                      format_seconds(p->seconds_left, left));
    else
        show_progress("step %lld/%lld  return %s  %lld episode%s  %s steps/s  %s left", (long long)p->steps, (long long)p->total_steps,
                      short_number(p->reward, reward), (long long)p->episodes, plural(p->episodes), short_number(p->steps_per_second, speed),
                      format_seconds(p->seconds_left, left));
}

static void show_values(void *context, const Learner *learner, const double *learned, const double *exact) {
    (void)context;
    enum { SHOWN = 24 };
    const char *const *names = learner->world ? (const char *const *)learner->world->state_names : NULL;
    int64_t n = learner->env->observation.n, known = 0;
    double sum = 0, worst = 0;
    end_live_line();
    show_line("values:  state     learned       exact");
    for (int64_t s = 0; s < n; s++) {
        if (isnan(learned[s])) continue;
        double error = learned[s] - exact[s];
        char number[24];
        snprintf(number, sizeof number, "%lld", (long long)s);
        if (known++ < SHOWN) show_line("      %8s  %10.4f  %10.4f", names ? names[s] : number, learned[s], exact[s]);
        sum += error * error;
        worst = fmax(worst, fabs(error));
    }
    if (known > SHOWN) show_line("       ... and %lld more", (long long)(known - SHOWN));
    show_line("values: root mean square error %s, largest error %s", NUMBER(sqrt(sum / (double)MAX(known, 1))), NUMBER(worst));
}

static void rl_environment_summarize(const RecipeCommand *job, const LearnResult *result) {
    const Recipe *recipe = job->recipe;
    char seconds[32], last[32], best[32];
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_int(&w, "steps", result->updates);
    jw_int(&w, "env_steps", result->steps);
    jw_int(&w, "episodes", result->episodes);
    jw_double(&w, "last_reward", result->last_reward);
    jw_double(&w, "best_reward", result->best_reward);
    jw_double(&w, "seconds", result->seconds);
    if (!show_run_end(job->command, recipe, &w, result->already_finished)) return;
    if (result->episodes == 0)
        show_line("%lld step%s in %s, no episode ended", (long long)result->steps, plural(result->steps), format_seconds(result->seconds, seconds));
    else
        show_line("%lld step%s, %lld episode%s in %s: return %s, best %s (means of an update's episodes)", (long long)result->steps,
                  plural(result->steps), (long long)result->episodes, plural(result->episodes), format_seconds(result->seconds, seconds),
                  short_number(result->last_reward, last), short_number(result->best_reward, best));
    show_line("wrote %s/policy.safetensors", recipe->output);
    Str run = {0};
    str_append_shell(&run, "%s", recipe->output);
    show_line("next: tune eval %s --episodes 100", str_text(&run));
    str_release(&run);
}

static Status show_episode(const Recipe *recipe) {
    Watch watch = {0};
    Evaluation found;
    TRY(learn_evaluate(recipe->output, &(EvaluationConfig){.episodes = 1, .seed = 1, .on_step = watch_step, .context = &watch}, &found));
    if (found.cut > 0 && found.limit > 0)
        show_line("the episode was cut after %lld step%s: the environment has no step limit", (long long)found.limit, plural(found.limit));
    return ST_OK;
}

Status rl_environment(const RecipeCommand *job) {
    LearnResult result;
    LearnConfig config = {
        .recipe = job->recipe,
        .options = job->options,
        .on_plan = show_plan,
        .on_progress = show_update,
        .on_values = show_values,
        .context = (void *)(uintptr_t)job,
    };
    Status status = learn_run(&config, &result);
    if (status != ST_OK || job->options.dry_run) return status;
    rl_environment_summarize(job, &result);
    return job->watch && !job->command->json ? show_episode(job->recipe) : ST_OK;
}
