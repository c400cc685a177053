/* Reading JSON: jansson's strict parser, with our messages. */
#include "lib/base/base.h"

#include <ctype.h>
#include <string.h>

static Status parse(const char *text, size_t len, const char *where, json_t **root, bool *overflow) {
    json_error_t error;
    *root = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    *overflow = !*root && json_error_code(&error) == json_error_numeric_overflow;
    if (*root) return ST_OK;
    Status code = json_error_code(&error) == json_error_out_of_memory ? ST_RESOURCE : ST_INPUT;
    return status_fail(code, "cannot parse JSON of '%s': line %d, column %d: %s", where, MAX(error.line, 1), MAX(error.column, 0), error.text);
}

Status json_read_text(const char *text, size_t len, const char *where, json_t **root) {
    bool overflow;
    return parse(text, len, where, root, &overflow);
}

/* Bytes of a string or of a number at `text`, else 1. */
static size_t token_length(const char *text, size_t len) {
    size_t n = 1;
    if (*text == '"') {
        while (n < len && text[n] != '"') n += text[n] == '\\' ? 2 : 1;
        return MIN(n + 1, len);
    }
    if (!isdigit((unsigned char)*text)) return 1;
    while (n < len && text[n] && strchr("0123456789.eE+-", text[n])) n++;
    return n;
}

/* The same text with integers of more than 18 digits as reals. */
static void widen_integers(const char *text, size_t len, Str *wide) {
    for (size_t at = 0, n; at < len; at += n) {
        n = token_length(text + at, len - at);
        str_append_n(wide, text + at, n);
        bool whole = n > 18 && isdigit((unsigned char)text[at]);
        for (size_t i = 0; whole && i < n; i++) whole = isdigit((unsigned char)text[at + i]);
        if (whole) str_append(wide, ".0");
    }
}

Status json_read_file(const char *path, json_t **root) {
    *root = NULL;
    Mapping mapping;
    bool overflow;
    TRY(file_map(path, &mapping));
    const char *text = mapping.data ? (const char *)mapping.data : "";
    Status status = parse(text, mapping.size, path, root, &overflow);
    if (overflow) {
        Str wide = {0};
        widen_integers(text, mapping.size, &wide);
        status = parse(str_text(&wide), wide.len, path, root, &overflow);
        str_release(&wide);
    }
    file_unmap(&mapping);
    return status;
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
