/* SPDX-License-Identifier: Apache-2.0 */
/* Filters as Jinja2 documents them: one function and one line of the table each. Filters that return generators there return lists here. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/text/jinja.h"
#include "lib/text/tokenizer_parts.h"

#define FILTER(name) static Value filter_##name(Jinja *j, Value v, const Args *args)
#define CHECK(name, least, most, names) \
    if (!args_check(j, "filter " name, args, least, most, names)) return v_undefined(NULL)

static const Args no_args;

/* Calls a string method on str(v). */
static Value string_method(Jinja *j, Value v, const char *name, const Args *args) {
    bool mutates = false;
    Value text = v_slice(text_of(j, v));
    if (!jinja_ok(j)) return v_undefined(NULL);
    Value result = method_find(V_STRING, (Slice){name, strlen(name)}, &mutates)->call(j, text, args);
    result.safe = is_string(v) && v.safe && is_string(result);
    return result;
}

static Value defined(Jinja *j, Value v) {
    if (v.type == V_UNDEFINED) jinja_fail(j, "'%s' is undefined", v.as.name ? v.as.name : "a value");
    return v;
}

/* ---- numbers ---- */

FILTER(abs) {
    CHECK("abs", 0, 0, "");
    if (v.type == V_FLOAT) return v_float(fabs(v.as.real));
    if (!is_number(v)) return jinja_fail(j, "bad operand type for abs(): '%s'", v_type_name(defined(j, v)));
    return int_of(v) < 0 ? v_binary(j, (Slice){"-", 1}, v_int(0), v) : v_int(int_of(v));
}

/* Parses a number as Python's float() and int() do: surrounding white space and single underscores between digits are allowed. */
static bool read_number(Slice s, int base, bool integer, Value *out) {
    char text[400];
    size_t n = 0;
    s = slice_strip(s, NULL, true, true);
    if (s.len == 0 || s.len >= sizeof text) return false;
    for (size_t i = 0; i < s.len; i++) {
        bool between = s.data[i] == '_' && i > 0 && i + 1 < s.len && s.data[i - 1] != '_';
        if (s.data[i] == '_' && !between) return false;
        if (!between) text[n++] = s.data[i];
    }
    text[n] = '\0';
    char *end, *digits = text + (*text == '+' || *text == '-');
    if (strchr(" \t\n\r\f\v", *digits) || *digits == '+' || *digits == '-') return false;
    if (integer) {
        if (digits[0] == '0' && ((base == 2 && (digits[1] | 32) == 'b') || (base == 8 && (digits[1] | 32) == 'o')))
            memmove(digits, digits + 2, strlen(digits + 2) + 1);
        *out = v_int(strtoll(text, &end, base));
    } else {
        if ((digits[0] == '0' && (digits[1] | 32) == 'x') || strchr(text, '(')) return false;
        *out = v_float(strtod(text, &end));
    }
    return *end == '\0' && end != text;
}

FILTER(int) {
    CHECK("int", 0, 2, "default|base");
    defined(j, v);
    const Value *missing = arg(args, 0, "default");
    Value result = missing ? *missing : v_int(0), number;
    int64_t base = arg_int(j, args, 1, "base", 10);
    if (is_integral(v)) return v_int(int_of(v));
    if (v.type == V_FLOAT) return isfinite(v.as.real) && fabs(v.as.real) < 9.2e18 ? v_int((int64_t)v.as.real) : result;
    if (!is_string(v)) return result;
    if (base >= 2 && base <= 36 && read_number(v.as.string, (int)base, true, &number)) return number;
    if (read_number(v.as.string, 10, false, &number) && isfinite(number.as.real) && fabs(number.as.real) < 9.2e18)
        return v_int((int64_t)number.as.real);
    return result;
}

FILTER(float) {
    CHECK("float", 0, 1, "default");
    defined(j, v);
    const Value *missing = arg(args, 0, "default");
    Value number;
    if (is_number(v)) return v_float(number_of(v));
    if (is_string(v) && read_number(v.as.string, 10, false, &number)) return number;
    return missing ? *missing : v_float(0);
}

FILTER(round) {
    CHECK("round", 0, 2, "precision|method");
    int64_t precision = arg_int(j, args, 0, "precision", 0);
    Slice method = arg_text(j, args, 1, "method", "common");
    if (!is_number(defined(j, v))) return jinja_fail(j, "type %s doesn't define __round__ method", v_type_name(v));
    if (precision < -300 || precision > 300) return v;
    double scale = pow(10, (double)precision), value = number_of(v);
    if (slice_is(method, "ceil")) return v_float((ceil(value * scale) + 0.0) / scale); /* never -0: Python's ceil returns an integer */
    if (slice_is(method, "floor")) return v_float((floor(value * scale) + 0.0) / scale);
    if (!slice_is(method, "common")) return jinja_fail(j, "method must be common, ceil or floor");
    if (is_integral(v) && precision >= 0) return v_int(int_of(v));
    if (!isfinite(value)) return v;
    double rounded;
    if (precision >= 0) { /* the decimal expansion is exact, so rounding it is too */
        char text[700];
        snprintf(text, sizeof text, "%.*f", (int)precision, value);
        rounded = strtod(text, NULL);
    } else {
        rounded = nearbyint(value * scale) / scale;
    }
    return is_integral(v) ? v_int((int64_t)rounded) : v_float(rounded);
}

FILTER(sum) {
    CHECK("sum", 0, 2, "attribute|start");
    const Value *path = arg(args, 0, "attribute"), *start = arg(args, 1, "start");
    Value items = v_iterate(j, v), total = start ? *start : v_int(0);
    for (size_t i = 0; jinja_ok(j) && i < items.as.list->n; i++)
        total = v_binary(j, (Slice){"+", 1}, total,
                         path && path->type != V_NONE ? get_path(j, items.as.list->items[i], *path, NULL) : items.as.list->items[i]);
    return total;
}

FILTER(filesizeformat) {
    CHECK("filesizeformat", 0, 1, "binary");
    bool by_1024 = arg_bool(j, args, 0, "binary", false);
    static const char *const decimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"}, *const binary_units[] = {"KiB", "MiB", "GiB", "TiB",
                                                                                                                    "PiB", "EiB", "ZiB", "YiB"};
    Value number = v;
    if (!is_number(v) && !(is_string(v) && read_number(v.as.string, 10, false, &number)))
        return jinja_fail(j, "no number of bytes: %s", v_type_name(defined(j, v)));
    double bytes = number_of(number), base = by_1024 ? 1024 : 1000, unit = base;
    char text[64];
    if (bytes == 1) return v_text("1 Byte");
    if (bytes < base)
        snprintf(text, sizeof text, "%lld Bytes", (long long)bytes);
    else {
        size_t i = 0;
        for (unit = base * base; bytes >= unit && i + 1 < COUNT_OF(decimal); unit *= base) i++;
        snprintf(text, sizeof text, "%.1f %s", base * bytes / unit, by_1024 ? binary_units[i] : decimal[i]);
    }
    return v_string(j, text, strlen(text));
}

/* ---- text ---- */

/* clang-format off */
FILTER(string) { return (void)args, is_string(v) ? v : v_slice(text_of(j, v)); }
FILTER(lower) { CHECK("lower", 0, 0, ""); return string_method(j, v, "lower", args); }
FILTER(upper) { CHECK("upper", 0, 0, ""); return string_method(j, v, "upper", args); }
FILTER(capitalize) { CHECK("capitalize", 0, 0, ""); return string_method(j, v, "capitalize", args); }
/* clang-format on */

FILTER(center) {
    CHECK("center", 0, 1, "width");
    Value width = v_int(arg_int(j, args, 0, "width", 80));
    return string_method(j, v, "center", &(Args){&width, 1, NULL, 0});
}

FILTER(trim) {
    CHECK("trim", 0, 1, "chars");
    const Value *chars = arg(args, 0, "chars");
    return string_method(j, v, "strip", chars ? &(Args){chars, 1, NULL, 0} : &no_args);
}

FILTER(replace) {
    CHECK("replace", 2, 3, "old|new|count");
    const Value *count = arg(args, 2, "count");
    Value given[3] = {v_slice(text_of(j, *arg(args, 0, "old"))), v_slice(text_of(j, *arg(args, 1, "new"))),
                      count && count->type != V_NONE ? *count : v_int(-1)};
    return string_method(j, v, "replace", &(Args){given, 3, NULL, 0});
}

/* Capitalises each part between white space, dashes and opening brackets. */
FILTER(title) {
    CHECK("title", 0, 0, "");
    Slice s = text_of(j, v);
    Str out = {0};
    bool begins = true;
    for (size_t at = 0; at < s.len && jinja_ok(j);) {
        uint32_t c;
        size_t n = char_next(s.data + at, &c);
        Slice one = {s.data + at, n};
        bool border = c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || python_space(c);
        append_text(j, &out, border ? v_slice(one) : string_method(j, v_slice(one), begins ? "upper" : "lower", &no_args));
        begins = border;
        at += n;
    }
    return v_str(j, &out);
}

FILTER(indent) {
    CHECK("indent", 0, 3, "width|first|blank");
    const Value *width = arg(args, 0, "width");
    bool first = arg_bool(j, args, 1, "first", false), blank = arg_bool(j, args, 2, "blank", false);
    Str space = {0}, out = {0};
    if (!is_string(defined(j, v))) jinja_fail(j, "indent needs a text, not %s", v_type_name(v));
    if (width && is_string(*width))
        append_text(j, &space, *width);
    else
        for (int64_t i = MIN(arg_int(j, args, 0, "width", 4), (int64_t)10000); i > 0; i--) str_append_char(&space, ' ');
    Value newline = v_text("\n"),
          lines = jinja_ok(j) ? string_method(j, v_binary(j, (Slice){"+", 1}, v_slice(v.as.string), newline), "splitlines", &no_args) : v;
    for (size_t i = 0; jinja_ok(j) && i < lines.as.list->n; i++) {
        Slice line = lines.as.list->items[i].as.string;
        if (i) str_append_char(&out, '\n');
        if (i == 0 ? first : (blank || line.len > 0)) str_append_n(&out, space.data, space.len);
        if (out.len > JINJA_MAX_OUTPUT) jinja_fail(j, "a text of more than %zu MB", JINJA_MAX_OUTPUT >> 20);
        str_append_n(&out, line.data, line.len);
    }
    str_release(&space);
    Value result = v_str(j, &out);
    result.safe = v.safe;
    return result;
}

static Value escaped(Jinja *j, Value v) {
    Str out = {0};
    Slice s = text_of(j, v);
    for (size_t i = 0; i < s.len; i++) {
        char c = s.data[i];
        const char *name = c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '"' ? "&#34;" : c == '\'' ? "&#39;" : NULL;
        if (name)
            str_append(&out, name);
        else
            str_append_char(&out, c);
    }
    Value result = v_str(j, &out);
    result.safe = true;
    return result;
}
/* clang-format off */
FILTER(escape) { CHECK("escape", 0, 0, ""); return v.type == V_STRING && v.safe ? v : escaped(j, v); }
FILTER(forceescape) { CHECK("forceescape", 0, 0, ""); return escaped(j, v); }
/* clang-format on */
/* Writes a dict as attributes of a tag; skips values that are none or undefined. */
FILTER(xmlattr) {
    CHECK("xmlattr", 0, 1, "autospace");
    if (v.type != V_DICT) return jinja_fail(j, "xmlattr needs a dict, not %s", v_type_name(defined(j, v)));
    Str out = {0};
    for (size_t i = 0; jinja_ok(j) && i < v.as.dict->n; i++) {
        Value key = v.as.dict->pairs[i].key, value = v.as.dict->pairs[i].value;
        if (value.type == V_NONE || value.type == V_UNDEFINED) continue;
        Slice name = text_of(j, key);
        for (size_t k = 0; k < name.len; k++)
            if (strchr(" \t\n\r\f\v/>=", name.data[k]))
                jinja_fail(j, "invalid character in the name of an attribute: '%.*s'", (int)name.len, name.data);
        if (out.len > 0 || arg_bool(j, args, 0, "autospace", true)) str_append_char(&out, ' ');
        append_text(j, &out, filter_escape(j, key, &no_args));
        str_append(&out, "=\"");
        append_text(j, &out, filter_escape(j, value, &no_args));
        str_append_char(&out, '"');
    }
    return v_str(j, &out);
}
FILTER(safe) {
    CHECK("safe", 0, 0, "");
    Value text = v_slice(text_of(j, v));
    text.safe = true;
    return text;
}

/* Replaces the entities that escape writes, some by name, and those by number. */
static void unescape(Str *text) {
    static const struct {
        const char *name;
        const char *plain;
    } entities[] = {{"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&apos;", "'"}, {"&nbsp;", "\xC2\xA0"}};
    Str out = {0};
    for (size_t at = 0; at < text->len;) {
        const char *here = str_text(text) + at;
        size_t taken = 0;
        for (size_t i = 0; i < COUNT_OF(entities) && *here == '&' && !taken; i++)
            if (text_starts_with(here, entities[i].name)) str_append(&out, entities[i].plain), taken = strlen(entities[i].name);
        if (!taken && here[0] == '&' && here[1] == '#') {
            bool hex = (here[2] | 32) == 'x';
            char *end, bytes[4];
            unsigned long code = strtoul(here + 2 + hex, &end, hex ? 16 : 10);
            bool digits = (here[2 + hex] >= '0' && here[2 + hex] <= '9') || (hex && strchr("abcdefABCDEF", here[3]) && here[3]);
            if (digits && *end == ';' && code > 0 && code < 0x110000 && (code < 0xD800 || code > 0xDFFF)) {
                str_append_n(&out, bytes, utf8_encode((uint32_t)code, bytes));
                taken = (size_t)(end + 1 - here);
            }
        }
        if (!taken) str_append_char(&out, *here);
        at += taken ? taken : 1;
    }
    str_release(text);
    *text = out;
}

FILTER(striptags) {
    CHECK("striptags", 0, 0, "");
    Slice s = text_of(j, v);
    Str plain = {0};
    bool endless[2] = {false, false}; /* of tags, of comments: no end of one follows any more */
    for (size_t at = 0; at < s.len;) {
        bool comment = at + 4 <= s.len && memcmp(s.data + at, "<!--", 4) == 0;
        size_t end = s.data[at] != '<' || endless[comment] ? SIZE_MAX : slice_find(s, comment ? (Slice){"-->", 3} : (Slice){">", 1}, at);
        endless[comment] = endless[comment] || (s.data[at] == '<' && end == SIZE_MAX);
        if (end == SIZE_MAX)
            str_append_char(&plain, s.data[at++]);
        else
            at = end + (comment ? 3 : 1);
    }
    unescape(&plain);
    Value words = v_str(j, &plain), list = string_method(j, words, "split", &no_args);
    return string_method(j, v_text(" "), "join", &(Args){&list, 1, NULL, 0});
}

FILTER(truncate) {
    CHECK("truncate", 0, 4, "length|killwords|end|leeway");
    int64_t length = arg_int(j, args, 0, "length", 255), leeway = arg_int(j, args, 3, "leeway", 5);
    Slice end = arg_text(j, args, 2, "end", "...");
    if (jinja_ok(j) && length < string_length(end))
        return jinja_fail(j, "expected length >= %lld, got %lld", (long long)string_length(end), (long long)length);
    if (jinja_ok(j) && leeway < 0) return jinja_fail(j, "expected leeway >= 0, got %lld", (long long)leeway);
    if (!jinja_ok(j) || length_of(j, v) <= length + leeway) return v;
    if (!is_string(v)) return jinja_fail(j, "truncate needs a text, not %s", v_type_name(v));
    Slice s = v.as.string;
    Slice kept = string_part(s, 0, length - string_length(end));
    if (!arg_bool(j, args, 1, "killwords", false))
        for (size_t i = kept.len; i > 0; i--)
            if (kept.data[i - 1] == ' ') {
                kept.len = i - 1;
                break;
            }
    return v_binary(j, (Slice){"+", 1}, v_slice(kept), v_slice(end));
}

FILTER(wordcount) {
    CHECK("wordcount", 0, 0, "");
    Slice s = text_of(j, v);
    int64_t n = 0;
    bool inside = false;
    for (size_t at = 0; at < s.len;) {
        uint32_t c;
        at += char_next(s.data + at, &c);
        n += char_is_word(c) && !inside;
        inside = char_is_word(c);
    }
    return v_int(n);
}

/* Wraps one line at spaces into lines of at most `width` characters. */
static void wrap_line(Jinja *j, Slice line, int64_t width, bool break_long, Slice between, Str *out) {
    int64_t column = 0;
    for (size_t at = 0; at < line.len;) {
        size_t spaces = 0, word = 0;
        while (at + spaces < line.len && line.data[at + spaces] == ' ') spaces++;
        while (at + spaces + word < line.len && line.data[at + spaces + word] != ' ') word++;
        Slice gap = {line.data + at, spaces}, text = {line.data + at + spaces, word};
        int64_t length = string_length(text);
        if (column > 0 && column + (int64_t)spaces + length > width) {
            str_append_n(out, between.data, between.len);
            column = 0;
        } else if (word > 0) {
            str_append_n(out, gap.data, gap.len);
            column += (int64_t)spaces;
        }
        while (break_long && length > width && jinja_ok(j)) {
            Slice part = string_part(text, 0, width);
            str_append_n(out, part.data, part.len);
            str_append_n(out, between.data, between.len);
            text = (Slice){text.data + part.len, text.len - part.len};
            length -= width;
        }
        str_append_n(out, text.data, text.len);
        column += length;
        at += spaces + word;
    }
}

FILTER(wordwrap) {
    CHECK("wordwrap", 0, 4, "width|break_long_words|wrapstring|break_on_hyphens");
    int64_t width = arg_int(j, args, 0, "width", 79);
    const Value *given = arg(args, 2, "wrapstring");
    Slice between = given && is_string(*given) ? given->as.string : (Slice){"\n", 1};
    if (!is_string(defined(j, v))) return jinja_fail(j, "wordwrap needs a text, not %s", v_type_name(v));
    if (width < 1) return jinja_fail(j, "invalid width %lld (must be > 0)", (long long)width);
    Value lines = string_method(j, v, "splitlines", &no_args);
    Str out = {0};
    for (size_t i = 0; jinja_ok(j) && i < lines.as.list->n; i++) {
        if (i) str_append_n(&out, between.data, between.len);
        wrap_line(j, lines.as.list->items[i].as.string, width, arg_bool(j, args, 1, "break_long_words", true), between, &out);
    }
    return v_str(j, &out);
}

static void append_quoted(Str *out, Slice s, bool query) {
    for (size_t i = 0; i < s.len; i++) {
        char c = s.data[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("_.-~", c)) || (c == '/' && !query);
        if (plain)
            str_append_char(out, c);
        else if (c == ' ' && query)
            str_append_char(out, '+');
        else
            str_printf(out, "%%%02X", (unsigned)(uint8_t)c);
    }
}

FILTER(urlencode) {
    CHECK("urlencode", 0, 0, "");
    Str out = {0};
    if (is_string(v) || is_number(v) || v.type == V_NONE) {
        append_quoted(&out, text_of(j, v), false);
        return v_str(j, &out);
    }
    Value pairs = v.type == V_DICT ? v : v_iterate(j, v);
    size_t n = !jinja_ok(j) ? 0 : v.type == V_DICT ? v.as.dict->n : pairs.as.list->n;
    for (size_t i = 0; i < n && jinja_ok(j); i++) {
        Value key = v.type == V_DICT ? v.as.dict->pairs[i].key : get_item(j, pairs.as.list->items[i], v_int(0));
        Value value = v.type == V_DICT ? v.as.dict->pairs[i].value : get_item(j, pairs.as.list->items[i], v_int(1));
        if (i) str_append_char(&out, '&');
        append_quoted(&out, text_of(j, key), true);
        str_append_char(&out, '=');
        append_quoted(&out, text_of(j, value), true);
    }
    return v_str(j, &out);
}

FILTER(format) {
    return args->n_keywords
               ? format_percent(j, text_of(j, v),
                                global_find((Slice){"dict", 4})->call(j, v_none(), &(Args){NULL, 0, args->keywords, args->n_keywords}))
               : format_percent(j, text_of(j, v), (Value){.type = V_TUPLE, .as.list = &(List){(Value *)(uintptr_t)args->items, args->n, args->n}});
}

FILTER(tojson) {
    CHECK("tojson", 0, 4, "ensure_ascii|indent|separators|sort_keys");
    const Value *indent = arg(args, 1, "indent"), *separators = arg(args, 2, "separators");
    JsonStyle style = {.indent = -1,
                       .space = " ",
                       .item = ", ",
                       .key = ": ",
                       .ascii = arg_bool(j, args, 0, "ensure_ascii", false),
                       .sort = arg_bool(j, args, 3, "sort_keys", false)};
    if (indent && indent->type != V_NONE) {
        bool text = is_string(*indent);
        style.indent = text ? 1 : MAX(MIN(arg_int(j, args, 1, "indent", 0), (int64_t)100), (int64_t)0);
        if (text) style.space = v_string(j, indent->as.string.data, indent->as.string.len).as.string.data;
        style.item = ",";
    }
    if (separators && separators->type != V_NONE) {
        Value item = get_item(j, *separators, v_int(0)), key = get_item(j, *separators, v_int(1));
        if (!is_string(item) || !is_string(key)) return jinja_fail(j, "separators must be two strings");
        style.item = v_string(j, item.as.string.data, item.as.string.len).as.string.data;
        style.key = v_string(j, key.as.string.data, key.as.string.len).as.string.data;
    }
    Str out = {0};
    if (jinja_ok(j)) append_dumps(j, &out, v, &style, 0);
    return v_str(j, &out);
}

static Value sorted(Jinja *j, Value v, const Value *path, bool case_sensitive, bool reverse, Value *keys);

/* A copy with the keys of all dicts in order, as pprint shows them. */
static Value by_keys(Jinja *j, Value v, int depth) {
    if (depth > 100 || !jinja_ok(j) || (v.type != V_DICT && !is_sequence(v))) return v;
    if (is_sequence(v)) {
        Value list = v_list(j, v.type);
        for (size_t i = 0; jinja_ok(j) && i < v.as.list->n; i++) list_push(j, list, by_keys(j, v.as.list->items[i], depth + 1));
        return list;
    }
    Value keys = sorted(j, v, NULL, true, false, NULL), dict = v_dict(j);
    for (size_t i = 0; jinja_ok(j) && i < keys.as.list->n; i++)
        dict_set(j, dict, keys.as.list->items[i], by_keys(j, *dict_find(v, keys.as.list->items[i]), depth + 1));
    return dict;
}

FILTER(pprint) {
    CHECK("pprint", 0, 0, "");
    Str out = {0};
    append_repr(j, &out, by_keys(j, v, 0));
    return v_str(j, &out);
}

/* ---- one of several ---- */

FILTER(default) {
    CHECK("default", 0, 2, "default_value|boolean");
    const Value *other = arg(args, 0, "default_value");
    bool missing = v.type == V_UNDEFINED || (arg_bool(j, args, 1, "boolean", false) && !v_truth(j, v));
    return !missing ? v : other ? *other : v_text("");
}

FILTER(first) {
    CHECK("first", 0, 0, "");
    if (v.type == V_GENERATOR && v.as.list->n) { /* consumes one element; the others stay */
        v.as.list->n--;
        return *v.as.list->items++;
    }
    Value items = v_iterate(j, v);
    return jinja_ok(j) && items.as.list->n ? items.as.list->items[0] : v_undefined("the first item of an empty sequence");
}

FILTER(last) {
    CHECK("last", 0, 0, "");
    if (v.type == V_GENERATOR) return jinja_fail(j, "'generator' object is not reversible");
    Value items = v_iterate(j, v);
    return jinja_ok(j) && items.as.list->n ? items.as.list->items[items.as.list->n - 1] : v_undefined("the last item of an empty sequence");
}

FILTER(length) {
    CHECK("length", 0, 0, "");
    return v_int(length_of(j, v));
}

FILTER(attr) {
    CHECK("attr", 1, 1, "name");
    Slice name = arg_text(j, args, 0, "name", NULL);
    bool mutates = false;
    if (!jinja_ok(j)) return v_undefined(NULL);
    if (v.type == V_DICT && !method_find(V_DICT, name, &mutates)) return v_undefined("an attribute of a dict"); /* keys are not attributes */
    return get_attribute(j, v, name);
}

/* ---- sequences ---- */

FILTER(list) {
    CHECK("list", 0, 0, "");
    Value items = v_iterate(j, v), list = v_list(j, V_LIST);
    for (size_t i = 0; jinja_ok(j) && i < items.as.list->n; i++) list_push(j, list, items.as.list->items[i]);
    return list;
}

FILTER(items) {
    CHECK("items", 0, 0, "");
    bool mutates = false;
    if (v.type == V_UNDEFINED) return v_lazy(v_list(j, V_LIST));
    if (v.type != V_DICT) return jinja_fail(j, "can only get item pairs from a mapping, not %s", v_type_name(v));
    return v_lazy(filter_list(j, method_find(V_DICT, (Slice){"items", 5}, &mutates)->call(j, v, &no_args), &no_args));
}

FILTER(join) {
    CHECK("join", 0, 2, "d|attribute");
    const Value *between = arg(args, 0, "d"), *path = arg(args, 1, "attribute");
    Value items = v_iterate(j, v);
    Str out = {0};
    for (size_t i = 0; jinja_ok(j) && i < items.as.list->n; i++) {
        if (i && between) append_text(j, &out, *between);
        append_text(j, &out, path && path->type != V_NONE ? get_path(j, items.as.list->items[i], *path, NULL) : items.as.list->items[i]);
        if (out.len > JINJA_MAX_OUTPUT) jinja_fail(j, "a text of more than %zu MB", JINJA_MAX_OUTPUT >> 20);
    }
    return v_str(j, &out);
}

FILTER(reverse) {
    CHECK("reverse", 0, 0, "");
    Value backwards = v_int(-1);
    if (is_string(v)) return slice_of(j, v, v_none(), v_none(), backwards);
    Value list = filter_list(j, v, args);
    return jinja_ok(j) ? v_lazy(slice_of(j, list, v_none(), v_none(), backwards)) : list;
}

static Value batches(Jinja *j, Value items, const Value *fill, size_t begin, size_t end, size_t size) {
    Value list = v_list(j, V_LIST);
    for (size_t i = begin; i < end; i++) list_push(j, list, items.as.list->items[i]);
    for (size_t i = end - begin; fill && fill->type != V_NONE && i < size && jinja_ok(j); i++) list_push(j, list, *fill);
    return list;
}

FILTER(batch) {
    CHECK("batch", 1, 2, "linecount|fill_with");
    int64_t size = arg_int(j, args, 0, "linecount", 1);
    Value items = v_iterate(j, v), result = v_list(j, V_LIST);
    if (size < 1) return jinja_fail(j, "batch needs a size of at least 1");
    for (size_t i = 0; jinja_ok(j) && i < items.as.list->n; i += (size_t)size)
        list_push(j, result,
                  batches(j, items, arg(args, 1, "fill_with"), i, MIN(items.as.list->n, i + (size_t)size), (size_t)MIN(size, (int64_t)100000)));
    return v_lazy(result);
}

FILTER(slice) {
    CHECK("slice", 1, 2, "slices|fill_with");
    int64_t n = arg_int(j, args, 0, "slices", 1);
    Value items = v_iterate(j, v), result = v_list(j, V_LIST);
    if (n < 1 || n > 100000) return jinja_fail(j, "slice needs 1 to 100000 slices");
    if (!jinja_ok(j)) return v_lazy(result);
    size_t each = items.as.list->n / (size_t)n, longer = items.as.list->n % (size_t)n, at = 0;
    for (size_t i = 0; i < (size_t)n && jinja_ok(j); i++) {
        size_t take = each + (i < longer);
        list_push(j, result, batches(j, items, i >= longer ? arg(args, 1, "fill_with") : NULL, at, at + take, each + 1));
        at += take;
    }
    return v_lazy(result);
}

/* ---- map, select, reject ---- */

static Args rest_of(const Args *args, size_t skip) {
    return (Args){args->items + MIN(skip, args->n), args->n - MIN(skip, args->n), args->keywords, args->n_keywords};
}

FILTER(map) {
    const Value *path = arg(args, SIZE_MAX, "attribute"), *missing = arg(args, SIZE_MAX, "default");
    if (!v_truth(j, v)) return v_lazy(v_list(j, V_LIST)); /* none too: Jinja2 checks nothing else */
    Value items = v_iterate(j, v), result = v_list(j, V_LIST);
    Args rest = rest_of(args, 1);
    if (!path && (args->n == 0 || !is_string(args->items[0]))) return jinja_fail(j, "map requires a filter argument");
    for (size_t i = 0; jinja_ok(j) && i < items.as.list->n; i++) {
        Value item = items.as.list->items[i];
        if (path) {
            item = get_path(j, item, *path, missing);
        } else {
            item = filter_call(j, args->items[0].as.string, item, &rest);
        }
        list_push(j, result, item);
    }
    return v_lazy(result);
}

static Value jinja_filters_choose(Jinja *j, Value v, const Args *args, bool by_attribute, bool wanted) {
    if (!v_truth(j, v)) return v_lazy(v_list(j, V_LIST));
    Value items = v_iterate(j, v), result = v_list(j, V_LIST);
    size_t at = by_attribute;
    Args rest = rest_of(args, at + 1);
    if (args->n < at) return jinja_fail(j, "missing parameter for attribute name");
    if (args->n > at && !is_string(args->items[at])) return jinja_fail(j, "the name of a test must be a string");
    for (size_t i = 0; jinja_ok(j) && i < items.as.list->n; i++) {
        Value item = items.as.list->items[i], looked_at = by_attribute ? get_path(j, item, args->items[0], NULL) : item;
        bool passes = args->n > at ? test_call(j, args->items[at].as.string, looked_at, &rest) : v_truth(j, looked_at);
        if (passes == wanted) list_push(j, result, item);
    }
    return v_lazy(result);
}
/* clang-format off */
FILTER(select) { return jinja_filters_choose(j, v, args, false, true); }
FILTER(reject) { return jinja_filters_choose(j, v, args, false, false); }
FILTER(selectattr) { return jinja_filters_choose(j, v, args, true, true); }
FILTER(rejectattr) { return jinja_filters_choose(j, v, args, true, false); }
/* clang-format on */

/* ---- order ---- */

typedef struct Keyed {
    Value key, value;
} Keyed;

static Value folded(Jinja *j, Value v, bool case_sensitive) { return is_string(v) && !case_sensitive ? string_method(j, v, "lower", &no_args) : v; }

/* The sort key of an item: itself, an attribute, or several as a tuple ("a,b"). */
static Value key_of(Jinja *j, Value item, const Value *path, bool case_sensitive) {
    if (!path || path->type == V_NONE) return folded(j, item, case_sensitive);
    if (!is_string(*path) || !memchr(path->as.string.data, ',', path->as.string.len))
        return folded(j, get_path(j, item, *path, NULL), case_sensitive);
    Value parts = string_method(j, *path, "split", &(Args){&(Value){.type = V_STRING, .as.string = {",", 1}}, 1, NULL, 0}),
          tuple = v_list(j, V_TUPLE);
    for (size_t i = 0; jinja_ok(j) && i < parts.as.list->n; i++)
        list_push(j, tuple, folded(j, get_path(j, item, parts.as.list->items[i], NULL), case_sensitive));
    return tuple;
}

/* Equal values need no order, such as two undefined values or two dicts. */
static bool jinja_filters_before(Jinja *j, Value a, Value b) { return !v_equal(j, a, b) && v_compare(j, a, b, "<") < 0; }

/* Stable merge sort. After a comparison fails, the rest does nothing. */
static void sort_keyed(Jinja *j, Keyed *items, Keyed *scratch, size_t n, bool reverse) {
    if (n < 2 || !jinja_ok(j)) return;
    size_t half = n / 2, a = 0, b = half;
    sort_keyed(j, items, scratch, half, reverse);
    sort_keyed(j, items + half, scratch, n - half, reverse);
    for (size_t i = 0; i < n && jinja_ok(j); i++) {
        bool right = a == half ||
                     (b < n && (reverse ? jinja_filters_before(j, items[a].key, items[b].key) : jinja_filters_before(j, items[b].key, items[a].key)));
        scratch[i] = items[right ? b++ : a++];
    }
    if (jinja_ok(j)) memcpy(items, scratch, n * sizeof *items);
}

static Value sorted(Jinja *j, Value v, const Value *path, bool case_sensitive, bool reverse, Value *keys) {
    Value items = v_iterate(j, v), result = v_list(j, V_LIST);
    size_t n = jinja_ok(j) ? items.as.list->n : 0;
    Keyed *keyed = pool_alloc(&j->pool, 2 * (n + 1) * sizeof *keyed);
    if (!keyed) return jinja_fail(j, "the template needs too much memory");
    for (size_t i = 0; i < n && jinja_ok(j); i++)
        keyed[i] = (Keyed){key_of(j, items.as.list->items[i], path, case_sensitive), items.as.list->items[i]};
    sort_keyed(j, keyed, keyed + n, n, reverse);
    if (keys) *keys = v_list(j, V_LIST);
    for (size_t i = 0; i < n && jinja_ok(j); i++) {
        list_push(j, result, keyed[i].value);
        if (keys) list_push(j, *keys, keyed[i].key);
    }
    return result;
}

FILTER(sort) {
    CHECK("sort", 0, 3, "reverse|case_sensitive|attribute");
    return sorted(j, v, arg(args, 2, "attribute"), arg_bool(j, args, 1, "case_sensitive", false), arg_bool(j, args, 0, "reverse", false), NULL);
}

FILTER(dictsort) {
    CHECK("dictsort", 0, 3, "case_sensitive|by|reverse");
    Slice by = arg_text(j, args, 1, "by", "key");
    Value column = v_int(slice_is(by, "value")), pairs;
    if (!slice_is(by, "key") && !slice_is(by, "value")) return jinja_fail(j, "you can only sort by either \"key\" or \"value\"");
    pairs = filter_items(j, defined(j, v), &no_args);
    return jinja_ok(j) ? sorted(j, pairs, &column, arg_bool(j, args, 0, "case_sensitive", false), arg_bool(j, args, 2, "reverse", false), NULL)
                       : pairs;
}

static Value extreme(Jinja *j, Value v, const Args *args, int sign, const char *what) {
    if (!args_check(j, what, args, 0, 2, "case_sensitive|attribute")) return v_undefined(NULL);
    const Value *path = arg(args, 1, "attribute");
    bool case_sensitive = arg_bool(j, args, 0, "case_sensitive", false);
    Value items = v_iterate(j, v), best = v_undefined("an item of an empty sequence"), best_key = best;
    for (size_t i = 0; jinja_ok(j) && i < items.as.list->n; i++) {
        Value key = key_of(j, items.as.list->items[i], path, case_sensitive);
        if (i == 0 || v_compare(j, key, best_key, sign > 0 ? ">" : "<") * sign > 0) best = items.as.list->items[i], best_key = key;
    }
    return best;
}
/* clang-format off */
FILTER(max) { return extreme(j, v, args, 1, "filter max"); }
FILTER(min) { return extreme(j, v, args, -1, "filter min"); }
/* clang-format on */

FILTER(unique) {
    CHECK("unique", 0, 2, "case_sensitive|attribute");
    const Value *path = arg(args, 1, "attribute");
    bool case_sensitive = arg_bool(j, args, 0, "case_sensitive", false);
    Value items = v_iterate(j, v), seen = v_list(j, V_LIST), result = v_list(j, V_LIST);
    for (size_t i = 0; jinja_ok(j) && i < items.as.list->n; i++) {
        Value key = key_of(j, items.as.list->items[i], path, case_sensitive);
        if (!jinja_ok(j) || !v_hashable(j, key) || v_contains(j, seen, key)) continue;
        list_push(j, seen, key);
        list_push(j, result, items.as.list->items[i]);
    }
    return v_lazy(result);
}

/* Pairs (grouper, list), sorted by the attribute. */
FILTER(groupby) {
    CHECK("groupby", 1, 3, "attribute|default|case_sensitive");
    const Value *path = arg(args, 0, "attribute"), *missing = arg(args, 1, "default");
    bool case_sensitive = arg_bool(j, args, 2, "case_sensitive", false);
    Value items = v_iterate(j, v), keyed = v_list(j, V_LIST), keys, result = v_list(j, V_LIST), first = v_int(0), second = v_int(1);
    for (size_t i = 0; jinja_ok(j) && i < items.as.list->n; i++) { /* pairs (key, item), sorted only by the key */
        Value pair = v_list(j, V_TUPLE), key = get_path(j, items.as.list->items[i], *path, missing);
        if (items.as.list->n > 1) defined(j, key);
        list_push(j, pair, key);
        list_push(j, pair, items.as.list->items[i]);
        list_push(j, keyed, pair);
    }
    if (!jinja_ok(j)) return result;
    Value ordered = sorted(j, keyed, &first, case_sensitive, false, &keys), group = v_undefined(NULL);
    for (size_t i = 0; jinja_ok(j) && i < ordered.as.list->n; i++) {
        if (i == 0 || !v_equal(j, keys.as.list->items[i], keys.as.list->items[i - 1])) {
            Value pair = v_list(j, V_TUPLE);
            group = v_list(j, V_LIST);
            list_push(j, pair, get_item(j, ordered.as.list->items[i], first));
            list_push(j, pair, group);
            pair.safe = true; /* marks the pair as one with the member names grouper and list */
            list_push(j, result, pair);
        }
        list_push(j, group, get_item(j, ordered.as.list->items[i], second));
    }
    return result;
}

static const Builtin filters[] = {
    {"abs", filter_abs},
    {"attr", filter_attr},
    {"batch", filter_batch},
    {"capitalize", filter_capitalize},
    {"center", filter_center},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"filesizeformat", filter_filesizeformat},
    {"first", filter_first},
    {"float", filter_float},
    {"forceescape", filter_forceescape},
    {"format", filter_format},
    {"groupby", filter_groupby},
    {"indent", filter_indent},
    {"int", filter_int},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", filter_lower},
    {"map", filter_map},
    {"max", filter_max},
    {"min", filter_min},
    {"pprint", filter_pprint},
    {"reject", filter_reject},
    {"rejectattr", filter_rejectattr},
    {"replace", filter_replace},
    {"reverse", filter_reverse},
    {"round", filter_round},
    {"safe", filter_safe},
    {"select", filter_select},
    {"selectattr", filter_selectattr},
    {"slice", filter_slice},
    {"sort", filter_sort},
    {"string", filter_string},
    {"striptags", filter_striptags},
    {"sum", filter_sum},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"truncate", filter_truncate},
    {"unique", filter_unique},
    {"upper", filter_upper},
    {"urlencode", filter_urlencode},
    {"wordcount", filter_wordcount},
    {"wordwrap", filter_wordwrap},
    {"xmlattr", filter_xmlattr},
};

const Builtin *filter_find(Slice name) {
    for (size_t i = 0; i < COUNT_OF(filters); i++)
        if (slice_is(name, filters[i].name)) return &filters[i];
    return NULL;
}

Value filter_call(Jinja *j, Slice name, Value value, const Args *args) {
    const Builtin *filter = filter_find(name);
    if (!filter) return jinja_fail(j, "no filter named '%.*s'", (int)name.len, name.data);
    return jinja_ok(j) && jinja_charge(j, value) ? filter->call(j, value, args) : v_undefined(NULL);
}
