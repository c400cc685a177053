/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of whole runs share: a recipe from lines of settings, and the numbers that a run wrote.
 *
 *     Recipe *recipe = recipe_of_lines("model.path=recipes/demo/model\noutput=%s\ntrain.max_steps=%d", temp_file(folder, "a"), 5);
 *     check_ok(sft_run(&(SftConfig){.recipe = recipe}, &result));
 *     assert_int_equal(metrics_read(temp_file(folder, "a"), "loss", losses, 8), 5);
 *     recipe_free(recipe);
 */
#ifndef TUNE_RUNS_H
#define TUNE_RUNS_H

#include "lib/train/train.h"

/* Settings "key=value", one a line; later ones win. For the caller's recipe_free. A setting that is refused fails the test. */
Recipe *recipe_of_lines(const char *format, ...) PRINTF_LIKE(1, 2);
/* Numbers of one key in run_dir/metrics.jsonl in order, at most `cap` of them; rows without it are left out, null is NaN. Returns how many. */
size_t metrics_read(const char *run_dir, const char *key, double *values, size_t cap);
/* run_dir/metrics.jsonl without the times, keys in order: what two runs that do the same have in common. Appended. */
void metrics_text(const char *run_dir, Str *text);
/* Fails unless `file` of the runs a and b, both in `dir`, has the same bytes. */
void check_same_file(const char *dir, const char *a, const char *b, const char *file);

#endif
