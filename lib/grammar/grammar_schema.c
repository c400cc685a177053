/* SPDX-License-Identifier: Apache-2.0 */
/* JSON Schema to a program. What is not supported is refused by its name and place, so that no schema is followed by halves. */
#include "lib/grammar/grammar_parts.h"

#include <stdlib.h>
#include <string.h>

/* Keywords that say nothing about the value. */
static const char *const notes[] = {"title",   "description", "default",     "examples", "example",   "$schema",    "$id",          "$comment",
                                    "$anchor", "$defs",       "definitions", "readOnly", "writeOnly", "deprecated", "discriminator"};
/* Keywords that bound values of one type. */
static const char *const bounds[] = {
    "type",    "properties", "required",         "additionalProperties", "items",     "prefixItems", "minItems", "maxItems",
    "minimum", "maximum",    "exclusiveMinimum", "exclusiveMaximum",     "minLength", "maxLength",   "pattern",  "format"};
static const char supported[] =
    "supported are type, properties, required, additionalProperties, items, prefixItems, minItems, maxItems, enum, const, anyOf, oneOf, $ref, minLength, "
    "maxLength, pattern, format, minimum, maximum, exclusiveMinimum and exclusiveMaximum";

enum { MOST_APART = 256 }; /* schemas of a oneOf, each of which is compared with each other */
enum { TYPE_OBJECT = 1, TYPE_ARRAY = 2, TYPE_STRING = 4, TYPE_NUMBER = 8, TYPE_INTEGER = 16, TYPE_BOOLEAN = 32, TYPE_NULL = 64 };
static const struct {
    const char *name;
    int type;
} types[] = {{"object", TYPE_OBJECT},   {"array", TYPE_ARRAY},     {"string", TYPE_STRING}, {"number", TYPE_NUMBER},
             {"integer", TYPE_INTEGER}, {"boolean", TYPE_BOOLEAN}, {"null", TYPE_NULL}};

Status schema_fault(const SchemaBuilder *s, const char *format, ...) {
    Str text = {0};
    va_list args;
    va_start(args, format);
    str_vprintf(&text, format, args);
    va_end(args);
    Status status = status_fail(ST_INPUT, "the schema at '#%s': %s", str_text(&s->path), str_text(&text));
    str_release(&text);
    return status;
}

static bool named(const char *const *names, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

/* Each keyword of the schema says nothing, is `keyword`, or with `typed` bounds values of a type. */
static Status check_keywords(const SchemaBuilder *s, const json_t *schema, const char *keyword, bool typed) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value) {
        if (named(notes, COUNT_OF(notes), key) || (keyword && strcmp(key, keyword) == 0)) continue;
        bool bounds_type = named(bounds, COUNT_OF(bounds), key);
        if (bounds_type && typed) continue;
        if ((strcmp(key, "uniqueItems") == 0 || strcmp(key, "nullable") == 0) && json_is_false(value)) continue;
        bool known = bounds_type || named((const char *const[]){"enum", "const", "anyOf", "$ref", "allOf"}, 5, key);
        if (known)
            schema_fault(s, "'%s' next to '%s' is not supported", key, keyword ? keyword : "type");
        else
            schema_fault(s, "'%s' is not supported", key);
        return status_hint(ST_INPUT, "%s", supported);
    }
    return ST_OK;
}

Status schema_count(const SchemaBuilder *s, const json_t *schema, const char *key, int64_t *count) {
    const json_t *value = json_object_get(schema, key);
    if (!value) return ST_OK;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= 0) || number > INT32_MAX || number != (double)(int64_t)number)
        return schema_fault(s, "'%s' must be a whole number of 0 or more", key);
    *count = (int64_t)number;
    return ST_OK;
}

/* ---- types ---- */

static int type_named(const char *name) {
    for (size_t i = 0; name && i < COUNT_OF(types); i++)
        if (strcmp(types[i].name, name) == 0) return types[i].type;
    return 0;
}

/* Where no type is given, that of the keywords. *set 0: any value. */
static Status read_types(const SchemaBuilder *s, const json_t *schema, int *set) {
    static const struct {
        const char *key;
        int type;
    } hints[] = {{"properties", TYPE_OBJECT}, {"required", TYPE_OBJECT},         {"additionalProperties", TYPE_OBJECT},
                 {"items", TYPE_ARRAY},       {"prefixItems", TYPE_ARRAY},       {"minItems", TYPE_ARRAY},
                 {"maxItems", TYPE_ARRAY},    {"minLength", TYPE_STRING},        {"maxLength", TYPE_STRING},
                 {"pattern", TYPE_STRING},    {"format", TYPE_STRING},           {"minimum", TYPE_NUMBER},
                 {"maximum", TYPE_NUMBER},    {"exclusiveMinimum", TYPE_NUMBER}, {"exclusiveMaximum", TYPE_NUMBER}};
    const json_t *type = json_object_get(schema, "type");
    *set = 0;
    for (size_t i = 0; !type && i < COUNT_OF(hints); i++)
        if (json_object_get(schema, hints[i].key)) *set |= hints[i].type;
    if (!type) return ST_OK;
    size_t n = json_is_array(type) ? json_array_size(type) : 1;
    if (n == 0) return schema_fault(s, "'type' is an empty list");
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_is_array(type) ? json_array_get(type, i) : type);
        int one = type_named(name);
        if (one == 0) return schema_fault(s, "unknown type '%s'", name ? name : "that is no text");
        *set |= one;
    }
    return ST_OK;
}

static int type_of(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT: return TYPE_OBJECT;
    case JSON_ARRAY: return TYPE_ARRAY;
    case JSON_STRING: return TYPE_STRING;
    case JSON_INTEGER: return TYPE_INTEGER | TYPE_NUMBER;
    case JSON_REAL: return TYPE_NUMBER;
    case JSON_NULL: return TYPE_NULL;
    default: return TYPE_BOOLEAN;
    }
}

/* ---- strings ---- */

#define DATE "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define NAME_PART "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
static const char *const formats[][2] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
    {"ipv4", "((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"},
    {"hostname", NAME_PART "(\\." NAME_PART "){0,3}"},
    {"email", "[A-Za-z0-9_+-]{1,20}(\\.[A-Za-z0-9_+-]{1,20}){0,2}@" NAME_PART "(\\." NAME_PART "){1,3}"},
};

static Status build_string(SchemaBuilder *s, const json_t *schema, int32_t next, int32_t *start) {
    int64_t least = 0, most = -1;
    Builder *b = s->b;
    const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    TRY(schema_count(s, schema, "minLength", &least));
    TRY(schema_count(s, schema, "maxLength", &most));
    bool counted = least > 0 || most >= 0;
    if (pattern && format) return schema_fault(s, "'format' next to 'pattern' is not supported");
    if ((pattern || format) && counted) {
        schema_fault(s, "'%s' next to 'minLength' or 'maxLength' is not supported", pattern ? "pattern" : "format");
        return status_hint(ST_INPUT, "let the pattern count: ^.{2,10}$");
    }
    if (most >= 0 && most < least) return schema_fault(s, "'maxLength' is less than 'minLength'");
    int32_t close = build_text(b, "\"", 1, next), inner = 0;
    if (pattern) {
        if (!json_is_string(pattern)) return schema_fault(s, "'pattern' must be a text");
        if (build_regex(b, json_string_value(pattern), json_string_length(pattern), false, true, close, &inner) != ST_OK)
            return status_prefix(b->status, "the schema at '#%s'", str_text(&s->path));
    } else if (format) {
        const char *name = json_string_value(format), *known = NULL;
        for (size_t i = 0; name && i < COUNT_OF(formats); i++)
            if (strcmp(formats[i][0], name) == 0) known = formats[i][1];
        if (!known) {
            schema_fault(s, "the format '%s' is not supported", name ? name : "that is no text");
            return status_hint(ST_INPUT, "supported are date, time, date-time, uuid, ipv4, hostname and email; or use 'pattern'");
        }
        TRY(build_regex(b, known, strlen(known), true, true, close, &inner));
    } else {
        inner = build_characters(b, least, most, close);
    }
    *start = build_text(b, "\"", 1, inner);
    return b->status;
}

/* ---- numbers ---- */

/* The tighter of an inclusive bound and one that is left out; sign -1 for upper bounds. */
static Status tighter(const SchemaBuilder *s, const json_t *schema, const char *with, const char *without, double sign, const json_t **bound,
                      bool *left_out) {
    const json_t *in = json_object_get(schema, with), *out = json_object_get(schema, without);
    if ((in && !json_is_number(in)) || (out && !json_is_number(out))) return schema_fault(s, "'%s' and '%s' must be numbers", with, without);
    *left_out = out && (!in || sign * json_number_value(out) >= sign * json_number_value(in));
    *bound = *left_out ? out : in;
    return ST_OK;
}

static Status build_bounded(SchemaBuilder *s, const json_t *schema, bool integer, int32_t next, int32_t *start) {
    NumberBounds of = {.integer = integer};
    TRY(tighter(s, schema, "minimum", "exclusiveMinimum", 1, &of.low, &of.above));
    TRY(tighter(s, schema, "maximum", "exclusiveMaximum", -1, &of.high, &of.below));
    Status status = build_number(s->b, &of, next, start);
    return status == ST_OK ? ST_OK : status_prefix(status, "the schema at '#%s'", str_text(&s->path));
}

/* ---- a value of one of some types ---- */

static Status build_type(SchemaBuilder *s, const json_t *schema, int type, int32_t next, int32_t *start) {
    Builder *b = s->b;
    switch (type) {
    case TYPE_OBJECT: return build_object(s, schema, next, start);
    case TYPE_ARRAY: return build_array(s, schema, next, start);
    case TYPE_STRING: return build_string(s, schema, next, start);
    case TYPE_NUMBER: return build_bounded(s, schema, false, next, start);
    case TYPE_INTEGER: return build_bounded(s, schema, true, next, start);
    case TYPE_NULL: *start = build_text(b, "null", 4, next); return b->status;
    default: *start = build_split(b, build_text(b, "true", 4, next), build_text(b, "false", 5, next)); return b->status;
    }
}

static Status build_typed(SchemaBuilder *s, const json_t *schema, int32_t next, int32_t *start) {
    int set;
    TRY(check_keywords(s, schema, NULL, true));
    TRY(read_types(s, schema, &set));
    if (set == 0) {
        *start = build_value(s->b, next);
        return s->b->status;
    }
    if (set & TYPE_NUMBER) set &= ~TYPE_INTEGER;
    *start = 0;
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        int32_t way = 0;
        if (!(set & types[i].type)) continue;
        TRY(build_type(s, schema, types[i].type, next, &way));
        *start = *start ? build_split(s->b, way, *start) : way;
    }
    return s->b->status;
}

/* ---- given values ---- */

static Status build_literal(SchemaBuilder *s, const json_t *value, int32_t next, int32_t *start) {
    char *text = json_text(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text) return status_fail(ST_RESOURCE, "out of memory for a value of the schema");
    *start = build_text(s->b, text, strlen(text), next);
    free(text);
    return s->b->status;
}

/* The values of the list, or the only one, that have the given type. */
static Status build_given(SchemaBuilder *s, const json_t *schema, const char *keyword, int32_t next, int32_t *start) {
    const json_t *given = json_object_get(schema, keyword);
    bool list = strcmp(keyword, "enum") == 0;
    int set = 0;
    const char *key;
    json_t *unused;
    json_object_foreach((json_t *)(uintptr_t)schema, key, unused) {
        if (strcmp(key, keyword) != 0 && strcmp(key, "type") != 0 && !named(notes, COUNT_OF(notes), key))
            return schema_fault(s, "'%s' next to '%s' is not supported", key, keyword);
    }
    TRY(read_types(s, schema, &set));
    if (list && !json_is_array(given)) return schema_fault(s, "'enum' must be a list");
    *start = 0;
    for (size_t i = 0; i < (list ? json_array_size(given) : 1); i++) {
        const json_t *value = list ? json_array_get(given, i) : given;
        int32_t way = 0;
        if (set && !(set & type_of(value))) continue;
        TRY(build_literal(s, value, next, &way));
        *start = *start ? build_split(s->b, way, *start) : way;
    }
    return s->b->status;
}

/* ---- one of several schemas ---- */

/* One part of a pointer, whose ~1 and ~0 mean / and ~. */
static void pointer_part(const char **pointer, Str *part) {
    const char *p = *pointer;
    str_clear(part);
    for (; *p && *p != '/'; p++) {
        bool escape = *p == '~' && (p[1] == '0' || p[1] == '1');
        p += escape;
        str_append_char(part, escape ? *p == '0' ? '~' : '/' : *p);
    }
    *pointer = p;
}

static const json_t *find_reference(const json_t *root, const char *pointer) {
    Str part = {0};
    const json_t *found = root;
    while (found && *pointer == '/') {
        pointer++;
        pointer_part(&pointer, &part);
        char *end;
        long long index = strtoll(str_text(&part), &end, 10);
        found = json_is_array(found) ? (part.len > 0 && !*end && index >= 0 ? json_array_get(found, (size_t)index) : NULL)
                                     : json_object_get(found, str_text(&part));
    }
    str_release(&part);
    return *pointer ? NULL : found;
}

/* What references lead to; NULL: nothing. */
static const json_t *follow_references(const SchemaBuilder *s, const json_t *schema) {
    for (int i = 0; i < GRAMMAR_DEPTH && json_object_get(schema, "$ref"); i++) {
        const char *name = json_string_value(json_object_get(schema, "$ref"));
        schema = name && *name == '#' ? find_reference(s->root, name + 1) : NULL;
    }
    return schema;
}

static bool same_value(const json_t *a, const json_t *b) {
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b) : json_equal(a, b);
}

static bool has_value(const json_t *schema, const json_t *value) {
    const json_t *list = json_object_get(schema, "enum"), *only = json_object_get(schema, "const");
    bool found = only && same_value(only, value);
    for (size_t i = 0; i < json_array_size(list) && !found; i++) found = same_value(json_array_get(list, i), value);
    return found;
}

/* Both name their values, and no value is one of both. */
static bool values_differ(const json_t *a, const json_t *b) {
    const json_t *list = json_object_get(a, "enum"), *only = json_object_get(a, "const");
    bool differ = (list || only) && (json_object_get(b, "enum") || json_object_get(b, "const")) && !(only && has_value(b, only));
    for (size_t i = 0; i < json_array_size(list) && differ; i++) differ = !has_value(b, json_array_get(list, i));
    return differ;
}

static bool is_required(const json_t *schema, const char *name) {
    const json_t *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *its = json_string_value(json_array_get(list, i));
        if (its && strcmp(its, name) == 0) return true;
    }
    return false;
}

/* Whether it is plain that no value fits both schemas: their types differ, or both are objects that need a member whose values differ. */
static bool are_apart(const SchemaBuilder *s, const json_t *a, const json_t *b) {
    int of_a, of_b;
    const char *name;
    json_t *member;
    a = follow_references(s, a);
    b = follow_references(s, b);
    if (!json_is_object(a) || !json_is_object(b)) return false;
    if (values_differ(a, b)) return true;
    if (read_types(s, a, &of_a) != ST_OK || read_types(s, b, &of_b) != ST_OK || !json_object_get(a, "type") || !json_object_get(b, "type"))
        return false;
    if (of_a & TYPE_NUMBER) of_a |= TYPE_INTEGER;
    if (of_b & TYPE_NUMBER) of_b |= TYPE_INTEGER;
    if (!(of_a & of_b)) return true;
    if (of_a != TYPE_OBJECT || of_b != TYPE_OBJECT) return false;
    const json_t *its = json_object_get(b, "properties");
    json_object_foreach(json_object_get(a, "properties"), name, member) {
        if (is_required(a, name) && is_required(b, name) && values_differ(member, json_object_get(its, name))) return true;
    }
    return false;
}

static bool all_apart(const SchemaBuilder *s, const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++)
        for (size_t k = 0; k < i; k++)
            if (!are_apart(s, json_array_get(list, k), json_array_get(list, i))) return false;
    return true;
}

static Status build_any_of(SchemaBuilder *s, const json_t *schema, const char *keyword, int32_t next, int32_t *start) {
    const json_t *list = json_object_get(schema, keyword);
    TRY(check_keywords(s, schema, keyword, false));
    if (!json_is_array(list) || json_array_size(list) == 0) return schema_fault(s, "'%s' must be a list of schemas", keyword);
    bool one = strcmp(keyword, "oneOf") == 0;
    if (strcmp(keyword, "anyOf") != 0 && json_array_size(list) > 1 && !(one && json_array_size(list) <= MOST_APART && all_apart(s, list))) {
        schema_fault(s, one ? "'%s' of several schemas that one value may fit is not supported" : "'%s' of several schemas is not supported",
                     keyword);
        return status_hint(ST_INPUT, one ? "use anyOf, or let each object require a member with a const of its own"
                                         : "write one schema with the keywords of all");
    }
    *start = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        int32_t way = 0;
        TRY(schema_build_at(s, json_array_get(list, i), next, &way, "/%s/%zu", keyword, i));
        *start = *start ? build_split(s->b, way, *start) : way;
    }
    return s->b->status;
}

/* ---- references ---- */

static Status build_reference(SchemaBuilder *s, const json_t *schema, int32_t next, int32_t *start) {
    const char *name = json_string_value(json_object_get(schema, "$ref"));
    TRY(check_keywords(s, schema, "$ref", false));
    const json_t *target = name && *name == '#' ? find_reference(s->root, name + 1) : NULL;
    if (!target) {
        schema_fault(s, "'$ref' to '%s', which is not in the schema", name ? name : "no text");
        return status_hint(ST_INPUT, "references begin with # and name a part of the same schema, such as #/$defs/NAME");
    }
    size_t i = 0;
    while (i < s->n_rules && s->rules[i].schema != target) i++;
    if (i == s->n_rules) {
        TRY(array_grow(&s->rules, &s->cap_rules, s->n_rules + 1, sizeof *s->rules, "references"));
        SchemaRule rule = {target, build_rule(s->b), strdup(name + 1)};
        if (!rule.path) return status_fail(ST_RESOURCE, "out of memory for a reference");
        s->rules[s->n_rules++] = rule;
    }
    *start = build_call(s->b, s->rules[i].rule, true, next);
    return s->b->status;
}

/* ---- any schema ---- */

Status schema_build(SchemaBuilder *s, const json_t *schema, int32_t next, int32_t *start) {
    *start = 0;
    if (json_is_true(schema)) *start = build_value(s->b, next);
    if (json_is_boolean(schema)) return s->b->status;
    if (!json_is_object(schema)) return schema_fault(s, "a schema must be an object");
    if (s->depth == GRAMMAR_DEPTH) return schema_fault(s, "schemas are more than %d deep within each other", GRAMMAR_DEPTH);
    s->depth++;
    Status status;
    static const char *const choices[] = {"anyOf", "allOf", "oneOf"}, *const values[] = {"const", "enum"};
    const char *keyword = NULL, *given = NULL;
    for (size_t i = 0; i < COUNT_OF(choices) && !keyword; i++) keyword = json_object_get(schema, choices[i]) ? choices[i] : NULL;
    for (size_t i = 0; i < COUNT_OF(values) && !given; i++) given = json_object_get(schema, values[i]) ? values[i] : NULL;
    if (json_object_get(schema, "$ref"))
        status = build_reference(s, schema, next, start);
    else if (given)
        status = build_given(s, schema, given, next, start);
    else if (keyword)
        status = build_any_of(s, schema, keyword, next, start);
    else
        status = build_typed(s, schema, next, start);
    s->depth--;
    return status;
}

Status schema_build_at(SchemaBuilder *s, const json_t *schema, int32_t next, int32_t *start, const char *format, ...) {
    size_t len = s->path.len;
    va_list args;
    va_start(args, format);
    str_vprintf(&s->path, format, args);
    va_end(args);
    Status status = schema_build(s, schema, next, start);
    if (s->path.data) s->path.data[s->path.len = len] = '\0';
    return status;
}

Status schema_open(SchemaBuilder *s, Builder *b, const json_t *root) {
    *s = (SchemaBuilder){.b = b, .root = root};
    return b->status;
}

/* The list grows while it is walked through. */
Status schema_finish(SchemaBuilder *s) {
    for (size_t i = 0; i < s->n_rules; i++) {
        int32_t start;
        str_clear(&s->path);
        TRY(schema_build_at(s, s->rules[i].schema, build_return(s->b), &start, "%s", s->rules[i].path));
        build_rule_start(s->b, s->rules[i].rule, start);
    }
    return s->b->status;
}

void schema_release(SchemaBuilder *s) {
    for (size_t i = 0; i < s->n_rules; i++) free(s->rules[i].path);
    free(s->rules);
    str_release(&s->path);
}

Status grammar_json_schema(const json_t *schema, Grammar **grammar) {
    Builder b;
    SchemaBuilder s;
    int32_t start = 0;
    *grammar = NULL;
    Status status = builder_open(&b, "schema");
    schema_open(&s, &b, schema);
    if (status == ST_OK) status = schema_build(&s, schema, build_return(&b), &start);
    if (status == ST_OK) status = schema_finish(&s);
    schema_release(&s);
    if (b.status == ST_OK) b.status = status;
    return builder_finish(&b, start, grammar);
}
