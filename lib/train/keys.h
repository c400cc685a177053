/* SPDX-License-Identifier: Apache-2.0 */
/* The table of recipe keys as data, for recipe.c (reading), recipe_text.c (writing), and whoever lists keys. */
#ifndef TUNE_KEYS_H
#define TUNE_KEYS_H

#include "lib/train/train.h"

typedef enum KeyType { KEY_INT, KEY_REAL, KEY_BOOL, KEY_TEXT, KEY_CHOICE, KEY_LIST, KEY_REALS, KEY_MAP, KEY_NODE } KeyType;
/* A line of config.def. Every field of Recipe that a key has lies at `offset`. */
typedef struct Key {
    const char *section; /* "" for the top level */
    const char *name;
    const char *dotted; /* "lora.rank" */
    KeyType type;
    const char *fallback, *low, *high, *choices, *help;
    size_t offset;
} Key;
extern const Key recipe_keys[];
extern const size_t n_recipe_keys;
typedef struct KeySection {
    const char *name;
    size_t has_offset;
    const char *help;
} KeySection; /* has_offset: of Recipe's `has_...` */
extern const KeySection recipe_sections[];
extern const size_t n_recipe_sections;

const Key *key_find(const char *dotted); /* NULL when unknown */
static inline void *key_field(const Recipe *recipe, const Key *key) { return (char *)recipe + key->offset; }
bool section_present(const Recipe *recipe, const char *section); /* true for the top level */

/* The words of "a|b|c": for (Slice word; choice_next(&choices, &word);) */
bool choice_next(const char **choices, Slice *word);
void key_describe(const Key *key, Str *text); /* its help with choices and range, in one line */

#endif
