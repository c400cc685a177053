/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of programs for texts: bytes, characters in UTF-8, strings and values of JSON. */
#include "lib/grammar/grammar_parts.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SURROGATE = 0xD800, LAST_SURROGATE = 0xDFFF, MAX_INDENT = 32 };

int32_t build_text(Builder *b, const char *text, size_t len, int32_t next) {
    for (size_t i = len; i-- > 0;) next = build_bytes(b, (uint8_t)text[i], (uint8_t)text[i], next);
    return next;
}

int32_t build_special(Builder *b, const char *text, size_t len, int32_t next) {
    int32_t spelt = build_text(b, text, len, next);
    return build_split(b, build_bytes(b, MARK_SPECIAL, MARK_SPECIAL, spelt), spelt);
}

/* ---- sets of characters ---- */

/* Inserts the range and joins it with those that it touches. */
Status charset_add(CharSet *set, uint32_t low, uint32_t high) {
    size_t at = 0, end;
    while (at < set->n && set->ranges[at].high + 1 < low) at++;
    for (end = at; end < set->n && set->ranges[end].low <= high + 1; end++) {
        low = MIN(low, set->ranges[end].low);
        high = MAX(high, set->ranges[end].high);
    }
    TRY(array_grow(&set->ranges, &set->cap, set->n + 1, sizeof *set->ranges, "ranges of characters"));
    memmove(set->ranges + at + 1, set->ranges + end, (set->n - end) * sizeof *set->ranges);
    set->n = set->n - (end - at) + 1;
    set->ranges[at] = (CharRange){low, high};
    return ST_OK;
}

Status charset_invert(CharSet *set) {
    size_t n = 0;
    uint32_t low = 0;
    TRY(array_grow(&set->ranges, &set->cap, set->n + 1, sizeof *set->ranges, "ranges of characters"));
    for (size_t i = 0; i <= set->n; i++) {
        CharRange next = i < set->n ? set->ranges[i] : (CharRange){LAST_CODE_POINT + 1, LAST_CODE_POINT + 1};
        if (low < next.low) set->ranges[n++] = (CharRange){low, next.low - 1}; /* at most the i-th, which was read */
        low = next.high + 1;
    }
    set->n = n;
    return ST_OK;
}

Status charset_remove(CharSet *set, uint32_t c) {
    TRY(charset_invert(set));
    TRY(charset_add(set, c, c));
    return charset_invert(set);
}

void charset_release(CharSet *set) {
    free(set->ranges);
    *set = (CharSet){0};
}

/* ---- characters in UTF-8 ---- */

/* The ways out of a set, and the last bytes of characters, which many of them share. */
typedef struct Ways {
    Builder *b;
    int32_t next, first; /* first: where the ways so far begin; 0: there are none */
    struct {
        int low, high;
        int32_t next, at;
    } tails[16];
    size_t n_tails;
} Ways;

static void ways_add(Ways *ways, int32_t at) { ways->first = ways->first ? build_split(ways->b, at, ways->first) : at; }

static int32_t tail_bytes(Ways *ways, int low, int high, int32_t next) {
    for (size_t i = 0; i < ways->n_tails; i++)
        if (ways->tails[i].low == low && ways->tails[i].high == high && ways->tails[i].next == next) return ways->tails[i].at;
    int32_t at = build_bytes(ways->b, low, high, next);
    if (ways->n_tails < COUNT_OF(ways->tails)) {
        ways->tails[ways->n_tails].low = low, ways->tails[ways->n_tails].high = high;
        ways->tails[ways->n_tails].next = next, ways->tails[ways->n_tails++].at = at;
    }
    return at;
}

/* Characters low..high, all with the same number of bytes, so that all bytes after the first one that differs are 80..BF at the ends of the range. */
static void add_sequence(Ways *ways, uint32_t low, uint32_t high) {
    char from[4], to[4];
    size_t n = utf8_encode(low, from);
    utf8_encode(high, to);
    int32_t next = ways->next;
    for (size_t i = n; i-- > 1;) next = tail_bytes(ways, (uint8_t)from[i], (uint8_t)to[i], next);
    ways_add(ways, build_bytes(ways->b, (uint8_t)from[0], (uint8_t)to[0], next));
}

/* Cuts the range where the number of bytes changes, then where a byte before the last ones begins anew. */
static void add_range(Ways *ways, uint32_t low, uint32_t high) {
    static const uint32_t lasts[] = {0x7F, 0x7FF, 0xFFFF, LAST_CODE_POINT};
    while (low <= high && ways->b->status == ST_OK) {
        size_t tail = 0;
        while (lasts[tail] < low) tail++;
        uint32_t end = MIN(high, lasts[tail]);
        for (; tail > 0; tail--) { /* low and high agree up to the byte before `tail` others, or these run through */
            uint32_t mask = ((uint32_t)1 << 6 * tail) - 1;
            if ((low & ~mask) == (end & ~mask)) continue;
            if (low & mask)
                end = low | mask;
            else if ((end & mask) != mask)
                end = (end & ~mask) - 1;
        }
        add_sequence(ways, low, end);
        low = end + 1;
    }
}

static void add_characters(Ways *ways, uint32_t low, uint32_t high) {
    if (low < FIRST_SURROGATE) add_range(ways, low, MIN(high, FIRST_SURROGATE - 1));
    if (high > LAST_SURROGATE) add_range(ways, MAX(low, LAST_SURROGATE + 1), high);
}

/* A character as it is within a JSON string if it may not be there as it is. */
static void add_escaped(Ways *ways, uint32_t c) {
    static const char shorts[][2] = {{'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}, {'"', '"'}, {'\\', '\\'}};
    char text[8] = "\\u0000";
    for (size_t i = 0; i < COUNT_OF(shorts); i++)
        if ((uint32_t)shorts[i][0] == c) {
            text[1] = shorts[i][1];
            ways_add(ways, build_text(ways->b, text, 2, ways->next));
            return;
        }
    text[4] = (char)('0' + (c >> 4));
    text[5] = "0123456789abcdef"[c & 15];
    ways_add(ways, build_text(ways->b, text, 6, ways->next));
}

int32_t build_charset(Builder *b, const CharSet *set, bool json, int32_t next) {
    Ways ways = {.b = b, .next = next};
    for (size_t i = 0; i < set->n; i++) {
        uint32_t low = set->ranges[i].low, high = set->ranges[i].high;
        if (!json) {
            add_characters(&ways, low, high);
            continue;
        }
        const uint32_t cuts[] = {'"', '\\', LAST_CODE_POINT + 1}; /* what is between them needs no escape, from the blank on */
        for (uint32_t c = MAX(low, (uint32_t)1); c <= MIN(high, (uint32_t)0x1F); c++) add_escaped(&ways, c);
        low = MAX(low, (uint32_t)' ');
        for (size_t k = 0; k < COUNT_OF(cuts) && low <= high; k++) {
            if (low < cuts[k]) add_characters(&ways, low, MIN(high, cuts[k] - 1));
            if (low <= cuts[k] && cuts[k] <= high && cuts[k] <= LAST_CODE_POINT) add_escaped(&ways, cuts[k]);
            low = MAX(low, cuts[k] + 1);
        }
    }
    return ways.first;
}

/* ---- JSON ---- */

int32_t build_quoted(Builder *b, const char *text, size_t len, int32_t next) {
    Str quoted = {0};
    str_append_json(&quoted, text, len);
    next = build_text(b, str_text(&quoted), quoted.len, next);
    str_release(&quoted);
    return next;
}

int32_t build_space(Builder *b, int32_t next) {
    if (b->space < 0) {
        b->space = build_rule(b);
        int32_t end = build_return(b), indent = end;
        for (int i = 0; i < MAX_INDENT; i++)
            indent = build_split(b, build_split(b, build_text(b, " ", 1, indent), build_text(b, "\t", 1, indent)), end);
        int32_t line = build_text(b, "\n", 1, indent), blank = build_text(b, " ", 1, end);
        build_rule_start(b, b->space, build_split(b, build_split(b, line, blank), end));
    }
    return build_call(b, b->space, false, next);
}

static int32_t build_hex(Builder *b, const char *ranges, int32_t next) {
    int32_t first = 0;
    for (const char *r = ranges; *r; r += 2) {
        int32_t way = build_bytes(b, r[0], r[1], next);
        first = first ? build_split(b, way, first) : way;
    }
    return first;
}

/* \uXXXX, but not \u0000, and surrogates only in pairs. */
static int32_t build_unicode_escape(Builder *b, int32_t next) {
    static const char any[] = "09afAF", not_zero[] = "19afAF";
    int32_t one = build_hex(b, any, next), two = build_hex(b, any, one), three = build_hex(b, any, two);
    int32_t zeros = build_hex(b, not_zero, next);
    zeros = build_split(b, build_text(b, "0", 1, zeros), build_hex(b, not_zero, one));
    zeros = build_split(b, build_text(b, "0", 1, zeros), build_hex(b, not_zero, two));
    int32_t below = build_hex(b, "ddDD", build_hex(b, "07", two));
    int32_t low = build_text(b, "\\u", 2, build_hex(b, "ddDD", build_hex(b, "cfCF", two)));
    int32_t pair = build_hex(b, "ddDD", build_hex(b, "89abAB", build_hex(b, any, build_hex(b, any, low))));
    int32_t plain = build_split(b, build_text(b, "0", 1, zeros), build_hex(b, "19acACefEF", three));
    return build_text(b, "u", 1, build_split(b, plain, build_split(b, below, pair)));
}

int32_t build_character(Builder *b, int32_t next) {
    if (b->character < 0) {
        CharRange ranges[] = {{' ', '!'}, {'#', '['}, {']', LAST_CODE_POINT}};
        b->character = build_rule(b);
        int32_t end = build_return(b), escape = build_unicode_escape(b, end);
        for (const char *c = "\"\\/bfnrt"; *c; c++) escape = build_split(b, build_text(b, c, 1, end), escape);
        int32_t plain = build_charset(b, &(CharSet){ranges, COUNT_OF(ranges), 0}, false, end);
        build_rule_start(b, b->character, build_split(b, plain, build_text(b, "\\", 1, escape)));
    }
    return build_call(b, b->character, false, next);
}

int32_t build_characters(Builder *b, int64_t least, int64_t most, int32_t next) {
    int32_t at = next;
    if (most < 0) {
        at = build_split(b, 0, next);
        build_join(b, at, build_character(b, at));
    }
    for (int64_t i = least; i < most && b->status == ST_OK; i++) at = build_split(b, build_character(b, at), next);
    for (int64_t i = 0; i < least && b->status == ST_OK; i++) at = build_character(b, at);
    return at;
}

int32_t build_digits(Builder *b, int most, int32_t next) {
    int32_t at = next;
    for (int i = 0; i < most; i++) at = build_split(b, build_bytes(b, '0', '9', at), next);
    return at;
}

/* Elements of a list or members of an object, separated by commas; `item`: goes on at `after`, a split whose other way closes. */
static int32_t build_any_list(Builder *b, int32_t next) {
    int32_t close = build_space(b, build_text(b, "]", 1, next)), after = build_split(b, 0, close);
    int32_t item = build_call(b, b->value, true, after);
    build_join(b, after, build_text(b, ",", 1, build_space(b, item)));
    return build_text(b, "[", 1, build_split(b, build_space(b, item), close));
}

static int32_t build_members(Builder *b, int32_t next) {
    int32_t close = build_space(b, build_text(b, "}", 1, next)), after = build_split(b, 0, close);
    int32_t colon = build_text(b, ":", 1, build_space(b, build_call(b, b->value, true, after)));
    int32_t item = build_text(b, "\"", 1, build_characters(b, 0, -1, build_text(b, "\"", 1, colon)));
    build_join(b, after, build_text(b, ",", 1, build_space(b, item)));
    return build_text(b, "{", 1, build_split(b, build_space(b, item), close));
}

static void need_value(Builder *b) {
    if (b->value >= 0) return;
    b->value = build_rule(b);
    int32_t end = build_return(b), number = 0, all = build_members(b, end);
    NumberBounds free_number = {0};
    if (b->status == ST_OK) b->status = build_number(b, &free_number, end, &number);
    all = build_split(b, build_any_list(b, end), all);
    all = build_split(b, build_text(b, "\"", 1, build_characters(b, 0, -1, build_text(b, "\"", 1, end))), all);
    all = build_split(b, number, all);
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < COUNT_OF(words); i++) all = build_split(b, build_text(b, words[i], strlen(words[i]), end), all);
    build_rule_start(b, b->value, all);
}

int32_t build_value(Builder *b, int32_t next) {
    need_value(b);
    return build_call(b, b->value, true, next);
}

int32_t build_any_object(Builder *b, int32_t next) {
    need_value(b);
    return build_members(b, next);
}

Status grammar_json_object(Grammar **grammar) {
    Builder b;
    *grammar = NULL;
    if (builder_open(&b, "constraint") != ST_OK) {
        grammar_free(b.grammar);
        return b.status;
    }
    int32_t end = build_return(&b);
    return builder_finish(&b, build_any_object(&b, end), grammar);
}
