/* SPDX-License-Identifier: Apache-2.0 */
/* Inference with a reward model: a result of `tune reward`, or any adapter or model of transformers' ...ForSequenceClassification with one label.
 *
 *     Scorer *scorer;
 *     TRY(scorer_open("runs/reward", &(ScorerOptions){.base = policy}, &scorer));
 *     TRY(scorer_score(scorer, rows, n, scores));         // the score of each row's last token
 *     scorer_close(scorer);
 */
#ifndef TUNE_SCORER_H
#define TUNE_SCORER_H

#include "data/data.h"

/* A prompt and its answer; both are borrowed, one of them may be empty. */
typedef struct ScorerRow {
    const int32_t *prompt, *answer;
    size_t n_prompt, n_answer;
} ScorerRow;
typedef struct ScorerOptions {
    /* a loaded model: if the adapter's base is the same directory, its weights are shared, and it must outlive the scorer. NULL = none */
    const Model *base;
    const Device *device;          /* that it runs on; NULL = that of `base` */
    const char *base_dir;          /* overrides the base in adapter_config.json; NULL = no override */
    const char *compute;           /* auto, f32 or bf16; NULL = that of `base`, or auto */
    const char *chat_template;     /* overrides the template of the run or the model; NULL = no override */
    const json_t *template_kwargs; /* values for the template in addition to the run's; NULL = none */
    const char *now;               /* date for templates that write one; NULL = the date on which the run began, or today if there is no run */
} ScorerOptions;
typedef struct Scorer {
    Model *model;
    const char *dir;      /* directory of the tokenizer and chat template that it was trained with */
    Tokenizer *tokenizer; /* NULL: none */
    Chat *chat;
    const char *as; /* data.as of the run that made it; "text" if there is no run */
    bool at_turn;   /* trained by an earlier version, at the token that ends a turn: see PairSource */
    bool shared;    /* shares the weights of `base` instead of loading them again */
    Tape *tape;
    Arena *arena;
    int32_t *ids, *rows; /* scratch of the current pass */
    Segment *segments;
    size_t cap_tokens, cap_rows;
} Scorer;
/* dir: a run of tune reward, its adapter/ or model/ (which also use the run's chat template and date), or a directory of PEFT or transformers.
 * ST_INPUT: no such directory, a model without a score, a base that is not on this machine; ST_RESOURCE. */
Status scorer_open(const char *dir, const ScorerOptions *options, Scorer **scorer);
/* Sets *is to whether `dir` is a reward model; false if it is no model, adapter or run. ST_INPUT if it cannot be read. */
Status scorer_fits(const char *dir, bool *is);
void scorer_close(Scorer *scorer); /* NULL is fine */
/* Computes the score of each row. Consecutive rows with the same prompt share its computation; a row's score does not depend on the others. ST_INPUT:
 * a row without tokens, or an id outside the vocabulary; ST_INTERRUPTED. */
Status scorer_score(Scorer *scorer, const ScorerRow *rows, size_t n, double *scores);
/* Shape of a scoring call: n rows, `group` per prompt, with these numbers of tokens. */
typedef struct ScorerShape {
    size_t n_prompt, n_answer, n, group;
} ScorerShape;
/* Bytes that scoring will use in addition to what is resident: activations, and packed weights unless shared. ST_RESOURCE. */
Status scorer_bytes(Scorer *scorer, const ScorerShape *shape, size_t *bytes);
/* Whether a run was begun by an earlier version that scores the token that ends a turn; now the last token of the row is scored. ST_INPUT: its record
 * cannot be read. */
Status run_scores_turns(const char *dir, bool *turns);
/* Whether both tokenizers give ids the same meaning. */
bool tokenizers_agree(const Tokenizer *a, const Tokenizer *b);

#endif
