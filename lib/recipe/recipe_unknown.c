/* SPDX-License-Identifier: Apache-2.0 */
/* Unknown keys: suggests the one that was probably meant, and reports all of them at once with the tool whose file it looks like. */
#include "lib/recipe/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- suggestions ---- */

/* Looks in the same section first, then for the same name elsewhere, then for anything similar. */
static const char *nearest_key(const char *section, const char *name, const char *written) {
    const char **names = malloc((n_recipe_keys + n_recipe_sections) * sizeof *names), *found = NULL;
    size_t n = 0;
    if (!names) return NULL;
    for (size_t i = 0; i < n_recipe_keys; i++)
        if (strcmp(recipe_keys[i].section, section) == 0) names[n++] = recipe_keys[i].name;
    if (section[0] == '\0')
        for (size_t i = 0; i < n_recipe_sections; i++) names[n++] = recipe_sections[i].name;
    const char *near = text_nearest(name, names, n);
    const Key *key = near ? key_in(section, near) : NULL;
    found = key ? key->dotted : near;
    for (size_t i = 0; i < n_recipe_keys && !found; i++)
        if (strcmp(recipe_keys[i].name, name) == 0) found = recipe_keys[i].dotted;
    if (!found) {
        for (size_t i = 0; i < n_recipe_keys; i++) names[i] = recipe_keys[i].dotted;
        found = text_nearest(written, names, n_recipe_keys);
    }
    free(names);
    return found;
}

/* Names in other programs; a name is compared in full. Used only in hints: a recipe accepts one name for each key. */
static const struct {
    const char *theirs, *ours;
} aliases[] = {
#define ALIAS(theirs, ours) {#theirs, ours},
#define TOOL(name, keys)
#include "lib/recipe/key_aliases.def"
#undef TOOL
#undef ALIAS
};

const char *key_alias(const char *name) {
    for (size_t i = 0; i < COUNT_OF(aliases); i++)
        if (strcmp(aliases[i].theirs, name) == 0) return aliases[i].ours;
    return NULL;
}

void key_aliases(const char *dotted, Str *text) {
    for (size_t i = 0; i < COUNT_OF(aliases); i++)
        if (strcmp(aliases[i].ours, dotted) == 0) str_printf(text, "%s%s", text->len ? ", " : "", aliases[i].theirs);
}

static bool is_dotted(const char *section, const char *name) { return section[0] == '\0' && key_find(name); }

const char *key_suggest(const char *section, const char *name) {
    if (is_dotted(section, name)) return name;
    const char *alias = key_alias(name);
    if (alias) return alias;
    Str written = {0};
    str_printf(&written, "%s%s%s", section, section[0] ? "." : "", name);
    const char *near = nearest_key(section, name, str_text(&written));
    str_release(&written);
    return near;
}

/* ---- the tool whose file it is ---- */

typedef struct Tool {
    const char *name, *keys;
} Tool;
static const Tool tools[] = {
#define ALIAS(theirs, ours)
#define TOOL(name, keys) {name, keys},
#include "lib/recipe/key_aliases.def"
#undef TOOL
#undef ALIAS
};
_Static_assert(COUNT_OF(tools) <= UNKNOWN_TOOLS, "room for a count of each tool");

static void count_tools(UnknownKeys *unknown, const char *name) {
    for (size_t i = 0; i < COUNT_OF(tools); i++) unknown->of_tool[i] += text_among(tools[i].keys, ' ', name);
}

/* NULL when fewer than three keys are of one tool: names such as `lr` are common to many. */
static const char *likely_tool(const UnknownKeys *unknown) {
    size_t best = 0;
    for (size_t i = 1; i < COUNT_OF(tools); i++)
        if (unknown->of_tool[i] > unknown->of_tool[best]) best = i;
    return unknown->of_tool[best] >= 3 ? tools[best].name : NULL;
}

/* ---- the report ---- */

/* On the command line a list is typed in brackets, which users often forget. */
static Status hint_at(const char *meant, const char *value) {
    const Key *key = key_find(meant);
    if (!key || key->type != KEY_LIST || !value || !strchr(value, ',')) return status_hint(ST_CONFIG, "did you mean '%s'?", meant);
    return status_hint(ST_CONFIG, "did you mean '%s'? '%s=[%s]'", meant, meant, value);
}

static Status fail_one(const char *section, const char *name, const char *value, const char *where) {
    const char *meant = key_suggest(section, name);
    status_fail(ST_CONFIG, "unknown key '%s%s%s' %s", section, section[0] ? "." : "", name, where);
    if (is_dotted(section, name))
        return status_hint(ST_CONFIG, "in a file, write '%s' below '%.*s:'; the form with a dot is for the command line", strchr(name, '.') + 1,
                           (int)strcspn(name, "."), name);
    return meant ? hint_at(meant, value) : status_hint(ST_CONFIG, "--help of the command lists the keys");
}

void unknown_add(UnknownKeys *unknown, const char *section, const char *name, const char *value, int line, const char *where) {
    enum { ROOM = 3400 }; /* of a message, bytes */
    const char *meant = key_suggest(section, name);
    if (unknown->n++ == 0) failure_save(&unknown->first, fail_one(section, name, value, where));
    count_tools(unknown, name);
    if (unknown->list.len > ROOM) {
        unknown->unlisted++;
        return;
    }
    str_append(&unknown->list, unknown->n > 1 ? ", " : "");
    if (line > 0) str_printf(&unknown->list, "line %d ", line);
    str_printf(&unknown->list, "'%s%s%s'", section, section[0] ? "." : "", name);
    if (meant && strcmp(meant, name) != 0) str_printf(&unknown->list, " (here %s)", meant);
}

Status unknown_fail(const UnknownKeys *unknown, const char *file) {
    if (unknown->n < 2) return failure_restore(&unknown->first);
    char more[32] = "", in[512] = "";
    if (unknown->unlisted) snprintf(more, sizeof more, ", and %zu more", unknown->unlisted);
    if (file) snprintf(in, sizeof in, " in '%.480s'", file);
    status_fail(ST_CONFIG, "%zu unknown keys%s: %s%s", unknown->n, in, str_text(&unknown->list), more);
    const char *tool = likely_tool(unknown);
    if (tool)
        return status_hint(ST_CONFIG,
                           "this looks like a file of %s, whose keys are different; known ones are translated above; `tune recipes ls` lists recipes "
                           "to start from",
                           tool);
    return status_hint(ST_CONFIG, "--help of the command lists the keys");
}

void unknown_release(UnknownKeys *unknown) { str_release(&unknown->list); }
