/* SPDX-License-Identifier: Apache-2.0 */
/* Rewards that are rules: each against values worked out by hand, its faults, and what the sum makes of them. */
#include <math.h>
#include <string.h>

#include "lib/base/log.h"
#include "rl/reward/numbers.h"
#include "rl/reward/reward_kinds.h"
#include "tests/support/check.h"

/* One data row and one completion. ids: 0, 1, 2, ... */
typedef struct Case {
    const char *columns, *completion, *finish_reason;
    size_t n_ids;
} Case;
typedef struct Opened {
    Arena *arena;
    RewardSet *set;
} Opened;
static int32_t ids[4096];

static Status open_text(const char *yaml, Opened *opened) {
    Yaml *list;
    opened->arena = arena_new(0);
    check_ok(yaml_read_text(yaml, strlen(yaml), "recipe.yaml", opened->arena, &list));
    return rewards_open(list, "recipe.yaml", &(RewardOptions){.max_new_tokens = 100}, &opened->set);
}

static void close_opened(Opened *opened) {
    rewards_close(opened->set);
    arena_free(opened->arena);
}

static Status score_case(const char *yaml, const Case *at, double *sum) {
    Opened opened;
    check_ok(open_text(yaml, &opened));
    json_t *columns = NULL;
    if (at->columns) check_ok(json_read_text(at->columns, strlen(at->columns), "columns", &columns));
    for (size_t i = 0; i < COUNT_OF(ids); i++) ids[i] = (int32_t)i;
    RewardRow row = {.number = 7,
                     .completion = {at->completion, strlen(at->completion)},
                     .completion_ids = ids,
                     .n_completion_ids = at->n_ids,
                     .finish_reason = at->finish_reason,
                     .columns = columns};
    const RewardScores *scores;
    Status status = rewards_score(opened.set, &row, 1, &scores);
    if (status == ST_OK) *sum = scores->sums[0];
    json_decref(columns);
    close_opened(&opened);
    return status;
}

static double value_of(const char *yaml, Case at) {
    double sum = (double)NAN;
    check_ok(score_case(yaml, &at, &sum));
    return sum;
}

#define gives(yaml, columns, completion, wanted) check_close(value_of(yaml, (Case){columns, completion, "stop", 0}), wanted, 1e-12)

static void reward_refused(const char *yaml, const char *text, const char *hint) {
    Opened opened;
    check_status(open_text(yaml, &opened), ST_CONFIG);
    check_text(text);
    check_contains(status_hint_text(), hint);
    assert_null(opened.set);
    close_opened(&opened);
}

static void faulty(const char *yaml, const char *columns, const char *text, const char *hint) {
    double sum;
    check_status(score_case(yaml, &(Case){columns, "5", "stop", 0}, &sum), ST_INPUT);
    check_text("row 7");
    check_text(text);
    check_contains(status_hint_text(), hint);
}

/* ---- numbers ---- */

TEST(numbers_are_read_as_people_write_them) {
    static const struct {
        const char *text;
        double value;
    } cases[] = {
        {"72", 72},
        {"It is 72.", 72},
        {"1,234,567.5 m", 1234567.5},
        {"-3", -3},
        {"\xE2\x88\x92"
         "3",
         -3},
        {"-$1,200.50", -1200.5},
        {"$\\$40$", 40},
        {"3/4", 0.75},
        {"2 1/2", 2.5},
        {"50%", 50},
        {"50 \\%", 50},
        {"\\frac{1}{8}", 0.125},
        {"-\\dfrac{3}{4}", -0.75},
        {"\\frac12", 0.5},
        {"1\\frac{1}{2}", 1.5},
        {"6.02e23", 6.02e23},
        {"1.5 \\times 10^{3}", 1500},
        {"2*10^-2", 0.02},
        {"4 \xC3\x97 10^2 J", 400},
        {".5", 0.5},
        {"3-5", 5},
        {"(x)-5", 5},
        {"x = -5", -5},
        {"5kg", 5},
        {"from 1 to 10, then 12", 12},
        {"1,23", 23},
        {"1,2345", 2345},
        {"12,345,67", 67},
        {"3/4/2026", 2026},
        {"7/0", 0},
        {"9 of H2O", 9},
        {"8 and v2", 8},
        {"3rd", 3},
        {"12:30", 30},
        {"+4", 4},
        {"2E5", 2e5},
        {"-.25", -0.25},
        {"\xE2\x82\xAC 9", 9},
        {"1.2.3", 3},
        {"2 3/2", 1.5},
    };
    const NumberStyle style = {',', '.', false};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Number number = {.value = (double)NAN};
        print_message("'%s'\n", cases[i].text);
        assert_true(numbers_last((Slice){cases[i].text, strlen(cases[i].text)}, &style, &number));
        check_close(number.value, cases[i].value, 1e-12 * MAX(1, fabs(cases[i].value)));
    }
    static const char *const none[] = {"", "none", "H2O", "-", ".", "1e999", "$", "v1"};
    for (size_t i = 0; i < COUNT_OF(none); i++) {
        Number number;
        assert_false(numbers_last((Slice){none[i], strlen(none[i])}, &style, &number));
    }
    Number number;
    assert_true(numbers_last((Slice){"1.234,5 und 50%", 15}, &(NumberStyle){'.', ',', true}, &number));
    check_close(number.value, 0.5, 1e-15);
    assert_true(numbers_first((Slice){"1.234,5 und 50%", 15}, &(NumberStyle){'.', ',', true}, &number));
    check_close(number.value, 1234.5, 1e-12);
}

TEST(numbers_are_compared_by_their_digits) {
    static const struct {
        const char *a, *b;
        double distance;
    } cases[] = {
        {"12345678901234567", "12345678901234568", 1},
        {"12,345,678,901,234,567", "12345678901234567.0", 0},
        {"-12345678901234567", "12345678901234567", 24691357802469134.0},
        {"9007199254740993", "9007199254740992.25", 0.75},
        {"100000000000000000000001", "1e23", 1},
        {"265252859812191058636308480000000", "265252859812191058636308479999999", 1},
        {"1.0000000000000001", "1", 1e-16},
        {"3.15", "3.14", 0.01},
        {"1.5 \\times 10^{3}", "1500", 0},
        {"1/3", "0.3333333333333333148296162562473909929395", 0}, /* a fraction is the double next to it */
        {"0", "-0.000", 0},
        {"1e-400", "0e7", 0},
        {"1e308", "-1e-308", 1e308},
        {"007.50", "7.5", 0},
        {"1000", "999", 1},
        {"0.1000000000000000055511151231257827", "0.1", 5.5511151231257827e-18},
    };
    const NumberStyle style = {',', '.', false};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Number a, b;
        print_message("%s, %s\n", cases[i].a, cases[i].b);
        assert_true(numbers_last((Slice){cases[i].a, strlen(cases[i].a)}, &style, &a));
        assert_true(numbers_last((Slice){cases[i].b, strlen(cases[i].b)}, &style, &b));
        check_close(numbers_distance(&a, &b), cases[i].distance, 1e-14 * cases[i].distance);
        check_close(numbers_distance(&b, &a), cases[i].distance, 1e-14 * cases[i].distance);
    }
    gives("[{type: number}]", "{\"answer\": \"12345678901234568\"}", "12345678901234567", 0);
    gives("[{type: number}]", "{\"answer\": 12345678901234568}", "12345678901234567", 0);
    gives("[{type: number}]", "{\"answer\": 12345678901234567}", "so \\boxed{12,345,678,901,234,567}", 1);
    gives("[{type: number, relative_tolerance: 1e-9}]", "{\"answer\": 12345678901234568}", "12345678901234567", 1);
    gives("[{type: number}]", "{\"answer\": -9007199254740993}", "-9007199254740992", 0);
    gives("[{type: number}]", "{\"answer\": 6.02e23}", "6.02 \\times 10^{23}", 1);
    gives("[{type: number}]", "{\"answer\": 6.02e23}", "602000000000000000000001", 0);
    gives("[{type: number}]", "{\"answer\": 1000000000000000.3}", "1000000000000000.3", 1);
    gives("[{type: number, tolerance: 0.01}]", "{\"answer\": \"3.14\"}", "3.15", 1);
    faulty("[{type: number}]", "{\"answer\": 1.2345678901234568e+23}", "which may be a whole number of more than 64 bits", "write it as a text");
}

/* Text within the thoughts is not an answer; text before or after them is. */
TEST(thoughts_are_no_answers) {
    static const struct {
        const char *completion;
        double number;
    } cases[] = {
        {"<think>It is 7.</think>", 0},
        {"<think>It is 7", 0},
        {"<think>It is 5, no, 6.</think>The answer is 7.", 1},
        {"It is 8, no, 6.</think>\n\n7", 1}, /* the template wrote the tag */
        {"7 <think>is that right? or 8", 1},
        {"7 <think>is that right? or 8</think>", 1},
        {"<think>8</think>6<think>9</think> or 7", 1},
        {"<thinking>7</thinking>8", 0},
        {"<reasoning>\n8\n</reasoning>\n<answer>\n7\n</answer>", 1},
        {"[THINK]8[/THINK]7", 1},
        {"<think>a tag <think> in thoughts</think>7", 1},
        {"<think>no end of <thinking> 8</thinking> 7", 0},
        {"7 < 8", 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        print_message("%s\n", cases[i].completion);
        gives("[{type: number}]", "{\"answer\": 7}", cases[i].completion, cases[i].number);
    }
    gives("[{type: exact}]", "{\"answer\": \"Paris\"}", "<think>Rome? No.</think>\n\nParis\n", 1);
    gives("[{type: exact}]", "{\"answer\": \"Paris\"}", "<think>Paris", 0);
    gives("[{type: exact, after: '</think>'}]", "{\"answer\": \"Paris\"}", "<think>Rome</think> Paris", 1);
    gives("[{type: choice}]", "{\"answer\": \"B\"}", "<think>(B)?</think>A", 0);
    gives("[{type: json}]", NULL, "<think>a list</think>[1, 2]", 1);
    gives("[{type: format}]", NULL, "<think>a</think><answer>b</answer>", 1);
    RewardRow asked = {.prompt = {"user: 1+1\nassistant: <think>\n", 29}, .completion = {"It is 2", 7}};
    Str room = {0};
    assert_int_equal(reward_completion_text(&asked, &room).len, 0);
    asked.completion = (Slice){"1? 3?</think>2", 14};
    Slice spoken = reward_completion_text(&asked, &room);
    assert_memory_equal(spoken.data, "2", 2);
    str_release(&room);
}

TEST(number_compares_the_marked_number) {
    const char *gsm8k = "{\"answer\": \"48/2 = <<48/2=24>>24 clips.\\nSo 48+24 = 72 altogether.\\n#### 72\"}";
    gives("[{type: number}]", gsm8k, "She sold 48 and then 24: 72 clips", 1);
    gives("[{type: number}]", gsm8k, "72 in total, out of 100", 0);
    gives("[{type: number}]", gsm8k, "#### 72\nQuestion: 5 apples", 1);
    gives("[{type: number}]", gsm8k, "so \\boxed{72}, checked 3 times", 1);
    gives("[{type: number}]", gsm8k, "72 \\boxed{x}", 0);
    gives("[{type: number}]", gsm8k, "so \\boxed{72} and \\boxed{7", 1);
    gives("[{type: number}]", "{\"answer\": 7}", "so \\boxed{7", 1); /* the last number of the text */
    gives("[{type: number, from: boxed}]", "{\"answer\": 7}", "so \\boxed{7", 0);
    gives("[{type: number}]", "{\"answer\": 10000}", "\\boxed{10{,}000}", 1);
    gives("[{type: number}]", "{\"answer\": 10000}", "\\boxed{10,\\!000}", 1);
    gives("[{type: number}]", "{\"answer\": 1234567}", "\\boxed{1\\,234\\,567}", 1);
    gives("[{type: number}]", "{\"answer\": 1}", "\\boxed{1{,}2}", 0);
    gives("[{type: number}]", gsm8k, "no idea", 0);
    gives("[{type: number, from: boxed}]", gsm8k, "it is 72", 0);
    gives("[{type: number, from: hashes}]", gsm8k, "72\n#### 72.0", 1);
    gives("[{type: number}]", "{\"answer\": 0.5}", "one half, 1/2", 1);
    gives("[{type: number, percent: share}]", "{\"answer\": 0.5}", "50 %", 1);
    gives("[{type: number}]", "{\"answer\": [1, \"2\"]}", "2", 1);
    gives("[{type: number}]", "{\"answer\": 1000}", "1,000", 1);
    gives("[{type: number, tolerance: 0.01}]", "{\"answer\": 3.14159}", "3.14", 1);
    gives("[{type: number, relative_tolerance: 0.01}]", "{\"answer\": 200}", "201", 1);
    gives("[{type: number}]", "{\"answer\": 200}", "201", 0);
    gives("[{type: number, field: reward_model.ground_truth}]", "{\"reward_model\": {\"ground_truth\": \"12\"}}", "12", 1);
    faulty("[{type: number}]", "{\"anser\": 3}", "column 'answer' is missing", "did you mean 'anser'?");
    faulty("[{type: number}]", "{\"solution\": 3}", "column 'answer' is missing", "the row has solution");
    faulty("[{type: number}]", NULL, "column 'answer' is missing", "the row has none");
    faulty("[{type: number}]", "{\"answer\": \"many\"}", "has no number: 'many'", "");
    faulty("[{type: number}]", "{\"answer\": null}", "is null", "");
    faulty("[{type: number}]", "{\"answer\": []}", "an empty list", "");
    faulty("[{type: number}]", "{\"answer\": true}", "is neither a text or number nor a list of these", "");
    reward_refused("[{type: number, thousands: ab}]", "one character", "");
    reward_refused("[{type: number, decimal: ','}]", "another than 'thousands'", "");
    reward_refused("[{type: number, tolerance: -1}]", "expected a number from 0", "");
}

/* ---- texts ---- */

TEST(texts_are_compared) {
    gives("[{type: exact}]", "{\"answer\": \"Paris\"}", "  Paris\n", 1);
    gives("[{type: exact}]", "{\"answer\": \"Paris\"}", "paris", 0);
    gives("[{type: exact, ignore_case: true}]", "{\"answer\": \"Paris\"}", "paris", 1);
    gives("[{type: exact, field: a}]", "{\"a\": [\"x\", 12]}", "12", 1);
    gives("[{type: exact, after: '####'}]", "{\"answer\": \"so #### 7\"}", "thus #### 7 ", 1);
    gives("[{type: exact, first_line: true}]", "{\"answer\": \"7\"}", "\n7\n8", 1);
    gives("[{type: exact}]", "{\"answer\": \"\"}", "", 1);
    gives("[{type: regex, pattern: '^\\d+$'}]", NULL, "123", 1);
    gives("[{type: regex, pattern: '^\\d+$'}]", NULL, "12a", 0);
    gives("[{type: regex, pattern: 'a|ab', full: true}]", NULL, " ab ", 1);
    gives("[{type: regex, pattern: 'ÄB', ignore_case: true}]", NULL, "äb", 1);
    gives("[{type: regex, pattern: 'x=(\\d)', field: answer}]", "{\"answer\": 4}", "x=3 x=4", 1);
    gives("[{type: regex, pattern: 'x=(\\d)', field: answer}]", "{\"answer\": 3}", "x=3 x=4", 0);
    gives("[{type: regex, pattern: 'x=(\\d)', field: answer, group: 0}]", "{\"answer\": \"x=4\"}", "x=3 x=4", 1);
    gives("[{type: regex, pattern: '(a+)+b', full: true}]", NULL, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", 0);
    gives("[{type: regex, pattern: x}]", NULL, "\xff", 0);
    gives("[{type: regex, pattern: '', field: answer}]", "{\"answer\": \"\"}", "", 1);
    reward_refused("[{type: regex, pattern: '(a'}]", "cannot read the pattern '(a'", "");
    reward_refused("[{type: regex, pattern: a, group: 3}]", "has 0 groups, not 3", "");
    reward_refused("[{type: regex}]", "option 'pattern' is missing", "");
    faulty("[{type: regex, pattern: a, field: x}]", "{\"answer\": 1}", "column 'x' is missing", "");
}

/* A pattern that takes too many steps is no match, within `not` neither; how many completions that were is said. */
static void note_warning(void *context, LogLevel level, const char *text) {
    if (level == LOG_RANK) str_printf(context, "%s\n", text);
}

TEST(what_patterns_do_not_tell_is_counted) {
    static const char *const rewards[][2] = {
        {"[{type: regex, pattern: '^.(a+)+[bc]', field: answer}]", "2 completions counted as not matching"},
        {"[{type: json, schema: {pattern: '^(a+)+[bc]$'}}]", "2 completions counted as not fitting"},
        {"[{type: json, schema: {not: {pattern: '^(a+)+[bc]$'}}}]", "2 completions counted as not fitting"},
    };
    static const char many[] = "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaad\"";
    json_t *columns = json_pack("{s:s}", "answer", "");
    for (size_t i = 0; i < COUNT_OF(rewards); i++) {
        Opened opened;
        Str said = {0};
        const RewardScores *scores;
        RewardRow rows[2] = {{.completion = {many, strlen(many)}, .finish_reason = "stop", .columns = columns}};
        rows[1] = rows[0];
        log_set_sink(note_warning, &said, LOG_WARNING);
        check_ok(open_text(rewards[i][0], &opened));
        check_ok(rewards_score(opened.set, rows, 2, &scores));
        check_close(scores->sums[0] + scores->sums[1], 0, 0);
        check_contains(str_text(&said), "too many steps on some completions");
        close_opened(&opened);
        check_contains(str_text(&said), rewards[i][1]);
        log_set_sink(NULL, NULL, LOG_WARNING);
        str_release(&said);
    }
    json_decref(columns);
}

TEST(choices_are_found) {
    static const struct {
        const char *text;
        double value;
    } cases[] = {
        {"B", 1},
        {"(B)", 1},
        {"B.", 1},
        {"The answer is B", 1},
        {"The answer is (B), because A is wrong", 1},
        {"**Answer: B**", 1},
        {"\\boxed{B}", 1},
        {"\\boxed{\\text{B}}", 1},
        {"A or B? I say (B) over C", 1},
        {"A", 0},
        {"b", 0},
        {"BAD", 0},
        {"", 0},
        {"The Answer is C not B", 0},
        {"B's", 0},
        {"A bee: B", 1},
        {"the answer\nB", 1},
        {"B. because A is wrong", 1},
        {"\\boxed{A} or rather \\boxed{B", 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        print_message("'%s'\n", cases[i].text);
        gives("[{type: choice}]", "{\"answer\": \"B\"}", cases[i].text, cases[i].value);
    }
    gives("[{type: choice}]", "{\"answer\": 1}", "B", 1);
    gives("[{type: choice}]", "{\"answer\": \"B. A cat\"}", "B", 1);
    gives("[{type: choice}]", "{\"answer\": \"B. A cat\"}", "A", 0);
    gives("[{type: choice, letters: ABCDE}]", "{\"answer\": \"(E) all\"}", "E", 1);
    faulty("[{type: choice}]", "{\"answer\": 4}", "there are 4 letters", "");
    faulty("[{type: choice}]", "{\"answer\": \"E\"}", "none of the letters ABCD: 'E'", "letters");
    reward_refused("[{type: choice, letters: abc}]", "different capital letters", "");
    reward_refused("[{type: choice, letters: ABA}]", "different capital letters", "");
}

TEST(formats_are_whole_and_in_order) {
    static const struct {
        const char *text;
        double whole, part;
    } cases[] = {
        {"<think>a</think><answer>b</answer>", 1, 1},
        {" <think>\na\n</think>\n\n<answer> b </answer>\n", 1, 1},
        {"<think>a</think>so<answer>b</answer>", 0, 1},
        {"x<think>a</think><answer>b</answer>", 0, 1},
        {"<think>a</think><answer>b</answer>.", 0, 1},
        {"<think>a<think></think><answer>b</answer>", 0, 0.75},
        {"<answer>b</answer><think>a</think>", 0, 0.5},
        {"<think></think><answer>b</answer>", 0, 1},
        {"", 0, 0},
        {"<think>a</think>", 0, 0.5},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        print_message("'%s'\n", cases[i].text);
        gives("[{type: format}]", NULL, cases[i].text, cases[i].whole);
        gives("[{type: format, partial: true}]", NULL, cases[i].text, cases[i].part);
    }
    gives("[{type: format, allow_empty: true}]", NULL, "<think></think><answer>b</answer>", 1);
    gives("[{type: format, template: '...<b>...</b>...'}]", NULL, "a<b>c</b>d", 1);
    gives("[{type: format, template: '...<b>...</b>...'}]", NULL, "a<b>c</b>", 0);
    gives("[{type: format, template: 'Reason: ... Answer: ...'}]", NULL, "Reason: x\nAnswer: y", 1);
    gives("[{type: format, template: 'Reason: ... Answer: ...'}]", NULL, "Answer: y Reason: x", 0);
    gives("[{type: format, template: 'Final Answer: ... Answer: ...'}]", NULL, "Final Answer: b Answer: c", 1);
    gives("[{type: format, template: 'Final Answer: ... Answer: ...', partial: true}]", NULL, "Final Answer: b Answer: c", 1);
    gives("[{type: format, template: 'Step 1 ... Step 10 ...'}]", NULL, "Step 1 a Step 10 b", 1);
    gives("[{type: format, template: 'Step 1 ... Step 10 ...'}]", NULL, "Step 1 a Step 10 b Step 1", 0);
    reward_refused("[{type: format, template: ...}]", "the template has no tag", "");
    reward_refused("[{type: exact, after: ''}]", "'after' is an empty mark", "");
}

/* ---- JSON ---- */

TEST(json_fits_its_schema) {
    static const char person[] =
        "[{type: json, parses: 0.25, schema: {type: object, required: [name, age], additionalProperties: false, properties: {name: {type: string, minLength: 1, pattern: '^[A-Z]'}, age: {type: integer, minimum: 0, "
        "exclusiveMaximum: 150}, tags: {type: array, items: {enum: [a, b]}, maxItems: 2, uniqueItems: true}}}}]";
    static const struct {
        const char *text;
        double value;
    } cases[] = {
        {"{\"name\": \"Ada\", \"age\": 36}", 1},
        {" {\"name\": \"Ada\", \"age\": 36.0, \"tags\": [\"a\", \"b\"]}\n", 1},
        {"{\"name\": \"ada\", \"age\": 36}", 0.25},
        {"{\"name\": \"\", \"age\": 36}", 0.25},
        {"{\"name\": \"Ada\"}", 0.25},
        {"{\"name\": \"Ada\", \"age\": 150}", 0.25},
        {"{\"name\": \"Ada\", \"age\": 3.5}", 0.25},
        {"{\"name\": \"Ada\", \"age\": 3, \"x\": 1}", 0.25},
        {"{\"name\": \"Ada\", \"age\": 3, \"tags\": [\"a\", \"a\"]}", 0.25},
        {"{\"name\": \"Ada\", \"age\": 3, \"tags\": [\"c\"]}", 0.25},
        {"[]", 0.25},
        {"{\"name\": \"Ada\", \"age\": 36", 0},
        {"Ada", 0},
        {"", 0},
        {"{\"name\": \"Ada\", \"age\": 3, \"age\": 3}", 0},
        {"{\"name\": \"Ada\", \"age\": 3} ok", 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        print_message("%s\n", cases[i].text);
        gives(person, NULL, cases[i].text, cases[i].value);
    }
    gives("[{type: json}]", NULL, "[1, 2]", 1);
    gives("[{type: json}]", NULL, "{\"a\": 12345678901234567890}", 1);
    gives("[{type: json, extract: fence}]", NULL, "Here:\n```json\n{\"a\": 1}\n```\nDone", 1);
    gives("[{type: json, extract: fence}]", NULL, "{\"a\": 1}", 0);
    gives("[{type: json, schema: {anyOf: [{type: 'null'}, {type: number, multipleOf: 0.1}]}}]", NULL, "0.3", 1);
    gives("[{type: json, schema: {oneOf: [{minimum: 1}, {maximum: 5}]}}]", NULL, "3", 0);
    gives("[{type: json, schema: {not: {const: 1}, type: [integer, string]}}]", NULL, "1.0", 0);
    gives("[{type: json, schema: {allOf: [{minimum: 1}, {maximum: 5}], type: integer}}]", NULL, "3", 1);
    gives("[{type: json, field: schema}]", "{\"schema\": {\"type\": \"array\", \"minItems\": 2}}", "[1]", 0);
    faulty("[{type: json, field: schema}]", "{\"schema\": {\"typ\": \"array\"}}", "keyword 'typ' in the row's schema is not supported",
           "did you mean 'type'?");
    reward_refused("reward: {}\n", "no", "rewards, clip, whiten");
    reward_refused("[{type: json, schema: {$ref: x}}]", "keyword '$ref' in the schema is not supported", "supported are");
    reward_refused("[{type: json, schema: {type: strin}}]", "keyword 'type' in the schema is wrong", "");
    reward_refused("[{type: json, schema: {properties: {a: {pattern: '('}}}}]", "cannot read pattern '('", "");
    reward_refused("[{type: json, schema: missing.json}]", "missing.json", "");
    reward_refused("[{type: json, parses: 0.1}]", "'parses' needs a 'schema'", "");
}

/* ---- lengths ---- */

TEST(lengths_are_shaped) {
    static const size_t n[] = {0, 50, 80, 81, 90, 100, 120};
    static const double overlong[] = {0, 0, 0, -0.05, -0.5, -1, -1}, no_cap[] = {0, 0, 0, -0.05, -0.5, -1, -2};
    for (size_t i = 0; i < COUNT_OF(n); i++) {
        Case at = {NULL, "a b", "stop", n[i]};
        check_close(value_of("[{type: length, buffer: 20}]", at), overlong[i], 1e-12);
        check_close(value_of("[{type: length, buffer: 20, cap: false}]", at), no_cap[i], 1e-12);
        check_close(value_of("[{type: length, target: 50}]", at), MAX(0, 1 - fabs((double)n[i] - 50) / 50), 1e-12);
    }
    gives("[{type: length, target: 4, unit: words}]", NULL, " one two\nthree ", 0.75);
    gives("[{type: length, target: 4, unit: characters}]", NULL, "äöü", 0.75);
    reward_refused("[{type: length}]", "either 'target' or 'buffer'", "");
    reward_refused("[{type: length, target: 1, buffer: 2}]", "either 'target' or 'buffer'", "");
    reward_refused("[{type: length, buffer: 101}]", "more than the longest completion of 100", "");
    reward_refused("[{type: length, buffer: 5, unit: words}]", "option 'max_length' is missing", "");
}

/* By the paper's formula: value(t) = max-side + (zero-side - max-side) (1 + cos(pi t / T)) / 2. */
TEST(cosine_scales_by_length) {
    static const char right[] = "[{type: number, weight: 0}, {type: cosine, right_by: number, exceed: -10}]";
    static const struct {
        const char *text, *reason;
        size_t n;
        double value;
    } cases[] = {
        {"5", "stop", 0, 1},      {"5", "stop", 100, 0.5},   {"5", "stop", 50, 0.75},
        {"5", "stop", 400, 0.5},  {"4", "stop", 0, -1},      {"4", "stop", 100, -0.5},
        {"4", "stop", 50, -0.75}, {"5", "length", 100, -10}, {"5", "stop", 25, 0.5 + 0.25 * (1 + 0.70710678118654752)},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        check_close(value_of(right, (Case){"{\"answer\": 5}", cases[i].text, cases[i].reason, cases[i].n}), cases[i].value, 1e-12);
    reward_refused("[{type: cosine, right_by: number}, {type: number}]", "does not name an earlier reward of the list: 'number'", "");
}

TEST(repetitions_cost) {
    gives("[{type: repetition}]", NULL, "a b c d e", 0);
    gives("[{type: repetition}]", NULL, "a b", 0);
    gives("[{type: repetition}]", NULL, "a b c A b C a b c", -(1 - 3.0 / 7));
    gives("[{type: repetition, ngram: 1, penalty: 2}]", NULL, "x x x x", -1.5);
    check_close(value_of("[{type: repetition, unit: tokens}]", (Case){NULL, "x", "stop", 4096}), 0, 1e-15);
}

/* ---- the list ---- */

TEST(sums_are_weighted_clipped_and_whitened) {
    static const char *const texts[] = {"5", "4", "<b>5", "4 4 4 4"};
    static const char plain[] =
        "[{type: number, weight: 2}, {type: exact, weight: 0.5}, {type: repetition, ngram: 1, weight: 4, clip: [-0.5, null]}, {type: number, name: again, weight: -1}, {type: exact}]";
    Opened opened;
    check_ok(open_text(plain, &opened));
    json_t *columns = json_pack("{s:s}", "answer", "5");
    RewardRow rows[4];
    for (size_t i = 0; i < 4; i++) rows[i] = (RewardRow){.number = (int64_t)i, .completion = {texts[i], strlen(texts[i])}, .columns = columns};
    const RewardScores *scores;
    for (int again = 0; again < 2; again++) { /* the second batch forgets the first */
        check_ok(rewards_score(opened.set, rows, 4, &scores));
        static const char *const names[] = {"number", "exact", "repetition", "again", "exact_2"};
        static const double wanted[] = {2 + 0.5 - 1 + 1, 0, 2 - 1, -0.5 * 4};
        assert_int_equal(scores->n_columns, 5);
        for (size_t k = 0; k < 5; k++) assert_string_equal(scores->columns[k].name, names[k]);
        check_close_f64("sums", scores->sums, wanted, 4, 1e-12, 0);
        check_close(scores->columns[2].values[3], -0.5, 1e-15);
    }
    close_opened(&opened);
    check_ok(open_text("{rewards: [{type: number, weight: 4}], clip: [null, 3], whiten: true}", &opened));
    check_ok(rewards_score(opened.set, rows, 4, &scores));
    const double a = 1.5 + 1.5 / sqrt(3 + 1e-8), b = 1.5 - 1.5 / sqrt(3 + 1e-8), whitened[] = {a, b, a, b}; /* 3 0 3 0: mean 1.5, variance 3 */
    check_close_f64("whitened", scores->sums, whitened, 4, 1e-12, 0);
    check_ok(rewards_score(opened.set, rows, 0, &scores));
    assert_int_equal(scores->n_rows, 0);
    close_opened(&opened);
    json_decref(columns);
}

TEST(a_list_that_makes_no_sense_is_refused) {
    reward_refused("\n- type: numbr\n", "unknown reward 'numbr' in 'recipe.yaml' line 2", "did you mean 'number'?");
    reward_refused("[{type: zebra}]", "unknown reward 'zebra'", "the types are exact, number");
    reward_refused("[{weight: 1}]", "it has no 'type'", "");
    reward_refused("[number]", "expected a map", "");
    reward_refused("[]", "no reward is given", "type: number");
    reward_refused("null", "no reward is given", "");
    reward_refused("- type: number\n  tolerence: 1\n", "reward 'number' in 'recipe.yaml' line 2: unknown option 'tolerence'",
                   "did you mean 'tolerance'?");
    reward_refused("[{type: number, zz: 1}]", "unknown option 'zz'", "it takes name, weight, clip, field");
    reward_refused("[{type: number, weight: much}]", "wrong value for 'weight'", "");
    reward_refused("[{type: number, clip: [1, 0]}]", "wrong value for 'clip'", "");
    reward_refused("[{type: number, from: somewhere}]", "expected one of auto|last|boxed|hashes", "");
    reward_refused("[{type: number, name: x}, {type: exact, name: x}]", "another reward has this name", "");
    reward_refused("{rewards: [{type: number}], clip: 3}", "wrong value for 'clip'", "");
    reward_refused("{rewards: [{type: number}], wihten: true}", "unknown key 'wihten'", "whiten");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_read_as_people_write_them),
        cmocka_unit_test(numbers_are_compared_by_their_digits),
        cmocka_unit_test(thoughts_are_no_answers),
        cmocka_unit_test(number_compares_the_marked_number),
        cmocka_unit_test(texts_are_compared),
        cmocka_unit_test(choices_are_found),
        cmocka_unit_test(formats_are_whole_and_in_order),
        cmocka_unit_test(json_fits_its_schema),
        cmocka_unit_test(what_patterns_do_not_tell_is_counted),
        cmocka_unit_test(lengths_are_shaped),
        cmocka_unit_test(cosine_scales_by_length),
        cmocka_unit_test(repetitions_cost),
        cmocka_unit_test(sums_are_weighted_clipped_and_whitened),
        cmocka_unit_test(a_list_that_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
