/* tune sft: a recipe in, a trained adapter or model in the run directory out. */
#include <math.h>
#include <string.h>

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

static Status print_schema(void) {
    Str text = {0};
    recipe_write_schema(&text);
    print_result("%s\n", str_text(&text));
    str_release(&text);
    return ST_OK;
}

/* What was typed, so that a shell reads it as the same again; options are left out. */
static void command_line(const Command *command, Str *text) {
    str_append(text, "tune sft");
    for (size_t i = 0; i < command->n_arguments; i++) {
        const char *argument = command->arguments[i];
        bool plain = argument[strspn(argument, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%")] == '\0';
        str_append(text, plain ? " " : " '");
        for (const char *at = argument; *at; at++) {
            if (*at == '\'') str_append(text, "'\\''");
            else str_append_char(text, *at);
        }
        if (!plain) str_append_char(text, '\'');
    }
}

static Status train(const Command *command, bool resume, bool dry_run) {
    /* The first argument without '=' is the recipe, the rest are overrides; a run can be given by overrides alone. */
    bool has_file = command->n_arguments > 0 && !strchr(command->arguments[0], '=');
    if (command->n_arguments == 0) TRY(command_needs(command, 1, COUNT_OF(command->arguments)));
    for (size_t i = has_file; i < command->n_arguments; i++)
        if (!strchr(command->arguments[i], '=')) {
            status_fail(ST_USAGE, "'%s' is no override", command->arguments[i]);
            return status_hint(ST_USAGE, "behind the recipe come KEY=VALUE, such as lora.rank=8");
        }
    Recipe *recipe;
    TRY(recipe_read(has_file ? command->arguments[0] : NULL, command->arguments + has_file, command->n_arguments - has_file, &recipe));
    recipe->program = "tune " TUNE_VERSION;
    use_threads(command->threads ? command->threads : recipe->threads);
    TrainResult result = {0};
    Str typed = {0};
    command_line(command, &typed);
    if (resume) str_append(&typed, " --resume");
    Status status = sft_run(&(SftConfig){.recipe = recipe, .command = str_text(&typed), .resume = resume, .dry_run = dry_run, .on_plan = show_plan, .on_progress = show_step, .context = recipe}, &result);
    if (status == ST_OK && !dry_run) summarize(command, recipe, &result);
    if (status == ST_INTERRUPTED) status_hint(status, "go on with: tune sft %s --resume", has_file ? command->arguments[0] : "...");
    str_release(&typed);
    recipe_free(recipe);
    return status;
}

Status cmd_sft(int argc, char **argv) {
    bool resume = false, dry_run = false, schema = false, done;
    Str help = {0};
    str_append(&help,
               "Trains a LoRA adapter (or, without a lora section, the whole model) on rows and writes it into the recipe's output directory.\n"
               "    tune sft recipes/demo/sft.yaml lora.rank=8 output=runs/try\n\nrecipe keys, all of them overridable as KEY=VALUE:\n");
    recipe_write_help(NULL, &help);
    Command command = {.arguments_help = "RECIPE [KEY=VALUE ...]", .help = str_text(&help)};
    const Option options[] = {
        {"--resume", OPTION_FLAG, &resume, NULL, "go on from the newest checkpoint, to the same bytes as an undisturbed run"},
        {"--dry-run", OPTION_FLAG, &dry_run, NULL, "everything but training: rows, tokens, memory"},
        {"--schema", OPTION_FLAG, &schema, NULL, "print the JSON schema of recipes"},
        {0},
    };
    Status status = command_parse(&command, argc, argv, options, &done);
    if (status == ST_OK && !done) status = schema ? print_schema() : train(&command, resume, dry_run);
    arena_free(command.arena);
    str_release(&help);
    return status;
}
