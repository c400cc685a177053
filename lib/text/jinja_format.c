/* SPDX-License-Identifier: Apache-2.0 */
/* Python's two kinds of string formatting: "%s" % x and "{}".format(x). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/text/jinja.h"
#include "lib/text/tokenizer_parts.h"

typedef struct Spec {
    Slice fill;
    char align, sign, type, group; /* align < > ^ =, 0 = the type's own; group , or _ */
    bool alternate;
    int64_t width, precision; /* precision -1: none */
} Spec;

enum { MOST_WIDTH = 100000 };

/* Appends `prefix` (sign or base) and `body`, padded. */
static void append_padded(Str *out, Slice prefix, Slice body, const Spec *spec, char own_align) {
    int64_t missing = spec->width - string_length(prefix) - string_length(body), left = 0;
    char align = spec->align ? spec->align : own_align;
    if (missing < 0) missing = 0;
    if (align == '>') left = missing;
    if (align == '^') left = missing / 2;
    for (int64_t i = 0; i < left; i++) str_append_n(out, spec->fill.data, spec->fill.len);
    str_append_n(out, prefix.data, prefix.len);
    for (int64_t i = 0; align == '=' && i < missing; i++) str_append_n(out, spec->fill.data, spec->fill.len);
    str_append_n(out, body.data, body.len);
    for (int64_t i = left; align != '=' && i < missing; i++) str_append_n(out, spec->fill.data, spec->fill.len);
}

static void group_digits(Str *digits, char separator, int size) {
    Str out = {0};
    size_t n = strcspn(str_text(digits), ".eE%n");
    for (size_t i = 0; i < digits->len; i++) {
        if (i > 0 && i < n && (n - i) % (size_t)size == 0) str_append_char(&out, separator);
        str_append_char(&out, digits->data[i]);
    }
    str_release(digits);
    *digits = out;
}

static void append_integer(Str *out, int64_t value, const Spec *spec) {
    Str digits = {0}, prefix = {0};
    uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (value < 0)
        str_append_char(&prefix, '-');
    else if (spec->sign == '+' || spec->sign == ' ')
        str_append_char(&prefix, spec->sign);
    char type = spec->type;
    if (spec->alternate && strchr("xXob", type)) str_printf(&prefix, "0%c", type);
    if (type == 'b') {
        char bits[65] = {0};
        size_t n = 0;
        do bits[63 - n++] = (char)('0' + (size & 1));
        while (size >>= 1);
        str_append_n(&digits, bits + 64 - n, n);
    } else {
        str_printf(&digits, type == 'x' ? "%llx" : type == 'X' ? "%llX" : type == 'o' ? "%llo" : "%llu", (unsigned long long)size);
    }
    for (int64_t i = (int64_t)digits.len; i < spec->precision && i < MOST_WIDTH; i++) str_append_char(&prefix, '0');
    if (spec->group) group_digits(&digits, spec->group, type == 'd' || type == 'n' ? 3 : 4);
    append_padded(out, (Slice){str_text(&prefix), prefix.len}, (Slice){str_text(&digits), digits.len}, spec, '>');
    str_release(&digits);
    str_release(&prefix);
}

/* Like %g, but always with a digit after the decimal point; a number whose digits fill the precision is written with an exponent. */
static void append_general(Str *out, double value, int precision) {
    char text[400];
    snprintf(text, sizeof text, "%.*e", precision - 1, value);
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent == precision - 1) {
        char *e = strchr(text, 'e'), *end = e;
        while (memchr(text, '.', (size_t)(end - text)) && (end[-1] == '0' || end[-1] == '.')) end--;
        str_append_n(out, text, (size_t)(end - text));
        str_append(out, e);
        return;
    }
    snprintf(text, sizeof text, "%.*g", precision, value);
    str_append(out, text);
    if (!strpbrk(text, ".e")) str_append(out, ".0");
}

static void append_real(Str *out, double value, const Spec *spec) {
    Str digits = {0}, prefix = {0};
    char type = spec->type;
    int precision = (int)(spec->precision < 0 ? 6 : MIN(spec->precision, (int64_t)300));
    if (signbit(value))
        str_append_char(&prefix, '-');
    else if (spec->sign == '+' || spec->sign == ' ')
        str_append_char(&prefix, spec->sign);
    value = fabs(value);
    if (!isfinite(value))
        str_append(&digits, isnan(value)                                ? (type == 'F' || type == 'E' || type == 'G' ? "NAN" : "nan")
                            : type == 'F' || type == 'E' || type == 'G' ? "INF"
                                                                        : "inf");
    else if (type == 0 && spec->precision < 0)
        append_float(&digits, value);
    else if (type == '%')
        str_printf(&digits, "%.*f%%", precision, value * 100);
    else if (type == 'e')
        str_printf(&digits, "%.*e", precision, value);
    else if (type == 'E')
        str_printf(&digits, "%.*E", precision, value);
    else if (type == 'G')
        str_printf(&digits, "%.*G", precision, value);
    else if (type == 0)
        append_general(&digits, value, MAX(precision, 1));
    else if (type == 'g' || type == 'n')
        str_printf(&digits, "%.*g", precision, value);
    else
        str_printf(&digits, "%.*f", precision, value);
    if (spec->group) group_digits(&digits, spec->group, 3);
    append_padded(out, (Slice){str_text(&prefix), prefix.len}, (Slice){str_text(&digits), digits.len}, spec, '>');
    str_release(&digits);
    str_release(&prefix);
}

static void append_words(Str *out, Slice text, const Spec *spec, char own_align) {
    if (spec->precision >= 0 && string_length(text) > spec->precision) text = string_part(text, 0, spec->precision);
    append_padded(out, (Slice){"", 0}, text, spec, own_align);
}

static Value repr_value(Jinja *j, Value v, bool ascii) {
    Str text = {0}, plain = {0};
    append_repr(j, &text, v);
    if (!ascii) return v_str(j, &text);
    for (size_t at = 0; at < text.len;) {
        uint32_t c;
        size_t n = char_next(text.data + at, &c);
        if (c < 0x80)
            str_append_char(&plain, (char)c);
        else
            str_printf(&plain, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
        at += n;
    }
    str_release(&text);
    return v_str(j, &plain);
}

/* ---- "%s" % x ---- */

static int64_t take_count(Slice s, size_t *at) {
    int64_t n = 0;
    for (; *at < s.len && s.data[*at] >= '0' && s.data[*at] <= '9'; (*at)++) n = MIN(n * 10 + (s.data[*at] - '0'), (int64_t)MOST_WIDTH);
    return n;
}

typedef struct Supply {
    Value args;
    size_t next;
    bool single;
} Supply;

static Value next_value(Jinja *j, Supply *supply) {
    if (supply->single ? supply->next > 0 : supply->next >= supply->args.as.list->n) return jinja_fail(j, "not enough arguments for format string");
    return supply->single ? (supply->next++, supply->args) : supply->args.as.list->items[supply->next++];
}

static void append_conversion(Jinja *j, Str *out, char type, Value value, Spec *spec) {
    if (!jinja_ok(j)) return;
    if (type == 's' || type == 'r' || type == 'a') {
        append_words(out, type == 's' ? text_of(j, value) : repr_value(j, value, type == 'a').as.string, spec, '>');
    } else if (type == 'c') {
        char bytes[4];
        if (is_string(value) && string_length(value.as.string) == 1)
            append_words(out, value.as.string, spec, '>');
        else if (is_integral(value) && int_of(value) >= 0 && int_of(value) < 0x110000)
            append_words(out, (Slice){bytes, utf8_encode((uint32_t)int_of(value), bytes)}, spec, '>');
        else
            jinja_fail(j, "%%c requires int or char");
    } else if (!is_number(value)) {
        jinja_fail(j, "%%%c format: a number is required, not %s", type, v_type_name(value));
    } else if (strchr("xXo", type) && value.type == V_FLOAT) {
        jinja_fail(j, "%%%c format: an integer is required, not float", type);
    } else if (strchr("diuxXo", type) && value.type == V_FLOAT && !(fabs(value.as.real) < 0x1p63)) {
        jinja_fail(j, "an integer beyond 64 bits");
    } else if (strchr("diuxXo", type)) {
        spec->type = type == 'i' || type == 'u' ? 'd' : type;
        append_integer(out, value.type == V_FLOAT ? (int64_t)value.as.real : int_of(value), spec);
    } else if (strchr("eEfFgG", type)) {
        spec->type = type;
        append_real(out, number_of(value), spec);
    } else {
        jinja_fail(j, "unsupported format character '%c'", type);
    }
}

/* A format being parsed, with its positional values. */
typedef struct Percent {
    Jinja *j;
    Slice text;
    size_t at;
    Supply supply;
    bool named;
} Percent;

static bool at_one_of(const Percent *p, const char *set) { return p->at < p->text.len && p->text.data[p->at] && strchr(set, p->text.data[p->at]); }

/* "(name)": gets the value of that key. False: there is no key, and the next value in order is used. */
static bool read_key(Percent *p, Value *value) {
    if (!at_one_of(p, "(")) return false;
    size_t begin = p->at + 1, end = slice_find(p->text, (Slice){")", 1}, p->at);
    if (end == SIZE_MAX) {
        jinja_fail(p->j, "incomplete format key");
        return false;
    }
    Value key = v_slice((Slice){p->text.data + begin, end - begin}), *found = dict_find(p->supply.args, key);
    if (p->supply.args.type != V_DICT)
        jinja_fail(p->j, "format requires a mapping");
    else if (!found)
        jinja_fail(p->j, "no key '%.*s' in the values of a format", (int)key.as.string.len, key.as.string.data);
    if (found) *value = *found;
    p->named = true;
    p->at = end + 1;
    return true;
}

/* "-+ 0#". True: numbers are padded with zeros unless another alignment is given. */
static bool read_flags(Percent *p, Spec *spec) {
    bool zero = false;
    for (; at_one_of(p, "-+ 0#"); p->at++) {
        char flag = p->text.data[p->at];
        if (flag == '-')
            spec->align = '<';
        else if (flag == '0')
            zero = true;
        else if (flag == '#')
            spec->alternate = true;
        else if (spec->sign != '+')
            spec->sign = flag;
    }
    return zero;
}

/* "12", or "*": taken from the values. */
static void read_width(Percent *p, Spec *spec) {
    if (!at_one_of(p, "*")) {
        spec->width = take_count(p->text, &p->at);
        return;
    }
    p->at++;
    Value width = next_value(p->j, &p->supply);
    spec->width = is_integral(width) ? MIN(llabs(int_of(width)), MOST_WIDTH) : 0;
    if (is_integral(width) && int_of(width) < 0) spec->align = '<';
}

/* ".3", ".*", or nothing. */
static void read_precision(Percent *p, Spec *spec) {
    if (!at_one_of(p, ".")) return;
    p->at++;
    if (!at_one_of(p, "*")) {
        spec->precision = take_count(p->text, &p->at);
        return;
    }
    p->at++;
    Value precision = next_value(p->j, &p->supply);
    if (jinja_ok(p->j) && !is_integral(precision)) jinja_fail(p->j, "* wants int");
    spec->precision = is_integral(precision) ? MIN(MAX(int_of(precision), (int64_t)0), (int64_t)MOST_WIDTH) : 0;
}

/* Converts the specification after a '%'. */
static void convert_next(Percent *p, Str *out) {
    Spec spec = {.fill = {" ", 1}, .precision = -1};
    Value value = v_undefined(NULL);
    bool given = read_key(p, &value), zero = read_flags(p, &spec);
    read_width(p, &spec);
    read_precision(p, &spec);
    while (at_one_of(p, "hlL")) p->at++; /* length modifiers of C, which Python skips too */
    if (p->at >= p->text.len) {
        jinja_fail(p->j, "incomplete format");
        return;
    }
    char type = p->text.data[p->at++];
    if (type == '%') {
        str_append_char(out, '%');
        return;
    }
    if (zero && spec.align != '<' && !strchr("srac", type)) spec.align = '=', spec.fill = (Slice){"0", 1};
    if (!given) value = next_value(p->j, &p->supply);
    append_conversion(p->j, out, type, value, &spec);
    if (out->len > JINJA_MAX_OUTPUT) jinja_fail(p->j, "a text of more than %zu MB", JINJA_MAX_OUTPUT >> 20);
}

/* Whether all positional values were used; a value with items may be left over. */
static bool all_converted(const Percent *p) {
    const Supply *supply = &p->supply;
    switch (supply->args.type) {
    case V_DICT:
    case V_LIST:
    case V_RANGE:
    case V_UNDEFINED: return true;
    default: return p->named || (supply->single ? supply->next > 0 : supply->next >= supply->args.as.list->n);
    }
}

Value format_percent(Jinja *j, Slice format, Value args) {
    Percent p = {.j = j, .text = format, .supply = {args, 0, args.type != V_TUPLE}};
    Str out = {0};
    while (p.at < format.len && jinja_ok(j)) {
        char c = format.data[p.at++];
        if (c == '%')
            convert_next(&p, &out);
        else
            str_append_char(&out, c);
    }
    if (jinja_ok(j) && !all_converted(&p)) jinja_fail(j, "not all arguments converted during string formatting");
    return v_str(j, &out);
}

/* ---- "{}".format(x) ---- */

/* [[fill]align][sign][#][0][width][,_][.precision][type] */
static bool read_spec(Jinja *j, Slice text, Spec *spec) {
    size_t at = 0, n = 0;
    uint32_t c;
    *spec = (Spec){.fill = {" ", 1}, .precision = -1};
    if (text.len) n = char_next(text.data, &c);
    if (n && n < text.len && strchr("<>=^", text.data[n]) && text.data[n]) {
        spec->fill = (Slice){text.data, n};
        spec->align = text.data[n];
        at = n + 1;
    } else if (n && strchr("<>=^", text.data[0]) && text.data[0]) {
        spec->align = text.data[at++];
    }
    if (at < text.len && strchr("+- ", text.data[at]) && text.data[at]) spec->sign = text.data[at++];
    if (at < text.len && text.data[at] == '#') spec->alternate = true, at++;
    if (at < text.len && text.data[at] == '0') {
        if (!spec->align) spec->align = '=', spec->fill = (Slice){"0", 1};
        at++;
    }
    spec->width = take_count(text, &at);
    if (at < text.len && (text.data[at] == ',' || text.data[at] == '_')) spec->group = text.data[at++];
    if (at < text.len && text.data[at] == '.') {
        at++;
        spec->precision = take_count(text, &at);
    }
    if (at < text.len) spec->type = text.data[at++];
    if (at < text.len) jinja_fail(j, "invalid format specifier '%.*s'", (int)text.len, text.data);
    return jinja_ok(j);
}

static void append_formatted(Jinja *j, Str *out, Value value, Slice text) {
    Spec spec;
    if (text.len == 0) {
        append_text(j, out, value);
        return;
    }
    if (!read_spec(j, text, &spec)) return;
    if (is_string(value) && spec.sign) {
        jinja_fail(j, "a sign is not allowed in the format of a string");
    } else if (is_integral(value) && spec.precision >= 0 && (spec.type == 0 || strchr("dxXobc", spec.type))) {
        jinja_fail(j, "a precision is not allowed in the format of an integer");
    } else if (is_string(value) && (spec.type == 0 || spec.type == 's')) {
        append_words(out, value.as.string, &spec, '<');
    } else if (is_integral(value) && (spec.type == 0 || strchr("dxXobn", spec.type))) {
        spec.type = spec.type ? spec.type : 'd';
        append_integer(out, int_of(value), &spec);
    } else if (is_integral(value) && spec.type == 'c' && int_of(value) >= 0 && int_of(value) < 0x110000) {
        char bytes[4];
        append_words(out, (Slice){bytes, utf8_encode((uint32_t)int_of(value), bytes)}, &spec, '<');
    } else if (is_number(value) && (spec.type == 0 || strchr("eEfFgGn%", spec.type))) {
        append_real(out, number_of(value), &spec);
    } else {
        jinja_fail(j, "unsupported format '%.*s' for %s", (int)text.len, text.data, v_type_name(value));
    }
}

/* "0.name[key]" from the arguments; an empty name takes the next one. */
static Value field_value(Jinja *j, Slice field, const Args *args, size_t *next) {
    size_t end = 0;
    while (end < field.len && field.data[end] != '.' && field.data[end] != '[') end++;
    Slice first = {field.data, end};
    bool digits = first.len > 0 && first.len < 10;
    int64_t index = 0;
    for (size_t i = 0; i < first.len && digits; i++) {
        digits = first.data[i] >= '0' && first.data[i] <= '9';
        index = index * 10 + (first.data[i] - '0');
    }
    Value value = v_undefined(NULL);
    if (first.len == 0 || digits) {
        size_t at = digits ? (size_t)index : (*next)++;
        if (at >= args->n) return jinja_fail(j, "replacement index %zu out of range for positional args tuple", at);
        value = args->items[at];
    } else {
        bool found = false;
        for (size_t i = 0; i < args->n_keywords && !found; i++)
            if ((found = slice_equal(args->keywords[i].name, first))) value = args->keywords[i].value;
        if (!found) return jinja_fail(j, "no argument '%.*s' for a format", (int)first.len, first.data);
    }
    while (end < field.len && jinja_ok(j)) {
        bool item = field.data[end++] == '[';
        size_t begin = end;
        while (end < field.len && (item ? field.data[end] != ']' : field.data[end] != '.' && field.data[end] != '[')) end++;
        Slice name = {field.data + begin, end - begin};
        value = item ? get_path(j, value, v_slice(name), NULL) : get_attribute(j, value, name);
        end += item && end < field.len;
    }
    return value;
}

Value string_format(Jinja *j, Value self, const Args *args) {
    Slice s = self.as.string;
    Str out = {0};
    size_t next = 0;
    for (size_t at = 0; at < s.len && jinja_ok(j);) {
        char c = s.data[at];
        if ((c == '{' || c == '}') && at + 1 < s.len && s.data[at + 1] == c) {
            str_append_char(&out, c);
            at += 2;
            continue;
        }
        if (c == '}') {
            jinja_fail(j, "Single '}' encountered in format string");
            break;
        }
        if (c != '{') {
            str_append_char(&out, c);
            at++;
            continue;
        }
        size_t end = at + 1, depth = 1;
        while (end < s.len && (depth += s.data[end] == '{', depth -= s.data[end] == '}') > 0) end++;
        if (end >= s.len) {
            jinja_fail(j, "Single '{' encountered in format string");
            break;
        }
        Slice field = {s.data + at + 1, end - at - 1}, spec = {"", 0};
        char conversion = 0;
        const char *colon = memchr(field.data, ':', field.len);
        if (colon) {
            spec = (Slice){colon + 1, (size_t)(field.data + field.len - colon - 1)};
            field.len = (size_t)(colon - field.data);
        }
        if (field.len >= 2 && field.data[field.len - 2] == '!') {
            conversion = field.data[field.len - 1];
            field.len -= 2;
        }
        Value value = field_value(j, field, args, &next);
        if (memchr(spec.data, '{', spec.len))
            spec = string_format(j, v_slice(spec),
                                 &(Args){args->items + MIN(next, args->n), args->n - MIN(next, args->n), args->keywords, args->n_keywords})
                       .as.string;
        if (!jinja_ok(j)) break;
        append_formatted(j, &out,
                         conversion == 'r' || conversion == 'a' ? repr_value(j, value, conversion == 'a')
                         : conversion == 's'                    ? v_slice(text_of(j, value))
                                                                : value,
                         spec);
        at = end + 1;
        if (out.len > JINJA_MAX_OUTPUT) jinja_fail(j, "a text of more than %zu MB", JINJA_MAX_OUTPUT >> 20);
    }
    return v_str(j, &out);
}
