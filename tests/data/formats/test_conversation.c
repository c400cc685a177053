/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of conversations to tokens: which of them are trained, and what is refused. The tokenizer has a token for each byte and a few special ones. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>

#include "data/data.h"

static char folder[256];
static Tokenizer *tokenizer;
static const char chatml[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/* Bytes as GPT-2 writes them: printable ones unchanged, the others from U+0100 on. */
static void write_tokenizer(void) {
    FILE *file = fopen(temp_file(folder, "tokenizer.json"), "w");
    fprintf(file, "{\"added_tokens\": [");
    static const char *const special[] = {
        "<|im_start|>", "<|im_end|>", "<|endoftext|>",   "<|end|>",  "<end_of_turn>", "<start_of_turn>",
        "</s>",         "[INST]",     "<|end_of_text|>", "<|user|>", "<bos>",
    };
    for (int i = 0; i < (int)COUNT_OF(special); i++)
        fprintf(
            file,
            "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}",
            i ? ", " : "", 257 + i, special[i]);
    fprintf(
        file,
        "], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}, \"post_processor\": null,"
        " \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {");
    int next = 0x100;
    for (int b = 0; b < 256; b++) {
        bool plain = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        fprintf(file, "%s\"\\u%04x\": %d", b ? ", " : "", plain ? (unsigned)b : (unsigned)next++, b);
    }
    fprintf(file, ", \"\\u010a\\u010a\": 256}, \"merges\": [\"\\u010a \\u010a\"]}}"); /* two newlines are one token */
    fclose(file);
    temp_text(folder, "tokenizer_config.json", "{\"eos_token\": \"<|endoftext|>\"}");
}

static int set_up(void **state) {
    (void)state;
    temp_dir_make(folder, sizeof folder);
    write_tokenizer();
    check_ok(tokenizer_load(folder, &tokenizer));
    return 0;
}

static int clean_up(void **state) {
    (void)state;
    tokenizer_free(tokenizer);
    temp_dir_remove(folder);
    return 0;
}

/* Encodes one row; what is trained as text, parts with "|" between them. */
typedef struct Result {
    Status status;
    char whole[2000], trained[2000];
    size_t n, n_trained;
    bool remapped;
    int32_t templates;
} Result;

static Result test_conversation_encode(const char *format, const char *template, const char *train_on, const char *system, const char *row_text) {
    Result result = {0};
    Chat *chat;
    Encoding encoding = {0};
    json_error_t error;
    json_t *row = json_loads(row_text, 0, &error);
    if (!row) fail_msg("%s: %s", row_text, error.text);
    check_ok(chat_open(folder, NULL, template ? temp_text(folder, "t.jinja", template) : NULL, NULL, tokenizer, &chat));
    DataConfig config = {.train_on = train_on, .system = system, .chat = chat};
    result.status = data_format_encode(data_format_find(format), row, &config, tokenizer, &encoding);
    if (result.status == ST_OK) {
        Str whole = {0}, trained = {0};
        assert_int_equal(encoding.ids.n, encoding.labels.n);
        check_ok(tokenizer_decode(tokenizer, encoding.ids.data, encoding.ids.n, false, &whole));
        for (size_t i = 0; i < encoding.ids.n; i++) {
            if (encoding.labels.data[i] == LABEL_NONE) continue;
            assert_int_equal(encoding.labels.data[i], encoding.ids.data[i]);
            if (trained.len && encoding.labels.data[i - 1] == LABEL_NONE) str_append(&trained, "|");
            check_ok(tokenizer_decode(tokenizer, &encoding.ids.data[i], 1, false, &trained));
            result.n_trained++;
        }
        snprintf(result.whole, sizeof result.whole, "%s", str_text(&whole));
        snprintf(result.trained, sizeof result.trained, "%s", str_text(&trained));
        str_release(&whole);
        str_release(&trained);
    }
    result.n = encoding.ids.n;
    result.remapped = encoding.remapped;
    result.templates = encoding.templates;
    ids_release(&encoding.ids);
    ids_release(&encoding.labels);
    json_decref(row);
    chat_close(chat);
    return result;
}

static void check_trained(const char *format, const char *template, const char *train_on, const char *row, const char *trained) {
    Result result = test_conversation_encode(format, template, train_on, NULL, row);
    if (result.status != ST_OK) fail_msg("%s", status_text());
    assert_string_equal(result.trained, trained);
}

static void check_refused(const char *format, const char *template, const char *train_on, const char *row, const char *message) {
    Result result = test_conversation_encode(format, template, train_on, NULL, row);
    if (result.status == ST_OK) fail_msg("%s should be refused: %s", row, message);
    check_text(message);
}

#define TWO_TURNS                                                                                                                      \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"bc\"%s}, {\"role\": \"user\"," \
    " \"content\": \"d\"},"                                                                                                            \
    " {\"role\": \"assistant\", \"content\": \"ef\"}]}"
static const char *two_turns(const char *more) {
    static char text[500];
    snprintf(text, sizeof text, TWO_TURNS, more);
    return text;
}

TEST(assistants_are_trained_through_their_end_of_turn) {
    check_trained("messages", chatml, "auto", two_turns(""), "bc<|im_end|>|ef<|im_end|>");
    check_trained("messages", chatml, "assistant", two_turns(""), "bc<|im_end|>|ef<|im_end|>");
    check_trained("messages", chatml, "last", two_turns(""), "ef<|im_end|>");
    check_trained(
        "messages", chatml, "all", two_turns(""),
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nbc<|im_end|>\n<|im_start|>user\nd<|im_end|>\n<|im_start|>assistant\nef<|im_end|>\n");
    check_trained("messages", chatml, "auto", two_turns(", \"weight\": 0"), "ef<|im_end|>");
    check_trained("messages", chatml, "auto", two_turns(", \"train\": false"), "ef<|im_end|>");
    check_trained("messages", chatml, "auto", two_turns(", \"weight\": 1, \"train\": true"), "bc<|im_end|>|ef<|im_end|>");
    check_refused("messages", chatml, "auto", two_turns(", \"weight\": 2"), "'weight' of message 2 is neither 0 nor 1");
    Result result = test_conversation_encode("messages", chatml, "auto", NULL, two_turns(""));
    assert_int_equal(result.templates, 2); /* the two ends of turn */
    assert_int_equal(result.n_trained, 6);
}

TEST(marks_of_the_template_are_taken_as_they_are) {
    static const char marked[] =
        "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>{% endgeneration %};{% else %}{{ m.content }};{% endif %}{% endfor %}";
    check_trained("messages", marked, "auto", two_turns(""), "bc<|end|>|ef<|end|>");
    check_trained("messages", marked, "last", two_turns(""), "ef<|end|>");
    check_trained("messages", marked, "auto", two_turns(", \"weight\": 0"), "ef<|end|>");
    /* marks need no rendering up to each turn, so this template is fine, and without them it would not be */
    static const char last_only[] =
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content if loop.last else '-' }}.{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
    check_trained("messages", last_only, "auto", two_turns(""), "-.|ef.");
}

TEST(reasoning_is_found_under_each_of_its_names) {
    static const char thinking[] =
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.reasoning_content }}/{{ m.thinking }}>{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}";
    check_trained("messages", thinking, "auto", two_turns(", \"reasoning\": \"r\""), "r/r>bc|/>ef");
    check_trained("messages", thinking, "auto", two_turns(", \"thinking\": \"t\", \"reasoning\": \"r\""), "t/t>bc|/>ef");
    check_trained("messages", thinking, "auto", two_turns(", \"reasoning_content\": null, \"reasoning\": \"r\""), "r/r>bc|/>ef");
    check_trained("messages", thinking, "auto", two_turns(", \"reasoning_content\": \"c\", \"reasoning\": \"r\""), "c/c>bc|/>ef");
}

TEST(templates_that_are_not_prefix_preserving_are_refused) {
    /* thoughts are dropped from all turns but the last, as Qwen3's template does */
    static const char thinking[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    check_refused("messages", thinking, "auto", two_turns(""), "not prefix-preserving: 2 messages alone give");
    check_contains(status_hint_text(), "data.train_on: last");
    check_trained("messages", thinking, "last", two_turns(""), "<think>ef<|im_end|>");
    /* the generation prompt differs from the text before the answer */
    static const char mismatch[] =
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}";
    check_refused("messages", mismatch, "last", two_turns(""), "not prefix-preserving: 3 messages alone give");
    /* text only at the end of the conversation, like Phi's EOS, follows the end of turn and does no harm */
    static const char phi[] =
        "{% for m in messages %}{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}assistant\n{% else %}{{ eos_token }}{% endif %}";
    check_trained("messages", phi, "auto", two_turns(""), "bc<|end|>|ef<|end|>");
    /* if no token ends a turn, its text is trained, but not the white space after it */
    static const char bare[] = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
    check_trained("messages", bare, "auto", two_turns(""), "bc|ef");
}

TEST(tokens_across_the_border_belong_to_the_answer) {
    static const char lines[] = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}";
    Result result = test_conversation_encode(
        "messages", "{% for m in messages %}{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}assistant\n{% endif %}",
        "auto", NULL, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"\\nb\"}]}");
    assert_int_equal(result.status, ST_OK);
    assert_string_equal(result.trained, "\n\nb<|end|>");
    assert_true(result.remapped);
    result = test_conversation_encode("messages", lines, "auto", NULL, two_turns(""));
    assert_false(result.remapped);
}

TEST(what_a_row_may_hold) {
    Result result = test_conversation_encode("messages", chatml, "auto", "Be kind.", two_turns(""));
    assert_true(text_starts_with(result.whole, "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user"));
    result = test_conversation_encode(
        "messages", chatml, "auto", "Be kind.",
        "{\"messages\": [{\"role\": \"system\", \"content\": \"own\"}, {\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}");
    assert_true(text_starts_with(result.whole, "<|im_start|>system\nown<|im_end|>"));
    /* parts of text; a list kept as a string; tools and arguments as JSON in strings */
    check_trained(
        "messages", chatml, "auto",
        "{\"messages\": \"[{\\\"role\\\": \\\"user\\\", \\\"content\\\": [{\\\"type\\\": \\\"text\\\", \\\"text\\\": \\\"a\\\"}]}, {\\\"role\\\": \\\"assistant\\\", \\\"content\\\": \\\"b\\\"}]\"}",
        "b<|im_end|>");
    static const char tools[] =
        "{{ tools|length }}{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments.x }}){% endfor %}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}";
    check_trained(
        "messages", tools, "auto",
        "{\"tools\": \"[{\\\"a\\\": 1}]\", \"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\","
        " \"arguments\": \"{\\\"x\\\": 5}\"}}]}, {\"role\": \"tool\", \"content\": \"r\"}, {\"role\": \"assistant\", \"content\": \"s\"}]}",
        "f(5)<|end|>|s<|end|>");
    check_trained(
        "sharegpt", tools, "auto",
        "{\"tools\": \"[]\", \"system\": \"sys\", \"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"function_call\", \"value\": \"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\":"
        " {\\\"x\\\": 5}}\"}, {\"from\": \"observation\", \"value\": \"r\"}, {\"from\": \"gpt\", \"value\": \"s\"}]}",
        "f(5)<|end|>|s<|end|>");
    check_trained(
        "prompt_completion", chatml, "auto",
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"x\"}, {\"role\": \"user\", \"content\": \"b\"}], \"completion\": [{\"role\": \"assistant\","
        " \"content\": \"c\"}]}",
        "c<|im_end|>");
    check_trained(
        "preference", chatml, "auto",
        "{\"chosen\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"x\"}], \"rejected\": [{\"role\": \"user\", \"content\": \"a\"},"
        " {\"role\": \"assistant\", \"content\": \"y\"}]}",
        "x<|im_end|>");
    check_trained("preference", chatml, "auto",
                  "{\"prompt\": \"a\", \"chosen\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"x\"}],"
                  " \"rejected\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"y\"}]}",
                  "x<|im_end|>");
    check_trained("preference", NULL, "auto",
                  "{\"chosen\": \"\\n\\nHuman: a\\n\\nAssistant: b\", \"rejected\": \"\\n\\nHuman: a\\n\\nAssistant: c\"}", " b<|endoftext|>");
    check_trained("preference", NULL, "auto", "{\"prompt\": \"p\", \"chosen\": \"b\", \"rejected\": \"c\"}", "b<|endoftext|>");
    check_trained("kto", NULL, "auto", "{\"prompt\": \"p\", \"completion\": \"b\", \"label\": true}", "b<|endoftext|>");
    check_trained("kto", NULL, "auto", "{\"prompt\": \"p\", \"completion\": \"b\", \"label\": false}", "");
    result =
        test_conversation_encode("alpaca", NULL, "auto", NULL,
                                 "{\"instruction\": \"i\", \"input\": \"\", \"output\": \"o\", \"system\": \"S\", \"history\": [[\"q\", \"r\"]]}");
    assert_string_equal(result.whole, "S\n\n### Instruction:\nq\n\n### Response:r\n\n### Instruction:\ni\n\n### Response:o<|endoftext|>");
    assert_string_equal(result.trained, "o<|endoftext|>");
}

/* A text among lists of messages is a message; a prompt that both conversations begin with only repeats it. */
TEST(texts_and_messages_of_preferences_go_together) {
    static const char *const rows[] = {
        "{\"prompt\": \"a\", \"chosen\": [{\"role\": \"assistant\", \"content\": \"x\"}], \"rejected\": [{\"role\": \"assistant\", \"content\": \"y\"}]}",
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"chosen\": \"x\", \"rejected\": \"y\"}",
        "{\"prompt\": \"a\", \"chosen\": \"x\", \"rejected\": [{\"role\": \"assistant\", \"content\": \"y\"}]}",
        "{\"prompt\": \" a\\n\", \"chosen\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"x\"}],"
        " \"rejected\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"y\"}]}",
        "{\"chosen\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"x\"}],"
        " \"rejected\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"x\"}]}",
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        Result result = test_conversation_encode("preference", chatml, "auto", NULL, rows[i]);
        check_ok(result.status);
        assert_string_equal(result.whole, "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n");
        assert_string_equal(result.trained, "x<|im_end|>");
    }
}

/* A greeting before the first question. Templates with a default system message write it first. */
TEST(conversations_may_begin_with_the_assistant) {
    static const char *const greeting =
        "{\"messages\": [{\"role\": \"assistant\", \"content\": \"hi\"}, {\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}";
    const char *own_system =
        "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nbe<|im_end|>\n' }}{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    check_trained("messages", chatml, "auto", greeting, "hi<|im_end|>|b<|im_end|>");
    check_trained("messages", own_system, "auto", greeting, "hi<|im_end|>|b<|im_end|>");
    check_trained("messages", own_system, "last", greeting, "b<|im_end|>");
    check_trained("messages", own_system, "auto", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"hi\"}]}", "hi<|im_end|>");
    check_trained(
        "sharegpt", own_system, "auto",
        "{\"conversations\": [{\"from\": \"gpt\", \"value\": \"hi\"}, {\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"b\"}]}",
        "hi<|im_end|>|b<|im_end|>");
    check_refused("messages", "{% if messages[0].role != 'user' %}{{ raise_exception('the user first') }}{% endif %}", "auto", greeting,
                  "the user first");
}

TEST(what_cannot_be_trained_is_refused) {
    check_refused("messages", chatml, "auto", "{\"messages\": []}", "the conversation is empty");
    check_refused("messages", chatml, "auto", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
                  "no message of the conversation is the assistant's");
    check_refused(
        "messages", chatml, "auto",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}, {\"role\": \"user\", \"content\": \"c\"}]}",
        "ends with message 3 of the user");
    check_refused("messages", chatml, "auto", "{\"messages\": [{\"role\": \"user\", \"content\": 5}]}",
                  "'content' of message 1 (user) is not a text");
    check_refused("messages", chatml, "auto", "{\"messages\": [{\"content\": \"a\"}]}", "message 1 has no 'role'");
    check_refused("messages", chatml, "auto", "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
                  "a part of type 'image'");
    check_refused("messages", NULL, "auto", two_turns(""), "need a chat template, and the model has none");
    check_refused("messages", "{{ raise_exception('only one turn') }}", "auto", two_turns(""), "only one turn");
    check_refused("sharegpt", chatml, "auto", "{\"conversations\": [{\"from\": \"alien\", \"value\": \"a\"}]}",
                  "from 'alien', which is not a known role");
    check_refused("sharegpt", chatml, "auto", "{\"conversations\": [{\"from\": \"function_call\", \"value\": \"f()\"}]}", "no JSON with 'name'");
    check_refused("preference", chatml, "auto", "{\"prompt\": \"p\", \"chosen\": \"b\", \"rejected\": []}",
                  "is a list of messages, the other is not");
    check_refused("preference", chatml, "auto",
                  "{\"prompt\": \"a\", \"chosen\": [{\"role\": \"user\", \"content\": \"b\"}, {\"role\": \"assistant\", \"content\": \"x\"}],"
                  " \"rejected\": [{\"role\": \"user\", \"content\": \"b\"}, {\"role\": \"assistant\", \"content\": \"y\"}]}",
                  "'prompt' is a text, but the full conversations in 'chosen' and 'rejected' do not both begin with it");
    check_refused("alpaca", NULL, "auto", "{\"instruction\": \"i\"}", "the row lacks 'output'");
    check_refused("alpaca", NULL, "assistant", "{\"instruction\": \"i\", \"output\": \"o\"}", "the row has no messages");
    check_refused("prompt", NULL, "auto", "{\"prompt\": \"i\"}", "nothing to train on");
}

TEST(questions_are_what_a_row_answers) {
    static const char *const cases[][2] = {
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
         "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"},
        {"{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}]}", "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"chosen\": [], \"rejected\": []}",
         "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"},
        {"{\"prompt\": \"p\", \"completion\": \"c\"}", "p"},
        {"{\"prompt\": \"p\"}", "p"},
        {"{\"text\": \"t\"}", "t"},
        {"{\"ids\": [65, 66]}", "AB"},
        {"{\"input_ids\": [65, 66, 67], \"labels\": [-100, -100, 67]}", "AB"},
        {"{\"instruction\": \"i\", \"output\": \"o\"}",
         "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n### Instruction:\ni\n\n### Response:"},
    };
    Chat *chat;
    check_ok(chat_open(folder, NULL, "chatml", NULL, tokenizer, &chat));
    assert_int_equal(chat_end_of_turn(chat), 258);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        json_t *row = json_loads(cases[i][0], 0, NULL);
        Ids ids = {0};
        Str text = {0};
        check_ok(row_question(row, &(DataConfig){.chat = chat}, tokenizer, &ids));
        check_ok(tokenizer_decode(tokenizer, ids.data, ids.n, false, &text));
        assert_string_equal(str_text(&text), cases[i][1]);
        ids_release(&ids);
        str_release(&text);
        json_decref(row);
    }
    chat_close(chat);
}

/* The forms of the families' own templates: where an answer begins, what ends it, and what stays the template's. */
TEST(turns_end_as_each_family_ends_them) {
    static const struct {
        const char *family, *template, *end, *trained;
    } cases[] = {
        {"gemma",
         "{{ '<bos>' }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for m in messages %}"
         "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
         "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
         "<end_of_turn>", "bc<end_of_turn>|ef<end_of_turn>"},
        {"phi3",
         "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ '<|endoftext|>' }}{% endif %}",
         "<|end|>", "bc<|end|>|ef<|end|>"},
        {"phi4",
         "{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}",
         "<|im_end|>", "bc<|im_end|>|ef<|im_end|>"},
        {"olmo",
         "{{ '<|endoftext|>' }}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|assistant|>\n' + m.content + '<|endoftext|>' }}"
         "{% if not loop.last %}{{ '\n' }}{% endif %}{% else %}{{ '<|' + m.role + '|>\n' + m.content + '\n' }}{% endif %}"
         "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}",
         "<|endoftext|>", "bc<|endoftext|>|ef<|endoftext|>"},
        {"ministral",
         "{{ '<bos>' }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}{% else %}{{ m.content + '</s>' }}{% endif %}{% endfor %}",
         "</s>", "bc</s>|ef</s>"},
        {"granite",
         "{% for m in messages %}{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}",
         "<|end_of_text|>", "bc<|end_of_text|>|ef<|end_of_text|>"},
        {"glm4", /* nothing ends an answer but the next turn's own token: the check of the data says so */
         "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
         NULL, "bc|ef"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Chat *chat;
        check_ok(chat_open(folder, NULL, temp_text(folder, "t.jinja", cases[i].template), NULL, tokenizer, &chat));
        if (cases[i].end)
            assert_string_equal(chat_end_text(chat), cases[i].end);
        else
            assert_int_equal(chat_end_of_turn(chat), -1);
        chat_close(chat);
        check_trained("messages", cases[i].template, "assistant", two_turns(""), cases[i].trained);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_end_as_each_family_ends_them),
        cmocka_unit_test(assistants_are_trained_through_their_end_of_turn),
        cmocka_unit_test(marks_of_the_template_are_taken_as_they_are),
        cmocka_unit_test(reasoning_is_found_under_each_of_its_names),
        cmocka_unit_test(templates_that_are_not_prefix_preserving_are_refused),
        cmocka_unit_test(tokens_across_the_border_belong_to_the_answer),
        cmocka_unit_test(what_a_row_may_hold),
        cmocka_unit_test(texts_and_messages_of_preferences_go_together),
        cmocka_unit_test(conversations_may_begin_with_the_assistant),
        cmocka_unit_test(what_cannot_be_trained_is_refused),
        cmocka_unit_test(questions_are_what_a_row_answers),
    };
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
