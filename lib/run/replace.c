/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces an old run by a new one. The old run keeps all its files under the next free name: NAME.1, NAME.2, ... */
#include "lib/base/log.h"
#include "lib/recipe/keys.h"
#include "lib/run/run_parts.h"

#include <string.h>
#include <unistd.h>

/* ---- inputs of the new run must not be moved away ---- */

/* The folder that contains every match of a pattern, or the path itself. */
static void fixed_part(const char *text, Str *path) {
    size_t len = strcspn(text, "*?[");
    if (text[len] != '\0')
        while (len > 0 && text[len - 1] != '/') len--;
    str_clear(path);
    str_append_n(path, text, len);
}

static bool names_part_of(const char *text, const char *dir, Str *path) {
    if (!text) return false;
    fixed_part(text, path);
    return path->len > 0 && path_inside(str_text(path), dir);
}

static bool node_names_part_of(const Yaml *node, const char *dir, Str *path) {
    if (!node) return false;
    if (node->kind == YAML_SCALAR) return names_part_of(node->text, dir, path);
    for (size_t i = 0; i < node->n; i++)
        if (node_names_part_of(node->items[i], dir, path)) return true;
    return false;
}

static bool list_names_part_of(const TextList *list, const char *dir, Str *path) {
    for (size_t i = 0; i < list->n; i++)
        if (names_part_of(list->items[i], dir, path)) return true;
    return false;
}

static bool key_names_part_of(const Recipe *recipe, const Key *key, const char *dir, Str *path) {
    const void *field = key_field(recipe, key);
    switch (key->type) {
    case KEY_TEXT: return names_part_of(*(const char *const *)field, dir, path);
    case KEY_LIST: return list_names_part_of(field, dir, path);
    case KEY_NODE: return node_names_part_of(*(const YamlNode *)field, dir, path);
    default: return false;
    }
}

/* A cache is rebuilt when it is missing. */
static bool may_be_inside(const Key *key) { return strcmp(key->dotted, "output") == 0 || strcmp(key->dotted, "data.cache") == 0; }

static Status check_inputs_outside(const Run *run, const Recipe *recipe) {
    Str path = {0};
    Status status = ST_OK;
    for (size_t i = 0; i < n_recipe_keys && status == ST_OK; i++) {
        const Key *key = &recipe_keys[i];
        if (may_be_inside(key) || !key_names_part_of(recipe, key, run->dir, &path)) continue;
        status_fail(ST_CONFIG, "'%s' names '%s', which is part of the run in '%s': this run cannot replace it", key->dotted, str_text(&path),
                    run->dir);
        status = status_hint(ST_CONFIG, "choose another output");
    }
    str_release(&path);
    return status;
}

/* ---- the move ---- */

Status run_replace_check(const Run *run, const Recipe *recipe) {
    int fd;
    TRY(check_inputs_outside(run, recipe));
    if (path_inside(".", run->dir))
        return status_hint(status_fail(ST_CONFIG, "output '%s' cannot be replaced: the program runs in it", run->dir),
                           "start it in another folder, or choose another output");
    TRY(run_lock(run, false, &fd));
    if (fd >= 0) close(fd);
    return ST_OK;
}

Status run_replace(const Run *run, const Recipe *recipe, Str *kept) {
    int fd;
    TRY(check_inputs_outside(run, recipe));
    TRY(run_lock(run, false, &fd)); /* held until the folder has its new name, so that no other process resumes the run meanwhile */
    Status status = path_backup(run->dir, kept);
    if (fd >= 0) close(fd);
    return status;
}
