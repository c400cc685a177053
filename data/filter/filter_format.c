/* SPDX-License-Identifier: Apache-2.0 */
/* format: a regular expression (PCRE2, Unicode) that must match somewhere in the answer, or in the prompt. ^ and $ match line ends only with (?m). */
#include "data/filter/filter_kinds.h"
#include "lib/base/log.h"
#include "lib/base/regex.h"

#include <stdatomic.h>

enum { COMPLETION, PROMPT };
static const OptionSpec options[] = {
    [COMPLETION] = {"completion", OPTION_STRING, .help = "expression that an answer must match"},
    [PROMPT] = {"prompt", OPTION_STRING, .help = "expression that a prompt must match"},
    {0},
};

typedef struct Patterns {
    Regex *patterns[2];
    atomic_size_t undecided; /* number of texts on which one of them took too many steps */
} Patterns;

static Status filter_format_open(Filter *filter) {
    Patterns *patterns = filter->state = arena_zero(filter->arena, sizeof *patterns);
    if (!patterns) return ST_RESOURCE;
    if (!filter->options[COMPLETION].text && !filter->options[PROMPT].text)
        return status_hint(filter_refuse(filter, 0, "it needs an expression"), "such as format: '^\\d+$'");
    filter->info.stage = !filter->options[COMPLETION].text ? FILTER_PROMPT : filter->options[PROMPT].text ? FILTER_BOTH : FILTER_ANSWER;
    for (size_t i = 0; i < 2; i++) {
        const OptionValue *option = &filter->options[i];
        RegexFault fault;
        if (!option->text) continue;
        patterns->patterns[i] = regex_new(option->text, REGEX_UNICODE, 0, &fault);
        if (!patterns->patterns[i])
            return filter_refuse(filter, option->node->line, "cannot read the expression '%s' at byte %zu: %s", option->text, fault.at, fault.reason);
    }
    return ST_OK;
}

static void filter_format_close(Filter *filter) {
    Patterns *patterns = filter->state;
    size_t n = patterns ? atomic_load(&patterns->undecided) : 0;
    if (n > 0)
        log_message(LOG_WARNING, "filter 'format': the expression takes too many steps on %zu text%s, which were rejected", n, n == 1 ? "" : "s");
    for (size_t i = 0; patterns && i < 2; i++) regex_free(patterns->patterns[i]);
}

/* The reason to reject the text; NULL: none. */
static const char *judge(Patterns *patterns, size_t which, Slice text) {
    RegexResult result = regex_find(patterns->patterns[which], text, 0, 0, NULL);
    if (result == REGEX_FOUND) return NULL;
    if (result == REGEX_UNDECIDED) {
        atomic_fetch_add(&patterns->undecided, 1);
        return which == PROMPT ? "whether the prompt matches the required form takes too many steps to tell"
                               : "whether the answer matches the required form takes too many steps to tell";
    }
    return which == PROMPT ? "the prompt does not match the required form" : "the answer does not match the required form";
}

static bool filter_format_rejects(const Filter *filter, const FilterRow *row, FilterResult *finding) {
    Patterns *patterns = filter->state;
    Str room = {0};
    if (patterns->patterns[PROMPT]) finding->what = judge(patterns, PROMPT, filter_field(row, "prompt", &room));
    if (!finding->what && patterns->patterns[COMPLETION] && row->completion.data) finding->what = judge(patterns, COMPLETION, row->completion);
    str_release(&room);
    return finding->what != NULL;
}

const FilterKind filter_kind_format = {.name = "format",
                                       .help = "answers (or prompts) that do not match a regular expression",
                                       .argument = "REGEX",
                                       .stage = FILTER_BOTH,
                                       .options = options,
                                       .open = filter_format_open,
                                       .close = filter_format_close,
                                       .rejects = filter_format_rejects};
