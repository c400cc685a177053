/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of preferences as tokens: a prompt with a chosen and a rejected answer, or with a single answer that was desirable or not (KTO), or whose
 * steps are right or wrong.
 *
 *     Pairs *pairs;
 *     TRY(pairs_load(recipe, "data.train", recipe->data_train, &source, &pairs));
 *     TRY(pair_batch_build(pairs, rows, n, &(PairBatchOptions){0}, &batch));   // prompt segments with two branches each
 *
 * The common beginning of both answers is stored once: the prompt's tokens are computed once for both, forward and backward.
 */
#ifndef TUNE_PAIRS_H
#define TUNE_PAIRS_H

#include "data/data.h"
#include "data/formats/formats.h"

enum { PAIR_CHOSEN, PAIR_REJECTED };
/* An answer: its tokens after the prompt, and which of them are trained. */
typedef struct PairSide {
    const int32_t *ids;
    const bool *trained;
    int32_t n, n_trained;
    const double *labels; /* stepwise rows: (n_trained), the label 0..1 of the step that ends with each trained token; else NULL */
} PairSide;
typedef struct PairRow {
    const int32_t *prompt; /* the common tokens of the sides before the first trained token; may be empty */
    int32_t n_prompt;
    PairSide sides[2];     /* a KTO row has only the first */
    bool desirable;        /* KTO: the answer is desirable */
    double weight, margin; /* columns `weight` and `margin`; default 1 and 0 */
    uint32_t file, line;
} PairRow;
typedef struct PairFile {
    const char *path, *unit;
} PairFile;
typedef struct Pairs {
    PairRow *rows;
    size_t n;
    PairFile *files;
    int64_t tokens, trained_tokens, longest; /* tokens: prompts counted once */
    int64_t cut;                             /* rows that were cut to data.max_length */
    bool alone;                    /* training rows of a single answer (KTO), so pairs_report compares the numbers of desirable and other answers */
    int64_t against;               /* rows in which the score columns are higher for the rejected answer; they are kept */
    int64_t dropped[PAIR_DROPS];   /* rows that were left out */
    const char *where[PAIR_DROPS]; /* the first dropped rows: "FILE line N, ..."; NULL: none */
    /* For DataOrder and DataPlan: lengths, positions and sources of the rows. A held-out set has each row once */
    Dataset table;
    Arena *arena; /* NULL: rows and tokens are borrowed from another set */
} Pairs;
/* How to read the rows. */
typedef struct PairSource {
    const ModelConfig *model;
    const Tokenizer *tokenizer; /* NULL: rows of ids alone */
    const Chat *chat;
    bool unpaired; /* rows have a single answer: rows of KTO and stepwise rows */
    bool stepwise; /* rows are stepwise: the last token of each step is trained */
    /* Answers end with the token whose score counts: scalar_head_end of the complete row; with `at_turn`, as in runs of earlier versions, the token
     * that ends the turn, without the template's text after it */
    bool ends, at_turn;
    const char *reader; /* for messages: "algorithm dpo" */
} PairSource;
/* Reads the rows at `node`. Pairs: {"prompt", "chosen", "rejected"} as texts or messages, the prompt explicit or implicit, or {"prompt_ids",
 * "chosen_ids", "rejected_ids"}; KTO: {"prompt", "completion", "label"} or {"prompt_ids", "completion_ids", "label"}; steps: {"prompt",
 * "completions": [...], "labels": [...]} or {"prompt_ids", "completions_ids", "labels"}. Rows without a signal are left out and counted: PairDrop.
 * ST_INPUT with file and line: a row of another form, an id outside the vocabulary; ST_CONFIG, ST_RESOURCE. */
Status pairs_load(const Recipe *recipe, const char *key, YamlNode node, const PairSource *source, Pairs **pairs);
/* Moves a fraction of the rows (held_out_count, by seed) from `pairs` to a second set, which borrows from it. */
Status pairs_split(Pairs *pairs, double share, uint64_t seed, Pairs **held_out);
void pairs_free(Pairs *pairs); /* NULL is fine */
/* Calls `say` with a sentence for each kind of rows left out or cut, and for unbalanced answers. what: "data.train" */
void pairs_report(const Pairs *pairs, const Recipe *recipe, const char *what, void (*say)(void *context, const char *text), void *context);
const char *pair_drop_reason(PairDrop why);
/* Fails with ST_INPUT because every row was left out. key: "data.train" */
Status pairs_none_left(const Pairs *pairs, const char *key);
uint64_t pairs_fingerprint(const Pairs *pairs);
void pairs_where(const Pairs *pairs, size_t row, Str *text); /* "FILE line N" */

typedef struct PairBatchOptions {
    bool ends; /* for scores at the last token: answers are complete. Otherwise their last token, which predicts nothing, is left out */
    /* (n): each prompt gets the answer of this row instead of its own (for KTO's KL estimate). NULL = its own */
    const size_t *other_rows;
} PairBatchOptions;
/* n rows in one flat batch without padding. Branch 2 i + s is side s of rows[i]. */
typedef struct PairBatch {
    ModelBatch model;
    int32_t *ids, *rows, *targets, *branch; /* n_targets: hidden row rows[k] predicts targets[k] of branch[k] */
    Segment *segments;
    int64_t n_targets, n_branches;
    int64_t *counts; /* n_branches: targets of each */
    int32_t *ends;   /* n_branches: the hidden row of its last token */
    size_t cap_tokens, cap_segments, cap_branches;
} PairBatch;
/* Builds the batch of `rows` (n) in the memory of `batch`, where it stays valid until the next build; {0} is an empty one. ST_RESOURCE, also for more
 * than INT32_MAX tokens. The caller calls pair_batch_release in any case. */
Status pair_batch_build(const Pairs *pairs, const size_t *rows, size_t n, const PairBatchOptions *options, PairBatch *batch);
void pair_batch_release(PairBatch *batch);
/* Number of tokens of the row in a batch. pair_tokens_with: with the first answer of `other` instead of its own, unless NULL. */
int64_t pair_row_tokens(const PairRow *row);
int64_t pair_tokens_with(const PairRow *row, const PairRow *other);
/* Number of its tokens that a pass computes; ends: as in PairBatchOptions. */
int64_t pair_row_computed(const PairRow *row, bool ends);

#endif
