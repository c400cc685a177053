/* SPDX-License-Identifier: Apache-2.0 */
/* tune rl on rows with rewards (implicit Q-learning): shows plan, progress and result. */
#include "cmd/app/terminal.h"
#include "cmd/train/cmd_rl.h"
#include "cmd/train/train_show.h"
#include "rl/offline/ilql.h"

static void show_plan(void *context, const IlqlPlan *plan) {
    const RecipeCommand *job = context;
    const Recipe *recipe = job->recipe;
    const TrainPlan shown = {
        .rows = (int64_t)plan->rows,
        .tokens = plan->tokens,
        .trained_tokens = plan->trained_tokens,
        .steps = plan->total_steps,
        .largest_batch_tokens = NOT_PLANNED,
        .parameters = plan->parameters,
        .trained_parameters = plan->trained_parameters,
        .compute = plan->compute,
        .memory = &plan->memory,
        .model = plan->model,
    };
    print_training_plan(job, &shown);
    show_line("data: %zu row%s, %lld token%s, %lld of them trained; mean reward %s", plan->rows, plural((int64_t)plan->rows), (long long)plan->tokens,
              plural(plan->tokens), (long long)plan->trained_tokens, NUMBER(plan->mean_reward));
    show_plain_rows(plan->table);
    data_counts_warn(&plan->table->counts, "data.train", show_warning, NULL);
    if (plan->dropped)
        show_message("tune: warning: data.train: %lld row%s longer than data.max_length left out", (long long)plan->dropped, plural(plan->dropped));
    show_training_model(recipe, &shown, " and Q and V heads");
    show_line("plan: %lld step%s", (long long)plan->total_steps, plural(plan->total_steps));
}

static void show_step(void *context, const IlqlProgress *p) {
    const Recipe *recipe = ((const RecipeCommand *)context)->recipe;
    char left[32];
    if (recipe->train_live) show_curve(p->loss);
    show_progress("step %lld/%lld  loss %s  advantage %s  %.0f tokens/s  %s left", (long long)p->step, (long long)p->total_steps, NUMBER(p->loss),
                  NUMBER(p->advantage), p->tokens_per_second, format_seconds(p->seconds_left, left));
}

static void rl_offline_summarize(const RecipeCommand *job, const IlqlResult *result) {
    const Recipe *recipe = job->recipe;
    char seconds[32];
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_int(&w, "steps", result->steps);
    jw_double(&w, "first_loss", result->first_loss);
    jw_double(&w, "last_loss", result->last_loss);
    jw_double(&w, "seconds", result->seconds);
    if (!show_run_end(job->command, recipe, &w, result->already_finished)) return;
    show_line("%lld step%s in %s: loss %s -> %s", (long long)result->steps, plural(result->steps), format_seconds(result->seconds, seconds),
              NUMBER(result->first_loss), NUMBER(result->last_loss));
    show_line("wrote %s/%s and %s/ilql_heads.safetensors", recipe->output, trained_part(recipe), recipe->output);
    Str model = {0};
    append_trained(&model, recipe);
    bool raw = !first_row_is_conversation(recipe);
    show_line("next: tune generate %s --ilql 4%s --prompt Hello", str_text(&model), raw ? " --raw" : "");
    str_release(&model);
}

Status rl_offline(const RecipeCommand *job) {
    IlqlResult result;
    IlqlRunConfig config = {
        .recipe = job->recipe,
        .options = job->options,
        .on_plan = show_plan,
        .on_progress = show_step,
        .context = (void *)(uintptr_t)job,
    };
    Status status = ilql_run(&config, &result);
    if (status == ST_OK && !job->options.dry_run) rl_offline_summarize(job, &result);
    return status;
}
