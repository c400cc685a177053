/* SPDX-License-Identifier: Apache-2.0 */
/* Several texts with a common prefix in one row: the prefix is stored, and computed, once.
 *
 *     TRY(branches_join(texts, n, &ids, &labels, &joined));    // concatenated tokens of the texts -> a flattened tree
 *     for (int32_t k = 0; k < example_texts(&example); k++) {
 *         example_text(&example, k, &ids, &labels);            // and back: what the model sees, from the first token to the last
 *     }
 *
 * A branch is a run of the row's tokens that follows all tokens of its parent, as a Segment of a flat batch does. No token is trained by two texts: a
 * text shares only tokens that come before its first trained token.
 */
#ifndef TUNE_BRANCHES_H
#define TUNE_BRANCHES_H

#include "data/data.h"

/* Tokens begin..end-1 of ids and labels are a text. */
typedef struct TextSpan {
    size_t begin, end;
} TextSpan;
/* A flattened tree. */
typedef struct Joined {
    Ids ids, labels;
    Ids branches;  /* a Branch each; a single text, or texts that continue one another, give one branch */
    int32_t depth; /* tokens of the longest text */
} Joined;
/* Fills `joined` and reuses its memory. The first token of a text is not trained. ST_RESOURCE. */
Status branches_join(const TextSpan *texts, size_t n, const Ids *ids, const Ids *labels, Joined *joined);
void joined_release(Joined *joined);

/* The number of texts in the row: the number of branches without children, or 1. */
int32_t example_texts(const Example *example);
/* Appends text k to ids and labels. The labels of tokens that several texts share go to the first of these texts. */
void example_text(const Example *example, int32_t k, Ids *ids, Ids *labels);
/* The index of the token before t in its text; -1: t is the first token. */
int32_t example_before(const Example *example, int32_t t);

#endif
