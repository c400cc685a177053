/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of other tools: their names of roles, their marks and calls, and what is said of what no template writes. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/data.h"
#include "data/formats/message.h"

static char folder[256];
static Tokenizer *tokenizer;
static Chat *named, *any, *developers;

/* A branch for each role that it knows, as most models have it. */
#define NAMED(more)                                                                                                                                       \
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.role == 'system' " more " %}[{{ m.role }}]{{ m.content }}"               \
    "{% elif m.role == 'user' %}[user]{{ m.content }}{% elif m.role == 'tool' %}[tool]{{ m.content }}"                                                    \
    "{% elif m.role == 'assistant' %}[answer]{{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments | tojson }}>" \
    "{% endfor %}.{% endif %}{% endfor %}{% if add_generation_prompt %}[answer]{% endif %}"
static const char any_role[] =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}.{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

static Chat *open_chat(const char *name, const char *template) {
    Chat *chat;
    check_ok(chat_open("recipes/demo/model", NULL, temp_text(folder, name, template), NULL, tokenizer, &chat));
    return chat;
}

static int set_up(void **state) {
    (void)state;
    temp_dir_make(folder, sizeof folder);
    check_ok(tokenizer_load("recipes/demo/model", &tokenizer));
    named = open_chat("named.jinja", NAMED(""));
    developers = open_chat("developers.jinja", NAMED("or m.role == 'developer'"));
    any = open_chat("any.jinja", any_role);
    return 0;
}

static int clean_up(void **state) {
    (void)state;
    chat_close(named);
    chat_close(developers);
    chat_close(any);
    tokenizer_free(tokenizer);
    temp_dir_remove(folder);
    return 0;
}

static void append_note(void *context, const char *text) {
    if (strstr(text, NO_END)) return; /* none of these templates writes a special token */
    const char *row = strstr(text, "1 row with ");
    str_printf(context, "%s%s", ((Str *)context)->len ? "; " : "", row ? row + strlen("1 row with ") : text);
}

static const char *train_on = "auto";

/* What a row is rendered as, trained parts in { }, and the notes about it: "text # note; note". A question: its text alone. */
static const char *read_row(const Chat *chat, const char *format, const char *row_text, bool question, bool padded) {
    static char result[4000];
    RowNotes notes = {0}, all = {0};
    DataConfig config = {.train_on = train_on, .chat = chat, .notes = &notes, .padded = padded};
    Encoding encoding = {0};
    Str text = {0}, said = {0};
    json_error_t error;
    json_t *row = json_loads(row_text, 0, &error);
    if (!row) fail_msg("%s: %s", row_text, error.text);
    Status status = question ? row_question(row, &config, tokenizer, &encoding.ids)
                             : data_format_encode(data_format_find(format), row, &config, tokenizer, &encoding);
    const Ids *ids = &encoding.ids, *labels = &encoding.labels;
    for (size_t i = 0, end; status == ST_OK && i < ids->n; i = end) {
        bool trained = !question && labels->data[i] != LABEL_NONE;
        for (end = i + 1; end < ids->n && (question || (labels->data[end] != LABEL_NONE) == trained);) end++;
        if (trained) str_append_char(&text, '{');
        check_ok(tokenizer_decode(tokenizer, ids->data + i, end - i, false, &text));
        if (trained) str_append_char(&text, '}');
    }
    row_notes_add(&all, &notes, "f", "line", 1);
    for (size_t i = 0; i < all.n; i++) str_clear(&all.items[i].places);
    row_notes_report(&all, "rows", append_note, &said);
    snprintf(result, sizeof result, "%s%s%s", status == ST_OK ? str_text(&text) : status_text(), said.len ? " # " : "", str_text(&said));
    str_release(&text);
    str_release(&said);
    row_notes_release(&notes);
    row_notes_release(&all);
    ids_release(&encoding.ids);
    ids_release(&encoding.labels);
    json_decref(row);
    return result;
}

/* Whether a row is noted because its chat template ends no answer with a special token. */
static bool lacks_end(const Chat *chat) {
    RowNotes notes = {0};
    Encoding encoding = {0};
    json_t *row = json_loads("{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}]}", 0, NULL);
    DataConfig config = {.train_on = "auto", .chat = chat, .notes = &notes};
    check_ok(data_format_encode(data_format_find("messages"), row, &config, tokenizer, &encoding));
    bool lacks = notes.n == 1 && strcmp(notes.items[0].text, NO_END) == 0;
    ids_release(&encoding.ids);
    ids_release(&encoding.labels);
    row_notes_release(&notes);
    json_decref(row);
    return lacks;
}

static void check_row(const Chat *chat, const char *row, const char *expected) {
    assert_string_equal(read_row(chat, "messages", row, false, false), expected);
}

#define M(role, content) "{\"role\": \"" role "\", \"content\": \"" content "\"}"
#define ROW(messages) "{\"messages\": [" messages "]}"
#define LEAVES_OUT "whose text the chat template '%s' leaves out: the model does not see it"

static const char *with_path(const char *format, const char *file) {
    static char text[600];
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    snprintf(text, sizeof text, format, path);
    return text;
}

TEST(roles_go_by_other_names) {
    check_row(named, ROW(M("human", "q") "," M("gpt", "a")),
              "[user]q[answer]{a.} # a message of role 'human', which is read as 'user'; a message of role 'gpt', which is read as 'assistant'");
    check_row(
        any, ROW(M("User", "q") "," M("Assistant", "a")),
        "[user]q.[assistant]{a.} # a message of role 'User', which is read as 'user'; a message of role 'Assistant', which is read as 'assistant'");
    check_row(named, ROW(M("developer", "d") "," M("user", "q") "," M("assistant", "a")),
              "[system]d[user]q[answer]{a.} # a message of role 'developer', which is read as 'system'");
    check_row(developers, ROW(M("developer", "d") "," M("user", "q") "," M("assistant", "a")), "[developer]d[user]q[answer]{a.}");
    check_row(named, ROW(M("user", "q") "," M("assistant", "a")), "[user]q[answer]{a.}");
    /* the answer is not part of the question under any name */
    assert_string_equal(read_row(named, NULL, ROW(M("user", "q") "," M("model", "a")), true, false),
                        "[user]q[answer] # a message of role 'model', which is read as 'assistant'");
}

TEST(roles_that_a_template_does_not_write_are_named) {
    const char *context = ROW(M("context", "There are 42 fish.") "," M("user", "q") "," M("assistant", "a"));
    for (int again = 0; again < 2; again++) /* what is known of other conversations changes nothing */
        check_row(named, context, with_path("[user]q[answer]{a.} # a message of role 'context' " LEAVES_OUT, "named.jinja"));
    /* a few letters may occur in a text by chance */
    check_row(named, ROW(M("context", "e") "," M("user", "here") "," M("assistant", "a")),
              with_path("[user]here[answer]{a.} # a message of role 'context' " LEAVES_OUT, "named.jinja"));
    check_row(
        any, context,
        with_path("[context]There are 42 fish..[user]q.[assistant]{a.} # a message of role 'context', which the chat template '%s' does not mention",
                  "any.jinja"));
    check_row(any, ROW(M("user", "q") "," M("asistant", "b") "," M("user", "q") "," M("assistant", "a")),
              with_path("[user]q.[asistant]b.[user]q.[assistant]{a.} # a message of role 'asistant', which the chat template '%s' does not mention: "
                        "did you mean 'assistant'?",
                        "any.jinja"));
    check_row(named, ROW("{\"role\": \"user\", \"name\": \"Bob\", \"content\": \"q\"}," M("assistant", "a")),
              with_path("[user]q[answer]{a.} # a 'name' of a message of role 'user', which the chat template '%s' does not write", "named.jinja"));
    /* a question without its last message asks nothing */
    assert_non_null(strstr(read_row(named, NULL, ROW(M("user", "q") "," M("assistant", "a") "," M("narrator", "And then?")), true, false),
                           "leaves out message 3 of role 'narrator', which is the question"));
}

TEST(marks_of_all_tools_keep_a_turn_out_of_training) {
    static const char *const marks[] = {"\"train\": false",     "\"weight\": 0",       "\"loss_weight\": 0", "\"loss\": false",
                                        "\"trainable\": false", "\"training\": false", "\"loss_mask\": 0",   "\"loss_scale\": 0.0",
                                        "\"loss_mask\": false", "\"loss\": 0"};
    char row[400];
    for (size_t i = 0; i < COUNT_OF(marks); i++) {
        snprintf(row, sizeof row,
                 ROW(M("user", "q") ",{\"role\": \"assistant\", \"content\": \"A cow.\", %s}," M("user", "r") "," M("assistant", "a")), marks[i]);
        check_row(named, row, "[user]q[answer]A cow..[user]r[answer]{a.}");
        snprintf(row, sizeof row,
                 "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"gpt\", \"value\": \"A cow.\", %s},"
                 " {\"from\": \"human\", \"value\": \"r\"}, {\"from\": \"gpt\", \"value\": \"a\"}]}",
                 marks[i]);
        assert_string_equal(read_row(named, "sharegpt", row, false, false), "[user]q[answer]A cow..[user]r[answer]{a.}");
    }
    check_row(named, ROW(M("user", "q") ",{\"role\": \"assistant\", \"content\": \"a\", \"loss\": 0.7}"),
              "[user]q[answer]{a.} # a message whose 'loss' is neither true nor false, and is not read");
    check_row(named, ROW(M("user", "q") ",{\"role\": \"assistant\", \"content\": \"a\", \"trian\": false, \"id\": \"\", \"mask\": null}"),
              "[user]q[answer]{a.} # a message that has a key 'trian', which is never read; the nearest known is 'train'");
    /* axolotl's: offsets of characters, the last one included */
    check_row(named,
              ROW(M("user",
                    "q") ",{\"role\": \"assistant\", \"content\": \"\\u00e9 cow. Trout.\", \"train_detail\": ["
                         "{\"begin_offset\": 0, \"end_offset\": 5, \"train\": false}, {\"begin_offset\": 6, \"end_offset\": 12, \"train\": true}]}"),
              "[user]q[answer]\u00e9 cow.{ Trout..}");
}

TEST(marks_of_questions_do_not_count_where_all_is_trained) {
    train_on = "all";
    check_row(named,
              ROW("{\"role\": \"user\", \"content\": \"q\", \"loss_mask\": 0},{\"role\": \"assistant\", \"content\": \"a\", \"loss_mask\": 1}"),
              "{[user]q[answer]a.} # a message of role 'user' that is marked as context, which data.train_on: all trains");
    check_row(named, ROW("{\"role\": \"user\", \"content\": \"q\", \"weight\": 0}," M("assistant", "a")),
              "message 1 (user) is marked as context, but with data.train_on: all only answers can be");
    train_on = "auto";
}

TEST(older_calls_are_read_as_calls) {
    static const char call[] =
        "{\"role\": \"assistant\", \"content\": null, \"function_call\": {\"name\": \"w\", \"arguments\": \"{\\\"p\\\": 1}\"}}",
                      functions[] = "\"functions\": [{\"name\": \"w\"}]}";
    char row[900];
    snprintf(row, sizeof row,
             "{\"messages\": [" M("user", "q") ", %s, {\"role\": \"function\", \"name\": \"w\", \"content\": \"sun\"}, " M("assistant", "a") "], %s",
             call, functions);
    check_row(named, row,
              "[{\"type\": \"function\", \"function\": {\"name\": \"w\"}}][user]q[answer]{<w {\"p\": 1}>.}[tool]sun[answer]{a.}"
              " # 'functions', which are read as 'tools'; a 'function_call', which is read as 'tool_calls';"
              " a message of role 'function', which is read as 'tool'");
    /* a turn that is a call, and calls as texts */
    check_row(named, ROW(M("user", "q") ",{\"role\": \"tool_call\", \"content\": \"{\\\"name\\\": \\\"w\\\", \\\"arguments\\\": {\\\"p\\\": 1}}\"}"),
              "[user]q[answer]{<w {\"p\": 1}>.} # a message of role 'tool_call', which is read as 'function_call'");
    check_row(named,
              ROW(M("user", "q") ",{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\":"
                                 " \"[{\\\"function\\\": {\\\"name\\\": \\\"w\\\", \\\"arguments\\\": {\\\"p\\\": 1}}}]\"}"),
              "[user]q[answer]{<w {\"p\": 1}>.}");
    check_row(named, ROW(M("user", "q") ",{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"w\", \"arguments\": \"{bad\"}}]}"),
              "[user]q[answer]{<w \"{bad\">.} # a call whose 'arguments' are a text that is not a JSON object: it is written unchanged");
    check_row(named, ROW(M("user", "q") ",{\"role\": \"assistant\", \"content\": \"a\", \"function_call\": \"w()\"}"),
              "'function_call' of message 2 is not an object with 'name' and 'arguments'");
    check_row(named, "{\"tools\": [\"{\\\"name\\\": \\\"w\\\"}\"], \"messages\": [" M("user", "q") "," M("assistant", "a") "]}",
              "[{\"name\": \"w\"}][user]q[answer]{a.}");
    check_row(named, "{\"tools\": [\"w\"], \"messages\": [" M("user", "q") "," M("assistant", "a") "]}",
              "entry 1 of 'tools' is a text that is not a JSON object");
}

TEST(a_system_column_is_the_system_message) {
    static const char *const rows[][2] = {
        {"messages", "{\"system\": \"P\", \"messages\": [" M("user", "q") "," M("assistant", "a") "]}"},
        {"messages", "{\"system_prompt\": \"P\", \"messages\": [" M("user", "q") "," M("assistant", "a") "]}"},
        {"prompt_completion", "{\"system\": \"P\", \"prompt\": [" M("user", "q") "], \"completion\": [" M("assistant", "a") "]}"},
        {"preference",
         "{\"system\": \"P\", \"prompt\": [" M("user", "q") "], \"chosen\": [" M("assistant", "a") "], \"rejected\": [" M("assistant", "b") "]}"},
        {"preference",
         "{\"system\": \"P\", \"chosen\": [" M("user", "q") "," M("assistant", "a") "], \"rejected\": [" M("user", "q") "," M("assistant", "b") "]}"},
        {"kto", "{\"system\": \"P\", \"prompt\": [" M("user", "q") "], \"completion\": [" M("assistant", "a") "], \"label\": true}"},
        {"sharegpt", "{\"system\": \"P\", \"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"gpt\", \"value\": \"a\"}]}"},
        {"sharegpt", "{\"system\": \"P\", \"conversations\": [" M("user", "q") "," M("assistant", "a") "]}"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_string_equal(read_row(named, rows[i][0], rows[i][1], false, false), "[system]P[user]q[answer]{a.}");
        assert_string_equal(read_row(named, NULL, rows[i][1], true, false), "[system]P[user]q[answer]");
    }
    check_row(named, "{\"system\": \"P\", \"messages\": [" M("system", "own") "," M("user", "q") "," M("assistant", "a") "]}",
              "[system]own[user]q[answer]{a.} # a system message and another system text in a separate column: the message is used");
    check_row(named, "{\"system\": \"P\", \"messages\": [" M("system", "P") "," M("user", "q") "," M("assistant", "a") "]}",
              "[system]P[user]q[answer]{a.}");
    check_row(named, "{\"system\": [\"P\"], \"messages\": [" M("user", "q") "," M("assistant", "a") "]}",
              "[user]q[answer]{a.} # a column 'system' that is not a text: it is left out");
    assert_non_null(strstr(read_row(named, "prompt_completion", "{\"system\": \"P\", \"prompt\": \"q\", \"completion\": \"a\"}", false, false),
                           "a column 'system' and a prompt that is a text: the column is ignored"));
}

#define TOOL(properties) "{\"function\": {\"name\": \"w\", \"parameters\": {\"properties\": " properties "}}}"
#define CALL(arguments) \
    "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": \"w\", \"arguments\": " arguments "}}]}"
#define CALLED(properties, arguments) "{\"tools\": [" TOOL(properties) "], \"messages\": [" M("user", "q") "," CALL(arguments) "]}"

TEST(nulls_that_arrow_puts_into_structs_are_none) {
    static const char clean[] = "[" TOOL("{\"p\": {\"type\": \"string\"}}") "][user]q[answer]{<w {\"p\": \"x\"}>.}",
                      kept[] = "[" TOOL("{\"p\": {\"type\": \"string\"}}") "][user]q[answer]{<w {\"p\": null}>.}";
    const char *padded = CALLED("{\"p\": {\"type\": \"string\", \"enum\": null}, \"n\": null}", "{\"p\": \"x\", \"n\": null}");
    assert_string_equal(read_row(named, "messages", padded, false, true), clean);
    assert_string_equal(read_row(named, "messages", padded, false, false), clean); /* no schema is null, so it was Arrow */
    check_row(named, CALLED("{\"p\": {\"type\": \"string\"}}", "{\"p\": \"x\", \"n\": null}"),
              clean);                                                                   /* nor is an argument that the function lacks */
    check_row(named, CALLED("{\"p\": {\"type\": \"string\"}}", "{\"p\": null}"), kept); /* as it was written */
    assert_string_equal(read_row(named, "messages", CALLED("{\"p\": {\"type\": \"string\"}}", "{\"p\": null}"), false, true),
                        "[" TOOL("{\"p\": {\"type\": \"string\"}}") "][user]q[answer]{<w {}>.}");
    check_row(named, ROW(M("user", "q") "," CALL("{\"p\": null}")), "[user]q[answer]{<w {\"p\": null}>.}");
}

TEST(empty_answers_are_counted) {
    static const char note[] = "# an empty answer: only its end token is trained";
    static const char *const rows[][2] = {
        {"messages", ROW(M("user", "q") "," M("assistant", ""))},
        {"messages", ROW(M("user", "q") "," M("assistant", " \\n"))},
        {"prompt_completion", "{\"prompt\": \"q\", \"completion\": \"\"}"},
        {"alpaca", "{\"instruction\": \"q\", \"input\": \"\", \"output\": \" \"}"},
        {"text", "{\"text\": \"\"}"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) assert_non_null(strstr(read_row(named, rows[i][0], rows[i][1], false, false), note));
    check_row(named, ROW(M("user", "q") "," CALL("{}")), "[user]q[answer]{<w {}>.}");
    check_row(named, ROW(M("user", "") "," M("assistant", "a")), "[user][answer]{a.}");
}

/* Rows with the words of a control token in them: how many of it there are. */
static void check_controls(const char *format, const char *row_text, bool question, bool plain, int expected, bool noted) {
    Chat *chat = open_chat("ends.jinja",
                           "{% if tools %}{{ tools | tojson }}{% endif %}{{ documents[0] if documents else '' }}{% for m in messages %}[{{ m.role }}]"
                           "{{ m.content | trim }}<eos>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}");
    RowNotes notes = {0};
    DataConfig config = {.chat = chat, .notes = &notes, .plain_control = plain};
    Encoding encoding = {0};
    json_t *row = json_loads(row_text, 0, NULL);
    int n = 0;
    check_ok(question ? row_question(row, &config, tokenizer, &encoding.ids)
                      : data_format_encode(data_format_find(format), row, &config, tokenizer, &encoding));
    for (size_t i = 0; i < encoding.ids.n; i++) n += encoding.ids.data[i] == tokenizer_eos(tokenizer);
    if (n != expected) fail_msg("%s: %d control tokens, expected %d", row_text, n, expected);
    assert_int_equal(notes.n, noted);
    if (noted) assert_non_null(strstr(notes.items[0].text, "with '<eos>' in its text"));
    row_notes_release(&notes);
    ids_release(&encoding.ids);
    ids_release(&encoding.labels);
    json_decref(row);
    chat_close(chat);
}

TEST(control_tokens_in_words_are_counted_or_words) {
    static const char turns[] = ROW(M("user", " <eos>a<eos> ") "," M("assistant", "b<eos>c")), text[] = "{\"text\": \"a<eos>b\"}",
                      alpaca[] = "{\"instruction\": \"a<eos>b\", \"output\": \"c\"}";
    check_controls("messages", turns, false, false, 5, true);
    check_controls("messages", turns, false, true, 2, false);
    check_controls("messages", turns, true, false, 3, true);
    check_controls("messages", turns, true, true, 1, false);
    check_controls("text", text, false, false, 2, true);
    check_controls("text", "{\"text\": \"<bos>ab<eos>\"}", false, false, 1, false); /* tokens that are in the text anyway */
    check_controls("prompt_completion", "{\"prompt\": \"a<eos>\", \"completion\": \"b\"}", false, false, 2, true);
    check_controls("text", text, false, true, 1, false);
    check_controls("text", text, true, true, 0, false);
    check_controls("alpaca", alpaca, false, false, 2, true);
    check_controls("alpaca", alpaca, false, true, 1, false);
    static const char *const tools[] = {
        "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"ends with <eos>\"}}]",
        "\"tools\": \"[{\\\"name\\\": \\\"<eos>\\\"}]\"",
        "\"tools\": [{\"name\": \"f\", \"parameters\": {\"properties\": {\"role\": {\"enum\": [\"<eos>\"]}}}}]",
        "\"tools\": [{\"name\": \"f\", \"parameters\": {\"properties\": {\"<eos>\": {\"type\": \"string\"}}}}]",
        "\"tools\": [{\"name\": \"f\", \"role\": \"<eos>\"}]",
        "\"documents\": [\"a<eos>\"]",
    };
    for (size_t i = 0; i < COUNT_OF(tools); i++) {
        Str given = {0};
        str_printf(&given, "{%s, \"messages\": [%s, %s]}", tools[i], M("user", "a"), M("assistant", "b"));
        check_controls("messages", str_text(&given), false, false, 3, true);
        check_controls("messages", str_text(&given), false, true, 2, false);
        check_controls("messages", str_text(&given), true, false, 2, true);
        check_controls("messages", str_text(&given), true, true, 1, false);
        str_release(&given);
    }
    /* what is trained is found in the text without guards */
    Chat *chat = open_chat(
        "ends.jinja", "{% for m in messages %}[{{ m.role }}]{{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}");
    DataConfig config = {.chat = chat, .plain_control = true};
    Encoding encoding = {0};
    Str trained = {0}, whole = {0};
    json_t *row = json_loads(turns, 0, NULL);
    check_ok(data_format_encode(data_format_find("messages"), row, &config, tokenizer, &encoding));
    size_t first = 0;
    while (encoding.labels.data[first] == LABEL_NONE) first++;
    check_ok(tokenizer_decode(tokenizer, encoding.ids.data + first, encoding.ids.n - first, false, &trained));
    check_ok(tokenizer_decode(tokenizer, encoding.ids.data, encoding.ids.n, false, &whole));
    assert_string_equal(str_text(&trained), "b<eos>c<eos>");
    assert_string_equal(str_text(&whole), "[user] <eos>a<eos> <eos>[assistant]b<eos>c<eos>");
    ids_release(&encoding.ids);
    ids_release(&encoding.labels);
    str_release(&trained);
    str_release(&whole);
    json_decref(row);
    chat_close(chat);
}

static void append_line(void *context, const char *text) { str_printf(context, "%s\n", text); }

TEST(notes_count_rows_and_name_the_first) {
    RowNotes of_row = {0}, all = {0}, again = {0};
    Str said = {0};
    for (int line = 1; line <= 10; line++) {
        row_notes_clear(&of_row);
        row_note(&of_row, "with a %s", "tail");
        row_note(&of_row, "with a tail");
        if (line == 3) row_note(&of_row, "without a head");
        row_notes_add(&all, &of_row, "f", "line", (size_t)line);
    }
    JsonWriter w = {0};
    jw_object(&w, NULL);
    row_notes_write(&all, &w);
    jw_end_object(&w);
    json_t *about = json_loads(str_text(&w.text), 0, NULL);
    check_ok(row_notes_read(about, &again));
    row_notes_report(&again, "d", append_line, &said);
    assert_string_equal(str_text(&said),
                        "d: 10 rows with a tail (f line 1, f line 2, f line 3, f line 4, f line 5, f line 6, f line 7, f line 8 and 2 more)\n"
                        "d: 1 row without a head (f line 3)\n");
    str_clear(&said);
    for (int kind = 0; kind < 20; kind++) {
        row_notes_clear(&of_row);
        row_note(&of_row, "with %d legs", kind);
        row_notes_add(&all, &of_row, "f", "line", 1);
    }
    row_notes_report(&all, "d", append_line, &said);
    assert_non_null(strstr(str_text(&said), "d: 6 rows with other oddities: 16 kinds are named above\n"));
    json_decref(about);
    jw_release(&w);
    str_release(&said);
    row_notes_release(&of_row);
    row_notes_release(&all);
    row_notes_release(&again);
}

TEST(a_template_without_an_end_is_noted) {
    Chat *ends = open_chat(
        "ends.jinja", "{% for m in messages %}[{{ m.role }}]{{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}");
    assert_true(lacks_end(any));
    assert_false(lacks_end(ends));
    chat_close(ends);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_template_without_an_end_is_noted),
        cmocka_unit_test(roles_go_by_other_names),
        cmocka_unit_test(roles_that_a_template_does_not_write_are_named),
        cmocka_unit_test(marks_of_all_tools_keep_a_turn_out_of_training),
        cmocka_unit_test(marks_of_questions_do_not_count_where_all_is_trained),
        cmocka_unit_test(older_calls_are_read_as_calls),
        cmocka_unit_test(a_system_column_is_the_system_message),
        cmocka_unit_test(nulls_that_arrow_puts_into_structs_are_none),
        cmocka_unit_test(empty_answers_are_counted),
        cmocka_unit_test(control_tokens_in_words_are_counted_or_words),
        cmocka_unit_test(notes_count_rows_and_name_the_first),
    };
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
