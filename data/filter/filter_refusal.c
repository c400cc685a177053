/* SPDX-License-Identifier: Apache-2.0 */
/* refusal: answers that decline, or speak of being a model. Some phrases count anywhere, others only where an answer begins: "I cannot" may well be
 * part of a story. */
#include "data/filter/filter_kinds.h"

#include <string.h>

enum { PHRASES, WITHIN };
static const OptionSpec options[] = {
    [PHRASES] = {"phrases", TAKES_TEXTS, .help = "more phrases, looked for anywhere"},
    [WITHIN] = {"within", TAKES_WHOLE, .value = 120, .low = 0, .high = 1e9, .help = "bytes in which an apology counts as the beginning"},
    {0},
};

static const char *const anywhere[] = {
    "as an ai language model",
    "as an ai model",
    "as a language model",
    "as a large language model",
    "as an artificial intelligence",
    "i'm just an ai",
    "i am just an ai",
    "i'm an ai language model",
    "i am an ai language model",
    "as an ai assistant, i",
    "as an ai, i",
    "i do not have personal opinions",
    "i don't have personal opinions",
    "my knowledge cutoff",
    "my training data only goes",
};
static const char *const beginning[] = {
    "i'm sorry, but",
    "i am sorry, but",
    "i'm sorry, i",
    "sorry, but i",
    "sorry, i can",
    "i apologize, but",
    "my apologies, but",
    "i cannot fulfill",
    "i can't fulfill",
    "i cannot assist",
    "i can't assist",
    "i cannot help",
    "i can't help",
    "i cannot provide",
    "i can't provide",
    "i cannot answer",
    "i can't answer",
    "i cannot complete",
    "i can't complete",
    "i'm unable to",
    "i am unable to",
    "i'm not able to",
    "i am not able to",
    "i'm afraid i can",
    "unfortunately, i cannot",
    "unfortunately, i can't",
    "unfortunately, i am unable",
    "it is not appropriate",
    "it's not appropriate",
    "i will not",
    "i won't",
};

static bool has(const char *text, const char *phrase, size_t within, FilterFinding *finding) {
    const char *at = strstr(text, phrase);
    if (!at || (size_t)(at - text) > within) return false;
    finding->what = "the answer is a refusal, or about being a model";
    return true;
}

static bool rejects(const Filter *filter, const FilterRow *row, FilterFinding *finding) {
    const OptionValue *more = &filter->options[PHRASES];
    Str folded = {0}, phrase = {0};
    bool found = false;
    if (!row->completion.data) return false;
    text_fold(row->completion, &folded);
    for (size_t i = 0; i < COUNT_OF(anywhere) && !found; i++) found = has(str_text(&folded), anywhere[i], SIZE_MAX, finding);
    for (size_t i = 0; i < COUNT_OF(beginning) && !found; i++)
        found = has(str_text(&folded), beginning[i], (size_t)filter_number(filter, WITHIN), finding);
    for (size_t i = 0; i < more->n && !found; i++) {
        text_fold((Slice){more->list[i], strlen(more->list[i])}, &phrase);
        found = phrase.len > 0 && has(str_text(&folded), phrase.data, SIZE_MAX, finding);
    }
    str_release(&folded);
    str_release(&phrase);
    return found;
}

const FilterKind filter_kind_refusal = {.name = "refusal",
                                        .help = "answers that decline, or speak of being a language model",
                                        .argument = "[PHRASE, ...]",
                                        .on = true,
                                        .stage = FILTER_ANSWER,
                                        .options = options,
                                        .each_answer = true,
                                        .rejects = rejects};
