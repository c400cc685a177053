/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the folder of the program and the folders of its recipes. */
#include <string.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

#include "cmd/app/folders.h"

/* The path of this program; empty if the system does not tell it. */
static void own_path(char *path, size_t size) {
#ifdef __APPLE__
    uint32_t room = (uint32_t)size;
    if (_NSGetExecutablePath(path, &room) != 0) path[0] = '\0';
#else
    ssize_t len = readlink("/proc/self/exe", path, size - 1);
    path[len > 0 ? len : 0] = '\0';
#endif
}

Status program_folder(Arena *arena, const char **folder) {
    char self[4096];
    own_path(self, sizeof self);
    char *slash = strrchr(self, '/');
    *folder = slash ? arena_strndup(arena, self, (size_t)(slash - self)) : NULL;
    return !slash || *folder ? ST_OK : ST_RESOURCE;
}

/* ./recipes, then recipes/ in the program's folder, then the folder that `make install` fills. */
Status recipe_folders(Arena *arena, const char *folders[RECIPE_FOLDERS], size_t *n) {
    const char *self;
    TRY(program_folder(arena, &self));
    *n = 0;
    folders[(*n)++] = "recipes";
    if (!self) return ST_OK;
    const char *near = path_join(arena, self, "recipes"), *shared = path_join(arena, self, "../share/tune/recipes");
    if (!near || !shared) return ST_RESOURCE;
    folders[(*n)++] = near;
    folders[(*n)++] = shared;
    return ST_OK;
}
