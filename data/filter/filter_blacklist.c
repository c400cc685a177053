/* SPDX-License-Identifier: Apache-2.0 */
/* blacklist: instructions with words for tasks that a text model cannot do. The lists are those of self-instruct and Alpaca (stanford_alpaca,
 * generate_instruction.py); as there, whole words in any case. */
#include "data/filter/filter_kinds.h"

#include <string.h>

enum { WORDS, STARTS, PRESET, ON };
static const OptionSpec options[] = {
    [WORDS] = {"words", OPTION_STRINGS, .help = "words or phrases, instead of the preset's"},
    [STARTS] = {"starts", OPTION_STRINGS, .help = "what an instruction must not start with, instead of the preset's"},
    [PRESET] = {"preset", OPTION_STRING, .text = "self-instruct", .choices = "self-instruct|alpaca", .help = "default lists"},
    [ON] = {"on", OPTION_STRING, .text = "instruction", .choices = FILTER_FIELDS, .help = "where to look for them"},
    {0},
};

static const char *const self_instruct[] = {"image", "images", "graph", "graphs", "picture", "pictures", "file",
                                            "files", "map",    "maps",  "draw",   "plot",    "go to"};
static const char *const alpaca[] = {"video", "audio", "music", "flowchart", "diagram"}; /* extra phrases */
static const char *const program_start[] = {"Write a program"};

typedef struct Phrase {
    Str folded;
    const char *what;
} Phrase;
typedef struct Phrases {
    Phrase *items;
    size_t n, n_words;
} Phrases; /* the first n_words match anywhere, the others at the start */

static Status add_phrases(Filter *filter, Phrases *phrases, const char *const *list, size_t n, const char *form) {
    for (size_t i = 0; i < n; i++) {
        Phrase *phrase = &phrases->items[phrases->n++];
        text_fold((Slice){list[i], strlen(list[i])}, &phrase->folded);
        if (!(phrase->what = arena_printf(filter->arena, form, list[i]))) return ST_RESOURCE;
    }
    return ST_OK;
}

static Status filter_blacklist_open(Filter *filter) {
    const OptionValue *o = filter->options;
    bool given = o[WORDS].n + o[STARTS].n > 0 && !o[PRESET].node, more = strcmp(o[PRESET].text, "alpaca") == 0;
    size_t most = o[WORDS].n + o[STARTS].n + COUNT_OF(self_instruct) + COUNT_OF(alpaca) + COUNT_OF(program_start);
    Phrases *phrases = filter->state = arena_zero(filter->arena, sizeof *phrases);
    if (!phrases || !(phrases->items = arena_zero(filter->arena, most * sizeof *phrases->items))) return ST_RESOURCE;
    filter->info.stage = filter_on(o[ON].text);
    TRY(add_phrases(filter, phrases, o[WORDS].list, o[WORDS].n, "it has '%s'"));
    if (!given && o[WORDS].n == 0) TRY(add_phrases(filter, phrases, self_instruct, COUNT_OF(self_instruct), "it has '%s'"));
    if (!given && o[WORDS].n == 0 && more) TRY(add_phrases(filter, phrases, alpaca, COUNT_OF(alpaca), "it has '%s'"));
    phrases->n_words = phrases->n;
    TRY(add_phrases(filter, phrases, o[STARTS].list, o[STARTS].n, "it starts with '%s'"));
    return !given && o[STARTS].n == 0 ? add_phrases(filter, phrases, program_start, COUNT_OF(program_start), "it starts with '%s'") : ST_OK;
}

static void filter_blacklist_close(Filter *filter) {
    Phrases *phrases = filter->state;
    for (size_t i = 0; phrases && phrases->items && i < phrases->n; i++) str_release(&phrases->items[i].folded);
}

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || (uint8_t)c >= 128; }

/* Matches complete words: no word character precedes or follows, unless the phrase itself ends in another character or one of another script. */
static bool has_phrase(const Str *text, const Str *phrase) {
    for (const char *at = text->data; at && phrase->len && (at = strstr(at, phrase->data)); at++) {
        const char *end = at + phrase->len;
        bool open = at > text->data && is_letter(at[-1]) && is_letter(*at) && (uint8_t)*at < 128,
             cut = is_letter(end[-1]) && (uint8_t)end[-1] < 128 && is_letter(*end);
        if (!open && !cut) return true;
    }
    return false;
}

static bool filter_blacklist_rejects(const Filter *filter, const FilterRow *row, FilterResult *finding) {
    const Phrases *phrases = filter->state;
    Str room = {0}, folded = {0};
    Slice text = filter_subject(row, filter->options[ON].text, &room);
    if (text.data) text_fold(text, &folded);
    for (size_t i = 0; i < phrases->n && !finding->what; i++) {
        const Phrase *phrase = &phrases->items[i];
        bool found = i < phrases->n_words ? has_phrase(&folded, &phrase->folded)
                                          : phrase->folded.len > 0 && text_starts_with(str_text(&folded), phrase->folded.data);
        if (found) finding->what = phrase->what;
    }
    str_release(&room);
    str_release(&folded);
    return finding->what != NULL;
}

const FilterKind filter_kind_blacklist = {.name = "blacklist",
                                          .help = "instructions with words for tasks that a text model cannot do (image, file, draw, ...)",
                                          .argument = "[WORD, ...]",
                                          .stage = FILTER_PROMPT,
                                          .options = options,
                                          .open = filter_blacklist_open,
                                          .close = filter_blacklist_close,
                                          .rejects = filter_blacklist_rejects};
