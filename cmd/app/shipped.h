/* SPDX-License-Identifier: Apache-2.0 */
/* The recipes that come with the program. */
#ifndef TUNE_SHIPPED_H
#define TUNE_SHIPPED_H

#include "cmd/app/folders.h"
#include "lib/base/str.h"
#include "lib/recipe/recipe.h"

/* Reads the shipped recipe `name`; paths in it are rewritten by shipped_place. *path: its file, in the arena; NULL if there is no such recipe. */
Status recipe_shipped(Arena *arena, const char *name, Str *text, const char **path);
Status recipe_names(Arena *arena, TextList *names); /* the names of all shipped recipes, as tune recipes ls lists them */

typedef struct Shipped {
    Arena *arena; /* set by the caller; owns all that follows */
    const char *roots[RECIPE_FOLDERS];
    size_t n_roots;
    char **names; /* paths relative to a root, without .yaml, sorted */
    size_t n;
} Shipped;
Status shipped_find(Shipped *found); /* lists all shipped recipes; ST_CONFIG if there are none */
bool shipped_has(const Shipped *found, const char *name);
/* Appends the text of the recipe `name`. *root (may be NULL): the folder where it was found. ST_CONFIG if there is none; the hint is the nearest
 * name. */
Status shipped_read(const Shipped *found, const char *name, Str *text, const char **root);
/* Rewrites each scalar recipes/FILE in the text (a program or a prompt) to the file's path under `root`, if that file exists. */
void shipped_place(const Shipped *found, const char *root, Str *text);

#endif
