/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of the tests of synthetic rows; see synth_world.h. */
#include "tests/support/synth_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/check.h"
#include "tests/support/local_server.h"

/* ---- the server ---- */

static unsigned word_hash(const char *text, unsigned hash) {
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 16777619u;
    return hash;
}

static const char *invented(unsigned hash, char out[8]) {
    for (int i = 0; i < 6; i++, hash /= 20) out[i] = i % 2 ? "aeiou"[hash % 5] : "bcdfghjklmnpqrstvwxz"[hash % 20];
    out[6] = '\0';
    return out;
}

bool has(const char *text, const char *part) { return strstr(text, part) != NULL; }

/* The answer of a good teacher. The words depend on the question and its seed. */
static void speak(const char *question, json_int_t seed, Str *out) {
    unsigned hash = word_hash(question, (unsigned)seed * 2654435761u + 17);
    char a[8], b[8], c[8], d[8], e[8];
    invented(hash, a), invented(hash * 31 + 7, b), invented(hash * 97 + 1, c), invented(hash * 131 + 3, d), invented(hash * 193 + 5, e);
    if (has(question, "more tasks, numbered from")) {
        str_printf(out, "Here they are:\n");
        for (unsigned i = 0; i < 8; i++) {
            char x[8], y[8], z[8];
            str_printf(out, i % 4 == 1 ? "%u. **Task:** %s %s %s for the %s of %s:\n" : "%u. %s %s %s for the %s of %s:\n", 9 + i,
                       invented(hash + i * 7919, x), invented(hash * 3 + i * 104729, y), i == 3 ? "image" : "words",
                       invented(hash * 5 + i * 1299709, z), c);
        }
    } else if (has(question, "Answer with one of these alone: good, bad"))
        str_append(out, (const char *[]){"**Good.**", "bad", "The label is bad, I think.", "It may be good or bad."}[hash % 4]);
    else if (has(question, "Is this a classification task?"))
        str_append(out, hash % 3 == 0 ? "Yes, it is." : " no");
    else if (has(question, "You do each task on an example")) {
        if (hash % 8 == 0)
            str_append(out, "**Output:** done");
        else if (hash % 8 == 1)
            str_printf(out, "Example 1\nInput: %s\nOutput: %s\nExample 2\nInput: %s\nOutput: %s", a, b, a, c);
        else
            str_printf(out, "**Example 1**\n**Input:** %s %s\n**Output**: %s\nExample 2\nInput: none\nOutput: %s and\nmore", a, b, c, d);
    } else if (has(question, "For each classification task"))
        str_printf(out, "**Class label:** good\n**Input:** %s\nClass label: bad\nInput: %s %s\n", a, b, c);
    else if (has(question, "Go on with number")) {
        for (unsigned i = 0; i < 4; i++) {
            char x[8], y[8];
            invented(hash + i * 7919, x), invented(hash * 3 + i * 104729, y);
            if (i == 2)
                str_printf(out, "###\n%u. Instruction: Name a %s.\n%u. Output: %s\n", 4 + i, x, 4 + i, y);
            else
                str_printf(out, "###\n%u. **Instruction:** %s the words of %s and %s\n%u. Input:\n%s\n**%u. Output:**\n%s\n### Then\n%s\n", 4 + i, x,
                           y, a, 4 + i, i ? "<noinput>" : b, 4 + i, c, d);
        }
    } else if (has(question, "request alone, without an answer"))
        str_printf(out, "Think of %s and %s, then say %s.", a, b, c);
    else if (has(question, "What was the request?"))
        str_printf(out, "\"Tell me about %s, %s and %s.\"", a, b, c);
    else if (has(question, "Write 2 questions"))
        str_printf(out, "**Question 1:** What is %s in %s?\nAnswer: It is %s.\n\nQuestion: Where does %s go?\nAnswer: To %s,\nand back.\n", a, b, c,
                   d, e);
    else if (has(question, "Give points for the answer"))
        str_printf(out, "Accuracy 3/3, but dull.\nScore: %u/10", 1 + hash % 10);
    else if (has(question, "<user>"))
        str_printf(out, "What do %s and %s have in common with %s?", a, b, c);
    else if (has(question, "Write a request or a question."))
        str_printf(out, " 3. Instruction: Tell %s about the %s and %s of %s %s.\n", a, b, c, d, e);
    else
        str_printf(out, "The %s of %s is %s %s.", a, b, c, d);
}

/* The answer of a bad teacher: random pieces of every format. */
static void babble(const char *question, json_int_t seed, Str *out) {
    static const char *const pieces[] = {"###",      "\n",    "1. Instruction:", "Input:", "Output:", "Class label:", "**Question 2:**",
                                         "Answer:",  "9.",    "\n10)",           " ",      "Yes",     "Score: 11/10", "<noinput>",
                                         "\xc3\xa9", "word ", "Example 1\n",     ":"};
    unsigned hash = word_hash(question, (unsigned)seed);
    for (unsigned i = 0; i < hash % 40; i++) str_append(out, pieces[(hash >> (i % 7)) * (i + 3) % COUNT_OF(pieces)]);
}

/* The text of all messages, or the text to continue. */
static void question_of(const Query *query, Str *text) {
    const json_t *messages = json_object_get(query->body, "messages"), *message;
    size_t i;
    json_array_foreach((json_t *)messages, i, message)
        str_printf(text, "%s%s", i ? "\n" : "", json_string_value(json_object_get(message, "content")));
    if (!messages && json_object_get(query->body, "prompt")) str_append(text, json_string_value(json_object_get(query->body, "prompt")));
}

static void answer_well(int fd, const Query *query) {
    bool chat = json_object_get(query->body, "messages") != NULL;
    Str words = {0}, question = {0};
    question_of(query, &question);
    const char *text = str_text(&question);
    if (question.len == 0) {
        reply(fd, "400 Bad Request", "", "{\"error\": \"no question\"}");
        return;
    }
    JsonWriter w = {0};
    if (strcmp(query->path, "babble") == 0)
        babble(text, json_integer_value(json_object_get(query->body, "seed")), &words);
    else
        speak(text, json_integer_value(json_object_get(query->body, "seed")), &words);
    jw_object(&w, NULL);
    jw_array(&w, "choices");
    jw_object(&w, NULL);
    if (chat) {
        jw_object(&w, "message");
        jw_string(&w, "role", "assistant");
        jw_string(&w, "content", str_text(&words));
        jw_end_object(&w);
    } else
        jw_string(&w, "text", str_text(&words));
    jw_string(&w, "finish_reason", "stop");
    jw_end_object(&w);
    jw_end_array(&w);
    jw_raw(&w, "usage", "{\"prompt_tokens\": 100, \"completion_tokens\": 10}");
    jw_end_object(&w);
    reply(fd, "200 OK", "", str_text(&w.text));
    jw_release(&w);
    str_release(&words);
    str_release(&question);
}

/* A teacher that always writes the same prompt, and answers it only when asked for the third time. */
static void answer_stubbornly(int fd, const Query *query) {
    static int times;
    Str question = {0};
    question_of(query, &question);
    const char *said = strcmp(str_text(&question), "Name the stubborn") != 0 ? "Name the stubborn"
                       : ++times % 3 == 0                                    ? "Mules are stubborn."
                                                                             : "I'm sorry, but I can't help with that.";
    char body[256];
    snprintf(body, sizeof body, "{\"choices\": [{\"message\": {\"content\": \"%s\"}, \"finish_reason\": \"stop\"}]}", said);
    reply(fd, "200 OK", "", body);
    str_release(&question);
}

/* True for one question of four. */
static bool asks_for(const Query *query, const char *word) {
    Str question = {0};
    question_of(query, &question);
    bool asks = strstr(str_text(&question), word) != NULL;
    str_release(&question);
    return asks;
}

static bool is_fourth(const Query *query) {
    Str question = {0};
    question_of(query, &question);
    bool fourth = word_hash(str_text(&question), 7) % 4 == 0;
    str_release(&question);
    return fourth;
}

/* Whether the same question was answered before on this path, so that the client has asked twice. */
static bool asked_before(const Query *query) {
    static unsigned seen[1 << 14];
    static size_t n;
    char *text = json_dumps(query->body, JSON_COMPACT | JSON_SORT_KEYS);
    unsigned hash = word_hash(text, word_hash(query->path, 1));
    free(text);
    for (size_t i = 0; i < n; i++)
        if (seen[i] == hash) return true;
    seen[n++ % COUNT_OF(seen)] = hash;
    return false;
}

/* From the twelfth request on, the server of this path only fails. */
static bool has_ended(int fd, const char *path, int before) {
    static const struct {
        const char *path, *status, *body;
    } ends[] = {
        {"ends-billed", "200 OK", "{\"choices\": [], \"usage\": {\"prompt_tokens\": 1000000, \"completion_tokens\": 7}}"},
        {"ends-500", "500 Internal Server Error", "oops"},
        {"ends-400", "400 Bad Request", "no credit left"},
        {"ends-401", "401 Unauthorized", "who are you?"},
        {"ends-404", "404 Not Found", "no such model"},
        {"ends-html", "200 OK", "<html>hello</html>"},
    };
    for (size_t i = 0; i < COUNT_OF(ends) && before >= 11; i++) {
        if (!text_starts_with(path, ends[i].path)) continue;
        reply(fd, ends[i].status, "", ends[i].body);
        return true;
    }
    return false;
}

/* Fails, in the way of this path, at questions with the word BAD. */
static bool fails_at_bad(int fd, const Query *query) {
    static const struct {
        const char *path, *status;
    } ways[] = {{"bad-400", "400 Bad Request"},
                {"bad-500", "500 Internal Server Error"},
                {"bad-503", "503 Service Unavailable"},
                {"bad-late", NULL},
                {"bad-cut", NULL}};
    static const char half[] = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"ch";
    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        if (strcmp(query->path, ways[i].path) != 0 || !asks_for(query, "BAD")) continue;
        char byte;
        if (ways[i].status) reply(fd, ways[i].status, "", "not at this one");
        if (strcmp(ways[i].path, "bad-late") == 0) return read(fd, &byte, 1) <= 1; /* until the client hangs up */
        return ways[i].status || write(fd, half, sizeof half - 1) > 0;
    }
    return false;
}

/* Whether the request turns thinking off, in the form of vLLM and SGLang. */
static bool without_thoughts(const Query *query) {
    const json_t *values = json_object_get(query->body, "chat_template_kwargs");
    return json_is_false(json_object_get(values, "enable_thinking")) && json_integer_value(json_object_get(values, "depth")) == 2;
}

/* Answers a query. The first part of the path says how to misbehave: /busy/v1/chat/completions. */
static void serve(int fd, Query *query) {
    char *path = query->path, byte;
    if (!query->body) return;
    memmove(path, path + 1, strlen(path));
    path[strcspn(path, "/")] = '\0';
    int before = times_before(path);
    if (strcmp(path, "busy") == 0 && (before == 3 || before == 9))
        reply(fd, "429 Too Many Requests", "Retry-After: 1\r\n", "{\"error\": \"slow down\"}");
    else if (strcmp(path, "limited") == 0 && before >= 4 && before % 3 == 0)
        reply(fd, "429 Too Many Requests", "", "{\"error\": \"slow down\"}");
    else if (strcmp(path, "sleeps") == 0 && before == 5) {
        if (read(fd, &byte, 1) < 0) return;
    } else if (strcmp(path, "patient") == 0)
        reply(fd, "429 Too Many Requests", "Retry-After: 3600\r\n", "later");
    else if (strcmp(path, "forbids") == 0 && is_fourth(query))
        reply(fd, "403 Forbidden", "", "nothing of this for Bearer s3cret");
    else if (strcmp(path, "tells") == 0 && is_fourth(query))
        reply(
            fd, "200 OK", "",
            "{\"choices\": [{\"message\": {\"content\": \"It is \\u0073k-abcdefgh\\u0069jklmno\\u0050 or \\\\u0073\\\\u006B-abcdefghijklmnoP, so keep it.\"}, \"finish_reason\": \"stop\"}]}");
    else if (strcmp(path, "shaky") == 0 && before % 3 == 0)
        reply(fd, "500 Internal Server Error", "", "oops");
    else if (strcmp(path, "cut") == 0 && before % 4 == 0) {
        if (write(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"ch", 44) < 0) return;
    } else if (strcmp(path, "slow") == 0 && before % 16 == 2) {
        if (read(fd, &byte, 1) < 0) return;
    } /* until the client hangs up */
    else if (strcmp(path, "garbled") == 0 && before % 3 == 1)
        reply(fd, "200 OK", "", "{\"choices\": [{\"message\"");
    else if (strcmp(path, "encoding") == 0 && before % 3 == 1)
        reply(fd, "200 OK", "Content-Encoding: gzip\r\n", "not packed at all");
    else if (strcmp(path, "nul") == 0 && before % 3 == 1)
        reply(fd, "200 OK", "", "{\"choices\": [{\"message\": {\"content\": \"Tell it all now.\\u0000 And more.\"}, \"finish_reason\": \"stop\"}]}");
    else if (strcmp(path, "some") == 0 && is_fourth(query))
        reply(fd, "200 OK", "", "oh no");
    else if (strcmp(path, "billed") == 0 && is_fourth(query))
        reply(fd, "200 OK", "", "{\"choices\": [], \"usage\": {\"prompt_tokens\": 1000000, \"completion_tokens\": 7}}");
    else if (strcmp(path, "huge") == 0)
        reply(
            fd, "200 OK", "",
            "{\"choices\": [{\"message\": {\"content\": \"Again the same words.\"}, \"finish_reason\": \"stop\"}], \"usage\": {\"prompt_tokens\": 9223372036854775807, \"completion_tokens\": -5}}");
    else if (strcmp(path, "hashes") == 0)
        reply(fd, "200 OK", "", "{\"choices\": [{\"message\": {\"content\": \"###\"}, \"finish_reason\": \"stop\"}]}");
    else if (strcmp(path, "cutjudge") == 0)
        reply(fd, "200 OK", "", "{\"choices\": [{\"message\": {\"content\": \"Score: 9\"}, \"finish_reason\": \"length\"}]}");
    else if (strcmp(path, "schema") == 0 && before % 3 == 1)
        reply(fd, "200 OK", "", "{\"result\": {\"text\": \"hm\"}}");
    else if (strcmp(path, "refusing") == 0 && is_fourth(query))
        reply(fd, "400 Bad Request", "", "{\"error\": \"not this one\"}");
    else if (strcmp(path, "down") == 0)
        reply(fd, "503 Service Unavailable", "", "overloaded");
    else if (strcmp(path, "pauses") == 0 && before >= 8 && before < 17)
        reply(fd, "503 Service Unavailable", "", "overloaded");
    else if (strcmp(path, "dies") == 0 && before >= 20 && before < 40)
        reply(fd, "503 Service Unavailable", "", "overloaded");
    else if (strcmp(path, "fails") == 0 && is_fourth(query))
        reply(fd, "500 Internal Server Error", "", "not at this one");
    else if (fails_at_bad(fd, query) || has_ended(fd, path, before))
        return;
    else if (strcmp(path, "nonsense") == 0)
        reply(fd, "200 OK", "", "[1, 2]");
    else if (strcmp(path, "echo") == 0)
        reply(fd, "200 OK", "", "{\"choices\": [{\"message\": {\"content\": \"Always the very same words again.\"}, \"finish_reason\": \"stop\"}]}");
    else if (strcmp(path, "stubborn") == 0)
        answer_stubbornly(fd, query);
    else if (strcmp(path, "key") == 0 && !strstr(query->head, "Authorization: Bearer s3cret\r\n"))
        reply(fd, "401 Unauthorized", "", "who are you?");
    else if (strcmp(path, "kwargs") == 0 && !without_thoughts(query))
        reply(fd, "400 Bad Request", "", "think less");
    else if (strcmp(path, "once") == 0 && asked_before(query))
        reply(fd, "403 Forbidden", "", "asked twice");
    else
        answer_well(fd, query);
}

int port;
char dir[256];

int stop_server(void **state) {
    (void)state;
    temp_dir_remove(dir);
    return !local_server_stop();
}

/* ---- this side ---- */

const char seeds_text[] =
    "{\"id\": \"a1\", \"task_type\": \"rewriting\", \"instruction\": \"Rewrite the sentence politely.\", \"instances\": [{\"input\": \"Go away.\", \"output\": \"Could you leave, please?\"}]}\n"
    "{\"id\": \"a2\", \"task_type\": \"rewriting\", \"instruction\": \"Make this shorter.\", \"instances\": [{\"input\": \"It is a fact that it rains.\", \"output\": \"It rains.\"}]}\n"
    "{\"id\": \"a3\", \"task_type\": \"rewriting\", \"instruction\": \"Put the words into the past tense.\", \"instances\": [{\"input\": \"I go.\", \"output\": \"I went.\"}]}\n"
    "{\"id\": \"b1\", \"task_type\": \"facts\", \"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}, {\"role\": \"assistant\", \"content\": \"Air scatters blue light most.\"}]}\n"
    "{\"id\": \"b2\", \"task_type\": \"facts\", \"messages\": [{\"role\": \"user\", \"content\": \"How old is the sun?\"}, {\"role\": \"assistant\", \"content\": \"4.6 billion years.\"}]}\n";

static const char *secret(void *context, const char *name) {
    (void)context;
    return strcmp(name, "TEACHER_KEY") == 0 ? "s3cret" : strcmp(name, "LONG_KEY") == 0 ? "sk-abcdefghijklmnoP" : NULL;
}

static const char *const folders[] = {"recipes"};

void set(Overrides *o, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(o->texts[o->n], sizeof o->texts[0], format, arguments);
    va_end(arguments);
    o->n++;
}

/* Settings of a run with the teacher at /PATH/v1. more: further keys of the teacher's map. */
Overrides remote(const char *preset, const char *path, const char *more, const char *output) {
    Overrides o = {0};
    set(&o, "synth.seeds=%s", temp_file(dir, "seeds.jsonl"));
    set(&o, "synth.preset=%s", preset);
    set(&o, "synth.teacher={url: 'http://127.0.0.1:%d/%s/v1', model: teacher-1%s%s}", port, path, more[0] ? ", " : "", more);
    set(&o, "output=%s", temp_file(dir, output));
    set(&o, "synth.batch=8");
    return o;
}

Status run_with(const Overrides *o, const SynthConfig *base, SynthResult *result) {
    Recipe *recipe;
    SynthConfig config = *base;
    config.device = device_cpu();
    const char *items[COUNT_OF(o->texts)];
    for (size_t i = 0; i < o->n; i++) items[i] = o->texts[i];
    TRY(recipe_read(NULL, items, o->n, &recipe));
    config.recipe = recipe;
    config.folders = folders;
    config.n_folders = 1;
    config.secret = secret;
    Status status = synth_run(&config, result);
    recipe_free(recipe);
    return status;
}

Status run(const Overrides *o, bool resume, SynthResult *result) { return run_with(o, &(SynthConfig){.options.resume = resume}, result); }

char *read_output(const char *output, const char *name) {
    Str text = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/%s", temp_file(dir, output), name);
    check_ok(file_read(path, 1 << 24, &text));
    if (!text.data) str_append(&text, "");
    return text.data;
}

json_t *row_of(const char *output, const char *name, size_t n) {
    char *text = read_output(output, name), *at = text;
    for (; n > 0; n--) at = strchr(at, '\n') + 1;
    json_t *row = json_loadb(at, strcspn(at, "\n"), 0, NULL);
    assert_non_null(row);
    free(text);
    return row;
}

size_t count_lines(const char *output, const char *name) {
    char *text = read_output(output, name);
    size_t n = 0;
    for (char *at = text; *at; at++) n += *at == '\n';
    free(text);
    return n;
}

void check_same(const char *one, const char *other, const char *name) {
    char *a = read_output(one, name), *b = read_output(other, name);
    assert_string_equal(a, b);
    free(a);
    free(b);
}

const char *column(const json_t *row, const char *name) { return json_string_value(json_object_get(row, name)); }
const char *text_at(const json_t *row, size_t message) {
    return json_string_value(json_object_get(json_array_get(json_object_get(row, "messages"), message), "content"));
}

int write_seeds(void **state) {
    (void)state;
    temp_dir_make(dir, sizeof dir);
    port = local_server_start(serve, 300);
    temp_text(dir, "seeds.jsonl", seeds_text);
    return port == 0;
}

/* ---- the local teacher ---- */

/* Settings of a run with the tiny model. It knows a notation, "< 'word' =" for the word backwards and "^ 'word' =" for capitals. Its seeds are
 * words, and its new prompts are words backwards. */
Overrides local(const char *output) {
    Overrides o = {0};
    Str words = {0}, seeds = {0};
    check_ok(file_read("recipes/demo/words.txt", 1 << 16, &words));
    char *at = words.data;
    for (int n = 0; n < 60; n++) {
        size_t len = strcspn(at, " \n");
        str_printf(&seeds, "{\"instruction\": \"%.*s\"}\n", (int)len, at);
        at += len + 1;
    }
    temp_text(dir, "words.jsonl", seeds.data);
    temp_text(dir, "backwards.jinja", "< '{{ examples[0].prompt }}' =");
    temp_text(dir, "capitals.jinja", "^ '{{ prompt }}' =");
    set(&o, "synth.seeds=%s", temp_file(dir, "words.jsonl"));
    set(&o, "synth.preset=few_shot");
    set(&o, "synth.teacher={model: recipes/demo/model, max_new_tokens: 16}");
    set(&o, "synth.prompts={prompt: %s, answer: %s}", temp_file(dir, "backwards.jinja"), temp_file(dir, "capitals.jinja"));
    set(&o, "output=%s", temp_file(dir, output));
    set(&o, "synth.filters={length: false}");
    set(&o, "synth.num_rows=24");
    set(&o, "synth.batch=8");
    str_release(&words);
    str_release(&seeds);
    return o;
}
