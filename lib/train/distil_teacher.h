/* SPDX-License-Identifier: Apache-2.0 */
/* The teacher of a recipe, distil.teacher: a frozen model that reads the same tokens as the trained one. */
#ifndef TUNE_DISTIL_TEACHER_H
#define TUNE_DISTIL_TEACHER_H

#include "lib/model/model.h"
#include "lib/recipe/recipe.h"
#include "lib/text/text.h"
#include "lib/train/run_plan.h"

/* Whether it is a file of log-probabilities (lib/infer/top_file.h) instead of a model. */
bool distil_teacher_is_file(const char *teacher);
/* Loads the teacher on the student's device. comm: the ranks that train together, all of which call it; NULL: one process. tokenizer: the student's;
 * NULL: it has none. Ids that only one of them has may differ, such as added tokens and rows of the embedding without a token. The caller calls
 * model_free, also after a failure, unless *teacher is NULL. ST_CONFIG names the first id that is another token in each, or says that it is a file of
 * log-probabilities; ST_INPUT, ST_RESOURCE: as model_load. */
Status distil_teacher_open(const Recipe *recipe, Comm *comm, const Tokenizer *tokenizer, const Model *student, Model **teacher);
/* Adds a line to the plan: the teacher's path, parameters and bytes. */
void distil_teacher_say(const Recipe *recipe, const Model *teacher, RunPlan *plan);

#endif
