/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars of schemas and expressions: which texts they accept, what is refused and how, and that each text made by allowed tokens fits. */
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/rng.h"
#include "lib/grammar/grammar_parts.h"
#include "rl/reward/json_schema.h"

static json_t *parse_json(const char *text) {
    json_error_t error;
    json_t *json = json_loads(text, JSON_DECODE_ANY, &error);
    if (!json) fail_msg("'%s': %s", text, error.text);
    return json;
}

static Grammar *schema_grammar(const char *text) {
    json_t *schema = parse_json(text);
    Grammar *grammar;
    Status status = grammar_json_schema(schema, &grammar);
    if (status != ST_OK) fail_msg("%s: %s", text, status_text());
    json_decref(schema);
    return grammar;
}

static void check_text_of(const char *schema, const Grammar *grammar, const char *text, bool wanted) {
    if (grammar_accepts(grammar, text, strlen(text)) != wanted) fail_msg("%s: '%s' is %s", schema, text, wanted ? "not accepted" : "accepted");
}

/* ---- tables ---- */

enum { MOST_TEXTS = 14 };
static const struct {
    const char *schema, *yes[MOST_TEXTS], *no[MOST_TEXTS];
} tables[] = {
    {"{\"type\": \"string\"}",
     {"\"\"", "\"a\"", "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x99\x82\"", "\"\\n\\\"\\\\\\/\\u00e9\"", "\"\\ud83d\\ude42\"", "\"\\u0001\"", "\"\x7F\""},
     {"", "\"", "\"a", "a", "\"a\"b", " \"a\"", "\"\n\"", "\"\\x\"", "\"\\u00\"", "\"\\ud83d\"", "\"\\ude42\"", "\"\\u0000\"", "\"\xC0\x80\"",
      "\"\xED\xA0\x80\""}},
    {"{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}",
     {"\"ab\"", "\"abc\"", "\"\xF0\x9F\x99\x82\xC3\xA9\"", "\"\\ud83d\\ude42\\n\""},
     {"\"a\"", "\"abcd\"", "\"\xF0\x9F\x99\x82\"", "\"\""}},
    {"{\"type\": \"integer\"}", {"0", "-7", "123456789012345678"}, {"01", "1.0", "-", "+1", "1e3", "1234567890123456789", "", "\"1\""}},
    {"{\"type\": \"number\"}", {"0", "-0.5", "1e3", "1E-07", "3.14", "12.5e+10"}, {".5", "1.", "1e", "1e100", "00", "0x1", "NaN"}},
    {"{\"type\": \"integer\", \"minimum\": -12, \"maximum\": 105}",
     {"-12", "-9", "-1", "0", "9", "10", "99", "100", "105"},
     {"-13", "-20", "-100", "106", "110", "200", "1000", "-0", "05"}},
    {"{\"type\": \"integer\", \"exclusiveMinimum\": 0.5, \"exclusiveMaximum\": 10}", {"1", "5", "9"}, {"0", "10", "11", "-1"}},
    {"{\"type\": \"integer\", \"minimum\": 37}", {"37", "38", "40", "99", "100", "999999999999999999"}, {"36", "3", "-40", "0"}},
    {"{\"type\": \"integer\", \"maximum\": -3}", {"-3", "-4", "-10", "-29"}, {"-2", "0", "3", "-1"}},
    {"{\"type\": \"number\", \"minimum\": 0, \"maximum\": 1}",
     {"0", "1", "0.5", "0.0", "1.0", "1.000", "0.9999"},
     {"1.1", "1.0001", "-0.1", "2", "10", "-1", "1e0", "0."}},
    {"{\"type\": \"number\", \"exclusiveMinimum\": -1.25, \"exclusiveMaximum\": 2.5}",
     {"-1.24", "-1", "-0.5", "0", "2", "2.4", "2.49999", "-1.2499"},
     {"-1.25", "-1.3", "-1.250", "2.5", "2.50", "2.6", "-2", "3"}},
    {"{\"type\": \"number\", \"minimum\": 2.75}", {"2.75", "2.8", "3", "10.5", "2.7500"}, {"2.7", "2.749", "2", "0", "-3"}},
    {"{\"type\": [\"boolean\", \"null\"]}", {"true", "false", "null"}, {"True", "tru", "0", "nullnull"}},
    {"{\"enum\": [\"a b\", 1, null, [1, {\"x\": 2}], \"\xC3\xA9\"]}",
     {"\"a b\"", "1", "null", "[1,{\"x\":2}]", "\"\xC3\xA9\""},
     {"\"a\"", "2", "[1]", "[1, {\"x\":2}]"}},
    {"{\"type\": \"string\", \"enum\": [\"a\", 1]}", {"\"a\""}, {"1"}},
    {"{\"const\": {\"k\": \"v\"}}", {"{\"k\":\"v\"}"}, {"{}", "{\"k\":\"w\"}"}},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"string\"}, \"c\": {\"type\": \"null\"}}, \"required\": [\"b\"], \"additionalProperties\": false}",
     {"{\"b\": \"x\"}", "{\"a\":1,\"b\":\"x\"}", "{\"b\":\"\",\"c\":null}", "{\n  \"a\": 1,\n  \"b\": \"x\",\n  \"c\": null\n}", "{ \"b\":\"x\" }"},
     {"{}", "{\"a\":1}", "{\"b\":\"x\",\"a\":1}", "{\"b\":\"x\",}", "{,\"b\":\"x\"}", "{\"b\":\"x\",\"d\":1}", "{\"b\":\"x\"", "{\"b\" :\"x\"}",
      "{\"b\":\"x\"\"c\":null}"}},
    {"{\"type\": \"object\", \"properties\": {\"ab\": true, \"a\": {\"type\": \"integer\"}}, \"additionalProperties\": {\"type\": \"boolean\"}}",
     {"{}", "{\"ab\":[1]}", "{\"x\":true}", "{\"a\":1,\"abc\":false,\"b\":true}", "{\"ac\":true}", "{\"\":true}", "{\"b\\\"\":true}",
      "{\"\\n\":true}", "{\"\xC3\xA9\":true}"},
     {"{\"x\":1}", "{\"a\":true}", "{\"x\":true,\"a\":1}", "{\"x\":true,\"ab\":true}"}},
    {"{\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}}", {"{}", "{\"a\":1,\"\":2}"}, {"{\"a\":\"b\"}", "{\"a\"}"}},
    {"{\"type\": \"object\"}", {"{}", "{\"a\": {\"b\": [1, {}, []]}}"}, {"[]", "{]", "{\"a\":}"}},
    {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 1, \"maxItems\": 3}",
     {"[1]", "[1,2]", "[ 1, 2, 3 ]", "[\n\t1,\n\t2\n]"},
     {"[]", "[1,2,3,4]", "[1,]", "[,1]", "[1 2]", "[\"a\"]"}},
    {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}}", {"[]", "[1]", "[1,2,3,4,5,6,7]"}, {"[1,,2]", "[null]"}},
    {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 1}", {"[1]", "[1,2]"}, {"[]"}},
    {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 3}", {"[1,2,3]", "[1,2,3,4]"}, {"[]", "[1]", "[1,2]"}},
    {"{\"type\": \"array\", \"maxItems\": 0}", {"[]", "[ ]"}, {"[1]"}},
    {"{\"prefixItems\": [{\"type\": \"integer\"}, {\"type\": \"string\"}], \"items\": false, \"minItems\": 2}",
     {"[1,\"a\"]"},
     {"[1]", "[]", "[1,\"a\",2]", "[\"a\",1]"}},
    {"{\"prefixItems\": [{\"type\": \"integer\"}], \"items\": {\"type\": \"null\"}}", {"[]", "[1]", "[1,null,null]"}, {"[null]", "[1,2]"}},
    {"{\"anyOf\": [{\"type\": \"object\", \"properties\": {\"k\": {\"const\": \"a\"}, \"n\": {\"type\": \"integer\"}}, \"required\": [\"k\", \"n\"]},"
     " {\"type\": \"object\", \"properties\": {\"k\": {\"const\": \"b\"}, \"s\": {\"type\": \"string\"}}, \"required\": [\"k\", \"s\"]}, {\"type\": \"null\"}]}",
     {"{\"k\":\"a\",\"n\":1}", "{\"k\":\"b\",\"s\":\"x\"}", "null"},
     {"{\"k\":\"a\",\"s\":\"x\"}", "{\"k\":\"b\",\"n\":1}", "{\"k\":\"c\"}"}},
    {"{\"oneOf\": [{\"type\": \"integer\"}, {\"type\": [\"string\", \"null\"], \"maxLength\": 1}]}",
     {"1", "\"a\"", "null"},
     {"1.5", "\"ab\"", "true"}},
    {"{\"$defs\": {\"cat\": {\"type\": \"object\", \"properties\": {\"kind\": {\"const\": \"cat\"}, \"lives\": {\"type\": \"integer\"}}, \"required\": [\"kind\", \"lives\"]},"
     " \"dog\": {\"type\": \"object\", \"properties\": {\"kind\": {\"enum\": [\"dog\", \"wolf\"]}}, \"required\": [\"kind\"]}},"
     " \"oneOf\": [{\"$ref\": \"#/$defs/cat\"}, {\"$ref\": \"#/$defs/dog\"}], \"discriminator\": {\"propertyName\": \"kind\"}}",
     {"{\"kind\":\"cat\",\"lives\":9}", "{\"kind\":\"wolf\"}"},
     {"{\"kind\":\"cat\"}", "{\"kind\":\"cow\"}", "{\"kind\":\"dog\",\"lives\":1}"}},
    {"{\"$defs\": {\"node\": {\"type\": \"object\", \"properties\": {\"v\": {\"type\": \"integer\"}, \"next\": {\"anyOf\": [{\"$ref\": \"#/$defs/node\"}, {\"type\": \"null\"}]}},"
     " \"required\": [\"v\", \"next\"], \"additionalProperties\": false}}, \"$ref\": \"#/$defs/node\"}",
     {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3,\"next\":null}}}"},
     {"null", "{\"v\":1}", "{\"v\":1,\"next\":{\"v\":2}}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}"}},
    {"{\"type\": \"object\", \"properties\": {\"children\": {\"type\": \"array\", \"items\": {\"$ref\": \"#\"}}}, \"additionalProperties\": false}",
     {"{}", "{\"children\":[]}", "{\"children\":[{},{\"children\":[{}]}]}"},
     {"[]", "{\"children\":{}}", "{\"children\":[{}}"}},
    {"{\"type\": \"string\", \"pattern\": \"^[a-c]{2,3}$\"}", {"\"ab\"", "\"abc\""}, {"\"a\"", "\"abcd\"", "\"xab\"", "\"ad\""}},
    {"{\"type\": \"string\", \"pattern\": \"b+\"}",
     {"\"b\"", "\"abbc\"",
      "\"\xC3\xA9"
      "b\\n\""},
     {"\"a\"", "\"\""}},
    {"{\"type\": \"string\", \"pattern\": \"^a|b$\"}", {"\"a\"", "\"axx\"", "\"xxb\""}, {"\"xa\"", "\"bx\""}},
    {"{\"type\": \"string\", \"pattern\": \"^[\\\"\\\\\\\\\\\\t]$\"}", {"\"\\\"\"", "\"\\\\\"", "\"\\t\""}, {"\"\"\"", "\"\\\"", "\"a\""}},
    {"{\"type\": \"string\", \"format\": \"date-time\"}",
     {"\"2024-02-28T23:59:59Z\"", "\"1999-12-31T00:00:00.5+01:00\""},
     {"\"2024-13-01T00:00:00Z\"", "\"2024-02-30T00:00:00Z\"", "\"2024-01-01\""}},
    {"{\"type\": \"string\", \"format\": \"uuid\"}", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567\""}},
    {"{\"allOf\": [{\"type\": \"integer\"}], \"title\": \"T\", \"description\": \"d\", \"default\": 1}", {"1"}, {"\"a\""}},
    {"true", {"1", "{}", "\"a\"", "[1,\"b\",{\"c\":null}]"}, {"", "{", "nul"}},
    {"{}", {"1", "null"}, {"x"}},
};

TEST(tables_of_texts) {
    for (size_t i = 0; i < COUNT_OF(tables); i++) {
        Grammar *grammar = schema_grammar(tables[i].schema);
        for (size_t k = 0; k < MOST_TEXTS && tables[i].yes[k]; k++) check_text_of(tables[i].schema, grammar, tables[i].yes[k], true);
        for (size_t k = 0; k < MOST_TEXTS && tables[i].no[k]; k++) check_text_of(tables[i].schema, grammar, tables[i].no[k], false);
        grammar_free(grammar);
    }
}

static const struct {
    const char *schema, *said[2];
} refused[] = {
    {"{\"not\": {}}", {"#'", "'not' is not supported"}},
    {"{\"properties\": {\"a\": {\"type\": \"array\", \"uniqueItems\": true}}}", {"#/properties/a'", "'uniqueItems'"}},
    {"{\"type\": \"number\", \"multipleOf\": 3}", {"multipleOf", "not supported"}},
    {"{\"oneOf\": [{}, {}]}", {"'oneOf' of several", ""}},
    {"{\"oneOf\": [{\"type\": \"number\"}, {\"type\": \"integer\"}]}", {"'oneOf' of several", ""}},
    {"{\"oneOf\": [{\"type\": \"object\", \"properties\": {\"a\": {\"const\": 1}}}, {\"type\": \"object\", \"properties\": {\"a\": {\"const\": 2}}}]}",
     {"'oneOf' of several", ""}},
    {"{\"anyOf\": [{\"type\": \"string\"}], \"minLength\": 3}", {"'minLength' next to 'anyOf'", ""}},
    {"{\"enum\": [1], \"minimum\": 3}", {"'minimum' next to 'enum'", ""}},
    {"{\"type\": \"strin\"}", {"unknown type 'strin'", ""}},
    {"{\"type\": \"string\", \"pattern\": \"(a\"}", {"')' is missing", "#'"}},
    {"{\"type\": \"string\", \"pattern\": \"a(?=b)\"}", {"lookahead", ""}},
    {"{\"type\": \"string\", \"pattern\": \"(a)\\\\1\"}", {"references to groups", ""}},
    {"{\"type\": \"string\", \"pattern\": \"\\\\bword\"}", {"word boundary", ""}},
    {"{\"type\": \"string\", \"pattern\": \"a$b\"}", {"^ and $", ""}},
    {"{\"type\": \"string\", \"pattern\": \"a\", \"maxLength\": 4}", {"'pattern' next to", ""}},
    {"{\"type\": \"string\", \"format\": \"iri\"}", {"format 'iri'", ""}},
    {"{\"type\": \"string\", \"maxLength\": 300000}", {"too large", "262144 steps"}},
    {"{\"type\": \"string\", \"pattern\": \"((a{1000}){1000}){1000}\"}", {"too large", ""}},
    {"{\"type\": \"string\", \"minLength\": 3, \"maxLength\": 2}", {"'maxLength' is less", ""}},
    {"{\"type\": \"string\", \"minLength\": -1}", {"'minLength' must be", ""}},
    {"{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 2}", {"no text fits", ""}},
    {"{\"type\": \"integer\", \"exclusiveMinimum\": 3, \"exclusiveMaximum\": 4}", {"no text fits", ""}},
    {"{\"type\": \"number\", \"minimum\": 1e30}", {"18 digits before the point", ""}},
    {"{\"type\": \"number\", \"minimum\": 1e-30}", {"15 digits after the point", ""}},
    {"{\"type\": \"array\", \"items\": {\"enum\": []}, \"minItems\": 1}", {"no text fits", ""}},
    {"{\"type\": \"object\", \"required\": [\"a\"], \"properties\": {}}", {"'a' is required", ""}},
    {"{\"$ref\": \"#/$defs/a\"}", {"not in the schema", ""}},
    {"{\"$ref\": \"http://x/y\"}", {"not in the schema", ""}},
    {"{\"$ref\": \"#\"}", {"leads back to itself", ""}},
    {"{\"$defs\": {\"a\": {\"anyOf\": [{\"$ref\": \"#/$defs/b\"}, {\"type\": \"null\"}]}, \"b\": {\"$ref\": \"#/$defs/a\"}}, \"$ref\": \"#/$defs/a\"}",
     {"leads back to itself", ""}},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#\"}}, \"required\": [\"a\"]}", {"no text fits", ""}},
    {"false", {"no text fits", ""}},
    {"3", {"must be an object", ""}},
};

TEST(what_is_not_supported_is_named) {
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        json_t *schema = parse_json(refused[i].schema);
        Grammar *grammar;
        if (grammar_json_schema(schema, &grammar) != ST_INPUT) fail_msg("%s is not refused", refused[i].schema);
        assert_null(grammar);
        check_text(refused[i].said[0]);
        check_text(refused[i].said[1]);
        json_decref(schema);
    }
}

TEST(deep_schemas_are_refused) {
    Str text = {0};
    for (int i = 0; i < 100; i++) str_append(&text, "{\"type\": \"array\", \"items\": ");
    str_append(&text, "true");
    for (int i = 0; i < 100; i++) str_append(&text, "}");
    json_t *schema = parse_json(str_text(&text));
    Grammar *grammar;
    check_status(grammar_json_schema(schema, &grammar), ST_INPUT);
    check_text("more than 64 deep");
    json_decref(schema);
    str_clear(&text);
    for (int i = 0; i < 100; i++) str_append(&text, "(");
    check_status(grammar_regex(str_text(&text), text.len, &grammar), ST_INPUT);
    check_text("too many groups");
    str_release(&text);
}

/* Nesting has an end, and before it no value is begun that could not end. */
TEST(depth_is_bounded) {
    static const char *const schemas[] = {
        "{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#\"}}, \"additionalProperties\": false}",
        "{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"array\", \"items\": {\"$ref\": \"#\"}, \"minItems\": 1}]}"};
    static const char *const opens[] = {"{\"a\":", "["}, *const closes[] = {"}", "]"}, *const ends[] = {"{}", "1"};
    for (size_t i = 0; i < COUNT_OF(schemas); i++) {
        Grammar *grammar = schema_grammar(schemas[i]);
        for (int depth = 60; depth < 70; depth++) {
            Str text = {0};
            for (int k = 0; k < depth; k++) str_append(&text, opens[i]);
            str_append(&text, ends[i]);
            for (int k = 0; k < depth; k++) str_append(&text, closes[i]);
            assert_int_equal(grammar_accepts(grammar, text.data, text.len), depth <= GRAMMAR_DEPTH);
            str_release(&text);
        }
        grammar_free(grammar);
    }
}

/* ---- expressions ---- */

static const struct {
    const char *pattern, *yes[6], *no[6];
} patterns[] = {
    {"", {""}, {"a"}},
    {"abc", {"abc"}, {"ab", "abcd", "xabc"}},
    {"^a*b+c?$", {"b", "aabbc"}, {"", "a", "ac"}},
    {"(?:ab|c)*", {"", "abcab"}, {"a", "ba"}},
    {"(a*)*b", {"b", "aaab"}, {"a", "c"}},
    {"(?<year>\\d{4})-\\d\\d", {"2024-01"}, {"24-01", "2024-1"}},
    {"[^\\d\\s]", {"a", "\xC3\xA9", "\xF0\x9F\x99\x82"}, {"1", " ", "", "ab", "\xC3"}},
    {"[\\w.-]+", {"a_B.9-"}, {"a b", "\xC3\xA9"}},
    {"[a\\-z\\]]", {"a", "-", "z", "]"}, {"b"}},
    {"[\\u00e9-\\u{1F642}]x", {"\xC3\xA9x", "\xE2\x82\xACx", "\xF0\x9F\x99\x82x"}, {"ax", "\xF0\x9F\x99\x83x"}},
    {"\\ud83d\\ude42", {"\xF0\x9F\x99\x82"}, {"\xF0\x9F\x99\x83"}},
    {".{2}", {"ab", "\xC3\xA9\xE2\x82\xAC"}, {"a", "a\n", "abc"}},
    {"a{2}|b{1,}|c{0,2}", {"aa", "bbbb", "", "cc"}, {"a", "ccc"}},
    {"a{,2}", {"a{,2}"}, {"aa"}},
    {"a+?b*?", {"a", "aab"}, {"b"}},
    {"[]|a", {"a"}, {""}},
    {"[^]", {"a", "\n"}, {""}},
    {"\\x41\\t\\.\\/", {"A\t./"}, {"A\tx/"}},
};

TEST(tables_of_patterns) {
    for (size_t i = 0; i < COUNT_OF(patterns); i++) {
        Grammar *grammar;
        check_ok(grammar_regex(patterns[i].pattern, strlen(patterns[i].pattern), &grammar));
        for (size_t k = 0; k < 6 && patterns[i].yes[k]; k++) check_text_of(patterns[i].pattern, grammar, patterns[i].yes[k], true);
        for (size_t k = 0; k < 6 && patterns[i].no[k]; k++) check_text_of(patterns[i].pattern, grammar, patterns[i].no[k], false);
        grammar_free(grammar);
    }
    static const char *const wrong[] = {"(",  ")",     "a)",  "[a",    "*a",    "a**",  "a{3}{2}", "a{3,2}",
                                        "\\", "[b-a]", "\\q", "\\u12", "(?i)a", "\xFF", "(^a)b",   "\\u{110000}"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        Grammar *grammar;
        if (grammar_regex(wrong[i], strlen(wrong[i]), &grammar) != ST_INPUT) fail_msg("'%s' is not refused", wrong[i]);
        check_text("byte");
    }
}

/* Each character of a class of random ranges, and no other one. */
TEST(classes_of_characters) {
    for (uint64_t round = 0; round < 20; round++) {
        RngKey key = rng_key(7, RNG_TEST, round);
        CharSet set = {0};
        Builder b;
        Grammar *grammar;
        int32_t bounds[6];
        for (uint64_t i = 0; i < 3; i++) {
            static const uint32_t widths[] = {0x80, 0x900, 0x11000, LAST_CODE_POINT};
            uint32_t width = widths[rng_below(key, 10 + i, 4)];
            bounds[2 * i] = (int32_t)rng_below(key, 2 * i, width);
            bounds[2 * i + 1] = (int32_t)MIN(bounds[2 * i] + (int64_t)rng_below(key, 2 * i + 1, width / 2 + 1), LAST_CODE_POINT);
            check_ok(charset_add(&set, (uint32_t)bounds[2 * i], (uint32_t)bounds[2 * i + 1]));
        }
        check_ok(builder_open(&b, "class"));
        int32_t end = build_return(&b);
        check_ok(builder_finish(&b, build_charset(&b, &set, false, end), &grammar));
        for (uint32_t c = 0; c <= LAST_CODE_POINT; c += c < 0x1000 ? 1 : c % 13 + 50) {
            char bytes[4];
            bool within = false;
            if (c >= 0xD800 && c <= 0xDFFF) continue;
            for (int i = 0; i < 3; i++) within |= (int64_t)c >= bounds[2 * i] && (int64_t)c <= bounds[2 * i + 1];
            if (c % 7 == round % 7 && grammar_accepts(grammar, bytes, utf8_encode(c, bytes)) != within) fail_msg("character %x", c);
        }
        for (int i = 0; i < 6; i++) {
            char bytes[4];
            if (bounds[i] < 0xD800 || bounds[i] > 0xDFFF) assert_true(grammar_accepts(grammar, bytes, utf8_encode((uint32_t)bounds[i], bytes)));
        }
        charset_release(&set);
        grammar_free(grammar);
    }
}

/* All integers near random bounds, against arithmetic. */
TEST(bounds_of_integers) {
    for (uint64_t round = 0; round < 60; round++) {
        RngKey key = rng_key(8, RNG_TEST, round);
        int64_t low = (int64_t)rng_below(key, 0, 2400) - 1200, high = low + (int64_t)rng_below(key, 1, round % 2 ? 30 : 1500);
        char text[100];
        snprintf(text, sizeof text, "{\"type\": \"integer\", \"minimum\": %lld, \"maximum\": %lld}", (long long)low, (long long)high);
        Grammar *grammar = schema_grammar(text);
        for (int64_t x = -1300; x < 2800; x += 1 + (x % 5 == 0)) {
            char digits[32];
            int n = snprintf(digits, sizeof digits, "%lld", (long long)x);
            if (grammar_accepts(grammar, digits, (size_t)n) != (x >= low && x <= high)) fail_msg("%s: %s", text, digits);
        }
        grammar_free(grammar);
    }
}

TEST(bounds_of_numbers) {
    for (uint64_t round = 0; round < 40; round++) {
        RngKey key = rng_key(9, RNG_TEST, round);
        double low = ((double)rng_below(key, 0, 6000) - 3000) / 100, high = low + (double)rng_below(key, 1, 2000) / 100;
        bool open = round % 2;
        char text[120];
        snprintf(text, sizeof text, "{\"type\": \"number\", \"%s\": %.2f, \"%s\": %.2f}", open ? "exclusiveMinimum" : "minimum", low,
                 open ? "exclusiveMaximum" : "maximum", high);
        if (open && high - low < 0.005) continue;
        Grammar *grammar = schema_grammar(text);
        for (int x = -3500; x < 5500; x += 3) {
            char digits[32];
            double value = x / 100.0 + (x % 2 ? 0.001 : 0);
            int n = snprintf(digits, sizeof digits, x % 2 ? "%.3f" : "%.2f", value);
            value = strtod(digits, NULL);
            low = strtod(strchr(text + 20, ':') + 1, NULL);
            high = strtod(strrchr(text, ':') + 1, NULL);
            bool within = open ? value > low && value < high : value >= low && value <= high;
            if (strcmp(digits, "-0.00") == 0) continue;
            if (grammar_accepts(grammar, digits, (size_t)n) != within) fail_msg("%s: %s", text, digits);
        }
        grammar_free(grammar);
    }
}

/* ---- tokens ---- */

static Tokenizer *tokenizer;
static TokenBytes *tokens;
static const char *const special[] = {"<|end|>", "<|mark|>"};

static int set_up(void **state) {
    (void)state;
    static const char text[] =
        "{\"name\": \"Ada\", \"age\": 36, \"tags\": [\"a\", \"b\"], \"ok\": true, \"none\": null}\n{\n  \"x\": -1.5e3,\n  \"caf\xC3\xA9\": \"\xE2\x82\xAC \xF0\x9F\x99\x82\"\n}"
        " \"}]}, {\"a\":{\"b\":[1,2,3]}} true false null \"\\u00e9\\n\"";
    char dir[256], path[300];
    BpeTrainer *trainer;
    BpeTrained trained;
    check_ok(bpe_trainer_new(420, special, COUNT_OF(special), &trainer));
    for (int i = 0; i < 4; i++) check_ok(bpe_trainer_add(trainer, text, strlen(text)));
    check_ok(bpe_trainer_finish(trainer, &trained));
    temp_dir_make(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    check_ok(file_write_all(path, str_text(&trained.json), trained.json.len));
    check_ok(tokenizer_load(dir, &tokenizer));
    check_ok(token_bytes_new(tokenizer, &tokens));
    temp_dir_remove(dir);
    str_release(&trained.json);
    bpe_trainer_free(trainer);
    return 0;
}

static int clean_up(void **state) {
    (void)state;
    token_bytes_free(tokens);
    tokenizer_free(tokenizer);
    return 0;
}

static bool mask_has(const TokenMask *mask, int32_t id) { return mask->allowed[id / 64] >> id % 64 & 1; }

/* A mask has exactly the tokens whose bytes can go on: those after which the grammar accepts some text. Tried here one by one. */
static void check_mask(const Grammar *grammar, const Str *text, const TokenMask *mask) {
    for (int32_t id = 0; id < tokens->vocab; id++) {
        Automaton a;
        int32_t at = STATE_FIRST, place = tokens->places[id];
        check_ok(automaton_open(&a, grammar));
        for (size_t i = 0; i < text->len; i++) check_ok(automaton_step(&a, at, (uint8_t)text->data[i], &at));
        for (uint32_t k = place < 0 ? 0 : tokens->begins[place]; place >= 0 && k < tokens->begins[place + 1]; k++)
            check_ok(automaton_step(&a, at, tokens->bytes[k], &at));
        bool wanted = place >= 0 && at != STATE_DEAD;
        if (mask_has(mask, id) != wanted) fail_msg("after '%s' token %d, '%s': %d", str_text(text), id, tokenizer_token(tokenizer, id), !wanted);
        automaton_release(&a);
    }
}

/* A random text, token by token. After some tokens those that end something are preferred. False: it did not end. */
static bool random_text(Constraint *constraint, const Grammar *grammar, RngKey key, Ids *ids) {
    enum { MOST = 300, SOON = 30, TRIES = 400 };
    ConstraintState state = {0};
    Str text = {0};
    bool ended = false;
    uint64_t draw = 0;
    while (ids->n < MOST && !ended) {
        TokenMask mask;
        check_ok(constraint_mask(constraint, &state, ids->data, ids->n, &mask));
        if (grammar) check_mask(grammar, &text, &mask);
        ended = mask.must_end || (mask.may_end && rng_below(key, draw++, 4) == 0);
        int32_t chosen = -1;
        for (int i = 0; i < TRIES && !ended; i++) {
            int32_t id = (int32_t)rng_below(key, draw++, (uint64_t)tokens->vocab);
            if (!mask_has(&mask, id)) continue;
            chosen = id;
            uint8_t first = tokens->bytes[tokens->begins[tokens->places[id]]];
            if (ids->n < SOON || strchr("\"}]", first)) break;
        }
        for (int32_t id = 0; chosen < 0 && !ended; id++)
            if (mask_has(&mask, id)) chosen = id;
        if (ended) break;
        ids_push(ids, chosen);
        tokenizer_token_bytes(tokenizer, chosen, &text);
    }
    str_release(&text);
    return ended;
}

/* ---- random schemas ---- */

static void random_schema(RngKey key, uint64_t *draw, int depth, Str *out);

static void random_object(RngKey key, uint64_t *draw, int depth, Str *out) {
    static const char *const names[] = {"name", "n", "na", "caf\xC3\xA9", "x y", "q\\\"t"};
    uint64_t n = rng_below(key, (*draw)++, 4);
    str_append(out, "{\"type\": \"object\", \"properties\": {");
    Str required = {0};
    for (uint64_t i = 0; i < n; i++) {
        const char *name = names[(i + *draw % 2) % COUNT_OF(names)];
        str_printf(out, "%s\"%s%d\": ", i ? ", " : "", name, (int)i);
        random_schema(key, draw, depth - 1, out);
        if (rng_below(key, (*draw)++, 2)) str_printf(&required, "%s\"%s%d\"", required.len ? ", " : "", name, (int)i);
    }
    str_printf(out, "}, \"required\": [%s]", str_text(&required));
    str_release(&required);
    uint64_t further = rng_below(key, (*draw)++, 3);
    if (further > 0) str_append(out, ", \"additionalProperties\": ");
    if (further == 1) str_append(out, "false");
    if (further == 2) random_schema(key, draw, 0, out);
    str_append(out, "}");
}

static void random_schema(RngKey key, uint64_t *draw, int depth, Str *out) {
    uint64_t a = rng_below(key, (*draw)++, 40), b = a + rng_below(key, (*draw)++, 60);
    switch (rng_below(key, (*draw)++, depth > 0 ? 12 : 8)) {
    case 0: str_append(out, "{\"type\": \"string\"}"); break;
    case 1: str_printf(out, "{\"type\": \"string\", \"minLength\": %d, \"maxLength\": %d}", (int)(a % 4), (int)(a % 4 + b % 4)); break;
    case 2: str_append(out, "{\"type\": \"string\", \"pattern\": \"^[a-c\xC3\xA9]+(-\\\\d{1,3})?$\"}"); break;
    case 3: str_printf(out, "{\"type\": \"integer\", \"minimum\": %d, \"maximum\": %d}", (int)a - 20, (int)b - 20); break;
    case 4: str_printf(out, "{\"type\": \"number\", \"minimum\": %g, \"exclusiveMaximum\": %g}", ((double)a - 20) / 8, ((double)b - 19) / 8); break;
    case 5: str_append(out, "{\"enum\": [\"red\", 3, null, [1, 2], {\"a\": \"\xE2\x82\xAC\"}]}"); break;
    case 6: str_append(out, "{\"type\": [\"boolean\", \"null\", \"number\"]}"); break;
    case 7: str_append(out, "{\"const\": \"yes\\n\"}"); break;
    case 8:
        str_append(out, "{\"type\": \"array\", \"items\": ");
        random_schema(key, draw, depth - 1, out);
        str_printf(out, ", \"minItems\": %d, \"maxItems\": %d}", (int)(a % 3), (int)(a % 3 + b % 3));
        break;
    case 9:
        str_append(out, "{\"anyOf\": [");
        random_schema(key, draw, depth - 1, out);
        str_append(out, ", ");
        random_schema(key, draw, depth - 1, out);
        str_append(out, "]}");
        break;
    default: random_object(key, draw, depth, out); break;
    }
}

TEST(random_schemas_are_followed) {
    const uint64_t rounds = long_tests() ? 2000 : ALL_OR_FEW(150, 30);
    size_t n_ended = 0, n_texts = 0;
    for (uint64_t round = 0; round < rounds; round++) {
        RngKey key = rng_key(11, RNG_TEST, round);
        uint64_t draw = 0;
        Str text = {0};
        random_schema(key, &draw, 3, &text);
        json_t *schema = parse_json(str_text(&text));
        Grammar *grammar;
        Constraint *constraint;
        check_ok(schema_check(schema, "the schema"));
        if (grammar_json_schema(schema, &grammar) != ST_OK) fail_msg("%s: %s", str_text(&text), status_text());
        check_ok(constraint_new(grammar, tokens, &constraint));
        for (uint64_t k = 0; k < 4; k++) {
            Ids ids = {0};
            Str said = {0};
            bool ended = random_text(constraint, NULL, rng_key(12, RNG_TEST, 4 * round + k), &ids);
            check_ok(tokenizer_decode(tokenizer, ids.data, ids.n, false, &said));
            json_t *value = ended ? json_loads(str_text(&said), JSON_DECODE_ANY, NULL) : NULL;
            if (ended && (!value || schema_fits(schema, value) != SCHEMA_FITS)) fail_msg("%s: '%s'", str_text(&text), str_text(&said));
            if (ended) assert_true(grammar_accepts(grammar, str_text(&said), said.len));
            n_ended += ended;
            n_texts++;
            json_decref(value);
            str_release(&said);
            ids_release(&ids);
        }
        constraint_free(constraint);
        grammar_free(grammar);
        json_decref(schema);
        str_release(&text);
    }
    assert_true(n_ended > n_texts / 2);
}

TEST(masks_have_all_tokens_that_fit) {
    static const char *const schemas[] = {
        "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 3}, \"tags\": {\"type\": \"array\", \"items\": {\"enum\": [\"a\", \"b\"]}}}, \"required\": [\"name\"]}",
        "{\"type\": \"number\"}"};
    for (size_t i = 0; i < COUNT_OF(schemas); i++) {
        Grammar *grammar = schema_grammar(schemas[i]);
        Constraint *constraint;
        Ids ids = {0};
        check_ok(constraint_new(grammar, tokens, &constraint));
        (void)random_text(constraint, grammar, rng_key(13, RNG_TEST, i), &ids);
        assert_true(ids.n > 0);
        ids_release(&ids);
        constraint_free(constraint);
        grammar_free(grammar);
    }
}

/* Special tokens are allowed where they are named, and nowhere else. */
TEST(special_tokens_are_named) {
    Builder b;
    Grammar *grammar;
    Constraint *constraint;
    TokenMask mask;
    check_ok(builder_open(&b, "test"));
    int32_t end = build_return(&b);
    CharRange any = {0, LAST_CODE_POINT};
    int32_t text = build_charset(&b, &(CharSet){&any, 1, 0}, false, end);
    check_ok(builder_finish(&b, build_special(&b, "<|mark|>", 8, text), &grammar));
    check_ok(constraint_new(grammar, tokens, &constraint));
    int32_t mark = tokenizer_id(tokenizer, "<|mark|>"), stop = tokenizer_id(tokenizer, "<|end|>"), sign = tokenizer_id(tokenizer, "<");
    ConstraintState place = {0};
    check_ok(constraint_mask(constraint, &place, NULL, 0, &mask));
    assert_true(mask_has(&mask, mark) && !mask_has(&mask, stop) && mask_has(&mask, sign) && !mask.may_end);
    int32_t byte = tokenizer_id(tokenizer, "\xC3\xBF"); /* how the vocabulary writes the byte FF */
    assert_true(byte >= 0 && !mask_has(&mask, byte));
    check_ok(constraint_mask(constraint, &place, &mark, 1, &mask));
    assert_true(!mask_has(&mask, mark) && !mask_has(&mask, stop) && mask_has(&mask, sign));
    check_status(constraint_mask(constraint, &place, (int32_t[]){mark, stop}, 2, &mask), ST_INPUT);
    check_text("token 2 of the text");
    check_ok(constraint_mask(constraint, &place, (int32_t[]){mark, sign}, 2, &mask));
    assert_true(mask.may_end && mask.must_end);
    constraint_free(constraint);
    grammar_free(grammar);
}

/* Two texts that take turns, and states that were forgotten, change nothing. */
TEST(texts_do_not_depend_on_others) {
    Grammar *grammar;
    Constraint *shared, *alone;
    TokenMask mask;
    check_ok(grammar_json_object(&grammar));
    check_ok(constraint_new(grammar, tokens, &shared));
    check_ok(constraint_new(grammar, tokens, &alone));
    Ids ids[2] = {{0}, {0}};
    ConstraintState states[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) (void)random_text(shared, NULL, rng_key(14, RNG_TEST, (uint64_t)i), &ids[i]);
    uint64_t *kept = calloc((size_t)tokens->vocab / 64 + 1, sizeof *kept);
    size_t bytes = ((size_t)tokens->vocab + 63) / 64 * 8;
    for (size_t n = 0; n < MIN(ids[0].n, ids[1].n); n += 3)
        for (int i = 0; i < 2; i++) {
            check_ok(constraint_mask(shared, &states[i], ids[i].data, n, &mask));
            memcpy(kept, mask.allowed, bytes);
            check_ok(constraint_mask(alone, &(ConstraintState){0}, ids[i].data, n, &mask));
            assert_memory_equal(kept, mask.allowed, bytes);
        }
    free(kept);
    for (int i = 0; i < 2; i++) ids_release(&ids[i]);
    constraint_free(shared);
    constraint_free(alone);
    grammar_free(grammar);
}

/* Many alternatives that begin alike are refused with their limit, and so is a pattern whose places multiply. */
TEST(large_grammars_end) {
    Str text = {0};
    Grammar *grammar;
    Constraint *constraint;
    str_append(&text, "{\"enum\": [0");
    for (int i = 0; i < 17000; i++) str_printf(&text, ",\"%d\"", i);
    str_append(&text, "]}");
    grammar = schema_grammar(str_text(&text));
    check_status(constraint_new(grammar, tokens, &constraint), ST_INPUT);
    check_text("more than 16384 places");
    grammar_free(grammar);
    str_release(&text);
    static const char pattern[] = "(.{0,20}a){20}";
    check_ok(grammar_regex(pattern, sizeof pattern - 1, &grammar));
    check_ok(constraint_new(grammar, tokens, &constraint));
    Ids ids = {0};
    ConstraintState place = {0};
    TokenMask mask;
    Status status = ST_OK;
    for (int i = 0; i < 6 && status == ST_OK; i++) {
        ids_push(&ids, tokenizer_id(tokenizer, "a"));
        status = constraint_mask(constraint, &place, ids.data, ids.n, &mask);
    }
    check_ok(status);
    assert_true(mask_has(&mask, tokenizer_id(tokenizer, "a")) && !mask.may_end);
    ids_release(&ids);
    constraint_free(constraint);
    grammar_free(grammar);
}

TEST(a_tokenizer_of_words_is_refused) {
    static const char text[] =
        "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"[UNK]\": 0, \"a\": 1}, \"unk_token\": \"[UNK]\"}, \"decoder\": {\"type\": \"WordPiece\"}}";
    char dir[256], path[300];
    Tokenizer *words;
    TokenBytes *bytes;
    temp_dir_make(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    check_ok(file_write_all(path, text, strlen(text)));
    check_ok(tokenizer_load(dir, &words));
    check_status(token_bytes_new(words, &bytes), ST_INPUT);
    check_text("WordPiece");
    temp_dir_remove(dir);
    tokenizer_free(words);
}

/* ---- grammars in llama.cpp's form ---- */

static const char sums[] =
    "# sums\nroot ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\n\nterm ::= num |\n  \"(\" ws expr \")\" ws\n"
    "num ::= [0-9]{1,3} ws # at most three\nws ::= [ \\t]*\n";
static const struct {
    const char *gbnf, *yes[5], *no[5];
} gbnfs[] = {
    {sums, {"1+2=3\n", "(1 +23 )*4=20\n1=1\n"}, {"1+2=3", "1+=3\n", "(1=1\n", "1234=1\n"}},
    {"root ::= item (\",\" item){0,2}\nitem ::= [a-c]+ | \"\\x41\" | \"\\u00e9\"", {"a", "abc,A,\xC3\xA9"}, {"", "a,", "d", "a,a,a,a"}},
    {"root ::= [^\\]\\\"]? .{2,} \"\\U0001F642\"?", {"x--", "\xC3\xA9\n\xF0\x9F\x99\x82"}, {"x", ""}},
    {"root ::= a-b*\na-b ::= (\"x\"\n | \"y\")", {"", "xyx"}, {"a", "x-"}},
};

TEST(grammars_of_rules) {
    Grammar *grammar;
    Str list = {0};
    for (size_t i = 0; i < COUNT_OF(gbnfs); i++) {
        check_ok(grammar_gbnf(gbnfs[i].gbnf, strlen(gbnfs[i].gbnf), &grammar));
        for (size_t k = 0; k < 5 && gbnfs[i].yes[k]; k++) check_text_of(gbnfs[i].gbnf, grammar, gbnfs[i].yes[k], true);
        for (size_t k = 0; k < 5 && gbnfs[i].no[k]; k++) check_text_of(gbnfs[i].gbnf, grammar, gbnfs[i].no[k], false);
        grammar_free(grammar);
    }
    static const char lists[] = "root ::= \"x\" | \"x,\" root";
    check_ok(grammar_gbnf(lists, strlen(lists), &grammar));
    for (int i = 0; i < 500; i++) str_append(&list, i ? ",x" : "x");
    check_text_of(lists, grammar, str_text(&list), true); /* longer than rules may be deep */
    grammar_free(grammar);
    str_release(&list);
    static const char *const wrong[][2] = {
        {"root ::= \"a", "line 1, byte 12: '\"' is missing"},
        {"a ::= \"b\"", "the rule 'root' is missing"},
        {"root ::= b", "the rule 'b' is missing"},
        {"root ::= root \"a\" | \"b\"", "leads back to itself"},
        {"root = \"a\"", "'::=' is missing"},
        {"root ::= \"a\")", "')' without '('"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2, byte 5: the rule has been given before"},
        {"root ::= \"a\"{3,2}", "end is before its beginning"},
        {"root ::= (\"a\"", "')' is missing"},
        {"root ::= [z-a]", "end is before"},
        {"root ::= \"\\q\"", "an unknown escape"},
        {"root ::= \"\xFF\"", "is not UTF-8"},
        {"root ::= (\"a\"{1000}){1000}", "too large"},
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        Status status = grammar_gbnf(wrong[i][0], strlen(wrong[i][0]), &grammar);
        if (status != ST_INPUT) fail_msg("'%s' is status %d", wrong[i][0], (int)status);
        check_text(wrong[i][1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_of_texts),
        cmocka_unit_test(what_is_not_supported_is_named),
        cmocka_unit_test(deep_schemas_are_refused),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(tables_of_patterns),
        cmocka_unit_test(classes_of_characters),
        cmocka_unit_test(bounds_of_integers),
        cmocka_unit_test(bounds_of_numbers),
        cmocka_unit_test(random_schemas_are_followed),
        cmocka_unit_test(masks_have_all_tokens_that_fit),
        cmocka_unit_test(special_tokens_are_named),
        cmocka_unit_test(texts_do_not_depend_on_others),
        cmocka_unit_test(large_grammars_end),
        cmocka_unit_test(a_tokenizer_of_words_is_refused),
        cmocka_unit_test(grammars_of_rules),
    };
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
