/* SPDX-License-Identifier: Apache-2.0 */
/* regex: 1 if the pattern (PCRE2, Unicode) is found in the completion, else 0. With `field` the text of the last match (of `group`) must equal the
 * answer. */
#include "lib/base/log.h"
#include "lib/base/regex.h"
#include "rl/reward/reward_kinds.h"

#include <string.h>

enum { PATTERN, FULL, IGNORE_CASE, FIELD, GROUP, MAX_STEPS = 1000000 };
static const OptionSpec options[] = {
    [PATTERN] = {.name = "pattern", .kind = OPTION_STRING, .required = true},
    [FULL] = {.name = "full", .kind = OPTION_BOOL}, /* the complete completion, without leading and trailing white space, must match */
    [IGNORE_CASE] = {.name = "ignore_case", .kind = OPTION_BOOL},
    [FIELD] = {.name = "field", .kind = OPTION_STRING},
    [GROUP] = {.name = "group", .kind = OPTION_WHOLE, .value = -1, .low = 0, .high = 99}, /* default: group 1, or the complete match without groups */
    {0},
};

typedef struct Pattern {
    Regex *regex;
    uint32_t group;
    size_t undecided; /* completions */
} Pattern;

static void reward_regex_close(Reward *reward) {
    Pattern *pattern = reward->state;
    if (!pattern) return;
    if (pattern->undecided > 1)
        log_message(LOG_RANK, "reward '%s': %zu completions counted as not matching, as the pattern took too many steps or they were not UTF-8",
                    reward->name, pattern->undecided);
    regex_free(pattern->regex);
}

static Status reward_regex_open(Reward *reward) {
    Pattern *pattern = reward->state = arena_zero(reward->arena, sizeof *pattern);
    if (!pattern) return ST_RESOURCE;
    const Yaml *node = reward->options[PATTERN].node;
    int any_case = reward->options[IGNORE_CASE].number != 0 ? REGEX_ANY_CASE : 0, whole = reward->options[FULL].number != 0 ? REGEX_WHOLE : 0;
    RegexFault fault;
    pattern->regex = regex_new(node->text, REGEX_UNICODE | any_case | whole, MAX_STEPS, &fault);
    if (!pattern->regex) return reward_refuse(reward, node, "cannot read the pattern '%s': %s at character %zu", node->text, fault.reason, fault.at);
    uint32_t groups = regex_groups(pattern->regex);
    double group = reward->options[GROUP].number;
    pattern->group = group < 0 ? MIN(groups, 1u) : (uint32_t)group;
    return pattern->group <= groups ? ST_OK
                                    : reward_refuse(reward, reward->options[GROUP].node, "the pattern has %u groups, not %u", groups, pattern->group);
}

/* Searches from `from` on. An undecided search counts as no match; it is counted, and the first one gets a warning. */
static bool reward_regex_find(const Reward *reward, Slice text, size_t from, RegexMatch *match) {
    Pattern *pattern = reward->state;
    RegexResult result = regex_find(pattern->regex, text, from, pattern->group, match);
    if (result == REGEX_UNDECIDED && pattern->undecided++ == 0)
        log_message(LOG_RANK, "reward '%s': the pattern takes too many steps on some completions, or they are not UTF-8; these count as not matching",
                    reward->name);
    return result == REGEX_FOUND;
}

static bool last_match(const Reward *reward, Slice text, Slice *found) {
    const Pattern *pattern = reward->state;
    size_t undecided = pattern->undecided;
    RegexMatch match;
    bool any = false;
    for (size_t from = 0; from <= text.len && reward_regex_find(reward, text, from, &match);) {
        any = true;
        *found = match.group;
        from = match.end > from ? match.end : from + 1;
        while (from < text.len && ((unsigned char)text.data[from] & 0xC0) == 0x80) from++;
        if (reward->options[FULL].number != 0) break;
    }
    return any && pattern->undecided == undecided; /* else there may be a later match */
}

static Status reward_regex_score(Reward *reward, const RewardRow *row, double *value) {
    const char *field = reward->options[FIELD].text;
    Slice text = reward->options[FULL].number != 0 ? slice_trim(row->completion) : row->completion, found = {0}, wanted;
    if (!field) {
        *value = reward_regex_find(reward, text, 0, NULL);
        return ST_OK;
    }
    const json_t *column;
    TRY(reward_column(row, field, &column));
    bool any = last_match(reward, text, &found);
    Str room = {0};
    Status status = ST_OK;
    for (size_t i = 0; i < reward_answers(column) && status == ST_OK; i++) {
        status = reward_answer_text(reward_answer(column, i), field, &room, &wanted);
        if (status != ST_OK || !any) continue;
        Slice a = slice_trim(found), b = slice_trim(wanted);
        if (a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0)) *value = 1;
    }
    str_release(&room);
    return status;
}

const RewardKind reward_kind_regex = {"regex", options, .open = reward_regex_open, .close = reward_regex_close, .score = reward_regex_score};
