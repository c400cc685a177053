/* SPDX-License-Identifier: Apache-2.0 */
/* Values with Python's rules: truth, equality, order, and their text as str, repr and json.dumps write it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "lib/text/jinja.h"
#include "lib/text/tokenizer_parts.h"

enum { VALUE_DEPTH = 100 };

/* ---- memory ---- */

void *pool_alloc(Pool *pool, size_t size) {
    enum { CHUNK = 64 << 10 };
    size = (size + 15) & ~(size_t)15;
    if (size > CHUNK / 4) return arena_zero(pool->arena, size);
    if (size > pool->left) {
        pool->next = arena_zero(pool->arena, CHUNK);
        pool->left = pool->next ? CHUNK : 0;
        if (!pool->next) return NULL;
    }
    void *piece = pool->next;
    pool->next += size;
    pool->left -= size;
    return piece;
}

static void *need(Jinja *j, size_t size) {
    void *memory = jinja_ok(j) ? pool_alloc(&j->pool, size) : NULL;
    if (!memory && jinja_ok(j)) jinja_fail(j, "the template needs more than %zu MB of memory", JINJA_MAX_MEMORY >> 20);
    return memory;
}

Value v_string(Jinja *j, const char *bytes, size_t len) {
    char *copy = need(j, len + 1);
    if (!copy) return v_text("");
    if (len) memcpy(copy, bytes, len);
    return v_slice((Slice){copy, len});
}

Value v_str(Jinja *j, Str *text) {
    Value value = v_string(j, str_text(text), text->len);
    str_release(text);
    return value;
}

Value v_list(Jinja *j, ValueType type) {
    Value value = {.type = type, .as.list = need(j, sizeof(List))};
    return value.as.list ? value : v_undefined(NULL);
}

Value v_dict(Jinja *j) {
    Value value = {.type = V_DICT, .as.dict = need(j, sizeof(Dict))};
    return value.as.dict ? value : v_undefined(NULL);
}

void list_push(Jinja *j, Value list, Value item) {
    List *l = is_sequence(list) || list.type == V_VIEW ? list.as.list : NULL;
    if (!l) return;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 8;
        Value *grown = need(j, cap * sizeof *grown);
        if (!grown) return;
        if (l->n) memcpy(grown, l->items, l->n * sizeof *grown);
        l->items = grown;
        l->cap = cap;
    }
    l->items[l->n++] = item;
}

Value *dict_find(Value dict, Value key) {
    if (dict.type != V_DICT && dict.type != V_NAMESPACE) return NULL;
    for (size_t i = 0; i < dict.as.dict->n; i++)
        if (v_equal(NULL, dict.as.dict->pairs[i].key, key)) return &dict.as.dict->pairs[i].value;
    return NULL;
}

static void dict_add(Jinja *j, Value dict, Value key, Value value) {
    if (dict.type != V_DICT && dict.type != V_NAMESPACE) return;
    Dict *d = dict.as.dict;
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 8;
        Pair *grown = need(j, cap * sizeof *grown);
        if (!grown) return;
        if (d->n) memcpy(grown, d->pairs, d->n * sizeof *grown);
        d->pairs = grown;
        d->cap = cap;
    }
    d->pairs[d->n++] = (Pair){key, value};
}

void dict_set(Jinja *j, Value dict, Value key, Value value) {
    Value *old = jinja_charge(j, dict) ? dict_find(dict, key) : NULL;
    if (old)
        *old = value;
    else
        dict_add(j, dict, key, value);
}

static Value from_json(Jinja *j, const json_t *json, int depth) {
    if (depth > VALUE_DEPTH) return jinja_fail(j, "data nested more than %d deep", VALUE_DEPTH);
    switch (json_typeof(json)) {
    case JSON_NULL: return v_none();
    case JSON_TRUE: return v_bool(true);
    case JSON_FALSE: return v_bool(false);
    case JSON_INTEGER: return v_int(json_integer_value(json));
    case JSON_REAL: return v_float(json_real_value(json));
    case JSON_STRING: return v_slice((Slice){json_string_value(json), json_string_length(json)}); /* the caller's data outlives the rendering */
    case JSON_ARRAY: {
        Value list = v_list(j, V_LIST);
        for (size_t i = 0; i < json_array_size(json) && jinja_ok(j); i++) list_push(j, list, from_json(j, json_array_get(json, i), depth + 1));
        return list;
    }
    case JSON_OBJECT: {
        Value dict = v_dict(j);
        const char *key;
        json_t *item;
        json_object_foreach((json_t *)(uintptr_t)json, key, item) {
            if (!jinja_ok(j)) break;
            dict_add(j, dict, v_text(key), from_json(j, item, depth + 1)); /* JSON's keys are unique */
        }
        return dict;
    }
    }
    return v_none();
}

Value v_range(Jinja *j, int64_t start, int64_t stop, int64_t step) {
    Value value = {.type = V_RANGE, .as.range = need(j, sizeof *value.as.range)};
    if (!value.as.range) return v_undefined(NULL);
    uint64_t span = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop,
             by = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    value.as.range->start = start;
    value.as.range->stop = stop;
    value.as.range->step = step;
    value.as.range->n = (step > 0 ? start < stop : start > stop) ? (int64_t)MIN((span - 1) / by + 1, (uint64_t)INT64_MAX) : 0;
    return value;
}

Value v_lazy(Value list) {
    if (list.type == V_LIST) list.type = V_GENERATOR;
    return list;
}

Value v_from_json(Jinja *j, const json_t *json) { return json ? from_json(j, json, 0) : v_none(); }

/* ---- properties of a value ---- */

const char *v_type_name(Value v) {
    static const char *const names[] = {
        [V_UNDEFINED] = "Undefined", [V_NONE] = "NoneType",       [V_BOOL] = "bool",        [V_INT] = "int",          [V_FLOAT] = "float",
        [V_STRING] = "str",          [V_LIST] = "list",           [V_TUPLE] = "tuple",      [V_VIEW] = "dict view",   [V_GENERATOR] = "generator",
        [V_DICT] = "dict",           [V_NAMESPACE] = "Namespace", [V_RANGE] = "range",      [V_LOOP] = "LoopContext", [V_CYCLER] = "Cycler",
        [V_JOINER] = "Joiner",       [V_MACRO] = "Macro",         [V_BUILTIN] = "function", [V_METHOD] = "method",
    };
    return names[v.type];
}

bool v_truth(Jinja *j, Value v) {
    (void)j;
    switch (v.type) {
    case V_UNDEFINED:
    case V_NONE: return false;
    case V_BOOL: return v.as.boolean;
    case V_INT: return v.as.integer != 0;
    case V_FLOAT: return v.as.real != 0;
    case V_STRING: return v.as.string.len > 0;
    case V_LIST:
    case V_TUPLE:
    case V_VIEW: return v.as.list->n > 0;
    case V_DICT: return v.as.dict->n > 0;
    case V_RANGE: return v.as.range->n > 0;
    default: return true;
    }
}

bool slice_equal(Slice a, Slice b) { return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0); }

/* Compares exactly, as Python does: without rounding the integer to the nearest double. */
static int compare_mixed(int64_t a, double b) {
    if (b >= 0x1p63) return -1;
    if (b < -0x1p63) return 1;
    int64_t whole = (int64_t)b;
    if (a != whole) return a < whole ? -1 : 1;
    double rest = b - (double)whole;
    return rest > 0 ? -1 : rest < 0;
}

static int compare_numbers(Value a, Value b) {
    if (a.type == V_FLOAT && b.type == V_FLOAT) return a.as.real < b.as.real ? -1 : a.as.real > b.as.real;
    if (b.type == V_FLOAT) return compare_mixed(int_of(a), b.as.real);
    if (a.type == V_FLOAT) return -compare_mixed(int_of(b), a.as.real);
    return int_of(a) < int_of(b) ? -1 : int_of(a) > int_of(b);
}

static bool not_a_number(Value v) { return v.type == V_FLOAT && isnan(v.as.real); }

/* j: charged for lists and dicts, which may contain the same value many times; NULL: no charge. */
static bool equal_at(Jinja *j, Value a, Value b, int depth) {
    if (depth > VALUE_DEPTH || not_a_number(a) || not_a_number(b)) return false;
    if (is_number(a) && is_number(b)) return compare_numbers(a, b) == 0;
    if (a.type != b.type || a.view != b.view) return false;
    switch (a.type) {
    case V_UNDEFINED:
    case V_NONE: return true;
    case V_STRING: return slice_equal(a.as.string, b.as.string);
    case V_LIST:
    case V_TUPLE:
    case V_VIEW:
        if (a.as.list == b.as.list) return true;
        if (a.as.list->n != b.as.list->n || a.view == 'v' || (j && !jinja_charge(j, a))) return false;
        for (size_t i = 0; i < a.as.list->n; i++)
            if (!equal_at(j, a.as.list->items[i], b.as.list->items[i], depth + 1)) return false;
        return true;
    case V_DICT:
        if (a.as.dict == b.as.dict) return true;
        if (a.as.dict->n != b.as.dict->n || (j && !jinja_charge(j, a))) return false;
        for (size_t i = 0; i < a.as.dict->n; i++) {
            Value *other = dict_find(b, a.as.dict->pairs[i].key);
            if (!other || !equal_at(j, a.as.dict->pairs[i].value, *other, depth + 1)) return false;
        }
        return true;
    case V_RANGE:
        return a.as.range->n == b.as.range->n &&
               (a.as.range->n == 0 || (a.as.range->start == b.as.range->start && (a.as.range->n == 1 || a.as.range->step == b.as.range->step)));
    default: return a.as.macro == b.as.macro;
    }
}

bool v_equal(Jinja *j, Value a, Value b) { return equal_at(j, a, b, 0); }

static int compare_at(Jinja *j, Value a, Value b, const char *op, int depth) {
    if (is_number(a) && is_number(b)) return compare_numbers(a, b);
    if (is_string(a) && is_string(b)) {
        int first = memcmp(a.as.string.data, b.as.string.data, MIN(a.as.string.len, b.as.string.len));
        return first ? first : a.as.string.len < b.as.string.len ? -1 : a.as.string.len > b.as.string.len;
    }
    if (is_sequence(a) && a.type == b.type && depth < VALUE_DEPTH) {
        for (size_t i = 0; i < MIN(a.as.list->n, b.as.list->n); i++)
            if (!v_equal(j, a.as.list->items[i], b.as.list->items[i])) return compare_at(j, a.as.list->items[i], b.as.list->items[i], op, depth + 1);
        return a.as.list->n < b.as.list->n ? -1 : a.as.list->n > b.as.list->n;
    }
    if (a.type == V_UNDEFINED || b.type == V_UNDEFINED) {
        Value missing = a.type == V_UNDEFINED ? a : b;
        jinja_fail(j, "'%s' is undefined", missing.as.name ? missing.as.name : "a value");
    } else {
        jinja_fail(j, "'%s' not supported between instances of '%s' and '%s'", op, v_type_name(a), v_type_name(b));
    }
    return 0;
}

int v_compare(Jinja *j, Value a, Value b, const char *op) { return compare_at(j, a, b, op, 0); }

bool v_hashable(Jinja *j, Value v) {
    if (v.type == V_LIST || v.type == V_DICT) jinja_fail(j, "unhashable type: '%s'", v_type_name(v));
    if (v.type == V_TUPLE)
        for (size_t i = 0; i < v.as.list->n && jinja_ok(j); i++) v_hashable(j, v.as.list->items[i]);
    return jinja_ok(j);
}

bool v_contains(Jinja *j, Value container, Value item) {
    if (!jinja_charge(j, container)) return false;
    switch (container.type) {
    case V_STRING:
        if (!is_string(item)) {
            jinja_fail(j, "'in <string>' requires string as left operand, not %s", v_type_name(item));
            return false;
        }
        return slice_find(container.as.string, item.as.string, 0) != SIZE_MAX;
    case V_LIST:
    case V_TUPLE:
    case V_VIEW:
    case V_GENERATOR: {
        Value items = v_iterate(j, container);
        for (size_t i = 0; jinja_ok(j) && i < items.as.list->n; i++)
            if (v_equal(j, items.as.list->items[i], item)) return true;
        return false;
    }
    case V_DICT: return v_hashable(j, item) && dict_find(container, item) != NULL;
    case V_RANGE: {
        if (!is_number(item) || number_of(item) != floor(number_of(item))) return false;
        if (fabs(number_of(item)) > 0x1p53) return false;
        int64_t offset = (int64_t)number_of(item) - container.as.range->start;
        return offset % container.as.range->step == 0 && offset / container.as.range->step >= 0 &&
               offset / container.as.range->step < container.as.range->n;
    }
    case V_UNDEFINED: return false;
    default: jinja_fail(j, "argument of type '%s' is not iterable", v_type_name(container)); return false;
    }
}

int64_t length_of(Jinja *j, Value v) {
    switch (v.type) {
    case V_UNDEFINED: return 0;
    case V_STRING: return string_length(v.as.string);
    case V_LIST:
    case V_TUPLE:
    case V_VIEW: return (int64_t)v.as.list->n;
    case V_DICT: return (int64_t)v.as.dict->n;
    case V_RANGE: return v.as.range->n;
    case V_LOOP: return int_of(get_attribute(j, v, (Slice){"length", 6}));
    default: jinja_fail(j, "object of type '%s' has no len()", v_type_name(v)); return 0;
    }
}

Value v_iterate(Jinja *j, Value v) {
    if (is_sequence(v)) return v;
    Value list = v_list(j, V_LIST);
    if (!jinja_charge(j, v)) return list;
    switch (v.type) {
    case V_UNDEFINED: break;
    case V_VIEW: *list.as.list = *v.as.list; break;
    case V_GENERATOR:
        *list.as.list = *v.as.list;
        *v.as.list = (List){0};
        break;
    case V_STRING:
        for (size_t at = 0; at < v.as.string.len && jinja_ok(j);) {
            uint32_t c;
            size_t n = char_next(v.as.string.data + at, &c);
            list_push(j, list, v_slice((Slice){v.as.string.data + at, n}));
            at += n;
        }
        break;
    case V_DICT:
        for (size_t i = 0; i < v.as.dict->n; i++) list_push(j, list, v.as.dict->pairs[i].key);
        break;
    case V_RANGE:
        for (int64_t i = 0; i < v.as.range->n && jinja_ok(j); i++) list_push(j, list, v_int(v.as.range->start + i * v.as.range->step));
        break;
    default: jinja_fail(j, "'%s' object is not iterable", v_type_name(v)); break;
    }
    return jinja_ok(j) ? list : v_undefined(NULL);
}

/* ---- strings ---- */

int64_t string_length(Slice s) {
    int64_t n = 0;
    for (size_t i = 0; i < s.len; i++) n += ((uint8_t)s.data[i] & 0xC0) != 0x80;
    return n;
}

/* Byte offset of a code point; s.len past the end. */
static size_t string_offset(Slice s, int64_t index) {
    size_t at = 0;
    for (uint32_t c; index > 0 && at < s.len; index--) at += char_next(s.data + at, &c);
    return at;
}

Slice string_part(Slice s, int64_t begin, int64_t end) {
    size_t from = string_offset(s, begin);
    Slice rest = {s.data + from, s.len - from};
    rest.len = string_offset(rest, end > begin ? end - begin : 0);
    return rest;
}

size_t slice_find(Slice text, Slice part, size_t from) {
    if (part.len == 0) return from <= text.len ? from : SIZE_MAX;
    const char *found = from < text.len ? memmem(text.data + from, text.len - from, part.data, part.len) : NULL;
    return found ? (size_t)(found - text.data) : SIZE_MAX;
}

bool python_space(uint32_t c) { return char_is_space(c) || (c >= 0x1C && c <= 0x1F); }

bool python_printable(uint32_t c) {
    if (c < 0x7F) return c >= ' ';
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category != UTF8PROC_CATEGORY_CC && category != UTF8PROC_CATEGORY_CF && category != UTF8PROC_CATEGORY_CS &&
           category != UTF8PROC_CATEGORY_CO && category != UTF8PROC_CATEGORY_CN && category != UTF8PROC_CATEGORY_ZL &&
           category != UTF8PROC_CATEGORY_ZP && category != UTF8PROC_CATEGORY_ZS;
}

static bool stripped(uint32_t c, const Slice *chars) {
    if (!chars) return python_space(c);
    for (size_t at = 0; at < chars->len;) {
        uint32_t other;
        at += char_next(chars->data + at, &other);
        if (other == c) return true;
    }
    return false;
}

Slice slice_strip(Slice s, const Slice *chars, bool left, bool right) {
    uint32_t c;
    while (left && s.len > 0) {
        size_t n = char_next(s.data, &c);
        if (!stripped(c, chars)) break;
        s.data += n;
        s.len -= n;
    }
    while (right && s.len > 0) {
        size_t n = char_last(s.data, s.len, &c);
        if (!stripped(c, chars)) break;
        s.len -= n;
    }
    return s;
}

/* ---- text ---- */

/* Writes the shortest digits that parse to the same double, in the form that Python's repr chooses. */
void append_float(Str *out, double value) {
    char digits[40];
    if (!isfinite(value)) {
        str_append(out, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    int precision = 0;
    do {
        snprintf(digits, sizeof digits, "%.*e", precision, value);
    } while (strtod(digits, NULL) != value && ++precision < 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        char *e = strchr(digits, 'e');
        str_append_n(out, digits, (size_t)(e - digits));
        str_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    snprintf(digits, sizeof digits, "%.*f", MAX(precision - exponent, 0), value);
    str_append(out, digits);
    if (!strchr(digits, '.')) str_append(out, ".0");
}

static void append_string_repr(Str *out, Slice s) {
    bool single = memchr(s.data, '\'', s.len) != NULL, both = single && memchr(s.data, '"', s.len) != NULL;
    char quote = single && !both ? '"' : '\'';
    str_append_char(out, quote);
    for (size_t at = 0; at < s.len;) {
        uint32_t c;
        size_t n = char_next(s.data + at, &c);
        if (c == (uint32_t)quote || c == '\\')
            str_printf(out, "\\%c", (char)c);
        else if (c == '\n')
            str_append(out, "\\n");
        else if (c == '\r')
            str_append(out, "\\r");
        else if (c == '\t')
            str_append(out, "\\t");
        else if (python_printable(c))
            str_append_n(out, s.data + at, n);
        else
            str_printf(out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
        at += n;
    }
    str_append_char(out, quote);
}

static void append_repr_at(Jinja *j, Str *out, Value v, int depth) {
    if (depth > VALUE_DEPTH || out->len > JINJA_MAX_OUTPUT) {
        if (jinja_ok(j)) jinja_fail(j, "a value is nested too deeply or too large to be written");
        return;
    }
    switch (v.type) {
    case V_UNDEFINED: str_append(out, "Undefined"); break;
    case V_NONE: str_append(out, "None"); break;
    case V_BOOL: str_append(out, v.as.boolean ? "True" : "False"); break;
    case V_INT: str_printf(out, "%lld", (long long)v.as.integer); break;
    case V_FLOAT: append_float(out, v.as.real); break;
    case V_STRING:
        if (v.safe) str_append(out, "Markup(");
        append_string_repr(out, v.as.string);
        if (v.safe) str_append_char(out, ')');
        break;
    case V_LIST:
    case V_TUPLE:
        str_append_char(out, v.type == V_LIST ? '[' : '(');
        for (size_t i = 0; i < v.as.list->n && jinja_ok(j); i++) {
            if (i) str_append(out, ", ");
            append_repr_at(j, out, v.as.list->items[i], depth + 1);
        }
        str_append(out, v.type == V_LIST ? "]" : v.as.list->n == 1 ? ",)" : ")");
        break;
    case V_DICT:
    case V_NAMESPACE:
        str_append(out, v.type == V_DICT ? "{" : "<Namespace {");
        for (size_t i = 0; i < v.as.dict->n && jinja_ok(j); i++) {
            if (i) str_append(out, ", ");
            append_repr_at(j, out, v.as.dict->pairs[i].key, depth + 1);
            str_append(out, ": ");
            append_repr_at(j, out, v.as.dict->pairs[i].value, depth + 1);
        }
        str_append(out, v.type == V_DICT ? "}" : "}>");
        break;
    case V_VIEW:
        str_append(out, v.view == 'k' ? "dict_keys(" : v.view == 'v' ? "dict_values(" : "dict_items(");
        append_repr_at(j, out, (Value){.type = V_LIST, .as.list = v.as.list}, depth + 1);
        str_append_char(out, ')');
        break;
    case V_RANGE:
        str_printf(out, v.as.range->step == 1 ? "range(%lld, %lld" : "range(%lld, %lld, %lld", (long long)v.as.range->start,
                   (long long)v.as.range->stop, (long long)v.as.range->step);
        str_append_char(out, ')');
        break;
    case V_MACRO:
        str_append(out, "<Macro ");
        append_repr_at(j, out, get_attribute(j, v, (Slice){"name", 4}), depth + 1);
        str_append_char(out, '>');
        break;
    case V_LOOP:
        str_printf(out, "<LoopContext %lld/%lld>", (long long)int_of(get_attribute(j, v, (Slice){"index", 5})), (long long)length_of(j, v));
        break;
    default: str_printf(out, "<%s>", v_type_name(v)); break;
    }
}

void append_repr(Jinja *j, Str *out, Value v) { append_repr_at(j, out, v, 0); }

void append_text(Jinja *j, Str *out, Value v) {
    if (v.type == V_UNDEFINED) return;
    if (v.type == V_STRING)
        str_append_n(out, v.as.string.data, v.as.string.len);
    else
        append_repr(j, out, v);
}

Slice text_of(Jinja *j, Value v) {
    if (v.type == V_STRING) return v.as.string;
    Str text = {0};
    append_text(j, &text, v);
    return v_str(j, &text).as.string;
}

/* ---- json.dumps ---- */

static void append_json_string(Str *out, Slice s, bool ascii) {
    str_append_char(out, '"');
    for (size_t at = 0; at < s.len;) {
        static const char plain[] = "\"\\\b\f\n\r\t", escaped[] = "\"\\bfnrt";
        uint32_t c;
        size_t n = char_next(s.data + at, &c);
        const char *found = c > 0 && c < 128 ? strchr(plain, (int)c) : NULL;
        if (found)
            str_printf(out, "\\%c", escaped[found - plain]);
        else if (c < 0x20)
            str_printf(out, "\\u%04x", (unsigned)c);
        else if (ascii && c >= 0x10000)
            str_printf(out, "\\u%04x\\u%04x", 0xD800u + ((c - 0x10000) >> 10), 0xDC00u + ((c - 0x10000) & 0x3FF));
        else if (ascii && c >= 0x7F + 1)
            str_printf(out, "\\u%04x", (unsigned)c);
        else
            str_append_n(out, s.data + at, n);
        at += n;
    }
    str_append_char(out, '"');
}

static void break_line(Str *out, const JsonStyle *style, int level) {
    if (style->indent < 0) return;
    str_append_char(out, '\n');
    for (int64_t i = 0; i < style->indent * level; i++) str_append(out, style->space);
}

static void append_key(Jinja *j, Str *out, Value key, const JsonStyle *style) {
    if (is_string(key)) {
        append_json_string(out, key.as.string, style->ascii);
    } else if (is_number(key) || key.type == V_NONE) {
        str_append_char(out, '"');
        append_dumps(j, out, key, style, 0);
        str_append_char(out, '"');
    } else {
        jinja_fail(j, "keys must be str, int, float, bool or None, not %s", v_type_name(key));
    }
}

static int by_key(const void *a, const void *b) {
    Slice x = ((const Pair *)a)->key.as.string, y = ((const Pair *)b)->key.as.string;
    int first = memcmp(x.data, y.data, MIN(x.len, y.len));
    return first ? first : x.len < y.len ? -1 : x.len > y.len;
}

static void append_object(Jinja *j, Str *out, Value v, const JsonStyle *style, int level) {
    size_t n = v.as.dict->n;
    const Pair *pairs = v.as.dict->pairs;
    if (style->sort && n > 1) {
        Pair *sorted = pool_alloc(&j->pool, n * sizeof *sorted);
        for (size_t i = 0; i < n; i++)
            if (!is_string(pairs[i].key)) jinja_fail(j, "keys of several types cannot be sorted");
        if (!sorted || !jinja_ok(j)) return;
        memcpy(sorted, pairs, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, by_key);
        pairs = sorted;
    }
    str_append_char(out, '{');
    for (size_t i = 0; i < n && jinja_ok(j); i++) {
        if (i) str_append(out, style->item);
        break_line(out, style, level + 1);
        append_key(j, out, pairs[i].key, style);
        str_append(out, style->key);
        append_dumps(j, out, pairs[i].value, style, level + 1);
    }
    if (n) break_line(out, style, level);
    str_append_char(out, '}');
}

void append_dumps(Jinja *j, Str *out, Value v, const JsonStyle *style, int level) {
    if (level > VALUE_DEPTH || out->len > JINJA_MAX_OUTPUT) {
        if (jinja_ok(j)) jinja_fail(j, "a value is nested too deeply or too large to be written as JSON");
        return;
    }
    switch (v.type) {
    case V_NONE: str_append(out, "null"); break;
    case V_BOOL: str_append(out, v.as.boolean ? "true" : "false"); break;
    case V_INT: str_printf(out, "%lld", (long long)v.as.integer); break;
    case V_FLOAT:
        if (isfinite(v.as.real))
            append_float(out, v.as.real);
        else
            str_append(out, isnan(v.as.real) ? "NaN" : v.as.real > 0 ? "Infinity" : "-Infinity");
        break;
    case V_STRING: append_json_string(out, v.as.string, style->ascii); break;
    case V_LIST:
    case V_TUPLE:
        str_append_char(out, '[');
        for (size_t i = 0; i < v.as.list->n && jinja_ok(j); i++) {
            if (i) str_append(out, style->item);
            break_line(out, style, level + 1);
            append_dumps(j, out, v.as.list->items[i], style, level + 1);
        }
        if (v.as.list->n) break_line(out, style, level);
        str_append_char(out, ']');
        break;
    case V_DICT: append_object(j, out, v, style, level); break;
    default: jinja_fail(j, "Object of type %s is not JSON serializable", v_type_name(v)); break;
    }
}
