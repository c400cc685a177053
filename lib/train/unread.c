/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that a run does not read: said, not passed over. */
#include "lib/base/log.h"
#include "lib/train/train.h"

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

/* ---- keys of section train that belong to some values of another key ---- */

typedef struct Chooser {
    const char *key;
    const char *(*at)(size_t i, const char **keys); /* its values with the keys that each reads; NULL behind the last */
} Chooser;

static const char *an_optimizer(size_t i, const char **keys) {
    const OptimizerInfo *info = optimizer_at(i);
    if (info) *keys = info->keys;
    return info ? info->name : NULL;
}

/* `key`, where `chosen` does not read it: who does is the hint. */
static Status check_key(const Recipe *recipe, const Chooser *chooser, const char *chosen, const char *key) {
    Str dotted = {0}, hint = {0};
    const char *name, *keys;
    bool read = false;
    str_printf(&dotted, "train.%s", key);
    str_printf(&hint, "it belongs to %s:", chooser->key);
    for (size_t i = 0; (name = chooser->at(i, &keys)); i++) {
        if (!text_among(keys, ' ', key)) continue;
        read = read || strcmp(name, chosen) == 0;
        str_printf(&hint, "%s %s", text_ends_with(str_text(&hint), ":") ? "" : ",", name);
    }
    Status status = ST_OK;
    if (!read) status = recipe_unread(recipe, str_text(&dotted), str_text(&hint), "does nothing with '%s: %s'", chooser->key, chosen);
    str_release(&dotted);
    str_release(&hint);
    return status;
}

/* A key that several read is looked at once. */
static size_t first_to_list(const Chooser *chooser, const char *key) {
    const char *keys;
    size_t i = 0;
    while (chooser->at(i, &keys) && !text_among(keys, ' ', key)) i++;
    return i;
}

static Status check_chooser(const Recipe *recipe, const Chooser *chooser, const char *chosen) {
    const char *keys;
    Slice word;
    for (size_t i = 0; chooser->at(i, &keys); i++)
        while (text_next(&keys, ' ', &word)) {
            char key[64];
            snprintf(key, sizeof key, "%.*s", (int)word.len, word.data);
            if (first_to_list(chooser, key) == i) TRY(check_key(recipe, chooser, chosen, key));
        }
    return ST_OK;
}

Status recipe_check_choices(const Recipe *recipe) {
    if (recipe->has_lora)
        TRY(recipe_unread(recipe, "train.save_dtype", "leave it out: adapters are stored in f32", "does nothing with a 'lora' section"));
    TRY(check_chooser(recipe, &(Chooser){"train.optimizer", an_optimizer}, recipe->train_optimizer));
    return check_chooser(recipe, &(Chooser){"train.lr_scheduler", schedule_at}, recipe->train_lr_scheduler);
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
