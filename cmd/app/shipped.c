/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the recipes that come with the program by name. */
#include "cmd/app/shipped.h"

#include <string.h>

bool shipped_has(const Shipped *found, const char *name) {
    for (size_t i = 0; i < found->n; i++)
        if (!strcmp(found->names[i], name)) return true;
    return false;
}

static Status add_name(Shipped *found, char *name) {
    char **grown = arena_alloc(found->arena, (found->n + 1) * sizeof *grown);
    if (!grown || !name) return ST_RESOURCE;
    if (found->n) memcpy(grown, found->names, found->n * sizeof *grown);
    grown[found->n++] = name;
    found->names = grown;
    return ST_OK;
}

static Status list_folder(Shipped *found, const char *folder, const char *prefix, int depth) {
    char **files;
    size_t n;
    if (!dir_exists(folder)) return ST_OK;
    TRY(dir_list(folder, found->arena, &files, &n));
    for (size_t i = 0; i < n; i++) {
        const char *path = path_join(found->arena, folder, files[i]);
        char *name = arena_printf(found->arena, "%s%s", prefix, files[i]);
        if (!path || !name) return ST_RESOURCE;
        if (dir_exists(path)) {
            const char *below = arena_printf(found->arena, "%s/", name);
            if (!below) return ST_RESOURCE;
            if (depth > 0) TRY(list_folder(found, path, below, depth - 1));
        } else if (text_ends_with(name, ".yaml")) {
            name[strlen(name) - strlen(".yaml")] = '\0';
            if (!shipped_has(found, name)) TRY(add_name(found, name));
        }
    }
    return ST_OK;
}

Status shipped_find(Shipped *found) {
    TRY(recipe_folders(found->arena, found->roots, &found->n_roots));
    for (size_t i = 0; i < found->n_roots; i++) TRY(list_folder(found, found->roots[i], "", 2));
    if (found->n > 0) return ST_OK;
    status_fail(ST_CONFIG, "no recipes found in ./recipes, in the program's folder or in share/tune/recipes");
    return status_hint(ST_CONFIG, "make install PREFIX=DIR puts them where the program looks");
}

Status shipped_read(const Shipped *found, const char *name, Str *text, const char **root) {
    for (size_t i = 0; i < found->n_roots; i++) {
        const char *path = arena_printf(found->arena, "%s/%s%s", found->roots[i], name, text_ends_with(name, ".yaml") ? "" : ".yaml");
        if (!path) return ST_RESOURCE;
        if (root) *root = found->roots[i];
        if (file_exists(path)) return file_read(path, 1 << 20, text);
    }
    status_fail(ST_CONFIG, "no recipe '%s'", name);
    return status_hint_nearest(ST_CONFIG, name, (const char *const *)found->names, found->n, "tune recipes ls lists them");
}

void shipped_place(const Shipped *found, const char *root, Str *text) {
    static const char here[] = "recipes/";
    Str placed = {0};
    bool comment = false;
    for (const char *at = str_text(text), *begin = at; *at; at++) {
        if (at == begin || at[-1] == '\n') comment = *at == '#';
        size_t len = strcspn(at, " ,]}\"'\n");
        bool word = !comment && at > begin && strchr(" [{\"'", at[-1]) && text_starts_with(at, here);
        const char *path = word ? arena_printf(found->arena, "%s/%.*s", root, (int)(len - strlen(here)), at + strlen(here)) : NULL;
        if (path && (file_exists(path) || dir_exists(path))) {
            str_append_yaml(&placed, path);
            at += len - 1;
        } else {
            str_append_char(&placed, *at);
        }
    }
    str_release(text);
    *text = placed;
}

Status recipe_names(Arena *arena, TextList *names) {
    Shipped found = {.arena = arena};
    TRY(shipped_find(&found));
    *names = (TextList){found.n, (const char **)found.names};
    return ST_OK;
}

Status recipe_shipped(Arena *arena, const char *name, Str *text, const char **path) {
    Shipped found = {.arena = arena};
    const char *root = NULL;
    *path = NULL;
    if (shipped_find(&found) != ST_OK) return ST_OK; /* no recipes are shipped, so the name is not one */
    char *plain = arena_strdup(arena, name);
    if (!plain) return ST_RESOURCE;
    if (text_ends_with(plain, ".yaml")) plain[strlen(plain) - strlen(".yaml")] = '\0';
    if (!shipped_has(&found, plain)) return ST_OK;
    TRY(shipped_read(&found, plain, text, &root));
    if (strcmp(root, found.roots[0]) != 0) shipped_place(&found, root, text);
    *path = arena_printf(arena, "%s/%s.yaml", root, plain);
    return *path ? ST_OK : ST_RESOURCE;
}
