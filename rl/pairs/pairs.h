/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of preferences as tokens: a prompt with a chosen and a rejected answer, or with one answer alone: that was wanted or not (KTO), or whose steps
 * are right or wrong.
 *
 *     Pairs *pairs;
 *     TRY(pairs_load(recipe, "data.train", recipe->data_train, &source, &pairs));
 *     TRY(pair_batch_build(pairs, rows, n, &(PairBatchOptions){0}, &batch));   // prompt segments, two branches behind each
 *
 * What both answers begin with stands once: the prompt's tokens are computed once for the two, forward and backward.
 */
#ifndef TUNE_PAIRS_H
#define TUNE_PAIRS_H

#include "data/data.h"
#include "data/formats/formats.h"

enum { PAIR_CHOSEN, PAIR_REJECTED };
/* An answer: its tokens behind the prompt, and which of them are trained. */
typedef struct PairSide {
    const int32_t *ids;
    const bool *trained;
    int32_t n, n_trained;
    const double *labels; /* rows of steps: n_trained, how right the step is that ends with each trained token, 0..1; else NULL */
} PairSide;
typedef struct PairRow {
    const int32_t *prompt; /* what the sides have in common before the first trained token; may be empty */
    int32_t n_prompt;
    PairSide sides[2];     /* a row of KTO has the first alone */
    bool desirable;        /* KTO: the answer was wanted */
    double weight, margin; /* columns of these names: 1 and 0 without them */
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
    int64_t cut;
    bool alone;                    /* training rows of answers alone, wanted or not */
    int64_t against;               /* rows whose own scores put the rejected answer first; kept */
    int64_t dropped[PAIR_DROPS];   /* rows that were left out */
    const char *where[PAIR_DROPS]; /* the first of them: "FILE line N, ..."; NULL: none */
    /* For DataOrder and DataPlan: the rows' lengths, places and sources. The second half of a split takes each row once */
    Dataset table;
    Arena *arena; /* NULL: rows and tokens are another's */
} Pairs;
/* Who reads the rows. */
typedef struct PairSource {
    const ModelConfig *model;
    const Tokenizer *tokenizer; /* NULL: rows of ids alone */
    const Chat *chat;
    bool unpaired; /* rows of one answer: of KTO, or */
    bool stepwise; /* rows of steps: a token is trained when it ends a step */
    /* Answers end with the token whose score counts: scalar_head_end of the whole row; with `at_turn` the one that ends the turn, as runs of earlier
     * versions have it, without what the chat template writes behind it */
    bool ends, at_turn;
    const char *reader; /* for messages: "algorithm dpo" */
} PairSource;
/* Preference rows: {"prompt", "chosen", "rejected"} as texts or messages, the prompt explicit or implicit, or {"prompt_ids", "chosen_ids",
 * "rejected_ids"}; KTO: {"prompt", "completion", "label"} or
 * {"prompt_ids", "completion_ids", "label"}; steps: {"prompt", "completions": [...], "labels": [...]} or {"prompt_ids", "completions_ids", "labels"}.
 * Rows that teach nothing are left out and counted: PairDrop. ST_INPUT with file and line: no such row, an id that the model does not know;
 * ST_CONFIG, ST_RESOURCE. */
Status pairs_load(const Recipe *recipe, const char *key, YamlNode node, const PairSource *source, Pairs **pairs);
/* Takes `share` of the rows (held_out_count, by seed) out of `pairs` into a second set, which borrows from it. */
Status pairs_split(Pairs *pairs, double share, uint64_t seed, Pairs **held_out);
void pairs_free(Pairs *pairs); /* NULL is fine */
/* What was left out, cut or is one-sided, a sentence each; `say` is called for each. what: "data.train" */
void pairs_report(const Pairs *pairs, const Recipe *recipe, const char *what, void (*say)(void *context, const char *text), void *context);
const char *pair_drop_reason(PairDrop why);
/* The ST_INPUT of pairs of which every row was left out. key: "data.train" */
Status pairs_none_left(const Pairs *pairs, const char *key);
uint64_t pairs_fingerprint(const Pairs *pairs);
void pairs_where(const Pairs *pairs, size_t row, Str *text); /* "FILE line N" */

typedef struct PairBatchOptions {
    bool ends; /* for scores at the last token: answers are whole. Else their last token, which predicts nothing, is left out */
    /* n: behind each prompt stands the answer of this row instead of its own (KTO's comparison). NULL = no such */
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
/* Borrowed from `batch` until its next build; ST_RESOURCE, also beyond INT32_MAX tokens. The caller calls pair_batch_release, whatever this says. */
Status pair_batch_build(const Pairs *pairs, const size_t *rows, size_t n, const PairBatchOptions *options, PairBatch *batch);
void pair_batch_release(PairBatch *batch);
/* Tokens of the batch that the row makes; with the answer of `other` in place of its own, unless that is NULL. */
int64_t pair_row_tokens(const PairRow *row);
int64_t pair_tokens_with(const PairRow *row, const PairRow *other);

#endif
