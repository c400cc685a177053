/* SPDX-License-Identifier: Apache-2.0 */
/* Recipes as text: the resolved recipe, its JSON schema, help, and the differences of two recipes. All of it is generated from the table of keys. */
#include "lib/recipe/keys.h"

#include <math.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- values as YAML in one line ---- */

static void append_number(Str *text, double value) { str_append_double(text, value); }

static void append_text(Str *text, const char *value) {
    if (value) {
        str_append_yaml(text, value);
    } else {
        str_append(text, "null");
    }
}

/* A plain scalar that means a number, a truth value or null stays plain; others are quoted where YAML requires it. */
static void append_scalar(Str *text, const Yaml *node) {
    double number;
    bool truth;
    if (yaml_as_double(node, &number) || yaml_as_bool(node, &truth)) {
        str_append(text, node->text);
    } else {
        str_append_yaml(text, node->text);
    }
}

static void append_node(Str *text, const Yaml *node) {
    if (!node || node->kind == YAML_NULL) {
        str_append(text, "null");
        return;
    }
    if (node->kind == YAML_SCALAR) {
        append_scalar(text, node);
        return;
    }
    str_append_char(text, node->kind == YAML_LIST ? '[' : '{');
    for (size_t i = 0; i < node->n; i++) {
        if (i > 0) str_append(text, ", ");
        if (node->kind == YAML_MAP) {
            str_append_yaml(text, node->keys[i]);
            str_append(text, ": ");
        }
        append_node(text, node->items[i]);
    }
    str_append_char(text, node->kind == YAML_LIST ? ']' : '}');
}

static void append_list(Str *text, const TextList *list) {
    str_append_char(text, '[');
    for (size_t i = 0; i < list->n; i++) {
        if (i > 0) str_append(text, ", ");
        str_append_yaml(text, list->items[i]);
    }
    str_append_char(text, ']');
}

static void append_reals(Str *text, const RealList *list) {
    str_append_char(text, '[');
    for (size_t i = 0; i < list->n; i++) {
        if (i > 0) str_append(text, ", ");
        append_number(text, list->items[i]);
    }
    str_append_char(text, ']');
}

static void append_map(Str *text, const NumberMap *map) {
    str_append_char(text, '{');
    for (size_t i = 0; i < map->n; i++) {
        if (i > 0) str_append(text, ", ");
        str_append_yaml(text, map->keys[i]);
        str_append(text, ": ");
        append_number(text, map->values[i]);
    }
    str_append_char(text, '}');
}

static void append_choice(Str *text, const Key *key, int value) {
    const char *choices = key->choices;
    Slice word = {0};
    char chosen[64];
    for (int i = 0; i <= value && choice_next(&choices, &word); i++) continue;
    snprintf(chosen, sizeof chosen, "%.*s", (int)word.len, word.data);
    append_text(text, strcmp(chosen, "null") == 0 ? NULL : chosen);
}

static void append_value(Str *text, const Recipe *recipe, const Key *key) {
    const void *field = key_field(recipe, key);
    switch (key->type) {
    case KEY_INT:
        if (*(const int64_t *)field == -1 && strcmp(key->fallback, "null") == 0) {
            str_append(text, "null");
        } else {
            str_printf(text, "%lld", (long long)*(const int64_t *)field);
        }
        return;
    case KEY_REAL:
        if (isnan(*(const double *)field))
            str_append(text, "null");
        else
            append_number(text, *(const double *)field);
        return;
    case KEY_BOOL: str_append(text, *(const bool *)field ? "true" : "false"); return;
    case KEY_TEXT:
    case KEY_NAME: append_text(text, *(const char *const *)field); return;
    case KEY_CHOICE: append_choice(text, key, *(const int *)field); return;
    case KEY_LIST: append_list(text, field); return;
    case KEY_REALS: append_reals(text, field); return;
    case KEY_MAP: append_map(text, field); return;
    case KEY_NODE: append_node(text, *(const YamlNode *)field); return;
    }
}

/* ---- the resolved recipe ---- */

static void write_keys(const Recipe *recipe, const char *section, const char *indent, Str *text) {
    for (size_t i = 0; i < n_recipe_keys; i++) {
        const Key *key = &recipe_keys[i];
        if (strcmp(key->section, section) != 0) continue;
        str_printf(text, "%s%s: ", indent, key->name);
        append_value(text, recipe, key);
        str_append_char(text, '\n');
    }
}

void recipe_write_yaml(const Recipe *recipe, Str *text) {
    if (recipe->program) str_printf(text, "# %s\n", recipe->program);
    write_keys(recipe, "", "", text);
    for (size_t i = 0; i < n_recipe_sections; i++) {
        const char *section = recipe_sections[i].name;
        bool lanes = strcmp(section, "parallel") == 0 && recipe->has_model; /* a recipe without lanes is of a version that had none */
        if (section_present(recipe, section) || lanes) {
            str_printf(text, "\n%s:\n", section);
            write_keys(recipe, section, "  ", text);
        } else if (strcmp(section, "lora") == 0) { /* an absent lora section also says what is trained */
            str_append(text, "\nlora: null\n");
        }
    }
}

/* ---- differences of two recipes ---- */

static bool changes_nothing(const Key *key) {
    static const char *const names[] = {"output",
                                        "threads",
                                        "train.log_every",
                                        "train.live",
                                        "train.save_every",
                                        "train.save_last",
                                        "train.keep_checkpoints",
                                        "train.save_dtype",
                                        "data.cache",
                                        "synth.teacher",
                                        "synth.max_requests",
                                        "synth.max_tokens",
                                        "synth.max_cost",
                                        "synth.min_acceptance",
                                        "synth.acceptance_after",
                                        "synth.select",
                                        "synth.select_quality",
                                        "synth.select_share",
                                        "synth.select_quotas"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strcmp(key->dotted, names[i]) == 0) return true;
    return strcmp(key->section, "plan") == 0 || strcmp(key->section, "parallel") == 0;
}

/* The run's length: a run may be resumed with another one (lengthen.h). */
static bool is_length(const Key *key) {
    static const char *const names[] = {"train.epochs", "train.max_steps", "rl.total_steps"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strcmp(key->dotted, names[i]) == 0) return true;
    return false;
}

/* With data.now: null, a run keeps the day it began if its template writes a date. */
static bool takes_its_day(const Recipe *a, const Key *key) { return strcmp(key->dotted, "data.now") == 0 && !a->data_now; }

/* Without a data section nothing reads the key, and a kept recipe lacks it (recipe_set_old_defaults). */
static bool without_rows(const Recipe *a, const Recipe *b, const Key *key) {
    return strcmp(key->dotted, "data.as") == 0 && (!a->has_data || !b->has_data);
}

static bool same_value(const Recipe *a, const Recipe *b, const Key *key, Str *text_a, Str *text_b) {
    str_clear(text_a);
    str_clear(text_b);
    append_value(text_a, a, key);
    append_value(text_b, b, key);
    return strcmp(str_text(text_a), str_text(text_b)) == 0;
}

bool recipe_same(const Recipe *a, const Recipe *b, const char *dotted_key) {
    const Key *key = key_find(dotted_key);
    ASSERT(key, "'%s' is no key", dotted_key);
    Str text_a = {0}, text_b = {0};
    bool same = same_value(a, b, key, &text_a, &text_b);
    str_release(&text_a);
    str_release(&text_b);
    return same;
}

static bool ignored_in_resume(const Recipe *a, const Recipe *b, const Key *key) {
    return changes_nothing(key) || is_length(key) || takes_its_day(a, key) || without_rows(a, b, key);
}

static bool ignored_between_ranks(const Recipe *a, const Recipe *b, const Key *key) {
    (void)a, (void)b;
    return strcmp(key->dotted, "threads") == 0;
}

/* The first key with another value, apart from those that `ignored` names */
static const char *first_difference(const Recipe *a, const Recipe *b, bool (*ignored)(const Recipe *a, const Recipe *b, const Key *key),
                                    const char **value_a, const char **value_b) {
    if (a->has_lora != b->has_lora) {
        *value_a = a->has_lora ? "there" : "null";
        *value_b = b->has_lora ? "there" : "null";
        return "lora";
    }
    Str text_a = {0}, text_b = {0};
    const char *different = NULL;
    for (size_t i = 0; i < n_recipe_keys && !different; i++) {
        if (ignored(a, b, &recipe_keys[i]) || same_value(a, b, &recipe_keys[i], &text_a, &text_b)) continue;
        different = recipe_keys[i].dotted;
        *value_a = arena_strdup(a->arena, str_text(&text_a));
        *value_b = arena_strdup(a->arena, str_text(&text_b));
    }
    str_release(&text_a);
    str_release(&text_b);
    return different;
}

const char *recipe_difference(const Recipe *a, const Recipe *b, const char **value_a, const char **value_b) {
    return first_difference(a, b, ignored_in_resume, value_a, value_b);
}

const char *recipe_differs_anywhere(const Recipe *a, const Recipe *b, const char **value_a, const char **value_b) {
    return first_difference(a, b, ignored_between_ranks, value_a, value_b);
}

bool recipe_other_length(const Recipe *a, const Recipe *b) {
    for (size_t i = 0; i < n_recipe_keys; i++)
        if (is_length(&recipe_keys[i]) && !recipe_same(a, b, recipe_keys[i].dotted)) return true;
    return false;
}

/* Defaults are left out, so that a new key changes no fingerprint. So are values that a resumed run takes from its kept recipe. */
uint64_t recipe_fingerprint(const Recipe *recipe) {
    Str text = {0}, value = {0};
    str_append(&text, recipe->has_lora ? "lora\n" : "");
    for (size_t i = 0; i < n_recipe_keys; i++) {
        const Key *key = &recipe_keys[i];
        if (changes_nothing(key) || strcmp(key->dotted, "data.now") == 0 || strcmp(key->dotted, "data.as") == 0) continue;
        str_clear(&value);
        append_value(&value, recipe, key);
        if (strcmp(str_text(&value), key->fallback) != 0) str_printf(&text, "%s: %s\n", key->dotted, str_text(&value));
    }
    uint64_t hash = XXH3_64bits(str_text(&text), text.len);
    str_release(&text);
    str_release(&value);
    return hash;
}

/* ---- help ---- */

static void append_range(Str *text, const Key *key) {
    if (key->low[0] && key->high[0]) {
        str_printf(text, " (%s to %s)", key->low, key->high);
    } else if (key->low[0]) {
        str_printf(text, " (at least %s)", key->low);
    }
}

void key_describe(const Key *key, Str *text) {
    const char *choices = key->choices, *between = ": ";
    str_append(text, key->help);
    for (Slice word; choice_next(&choices, &word); between = " | ") str_printf(text, "%s%.*s", between, (int)word.len, word.data);
    append_range(text, key);
}

/* ---- JSON schema ---- */

static void write_type(JsonWriter *w, const Key *key, const char *type) {
    if (strcmp(key->fallback, "null") == 0) {
        jw_array(w, "type");
        jw_string(w, NULL, type);
        jw_string(w, NULL, "null");
        jw_end_array(w);
    } else {
        jw_string(w, "type", type);
    }
}

static void write_bounds(JsonWriter *w, const Key *key) {
    if (key->low[0]) jw_double(w, "minimum", strtod(key->low, NULL));
    if (key->high[0]) jw_double(w, "maximum", strtod(key->high, NULL));
}

static void write_enum(JsonWriter *w, const Key *key) {
    const char *choices = key->choices;
    if (key->choices[0] == '\0') return;
    jw_array(w, "enum");
    for (Slice word; choice_next(&choices, &word);) {
        char text[64];
        snprintf(text, sizeof text, "%.*s", (int)word.len, word.data);
        if (strcmp(text, "null") == 0 || key->type == KEY_BOOL || key->type == KEY_REAL)
            jw_raw(w, NULL, text);
        else
            jw_string(w, NULL, text);
    }
    jw_end_array(w);
}

/* Either one item, or an array of items. */
static void write_list_schema(JsonWriter *w, const Key *key, const char *item) {
    jw_array(w, "anyOf");
    for (int many = 0; many < 2; many++) {
        jw_object(w, NULL);
        if (many) {
            jw_string(w, "type", "array");
            jw_object(w, "items");
        }
        jw_string(w, "type", item);
        if (key->type == KEY_REALS) write_bounds(w, key);
        write_enum(w, key);
        if (many) jw_end_object(w);
        jw_end_object(w);
    }
    jw_end_array(w);
}

static void write_default(JsonWriter *w, const Key *key) {
    if (key->type == KEY_LIST || key->type == KEY_REALS || key->type == KEY_MAP) return;
    bool text = key->type == KEY_CHOICE || key->type == KEY_NAME || key->type == KEY_TEXT;
    if (text && strcmp(key->fallback, "null") != 0) {
        jw_string(w, "default", key->fallback);
    } else {
        jw_raw(w, "default", key->fallback);
    }
}

static void write_key_schema(JsonWriter *w, const Key *key) {
    jw_object(w, key->name);
    jw_string(w, "$comment", recipe_owners[key->owner].title);
    jw_string(w, "description", key->help);
    switch (key->type) {
    case KEY_INT: write_type(w, key, "integer"); break;
    case KEY_REAL: write_type(w, key, "number"); break;
    case KEY_BOOL: write_type(w, key, "boolean"); break;
    case KEY_TEXT:
    case KEY_NAME:
    case KEY_CHOICE: write_type(w, key, "string"); break;
    case KEY_LIST: write_list_schema(w, key, "string"); break;
    case KEY_REALS: write_list_schema(w, key, "number"); break;
    case KEY_MAP:
        jw_string(w, "type", "object");
        jw_object(w, "additionalProperties");
        jw_string(w, "type", "number");
        jw_end_object(w);
        break;
    case KEY_NODE: break;
    }
    if (key->type == KEY_INT || key->type == KEY_REAL) write_bounds(w, key);
    if (key->type != KEY_LIST && key->type != KEY_REALS) write_enum(w, key);
    write_default(w, key);
    jw_end_object(w);
}

static void write_section_schema(JsonWriter *w, const char *section) {
    for (const Key *key = NULL; (key = key_listed_after(section, key));) write_key_schema(w, key);
}

void recipe_write_schema(Str *text) {
    JsonWriter w = {.pretty = true};
    jw_object(&w, NULL);
    jw_string(&w, "$schema", "https://json-schema.org/draft/2020-12/schema");
    jw_string(&w, "title", "recipe of tune");
    jw_string(&w, "type", "object");
    jw_bool(&w, "additionalProperties", false);
    jw_object(&w, "properties");
    write_section_schema(&w, "");
    for (size_t i = 0; i < n_recipe_sections; i++) {
        jw_object(&w, recipe_sections[i].name);
        jw_string(&w, "description", recipe_sections[i].help);
        jw_array(&w, "type");
        jw_string(&w, NULL, "object");
        jw_string(&w, NULL, "null");
        jw_end_array(&w);
        jw_bool(&w, "additionalProperties", false);
        jw_object(&w, "properties");
        write_section_schema(&w, recipe_sections[i].name);
        jw_end_object(&w);
        jw_end_object(&w);
    }
    jw_end_object(&w);
    jw_end_object(&w);
    str_append_n(text, str_text(&w.text), w.text.len);
    str_append_char(text, '\n');
    jw_release(&w);
}
