/* SPDX-License-Identifier: Apache-2.0 */
/* Parquet's values as JSON. */
#include "data/containers/parquet.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { MAX_DECIMAL = 64 };
#define DAY_SECONDS ((int64_t)86400)

/* Days since 1970 as a date of the Gregorian calendar, forward and back (Hinnant, "chrono-compatible low-level date algorithms"). */
static void append_date(Str *text, int64_t days) {
    days += 719468; /* counted from 0000-03-01, so that the leap day ends a year */
    int64_t era = (days >= 0 ? days : days - 146096) / 146097, of_era = days - era * 146097;
    int64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365, of_year = of_era - (365 * year + year / 4 - year / 100);
    int64_t month = (5 * of_year + 2) / 153, day = of_year - (153 * month + 2) / 5 + 1;
    month += month < 10 ? 3 : -9;
    str_printf(text, "%04" PRId64 "-%02" PRId64 "-%02" PRId64, year + era * 400 + (month <= 2), month, day);
}

static int64_t ten_to(int n) {
    int64_t power = 1;
    while (n-- > 0) power *= 10;
    return power;
}

/* `amount` of 10^-digits seconds since midnight; a fraction only if it is not zero. */
static void append_time(Str *text, int64_t amount, int digits) {
    int64_t seconds = amount / ten_to(digits), fraction = amount % ten_to(digits);
    str_printf(text, "%02" PRId64 ":%02" PRId64 ":%02" PRId64, seconds / 3600, seconds / 60 % 60, seconds % 60);
    if (fraction != 0) str_printf(text, ".%0*" PRId64, digits, fraction);
}

static void append_timestamp(Str *text, int64_t amount, int digits) {
    int64_t day = DAY_SECONDS * ten_to(digits), days = amount / day - (amount % day < 0);
    append_date(text, days);
    str_append_char(text, 'T');
    append_time(text, amount % day + (amount % day < 0 ? day : 0), digits);
}

/* Nanoseconds of a day, and the day's Julian number, as written by Spark and Hive. */
static void append_int96(Str *text, const uint8_t *bytes) {
    uint64_t nanoseconds = pq_little_endian(bytes, 8);
    append_date(text, (int64_t)pq_little_endian(bytes + 8, 4) - 2440588);
    str_append_char(text, 'T');
    append_time(text, (int64_t)(nanoseconds & INT64_MAX), 9);
}

/* The digits of an integer of `n` bytes, big endian, lowest digit first. Overwrites the bytes. */
static size_t decimal_digits(uint8_t *number, size_t n, char *digits) {
    size_t count = 0, first = 0;
    while (first < n) {
        unsigned rest = 0;
        for (size_t i = first; i < n; i++) {
            unsigned part = rest << 8 | number[i];
            number[i] = (uint8_t)(part / 10);
            rest = part % 10;
        }
        digits[count++] = (char)('0' + rest);
        while (first < n && number[first] == 0) first++;
    }
    return count;
}

/* A number in two's complement, divided by 10^scale. */
static bool append_decimal(Str *text, Slice value, bool big_endian, int scale) {
    uint8_t number[MAX_DECIMAL];
    char digits[MAX_DECIMAL * 3];
    size_t n = value.len;
    if (n == 0 || n > sizeof number) return false;
    for (size_t i = 0; i < n; i++) number[i] = (uint8_t)value.data[big_endian ? i : n - 1 - i];
    bool negative = number[0] & 0x80;
    unsigned carry = 1;
    for (size_t i = n; negative && i-- > 0; carry = carry >> 8) number[i] = (uint8_t)(carry += (uint8_t)~number[i]);
    size_t count = decimal_digits(number, n, digits);
    if (negative) str_append_char(text, '-');
    if (count <= (size_t)scale) str_append_char(text, '0');
    for (size_t at = MAX(count, (size_t)scale); at-- > 0;) {
        if (at + 1 == (size_t)scale) str_append_char(text, '.');
        str_append_char(text, at < count ? digits[at] : '0');
    }
    return true;
}

static void append_uuid(Str *text, const uint8_t *bytes) {
    for (int i = 0; i < 16; i++) str_printf(text, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
}

static void append_base64(Str *text, Slice bytes) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t at = 0; at < bytes.len; at += 3) {
        size_t n = MIN(bytes.len - at, (size_t)3);
        uint32_t group = 0;
        for (size_t i = 0; i < 3; i++) group = group << 8 | (i < n ? (unsigned char)bytes.data[at + i] : 0);
        for (size_t i = 0; i < 4; i++) str_append_char(text, i <= n ? digits[group >> (18 - 6 * i) & 63] : '=');
    }
}

static double half_to_double(uint16_t half) {
    int exponent = half >> 10 & 31, fraction = half & 1023;
    double size = exponent == 0    ? ldexp(fraction, -24)
                  : exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
                                   : ldexp(1024 + fraction, exponent - 25);
    return half & 0x8000 ? -size : size;
}

static json_t *bytes_json(const PqNode *node, Slice value, const char **fault) {
    static _Thread_local json_error_t error;
    if (utf8_fault(value.data, value.len) == value.len) {
        if (node->meaning != PQ_JSON) return json_stringn_nocheck(value.data, value.len);
        json_t *json = json_parse(value.data, value.len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
        if (!json) *fault = error.text;
        return json;
    }
    if (node->meaning == PQ_TEXT || node->meaning == PQ_JSON) {
        *fault = "a text that is not UTF-8";
        return NULL;
    }
    Str text = {0};
    append_base64(&text, value);
    json_t *json = json_stringn_nocheck(str_text(&text), text.len);
    str_release(&text);
    return json;
}

/* Converts types with a text form; false if this type has none. */
static bool append_formed(Str *text, const PqNode *node, Slice value) {
    const uint8_t *bytes = (const uint8_t *)value.data;
    bool number = node->type == PQ_INT32 || node->type == PQ_INT64;
    uint64_t raw = number ? pq_little_endian(bytes, value.len) : 0;
    int64_t amount = node->type == PQ_INT32 ? (int32_t)(uint32_t)raw : (int64_t)raw;
    switch (node->meaning) {
    case PQ_DECIMAL: return append_decimal(text, value, !number, node->scale);
    case PQ_DATE: append_date(text, amount); return true;
    case PQ_TIME:
        if (amount < 0) return false;
        append_time(text, amount, node->scale);
        return true;
    case PQ_TIMESTAMP:
        append_timestamp(text, amount, node->scale);
        if (node->utc) str_append_char(text, 'Z');
        return true;
    case PQ_UUID: append_uuid(text, bytes); return true;
    case PQ_UNSIGNED:
        if (raw <= INT64_MAX) return false;
        str_printf(text, "%" PRIu64, raw); /* more than a JSON reader's integers can represent */
        return true;
    default:
        if (node->type != PQ_INT96) return false;
        append_int96(text, bytes);
        return true;
    }
}

static json_t *number_json(const PqNode *node, Slice value) {
    uint64_t raw = pq_little_endian((const uint8_t *)value.data, MIN(value.len, (size_t)8));
    float single;
    double real;
    switch (node->type) {
    case PQ_BOOLEAN: return json_boolean(raw != 0);
    case PQ_INT32: return json_integer(node->meaning == PQ_UNSIGNED ? (json_int_t)raw : (json_int_t)(int32_t)(uint32_t)raw);
    case PQ_INT64: return json_integer((json_int_t)raw);
    case PQ_FLOAT: {
        uint32_t bits = (uint32_t)raw;
        memcpy(&single, &bits, sizeof single);
        return json_real_or_null((double)single);
    }
    case PQ_DOUBLE: memcpy(&real, &raw, sizeof real); return json_real_or_null(real);
    default: return json_real_or_null(half_to_double((uint16_t)raw));
    }
}

json_t *pq_json(const PqNode *node, Slice value, const char **fault) {
    *fault = NULL;
    Str text = {0};
    bool formed = append_formed(&text, node, value);
    json_t *json = formed ? json_stringn_nocheck(str_text(&text), text.len) : NULL;
    str_release(&text);
    if (formed) return json;
    bool bytes = node->type == PQ_BYTES || (node->type == PQ_FIXED && node->meaning != PQ_FLOAT16);
    return bytes ? bytes_json(node, value, fault) : number_json(node, value);
}
