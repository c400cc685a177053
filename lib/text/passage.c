/* Text on its way through the parts, with the origin of each byte where offsets are wanted; patterns; character classes. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "lib/text/tokenizer_parts.h"

void ranges_push(Ranges *ranges, size_t begin, size_t end) {
    if (begin >= end) return;
    if (ranges->n == ranges->cap) {
        size_t cap = ranges->cap ? ranges->cap * 2 : 64;
        Range *grown = realloc(ranges->items, cap * sizeof *grown);
        ASSERT(grown, "out of memory for %zu words", cap);
        ranges->items = grown;
        ranges->cap = cap;
    }
    ranges->items[ranges->n++] = (Range){begin, end};
}

static Range *origin_room(Passage *passage, size_t n) {
    if (passage->bytes.len + n > passage->cap_origin) {
        size_t cap = MAX(passage->bytes.len + n, passage->cap_origin * 2);
        Range *grown = realloc(passage->origin, cap * sizeof *grown);
        ASSERT(grown, "out of memory for %zu offsets", cap);
        passage->origin = grown;
        passage->cap_origin = cap;
    }
    return passage->origin + passage->bytes.len;
}

void passage_add(Passage *passage, const char *bytes, size_t n, Range origin) {
    if (passage->tracked) {
        Range *room = origin_room(passage, n);
        for (size_t i = 0; i < n; i++) room[i] = origin;
    }
    str_append_n(&passage->bytes, bytes, n);
}

void passage_copy(Passage *to, const Passage *from, Range range) {
    size_t n = range.end - range.begin;
    if (n == 0) return;
    if (to->tracked) memcpy(origin_room(to, n), from->origin + range.begin, n * sizeof *to->origin);
    str_append_n(&to->bytes, from->bytes.data + range.begin, n);
}

Range passage_origin(const Passage *passage, Range range) {
    if (!passage->tracked || range.begin >= range.end) return range;
    return (Range){passage->origin[range.begin].begin, passage->origin[range.end - 1].end};
}

void passage_clear(Passage *passage) { str_clear(&passage->bytes); }

void passage_release(Passage *passage) {
    str_release(&passage->bytes);
    free(passage->origin);
    *passage = (Passage){0};
}

/* ---- patterns ---- */

/* The published patterns mean Unicode's White_Space by \s; PCRE2's lacks U+0085 and has U+180E. */
#define WHITE_SPACE "\\t-\\r\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

static void spell_out_white_space(const char *regex, Str *out) {
    bool in_class = false;
    for (const char *p = regex; *p; p++) {
        if (*p == '\\' && p[1]) {
            if (p[1] == 's') str_append(out, in_class ? WHITE_SPACE : "[" WHITE_SPACE "]");
            else if (p[1] == 'S' && !in_class) str_append(out, "[^" WHITE_SPACE "]");
            else str_append_n(out, p, 2);
            p++;
            continue;
        }
        if (*p == '[' && !in_class) in_class = true;
        else if (*p == ']' && in_class && p[-1] != '[' && !(p[-1] == '^' && p[-2] == '[')) in_class = false;
        str_append_char(out, *p);
    }
}

Status pattern_compile(const char *regex, const char *where, Pattern *pattern) {
    Str spelled = {0};
    spell_out_white_space(regex, &spelled);
    int error;
    PCRE2_SIZE at;
    pattern->code = pcre2_compile((PCRE2_SPTR)str_text(&spelled), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
    str_release(&spelled);
    if (!pattern->code) {
        PCRE2_UCHAR text[160];
        pcre2_get_error_message(error, text, sizeof text);
        return status_fail(ST_INPUT, "cannot use the pattern '%s' of '%s': %s", regex, where, (const char *)text);
    }
    pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE); /* where there is no JIT the pattern is interpreted */
    pattern->match = pcre2_match_data_create_from_pattern(pattern->code, NULL);
    return pattern->match ? ST_OK : status_fail(ST_RESOURCE, "out of memory for a pattern");
}

Status pattern_read(const json_t *json, const char *where, Pattern *pattern) {
    const char *regex = json_string_value(json_object_get(json, "Regex"));
    if (regex) return pattern_compile(regex, where, pattern);
    const json_t *literal = json_is_string(json) ? json : json_object_get(json, "String");
    if (!json_is_string(literal)) return status_fail(ST_INPUT, "a pattern in '%s' is neither {\"Regex\"} nor {\"String\"}", where);
    pattern->literal_len = json_string_length(literal);
    pattern->literal = malloc(pattern->literal_len + 1);
    if (!pattern->literal) return status_fail(ST_RESOURCE, "out of memory for a pattern");
    memcpy(pattern->literal, json_string_value(literal), pattern->literal_len + 1);
    return ST_OK;
}

Status pattern_find(const Pattern *pattern, const char *text, size_t len, size_t from, Range *match, bool *found) {
    *found = false;
    if (pattern->literal) {
        const char *at = from <= len && pattern->literal_len ? memmem(text + from, len - from, pattern->literal, pattern->literal_len) : NULL;
        if (at) *match = (Range){(size_t)(at - text), (size_t)(at - text) + pattern->literal_len};
        *found = at != NULL;
        return ST_OK;
    }
    int result = pcre2_match(pattern->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, pattern->match, NULL);
    if (result == PCRE2_ERROR_NOMATCH) return ST_OK;
    if (result < 0) {
        PCRE2_UCHAR reason[160];
        pcre2_get_error_message(result, reason, sizeof reason);
        return status_fail(ST_INPUT, "a tokenizer pattern gave up at byte %zu: %s", from, (const char *)reason);
    }
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(pattern->match);
    *match = (Range){bounds[0], bounds[1]};
    *found = true;
    return ST_OK;
}

void pattern_release(Pattern *pattern) {
    pcre2_match_data_free(pattern->match);
    pcre2_code_free(pattern->code);
    free(pattern->literal);
    *pattern = (Pattern){0};
}

/* ---- character classes ---- */

bool is_white_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_word_char(uint32_t c) {
    if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    if (c == 0x200c || c == 0x200d) return true;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM: case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME: case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_PC:
        return true;
    default: /* letters in circles and squares are alphabetic too */
        return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
    }
}

const char *part_type(const json_t *json) {
    const char *type = json_string_value(json_object_get(json, "type"));
    return type ? type : "";
}

Status unknown_part(const char *where, const char *part, const char *type) {
    status_fail(ST_INPUT, "cannot run the %s '%s' of '%s'", part, type, where);
    return status_hint(ST_INPUT, "this kind of %s is not known here; guessing would give other tokens than the model was trained on", part);
}
