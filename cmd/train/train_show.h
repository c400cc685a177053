/* SPDX-License-Identifier: Apache-2.0 */
/* Output that the commands that train have in common. */
#ifndef TUNE_TRAIN_SHOW_H
#define TUNE_TRAIN_SHOW_H

#include "cmd/common/recipe_command.h"
#include "data/data.h"
#include "lib/train/train.h"

enum { NOT_PLANNED = -1 }; /* a number that this kind of run does not know before it begins */
/* tokens, trained_tokens and largest_batch_tokens may be NOT_PLANNED. */
typedef struct TrainPlan {
    int64_t rows, tokens, trained_tokens, eval_rows, steps, largest_batch_tokens, parameters, trained_parameters;
    DType compute;
    const TrainMemory *memory;
    const Model *model; /* the trained one */
} TrainPlan;
/* With --json, prints the plan of a dry run as an object. */
void print_training_plan(const RecipeCommand *job, const TrainPlan *plan);
/* Prints how the format of the rows was recognized, if it is another program's, and how rows of plain text are read, if there are any. */
void show_plain_rows(const Dataset *rows);
/* Prints the planned memory of a run by parts. */
void show_memory(const TrainMemory *memory);
/* Prints the model, the number of trained parameters, the layers of the adapter, unused tensors that are kept, and the planned memory by parts.
 * with: what else is trained, as " and ...", or "". */
void show_training_model(const Recipe *recipe, const TrainPlan *plan, const char *with);
/* A progress callback; context is the recipe. Prints a held-out loss, or updates the live line and its curve. */
void show_training_step(void *context, const Progress *progress);
/* The folder of the result in a run's output: "adapter" or "model". */
const char *trained_part(const Recipe *recipe);
/* Called at the end of every run. With --json, ends the object in `w` and prints it; always releases `w`. Returns false if the run had been
 * finished before, after printing that: the caller prints no more. */
bool show_run_end(const Command *command, const Recipe *recipe, JsonWriter *w, bool already_finished);
/* Prints the next commands to use the result, ready to paste. asks: it was trained on conversations, so tune chat is suggested. */
void show_next_use(const Recipe *recipe, bool asks);
bool first_row_is_conversation(const Recipe *recipe); /* the first row of data.train is a conversation, or data.as makes it one */
/* Appends the arguments that open the result in tune generate and tune chat: "MODEL --adapter RUN/adapter" or "RUN/model", quoted for a shell. */
void append_trained(Str *text, const Recipe *recipe);
/* Prints the result and where it is; with --json as an object. */
void show_training_result(const Command *command, const Recipe *recipe, const TrainResult *result);

#endif
