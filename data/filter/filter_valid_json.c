/* SPDX-License-Identifier: Apache-2.0 */
/* valid_json: answers must be JSON. Fences around it (```json ... ```) are allowed by default. */
#include "data/filter/filter_kinds.h"

#include <string.h>

enum { KEYS, FENCED };
static const OptionSpec options[] = {
    [KEYS] = {"keys", OPTION_STRINGS, .help = "keys that the object must have; without any, every JSON object or list is valid"},
    [FENCED] = {"fenced", OPTION_BOOL, .value = 1, .help = "it may be between ``` fences"},
    {0},
};

/* The text between fences, if the text begins and ends with them. */
static Slice without_fences(Slice text) {
    const char *line = text.len > 6 && memcmp(text.data, "```", 3) == 0 ? memchr(text.data, '\n', text.len) : NULL;
    if (!line || memcmp(text.data + text.len - 3, "```", 3) != 0 || line + 4 > text.data + text.len) return text;
    return text_trim((Slice){line + 1, (size_t)(text.data + text.len - 3 - (line + 1))});
}

static bool filter_valid_json_rejects(const Filter *filter, const FilterRow *row, FilterResult *finding) {
    const OptionValue *keys = &filter->options[KEYS];
    if (!row->completion.data) return false;
    Slice text = text_trim(row->completion);
    if (filter_number(filter, FENCED) != 0) text = without_fences(text);
    json_t *value = json_of_text(text.data, text.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL);
    if (!value) finding->what = "the answer is not JSON";
    for (size_t i = 0; i < keys->n && !finding->what; i++)
        if (!json_object_get(value, keys->list[i])) finding->what = "the answer's object lacks a key";
    json_decref(value);
    return finding->what != NULL;
}

const FilterKind filter_kind_valid_json = {.name = "valid_json",
                                           .help = "answers that are not JSON, or lack keys",
                                           .argument = "[KEY, ...]",
                                           .stage = FILTER_ANSWER,
                                           .options = options,
                                           .each_answer = true,
                                           .rejects = filter_valid_json_rejects};
