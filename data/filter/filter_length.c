/* SPDX-License-Identifier: Apache-2.0 */
/* length: characters of the prompt and of the answer. */
#include "data/filter/filter_kinds.h"

enum { MAX_EACH, MIN_PROMPT, MIN_COMPLETION };
static const OptionSpec options[] = {
    [MAX_EACH] = {"max", TAKES_WHOLE, .value = 32768, .low = 1, .high = 1e9, .help = "most characters of a prompt, and of an answer"},
    [MIN_PROMPT] = {"min_prompt", TAKES_WHOLE, .value = 3, .low = 0, .high = 1e9, .help = "fewest characters of a prompt"},
    [MIN_COMPLETION] = {"min_completion", TAKES_WHOLE, .value = 1, .low = 0, .high = 1e9, .help = "fewest characters of an answer"},
    {0},
};

static bool filter_length_check(const Filter *filter, Slice text, size_t least, const char *shorter, const char *longer, FilterFinding *finding) {
    if (!text.data) return false;
    double n = finding->score = (double)text_characters(text_trim(text));
    finding->what = n < filter_number(filter, least) ? shorter : n > filter_number(filter, MAX_EACH) ? longer : NULL;
    return finding->what != NULL;
}

static bool filter_length_rejects(const Filter *filter, const FilterRow *row, FilterFinding *finding) {
    Str room = {0};
    bool wrong =
        filter_length_check(filter, filter_field(row, "prompt", &room), MIN_PROMPT, "the prompt is too short", "the prompt is too long", finding);
    str_release(&room);
    return wrong || filter_length_check(filter, row->completion, MIN_COMPLETION, "the answer is too short", "the answer is too long", finding);
}

const FilterKind filter_kind_length = {.name = "length",
                                       .help = "prompts and answers of too many or too few characters",
                                       .argument = "N",
                                       .on = true,
                                       .stage = FILTER_BOTH,
                                       .options = options,
                                       .rejects = filter_length_rejects};
