/* SPDX-License-Identifier: Apache-2.0 */
/* `tune reward`: a reward model from preferences, or from answers whose steps are right or wrong.
 *
 *     TRY(reward_training_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime}, &result));
 *
 * A model with a score (ModelOptions.scores) is read at the last token of an answer. Two answers share their prompt's tokens, forward and backward.
 * The loss of pairs is Bradley and Terry's, with the column `margin` and centering (reward_model_loss). The loss of stepwise rows is the
 * cross-entropy of sigmoid(score) at each step's last token, a mean over all steps of the optimiser step. TRL's PRMTrainer has a head of two labels
 * instead; the difference of its logits is our score, so that a process reward model scores a complete answer in the same way as an outcome reward
 * model.
 */
#ifndef TUNE_REWARD_TRAINING_H
#define TUNE_REWARD_TRAINING_H

#include "rl/pairs/calibration.h"
#include "rl/pairs/pair_rows.h"

/* Evaluation of a reward model. For pairs: accuracy = fraction in which the chosen answer scores higher, calibration of sigmoid(chosen - rejected).
 * For steps (chosen: the right ones, labels from 0.5 on): fraction classified correctly, calibration of sigmoid(score). */
typedef struct RewardNumbers {
    double n;                                /* number of pairs, or of steps */
    double loss, accuracy;                   /* sums over these */
    double chosen, rejected;                 /* numbers of chosen and of rejected scores */
    double rewards_chosen, rewards_rejected; /* sums of chosen and of rejected scores */
    Calibration calibration;
    int64_t left_out; /* last, after the doubles: rows without a signal: PairDrop */
} RewardNumbers;

/* Runs the training. data.format, or the first row of data.train, decides between pairs and steps. Writes output/adapter/ (PEFT, task SEQ_CLS) or
 * output/model/ (...ForSequenceClassification), metrics.jsonl, checkpoints/. ST_CONFIG: a format without preferences; otherwise as trainer_run. */
Status reward_training_run(const TrainingConfig *config, TrainResult *result);

/* Appends Python code that computes the same scores, for a reward model of pairs. config: of the base model */
void reward_use(const Recipe *recipe, const ModelConfig *config, Str *text);

/* Settings for evaluating a reward model on a file of pairs or steps. */
typedef struct RewardEvaluation {
    const Model *model;         /* with a score */
    const Tokenizer *tokenizer; /* NULL: rows of ids alone */
    const Chat *chat;
    const char *data;
    int64_t max_length;
    const char *truncation;
    const char *as;                                            /* data.as */
    bool at_turn;                                              /* see Scorer */
    const char *system;                                        /* system message of conversations without one; NULL = none */
    void (*on_progress)(void *context, size_t done, size_t n); /* may be NULL */
    void (*say)(void *context, const char *text);              /* called with the rows that are left out and the reason; may be NULL */
    void *context;
} RewardEvaluation;
/* Evaluates. *stepwise: whether the rows had steps. ST_INPUT, ST_RESOURCE, ST_INTERRUPTED. */
Status reward_evaluate(const RewardEvaluation *config, RewardNumbers *numbers, bool *stepwise);

#endif
