/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and runs the command that a command line names. */
#include <stdlib.h>
#include <string.h>

#include "cmd/app/ranks.h"
#include "cmd/app/shipped.h"
#include "cmd/app/terminal.h"
#include "cmd/app/help.h"
#include "lib/tensor/tensor.h"

static const CommandInfo commands[] = {
#define COMMAND(name, help) {#name, #name, help, cmd_##name, NULL},
#define GROUP(name, help) {#name, #name, help, NULL, &group_##name},
#include "cmd/app/commands.def"
#undef COMMAND
#undef GROUP
};
const CommandGroup group_all = {"", "tune fine-tunes language models on ordinary machines.", commands, COUNT_OF(commands)};

enum { MOST_COMMANDS = 64 };

static const char *space_after(const char *name) { return *name ? " " : ""; }

/* Words that people try as commands, each with a hint what to type instead. */
static const struct {
    const char *group, *words, *hint;
} other_words[] = {
#define WORDS(group, words, hint) {group, words, hint},
#include "cmd/app/other_words.def"
#undef WORDS
};

/* The shipped recipe "rl_NAME", else the first "rl_NAME_...", else the first "rl_..._NAME"; "" if there is none. */
static const char *recipe_of(Arena *arena, const char *name) {
    TextList names;
    const char *whole = arena_printf(arena, "rl_%s", name), *found = "";
    int best = 0;
    if (!whole || recipe_names(arena, &names) != ST_OK) return found;
    for (size_t i = 0; i < names.n; i++) {
        const char *own = names.items[i];
        bool begins = text_starts_with(own, whole);
        int fit = begins && !own[strlen(whole)] ? 3 : begins && own[strlen(whole)] == '_' ? 2 : text_ends_with(own, whole + strlen("rl"));
        if (fit > best) found = own, best = fit;
    }
    return found;
}

/* For `tune grpo` and the like: an algorithm is chosen by a recipe key of tune rl. */
static bool hint_algorithm(const char *name) {
    Str words = {0};
    const Key *key = key_find("rl.algorithm");
    const char *choices = key->choices;
    bool known = false;
    for (Slice word; choice_next(&choices, &word);) known = known || slice_is(word, name);
    Arena *arena = known ? arena_new(0) : NULL;
    if (arena) {
        const char *recipe = recipe_of(arena, name);
        str_printf(&words, "tune rl RECIPE rl.algorithm=%s", name);
        if (*recipe) str_printf(&words, "; try tune rl %s (tune recipes show %s prints it)", recipe, recipe);
        status_hint(ST_USAGE, "%s", str_text(&words));
    }
    arena_free(arena);
    str_release(&words);
    return arena != NULL;
}

static Status unknown_command(const CommandGroup *group, const char *name) {
    const char *names[MOST_COMMANDS], *of = group->name;
    ASSERT(group->n <= MOST_COMMANDS, "%zu commands", group->n);
    for (size_t i = 0; i < group->n; i++) names[i] = group->commands[i].name;
    const char *nearest = text_nearest(name, names, group->n);
    status_fail(ST_USAGE, "unknown command '%s%s%s'", of, space_after(of), name);
    for (size_t i = 0; i < COUNT_OF(other_words); i++)
        if (!strcmp(of, other_words[i].group) && text_among(other_words[i].words, ' ', name)) return status_hint(ST_USAGE, "%s", other_words[i].hint);
    if (group == &group_all && hint_algorithm(name)) return ST_USAGE;
    if (nearest) return status_hint(ST_USAGE, "did you mean '%s%s%s'?", of, space_after(of), nearest);
    return status_hint(ST_USAGE, "tune %s%s--help lists the commands", of, space_after(of));
}

Status command_find(const char *const *words, size_t n, const CommandGroup **group, const CommandInfo **info, size_t *used) {
    *group = &group_all;
    *info = NULL;
    for (*used = 0; *used < n && !*info; ++*used) {
        const CommandInfo *found = NULL;
        for (size_t i = 0; i < (*group)->n && !found; i++)
            if (!strcmp((*group)->commands[i].name, words[*used])) found = &(*group)->commands[i];
        if (!found) return unknown_command(*group, words[*used]);
        if (found->group)
            *group = found->group;
        else
            *info = found;
    }
    return ST_OK;
}

static bool asks_for_help(const char *word) { return !strcmp(word, "--help") || !strcmp(word, "-h"); }

Status command_run(int argc, char **argv) {
    const char *const *words = (const char *const *)argv + 1;
    const CommandGroup *group;
    const CommandInfo *info;
    size_t n = (size_t)MAX(argc - 1, 0), named = 0, used;
    while (named < n && words[named][0] != '-') named++;
    TRY(command_find(words, named, &group, &info, &used));
    if (info && ranks_spare(info->full_name)) return ST_OK;
    if (info) {
        TRY(ranks_begin_failed(info->full_name, cpu_configure(getenv("TUNE_GEMM"), getenv("TUNE_ISA"))));
        argv[used] = (char *)(uintptr_t)info->full_name;
        return info->run(argc - (int)used, argv + used);
    }
    const char *next = used < n ? words[used] : NULL;
    if (next && asks_for_help(next)) {
        print_commands(group);
        return ST_OK;
    }
    if (next && group == &group_all && !strcmp(next, "--version")) {
        print_result("%s\n", tune_program);
        return ST_OK;
    }
    if (next) return unknown_command(group, next);
    if (group == &group_all) return status_hint(status_fail(ST_USAGE, "no command given"), "tune --help lists the commands");
    status_fail(ST_USAGE, "tune %s needs a command", group->name);
    return status_hint(ST_USAGE, "tune %s --help lists the commands", group->name);
}
