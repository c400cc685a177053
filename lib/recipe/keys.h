/* SPDX-License-Identifier: Apache-2.0 */
/* The table of recipe keys as data, for recipe.c (reading), recipe_text.c (writing) and code that lists keys. */
#ifndef TUNE_KEYS_H
#define TUNE_KEYS_H

#include "lib/recipe/recipe.h"

typedef enum KeyType { KEY_INT, KEY_REAL, KEY_BOOL, KEY_TEXT, KEY_CHOICE, KEY_NAME, KEY_LIST, KEY_REALS, KEY_MAP, KEY_NODE } KeyType;
/* The owner of a key, by which help, schema and docs/recipe-keys.md group the keys of a section. */
typedef enum KeyOwnerId {
#define OWNER(name, title) OWNER_##name,
#include "lib/recipe/owners.def"
#undef OWNER
} KeyOwnerId;
typedef struct KeyOwner {
    const char *name, *title;
} KeyOwner;
extern const KeyOwner recipe_owners[];
extern const size_t n_recipe_owners;
/* A line of config.def. `offset` is that of the key's field in Recipe. */
typedef struct Key {
    const char *section; /* "" for the top level */
    const char *name;
    const char *dotted; /* "lora.rank" */
    KeyType type;
    const char *fallback, *low, *high, *choices, *help;
    KeyOwnerId owner; /* of recipe_owners */
    size_t offset;
} Key;
extern const Key recipe_keys[];
extern const size_t n_recipe_keys;
typedef struct KeySection {
    const char *name;
    size_t has_offset;
    const char *help;
} KeySection; /* has_offset: that of the section's `has_...` field in Recipe */
extern const KeySection recipe_sections[];
extern const size_t n_recipe_sections;

const Key *key_find(const char *dotted); /* NULL when unknown */
const Key *key_in(const char *section, const char *name);
/* The section's next key after `last` (NULL: the first), grouped by owner; NULL: there are no more. */
const Key *key_listed_after(const char *section, const Key *last);
size_t section_owners(const char *section); /* number of owners among its keys */
/* The key, or section, that was probably meant by this name: from another program's name for it, or the nearest name; NULL: none is similar. */
const char *key_suggest(const char *section, const char *name);
const char *key_alias(const char *name);         /* the key to which this name of another program belongs; NULL: none */
void key_aliases(const char *dotted, Str *text); /* appends other programs' names for the key, separated by commas */

/* Unknown keys of a recipe and its overrides, collected so that all are reported at once. Zeroed: none. */
enum { UNKNOWN_TOOLS = 16 };
typedef struct UnknownKeys {
    Failure first, wrong; /* the first unknown key alone; the first value that is wrong */
    Str list;
    size_t n, unlisted, of_tool[UNKNOWN_TOOLS]; /* unlisted: keys that `list` omits; of_tool: unknown keys that each tool of key_aliases.def has */
} UnknownKeys;
/* line 0: on the command line; where: the same for people, as "in 'a.yaml' line 3"; value: the command line's text, NULL from a file. */
void unknown_add(UnknownKeys *unknown, const char *section, const char *name, const char *value, int line, const char *where);
Status unknown_fail(const UnknownKeys *unknown,
                    const char *file); /* ST_CONFIG with all of them and whose file it looks like; ST_OK: there are none */
void unknown_release(UnknownKeys *unknown);
static inline void *key_field(const Recipe *recipe, const Key *key) { return (char *)recipe + key->offset; }
bool section_present(const Recipe *recipe, const char *section); /* whether the section is given; true for the top level */

/* The words of "a|b|c": for (Slice word; choice_next(&choices, &word);) */
bool choice_next(const char **choices, Slice *word);
int key_choice(const Key *key, const char *text); /* the place of `text` among its choices, which is its constant of choices.def; -1: it is none */
void key_describe(const Key *key, Str *text);     /* its help with choices and range, in one line */

#endif
