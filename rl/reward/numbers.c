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

static char numbers_peek(const Cursor *cursor, size_t ahead) { return (size_t)(cursor->end - cursor->at) > ahead ? cursor->at[ahead] : '\0'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

static bool numbers_take(Cursor *cursor, const char *text) {
    size_t len = strlen(text);
    if ((size_t)(cursor->end - cursor->at) < len || memcmp(cursor->at, text, len) != 0) return false;
    cursor->at += len;
    return true;
}

static void take_spaces(Cursor *cursor) {
    while (numbers_peek(cursor, 0) == ' ' || numbers_take(cursor, "\xC2\xA0")) cursor->at += numbers_peek(cursor, 0) == ' ';
}

static bool comes(const Cursor *cursor, const char *text) {
    for (size_t i = 0; text[i]; i++)
        if (numbers_peek(cursor, i) != text[i]) return false;
    return true;
}

/* Length in bytes of a thousands separator, 0 if there is none; LaTeX has special forms of the comma. */
static size_t separator(const Cursor *cursor) {
    static const char *const forms[] = {"{,}", ",\\!", "\\,"};
    for (size_t i = 0; cursor->style->thousands == ',' && i < COUNT_OF(forms); i++)
        if (comes(cursor, forms[i])) return strlen(forms[i]);
    return numbers_peek(cursor, 0) == cursor->style->thousands;
}

/* Reads digits at the cursor, with groups of exactly three after each separator, into `out`, which gets at most as long as the text. */
static size_t take_whole(Cursor *cursor, Str *out) {
    size_t n = 0;
    for (; is_digit(numbers_peek(cursor, 0)); n++) str_append_char(out, *cursor->at++);
    if (n == 0 || n > 3 || !cursor->style->thousands) return n;
    for (size_t between; (between = separator(cursor)) > 0; n += 3) {
        if (!is_digit(numbers_peek(cursor, between)) || !is_digit(numbers_peek(cursor, between + 1)) ||
            !is_digit(numbers_peek(cursor, between + 2)) || is_digit(numbers_peek(cursor, between + 3)))
            break;
        str_append_n(out, cursor->at + between, 3);
        cursor->at += between + 3;
    }
    return n;
}

static void take_exponent(Cursor *cursor, Str *out) {
    size_t sign = numbers_peek(cursor, 1) == '-' || numbers_peek(cursor, 1) == '+';
    if ((numbers_peek(cursor, 0) != 'e' && numbers_peek(cursor, 0) != 'E') || !is_digit(numbers_peek(cursor, 1 + sign))) return;
    size_t len = 1 + sign;
    while (is_digit(numbers_peek(cursor, len))) len++;
    if (is_word(numbers_peek(cursor, len))) return; /* 2E5x is not a number with an exponent */
    str_append_n(out, cursor->at, len);
    cursor->at += len;
}

/* The digits of "0012.50e3", without leading and trailing zeros. */
static void keep_digits(const char *text, Number *number) {
    bool behind_point = false;
    int zeros = 0; /* zeros that are written only if another digit follows */
    number->decimal = true;
    number->n = number->exponent = 0;
    for (; is_digit(*text) || *text == '.'; text++) {
        behind_point |= *text == '.';
        if (*text == '.') continue;
        number->exponent -= behind_point;
        if (*text == '0' || number->n + zeros >= NUMBER_DIGITS) {
            zeros += number->n > 0;
            continue;
        }
        for (; zeros > 0; zeros--) number->digits[number->n++] = 0;
        number->digits[number->n++] = (char)(*text - '0');
    }
    number->exponent += zeros;
    if (*text) number->exponent += (int)MIN(MAX(strtol(text + 1, NULL, 10), -100000), 100000);
}

static void set_value(Number *number, double value) { *number = (Number){.value = value}; }

/* A number without sign, fraction bar or unit. */
static bool take_plain(Cursor *cursor, Number *number, bool *whole) {
    Cursor before = *cursor;
    Str digits = {0};
    size_t n = take_whole(cursor, &digits);
    *whole = true;
    if (numbers_peek(cursor, 0) == cursor->style->decimal && is_digit(numbers_peek(cursor, 1))) {
        *whole = false;
        str_append_char(&digits, '.');
        for (cursor->at++; is_digit(numbers_peek(cursor, 0)); n++) str_append_char(&digits, *cursor->at++);
    }
    if (n > 0) {
        const char *mantissa = cursor->at;
        take_exponent(cursor, &digits);
        if (cursor->at != mantissa) *whole = false;
        number->value = strtod(str_text(&digits), NULL);
        number->negative = false;
        keep_digits(str_text(&digits), number);
    }
    str_release(&digits);
    if (n == 0) *cursor = before;
    return n > 0;
}

/* \frac{a}{b}, \dfrac{a}{b}, \tfrac{a}{b}, \frac12. */
static bool take_frac(Cursor *cursor, Number *number) {
    Cursor before = *cursor;
    double part[2];
    Number plain;
    bool whole, good = numbers_take(cursor, "\\frac") || numbers_take(cursor, "\\dfrac") || numbers_take(cursor, "\\tfrac");
    for (int i = 0; i < 2 && good; i++) {
        if (!numbers_take(cursor, "{")) {
            good = is_digit(numbers_peek(cursor, 0));
            if (good) part[i] = *cursor->at++ - '0';
        } else {
            bool minus = numbers_take(cursor, "-");
            good = take_plain(cursor, &plain, &whole) && numbers_take(cursor, "}");
            if (good) part[i] = minus ? -plain.value : plain.value;
        }
    }
    good = good && part[1] != 0;
    if (good)
        set_value(number, part[0] / part[1]);
    else
        *cursor = before;
    return good;
}

/* After an integer: "/4", " 1/2" or "\frac{1}{2}". A date (3/4/2026) is not a fraction. */
static void take_fraction(Cursor *cursor, Number *number) {
    Cursor before = *cursor;
    Number part, bottom;
    double base = number->value, top = base;
    bool whole, mixed = numbers_peek(cursor, 0) == ' ' && is_digit(numbers_peek(cursor, 1));
    if (take_frac(cursor, &part)) {
        set_value(number, base + part.value);
        return;
    }
    cursor->at += mixed;
    if (mixed && (!take_plain(cursor, &part, &whole) || !whole)) goto none;
    if (mixed) top = part.value;
    if (!numbers_take(cursor, "/") || !is_digit(numbers_peek(cursor, 0)) || !take_plain(cursor, &bottom, &whole) || !whole || bottom.value == 0)
        goto none;
    if (numbers_peek(cursor, 0) == '/' || (mixed && top >= bottom.value)) goto none;
    set_value(number, mixed ? base + top / bottom.value : top / bottom.value);
    return;
none:
    *cursor = before;
}

static void shift(Number *number, int exponent) {
    number->value *= pow(10, exponent);
    number->exponent += exponent;
}

/* "\times 10^{3}", "× 10^3", "*10^-2". */
static void take_power(Cursor *cursor, Number *number) {
    Cursor before = *cursor;
    take_spaces(cursor);
    bool good = numbers_take(cursor, "\\times") || numbers_take(cursor, "\\cdot") || numbers_take(cursor, "\xC3\x97") || numbers_take(cursor, "*");
    take_spaces(cursor);
    good = good && numbers_take(cursor, "10^");
    bool brace = good && numbers_take(cursor, "{"), minus = good && numbers_take(cursor, "-");
    int exponent = 0, digits = 0;
    for (; good && digits < 4 && is_digit(numbers_peek(cursor, 0)); digits++) exponent = exponent * 10 + (*cursor->at++ - '0');
    good = good && digits > 0 && (!brace || numbers_take(cursor, "}")) && !is_digit(numbers_peek(cursor, 0));
    if (good)
        shift(number, minus ? -exponent : exponent);
    else
        *cursor = before;
}

static bool take_minus(Cursor *cursor) { return numbers_take(cursor, "-") || numbers_take(cursor, "\xE2\x88\x92"); }

static void take_currency(Cursor *cursor) {
    if (numbers_take(cursor, "\\$") || numbers_take(cursor, "$") || numbers_take(cursor, "\xE2\x82\xAC") || numbers_take(cursor, "\xC2\xA3") ||
        numbers_take(cursor, "\xC2\xA5"))
        take_spaces(cursor);
}

static bool numbers_finish(Cursor *cursor, bool minus, Number *number) {
    const char *unit = cursor->at;
    take_spaces(cursor);
    bool percent = numbers_take(cursor, "\\%") || numbers_take(cursor, "%");
    if (!percent) cursor->at = unit;
    if (percent && cursor->style->percent_is_share) {
        number->value /= 100;
        number->exponent -= 2;
    }
    number->negative = minus;
    if (minus) number->value = -number->value;
    if (number->value == 0) number->n = 0; /* also numbers too small for a double */
    return isfinite(number->value);
}

/* Reads a number at the cursor; the cursor does not move if there is none. `before`: the preceding character, '\0' = none. */
static bool take_number(Cursor *cursor, char before, Number *number) {
    Cursor start = *cursor;
    bool whole = true, minus = take_minus(cursor);
    if (minus && (is_word(before) || before == ')' || before == '}')) goto none;
    if (!minus && is_word(before)) goto none;
    if (!minus) numbers_take(cursor, "+");
    take_currency(cursor);
    if (!take_frac(cursor, number)) {
        if (!take_plain(cursor, number, &whole)) goto none;
        if (whole && before != '/') take_fraction(cursor, number);
    }
    take_power(cursor, number);
    if (numbers_finish(cursor, minus, number)) return true;
none:
    *cursor = start;
    return false;
}

/* Finds the first or last number of the text; false if there is none. */
static bool scan(Slice text, const NumberStyle *style, bool first, Number *number) {
    Cursor cursor = {text.data, text.data + text.len, style};
    bool found = false;
    char before = '\0';
    while (cursor.at < cursor.end && !(first && found)) {
        Number here;
        if (take_number(&cursor, before, &here)) {
            *number = here;
            found = true;
        } else if (is_digit(*cursor.at)) { /* digits that are not a number: skip all of them */
            while (is_digit(numbers_peek(&cursor, 0))) cursor.at++;
        } else {
            cursor.at++;
        }
        before = cursor.at[-1];
    }
    return found;
}

bool numbers_first(Slice text, const NumberStyle *style, Number *number) { return scan(text, style, true, number); }
bool numbers_last(Slice text, const NumberStyle *style, Number *number) { return scan(text, style, false, number); }

/* ---- comparing ---- */

/* Decimal places from the largest integer in a double (309 digits) to the last of NUMBER_DIGITS digits of the smallest double (10^-324). */
enum { PLACES = 1024, LOWEST = -680 };

/* Adds the digits times `sign`; places[i] is the place of 10^(LOWEST + i). */
static void add_digits(const Number *number, int sign, int *places) {
    for (int i = 0; i < number->n; i++) {
        int at = number->exponent + number->n - 1 - i - LOWEST;
        if (at >= 0 && at < PLACES) places[at] += sign * number->digits[i];
    }
}

/* |a - b|, exact up to the sum at the end. */
static double distance(const Number *a, const Number *b) {
    int places[PLACES] = {0}, carry = 0, top = PLACES - 1;
    add_digits(a, a->negative ? -1 : 1, places);
    add_digits(b, b->negative ? 1 : -1, places);
    while (top > 0 && places[top] == 0) top--;
    /* the first nonzero place has the sign of the sum, since each place is at most 9 in size unless all have the same sign */
    int sign = places[top] < 0 ? -1 : 1;
    for (int i = 0; i < PLACES; i++) {
        int sum = sign * places[i] + carry;
        carry = sum < 0 ? -((9 - sum) / 10) : sum / 10;
        places[i] = sum - 10 * carry;
    }
    double value = 0;
    for (int i = PLACES - 1; i >= 0; i--)
        if (places[i]) value += places[i] * pow(10, LOWEST + i);
    return value;
}

double numbers_distance(const Number *a, const Number *b) { return a->decimal && b->decimal ? distance(a, b) : fabs(a->value - b->value); }
