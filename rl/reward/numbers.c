/* SPDX-License-Identifier: Apache-2.0 */
#include "rl/reward/numbers.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Cursor {
    const char *at, *end;
    const NumberStyle *style;
} Cursor;

static char peek(const Cursor *cursor, size_t ahead) { return (size_t)(cursor->end - cursor->at) > ahead ? cursor->at[ahead] : '\0'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

static bool take(Cursor *cursor, const char *text) {
    size_t len = strlen(text);
    if ((size_t)(cursor->end - cursor->at) < len || memcmp(cursor->at, text, len) != 0) return false;
    cursor->at += len;
    return true;
}

static void take_spaces(Cursor *cursor) {
    while (peek(cursor, 0) == ' ' || take(cursor, "\xC2\xA0")) cursor->at += peek(cursor, 0) == ' ';
}

static bool comes(const Cursor *cursor, const char *text) {
    for (size_t i = 0; text[i]; i++)
        if (peek(cursor, i) != text[i]) return false;
    return true;
}

/* Bytes of what stands between thousands, 0 when nothing does; LaTeX has forms of its own for the comma. */
static size_t separator(const Cursor *cursor) {
    static const char *const forms[] = {"{,}", ",\\!", "\\,"};
    for (size_t i = 0; cursor->style->thousands == ',' && i < COUNT_OF(forms); i++)
        if (comes(cursor, forms[i])) return strlen(forms[i]);
    return peek(cursor, 0) == cursor->style->thousands;
}

/* Digits at the cursor, with groups of exactly three behind a separator; what is read goes to `out`, which is as long as the text at most. */
static size_t take_whole(Cursor *cursor, Str *out) {
    size_t n = 0;
    for (; is_digit(peek(cursor, 0)); n++) str_append_char(out, *cursor->at++);
    if (n == 0 || n > 3 || !cursor->style->thousands) return n;
    for (size_t between; (between = separator(cursor)) > 0; n += 3) {
        if (!is_digit(peek(cursor, between)) || !is_digit(peek(cursor, between + 1)) || !is_digit(peek(cursor, between + 2)) ||
            is_digit(peek(cursor, between + 3)))
            break;
        str_append_n(out, cursor->at + between, 3);
        cursor->at += between + 3;
    }
    return n;
}

static void take_exponent(Cursor *cursor, Str *out) {
    size_t sign = peek(cursor, 1) == '-' || peek(cursor, 1) == '+';
    if ((peek(cursor, 0) != 'e' && peek(cursor, 0) != 'E') || !is_digit(peek(cursor, 1 + sign))) return;
    size_t len = 1 + sign;
    while (is_digit(peek(cursor, len))) len++;
    if (is_word(peek(cursor, len))) return; /* 2E5x is no number with an exponent */
    str_append_n(out, cursor->at, len);
    cursor->at += len;
}

/* A number without sign, fraction bar or unit. */
static bool take_plain(Cursor *cursor, double *value, bool *whole) {
    Cursor before = *cursor;
    Str digits = {0};
    size_t n = take_whole(cursor, &digits);
    *whole = true;
    if (peek(cursor, 0) == cursor->style->decimal && is_digit(peek(cursor, 1))) {
        *whole = false;
        str_append_char(&digits, '.');
        for (cursor->at++; is_digit(peek(cursor, 0)); n++) str_append_char(&digits, *cursor->at++);
    }
    if (n > 0) {
        const char *mantissa = cursor->at;
        take_exponent(cursor, &digits);
        if (cursor->at != mantissa) *whole = false;
        *value = strtod(digits.data, NULL);
    }
    str_release(&digits);
    if (n == 0) *cursor = before;
    return n > 0;
}

/* \frac{a}{b}, \dfrac{a}{b}, \tfrac{a}{b}, \frac12. */
static bool take_frac(Cursor *cursor, double *value) {
    Cursor before = *cursor;
    double part[2];
    bool whole, good = take(cursor, "\\frac") || take(cursor, "\\dfrac") || take(cursor, "\\tfrac");
    for (int i = 0; i < 2 && good; i++) {
        if (!take(cursor, "{")) {
            good = is_digit(peek(cursor, 0));
            if (good) part[i] = *cursor->at++ - '0';
        } else {
            bool minus = take(cursor, "-");
            good = take_plain(cursor, &part[i], &whole) && take(cursor, "}");
            if (good && minus) part[i] = -part[i];
        }
    }
    good = good && part[1] != 0;
    if (good)
        *value = part[0] / part[1];
    else
        *cursor = before;
    return good;
}

/* Behind a whole number: "/4", " 1/2" or "\frac{1}{2}". A date (3/4/2026) is no fraction. */
static void take_fraction(Cursor *cursor, double *value) {
    Cursor before = *cursor;
    double top, bottom;
    bool whole, mixed = peek(cursor, 0) == ' ' && is_digit(peek(cursor, 1));
    if (take_frac(cursor, &top)) {
        *value += top;
        return;
    }
    cursor->at += mixed;
    top = *value;
    if (mixed && (!take_plain(cursor, &top, &whole) || !whole)) goto none;
    if (!take(cursor, "/") || !is_digit(peek(cursor, 0)) || !take_plain(cursor, &bottom, &whole) || !whole || bottom == 0) goto none;
    if (peek(cursor, 0) == '/' || (mixed && top >= bottom)) goto none;
    *value = mixed ? *value + top / bottom : top / bottom;
    return;
none:
    *cursor = before;
}

/* "\times 10^{3}", "× 10^3", "*10^-2". */
static void take_power(Cursor *cursor, double *value) {
    Cursor before = *cursor;
    take_spaces(cursor);
    bool good = take(cursor, "\\times") || take(cursor, "\\cdot") || take(cursor, "\xC3\x97") || take(cursor, "*");
    take_spaces(cursor);
    good = good && take(cursor, "10^");
    bool brace = good && take(cursor, "{"), minus = good && take(cursor, "-");
    int exponent = 0, digits = 0;
    for (; good && digits < 4 && is_digit(peek(cursor, 0)); digits++) exponent = exponent * 10 + (*cursor->at++ - '0');
    good = good && digits > 0 && (!brace || take(cursor, "}")) && !is_digit(peek(cursor, 0));
    if (good)
        *value *= pow(10, minus ? -exponent : exponent);
    else
        *cursor = before;
}

static bool take_minus(Cursor *cursor) { return take(cursor, "-") || take(cursor, "\xE2\x88\x92"); }

static void take_currency(Cursor *cursor) {
    if (take(cursor, "\\$") || take(cursor, "$") || take(cursor, "\xE2\x82\xAC") || take(cursor, "\xC2\xA3") || take(cursor, "\xC2\xA5"))
        take_spaces(cursor);
}

/* A number that begins here; the cursor stays where it is when none does. `before`: the character in front, '\0' = none. */
static bool take_number(Cursor *cursor, char before, double *value) {
    Cursor start = *cursor;
    bool whole = true, minus = take_minus(cursor);
    if (minus && (is_word(before) || before == ')' || before == '}')) goto none;
    if (!minus && is_word(before)) goto none;
    if (!minus) take(cursor, "+");
    take_currency(cursor);
    if (!take_frac(cursor, value)) {
        if (!take_plain(cursor, value, &whole)) goto none;
        if (whole && before != '/') take_fraction(cursor, value);
    }
    take_power(cursor, value);
    const char *unit = cursor->at;
    take_spaces(cursor);
    bool percent = take(cursor, "\\%") || take(cursor, "%");
    if (!percent) cursor->at = unit;
    if (percent && cursor->style->percent_is_share) *value /= 100;
    if (minus) *value = -*value;
    if (isfinite(*value)) return true;
none:
    *cursor = start;
    return false;
}

/* Goes through the numbers of the text; *found stays false when there is none. */
static bool scan(Slice text, const NumberStyle *style, bool first, double *value) {
    Cursor cursor = {text.data, text.data + text.len, style};
    bool found = false;
    char before = '\0';
    while (cursor.at < cursor.end && !(first && found)) {
        double number;
        if (take_number(&cursor, before, &number)) {
            *value = number;
            found = true;
        } else if (is_digit(*cursor.at)) { /* digits that are no number: all of them */
            while (is_digit(peek(&cursor, 0))) cursor.at++;
        } else {
            cursor.at++;
        }
        before = cursor.at[-1];
    }
    return found;
}

bool numbers_first(Slice text, const NumberStyle *style, double *value) { return scan(text, style, true, value); }
bool numbers_last(Slice text, const NumberStyle *style, double *value) { return scan(text, style, false, value); }
