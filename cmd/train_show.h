/* What is shown of a run of the trainer, by whichever command it is. */
#ifndef TUNE_TRAIN_SHOW_H
#define TUNE_TRAIN_SHOW_H

#include "cmd/cmd.h"
#include "lib/train/train.h"

/* The planned memory by its parts, a line. */
void show_training_memory(const TrainMemory *memory);
/* With --json a dry run's plan as an object. tokens, trained_tokens: -1 = not known before the run. */
typedef struct TrainPlan { int64_t rows, tokens, trained_tokens, eval_rows, steps, largest_batch_tokens, parameters, trained_parameters; DType compute; const TrainMemory *memory; } TrainPlan;
void print_training_plan(const RecipeCommand *job, const TrainPlan *plan);
/* context: the recipe. A held-out loss, or the live line with its curve. */
void show_training_step(void *context, const Progress *progress);
/* With --json the result as an object; in words what came of it and where it is. */
void show_training_result(const Command *command, const Recipe *recipe, const TrainResult *result);

#endif
