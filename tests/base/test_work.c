/* SPDX-License-Identifier: Apache-2.0 */
/* Long work: when a line about it is due, and what is reported. */
#include "lib/base/work.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>

/* The seconds, in tenths, at which lines are due when work asks ten times a second for `seconds`. */
static size_t lines_of(ProgressTimer *pace, double from, int seconds, bool redraws, int *at, size_t cap) {
    size_t n = 0;
    for (int i = 0; i <= 10 * seconds; i++)
        if (progress_due(pace, from + 0.1 * i + 1e-6, redraws) && n < cap) at[n++] = i;
    return n;
}

TEST(without_a_terminal_lines_are_rare) {
    static const int expected[] = {20, 120, 220, 320, 420, 520, 1120, 1720, 2320};
    int at[32];
    ProgressTimer pace = {0};
    size_t n = lines_of(&pace, 1000, 290, false, at, COUNT_OF(at)); /* after 2 s, each 10 s, then each minute */
    assert_int_equal(n, COUNT_OF(expected));
    for (size_t i = 0; i < n; i++) assert_in_range(at[i], expected[i], expected[i] + 1);
}

TEST(a_terminal_is_live_after_two_seconds) {
    int at[64];
    ProgressTimer pace = {0};
    size_t n = lines_of(&pace, 5, 4, true, at, COUNT_OF(at));
    assert_in_range(at[0], 20, 21);
    assert_in_range(n, 10, 21);
    ProgressTimer steps = {.at_once = true}; /* of training */
    assert_true(progress_due(&steps, 7, false));
    assert_false(progress_due(&steps, 16.9, false));
    assert_true(progress_due(&steps, 17.1, false));
}

/* Ten files of a second each are ten seconds of work; what begins after a rest is new. */
TEST(short_work_adds_up) {
    ProgressTimer pace = {0};
    int due = 0;
    for (int file = 0; file < 10; file++) {
        for (int i = 0; i < 10; i++) due += progress_due(&pace, file + 0.1 * i, false);
        progress_ended(&pace);
    }
    assert_int_equal(due, 1);
    assert_false(progress_due(&pace, 30, false));
    assert_false(progress_due(&pace, 31.9, false)); /* one long piece of it is no rest */
    assert_true(progress_due(&pace, 32.1, false));
}

static void work_keep(void *context, const Work *work) {
    Str *text = context;
    str_printf(text, "%s %d/%d%s;", work->what ? work->what : "over", (int)work->done, (int)work->total, work->bytes ? " bytes" : "");
}

TEST(what_is_told) {
    Str text = {0};
    work_at("nobody hears", 1, 2);
    work_end("nobody hears");
    work_set_sink(work_keep, &text);
    work_end("never told");
    for (int i = 0; i < 100; i++) work_at("a", (uint64_t)i, 100); /* within a tenth of a second */
    work_end("a");
    work_at_bytes("b", 0, 5);
    work_end("b");
    assert_true(text_starts_with(str_text(&text), "a 0/100;"));
    check_contains(str_text(&text), "over 0/0;b 0/5 bytes;over 0/0;");
    str_clear(&text);
    work_pause_at("whole");
    work_at("part", 1, 2); /* neither this nor its end is reported */
    work_end("part");
    work_at("whole", 1, 4);
    work_end("part");
    work_end("whole");
    work_at("part", 2, 2);
    work_end("part");
    work_set_sink(NULL, NULL);
    assert_string_equal(str_text(&text), "whole 1/4;over 0/0;part 2/2;over 0/0;");
    str_release(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_terminal_lines_are_rare),
        cmocka_unit_test(a_terminal_is_live_after_two_seconds),
        cmocka_unit_test(short_work_adds_up),
        cmocka_unit_test(what_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
