/* SPDX-License-Identifier: Apache-2.0 */
/* Texts with a common beginning in one row: the beginning is kept, and computed, once.
 *
 *     TRY(branches_join(texts, n, &ids, &labels, &joined));    // tokens of one text after the other -> a tree, laid flat
 *     for (int32_t k = 0; k < example_texts(&example); k++) {
 *         example_text(&example, k, &ids, &labels);            // and back: what the model sees, from the first token to the last
 *     }
 *
 * A branch is a run of the row's tokens behind all tokens of its parent, as a Segment of a flat batch. No token is trained by two texts: a text
 * shares what comes before its first trained token, and no more.
 */
#ifndef TUNE_BRANCHES_H
#define TUNE_BRANCHES_H

#include "data/data.h"

/* Tokens begin..end-1 of ids and labels are a text. */
typedef struct TextSpan {
    size_t begin, end;
} TextSpan;
/* A tree, laid flat. */
typedef struct Joined {
    Ids ids, labels;
    Ids branches;  /* a Branch each; of one text behind the other: one */
    int32_t depth; /* tokens of the longest text */
} Joined;
/* Fills `joined`, whose memory is used again. A text's first token is not trained. ST_RESOURCE. */
Status branches_join(const TextSpan *texts, size_t n, const Ids *ids, const Ids *labels, Joined *joined);
void joined_release(Joined *joined);

/* How many texts the row holds: one, or as many as there are branches that no other goes on from. */
int32_t example_texts(const Example *example);
/* Text k of them, appended to ids and labels. Of tokens that several texts begin with the first has the labels. */
void example_text(const Example *example, int32_t k, Ids *ids, Ids *labels);
/* Where the token before t of its text is; -1: t is the first. */
int32_t example_before(const Example *example, int32_t t);

#endif
