/* SPDX-License-Identifier: Apache-2.0 */
/* Values that follow from several keys together, and values that a resumed run takes from its kept recipe. */
#include "lib/base/file.h"
#include "lib/base/log.h"
#include "lib/recipe/recipe.h"

#include <math.h>
#include <string.h>
#include <time.h>

static Status check_steps_or_share(const char *key, double given) {
    if (isnan(given) || given < 1 || (given == floor(given) && given <= 1e15)) return ST_OK;
    return status_fail(ST_CONFIG, "wrong value %g for '%s': expected a whole number of steps up to 1e15, or a fraction below 1", given, key);
}

Status recipe_check_schedule(const Recipe *recipe) {
    TRY(check_steps_or_share("train.warmup_steps", recipe->train_warmup_steps));
    return check_steps_or_share("train.lr_decay_steps", recipe->train_lr_decay_steps);
}

Status recipe_check_steps(const Recipe *recipe, int64_t total_steps) {
    if (total_steps > 0) return ST_OK;
    status_fail(ST_CONFIG, "'train.epochs: %g' gives no step", recipe->train_epochs);
    return status_hint(ST_CONFIG, "raise it, or set train.max_steps; if rows were left out, tune data check says why");
}

const Yaml *recipe_eval_rows(const Recipe *recipe, const char **key) {
    *key = recipe->data_eval ? "data.eval" : "eval.data";
    return recipe->data_eval ? recipe->data_eval : recipe->eval_data;
}

void recipe_warn_eval_every(const Recipe *recipe) {
    const char *key;
    if (recipe->train_eval_every == 0 || recipe_eval_rows(recipe, &key) || recipe->data_eval_split > 0) return;
    log_message(LOG_WARNING, "'train.eval_every' does nothing: there is neither 'data.eval' nor 'data.eval_split'");
}

/* ---- values for the chat template ---- */

Status recipe_template_kwargs(const Recipe *recipe, json_t **values) {
    const Yaml *given = recipe->data_template_kwargs;
    *values = given && given->n > 0 ? yaml_to_json(given) : NULL;
    return given && given->n > 0 && !*values ? status_fail(ST_RESOURCE, "out of memory for 'data.template_kwargs'") : ST_OK;
}

/* ---- the day ---- */

static Status kept_day(const Recipe *recipe, const char **day) {
    const char *path = path_join(recipe->arena, recipe->output, "recipe.yaml");
    Recipe *kept;
    if (!path) return ST_RESOURCE;
    if (!file_exists(path)) return ST_OK;
    TRY(recipe_read(path, NULL, 0, &kept));
    bool dated = kept->data_now != NULL;
    if (dated) *day = arena_strdup(recipe->arena, kept->data_now);
    recipe_free(kept);
    return dated && !*day ? ST_RESOURCE : ST_OK;
}

Status recipe_day(const Recipe *recipe, bool resume, const char **day) {
    char today[32];
    struct tm parts;
    time_t now = time(NULL);
    *day = NULL;
    if (resume && recipe->output) TRY(kept_day(recipe, day));
    if (*day) return ST_OK;
    strftime(today, sizeof today, "%Y-%m-%d", localtime_r(&now, &parts));
    *day = arena_strdup(recipe->arena, today);
    return *day ? ST_OK : ST_RESOURCE;
}

Recipe recipe_dated(const Recipe *recipe, const char *day) {
    Recipe dated = *recipe;
    dated.has_data = true; /* otherwise its directory would not keep the day: runs on an environment may have no data section */
    dated.data_now = day;
    return dated;
}

/* ---- keys added later ---- */

void recipe_set_old_defaults(Recipe *kept) {
    if (!recipe_given(kept, "data.as")) kept->data_as = DATA_AS_TEXT;
    if (!recipe_given(kept, "parallel.lanes")) kept->parallel_lanes = "1";
}

static bool adds_in_order(const Recipe *recipe) {
    return recipe->parallel_reduce == PARALLEL_REDUCE_TREE || recipe->parallel_reduce == PARALLEL_REDUCE_MASTER;
}

/* parallel.reduce, and what it adds, may change from run to run. */
static void warn_of_other_sums(const Recipe *kept, const Recipe *recipe) {
    const bool order = adds_in_order(kept) && adds_in_order(recipe), dtype = kept->parallel_reduce_dtype != recipe->parallel_reduce_dtype;
    if (dtype || (!order && kept->parallel_reduce != recipe->parallel_reduce))
        log_message(LOG_WARNING, "'parallel.%s' has changed: results of several processes from here on differ in rounding",
                    dtype ? "reduce_dtype" : "reduce");
}

Status recipe_adopt_defaults_of_run(Recipe *recipe) {
    const char *path = recipe->output ? path_join(recipe->arena, recipe->output, "recipe.yaml") : NULL;
    Recipe *kept;
    if (!path || !file_exists(path)) return recipe->output && !path ? ST_RESOURCE : ST_OK;
    TRY(recipe_read(path, NULL, 0, &kept));
    recipe_set_old_defaults(kept);
    if (!recipe_given(kept, "data.as") && recipe->data_as == DATA_AS_AUTO) recipe->data_as = kept->data_as;
    if (!recipe_given(kept, "parallel.lanes") && !recipe_given(recipe, "parallel.lanes")) recipe->parallel_lanes = "1";
    if (strcmp(kept->parallel_lanes, recipe->parallel_lanes) != 0)
        log_message(LOG_WARNING, "'parallel.lanes' was %s, now it is %s: results from here on differ in rounding", kept->parallel_lanes,
                    recipe->parallel_lanes);
    warn_of_other_sums(kept, recipe);
    recipe_free(kept);
    return ST_OK;
}
