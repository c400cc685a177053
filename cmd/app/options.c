/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the options and arguments of a command from its table. */
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/app/ranks.h"
#include "cmd/app/terminal.h"
#include "cmd/app/profile.h"
#include "cmd/app/hub.h"
#include "lib/base/log.h"
#include "lib/base/system.h"
#include "cmd/app/help.h"

enum { MAX_OPTIONS = 64 };

static size_t common_options(Command *command, Option *out) {
    const Option common[] = {
        {"--threads", OPTION_INT, &command->threads, "N", "threads to use; 0 = one per available core"},
        {"--quiet", OPTION_FLAG, &command->quiet, NULL, "print no progress on stderr"},
        {"--log", OPTION_INT, &command->log, "N", "0 = print warnings; 1 = also print the lines of log.txt on stderr"},
        {"--profile", OPTION_FLAG, &command->profile, NULL, "at the end print the time spent in each kind of op"},
        {"--json", OPTION_FLAG, &command->json, NULL, "print results as JSON on stdout, and nothing else there"},
        {"--help", OPTION_FLAG, NULL, NULL, "print this help"},
    };
    memcpy(out, common, sizeof common);
    return COUNT_OF(common);
}

static Status set_number(const Option *option, const char *text) {
    char *end;
    errno = 0;
    if (option->type == OPTION_REAL) {
        double value = strtod(text, &end);
        if (!*text || *end || errno || !isfinite(value)) return status_fail(ST_USAGE, "option '%s' needs a number, not '%s'", option->name, text);
        *(double *)option->value = value;
        return ST_OK;
    }
    long long value = strtoll(text, &end, 10);
    if (!*text || *end || errno) return status_fail(ST_USAGE, "option '%s' needs a whole number, not '%s'", option->name, text);
    *(int64_t *)option->value = value;
    return ST_OK;
}

static Status append_text(Command *command, TextList *list, const char *text) {
    const char **grown = arena_alloc(command->arena, (list->n + 1) * sizeof *grown);
    if (!grown) return ST_RESOURCE;
    for (size_t i = 0; i < list->n; i++) grown[i] = list->items[i];
    grown[list->n] = text;
    *list = (TextList){list->n + 1, grown};
    return ST_OK;
}

/* For an unknown option such as `--epochs 3` of a command with a RECIPE: the dotted recipe key that is meant, found by its dotted name, its name
 * within a section, or its name in another program. NULL: none. */
static const char *key_of_option(const Command *command, const char *word) {
    char name[64];
    size_t skip = strspn(word, "-"), len = MIN(strlen(word + skip), sizeof name - 1);
    for (size_t i = 0; i <= len; i++) name[i] = word[skip + i] == '-' ? '_' : word[skip + i];
    name[len] = '\0';
    for (const char *const *section = command->sections; section && *section; section++) {
        const Key *key = key_in(*section, name);
        if (key) return key->dotted;
    }
    const char *dot = strchr(name, '.');
    if (!command->sections || len < 2) return NULL;
    if (!dot) return key_alias(name);
    if (key_find(name)) return key_find(name)->dotted;
    name[dot - name] = '\0';
    return key_suggest(name, name + (dot - name) + 1);
}

/* value: the next word, if it could be the option's value; else NULL. */
static Status unknown_option(const Command *command, const char *text, size_t len, const char *value, const Option *options, size_t n) {
    const char *names[MAX_OPTIONS];
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)len, text);
    for (size_t i = 0; i < n; i++) names[i] = options[i].name;
    status_fail(ST_USAGE, "unknown option '%s'", word);
    const char *key = key_of_option(command, word);
    if (key) {
        Str typed = {0};
        bool list = key_find(key) && key_find(key)->type == KEY_LIST && value && strchr(value, ',') && *value != '[';
        str_append_shell(&typed, list ? "%s=[%s]" : "%s=%s", key, value ? value : "VALUE");
        status_hint(ST_USAGE, "recipe keys follow the recipe, without dashes: %s", str_text(&typed));
        str_release(&typed);
        return ST_USAGE;
    }
    return status_hint_nearest(ST_USAGE, word, names, n, "--help lists the options");
}

/* Whether `argument` lists all values that the option takes: a|b|c in lower case. */
static bool lists_choices(const char *argument) {
    return strchr(argument, '|') && argument[strspn(argument, "abcdefghijklmnopqrstuvwxyz0123456789_|")] == '\0';
}

static Status check_choice(Command *command, const Option *option, const char *value) {
    enum { MOST_CHOICES = 16 };
    const char *names[MOST_CHOICES];
    const char *rest = option->argument;
    Str list = {0};
    size_t n = 0;
    if (text_among(rest, '|', value)) return ST_OK;
    for (Slice word; n < MOST_CHOICES && text_next(&rest, '|', &word); n++) {
        if (!(names[n] = arena_strndup(command->arena, word.data, word.len))) return ST_RESOURCE;
        str_printf(&list, "%s%s", n == 0 ? "" : *rest ? ", " : " or ", names[n]);
    }
    ASSERT(n < MOST_CHOICES, "%s lists too many", option->name);
    status_fail(ST_USAGE, "%s is %s, not '%s'", option->name, str_text(&list), value);
    str_release(&list);
    return status_hint_nearest(ST_USAGE, value, names, n, NULL);
}

/* Parses the option at argv[*i]. Its value follows '=' or is the next argument. */
static Status parse_option(Command *command, int argc, char **argv, int *i, const Option *options, size_t n) {
    const char *text = argv[*i], *equals = strchr(text, '=');
    size_t len = equals ? (size_t)(equals - text) : strlen(text);
    const Option *option = NULL;
    for (size_t k = 0; k < n && !option; k++)
        if (strlen(options[k].name) == len && !strncmp(options[k].name, text, len)) option = &options[k];
    const char *after = equals ? equals + 1 : *i + 1 < argc && argv[*i + 1][0] != '-' ? argv[*i + 1] : NULL;
    if (!option) return unknown_option(command, text, len, after, options, n);
    if (option->type == OPTION_FLAG) {
        if (equals) return status_fail(ST_USAGE, "option '%s' takes no value", option->name);
        if (option->value) *(bool *)option->value = true;
        return ST_OK;
    }
    if (!equals && *i + 1 >= argc) return status_fail(ST_USAGE, "option '%s' needs a value: %s", option->name, option->argument);
    const char *value = equals ? equals + 1 : argv[++*i];
    if (option->type == OPTION_TEXT && lists_choices(option->argument)) TRY(check_choice(command, option, value));
    if (option->type == OPTION_TEXT)
        *(const char **)option->value = value;
    else if (option->type == OPTION_LIST)
        return append_text(command, option->value, value);
    else
        return set_number(option, value);
    return ST_OK;
}

static void to_stderr(void *context, LogLevel level, const char *text) {
    (void)context;
    if (level == LOG_RANK && comm_rank(ranks_world()) > 0)
        ranks_warn(text);
    else if (level <= LOG_WARNING)
        show_warning(NULL, text);
    else
        show_message("%s", text);
}

/* No more threads than the control group or SLURM grants, since the system stops all of them when the granted time is used up. No more than one
 * per physical core, since one thread keeps the core's multiply units busy. */
static int64_t threads_by_default(void) {
    const char *tasks = getenv("SLURM_CPUS_PER_TASK");
    int64_t n = cores_physical(NULL), granted = tasks ? strtoll(tasks, NULL, 10) : 0;
    if (granted > 0) n = MIN(n, granted);
    return MAX(n / ranks_sharing(), 1);
}

void use_threads(int64_t n) {
    const char *said = getenv("OMP_NUM_THREADS"); /* OpenMP ignores an empty value, too */
    if (n == 0 && said && *said)
        n = omp_get_max_threads();
    else if (n == 0)
        n = MIN((int64_t)omp_get_max_threads(), threads_by_default());
    omp_set_num_threads((int)MIN(n, (int64_t)omp_get_thread_limit()));
}

/* Resolves Hugging Face names in arguments and options. Every option that takes a DIR names a model or adapter to read, except -o. */
static Status find_models(Command *command, const Option *own, size_t n_own) {
    static const char *const words[] = {"MODEL", "BASE", "PATH", "CONFIG"};
    for (size_t i = 0; i < COUNT_OF(words) && command->n_arguments > 0; i++)
        if (text_starts_with(command->arguments_help, words[i])) TRY(argument_model_find(command->arena, &command->arguments[0]));
    for (size_t i = 0; i < n_own; i++) {
        if (own[i].type != OPTION_TEXT || strcmp(own[i].argument, "DIR") != 0 || !strcmp(own[i].name, "-o")) continue;
        TRY(!strcmp(own[i].name, "--adapter") ? argument_adapter_find(command->arena, own[i].value)
                                              : argument_model_find(command->arena, own[i].value));
    }
    return ST_OK;
}

Status command_parse(Command *command, int argc, char **argv, const Option *own, bool *done) {
    Option options[MAX_OPTIONS];
    size_t n_own = 0, n;
    *done = false;
    while (own && own[n_own].name) n_own++;
    ASSERT(n_own + 8 < MAX_OPTIONS, "%zu options", n_own);
    if (n_own) memcpy(options, own, n_own * sizeof *own);
    n = n_own + common_options(command, options + n_own);
    command->arena = arena_new(0);
    if (!command->arena) return status_fail(ST_RESOURCE, "out of memory");
    command->name = *argv[0] ? arena_printf(command->arena, "%s %s", program_name, argv[0]) : program_name;
    if (!command->name) return ST_RESOURCE;

    bool only_arguments = false;
    for (int i = 1; i < argc; i++) {
        const char *text = argv[i];
        if (!only_arguments && !strcmp(text, "--")) {
            only_arguments = true;
        } else if (!only_arguments && (!strcmp(text, "--help") || !strcmp(text, "-h"))) {
            help_answer(&(CommandView){command, options, n_own, n});
            *done = true;
            return ST_OK;
        } else if (!only_arguments && text[0] == '-' && text[1]) {
            TRY(parse_option(command, argc, argv, &i, options, n));
        } else {
            if (command->n_arguments == COUNT_OF(command->arguments)) return status_fail(ST_USAGE, "too many arguments");
            command->arguments[command->n_arguments++] = text;
        }
    }
    if (command->threads < 0 || command->threads > 1024)
        return status_fail(ST_USAGE, "--threads must be from 0 to 1024, not %lld", (long long)command->threads);
    if (command->log < 0) return status_fail(ST_USAGE, "--log must be 0 or more, not %lld", (long long)command->log);
    use_threads(command->threads);
    work_set_sink(ranks_work, NULL);
    log_set_sink(to_stderr, NULL, command->log ? LOG_INFO : LOG_WARNING);
    set_quiet(command->quiet);
    if (command->profile) profile_ask(command->json);
    return find_models(command, own, n_own);
}

Status command_main(Command *command, int argc, char **argv, const Option *options, CommandWork *work, void *context) {
    bool done;
    if (command->over_ranks) TRY(ranks_open());
    Status status = command_parse(command, argc, argv, options, &done);
    if (status == ST_OK && !done && command->over_ranks) status = ranks_agree_on_words(argc, argv);
    if (status == ST_OK && !done) status = work(command, context);
    arena_free(command->arena);
    return status;
}

Status command_needs(const Command *command, size_t least, size_t most) {
    if (command->n_arguments >= least && command->n_arguments <= most) return ST_OK;
    if (command->n_arguments < least)
        status_fail(ST_USAGE, "%s needs %s", command->name, command->arguments_help);
    else
        status_fail(ST_USAGE, "%s does not know what to do with '%s'", command->name, command->arguments[most]);
    return status_hint(ST_USAGE, "%s --help explains it", command->name);
}
