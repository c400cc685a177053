/* SPDX-License-Identifier: Apache-2.0 */
/* tune report: makes the page of one run, or of several runs compared. */
#include "cmd/app/commands.h"
#include "cmd/app/options.h"
#include "cmd/app/terminal.h"
#include "cmd/common/results.h"
#include "cmd/train/plan_command.h"
#include "lib/base/file.h"
#include "lib/run/ending.h"
#include "lib/run/report.h"
#include "rl/common/rl_doctor.h"

static void print_json(const Command *command, const char *path, const RunNumbers *numbers, const Ending *endings) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "path", path);
    jw_array(&w, "runs");
    for (size_t i = 0; i < command->n_arguments; i++) {
        const RunNumbers *run = &numbers[i];
        Str advice = {0};
        ending_describe_next_action(&endings[i], &advice);
        jw_object(&w, NULL);
        jw_string(&w, "run", command->arguments[i]);
        jw_bool(&w, "finished", run->finished);
        jw_int(&w, "steps", run->steps);
        jw_double(&w, "first_loss", run->first_loss);
        jw_double(&w, "last_loss", run->last_loss);
        jw_double(&w, "eval_loss", run->eval_loss);
        jw_double(&w, "best_eval_loss", run->best_eval_loss);
        jw_double(&w, "seconds", run->seconds);
        jw_double(&w, "tokens_per_second", run->tokens_per_second);
        jw_double(&w, "step_seconds", run->step_seconds);
        jw_double(&w, "planned_step_seconds", run->planned_step_seconds);
        if (run->peak_rss_bytes < 0)
            jw_null(&w, "peak_rss_bytes");
        else
            jw_int(&w, "peak_rss_bytes", run->peak_rss_bytes);
        jw_string(&w, "state", ending_name(endings[i].end));
        jw_string(&w, "error", endings[i].end == END_ERROR ? endings[i].error : NULL);
        jw_string(&w, "advice", advice.len ? str_text(&advice) : NULL);
        jw_int(&w, "broken_lines", (int64_t)run->broken_lines);
        jw_end_object(&w);
        str_release(&advice);
    }
    jw_end_array(&w);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

/* Prints at once why a run ended with an error, since the page is opened later. */
static void show_ending(const char *dir, const Ending *ending) {
    Str text = {0};
    if (!ending_is_failure(ending)) return;
    ending_describe(ending, &text);
    show_line("%s: %s", dir, str_text(&text));
    str_clear(&text);
    ending_describe_next_action(ending, &text);
    show_line("what to do: %s", str_text(&text));
    str_release(&text);
}

/* Writes plan.json of a run: what tune plan says of its recipe on this machine. */
static Status plan_of_run(const Command *command, const char *dir) {
    const char *path = path_join(command->arena, dir, "recipe.yaml"), *file = path_join(command->arena, dir, "plan.json");
    PlanCommand *plan = arena_zero(command->arena, sizeof *plan);
    Recipe *recipe;
    if (!path || !file || !plan) return ST_RESOURCE;
    TRY(recipe_read(path, NULL, 0, &recipe));
    recipe->plan_machine = NULL;
    *plan = (PlanCommand){.command = command, .recipe = recipe};
    use_threads(command->threads ? command->threads : recipe->threads);
    Status status = plan_of_recipe(plan, 1);
    if (status == ST_OK) status = plan_search(&plan->task, command->arena, &plan->search);
    if (status == ST_OK) {
        const PlanLayout *best = plan->search.n_best > 0 ? &plan->search.best[0] : &plan->search.least;
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_string(&w, "machine", plan->task.machine.title);
        jw_double(&w, "step_seconds", best->step_seconds);
        jw_double(&w, "peak_bytes", best->peak_bytes);
        jw_end_object(&w);
        status = file_write_all(file, str_text(&w.text), w.text.len);
        jw_release(&w);
    }
    recipe_free(recipe);
    return status == ST_OK ? ST_OK : status_prefix(status, "plan of '%s'", dir);
}

static void show_plan(const char *dir, const RunNumbers *run) {
    char planned[32], taken[32];
    if (!(run->planned_step_seconds > 0)) return;
    show_line("%s: a step takes %.3g s, planned %.3g s; memory %s, planned %s", dir, run->step_seconds, run->planned_step_seconds,
              run->peak_rss_bytes < 0 ? "unknown" : format_bytes((double)run->peak_rss_bytes, taken), format_bytes(run->planned_bytes, planned));
}

typedef struct ReportOptions {
    const char *output;
    bool plan;
} ReportOptions;

static Status cmd_report_run(const Command *command, void *context) {
    const ReportOptions *options = context;
    const char *output = options->output;
    TRY(command_needs(command, 1, COUNT_OF(command->arguments)));
    size_t n = command->n_arguments;
    const char *path = output ? output : n == 1 ? path_join(command->arena, command->arguments[0], "report.html") : "report.html";
    RunNumbers *numbers = arena_zero(command->arena, n * sizeof *numbers);
    Ending *endings = arena_zero(command->arena, n * sizeof *endings);
    if (!path || !numbers || !endings) return ST_RESOURCE;
    TRY(check_page(path));
    for (size_t i = 0; i < n && options->plan; i++) TRY(plan_of_run(command, command->arguments[i]));
    TRY(report_write(command->arguments, n, path, &rl_report_reader, numbers));
    for (size_t i = 0; i < n; i++) TRY(ending_read(command->arguments[i], command->arena, &endings[i]));
    if (command->json) print_json(command, path, numbers, endings);
    for (size_t i = 0; i < n; i++) show_plan(command->arguments[i], &numbers[i]);
    for (size_t i = 0; i < n; i++) show_ending(command->arguments[i], &endings[i]);
    show_line("wrote %s", path);
    return ST_OK;
}

Status cmd_report(int argc, char **argv) {
    ReportOptions given = {0};
    Command command = {
        .arguments_help = "RUN [RUN ...]",
        .help =
            "Makes the HTML page of a run from its directory: curves, settings, data and mask, samples, speed and memory. For several runs, the page overlays their curves and lists the settings in which "
            "they differ. Works while a run trains, too.\n    tune report runs/a runs/b -o comparison.html",
    };
    const Option options[] = {
        {"-o", OPTION_TEXT, &given.output, "FILE", "file for the page (RUN/report.html; for several runs ./report.html)"},
        {"--plan", OPTION_FLAG, &given.plan, NULL,
         "also plan the run on this machine, and show planned and measured time and memory (RUN/plan.json)"},
        {0},
    };
    return command_main(&command, argc, argv, options, cmd_report_run, &given);
}
