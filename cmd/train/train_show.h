/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands that train show: the plan, the progress, the result, and what to do with it.
 *
 *     Show show = {.job = job};
 *     TrainResult result = {0};
 *     const TrainingConfig config = show_training(&show);
 *     TRY(sft_run(&config, &result));
 *     if (show_training_result(job, &result, trained_part(job->recipe))) show_next_use(job->recipe, show.conversations);
 */
#ifndef TUNE_TRAIN_SHOW_H
#define TUNE_TRAIN_SHOW_H

#include "cmd/common/recipe_command.h"
#include "lib/train/training.h"

typedef struct Show {
    const RecipeCommand *job;
    bool conversations; /* set by the plan: most rows are conversations */
} Show;
/* The job's recipe and options, with callbacks that print the plan, for a dry run with --json as an object, and update the live line and its curve.
 * Keeps `show`. */
TrainingConfig show_training(Show *show);
/* The folder of the result in a run's output: "adapter" or "model". */
const char *trained_part(const Recipe *recipe);
/* Prints the result; with --json also as an object, with the path of `part` in the run's output; NULL: none. Returns false after a dry run, which has
 * no result, and for a run that was finished before: the caller prints no more. */
bool show_training_result(const RecipeCommand *job, const TrainResult *result, const char *part);
/* Prints the next commands to use the result, ready to paste. asks: it was trained on conversations, so tune chat is suggested. */
void show_next_use(const Recipe *recipe, bool asks);
bool first_row_is_conversation(const Recipe *recipe); /* the first row of data.train is a conversation, or data.as makes it one */
/* Appends the arguments that open the result in tune generate and tune chat: "MODEL --adapter RUN/adapter" or "RUN/model", quoted for a shell. */
void append_trained(Str *text, const Recipe *recipe);

#endif
