/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of words, for comparing texts: decontaminate compares files, data check compares training and evaluation.
 *
 *     text_fold(text, &folded);
 *     if (words_add(folded, &words)) words_each_gram(words.hashes, words.n, WORD_GRAM, call, context);
 */
#ifndef TUNE_WORD_GRAMS_H
#define TUNE_WORD_GRAMS_H

#include "lib/base/str.h"

enum { WORD_GRAM = 13 }; /* number of words in a run, as in GPT-3: arXiv 2005.14165, appendix C */

/* {0} is an empty list; words_release frees it. */
typedef struct Words {
    uint64_t *hashes;
    size_t n, cap;
} Words;
/* Adds the words of a folded text (text_fold, text_word). False: out of memory. */
bool words_add(Slice folded, Words *words);
void words_release(Words *words);
typedef bool GramCallback(void *context, uint64_t hash);
/* Calls back with the hash of every run of n words; stops and returns false if the callback does. */
bool words_each_gram(const uint64_t *hashes, size_t n_words, size_t n, GramCallback *call, void *context);

#endif
