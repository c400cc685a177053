/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer and the chat template of a run on text, with the day that it began. */
#ifndef TUNE_RUN_CHAT_H
#define TUNE_RUN_CHAT_H

#include "data/data.h"

/* Opens both as the recipe's model has them (*tokenizer NULL: none). Where the template writes the date and data.now is null, *recipe becomes
 * `dated`: the same with the day that the run began, which a run opened with it keeps and goes by when it is resumed (recipe_day). `dated` lives as
 * long as the run. The caller closes both in any case. Faults of tokenizer, template and the run's own recipe. */
Status run_chat_open(const Recipe **recipe, bool resume, Recipe *dated, Tokenizer **tokenizer, Chat **chat);

#endif
