/* ROUGE-L as the rouge-score package computes it (RougeScorer(["rougeL"], use_stemmer=False), version 0.1.2): words are runs of a-z and 0-9 of the text in lower case; with l the longest common
 * subsequence of words, p = l / words of one, r = l / words of the other, F = 2 p r / (p + r), 0 where either has no words.
 *
 *     RougeIndex *index;
 *     TRY(rouge_index_new(&index));
 *     Ids words = {0};
 *     rouge_index_words(index, text, &words);
 *     RougeBest best = {0.7, ROUGE_NONE};
 *     rouge_index_best(index, worker, words.data, words.n, 0, &best);    // the text before that is likest, if any is at least 0.7 like it
 *     TRY(rouge_index_add(index, words.data, words.n));
 */
#ifndef TUNE_ROUGE_H
#define TUNE_ROUGE_H

#include "lib/text/text.h"

/* F of two texts by the plain table of n x m: slow, what the index is tested against. ST_RESOURCE. */
Status rouge_l(Slice a, Slice b, double *f);

/* Texts that others are compared with. Memory: about 16 bytes a word. */
typedef struct RougeIndex RougeIndex;
Status rouge_index_new(RougeIndex **index);
void rouge_index_free(RougeIndex *index); /* NULL is fine */
/* Replaces `words` by the numbers of a text's words; new words get new numbers. ST_RESOURCE. */
Status rouge_index_words(RougeIndex *index, Slice text, Ids *words);
Status rouge_index_add(RougeIndex *index, const int32_t *words, size_t n); /* texts are numbered in this order; ST_RESOURCE */
size_t rouge_index_size(const RougeIndex *index);

/* What one search needs; each thread has its own. */
typedef struct RougeWorker RougeWorker;
Status rouge_worker_new(RougeWorker **worker);
void rouge_worker_free(RougeWorker *worker); /* NULL is fine */
/* Makes room for searches of texts with up to `longest` words, while up to `more` texts are added; after rouge_index_words, before searches run side by side. ST_RESOURCE. */
Status rouge_worker_fit(RougeWorker *worker, const RougeIndex *index, size_t longest, size_t more);

#define ROUGE_NONE SIZE_MAX
typedef struct RougeBest { double f; size_t text; } RougeBest;
/* The text from number `from` on with the largest F, of equals the first, if it is larger than best->f, or as large and before best->text. Exact: LCS by bit-parallel addition (Hyyro 2004), and only
 * of texts whose F could be large enough by their length and the words in common: 2 common / (n + m) is an upper bound. */
void rouge_index_best(const RougeIndex *index, RougeWorker *worker, const int32_t *words, size_t n, size_t from, RougeBest *best);

#endif
