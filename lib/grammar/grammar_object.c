/* SPDX-License-Identifier: Apache-2.0 */
/* Objects and arrays of a JSON Schema. Members come in the order of `properties`, so that a program needs no memory of those that were there. */
#include "lib/grammar/grammar_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- names of further members: any but those of `properties` ---- */

/* Names that begin with the same characters, sorted by their bytes. */
typedef struct Names {
    const char **items;
    size_t n;
} Names;

static int name_order(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* The rest of a name after `at` bytes, which those of `names` have in common, with the quote that ends it. One that differs goes on in any way. */
static Status build_other_name(Builder *b, Names names, size_t at, int32_t rest, int32_t end, int32_t *start) {
    CharSet others = {0};
    int32_t ways = 0;
    bool complete = false;
    Status status = ST_OK;
    for (size_t i = 0, same; i < names.n && status == ST_OK; i += same) {
        uint32_t c;
        size_t len = utf8_decode(names.items[i] + at, strlen(names.items[i] + at), &c);
        for (same = 1; len > 0 && i + same < names.n && strncmp(names.items[i] + at, names.items[i + same] + at, len) == 0; same++) continue;
        complete |= len == 0;
        if (len == 0) continue;
        int32_t way;
        CharRange only = {c, c};
        status = charset_add(&others, c, c);
        if (status == ST_OK) status = build_other_name(b, (Names){names.items + i, same}, at + len, rest, end, &way);
        if (status != ST_OK) break;
        way = build_charset(b, &(CharSet){&only, 1, 0}, true, way);
        ways = ways ? build_split(b, way, ways) : way;
    }
    if (status == ST_OK) status = charset_invert(&others);
    if (status == ST_OK) {
        int32_t way = build_charset(b, &others, true, rest);
        if (!complete) way = build_split(b, way, end);
        *start = ways ? build_split(b, way, ways) : way;
    }
    charset_release(&others);
    return status == ST_OK ? b->status : status;
}

/* A name that `properties` lacks, with its quotes. */
static Status build_further_name(SchemaBuilder *s, const json_t *properties, int32_t next, int32_t *start) {
    Builder *b = s->b;
    const char *key;
    json_t *value;
    size_t longest = 0;
    Names names = {calloc(json_object_size(properties) + 1, sizeof *names.items), 0};
    if (!names.items) return status_fail(ST_RESOURCE, "out of memory for the names of members");
    json_object_foreach((json_t *)(uintptr_t)properties, key, value) {
        longest = MAX(longest, strlen(key));
        names.items[names.n++] = key;
    }
    qsort(names.items, names.n, sizeof *names.items, name_order);
    int32_t end = build_text(b, "\"", 1, next), rest = build_characters(b, 0, -1, end), inner = 0;
    Status status = longest > 1000 ? schema_fault(s, "'additionalProperties' next to a name of %zu bytes is not supported", longest)
                                   : build_other_name(b, names, 0, rest, end, &inner);
    free(names.items);
    *start = build_text(b, "\"", 1, inner);
    return status;
}

/* ---- objects ---- */

typedef struct ObjectForm {
    const json_t *properties, *additional;
    json_t *required; /* the names are its keys; the form's own */
    int32_t close;
} ObjectForm;

static Status read_object(const SchemaBuilder *s, const json_t *schema, ObjectForm *form) {
    const json_t *required = json_object_get(schema, "required");
    form->properties = json_object_get(schema, "properties");
    form->additional = json_object_get(schema, "additionalProperties");
    if (form->properties && !json_is_object(form->properties)) return schema_fault(s, "'properties' must be an object");
    if (required && !json_is_array(required)) return schema_fault(s, "'required' must be a list");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (!name) return schema_fault(s, "'required' must be a list of names");
        if (!json_object_get(form->properties, name)) return schema_fault(s, "'%s' is required, but not in 'properties'", name);
        if (json_object_set_new(form->required, name, json_true())) return status_fail(ST_RESOURCE, "out of memory for the names of members");
    }
    return ST_OK;
}

/* Further members from here on; *first: where the first one begins, *after: after a member. */
static Status build_further(SchemaBuilder *s, ObjectForm *form, int32_t *first, int32_t *after) {
    Builder *b = s->b;
    bool any = !form->additional && !form->properties;
    *first = 0;
    *after = form->close;
    if (json_is_false(form->additional) || (!form->additional && !any)) return b->status;
    *after = build_split(b, 0, form->close);
    int32_t value;
    if (any)
        value = build_value(b, *after);
    else
        TRY(schema_build_at(s, form->additional, *after, &value, "/additionalProperties"));
    TRY(build_further_name(s, form->properties, build_text(b, ":", 1, build_space(b, value)), first));
    build_join(b, *after, build_text(b, ",", 1, build_space(b, *first)));
    return b->status;
}

/* The members from the last to the first. `after`: where it goes on after one, `none`: without any. */
static Status build_members_of(SchemaBuilder *s, const ObjectForm *form, const char *const *names, size_t n, int32_t after, int32_t none,
                               int32_t *start) {
    Builder *b = s->b;
    for (size_t i = n; i-- > 0;) {
        int32_t value;
        TRY(schema_build_at(s, json_object_get(form->properties, names[i]), after, &value, "/properties/%s", names[i]));
        int32_t member = build_space(b, build_quoted(b, names[i], strlen(names[i]), build_text(b, ":", 1, build_space(b, value))));
        int32_t another = build_text(b, ",", 1, member);
        bool required = json_object_get(form->required, names[i]);
        after = required ? another : build_split(b, another, after);
        none = required ? member : build_split(b, member, none);
    }
    *start = build_text(b, "{", 1, none);
    return b->status;
}

static Status build_form(SchemaBuilder *s, const json_t *schema, ObjectForm *form, int32_t next, int32_t *start) {
    int32_t first, after;
    const char *key;
    json_t *unused;
    TRY(read_object(s, schema, form));
    form->close = build_space(s->b, build_text(s->b, "}", 1, next));
    TRY(build_further(s, form, &first, &after));
    int32_t none = first ? build_split(s->b, build_space(s->b, first), form->close) : form->close;
    const char **names = calloc(json_object_size(form->properties) + 1, sizeof *names);
    if (!names) return status_fail(ST_RESOURCE, "out of memory for the members of an object");
    size_t n = 0;
    json_object_foreach((json_t *)(uintptr_t)form->properties, key, unused) names[n++] = key;
    Status status = build_members_of(s, form, names, n, after, none, start);
    free(names);
    return status;
}

Status build_object(SchemaBuilder *s, const json_t *schema, int32_t next, int32_t *start) {
    ObjectForm form = {.required = json_object()};
    if (!form.required) return status_fail(ST_RESOURCE, "out of memory for the names of members");
    Status status = build_form(s, schema, &form, next, start);
    json_decref(form.required);
    return status;
}

/* ---- arrays ---- */

typedef struct ArrayForm {
    const json_t *prefix, *items; /* items NULL: any value */
    int64_t least, most;          /* most < 0: no limit */
    int32_t rule;                 /* of items, where they are counted; -1: not yet */
    int32_t close;
} ArrayForm;

static Status read_array(const SchemaBuilder *s, const json_t *schema, ArrayForm *form) {
    *form = (ArrayForm){.prefix = json_object_get(schema, "prefixItems"), .items = json_object_get(schema, "items"), .most = -1, .rule = -1};
    TRY(schema_count(s, schema, "minItems", &form->least));
    TRY(schema_count(s, schema, "maxItems", &form->most));
    if (form->prefix && !json_is_array(form->prefix)) return schema_fault(s, "'prefixItems' must be a list");
    if (json_is_array(form->items)) return schema_fault(s, "'items' must be a schema; a list of schemas is 'prefixItems'");
    if (json_is_false(form->items)) {
        int64_t n = (int64_t)json_array_size(form->prefix);
        form->most = form->most < 0 ? n : MIN(form->most, n);
    }
    if (form->most >= 0 && form->most < form->least) return schema_fault(s, "there can be no array of so many elements");
    return ST_OK;
}

static Status build_item(SchemaBuilder *s, const ArrayForm *form, int32_t next, int32_t *start) {
    if (form->items) return schema_build_at(s, form->items, next, start, "/items");
    *start = build_value(s->b, next);
    return s->b->status;
}

/* An element whose schema is built once for all places. */
static Status call_item(SchemaBuilder *s, ArrayForm *form, int32_t next, int32_t *start) {
    if (form->rule < 0) {
        int32_t at, rule = form->rule = build_rule(s->b);
        TRY(build_item(s, form, build_return(s->b), &at));
        build_rule_start(s->b, rule, at);
    }
    *start = build_call(s->b, form->rule, false, next);
    return s->b->status;
}

Status build_array(SchemaBuilder *s, const json_t *schema, int32_t next, int32_t *start) {
    Builder *b = s->b;
    ArrayForm form;
    TRY(read_array(s, schema, &form));
    form.close = build_space(b, build_text(b, "]", 1, next));
    int64_t n_prefix = (int64_t)json_array_size(form.prefix), counted = form.most < 0 ? MAX(form.least, n_prefix) : form.most;
    if (form.most < 0 && n_prefix == 0 && form.least == 1) counted = 0; /* the first element is like all others */
    bool more = form.most < 0;                                          /* there may be an element after those that are counted */
    int32_t item = 0;                                                   /* the next one */
    if (more) {
        int32_t loop = build_split(b, 0, form.close);
        TRY(counted > n_prefix ? call_item(s, &form, loop, &item) : build_item(s, &form, loop, &item));
        build_join(b, loop, build_text(b, ",", 1, build_space(b, item)));
    }
    for (int64_t i = counted; i > 0 && b->status == ST_OK; i--, more = true) {
        int32_t another = more ? build_text(b, ",", 1, build_space(b, item)) : 0;
        int32_t after = i < form.least ? another : build_split(b, another, form.close);
        if (i > n_prefix)
            TRY(call_item(s, &form, after, &item));
        else
            TRY(schema_build_at(s, json_array_get(form.prefix, (size_t)i - 1), after, &item, "/prefixItems/%lld", (long long)i - 1));
    }
    int32_t inner = more ? build_space(b, item) : form.close;
    if (more && form.least == 0) inner = build_split(b, inner, form.close);
    *start = build_text(b, "[", 1, inner);
    return b->status;
}
