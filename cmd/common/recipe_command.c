/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of the commands that take a RECIPE: file and overrides, --resume, --force, --dry-run, --schema. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/common/recipe_command.h"
#include "cmd/common/runtime.h"
#include "lib/train/train.h"
#include "cmd/app/app.h"
#include "cmd/app/ranks.h"
#include "cmd/app/shipped.h"
#include "cmd/app/terminal.h"
#include "cmd/app/hub.h"
#include "lib/recipe/keys.h"

static Status print_schema(void) {
    Str text = {0};
    recipe_write_schema(&text);
    print_result("%s\n", str_text(&text));
    str_release(&text);
    return ST_OK;
}

/* If the first argument has no '=', it is the recipe. All others are overrides. Overrides alone are enough for a run. */
static bool has_file(const Command *command) { return command->n_arguments > 0 && !strchr(command->arguments[0], '='); }

/* Appends an argument, its URLs without user, password and query, since these may be secrets. */
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

/* The command line, quoted for a shell. */
static void command_line(const RecipeCommand *job, bool resume, Str *text) {
    const Command *command = job->command;
    Str shown = {0};
    str_printf(text, "tune %s", job->name);
    for (size_t i = 0; i < command->n_arguments; i++) {
        str_clear(&shown);
        add_without_secrets(command->arguments[i], &shown);
        str_append_char(text, ' ');
        str_append_shell(text, "%s", str_text(&shown));
    }
    if (resume) str_append(text, " --resume");
    if (job->options.force && !resume) str_append(text, " --force");
    str_release(&shown);
}

const char *secret_from_environment(void *context, const char *name) {
    (void)context;
    return getenv(name);
}

/* Reads a recipe: a file, or else a shipped recipe of that name. */
static Status read_named(const Command *command, const char *name, const char *const *overrides, size_t n, Recipe **recipe) {
    Str text = {0};
    const char *path = NULL;
    TextList names;
    Status status = file_exists(name) || dir_exists(name) ? ST_OK : recipe_shipped(command->arena, name, &text, &path);
    if (status == ST_OK && path) {
        show_line("recipe: %s", path);
        status = recipe_read_text(path, &text, overrides, n, recipe);
    } else if (status == ST_OK) {
        status = recipe_read(name, overrides, n, recipe);
        bool missing = status == ST_CONFIG && !file_exists(name) && !dir_exists(name) && !strchr(name, '/');
        Failure failure;
        failure_save(&failure, status);
        const char *near = missing && recipe_names(command->arena, &names) == ST_OK ? text_nearest(name, names.items, names.n) : NULL;
        status = failure_restore(&failure);
        if (near) status_hint(status, "there is no such file; did you mean '%s', which comes with the program?", near);
    }
    str_release(&text);
    return status;
}

Status command_recipe(const Command *command, Recipe **recipe) {
    bool file = has_file(command);
    if (command->n_arguments == 0) TRY(command_needs(command, 1, COUNT_OF(command->arguments)));
    for (size_t i = file; i < command->n_arguments; i++)
        if (!strchr(command->arguments[i], '=')) {
            status_fail(ST_USAGE, "'%s' is not an override", command->arguments[i]);
            return status_hint(ST_USAGE, "overrides after the recipe are KEY=VALUE, such as train.learning_rate=1e-4");
        }
    const char *const *overrides = command->arguments + file;
    size_t n = command->n_arguments - file;
    TRY(file ? read_named(command, command->arguments[0], overrides, n, recipe) : recipe_read(NULL, overrides, n, recipe));
    Status status = recipe_models_find(*recipe);
    if (status != ST_OK) recipe_free(*recipe);
    return status;
}

/* ---- keys of other commands ---- */

/* The top-level key `reward` counts as a section, since only commands that train by rewards or filter rows by them read it. */
static const char *section_of(const Key *key) { return strcmp(key->dotted, "reward") == 0 ? key->dotted : key->section; }

static bool takes(const char *const *sections, const char *section) {
    for (; *sections; sections++)
        if (strcmp(*sections, section) == 0) return true;
    return false;
}

static const char *const by_rewards[] = {"rl", "policy", "reward", NULL};

static const char *who_takes(const char *section) {
    if (strcmp(section, "plan") == 0) return section;
    return strcmp(section, "synth") == 0 ? "data synth" : takes(by_rewards, section) || strcmp(section, "generate") == 0 ? "rl" : "sft";
}

/* A key of another command is an error on the command line. In a file it is allowed, since commands may share a recipe; except that a recipe for
 * learning by rewards is not meant for training on its rows. */
static Status refuse_others(const RecipeCommand *job, const char *const *sections) {
    const Recipe *recipe = job->recipe;
    for (size_t i = 0; i < n_recipe_keys; i++) {
        const Key *key = &recipe_keys[i];
        const char *section = section_of(key);
        if (!recipe->given[i] || !section_present(recipe, key->section) || takes(sections, section)) continue;
        if (section == key->dotted && !recipe->reward) continue;
        if (recipe->lines[i] > 0 && !(takes(sections, "train") && takes(by_rewards, section))) continue;
        if (recipe->lines[i] > 0)
            status_fail(ST_CONFIG, "'%s' line %d: tune %s does not take '%s'", recipe->path, recipe->lines[i], job->name, key->dotted);
        else
            status_fail(ST_CONFIG, "tune %s does not take '%s'", job->name, key->dotted);
        return status_hint(ST_CONFIG, "it belongs to tune %s; or leave '%s' out: %s=null", who_takes(section), section, section);
    }
    return ST_OK;
}

/* Keys in a section that several commands take, but that only one of them reads. (The algorithms of tune rl check theirs themselves.) As above,
 * such a key is an error on the command line; in a file it is a warning. */
static Status refuse_unread(const RecipeCommand *job) {
    static const struct {
        const char *key, *command;
    } one_reads[] = {
        {"data.turns", "sft"},
        {"train.loss", "sft"},
        {"train.label_smoothing", "sft"},
        {"train.neftune_alpha", "sft"},
        {"train.center_rewards_coefficient", "reward"},
    };
    const Recipe *recipe = job->recipe;
    if (strcmp(job->name, "sft") != 0 && strcmp(job->name, "reward") != 0) return ST_OK;
    for (size_t k = 0; k < COUNT_OF(one_reads); k++) {
        char hint[64];
        if (strcmp(one_reads[k].command, job->name) == 0) continue;
        snprintf(hint, sizeof hint, "it belongs to tune %s", one_reads[k].command);
        TRY(recipe_unread(recipe, one_reads[k].key, hint, "does nothing here: tune %s does not read it", job->name));
    }
    TRY(recipe_check_choices(recipe));
    return recipe_check_batches(recipe);
}

static void add_options(const RecipeCommand *job, Str *line) {
    const Command *command = job->command;
    const struct {
        bool given;
        const char *name;
    } flags[] = {{command->quiet, "quiet"}, {command->json, "json"}, {command->profile, "profile"}, {job->watch, "watch"}};
    if (command->threads) str_printf(line, " --threads %lld", (long long)command->threads);
    if (command->log) str_printf(line, " --log %lld", (long long)command->log);
    for (size_t i = 0; i < COUNT_OF(flags); i++)
        if (flags[i].given) str_printf(line, " --%s", flags[i].name);
}

static Status check_options(const RecipeCommand *job) {
    if (!job->options.resume || !job->options.force) return ST_OK;
    return status_hint(status_fail(ST_USAGE, "--resume continues a run, --force starts a new one: give only one of them"),
                       "--force keeps the old run as NAME.1, so nothing is lost");
}

static Status recipe_command_run(RecipeCommand *job, const char *const *sections, RecipeCommandRun *work) {
    const Command *command = job->command;
    Recipe *recipe;
    Str typed = {0}, again = {0};
    TRY(check_options(job));
    TRY(command_recipe(command, &recipe));
    recipe->program = tune_program;
    job->recipe = recipe;
    command_line(job, job->options.resume, &typed);
    job->options.command = str_text(&typed);
    command_line(job, true, &again); /* with all overrides: another recipe or output would be another run */
    add_options(job, &again);
    job->options.resume_command = str_text(&again);
    Status status = refuse_others(job, sections);
    if (status == ST_OK) status = refuse_unread(job);
    if (status == ST_OK && job->options.resume) status = recipe_adopt_defaults_of_run(recipe);
    if (status == ST_OK) status = ranks_agree(recipe);
    if (status == ST_OK) {
        job->options.absent = comm_rank(ranks_world()) > 0;
        use_threads(command->threads ? command->threads : recipe->threads);
        job->runtime = runtime_choose(model_compute_text(recipe->model_compute));
        status = work(job);
    }
    if (status == ST_INTERRUPTED) status_hint(status, "continue with: %s", str_text(&again));
    str_release(&typed);
    str_release(&again);
    recipe_free(recipe);
    return status;
}

Status recipe_command(int argc, char **argv, const char *name, const char *about, const char *const *sections, RecipeCommandRun *work) {
    RecipeCommand job = {.name = name, .options.say = show_line};
    bool schema = false, done;
    Command command = {.arguments_help = "RECIPE [KEY=VALUE ...]", .help = about, .sections = sections};
    const Option options[] = {
        {"--resume", OPTION_FLAG, &job.options.resume, NULL,
         "continue from the newest checkpoint; the result has the same bytes as an uninterrupted run"},
        {"--force", OPTION_FLAG, &job.options.force, NULL, "start a new run even if output holds one; the old one is kept as NAME.1, NAME.2, ..."},
        {"--dry-run", OPTION_FLAG, &job.options.dry_run, NULL, "do everything except training: read the data, show the plan and the memory needed"},
        {"--schema", OPTION_FLAG, &schema, NULL, "print the JSON schema of recipes"},
        {strcmp(name, "rl") == 0 ? "--watch" : NULL, OPTION_FLAG, &job.watch, NULL,
         "at the end show an episode of the trained policy, step by step (environments)"},
        {0},
    };
    job.command = &command;
    TRY(ranks_open());
    Status status = command_parse(&command, argc, argv, options, &done);
    if (status == ST_OK && !done) status = schema ? print_schema() : recipe_command_run(&job, sections, work);
    arena_free(command.arena);
    return status;
}
