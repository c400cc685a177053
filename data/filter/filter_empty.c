/* SPDX-License-Identifier: Apache-2.0 */
/* empty: nothing is asked, or nothing answers it. A row that is a text alone asks for nothing. */
#include "data/filter/filter_kinds.h"

static bool filter_empty_rejects(const Filter *filter, const FilterRow *row, FilterFinding *finding) {
    bool asked = row->instruction.data != NULL || row->input.data != NULL, answered = row->completion.data != NULL;
    (void)filter;
    if (asked && text_trim(row->instruction).len == 0)
        finding->what = "the prompt is empty";
    else if (answered && text_trim(row->completion).len == 0)
        finding->what = "the answer is empty";
    return finding->what != NULL;
}

const FilterKind filter_kind_empty = {.name = "empty",
                                      .help = "rows whose prompt or answer is empty",
                                      .argument = "true",
                                      .on = true,
                                      .stage = FILTER_BOTH,
                                      .each_answer = true,
                                      .rejects = filter_empty_rejects};
