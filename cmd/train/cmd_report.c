/* SPDX-License-Identifier: Apache-2.0 */
/* tune report: makes the page of one run, or of several runs compared. */
#include "cmd/app/commands.h"
#include "cmd/app/options.h"
#include "cmd/app/terminal.h"
#include "cmd/common/results.h"
#include "lib/run/ending.h"
#include "lib/run/report.h"
#include "rl/loop/rl_doctor.h"

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

static Status cmd_report_run(const Command *command, void *context) {
    const char *output = *(const char *const *)context;
    TRY(command_needs(command, 1, COUNT_OF(command->arguments)));
    size_t n = command->n_arguments;
    const char *path = output ? output : n == 1 ? path_join(command->arena, command->arguments[0], "report.html") : "report.html";
    RunNumbers *numbers = arena_zero(command->arena, n * sizeof *numbers);
    Ending *endings = arena_zero(command->arena, n * sizeof *endings);
    if (!path || !numbers || !endings) return ST_RESOURCE;
    TRY(check_page(path));
    TRY(report_write(command->arguments, n, path, &rl_report_reader, numbers));
    for (size_t i = 0; i < n; i++) TRY(ending_read(command->arguments[i], command->arena, &endings[i]));
    if (command->json) print_json(command, path, numbers, endings);
    for (size_t i = 0; i < n; i++) show_ending(command->arguments[i], &endings[i]);
    show_line("wrote %s", path);
    return ST_OK;
}

Status cmd_report(int argc, char **argv) {
    const char *output = NULL;
    Command command = {
        .arguments_help = "RUN [RUN ...]",
        .help =
            "Makes the HTML page of a run from its directory: curves, settings, data and mask, samples, speed and memory. For several runs, the page overlays their curves and lists the settings in which "
            "they differ. Works while a run trains, too.\n    tune report runs/a runs/b -o comparison.html",
    };
    const Option options[] = {
        {"-o", OPTION_TEXT, &output, "FILE", "file for the page (RUN/report.html; for several runs ./report.html)"},
        {0},
    };
    return command_main(&command, argc, argv, options, cmd_report_run, &output);
}
