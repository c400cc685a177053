/* SPDX-License-Identifier: Apache-2.0 */
#include "data/filter/word_grams.h"

#include <stdlib.h>
#include <xxhash.h>

#include "data/filter/filter_kinds.h"

static const uint64_t base = 0x9e3779b97f4a7c15u;
static uint64_t word_grams_finish(uint64_t rolling, size_t n) { return mix64(rolling + n * 0xd6e8feb86659fd93u); }

bool words_add(Slice folded, Words *words) {
    Slice word;
    for (size_t at = 0; text_word(folded, &at, &word);) {
        if (array_grow(&words->hashes, &words->cap, words->n + 1, sizeof *words->hashes, "words") != ST_OK) return false;
        words->hashes[words->n++] = XXH3_64bits(word.data, word.len);
    }
    return true;
}

void words_release(Words *words) {
    free(words->hashes);
    *words = (Words){0};
}

bool words_each_gram(const uint64_t *hashes, size_t n_words, size_t n, GramCallback *call, void *context) {
    uint64_t rolling = 0, oldest = 1;
    for (size_t i = 1; i < n; i++) oldest *= base;
    for (size_t i = 0; i < n_words; i++) {
        if (i >= n) rolling -= hashes[i - n] * oldest;
        rolling = rolling * base + hashes[i];
        if (i + 1 >= n && !call(context, word_grams_finish(rolling, n))) return false;
    }
    return true;
}
