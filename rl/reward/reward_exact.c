/* SPDX-License-Identifier: Apache-2.0 */
/* exact: 1 if the completion equals the answer (or one of a list of answers), else 0. Ignores leading and trailing white space, and thoughts
 * (reward_completion_text). */
#include "rl/reward/reward_kinds.h"

#include <ctype.h>
#include <string.h>

enum { FIELD, IGNORE_CASE, AFTER, FIRST_LINE };
static const OptionSpec options[] = {
    [FIELD] = {.name = "field", .kind = OPTION_STRING, .text = "answer"},
    [IGNORE_CASE] = {.name = "ignore_case", .kind = OPTION_BOOL},
    /* of both texts, compare only the part after the last occurrence of this mark, if any */
    [AFTER] = {.name = "after", .kind = OPTION_STRING},
    [FIRST_LINE] = {.name = "first_line", .kind = OPTION_BOOL}, /* of the completion, compare only the first non-empty line */
    {0},
};

static Slice after_mark(const Reward *reward, Slice text) {
    const char *mark = reward->options[AFTER].text, *at = mark ? slice_find_last(text, mark, false) : NULL;
    if (!at) return slice_trim(text);
    at += strlen(mark);
    return slice_trim((Slice){at, (size_t)(text.data + text.len - at)});
}

static Status reward_exact_open(Reward *reward) {
    const OptionValue *after = &reward->options[AFTER];
    return after->text && !*after->text ? reward_refuse(reward, after->node, "'after' is an empty mark") : ST_OK;
}

static bool same(Slice a, Slice b, bool ignore_case) {
    if (a.len != b.len) return false;
    for (size_t i = 0; i < a.len; i++)
        if (a.data[i] != b.data[i] && (!ignore_case || tolower((unsigned char)a.data[i]) != tolower((unsigned char)b.data[i]))) return false;
    return true;
}

static Status reward_exact_score(Reward *reward, const RewardRow *row, double *value) {
    const char *field = reward->options[FIELD].text;
    const json_t *column;
    TRY(reward_column(row, field, &column));
    Str spoken = {0}, room = {0};
    Slice got = after_mark(reward, reward_completion_text(row, &spoken)), wanted;
    const char *newline = got.len && reward->options[FIRST_LINE].number != 0 ? memchr(got.data, '\n', got.len) : NULL;
    if (newline) got = slice_trim((Slice){got.data, (size_t)(newline - got.data)});
    Status status = ST_OK;
    for (size_t i = 0; i < reward_answers(column) && status == ST_OK; i++) {
        status = reward_answer_text(reward_answer(column, i), field, &room, &wanted);
        if (status == ST_OK && same(got, after_mark(reward, wanted), reward->options[IGNORE_CASE].number != 0)) *value = 1;
    }
    str_release(&room);
    str_release(&spoken);
    return status;
}

const RewardKind reward_kind_exact = {"exact", options, .open = reward_exact_open, .score = reward_exact_score};
