/* SPDX-License-Identifier: Apache-2.0 */
/* A reward model in use: what `tune reward` made, or any adapter or model of transformers' ...ForSequenceClassification with one label.
 *
 *     Scorer *scorer;
 *     TRY(scorer_open("runs/reward", &(ScorerOptions){.base = policy}, &scorer));
 *     TRY(scorer_score(scorer, rows, n, scores));         // the score of each row's last token
 *     scorer_close(scorer);
 */
#ifndef TUNE_SCORER_H
#define TUNE_SCORER_H

#include "data/data.h"

/* A prompt and what answers it; both are borrowed, one of them may be empty. */
typedef struct ScorerRow {
    const int32_t *prompt, *answer;
    size_t n_prompt, n_answer;
} ScorerRow;
typedef struct ScorerOptions {
    /* a model that is loaded already: when the adapter is one on the same directory, its weights are shared, and it must outlive the scorer. NULL =
     * none */
    const Model *base;
    const char *base_dir;          /* the adapter's base, instead of what adapter_config.json says; NULL = that */
    const char *compute;           /* auto, f32 or bf16; NULL = the base's, or auto */
    const char *chat_template;     /* instead of the run's or the model's own; NULL = that */
    const json_t *template_kwargs; /* values for the template, beside the run's own; NULL = none */
    const char *now;               /* date for templates that write one; NULL = the day that the run began, or today where there is no run */
} ScorerOptions;
typedef struct Scorer {
    Model *model;
    const char *dir;      /* whose tokenizer and chat template it was trained with */
    Tokenizer *tokenizer; /* NULL: none */
    Chat *chat;
    const char *as; /* data.as of the run that made it; "text" where there is none */
    bool at_turn;   /* it was trained by an earlier version, at the token that ends a turn: see PairSource */
    bool shared;    /* the base's weights are used, not loaded again */
    Tape *tape;
    Arena *arena;
    int32_t *ids, *rows; /* of the pass in work */
    Segment *segments;
    size_t cap_tokens, cap_rows;
} Scorer;
/* dir: a run of tune reward, its adapter/ or model/ (which are read with the run's chat template and day, too), or such a directory of PEFT or
 * transformers. ST_INPUT: no such directory, no score, a base that is not on this machine; ST_RESOURCE. */
Status scorer_open(const char *dir, const ScorerOptions *options, Scorer **scorer);
/* Whether this is such a directory, in *is; false for what is no model, adapter or run. ST_INPUT for one that cannot be read. */
Status scorer_fits(const char *dir, bool *is);
void scorer_close(Scorer *scorer); /* NULL is fine */
/* The score of each row. Rows with the same prompt that follow each other share it; a row's score does not depend on the others. ST_INPUT: a row
 * without tokens, or an id that the model does not know; ST_INTERRUPTED. */
Status scorer_score(Scorer *scorer, const ScorerRow *rows, size_t n, double *scores);
/* n rows of so many tokens, `group` of them behind each prompt. */
typedef struct ScorerShape {
    size_t n_prompt, n_answer, n, group;
} ScorerShape;
/* What scoring them will take beside what is resident already: activations, and packed weights where they are not the base's. ST_RESOURCE. */
Status scorer_bytes(Scorer *scorer, const ScorerShape *shape, size_t *bytes);
/* Whether a run of a reward model, begun by an earlier version, scores the token that ends a turn, where now the last token of the row is scored.
 * ST_INPUT: its record cannot be read. */
Status run_scores_turns(const char *dir, bool *turns);
/* Whether ids mean the same to both. */
bool tokenizers_agree(const Tokenizer *a, const Tokenizer *b);

#endif
