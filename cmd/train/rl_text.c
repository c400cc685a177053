/* SPDX-License-Identifier: Apache-2.0 */
/* tune rl on prompts with rewards, or in an environment of texts: shows plan, progress and result. */
#include <math.h>

#include "cmd/app/terminal.h"
#include "cmd/train/cmd_rl.h"
#include "cmd/train/train_show.h"
#include "rl/text/text_rl.h"

static void show_plan(void *context, const TextRlPlan *plan) {
    const RecipeCommand *job = context;
    const Recipe *recipe = job->recipe;
    const TrainPlan shown = {
        .rows = (int64_t)plan->prompts,
        .tokens = NOT_PLANNED,
        .trained_tokens = NOT_PLANNED,
        .eval_rows = (int64_t)plan->eval_prompts,
        .steps = plan->total_steps,
        .largest_batch_tokens = NOT_PLANNED,
        .parameters = plan->parameters,
        .trained_parameters = plan->trained_parameters,
        .compute = plan->compute,
        .memory = &plan->memory,
        .model = plan->model,
    };
    print_training_plan(job, &shown);
    show_line("algorithm: %s: %s", plan->algorithm->name, plan->algorithm->help);
    if (plan->env)
        show_line("environment: %s; groups of %lld episode%s, %lld groups a step", plan->env, (long long)recipe->rl_num_generations,
                  plural(recipe->rl_num_generations), (long long)recipe->rl_prompts_per_step);
    else
        show_line("prompts: %zu, the longest %lld token%s; %lld completion%s of each, %lld prompt%s a step", plan->prompts,
                  (long long)plan->longest_prompt, plural(plan->longest_prompt), (long long)recipe->rl_num_generations,
                  plural(recipe->rl_num_generations), (long long)recipe->rl_prompts_per_step, plural(recipe->rl_prompts_per_step));
    if (plan->eval_prompts) show_line("held-out prompts: %zu, answered greedily", plan->eval_prompts);
    show_plain_rows(plan->table);
    data_counts_warn(&plan->table->counts, "data.train", show_warning, NULL);
    if (plan->dropped)
        show_message("tune: warning: data.train: %lld prompt%s longer than data.max_length left out", (long long)plan->dropped,
                     plural(plan->dropped));
    if (plan->cut) show_message("tune: warning: data.train: %lld prompt%s cut to data.max_length", (long long)plan->cut, plural(plan->cut));
    show_training_model(recipe, &shown, "");
    show_line("plan: %lld step%s", (long long)plan->total_steps, plural(plan->total_steps));
}

static void show_step(void *context, const TextRlProgress *p) {
    const Recipe *recipe = ((const RecipeCommand *)context)->recipe;
    char left[32], number[32];
    if (recipe->train_live) show_curve(p->reward);
    show_progress("step %lld/%lld  reward %s  length %.1f  %.0f tokens/s  %s left", (long long)p->step, (long long)p->total_steps,
                  short_number(p->reward, number), p->completion_length, p->tokens_per_second, format_seconds(p->seconds_left, left));
    if (isnan(p->eval_reward)) return;
    end_live_line();
    show_line("step %lld: held-out reward %s", (long long)p->step, short_number(p->eval_reward, number));
}

static void rl_text_summarize(const RecipeCommand *job, const TextRlResult *result) {
    const Recipe *recipe = job->recipe;
    char seconds[32], first[32], last[32];
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_int(&w, "steps", result->steps);
    jw_double(&w, "first_reward", result->first_reward);
    jw_double(&w, "last_reward", result->last_reward);
    jw_double(&w, "first_eval_reward", result->first_eval);
    jw_double(&w, "last_eval_reward", result->last_eval);
    jw_double(&w, "seconds", result->seconds);
    if (!show_run_end(job->command, recipe, &w, result->already_finished)) return;
    if (!isnan(result->last_eval))
        show_line("held-out reward %s -> %s (greedy answers)", short_number(result->first_eval, first), short_number(result->last_eval, last));
    show_line("%lld step%s in %s: reward %s -> %s", (long long)result->steps, plural(result->steps), format_seconds(result->seconds, seconds),
              short_number(result->first_reward, first), short_number(result->last_reward, last));
    show_line("wrote %s/%s", recipe->output, trained_part(recipe));
    if (!recipe->rl_env) show_next_use(recipe, first_row_is_conversation(recipe));
}

Status rl_text(const RecipeCommand *job) {
    TextRlResult result;
    TextRlConfig config = {
        .recipe = job->recipe,
        .options = job->options,
        .rewards = {.secret = secret_from_environment},
        .on_plan = show_plan,
        .on_progress = show_step,
        .context = (void *)(uintptr_t)job,
    };
    Status status = text_rl_run(&config, &result);
    if (status == ST_OK && !job->options.dry_run) rl_text_summarize(job, &result);
    return status;
}
