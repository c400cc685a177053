/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates against jinja2's own renderings, and what their expressions mean. */
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>

#include "lib/text/chat.h"

static Status render(ChatTemplate *chat, const json_t *variables, ChatRendering *rendering) {
    return chat_template_render(chat, variables, &(ChatOptions){.now = "2025-01-15 12:00:00"}, rendering);
}

/* ---- real templates ---- */

static json_t *chat_template_golden(const char *name) {
    char path[512];
    json_t *json;
    if (!shared_path(name, path, sizeof path)) return NULL;
    check_ok(json_read_file(path, &json));
    return json;
}

static void check_rendering(const json_t *expected, const json_t *conversations) {
    char name[200], path[512];
    ChatTemplate *chat;
    ChatRendering rendering = {0};
    Str text = {0};
    snprintf(name, sizeof name, "data/templates/%s", json_string_value(json_object_get(expected, "template")));
    assert_true(shared_path(name, path, sizeof path));
    check_ok(file_read(path, 1 << 22, &text));
    check_ok(chat_template_parse(name, str_text(&text), text.len, &chat));
    json_t *variables = json_copy(json_object_get(conversations, json_string_value(json_object_get(expected, "conversation"))));
    json_object_set_new(variables, "bos_token", json_string("<BOS>"));
    json_object_set_new(variables, "eos_token", json_string("<EOS>"));
    json_object_set(variables, "add_generation_prompt", json_object_get(expected, "add_generation_prompt"));
    Status status = render(chat, variables, &rendering);
    const json_t *output = json_object_get(expected, "output");
    if (!output && status == ST_OK) fail_msg("%s: '%s' should be refused", name, json_string_value(json_object_get(expected, "conversation")));
    if (output && status != ST_OK) fail_msg("%s", status_text());
    if (output &&
        (rendering.text.len != json_string_length(output) || memcmp(str_text(&rendering.text), json_string_value(output), rendering.text.len)))
        fail_msg("%s, %s:\ngot  %s\nwant %s", name, json_string_value(json_object_get(expected, "conversation")), str_text(&rendering.text),
                 json_string_value(output));
    json_decref(variables);
    chat_rendering_release(&rendering);
    chat_template_free(chat);
    str_release(&text);
}

TEST(real_templates_give_what_jinja2_gives) {
    json_t *all = chat_template_golden("data/templates/expected_renderings.json"), *item;
    size_t i;
    if (!all) skip();
    json_array_foreach(json_object_get(all, "renderings"), i, item) check_rendering(item, json_object_get(all, "conversations"));
    assert_true(i > 400);
    json_decref(all);
}

/* llama.cpp's list of templates, each with the output of Jinja2. */
TEST(templates_in_configs_give_what_jinja2_gives) {
    json_t *all = chat_template_golden("data/templates/llamacpp_chat_expected.json"), *item;
    size_t i;
    if (!all) skip();
    json_array_foreach(json_object_get(all, "cases"), i, item) {
        const char *text = json_string_value(json_object_get(item, "template"));
        const json_t *wanted = json_object_get(json_object_get(item, "raw_jinja2"), "output");
        ChatTemplate *chat;
        ChatRendering rendering = {0};
        json_t *variables = json_pack("{s:O, s:b, s:O, s:O}", "messages", json_object_get(all, "conversation"), "add_generation_prompt", 1,
                                      "bos_token", json_object_get(item, "bos_token"), "eos_token", json_object_get(item, "eos_token"));
        check_ok(chat_template_parse(json_string_value(json_object_get(item, "name")), text, strlen(text), &chat));
        check_status(render(chat, variables, &rendering), wanted ? ST_OK : ST_INPUT);
        if (wanted) assert_string_equal(str_text(&rendering.text), json_string_value(wanted));
        json_decref(variables);
        chat_rendering_release(&rendering);
        chat_template_free(chat);
    }
    json_decref(all);
}

/* ---- what expressions mean: as CPython's jinja2 3.1.6 gives it in transformers' environment ---- */

static const char variables_text[] =
    "{\"s\": \"Hello World\", \"u\": \"\\u00fcn\\u00efc \\u4f60\", \"n\": 42, \"f\": 3.14159, \"l\": [3, 1, 2], \"d\": {\"b\": 1, \"a\": \"x\", \"items\": 5}, \"no\": null, \"t\": true,"
    " \"m\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \" yo \\n\"}]}";

static void check_template(const char *text, const char *wanted) {
    ChatTemplate *chat = NULL;
    ChatRendering rendering = {0};
    json_t *variables = json_loads(variables_text, 0, NULL);
    Status status = chat_template_parse("test", text, strlen(text), &chat);
    if (status == ST_OK) status = render(chat, variables, &rendering);
    if (status != ST_OK && wanted) fail_msg("%s: %s", text, status_text());
    if (status == ST_OK && !wanted) fail_msg("%s should be refused, but gives '%s'", text, str_text(&rendering.text));
    if (wanted && strcmp(str_text(&rendering.text), wanted)) fail_msg("%s\ngot  '%s'\nwant '%s'", text, str_text(&rendering.text), wanted);
    json_decref(variables);
    chat_rendering_release(&rendering);
    chat_template_free(chat);
}

TEST(expressions_mean_what_jinja2_says) {
    static const char *const cases[][2] = {
        {"s[2:5]", "llo"},
        {"s[::-1]", "dlroW olleH"},
        {"u[4:] ~ u|length", " \xe4\xbd\xa0"
                             "6"},
        {"s[100]", ""},
        {"l[-1]", "2"},
        {"l[5:1:-1]", "[2]"},
        {"7 // -2", "-4"},
        {"-7 % 3", "2"},
        {"2 ** 3 ** 2", "64"},
        {"-2 ** 2", "4"},
        {"1 / 3", "0.3333333333333333"},
        {"10 / 2", "5.0"},
        {"1e16", "1e+16"},
        {"0.1 + 0.2", "0.30000000000000004"},
        {"2.5|round", "2.0"},
        {"[1, 'a', none, true, {'k': \"it's\"}]", "[1, 'a', None, True, {'k': \"it's\"}]"},
        {"(1,)", "(1,)"},
        {"'a' in s", "False"},
        {"1 < 2 < 3", "True"},
        {"t is number", "True"},
        {"t is integer", "False"},
        {"d.items is callable", "True"},
        {"d['items']", "5"},
        {"d.zz", ""},
        {"undef|default('x')", "x"},
        {"''|default('x', true)", "x"},
        {"no ~ 1", "None1"},
        {"m|map(attribute='role')|join(', ')", "user, assistant"},
        {"m|selectattr('role', 'eq', 'user')|list|length", "1"},
        {"l|sort(reverse=true)", "[3, 2, 1]"},
        {"l|sum(start=10)", "16"},
        {"{'b': [], 'a': 1.0}|tojson(indent=2)", "{\n  \"b\": [],\n  \"a\": 1.0\n}"},
        {"'\\u00e9<'|tojson", "\"\xc3\xa9<\""},
        {"'a b  c'.split(' ')", "['a', 'b', '', 'c']"},
        {"'%05.1f|%-4s|' % (2.25, 'x')", "002.2|x   |"},
        {"'{:>5}|{}'.format('a', 1)", "    a|1"},
        {"'abc'.center(8, '*')", "**abc***"},
        {"'Stra\xc3\x9f"
         "e'|upper",
         "STRASSE"},
        {"n if n > 40 else 'no'", "42"},
        {"'x' if n > 50", ""},
        {"strftime_now('%d %b %Y')", "15 Jan 2025"},
        {"range(5, 0, -2)|list", "[5, 3, 1]"},
        {"m[0].role.upper() + '!' * 2", "USER!!"},
        {"'a' + 1", NULL},
        {"undef.x", NULL},
        {"l.append(1)", NULL},
        {"raise_exception('no')", NULL},
        {"1 // 0", NULL},
        {"s|nofilter", NULL},
        {"no|length", NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[400];
        snprintf(text, sizeof text, "{{ %s }}", cases[i][0]);
        check_template(text, cases[i][1]);
    }
}

TEST(statements_and_white_space) {
    static const char *const cases[][2] = {
        {"{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{{ loop.last }} {% else %}none{% endfor %}", "13False 22True "},
        {"{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "32"},
        {"{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}", "4,2,3,1"},
        {"{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "7"},
        {"{% macro f(x, y=2) %}[{{ x }}{{ y }}{{ caller() if caller else '' }}]{% endmacro %}{{ f(1) }}{% call f(3, y=4) %}c{% endcall %}",
         "[12][34c]"},
        {"{% set x %}a{{ n }}{% endset %}{{ x|upper }}{% filter upper %}b{% endfilter %}", "A42B"},
        {"a\n  {% if true %}\n  x\n  {% endif %}\nb\n", "a\n  x\nb"},
        {"a {%- if true -%}  x  {%- endif %} b", "ax b"},
        {"{% raw %}{{ x }}{% endraw %}{# c #}\nz", "{{ x }}z"},
        {"{% for x in [[1, [2]], 3] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}", "(1(2))3"},
        {"{% set g = m|map(attribute='role') %}{{ g|list|length }}{{ g|list|length }}", "20"}, /* a generator can be iterated once */
        {"{% if x %}", NULL},
        {"{{ 'a }}", NULL},
        {"{% endfor %}", NULL},
        {"{% break %}", NULL},
        {"{% nosuch %}", NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) check_template(cases[i][0], cases[i][1]);
}

/* jinja2.jsonl: templates and what CPython 3.11's jinja2 3.1.6 made of them in transformers 5.23's environment, with the variables of the first
 * line; no output: refused there. */
static void check_reference(size_t line, const json_t *row, const json_t *variables) {
    const json_t *text = json_object_get(row, "template"), *wanted = json_object_get(row, "output"), *marks = json_object_get(row, "generated");
    ChatTemplate *chat = NULL;
    ChatRendering rendering = {0};
    Status status = chat_template_parse("test", json_string_value(text), json_string_length(text), &chat);
    if (status == ST_OK) status = render(chat, variables, &rendering);
    if (status != ST_OK && wanted) fail_msg("line %zu: %s: %s", line, json_string_value(text), status_text());
    if (status == ST_OK && !wanted)
        fail_msg("line %zu: %s should be refused, but gives '%s'", line, json_string_value(text), str_text(&rendering.text));
    if (wanted &&
        (rendering.text.len != json_string_length(wanted) || memcmp(str_text(&rendering.text), json_string_value(wanted), rendering.text.len)))
        fail_msg("line %zu: %s\ngot  '%s'\nwant '%s'", line, json_string_value(text), str_text(&rendering.text), json_string_value(wanted));
    assert_int_equal(rendering.n_generated, json_array_size(marks));
    for (size_t i = 0; i < rendering.n_generated; i++) {
        const json_t *mark = json_array_get(marks, i);
        assert_int_equal(rendering.generated[i].begin, json_integer_value(json_array_get(mark, 0)));
        assert_int_equal(rendering.generated[i].end, json_integer_value(json_array_get(mark, 1)));
    }
    chat_rendering_release(&rendering);
    chat_template_free(chat);
}

TEST(templates_give_what_jinja2_gives) {
    Lines lines;
    Slice line;
    json_t *first = NULL, *row;
    check_ok(lines_open(&lines, "tests/text/jinja2.jsonl"));
    while (lines_next(&lines, &line)) {
        check_ok(json_read_text(line.data, line.len, "tests/text/jinja2.jsonl", &row));
        if (!first) {
            first = row;
            continue;
        }
        check_reference(lines.number, row, json_object_get(first, "variables"));
        json_decref(row);
    }
    assert_true(lines.number > 1000);
    check_ok(lines_close(&lines));
    json_decref(first);
}

TEST(generation_marks_are_bytes_of_the_text) {
    static const char text[] =
        "{% macro turn(x) %}<{% generation %}{{ x }}|{% endgeneration %}>{% endmacro %}{% for x in m %}\xc3\xa9{{ turn(x.content) }}{% endfor %}";
    ChatTemplate *chat;
    ChatRendering rendering = {0};
    json_t *variables = json_loads(variables_text, 0, NULL);
    check_ok(chat_template_parse("test", text, strlen(text), &chat));
    assert_true(chat_template_marks_generation(chat));
    check_ok(render(chat, variables, &rendering));
    assert_string_equal(str_text(&rendering.text), "\xc3\xa9<hi|>\xc3\xa9< yo \n|>");
    assert_int_equal(rendering.n_generated, 2);
    assert_int_equal(rendering.generated[0].begin, 3);
    assert_int_equal(rendering.generated[0].end, 6);
    assert_int_equal(rendering.generated[1].begin, 10);
    assert_int_equal(rendering.generated[1].end, 16);
    json_decref(variables);
    chat_rendering_release(&rendering);
    chat_template_free(chat);
}

/* Each ends with an error instead of taking the machine. */
TEST(what_runs_wild_is_stopped) {
    static const char *const cases[] = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 1000000000000 }}",
        "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
        "{% set s = 'ab' * 999999 %}{% for i in range(99999) %}{% if s[5] %}{% endif %}{% endfor %}",
        "{{ 'a'.center(999999999999) }}",
        "{{ '%999999999s' % 'a' if false else range(999999999) }}",
        "{{ 9 ** 99 }}",
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) check_template(cases[i], NULL);
    check_template("{{ [1][", NULL);
    check_text("chat template 'test' line 1 column");
}

TEST(shipped_templates_and_those_of_a_directory) {
    char dir[256];
    ChatTemplate *chat;
    ChatRendering rendering = {0};
    json_t *variables = json_pack("{s:[{s:s, s:s}, {s:s, s:s}]}", "messages", "role", "user", "content", "Hi", "role", "assistant", "content", "Yo");
    static const char *const wanted[][2] = {
        {"chatml", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n"},
        {"llama3", "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nYo<|eot_id|>"},
        {"alpaca",
         "<s>Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n### Instruction:\nHi\n\n### Response:Yo</s>"},
        {"plain", "<s>Hi\nYo</s>\n"},
    };
    temp_dir_make(dir, sizeof dir);
    check_ok(chat_template_load(dir, NULL, NULL, &chat));
    assert_null(chat); /* a model without a template */
    temp_text(
        dir, "tokenizer_config.json",
        "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", \"chat_template\": [{\"name\": \"default\", \"template\": \"D{{ bos_token }}\"},"
        " {\"name\": \"tool_use\", \"template\": \"T{{ tools|length }}\"}]}");
    for (size_t i = 0; i < COUNT_OF(wanted); i++) {
        check_ok(chat_template_load(dir, NULL, wanted[i][0], &chat));
        check_ok(render(chat, variables, &rendering));
        assert_string_equal(str_text(&rendering.text), wanted[i][1]);
        assert_int_equal(rendering.n_generated, 1);
        chat_rendering_release(&rendering);
        chat_template_free(chat);
    }
    check_ok(chat_template_load(dir, NULL, NULL, &chat));
    check_ok(render(chat, variables, &rendering));
    assert_string_equal(str_text(&rendering.text), "D<s>");
    chat_rendering_release(&rendering);
    json_object_set_new(variables, "tools", json_pack("[{s:s}]", "type", "function"));
    check_ok(render(chat, variables, &rendering));
    assert_string_equal(str_text(&rendering.text), "T1");
    chat_rendering_release(&rendering);
    chat_template_free(chat);
    temp_text(dir, "chat_template.jinja", "J{{ eos_token }}");
    check_ok(chat_template_load(dir, NULL, NULL, &chat)); /* the file goes first */
    json_object_del(variables, "tools");
    check_ok(render(chat, variables, &rendering));
    assert_string_equal(str_text(&rendering.text), "J</s>");
    chat_rendering_release(&rendering);
    chat_template_free(chat);
    check_status(chat_template_load(dir, NULL, "chatlm", &chat), ST_INPUT);
    assert_string_equal(status_hint_text(), "did you mean 'chatml'?");
    json_decref(variables);
    temp_dir_remove(dir);
}

static void check_rendered(const ChatTemplate *chat, const char *variables, const char *wanted) {
    ChatRendering rendering = {0};
    json_t *json = json_loads(variables, 0, NULL);
    check_ok(chat_template_render(chat, json, &(ChatOptions){0}, &rendering));
    assert_string_equal(str_text(&rendering.text), wanted);
    json_decref(json);
    chat_rendering_release(&rendering);
}

/* Values for all renderings: the same from memory and from what is saved, which begins its lines where the template does. */
TEST(defaults_are_part_of_what_is_saved) {
    static const char source[] = "\n  {% if x %}a{% endif %} {{ y.z[1] }}{{ w }}{{ n }}";
    json_t *values = json_loads("{\"x\": true, \"y\": {\"z\": [1, 2.0]}, \"w\": \"q\\\"\\n{% \\u00e9\", \"n\": null}", 0, NULL);
    ChatTemplate *chat, *saved;
    Str text = {0};
    check_ok(chat_template_parse("t", source, strlen(source), &chat));
    check_ok(chat_template_set_defaults(chat, values));
    chat_template_text(chat, false, &text);
    check_ok(chat_template_parse("saved", str_text(&text), text.len, &saved));
    for (int k = 0; k < 2; k++) {
        check_rendered(k ? saved : chat, "{}", "\na 2.0q\"\n{% \xC3\xA9None");
        check_rendered(k ? saved : chat, "{\"x\": false, \"w\": 3}", "\n 2.03None");
    }
    static const char *const wrong[][2] = {{"{\"z\": 1}", "'z' has no effect"},
                                           {"{\"messages\": []}", "each row gives 'messages' to the chat template"},
                                           {"{\"eos_token\": \"a\"}", "the tokenizer gives 'eos_token' to the chat template"}};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        json_t *bad = json_loads(wrong[i][0], 0, NULL);
        check_status(chat_template_set_defaults(chat, bad), ST_INPUT);
        check_text(wrong[i][1]);
        json_decref(bad);
    }
    check_rendered(chat, "{\"x\": false, \"w\": 3}", "\n 2.03None");
    chat_template_free(chat);
    chat_template_free(saved);
    json_decref(values);
    str_release(&text);
}

/* A template that finds no memory is no wrong input. */
TEST(full_memory_is_no_fault_of_a_template) {
    const char source[] = "{% for m in messages %}{{ m.content ~ '!' }}{% endfor %}";
    ChatTemplate *chat;
    check_ok(chat_template_parse("loop", source, strlen(source), &chat));
    json_t *variables = json_pack("{s:[{s:s}]}", "messages", "content", "a");
    int failed = 0;
    for (long n = 1; n <= 4; n++) {
        ChatRendering rendering = {0};
        arena_fail_at(n);
        Status status = render(chat, variables, &rendering);
        arena_fail_at(0);
        if (status != ST_OK) assert_int_equal(status, ST_RESOURCE), failed++;
        chat_rendering_release(&rendering);
    }
    assert_true(failed > 0);
    json_decref(variables);
    chat_template_free(chat);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_templates_give_what_jinja2_gives),
        cmocka_unit_test(templates_in_configs_give_what_jinja2_gives),
        cmocka_unit_test(expressions_mean_what_jinja2_says),
        cmocka_unit_test(statements_and_white_space),
        cmocka_unit_test(templates_give_what_jinja2_gives),
        cmocka_unit_test(generation_marks_are_bytes_of_the_text),
        cmocka_unit_test(what_runs_wild_is_stopped),
        cmocka_unit_test(shipped_templates_and_those_of_a_directory),
        cmocka_unit_test(defaults_are_part_of_what_is_saved),
        cmocka_unit_test(full_memory_is_no_fault_of_a_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
