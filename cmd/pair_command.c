/* Plan, progress and summary of a run over pairs. */
#include "cmd/pair_command.h"

#include <math.h>

static void show_plan(void *context, const PairRun *run, const PairPlan *plan) {
    const Recipe *recipe = context;
    const Pairs *pairs = run->train;
    Str memory = {0};
    show_line("data: %zu %s, %lld tokens, %lld of them trained", pairs->n, run->objective->stepwise ? "answers in steps" : run->objective->unpaired ? "answers" : "pairs", (long long)pairs->tokens, (long long)pairs->trained_tokens);
    if (pairs->dropped_long > 0) show_message("tune: warning: data.train: %lld rows are longer than data.max_length and left out", (long long)pairs->dropped_long);
    if (pairs->cut > 0) show_message("tune: warning: data.train: %lld rows are longer than data.max_length and cut", (long long)pairs->cut);
    if (pairs->dropped_same > 0) show_message("tune: warning: data.train: %lld rows are left out: both answers are the same", (long long)pairs->dropped_same);
    if (run->eval) show_line("held out: %zu rows", run->eval->n);
    show_line("model: %s, %lld parameters, %lld trained (%s), products in %s", recipe->model_path, (long long)plan->parameters, (long long)plan->trained_parameters, recipe->has_lora ? "LoRA" : "all",
              dtype_name(run->model->compute));
    train_memory_describe(&plan->memory, &memory);
    show_line("memory: %s", str_text(&memory));
    show_line("plan: %lld steps, %.4g an epoch, largest batch %lld tokens", (long long)plan->total_steps, plan->steps_per_epoch, (long long)plan->largest_batch_tokens);
    str_release(&memory);
}

static void show_step(void *context, const Progress *p) {
    const Recipe *recipe = context;
    char left[32], memory[32];
    if (p->evaluation) {
        show_line("step %lld: held-out loss %.4f", (long long)p->step, p->eval_loss);
        return;
    }
    if (recipe->train_live) show_curve(p->loss);
    show_progress("step %lld/%lld  loss %.4f  %.0f tokens/s  %s left  %s", (long long)p->step, (long long)p->total_steps, p->loss, p->tokens_per_second, format_seconds(p->seconds_left, left),
                  format_bytes((double)p->memory, memory));
}

static void print_json(const Recipe *recipe, const TrainResult *result) {
    const char *part = recipe->has_lora ? "adapter" : "model";
    JsonWriter w = {0};
    Str path = {0};
    str_printf(&path, "%s/%s", recipe->output, part);
    jw_object(&w, NULL);
    jw_int(&w, "steps", result->steps);
    jw_double(&w, "first_loss", result->first_loss);
    jw_double(&w, "last_loss", result->last_loss);
    jw_double(&w, "eval_loss", result->eval_loss);
    jw_double(&w, "best_eval_loss", result->best_eval_loss);
    jw_int(&w, "tokens", result->tokens);
    jw_double(&w, "seconds", result->seconds);
    jw_string(&w, part, str_text(&path));
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
    str_release(&path);
}

static void summarize(const Command *command, const Recipe *recipe, const TrainResult *result) {
    char seconds[32];
    end_live_line();
    if (command->json) print_json(recipe, result);
    if (result->already_finished) {
        show_line("'%s' is a finished run: nothing to do", recipe->output);
        return;
    }
    show_line("%lld steps in %s: loss %.4f -> %.4f%s", (long long)result->steps, format_seconds(result->seconds, seconds), result->first_loss, result->last_loss,
              result->early_stopped ? ", stopped early" : "");
    if (!isnan(result->eval_loss)) show_line("held-out loss %.4f, best %.4f", result->eval_loss, result->best_eval_loss);
    show_line("wrote %s/%s", recipe->output, recipe->has_lora ? "adapter" : "model");
}

Status pair_command(const RecipeCommand *job, PairCommandRun *run) {
    TrainResult result = {0};
    Str typed = {0};
    recipe_command_line(job, &typed);
    PairRunConfig config = {.recipe = job->recipe, .command = str_text(&typed), .resume = job->resume, .dry_run = job->dry_run, .on_plan = show_plan, .on_progress = show_step, .context = job->recipe};
    Status status = run(&config, &result);
    if (status == ST_OK && !job->dry_run) summarize(job->command, job->recipe, &result);
    str_release(&typed);
    return status;
}
