/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers within bounds, digit by digit: while a number equals the beginning of a bound, its next digit is bounded; after a digit apart from it,
 * all digits are free. */
#include "lib/grammar/grammar_parts.h"

#include <stdlib.h>
#include <string.h>

/* WHOLE: digits before the point of a bound, and of an integer; FREE: of other numbers. A fraction is longer than those of bounds, so that there are
 * numbers between any two of them. */
enum { WHOLE = 18, FREE = 15, FRACTION_OF_BOUND = 15, FRACTION = 16 };

/* A number without its sign. */
typedef struct Decimal {
    char whole[WHOLE + 1], fraction[FRACTION + 1]; /* digits; the fraction is filled with zeros */
    size_t n;                                      /* of whole, at least 1 */
} Decimal;
typedef struct Range {
    Builder *b;
    Decimal low, high;
    bool above, below; /* the bounds themselves are left out */
    bool integer;
    int32_t next;
    int32_t places[FRACTION + 1][2]
                  [2]; /* where the digits after the point go on, by number of digits, and by equality with low and high; 0: unknown */
} Range;

/* Reads digits with a point and an exponent, as %.17g writes them, without the sign. False: too many digits. *huge: too many before the point. */
static bool decimal_read(const char *text, Decimal *d, bool *huge) {
    char digits[64] = "";
    int n = 0, point = -1, exponent = 0;
    for (; *text && *text != 'e' && *text != 'E' && n < 40; text++) {
        if (*text == '.')
            point = n;
        else
            digits[n++] = *text;
    }
    if (*text) exponent = atoi(text + 1);
    point = (point < 0 ? n : point) + exponent; /* digits before the point */
    int first = 0;
    while (first < n - 1 && digits[first] == '0') first++;
    while (n > first + 1 && n > point && digits[n - 1] == '0') n--;
    *d = (Decimal){.whole = "0", .n = 1};
    memset(d->fraction, '0', FRACTION);
    bool zero = digits[first] == '0' && n == first + 1;
    *huge = !zero && point - first > WHOLE;
    if (zero) return true;
    if (*huge || n - point > FRACTION_OF_BOUND) return false;
    for (int i = first; i < MAX(point, n); i++) {
        char c = i < n ? digits[i] : '0';
        if (i >= point)
            d->fraction[i - point] = c;
        else if (d->n == 1 && d->whole[0] == '0')
            d->whole[0] = c;
        else
            d->whole[d->n++] = c;
    }
    return true;
}

static bool digits_zero(const char *digits) { return digits[strspn(digits, "0")] == '\0'; }

/* Whether a number may end after k digits of its fraction; low, high: it has equalled the bound so far. */
static bool may_end(const Range *r, size_t k, bool low, bool high) {
    bool low_rest = digits_zero(r->low.fraction + k), high_rest = digits_zero(r->high.fraction + k);
    return !(low && (!low_rest || r->above)) && !(high && high_rest && r->below);
}

static int32_t build_fraction(Range *r, size_t k, bool low, bool high);

/* A digit from..to and what follows it: at most three ways, since only its ends can equal the bounds. */
static int32_t build_digit(Range *r, char from, char to, bool low, bool high, size_t k, int32_t follow(Range *r, size_t k, bool low, bool high)) {
    int32_t at = 0;
    Builder *b = r->b;
    if (from > to || b->status != ST_OK) return 0;
    if (low && high && from == to) return build_bytes(b, from, from, follow(r, k, true, true));
    if (low) {
        at = build_bytes(b, from, from, follow(r, k, true, false));
        from++;
    }
    if (high && from <= to) {
        int32_t way = build_bytes(b, to, to, follow(r, k, false, true));
        at = at ? build_split(b, way, at) : way;
        to--;
    }
    if (from <= to) {
        int32_t way = build_bytes(b, from, to, follow(r, k, false, false));
        at = at ? build_split(b, way, at) : way;
    }
    return at;
}

/* After k digits of the fraction, at least one. */
static int32_t after_fraction(Range *r, size_t k, bool low, bool high) {
    int32_t *place = &r->places[k][low][high];
    if (*place == 0) {
        int32_t more = k < FRACTION ? build_fraction(r, k, low, high) : 0;
        *place = may_end(r, k, low, high) ? build_split(r->b, more, r->next) : more;
    }
    return *place;
}

static int32_t build_fraction(Range *r, size_t k, bool low, bool high) {
    return build_digit(r, low ? r->low.fraction[k] : '0', high ? r->high.fraction[k] : '9', low, high, k + 1, after_fraction);
}

static int32_t after_whole(Range *r, bool low, bool high) {
    int32_t more = r->integer ? 0 : build_bytes(r->b, '.', '.', build_fraction(r, 0, low, high));
    return may_end(r, 0, low, high) ? build_split(r->b, more, r->next) : more;
}

/* Numbers of n digits before the point: built digit by digit from the last one, for each of the four ways to equal the bounds. */
static int32_t build_length(Range *r, size_t n) {
    bool as_low = n == r->low.n, as_high = n == r->high.n;
    int32_t after[2][2], at[2][2] = {{0}};
    for (int low = 0; low < 2; low++)
        for (int high = 0; high < 2; high++) after[low][high] = (low && !as_low) || (high && !as_high) ? 0 : after_whole(r, low, high);
    for (size_t i = n; i-- > 0; memcpy(after, at, sizeof after)) {
        for (int low = 0; low < 2; low++)
            for (int high = 0; high < 2; high++) {
                char from = low ? r->low.whole[i] : i == 0 && n > 1 ? '1' : '0', to = high ? r->high.whole[i] : '9';
                at[low][high] = 0;
                if ((low && !as_low) || (high && !as_high)) continue;
                for (char c = from; c <= to;) { /* digits with the same next place together */
                    bool is_low = low && c == from, is_high = high && c == to;
                    char end = is_low || is_high ? c : (char)(to - (high ? 1 : 0));
                    int32_t way = build_bytes(r->b, c, end, after[is_low][is_high]);
                    at[low][high] = at[low][high] ? build_split(r->b, way, at[low][high]) : way;
                    c = (char)(end + 1);
                }
            }
    }
    return after[as_low][as_high];
}

static int compare_decimals(const Decimal *a, const Decimal *b) {
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    int order = memcmp(a->whole, b->whole, a->n);
    return order ? order : memcmp(a->fraction, b->fraction, FRACTION);
}

/* All numbers of the range, without a sign. */
static int32_t build_range(Range *r) {
    int32_t at = 0;
    memset(r->places, 0, sizeof r->places);
    if (compare_decimals(&r->low, &r->high) > 0) return 0;
    for (size_t n = r->low.n; n <= r->high.n; n++) {
        int32_t way = build_length(r, n);
        at = at ? build_split(r->b, way, at) : way;
    }
    return at;
}

/* ---- bounds ---- */

typedef struct Bound {
    bool given, negative;
    Decimal size;
} Bound;

static Status bound_read(const json_t *value, Bound *bound) {
    *bound = (Bound){0};
    if (!value) return ST_OK;
    Str text = {0};
    bool huge;
    if (!json_is_number(value)) return status_fail(ST_INPUT, "a bound of a number is not a number");
    if (json_is_integer(value))
        str_printf(&text, "%lld", (long long)json_integer_value(value));
    else
        str_append_double(&text, json_real_value(value));
    const char *size = str_text(&text) + (*str_text(&text) == '-');
    bound->given = true;
    bound->negative = size > str_text(&text) && json_number_value(value) < 0;
    Status status = ST_OK;
    if (!decimal_read(size, &bound->size, &huge))
        status = status_fail(ST_INPUT, "the bound %s of a number has more than %d digits %s the point", str_text(&text),
                             huge ? WHOLE : FRACTION_OF_BOUND, huge ? "before" : "after");
    str_release(&text);
    return status;
}

static void largest(Decimal *d) {
    d->n = WHOLE;
    memset(d->whole, '9', d->n);
    memset(d->fraction, '9', FRACTION);
}

/* Without bounds: with an exponent of at most two digits, so that it is finite. */
static int32_t build_free(Builder *b, bool integer, int32_t next) {
    int32_t end = next;
    if (!integer) {
        int32_t exponent = build_bytes(b, '0', '9', build_split(b, build_bytes(b, '0', '9', next), next));
        exponent = build_split(b, exponent, build_split(b, build_text(b, "+", 1, exponent), build_text(b, "-", 1, exponent)));
        exponent = build_split(b, build_split(b, build_text(b, "e", 1, exponent), build_text(b, "E", 1, exponent)), next);
        end = build_split(b, build_text(b, ".", 1, build_bytes(b, '0', '9', build_digits(b, FRACTION - 1, exponent))), exponent);
    }
    int32_t digits = build_split(b, build_bytes(b, '1', '9', build_digits(b, (integer ? WHOLE : FREE) - 1, end)), build_text(b, "0", 1, end));
    return build_split(b, digits, build_text(b, "-", 1, digits));
}

Status build_number(Builder *b, const NumberBounds *bounds, int32_t next, int32_t *start) {
    Bound low, high;
    TRY(bound_read(bounds->low, &low));
    TRY(bound_read(bounds->high, &high));
    if (!low.given && !high.given) {
        *start = build_free(b, bounds->integer, next);
        return b->status;
    }
    Range up = {.b = b, .integer = bounds->integer, .next = next}, down = up;
    Decimal zero;
    bool huge;
    decimal_read("0", &zero, &huge);
    *start = 0;
    if (!high.given || !high.negative) { /* from 0 on, or from low on */
        bool from_low = low.given && !low.negative;
        up.low = from_low ? low.size : zero;
        up.above = from_low && bounds->above;
        up.high = high.size;
        up.below = high.given && bounds->below;
        if (!high.given) largest(&up.high);
        *start = build_range(&up);
    }
    if (!low.given || low.negative) { /* below 0: sizes from that of high, or from above 0, to that of low */
        bool from_high = high.given && high.negative;
        down.low = from_high ? high.size : zero;
        down.above = from_high ? bounds->below : true;
        down.high = low.size;
        down.below = low.given && bounds->above;
        if (!low.given) largest(&down.high);
        int32_t way = build_range(&down);
        if (way) way = build_text(b, "-", 1, way);
        *start = *start && way ? build_split(b, way, *start) : MAX(*start, way);
    }
    return b->status;
}
