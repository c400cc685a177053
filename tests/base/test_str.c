/* SPDX-License-Identifier: Apache-2.0 */
/* Text: strings that grow, numbers as short as they can be, UTF-8, words for people and shells. */
#include "lib/base/rng.h"
#include "lib/base/str.h"
#include "lib/base/visible.h"
#include "tests/support/check.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST(strings_grow) {
    Str str = {0};
    assert_string_equal(str_text(&str), "");
    str_append(&str, "ab");
    str_append_char(&str, 'c');
    str_append_n(&str, "def", 2);
    str_printf(&str, "-%03d", 7);
    assert_string_equal(str_text(&str), "abcde-007");
    assert_int_equal(str.len, 9);
    for (int i = 0; i < 1000; i++) str_append(&str, "0123456789");
    assert_int_equal(strlen(str_text(&str)), 10009);
    assert_false(str_reserve(&str, SIZE_MAX - 10));
    str_clear(&str);
    assert_string_equal(str_text(&str), "");
    str_release(&str);
    assert_true(slice_is((Slice){"abc", 2}, "ab") && !slice_is((Slice){"abc", 3}, "ab") && slice_is((Slice){NULL, 0}, ""));
    assert_true(text_starts_with("model.layers", "model.") && !text_starts_with("mo", "model"));
    assert_true(text_ends_with("a.gz", ".gz") && !text_ends_with("gz", ".gz"));
}

TEST(doubles_are_short_and_exact) {
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.1, "0.1"},
                 {1, "1"},
                 {-0.0, "-0"},
                 {2e-4, "0.0002"},
                 {1e300, "1e+300"},
                 {5e-324, "5e-324"},
                 {1.0 / 3, "0.3333333333333333"},
                 {DBL_MAX, "1.7976931348623157e+308"},
                 {0.1 + 0.2, "0.30000000000000004"}};
    Str str = {0};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        str_clear(&str);
        str_append_double(&str, cases[i].value);
        assert_string_equal(str_text(&str), cases[i].text);
    }
    for (uint64_t i = 0; i < 20000; i++) { /* any bits that make a number */
        uint64_t bits = rng_u64(rng_key(1, RNG_TEST, 0), i);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value)) continue;
        str_clear(&str);
        str_append_double(&str, value);
        assert_true(strtod(str_text(&str), NULL) == value);
    }
    str_release(&str);
}

TEST(utf8_is_strict) {
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        char bytes[4];
        size_t len = utf8_encode(c, bytes);
        uint32_t again = 0;
        if (utf8_decode(bytes, 4, &again) != len || again != c) fail_msg("U+%04X", (unsigned)c);
        for (size_t cut = 1; cut < len; cut++) {
            if (utf8_decode(bytes, cut, &again) != 0 || utf8_whole_prefix(bytes, cut) != 0) fail_msg("U+%04X cut to %zu", (unsigned)c, cut);
        }
        if (utf8_whole_prefix(bytes, len) != len) fail_msg("U+%04X whole", (unsigned)c);
    }
    static const char *const wrong[] = {"\x80",         "\xC0\x80",         "\xC1\xBF",         "\xE0\x80\x80",     "\xE0\x9F\xBF",
                                        "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF",
                                        "\xC3(",        "\xE2\x82("};
    uint32_t c;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_int_equal(utf8_decode(wrong[i], strlen(wrong[i]), &c), 0);
        assert_int_equal(utf8_whole_prefix(wrong[i], strlen(wrong[i])), strlen(wrong[i])); /* no byte more would mend it */
    }
    assert_int_equal(utf8_decode("", 0, &c), 0);
    assert_int_equal(utf8_whole_prefix("", 0), 0);
    assert_int_equal(utf8_whole_prefix("ab\xE2\x82", 4), 2);
    assert_int_equal(utf8_whole_prefix("\x80\x80\x80\x80", 4), 4);
    assert_int_equal(utf8_whole_prefix("a\xE0\x80", 3), 3);
}

TEST(json_strings_are_quoted) {
    Str str = {0};
    static const char text[] = "a\"\\\n\x01\x7f\xff\xe2\x80\xa8é\0z";
    str_append_json(&str, text, sizeof text - 1);
    assert_string_equal(str_text(&str), "\"a\\\"\\\\\\n\\u0001\\u007f\xEF\xBF\xBD\\u2028é\\u0000z\"");
    str_release(&str);
}

TEST(messages_find_words) {
    static const char *const keys[] = {"learning_rate", "max_steps", "rank", "alpha", "lora"};
    assert_string_equal(text_nearest("learning_rte", keys, COUNT_OF(keys)), "learning_rate");
    assert_string_equal(text_nearest("max_step", keys, COUNT_OF(keys)), "max_steps");
    assert_string_equal(text_nearest("rnak", keys, COUNT_OF(keys)), "rank");
    assert_null(text_nearest("temperature", keys, COUNT_OF(keys)));
    assert_null(text_nearest("", keys, COUNT_OF(keys)));
    static const char *const short_names[] = {"B", "A"};
    assert_null(text_nearest("x", short_names, 2));
    char out[32], longest[200];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_null(text_nearest(longest, keys, COUNT_OF(keys)));
    assert_string_equal(format_bytes(0, out), "0 B");
    assert_string_equal(format_bytes(1023, out), "1023 B");
    assert_string_equal(format_bytes(1.4 * 1024 * 1024 * 1024, out), "1.4 GiB");
    assert_string_equal(format_bytes(1048575, out), "1.0 MiB");
    static const struct {
        const char *text;
        size_t bytes;
    } sizes[] = {{"1", 1},
                 {"4GiB", (size_t)4 << 30},
                 {"1500 MB", 1500000000},
                 {"2.5G", (size_t)5 << 29},
                 {"10k", 10240},
                 {"3 tb", 3000000000000},
                 {"0.5B", 0},
                 {"0", 0},
                 {"-1GB", 0},
                 {"4 GiB!", 0},
                 {"GiB", 0},
                 {"", 0},
                 {"1e30", 0},
                 {"nan", 0}};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        size_t bytes = 0;
        bool is_size = bytes_from_text(sizes[i].text, &bytes);
        if (is_size != (sizes[i].bytes > 0) || bytes != sizes[i].bytes) fail_msg("'%s' is %zu bytes, not %zu", sizes[i].text, bytes, sizes[i].bytes);
    }
    assert_string_equal(format_seconds(0.25, out), "0.2 s");
    assert_string_equal(format_seconds(59.4, out), "59 s");
    assert_string_equal(format_seconds(200, out), "3 min 20 s");
    assert_string_equal(format_seconds(7260, out), "2 h 1 min");
    assert_string_equal(format_seconds((double)NAN, out), "a long time");
    assert_string_equal(plural(1), "");
    assert_true(*plural(0) == 's' && *plural(2) == 's' && *plural(-1) == 's');
}

TEST(a_shell_reads_back_the_word) {
    static const struct {
        const char *word, *quoted;
    } words[] = {
        {"runs/a-1_b.c", "runs/a-1_b.c"},
        {"train.betas=[0.9]", "'train.betas=[0.9]'"},
        {"a b", "'a b'"},
        {"it's", "'it'\\''s'"},
        {"", "''"},
        {"~/x", "'~/x'"},
        {"50%", "50%"},
        {"a\nb", "'a\nb'"},
    };
    Str str = {0};
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        str_clear(&str);
        str_append_shell(&str, "%s", words[i].word);
        assert_string_equal(str_text(&str), words[i].quoted);
    }
    str_release(&str);
}

TEST(numbers_are_for_people) {
    static const struct {
        double value;
        int digits;
        const char *text;
    } numbers[] = {
        {13310, 4, "13310"},   {13310.6, 4, "13311"}, {-13310, 4, "-13310"},        {1234567, 6, "1234567"}, {999.96, 4, "1000"},
        {0.25, 4, "0.25"},     {0, 4, "0"},           {1.0 / 3, 4, "0.3333"},       {1e-5, 4, "1e-5"},       {-2.5e-7, 4, "-2.5e-7"},
        {3e-123, 4, "3e-123"}, {1e15, 4, "1e15"},     {1.5e200, 4, "1.5e200"},      {123456.7, 6, "123457"}, {5e14, 4, "500000000000000"},
        {12.345, 3, "12.3"},   {1000, 3, "1000"},     {(double)INFINITY, 4, "inf"},
    };
    char out[32];
    for (size_t i = 0; i < COUNT_OF(numbers); i++) assert_string_equal(format_number(numbers[i].value, numbers[i].digits, out), numbers[i].text);
    assert_string_equal(NUMBER(13310), "13310");
}

TEST(what_would_steer_a_terminal_is_shown) {
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"plain \t text\n", "plain \t text\n"},
        {"\033]0;title\007", "^[]0;title^G"},
        {"a\r\177", "a^M^?"},
        {"\xC2\x9B"
         "2J",
         "\\u{9B}2J"},
        {"\x9B"
         "2J",
         "\\x{9B}2J"},
        {"\xE2\x80\xAEtxt.exe\xE2\x81\xA9", "\\u{202E}txt.exe\\u{2069}"},
        {"\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80 \xD7\x90\xE2\x80\x8F", "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80 \xD7\x90\xE2\x80\x8F"},
        {"\xE9 latin", "\xE9 latin"},
    };
    Str out = {0};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        str_clear(&out);
        visible_text(&out, cases[i].text);
        assert_string_equal(str_text(&out), cases[i].shown);
        Visible rest = {0};
        str_clear(&out);
        for (const char *c = cases[i].text; *c; c++) visible_append(&out, &rest, c, 1); /* as a model says them */
        visible_end(&out, &rest);
        assert_string_equal(str_text(&out), cases[i].shown);
        char line[64];
        snprintf(line, sizeof line, "%s", cases[i].text);
        text_keep_one_line(line, sizeof line);
        if (i > 0) assert_string_equal(line, cases[i].shown);
    }
    str_clear(&out);
    visible_text(&out, "cut \xC2");
    assert_string_equal(str_text(&out), "cut \\x{C2}");
    str_release(&out);
}

TEST(a_line_stays_within_its_room) {
    static const char text[] = "a\033\nb\xC2\x9B\xE2\x82\xAC"
                               "end";
    static const char whole[] = "a^[ b\\u{9B}\xE2\x82\xAC"
                                "end";
    for (size_t room = sizeof text; room < 32; room++) {
        char line[32 + 1];
        memset(line, '#', sizeof line);
        memcpy(line, text, sizeof text);
        text_keep_one_line(line, room);
        assert_true(strlen(line) < room);
        assert_true(strncmp(line, whole, strlen(line)) == 0);
        assert_int_equal(utf8_fault(line, strlen(line)), strlen(line));
        if (room >= sizeof whole) assert_string_equal(line, whole);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_grow),
        cmocka_unit_test(doubles_are_short_and_exact),
        cmocka_unit_test(utf8_is_strict),
        cmocka_unit_test(json_strings_are_quoted),
        cmocka_unit_test(numbers_are_for_people),
        cmocka_unit_test(messages_find_words),
        cmocka_unit_test(a_shell_reads_back_the_word),
        cmocka_unit_test(what_would_steer_a_terminal_is_shown),
        cmocka_unit_test(a_line_stays_within_its_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
