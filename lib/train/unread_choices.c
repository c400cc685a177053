/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of section train that only some values of another key use, given with a value that does not. */
#include "lib/train/train.h"

#include <stdio.h>
#include <string.h>

typedef struct Chooser {
    const char *key;
    const char *(*at)(size_t i, const char **keys); /* the key's values with the keys that each reads; NULL after the last */
} Chooser;

static const char *an_optimizer(size_t i, const char **keys) {
    const OptimizerInfo *info = optimizer_at(i);
    if (info) *keys = info->keys;
    return info ? info->name : NULL;
}

/* Reports `key` if `chosen` does not read it; the hint names the values that do. */
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

/* A key that several values read is checked once. */
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
    if (recipe->model_activations != MODEL_ACTIVATIONS_EXACT) {
        status_fail(ST_CONFIG, "'model.activations: int8' rounds what gradients are computed from, and training needs exact products");
        return status_hint(ST_CONFIG, "leave it out; tune chat, generate, score and serve have --activations int8 for the trained model");
    }
    if (recipe->parallel_reduce_dtype == PARALLEL_REDUCE_DTYPE_BF16 &&
        (recipe->parallel_reduce == PARALLEL_REDUCE_RING || recipe->parallel_reduce == PARALLEL_REDUCE_MPI)) {
        status_fail(ST_CONFIG, "'parallel.reduce_dtype: bf16' rounds once, and 'parallel.reduce: %s' passes sums from process to process",
                    comm_reduce_word((CommReduce)recipe->parallel_reduce));
        return status_hint(ST_CONFIG, "parallel.reduce=tree");
    }
    if (recipe->has_lora)
        TRY(recipe_unread(recipe, "train.save_dtype", "leave it out: adapters are stored in f32", "does nothing with a 'lora' section"));
    TRY(check_chooser(recipe, &(Chooser){"train.optimizer", an_optimizer}, recipe->train_optimizer));
    return check_chooser(recipe, &(Chooser){"train.lr_scheduler", schedule_at}, recipe->train_lr_scheduler);
}
