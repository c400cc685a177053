/* SPDX-License-Identifier: Apache-2.0 */
/* equal: the answer repeats the input, or the whole of what was asked; case, white space and quotes aside. */
#include "data/filter/filter_kinds.h"

#include <string.h>

static bool same(Slice a, const Str *folded, Str *room) {
    if (a.len == 0 || folded->len == 0) return false;
    text_fold(a, room);
    return room->len == folded->len && memcmp(room->data, folded->data, room->len) == 0;
}

static bool filter_equal_rejects(const Filter *filter, const FilterRow *row, FilterFinding *finding) {
    Str answer = {0}, room = {0}, joined = {0};
    (void)filter;
    if (!row->completion.data) return false;
    text_fold(row->completion, &answer);
    if (same(row->input, &answer, &room))
        finding->what = "the answer is the input";
    else if (same(row->instruction, &answer, &room) || same(filter_field(row, "prompt", &joined), &answer, &room))
        finding->what = "the answer is the prompt";
    str_release(&answer);
    str_release(&room);
    str_release(&joined);
    return finding->what != NULL;
}

const FilterKind filter_kind_equal = {.name = "equal",
                                      .help = "answers that only repeat the prompt or its input",
                                      .argument = "true",
                                      .stage = FILTER_ANSWER,
                                      .rejects = filter_equal_rejects};
