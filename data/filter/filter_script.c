/* SPDX-License-Identifier: Apache-2.0 */
/* script: the share of letters that are of one script, such as Latin, Cyrillic, Han or Arabic, by Unicode's property of that name: a cheap sign of
 * the language. Texts without letters pass. */
#include "data/filter/filter_kinds.h"

#include <ctype.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { SCRIPT, MIN_SHARE, ON };
static const OptionSpec options[] = {
    [SCRIPT] = {"script", OPTION_STRING, .text = "Latin",
                .help = "Unicode's name of the script: Latin, Cyrillic, Greek, Han, Arabic, Devanagari, ..."},
    [MIN_SHARE] = {"min", OPTION_NUMBER, .value = 0.8, .low = 0, .high = 1, .help = "smallest share of letters"},
    [ON] = {"on", OPTION_STRING, .text = "prompt", .choices = FILTER_FIELDS, .help = "whose letters count"},
    {0},
};

typedef struct Patterns {
    pcre2_code *letters, *script;
} Patterns; /* runs of letters, and of letters of the script */

static pcre2_code *filter_script_compile(const char *pattern) {
    int code;
    PCRE2_SIZE at;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    if (compiled) pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    return compiled;
}

static Status filter_script_open(Filter *filter) {
    const OptionValue *script = &filter->options[SCRIPT];
    int line = script->node ? script->node->line : 0;
    Patterns *patterns = filter->state = arena_zero(filter->arena, sizeof *patterns);
    char *name = arena_strdup(filter->arena, script->text);
    filter->info.stage = filter_on(filter->options[ON].text);
    if (!patterns || !name) return ST_RESOURCE;
    for (char *c = name; *c; c++) {
        if (!isalpha((uint8_t)*c) && *c != '_') return filter_refuse(filter, line, "'%s' is no name of a script", script->text);
        *c = (char)(c == name || c[-1] == '_' ? toupper((uint8_t)*c) : tolower((uint8_t)*c));
    }
    Str pattern = {0};
    str_printf(&pattern, "[^\\P{L}\\P{%s}]+", name);
    patterns->letters = filter_script_compile("\\p{L}+");
    patterns->script = filter_script_compile(str_text(&pattern));
    str_release(&pattern);
    if (!patterns->letters) return status_fail(ST_RESOURCE, "out of memory for the filter 'script'");
    return patterns->script ? ST_OK
                            : status_hint(filter_refuse(filter, line, "'%s' is no name of a script", script->text),
                                          "such as Latin, Cyrillic, Greek, Han, Hiragana, Hangul, Arabic, Hebrew, Devanagari, Thai");
}

static void filter_script_close(Filter *filter) {
    Patterns *patterns = filter->state;
    if (!patterns) return;
    pcre2_code_free(patterns->letters);
    pcre2_code_free(patterns->script);
}

/* Characters that the pattern's runs cover. */
static size_t covered(const pcre2_code *pattern, Slice text) {
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    size_t n = 0, at = 0;
    while (match && at < text.len && pcre2_match(pattern, (PCRE2_SPTR)text.data, text.len, at, at ? PCRE2_NO_UTF_CHECK : 0, match, NULL) > 0) {
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(match);
        n += text_characters((Slice){text.data + range[0], range[1] - range[0]});
        at = range[1];
    }
    pcre2_match_data_free(match);
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
                                       .help = "texts in which too few letters are of a script",
                                       .argument = "SCRIPT",
                                       .stage = FILTER_PROMPT,
                                       .options = options,
                                       .open = filter_script_open,
                                       .close = filter_script_close,
                                       .rejects = filter_script_rejects};
