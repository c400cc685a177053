/* SPDX-License-Identifier: Apache-2.0 */
/* punctuation_start: instructions whose first character is ASCII punctuation (Python's string.punctuation), as self-instruct has it. */
#include "data/filter/filter_kinds.h"

#include <ctype.h>

static bool filter_punctuation_start_rejects(const Filter *filter, const FilterRow *row, FilterFinding *finding) {
    Slice text = text_trim(row->instruction);
    (void)filter;
    if (text.len == 0 || (uint8_t)text.data[0] >= 128 || !ispunct((uint8_t)text.data[0])) return false;
    finding->what = "it starts with punctuation";
    return true;
}

const FilterKind filter_kind_punctuation_start = {.name = "punctuation_start",
                                                  .help = "instructions that start with punctuation",
                                                  .argument = "true",
                                                  .stage = FILTER_PROMPT,
                                                  .rejects = filter_punctuation_start_rejects};
