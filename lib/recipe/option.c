/* SPDX-License-Identifier: Apache-2.0 */
/* Options of filters, rewards and teachers: see option.h. */
#include "lib/recipe/option.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void options_init(const OptionSpec *specs, OptionValue values[OPTIONS_MOST]) {
    for (size_t i = 0; specs && specs[i].name; i++) {
        ASSERT(i < OPTIONS_MOST, "'%s' is one option too many", specs[i].name);
        values[i] = (OptionValue){.number = specs[i].value, .text = specs[i].text};
    }
}

const OptionSpec *option_find(const OptionSpec *specs, const char *name) {
    for (; specs && specs->name; specs++)
        if (strcmp(specs->name, name) == 0) return specs;
    return NULL;
}

/* ---- errors ---- */

Status option_refuse(const OptionOwner *owner, int line, const char *text) {
    Str where = {0};
    if (owner->name) str_printf(&where, " '%s'", owner->name);
    if (owner->file && line > 0)
        str_printf(&where, " in '%s' line %d", owner->file, line);
    else if (owner->file)
        str_append(&where, " on the command line");
    status_fail(ST_CONFIG, "%s%s: %s", owner->what, str_text(&where), text);
    str_release(&where);
    return ST_CONFIG;
}

Status option_unknown(const OptionOwner *owner, const char *name, int line, const OptionSpec *specs, const char *const *others, size_t n_others) {
    const char *names[OPTIONS_MOST + 8];
    char text[1024];
    size_t n = 0;
    for (; n < n_others; n++) names[n] = others[n];
    for (; specs && specs->name; specs++) names[n++] = specs->name;
    snprintf(text, sizeof text, "unknown option '%s'", name);
    option_refuse(owner, line, text);
    return status_hint_nearest(ST_CONFIG, name, names, n, n ? "it takes " : "it takes true or false");
}

static Status wrong_value(const OptionOwner *owner, const OptionSpec *spec, int line) {
    static const char *const kinds[] = {[OPTION_NUMBER] = "a number",
                                        [OPTION_WHOLE] = "a whole number",
                                        [OPTION_BOOL] = "true or false",
                                        [OPTION_STRING] = "a text",
                                        [OPTION_STRINGS] = "a list of texts"};
    char text[1024];
    int n = snprintf(text, sizeof text, "wrong value for '%s': expected ", spec->name);
    if (spec->choices)
        snprintf(text + n, sizeof text - (size_t)n, "one of %s", spec->choices);
    else if (spec->low == spec->high)
        snprintf(text + n, sizeof text - (size_t)n, "%s", kinds[spec->kind]);
    else
        snprintf(text + n, sizeof text - (size_t)n, "%s from %.15g to %.15g", kinds[spec->kind], spec->low, spec->high);
    return option_refuse(owner, line, text);
}

/* ---- reading ---- */

static bool read_number(const OptionSpec *spec, const Yaml *node, double *number) {
    bool truth;
    if (spec->kind == OPTION_BOOL) {
        if (!yaml_as_bool(node, &truth)) return false;
        *number = truth;
        return true;
    }
    if (!yaml_as_double(node, number) || (spec->kind == OPTION_WHOLE && *number != floor(*number))) return false;
    return spec->low == spec->high || (*number >= spec->low && *number <= spec->high);
}

/* Reads a list; a single text is a list of one. */
static Status read_texts(const OptionOwner *owner, const OptionSpec *spec, const Yaml *node, Arena *arena, OptionValue *value) {
    value->n = node->kind == YAML_LIST ? node->n : 1;
    if (!(value->list = arena_alloc(arena, (value->n + 1) * sizeof *value->list))) return ST_RESOURCE;
    for (size_t i = 0; i < value->n; i++) {
        const Yaml *item = node->kind == YAML_LIST ? node->items[i] : node;
        if (item->kind != YAML_SCALAR || !item->text[0]) return wrong_value(owner, spec, node->line);
        if (!(value->list[i] = arena_strdup(arena, item->text))) return ST_RESOURCE;
    }
    return ST_OK;
}

Status option_read(const OptionOwner *owner, const OptionSpec *spec, const Yaml *node, Arena *arena, OptionValue *value) {
    value->node = node;
    if (spec->kind == OPTION_YAML) return ST_OK;
    if (spec->kind == OPTION_STRINGS) return read_texts(owner, spec, node, arena, value);
    if (spec->kind != OPTION_STRING) return read_number(spec, node, &value->number) ? ST_OK : wrong_value(owner, spec, node->line);
    if (node->kind != YAML_SCALAR || (spec->choices && !text_among(spec->choices, '|', node->text))) return wrong_value(owner, spec, node->line);
    return (value->text = arena_strdup(arena, node->text)) ? ST_OK : ST_RESOURCE;
}

Status options_read(const OptionOwner *owner, const OptionSpec *specs, const Yaml *map, Arena *arena, OptionValue values[OPTIONS_MOST]) {
    options_init(specs, values);
    if (!map || map->kind == YAML_NULL) return ST_OK;
    if (map->kind != YAML_MAP) return option_refuse(owner, map->line, "expected a map of options");
    for (size_t i = 0; i < map->n; i++) {
        const OptionSpec *spec = option_find(specs, map->keys[i]);
        if (!spec) return option_unknown(owner, map->keys[i], map->key_lines[i], specs, NULL, 0);
        if (map->items[i]->kind != YAML_NULL) TRY(option_read(owner, spec, map->items[i], arena, &values[spec - specs]));
    }
    return ST_OK;
}
