/* SPDX-License-Identifier: Apache-2.0 */
/* repetition: output of a model that got into a loop. Score: 1 - different n-grams / all n-grams of the words; also finds one character repeated many
 * times. */
#include "data/filter/filter_kinds.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MOST, NGRAM, RUN, ON };
static const OptionSpec options[] = {
    [MOST] = {"max", OPTION_NUMBER, .value = 0.5, .low = 0, .high = 1, .help = "largest fraction of n-grams that occur earlier in the text"},
    [NGRAM] = {"n", OPTION_WHOLE, .value = 3, .low = 1, .high = 64, .help = "words of an n-gram; texts with fewer than 8 of them pass"},
    [RUN] = {"run", OPTION_WHOLE, .value = 48, .low = 0, .high = 1e9,
             .help = "longest run of one letter, digit or sign (lines of dashes and the like do not count); 0 = no limit"},
    [ON] = {"on", OPTION_STRING, .text = "completion", .choices = FILTER_FIELDS, .help = "which text"},
    {0},
};
enum { FEWEST = 8 };

static Status filter_repetition_open(Filter *filter) {
    filter->info.stage = filter_on(filter->options[ON].text);
    return ST_OK;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The hashes of n words each; words are hashed into `grams` first, which has space for all of them. */
static double repeated_share(Slice text, size_t n, uint64_t *grams) {
    size_t n_words = 0, different = 1;
    Slice word;
    for (size_t at = 0; text_spaced_word(text, &at, &word);) grams[n_words++] = XXH3_64bits(word.data, word.len);
    if (n_words < n + FEWEST - 1) return 0;
    size_t n_grams = n_words - n + 1;
    for (size_t i = 0; i < n_grams; i++) {
        uint64_t hash = 0;
        for (size_t k = 0; k < n; k++) hash = mix64(hash ^ grams[i + k]) + 0x9e3779b97f4a7c15u;
        grams[i] = hash;
    }
    qsort(grams, n_grams, sizeof *grams, by_value);
    for (size_t i = 1; i < n_grams; i++) different += grams[i] != grams[i - 1];
    return 1 - (double)different / (double)n_grams;
}

static bool is_rule(char c) { return strchr(" \t\n\r-=_*#.~|+<>", c) != NULL; }

static size_t longest_run(Slice text) {
    size_t longest = 0, run = 0;
    uint32_t before = 0, c;
    for (size_t i = 0; i < text.len;) {
        size_t used = utf8_decode(text.data + i, text.len - i, &c);
        if (used == 0) c = (unsigned char)text.data[i];
        run = c && c == before && !(c < 128 && is_rule((char)c)) ? run + 1 : 1;
        longest = MAX(longest, run);
        before = c;
        i += MAX(used, (size_t)1);
    }
    return longest;
}

static bool filter_repetition_rejects(const Filter *filter, const FilterRow *row, FilterResult *finding) {
    Str room = {0}, folded = {0};
    Slice text = filter_subject(row, filter->options[ON].text, &room);
    if (text.data) text_fold(text, &folded);
    uint64_t *grams = malloc((folded.len + 1) * sizeof *grams);
    double run = filter_number(filter, RUN);
    if (text.data && grams) finding->score = repeated_share((Slice){str_text(&folded), folded.len}, (size_t)filter_number(filter, NGRAM), grams);
    if (finding->score > filter_number(filter, MOST))
        finding->what = "it repeats itself";
    else if (text.data && run > 0 && (double)longest_run(text) > run)
        finding->what = "one character is repeated too often";
    free(grams);
    str_release(&room);
    str_release(&folded);
    return finding->what != NULL;
}

const FilterKind filter_kind_repetition = {.name = "repetition",
                                           .help = "answers that repeat themselves, as a model in a loop does",
                                           .argument = "X",
                                           .stage = FILTER_ANSWER,
                                           .options = options,
                                           .open = filter_repetition_open,
                                           .rejects = filter_repetition_rejects};
