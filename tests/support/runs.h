/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of the tests of runs: makes a recipe from lines of settings, and reads the metrics that a run wrote.
 *
 *     Recipe *recipe = recipe_of_lines("model.path=recipes/demo/model\noutput=%s\ntrain.max_steps=%d", temp_file(folder, "a"), 5);
 *     check_ok(sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, &result));
 *     assert_int_equal(metrics_read(temp_file(folder, "a"), "loss", losses, 8), 5);
 *     recipe_free(recipe);
 */
#ifndef TUNE_RUNS_H
#define TUNE_RUNS_H

#include "lib/train/train.h"

/* Makes a recipe from settings "key=value", one a line; later ones win. Fails the test if one is refused. The caller calls recipe_free. */
Recipe *recipe_of_lines(const char *format, ...) PRINTF_LIKE(1, 2);
Runtime runtime_of(const Recipe *recipe); /* the CPU, with the recipe's model.compute */
/* Reads the values of a key in run_dir/metrics.jsonl in order, at most `cap`. Skips rows without the key; null is NaN. Returns their number. */
size_t metrics_read(const char *run_dir, const char *key, double *values, size_t cap);
/* Appends run_dir/metrics.jsonl without times and with sorted keys, which is equal for two equal runs. */
void metrics_text(const char *run_dir, Str *text);
/* Fails unless `file` of the runs a and b, both in `dir`, has the same bytes. */
void check_same_file(const char *dir, const char *a, const char *b, const char *file);

#endif
