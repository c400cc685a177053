/* SPDX-License-Identifier: Apache-2.0 */
/* script: the share of letters of one script, such as Latin, Cyrillic, Han or Arabic, by Unicode's script property: a cheap test of the language.
 * Texts without letters pass. */
#include "data/filter/filter_kinds.h"
#include "lib/base/regex.h"

#include <ctype.h>

enum { SCRIPT, MIN_SHARE, ON };
static const OptionSpec options[] = {
    [SCRIPT] = {"script", OPTION_STRING, .text = "Latin",
                .help = "Unicode's name of the script: Latin, Cyrillic, Greek, Han, Arabic, Devanagari, ..."},
    [MIN_SHARE] = {"min", OPTION_NUMBER, .value = 0.8, .low = 0, .high = 1, .help = "smallest fraction of letters"},
    [ON] = {"on", OPTION_STRING, .text = "prompt", .choices = FILTER_FIELDS, .help = "whose letters count"},
    {0},
};

typedef struct Patterns {
    Regex *letters, *script;
} Patterns; /* runs of letters, and of letters of the script */

static Status filter_script_open(Filter *filter) {
    const OptionValue *script = &filter->options[SCRIPT];
    int line = script->node ? script->node->line : 0;
    Patterns *patterns = filter->state = arena_zero(filter->arena, sizeof *patterns);
    char *name = arena_strdup(filter->arena, script->text);
    filter->info.stage = filter_on(filter->options[ON].text);
    if (!patterns || !name) return ST_RESOURCE;
    for (char *c = name; *c; c++) {
        if (!isalpha((uint8_t)*c) && *c != '_') return filter_refuse(filter, line, "'%s' is not the name of a script", script->text);
        *c = (char)(c == name || c[-1] == '_' ? toupper((uint8_t)*c) : tolower((uint8_t)*c));
    }
    Str pattern = {0};
    str_printf(&pattern, "[^\\P{L}\\P{%s}]+", name);
    patterns->letters = regex_new("\\p{L}+", REGEX_UNICODE, 0, NULL);
    patterns->script = regex_new(str_text(&pattern), REGEX_UNICODE, 0, NULL);
    str_release(&pattern);
    if (!patterns->letters) return status_fail(ST_RESOURCE, "out of memory for the filter 'script'");
    return patterns->script ? ST_OK
                            : status_hint(filter_refuse(filter, line, "'%s' is not the name of a script", script->text),
                                          "such as Latin, Cyrillic, Greek, Han, Hiragana, Hangul, Arabic, Hebrew, Devanagari, Thai");
}

static void filter_script_close(Filter *filter) {
    Patterns *patterns = filter->state;
    if (!patterns) return;
    regex_free(patterns->letters);
    regex_free(patterns->script);
}

/* Counts the characters in the pattern's matches. A run never backtracks, so the match is always decided. */
static size_t covered(const Regex *pattern, Slice text) {
    RegexMatch match;
    size_t n = 0;
    for (size_t at = 0; at < text.len && regex_find(pattern, text, at, 0, &match) == REGEX_FOUND;) {
        n += text_characters((Slice){text.data + match.begin, match.end - match.begin});
        at = match.end;
    }
    return n;
}

static bool filter_script_rejects(const Filter *filter, const FilterRow *row, FilterResult *finding) {
    const Patterns *patterns = filter->state;
    Str room = {0};
    Slice text = filter_subject(row, filter->options[ON].text, &room);
    size_t letters = text.data ? covered(patterns->letters, text) : 0;
    if (letters > 0) finding->score = (double)covered(patterns->script, text) / (double)letters;
    str_release(&room);
    if (letters == 0 || finding->score >= filter_number(filter, MIN_SHARE)) return false;
    finding->what = "too few letters of the script";
    return true;
}

const FilterKind filter_kind_script = {.name = "script",
                                       .help = "texts with too few letters of a script",
                                       .argument = "SCRIPT",
                                       .stage = FILTER_PROMPT,
                                       .options = options,
                                       .open = filter_script_open,
                                       .close = filter_script_close,
                                       .rejects = filter_script_rejects};
