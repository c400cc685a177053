/* SPDX-License-Identifier: Apache-2.0 */
/* Shows plan, progress and summary of a run on pairs. */
#include "cmd/app/terminal.h"
#include "cmd/train/pair_command.h"

#include "cmd/train/train_show.h"

static void show_plan(void *context, const PairRun *run, const PairPlan *plan) {
    const RecipeCommand *job = context;
    char number[32];
    const Pairs *pairs = run->train;
    const TrainPlan shown = {
        .rows = (int64_t)pairs->n,
        .tokens = pairs->tokens,
        .trained_tokens = pairs->trained_tokens,
        .eval_rows = run->eval ? (int64_t)run->eval->n : 0,
        .steps = plan->total_steps,
        .largest_batch_tokens = plan->largest_batch_tokens,
        .parameters = plan->parameters,
        .trained_parameters = plan->trained_parameters,
        .compute = run->model->compute,
        .memory = &plan->memory,
        .model = run->model,
    };
    print_training_plan(job, &shown);
    show_line("data: %zu %s, %lld token%s, %lld of them trained", pairs->n,
              run->objective->stepwise   ? pairs->n == 1 ? "answer in steps" : "answers in steps"
              : run->objective->unpaired ? pairs->n == 1 ? "answer" : "answers"
              : pairs->n == 1            ? "pair"
                                         : "pairs",
              (long long)pairs->tokens, plural(pairs->tokens), (long long)pairs->trained_tokens);
    show_plain_rows(&pairs->table);
    data_counts_warn(&pairs->table.counts, "data.train", show_warning, NULL);
    pairs_report(pairs, job->recipe, "data.train", show_warning, NULL);
    if (run->eval) pairs_report(run->eval, job->recipe, "data.eval", show_warning, NULL);
    if (run->eval) show_line("held out: %zu row%s", run->eval->n, plural((int64_t)run->eval->n));
    show_training_model(job->recipe, &shown, "");
    show_line("plan: %lld step%s, %s an epoch, largest batch %lld token%s", (long long)plan->total_steps, plural(plan->total_steps),
              short_number(plan->steps_per_epoch, number), (long long)plan->largest_batch_tokens, plural(plan->largest_batch_tokens));
}

static void show_step(void *context, const Progress *p) { show_training_step(((const RecipeCommand *)context)->recipe, p); }

Status pair_command(const RecipeCommand *job, PairCommandRun *run, bool answers) {
    TrainResult result = {0};
    PairRunConfig config = {
        .recipe = job->recipe, .options = job->options, .on_plan = show_plan, .on_progress = show_step, .context = (void *)(uintptr_t)job};
    Status status = run(&config, &result);
    if (status != ST_OK || job->options.dry_run) return status;
    show_training_result(job->command, job->recipe, &result);
    if (answers && !result.already_finished) show_next_use(job->recipe, first_row_is_conversation(job->recipe));
    return ST_OK;
}
