/* SPDX-License-Identifier: Apache-2.0 */
/* Where the program is, and the recipes that come with it. */
#ifndef TUNE_FOLDERS_H
#define TUNE_FOLDERS_H

#include "lib/base/str.h"
#include "lib/train/train.h"

/* Of the program that runs; NULL when the system does not say. */
Status program_folder(Arena *arena, const char **folder);
/* Where the recipes that come with the program may be, in order. */
enum { RECIPE_FOLDERS = 3 };
Status recipe_folders(Arena *arena, const char *folders[RECIPE_FOLDERS], size_t *n);
/* The text of the one of this name, with the files that it names where they are; *path NULL: there is none. */
Status recipe_shipped(Arena *arena, const char *name, Str *text, const char **path);
Status recipe_names(Arena *arena, TextList *names); /* of what is there, as tune recipes lists it */

#endif
