/* SPDX-License-Identifier: Apache-2.0 */
/* What is shown of a run, by whichever command it is. */
#ifndef TUNE_TRAIN_SHOW_H
#define TUNE_TRAIN_SHOW_H

#include "cmd/common/recipe_command.h"
#include "data/data.h"
#include "lib/train/train.h"

enum { NOT_PLANNED = -1 }; /* a number that a kind of run does not know before it begins */
/* tokens, trained_tokens, largest_batch_tokens: may be NOT_PLANNED. */
typedef struct TrainPlan {
    int64_t rows, tokens, trained_tokens, eval_rows, steps, largest_batch_tokens, parameters, trained_parameters;
    DType compute;
    const TrainMemory *memory;
    const Model *model; /* that is trained */
} TrainPlan;
/* With --json a dry run's plan as an object. */
void print_training_plan(const RecipeCommand *job, const TrainPlan *plan);
/* A line on the form of rows that are none of ours, and one on how those of plain texts are read, where there are any. */
void show_plain_rows(const Dataset *rows);
/* What a run will take, by its parts. */
void show_memory(const TrainMemory *memory);
/* Prints the model, how much of it is trained and how, the layers of the adapter, unused tensors that are kept, and the planned memory by parts.
 * with: what else is trained, as " and ...", or "". */
void show_training_model(const Recipe *recipe, const TrainPlan *plan, const char *with);
/* context: the recipe. A held-out loss, or the live line with its curve. */
void show_training_step(void *context, const Progress *progress);
/* What a run leaves in its output: "adapter" or "model". */
const char *trained_part(const Recipe *recipe);
/* How every run ends on the screen: with --json the result, an object in `w` that is ended and released here. false when the run was finished before,
 * which is said then: there is nothing to add. */
bool show_run_end(const Command *command, const Recipe *recipe, JsonWriter *w, bool already_finished);
/* What can be done with what was trained, as commands that can be pasted; asks: it was trained on conversations, so that it is talked to. */
void show_next_use(const Recipe *recipe, bool asks);
bool first_row_is_conversation(const Recipe *recipe); /* the first row of data.train is a conversation, or data.as makes it one */
/* The model as tune generate and tune chat take it: "MODEL --adapter RUN/adapter" or "RUN/model", quoted for a shell. */
void append_trained(Str *text, const Recipe *recipe);
/* With --json the result as an object; in words what came of it and where it is. */
void show_training_result(const Command *command, const Recipe *recipe, const TrainResult *result);

#endif
