/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of section train that belong to some values of another key: said where they are given with others. */
#include "lib/train/train.h"

#include <stdio.h>
#include <string.h>

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
