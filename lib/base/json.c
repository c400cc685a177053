/* SPDX-License-Identifier: Apache-2.0 */
/* Reading JSON with jansson's strict parser and our own messages. */
#include "lib/base/file.h"
#include "lib/base/json.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* jansson's message, except those that are meant for programmers. */
static const char *words_of(const json_error_t *error) {
    return strstr(error->text, "JSON_ALLOW_NUL") ? "the NUL character, \\u0000, has no place in texts" : error->text;
}

static Status no_memory(const char *where) {
    status_fail(ST_RESOURCE, "out of memory for the JSON of '%s'", where);
    return status_hint(ST_RESOURCE, "free some memory");
}

static Status base_json_parse(const char *text, size_t len, const char *where, json_t **root, bool *overflow) {
    json_error_t error;
    *root = json_parse(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    *overflow = !*root && json_error_code(&error) == json_error_numeric_overflow;
    if (*root) return ST_OK;
    if (json_error_code(&error) == json_error_out_of_memory) return no_memory(where);
    return status_fail(ST_INPUT, "cannot parse JSON of '%s': line %d, column %d: %s", where, MAX(error.line, 1), MAX(error.column, 0),
                       words_of(&error));
}

Status json_read_line(const char *text, size_t len, const char *file, size_t line, json_t **root) {
    json_error_t error;
    *root = json_parse(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    return *root ? ST_OK : json_line_fault(file, line, &error);
}

Status json_line_fault(const char *file, size_t line, const json_error_t *error) {
    if (json_error_code(error) == json_error_out_of_memory) return status_prefix(no_memory(file), "line %zu", line);
    return status_fail(ST_INPUT, "cannot parse JSON of '%s' line %zu, column %d: %s", file, line, MAX(error->column, 0), words_of(error));
}

json_t *json_of_text(const char *text, size_t len, size_t flags) {
    json_t *json = json_parse(text, len, flags, NULL);
    return json ? json : json_parse(text, len, flags | JSON_DECODE_INT_AS_REAL, NULL);
}

Status json_read_text(const char *text, size_t len, const char *where, json_t **root) {
    bool overflow;
    return base_json_parse(text, len, where, root, &overflow);
}

/* Length of the string or number at `text`, else 1. */
static size_t token_length(const char *text, size_t len) {
    size_t n = 1;
    if (*text == '"') {
        while (n < len && text[n] != '"') n += text[n] == '\\' ? 2 : 1;
        return MIN(n + 1, len);
    }
    if (!isdigit((unsigned char)*text) && !(*text == '-' && len > 1 && isdigit((unsigned char)text[1]))) return 1;
    while (n < len && text[n] && strchr("0123456789.eE+-", text[n])) n++;
    return n;
}

/* Whether the number exceeds double or, with `integers`, 64 bits. */
static bool beyond(const char *token, size_t n, bool integers) {
    Str text = {0};
    str_append_n(&text, token, n);
    errno = 0;
    bool found = integers ? (strtoll(str_text(&text), NULL, 10), errno == ERANGE) : isinf(strtod(str_text(&text), NULL));
    str_release(&text);
    return found;
}

/* Copies the text with integers beyond 64 bits as reals and, with `quote`, numbers beyond double as strings. */
static void widen_numbers(const char *text, size_t len, bool quote, Str *wide) {
    for (size_t at = 0, n; at < len; at += n) {
        const char *token = text + at;
        n = token_length(token, len - at);
        size_t sign = *token == '-', digits = sign;
        while (digits < n && isdigit((unsigned char)token[digits])) digits++;
        bool quoted = quote && digits > sign && beyond(token, n, false);
        str_append(wide, quoted ? "\"" : "");
        str_append_n(wide, token, n);
        str_append(wide, quoted ? "\"" : digits == n && n - sign > 18 && beyond(token, n, true) ? ".0" : "");
    }
}

/* Numbers that Python's json writes although JSON has no such numbers. */
static const char *const bare_names[] = {"Infinity", "-Infinity", "NaN"};

/* The one that `text` begins with; NULL: none. */
static const char *find_bare(const char *text, size_t len) {
    for (size_t i = 0; i < COUNT_OF(bare_names); i++) {
        size_t n = strlen(bare_names[i]);
        bool found = n <= len && memcmp(text, bare_names[i], n) == 0;
        if (found && (n == len || !(isalnum((unsigned char)text[n]) || text[n] == '_'))) return bare_names[i];
    }
    return NULL;
}

/* Copies the text with objects in place of bare names. Returns the number of replacements. */
static size_t wrap_bare(const char *text, size_t len, bool bare, Str *wrapped) {
    size_t found = 0;
    for (size_t at = 0, n; at < len; at += n) {
        const char *name = at > 0 && isalnum((unsigned char)text[at - 1]) ? NULL : find_bare(text + at, len - at);
        n = name ? strlen(name) : token_length(text + at, len - at);
        if (name)
            str_printf(wrapped, "{\"__float__\": \"%s\"%s}", name, bare ? ", \"bare\": true" : "");
        else
            str_append_n(wrapped, text + at, n);
        found += name != NULL;
    }
    return found;
}

static Status parse_file(const char *text, size_t len, const char *path, json_t **root) {
    bool overflow;
    Status status = base_json_parse(text, len, path, root, &overflow);
    if (!overflow) return status;
    Str wide = {0};
    widen_numbers(text, len, false, &wide);
    status = base_json_parse(str_text(&wide), wide.len, path, root, &overflow);
    str_release(&wide);
    return status;
}

Status json_read_config_text(const char *text, size_t len, const char *where, bool bare, json_t **root) {
    *root = NULL;
    Str wrapped = {0};
    Status status =
        wrap_bare(text, len, bare, &wrapped) ? parse_file(str_text(&wrapped), wrapped.len, where, root) : parse_file(text, len, where, root);
    str_release(&wrapped);
    return status;
}

static Status read_mapped(const char *path, bool config, bool bare, json_t **root) {
    *root = NULL;
    Mapping mapping;
    TRY(file_map(path, &mapping));
    const char *text = mapping.data ? (const char *)mapping.data : "";
    Status status = config ? json_read_config_text(text, mapping.size, path, bare, root) : parse_file(text, mapping.size, path, root);
    file_unmap(&mapping);
    return status;
}

Status json_read_file(const char *path, json_t **root) { return read_mapped(path, false, false, root); }

Status json_read_config(const char *path, bool bare, json_t **root) { return read_mapped(path, true, bare, root); }

static const char *float_name(const json_t *value) {
    const char *name = json_string_value(json_object_get(value, "__float__"));
    for (size_t i = 0; name && i < COUNT_OF(bare_names); i++)
        if (strcmp(name, bare_names[i]) == 0) return bare_names[i];
    return NULL;
}

bool json_float(const json_t *value, double *number) {
    const char *name = float_name(value);
    if (name)
        *number = strcmp(name, "NaN") == 0 ? (double)NAN : *name == '-' ? -(double)INFINITY : (double)INFINITY;
    else if (json_is_number(value))
        *number = json_number_value(value);
    return name || json_is_number(value);
}

const char *json_bare(const json_t *value) { return json_is_true(json_object_get(value, "bare")) ? float_name(value) : NULL; }

json_t *json_load_row(const char *text, size_t len, bool widen, json_error_t *error) {
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_t *row = json_parse(text, len, flags, error);
    if (row || !widen || json_error_code(error) != json_error_numeric_overflow) return row;
    Str wide = {0};
    widen_numbers(text, len, true, &wide);
    row = json_parse(str_text(&wide), wide.len, flags, error);
    str_release(&wide);
    return row;
}

bool json_contains_wide(const json_t *value) {
    const char *key;
    json_t *inner;
    size_t i;
    bool found = json_is_real(value) && fabs(json_real_value(value)) >= 0x1p63;
    if (json_is_object(value))
        json_object_foreach((json_t *)(uintptr_t)value, key, inner) found = found || json_contains_wide(inner);
    else
        json_array_foreach(value, i, inner) found = found || json_contains_wide(inner);
    return found;
}

bool json_contains_nul(const json_t *value) {
    const char *key;
    json_t *inner;
    size_t i;
    bool found = json_is_string(value) && strlen(json_string_value(value)) != json_string_length(value);
    if (json_is_object(value)) json_object_foreach((json_t *)(uintptr_t)value, key, inner) found = found || json_contains_nul(inner);
    for (i = 0; i < json_array_size(value) && !found; i++) found = json_contains_nul(json_array_get(value, i));
    return found;
}

static const char *kind_name(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "true or false";
    default: return "null";
    }
}

/* The member `key`; NULL when it is missing or null. */
static json_t *member(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    return value && !json_is_null(value) ? value : NULL;
}

static Status wrong_kind(const char *where, const char *key, const char *expected, const json_t *got) {
    return status_fail(ST_INPUT, "wrong type of '%s' in '%s': expected %s, got %s", key, where, expected, kind_name(got));
}

Status json_get_int(const json_t *object, const char *where, const char *key, int64_t *value) {
    json_t *got = member(object, key);
    if (!got) return ST_OK;
    if (!json_is_integer(got)) return wrong_kind(where, key, "an integer", got);
    *value = json_integer_value(got);
    return ST_OK;
}

Status json_get_double(const json_t *object, const char *where, const char *key, double *value) {
    json_t *got = member(object, key);
    if (!got) return ST_OK;
    if (float_name(got)) return status_fail(ST_INPUT, "wrong '%s' in '%s': expected a finite number, got %s", key, where, float_name(got));
    if (!json_is_number(got)) return wrong_kind(where, key, "a number", got);
    *value = json_number_value(got);
    return ST_OK;
}

Status json_get_bool(const json_t *object, const char *where, const char *key, bool *value) {
    json_t *got = member(object, key);
    if (!got) return ST_OK;
    if (!json_is_boolean(got)) return wrong_kind(where, key, "true or false", got);
    *value = json_is_true(got);
    return ST_OK;
}

Status json_get_string(const json_t *object, const char *where, const char *key, const char **value) {
    json_t *got = member(object, key);
    if (!got) return ST_OK;
    if (!json_is_string(got)) return wrong_kind(where, key, "a string", got);
    *value = json_string_value(got);
    return ST_OK;
}

json_t *json_real_or_null(double value) { return isfinite(value) ? json_real(value) : json_null(); }

double json_real_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}
