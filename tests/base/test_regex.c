/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions: what is found, what is not, and what would take too long to tell. */
#include "lib/base/regex.h"
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

static RegexResult look(const char *pattern, int options, const char *text, size_t len) {
    Regex *regex = regex_new(pattern, options, 1000000, NULL);
    assert_non_null(regex);
    RegexResult result = regex_find(regex, (Slice){text, len}, 0, 0, NULL);
    regex_free(regex);
    return result;
}

TEST(found_not_found_and_not_decided) {
    static const char many[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaad";
    static const struct {
        const char *pattern;
        int options;
        const char *text;
        RegexResult result;
    } cases[] = {
        {"b+", 0, "abbc", REGEX_FOUND},
        {"b+", REGEX_WHOLE, "abbc", REGEX_NONE},
        {"a|abbc", REGEX_WHOLE, "abbc", REGEX_FOUND},
        {"B", 0, "abc", REGEX_NONE},
        {"B", REGEX_ANY_CASE, "abc", REGEX_FOUND},
        {"^\\w$", 0, "\xC3\xA4", REGEX_NONE},
        {"^\\w$", REGEX_UNICODE, "\xC3\xA4", REGEX_FOUND},
        {"a", REGEX_UNICODE, "\xFF", REGEX_UNDECIDED},
        {"^(a+)+[bc]$", REGEX_UNICODE, many, REGEX_UNDECIDED},
        {"^(a+)+[bc]$", REGEX_ONCE, many, REGEX_UNDECIDED},
        {"^(a+)+[bcd]$", REGEX_ONCE, many, REGEX_FOUND},
        {"^$", 0, NULL, REGEX_FOUND},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        RegexResult result = look(cases[i].pattern, cases[i].options, cases[i].text, cases[i].text ? strlen(cases[i].text) : 0);
        if (result != cases[i].result) fail_msg("case %zu, '%s': %d, expected %d", i, cases[i].pattern, (int)result, (int)cases[i].result);
    }
}

/* The compiled form's own stack is too small for it. */
TEST(a_long_text_is_decided) {
    enum { N = 100000 };
    char *text = malloc(N);
    memset(text, 'a', N);
    assert_int_equal(look("^(?:(a)|b)*$", 0, text, N), REGEX_FOUND);
    text[N - 1] = 'c';
    assert_int_equal(look("^(?:(a)|b)*$", 0, text, N), REGEX_NONE);
    free(text);
}

TEST(where_it_is_and_what_is_wrong) {
    RegexMatch match;
    RegexFault fault;
    Slice text = {"x=3 x=42", 8};
    Regex *regex = regex_new("x=(\\d+)|(y)", 0, 0, &fault);
    assert_int_equal(regex_groups(regex), 2);
    assert_int_equal(regex_find(regex, text, 0, 1, &match), REGEX_FOUND);
    assert_true(match.begin == 0 && match.end == 3 && slice_is(match.group, "3"));
    assert_int_equal(regex_find(regex, text, match.end, 1, &match), REGEX_FOUND);
    assert_true(match.begin == 4 && match.end == 8 && slice_is(match.group, "42"));
    assert_int_equal(regex_find(regex, text, 0, 2, &match), REGEX_FOUND);
    assert_null(match.group.data);
    assert_int_equal(regex_find(regex, text, match.end + 5, 1, &match), REGEX_NONE);
    regex_free(regex);
    assert_null(regex_new("a(b", 0, 0, &fault));
    assert_int_equal(fault.at, 3);
    check_contains(fault.reason, "parenthesis");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(found_not_found_and_not_decided),
        cmocka_unit_test(a_long_text_is_decided),
        cmocka_unit_test(where_it_is_and_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
