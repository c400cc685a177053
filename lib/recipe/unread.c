/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that a run does not read: an error or a warning, instead of silence. */
#include "lib/base/log.h"
#include "lib/recipe/recipe.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static Status is_default(const Recipe *recipe, const char *key, bool *same) {
    Recipe *defaults;
    TRY(recipe_read(NULL, NULL, 0, &defaults));
    *same = recipe_same(recipe, defaults, key);
    recipe_free(defaults);
    return ST_OK;
}

static bool is_typed(const Recipe *recipe, const char *key) { return recipe_given(recipe, key) && recipe_line(recipe, key) == 0; }

static Status say_unread(const Recipe *recipe, const char *key, const char *hint, const char *what) {
    if (is_typed(recipe, key)) return status_hint(status_fail(ST_CONFIG, "'%s' %s", key, what), "%s", hint);
    log_message(LOG_WARNING, "'%s' line %d: '%s' %s; %s", recipe->path, recipe_line(recipe, key), key, what, hint);
    return ST_OK;
}

Status recipe_unread(const Recipe *recipe, const char *dotted_key, const char *hint, const char *format, ...) {
    bool same = true;
    if (recipe_given(recipe, dotted_key)) TRY(is_default(recipe, dotted_key, &same));
    if (same) return ST_OK;
    char what[512];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    return say_unread(recipe, dotted_key, hint, what);
}

Status recipe_check_batches(const Recipe *recipe) {
    static const char key[] = "train.batch_size", hint[] = "leave it out, or count rows: train.batch_tokens=null";
    if (recipe->train_batch_tokens <= 0) return ST_OK;
    Str what = {0};
    str_printf(&what, "does nothing with 'train.batch_tokens: %lld', which fills batches by tokens", (long long)recipe->train_batch_tokens);
    Status status = is_typed(recipe, key) ? say_unread(recipe, key, hint, str_text(&what)) : recipe_unread(recipe, key, hint, "%s", str_text(&what));
    str_release(&what);
    return status;
}
