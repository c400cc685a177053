/* SPDX-License-Identifier: Apache-2.0 */
/* refusal: answers that decline, or talk about being a model. Some phrases count anywhere, others only at the start of an answer: "I cannot" may
 * well be part of a story. A prompt is rejected only if it begins by declining a task of an assistant: then a teacher refused instead of writing a
 * prompt. */
#include "data/filter/filter_kinds.h"

#include <string.h>

enum { PHRASES, WITHIN };
static const OptionSpec options[] = {
    [PHRASES] = {"phrases", OPTION_STRINGS, .help = "more phrases, looked for anywhere"},
    [WITHIN] = {"within", OPTION_WHOLE, .value = 120, .low = 0, .high = 1e9, .help = "bytes at the start in which an apology counts"},
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
    "i am sorry, i",
    "i'm very sorry, but",
    "i'm so sorry, but",
    "sorry, but i",
    "sorry, i can",
    "sorry, i'm",
    "sorry, i am",
    "sorry, i won't",
    "i apologize, but",
    "i apologise, but",
    "i apologize, i",
    "my apologies, but",
    "my apologies, i",
    "i cannot help",
    "i can't help",
    "i'm unable to",
    "i am unable to",
    "i'm not able to",
    "i am not able to",
    "i'm afraid i can",
    "i'm afraid i'm",
    "i'm afraid i must",
    "i'm afraid that's not",
    "unfortunately, i cannot",
    "unfortunately, i can't",
    "unfortunately, i am unable",
    "unfortunately, i'm",
    "unfortunately, i am not",
    "regrettably, i",
    "regretfully, i",
    "i regret that i",
    "i regret to inform you",
    "it is not appropriate",
    "it's not appropriate",
    "it would not be appropriate",
    "it wouldn't be appropriate",
    "i will not",
    "i won't",
    "i must decline",
    "i have to decline",
    "i need to decline",
    "i must respectfully decline",
    "i respectfully decline",
    "i must refuse",
    "i have to refuse",
    "i refuse to",
    "i'd rather not",
    "i would rather not",
    "i prefer not to",
    "i'm not comfortable",
    "i am not comfortable",
    "i don't feel comfortable",
    "i do not feel comfortable",
    "i'm not programmed to",
    "i am not programmed to",
    "i'm not designed to",
    "i am not designed to",
    "i don't have the ability to",
    "i do not have the ability to",
    "i don't have the capability to",
    "i do not have the capability to",
    "not something i can",
    "not something that i can",
    "not something i'm able",
    "not something i am able",
    "isn't something i can",
    "beyond my capabilities",
    "outside my capabilities",
    "outside of my capabilities",
    "not within my capabilities",
    "against my guidelines",
    "against my programming",
    "against my principles",
    "violates my guidelines",
    "violate my guidelines",
    "as a responsible ai",
    "as an ethical ai",
    "as a helpful and harmless",
    /* Other languages, folded by text_fold. */
    "es tut mir leid, aber",
    "tut mir leid, aber",
    "ich kann dir dabei nicht",
    "ich kann ihnen dabei nicht",
    "dabei kann ich nicht helfen",
    "diese anfrage kann ich nicht",
    "ich kann diese anfrage nicht",
    "leider kann ich",
    "als ki-sprachmodell",
    "als ki-modell",
    "als sprachmodell",
    "je suis désolé, mais",
    "je suis désolée, mais",
    "désolé, mais je",
    "je ne peux pas vous aider",
    "je ne peux pas t'aider",
    "je ne peux pas répondre",
    "je ne suis pas en mesure de",
    "en tant que modèle de langage",
    "en tant qu'ia",
    "lo siento, pero",
    "lo siento, no puedo",
    "no puedo ayudar",
    "no puedo proporcionar",
    "no puedo cumplir",
    "como modelo de lenguaje",
    "desculpe, mas",
    "sinto muito, mas",
    "não posso ajudar",
    "como um modelo de linguagem",
    "mi dispiace, ma",
    "non posso aiutar",
    "come modello linguistico",
    "извините, но я",
    "к сожалению, я не могу",
    "я не могу помочь",
    "как языковая модель",
    "抱歉,我",
    "很抱歉",
    "对不起,我",
    "我无法提供",
    "我无法帮",
    "我无法回答",
    "我不能提供",
    "我不能帮",
    "作为一个ai",
    "作为ai",
    "作为一个人工智能",
    "作为一个语言模型",
    "申し訳ありませんが",
    "申し訳ございませんが",
    "お手伝いできません",
    "お答えできません",
};

/* "I cannot", followed, with a few words between at most, by a task of an assistant. */
static const char *const inability[] = {
    "i cannot ",
    "i can't ",
    "i can not ",
    "i could not ",
    "i couldn't ",
    "i may not ",
    "i am unable to ",
    "i'm unable to ",
    "i am not able to ",
    "i'm not able to ",
    "i won't be able to ",
    "i will not be able to ",
    "i wouldn't be able to ",
    "i won't ",
    "i will not ",
    "i'm not going to ",
    "i am not going to ",
    "i am not allowed to ",
    "i'm not allowed to ",
    "i am not permitted to ",
    "i'm not permitted to ",
    "i don't think i can ",
    "i do not think i can ",
    "i don't think i should ",
    "i shouldn't ",
    "i should not ",
    "i must decline to ",
    "i have to decline to ",
    "i decline to ",
    "i refuse to ",
    "i'm not comfortable ",
    "i am not comfortable ",
    "we cannot ",
    "we can't ",
    "we are unable to ",
    "we're unable to ",
};
static const char *const duties[] = {
    "help you",   "help with",  "assist",       "fulfil",        "comply",     "provid",     "answer ",      "complete ",   "creat",
    "generat",    "produce",    "respond",      "discuss",       "engag",      "support",    "accommodate",  "process",     "participat",
    "facilitate", "carry out",  "proceed with", "continue with", "do that",    "do this",    "give you",     "give advice", "give inst",
    "offer ",     "write that", "write this",   "write content", "share that", "share this", "share inform",
};
/* In a prompt, only phrases that a user would hardly write: "I cannot create an account" is a valid prompt. */
static const char *const duties_of_prompts[] = {
    "help you",
    "help with",
    "assist",
    "fulfil",
    "comply",
    "accommodate",
    "engage in",
    "engage with",
    "participate in",
    "discuss ",
    "respond to",
    "support ",
    "do that",
    "answer that",
    "answer this",
    "answer your",
    "provide you",
    "provide that",
    "provide this",
    "provide any",
    "provide inst",
    "provide info",
    "provide assist",
    "provide guid",
    "provide content",
    "provide a prompt",
    "provide prompts",
    "create content",
    "create that",
    "create this",
    "create a prompt",
    "create prompts",
    "create inst",
    "generate content",
    "generate that",
    "generate this",
    "generate a prompt",
    "generate prompts",
    "generate inst",
    "complete this request",
    "complete that request",
    "complete your request",
    "process this request",
    "process that request",
    "process your request",
    "write that",
    "write this",
};
/* Words that may precede it at the start of a prompt. */
static const char *const openings[] = {
    "i'm sorry, but ",   "i am sorry, but ",          "i'm sorry, ",           "i am sorry, ",
    "i'm sorry. ",       "i'm very sorry, but ",      "sorry, but ",           "sorry, ",
    "i apologize, but ", "i apologise, but ",         "i apologize. ",         "my apologies, but ",
    "my apologies, ",    "unfortunately, ",           "regrettably, ",         "i'm afraid ",
    "i am afraid ",      "as an ai language model, ", "as an ai model, ",      "as an ai assistant, ",
    "as an ai, ",        "as a language model, ",     "as a responsible ai, ",
};

enum { WORDS_BETWEEN = 32 }; /* bytes of "I cannot in good conscience provide ..." */

/* The end of the phrase that the text begins with; NULL: none. */
static const char *after_phrase(const char *text, const char *const *phrases, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (text_starts_with(text, phrases[i])) return text + strlen(phrases[i]);
    return NULL;
}

/* Whether the text begins with one of the duties, or has one a few words later in the same sentence. */
static bool has_duty(const char *text, const char *const *phrases, size_t n) {
    for (const char *at = text; *at && at - text < WORDS_BETWEEN && !strchr(".!?;:", *at); at++)
        if ((at == text || at[-1] == ' ') && after_phrase(at, phrases, n)) return true;
    return false;
}

static bool says(const char *text, const char *phrase, size_t within) {
    const char *at = strstr(text, phrase);
    return at && (size_t)(at - text) <= within;
}

static bool declines(const char *text, size_t within) {
    for (const char *at = text; *at && (size_t)(at - text) <= within; at++) {
        const char *rest = at == text || at[-1] == ' ' ? after_phrase(at, inability, COUNT_OF(inability)) : NULL;
        if (rest && has_duty(rest, duties, COUNT_OF(duties))) return true;
    }
    return false;
}

static bool is_refusal(const Filter *filter, const char *text) {
    const OptionValue *more = &filter->options[PHRASES];
    size_t within = (size_t)filter_number(filter, WITHIN);
    bool found = declines(text, within);
    Str phrase = {0};
    for (size_t i = 0; i < COUNT_OF(anywhere) && !found; i++) found = says(text, anywhere[i], SIZE_MAX);
    for (size_t i = 0; i < COUNT_OF(beginning) && !found; i++) found = says(text, beginning[i], within);
    for (size_t i = 0; i < more->n && !found; i++) {
        text_fold((Slice){more->list[i], strlen(more->list[i])}, &phrase);
        found = phrase.len > 0 && says(text, phrase.data, SIZE_MAX);
    }
    str_release(&phrase);
    return found;
}

/* A teacher declined to write a prompt. */
static bool prompt_is_refusal(const char *text) {
    for (const char *next; (next = after_phrase(text, openings, COUNT_OF(openings)));) text = next;
    const char *rest = after_phrase(text, inability, COUNT_OF(inability));
    return rest && has_duty(rest, duties_of_prompts, COUNT_OF(duties_of_prompts));
}

static bool filter_refusal_rejects(const Filter *filter, const FilterRow *row, FilterResult *finding) {
    Str folded = {0};
    if (row->instruction.data) text_fold(row->instruction, &folded);
    if (prompt_is_refusal(str_text(&folded))) finding->what = "the prompt is a refusal";
    if (row->completion.data) text_fold(row->completion, &folded);
    if (!finding->what && row->completion.data && is_refusal(filter, str_text(&folded)))
        finding->what = "the answer is a refusal, or about being a model";
    str_release(&folded);
    return finding->what != NULL;
}

const FilterKind filter_kind_refusal = {.name = "refusal",
                                        .help = "answers and prompts that decline, or speak of being a language model",
                                        .argument = "[PHRASE, ...]",
                                        .on = true,
                                        .stage = FILTER_BOTH,
                                        .options = options,
                                        .each_answer = true,
                                        .rejects = filter_refusal_rejects};
