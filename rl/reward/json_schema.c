/* SPDX-License-Identifier: Apache-2.0 */
#include "rl/reward/json_schema.h"
#include "lib/base/regex.h"

#include <math.h>
#include <string.h>

enum { MAX_STEPS = 1000000 }; /* limit of steps of a pattern on a text */

/* Checks of the values of keywords. */
typedef enum Takes { A_SCHEMA, SCHEMAS, SCHEMA_MAP, COUNT, NUMBER, TRUTH, NAMES, TYPES, VALUES, VALUE, PATTERN, IGNORED } Takes;
static const struct {
    const char *name;
    Takes takes;
} keywords[] = {
    {"type", TYPES},
    {"enum", VALUES},
    {"const", VALUE},
    {"properties", SCHEMA_MAP},
    {"required", NAMES},
    {"additionalProperties", A_SCHEMA},
    {"minProperties", COUNT},
    {"maxProperties", COUNT},
    {"items", A_SCHEMA},
    {"minItems", COUNT},
    {"maxItems", COUNT},
    {"uniqueItems", TRUTH},
    {"minimum", NUMBER},
    {"maximum", NUMBER},
    {"exclusiveMinimum", NUMBER},
    {"exclusiveMaximum", NUMBER},
    {"multipleOf", NUMBER},
    {"minLength", COUNT},
    {"maxLength", COUNT},
    {"pattern", PATTERN},
    {"allOf", SCHEMAS},
    {"anyOf", SCHEMAS},
    {"oneOf", SCHEMAS},
    {"not", A_SCHEMA},
    {"title", IGNORED},
    {"description", IGNORED},
    {"default", IGNORED},
    {"examples", IGNORED},
    {"$comment", IGNORED},
    {"$schema", IGNORED},
    {"$id", IGNORED},
};
static const char *const types[] = {"null", "boolean", "object", "array", "number", "string", "integer"};

/* ---- checking the schema ---- */

static Status wrong(const char *where, const char *name, const char *expected) {
    return status_fail(ST_CONFIG, "keyword '%s' in %s is wrong: expected %s", name, where, expected);
}

static bool is_type(const json_t *node) {
    for (size_t i = 0; i < COUNT_OF(types); i++)
        if (json_is_string(node) && strcmp(json_string_value(node), types[i]) == 0) return true;
    return false;
}

/* A list of items that `good` accepts, or, where allowed, a single such item. */
static bool all_are(const json_t *node, bool single, bool (*good)(const json_t *)) {
    if (!json_is_array(node)) return single && good(node);
    for (size_t i = 0; i < json_array_size(node); i++)
        if (!good(json_array_get(node, i))) return false;
    return true;
}

static bool is_text(const json_t *node) { return json_is_string(node); }

static Status check_pattern(const json_t *node, const char *where) {
    RegexFault fault;
    if (!json_is_string(node)) return wrong(where, "pattern", "a regular expression");
    Regex *regex = regex_new(json_string_value(node), REGEX_UNICODE | REGEX_ONCE, MAX_STEPS, &fault);
    regex_free(regex);
    return regex ? ST_OK
                 : status_fail(ST_CONFIG, "cannot read pattern '%s' in %s: wrong at character %zu: %s", json_string_value(node), where, fault.at,
                               fault.reason);
}

static Status check_schemas(const json_t *list, const char *name, const char *where) {
    if (!json_is_array(list) || json_array_size(list) == 0) return wrong(where, name, "a list of schemas");
    for (size_t i = 0; i < json_array_size(list); i++) TRY(schema_check(json_array_get(list, i), where));
    return ST_OK;
}

static Status check_map(const json_t *map, const char *name, const char *where) {
    const char *key;
    json_t *value;
    if (!json_is_object(map)) return wrong(where, name, "schemas by name");
    json_object_foreach((json_t *)(uintptr_t)map, key, value) TRY(schema_check(value, where));
    return ST_OK;
}

static Status check_keyword(const char *name, Takes takes, const json_t *node, const char *where) {
    switch (takes) {
    case A_SCHEMA: return schema_check(node, where);
    case SCHEMAS: return check_schemas(node, name, where);
    case SCHEMA_MAP: return check_map(node, name, where);
    case COUNT: return json_is_integer(node) && json_integer_value(node) >= 0 ? ST_OK : wrong(where, name, "a whole number of at least 0");
    case NUMBER:
        return json_is_number(node) && (strcmp(name, "multipleOf") != 0 || json_number_value(node) > 0)
                   ? ST_OK
                   : wrong(where, name, "a number (multipleOf: above 0)");
    case TRUTH: return json_is_boolean(node) ? ST_OK : wrong(where, name, "true or false");
    case NAMES: return all_are(node, false, is_text) ? ST_OK : wrong(where, name, "a list of names");
    case TYPES:
        return all_are(node, true, is_type) ? ST_OK : wrong(where, name, "null, boolean, object, array, number, string, integer, or a list of these");
    case VALUES: return json_is_array(node) ? ST_OK : wrong(where, name, "a list of values");
    case PATTERN: return check_pattern(node, where);
    case VALUE:
    case IGNORED: return ST_OK;
    }
    return ST_OK;
}

static Status unsupported(const char *name, const char *where) {
    const char *names[COUNT_OF(keywords)];
    for (size_t i = 0; i < COUNT_OF(keywords); i++) names[i] = keywords[i].name;
    status_fail(ST_CONFIG, "keyword '%s' in %s is not supported", name, where);
    return status_hint_nearest(ST_CONFIG, name, names, COUNT_OF(keywords), "supported are ");
}

Status schema_check(const json_t *schema, const char *where) {
    const char *name;
    json_t *node;
    if (json_is_boolean(schema)) return ST_OK;
    if (!json_is_object(schema)) return status_fail(ST_CONFIG, "%s is wrong: expected keywords, or true or false", where);
    json_object_foreach((json_t *)(uintptr_t)schema, name, node) {
        size_t i = 0;
        while (i < COUNT_OF(keywords) && strcmp(keywords[i].name, name) != 0) i++;
        if (i == COUNT_OF(keywords)) return unsupported(name, where);
        TRY(check_keyword(name, keywords[i].takes, node, where));
    }
    return ST_OK;
}

/* ---- checking a value ---- */

typedef struct Fitting {
    bool undecided; /* a pattern took too many steps: the result is unknown */
} Fitting;
static bool fits(Fitting *fitting, const json_t *schema, const json_t *value);

static const json_t *keyword(const json_t *schema, const char *name) { return json_object_get(schema, name); }

/* Whether a count or length is within `at_least` and `at_most`, if given. */
static bool within(const json_t *schema, const char *at_least, const char *at_most, size_t n) {
    const json_t *low = keyword(schema, at_least), *high = keyword(schema, at_most);
    return !(low && n < (size_t)json_integer_value(low)) && !(high && n > (size_t)json_integer_value(high));
}

static bool is_whole(const json_t *value) {
    return json_is_integer(value) || (json_is_real(value) && json_real_value(value) == floor(json_real_value(value)));
}

static bool has_type(const json_t *value, const char *type) {
    if (strcmp(type, "integer") == 0) return is_whole(value);
    if (strcmp(type, "number") == 0) return json_is_number(value);
    if (strcmp(type, "string") == 0) return json_is_string(value);
    if (strcmp(type, "object") == 0) return json_is_object(value);
    if (strcmp(type, "array") == 0) return json_is_array(value);
    return strcmp(type, "boolean") == 0 ? json_is_boolean(value) : json_is_null(value);
}

/* Numbers are equal by value: 1 is 1.0. */
static bool equal(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    if (json_is_array(a) && json_is_array(b)) {
        bool same = json_array_size(a) == json_array_size(b);
        for (size_t i = 0; i < json_array_size(a) && same; i++) same = equal(json_array_get(a, i), json_array_get(b, i));
        return same;
    }
    if (json_is_object(a) && json_is_object(b)) {
        const char *key;
        json_t *value;
        if (json_object_size(a) != json_object_size(b)) return false;
        json_object_foreach((json_t *)(uintptr_t)a, key, value) {
            const json_t *other = json_object_get(b, key);
            if (!other || !equal(value, other)) return false;
        }
        return true;
    }
    return json_equal(a, b);
}

static bool fits_type(const json_t *schema, const json_t *value) {
    const json_t *type = keyword(schema, "type"), *choices = keyword(schema, "enum"), *constant = keyword(schema, "const");
    bool good = !type || json_is_array(type) ? !type : has_type(value, json_string_value(type));
    for (size_t i = 0; i < json_array_size(type) && !good; i++) good = has_type(value, json_string_value(json_array_get(type, i)));
    if (!good || (constant && !equal(constant, value))) return false;
    for (size_t i = 0; i < json_array_size(choices); i++)
        if (equal(json_array_get(choices, i), value)) return true;
    return !choices;
}

static bool fits_number(const json_t *schema, double value) {
    const json_t *low = keyword(schema, "minimum"), *high = keyword(schema, "maximum"), *above = keyword(schema, "exclusiveMinimum"),
                 *below = keyword(schema, "exclusiveMaximum"), *step = keyword(schema, "multipleOf");
    if ((low && value < json_number_value(low)) || (high && value > json_number_value(high)) || (above && value <= json_number_value(above)) ||
        (below && value >= json_number_value(below)))
        return false;
    double times = step ? value / json_number_value(step) : 0;
    return fabs(times - round(times)) <= 1e-9 * MAX(1, fabs(times)); /* with tolerance: 0.3 is not 3 x 0.1 in doubles */
}

static bool fits_pattern(Fitting *fitting, const char *pattern, Slice text) {
    Regex *regex = regex_new(pattern, REGEX_UNICODE | REGEX_ONCE, MAX_STEPS, NULL);
    RegexResult result = regex ? regex_find(regex, text, 0, 0, NULL) : REGEX_UNDECIDED;
    fitting->undecided |= result == REGEX_UNDECIDED;
    regex_free(regex);
    return result == REGEX_FOUND;
}

static bool fits_text(Fitting *fitting, const json_t *schema, const json_t *value) {
    const char *text = json_string_value(value);
    size_t len = json_string_length(value), characters = 0;
    for (size_t i = 0; i < len; i++) characters += ((unsigned char)text[i] & 0xC0) != 0x80;
    const json_t *pattern = keyword(schema, "pattern");
    return within(schema, "minLength", "maxLength", characters) &&
           (!pattern || fits_pattern(fitting, json_string_value(pattern), (Slice){text, len}));
}

static bool all_different(const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++)
        for (size_t k = 0; k < i; k++)
            if (equal(json_array_get(list, i), json_array_get(list, k))) return false;
    return true;
}

static bool fits_list(Fitting *fitting, const json_t *schema, const json_t *value) {
    const json_t *items = keyword(schema, "items");
    if (!within(schema, "minItems", "maxItems", json_array_size(value)) || (json_is_true(keyword(schema, "uniqueItems")) && !all_different(value)))
        return false;
    for (size_t i = 0; i < json_array_size(value) && items; i++)
        if (!fits(fitting, items, json_array_get(value, i))) return false;
    return true;
}

static bool fits_object(Fitting *fitting, const json_t *schema, const json_t *value) {
    const json_t *properties = keyword(schema, "properties"), *required = keyword(schema, "required"),
                 *others = keyword(schema, "additionalProperties");
    const char *key;
    json_t *member;
    if (!within(schema, "minProperties", "maxProperties", json_object_size(value))) return false;
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_object_get(value, json_string_value(json_array_get(required, i)))) return false;
    json_object_foreach((json_t *)(uintptr_t)value, key, member) {
        const json_t *own = json_object_get(properties, key), *rule = own ? own : others;
        if (rule && !fits(fitting, rule, member)) return false;
    }
    return true;
}

static size_t how_many_fit(Fitting *fitting, const json_t *schemas, const json_t *value) {
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(schemas); i++) n += fits(fitting, json_array_get(schemas, i), value);
    return n;
}

static bool fits(Fitting *fitting, const json_t *schema, const json_t *value) {
    if (json_is_boolean(schema)) return json_is_true(schema);
    if (!fits_type(schema, value)) return false;
    if (json_is_number(value) && !fits_number(schema, json_number_value(value))) return false;
    if (json_is_string(value) && !fits_text(fitting, schema, value)) return false;
    if (json_is_array(value) && !fits_list(fitting, schema, value)) return false;
    if (json_is_object(value) && !fits_object(fitting, schema, value)) return false;
    const json_t *all = keyword(schema, "allOf"), *any = keyword(schema, "anyOf"), *one = keyword(schema, "oneOf"), *not = keyword(schema, "not");
    return (!all || how_many_fit(fitting, all, value) == json_array_size(all)) && (!any || how_many_fit(fitting, any, value) > 0) &&
           (!one || how_many_fit(fitting, one, value) == 1) && (!not || !fits(fitting, not, value));
}

SchemaFit schema_fits(const json_t *schema, const json_t *value) {
    Fitting fitting = {0};
    bool fit = fits(&fitting, schema, value);
    return fitting.undecided ? SCHEMA_UNDECIDED : fit ? SCHEMA_FITS : SCHEMA_DIFFERS;
}
