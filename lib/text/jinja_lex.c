/* SPDX-License-Identifier: Apache-2.0 */
/* Converts template text to tokens, with Jinja2's white space control. */
#include <stdlib.h>
#include <string.h>

#include "lib/text/jinja.h"
#include "lib/text/tokenizer_parts.h"

typedef struct Lexer {
    const char *name, *source;
    size_t len, at;
    Pool *pool;
    TokenList *tokens;
    bool line_starting; /* the text before the current one is empty or ends with a newline */
} Lexer;

/* Line and column of a byte. */
static void find_place(const char *source, size_t len, size_t at, size_t *line, size_t *column) {
    *line = *column = 1;
    for (size_t i = 0; i < at && i < len; i++) {
        bool newline = source[i] == '\n';
        *line += newline;
        *column = newline ? 1 : *column + (((uint8_t)source[i] & 0xC0) != 0x80);
    }
}

Status jinja_fault(const char *name, const char *source, size_t len, size_t at, const char *format, ...) {
    char text[1000];
    size_t line, column;
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    find_place(source, len, at, &line, &column);
    return status_fail(ST_INPUT, "chat template '%s' line %zu column %zu: %s", name, line, column, text);
}

#define FAULT(lexer, place, ...) jinja_fault((lexer)->name, (lexer)->source, (lexer)->len, place, __VA_ARGS__)

static Status jinja_lex_push(Lexer *x, TokenType type, Slice text, size_t at) {
    TokenList *tokens = x->tokens;
    TRY(array_grow(&tokens->items, &tokens->cap, tokens->n + 1, sizeof *tokens->items, "tokens of a chat template"));
    tokens->items[tokens->n++] = (Token){.type = type, .text = text, .at = at};
    return ST_OK;
}

static bool starts(const Lexer *x, size_t at, const char *text) {
    size_t n = strlen(text);
    return at + n <= x->len && memcmp(x->source + at, text, n) == 0;
}

static size_t jinja_lex_find(const Lexer *x, size_t from, const char *text) {
    for (size_t at = from; at < x->len; at++)
        if (starts(x, at, text)) return at;
    return SIZE_MAX;
}

static size_t skip_space(const Lexer *x, size_t at) {
    for (uint32_t c; at < x->len;) {
        size_t n = char_next(x->source + at, &c);
        if (!python_space(c)) break;
        at += n;
    }
    return at;
}

/* After a tag that ended at `at`: "-" removes all white space; otherwise the newline after a block or comment is removed unless "+" keeps it. */
static void leave_tag(Lexer *x, size_t at, char sign, bool trim) {
    size_t end = at;
    if (sign == '-')
        end = skip_space(x, at);
    else if (trim && sign != '+' && end < x->len && x->source[end] == '\n')
        end++;
    x->line_starting = end > 0 && x->source[end - 1] == '\n';
    x->at = end;
}

/* Pushes the text up to a tag that begins at `tag`; `sign` follows the tag's two characters. */
static Status push_data(Lexer *x, size_t tag, char sign, bool block) {
    size_t begin = x->at, end = tag;
    if (sign == '-') {
        Slice text = slice_strip((Slice){x->source + begin, end - begin}, NULL, false, true);
        end = begin + text.len;
    } else if (sign != '+' && block) {
        size_t line = end;
        while (line > begin && x->source[line - 1] != '\n') line--;
        if ((line > begin || x->line_starting) && skip_space(x, line) >= end) end = line;
    }
    return end > begin ? jinja_lex_push(x, TOKEN_DATA, (Slice){x->source + begin, end - begin}, begin) : ST_OK;
}

/* ---- inside of tags ---- */

static const char *const operators[] = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "(",
                                        ")",  "[",  "]",  "{",  "}",  "<",  ">", "=", ".", ",", ":", "|", ";"};

static bool digit_in(char c, int base) {
    if (base == 16) return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    return c >= '0' && c < '0' + base;
}

/* Copies digits without the single underscores between them; returns the position after them. */
static size_t take_digits(const Lexer *x, size_t at, int base, char *out, size_t *n, size_t cap) {
    while (at < x->len) {
        if (x->source[at] == '_' && at + 1 < x->len && digit_in(x->source[at + 1], base)) at++;
        if (!digit_in(x->source[at], base)) break;
        if (*n + 1 < cap) out[(*n)++] = x->source[at];
        at++;
    }
    return at;
}

static Status lex_number(Lexer *x) {
    char digits[400];
    size_t n = 0, begin = x->at, at = begin;
    int base = 10;
    bool real = false;
    if (x->source[at] == '0' && at + 1 < x->len) {
        char kind = x->source[at + 1];
        base = kind == 'x' || kind == 'X' ? 16 : kind == 'b' || kind == 'B' ? 2 : kind == 'o' || kind == 'O' ? 8 : 10;
    }
    at = take_digits(x, base == 10 ? at : at + 2, base, digits, &n, sizeof digits);
    if (base == 10 && at + 1 < x->len && x->source[at] == '.' && digit_in(x->source[at + 1], 10)) {
        real = true;
        if (n + 1 < sizeof digits) digits[n++] = '.';
        at = take_digits(x, at + 1, 10, digits, &n, sizeof digits);
    }
    if (base == 10 && at < x->len && (x->source[at] == 'e' || x->source[at] == 'E')) {
        size_t sign = at + 1 < x->len && (x->source[at + 1] == '+' || x->source[at + 1] == '-');
        if (at + 1 + sign < x->len && digit_in(x->source[at + 1 + sign], 10)) {
            real = true;
            if (n + 2 < sizeof digits) {
                digits[n++] = 'e';
                if (sign) digits[n++] = x->source[at + 1];
            }
            at = take_digits(x, at + 1 + sign, 10, digits, &n, sizeof digits);
        }
    }
    digits[n] = '\0';
    if (base == 10 && !real && digits[0] == '0' && strspn(digits, "0") < n) return FAULT(x, begin, "a whole number that begins with 0");
    TRY(jinja_lex_push(x, real ? TOKEN_FLOAT : TOKEN_INTEGER, (Slice){x->source + begin, at - begin}, begin));
    Token *token = &x->tokens->items[x->tokens->n - 1];
    if (real) {
        token->real = strtod(digits, NULL);
    } else {
        for (size_t i = 0; i < n; i++) {
            int digit = digits[i] <= '9' ? digits[i] - '0' : (digits[i] | 32) - 'a' + 10;
            if (token->integer > (INT64_MAX - digit) / base) return FAULT(x, begin, "a number that is too large");
            token->integer = token->integer * base + digit;
        }
    }
    x->at = at;
    return ST_OK;
}

/* Decodes the escape after the backslash at `at`; returns the position after it. */
static size_t take_escape(const Lexer *x, size_t at, size_t end, Str *out) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = x->source[at];
    const char *plain = c ? strchr(from, c) : NULL;
    char bytes[4];
    if (c == '\n') return at + 1;
    if (plain) {
        str_append_char(out, to[plain - from]);
        return at + 1;
    }
    size_t want = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0, n = 0;
    uint32_t code = 0;
    if (want > 0) {
        for (; n < want && at + 1 + n < end && digit_in(x->source[at + 1 + n], 16); n++) {
            char h = x->source[at + 1 + n];
            code = code * 16 + (uint32_t)(h <= '9' ? h - '0' : (h | 32) - 'a' + 10);
        }
        if (n == want && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF)) {
            str_append_n(out, bytes, utf8_encode(code, bytes));
            return at + 1 + want;
        }
    } else if (digit_in(c, 8)) {
        for (; n < 3 && at + n < end && digit_in(x->source[at + n], 8); n++) code = code * 8 + (uint32_t)(x->source[at + n] - '0');
        str_append_n(out, bytes, utf8_encode(code, bytes));
        return at + n;
    }
    str_append_char(out, '\\'); /* an unknown escape stays unchanged */
    return at;
}

static Status lex_string(Lexer *x) {
    size_t begin = x->at, end = begin + 1;
    char quote = x->source[begin];
    while (end < x->len && x->source[end] != quote) end += x->source[end] == '\\' && end + 1 < x->len ? 2 : 1;
    if (end >= x->len) return FAULT(x, begin, "a string without its closing %c", quote);
    Str value = {0};
    for (size_t at = begin + 1; at < end;) {
        if (x->source[at] == '\\' && x->source[at + 1] == 'N') {
            str_release(&value);
            return FAULT(x, at, "characters by their names (\\N{...}) are not known here: \\u and its number is");
        }
        if (x->source[at] == '\\') {
            at = take_escape(x, at + 1, end, &value);
        } else {
            str_append_char(&value, x->source[at++]);
        }
    }
    char *copy = pool_alloc(x->pool, value.len + 1);
    if (copy && value.len) memcpy(copy, value.data, value.len);
    Slice text = {copy, value.len};
    str_release(&value);
    x->at = end + 1;
    return copy ? jinja_lex_push(x, TOKEN_STRING, text, begin) : ST_RESOURCE;
}

static bool name_char(uint32_t c) { return c == '_' || (c < 128 ? (c | 32) >= 'a' && (c | 32) <= 'z' : char_is_word(c)); }

static Status lex_name(Lexer *x) {
    size_t begin = x->at, at = begin;
    for (uint32_t c; at < x->len;) {
        size_t n = char_next(x->source + at, &c);
        if (!name_char(c) && !(c < 128 && digit_in((char)c, 10))) break;
        at += n;
    }
    x->at = at;
    return jinja_lex_push(x, TOKEN_NAME, (Slice){x->source + begin, at - begin}, begin);
}

/* Reads tokens up to and including `close` ("%}" or "}}") and its sign. Inside brackets `close` does not count: {{ {'a': {}}} }} ends at the last
 * one. */
static Status lex_tag(Lexer *x, const char *close, TokenType end_type, bool trim, size_t opened) {
    int depth = 0;
    for (;;) {
        x->at = skip_space(x, x->at);
        if (x->at >= x->len) return FAULT(x, opened, "a tag that is never closed");
        char c = x->source[x->at];
        size_t sign = (c == '-' || c == '+') && starts(x, x->at + 1, close);
        if (depth == 0 && (sign || starts(x, x->at, close)) && !(c == '+' && !trim)) {
            TRY(jinja_lex_push(x, end_type, (Slice){x->source + x->at, 2}, x->at));
            leave_tag(x, x->at + sign + 2, sign ? c : 0, trim);
            return ST_OK;
        }
        uint32_t code;
        char_next(x->source + x->at, &code);
        if (digit_in(c, 10)) {
            TRY(lex_number(x));
        } else if (c == '"' || c == '\'') {
            TRY(lex_string(x));
        } else if (name_char(code)) {
            TRY(lex_name(x));
        } else {
            const char *op = NULL;
            for (size_t i = 0; i < COUNT_OF(operators) && !op; i++)
                if (starts(x, x->at, operators[i])) op = operators[i];
            if (!op) return FAULT(x, x->at, "unexpected character '%.*s'", (int)char_next(x->source + x->at, &code), x->source + x->at);
            if (strchr("([{", *op)) depth++;
            if (strchr(")]}", *op) && --depth < 0) return FAULT(x, x->at, "unexpected '%s'", op);
            TRY(jinja_lex_push(x, TOKEN_OPERATOR, (Slice){op, strlen(op)}, x->at));
            x->at += strlen(op);
        }
    }
}

/* Recognises {% raw %} and {% endraw %}; `at` is after the opening "{%" and its sign. False for any other block. */
static bool tag_is(const Lexer *x, size_t at, const char *word, size_t *after, char *sign) {
    at = skip_space(x, at);
    if (!starts(x, at, word)) return false;
    at = skip_space(x, at + strlen(word));
    *sign = at < x->len && (x->source[at] == '-' || (x->source[at] == '+' && word[0] == 'e')) ? x->source[at] : 0; /* {% raw +%} is not one */
    at += *sign != 0;
    if (!starts(x, at, "%}")) return false;
    *after = at + 2;
    return true;
}

static Status lex_raw(Lexer *x, size_t begin, char open_sign) {
    leave_tag(x, begin, open_sign, false);
    for (size_t at = x->at; (at = jinja_lex_find(x, at, "{%")) != SIZE_MAX; at += 2) {
        char sign = at + 2 < x->len ? x->source[at + 2] : 0, end_sign;
        size_t after;
        sign = sign == '-' || sign == '+' ? sign : 0;
        if (!tag_is(x, at + 2 + (sign != 0), "endraw", &after, &end_sign)) continue;
        TRY(push_data(x, at, sign, true));
        leave_tag(x, after, end_sign, true);
        return ST_OK;
    }
    return FAULT(x, begin, "'raw' without 'endraw'");
}

static Status lex_comment(Lexer *x, size_t begin) {
    size_t end = jinja_lex_find(x, begin + 2, "#}");
    if (end == SIZE_MAX) return FAULT(x, begin, "a comment that is never closed");
    char sign = end > begin + 2 ? x->source[end - 1] : 0;
    leave_tag(x, end + 2, sign == '-' || sign == '+' ? sign : 0, true);
    return ST_OK;
}

static size_t next_tag(const Lexer *x) {
    for (size_t at = x->at; at + 1 < x->len; at++)
        if (x->source[at] == '{' && strchr("{%#", x->source[at + 1]) && x->source[at + 1]) return at;
    return SIZE_MAX;
}

Status jinja_lex(const char *name, const char *source, size_t len, Pool *pool, TokenList *tokens) {
    Lexer x = {.name = name, .source = source, .len = len, .pool = pool, .tokens = tokens, .line_starting = true};
    for (size_t tag; (tag = next_tag(&x)) != SIZE_MAX;) {
        char kind = source[tag + 1], sign = tag + 2 < len ? source[tag + 2] : 0, end_sign;
        size_t after;
        sign = sign == '-' || sign == '+' ? sign : 0;
        TRY(push_data(&x, tag, sign, kind != '{'));
        if (kind == '#') {
            TRY(lex_comment(&x, tag));
        } else if (kind == '%' && tag_is(&x, tag + 2 + (sign != 0), "raw", &after, &end_sign)) {
            TRY(lex_raw(&x, after, end_sign));
        } else {
            TRY(jinja_lex_push(&x, kind == '%' ? TOKEN_BLOCK_BEGIN : TOKEN_VARIABLE_BEGIN, (Slice){source + tag, 2}, tag));
            x.at = tag + 2 + (sign != 0);
            TRY(lex_tag(&x, kind == '%' ? "%}" : "}}", kind == '%' ? TOKEN_BLOCK_END : TOKEN_VARIABLE_END, kind == '%', tag));
        }
    }
    if (x.at < len) TRY(jinja_lex_push(&x, TOKEN_DATA, (Slice){source + x.at, len - x.at}, x.at));
    return jinja_lex_push(&x, TOKEN_END, (Slice){"", 0}, len);
}
