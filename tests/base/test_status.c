/* SPDX-License-Identifier: Apache-2.0 */
/* Failures keep their words, messages reach the sink; and failing tests, broken promises and broken bytes show. */
#include "lib/base/log.h"
#include "tests/support/check.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static Status forwards(Status inner) {
    TRY(inner);
    return status_fail(ST_CONFIG, "reached the end");
}

TEST(failures_keep_text_and_hint) {
    assert_int_equal(status_fail(ST_INPUT, "cannot read '%s': line %d", "a", 3), ST_INPUT);
    assert_string_equal(status_text(), "cannot read 'a': line 3");
    assert_string_equal(status_hint_text(), "");
    assert_int_equal(status_hint(ST_INPUT, "try %d", 4), ST_INPUT);
    assert_int_equal(status_prefix(ST_INPUT, "rows.jsonl"), ST_INPUT);
    assert_string_equal(status_text(), "rows.jsonl: cannot read 'a': line 3");
    assert_string_equal(status_hint_text(), "try 4");
    status_fail(ST_INPUT, "again: %s", status_text()); /* the old text as an argument */
    assert_string_equal(status_text(), "again: rows.jsonl: cannot read 'a': line 3");
    assert_string_equal(status_hint_text(), "");
    assert_int_equal(forwards(ST_NUMERIC), ST_NUMERIC);
    assert_int_equal(forwards(ST_OK), ST_CONFIG);
    assert_int_equal(status_errno(EROFS, "cannot write 'a'"), ST_RESOURCE); /* the disk refuses; a missing file is the user's fault */
    assert_int_equal(status_errno(ENOENT, "cannot open 'a'"), ST_INPUT);
    assert_int_equal(status_exit_code(ST_RESOURCE), 5);
    assert_int_equal(status_exit_code(ST_INTERRUPTED), 130);
    assert_string_equal(status_meaning(ST_OK), "ok");
    status_fail(ST_INPUT, "'%s'", "a\nb\033[31m\177\303\244");
    assert_string_equal(status_text(), "'a b^[[31m^?\303\244'");
    status_prefix(ST_INPUT, "c\033");
    assert_string_equal(status_text(), "c^[: 'a b^[[31m^?\303\244'");
}

static void break_a_promise(void) { ASSERT(test_folder[0] == '?', "%s", test_folder); }

TEST(always_fails) {
    double got[] = {1, 2}, want[] = {1, 2.5};
    check_close_f64("values", got, want, 2, 0.4, 0);
}

static void run_a_failing_group(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(always_fails)};
    _exit(cmocka_run_group_tests(tests, NULL, NULL));
}

TEST(asserts_abort_and_failing_tests_show) {
    int result = in_child(break_a_promise);
    assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT);
    result = in_child(run_a_failing_group);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 1);
}

static void status_note(void *context, LogLevel level, const char *text) { str_printf(context, "%d %s;", (int)level, text); }

TEST(messages_reach_the_sink) {
    Str str = {0};
    log_message(LOG_WARNING, "nobody listens");
    assert_false(log_is_enabled(LOG_WARNING));
    log_set_sink(status_note, &str, LOG_WARNING);
    log_message(LOG_INFO, "too fine");
    log_set_sink(status_note, &str, LOG_INFO);
    log_message(LOG_WARNING, "w%d", 1);
    log_message(LOG_INFO, "i");
    assert_string_equal(str_text(&str), "1 w1;2 i;");
    str_clear(&str);
    log_message(LOG_WARNING, "name \033]0;x\007 \xC2\x9B\xE2\x80\xAE");
    assert_string_equal(str_text(&str), "1 name ^[]0;x^G \\u{9B}\\u{202E};");
    log_set_sink(NULL, NULL, LOG_WARNING);
    str_clear(&str);
    log_set_record(status_note, &str);
    log_message(LOG_WARNING, "kept where nobody listens");
    log_message(LOG_INFO, "i");
    log_set_record(NULL, NULL);
    log_message(LOG_WARNING, "gone");
    assert_string_equal(str_text(&str), "1 kept where nobody listens;");
    str_release(&str);
}

static void tally(const uint8_t *bytes, size_t len, void *context) {
    uint64_t *sum = context;
    for (size_t i = 0; i < len; i++) *sum = *sum * 31 + bytes[i];
    *sum = *sum * 31 + len;
}

TEST(mutations_are_the_same_in_every_run) {
    uint64_t first = 0, second = 0, other = 0;
    check_mutations("{\"a\": 12}", 9, 500, tally, &first);
    check_mutations("{\"a\": 12}", 9, 500, tally, &second);
    check_mutations("{\"b\": 12}", 9, 500, tally, &other);
    assert_true(first == second && first != other);
    check_mutations("", 0, 20, tally, &other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failures_keep_text_and_hint),
        cmocka_unit_test(asserts_abort_and_failing_tests_show),
        cmocka_unit_test(messages_reach_the_sink),
        cmocka_unit_test(mutations_are_the_same_in_every_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
