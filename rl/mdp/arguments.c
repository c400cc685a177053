/* SPDX-License-Identifier: Apache-2.0 */
#include "rl/mdp/arguments.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool read_bool(const char *text, double *value) {
    bool yes = strcmp(text, "true") == 0 || strcmp(text, "True") == 0 || strcmp(text, "1") == 0;
    *value = yes;
    return yes || strcmp(text, "false") == 0 || strcmp(text, "False") == 0 || strcmp(text, "0") == 0;
}

static bool read_number(const char *text, double *value) {
    char *end;
    *value = strtod(text, &end);
    return end != text && !*end && isfinite(*value);
}

static Status read_value(const char *id, const Argument *argument, const char *text, double *number, const char **kept) {
    const char *wanted = argument->is_bool ? "true or false" : argument->is_whole ? "a whole number" : "a number";
    if (argument->is_text) {
        *kept = text;
        return ST_OK;
    }
    if (!(argument->is_bool ? read_bool(text, number) : read_number(text, number)) || (argument->is_whole && *number != floor(*number)))
        return status_fail(ST_CONFIG, "argument '%s' of '%s' is '%s', expected %s", argument->name, id, text, wanted);
    if (argument->high > argument->low && (*number < argument->low || *number > argument->high))
        return status_fail(ST_CONFIG, "argument '%s' of '%s' is %s, expected %s from %.17g to %.17g", argument->name, id, text, wanted, argument->low,
                           argument->high);
    return ST_OK;
}

static size_t table_size(const Argument *table) {
    size_t n = 0;
    while (n < MAX_ARGUMENTS && table[n].name) n++;
    return n;
}

static Status unknown(const char *id, const char *name, const Argument *own, const Argument *common) {
    const char *names[2 * MAX_ARGUMENTS];
    size_t n = 0;
    for (size_t i = 0; i < table_size(common); i++) names[n++] = common[i].name;
    for (size_t i = 0; i < table_size(own); i++) names[n++] = own[i].name;
    status_fail(ST_CONFIG, "unknown argument '%s' of '%s'", name, id);
    return status_hint_nearest(ST_CONFIG, name, names, n, "it takes ");
}

static const Argument *arguments_find(const Argument *table, const char *name) {
    for (size_t i = 0; i < table_size(table); i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}

static void set_defaults(const Argument *table, Arguments *values) {
    memset(values, 0, sizeof *values);
    for (size_t i = 0; i < table_size(table); i++) {
        values->number[i] = table[i].value;
        values->text[i] = table[i].text;
    }
}

/* ',' separates arguments. */
static Status bracketed(const char *id, const char *name) {
    status_fail(ST_CONFIG, "argument '%s' of '%s' is a list in brackets, which is not possible after a name", name, id);
    return status_hint(ST_CONFIG, "join its items by '/', as %s=A/B/C, or write {id: %s, %s: [A, B, C]}", name, id, name);
}

Status arguments_read(const char *id, char *text, const Argument *own, Arguments *own_values, const Argument *common, Arguments *common_values) {
    set_defaults(own, own_values);
    set_defaults(common, common_values);
    for (char *rest; text; text = rest) {
        rest = strchr(text, ',');
        if (rest) *rest++ = '\0';
        char *equals = strchr(text, '=');
        if (!equals) return status_fail(ST_CONFIG, "argument '%s' of '%s' has no value, expected key=value", text, id);
        *equals = '\0';
        if (equals[1] == '[') return bracketed(id, text);
        const Argument *mine = arguments_find(own, text), *shared = arguments_find(common, text);
        if (mine)
            TRY(read_value(id, mine, equals + 1, &own_values->number[mine - own], &own_values->text[mine - own]));
        else if (shared)
            TRY(read_value(id, shared, equals + 1, &common_values->number[shared - common], &common_values->text[shared - common]));
        else
            return unknown(id, text, own, common);
    }
    return ST_OK;
}
