/* SPDX-License-Identifier: Apache-2.0 */
/* minhash: near-duplicates by the estimated Jaccard similarity of their shingles (minhash.h). Shingles are runs of characters (after folding, of any
 * script) or of words. */
#include "data/filter/filter_kinds.h"
#include "data/filter/minhash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { THRESHOLD, NGRAM, UNIT, PERMUTATIONS, ON };
static const OptionSpec options[] = {
    [THRESHOLD] = {"threshold", OPTION_NUMBER, .value = 0.8, .low = 0.1, .high = 1, .help = "similarity at or above which a row is rejected"},
    [NGRAM] = {"n", OPTION_WHOLE, .value = 5, .low = 1, .high = 64, .help = "characters or words of a shingle"},
    [UNIT] = {"unit", OPTION_STRING, .text = "characters", .choices = "characters|words", .help = "what n counts"},
    [PERMUTATIONS] = {"permutations", OPTION_WHOLE, .value = 128, .low = 16, .high = 4096,
                      .help = "minima of a signature: the estimate's deviation is sqrt(J (1 - J) / permutations)"},
    [ON] = {"on", OPTION_STRING, .text = "prompt", .choices = FILTER_FIELDS, .help = "what is compared"},
    {0},
};

typedef struct Sketches {
    MinHash *minhash;
    size_t k;
    uint32_t *block; /* FILTER_BLOCK x k */
    bool empty[FILTER_BLOCK];
} Sketches;

static Status filter_minhash_open(Filter *filter) {
    enum { SEED = 1 }; /* datasketch's default: signatures do not need the recipe's seed */
    Sketches *sketches = filter->state = calloc(1, sizeof *sketches);
    filter->info.stage = filter_on(filter->options[ON].text);
    if (!sketches) return status_errno(ENOMEM, "cannot compare rows");
    sketches->k = (size_t)filter_number(filter, PERMUTATIONS);
    TRY(minhash_new(sketches->k, filter_number(filter, THRESHOLD), SEED, &sketches->minhash));
    return (sketches->block = malloc(FILTER_BLOCK * sketches->k * sizeof *sketches->block)) ? ST_OK : status_errno(ENOMEM, "cannot compare rows");
}

static void filter_minhash_close(Filter *filter) {
    Sketches *sketches = filter->state;
    if (!sketches) return;
    minhash_free(sketches->minhash);
    free(sketches->block);
    free(sketches);
}

static uint32_t hash(const char *bytes, size_t n) { return (uint32_t)(XXH3_64bits(bytes, n) >> 32); }

/* Every run of n characters; a shorter text is one shingle. shingles: space for as many as the text has bytes. */
static size_t character_shingles(const Str *text, size_t n, uint32_t *shingles) {
    size_t count = 0, end = 0;
    for (size_t k = 0; k < n && end < text->len; k++) do
            end++;
        while (end < text->len && ((uint8_t)text->data[end] & 0xC0) == 0x80);
    for (size_t begin = 0;; end++, begin++) { /* both advance by one character */
        shingles[count++] = hash(text->data + begin, end - begin);
        if (end >= text->len) return count;
        while (end + 1 < text->len && ((uint8_t)text->data[end + 1] & 0xC0) == 0x80) end++;
        while (((uint8_t)text->data[begin + 1] & 0xC0) == 0x80) begin++;
    }
}

static size_t word_shingles(const Str *text, size_t n, uint32_t *shingles) {
    uint64_t window[64];
    size_t n_words = 0, count = 0;
    Slice word;
    for (size_t at = 0; text_word((Slice){text->data, text->len}, &at, &word); n_words++) {
        window[n_words % n] = XXH3_64bits(word.data, word.len);
        if (n_words + 1 < n) continue;
        uint64_t all = 0;
        for (size_t k = 0; k < n; k++) all = mix64(all ^ window[(n_words + 1 + k) % n]) + 0x9e3779b97f4a7c15u;
        shingles[count++] = (uint32_t)(all >> 32);
    }
    if (count == 0 && n_words > 0) shingles[count++] = hash(text->data, text->len);
    return count;
}

static Status filter_minhash_prepare(Filter *filter, const FilterRow *row, size_t slot) {
    Sketches *sketches = filter->state;
    Str room = {0}, folded = {0};
    Slice text = filter_subject(row, filter->options[ON].text, &room);
    size_t n = (size_t)filter_number(filter, NGRAM), count = 0;
    if (text.data) text_fold(text, &folded);
    uint32_t *shingles = malloc((folded.len + 1) * sizeof *shingles);
    if (shingles && folded.len > 0)
        count = strcmp(filter->options[UNIT].text, "words") == 0 ? word_shingles(&folded, n, shingles) : character_shingles(&folded, n, shingles);
    if (shingles) minhash_sketch(sketches->minhash, shingles, count, sketches->block + slot * sketches->k);
    sketches->empty[slot] = count == 0;
    str_release(&room);
    str_release(&folded);
    free(shingles);
    return shingles ? ST_OK : status_errno(ENOMEM, "cannot compare rows");
}

static void filter_minhash_search(const Filter *filter, size_t slot, int worker, size_t from, FilterMatch *best) {
    const Sketches *sketches = filter->state;
    (void)worker;
    if (!sketches->empty[slot]) minhash_best(sketches->minhash, sketches->block + slot * sketches->k, from, &best->score, &best->row);
}

static const char *filter_minhash_alike(const Filter *filter, double score) {
    return score >= filter_number(filter, THRESHOLD) ? "nearly equal to an earlier row" : NULL;
}

static Status filter_minhash_remember(Filter *filter, size_t slot) {
    Sketches *sketches = filter->state;
    return minhash_add(sketches->minhash, sketches->block + slot * sketches->k);
}

static const FilterMemory memory = {
    .prepare = filter_minhash_prepare, .search = filter_minhash_search, .rejects = filter_minhash_alike, .remember = filter_minhash_remember};
const FilterKind filter_kind_minhash = {.name = "minhash",
                                        .help = "near-duplicates of a seed or an earlier row, by MinHash",
                                        .argument = "J",
                                        .stage = FILTER_PROMPT,
                                        .options = options,
                                        .open = filter_minhash_open,
                                        .close = filter_minhash_close,
                                        .memory = &memory};
