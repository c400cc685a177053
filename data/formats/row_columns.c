/* SPDX-License-Identifier: Apache-2.0 */
/* data.columns: maps columns of the rows to the names that formats read. */
#include "data/formats/row_form.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *name;
    bool needed;
} columns[] = {
#define COLUMN(name, needed) {#name, needed},
#include "data/formats/columns.def"
#undef COLUMN
};
_Static_assert(COUNT_OF(columns) <= 64, "each has a bit in RowForm.seen");

static int column_of(const char *name) {
    for (size_t i = 0; i < COUNT_OF(columns); i++)
        if (strcmp(columns[i].name, name) == 0) return (int)i;
    return -1;
}

Status columns_check(const Yaml *map, const char *key) {
    if (!map || map->kind == YAML_NULL) return ST_OK;
    if (map->kind != YAML_MAP) {
        status_fail(ST_CONFIG, "wrong value for '%s': expected a map from names of tune to columns of the rows", key);
        return status_hint(ST_CONFIG, "such as %s: {prompt: question, completion: answer}", key);
    }
    for (size_t i = 0; i < map->n; i++) {
        const char *names[COUNT_OF(columns)];
        for (size_t k = 0; k < COUNT_OF(columns); k++) names[k] = columns[k].name;
        if (column_of(map->keys[i]) < 0) {
            status_fail(ST_CONFIG, "unknown name '%s' in '%s': no row format has it", map->keys[i], key);
            return status_hint_nearest(ST_CONFIG, map->keys[i], names, COUNT_OF(columns), "the names of tune are ");
        }
        if (map->items[i]->kind != YAML_SCALAR || !map->items[i]->text[0])
            return status_fail(ST_CONFIG, "wrong value for '%s' in '%s': expected the name of a column", map->keys[i], key);
    }
    return ST_OK;
}

/* "a.b" and "answers.0" address a value inside column a or answers; a column whose full name has dots takes precedence. */
static json_t *at_path(const json_t *value, const char *path) {
    json_t *whole = json_object_get(value, path);
    const char *dot = strchr(path, '.');
    if (whole || (!dot && !json_is_array(value))) return whole;
    char name[256], *end;
    size_t len = dot ? (size_t)(dot - path) : strlen(path);
    if (len == 0 || len >= sizeof name) return NULL;
    memcpy(name, path, len);
    name[len] = '\0';
    unsigned long index = strtoul(name, &end, 10);
    json_t *inner = json_is_array(value) ? (*end || name[0] == '-' ? NULL : json_array_get(value, index)) : json_object_get(value, name);
    return dot && inner ? at_path(inner, dot + 1) : inner;
}

void columns_list(const json_t *row, Str *text) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)row, key, value) str_printf(text, "%s'%s'", text->len ? ", " : "", key);
}

static Status lacks(const json_t *row, const char *theirs, const char *ours) {
    Str list = {0};
    columns_list(row, &list);
    status_fail(ST_INPUT, "the row lacks '%s', which data.columns reads as '%s'", theirs, ours);
    status_hint(ST_INPUT, "its columns are %s", str_text(&list));
    str_release(&list);
    return ST_INPUT;
}

static bool is_target(const Yaml *map, const char *name) {
    for (size_t i = 0; i < map->n; i++)
        if (strcmp(map->keys[i], name) == 0) return true;
    return false;
}

/* A mapped column is removed if formats would read its old name; others stay, for rewards and templates. */
static void take_names(const Yaml *map, json_t *const *values, json_t *row) {
    for (size_t i = 0; i < map->n; i++) {
        const char *theirs = map->items[i]->text;
        bool known = column_of(theirs) >= 0 || strcmp(theirs, "conversation") == 0;
        if (values[i] && known && !is_target(map, theirs)) json_object_del(row, theirs);
    }
}

Status columns_rename(const Yaml *map, const json_t *row, uint64_t *seen, json_t **renamed) {
    json_t *values[64] = {0};
    size_t n = map && map->kind == YAML_MAP ? map->n : 0, n_found = 0;
    for (size_t i = 0; i < n; i++) {
        values[i] = at_path(row, map->items[i]->text);
        n_found += values[i] != NULL;
        if (values[i]) *seen |= (uint64_t)1 << i;
    }
    *renamed = NULL;
    for (size_t i = 0; i < n && n_found > 0; i++)
        if (!values[i] && columns[column_of(map->keys[i])].needed) return lacks(row, map->items[i]->text, map->keys[i]);
    *renamed = n_found > 0 ? json_copy((json_t *)(uintptr_t)row) : json_incref((json_t *)(uintptr_t)row);
    if (!*renamed) return status_fail(ST_RESOURCE, "out of memory for a row");
    if (n_found == 0) return ST_OK;
    for (size_t i = 0; i < n; i++) json_incref(values[i]);
    take_names(map, values, *renamed);
    for (size_t i = 0; i < n; i++)
        if (values[i]) json_object_set_new(*renamed, map->keys[i], values[i]);
    return ST_OK;
}

/* ---- hints ---- */

/* Columns that say where a row comes from are not what a user wants to train on. */
static bool is_about(const char *key) {
    static const char *const names[] = {"id",   "idx",   "index", "uuid",  "_id",   "key",     "source", "category", "topic", "type",
                                        "task", "split", "lang",  "model", "score", "dataset", "url",    "title",    "name",  "meta"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strcmp(names[i], key) == 0) return true;
    return text_ends_with(key, "_id");
}

static bool is_among(const char *key, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcasecmp(names[i], key) == 0) return true;
    return false;
}

/* Our names that formats read only along with others: a row with nothing else has no format, so they may be its question and answer. */
static const char *const companions[] = {"input", "output", "answer"};

static bool is_answer(const char *key) {
    static const char *const names[] = {"answer",   "answers", "output",    "outputs", "response", "responses", "reply", "replies", "completion",
                                        "solution", "target",  "assistant", "gpt",     "bot",      "model",     "ai",    "summary", "result"};
    return is_among(key, names, COUNT_OF(names));
}

/* The k-th column that may be the question or the answer: a text or a list that no format reads yet. */
static const char *likely_column(const json_t *row, size_t k, bool any) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)row, key, value) {
        if (!json_is_string(value) && !json_is_array(value)) continue;
        if ((column_of(key) >= 0 && !is_among(key, companions, COUNT_OF(companions))) || (!any && is_about(key))) continue;
        if (k-- == 0) return key;
    }
    return NULL;
}

/* The first column that may be `ours`: for an answer, one with an answer's name; otherwise, one with another name. */
static const char *likely_for(const json_t *row, const char *ours) {
    bool any = !likely_column(row, 0, false), answers = strcmp(ours, "completion") == 0 || strcmp(ours, "output") == 0;
    const char *key;
    for (size_t k = 0; (key = likely_column(row, k, any)); k++)
        if (is_answer(key) == answers) return key;
    key = likely_column(row, 0, any);
    return key && column_of(key) < 0 ? key : NULL;
}

void columns_example(const json_t *row, Str *known) {
    bool any = !likely_column(row, 1, false);
    const char *theirs = likely_column(row, 0, any), *second = likely_column(row, 1, any);
    if (theirs && second && is_answer(theirs) && !is_answer(second)) {
        const char *first = theirs;
        theirs = second;
        second = first;
    }
    str_append(known, "; data.columns maps columns to these names");
    if (theirs && second)
        str_printf(known, ", such as {prompt: %s, completion: %s}", theirs, second);
    else if (theirs)
        str_printf(known, ", such as {text: %s}", theirs);
}

bool columns_hint(const json_t *row, const char *ours) {
    const char *theirs = likely_for(row, ours);
    Str list = {0};
    columns_list(row, &list);
    status_hint(ST_INPUT, "its columns are %s; data.columns: {%s: %s} takes %s as '%s'", list.len ? str_text(&list) : "none", ours,
                theirs ? theirs : "COLUMN", theirs ? theirs : "another one", ours);
    str_release(&list);
    return theirs != NULL;
}
