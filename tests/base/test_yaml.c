/* SPDX-License-Identifier: Apache-2.0 */
/* YAML: trees, types of scalars, faults with their place, writing. */
#include "lib/base/yaml.h"
#include "tests/support/check.h"

#include <string.h>

TEST(yaml_becomes_a_tree) {
    Arena *arena = arena_new(0);
    Yaml *root;
    static const char text[] = "# head\nmodel: m\nlora:\n  rank: 16\n  list: [a, 'b', 3]\nlr: 2e-4\nnone: ~\nstring: \"12\"\nempty: {}\n";
    check_ok(yaml_read_text(text, sizeof text - 1, "r.yaml", arena, &root));
    assert_int_equal(root->kind, YAML_MAP);
    assert_int_equal(root->n, 6);
    const Yaml *lora = yaml_get(root, "lora"), *list = yaml_get(lora, "list");
    assert_int_equal(yaml_get(lora, "rank")->line, 4);
    assert_int_equal(root->key_lines[1], 3);
    assert_int_equal(list->kind, YAML_LIST);
    assert_int_equal(list->n, 3);
    assert_string_equal(list->items[1]->text, "b");
    assert_true(list->items[1]->quoted && !list->items[0]->quoted);
    int64_t whole = 0;
    double number = 0;
    bool truth = true;
    assert_true(yaml_as_int(yaml_get(lora, "rank"), &whole) && whole == 16);
    assert_true(yaml_as_double(yaml_get(root, "lr"), &number) && number == 2e-4);
    assert_false(yaml_as_int(yaml_get(root, "lr"), &whole));
    assert_false(yaml_as_int(yaml_get(root, "string"), &whole));
    assert_int_equal(yaml_get(root, "none")->kind, YAML_NULL);
    assert_int_equal(yaml_get(root, "empty")->kind, YAML_MAP);
    assert_null(yaml_get(root, "missing"));
    assert_null(yaml_get(list, "a"));
    assert_false(yaml_as_bool(list, &truth) || yaml_as_int(NULL, &whole));
    check_ok(yaml_read_text("", 0, "r.yaml", arena, &root));
    assert_int_equal(root->kind, YAML_NULL);
    check_ok(yaml_read_file(temp_text(test_folder, "r.yaml", "a: 1\n"), arena, &root));
    assert_int_equal(root->n, 1);
    check_ok(yaml_read_file(temp_text(test_folder, "r.yaml",
                                      "\xEF\xBB\xBF"
                                      "a: 1\r\nb: 2\r\n"),
                            arena, &root));
    assert_true(yaml_as_int(yaml_get(root, "b"), &whole) && whole == 2 && yaml_get(root, "b")->line == 2);
    check_ok(yaml_read_text("\xEF\xBB\xBF", 3, "r.yaml", arena, &root));
    assert_int_equal(root->kind, YAML_NULL);
    check_status(yaml_read_file(temp_file(test_folder, "missing.yaml"), arena, &root), ST_CONFIG);
    arena_free(arena);
}

TEST(yaml_scalars_have_types) {
    static const struct {
        const char *text;
        bool is_int, is_double;
        int is_bool;
        double value;
    } cases[] = {
        {"1", true, true, 0, 1},        {"-7", true, true, 0, -7},    {"+7", true, true, 0, 7},      {"2e-4", false, true, 0, 2e-4},
        {".5", false, true, 0, 0.5},    {"1.", false, true, 0, 1},    {"1e400", false, false, 0, 0}, {"99999999999999999999", false, true, 0, 1e20},
        {"1x", false, false, 0, 0},     {"-", false, false, 0, 0},    {".", false, false, 0, 0},     {"0x10", false, false, 0, 0},
        {"nan", false, false, 0, 0},    {".inf", false, false, 0, 0}, {"true", false, false, 1, 0},  {"Off", false, false, 2, 0},
        {"YES", false, false, 1, 0},    {"no", false, false, 2, 0},   {"on", false, false, 1, 0},    {"False", false, false, 2, 0},
        {"truely", false, false, 0, 0}, {"1 2", false, false, 0, 0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Yaml node = {.kind = YAML_SCALAR, .text = cases[i].text};
        int64_t whole = 0;
        double number = 0;
        bool truth = false;
        if (yaml_as_int(&node, &whole) != cases[i].is_int || yaml_as_double(&node, &number) != cases[i].is_double) fail_msg("'%s'", cases[i].text);
        if (cases[i].is_int) assert_int_equal(whole, (int64_t)cases[i].value);
        if (cases[i].is_double) assert_true(number == cases[i].value);
        if (yaml_as_bool(&node, &truth) != (cases[i].is_bool > 0)) fail_msg("'%s'", cases[i].text);
        if (cases[i].is_bool) assert_int_equal(truth, cases[i].is_bool == 1);
    }
}

TEST(yaml_errors_say_where) {
    static const struct {
        const char *text, *part;
    } wrong[] = {{"a: 1\nb: [1, 2\nc: 3\n", "'r.yaml': line 3"},
                 {"a: 1\nb: 2\na: 3\n", "line 3: key 'a' is already on line 1"},
                 {"a: &x 1\n", "line 1: anchors"},
                 {"a: 1\nb: *x\n", "line 2: aliases"},
                 {"a: !!str 1\n", "line 1: tags"},
                 {"a: 1\n---\nb: 2\n", "second document"},
                 {"a: 1\n? [x]\n: 2\n", "line 2: a key must be"},
                 {"a: \"x\\0y\"\n", "NUL"},
                 {"a:\n\t- 1\n", "line 2"},
                 {"a: b: c\n", "line 1"},
                 {"a: 1\nb: \xff\xff\n", "'r.yaml': line"},
                 {"'unclosed", "line"},
                 {"*x : 1\n", "aliases"}};
    Arena *arena = arena_new(0);
    Yaml *root;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        check_status(yaml_read_text(wrong[i].text, strlen(wrong[i].text), "r.yaml", arena, &root), ST_CONFIG);
        assert_null(root);
        check_text(wrong[i].part);
    }
    Str text = {0};
    for (int i = 0; i < 40; i++) str_append(&text, "[");
    check_status(yaml_read_text(text.data, text.len, "r.yaml", arena, &root), ST_CONFIG);
    check_text("nested too deep");
    str_clear(&text);
    for (int i = 0; i < 100001; i++) str_append(&text, "- 1\n");
    check_status(yaml_read_text(text.data, text.len, "r.yaml", arena, &root), ST_CONFIG);
    check_text("too many values");
    str_clear(&text);
    for (int i = 0; i < 200000; i++) str_append(&text, "# long\n");
    check_status(yaml_read_text(text.data, text.len, "r.yaml", arena, &root), ST_CONFIG);
    check_text("1 MiB");
    str_release(&text);
    for (long n = 1; n < 12; n++) { /* each allocation in turn fails */
        arena_fail_at(n);
        Status status = yaml_read_text("a: [1, {b: c}]\n", 15, "r.yaml", arena, &root);
        assert_true(status == ST_RESOURCE ? !root : status == ST_OK && root);
        if (n == 1) assert_int_equal(status, ST_RESOURCE);
    }
    arena_fail_at(0);
    arena_free(arena);
}

TEST(yaml_is_written_so_that_it_reads_back) {
    static const char *const texts[] = {"plain",    "with space",    "12",    "1e5", "true", "null",        "",      "~",  "a: b", "# no", "it's",
                                        "\"q\"",    "line\nbreak",   "é",     "- x", "[1]",  "path/to/x.y", "../up", ".5", "no",   "y",    "\x7f",
                                        "\xC2\x85", "\xEF\xBB\xBFx", "tab\t", "<<",  "a#b",  "@x"};
    Arena *arena = arena_new(0);
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        Str str = {0};
        Yaml *root;
        str_append(&str, "key: ");
        str_append_yaml(&str, texts[i]);
        check_ok(yaml_read_text(str.data, str.len, "written", arena, &root));
        const Yaml *value = yaml_get(root, "key");
        assert_int_equal(value->kind, YAML_SCALAR);
        assert_string_equal(value->text, texts[i]);
        double number;
        bool truth;
        assert_false(yaml_as_double(value, &number) || yaml_as_bool(value, &truth));
        str_release(&str);
    }
    Str str = {0};
    str_append_yaml(&str, "models/llama-3.gguf");
    assert_string_equal(str_text(&str), "models/llama-3.gguf");
    str_release(&str);
    arena_free(arena);
}

TEST(yaml_becomes_json) {
    static const char text[] = "{a: true, b: 'true', c: 3, d: 2.0, e: null, f: [x, {g: -1}], h: \"\\u00e9\", i: {}, j: 99999999999999999999}";
    Arena *arena = arena_new(0);
    Yaml *node;
    check_ok(yaml_read_text(text, strlen(text), "text", arena, &node));
    json_t *json = yaml_to_json(node);
    char *dumped = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(3));
    assert_string_equal(dumped,
                        "{\"a\":true,\"b\":\"true\",\"c\":3,\"d\":2.0,\"e\":null,\"f\":[\"x\",{\"g\":-1}],\"h\":\"\xC3\xA9\",\"i\":{},\"j\":1e20}");
    free(dumped);
    json_decref(json);
    arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yaml_becomes_a_tree),   cmocka_unit_test(yaml_scalars_have_types),
        cmocka_unit_test(yaml_errors_say_where), cmocka_unit_test(yaml_is_written_so_that_it_reads_back),
        cmocka_unit_test(yaml_becomes_json),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
