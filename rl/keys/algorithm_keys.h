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

/* Of tune rl's recipe: ST_CONFIG naming the first key whose value is not the default and that its algorithm does not read, and who does; keys that do
 * nothing as other keys are set. By values, since the recipe of a run spells out every key. An unknown algorithm is left to whoever opens it. */
Status rl_check_keys(const Recipe *recipe);
/* For help: the algorithms `at` place i of what they learn from, `kind` from 0: "on environments", "on text", ...; NULL behind the last. */
const char *algorithm_kind(size_t kind);
const char *algorithm_of_kind(size_t kind, size_t i);
/* Whether it reads the key; own: beside what all of the kind read. */
bool algorithm_reads(size_t kind, const char *algorithm, const char *dotted_key, bool own);
void algorithms_reading(const char *dotted_key, Str *text); /* appends "all algorithms on text; ppo on environments" */
/* The part of rl_check_keys that is about keys that do nothing as other keys are set: see recipe_unread. ST_CONFIG. */
Status idle_keys_check(const Recipe *recipe);

#endif
