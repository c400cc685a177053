/* SPDX-License-Identifier: Apache-2.0 */
/* From the words of a command line to the command. */
#include <stdlib.h>
#include <string.h>

#include "cmd/help.h"

static const CommandInfo commands[] = {
#define COMMAND(name, help) {#name, #name, help, cmd_##name, NULL},
#define GROUP(name, help) {#name, #name, help, NULL, &group_##name},
#include "cmd/commands.def"
#undef COMMAND
#undef GROUP
};
const CommandGroup group_all = {"", "tune fine-tunes language models on ordinary machines.", commands, COUNT_OF(commands)};

enum { MOST_COMMANDS = 64 };

static const char *space_behind(const char *name) { return *name ? " " : ""; }

/* What is not a command here, and what does it. */
static const struct {
    const char *group, *word, *hint;
} other_words[] = {
    {"", "plan", "tune sft, tune reward and tune rl plan a run with --dry-run, as JSON with --json"},
    {"", "train", "tune sft trains on answers, tune reward on pairs for a score, tune rl by rewards or pairs"},
    {"", "bench", "the program is tune-bench now, with the same works and options; 'make tune-bench' builds it"},
    {"mdp", "bench", "the program is tune-bench now: tune-bench mdp, with the same options; 'make tune-bench' builds it"},
};

static Status unknown_command(const CommandGroup *group, const char *name) {
    const char *names[MOST_COMMANDS], *of = group->name;
    ASSERT(group->n <= MOST_COMMANDS, "%zu commands", group->n);
    for (size_t i = 0; i < group->n; i++) names[i] = group->commands[i].name;
    const char *nearest = text_nearest(name, names, group->n);
    status_fail(ST_USAGE, "unknown command '%s%s%s'", of, space_behind(of), name);
    for (size_t i = 0; i < COUNT_OF(other_words); i++)
        if (!strcmp(of, other_words[i].group) && !strcmp(name, other_words[i].word)) return status_hint(ST_USAGE, "%s", other_words[i].hint);
    if (nearest) return status_hint(ST_USAGE, "did you mean '%s%s%s'?", of, space_behind(of), nearest);
    return status_hint(ST_USAGE, "tune %s%s--help lists the commands", of, space_behind(of));
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
    if (info) {
        TRY(cpu_configure(getenv("TUNE_GEMM"), getenv("TUNE_ISA")));
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
