/* SPDX-License-Identifier: Apache-2.0 */
/* tune report: the page of one run, or several side by side. */
#include "cmd/cmd.h"
#include "lib/train/report.h"

static void print_json(const Command *command, const char *path, const RunNumbers *numbers) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "path", path);
    jw_array(&w, "runs");
    for (size_t i = 0; i < command->n_arguments; i++) {
        const RunNumbers *run = &numbers[i];
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
        jw_int(&w, "broken_lines", (int64_t)run->broken_lines);
        jw_end_object(&w);
    }
    jw_end_array(&w);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

static Status report(const Command *command, const char *output) {
    TRY(command_needs(command, 1, COUNT_OF(command->arguments)));
    size_t n = command->n_arguments;
    const char *path = output ? output : n == 1 ? path_join(command->arena, command->arguments[0], "report.html") : "report.html";
    RunNumbers *numbers = arena_zero(command->arena, n * sizeof *numbers);
    if (!path || !numbers) return ST_RESOURCE;
    TRY(check_page(path));
    TRY(report_write(command->arguments, n, path, numbers));
    if (command->json) print_json(command, path, numbers);
    show_line("wrote %s", path);
    return ST_OK;
}

Status cmd_report(int argc, char **argv) {
    const char *output = NULL;
    Command command = {
        .arguments_help = "RUN [RUN ...]",
        .help =
            "Makes the page of a run from its directory: curves, settings, data and mask, samples, speed and memory. Several runs are laid over each other, with the settings in which "
            "they differ. Works while a run trains, too.\n    tune report runs/a runs/b -o comparison.html",
    };
    const Option options[] = {
        {"-o", OPTION_TEXT, &output, "FILE", "where to; default: RUN/report.html, of several runs ./report.html"},
        {0},
    };
    bool done;
    Status status = command_parse(&command, argc, argv, options, &done);
    if (status == ST_OK && !done) status = report(&command, output);
    arena_free(command.arena);
    return status;
}
