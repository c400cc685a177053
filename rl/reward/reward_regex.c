/* SPDX-License-Identifier: Apache-2.0 */
/* regex: 1 when the pattern (PCRE2, Unicode) is found in the completion, else 0. With `field` the text of its last match (of `group`) must be the
 * answer. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "lib/base/log.h"
#include "rl/reward/reward_kinds.h"

#include <pcre2.h>
#include <string.h>

enum { PATTERN, FULL, IGNORE_CASE, FIELD, GROUP, MAX_STEPS = 1000000 };
static const OptionSpec options[] = {
    [PATTERN] = {.name = "pattern", .kind = OPTION_STRING, .required = true},
    [FULL] = {.name = "full", .kind = OPTION_BOOL}, /* the whole completion, without white space at both ends, must match */
    [IGNORE_CASE] = {.name = "ignore_case", .kind = OPTION_BOOL},
    [FIELD] = {.name = "field", .kind = OPTION_STRING},
    [GROUP] = {.name = "group", .kind = OPTION_WHOLE, .value = -1, .low = 0, .high = 99}, /* not given: group 1, the whole match when there is none */
    {0},
};

typedef struct Regex {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    uint32_t group;
    bool warned;
} Regex;

static void reward_regex_close(Reward *reward) {
    Regex *regex = reward->state;
    if (!regex) return;
    pcre2_code_free(regex->code);
    pcre2_match_data_free(regex->match);
    pcre2_match_context_free(regex->limits);
}

static Status reward_regex_open(Reward *reward) {
    Regex *regex = reward->state = arena_zero(reward->arena, sizeof *regex);
    if (!regex) return ST_RESOURCE;
    const Yaml *node = reward->options[PATTERN].node;
    uint32_t flags = PCRE2_UTF | PCRE2_UCP | (reward->options[IGNORE_CASE].number != 0 ? PCRE2_CASELESS : 0), groups;
    if (reward->options[FULL].number != 0) flags |= PCRE2_ANCHORED | PCRE2_ENDANCHORED;
    int error;
    PCRE2_SIZE at;
    regex->code = pcre2_compile((PCRE2_SPTR)node->text, PCRE2_ZERO_TERMINATED, flags, &error, &at, NULL);
    if (!regex->code) {
        PCRE2_UCHAR why[200];
        pcre2_get_error_message(error, why, sizeof why);
        return reward_refuse(reward, node, "cannot read the pattern '%s': %s at character %zu", node->text, (const char *)why, at);
    }
    pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE); /* without a JIT it is interpreted */
    regex->match = pcre2_match_data_create_from_pattern(regex->code, NULL);
    regex->limits = pcre2_match_context_create(NULL);
    if (!regex->match || !regex->limits) return status_fail(ST_RESOURCE, "out of memory for a pattern");
    pcre2_set_match_limit(regex->limits, MAX_STEPS);
    pcre2_pattern_info(regex->code, PCRE2_INFO_CAPTURECOUNT, &groups);
    double group = reward->options[GROUP].number;
    regex->group = group < 0 ? MIN(groups, 1u) : (uint32_t)group;
    return regex->group <= groups ? ST_OK
                                  : reward_refuse(reward, reward->options[GROUP].node, "the pattern has %u groups, not %u", groups, regex->group);
}

/* Looks from `from` on. What takes too many steps is no match; that is said once. */
static bool reward_regex_find(const Reward *reward, Regex *regex, Slice text, size_t from) {
    int n = pcre2_match(regex->code, (PCRE2_SPTR)(text.len ? text.data : ""), text.len, from, 0, regex->match, regex->limits);
    if (n < 0 && n != PCRE2_ERROR_NOMATCH && !regex->warned) {
        regex->warned = true;
        log_message(LOG_WARNING,
                    "reward '%s': the pattern takes too many steps on some completions, or they are not UTF-8; these count as not matching",
                    reward->name);
    }
    return n > 0;
}

static bool last_match(const Reward *reward, Regex *regex, Slice text, Slice *found) {
    bool any = false;
    for (size_t from = 0; from <= text.len && reward_regex_find(reward, regex, text, from);) {
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(regex->match);
        size_t begin = ends[2 * regex->group], end = ends[2 * regex->group + 1];
        any = true;
        *found = begin == PCRE2_UNSET || begin > end ? (Slice){text.data, 0} : (Slice){text.data + begin, end - begin};
        from = ends[1] > from ? ends[1] : from + 1;
        while (from < text.len && ((unsigned char)text.data[from] & 0xC0) == 0x80) from++;
        if (reward->options[FULL].number != 0) break;
    }
    return any;
}

static Status reward_regex_score(Reward *reward, const RewardRow *row, double *value) {
    Regex *regex = reward->state;
    const char *field = reward->options[FIELD].text;
    Slice text = reward->options[FULL].number != 0 ? slice_trim(row->completion) : row->completion, found = {0}, wanted;
    if (!field) {
        *value = reward_regex_find(reward, regex, text, 0);
        return ST_OK;
    }
    const json_t *column;
    TRY(reward_column(row, field, &column));
    bool any = last_match(reward, regex, text, &found);
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
