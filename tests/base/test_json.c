/* SPDX-License-Identifier: Apache-2.0 */
/* JSON: faults with their place, numbers of any size, types, writing. */
#include "lib/base/file.h"
#include "lib/base/json.h"
#include "lib/base/memory.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

TEST(json_errors_say_where) {
    static const struct {
        const char *text, *part;
    } wrong[] = {{"{\"a\": 1,\n \"b\" 2}", "'f.json': line 2"},
                 {"{\"a\": 1, \"a\": 2}", "duplicate"},
                 {"{\"a\": 1} x", "end of file"},
                 {"", "line 1"},
                 {"{\"a\": \"\xff\"}", "byte 0xff"},
                 {"[NaN]", "line 1"},
                 {"[1e999]", "overflow"},
                 {"[99999999999999999999]", "too big"},
                 {"{\"a\": tru}", "line 1"},
                 {"[1", "line 1"}};
    json_t *root;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        check_status(json_read_text(wrong[i].text, strlen(wrong[i].text), "f.json", &root), ST_INPUT);
        assert_null(root);
        check_text(wrong[i].part);
    }
    Str deep = {0};
    for (int i = 0; i < 100000; i++) str_append_char(&deep, '[');
    check_status(json_read_text(deep.data, deep.len, "deep", &root), ST_INPUT);
    str_release(&deep);
    check_status(json_read_file(temp_file(test_folder, "missing.json"), &root), ST_INPUT);
    check_status(json_read_file(temp_text(test_folder, "empty.json", ""), &root), ST_INPUT);
    check_ok(json_read_file(temp_text(test_folder, "ok.json", "{\"a\": [1, 2]}"), &root));
    assert_int_equal(json_array_size(json_object_get(root, "a")), 2);
    json_decref(root);
}

/* The model_max_length that transformers writes for tokenizers without one. Strings and other integers are unchanged. */
TEST(json_files_may_hold_huge_integers) {
    json_t *root;
    int64_t whole;
    double number;
    const char *string;
    check_ok(json_read_file(
        temp_text(
            test_folder, "huge.json",
            "{\"m\": 1000000000000000019884624838656, \"n\": -12345678901234567890, \"i\": 7, \"s\": \"a\\\\\\\" 99999999999999999999\", \"r\": 1.25e2}"),
        &root));
    check_ok(json_get_double(root, "huge.json", "m", &number));
    check_close(number, 1e30, 0);
    check_ok(json_get_double(root, "huge.json", "n", &number));
    check_close(number, -12345678901234567890.0, 0);
    check_ok(json_get_int(root, "huge.json", "i", &whole));
    check_ok(json_get_string(root, "huge.json", "s", &string));
    assert_string_equal(string, "a\\\" 99999999999999999999");
    check_ok(json_get_double(root, "huge.json", "r", &number));
    check_close(number, 125, 0);
    json_decref(root);
    check_status(json_read_file(temp_text(test_folder, "huge.json", "[99999999999999999999, \"open"), &root), ST_INPUT);
    check_status(json_read_file(temp_text(test_folder, "huge.json", "[99999999999999999999, \"open\\"), &root), ST_INPUT);
    check_status(json_read_file(temp_text(test_folder, "huge.json", "[1e999]"), &root), ST_INPUT);
}

/* Python writes numbers that JSON does not have. Only configs may contain them, as Python or transformers 5 writes them. */
TEST(configs_may_hold_infinities) {
    static const char text[] =
        "{\"a\": [0.0, Infinity], \"b\": -Infinity, \"c\": NaN, \"d\": {\"__float__\": \"Infinity\"}, \"Infinity\": \"-Infinity \\\" NaN\","
        " \"e\": 123456789012345678901234567890, \"f\": {\"__float__\": \"one\"}}";
    for (int bare = 0; bare < 2; bare++) {
        json_t *root;
        double number;
        check_ok(json_read_config_text(text, sizeof text - 1, "config.json", bare, &root));
        const json_t *a = json_array_get(json_object_get(root, "a"), 1), *b = json_object_get(root, "b"), *d = json_object_get(root, "d");
        assert_true(json_float(a, &number) && number == (double)INFINITY);
        assert_true(json_float(b, &number) && number == -(double)INFINITY);
        assert_true(json_float(json_object_get(root, "c"), &number) && isnan(number));
        assert_true(json_float(d, &number) && number == (double)INFINITY);
        assert_true(json_float(json_object_get(root, "e"), &number) && number == 123456789012345678901234567890.0);
        assert_false(json_float(json_object_get(root, "f"), &number));
        assert_string_equal(json_string_value(json_object_get(root, "Infinity")), "-Infinity \" NaN");
        assert_null(json_bare(d));
        if (bare)
            assert_string_equal(json_bare(b), "-Infinity");
        else
            assert_true(json_equal(a, d));
        json_decref(root);
    }
    static const char *const others[] = {"{\"a\": Infinityx}", "{\"a\": xInfinity}",  "{\"a\": +Infinity}", "{\"a\": infinity}",
                                         "{\"a\": nan}",       "{\"a\": - Infinity}", "{\"a\": 1Infinity}"};
    json_t *root;
    for (size_t i = 0; i < COUNT_OF(others); i++)
        check_status(json_read_config_text(others[i], strlen(others[i]), "config.json", false, &root), ST_INPUT);
    check_status(json_read_text(text, sizeof text - 1, "rows.jsonl", &root), ST_INPUT);
    assert_null(json_load_row(text, sizeof text - 1, true, &(json_error_t){0}));
}

TEST(rows_may_hold_what_nobody_uses) {
    static const char text[] =
        "{\"big\": 18446744073709551615, \"less\": -99999999999999999999, \"far\": [1e999, -1E+400], \"nul\": {\"a\": [\"x\\u0000y\"]}, \"i\": -7, \"most\": 9223372036854775807, \"s\": \"18446744073709551615 1e999\"}";
    json_error_t error;
    json_t *row = json_load_row(text, strlen(text), true, &error);
    assert_non_null(row);
    check_close(json_real_value(json_object_get(row, "big")), 18446744073709551615.0, 0);
    check_close(json_real_value(json_object_get(row, "less")), -99999999999999999999.0, 0);
    assert_string_equal(json_string_value(json_array_get(json_object_get(row, "far"), 0)), "1e999");
    assert_string_equal(json_string_value(json_array_get(json_object_get(row, "far"), 1)), "-1E+400");
    assert_int_equal(json_integer_value(json_object_get(row, "i")), -7);
    assert_true(json_integer_value(json_object_get(row, "most")) == INT64_MAX);
    assert_string_equal(json_string_value(json_object_get(row, "s")), "18446744073709551615 1e999");
    assert_true(json_contains_nul(row));
    json_object_del(row, "nul");
    assert_false(json_contains_nul(row) || json_contains_nul(NULL));
    json_decref(row);
    assert_null(json_load_row(text, strlen(text), false, &error));
    assert_null(json_load_row("{\"a\": 1e999, \"b\": 01}", 21, true, &error));
    assert_null(json_load_row("{\"a\": 1, \"a\": 2}", 16, true, &error));
}

TEST(json_members_have_types) {
    static const char text[] = "{\"i\": 5, \"d\": 0.5, \"b\": true, \"s\": \"x\", \"n\": null}";
    json_t *root;
    int64_t whole = -1;
    double number = -1;
    bool truth = false;
    const char *string = "old";
    check_ok(json_read_text(text, sizeof text - 1, "t", &root));
    check_ok(json_get_int(root, "t", "i", &whole));
    assert_int_equal(whole, 5);
    check_ok(json_get_double(root, "t", "i", &number));
    assert_true(number == 5);
    check_ok(json_get_double(root, "t", "d", &number));
    assert_true(number == 0.5);
    check_ok(json_get_bool(root, "t", "b", &truth));
    assert_true(truth);
    check_ok(json_get_string(root, "t", "n", &string));
    check_ok(json_get_string(root, "t", "missing", &string));
    assert_string_equal(string, "old");
    check_ok(json_get_string(root, "t", "s", &string));
    assert_string_equal(string, "x");
    check_status(json_get_int(root, "config.json", "d", &whole), ST_INPUT);
    check_text("wrong type of 'd' in 'config.json': expected an integer, got a number");
    check_status(json_get_double(root, "t", "s", &number), ST_INPUT);
    check_status(json_get_bool(root, "t", "i", &truth), ST_INPUT);
    check_status(json_get_string(root, "t", "b", &string), ST_INPUT);
    assert_int_equal(whole, 5);
    json_decref(root);
}

static void write_sample(JsonWriter *w) {
    jw_object(w, NULL);
    jw_string(w, "a", "x\"");
    jw_array(w, "list");
    jw_int(w, NULL, INT64_MIN);
    jw_double(w, NULL, 0.1);
    jw_double(w, NULL, 2);
    jw_double(w, NULL, (double)NAN);
    jw_object(w, NULL);
    jw_end_object(w);
    jw_end_array(w);
    jw_array(w, "none");
    jw_end_array(w);
    jw_bool(w, "yes", true);
    jw_string(w, "no", NULL);
    jw_raw(w, "raw", "[1]");
    jw_end_object(w);
}

TEST(json_is_written) {
    JsonWriter w = {0};
    write_sample(&w);
    assert_string_equal(
        str_text(&w.text),
        "{\"a\": \"x\\\"\", \"list\": [-9223372036854775808, 0.1, 2.0, null, {}], \"none\": [], \"yes\": true, \"no\": null, \"raw\": [1]}");
    jw_release(&w);
    w = (JsonWriter){.pretty = true};
    write_sample(&w);
    check_contains(str_text(&w.text), "{\n  \"a\": \"x\\\"\",\n  \"list\": [\n    -9223372036854775808,\n    0.1,");
    check_contains(str_text(&w.text), "\n    {}\n  ],\n  \"none\": [],\n");
    json_t *root;
    check_ok(json_read_text(w.text.data, w.text.len, "written", &root));
    json_decref(root);
    jw_release(&w);
}

/* ---- memory ---- */

static size_t taken; /* by jansson, freed or not */
static void *count_malloc(size_t size) {
    taken += (size + 15) / 16 * 16;
    return malloc(size);
}

/* What jansson really takes for a text, and for each of its beginnings, is below what is reserved. */
static void check_bound(const char *text, size_t len, size_t step) {
    json_malloc_t own_malloc;
    json_free_t own_free;
    json_get_alloc_funcs(&own_malloc, &own_free);
    for (size_t n = len % step; n <= len; n += step) {
        taken = 0;
        json_set_alloc_funcs(count_malloc, free);
        json_decref(json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL));
        json_set_alloc_funcs(own_malloc, own_free);
        if (taken > json_memory_bound(text, n)) fail_msg("%zu bytes taken, %zu reserved: %.60s", taken, json_memory_bound(text, n), text);
    }
}

TEST(json_takes_no_more_than_is_reserved) {
    static const char *const texts[] = {"",
                                        "1",
                                        "{}",
                                        "[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]",
                                        "{\"a\":{\"a\":{\"a\":{\"a\":[]}}}}",
                                        "[\"\\\"\\\\\", \"\\u00e9\\u0000\", \"\\\\\\\"\"]",
                                        "[tru, abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz",
                                        "{\"a\": \"unended \\\"",
                                        "[1e5,-0.25,123456789012345678,true,false,null]"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) check_bound(texts[i], strlen(texts[i]), 1);
    Str numbers = {0}, members = {0}, words = {0}, lists = {0};
    str_append_char(&numbers, '[');
    str_append_char(&members, '{');
    str_append_char(&words, '"');
    for (int i = 0; i < 3000; i++) {
        str_printf(&numbers, "%s%d", i ? "," : "", i % 7);
        str_printf(&members, "%s\"%x\":\"\"", i ? "," : "", (unsigned)i);
        str_append(&words, "many words, [with] {what}: \\n counts outside ");
        str_append(&lists, i % 3 == 2 ? "]" : "[");
    }
    str_append_char(&numbers, ']');
    str_append_char(&members, '}');
    str_append_char(&words, '"');
    const Str *const large[] = {&numbers, &members, &words, &lists};
    for (size_t i = 0; i < COUNT_OF(large); i++) check_bound(large[i]->data, large[i]->len, large[i]->len / 17);
    str_release(&numbers);
    str_release(&members);
    str_release(&words);
    str_release(&lists);
}

TEST(nothing_is_stored_once_memory_ran_out) {
    check_ok(memory_check(ST_OK));
    memory_ran_out(100);
    check_status(memory_check(ST_OK), ST_RESOURCE);
    check_text("out of memory: 100 B more");
    check_status(memory_check(ST_INPUT), ST_RESOURCE); /* which may only follow from it */
    const char *path = temp_file(test_folder, "short.json");
    check_status(file_write_all(path, "{}", 2), ST_RESOURCE);
    check_status(file_append(path, "{}", 2), ST_RESOURCE);
    assert_false(file_exists(path));
    memory_clear_failure();
    check_ok(file_write_all(path, "{}", 2));
    assert_true(file_exists(path));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_errors_say_where),
        cmocka_unit_test(json_files_may_hold_huge_integers),
        cmocka_unit_test(configs_may_hold_infinities),
        cmocka_unit_test(rows_may_hold_what_nobody_uses),
        cmocka_unit_test(json_members_have_types),
        cmocka_unit_test(json_is_written),
        cmocka_unit_test(json_takes_no_more_than_is_reserved),
        cmocka_unit_test(nothing_is_stored_once_memory_ran_out),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
