/* SPDX-License-Identifier: Apache-2.0 */
/* Filters that look at one row and have few or no options.
 *
 * - empty: the prompt or the answer is empty. A row that is a single text has no prompt.
 * - length: characters of the prompt and of the answer.
 * - punctuation_start: instructions whose first character is ASCII punctuation (Python's string.punctuation), as in self-instruct.
 * - ascii_start: instructions whose first character is not ASCII, as in self-instruct: mostly other languages.
 * - colon_end: an input or an answer that ends with a colon lacks the part that should follow; self-instruct's rule for instances.
 * - equal: the answer repeats the input, or the full prompt; case, white space and quotes are ignored. */
#include "data/filter/filter_kinds.h"

#include <ctype.h>
#include <string.h>

static bool empty(const Filter *filter, const FilterRow *row, FilterResult *finding) {
    bool asked = row->instruction.data != NULL || row->input.data != NULL, answered = row->completion.data != NULL;
    (void)filter;
    if (asked && text_trim(row->instruction).len == 0)
        finding->what = "the prompt is empty";
    else if (answered && text_trim(row->completion).len == 0)
        finding->what = "the answer is empty";
    return finding->what != NULL;
}

enum { MAX_EACH, MIN_PROMPT, MIN_COMPLETION };
static const OptionSpec length_options[] = {
    [MAX_EACH] = {"max", OPTION_WHOLE, .value = 32768, .low = 1, .high = 1e9, .help = "most characters of a prompt, and of an answer"},
    [MIN_PROMPT] = {"min_prompt", OPTION_WHOLE, .value = 3, .low = 0, .high = 1e9, .help = "fewest characters of a prompt"},
    [MIN_COMPLETION] = {"min_completion", OPTION_WHOLE, .value = 1, .low = 0, .high = 1e9, .help = "fewest characters of an answer"},
    {0},
};

static bool misfits(const Filter *filter, Slice text, size_t least, const char *shorter, const char *longer, FilterResult *finding) {
    if (!text.data) return false;
    double n = finding->score = (double)text_characters(text_trim(text));
    finding->what = n < filter_number(filter, least) ? shorter : n > filter_number(filter, MAX_EACH) ? longer : NULL;
    return finding->what != NULL;
}

static bool length(const Filter *filter, const FilterRow *row, FilterResult *finding) {
    Str room = {0};
    bool wrong = misfits(filter, filter_field(row, "prompt", &room), MIN_PROMPT, "the prompt is too short", "the prompt is too long", finding);
    str_release(&room);
    return wrong || misfits(filter, row->completion, MIN_COMPLETION, "the answer is too short", "the answer is too long", finding);
}

/* 0: there is none */
static uint8_t first_byte(Slice text) {
    text = text_trim(text);
    return text.len > 0 ? (uint8_t)text.data[0] : 0;
}

static bool punctuation_start(const Filter *filter, const FilterRow *row, FilterResult *finding) {
    uint8_t first = first_byte(row->instruction);
    (void)filter;
    if (first < 128 && ispunct(first)) finding->what = "it starts with punctuation";
    return finding->what != NULL;
}

static bool ascii_start(const Filter *filter, const FilterRow *row, FilterResult *finding) {
    (void)filter;
    if (first_byte(row->instruction) >= 128) finding->what = "it starts with a character that is not ASCII";
    return finding->what != NULL;
}

static bool ends_with_colon(Slice text) {
    text = text_trim(text);
    return text.len > 0 && text.data[text.len - 1] == ':';
}

static bool colon_end(const Filter *filter, const FilterRow *row, FilterResult *finding) {
    (void)filter;
    finding->what = ends_with_colon(row->input)        ? "the input ends with a colon"
                    : ends_with_colon(row->completion) ? "the answer ends with a colon"
                                                       : NULL;
    return finding->what != NULL;
}

static bool is_same(Slice a, const Str *folded, Str *room) {
    if (a.len == 0 || folded->len == 0) return false;
    text_fold(a, room);
    return room->len == folded->len && memcmp(room->data, folded->data, room->len) == 0;
}

static bool equal(const Filter *filter, const FilterRow *row, FilterResult *finding) {
    Str answer = {0}, room = {0}, joined = {0};
    (void)filter;
    if (!row->completion.data) return false;
    text_fold(row->completion, &answer);
    if (is_same(row->input, &answer, &room))
        finding->what = "the answer is the input";
    else if (is_same(row->instruction, &answer, &room) || is_same(filter_field(row, "prompt", &joined), &answer, &room))
        finding->what = "the answer is the prompt";
    str_release(&answer);
    str_release(&room);
    str_release(&joined);
    return finding->what != NULL;
}

#define PLAIN(id, where, is_on, each, takes, table, about) \
    const FilterKind filter_kind_##id = {                  \
        .name = #id, .help = about, .argument = takes, .on = is_on, .stage = where, .options = table, .each_answer = each, .rejects = id};

/* clang-format off */
/*    name               looks at       on     each answer  argument and options     help */
PLAIN(empty,             FILTER_BOTH,   true,  true,        "true", NULL,            "rows whose prompt or answer is empty")
PLAIN(length,            FILTER_BOTH,   true,  false,       "N",    length_options,  "prompts and answers of too many or too few characters")
PLAIN(punctuation_start, FILTER_PROMPT, false, false,       "true", NULL,            "instructions that start with punctuation")
PLAIN(ascii_start,       FILTER_PROMPT, false, false,       "true", NULL,            "instructions that start with a character that is not ASCII")
PLAIN(colon_end,         FILTER_BOTH,   false, true,        "true", NULL,            "inputs and answers that end with a colon: something is missing")
PLAIN(equal,             FILTER_ANSWER, false, false,       "true", NULL,            "answers that only repeat the prompt or its input")
/* clang-format on */
