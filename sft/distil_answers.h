/* SPDX-License-Identifier: Apache-2.0 */
/* distil.loss: sequence: the teacher answers the prompts of the rows, and the student is trained on its answers as in plain training. The teacher may
 * have other tokens and another chat template than the student.
 *
 *     DistilAnswers answers;
 *     TRY(distil_answer(recipe, &config, &answers));          // before the student is opened
 *     recipe_rows_open(&answers.recipe, ...);                 // its data.train are the answers
 */
#ifndef TUNE_DISTIL_ANSWERS_H
#define TUNE_DISTIL_ANSWERS_H

#include "lib/train/training.h"

typedef struct DistilAnswers {
    bool wanted, made; /* by the recipe; made: the file is there */
    const char *path;  /* in the recipe's arena; NULL: the answers are not wanted */
    size_t memory;     /* bytes while the teacher answers; 0: the file was there before */
    Recipe recipe;     /* the recipe with this file as data.train; valid as long as the original */
} DistilAnswers;
/* Lets the teacher answer all prompts, as section `generate` says, and writes answers-HASH.jsonl next to the output: rows of the student's ids, whose
 * trained tokens are the answer. The hash is of teacher, prompts and settings; a file that is there is used, by a resumed run too. A dry run makes
 * none. Ranks divide the prompts; rank 0 writes the file, and each machine without it gets a copy. Frees the teacher. ST_CONFIG: no teacher, keys
 * that do not go with it; ST_INPUT: teacher, rows without a prompt, or other ones than those of rank 0; ST_RESOURCE, ST_INTERRUPTED: no file is
 * left. */
Status distil_answer(const Recipe *recipe, const TrainingConfig *config, DistilAnswers *answers);

#endif
