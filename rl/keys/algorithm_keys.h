/* SPDX-License-Identifier: Apache-2.0 */
/* Which recipe keys an algorithm reads. Each algorithm lists them next to its name (Algorithm.keys, TextAlgorithm.keys, a line of
 * pair_algorithms.def), separated by blanks; keys of section rl are written without the section.
 *
 *     .keys = KEYS_OF_ROLLOUTS "clip clip_value target_kl",
 *
 * A key of the sections rl, policy and train that the algorithm does not read has no effect and is an error. Keys of other sections may be there for
 * another command that shares the file: those without an effect get a warning.
 */
#ifndef TUNE_ALGORITHM_KEYS_H
#define TUNE_ALGORITHM_KEYS_H

#include "lib/train/train.h"

/* Checks a recipe of tune rl. ST_CONFIG names the first key whose value is not the default and that the algorithm does not read, and the algorithms
 * that do; likewise a key that has no effect given the other keys. It compares values, since the recipe of a run contains every key. An unknown
 * algorithm passes: opening it reports the error. */
Status rl_check_keys(const Recipe *recipe);
/* For help: kind `kind` (from 0) of algorithms, such as "on environments" or "on text", and algorithm i of that kind; NULL after the last. */
const char *algorithm_kind(size_t kind);
const char *algorithm_of_kind(size_t kind, size_t i);
/* Whether the algorithm reads the key; own: count only keys that not all algorithms of the kind read. */
bool algorithm_reads(size_t kind, const char *algorithm, const char *dotted_key, bool own);
void algorithms_reading(const char *dotted_key, Str *text); /* appends "all algorithms on text; ppo on environments" */
/* The part of rl_check_keys about keys that have no effect given the other keys, see recipe_unread. ST_CONFIG. */
Status idle_keys_check(const Recipe *recipe);

#endif
