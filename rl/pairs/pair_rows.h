/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of objectives on preferences: `tune rl` with a preference loss, and `tune reward`. */
#ifndef TUNE_PAIR_ROWS_H
#define TUNE_PAIR_ROWS_H

#include "lib/train/trainer.h"
#include "rl/pairs/pairs.h"

/* The rows of an objective, and how it reads them. */
typedef struct PairRows {
    const char *reader;      /* for messages: "algorithm 'dpo'" */
    bool unpaired, stepwise; /* unpaired: rows of one answer (KTO); stepwise: rows of one answer in steps */
    /* opened */
    Pairs *train, *eval; /* eval NULL: none */
    bool at_turn;        /* see PairSource: continues a run that began this way */
    /* of one batch */
    PairBatch batch;
} PairRows;
/* For Objective.open: reads the recipe's rows and says in the plan what they are. The objective calls pair_rows_release in any case. ST_CONFIG,
 * ST_INPUT, ST_RESOURCE. */
Status pair_rows_open(Trainer *trainer, PairRows *set, RunPlan *plan);
void pair_rows_release(PairRows *set);
static inline const Pairs *pair_rows_set(const PairRows *set, const Pass *pass) { return pass->held_out ? set->eval : set->train; }
/* Number of the n > 0 rows that fit into a pass outside the steps: as many as a batch, or a part of one, may have. other_rows: as in
 * PairBatchOptions. *tokens: their number of tokens; may be NULL. */
size_t pair_rows_fit(const Trainer *trainer, const Pairs *pairs, const size_t *rows, const size_t *other_rows, size_t n, int64_t *tokens);

#endif
