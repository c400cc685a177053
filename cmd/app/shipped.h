/* SPDX-License-Identifier: Apache-2.0 */
/* The recipes that come with the program. */
#ifndef TUNE_SHIPPED_H
#define TUNE_SHIPPED_H

#include "cmd/app/folders.h"
#include "lib/base/str.h"
#include "lib/recipe/recipe.h"

/* The text of the one of this name, with the files that it names where they are; *path NULL: there is none. */
Status recipe_shipped(Arena *arena, const char *name, Str *text, const char **path);
Status recipe_names(Arena *arena, TextList *names); /* of what is there, as tune recipes lists it */

typedef struct Shipped {
    Arena *arena; /* of all that follows; the caller's */
    const char *roots[RECIPE_FOLDERS];
    size_t n_roots;
    char **names; /* paths below a root, without .yaml, sorted */
    size_t n;
} Shipped;
Status shipped_find(Shipped *found); /* ST_CONFIG: there are none */
bool shipped_has(const Shipped *found, const char *name);
/* The text of a recipe; *root: the folder where it was found, may be NULL. ST_CONFIG with the nearest name. */
Status shipped_read(const Shipped *found, const char *name, Str *text, const char **root);
/* Programs and prompts that the text names as recipes/FILE, a whole scalar each, become paths below `root`, where they are there. */
void shipped_place(const Shipped *found, const char *root, Str *text);

#endif
