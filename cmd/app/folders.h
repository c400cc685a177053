/* SPDX-License-Identifier: Apache-2.0 */
/* Where the program is, and what comes with it. */
#ifndef TUNE_FOLDERS_H
#define TUNE_FOLDERS_H

#include "lib/base/file.h"

/* Of the program that runs; NULL when the system does not say. */
Status program_folder(Arena *arena, const char **folder);
/* Where the recipes that come with the program may be, in order. */
enum { RECIPE_FOLDERS = 3 };
Status recipe_folders(Arena *arena, const char *folders[RECIPE_FOLDERS], size_t *n);

#endif
