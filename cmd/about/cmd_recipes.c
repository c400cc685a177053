/* SPDX-License-Identifier: Apache-2.0 */
/* tune recipes: the recipes that come with the program. */
#include <string.h>

#include "cmd/app/folders.h"
#include "cmd/app/terminal.h"
#include "cmd/app/help.h"

/* names: paths below a root, without .yaml, sorted */
typedef struct Found {
    Arena *arena;
    const char *roots[RECIPE_FOLDERS];
    size_t n_roots;
    char **names;
    size_t n;
} Found;

static bool known(const Found *found, const char *name) {
    for (size_t i = 0; i < found->n; i++)
        if (!strcmp(found->names[i], name)) return true;
    return false;
}

static Status add_name(Found *found, char *name) {
    char **grown = arena_alloc(found->arena, (found->n + 1) * sizeof *grown);
    if (!grown || !name) return ST_RESOURCE;
    if (found->n) memcpy(grown, found->names, found->n * sizeof *grown);
    grown[found->n++] = name;
    found->names = grown;
    return ST_OK;
}

static Status list_folder(Found *found, const char *folder, const char *prefix, int depth) {
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
            if (!known(found, name)) TRY(add_name(found, name));
        }
    }
    return ST_OK;
}

static Status find_recipes(Found *found) {
    TRY(recipe_folders(found->arena, found->roots, &found->n_roots));
    for (size_t i = 0; i < found->n_roots; i++) TRY(list_folder(found, found->roots[i], "", 2));
    if (found->n > 0) return ST_OK;
    status_fail(ST_CONFIG, "no recipes found in ./recipes, beside the program or in share/tune/recipes");
    return status_hint(ST_CONFIG, "make install PREFIX=DIR puts them where the program looks");
}

Status recipe_names(Arena *arena, TextList *names) {
    Found found = {.arena = arena};
    TRY(find_recipes(&found));
    *names = (TextList){found.n, (const char **)found.names};
    return ST_OK;
}

/* root: where it was found; may be NULL */
static Status read_recipe(const Found *found, const char *name, Str *text, const char **root) {
    for (size_t i = 0; i < found->n_roots; i++) {
        const char *path = arena_printf(found->arena, "%s/%s%s", found->roots[i], name, text_ends_with(name, ".yaml") ? "" : ".yaml");
        if (!path) return ST_RESOURCE;
        if (root) *root = found->roots[i];
        if (file_exists(path)) return file_read(path, 1 << 20, text);
    }
    status_fail(ST_CONFIG, "no recipe '%s'", name);
    return status_hint_nearest(ST_CONFIG, name, (const char *const *)found->names, found->n, "tune recipes ls lists them");
}

static void place_files(const Found *found, const char *root, Str *text);

Status recipe_shipped(Arena *arena, const char *name, Str *text, const char **path) {
    Found found = {.arena = arena};
    const char *root = NULL;
    *path = NULL;
    if (find_recipes(&found) != ST_OK) return ST_OK; /* then it is no name of one */
    char *plain = arena_strdup(arena, name);
    if (!plain) return ST_RESOURCE;
    if (text_ends_with(plain, ".yaml")) plain[strlen(plain) - strlen(".yaml")] = '\0';
    if (!known(&found, plain)) return ST_OK;
    TRY(read_recipe(&found, plain, text, &root));
    if (strcmp(root, found.roots[0]) != 0) place_files(&found, root, text);
    *path = arena_printf(arena, "%s/%s.yaml", root, plain);
    return *path ? ST_OK : ST_RESOURCE;
}

/* What a recipe is for: the first line of its head that is not the command to run it. */
static void summary_of(const Found *found, const char *name, Str *line) {
    Str text = {0};
    if (read_recipe(found, name, &text, NULL) == ST_OK)
        for (const char *at = str_text(&text); *at == '#' && line->len == 0;) {
            size_t len = strcspn(at, "\n"), skip = strspn(at, "# ");
            if (skip < len && strncmp(at + skip, "tune ", 5) != 0 && strncmp(at + skip, "./tune ", 7) != 0) str_append_n(line, at + skip, len - skip);
            at += len + (at[len] == '\n');
        }
    str_release(&text);
}

/* Folded to the terminal; a pipe gets one line. */
static void print_recipe(const char *name, const char *words) {
    enum { BESIDE = 33 };
    int width = screen_width();
    Str out = {0};
    str_printf(&out, "%-32s ", name);
    if (width == 0)
        str_append(&out, words);
    else
        help_fold(&out, words, BESIDE < width / 2 ? BESIDE : 4, width);
    print_result("%s\n", str_text(&out));
    str_release(&out);
}

static Status list(const Command *command, const Found *found) {
    JsonWriter w = {0};
    jw_array(&w, NULL);
    for (size_t i = 0; i < found->n; i++) {
        Str line = {0};
        summary_of(found, found->names[i], &line);
        if (!command->json) print_recipe(found->names[i], str_text(&line));
        jw_object(&w, NULL);
        jw_string(&w, "name", found->names[i]);
        jw_string(&w, "help", str_text(&line));
        jw_end_object(&w);
        str_release(&line);
    }
    jw_end_array(&w);
    if (command->json) print_result("%s\n", str_text(&w.text));
    jw_release(&w);
    return ST_OK;
}

/* Programs and prompts that a recipe names as recipes/FILE, a whole scalar each, are where it was found. */
static void place_files(const Found *found, const char *root, Str *text) {
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

/* Into a folder it keeps its own name. */
static Status name_in_folder(const Found *found, const char *name, const char **to) {
    size_t len = strlen(*to);
    if (!dir_exists(*to) && (len == 0 || (*to)[len - 1] != '/')) return ST_OK;
    if (!dir_exists(*to)) TRY(dir_make(*to));
    *to = arena_printf(found->arena, "%s%s%s%s", *to, len > 0 && (*to)[len - 1] == '/' ? "" : "/", path_name(name),
                       text_ends_with(name, ".yaml") ? "" : ".yaml");
    return *to ? ST_OK : ST_RESOURCE;
}

static Status give(const Found *found, const char *name, const char *to) {
    Str text = {0};
    if (to && known(found, name)) TRY(name_in_folder(found, name, &to));
    const char *root = NULL;
    Status status = read_recipe(found, name, &text, &root);
    if (status == ST_OK && to && strcmp(root, found->roots[0]) != 0) place_files(found, root, &text);
    if (status == ST_OK && !to) print_text(str_text(&text), text.len);
    if (status == ST_OK && to && file_exists(to))
        status = status_hint(status_fail(ST_CONFIG, "'%s' is there already", to), "name another file, or remove this one first");
    else if (status == ST_OK && to)
        status = file_write_all(to, str_text(&text), text.len);
    str_release(&text);
    if (status == ST_OK && to) show_line("wrote %s", to);
    return status;
}

static Status recipes(const Command *command, void *context) {
    (void)context;
    TRY(command_needs(command, 1, 3));
    const char *verb = command->arguments[0];
    size_t arguments = !strcmp(verb, "ls") ? 1 : !strcmp(verb, "show") ? 2 : !strcmp(verb, "cp") ? 3 : 0;
    if (arguments == 0) {
        status_fail(ST_USAGE, "tune recipes does not know '%s'", verb);
        return status_hint(ST_USAGE, "ls, show NAME, cp NAME FILE|DIR");
    }
    TRY(command_needs(command, arguments, arguments));
    Found found = {.arena = command->arena};
    TRY(find_recipes(&found));
    return arguments == 1 ? list(command, &found) : give(&found, command->arguments[1], arguments == 3 ? command->arguments[2] : NULL);
}

Status cmd_recipes(int argc, char **argv) {
    Command command = {
        .arguments_help = "ls | show NAME | cp NAME FILE|DIR",
        .help = "Lists the recipes that come with the program, prints one, or copies one to be changed.\n    tune recipes cp demo/sft my.yaml",
    };
    return command_main(&command, argc, argv, NULL, recipes, NULL);
}
