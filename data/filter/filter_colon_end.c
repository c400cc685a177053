/* SPDX-License-Identifier: Apache-2.0 */
/* colon_end: an input or an answer that ends with a colon has lost what should follow it; self-instruct's rule for instances. */
#include "data/filter/filter_kinds.h"

static bool ends_so(Slice text) {
    text = text_trim(text);
    return text.len > 0 && text.data[text.len - 1] == ':';
}

static bool filter_colon_end_rejects(const Filter *filter, const FilterRow *row, FilterFinding *finding) {
    (void)filter;
    finding->what = ends_so(row->input) ? "the input ends with a colon" : ends_so(row->completion) ? "the answer ends with a colon" : NULL;
    return finding->what != NULL;
}

const FilterKind filter_kind_colon_end = {.name = "colon_end",
                                          .help = "inputs and answers that end with a colon: something is missing",
                                          .argument = "true",
                                          .stage = FILTER_BOTH,
                                          .each_answer = true,
                                          .rejects = filter_colon_end_rejects};
