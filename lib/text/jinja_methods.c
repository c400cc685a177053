/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of strings, lists, tuples, dicts and cyclers, with Python's behaviour: one function and one line of a table each. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "lib/text/jinja.h"
#include "lib/text/tokenizer_parts.h"

#define METHOD(name) static Value str_##name(Jinja *j, Value self, const Args *args)
#define CHECK(name, least, most, names) \
    if (!args_check(j, name "()", args, least, most, names)) return v_undefined(NULL)

/* ---- case ---- */

static bool cased(uint32_t c) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT;
}

typedef enum Casing { CASE_LOWER, CASE_UPPER, CASE_TITLE, CASE_CAPITAL, CASE_SWAP } Casing;

/* Few characters map to several; this covers the common ones, German sharp s and the ligatures. */
static void append_upper(Str *out, uint32_t c, bool title) {
    static const struct {
        uint32_t c;
        const char *upper, *title;
    } special[] = {
        {0xDF, "SS", "Ss"},
        {0xFB00, "FF", "Ff"},
        {0xFB01, "FI", "Fi"},
        {0xFB02, "FL", "Fl"},
        {0xFB03, "FFI", "Ffi"},
        {0xFB04, "FFL", "Ffl"},
        {0x149, "\xCA\xBCN", "\xCA\xBCN"},
    };
    for (size_t i = 0; i < COUNT_OF(special); i++)
        if (special[i].c == c) {
            str_append(out, title ? special[i].title : special[i].upper);
            return;
        }
    char bytes[4];
    str_append_n(out, bytes, utf8_encode((uint32_t)(title ? utf8proc_totitle((utf8proc_int32_t)c) : utf8proc_toupper((utf8proc_int32_t)c)), bytes));
}

static void append_lower(Str *out, uint32_t c, bool final) {
    char bytes[4];
    if (c == 0x130)
        str_append(out, "i\xCC\x87");
    else
        str_append_n(out, bytes, utf8_encode(c == 0x3A3 && final ? 0x3C2 : (uint32_t)utf8proc_tolower((utf8proc_int32_t)c), bytes));
}

static Value change_case(Jinja *j, Slice s, Casing casing) {
    Str out = {0};
    bool inside = false;
    for (size_t at = 0; at < s.len;) {
        uint32_t c, next = 0;
        size_t n = char_next(s.data + at, &c);
        if (at + n < s.len) char_next(s.data + at + n, &next);
        bool letter = cased(c), final = inside && !(at + n < s.len && cased(next)),
             is_lower = utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LL;
        bool up = casing == CASE_UPPER || (casing == CASE_SWAP && is_lower),
             title = (casing == CASE_TITLE && !inside) || (casing == CASE_CAPITAL && at == 0);
        if (up || title)
            append_upper(&out, c, title);
        else
            append_lower(&out, c, final);
        inside = letter;
        at += n;
    }
    return v_str(j, &out);
}

/* clang-format off */
METHOD(lower) { CHECK("lower", 0, 0, ""); return change_case(j, self.as.string, CASE_LOWER); }
METHOD(upper) { CHECK("upper", 0, 0, ""); return change_case(j, self.as.string, CASE_UPPER); }
METHOD(title) { CHECK("title", 0, 0, ""); return change_case(j, self.as.string, CASE_TITLE); }
METHOD(capitalize) { CHECK("capitalize", 0, 0, ""); return change_case(j, self.as.string, CASE_CAPITAL); }
METHOD(swapcase) { CHECK("swapcase", 0, 0, ""); return change_case(j, self.as.string, CASE_SWAP); }
/* clang-format on */

METHOD(casefold) {
    CHECK("casefold", 0, 0, "");
    utf8proc_uint8_t *folded = NULL;
    utf8proc_ssize_t n =
        utf8proc_map((const utf8proc_uint8_t *)self.as.string.data, (utf8proc_ssize_t)self.as.string.len, &folded, UTF8PROC_CASEFOLD);
    Value value = n >= 0 ? v_string(j, (const char *)folded, (size_t)n) : self;
    free(folded);
    return value;
}

/* ---- classes of characters in a string ---- */

typedef bool CharTest(uint32_t c);
static Value all_chars(Slice s, CharTest *test) {
    for (size_t at = 0; at < s.len;) {
        uint32_t c;
        at += char_next(s.data + at, &c);
        if (!test(c)) return v_bool(false);
    }
    return v_bool(s.len > 0);
}

static bool is_alpha(uint32_t c) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
static bool is_decimal(uint32_t c) { return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND; }
static bool is_digit(uint32_t c) {
    return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0x2070 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
           (c >= 0x2460 && c <= 0x2468);
}
static bool is_alnum(uint32_t c) { return is_alpha(c) || char_is_numeric(c); }
static bool is_ascii(uint32_t c) { return c < 128; }
/* clang-format off */
METHOD(isalpha) { CHECK("isalpha", 0, 0, ""); return all_chars(self.as.string, is_alpha); }
METHOD(isdigit) { CHECK("isdigit", 0, 0, ""); return all_chars(self.as.string, is_digit); }
METHOD(isdecimal) { CHECK("isdecimal", 0, 0, ""); return all_chars(self.as.string, is_decimal); }
METHOD(isnumeric) { CHECK("isnumeric", 0, 0, ""); return all_chars(self.as.string, char_is_numeric); }
METHOD(isalnum) { CHECK("isalnum", 0, 0, ""); return all_chars(self.as.string, is_alnum); }
METHOD(isspace) { CHECK("isspace", 0, 0, ""); return all_chars(self.as.string, python_space); }
METHOD(isprintable) { CHECK("isprintable", 0, 0, ""); return self.as.string.len ? all_chars(self.as.string, python_printable) : v_bool(true); }
METHOD(isascii) { CHECK("isascii", 0, 0, ""); return self.as.string.len ? all_chars(self.as.string, is_ascii) : v_bool(true); }
/* clang-format on */
METHOD(isidentifier) {
    CHECK("isidentifier", 0, 0, "");
    uint32_t first = '0';
    if (self.as.string.len) char_next(self.as.string.data, &first);
    return v_bool((first == '_' || (char_is_word(first) && !char_is_numeric(first))) && v_truth(j, all_chars(self.as.string, char_is_word)));
}
/* clang-format off */
METHOD(islower) { CHECK("islower", 0, 0, ""); return v_bool(test_call(j, (Slice){"lower", 5}, self, args)); }
METHOD(isupper) { CHECK("isupper", 0, 0, ""); return v_bool(test_call(j, (Slice){"upper", 5}, self, args)); }
/* clang-format on */
METHOD(istitle) {
    CHECK("istitle", 0, 0, "");
    bool inside = false, some = false;
    for (size_t at = 0; at < self.as.string.len;) {
        uint32_t c;
        at += char_next(self.as.string.data + at, &c);
        bool lower = utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LL;
        if (cased(c) && lower != inside) return v_bool(false);
        some = some || cased(c);
        inside = cased(c);
    }
    return v_bool(some);
}

/* ---- stripping, splitting, joining ---- */

static Value jinja_methods_strip(Jinja *j, Value self, const Args *args, const char *what, bool left, bool right) {
    const Value *chars = arg(args, 0, "chars");
    if (!args_check(j, what, args, 0, 1, "")) return v_undefined(NULL);
    if (!chars || chars->type == V_NONE) return v_slice(slice_strip(self.as.string, NULL, left, right));
    Slice set = arg_text(j, args, 0, "chars", NULL);
    return v_slice(slice_strip(self.as.string, &set, left, right));
}
/* clang-format off */
METHOD(strip) { return jinja_methods_strip(j, self, args, "strip()", true, true); }
METHOD(lstrip) { return jinja_methods_strip(j, self, args, "lstrip()", true, false); }
METHOD(rstrip) { return jinja_methods_strip(j, self, args, "rstrip()", false, true); }
/* clang-format on */

static void split_words(Jinja *j, Slice s, int64_t most, Value list) {
    s = slice_strip(s, NULL, true, false);
    while (s.len > 0 && jinja_ok(j)) {
        size_t end = 0;
        for (uint32_t c; end < s.len;) {
            size_t n = char_next(s.data + end, &c);
            if (python_space(c)) break;
            end += n;
        }
        if (most-- == 0) {
            list_push(j, list, v_slice(s));
            return;
        }
        list_push(j, list, v_slice((Slice){s.data, end}));
        s = slice_strip((Slice){s.data + end, s.len - end}, NULL, true, false);
    }
}

static void reverse(Value list) {
    size_t n = list.as.list->n;
    Value *items = list.as.list->items;
    for (size_t i = 0; i < n / 2; i++) {
        Value kept = items[i];
        items[i] = items[n - 1 - i];
        items[n - 1 - i] = kept;
    }
}

static void rsplit_words(Jinja *j, Slice s, int64_t most, Value list) {
    s = slice_strip(s, NULL, false, true);
    while (s.len > 0 && jinja_ok(j)) {
        size_t begin = s.len;
        for (uint32_t c; begin > 0;) {
            size_t n = char_last(s.data, begin, &c);
            if (python_space(c)) break;
            begin -= n;
        }
        if (most-- == 0) {
            list_push(j, list, v_slice(s));
            break;
        }
        list_push(j, list, v_slice((Slice){s.data + begin, s.len - begin}));
        s = slice_strip((Slice){s.data, begin}, NULL, false, true);
    }
    reverse(list);
}

static size_t find_last(Slice text, Slice part, size_t end) {
    for (size_t at = end + 1; at-- > 0;)
        if (at + part.len <= text.len && memcmp(text.data + at, part.data, part.len) == 0) return at;
    return SIZE_MAX;
}

static Value jinja_methods_split(Jinja *j, Value self, const Args *args, bool from_right) {
    if (!args_check(j, from_right ? "rsplit()" : "split()", args, 0, 2, "sep|maxsplit")) return v_undefined(NULL);
    const Value *given = arg(args, 0, "sep");
    int64_t most = arg_int(j, args, 1, "maxsplit", -1);
    Value list = v_list(j, V_LIST);
    Slice s = self.as.string;
    if (!jinja_ok(j)) return list;
    if (!given || given->type == V_NONE) {
        if (from_right)
            rsplit_words(j, s, most, list);
        else
            split_words(j, s, most, list);
        return list;
    }
    Slice separator = arg_text(j, args, 0, "sep", NULL);
    if (jinja_ok(j) && separator.len == 0) return jinja_fail(j, "empty separator");
    for (size_t at; jinja_ok(j) && most != 0; most--) {
        at = from_right ? (s.len >= separator.len ? find_last(s, separator, s.len - separator.len) : SIZE_MAX) : slice_find(s, separator, 0);
        if (at == SIZE_MAX) break;
        size_t after = at + separator.len;
        list_push(j, list, v_slice(from_right ? (Slice){s.data + after, s.len - after} : (Slice){s.data, at}));
        s = from_right ? (Slice){s.data, at} : (Slice){s.data + after, s.len - after};
    }
    list_push(j, list, v_slice(s));
    if (from_right && jinja_ok(j)) reverse(list);
    return list;
}
/* clang-format off */
METHOD(split) { return jinja_methods_split(j, self, args, false); }
METHOD(rsplit) { return jinja_methods_split(j, self, args, true); }
/* clang-format on */

static bool line_break(uint32_t c) { return (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029; }

METHOD(splitlines) {
    CHECK("splitlines", 0, 1, "keepends");
    bool keep = arg_bool(j, args, 0, "keepends", false);
    Value list = v_list(j, V_LIST);
    Slice s = self.as.string;
    size_t begin = 0;
    for (size_t at = 0; at < s.len && jinja_ok(j);) {
        uint32_t c;
        size_t n = char_next(s.data + at, &c), end = at + n;
        if (line_break(c)) {
            if (c == '\r' && end < s.len && s.data[end] == '\n') end++;
            list_push(j, list, v_slice((Slice){s.data + begin, (keep ? end : at) - begin}));
            begin = end;
        }
        at = end;
    }
    if (begin < s.len) list_push(j, list, v_slice((Slice){s.data + begin, s.len - begin}));
    return list;
}

static Value partition(Jinja *j, Value self, const Args *args, bool last) {
    Slice s = self.as.string, separator = arg_text(j, args, 0, "sep", NULL);
    if (jinja_ok(j) && separator.len == 0) return jinja_fail(j, "empty separator");
    if (!jinja_ok(j)) return v_undefined(NULL);
    size_t at = !last ? slice_find(s, separator, 0) : s.len >= separator.len ? find_last(s, separator, s.len - separator.len) : SIZE_MAX;
    Value tuple = v_list(j, V_TUPLE);
    bool found = at != SIZE_MAX;
    list_push(j, tuple, found ? v_slice((Slice){s.data, at}) : last ? v_text("") : self);
    list_push(j, tuple, found ? v_slice(separator) : v_text(""));
    list_push(j, tuple, found ? v_slice((Slice){s.data + at + separator.len, s.len - at - separator.len}) : last ? self : v_text(""));
    return tuple;
}
/* clang-format off */
METHOD(partition) { CHECK("partition", 1, 1, ""); return partition(j, self, args, false); }
METHOD(rpartition) { CHECK("rpartition", 1, 1, ""); return partition(j, self, args, true); }
/* clang-format on */

METHOD(join) {
    CHECK("join", 1, 1, "");
    Value items = v_iterate(j, args->items[0]);
    Str out = {0};
    for (size_t i = 0; jinja_ok(j) && i < items.as.list->n; i++) {
        if (!is_string(items.as.list->items[i]))
            jinja_fail(j, "sequence item %zu: expected str instance, %s found", i, v_type_name(items.as.list->items[i]));
        if (i) append_text(j, &out, self);
        append_text(j, &out, items.as.list->items[i]);
        if (out.len > JINJA_MAX_OUTPUT) jinja_fail(j, "a text of more than %zu MB", JINJA_MAX_OUTPUT >> 20);
    }
    return v_str(j, &out);
}

/* ---- finding and replacing ---- */

/* The part of `s` between the arguments start and end (code points); *from: its first byte. */
static Slice searched(Jinja *j, Slice s, const Args *args, int64_t *from) {
    Value whole = v_slice(s);
    int64_t n = string_length(s), begin, end;
    const Value *start = arg(args, 1, "start"), *stop = arg(args, 2, "end");
    begin = start && start->type != V_NONE ? arg_int(j, args, 1, "start", 0) : 0;
    end = stop && stop->type != V_NONE ? arg_int(j, args, 2, "end", n) : n;
    if (begin < 0) begin = MAX(begin + n, (int64_t)0);
    if (end < 0) end = MAX(end + n, (int64_t)0);
    *from = begin;
    if (begin > n) return (Slice){NULL, 0};
    return string_part(whole.as.string, begin, MAX(begin, MIN(end, n)));
}

static int64_t find_index(Jinja *j, Value self, const Args *args, bool last) {
    int64_t from;
    Slice part = arg_text(j, args, 0, "sub", NULL), s = searched(j, self.as.string, args, &from);
    if (!jinja_ok(j) || !s.data) return -1;
    size_t at = !last ? slice_find(s, part, 0) : s.len >= part.len ? find_last(s, part, s.len - part.len) : SIZE_MAX;
    return at == SIZE_MAX ? -1 : from + string_length((Slice){s.data, at});
}
/* clang-format off */
METHOD(find) { CHECK("find", 1, 3, ""); return v_int(find_index(j, self, args, false)); }
METHOD(rfind) { CHECK("rfind", 1, 3, ""); return v_int(find_index(j, self, args, true)); }
/* clang-format on */
METHOD(index) {
    CHECK("index", 1, 3, "");
    int64_t at = find_index(j, self, args, false);
    return at < 0 ? jinja_fail(j, "substring not found") : v_int(at);
}
METHOD(rindex) {
    CHECK("rindex", 1, 3, "");
    int64_t at = find_index(j, self, args, true);
    return at < 0 ? jinja_fail(j, "substring not found") : v_int(at);
}

METHOD(count) {
    CHECK("count", 1, 3, "");
    int64_t from, n = 0;
    Slice part = arg_text(j, args, 0, "sub", NULL), s = searched(j, self.as.string, args, &from);
    if (!jinja_ok(j) || !s.data) return v_int(0);
    if (part.len == 0) return v_int(string_length(s) + 1);
    for (size_t at = 0; (at = slice_find(s, part, at)) != SIZE_MAX; at += part.len) n++;
    return v_int(n);
}

static Value affixed(Jinja *j, Value self, const Args *args, bool end) {
    int64_t from;
    Slice s = searched(j, self.as.string, args, &from);
    Value one = args->items[0], list = v_list(j, V_LIST);
    if (one.type == V_TUPLE)
        list = one;
    else
        list_push(j, list, one);
    for (size_t i = 0; jinja_ok(j) && i < list.as.list->n; i++) {
        Value part = list.as.list->items[i];
        if (!is_string(part))
            return jinja_fail(j, "%s first arg must be str or a tuple of str, not %s", end ? "endswith" : "startswith", v_type_name(part));
        size_t len = part.as.string.len;
        if (s.data && len <= s.len && (len == 0 || memcmp(end ? s.data + s.len - len : s.data, part.as.string.data, len) == 0)) return v_bool(true);
    }
    return v_bool(false);
}
/* clang-format off */
METHOD(startswith) { CHECK("startswith", 1, 3, ""); return affixed(j, self, args, false); }
METHOD(endswith) { CHECK("endswith", 1, 3, ""); return affixed(j, self, args, true); }
/* clang-format on */

METHOD(removeprefix) {
    CHECK("removeprefix", 1, 1, "");
    Slice s = self.as.string, part = arg_text(j, args, 0, "prefix", NULL);
    bool has = part.len <= s.len && memcmp(s.data, part.data, part.len) == 0;
    return v_slice(has ? (Slice){s.data + part.len, s.len - part.len} : s);
}
METHOD(removesuffix) {
    CHECK("removesuffix", 1, 1, "");
    Slice s = self.as.string, part = arg_text(j, args, 0, "suffix", NULL);
    bool has = part.len <= s.len && memcmp(s.data + s.len - part.len, part.data, part.len) == 0;
    return v_slice(has ? (Slice){s.data, s.len - part.len} : s);
}

METHOD(replace) {
    CHECK("replace", 2, 3, "old|new|count");
    Slice s = self.as.string, from = arg_text(j, args, 0, "old", NULL), to = arg_text(j, args, 1, "new", NULL);
    int64_t most = arg_int(j, args, 2, "count", -1);
    Str out = {0};
    size_t at = 0;
    while (jinja_ok(j) && most != 0) {
        size_t found = slice_find(s, from, at);
        if (found == SIZE_MAX) break;
        str_append_n(&out, s.data + at, found - at);
        str_append_n(&out, to.data, to.len);
        at = found + from.len;
        most--;
        if (from.len == 0) { /* inserts between all characters */
            uint32_t c;
            if (at >= s.len) break;
            size_t n = char_next(s.data + at, &c);
            str_append_n(&out, s.data + at, n);
            at += n;
        }
        if (out.len > JINJA_MAX_OUTPUT) jinja_fail(j, "a text of more than %zu MB", JINJA_MAX_OUTPUT >> 20);
    }
    if (at < s.len) str_append_n(&out, s.data + at, s.len - at);
    return v_str(j, &out);
}

/* ---- padding ---- */

static Value pad(Jinja *j, Value self, const Args *args, const char *what, double left_share) {
    if (!args_check(j, what, args, 1, 2, "")) return v_undefined(NULL);
    int64_t width = arg_int(j, args, 0, "width", 0), n = string_length(self.as.string), total = width - n, left;
    Slice fill = arg_text(j, args, 1, "fillchar", " ");
    if (jinja_ok(j) && string_length(fill) != 1) return jinja_fail(j, "the fill character must be exactly one character long");
    if (!jinja_ok(j) || total <= 0) return self;
    if (total > (int64_t)JINJA_MAX_OUTPUT) return jinja_fail(j, "a text of more than %zu MB", JINJA_MAX_OUTPUT >> 20);
    left = left_share == 0.5 ? total / 2 + (total & width & 1) : left_share > 0 ? total : 0;
    Str out = {0};
    for (int64_t i = 0; i < left; i++) str_append_n(&out, fill.data, fill.len);
    append_text(j, &out, self);
    for (int64_t i = left; i < total; i++) str_append_n(&out, fill.data, fill.len);
    return v_str(j, &out);
}
/* clang-format off */
METHOD(center) { return pad(j, self, args, "center()", 0.5); }
METHOD(ljust) { return pad(j, self, args, "ljust()", 0); }
METHOD(rjust) { return pad(j, self, args, "rjust()", 1); }
/* clang-format on */

METHOD(zfill) {
    CHECK("zfill", 1, 1, "");
    Slice s = self.as.string;
    int64_t missing = arg_int(j, args, 0, "width", 0) - string_length(s);
    if (missing <= 0 || missing > (int64_t)JINJA_MAX_OUTPUT) return self;
    bool sign = s.len && (s.data[0] == '+' || s.data[0] == '-');
    Str out = {0};
    str_append_n(&out, s.data, sign);
    while (missing-- > 0) str_append_char(&out, '0');
    str_append_n(&out, s.data + sign, s.len - sign);
    return v_str(j, &out);
}

METHOD(expandtabs) {
    CHECK("expandtabs", 0, 1, "tabsize");
    int64_t size = arg_int(j, args, 0, "tabsize", 8), column = 0;
    Str out = {0};
    for (size_t at = 0; at < self.as.string.len;) {
        uint32_t c;
        size_t n = char_next(self.as.string.data + at, &c);
        if (c == '\t') {
            for (int64_t k = size > 0 && size < 1000 ? size - column % size : 0; k > 0; k--, column++) str_append_char(&out, ' ');
        } else {
            str_append_n(&out, self.as.string.data + at, n);
            column = c == '\n' || c == '\r' ? 0 : column + 1;
        }
        at += n;
    }
    return v_str(j, &out);
}

/* ---- lists, dicts, cyclers ---- */

static Value list_index(Jinja *j, Value self, const Args *args) {
    CHECK("index", 1, 3, "");
    int64_t n = (int64_t)self.as.list->n, begin = arg_int(j, args, 1, "start", 0), end = arg_int(j, args, 2, "stop", n);
    if (begin < 0) begin = MAX(begin + n, (int64_t)0);
    if (end < 0) end += n;
    for (int64_t i = begin; i < MIN(end, n); i++)
        if (v_equal(j, self.as.list->items[i], args->items[0])) return v_int(i);
    return jinja_fail(j, "the value is not in the list");
}

static Value list_count(Jinja *j, Value self, const Args *args) {
    CHECK("count", 1, 1, "");
    int64_t n = 0;
    for (size_t i = 0; i < self.as.list->n; i++) n += v_equal(j, self.as.list->items[i], args->items[0]);
    return v_int(n);
}

static Value list_copy(Jinja *j, Value self, const Args *args) {
    CHECK("copy", 0, 0, "");
    Value copy = v_list(j, V_LIST);
    for (size_t i = 0; i < self.as.list->n; i++) list_push(j, copy, self.as.list->items[i]);
    return copy;
}

static Value dict_get(Jinja *j, Value self, const Args *args) {
    CHECK("get", 1, 2, "");
    Value *value = dict_find(self, args->items[0]);
    return value ? *value : args->n > 1 ? args->items[1] : v_none();
}

static Value dict_items(Jinja *j, Value self, const Args *args) {
    CHECK("items", 0, 0, "");
    Value list = v_list(j, V_VIEW);
    list.view = 'i';
    for (size_t i = 0; i < self.as.dict->n && jinja_ok(j); i++) {
        Value pair = v_list(j, V_TUPLE);
        list_push(j, pair, self.as.dict->pairs[i].key);
        list_push(j, pair, self.as.dict->pairs[i].value);
        list_push(j, list, pair);
    }
    return list;
}

static Value dict_keys(Jinja *j, Value self, const Args *args) {
    CHECK("keys", 0, 0, "");
    Value keys = v_iterate(j, self);
    if (jinja_ok(j)) keys.type = V_VIEW, keys.view = 'k';
    return keys;
}

static Value dict_values(Jinja *j, Value self, const Args *args) {
    CHECK("values", 0, 0, "");
    Value list = v_list(j, V_VIEW);
    list.view = 'v';
    for (size_t i = 0; i < self.as.dict->n && jinja_ok(j); i++) list_push(j, list, self.as.dict->pairs[i].value);
    return list;
}

static Value dict_copy(Jinja *j, Value self, const Args *args) {
    CHECK("copy", 0, 0, "");
    Value copy = v_dict(j);
    for (size_t i = 0; i < self.as.dict->n && jinja_ok(j); i++) dict_set(j, copy, self.as.dict->pairs[i].key, self.as.dict->pairs[i].value);
    return copy;
}

static Value cycler_next(Jinja *j, Value self, const Args *args) {
    CHECK("next", 0, 0, "");
    Value item = self.as.cycler->items->items[self.as.cycler->at];
    self.as.cycler->at = (self.as.cycler->at + 1) % self.as.cycler->items->n;
    return item;
}

static Value cycler_reset(Jinja *j, Value self, const Args *args) {
    CHECK("reset", 0, 0, "");
    self.as.cycler->at = 0;
    return v_none();
}

static Value range_index(Jinja *j, Value self, const Args *args) { return list_index(j, v_iterate(j, self), args); }
static Value range_count(Jinja *j, Value self, const Args *args) { return list_count(j, v_iterate(j, self), args); }

static Value format_map(Jinja *j, Value self, const Args *args) {
    CHECK("format_map", 1, 1, "");
    Value pairs = args->items[0];
    if (pairs.type != V_DICT) return jinja_fail(j, "format_map needs a dict, not %s", v_type_name(pairs));
    size_t n = pairs.as.dict->n;
    Keyword *keywords = pool_alloc(&j->pool, (n + 1) * sizeof *keywords);
    if (!keywords) return jinja_fail(j, "the template needs too much memory");
    for (size_t i = 0; i < n; i++) keywords[i] = (Keyword){text_of(j, pairs.as.dict->pairs[i].key), pairs.as.dict->pairs[i].value};
    return string_format(j, self, &(Args){NULL, 0, keywords, n});
}

static Value float_is_integer(Jinja *j, Value self, const Args *args) {
    CHECK("is_integer", 0, 0, "");
    return v_bool(self.as.real == (double)(int64_t)self.as.real);
}

/* ---- tables ---- */

static const Builtin string_methods[] = {
    {"lower", str_lower},
    {"upper", str_upper},
    {"title", str_title},
    {"capitalize", str_capitalize},
    {"swapcase", str_swapcase},
    {"casefold", str_casefold},
    {"isalpha", str_isalpha},
    {"isdigit", str_isdigit},
    {"isdecimal", str_isdecimal},
    {"isnumeric", str_isnumeric},
    {"isalnum", str_isalnum},
    {"isspace", str_isspace},
    {"isprintable", str_isprintable},
    {"isascii", str_isascii},
    {"islower", str_islower},
    {"isupper", str_isupper},
    {"istitle", str_istitle},
    {"strip", str_strip},
    {"lstrip", str_lstrip},
    {"rstrip", str_rstrip},
    {"split", str_split},
    {"rsplit", str_rsplit},
    {"splitlines", str_splitlines},
    {"partition", str_partition},
    {"rpartition", str_rpartition},
    {"join", str_join},
    {"find", str_find},
    {"rfind", str_rfind},
    {"index", str_index},
    {"rindex", str_rindex},
    {"count", str_count},
    {"startswith", str_startswith},
    {"endswith", str_endswith},
    {"removeprefix", str_removeprefix},
    {"removesuffix", str_removesuffix},
    {"replace", str_replace},
    {"center", str_center},
    {"ljust", str_ljust},
    {"rjust", str_rjust},
    {"zfill", str_zfill},
    {"expandtabs", str_expandtabs},
    {"format", string_format},
    {"format_map", format_map},
    {"isidentifier", str_isidentifier},
};
static const Builtin list_methods[] = {{"index", list_index}, {"count", list_count}, {"copy", list_copy}};
static const Builtin tuple_methods[] = {{"index", list_index}, {"count", list_count}};
static const Builtin dict_methods[] = {{"get", dict_get}, {"items", dict_items}, {"keys", dict_keys}, {"values", dict_values}, {"copy", dict_copy}};
static const Builtin cycler_methods[] = {{"next", cycler_next}, {"reset", cycler_reset}};
static const Builtin range_methods[] = {{"index", range_index}, {"count", range_count}};
static const Builtin float_methods[] = {{"is_integer", float_is_integer}};
static const char *const list_mutators[] = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};
static const char *const dict_mutators[] = {"clear", "pop", "popitem", "setdefault", "update"};

static const Builtin *find_in(const Builtin *table, size_t n, Slice name) {
    for (size_t i = 0; i < n; i++)
        if (slice_is(name, table[i].name)) return &table[i];
    return NULL;
}

static bool names_one(const char *const *names, size_t n, Slice name) {
    for (size_t i = 0; i < n; i++)
        if (slice_is(name, names[i])) return true;
    return false;
}

const Builtin *method_find(ValueType type, Slice name, bool *mutates) {
    switch (type) {
    case V_STRING: return find_in(string_methods, COUNT_OF(string_methods), name);
    case V_LIST: *mutates = names_one(list_mutators, COUNT_OF(list_mutators), name); return find_in(list_methods, COUNT_OF(list_methods), name);
    case V_TUPLE: return find_in(tuple_methods, COUNT_OF(tuple_methods), name);
    case V_DICT: *mutates = names_one(dict_mutators, COUNT_OF(dict_mutators), name); return find_in(dict_methods, COUNT_OF(dict_methods), name);
    case V_CYCLER: return find_in(cycler_methods, COUNT_OF(cycler_methods), name);
    case V_RANGE: return find_in(range_methods, COUNT_OF(range_methods), name);
    case V_FLOAT: return find_in(float_methods, COUNT_OF(float_methods), name);
    default: return NULL;
    }
}
