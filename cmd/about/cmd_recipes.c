/* SPDX-License-Identifier: Apache-2.0 */
/* tune recipes: the recipes that come with the program. */
#include <string.h>

#include "cmd/app/shipped.h"
#include "cmd/app/terminal.h"
#include "cmd/app/help.h"

/* The summary of a recipe: the first comment line of its head that is not the command to run it. */
static void summary_of(const Shipped *found, const char *name, Str *line) {
    Str text = {0};
    if (shipped_read(found, name, &text, NULL) == ST_OK)
        for (const char *at = str_text(&text); *at == '#' && line->len == 0;) {
            size_t len = strcspn(at, "\n"), skip = strspn(at, "# ");
            if (skip < len && strncmp(at + skip, "tune ", 5) != 0 && strncmp(at + skip, "./tune ", 7) != 0) str_append_n(line, at + skip, len - skip);
            at += len + (at[len] == '\n');
        }
    str_release(&text);
}

/* One recipe of the list, wrapped on a terminal, one line on a pipe. */
static void print_recipe(const char *name, const char *words) {
    enum { TEXT_COLUMN = 33 };
    int width = screen_width();
    Str out = {0};
    str_printf(&out, "%-32s ", name);
    if (width == 0)
        str_append(&out, words);
    else
        help_fold(&out, words, TEXT_COLUMN < width / 2 ? TEXT_COLUMN : 4, width);
    print_result("%s\n", str_text(&out));
    str_release(&out);
}

static Status recipes_list(const Command *command, const Shipped *found) {
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

/* If *to is a folder, or ends with '/', the copy goes into it under the recipe's name. */
static Status name_in_folder(const Shipped *found, const char *name, const char **to) {
    size_t len = strlen(*to);
    if (!dir_exists(*to) && (len == 0 || (*to)[len - 1] != '/')) return ST_OK;
    if (!dir_exists(*to)) TRY(dir_make(*to));
    *to = arena_printf(found->arena, "%s%s%s%s", *to, len > 0 && (*to)[len - 1] == '/' ? "" : "/", path_name(name),
                       text_ends_with(name, ".yaml") ? "" : ".yaml");
    return *to ? ST_OK : ST_RESOURCE;
}

static Status recipes_give(const Shipped *found, const char *name, const char *to) {
    Str text = {0};
    if (to && shipped_has(found, name)) TRY(name_in_folder(found, name, &to));
    const char *root = NULL;
    Status status = shipped_read(found, name, &text, &root);
    if (status == ST_OK && to && strcmp(root, found->roots[0]) != 0) shipped_place(found, root, &text);
    if (status == ST_OK && !to) print_text(str_text(&text), text.len);
    if (status == ST_OK && to && file_exists(to))
        status = status_hint(status_fail(ST_CONFIG, "'%s' already exists", to), "name another file, or remove this one first");
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
    Shipped found = {.arena = command->arena};
    TRY(shipped_find(&found));
    return arguments == 1 ? recipes_list(command, &found)
                          : recipes_give(&found, command->arguments[1], arguments == 3 ? command->arguments[2] : NULL);
}

Status cmd_recipes(int argc, char **argv) {
    Command command = {
        .arguments_help = "ls | show NAME | cp NAME FILE|DIR",
        .help = "Lists the recipes that come with the program, prints one, or copies one for you to change.\n    tune recipes cp demo/sft my.yaml",
    };
    return command_main(&command, argc, argv, NULL, recipes, NULL);
}
