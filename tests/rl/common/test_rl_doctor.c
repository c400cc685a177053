/* SPDX-License-Identifier: Apache-2.0 */
/* The doctor of reinforcement learning: each rule speaks where it should and is silent where runs are well. */
#include "rl/common/rl_doctor.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* `n` lines with a metric that goes from `from` to `to` in a straight line, and a reward that rises. Names the rules that spoke while it went, and
 * keeps the last thing that was said. */
typedef struct Stream {
    RlDoctor *doctor;
    Str said;
    RlWarning last;
    int times;
} Stream;

static void feed(Stream *stream, const char *metric, double from, double to, int n) {
    for (int i = 1; i <= n; i++) {
        double value = from + (to - from) * (i - 1) / MAX(n - 1, 1);
        RlWarning finding;
        if (strcmp(metric, "reward") != 0) assert_false(rl_doctor_add(stream->doctor, i, "reward", i, &finding));
        if (!rl_doctor_add(stream->doctor, i, metric, value, &finding)) continue;
        str_printf(&stream->said, "%s%s", stream->said.len ? " " : "", finding.rule);
        stream->last = finding;
        stream->times++;
    }
}

/* Of a run on text, or on an environment. */
static Stream rl_doctor_begin(bool text) {
    Stream stream = {.doctor = rl_doctor_new()};
    RlWarning finding;
    rl_doctor_add(stream.doctor, 0, text ? "eos_fraction" : "episode_length", (double)NAN, &finding);
    rl_doctor_add(stream.doctor, 0, "entropy", (double)NAN, &finding);
    if (text) rl_doctor_add(stream.doctor, 0, "groups_compared", (double)NAN, &finding);
    return stream;
}

static void rl_doctor_end(Stream *stream) {
    rl_doctor_free(stream->doctor);
    str_release(&stream->said);
}

TEST(each_rule_speaks_where_it_should) {
    static const struct {
        const char *metric;
        double from, to;
        int n;
        const char *rule, *text;
    } cases[] = {
        {"trained_tokens", 0, 0, 3, "untrained", "every completion was truncated"},
        {"trained_tokens", 0, 0, 2, "", ""},
        {"trained_tokens", 1, 1, 100, "", ""},
        {"entropy", 1.5, 0.0, 100, "entropy", "entropy has collapsed to 0.0"},
        {"entropy", 1.5, 0.4, 100, "", ""},
        {"entropy", 0.01, 0, 100, "", ""},
        {"entropy", -0.5, -3, 100, "", ""},
        {"zero_std_fraction", 0.75, 0.75, 10, "zero_variance", "in 75 % of the groups"},
        {"zero_std_fraction", 0.75, 0.75, 9, "", ""},
        {"zero_std_fraction", 0.4, 0.4, 100, "", ""},
        {"kl", 0, 1, 100, "kl", "nats a token, or an action, away from its reference"},
        {"kl", 0.05, 0.1, 100, "", ""},
        {"approx_kl", 0.3, 0.3, 12, "big_steps", "by 0.3 nats"},
        {"approx_kl", 0.02, 0.02, 100, "", ""},
        {"clip_fraction", 0.5, 0.5, 12, "clipped", "50 % of the ratios"},
        {"clip_fraction", 0.2, 0.2, 100, "", ""},
        {"length_reward_correlation", 0.7, 0.7, 12, "longer", "correlation 0.7 within groups"},
        {"length_reward_correlation", -0.9, -0.9, 12, "shorter", "correlation -0.9"},
        {"length_reward_correlation", 0.3, -0.5, 100, "", ""},
        {"eos_fraction", 0.25, 0.25, 12, "truncated", "only 25 % of the completions"},
        {"eos_fraction", 0.3, 0.95, 20, "truncated", "only 4"},
        {"eos_fraction", 0.9, 0.9, 100, "", ""},
        {"explained_variance", -0.2, -0.2, 50, "values", "have not explained anything"},
        {"explained_variance", 0.9, -3, 200, "", ""},
        {"explained_variance", -2, 0.9, 39, "", ""},
        {"reward_correlation/number:length", -0.7, -0.7, 12, "rewards_disagree", "the rewards number and length pull"},
        {"reward_correlation/number:length", -0.2, 0.9, 100, "", ""},
        {"reward", 0, 0, 100, "reward_stuck", "the reward has not risen: 0, at the beginning 0"},
        {"reward", 5, 1, 120, "reward_stuck", "has not risen"},
        {"reward", 0, 1, 300, "", ""},
        {"sampler_logprob_diff", 0.001, 0.5, 100, "sampler_diff", "drift apart"},
        {"sampler_logprob_diff", 1e-7, 1e-3, 100, "", ""},
        {"sampler_logprob_diff", 0.05, 0.06, 100, "", ""},
        {"reward_std", 0, 0, 100, "", ""},
        {"nobody_knows", -1e30, 1e30, 100, "", ""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Stream stream = rl_doctor_begin(true);
        feed(&stream, cases[i].metric, cases[i].from, cases[i].to, cases[i].n);
        if (!text_starts_with(str_text(&stream.said), cases[i].rule) || (stream.said.len > 0 && !cases[i].rule[0]))
            fail_msg("case %zu, %s from %g to %g: said '%s', expected '%s'", i, cases[i].metric, cases[i].from, cases[i].to, str_text(&stream.said),
                     cases[i].rule);
        if (cases[i].rule[0]) {
            check_contains(stream.last.text, cases[i].text);
            assert_true(stream.last.hint[0] != '\0' && !strchr(stream.last.text, '{'));
        }
        rl_doctor_end(&stream);
    }
}

/* Policies on environments may be surer of what they do, and entropy of real-valued actions passes below 0. */
TEST(entropy_means_less_on_environments) {
    static const struct {
        bool text;
        double from, to;
        bool said;
    } cases[] = {{true, 1.5, 0.0, true}, {false, 1.5, 0.0, true}, {true, 1, -0.02, true},
                 {true, 1, 0.02, true},  {false, 1, 0.02, false}, {false, 1.4, -4, false}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Stream stream = rl_doctor_begin(cases[i].text);
        feed(&stream, "entropy", cases[i].from, cases[i].to, 300);
        if (cases[i].said != (stream.times > 0)) fail_msg("entropy from %g to %g: said '%s'", cases[i].from, cases[i].to, str_text(&stream.said));
        rl_doctor_end(&stream);
    }
}

/* Chance alone: a reward that wavers without a trend is stuck; one that rises by two of its deviations is not. */
TEST(noise_is_allowed_for) {
    for (int rises = 0; rises < 2; rises++) {
        RlDoctor *doctor = rl_doctor_new();
        RlWarning finding;
        rl_doctor_add(doctor, 0, "epsilon", 0.5, &finding);
        for (int i = 1; i <= 200; i++) rl_doctor_add(doctor, i, "reward", sin(7.0 * i) + (rises ? 2 * i / 200.0 : 0), &finding);
        bool found = rl_doctor_warning(doctor, 0, &finding);
        if (rises ? found && finding.holds : !found || !finding.holds)
            fail_msg("a reward that %s", rises ? "rises is called stuck" : "wavers is not called stuck");
        rl_doctor_free(doctor);
    }
}

/* Actions that are drawn evenly throughout earn what they earn; as soon as epsilon falls below 1 something is to be gained. */
TEST(chance_alone_cannot_rise) {
    RlDoctor *doctor = rl_doctor_new();
    RlWarning finding;
    for (int i = 1; i <= 400; i++) {
        assert_false(rl_doctor_add(doctor, i, "epsilon", i < 300 ? 1 : 0.5, &finding));
        bool said = rl_doctor_add(doctor, i, "reward", 1, &finding);
        if (said != (i == 300)) fail_msg("step %d: %s", i, said ? finding.text : "nothing said");
    }
    rl_doctor_free(doctor);
}

TEST(it_is_said_rarely) {
    Stream stream = rl_doctor_begin(true);
    feed(&stream, "eos_fraction", 0.1, 0.1, 1000);
    assert_int_equal(stream.times, 5); /* with the 10th line, the 30th, 90th, 270th, 810th */
    rl_doctor_end(&stream);
}

/* What was found stays, with where it was and whether it still is. */
TEST(what_was_found_is_kept) {
    Stream stream = rl_doctor_begin(true);
    RlWarning finding;
    feed(&stream, "eos_fraction", 0, 1, 101);
    for (int i = 1; i <= 30; i++) rl_doctor_add(stream.doctor, i, "zero_std_fraction", 0.9, &finding);
    assert_true(rl_doctor_warning(stream.doctor, 0, &finding)); /* in the order of the table */
    assert_string_equal(finding.rule, "zero_variance");
    assert_true(finding.holds && finding.first_step == 10 && finding.last_step == 30);
    assert_true(rl_doctor_warning(stream.doctor, 1, &finding));
    assert_string_equal(finding.rule, "truncated");
    assert_true(!finding.holds && finding.first_step == 10 && finding.last_step == 55); /* the mean of 45 .. 54 hundredths */
    assert_false(rl_doctor_warning(stream.doctor, 2, &finding));
    rl_doctor_end(&stream);
}

/* `n` lines from `step` on with one metric; a reward that rises where `rises`. */
static void lines_of(RlDoctor *doctor, int step, int n, const char *metric, double value, bool rises) {
    RlWarning finding;
    for (int i = step; i < step + n; i++) {
        rl_doctor_add(doctor, i, "reward", rises ? i : 0, &finding);
        rl_doctor_add(doctor, i, "reward_std", 0, &finding);
        rl_doctor_add(doctor, i, "eos_fraction", 1, &finding);
        rl_doctor_add(doctor, i, strcmp(metric, "groups_compared") == 0 ? "zero_std_fraction" : "tokens", 0.25, &finding);
        rl_doctor_add(doctor, i, metric, strcmp(metric, "zero_std_fraction") == 0 ? value == 0 : value, &finding);
    }
}

TEST(steps_without_a_signal_are_counted) {
    static const struct {
        const char *metric;
        int silent, heard; /* lines, in this order */
        bool rises;
        const char *text; /* "": nothing is said */
    } cases[] = {
        {"groups_compared", 10, 90, true, "10 of 100 steps, the first ones, had no signal: all completions of a prompt earned the same, so nothing"},
        {"groups_compared", 9, 91, true, ""},
        {"groups_compared", 2, 2, true, "2 of 4 steps, the first ones, had no signal"},
        {"groups_compared", 12, 0, true, "12 of 12 steps had no signal"},
        {"groups_compared", 0, 12, true, ""},
        {"trained_tokens", 1, 0, true, "1 of 1 step had no signal: all completions of a prompt earned the same, or all were cut, so"},
        {"zero_std_fraction", 10, 5, false, "10 of 15 steps, the first ones, had no signal"},
        {"zero_std_fraction", 10, 5, true, ""}, /* one completion in each step: its spread says nothing */
        {"pairs", 10, 5, true, ""},             /* of pairs that were given */
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        RlDoctor *doctor = rl_doctor_new();
        RlWarning finding = {0};
        lines_of(doctor, 1, cases[i].silent, cases[i].metric, 0, cases[i].rises);
        lines_of(doctor, 1 + cases[i].silent, cases[i].heard, cases[i].metric, 3, true);
        bool said = rl_doctor_no_signal(doctor, &finding);
        if (said != (*cases[i].text != 0) || !strstr(finding.text, cases[i].text)) fail_msg("case %zu: %s", i, finding.text);
        rl_doctor_free(doctor);
    }
    RlDoctor *doctor = rl_doctor_new();
    RlWarning finding;
    lines_of(doctor, 1, 5, "groups_compared", 0, true);
    lines_of(doctor, 6, 5, "groups_compared", 1, true);
    lines_of(doctor, 11, 6, "groups_compared", 0, true);
    assert_true(rl_doctor_no_signal(doctor, &finding) && finding.first_step == 1 && finding.last_step == 16);
    check_contains(finding.text, "11 of 16 steps, the first 5 among them, had no signal");
    rl_doctor_free(doctor);
}

/* Other kinds of training have numbers of the same names that mean other things. */
TEST(without_a_reward_nothing_is_judged) {
    RlDoctor *doctor = rl_doctor_new();
    RlWarning finding;
    for (int i = 1; i <= 100; i++) assert_false(rl_doctor_add(doctor, i, "kl", 30, &finding));
    for (int i = 1; i <= 200; i++) assert_false(rl_doctor_add(doctor, i, "reward", 1, &finding)); /* of a given policy, which is only judged */
    assert_false(rl_doctor_warning(doctor, 0, &finding));
    rl_doctor_free(doctor);
}

/* Lines of a file, gaps and all, give what the stream gave. */
TEST(lines_are_the_stream) {
    RlDoctor *live = rl_doctor_new(), *read = rl_doctor_new();
    RlWarning a, b;
    rl_doctor_add(live, 0, "episode_length", 1, &a);
    rl_doctor_add(read, 0, "episode_length", 1, &a);
    for (int i = 1; i <= 150; i++) {
        double reward = sin(i), entropy = 2 * exp(-i / 20.0);
        rl_doctor_add(live, i, "reward", reward, &a);
        rl_doctor_add(live, i, "entropy", i % 3 ? entropy : (double)NAN, &a);
        json_t *line = i % 3 ? json_pack("{s:i, s:f, s:f}", "step", i, "reward", reward, "entropy", entropy)
                             : json_pack("{s:i, s:f, s:n}", "step", i, "reward", reward, "entropy");
        rl_doctor_read(read, line);
        json_decref(line);
    }
    size_t n = 0;
    for (; rl_doctor_warning(live, n, &a); n++) {
        assert_true(rl_doctor_warning(read, n, &b));
        assert_string_equal(a.text, b.text);
        assert_true(a.first_step == b.first_step && a.last_step == b.last_step && a.holds == b.holds);
    }
    assert_int_equal(n, 2);
    assert_false(rl_doctor_warning(read, n, &b));
    rl_doctor_free(live);
    rl_doctor_free(read);
}

/* Names and numbers of a file are anybody's. */
TEST(anything_may_come) {
    RlDoctor *doctor = rl_doctor_new();
    RlWarning finding;
    char name[600];
    static const double odd[] = {1e308, -1e308, 0, 5e-324};
    for (int i = 0; i < 400; i++) {
        snprintf(
            name, sizeof name, "reward_correlation/%.*s%d", i,
            "\xE2\x82\xAC{now}:{{::%s%n\xFF\xFE\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC",
            i);
        for (int k = 0; k < 12; k++) {
            rl_doctor_add(doctor, INT64_MAX, "reward", odd[k % 4], &finding);
            rl_doctor_add(doctor, INT64_MIN, name, -1, &finding);
            rl_doctor_add(doctor, k, "reward_correlation/", odd[k % 4], &finding);
            rl_doctor_add(doctor, k, "", (double)INFINITY, &finding);
        }
    }
    size_t n = 0;
    for (; rl_doctor_warning(doctor, n, &finding); n++) assert_true(strlen(finding.text) < sizeof finding.text);
    assert_in_range(n, 10, 100);
    rl_doctor_free(doctor);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rule_speaks_where_it_should),
        cmocka_unit_test(entropy_means_less_on_environments),
        cmocka_unit_test(noise_is_allowed_for),
        cmocka_unit_test(chance_alone_cannot_rise),
        cmocka_unit_test(it_is_said_rarely),
        cmocka_unit_test(what_was_found_is_kept),
        cmocka_unit_test(steps_without_a_signal_are_counted),
        cmocka_unit_test(without_a_reward_nothing_is_judged),
        cmocka_unit_test(lines_are_the_stream),
        cmocka_unit_test(anything_may_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
