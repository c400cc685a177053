/* SPDX-License-Identifier: Apache-2.0 */
/* The evaluations of tune eval. Each runs and prints its results. */
#ifndef TUNE_CMD_EVAL_H
#define TUNE_CMD_EVAL_H

#include "cmd/common/open.h"

typedef struct Eval {
    const char *adapter, *compute, *data;
    ChatChoice chat;
    DataConfig config;
    bool exact_match;
    bool sample, watch;
    int64_t episodes, seed; /* for a run in an environment */
} Eval;
Status eval_rows(const Command *command, const Eval *job);        /* a language model, on rows: loss, share of correct tokens and answers */
Status eval_reward(const Command *command, const Eval *job);      /* a reward model, on rows of pairs or steps */
Status eval_environment(const Command *command, const Eval *job); /* a run in an environment of states and actions: episodes */
Status eval_turns(const Command *command, const Eval *job);       /* a run in an environment of texts: episodes */
Status eval_prompts(const Command *command, const Eval *job);     /* a run on prompts: rewards of greedy answers */

#endif
