/* SPDX-License-Identifier: Apache-2.0 */
/* ascii_start: instructions whose first character is not ASCII, as self-instruct has it: mostly other languages. */
#include "data/filter/filter_kinds.h"

static bool filter_ascii_start_rejects(const Filter *filter, const FilterRow *row, FilterFinding *finding) {
    Slice text = text_trim(row->instruction);
    (void)filter;
    if (text.len == 0 || (uint8_t)text.data[0] < 128) return false;
    finding->what = "it starts with a character that is not ASCII";
    return true;
}

const FilterKind filter_kind_ascii_start = {.name = "ascii_start",
                                            .help = "instructions that start with a character that is not ASCII",
                                            .argument = "true",
                                            .stage = FILTER_PROMPT,
                                            .rejects = filter_ascii_start_rejects};
