/* SPDX-License-Identifier: Apache-2.0 */
/* format: a regular expression (PCRE2, Unicode) that must be found in the answer, or in the prompt. ^ and $ are line ends only with (?m). */
#include "data/filter/filter_kinds.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { COMPLETION, PROMPT };
static const OptionSpec options[] = {
    [COMPLETION] = {"completion", OPTION_STRING, .help = "expression that an answer must match"},
    [PROMPT] = {"prompt", OPTION_STRING, .help = "expression that a prompt must match"},
    {0},
};

typedef struct Patterns {
    pcre2_code *patterns[2];
} Patterns;

static Status filter_format_open(Filter *filter) {
    Patterns *patterns = filter->state = arena_zero(filter->arena, sizeof *patterns);
    if (!patterns) return ST_RESOURCE;
    if (!filter->options[COMPLETION].text && !filter->options[PROMPT].text)
        return status_hint(filter_refuse(filter, 0, "it needs an expression"), "such as format: '^\\d+$'");
    filter->info.stage = !filter->options[COMPLETION].text ? FILTER_PROMPT : filter->options[PROMPT].text ? FILTER_BOTH : FILTER_ANSWER;
    for (size_t i = 0; i < 2; i++) {
        const OptionValue *option = &filter->options[i];
        int code;
        PCRE2_SIZE at;
        if (!option->text) continue;
        patterns->patterns[i] = pcre2_compile((PCRE2_SPTR)option->text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
        if (!patterns->patterns[i]) {
            PCRE2_UCHAR reason[256];
            pcre2_get_error_message(code, reason, sizeof reason);
            return filter_refuse(filter, option->node->line, "cannot read the expression '%s' at byte %zu: %s", option->text, (size_t)at,
                                 (const char *)reason);
        }
        pcre2_jit_compile(patterns->patterns[i], PCRE2_JIT_COMPLETE);
    }
    return ST_OK;
}

static void filter_format_close(Filter *filter) {
    Patterns *patterns = filter->state;
    for (size_t i = 0; patterns && i < 2; i++) pcre2_code_free(patterns->patterns[i]);
}

/* What takes longer than PCRE2's limit does not match. */
static bool matches(const pcre2_code *pattern, Slice text) {
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    bool found = match && pcre2_match(pattern, (PCRE2_SPTR)(text.data ? text.data : ""), text.len, 0, 0, match, NULL) >= 0;
    pcre2_match_data_free(match);
    return found;
}

static bool filter_format_rejects(const Filter *filter, const FilterRow *row, FilterResult *finding) {
    const Patterns *patterns = filter->state;
    Str room = {0};
    if (patterns->patterns[PROMPT] && !matches(patterns->patterns[PROMPT], filter_field(row, "prompt", &room)))
        finding->what = "the prompt does not have the form that is asked for";
    else if (patterns->patterns[COMPLETION] && row->completion.data && !matches(patterns->patterns[COMPLETION], row->completion))
        finding->what = "the answer does not have the form that is asked for";
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
