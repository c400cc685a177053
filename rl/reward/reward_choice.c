/* SPDX-License-Identifier: Apache-2.0 */
/* choice: 1 if the completion chooses the answer's letter, else 0. The choice is the letter in the last \boxed{...}, else after the last "answer"
 * ("the answer is (B)"), else a label at the beginning ("B. A cat"), else the last single letter in brackets, else the last single letter. Thoughts
 * are ignored (reward_completion_text). */
#include "rl/reward/reward_kinds.h"

#include <ctype.h>
#include <string.h>

enum { FIELD, LETTERS };
static const OptionSpec options[] = {
    [FIELD] = {.name = "field", .kind = OPTION_STRING, .text = "answer"}, /* a letter, or its index from 0 */
    [LETTERS] = {.name = "letters", .kind = OPTION_STRING, .text = "ABCD"},
    {0},
};

static Status reward_choice_open(Reward *reward) {
    const char *letters = reward->options[LETTERS].text;
    for (const char *at = letters; *at; at++)
        if (!isupper((unsigned char)*at) || strchr(at + 1, *at))
            return reward_refuse(reward, reward->options[LETTERS].node, "'letters' are different capital letters, such as ABCD");
    return *letters ? ST_OK : reward_refuse(reward, reward->options[LETTERS].node, "'letters' is empty");
}

static bool is_word(Slice text, size_t at) {
    unsigned char c = (unsigned char)text.data[at];
    return isalnum(c) || c == '_' || c == '\'' || c >= 0x80; /* the A of A's and a letter next to another script are not choices */
}

/* One of the letters, without a word character next to it. */
static bool alone(const char *letters, Slice text, size_t at) {
    return strchr(letters, text.data[at]) && text.data[at] && !(at > 0 && is_word(text, at - 1)) && !(at + 1 < text.len && is_word(text, at + 1));
}

static bool bracketed(Slice text, size_t at) {
    return at > 0 && at + 1 < text.len && strchr("([{*", text.data[at - 1]) && strchr(")]}*", text.data[at + 1]);
}

static char first_alone(const char *letters, Slice text) {
    for (size_t at = 0; at < text.len; at++)
        if (alone(letters, text, at)) return text.data[at];
    return '\0';
}

static char last_alone(const char *letters, Slice text, bool in_brackets) {
    for (size_t at = text.len; at-- > 0;)
        if (alone(letters, text, at) && (!in_brackets || bracketed(text, at))) return text.data[at];
    return '\0';
}

/* The letter at the beginning of the text, after brackets and the like. as_label: only if '.', ')' or ':' follows. */
static char leading(const char *letters, Slice text, bool as_label) {
    size_t at = 0;
    while (at < text.len && !is_word(text, at)) at++;
    if (at == text.len || !alone(letters, text, at)) return '\0';
    return !as_label || (at + 1 < text.len && strchr(".):", text.data[at + 1])) ? text.data[at] : '\0';
}

static char chosen(const char *letters, Slice text) {
    Slice part;
    if (slice_boxed(text, &part)) return first_alone(letters, part);
    const char *answer = slice_find_last(text, "answer", true);
    char letter = '\0';
    if (answer) {
        part = (Slice){answer, (size_t)(text.data + text.len - answer)};
        const char *newline = memchr(part.data, '\n', part.len);
        if (newline) part.len = (size_t)(newline - part.data);
        letter = first_alone(letters, part);
    }
    if (!letter) letter = leading(letters, text, true);
    if (!letter) letter = last_alone(letters, text, true);
    return letter ? letter : last_alone(letters, text, false);
}

static Status wanted_letter(const Reward *reward, const json_t *answer, char *letter) {
    const char *letters = reward->options[LETTERS].text, *field = reward->options[FIELD].text;
    if (json_is_integer(answer)) {
        json_int_t index = json_integer_value(answer);
        if (index < 0 || (size_t)index >= strlen(letters))
            return status_fail(ST_INPUT, "column '%s' is %lld, but there are %zu letters, counted from 0", field, (long long)index, strlen(letters));
        *letter = letters[index];
        return ST_OK;
    }
    Str room = {0};
    Slice text = {0};
    Status status = reward_answer_text(answer, field, &room, &text);
    if (status == ST_OK && !(*letter = leading(letters, text, false))) *letter = chosen(letters, text);
    if (status == ST_OK && !*letter) {
        status_fail(ST_INPUT, "column '%s' holds none of the letters %s: '%.*s'", field, letters, (int)MIN(text.len, 100), text.data);
        status = status_hint(ST_INPUT, "the option 'letters' names them");
    }
    str_release(&room);
    return status;
}

static Status reward_choice_score(Reward *reward, const RewardRow *row, double *value) {
    const json_t *column;
    Str room = {0};
    char wanted = 0, got = chosen(reward->options[LETTERS].text, reward_completion_text(row, &room));
    str_release(&room);
    TRY(reward_column(row, reward->options[FIELD].text, &column));
    for (size_t i = 0; i < reward_answers(column); i++) {
        TRY(wanted_letter(reward, reward_answer(column, i), &wanted));
        if (got && got == wanted) *value = 1;
    }
    return ST_OK;
}

const RewardKind reward_kind_choice = {"choice", options, .open = reward_choice_open, .score = reward_choice_score};
