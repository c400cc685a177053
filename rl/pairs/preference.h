/* SPDX-License-Identifier: Apache-2.0 */
/* Learning from preferences: `tune rl` with rl.algorithm dpo, ipo, kto, orpo, simpo or cpo (pair_algorithms.def).
 *
 *     if (preference_algorithm(recipe->rl_algorithm)) TRY(preference_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime}, &result));
 *
 * The reference's log-probabilities are computed once, before the first step, with the initial model (rl/common/reference.h); two answers share the
 * tokens of their prompt, forward and backward.
 */
#ifndef TUNE_PREFERENCE_H
#define TUNE_PREFERENCE_H

#include "rl/pairs/pair_rows.h"
#include "rl/pairs/preference_losses.h"

/* A row of pair_algorithms.def, which explains the fields. */
typedef struct PairAlgorithm {
    const char *name, *losses, *keys, *help;
    double beta;
} PairAlgorithm;
const PairAlgorithm *preference_algorithm(const char *name); /* a row of pair_algorithms.def; NULL: none */
const PairAlgorithm *preference_algorithm_at(size_t i);      /* NULL after the last */
/* Reads the recipe's loss and its settings; *loss NULL: KTO. ST_CONFIG: a loss_type that the algorithm does not have, a beta of 0. */
Status preference_configure(const Recipe *recipe, const PairAlgorithm *algorithm, PreferenceConfig *config, const PreferenceLoss **loss);
/* Runs the training. Writes output/adapter/ or output/model/, metrics.jsonl, checkpoints/. Fails as preference_configure and trainer_run do. */
Status preference_run(const TrainingConfig *config, TrainResult *result);

#endif
