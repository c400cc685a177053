/* tune sft: a recipe in, a trained adapter or model in the run directory out. */
#include <math.h>

#include "cmd/cmd.h"
#include "sft/sft.h"

static void warn(void *context, const char *text) {
    (void)context;
    show_message("tune: warning: %s", text);
}

static void show_file(void *context, const char *text) {
    (void)context;
    show_line("data: %s", text);
}

static void show_plan(void *context, const SftPlan *plan) {
    const Recipe *recipe = context;
    Str memory = {0};
    show_line("data: %lld rows (%s), %lld tokens, %lld of them trained%s", (long long)plan->train.rows, plan->format, (long long)plan->train.tokens, (long long)plan->train.trained_tokens,
              plan->train_rows->cached ? ", from data.cache" : "");
    if (plan->train_rows->n_files > 1) data_files_say(plan->train_rows, show_file, NULL);
    data_counts_warn(&plan->train, "data.train", warn, NULL);
    if (plan->eval.rows) show_line("held out: %lld rows, %lld trained tokens", (long long)plan->eval.rows, (long long)plan->eval.trained_tokens);
    data_counts_warn(&plan->eval, "data.eval", warn, NULL);
    Str summary = {0};
    data_check_summary(plan->rows, plan->check, &summary);
    if (plan->check->n_warnings) str_append(&summary, ": see tune data check");
    show_line("check: %s", str_text(&summary));
    if (plan->check->wrong) warn(NULL, "these rows teach nothing, or the wrong thing");
    str_release(&summary);
    show_line("model: %s, %lld parameters, %lld trained (%s), products in %s", recipe->model_path, (long long)plan->parameters, (long long)plan->trained_parameters,
              recipe->has_lora ? "LoRA" : "all", dtype_name(plan->compute));
    train_memory_describe(&plan->memory, &memory);
    show_line("memory: %s", str_text(&memory));
    show_line("plan: %lld steps, %.4g an epoch, largest step %lld tokens", (long long)plan->total_steps, plan->steps_per_epoch, (long long)plan->largest_batch_tokens);
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
    show_progress("step %lld/%lld  loss %.4f  %.0f tokens/s  %s left  %s", (long long)p->step, (long long)p->total_steps, p->loss, p->tokens_per_second,
                  format_seconds(p->seconds_left, left), format_bytes((double)p->memory, memory));
}

static void summarize(const Command *command, const Recipe *recipe, const TrainResult *result) {
    const char *part = recipe->has_lora ? "adapter" : "model";
    end_live_line();
    if (command->json) {
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
        jw_int(&w, "loss_tokens", result->loss_tokens);
        jw_double(&w, "seconds", result->seconds);
        jw_string(&w, part, str_text(&path));
        jw_end_object(&w);
        print_result("%s\n", str_text(&w.text));
        jw_release(&w);
        str_release(&path);
    }
    char seconds[32];
    if (result->already_finished) {
        show_line("'%s' is a finished run: nothing to do", recipe->output);
        return;
    }
    show_line("%lld steps in %s: loss %.4f -> %.4f%s", (long long)result->steps, format_seconds(result->seconds, seconds), result->first_loss, result->last_loss,
              result->early_stopped ? ", stopped early" : "");
    if (!isnan(result->eval_loss)) show_line("held-out loss %.4f, best %.4f", result->eval_loss, result->best_eval_loss);
    show_line("wrote %s/%s", recipe->output, part);
    if (recipe->has_lora) show_line("next: tune generate %s --adapter %s/adapter, or tune merge %s %s/adapter -o MERGED", recipe->model_path, recipe->output, recipe->model_path, recipe->output);
}

static Status train(const RecipeCommand *job) {
    TrainResult result = {0};
    Str typed = {0};
    recipe_command_line(job, &typed);
    SftConfig config = {.recipe = job->recipe, .command = str_text(&typed), .resume = job->resume, .dry_run = job->dry_run, .on_plan = show_plan, .on_progress = show_step, .context = job->recipe};
    Status status = sft_run(&config, &result);
    if (status == ST_OK && !job->dry_run) summarize(job->command, job->recipe, &result);
    str_release(&typed);
    return status;
}

Status cmd_sft(int argc, char **argv) {
    static const char *const sections[] = {"", "model", "lora", "data", "train", "eval", "generate", NULL};
    return recipe_command(argc, argv, "sft",
                          "Trains a LoRA adapter (or, without a lora section, the whole model) on rows and writes it into the recipe's output directory.\n"
                          "    tune sft recipes/demo/sft.yaml lora.rank=8 output=runs/try",
                          sections, train);
}
