/* SPDX-License-Identifier: Apache-2.0 */
/* The bodies of calls: JSON, tags, Python's and Gemma's values. Each reader writes arguments as the text of a JSON object. */
#include "lib/base/memory.h"
#include "lib/text/tool_parts.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

void calls_release(Calls *calls) {
    for (size_t i = 0; i < calls->n; i++) {
        str_release(&calls->items[i].name);
        str_release(&calls->items[i].arguments);
    }
    free(calls->items);
    *calls = (Calls){0};
}

Str *calls_add(Calls *calls, Slice name) {
    if (array_grow(&calls->items, &calls->cap, calls->n + 1, sizeof *calls->items, "calls") != ST_OK) {
        memory_ran_out(sizeof *calls->items);
        return NULL;
    }
    Call *call = &calls->items[calls->n++];
    *call = (Call){0};
    str_append_n(&call->name, name.data, name.len);
    return &call->arguments;
}

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

Slice body_trim(Slice text) {
    while (text.len > 0 && is_blank(text.data[0])) text.data++, text.len--;
    while (text.len > 0 && is_blank(text.data[text.len - 1])) text.len--;
    return text;
}

size_t body_find(Slice text, size_t from, const char *part) {
    size_t len = strlen(part);
    const char *hit = from <= text.len ? memmem(text.data + from, text.len - from, part, len) : NULL;
    return hit ? (size_t)(hit - text.data) : text.len;
}

static Slice slice_part(Slice text, size_t from, size_t to) { return (Slice){text.data + from, to - from}; }

/* ---- types of parameters ---- */

static const json_t *parameter_of(const json_t *tools, Slice function, Slice name) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *inner = json_object_get(tool, "function");
        if (inner) tool = inner;
        const char *known = json_string_value(json_object_get(tool, "name"));
        if (!known || !slice_is(function, known)) continue;
        const json_t *properties = json_object_get(json_object_get(tool, "parameters"), "properties");
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)(uintptr_t)properties, key, value) if (slice_is(name, key)) return value;
    }
    return NULL;
}

/* Whether the schema allows a type; *any: it says nothing about types. */
static bool type_allowed(const json_t *schema, const char *type, bool *any) {
    const json_t *given = json_object_get(schema, "type"), *choices = json_object_get(schema, "anyOf"), *values = json_object_get(schema, "enum");
    bool allowed = json_is_string(given) && strcmp(json_string_value(given), type) == 0;
    *any = !given && !choices && !values;
    for (size_t i = 0; i < json_array_size(given); i++) {
        const char *one = json_string_value(json_array_get(given, i));
        allowed |= one && strcmp(one, type) == 0;
    }
    for (size_t i = 0; i < json_array_size(choices); i++) {
        bool inner = false;
        allowed |= type_allowed(json_array_get(choices, i), type, &inner);
        *any |= inner;
    }
    for (size_t i = 0; !given && i < json_array_size(values); i++)
        allowed |= strcmp(type, "string") == 0 && json_is_string(json_array_get(values, i));
    return allowed;
}

static const char *type_name(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "object";
    case JSON_ARRAY: return "array";
    case JSON_STRING: return "string";
    case JSON_INTEGER: return "integer";
    case JSON_REAL: return "number";
    case JSON_NULL: return "null";
    default: return "boolean";
    }
}

static void append_key(Str *out, Slice key) {
    str_append(out, out->len > 1 ? ", " : "");
    str_append_json(out, key.data, key.len);
    str_append(out, ": ");
}

/* ---- JSON ---- */

/* The end of the JSON value at text[at..], which is known to be JSON. */
static size_t json_end(Slice text, size_t at) {
    int depth = 0;
    bool quoted = false;
    for (; at < text.len; at++) {
        char c = text.data[at];
        if (quoted) {
            at += c == '\\';
            quoted = c != '"';
            if (!quoted && depth == 0) return MIN(at + 1, text.len);
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (depth == 0) return at;
            if (--depth == 0) return at + 1;
        } else if (depth == 0 && (c == ',' || is_blank(c))) {
            return at;
        }
    }
    return MIN(at, text.len);
}

static size_t skip_blanks(Slice text, size_t at) {
    while (at < text.len && is_blank(text.data[at])) at++;
    return at;
}

/* The text of a member of an object that is known to be JSON; data NULL: it is not there. */
static Slice json_member(Slice object, const char *name) {
    for (size_t at = 1; at < object.len;) {
        at = skip_blanks(object, at);
        size_t end = json_end(object, at);
        if (at >= object.len || object.data[at] != '"' || end <= at) return (Slice){0};
        Slice key = slice_part(object, at + 1, end - 1);
        at = skip_blanks(object, skip_blanks(object, end) + 1); /* after the colon */
        end = json_end(object, MIN(at, object.len));
        if (slice_is(key, name)) return slice_part(object, MIN(at, end), end);
        at = skip_blanks(object, end) + 1; /* after the comma */
    }
    return (Slice){0};
}

static bool call_of_object(const json_t *json, Slice text, Calls *calls) {
    static const char *const keys[] = {"arguments", "parameters"};
    const json_t *inner = json_object_get(json, "function");
    if (json_is_object(inner)) return call_of_object(inner, json_member(text, "function"), calls);
    const char *name = json_string_value(json_object_get(json, "name"));
    if (!name) return false;
    const json_t *arguments = NULL;
    size_t k = 0;
    while (k < COUNT_OF(keys) && !(arguments = json_object_get(json, keys[k]))) k++;
    if (arguments && !json_is_object(arguments) && !json_is_string(arguments) && !json_is_null(arguments)) return false;
    Str *out = calls_add(calls, (Slice){name, strlen(name)});
    if (!out) return false;
    if (json_is_object(arguments)) {
        Slice raw = body_trim(json_member(text, keys[k]));
        str_append_n(out, raw.data, raw.len);
    } else if (json_is_string(arguments) && json_string_length(arguments) > 0) { /* the text of an object */
        json_t *parsed = json_of_text(json_string_value(arguments), json_string_length(arguments), 0);
        bool object = json_is_object(parsed);
        json_decref(parsed);
        if (!object) return false;
        str_append(out, json_string_value(arguments));
    }
    if (out->len == 0) str_append(out, "{}");
    return true;
}

bool calls_of_json(Slice body, const json_t *tools, Calls *calls) {
    (void)tools;
    body = body_trim(body);
    json_t *json = json_of_text(body.data ? body.data : "", body.len, 0);
    bool fits = json_is_object(json) ? call_of_object(json, body, calls) : json_is_array(json) && json_array_size(json) > 0;
    if (fits && json_is_array(json)) {
        size_t at = 1;
        for (size_t i = 0; i < json_array_size(json) && fits; i++) {
            at = skip_blanks(body, at);
            size_t end = json_end(body, at);
            fits = json_is_object(json_array_get(json, i)) && call_of_object(json_array_get(json, i), slice_part(body, at, end), calls);
            at = skip_blanks(body, end) + 1;
        }
    }
    json_decref(json);
    return fits;
}

bool calls_of_mistral(Slice body, const json_t *tools, Calls *calls) {
    size_t mark = body_find(body, 0, "[ARGS]"), id = body_find(body, 0, "[CALL_ID]");
    if (mark == body.len) return calls_of_json(body, tools, calls);
    Slice name = body_trim(slice_part(body, 0, MIN(mark, id))), given = body_trim(slice_part(body, mark + strlen("[ARGS]"), body.len));
    json_t *json = json_of_text(given.data, given.len, 0);
    bool object = json_is_object(json);
    json_decref(json);
    Str *out = object && name.len > 0 ? calls_add(calls, name) : NULL;
    if (!out) return false;
    str_append_n(out, given.data, given.len);
    return true;
}

/* ---- values of Gemma and of Python ---- */

typedef struct ValueReader {
    const char *at, *end;
    bool gemma; /* texts are between <|"|>, keys have no quotes; otherwise Python's */
    int depth;
    Str *out;
} ValueReader;

static void value_blanks(ValueReader *r) {
    while (r->at < r->end && is_blank(*r->at)) r->at++;
}

static bool value_char(ValueReader *r, char c) {
    value_blanks(r);
    if (r->at == r->end || *r->at != c) return false;
    r->at++;
    return true;
}

static bool value_mark(ValueReader *r, const char *mark) {
    size_t len = strlen(mark);
    if ((size_t)(r->end - r->at) < len || memcmp(r->at, mark, len) != 0) return false;
    r->at += len;
    return true;
}

static bool gemma_text(ValueReader *r) {
    static const char mark[] = "<|\"|>";
    const char *close = memmem(r->at, (size_t)(r->end - r->at), mark, sizeof mark - 1);
    if (!close) return false;
    str_append_json(r->out, r->at, (size_t)(close - r->at));
    r->at = close + sizeof mark - 1;
    return true;
}

/* Python's escapes; an unknown one stays as it is. */
static void python_escape(ValueReader *r, Str *text) {
    static const char letters[] = "ntr\\'\"0", means[] = "\n\t\r\\'\"\0";
    const char *known = memchr(letters, *r->at, sizeof letters - 1);
    uint32_t c = 0;
    int digits = *r->at == 'x' ? 2 : *r->at == 'u' ? 4 : 0, n = 0;
    for (; n < digits && r->end - r->at > n + 1 && isxdigit((unsigned char)r->at[n + 1]); n++)
        c = c << 4 | (uint32_t)(isdigit((unsigned char)r->at[n + 1]) ? r->at[n + 1] - '0' : (r->at[n + 1] | 0x20) - 'a' + 10);
    char utf8[4];
    if (known) {
        str_append_char(text, means[known - letters]);
    } else if (digits && n == digits) {
        str_append_n(text, utf8, utf8_encode(c, utf8));
        r->at += digits;
    } else {
        str_append_char(text, '\\');
        str_append_char(text, *r->at);
    }
    r->at++;
}

static bool python_text(ValueReader *r) {
    char quote = *r->at++;
    Str text = {0};
    while (r->at < r->end && *r->at != quote) {
        if (*r->at == '\\' && r->at + 1 < r->end) {
            r->at++;
            python_escape(r, &text);
        } else {
            str_append_char(&text, *r->at++);
        }
    }
    bool closed = r->at < r->end;
    r->at += closed;
    if (closed) str_append_json(r->out, str_text(&text), text.len);
    str_release(&text);
    return closed;
}

/* A number or a word. */
static bool value_word(ValueReader *r) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    const char *begin = r->at;
    while (r->at < r->end && (isalnum((unsigned char)*r->at) || strchr("+-._", *r->at))) r->at++;
    Slice word = {begin, (size_t)(r->at - begin)};
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (slice_is(word, words[i][0])) word = (Slice){words[i][1], strlen(words[i][1])};
    json_t *json = word.len ? json_of_text(word.data, word.len, JSON_DECODE_ANY) : NULL;
    bool fits = json != NULL;
    json_decref(json);
    str_append_n(r->out, word.data, fits ? word.len : 0);
    return fits;
}

static bool value_read(ValueReader *r);

static bool value_key(ValueReader *r) {
    value_blanks(r);
    if (r->gemma && !value_mark(r, "<|\"|>")) {
        const char *begin = r->at;
        while (r->at < r->end && *r->at != ':') r->at++;
        str_append_json(r->out, begin, (size_t)(r->at - begin));
        return r->at > begin;
    }
    if (r->gemma) return gemma_text(r);
    return r->at < r->end && (*r->at == '"' || *r->at == '\'') && python_text(r);
}

/* Elements or members until `close`. */
static bool value_list(ValueReader *r, char close, bool members) {
    for (bool first = true; !value_char(r, close); first = false) {
        if (!first && !value_char(r, ',')) return false;
        if (!first && value_char(r, close)) break; /* Python allows a comma at the end */
        str_append(r->out, first ? "" : ", ");
        if (members && (!value_key(r) || !value_char(r, ':'))) return false;
        str_append(r->out, members ? ": " : "");
        if (!value_read(r)) return false;
    }
    return true;
}

static bool value_read(ValueReader *r) {
    value_blanks(r);
    if (r->at == r->end || r->depth == MAX_DEPTH) return false;
    if (r->gemma && value_mark(r, "<|\"|>")) return gemma_text(r);
    if (!r->gemma && (*r->at == '"' || *r->at == '\'')) return python_text(r);
    bool object = *r->at == '{', list = *r->at == '[' || (!r->gemma && *r->at == '(');
    if (!object && !list) return value_word(r);
    char close = object ? '}' : *r->at == '(' ? ')' : ']';
    r->at++;
    r->depth++;
    str_append(r->out, object ? "{" : "[");
    bool fits = value_list(r, close, object);
    str_append(r->out, object ? "}" : "]");
    r->depth--;
    return fits;
}

/* Appends a value that was written without quotes: by the type of its parameter; without one, what is JSON and no text is JSON. Some templates write
 * lists and objects as Python does. */
static void append_value(Str *out, const json_t *parameter, Slice text) {
    bool any = true, unused, texts = parameter && type_allowed(parameter, "string", &any);
    Str value = {0};
    ValueReader r = {.at = text.data, .end = text.data + text.len, .out = &value};
    Slice plain = body_trim(text);
    json_t *json = json_of_text(plain.data ? plain.data : "", plain.len, JSON_DECODE_ANY | JSON_ALLOW_NUL);
    if (!json && plain.len > 0 && !strchr("\"'(", plain.data[0]) && value_read(&r)) {
        value_blanks(&r);
        if (r.at == r.end) json = json_of_text(str_text(&value), value.len, JSON_DECODE_ANY | JSON_ALLOW_NUL);
        plain = (Slice){str_text(&value), value.len};
    }
    bool wanted = json && !json_is_string(json);
    if (wanted && texts && !any) {
        const char *type = type_name(json);
        wanted = type_allowed(parameter, type, &unused) || (strcmp(type, "integer") == 0 && type_allowed(parameter, "number", &unused));
    }
    json_decref(json);
    if (wanted)
        str_append_n(out, plain.data, plain.len);
    else
        str_append_json(out, text.data, text.len);
    str_release(&value);
}

/* ---- tags ---- */

/* What is between `open` and `close`, from *at on, which moves past it. False: there is none. */
static bool between(Slice text, size_t *at, const char *open, const char *close, Slice *inner) {
    size_t begin = body_find(text, *at, open), from = begin + strlen(open), end = begin < text.len ? body_find(text, from, close) : text.len;
    if (begin == text.len || end == text.len) return false;
    *inner = slice_part(text, from, end);
    *at = end + strlen(close);
    return true;
}

/* Templates put one line end on each side of a value. */
static Slice without_line_ends(Slice text) {
    if (text.len > 0 && text.data[0] == '\n') text = slice_part(text, 1, text.len);
    if (text.len > 0 && text.data[text.len - 1] == '\n') text.len--;
    return text;
}

static bool blank_until(Slice text, size_t from, size_t to) { return body_trim(slice_part(text, from, to)).len == 0; }

bool calls_of_xml(Slice body, const json_t *tools, Calls *calls) {
    size_t at = 0;
    Slice function, name, value;
    bool any = false;
    while (between(body, &at, "<function=", "</function>", &function)) {
        size_t inner = body_find(function, 0, ">");
        if (inner == function.len) return false;
        Slice called = body_trim(slice_part(function, 0, inner));
        Str *out = calls_add(calls, called);
        if (!out) return false;
        str_append(out, "{");
        inner++;
        for (;;) {
            size_t begin = body_find(function, inner, "<parameter=");
            if (!blank_until(function, inner, begin)) return false;
            if (begin == function.len) break;
            if (!between(function, &inner, "<parameter=", ">", &name)) return false;
            size_t end = body_find(function, inner, "</parameter>");
            if (end == function.len) return false;
            value = without_line_ends(slice_part(function, inner, end));
            append_key(out, name);
            append_value(out, parameter_of(tools, called, name), value);
            inner = end + strlen("</parameter>");
        }
        str_append(out, "}");
        any = true;
    }
    return any && blank_until(body, at, body.len);
}

bool calls_of_glm(Slice body, const json_t *tools, Calls *calls) {
    size_t at = body_find(body, 0, "<arg_key>");
    Slice called = body_trim(slice_part(body, 0, at)), name, value;
    if (called.len == 0 || memchr(called.data, '{', called.len) || memchr(called.data, '<', called.len)) return false;
    Str *out = calls_add(calls, called);
    if (!out) return false;
    str_append(out, "{");
    while (body_find(body, at, "<arg_key>") < body.len) {
        if (!between(body, &at, "<arg_key>", "</arg_key>", &name) || !between(body, &at, "<arg_value>", "</arg_value>", &value)) return false;
        append_key(out, body_trim(name));
        append_value(out, parameter_of(tools, called, body_trim(name)), value);
    }
    str_append(out, "}");
    return blank_until(body, at, body.len);
}

/* ---- calls of Gemma and of Python ---- */

bool calls_of_gemma(Slice body, const json_t *tools, Calls *calls) {
    (void)tools;
    body = body_trim(body);
    size_t brace = body_find(body, 0, "{"), mark = strlen("call:");
    if (brace == body.len || brace <= mark || memcmp(body.data, "call:", mark) != 0) return false;
    Str *out = calls_add(calls, body_trim(slice_part(body, mark, brace)));
    if (!out) return false;
    ValueReader r = {.at = body.data + brace, .end = body.data + body.len, .gemma = true, .out = out};
    bool fits = value_read(&r);
    value_blanks(&r);
    return fits && r.at == r.end;
}

/* f(a=1, b="x") */
static bool python_call(ValueReader *r, Calls *calls) {
    value_blanks(r);
    const char *begin = r->at;
    while (r->at < r->end && (isalnum((unsigned char)*r->at) || strchr("_.-", *r->at))) r->at++;
    Slice name = {begin, (size_t)(r->at - begin)};
    if (name.len > 5 && memcmp(name.data + name.len - 5, ".call", 5) == 0) name.len -= 5; /* of the built-in tools of Llama 3 */
    if (name.len == 0 || !value_char(r, '(') || !(r->out = calls_add(calls, name))) return false;
    str_append(r->out, "{");
    for (bool first = true; !value_char(r, ')'); first = false) {
        if (!first && !value_char(r, ',')) return false;
        value_blanks(r);
        const char *key = r->at;
        while (r->at < r->end && (isalnum((unsigned char)*r->at) || *r->at == '_')) r->at++;
        Slice parameter = {key, (size_t)(r->at - key)};
        if (parameter.len == 0 || !value_char(r, '=')) return false;
        append_key(r->out, parameter);
        if (!value_read(r)) return false;
    }
    str_append(r->out, "}");
    return true;
}

bool calls_of_python(Slice body, const json_t *tools, Calls *calls) {
    if (calls_of_json(body, tools, calls)) return true;
    calls_release(calls);
    ValueReader r = {.at = body.data, .end = body.data + body.len};
    bool list = value_char(&r, '['), fits = python_call(&r, calls);
    while (fits && list && value_char(&r, ',')) fits = python_call(&r, calls);
    if (!fits || (list && !value_char(&r, ']'))) return false;
    value_blanks(&r);
    return r.at == r.end;
}
