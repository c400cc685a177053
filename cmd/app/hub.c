/* SPDX-License-Identifier: Apache-2.0 */
/* Finds models by their Hugging Face name in the local cache. This is in cmd/ because the environment says where the cache is, and libraries do
 * not read the environment. */
#include <stdlib.h>
#include <string.h>

#include "cmd/app/hub.h"
#include "cmd/app/terminal.h"
#include "lib/model/not_a_model.h"

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* The same search order as huggingface_hub; NULL if HOME is not set either. */
static const char *cache_folder(Arena *arena) {
    const char *own = variable("HF_HUB_CACHE"), *old = variable("HUGGINGFACE_HUB_CACHE"), *home = variable("HF_HOME"),
               *xdg = variable("XDG_CACHE_HOME"), *user = variable("HOME");
    if (own || old) return own ? own : old;
    if (home) return path_join(arena, home, "hub");
    if (xdg) return path_join(arena, xdg, "huggingface/hub");
    return user ? path_join(arena, user, ".cache/huggingface/hub") : NULL;
}

/* models--org--name/refs/main holds the name of a folder in snapshots/. A model that was downloaded by commit has no refs/main: then the only
 * snapshot is taken. */
static Status find_snapshot(Arena *arena, const char *model, const char **dir) {
    Str commit = {0};
    const char *refs = path_join(arena, model, "refs/main"), *snapshots = path_join(arena, model, "snapshots"), *found = NULL;
    char **names;
    size_t n;
    if (!refs || !snapshots) return ST_RESOURCE;
    if (!dir_exists(snapshots)) return ST_OK;
    Status status = file_exists(refs) ? file_read(refs, 256, &commit) : ST_OK;
    if (status == ST_OK && commit.len > 0) {
        commit.data[strcspn(commit.data, " \r\n")] = '\0';
        if (!strchr(commit.data, '/') && commit.data[0] != '.') found = path_join(arena, snapshots, commit.data);
    } else if (status == ST_OK && dir_list(snapshots, arena, &names, &n) == ST_OK && n == 1)
        found = path_join(arena, snapshots, names[0]);
    str_release(&commit);
    if (found && dir_exists(found)) *dir = found;
    return status;
}

Status model_find(Arena *arena, const char **model) {
    const char *name = *model, *cache, *dir = NULL;
    if (!name || !is_hub_name(name) || file_exists(name) || dir_exists(name)) return ST_OK;
    if (!(cache = cache_folder(arena))) return ST_OK;
    size_t org = strcspn(name, "/");
    const char *folder = arena_printf(arena, "%s/models--%.*s--%s", cache, (int)org, name, name + org + 1);
    if (!folder) return ST_RESOURCE;
    TRY(find_snapshot(arena, folder, &dir));
    if (!dir) return ST_OK; /* opening it reports the error */
    show_line("model %s: %s", name, dir);
    *model = dir;
    return ST_OK;
}

/* {model: org/name, adapter: ...} of a teacher or a reward, and lists of these. With `url` or `replay` the model is a server's and not looked up. */
static Status find_in_node(Arena *arena, const Yaml *node) {
    static const char *const names[] = {"model", "adapter"};
    for (size_t i = 0; node && node->kind == YAML_LIST && i < node->n; i++) TRY(find_in_node(arena, node->items[i]));
    if (!node || node->kind != YAML_MAP || yaml_get(node, "url") || yaml_get(node, "replay")) return ST_OK;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        Yaml *named = yaml_get(node, names[i]);
        if (named && named->kind == YAML_SCALAR) TRY(model_find(arena, &named->text));
    }
    return ST_OK;
}

Status recipe_models_find(Recipe *recipe) {
    const char **const models[] = {&recipe->model_path, &recipe->model_adapter, &recipe->rl_reference, &recipe->rl_value_model,
                                   &recipe->distil_teacher};
    const Yaml *const nodes[] = {recipe->reward, recipe->synth_teacher, recipe->synth_judge};
    for (size_t i = 0; i < COUNT_OF(models); i++) TRY(model_find(recipe->arena, models[i]));
    for (size_t i = 0; i < COUNT_OF(nodes); i++) TRY(find_in_node(recipe->arena, nodes[i]));
    return ST_OK;
}

/* A model that is missing is an error here: an argument is always opened, whereas a recipe may name models that it never opens. */
static Status find_argument(Arena *arena, const char **name, const char *noun, const char *what) {
    TRY(model_find(arena, name));
    if (!*name || !is_hub_name(*name) || file_exists(*name) || dir_exists(*name)) return ST_OK;
    return hint_no_directory(status_fail(ST_INPUT, "no %s '%s'", noun, *name), *name, what);
}

Status argument_model_find(Arena *arena, const char **model) { return find_argument(arena, model, "model directory", A_MODEL); }

Status argument_adapter_find(Arena *arena, const char **adapter) { return find_argument(arena, adapter, "adapter directory", AN_ADAPTER); }
