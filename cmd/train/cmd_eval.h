/* SPDX-License-Identifier: Apache-2.0 */
/* What tune eval asks: each evaluation runs and shows what it found. */
#ifndef TUNE_CMD_EVAL_H
#define TUNE_CMD_EVAL_H

#include "cmd/common/open.h"

typedef struct Eval {
    const char *adapter, *compute, *data;
    ChatChoice chat;
    DataConfig config;
    bool exact_match;
    bool sample, watch;
    int64_t episodes, seed; /* of a run on an environment */
} Eval;
Status eval_rows(const Command *command, const Eval *job);        /* a language model, on rows: loss, tokens and answers guessed right */
Status eval_reward(const Command *command, const Eval *job);      /* a reward model, on rows of pairs or steps */
Status eval_environment(const Command *command, const Eval *job); /* a run on an environment of states and actions: episodes */
Status eval_turns(const Command *command, const Eval *job);       /* a run on an environment of texts: episodes */
Status eval_prompts(const Command *command, const Eval *job);     /* a run on prompts: what its best answers earn */

#endif
