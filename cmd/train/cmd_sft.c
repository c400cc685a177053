/* SPDX-License-Identifier: Apache-2.0 */
/* tune sft: trains an adapter or a model by a recipe and writes it into the run directory. */
#include "cmd/app/commands.h"
#include "cmd/app/terminal.h"
#include "cmd/train/train_show.h"
#include "sft/sft.h"

static void show_file(void *context, const char *text) {
    (void)context;
    show_line("data: %s", text);
}

typedef struct Shown {
    const RecipeCommand *job;
    bool conversations; /* most rows are conversations */
} Shown;

static void show_plan(void *context, const SftPlan *plan) {
    Shown *run = context;
    const RecipeCommand *job = run->job;
    run->conversations = 2 * plan->train.conversations > plan->train.rows;
    char number[32];
    const TrainPlan shown = {
        .rows = plan->train.rows,
        .tokens = plan->train.tokens,
        .trained_tokens = plan->train.trained_tokens,
        .eval_rows = plan->eval.rows,
        .steps = plan->total_steps,
        .largest_batch_tokens = plan->largest_batch_tokens,
        .parameters = plan->parameters,
        .trained_parameters = plan->trained_parameters,
        .compute = plan->compute,
        .memory = &plan->memory,
        .model = plan->model,
    };
    print_training_plan(job, &shown);
    show_line("data: %lld row%s (%s), %lld token%s, %lld of them trained%s", (long long)plan->train.rows, plural(plan->train.rows), plan->format,
              (long long)plan->train.tokens, plural(plan->train.tokens), (long long)plan->train.trained_tokens,
              plan->train_rows->cached ? ", from data.cache" : "");
    show_plain_rows(plan->train_rows);
    if (plan->train_rows->n_files > 1) data_files_report(plan->train_rows, show_file, NULL);
    data_turns_report(&plan->train, "data.train", show_file, NULL);
    data_counts_warn(&plan->train, "data.train", show_warning, NULL);
    if (plan->eval.rows)
        show_line("held out: %lld row%s, %lld trained token%s", (long long)plan->eval.rows, plural(plan->eval.rows),
                  (long long)plan->eval.trained_tokens, plural(plan->eval.trained_tokens));
    data_counts_warn(&plan->eval, "data.eval", show_warning, NULL);
    Str summary = {0};
    data_check_summary(plan->rows, plan->check, &summary);
    if (plan->check->n_warnings) str_append(&summary, ": see tune data check");
    show_line("check: %s", str_text(&summary));
    if (plan->check->wrong) show_warning(NULL, "the model would learn nothing useful from these rows");
    str_release(&summary);
    show_training_model(job->recipe, &shown, "");
    show_line("plan: %lld step%s, %s an epoch, largest step %lld token%s", (long long)plan->total_steps, plural(plan->total_steps),
              short_number(plan->steps_per_epoch, number), (long long)plan->largest_batch_tokens, plural(plan->largest_batch_tokens));
}

static void show_step(void *context, const Progress *p) { show_training_step(((const Shown *)context)->job->recipe, p); }

static Status cmd_sft_train(const RecipeCommand *job) {
    const Recipe *recipe = job->recipe;
    TrainResult result = {0};
    Shown shown = {.job = job};
    SftConfig config = {.recipe = job->recipe, .options = job->options, .on_plan = show_plan, .on_progress = show_step, .context = &shown};
    Status status = sft_run(&config, &result);
    if (status == ST_OK && !job->options.dry_run) {
        show_training_result(job->command, recipe, &result);
        if (!result.already_finished) show_next_use(recipe, shown.conversations);
    }
    return status;
}

Status cmd_sft(int argc, char **argv) {
    static const char *const sections[] = {"", "model", "lora", "data", "train", "eval", NULL};
    return recipe_command(
        argc, argv, "sft",
        "Trains a LoRA adapter on rows (without a lora section, the whole model) and writes it into the recipe's output directory.\n"
        "    tune sft recipes/demo/sft.yaml lora.rank=8 output=runs/try",
        sections, cmd_sft_train);
}
