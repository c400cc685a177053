/* SPDX-License-Identifier: Apache-2.0 */
/* words: self-instruct keeps instructions of 4 to 150 words (its code rejects `len(words) <= 3` and `> 150`). */
#include "data/filter/filter_kinds.h"

enum { MOST, LEAST, ON };
static const OptionSpec options[] = {
    [MOST] = {"max", OPTION_WHOLE, .value = 150, .low = 1, .high = 1e9, .help = "most words"},
    [LEAST] = {"min", OPTION_WHOLE, .value = 4, .low = 0, .high = 1e9, .help = "fewest words"},
    [ON] = {"on", OPTION_STRING, .text = "instruction", .choices = FILTER_FIELDS, .help = "whose words count"},
    {0},
};

static Status filter_words_open(Filter *filter) {
    filter->info.stage = filter_on(filter->options[ON].text);
    return ST_OK;
}

static bool filter_words_rejects(const Filter *filter, const FilterRow *row, FilterResult *finding) {
    Str room = {0};
    Slice text = filter_subject(row, filter->options[ON].text, &room), word;
    size_t n = 0;
    for (size_t at = 0; text.data && text_spaced_word(text, &at, &word);) n++;
    str_release(&room);
    if (!text.data) return false;
    finding->score = (double)n;
    finding->what = finding->score < filter_number(filter, LEAST)  ? "too few words"
                    : finding->score > filter_number(filter, MOST) ? "too many words"
                                                                   : NULL;
    return finding->what != NULL;
}

const FilterKind filter_kind_words = {.name = "words",
                                      .help = "texts of too many or too few words",
                                      .argument = "N",
                                      .stage = FILTER_PROMPT,
                                      .options = options,
                                      .open = filter_words_open,
                                      .rejects = filter_words_rejects};
