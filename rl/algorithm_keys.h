/* SPDX-License-Identifier: Apache-2.0 */
/* Which keys of a recipe an algorithm reads. Each says so beside its name (Algorithm.keys, TextAlgorithm.keys, a line of pair_algorithms.def): names
 * between blanks, those of section rl without it.
 *
 *     .keys = KEYS_OF_ROLLOUTS "clip clip_value target_kl",
 *
 * A key of the sections rl, policy and train that the algorithm does not read does nothing, and is refused. Those of other sections may be there for
 * another command, which shares the file: a warning says which do nothing.
 */
#ifndef TUNE_ALGORITHM_KEYS_H
#define TUNE_ALGORITHM_KEYS_H

#include "lib/train/train.h"

/* What several read. Each ends with a blank. */
#define KEYS_OF_OPTIMIZER                                                                                                                                   \
    "train.learning_rate train.optimizer train.betas train.eps train.momentum train.weight_decay train.lr_scheduler train.warmup_steps train.min_lr_ratio " \
    "train.lr_num_cycles train.lr_power train.lr_timescale train.lr_decay_steps train.max_grad_norm "
#define KEYS_OF_NETWORKS KEYS_OF_OPTIMIZER "policy.hidden policy.activation policy.orthogonal "
#define KEYS_OF_ROLLOUTS \
    KEYS_OF_NETWORKS "policy.shared policy.log_std_init ent_coef vf_coef normalize_advantage normalize_observations normalize_rewards "
#define KEYS_OF_REPLAY KEYS_OF_NETWORKS "train.batch_size n_step buffer_size learning_starts train_every gradient_steps tau target_every "
#define KEYS_OF_TABLES "initial_value tilings tiles tile_low tile_high "
#define KEYS_OF_EXPLORING "epsilon_start epsilon_end epsilon_fraction epsilon_schedule epsilon_visits "
#define KEYS_OF_STEP_SIZES "alpha alpha_schedule alpha_end alpha_visits "

/* ST_CONFIG naming the first key whose value is not the default and that `algorithm` does not read, and who does. By values, since the recipe of a
 * run spells out every key. */
Status environment_keys_check(const Recipe *recipe, const char *algorithm);
Status text_keys_check(const Recipe *recipe, const char *algorithm);
Status pair_keys_check(const Recipe *recipe, const char *algorithm);
Status offline_keys_check(const Recipe *recipe, const char *algorithm);
/* For help: the algorithms `at` place i of what they learn from, `kind` from 0: "on environments", "on text", ...; NULL behind the last. */
const char *algorithm_kind(size_t kind);
const char *algorithm_of_kind(size_t kind, size_t i);
/* Whether it reads the key; own: beside what all of the kind read. */
bool algorithm_reads(size_t kind, const char *algorithm, const char *dotted_key, bool own);
void algorithms_reading(const char *dotted_key, Str *text); /* appends "all algorithms on text; ppo on environments" */
/* Keys of rl that do nothing as other keys are set: see recipe_unread. ST_CONFIG. */
Status idle_keys_check(const Recipe *recipe);

#endif
