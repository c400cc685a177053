/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer and the chat template of a run on text, and the date on which it began. */
#ifndef TUNE_RUN_CHAT_H
#define TUNE_RUN_CHAT_H

#include "data/data.h"

/* Opens both for the recipe's model (*tokenizer NULL: it has none). Where the template writes the date and data.now is null, *recipe becomes `dated`:
 * the same recipe with the date on which the run began, which the run stores and uses when it is resumed (recipe_day). `dated` must live as long as
 * the run. The caller closes both in any case. Returns errors of the tokenizer, the template and the run's own recipe. */
Status run_chat_open(const Recipe **recipe, bool resume, Recipe *dated, Tokenizer **tokenizer, Chat **chat);

#endif
