/* SPDX-License-Identifier: Apache-2.0 */
/* number: 1 if the completion's number equals the answer's, else 0. In both texts it is the last number in the last \boxed{...}, else the first one
 * after the last "####" (the GSM8K format), else the last number. Thoughts are ignored (reward_completion_text). */
#include "rl/reward/numbers.h"
#include "rl/reward/reward_kinds.h"

#include <math.h>
#include <string.h>

enum { FIELD, FROM, TOLERANCE, RELATIVE, THOUSANDS, DECIMAL, PERCENT };
static const OptionSpec options[] = {
    [FIELD] = {.name = "field", .kind = OPTION_STRING, .text = "answer"},
    [FROM] = {.name = "from", .kind = OPTION_STRING, .text = "auto", .choices = "auto|last|boxed|hashes"},
    [TOLERANCE] = {.name = "tolerance", .kind = OPTION_NUMBER, .value = 1e-6, .low = 0, .high = 1e300},
    [RELATIVE] = {.name = "relative_tolerance", .kind = OPTION_NUMBER, .value = 0, .low = 0, .high = 1e300},
    [THOUSANDS] = {.name = "thousands", .kind = OPTION_STRING, .text = ","},
    [DECIMAL] = {.name = "decimal", .kind = OPTION_STRING, .text = "."},
    [PERCENT] = {.name = "percent", .kind = OPTION_STRING, .text = "number", .choices = "number|share"},
    {0},
};

static Status reward_number_open(Reward *reward) {
    const char *thousands = reward->options[THOUSANDS].text, *decimal = reward->options[DECIMAL].text;
    if (strlen(thousands) > 1) return reward_refuse(reward, reward->options[THOUSANDS].node, "'thousands' is one character, or \"\" for none");
    if (strlen(decimal) != 1 || strcmp(decimal, thousands) == 0)
        return reward_refuse(reward, reward->options[DECIMAL].node, "'decimal' is one character, another than 'thousands'");
    return ST_OK;
}

static bool behind_hashes(Slice text, const NumberStyle *style, Number *number) {
    const char *hashes = slice_find_last(text, "####", false);
    if (!hashes) return false;
    hashes += strlen("####");
    size_t left = (size_t)(text.data + text.len - hashes);
    const char *newline = memchr(hashes, '\n', left);
    return numbers_first((Slice){hashes, newline ? (size_t)(newline - hashes) : left}, style, number);
}

/* If the text marks its answer, only the marked place counts. */
static bool reward_number_find(const Reward *reward, Slice text, Number *number) {
    const NumberStyle style = {reward->options[THOUSANDS].text[0], reward->options[DECIMAL].text[0],
                               strcmp(reward->options[PERCENT].text, "share") == 0};
    const char *from = reward->options[FROM].text;
    bool any = strcmp(from, "auto") == 0;
    Slice boxed;
    if ((any || strcmp(from, "boxed") == 0) && slice_boxed(text, &boxed)) return numbers_last(boxed, &style, number);
    if ((any && slice_find_last(text, "####", false)) || strcmp(from, "hashes") == 0) return behind_hashes(text, &style, number);
    return (any || strcmp(from, "last") == 0) && numbers_last(text, &style, number);
}

/* JSON reads an integer of more than 64 bits as a double, which has lost digits; a double that prints with few digits has lost none. */
static Status wanted_real(const char *field, double value, Number *wanted) {
    enum { SURE_DIGITS = 15 };
    Str text = {0};
    Status status = ST_OK;
    *wanted = (Number){.value = value, .negative = value < 0};
    str_append_double(&text, value);
    if (fabs(value) >= 0x1p63) numbers_first((Slice){text.data, text.len}, &(NumberStyle){.decimal = '.'}, wanted);
    if (wanted->n > SURE_DIGITS) {
        status_fail(ST_INPUT, "column '%s' holds the number %s, which may be a whole number of more than 64 bits", field, text.data);
        status = status_hint(ST_INPUT, "write it as a text, which is compared digit by digit: \"%s\": \"...\"", field);
    }
    str_release(&text);
    return status;
}

/* The answer may be a number, or a text that marks it in any of these ways. */
static Status wanted_number(const Reward *reward, const json_t *answer, Number *wanted) {
    const char *field = reward->options[FIELD].text;
    if (json_is_real(answer)) return wanted_real(field, json_real_value(answer), wanted);
    Str room = {0};
    Slice text;
    Status status = reward_answer_text(answer, field, &room, &text);
    Reward any = *reward;
    any.options[FROM].text = "auto";
    if (status == ST_OK && !reward_number_find(&any, text, wanted))
        status = status_fail(ST_INPUT, "column '%s' has no number: '%.*s'", field, (int)MIN(text.len, 200), text.data);
    str_release(&room);
    return status;
}

static Status reward_number_score(Reward *reward, const RewardRow *row, double *value) {
    const json_t *column;
    Number got, wanted;
    Str room = {0};
    bool found = reward_number_find(reward, reward_completion_text(row, &room), &got);
    double tolerance = reward->options[TOLERANCE].number, relative = reward->options[RELATIVE].number;
    str_release(&room);
    TRY(reward_column(row, reward->options[FIELD].text, &column));
    for (size_t i = 0; i < reward_answers(column); i++) {
        TRY(wanted_number(reward, reward_answer(column, i), &wanted));
        if (found && numbers_distance(&got, &wanted) <= tolerance + relative * fabs(wanted.value)) *value = 1;
    }
    return ST_OK;
}

const RewardKind reward_kind_number = {"number", options, .open = reward_number_open, .score = reward_number_score};
