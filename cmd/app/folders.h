/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of the program and the folders of its recipes. */
#ifndef TUNE_FOLDERS_H
#define TUNE_FOLDERS_H

#include "lib/base/file.h"

/* *folder: the folder of the running program, in the arena; NULL if the system does not report it. */
Status program_folder(Arena *arena, const char **folder);
/* The folders that may hold the shipped recipes, in search order. */
enum { RECIPE_FOLDERS = 3 };
Status recipe_folders(Arena *arena, const char *folders[RECIPE_FOLDERS], size_t *n);

#endif
