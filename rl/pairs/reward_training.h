/* SPDX-License-Identifier: Apache-2.0 */
/* `tune reward`: a reward model from preferences, or from answers whose steps are right or wrong.
 *
 *     TRY(reward_training_run(&(PairRunConfig){.recipe = recipe}, &result));
 *
 * A model with a score (ModelOptions.scores) is read at the last token of an answer: the token that ends the turn, or EOS. Two answers share their
 * prompt's tokens, forward and backward. Pairs are learned by Bradley and Terry's model with the column `margin` and centering (reward_model_loss);
 * steps by the cross-entropy of sigmoid(score) at each step's last token, a mean over all steps of the optimiser step. TRL's PRMTrainer has a head of
 * two labels there: the difference of its logits is our score, so that a model of the process judges a whole answer as one of outcomes does.
 */
#ifndef TUNE_REWARD_TRAINING_H
#define TUNE_REWARD_TRAINING_H

#include "rl/pairs/calibration.h"
#include "rl/pairs/pair_run.h"

/* What a reward model is found to be on rows. Of pairs: accuracy = share with the chosen answer ahead, calibration of sigmoid(chosen - rejected). Of
 * steps (chosen: the right ones, labels from 0.5 on): share told right, calibration of sigmoid(score). */
typedef struct RewardNumbers {
    double n;                /* pairs, or steps */
    double loss, accuracy;   /* sums */
    double chosen, rejected; /* how many scores of either kind */
    double rewards_chosen, rewards_rejected;
    Calibration calibration;
    int64_t left_out; /* rows that say nothing: PairDrop */
} RewardNumbers;

/* By the recipe's data.format, or by the first row of data.train. output/adapter/ (PEFT, task SEQ_CLS) or output/model/
 * (...ForSequenceClassification), metrics.jsonl, checkpoints/. ST_CONFIG: a format without preferences; else as pair_run. */
Status reward_training_run(const PairRunConfig *config, TrainResult *result);

/* What to write in Python for the same scores: lines for people, of a reward model of pairs. config: the base's */
void reward_use(const Recipe *recipe, const ModelConfig *config, Str *text);

/* The numbers of a reward model on a file of pairs or steps. */
typedef struct RewardEvaluation {
    const Model *model;         /* with a score */
    const Tokenizer *tokenizer; /* NULL: rows of ids alone */
    const Chat *chat;
    const char *data;
    int64_t max_length;
    const char *truncation;
    const char *as;                                            /* data.as */
    bool at_turn;                                              /* see Scorer */
    const char *system;                                        /* message of conversations without one; NULL = none */
    void (*on_progress)(void *context, size_t done, size_t n); /* may be NULL */
    void (*say)(void *context, const char *text);              /* which rows are left out, and why; may be NULL */
    void *context;
} RewardEvaluation;
/* *stepwise: what the rows were. ST_INPUT, ST_RESOURCE, ST_INTERRUPTED. */
Status reward_evaluate(const RewardEvaluation *config, RewardNumbers *numbers, bool *stepwise);

#endif
