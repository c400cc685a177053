/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks with other weights, tokens or rows than rank 0 would train something that no single process would. */
#ifndef TUNE_RANK_INPUTS_H
#define TUNE_RANK_INPUTS_H

#include "lib/comm/comm.h"
#include "lib/recipe/recipe.h"
#include "lib/run/run.h"

/* Compares the tokenizer of the recipe's model and the inputs of the run with those of rank 0. Does nothing in one process. Fails on all ranks alike,
 * with ST_INPUT: "rank 1 (hostB) has another data.train"; also as comm_wait. */
Status rank_inputs_agree(Comm *comm, const Recipe *recipe, const TaskInput inputs[TASK_MAX_INPUTS]);

#endif
