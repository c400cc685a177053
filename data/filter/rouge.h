/* SPDX-License-Identifier: Apache-2.0 */
/* ROUGE-L as the rouge-score package computes it (RougeScorer(["rougeL"], use_stemmer=False), version 0.1.2): words are runs of a-z and 0-9 of the
 * text in lower case; with l the longest common subsequence of words, p = l / words of one, r = l / words of the other, F = 2 p r / (p + r), 0 if
 * either has no words.
 *
 *     RougeIndex *index;
 *     TRY(rouge_index_new(&index));
 *     RougeText text = {0};
 *     TRY(rouge_index_words(index, slice, &text));
 *     TRY(rouge_worker_fit(worker, index, &text, 0));
 *     RougeBest best = {0, ROUGE_NONE};
 *     rouge_index_best(index, worker, &text, 0, &best);     // the most similar earlier text
 *     TRY(rouge_index_add(index, &text));
 */
#ifndef TUNE_ROUGE_H
#define TUNE_ROUGE_H

#include "lib/text/text.h"

/* F of two texts by the plain table of n x m: slow, the reference for tests of the index. ST_RESOURCE. */
Status rouge_l(Slice a, Slice b, double *f);

/* The texts to compare with. Memory: about 16 bytes a word. */
typedef struct RougeIndex RougeIndex;
Status rouge_index_new(RougeIndex **index);
void rouge_index_free(RougeIndex *index); /* NULL is fine */
/* A text as numbers of words; {0} is empty. distinct: number of different words. */
typedef struct RougeText {
    Ids words;
    size_t distinct;
} RougeText;
void rouge_text_release(RougeText *text);
/* Replaces `text`; new words get new numbers. ST_RESOURCE. */
Status rouge_index_words(RougeIndex *index, Slice slice, RougeText *text);
Status rouge_index_add(RougeIndex *index, const RougeText *text); /* texts are numbered in this order; ST_RESOURCE */
size_t rouge_index_size(const RougeIndex *index);

/* Scratch memory of one search; each thread has its own. */
typedef struct RougeWorker RougeWorker;
Status rouge_worker_new(RougeWorker **worker);
void rouge_worker_free(RougeWorker *worker); /* NULL is fine */
/* Allocates memory for searches of this text while up to `more` texts are added to the index. Call it after rouge_index_words of all texts to search
 * for, before parallel searches. ST_RESOURCE. */
Status rouge_worker_fit(RougeWorker *worker, const RougeIndex *index, const RougeText *text, size_t more);

#define ROUGE_NONE SIZE_MAX
typedef struct RougeBest {
    double f;
    size_t text;
} RougeBest; /* {0, ROUGE_NONE}: any */
/* The text from number `from` on with the largest F, the first of equals, if it is larger than best->f, or equal and before best->text. Exact: LCS
 * by bit-parallel addition (Hyyro 2004), only for texts whose length and number of common words allow a larger F: 2 common / (n + m) is an upper
 * bound. */
void rouge_index_best(const RougeIndex *index, RougeWorker *worker, const RougeText *text, size_t from, RougeBest *best);

#endif
