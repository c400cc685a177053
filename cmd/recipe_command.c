/* What the commands that take a RECIPE have in common: file and overrides, --resume, --dry-run, --schema. */
#include <string.h>

#include "cmd/cmd.h"

static Status print_schema(void) {
    Str text = {0};
    recipe_write_schema(&text);
    print_result("%s\n", str_text(&text));
    str_release(&text);
    return ST_OK;
}

/* The first argument without '=' is the recipe, the rest are overrides; a run can be given by overrides alone. */
static bool has_file(const Command *command) { return command->n_arguments > 0 && !strchr(command->arguments[0], '='); }

/* Urls without what is nobody's business: user, password and query. */
static void add_without_secrets(const char *argument, Str *text) {
    while (*argument) {
        const char *mark = strstr(argument, "://"), *url = mark ? mark + strlen("://") : argument + strlen(argument), *next = strstr(url, "://");
        size_t len = strcspn(url, " \t\n'\""), host = strcspn(url, "/?#"), query = strcspn(url, "?"), from;
        if (next) len = MIN(len, (size_t)(next - url));
        for (from = MIN(len, host); from > 0 && url[from - 1] != '@'; from--) {}
        str_append_n(text, argument, (size_t)(url - argument));
        str_append(text, from ? "***@" : "");
        str_append_n(text, url + from, MIN(len, query) - from);
        if (query < len) {
            while (strchr(",}]", url[len - 1])) len--;
            str_append(text, "?***");
        }
        argument = url + len;
    }
}

void recipe_command_line(const RecipeCommand *job, Str *text) {
    const Command *command = job->command;
    Str shown = {0};
    str_printf(text, "tune %s", job->name);
    for (size_t i = 0; i < command->n_arguments; i++) {
        str_clear(&shown);
        add_without_secrets(command->arguments[i], &shown);
        const char *argument = str_text(&shown);
        bool plain = argument[strspn(argument, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%")] == '\0';
        str_append(text, plain ? " " : " '");
        for (const char *at = argument; *at; at++) {
            if (*at == '\'') str_append(text, "'\\''");
            else str_append_char(text, *at);
        }
        if (!plain) str_append_char(text, '\'');
    }
    if (job->resume) str_append(text, " --resume");
    str_release(&shown);
}

static Status read_recipe(const Command *command, Recipe **recipe) {
    bool file = has_file(command);
    if (command->n_arguments == 0) TRY(command_needs(command, 1, COUNT_OF(command->arguments)));
    for (size_t i = file; i < command->n_arguments; i++)
        if (!strchr(command->arguments[i], '=')) {
            status_fail(ST_USAGE, "'%s' is no override", command->arguments[i]);
            return status_hint(ST_USAGE, "behind the recipe come KEY=VALUE, such as train.learning_rate=1e-4");
        }
    return recipe_read(file ? command->arguments[0] : NULL, command->arguments + file, command->n_arguments - file, recipe);
}

/* With all that was said: another recipe, or another output, would be another run. */
static void hint_resume(RecipeCommand *job) {
    Str line = {0};
    job->resume = true;
    recipe_command_line(job, &line);
    status_hint(ST_INTERRUPTED, "go on with: %s", str_text(&line));
    str_release(&line);
}

static Status run(RecipeCommand *job, RecipeCommandRun *work) {
    const Command *command = job->command;
    Recipe *recipe;
    TRY(read_recipe(command, &recipe));
    recipe->program = tune_program;
    job->recipe = recipe;
    use_threads(command->threads ? command->threads : recipe->threads);
    Status status = work(job);
    if (status == ST_INTERRUPTED) hint_resume(job);
    recipe_free(recipe);
    return status;
}

Status recipe_command(int argc, char **argv, const char *name, const char *about, const char *const *sections, RecipeCommandRun *work) {
    RecipeCommand job = {.name = name};
    bool schema = false, done;
    Str help = {0};
    str_printf(&help, "%s\n\nrecipe keys, all of them overridable as KEY=VALUE:\n", about);
    for (; *sections; sections++) recipe_write_help(*sections, &help);
    Command command = {.arguments_help = "RECIPE [KEY=VALUE ...]", .help = str_text(&help)};
    const Option options[] = {
        {"--resume", OPTION_FLAG, &job.resume, NULL, "go on from the newest checkpoint, to the same bytes as an undisturbed run"},
        {"--dry-run", OPTION_FLAG, &job.dry_run, NULL, "everything but training: what is read, what it takes"},
        {"--schema", OPTION_FLAG, &schema, NULL, "print the JSON schema of recipes"},
        {strcmp(name, "rl") == 0 ? "--watch" : NULL, OPTION_FLAG, &job.watch, NULL, "in the end show an episode of what was learned, step by step (environments)"},
        {0},
    };
    job.command = &command;
    Status status = command_parse(&command, argc, argv, options, &done);
    if (status == ST_OK && !done) status = schema ? print_schema() : run(&job, work);
    arena_free(command.arena);
    str_release(&help);
    return status;
}
