/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of tools: each template writes a conversation with calls, and the same calls are read from what it wrote. */
#include "tests/support/check.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/rng.h"
#include "lib/grammar/grammar.h"
#include "lib/text/tool_parts.h"

/* ---- an answer taken apart ---- */

typedef struct Parts {
    Str text, reasoning, calls; /* calls: NAME(ARGUMENTS) with a line end each, arguments in one form */
    size_t n_calls;
} Parts;

static Status take_piece(void *context, const ReplyPiece *piece) {
    Parts *parts = context;
    if (piece->kind == REPLY_TEXT) str_append_n(&parts->text, piece->text.data, piece->text.len);
    if (piece->kind == REPLY_REASONING) str_append_n(&parts->reasoning, piece->text.data, piece->text.len);
    if (piece->kind != REPLY_CALL) return ST_OK;
    assert_int_equal(piece->call, parts->n_calls++);
    json_t *arguments = json_loadb(piece->arguments.data, piece->arguments.len, 0, NULL);
    if (!json_is_object(arguments)) fail_msg("arguments '%.*s'", (int)piece->arguments.len, piece->arguments.data);
    char *text = json_dumps(arguments, JSON_SORT_KEYS);
    str_append_n(&parts->calls, piece->name.data, piece->name.len);
    str_printf(&parts->calls, "(%s)\n", text);
    free(text);
    json_decref(arguments);
    return ST_OK;
}

static void parts_release(Parts *parts) {
    str_release(&parts->text);
    str_release(&parts->reasoning);
    str_release(&parts->calls);
    *parts = (Parts){0};
}

/* In pieces of `step` bytes, or with 0 of random lengths. */
static void take_apart(const ChatTemplate *chat, const ReplyOptions *options, const char *text, size_t len, size_t step, Parts *parts) {
    Reply *reply;
    *parts = (Parts){0};
    check_ok(reply_new(chat, options, &reply));
    for (size_t at = 0, n; at < len; at += n) {
        n = step ? step : 1 + (size_t)rng_below(rng_key(3, RNG_TEST, len), at, 9);
        n = MIN(n, len - at);
        check_ok(reply_push(reply, text + at, n, take_piece, parts));
    }
    check_ok(reply_finish(reply, take_piece, parts));
    reply_free(reply);
}

static ChatTemplate *template_of(const char *source) {
    ChatTemplate *chat;
    check_ok(chat_template_parse("test", source, strlen(source), &chat));
    return chat;
}

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"d\", \"parameters\": {\"type\": \"object\", \"properties\": {"
    "\"city\": {\"type\": \"string\", \"description\": \"c\"}, \"days\": {\"type\": \"integer\", \"description\": \"n\"}, \"zip\": {\"type\": \"string\", \"description\": \"z\"},"
    " \"exact\": {\"type\": \"boolean\", \"description\": \"e\"}, \"where\": {\"type\": \"object\", \"description\": \"w\"}}, \"required\": [\"city\"]}}},"
    " {\"type\": \"function\", \"function\": {\"name\": \"stop\", \"description\": \"s\", \"parameters\": {\"type\": \"object\", \"properties\": {}}}}]";

/* ---- tables ---- */

static const struct {
    const char *signs; /* a template of these marks */
    const char *answer, *text, *reasoning, *calls, *prompt;
} answers[] = {
    {"<tool_call></tool_call><think>",
     "Let me see.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"a </tool_call> b\", \"x\": 1.50}}\n</tool_call>",
     "Let me see.", "", "get_weather({\"city\": \"a </tool_call> b\", \"x\": 1.5})\n", ""},
    {"<tool_call></tool_call><think>", "<think>\nwell\n\nyes\n</think>\n\nThe answer.\n", "The answer.\n", "well\n\nyes", "", ""},
    {"<tool_call></tool_call><think>",
     "so\n</think>\n\n<tool_call>{\"name\": \"stop\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"stop\"}</tool_call>", "", "so",
     "stop({})\nstop({})\n", "user\n<think>\n"},
    {"<tool_call></tool_call><think>", "a <tool_cal and 1 < 2 <", "a <tool_cal and 1 < 2 <", "", "", ""},
    {"<tool_call></tool_call>", "<tool_call>{\"name\": \"stop\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>", "", "", "stop({\"a\": 1})\n", ""},
    {"<tool_call><parameter=<think>",
     "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\nnord\n</parameter>\n<parameter=zip>\n07\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n"
     "<parameter=where>\n{\"a\": [1]}\n</parameter>\n</function>\n</tool_call>",
     "", "", "get_weather({\"city\": \"Paris\\nnord\", \"days\": 3, \"exact\": true, \"where\": {\"a\": [1]}, \"zip\": \"07\"})\n", ""},
    {"<tool_call><arg_key>",
     "ok\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
     "ok", "", "get_weather({\"city\": \"Paris\", \"days\": 2})\n", ""},
    {"<|tool_call><tool_call|><|channel>thought",
     "<|channel>thought\nhm\n<channel|>Yes.<|tool_call>call:get_weather{city:<|\"|>a,b}<|\"|>,days:2,exact:false,where:{a:[1,<|\"|>x<|\"|>],<|\"|>b<|\"|>:{}}}<tool_call|>",
     "Yes.", "hm", "get_weather({\"city\": \"a,b}\", \"days\": 2, \"exact\": false, \"where\": {\"a\": [1, \"x\"], \"b\": {}}})\n", ""},
    {"[TOOL_CALLS][ARGS][THINK]", "[THINK]t[/THINK]Hi[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{\"city\": \"P\"}[TOOL_CALLS]stop[ARGS]{}", "Hi",
     "t", "get_weather({\"city\": \"P\"})\nstop({})\n", ""},
    {"[TOOL_CALLS]", "[TOOL_CALLS] [{\"name\": \"stop\", \"arguments\": {}}, {\"arguments\": {\"city\": \"P\"}, \"name\": \"get_weather\"}]", "", "",
     "stop({})\nget_weather({\"city\": \"P\"})\n", ""},
    {"List of tools: <|im_start|>",
     "<|tool_call_start|>[get_weather(city=\"Par'is\\n\", days=2, where={'a': (1, None)}), stop()]<|tool_call_end|>Checking.", "Checking.", "",
     "get_weather({\"city\": \"Par'is\\n\", \"days\": 2, \"where\": {\"a\": [1, null]}})\nstop({})\n", ""},
    {"'{\"name\": \"' \"parameters\": <|python_tag|>", " {\"name\": \"get_weather\", \"parameters\": {\"city\": \"P\"}}", "", "",
     "get_weather({\"city\": \"P\"})\n", ""},
    {"'{\"name\": \"' \"parameters\": <|python_tag|>", "<|python_tag|>brave_search.call(query=\"x y\")", "", "",
     "brave_search({\"query\": \"x y\"})\n", ""},
    {"'{\"name\": \"' \"parameters\": <|python_tag|>", "{not JSON} at all", "{not JSON} at all", "", "", ""},
    {"'{\"name\": \"' \"parameters\": <|python_tag|>", "Plain.", "Plain.", "", "", ""},
    {"<|channel|><|message|>",
     "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"P\"}<|call|>",
     "", "think", "get_weather({\"city\": \"P\"})\n", ""},
    {"<|channel|><|message|>", " to=functions.stop<|channel|>commentary json<|message|>{}<|call|>", "", "", "stop({})\n", ""},
    {"<|channel|><|message|>", "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>final<|message|>The answer.", "The answer.",
     "think", "", ""},
    {"<|channel|><|message|>", "no header", "no header", "", "", ""},
    {"nothing", "<tool_call>{\"name\": \"stop\"}</tool_call>", "<tool_call>{\"name\": \"stop\"}</tool_call>", "", "", ""},
};

TEST(answers_are_taken_apart) {
    json_t *tools = json_loads(tools_text, 0, NULL);
    for (size_t i = 0; i < COUNT_OF(answers); i++) {
        Str source = {0};
        str_printf(&source, "{%% raw %%}%s{%% endraw %%}", answers[i].signs);
        ChatTemplate *chat = template_of(str_text(&source));
        const ReplyOptions options = {
            .tools = tools, .prompt = {answers[i].prompt, strlen(answers[i].prompt)}, .calls = true, .split_reasoning = true};
        static const size_t steps[] = {1000, 1, 0, 3};
        for (size_t k = 0; k < COUNT_OF(steps); k++) {
            Parts parts;
            take_apart(chat, &options, answers[i].answer, strlen(answers[i].answer), steps[k], &parts);
            if (strcmp(str_text(&parts.text), answers[i].text) || strcmp(str_text(&parts.reasoning), answers[i].reasoning) ||
                strcmp(str_text(&parts.calls), answers[i].calls))
                fail_msg("'%s' by %zu: text '%s', reasoning '%s', calls '%s'", answers[i].answer, steps[k], str_text(&parts.text),
                         str_text(&parts.reasoning), str_text(&parts.calls));
            parts_release(&parts);
        }
        chat_template_free(chat);
        str_release(&source);
    }
    json_decref(tools);
}

/* Without options an answer is text as it is. What is no call is text, to the byte. */
TEST(what_is_no_call_is_text) {
    ChatTemplate *chat = template_of("<tool_call></tool_call><think>");
    static const char *const texts[] = {"a\n<tool_call>no</tool_call>\n b \n",
                                        "<tool_call>{\"name\": 3}</tool_call>",
                                        "<tool_call>",
                                        "<tool_call>{\"name\": \"stop\"",
                                        "\n\n x \n",
                                        "<think>a</think>"};
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        for (int calls = 0; calls < 2; calls++)
            for (size_t step = 0; step < 4; step++) {
                Parts parts;
                take_apart(chat, &(ReplyOptions){.calls = calls}, texts[i], strlen(texts[i]), step, &parts);
                Str blank = {0}; /* blanks before the mark of a call are left out */
                for (const char *c = texts[i]; *c; c++)
                    if (!(calls && *c == '\n' && strncmp(c + 1, "<tool_call>", 11) == 0)) str_append_char(&blank, *c);
                assert_string_equal(str_text(&parts.text), str_text(&blank));
                assert_int_equal(parts.n_calls, 0);
                str_release(&blank);
                parts_release(&parts);
            }
    chat_template_free(chat);
}

/* ---- templates of models ---- */

static char *render(const ChatTemplate *chat, const char *messages, const json_t *tools, bool prompt) {
    ChatRendering rendering = {0};
    json_t *list = json_loads(messages, 0, NULL);
    json_t *variables = json_pack("{s:o, s:O, s:b, s:s, s:s}", "messages", list, "tools", tools, "add_generation_prompt", prompt, "bos_token",
                                  "<BOS>", "eos_token", "<EOS>");
    Status status = chat_template_render(chat, variables, &(ChatOptions){.now = "2025-01-15"}, &rendering);
    char *text = status == ST_OK ? strdup(str_text(&rendering.text)) : NULL;
    chat_rendering_release(&rendering);
    json_decref(variables);
    return text;
}

/* An answer ends before the token that ends it. */
static void cut_end(char *text) {
    static const char *const ends[] = {"<|eot_id|>", "<|im_end|>", "<EOS>", "</s>"};
    size_t len = strlen(text);
    while (len > 0 && text[len - 1] == '\n') len--;
    text[len] = '\0';
    for (size_t i = 0; i < COUNT_OF(ends); i++)
        if (text_ends_with(text, ends[i])) text[strlen(text) - strlen(ends[i])] = '\0';
}

#define QUESTION "{\"role\": \"user\", \"content\": \"Weather?\"}"
#define CALL_1                                                                                                                                                                    \
    "{\"id\": \"call12345\", \"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"arguments\": {\"city\": \"S\xC3\xA3o \\\"P\\\"\", \"days\": 3, \"zip\": \"07\"," \
    " \"exact\": true, \"where\": {\"lat\": 1.5, \"tags\": [\"a\", \"b\"]}}}}"
#define CALL_2 "{\"id\": \"call12346\", \"type\": \"function\", \"function\": {\"name\": \"stop\", \"arguments\": {}}}"

/* Each template that writes calls in a known syntax. */
TEST(calls_survive_templates) {
    static const char *const calls[] = {CALL_1, CALL_1 ", " CALL_2};
    static const char wanted_1[] =
        "get_weather({\"city\": \"S\xC3\xA3o \\\"P\\\"\", \"days\": 3, \"exact\": true, \"where\": {\"lat\": 1.5, \"tags\": [\"a\", \"b\"]}, \"zip\": \"07\"})\n";
    char folder[512], path[1024];
    if (!shared_path("data/templates", folder, sizeof folder)) skip();
    json_t *tools = json_loads(tools_text, 0, NULL);
    DIR *dir = opendir(folder);
    size_t n_read = 0, n_known = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        ChatTemplate *chat;
        const ToolSyntax *syntax;
        if (!text_ends_with(entry->d_name, ".jinja")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        Mapping mapping;
        check_ok(file_map(path, &mapping));
        check_ok(chat_template_parse(entry->d_name, (const char *)mapping.data, mapping.size, &chat));
        file_unmap(&mapping);
        syntax = tool_syntax_of(chat);
        for (size_t i = 0; syntax && i < COUNT_OF(calls); i++) {
            Str messages = {0}, wanted = {0};
            str_printf(&messages, "[" QUESTION ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [%s]}]", calls[i]);
            str_printf(&wanted, "%s%s", wanted_1, i ? "stop({})\n" : "");
            char *prompt = render(chat, "[" QUESTION "]", tools, true), *whole = render(chat, str_text(&messages), tools, false);
            size_t same = 0;
            while (prompt && whole && prompt[same] && prompt[same] == whole[same]) same++;
            size_t mark = same; /* where the two part within a mark, the answer begins before it */
            while (whole && mark > 0 && !strchr("<>]", whole[mark - 1])) mark--;
            if (whole && mark > 0 && whole[mark - 1] == '<') same = mark - 1;
            if (whole) cut_end(whole + same);
            if (whole && strstr(whole, "get_weather") && strstr(whole + same, "lat")) {
                Parts parts;
                take_apart(chat, &(ReplyOptions){.tools = tools, .calls = true, .split_reasoning = true}, whole + same, strlen(whole + same), 0,
                           &parts);
                bool one =
                    i && parts.n_calls == 1 && (strcmp(tool_syntax_name(syntax), "harmony") == 0); /* its template writes the first call alone */
                if (strcmp(str_text(&parts.calls), one ? wanted_1 : str_text(&wanted)))
                    fail_msg("%s (%s): '%s' has calls '%s', text '%s'", entry->d_name, tool_syntax_name(syntax), whole + same, str_text(&parts.calls),
                             str_text(&parts.text));
                parts_release(&parts);
                n_read++;
            }
            free(prompt);
            free(whole);
            str_release(&messages);
            str_release(&wanted);
        }
        n_known += syntax != NULL;
        chat_template_free(chat);
    }
    closedir(dir);
    json_decref(tools);
    print_message("%zu conversations of %zu templates\n", n_read, n_known);
    assert_true(n_read >= 30);
}

/* ---- constraints on calls ---- */

TEST(required_calls_are_calls) {
    static const struct {
        const char *signs, *yes[3], *no[4];
    } cases[] = {
        {"<tool_call></tool_call>",
         {"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"P\"}}\n</tool_call>",
          "<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>"},
         {"", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>",
          "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>", "Hello"}},
        {"[TOOL_CALLS][ARGS]",
         {"[TOOL_CALLS]stop[ARGS]{}", "\xFF[TOOL_CALLS]stop\xFF[ARGS]{}", "[TOOL_CALLS]stop[ARGS]{}[TOOL_CALLS]stop[ARGS]{}"},
         {"[TOOL_CALLS]stop{}"}},
        {"'{\"name\": \"' \"parameters\": ", {"{\"name\": \"stop\", \"parameters\": {}}"}, {"{\"name\": \"stop\", \"arguments\": {}}"}},
        {"<|channel|><|message|>", {"<|channel|>commentary to=functions.stop <|constrain|>json<|message|>{}"}, {"<|channel|>final<|message|>"}},
    };
    json_t *tools = json_loads(tools_text, 0, NULL);
    Grammar *grammar;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Str source = {0};
        str_printf(&source, "{%% raw %%}%s{%% endraw %%}", cases[i].signs);
        ChatTemplate *chat = template_of(str_text(&source));
        const ToolSyntax *syntax = tool_syntax_of(chat);
        check_ok(grammar_tool_calls(syntax, tools, NULL, true, &grammar));
        for (size_t k = 0; k < 3 && cases[i].yes[k]; k++) {
            const char *text = cases[i].yes[k];
            if (!grammar_accepts(grammar, text, strlen(text))) fail_msg("'%s' is refused", text);
            Parts parts;
            if (strchr(text, '\xFF')) continue;
            take_apart(chat, &(ReplyOptions){.calls = true}, text, strlen(text), 0, &parts);
            assert_true(parts.n_calls > 0 && parts.text.len == 0);
            parts_release(&parts);
        }
        for (size_t k = 0; k < 4 && cases[i].no[k]; k++)
            if (grammar_accepts(grammar, cases[i].no[k], strlen(cases[i].no[k]))) fail_msg("'%s' is accepted", cases[i].no[k]);
        grammar_free(grammar);
        check_ok(grammar_tool_calls(syntax, tools, "stop", false, &grammar));
        assert_int_equal(grammar_accepts(grammar, cases[i].yes[0], strlen(cases[i].yes[0])), i > 0);
        grammar_free(grammar);
        check_status(grammar_tool_calls(syntax, tools, "none", false, &grammar), ST_INPUT);
        check_text("no tool 'none'");
        chat_template_free(chat);
        str_release(&source);
    }
    json_decref(tools);
    ChatTemplate *chat = template_of("<tool_call><arg_key>");
    tools = json_loads("[{\"function\": {\"name\": \"f\", \"parameters\": {\"not\": {}}}}]", 0, NULL);
    check_status(grammar_tool_calls(tool_syntax_of(chat), tools, NULL, false, &grammar), ST_INPUT);
    check_text("'glm'");
    chat_template_free(chat);
    chat = template_of("<tool_call></tool_call>");
    check_status(grammar_tool_calls(tool_syntax_of(chat), tools, NULL, false, &grammar), ST_INPUT);
    check_text("the tool 'f': the schema at '#': 'not'");
    chat_template_free(chat);
    json_decref(tools);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_taken_apart),
        cmocka_unit_test(what_is_no_call_is_text),
        cmocka_unit_test(calls_survive_templates),
        cmocka_unit_test(required_calls_are_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
