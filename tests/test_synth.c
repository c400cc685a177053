/* Synthetic rows. The teacher behind a url is a process of this test on 127.0.0.1 that misbehaves as the path says; the local one is the demo's tiny model. */
#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/synth_parts.h"
#include "tests/check.h"

/* ---- the server ---- */

typedef struct Query { char path[128], head[4096]; json_t *body; } Query;

static bool read_query(int fd, Query *query) {
    static char text[1 << 18];
    size_t len = 0, body = 0, length = 0;
    while (len + 1 < sizeof text && (body == 0 || len < body + length)) {
        ssize_t got = read(fd, text + len, sizeof text - 1 - len);
        if (got <= 0) return false;
        len += (size_t)got;
        text[len] = '\0';
        char *end = strstr(text, "\r\n\r\n"), *field = strcasestr(text, "content-length:");
        if (body == 0 && end) {
            body = (size_t)(end - text) + 4;
            length = field ? strtoul(field + 15, NULL, 10) : 0;
        }
    }
    snprintf(query->head, sizeof query->head, "%.*s", (int)MIN(body, sizeof query->head - 1), text);
    query->body = json_loadb(text + body, length, 0, NULL);
    return sscanf(text, "POST /%127[^/ ]", query->path) == 1 && query->body;
}

static void reply(int fd, const char *status, const char *fields, const char *body) {
    Str text = {0};
    str_printf(&text, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n%s\r\n%s", status, strlen(body), fields, body);
    if (write(fd, text.data, text.len) < 0) perror("server");
    str_release(&text);
}

static unsigned word_hash(const char *text, unsigned hash) {
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 16777619u;
    return hash;
}

static const char *invented(unsigned hash, char out[8]) {
    for (int i = 0; i < 6; i++, hash /= 20) out[i] = i % 2 ? "aeiou"[hash % 5] : "bcdfghjklmnpqrstvwxz"[hash % 20];
    out[6] = '\0';
    return out;
}

static bool has(const char *text, const char *part) { return strstr(text, part) != NULL; }

/* What a well-meaning teacher says. The words depend on the question and its seed. */
static void speak(const char *question, json_int_t seed, Str *out) {
    unsigned hash = word_hash(question, (unsigned)seed * 2654435761u + 17);
    char a[8], b[8], c[8], d[8], e[8];
    invented(hash, a), invented(hash * 31 + 7, b), invented(hash * 97 + 1, c), invented(hash * 131 + 3, d), invented(hash * 193 + 5, e);
    if (has(question, "more tasks, numbered from")) {
        str_printf(out, "Here they are:\n");
        for (unsigned i = 0; i < 8; i++) {
            char x[8], y[8], z[8];
            str_printf(out, i % 4 == 1 ? "%u. **Task:** %s %s %s for the %s of %s:\n" : "%u. %s %s %s for the %s of %s:\n", 9 + i, invented(hash + i * 7919, x), invented(hash * 3 + i * 104729, y), i == 3 ? "image" : "words", invented(hash * 5 + i * 1299709, z), c);
        }
    } else if (has(question, "Answer with one of these alone: good, bad")) str_append(out, (const char *[]){"**Good.**", "bad", "The label is bad, I think.", "It may be good or bad."}[hash % 4]);
    else if (has(question, "Is this a classification task?")) str_append(out, hash % 3 == 0 ? "Yes, it is." : " no");
    else if (has(question, "You do each task on an example")) {
        if (hash % 8 == 0) str_append(out, "**Output:** done");
        else if (hash % 8 == 1) str_printf(out, "Example 1\nInput: %s\nOutput: %s\nExample 2\nInput: %s\nOutput: %s", a, b, a, c);
        else str_printf(out, "**Example 1**\n**Input:** %s %s\n**Output**: %s\nExample 2\nInput: none\nOutput: %s and\nmore", a, b, c, d);
    } else if (has(question, "For each classification task")) str_printf(out, "**Class label:** good\n**Input:** %s\nClass label: bad\nInput: %s %s\n", a, b, c);
    else if (has(question, "Go on with number")) {
        for (unsigned i = 0; i < 4; i++) {
            char x[8], y[8];
            invented(hash + i * 7919, x), invented(hash * 3 + i * 104729, y);
            if (i == 2) str_printf(out, "###\n%u. Instruction: Name a %s.\n%u. Output: %s\n", 4 + i, x, 4 + i, y);
            else str_printf(out, "###\n%u. **Instruction:** %s the words of %s and %s\n%u. Input:\n%s\n**%u. Output:**\n%s %s\n", 4 + i, x, y, a, 4 + i, i ? "<noinput>" : b, 4 + i, c, d);
        }
    } else if (has(question, "request alone, without an answer")) str_printf(out, "Think of %s and %s, then say %s.", a, b, c);
    else if (has(question, "What was the request?")) str_printf(out, "\"Tell me about %s, %s and %s.\"", a, b, c);
    else if (has(question, "Write 2 questions")) str_printf(out, "**Question 1:** What is %s in %s?\nAnswer: It is %s.\n\nQuestion: Where does %s go?\nAnswer: To %s,\nand back.\n", a, b, c, d, e);
    else if (has(question, "Give points for the answer")) str_printf(out, "Accuracy 3/3, but dull.\nScore: %u/10", 1 + hash % 10);
    else if (has(question, "<user>")) str_printf(out, "What do %s and %s have in common with %s?", a, b, c);
    else if (has(question, "Write a request or a question.")) str_printf(out, " 3. Instruction: Tell %s about the %s and %s of %s %s.\n", a, b, c, d, e);
    else str_printf(out, "The %s of %s is %s %s.", a, b, c, d);
}

/* What a teacher says that has understood nothing: pieces of every form, anywhere. */
static void babble(const char *question, json_int_t seed, Str *out) {
    static const char *const pieces[] = {"###", "\n", "1. Instruction:", "Input:", "Output:", "Class label:", "**Question 2:**", "Answer:", "9.", "\n10)", " ", "Yes", "Score: 11/10", "<noinput>", "\xc3\xa9", "word ", "Example 1\n", ":"};
    unsigned hash = word_hash(question, (unsigned)seed);
    for (unsigned i = 0; i < hash % 40; i++) str_append(out, pieces[(hash >> (i % 7)) * (i + 3) % COUNT_OF(pieces)]);
}

/* All that is said in the conversation, or the text that is to be continued. */
static void question_of(const Query *query, Str *text) {
    const json_t *messages = json_object_get(query->body, "messages"), *message;
    size_t i;
    json_array_foreach((json_t *)messages, i, message) str_printf(text, "%s%s", i ? "\n" : "", json_string_value(json_object_get(message, "content")));
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
    if (strcmp(query->path, "babble") == 0) babble(text, json_integer_value(json_object_get(query->body, "seed")), &words);
    else speak(text, json_integer_value(json_object_get(query->body, "seed")), &words);
    jw_object(&w, NULL);
    jw_array(&w, "choices");
    jw_object(&w, NULL);
    if (chat) {
        jw_object(&w, "message");
        jw_string(&w, "role", "assistant");
        jw_string(&w, "content", str_text(&words));
        jw_end_object(&w);
    } else jw_string(&w, "text", str_text(&words));
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

/* Always the same prompt, which is answered when it is asked for the third time. */
static void answer_stubbornly(int fd, const Query *query) {
    static int times;
    Str question = {0};
    question_of(query, &question);
    const char *said = strcmp(str_text(&question), "Name the stubborn") != 0 ? "Name the stubborn" : ++times % 3 == 0 ? "Mules are stubborn." : "I'm sorry, but I can't help with that.";
    char body[256];
    snprintf(body, sizeof body, "{\"choices\": [{\"message\": {\"content\": \"%s\"}, \"finish_reason\": \"stop\"}]}", said);
    reply(fd, "200 OK", "", body);
    str_release(&question);
}

/* One question of four. */
static bool is_fourth(const Query *query) {
    Str question = {0};
    question_of(query, &question);
    bool fourth = word_hash(str_text(&question), 7) % 4 == 0;
    str_release(&question);
    return fourth;
}

/* How often this path was asked before. */
static int times_before(const char *path) {
    static struct { char path[128]; int times; } seen[32];
    size_t i = 0;
    while (seen[i].path[0] && strcmp(seen[i].path, path) != 0) i++;
    snprintf(seen[i].path, sizeof seen[i].path, "%s", path);
    return seen[i].times++;
}

/* Whether this very question was answered before on this path: then the client has asked twice. */
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

static void serve(int fd, const Query *query) {
    const char *path = query->path;
    int before = times_before(path);
    char byte;
    if (strcmp(path, "busy") == 0 && (before == 3 || before == 9)) reply(fd, "429 Too Many Requests", "Retry-After: 1\r\n", "{\"error\": \"slow down\"}");
    else if (strcmp(path, "shaky") == 0 && before % 3 == 0) reply(fd, "500 Internal Server Error", "", "oops");
    else if (strcmp(path, "cut") == 0 && before % 4 == 0) { if (write(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"ch", 44) < 0) return; }
    else if (strcmp(path, "slow") == 0 && before % 16 == 2) { if (read(fd, &byte, 1) < 0) return; } /* until the client hangs up */
    else if (strcmp(path, "garbled") == 0 && before % 3 == 1) reply(fd, "200 OK", "", "{\"choices\": [{\"message\"");
    else if (strcmp(path, "encoding") == 0 && before % 3 == 1) reply(fd, "200 OK", "Content-Encoding: gzip\r\n", "not packed at all");
    else if (strcmp(path, "nul") == 0 && before % 3 == 1) reply(fd, "200 OK", "", "{\"choices\": [{\"message\": {\"content\": \"Tell it all now.\\u0000 And more.\"}, \"finish_reason\": \"stop\"}]}");
    else if (strcmp(path, "some") == 0 && is_fourth(query)) reply(fd, "200 OK", "", "oh no");
    else if (strcmp(path, "huge") == 0) reply(fd, "200 OK", "", "{\"choices\": [{\"message\": {\"content\": \"Again the same words.\"}, \"finish_reason\": \"stop\"}], \"usage\": {\"prompt_tokens\": 9223372036854775807, \"completion_tokens\": -5}}");
    else if (strcmp(path, "hashes") == 0) reply(fd, "200 OK", "", "{\"choices\": [{\"message\": {\"content\": \"###\"}, \"finish_reason\": \"stop\"}]}");
    else if (strcmp(path, "cutjudge") == 0) reply(fd, "200 OK", "", "{\"choices\": [{\"message\": {\"content\": \"Score: 9\"}, \"finish_reason\": \"length\"}]}");
    else if (strcmp(path, "schema") == 0 && before % 3 == 1) reply(fd, "200 OK", "", "{\"result\": {\"text\": \"hm\"}}");
    else if (strcmp(path, "refusing") == 0 && before % 4 == 3) reply(fd, "400 Bad Request", "", "{\"error\": \"not this one\"}");
    else if (strcmp(path, "down") == 0) reply(fd, "503 Service Unavailable", "", "overloaded");
    else if (strcmp(path, "dies") == 0 && before >= 20 && before < 40) reply(fd, "503 Service Unavailable", "", "overloaded");
    else if (strcmp(path, "nonsense") == 0) reply(fd, "200 OK", "", "[1, 2]");
    else if (strcmp(path, "echo") == 0) reply(fd, "200 OK", "", "{\"choices\": [{\"message\": {\"content\": \"Always the very same words again.\"}, \"finish_reason\": \"stop\"}]}");
    else if (strcmp(path, "stubborn") == 0) answer_stubbornly(fd, query);
    else if (strcmp(path, "key") == 0 && !strstr(query->head, "Authorization: Bearer s3cret\r\n")) reply(fd, "401 Unauthorized", "", "who are you?");
    else if (strcmp(path, "once") == 0 && asked_before(query)) reply(fd, "403 Forbidden", "", "asked twice");
    else answer_well(fd, query);
}

static void run_server(int listener) {
    alarm(300);
    while (true) {
        int fd = accept(listener, NULL, NULL);
        Query query = {0};
        if (fd < 0) continue;
        if (read_query(fd, &query)) serve(fd, &query);
        json_decref(query.body);
        shutdown(fd, SHUT_WR);
        close(fd);
    }
}

static int port;
static pid_t server;
static char dir[256];

static int start_server(void **state) {
    (void)state;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) != 0 || listen(listener, 64) != 0 || getsockname(listener, (struct sockaddr *)&address, &size) != 0) return 1;
    port = ntohs(address.sin_port);
    temp_dir_make(dir, sizeof dir);
    server = fork();
    if (server == 0) run_server(listener);
    close(listener);
    return server < 0;
}

static int stop_server(void **state) {
    (void)state;
    kill(server, SIGKILL);
    temp_dir_remove(dir);
    return waitpid(server, NULL, 0) != server;
}

/* ---- this side ---- */

static const char seeds_text[] =
    "{\"id\": \"a1\", \"task_type\": \"rewriting\", \"instruction\": \"Rewrite the sentence politely.\", \"instances\": [{\"input\": \"Go away.\", \"output\": \"Could you leave, please?\"}]}\n"
    "{\"id\": \"a2\", \"task_type\": \"rewriting\", \"instruction\": \"Make this shorter.\", \"instances\": [{\"input\": \"It is a fact that it rains.\", \"output\": \"It rains.\"}]}\n"
    "{\"id\": \"a3\", \"task_type\": \"rewriting\", \"instruction\": \"Put the words into the past tense.\", \"instances\": [{\"input\": \"I go.\", \"output\": \"I went.\"}]}\n"
    "{\"id\": \"b1\", \"task_type\": \"facts\", \"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}, {\"role\": \"assistant\", \"content\": \"Air scatters blue light most.\"}]}\n"
    "{\"id\": \"b2\", \"task_type\": \"facts\", \"messages\": [{\"role\": \"user\", \"content\": \"How old is the sun?\"}, {\"role\": \"assistant\", \"content\": \"4.6 billion years.\"}]}\n";

static const char *secret(void *context, const char *name) {
    (void)context;
    return strcmp(name, "TEACHER_KEY") == 0 ? "s3cret" : NULL;
}

static const char *const folders[] = {"recipes"};

typedef struct Overrides { size_t n; char texts[24][512]; } Overrides;

static void set(Overrides *o, const char *format, ...) PRINTF_LIKE(2, 3);
static void set(Overrides *o, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(o->texts[o->n], sizeof o->texts[0], format, arguments);
    va_end(arguments);
    o->n++;
}

/* A run with the teacher behind /PATH/v1; more: further keys of the teacher's map. */
static Overrides remote(const char *preset, const char *path, const char *more, const char *output) {
    Overrides o = {0};
    set(&o, "synth.seeds=%s", temp_file(dir, "seeds.jsonl"));
    set(&o, "synth.preset=%s", preset);
    set(&o, "synth.teacher={url: 'http://127.0.0.1:%d/%s/v1', model: teacher-1%s%s}", port, path, more[0] ? ", " : "", more);
    set(&o, "output=%s", temp_file(dir, output));
    set(&o, "synth.batch=8");
    return o;
}

static Status run_with(const Overrides *o, const SynthConfig *base, SynthResult *result) {
    Recipe *recipe;
    SynthConfig config = *base;
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

static Status run(const Overrides *o, bool resume, SynthResult *result) { return run_with(o, &(SynthConfig){.resume = resume}, result); }

static char *read_output(const char *output, const char *name) {
    Str text = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/%s", temp_file(dir, output), name);
    check_ok(file_read(path, 1 << 24, &text));
    if (!text.data) str_append(&text, "");
    return text.data;
}

static json_t *row_of(const char *output, const char *name, size_t n) {
    char *text = read_output(output, name), *at = text;
    for (; n > 0; n--) at = strchr(at, '\n') + 1;
    json_t *row = json_loadb(at, strcspn(at, "\n"), 0, NULL);
    assert_non_null(row);
    free(text);
    return row;
}

static size_t count_lines(const char *output, const char *name) {
    char *text = read_output(output, name);
    size_t n = 0;
    for (char *at = text; *at; at++) n += *at == '\n';
    free(text);
    return n;
}

static void check_same(const char *one, const char *other, const char *name) {
    char *a = read_output(one, name), *b = read_output(other, name);
    assert_string_equal(a, b);
    free(a);
    free(b);
}

static const char *column(const json_t *row, const char *name) { return json_string_value(json_object_get(row, name)); }
static const char *text_at(const json_t *row, size_t message) { return json_string_value(json_object_get(json_array_get(json_object_get(row, "messages"), message), "content")); }

static int write_seeds(void **state) {
    if (start_server(state)) return 1;
    temp_text(dir, "seeds.jsonl", seeds_text);
    return 0;
}

/* ---- few_shot ---- */

static void few_shot_asks_for_a_prompt_and_answers_it(void **state) {
    (void)state;
    static const char *const keys[] = {"seed_ids", "preset", "teacher", "template_hash", "sampling", "random_key", "parents", "scores"};
    SynthResult result;
    Overrides o = remote("few_shot", "once", "temperature: 0.5", "plain");
    set(&o, "synth.num_rows=20");
    check_ok(run(&o, false, &result));
    assert_int_equal(result.rows, 20);
    assert_int_equal(count_lines("plain", "rows.jsonl"), 20);
    assert_int_equal(count_lines("plain", "requests.jsonl"), result.requests);
    json_t *row = row_of("plain", "rows.jsonl", 0);
    assert_true(text_starts_with(text_at(row, 0), "Tell ")); /* "3. Instruction:" was dropped */
    assert_true(text_starts_with(text_at(row, 1), "The "));
    const json_t *provenance = json_object_get(row, "provenance");
    for (size_t i = 0; i < COUNT_OF(keys); i++) assert_non_null(json_object_get(provenance, keys[i]));
    check_close(json_real_value(json_object_get(json_object_get(json_object_get(provenance, "sampling"), "answer"), "temperature")), 0.5, 0);
    double likeness = json_number_value(json_object_get(json_object_get(provenance, "scores"), "rouge_l"));
    assert_true(likeness >= 0 && likeness <= 0.7);
    assert_true(json_is_real(json_object_get(json_object_get(provenance, "scores"), "rouge_l")));
    char *page = read_output("plain", "report.html");
    assert_true(has(page, "Likeness to the nearest"));
    free(page);
    size_t n = json_array_size(json_object_get(provenance, "seed_ids"));
    assert_true(n >= 1 && n <= 5);
    /* the answer's request is the prompt itself */
    json_int_t number = json_integer_value(json_array_get(json_object_get(json_object_get(provenance, "random_key"), "requests"), 1));
    bool found = false;
    for (size_t i = 0; i < count_lines("plain", "requests.jsonl") && !found; i++) {
        json_t *request = row_of("plain", "requests.jsonl", i);
        found = json_integer_value(json_object_get(request, "number")) == number;
        if (found) assert_string_equal(text_at(request, 0), text_at(row, 0));
        if (found) assert_int_equal(json_array_size(json_object_get(request, "messages")), 1);
        json_decref(request);
    }
    assert_true(found);
    json_decref(row);
}

static void a_heading_is_dropped(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {" 1. Say hello. ", "Say hello."}, {"12) Say", "Say"}, {"- Say", "Say"}, {"* 2. Instruction: Say", "Say"}, {"\xe2\x80\xa2 Say", "Say"}, {"INSTRUCTION:Say", "Say"},
        {"3.5 is a number", "3.5 is a number"}, {"2024 was a year", "2024 was a year"}, {"-1 is less", "-1 is less"}, {"1.", ""}, {"", ""}, {"Instructional text", "Instructional text"},
        {"10:30 is when we meet", "10:30 is when we meet"}, {"10: Say", "Say"}, {"4)5 is odd", "4)5 is odd"},
        {"**Instruction:** Say", "Say"}, {"**Task 5:** Say **it** now", "Say **it** now"}, {"Task 5: Say", "Say"}, {"**Say hello.**", "Say hello."}, {"9. **Task**: Say", "Say"}, {"**Instruction: Say**", "Say"},
        {"Request #2: **Say**", "Say"}, {"Tasks are many", "Tasks are many"}, {"**A** and **B**", "**A** and **B**"}, {"2 ** 3 is what?", "2 ** 3 is what?"}, {"****", ""}, {"**", ""}, {"Task:", ""},
    };
    Synth s = {.round_arena = arena_new(0)};
    for (size_t i = 0; i < COUNT_OF(cases); i++) assert_string_equal(synth_clean(&s, cases[i][0]), cases[i][1]);
    arena_free(s.round_arena);
}

/* A field keeps its lists and what is bold within it. */
static void a_field_is_without_its_decoration(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"** Past **", "Past"}, {"** Past", "Past"}, {"Past **", "Past"}, {"* a\n* b", "* a\n* b"}, {"**a** b", "**a** b"}, {"1. a\n2. b", "1. a\n2. b"}, {" ", ""}, {"", ""}};
    static const struct { const char *line, *text; } names[] = {
        {"Output: x", " x"}, {"**Output:** x", "** x"}, {"2. **output**: x", " x"}, {"### Output 3:x", "x"}, {"- Output:", ""}, {"Outputs: x", NULL}, {"the Output: x", NULL}, {"Output", NULL}, {"", NULL},
    };
    Synth s = {.round_arena = arena_new(0)};
    for (size_t i = 0; i < COUNT_OF(cases); i++) assert_string_equal(synth_field(&s, cases[i][0], cases[i][0] + strlen(cases[i][0])), cases[i][1]);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *text = synth_behind_name(names[i].line, "output");
        if (!text != !names[i].text) fail_msg("'%s'", names[i].line);
        if (text) assert_string_equal(text, names[i].text);
    }
    arena_free(s.round_arena);
}

static void a_score_is_what_a_judge_means(void **state) {
    (void)state;
    static const struct { const char *text; double score; } cases[] = {
        {"Score: 2 / 10", 2}, {"Score: 3 out of 10", 3}, {"Score: 8 (out of 10)", 8}, {"Score: 8\n(accuracy 3, clarity 2)", 8}, {"Accuracy 3/3, but dull.\nScore: 4/10", 4}, {"SCORE: **7**/10", 7},
        {"The score (1-10): 6", 6}, {"Score (out of 10): 5", 5}, {"8/10", 8}, {"8 out of 10", 8}, {"first 3, then 9", 9}, {"7 of 2024", 7}, {"Score: 7.5", 7.5}, {"Score: 4. It lost points, so the score is low", 4},
        {"Score: 11/10", (double)NAN}, {"Score: 0 / 10", (double)NAN}, {"Score:", (double)NAN}, {"", (double)NAN}, {"out of 10", (double)NAN},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        double score = synth_score(cases[i].text);
        if (isnan(cases[i].score) ? !isnan(score) : score != cases[i].score) fail_msg("'%s' gives %g", cases[i].text, score);
    }
}

static void a_reply_names_one_label(void **state) {
    (void)state;
    static const char *const labels[] = {"good", "not good", "not", " 1", " 10", "+1", "\xd0\xb4\xd0\xb0", "\xe6\xad\xa3"};
    static const struct { const char *reply, *label; } cases[] = {
        {"good", "good"}, {" **Good**.", "good"}, {"Not good at all", "not good"}, {"not bad", "not"}, {"1", " 1"}, {"10", " 10"}, {"10/10", " 10"}, {"+1", "+1"}, {"goodness", ""}, {"", ""}, {"hm", ""},
        {"Label: good", "good"}, {"It is good. Yes, good.", "good"}, {"It is good, or not", ""}, {"It is not good.", "not good"}, {"\xd0\xb4\xd0\xb0", "\xd0\xb4\xd0\xb0"}, {"\xe3\x80\x8c\xe6\xad\xa3\xe3\x80\x8d", "\xe6\xad\xa3"}, {"the 100", ""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *chosen = teacher_choice(cases[i].reply, labels, COUNT_OF(labels));
        if (strcmp(chosen, cases[i].label) != 0) fail_msg("'%s' gives '%s', expected '%s'", cases[i].reply, chosen, cases[i].label);
    }
}

static const char sentiments[] =
    "{\"prompt\": \"Cold soup.\", \"task_type\": \"review\", \"of\": [\"good\", \"bad\"]}\n{\"prompt\": \"Warm bread!\", \"task_type\": \"review\", \"of\": [\"good\", \"bad\"]}\n"
    "{\"prompt\": \"The waiter ran.\", \"task_type\": \"review\", \"of\": [\"good\", \"bad\"]}\n{\"prompt\": \"We will be back.\", \"task_type\": \"review\", \"of\": [\"good\", \"bad\"]}\n"
    "{\"prompt\": \"Never again.\", \"task_type\": \"review\", \"of\": [\"good\", \"bad\"]}\n{\"prompt\": \"It was lunch.\", \"task_type\": \"review\", \"of\": [\"good\", \"bad\"]}\n";

/* What a server says becomes the label it names, or the row is rejected; by the seeds' column or by task type. The user's words are the prompt alone. */
static void a_servers_words_become_a_label(void **state) {
    (void)state;
    static const char *const keys[] = {"synth.labels=of", "synth.labels={review: [good, bad]}"};
    temp_text(dir, "sentiments.jsonl", sentiments);
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        SynthResult result;
        char output[32];
        snprintf(output, sizeof output, "labels-%zu", i);
        Overrides o = remote("answer", "well", "", output);
        set(&o, "synth.seeds=%s", temp_file(dir, "sentiments.jsonl"));
        set(&o, "synth.n=4");
        set(&o, "%s", keys[i]);
        check_ok(run(&o, false, &result));
        assert_true(result.rows > 0 && result.rejected > 0);
        size_t none = 0;
        for (size_t n = 0; n < (size_t)result.rows; n++) {
            json_t *row = row_of(output, "rows.jsonl", n);
            assert_true(strcmp(text_at(row, 1), "good") == 0 || strcmp(text_at(row, 1), "bad") == 0);
            assert_null(strstr(text_at(row, 0), "Answer with"));
            json_decref(row);
        }
        for (size_t n = 0; n < (size_t)result.rejected; n++) {
            json_t *row = row_of(output, "rejected.jsonl", n);
            none += strcmp(column(row, "reason"), "no_label") == 0;
            json_decref(row);
        }
        assert_true(none > 0);
    }
    check_same("labels-0", "labels-1", "requests.jsonl");
}

static void labels_that_make_no_sense_are_refused(void **state) {
    (void)state;
    static const struct { const char *preset, *key, *text; Status status; } cases[] = {
        {"answer", "synth.labels={reviews: [good, bad]}", "no seed has the task type 'reviews'", ST_CONFIG}, {"answer", "synth.labels={review: [good]}", "expected a list of two or more different labels for 'review'", ST_CONFIG},
        {"answer", "synth.labels={review: [good, good]}", "expected a list of two or more different labels", ST_CONFIG}, {"answer", "synth.labels=[good, bad]", "expected a map of task types, or the name of a column", ST_CONFIG},
        {"answer", "synth.labels=off", "seed 'seed_1' has no list of two or more different texts in 'off'", ST_INPUT}, {"few_shot", "synth.labels=of", "prompts that are made have no column", ST_CONFIG},
        {"evol", "synth.labels=of", "preset 'evol' does not take 'synth.labels'", ST_CONFIG}, {"answer", "synth.check_labels=true", "preset 'answer' does not take 'synth.check_labels'", ST_CONFIG},
        {"answer", "synth.choose_by=guess", "wrong value 'guess' for 'synth.choose_by'", ST_CONFIG},
    };
    temp_text(dir, "sentiments.jsonl", sentiments);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        SynthResult result;
        Overrides o = remote(cases[i].preset, "well", "", "no-labels");
        set(&o, "synth.seeds=%s", temp_file(dir, "sentiments.jsonl"));
        set(&o, "%s", cases[i].key);
        check_status(run(&o, false, &result), cases[i].status);
        check_text(cases[i].text);
    }
}

/* Instances of a classification are asked for their labels again; rows of other tasks are not. */
static void labels_of_classifications_are_checked(void **state) {
    (void)state;
    SynthResult result;
    Overrides o = remote("self-instruct", "well", "", "checked");
    set(&o, "synth.num_rows=30");
    set(&o, "synth.examples=5");
    set(&o, "synth.format=alpaca");
    set(&o, "synth.check_labels=true");
    check_ok(run(&o, false, &result));
    size_t classified = 0, others = 0, none = 0;
    for (size_t n = 0; n < (size_t)result.rows; n++) {
        json_t *row = row_of("checked", "rows.jsonl", n);
        bool asked = json_object_get(json_object_get(json_object_get(row, "provenance"), "template_hash"), "label") != NULL;
        assert_int_equal(asked, strcmp(column(row, "task_type"), "classification") == 0);
        classified += asked;
        json_decref(row);
    }
    for (size_t n = 0; n < (size_t)result.rejected; n++) {
        json_t *row = row_of("checked", "rejected.jsonl", n);
        others += strcmp(column(row, "reason"), "other_label") == 0;
        none += strcmp(column(row, "reason"), "no_label") == 0;
        json_decref(row);
    }
    assert_true(classified > 0 && others > 0 && none > 0);
}

static void servers_in_trouble_give_the_same_rows(void **state) {
    (void)state;
    static const char *const paths[] = {"shaky", "cut", "garbled", "schema", "slow", "busy", "encoding"};
    SynthResult result;
    Overrides well = remote("few_shot", "well", "", "well");
    set(&well, "synth.num_rows=10");
    check_ok(run(&well, false, &result));
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        print_message("%s\n", paths[i]);
        Overrides o = remote("few_shot", paths[i], strcmp(paths[i], "slow") == 0 ? "timeout: 1" : "", paths[i]);
        set(&o, "synth.num_rows=10");
        check_ok(run(&o, false, &result));
        check_same("well", paths[i], "rows.jsonl");
        check_same("well", paths[i], "rejected.jsonl");
    }
}

static void what_stays_down_keeps_what_was_made(void **state) {
    (void)state;
    static const struct { const char *path, *more, *text; Status status; } cases[] = {
        {"down", "retries: 1", "status 503 (2 tries)", ST_RESOURCE}, {"nonsense", "retries: 1", "answers wrongly (2 tries): no choices[0].message.content: '[1, 2]'", ST_RESOURCE},
        {"key", "", "status 401", ST_RESOURCE}, {"key", "api_key_env: NO_SUCH_KEY", "environment variable 'NO_SUCH_KEY' with the teacher's key is not set", ST_CONFIG},
    };
    SynthResult result;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char output[32];
        snprintf(output, sizeof output, "fault-%zu", i);
        Overrides o = remote("few_shot", cases[i].path, cases[i].more, output);
        check_status(run(&o, false, &result), cases[i].status);
        check_text(cases[i].text);
    }
    Overrides keyed = remote("few_shot", "key", "api_key_env: TEACHER_KEY", "keyed");
    set(&keyed, "synth.num_rows=6");
    check_ok(run(&keyed, false, &result));
    char *log = read_output("keyed", "requests.jsonl"), *recipe = read_output("keyed", "recipe.yaml");
    assert_null(strstr(log, "s3cret"));
    assert_null(strstr(recipe, "s3cret"));
    free(log);
    free(recipe);

    Overrides o = remote("few_shot", "dies", "retries: 0, concurrency: 1", "dies"), well = remote("few_shot", "well", "", "dies-well");
    set(&o, "synth.num_rows=24");
    set(&well, "synth.num_rows=24");
    check_status(run(&o, false, &result), ST_RESOURCE);
    size_t answered = count_lines("dies", "requests.jsonl");
    assert_int_equal(answered, 20);
    int tries = 0;
    while (run(&o, true, &result) != ST_OK) assert_true(++tries < 40); /* the server comes back */
    assert_true(result.replayed >= 20);
    check_ok(run(&well, false, &result));
    check_same("dies", "dies-well", "rows.jsonl");
    check_same("dies", "dies-well", "rejected.jsonl");
    check_ok(run(&o, true, &result)); /* a finished run is left as it is */
    assert_true(result.already_finished);
}

static void a_limit_ends_the_run_and_a_higher_one_goes_on(void **state) {
    (void)state;
    static const struct { const char *limit, *higher; } cases[] = {{"synth.max_requests=13", "synth.max_requests=null"}, {"synth.max_tokens=1500", "synth.max_tokens=1000000"}, {"synth.max_cost=0.004", "synth.max_cost=9"}};
    SynthResult result;
    Overrides well = remote("few_shot", "well", "", "limit-well");
    set(&well, "synth.num_rows=12");
    check_ok(run(&well, false, &result));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char output[32];
        snprintf(output, sizeof output, "limit-%zu", i);
        Overrides o = remote("few_shot", "once", "price_in: 1, price_out: 20", output);
        set(&o, "synth.num_rows=12");
        set(&o, "seed=%zu", 42 + i); /* other questions for each case: the server takes none twice */
        set(&o, "%s", cases[i].limit);
        check_status(run(&o, false, &result), ST_RESOURCE);
        check_text("is reached");
        if (i == 0) assert_int_equal(result.requests, 13);
        o.n--;
        set(&o, "%s", cases[i].higher);
        check_ok(run(&o, true, &result));
        assert_int_equal(result.rows, 12);
        check_close(result.cost, (double)result.requests * 300e-6, 1e-9);
        if (i == 0) check_same("limit-0", "limit-well", "rows.jsonl");
    }
}

/* Requests are begun no faster than allowed, by their number and by the tokens (110 each) of those before: the rows are the same. */
static void rates_are_kept(void **state) {
    (void)state;
    static const struct { const char *limit; double seconds; size_t free; } cases[] = {{"requests_per_second: 40", 1.0 / 40, 1}, {"tokens_per_minute: 165000, concurrency: 2", 110 * 60.0 / 165000, 2}}; /* free: those that wait for none */
    SynthResult result;
    Overrides o = remote("few_shot", "well", "", "rate-none");
    set(&o, "synth.num_rows=10");
    check_ok(run(&o, false, &result));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char output[32];
        snprintf(output, sizeof output, "rate-%zu", i);
        o = remote("few_shot", "well", cases[i].limit, output);
        set(&o, "synth.num_rows=10");
        double began = clock_seconds();
        check_ok(run(&o, false, &result));
        double seconds = clock_seconds() - began, least = (double)((size_t)result.requests - cases[i].free) * cases[i].seconds;
        if (seconds < least) fail_msg("%s: %lld requests in %g s, expected %g s", cases[i].limit, (long long)result.requests, seconds, least);
        check_same("rate-none", output, "rows.jsonl");
    }
}

static void a_log_is_replayed_without_the_server(void **state) {
    (void)state;
    SynthResult result;
    Overrides first = remote("few_shot", "well", "", "logged");
    set(&first, "synth.num_rows=10");
    check_ok(run(&first, false, &result));
    Overrides again = first;
    set(&again, "synth.teacher={replay: %s/requests.jsonl}", temp_file(dir, "logged"));
    set(&again, "output=%s", temp_file(dir, "replayed"));
    check_ok(run(&again, false, &result));
    assert_int_equal(result.rows, 10);
    json_t *a = row_of("logged", "rows.jsonl", 9), *b = row_of("replayed", "rows.jsonl", 9);
    assert_true(json_equal(json_object_get(a, "messages"), json_object_get(b, "messages")));
    json_decref(a);
    json_decref(b);
    set(&again, "output=%s", temp_file(dir, "replayed-not"));
    set(&again, "seed=7");
    check_status(run(&again, false, &result), ST_INPUT);
    check_text("request 0 is not in");
}

static void nonsense_is_counted_until_it_is_too_much(void **state) {
    (void)state;
    SynthResult result;
    Overrides o = remote("few_shot", "echo", "", "echo");
    set(&o, "synth.acceptance_after=40");
    set(&o, "synth.min_acceptance=0.1");
    check_status(run(&o, false, &result), ST_INPUT);
    check_text("of 40 candidates were kept, which is below 'synth.min_acceptance' 0.1; rejected: ");
    assert_int_equal(count_lines("echo", "rows.jsonl") + count_lines("echo", "rejected.jsonl"), 40);
    Overrides refused = remote("few_shot", "refusing", "", "refusing");
    set(&refused, "synth.num_rows=10");
    check_ok(run(&refused, false, &result));
    json_t *row = row_of("refusing", "rejected.jsonl", 0);
    assert_string_equal(json_string_value(json_object_get(row, "reason")), "refused_by_server");
    json_decref(row);
}

static void replies_without_candidates_end_a_run(void **state) {
    (void)state;
    static const char *const presets[] = {"alpaca", "self-instruct"};
    for (size_t i = 0; i < COUNT_OF(presets); i++) {
        SynthResult result;
        char output[32];
        snprintf(output, sizeof output, "hashes-%zu", i);
        Overrides o = remote(presets[i], "hashes", "", output);
        set(&o, "synth.examples=3");
        set(&o, "synth.acceptance_after=20");
        set(&o, "synth.max_requests=300");
        check_status(run(&o, false, &result), ST_INPUT);
        check_text("below 'synth.min_acceptance'");
        check_text(i == 0 ? "wrong_form 2" : "no_task 2");
        assert_true(result.requests < 100);
    }
}

static void what_is_complete_is_not_refused(void **state) {
    (void)state;
    SynthResult result;
    Overrides o = remote("few_shot", "well", "", "complete");
    set(&o, "synth.num_rows=5");
    set(&o, "synth.min_acceptance=0.9");
    set(&o, "synth.acceptance_after=1");
    check_ok(run(&o, false, &result)); /* 8 were asked for at once, and 3 came beyond what was wanted */
    assert_int_equal(result.rows, 5);
    assert_int_equal(result.rejected, 3);
    json_t *row = row_of("complete", "rejected.jsonl", 2);
    assert_string_equal(json_string_value(json_object_get(row, "reason")), "beyond_num_rows");
    json_decref(row);
}

static void replies_that_cannot_be_read_are_refusals(void **state) {
    (void)state;
    SynthResult result;
    Overrides o = remote("few_shot", "some", "retries: 1, timeout: 5", "some");
    set(&o, "synth.num_rows=10");
    check_ok(run(&o, false, &result));
    assert_int_equal(result.rows, 10);
    char *rejected = read_output("some", "rejected.jsonl");
    assert_true(has(rejected, "no JSON: 'oh no'") && has(rejected, "refused_by_server"));
    free(rejected);
    Overrides nul = remote("few_shot", "nul", "retries: 0", "nul");
    set(&nul, "synth.num_rows=10");
    check_ok(run(&nul, false, &result));
    char *rows = read_output("nul", "requests.jsonl");
    assert_true(has(rows, "\"Tell it all now.\""));
    free(rows);
}

static void tokens_that_a_server_claims_stay_numbers(void **state) {
    (void)state;
    SynthResult result;
    Overrides huge = remote("answer", "huge", "", "huge"), silent = remote("answer", "echo", "", "silent");
    check_ok(run(&huge, false, &result));
    assert_int_equal(result.prompt_tokens, 5000000000);
    assert_int_equal(result.tokens, 0);
    set(&silent, "synth.max_tokens=1");
    set(&silent, "synth.n=8");
    check_status(run(&silent, false, &result), ST_RESOURCE); /* the server does not count: characters are counted */
    check_text("'synth.max_tokens' is reached");
    assert_true(result.tokens >= 8 && result.tokens <= 100);
}

/* ---- seeds and recipes ---- */

static void seeds_that_are_none_are_named(void **state) {
    (void)state;
    static const struct { const char *text, *more, *message; } cases[] = {
        {"{\"instruction\": \"Say.\", \"instances\": []}\n{\"output\": \"x\"}\n", "", "line 2"},
        {"{\"instruction\": \"\", \"instances\": [{\"input\": \"\", \"output\": \"x\"}]}\n", "", "line 1: the seed has no instruction"},
        {"{\"instruction\": \"Say.\", \"output\": \"x\", \"task_type\": 3}\n", "", "line 1: 'task_type' is no text"},
        {"{\"instruction\": \"Say.\", \"output\": \"x\", \"is_classification\": \"no\"}\n", "", "line 1: 'is_classification' is neither"},
        {"{\"instruction\"\n", "", "line 1"},
        {"\n", "", "holds no seeds"},
        {"{\"instruction\": \"A.\", \"output\": \"x\", \"task_type\": \"t\"}\n{\"instruction\": \"B.\", \"output\": \"x\", \"task_type\": \"u\"}\n", "synth.examples=2", "task type 't' has 1 seed, and synth.examples asks for 2"},
    };
    SynthResult result;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Overrides o = remote("few_shot", "well", "", "bad-seeds");
        temp_text(dir, "bad.jsonl", cases[i].text);
        set(&o, "synth.seeds=%s", temp_file(dir, "bad.jsonl"));
        if (cases[i].more[0]) set(&o, "%s", cases[i].more);
        check_status(run(&o, false, &result), ST_INPUT);
        check_text(cases[i].message);
    }
}

static void recipes_that_make_no_sense_are_refused(void **state) {
    (void)state;
    static const struct { const char *key, *text; } cases[] = {
        {"synth.teacher=null", "'synth.teacher' is missing"}, {"synth.teacher={url: 'http://x/v1'}", "lacks 'model'"}, {"synth.teacher={modle: x}", "unknown key 'modle' of 'synth.teacher'"},
        {"synth.teacher={model: x, concurrency: 3}", "has 'concurrency', which goes with 'url'"}, {"synth.teacher={url: 'ftp://x', model: m}", "'synth.teacher.url': a server's url begins with http"},
        {"synth.teacher={model: x, temperature: hot}", "wrong value for 'synth.teacher.temperature'"}, {"synth.teacher={url: 'http://x', model: m, replay: x}", "a log to replay and a server"},
        {"synth.prompts={promt: x}", "unknown stage 'promt'"}, {"synth.sampling={answer: {top_p: 3}}", "wrong value for 'synth.sampling.answer.top_p'"}, {"synth.examples=[3, 2]", "'synth.examples'"},
        {"synth.teacher={url: 'https://me:pa@ss@h/v1', model: m}", "has a user or a password in its 'url'"}, {"synth.judge={url: 'http://h/v1?key=s3', model: m}", "has a 'url' with '?' or '#'"},
        {"synth.judge={url: 'http://h/v1', model: m}", "'synth.judge' would be asked nothing by preset 'few_shot'"}, {"synth.tasks_per_request=5", "preset 'few_shot' does not take 'synth.tasks_per_request'"},
        {"synth.seeds=null", "'synth.seeds' is missing"}, {"synth.max_cost=1", "'synth.max_cost' needs prices"},
    };
    SynthResult result;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Overrides o = remote("few_shot", "well", "", "bad-recipe");
        set(&o, "%s", cases[i].key);
        check_status(run(&o, false, &result), ST_CONFIG);
        check_text(cases[i].text);
    }
}

static void other_seeds_make_another_run(void **state) {
    (void)state;
    SynthResult result;
    Overrides o = remote("few_shot", "well", "", "changed");
    set(&o, "synth.max_requests=3");
    check_status(run(&o, false, &result), ST_RESOURCE);
    Str text = {0};
    str_printf(&text, "%s{\"instruction\": \"One more.\", \"output\": \"x\"}\n", seeds_text);
    temp_text(dir, "seeds.jsonl", text.data);
    check_status(run(&o, true, &result), ST_CONFIG);
    check_text("what 'synth.seeds' says, or names, has changed");
    temp_text(dir, "seeds.jsonl", seeds_text);
    str_release(&text);
}

/* ---- TLS ---- */

/* Says its port, then answers behind TLS, and writes down what was asked of it. */
static const char tls_server_py[] =
    "import http.server, os, ssl, sys, threading\n"
    "folder, name = sys.argv[1], sys.argv[2]\n"
    "class Teacher(http.server.BaseHTTPRequestHandler):\n"
    "    def do_POST(self):\n"
    "        self.rfile.read(int(self.headers['Content-Length']))\n"
    "        open(folder + '/heard.txt', 'a').write(str(self.headers))\n"
    "        body = b'{\"choices\": [{\"message\": {\"content\": \"It is about %d.\"}, \"finish_reason\": \"stop\"}]}' % len(self.path)\n"
    "        self.send_response(200)\n"
    "        self.send_header('Content-Length', str(len(body)))\n"
    "        self.end_headers()\n"
    "        self.wfile.write(body)\n"
    "    def log_message(self, *rest): pass\n"
    "class Server(http.server.ThreadingHTTPServer):\n"
    "    def handle_error(self, *rest): pass\n"
    "    def get_request(self):\n"
    "        plain, address = super().get_request()\n"
    "        return context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False), address\n"
    "context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n"
    "context.load_cert_chain(folder + '/' + name + '.pem', folder + '/' + name + '.key')\n"
    "server = Server(('127.0.0.1', 0), Teacher)\n"
    "open(folder + '/port.new', 'w').write(str(server.server_address[1]))\n"
    "os.rename(folder + '/port.new', folder + '/port.txt')\n"
    "threading.Timer(120, lambda: os._exit(0)).start()\n"
    "server.serve_forever()\n";

/* A certificate for `host` that nobody has signed but itself. */
static bool make_certificate(const char *folder, const char *name, const char *host) {
    Str command = {0};
    str_printf(&command, "cd '%s' && openssl req -x509 -newkey rsa:2048 -nodes -keyout %s.key -out %s.pem -days 2 -subj /CN=tune-test -addext subjectAltName=%s >/dev/null 2>&1", folder, name, name, host);
    bool good = system(command.data) == 0;
    str_release(&command);
    return good;
}

static pid_t tls_start(const char *folder, const char *name, int *tls_port) {
    char *path = strdup(temp_file(folder, "port.txt"));
    unlink(path);
    pid_t child = fork();
    if (child == 0) {
        execlp("python3", "python3", temp_file(folder, "server.py"), folder, name, (char *)NULL);
        _exit(127);
    }
    for (int tries = 0; tries < 200 && !file_exists(path); tries++) usleep(50000);
    Str text = {0};
    check_ok(file_read(path, 64, &text));
    *tls_port = atoi(str_text(&text));
    str_release(&text);
    free(path);
    return child;
}

static bool folder_has(const char *folder, const char *text) {
    Str command = {0};
    str_printf(&command, "grep -rqF -- '%s' '%s'", text, folder);
    int code = system(command.data);
    str_release(&command);
    return code == 0;
}

/* Nothing goes to a server whose certificate is not trusted, or is another host's: not the key, not a question. With ca_file it is one like any other. The key is nowhere on the disk. */
static void a_server_behind_tls_shows_who_it_is(void **state) {
    (void)state;
    static const struct { const char *certificate, *ca_file, *text; } cases[] = {
        {"self", NULL, "cannot be trusted: SSL certificate problem: self"},
        {"other", "other.pem", "cannot be trusted: SSL: "},
        {"self", "other.pem", "cannot be trusted: SSL certificate problem: self"},
        {"self", "server.py", "cannot be trusted: "},
        {"self", "self.pem", NULL},
    };
    char folder[512];
    snprintf(folder, sizeof folder, "%s", temp_file(dir, "tls"));
    if (system("openssl version >/dev/null 2>&1 && python3 -c 'import ssl' 2>/dev/null") != 0) {
        print_message("skipped: openssl or python3 with ssl is not here\n");
        skip();
    }
    check_ok(dir_make(folder));
    temp_text(folder, "server.py", tls_server_py);
    assert_true(make_certificate(folder, "self", "IP:127.0.0.1") && make_certificate(folder, "other", "DNS:other.example"));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        SynthResult result;
        char output[32];
        int tls_port;
        snprintf(output, sizeof output, "tls-%zu", i);
        pid_t child = tls_start(folder, cases[i].certificate, &tls_port);
        Overrides o = remote("answer", "well", "", output);
        if (cases[i].ca_file) set(&o, "synth.teacher={url: 'https://127.0.0.1:%d/v1', model: m, api_key_env: TEACHER_KEY, retries: 1, ca_file: '%s'}", tls_port, temp_file(folder, cases[i].ca_file));
        else set(&o, "synth.teacher={url: 'https://127.0.0.1:%d/v1', model: m, api_key_env: TEACHER_KEY, retries: 1}", tls_port);
        set(&o, "synth.num_rows=5");
        Status status = run(&o, false, &result);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        bool heard = file_exists(temp_file(folder, "heard.txt"));
        if (cases[i].text) {
            check_status(status, ST_RESOURCE);
            check_text(cases[i].text);
            assert_false(heard || has(status_text(), "s3cret") || has(status_hint_text(), "s3cret"));
        } else {
            check_ok(status);
            assert_int_equal(result.rows, 5);
            assert_true(heard && folder_has(folder, "Bearer s3cret"));
        }
        assert_false(folder_has(temp_file(dir, output), "s3cret"));
    }
    SynthResult result;
    Overrides o = remote("answer", "well", "ca_file: /no/such/file.pem", "tls-none");
    check_status(run(&o, false, &result), ST_INPUT);
    check_text("cannot find the certificates '/no/such/file.pem' of 'synth.teacher.ca_file'");
}

/* ---- presets ---- */

static Status length_reward(void *context, const FilterRow *rows, size_t n, double *values) {
    (void)context;
    for (size_t i = 0; i < n; i++) values[i] = rows[i].completion.len > 1 ? rows[i].completion.data[rows[i].completion.len - 2] % 7 : 0;
    return ST_OK;
}

static void check_undecorated(const json_t *row) {
    assert_null(strstr(column(row, "instruction"), "**"));
    assert_null(strstr(column(row, "input"), "**"));
    assert_null(strstr(column(row, "output"), "**"));
}
static void check_self_instruct(const json_t *row) {
    check_undecorated(row);
    assert_true(column(row, "instruction")[0] != '\0' && column(row, "output")[0] != '\0');
    assert_null(strstr(column(row, "instruction"), "image"));
    assert_null(strchr(column(row, "instruction"), ':')); /* cut off at the end */
    assert_true(strcmp(column(row, "task_type"), "classification") == 0 ? has("good bad", column(row, "output")) : !has("good bad", column(row, "output")));
    assert_int_equal(json_array_size(json_object_get(json_object_get(row, "provenance"), "seed_ids")), 6);
}
static void check_alpaca(const json_t *row) {
    check_undecorated(row);
    assert_true(has(column(row, "instruction"), " the words of "));
    assert_null(strstr(column(row, "input"), "noinput"));
    assert_int_equal(json_array_size(json_object_get(json_object_get(row, "provenance"), "seed_ids")), 3);
}
static void check_evol(const json_t *row) {
    assert_true(has(column(row, "instruction"), "Think of "));
    assert_non_null(column(row, "mutation"));
}
static void check_magpie(const json_t *row) { assert_true(text_starts_with(column(row, "instruction"), "What do ")); }
static void check_backtranslation(const json_t *row) { assert_true(column(row, "output")[0] && has(column(row, "instruction"), "Tell me about")); }
static void check_qa(const json_t *row) {
    assert_true(column(row, "passage")[0] != '\0' && strlen(column(row, "passage")) <= 16);
    assert_true(has(column(row, "instruction"), "What is") ? text_starts_with(column(row, "output"), "It is") : text_ends_with(column(row, "output"), ",\nand back."));
}
static void check_answer(const json_t *row) { assert_true(text_starts_with(column(row, "output"), "The ")); }
static void check_preference(const json_t *row) {
    const json_t *scores = json_object_get(json_object_get(row, "provenance"), "scores");
    assert_string_not_equal(column(row, "chosen"), column(row, "rejected"));
    assert_true(json_number_value(json_object_get(scores, "chosen")) > json_number_value(json_object_get(scores, "rejected")) + 1);
    assert_null(column(row, "instruction"));
    assert_non_null(column(row, "prompt"));
}
static void check_rejection(const json_t *row) { assert_true(json_number_value(json_object_get(json_object_get(json_object_get(row, "provenance"), "scores"), "reward")) >= 1); }

/* Each preset gives its rows, and the same ones when it is stopped in the middle. */
static void presets_make_their_rows(void **state) {
    (void)state;
    static const struct { const char *name, *more[4]; int64_t rows; void (*check)(const json_t *row); } cases[] = {
        {"self-instruct", {"synth.num_rows=30", "synth.examples=6", "synth.batch=24"}, 30, check_self_instruct},
        {"alpaca", {"synth.num_rows=20", "synth.tasks_per_request=4"}, 20, check_alpaca},
        {"evol", {"synth.num_rows=60", "synth.generations=3"}, 18, check_evol},
        {"magpie", {"synth.num_rows=10", "synth.user_turn='<user>'", "synth.seeds=null"}, 10, check_magpie},
        {"backtranslation", {"synth.num_rows=10"}, 6, check_backtranslation},
        {"qa", {"synth.num_rows=30", "synth.pairs=2", "synth.chunk_size=16", "synth.chunk_overlap=4"}, -1, check_qa},
        {"answer", {"synth.num_rows=100", "synth.n=3"}, 18, check_answer},
        {"preference", {"synth.num_rows=5", "synth.margin=1", "synth.format=prompt_completion"}, -1, check_preference},
        {"rejection", {"synth.num_rows=30", "synth.threshold=1"}, -1, check_rejection},
    };
    Str more = {0};
    str_printf(&more, "%s{\"id\": \"c1\", \"task_type\": \"facts\", \"instruction\": \"Name a colour.\", \"output\": \"Green is one. There are many more of them, such as red. Others are blue.\"}\n", seeds_text);
    temp_text(dir, "seeds.jsonl", more.data);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        SynthResult result;
        char whole[64], stopped[64];
        print_message("%s\n", cases[i].name);
        snprintf(whole, sizeof whole, "%s-whole", cases[i].name);
        snprintf(stopped, sizeof stopped, "%s-stopped", cases[i].name);
        Overrides o = remote(cases[i].name, "well", "", whole);
        if (strcmp(cases[i].name, "preference") != 0) set(&o, "synth.format=alpaca");
        for (size_t k = 0; k < 4 && cases[i].more[k]; k++) set(&o, "%s", cases[i].more[k]);
        check_ok(run_with(&o, &(SynthConfig){.reward = length_reward}, &result));
        if (cases[i].rows > 0) assert_int_equal(result.rows, cases[i].rows);
        assert_true(result.rows > 0);
        for (size_t n = 0; n < (size_t)result.rows; n++) {
            json_t *row = row_of(whole, "rows.jsonl", n);
            if (strcmp(cases[i].name, "preference") == 0 ? column(row, "chosen") == NULL : column(row, "instruction") == NULL) fail_msg("row %zu", n);
            cases[i].check(row);
            json_decref(row);
        }
        int64_t half = result.requests / 2;
        set(&o, "output=%s", temp_file(dir, stopped));
        set(&o, "synth.max_requests=%lld", (long long)half);
        check_status(run_with(&o, &(SynthConfig){.reward = length_reward}, &result), ST_RESOURCE);
        o.n--;
        check_ok(run_with(&o, &(SynthConfig){.reward = length_reward, .resume = true}, &result));
        assert_int_equal(result.replayed, half);
        check_same(whole, stopped, "rows.jsonl");
        check_same(whole, stopped, "rejected.jsonl");
        char *page = read_output(whole, "report.html"), *card = read_output(whole, "dataset_card.md");
        assert_true(has(page, "</html>") && has(card, cases[i].name));
        free(page);
        free(card);
    }
    temp_text(dir, "seeds.jsonl", seeds_text);
    str_release(&more);
}

static void note_filters(void *context, const SynthPlan *plan) {
    static const char *const usual[] = {"empty", "length", "refusal", "exact"};
    bool *found = context;
    for (size_t k = 0; k < COUNT_OF(usual); k++) found[k] = filters_has(plan->filters, usual[k]);
}

static void whatever_a_teacher_says_is_taken(void **state) {
    (void)state;
    static const char *const names[] = {"self-instruct", "alpaca", "few_shot", "evol", "magpie", "backtranslation", "qa", "answer", "preference", "rejection"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        SynthResult result;
        char output[64];
        snprintf(output, sizeof output, "babble-%s", names[i]);
        Overrides o = remote(names[i], "babble", "", output);
        set(&o, "synth.filters={rouge_l: false, exact: false, words: false, empty: false, length: false}");
        set(&o, "synth.max_requests=150");
        set(&o, "synth.num_rows=1000");
        set(&o, "synth.min_acceptance=0");
        if (strcmp(names[i], "qa") == 0) set(&o, "synth.chunk_size=16"), set(&o, "synth.chunk_overlap=4");
        if (strcmp(names[i], "magpie") == 0) set(&o, "synth.user_turn='<user>'");
        if (i < 2) set(&o, "synth.examples=3");
        Status status = run_with(&o, &(SynthConfig){.reward = length_reward}, &result);
        if (status != ST_OK && status != ST_INPUT) check_text("'synth.max_requests' is reached"); /* or no row was kept at all */
        assert_true(result.requests > 0);
    }
}

/* A preset's own filters do not leave out the usual ones. */
static void no_preset_keeps_empty_answers(void **state) {
    (void)state;
    for (size_t i = 0; i < 10; i++) {
        static const char *const names[] = {"self-instruct", "alpaca", "few_shot", "evol", "magpie", "backtranslation", "qa", "answer", "preference", "rejection"};
        static const char *const usual[] = {"empty", "length", "refusal", "exact"};
        bool found[COUNT_OF(usual)] = {false};
        Overrides o = remote(names[i], "well", "", "plan");
        if (strcmp(names[i], "magpie") == 0) set(&o, "synth.user_turn='<user>'");
        if (i < 2) set(&o, "synth.examples=3");
        SynthResult result;
        check_ok(run_with(&o, &(SynthConfig){.reward = length_reward, .dry_run = true, .on_plan = note_filters, .context = found}, &result));
        for (size_t k = 0; k < COUNT_OF(usual); k++)
            if (found[k] != (k < 3 || i < 7)) fail_msg("preset '%s': filter '%s'", names[i], usual[k]); /* given prompts may be the same */
    }
}

/* A prompt whose answer is dropped can be asked again in a later round, and not twice in one. Seeds are prompts of the set from the beginning. */
static void only_kept_prompts_are_remembered(void **state) {
    (void)state;
    SynthResult result;
    Overrides o = remote("few_shot", "stubborn", "", "stubborn");
    set(&o, "synth.num_rows=1");
    set(&o, "synth.filters={exact: true, rouge_l: false, minhash: 0.8, refusal: true}");
    check_ok(run(&o, false, &result));
    char *rejected = read_output("stubborn", "rejected.jsonl");
    size_t n = 0;
    for (const char *at = rejected; (at = strstr(at, "\"reason\": \"refusal\"")); at++) n++;
    assert_int_equal(n, 2);                                             /* of the first two rounds, one each: the others of a round are the same */
    assert_true(has(rejected, "\"reason\": \"exact\"") && has(rejected, "\"nearest\": {\"id\": null, \"text\": \"Name the stubborn\"}"));
    free(rejected);
    json_t *row = row_of("stubborn", "rows.jsonl", 0);
    assert_string_equal(text_at(row, 0), "Name the stubborn");
    json_decref(row);
    int64_t all = result.requests;
    set(&o, "output=%s", temp_file(dir, "stubborn-stopped"));
    set(&o, "synth.max_requests=%lld", (long long)all - 5);
    check_status(run(&o, false, &result), ST_RESOURCE);
    o.n--;
    check_ok(run(&o, true, &result));
    assert_int_equal(result.requests, all);
    check_same("stubborn", "stubborn-stopped", "rows.jsonl");
    check_same("stubborn", "stubborn-stopped", "rejected.jsonl");
}

/* What a row is too much like is named by its line, where one was written of it. */
static void neighbours_are_named_by_their_line(void **state) {
    (void)state;
    static const char *const filters[] = {"{exact: true, rouge_l: false}", "{exact: false, rouge_l: 0.7}", "{exact: {on: completion}, rouge_l: false}"}; /* the last is asked of whole rows */
    for (size_t i = 0; i < COUNT_OF(filters); i++) {
        SynthResult result;
        char output[32];
        snprintf(output, sizeof output, "neighbours-%zu", i);
        Overrides o = remote("few_shot", "stubborn", "", output);
        set(&o, "synth.num_rows=2");
        set(&o, "synth.max_requests=60");
        set(&o, "synth.filters=%s", filters[i]);
        check_status(run(&o, false, &result), ST_RESOURCE);
        assert_int_equal(result.rows, 1); /* there is only one prompt with one answer */
        char *rejected = read_output(output, "rejected.jsonl");
        if (!has(rejected, "\"nearest\": {\"id\": \"rows.jsonl line 1\", \"text\": \"Name the stubborn\"}")) fail_msg("%s: %s", filters[i], rejected);
        free(rejected);
    }
}

/* tune data filter --recipe judges as the run did: instances of one task are no duplicates of each other, rows that come twice are. */
static void rows_pass_the_filters_that_kept_them(void **state) {
    (void)state;
    static const char *const formats[] = {"alpaca", "messages", "prompt_completion"};
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        SynthResult result;
        Recipe *recipe;
        const Yaml *base;
        Filters *filters, *one_by_one;
        Arena *arena = arena_new(0);
        char output[48];
        snprintf(output, sizeof output, "self-instruct-%s", formats[i]);
        Overrides o = remote("self-instruct", "well", "", output);
        set(&o, "synth.num_rows=30");
        set(&o, "synth.examples=5");
        set(&o, "synth.format=%s", formats[i]);
        check_ok(run(&o, false, &result));
        check_ok(recipe_read(NULL, (const char *[]){"synth.preset=self-instruct"}, 1, &recipe));
        check_ok(synth_preset_filters(recipe, arena, &base));
        check_ok(filters_open(&(FilterConfig){.base = base}, &filters));
        check_ok(filters_open(&(FilterConfig){.base = base}, &one_by_one));
        FilterRow rows[60];
        FilterVerdict verdicts[60], verdict;
        size_t again = 0, n = (size_t)result.rows;
        for (size_t r = 0; r < 2 * n; r++) check_ok(filter_row_read(row_of(output, "rows.jsonl", r % n), arena, &rows[r]));
        check_ok(filters_run(filters, FILTER_BOTH, rows, 2 * n, verdicts));
        for (size_t r = 0; r < 2 * n; r++) {
            if (verdicts[r].kept != (r < n)) fail_msg("%s, row %zu: %s", formats[i], r, verdicts[r].reason ? verdicts[r].reason : "kept");
            check_ok(filters_run(one_by_one, FILTER_BOTH, &rows[r], 1, &verdict));
            assert_true(verdict.kept == verdicts[r].kept);
            again += r > 0 && r < n && slice_is(rows[r].instruction, arena_strndup(arena, rows[r - 1].instruction.data, rows[r - 1].instruction.len));
        }
        assert_true(again > 5); /* instances of the task before */
        for (size_t r = 0; r < 2 * n; r++) json_decref((json_t *)(uintptr_t)rows[r].json);
        filters_close(filters);
        filters_close(one_by_one);
        recipe_free(recipe);
        arena_free(arena);
    }
}

/* Prompts that are given pass their filters before anything is asked, and those that do not are no end. */
static void given_prompts_are_filtered_first(void **state) {
    (void)state;
    static const struct { const char *name; int64_t requests; } cases[] = {{"answer", 6}, {"preference", 12}, {"rejection", 6}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        SynthResult result;
        char output[64];
        snprintf(output, sizeof output, "given-%s", cases[i].name);
        Overrides o = remote(cases[i].name, "well", "", output);
        set(&o, "synth.filters={words: {min: 5}}");
        set(&o, "synth.n=2");
        set(&o, "synth.batch=2");
        check_ok(run_with(&o, &(SynthConfig){.reward = length_reward}, &result));
        assert_int_equal(result.requests, cases[i].requests);
        json_t *row = row_of(output, "rejected.jsonl", 0);
        assert_string_equal(json_string_value(json_object_get(row, "reason")), "words");
        assert_string_equal(text_at(json_object_get(row, "row"), 0), "Rewrite the sentence politely.\n\nGo away.");
        json_decref(row);
    }
}

static size_t n_rewarded;
static Status solution_reward(void *context, const FilterRow *rows, size_t n, double *values) {
    (void)context;
    n_rewarded += n;
    for (size_t i = 0; i < n; i++) values[i] = strcmp(json_string_value(json_object_get(rows[i].json, "output")), "4") == 0;
    return ST_OK;
}

/* Rewards compare with the seed's columns, not with the row's own, and are asked for once. */
static void rewards_see_the_seeds_columns(void **state) {
    (void)state;
    static const char *const names[] = {"answer", "rejection"};
    temp_text(dir, "sums.jsonl", "{\"instruction\": \"What is 2 + 2?\", \"output\": \"4\"}\n{\"instruction\": \"What is 2 + 3?\", \"output\": \"5\"}\n");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        SynthResult result;
        char output[64];
        snprintf(output, sizeof output, "rewarded-%s", names[i]);
        Overrides o = remote(names[i], "well", "", output);
        set(&o, "synth.seeds=%s", temp_file(dir, "sums.jsonl"));
        set(&o, "synth.format=alpaca");
        set(&o, "synth.filters={reward: 0.5}");
        set(&o, "synth.n=1");
        n_rewarded = 0;
        check_ok(run_with(&o, &(SynthConfig){.reward = solution_reward}, &result));
        assert_int_equal(result.rows, 1);
        assert_int_equal(n_rewarded, 2);
    }
}

static void a_system_message_stays_with_its_rows(void **state) {
    (void)state;
    SynthResult result;
    Overrides o = remote("preference", "well", "", "preferred");
    set(&o, "synth.system=Be brief.");
    check_ok(run(&o, false, &result));
    json_t *row = row_of("preferred", "rows.jsonl", 0), *prompt = json_object_get(row, "prompt");
    assert_int_equal(json_array_size(prompt), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(prompt, 0), "content")), "Be brief.");
    json_decref(row);
    o = remote("few_shot", "well", "base: true", "never-seen");
    set(&o, "synth.system=Be brief.");
    check_status(run(&o, false, &result), ST_CONFIG);
    check_text("'synth.system' goes with a teacher that chats");
}

static void note_likeness(void *context, const SynthPlan *plan) { *(bool *)context = filters_has(plan->filters, "rouge_l"); }

/* A harder prompt holds the one that it came from. */
static void evol_does_not_mind_likeness(void **state) {
    (void)state;
    static const char *const names[] = {"evol", "few_shot"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        bool found = i == 0;
        SynthResult result;
        Overrides o = remote(names[i], "well", "", "plan");
        check_ok(run_with(&o, &(SynthConfig){.dry_run = true, .on_plan = note_likeness, .context = &found}, &result));
        assert_int_equal(found, i == 1);
    }
}

static void a_judge_can_be_a_filter(void **state) {
    (void)state;
    SynthResult result;
    Overrides o = remote("answer", "well", "", "judged");
    set(&o, "synth.filters={judge: 6}");
    set(&o, "synth.n=4");
    set(&o, "synth.judge={url: 'http://127.0.0.1:%d/well/v1', model: judge-1}", port);
    check_ok(run(&o, false, &result));
    assert_true(result.rows > 0 && result.rejected > 0);
    assert_int_equal(result.requests, 40); /* an answer and a score each */
    json_t *row = row_of("judged", "rejected.jsonl", 0);
    assert_string_equal(column(row, "reason"), "judge");
    assert_true(json_number_value(json_object_get(row, "score")) < 6);
    json_decref(row);
}

/* The best of the rows, by the judge's score and with the quotas of types; the rows themselves stay as they are. */
static void the_best_rows_are_chosen(void **state) {
    (void)state;
    SynthResult result;
    Overrides o = remote("answer", "well", "", "pool");
    set(&o, "synth.n=4");
    set(&o, "synth.num_rows=18");
    set(&o, "synth.filters={judge: 1}");
    check_ok(run(&o, false, &result));
    assert_int_equal(result.selected, -1);
    set(&o, "output=%s", temp_file(dir, "chosen"));
    set(&o, "synth.select=6");
    set(&o, "synth.select_quality=judge");
    set(&o, "synth.select_quotas={facts: 2}");
    check_ok(run(&o, false, &result));
    assert_int_equal(result.selected, 6);
    assert_int_equal(count_lines("chosen", "selected.jsonl"), 6);
    check_same("pool", "chosen", "rows.jsonl");
    double most = 0;
    size_t facts = 0;
    for (size_t n = 0; n < 18; n++) {
        json_t *row = row_of("chosen", "rows.jsonl", n);
        most = fmax(most, row_number(row, "judge"));
        json_decref(row);
    }
    double best = 0;
    for (size_t n = 0; n < 6; n++) {
        json_t *row = row_of("chosen", "selected.jsonl", n);
        facts += strcmp(column(row, "task_type"), "facts") == 0;
        best = fmax(best, row_number(row, "judge"));
        json_decref(row);
    }
    assert_int_equal(facts, 2);
    assert_true(best == most);
    char *card = read_output("chosen", "dataset_card.md");
    assert_true(has(card, "chosen of them: 6, in `selected.jsonl`"));
    free(card);
}

static void budgets_that_cannot_be_met_are_refused(void **state) {
    (void)state;
    static const struct { const char *keys[3], *text; Status status; } cases[] = {
        {{"synth.select=500"}, "'synth.select' is 500, and 'synth.num_rows' makes 100", ST_CONFIG}, {{"synth.select_quality=length"}, "'synth.select_quality' goes with 'synth.select'", ST_CONFIG},
        {{"synth.select_quotas={facts: 1}"}, "'synth.select_quotas' goes with 'synth.select'", ST_CONFIG}, {{"synth.select=2", "synth.select_quality=judge"}, "neither a filter that is on nor a score of preset 'few_shot'", ST_CONFIG},
        {{"synth.select=2", "synth.select_quotas={fact: 1}"}, "names 'fact', and no seed has this task type", ST_CONFIG}, {{"synth.select=2", "synth.select_quotas={facts: 3}"}, "asks for 3 rows, and 'synth.select' for 2", ST_CONFIG},
        {{"synth.select=2", "synth.select_quotas={facts: 1.5}"}, "gives 'facts' no whole number", ST_CONFIG}, {{"synth.select=2", "synth.select_share=evn"}, "wrong value 'evn' for 'synth.select_share'", ST_CONFIG},
        {{"synth.select=2", "synth.select_quality=refusal"}, "row 'rows.jsonl line 1' has no number 'refusal'", ST_INPUT},
    };
    SynthResult result;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Overrides o = remote("few_shot", "well", "", "no-budget");
        for (size_t k = 0; k < 3 && cases[i].keys[k]; k++) set(&o, "%s", cases[i].keys[k]);
        check_status(run(&o, false, &result), cases[i].status);
        check_text(cases[i].text);
    }
    Overrides o = remote("few_shot", "well", "", "no-budget"); /* what was asked by then is not lost */
    set(&o, "synth.select=2");
    check_ok(run(&o, true, &result));
    assert_true(result.selected == 2 && result.replayed > 0);
}

static void a_rubric_is_what_the_judge_reads(void **state) {
    (void)state;
    static const char *const rubrics[] = {"", ", rubric: 'politeness 0-6, rhyme 0-4'"}, *const asked[] = {"by this: accuracy 0-3", "by this: politeness 0-6, rhyme 0-4. Say"};
    for (size_t i = 0; i < COUNT_OF(rubrics); i++) {
        SynthResult result;
        char output[32];
        snprintf(output, sizeof output, "rubric-%zu", i);
        Overrides o = remote("answer", "well", "", output);
        set(&o, "synth.filters={judge: {min: 1%s}}", rubrics[i]);
        check_ok(run(&o, false, &result));
        char *log = read_output(output, "requests.jsonl");
        assert_true(has(log, asked[i]));
        free(log);
    }
    SynthResult result;
    Overrides o = remote("preference", "well", "", "rubric-none");
    check_ok(run(&o, false, &result));
    char *log = read_output("rubric-none", "requests.jsonl");
    assert_true(has(log, "0 to 3 for accuracy"));
    free(log);
}

/* A judge that was cut has not said its score. */
static void a_cut_judge_says_nothing(void **state) {
    (void)state;
    SynthResult result;
    Overrides o = remote("preference", "well", "", "cut-judge");
    set(&o, "synth.judge={url: 'http://127.0.0.1:%d/cutjudge/v1', model: judge-1}", port);
    check_status(run(&o, false, &result), ST_INPUT);
    check_text("no_score 5");
}

static Status first_is_best(void *context, const FilterRow *rows, size_t n, double *values) {
    (void)context, (void)rows;
    for (size_t i = 0; i < n; i++) values[i] = i % 4 == 0;
    return ST_OK;
}

/* One answer of four can be kept at most: a quarter is all there is. */
static void the_best_of_each_prompt_is_all_that_is_wanted(void **state) {
    (void)state;
    SynthResult result;
    Overrides o = remote("rejection", "well", "", "best");
    set(&o, "synth.num_rows=30");
    set(&o, "synth.n=4");
    set(&o, "synth.min_acceptance=0.5");
    set(&o, "synth.acceptance_after=1");
    check_ok(run_with(&o, &(SynthConfig){.reward = first_is_best}, &result));
    assert_int_equal(result.rows, 5);
    assert_int_equal(result.requests, 20);
}

/* A teacher that continues texts is shown other seeds' answers, never the one that it is asked for. */
static void the_answer_is_not_given_away(void **state) {
    (void)state;
    static const char *const outputs[] = {"Could you leave, please?", "It rains.", "I went.", "Air scatters blue light most.", "4.6 billion years."};
    SynthResult result;
    Overrides o = remote("answer", "well", "base: true", "own-seed");
    check_ok(run(&o, false, &result));
    assert_int_equal(result.requests, 5);
    for (size_t i = 0; i < 5; i++) {
        json_t *request = row_of("own-seed", "requests.jsonl", i);
        const char *prompt = json_string_value(json_object_get(request, "prompt"));
        size_t shown = 0;
        for (size_t k = 0; k < 5; k++) shown += has(prompt, outputs[k]);
        assert_false(has(prompt, outputs[json_integer_value(json_object_get(request, "number"))]));
        assert_true(shown >= 1 && shown <= 2);
        json_decref(request);
    }
}

static void rows_are_what_is_trained(void **state) {
    (void)state;
    static const char *const formats[] = {"messages", "alpaca", "prompt_completion"};
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        SynthResult result;
        Overrides o = remote("answer", "well", "", formats[i]);
        set(&o, "synth.format=%s", formats[i]);
        set(&o, "synth.system=Be brief.");
        check_ok(run(&o, false, &result));
        json_t *row = row_of(formats[i], "rows.jsonl", 0);
        const DataFormat *format = data_format_find(formats[i]);
        assert_true(format->detect(row));
        if (i == 0) assert_string_equal(text_at(row, 0), "Be brief.");
        json_decref(row);
        json_t *request = row_of(formats[i], "requests.jsonl", 0);
        assert_string_equal(text_at(request, 0), "Be brief.");
        json_decref(request);
    }
}

/* ---- the local teacher ---- */

/* The tiny model knows a notation, "< 'word' =" for the word backwards and "^ 'word' =" for capitals: words are its seeds, and its new prompts are words backwards. */
static Overrides local(const char *output) {
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

/* ---- choices of a model here ---- */

typedef struct Chosen { TeacherAnswer answers[4]; char texts[4][32]; size_t n; } Chosen;

static Status note_choice(void *context, size_t i, const TeacherAnswer *answer) {
    Chosen *chosen = context;
    chosen->answers[i] = *answer;
    snprintf(chosen->texts[i], sizeof chosen->texts[i], "%s", answer->text);
    chosen->n++;
    return ST_OK;
}

/* The sum of the log-probabilities of `behind` (and of the line's end) behind the question, token by token, computed as one row. */
static double logprob_of(const Model *model, const Tokenizer *tokenizer, const char *question, const char *behind, bool with_end) {
    static double logprobs[256];
    Ids ids = {0};
    double sum = 0;
    check_ok(encode_prompt(tokenizer, question, strlen(question), &ids));
    size_t n = ids.n;
    check_ok(tokenizer_encode(tokenizer, behind, strlen(behind), TOKENIZE_LITERAL, &ids));
    if (with_end) check_ok(tokenizer_encode(tokenizer, "\n", 1, TOKENIZE_LITERAL, &ids));
    ScoreRow row = {ids.data, ids.n, logprobs};
    check_ok(score_rows(model, &row, 1, NULL, NULL));
    for (size_t t = n; t < ids.n; t++) sum += logprobs[t];
    ids_release(&ids);
    return sum;
}

/* The likeliest of the choices as wholes; where one begins another, with the line's end behind each. Numbers have a mean. */
static void choices_are_compared_as_wholes(void **state) {
    (void)state;
    static const char question[] = "< 'pirate' =", numbers_question[] = "# 'violin' =";
    static const char *const words[] = {"etarip", "pirate", "x"}, *const numbers[] = {"1", "10", "6", "5"};
    const TeacherPrompt prompts[] = {{.number = 1, .text = question, .n_choices = COUNT_OF(words), .choices = words}, {.number = 2, .text = numbers_question, .n_choices = COUNT_OF(numbers), .choices = numbers}};
    const TeacherSampling sampling = teacher_sampling();
    TeacherConfig config = {.model = "recipes/demo/model", .compute = "f32", .key = "teacher"};
    Teacher *teacher;
    Chosen chosen = {0}, said = {0};
    Model *model;
    Tokenizer *tokenizer;
    check_ok(teacher_open(&config, &(TeacherOptions){.seed = 1}, &teacher));
    assert_true(teacher_compares(teacher));
    check_ok(teacher_ask(teacher, prompts, COUNT_OF(prompts), &sampling, note_choice, &chosen));
    teacher_close(teacher);
    check_ok(teacher_open(&config, &(TeacherOptions){.seed = 1, .reads_choices = true}, &teacher));
    assert_false(teacher_compares(teacher));
    check_ok(teacher_ask(teacher, prompts, COUNT_OF(prompts), &sampling, note_choice, &said));
    teacher_close(teacher);
    assert_string_equal(chosen.texts[0], "etarip");
    assert_string_equal(chosen.texts[1], "6");
    assert_string_equal(said.texts[0], "etarip");
    assert_string_equal(said.texts[1], "6");
    assert_true(said.answers[0].margin == 0 && isnan(said.answers[1].mean) && isnan(chosen.answers[0].mean));
    check_ok(model_load(config.model, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    check_ok(tokenizer_load_if_any(config.model, &tokenizer));
    double sums[4], best = logprob_of(model, tokenizer, question, words[0], false), second = -HUGE_VAL, mean = 0, weight = 0;
    for (size_t i = 1; i < COUNT_OF(words); i++) second = fmax(second, logprob_of(model, tokenizer, question, words[i], false));
    check_close(chosen.answers[0].margin, best - second, 1e-4); /* f32, and the same rows in batches of other sizes */
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        sums[i] = logprob_of(model, tokenizer, numbers_question, numbers[i], true);
        mean += exp(sums[i]) * strtod(numbers[i], NULL);
        weight += exp(sums[i]);
    }
    check_close(chosen.answers[1].mean, mean / weight, 1e-4);
    check_close(chosen.answers[1].margin, sums[2] - fmax(fmax(sums[0], sums[1]), sums[3]), 1e-4);
    model_free(model);
    tokenizer_free(tokenizer);
}

/* The scores of a judge here are means of the ten, in every row; the log gives the same ones without it. */
static void a_judge_here_scores_by_its_mean(void **state) {
    (void)state;
    SynthResult result;
    for (int replayed = 0; replayed < 2; replayed++) {
        Overrides o = remote("answer", "well", "", replayed ? "means-again" : "means");
        set(&o, "synth.filters={judge: 1}");
        set(&o, "synth.prompts={judge: %s}", temp_text(dir, "judge.jinja", "# '{{ answer[:8] }}' ="));
        if (replayed) set(&o, "synth.teacher={replay: %s/requests.jsonl}", temp_file(dir, "means")), set(&o, "synth.judge={replay: %s/requests.jsonl}", temp_file(dir, "means-judge"));
        else set(&o, "synth.judge={model: recipes/demo/model}");
        check_ok(run(&o, false, &result));
        assert_int_equal(result.rows, 5);
        char *log = read_output(replayed ? "means-again" : "means", "requests.jsonl"), *judged = strstr(log, "\"stage\": \"judge\"");
        assert_true(judged && has(judged, "\"mean\":"));
        if (!replayed) { /* a log has one kind of teacher in it: the judge's part */
            check_ok(dir_make(temp_file(dir, "means-judge")));
            while (judged[-1] != '\n') judged--;
            temp_text(temp_file(dir, "means-judge"), "requests.jsonl", judged);
        }
        free(log);
    }
    for (size_t n = 0; n < 5; n++) {
        json_t *row = row_of("means", "rows.jsonl", n), *again = row_of("means-again", "rows.jsonl", n);
        double score = json_number_value(json_object_get(json_object_get(json_object_get(row, "provenance"), "scores"), "judge"));
        double same = json_number_value(json_object_get(json_object_get(json_object_get(again, "provenance"), "scores"), "judge"));
        assert_true(score > 1 && score < 10 && score != floor(score) && score == same);
        json_decref(row);
        json_decref(again);
    }
}

static void a_model_here_compares_choices(void **state) {
    (void)state;
    const struct CMUnitTest apart[] = {cmocka_unit_test(choices_are_compared_as_wholes), cmocka_unit_test(a_judge_here_scores_by_its_mean)};
    pid_t child = fork(); /* as below: models start threads */
    if (child == 0) _exit(cmocka_run_group_tests(apart, NULL, NULL));
    int code;
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
}

/* No answer of this length fits behind any question. */
static void a_question_that_does_not_fit_is_too_long(void **state) {
    (void)state;
    static const char *const presets[] = {"alpaca", "self-instruct", "answer", "qa"};
    for (size_t i = 0; i < COUNT_OF(presets); i++) {
        pid_t child = fork(); /* as below: models start threads */
        if (child == 0) {
            SynthResult result;
            char output[32];
            snprintf(output, sizeof output, "long-%zu", i);
            Overrides o = local(output);
            set(&o, "synth.preset=%s", presets[i]);
            set(&o, "synth.seeds=%s", temp_file(dir, "seeds.jsonl"));
            set(&o, "synth.prompts=null");
            set(&o, "synth.teacher={model: recipes/demo/model, chat_template: %s, max_new_tokens: 100000}", temp_text(dir, "chat.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}"));
            if (i < 2) set(&o, "synth.examples=1");
            set(&o, "synth.acceptance_after=8");
            Status status = run(&o, false, &result);
            bool good = status == ST_INPUT && has(status_text(), "rejected: too_long ") && has(status_hint_text(), "the teacher refused: 'the question has ");
            if (!good) print_error("%s: %s; %s\n", presets[i], status_text(), status_hint_text());
            _exit(!good);
        }
        int code;
        assert_int_equal(waitpid(child, &code, 0), child);
        assert_int_equal(code, 0);
    }
}

static int say(Status status) {
    if (status != ST_OK) print_error("%s\n", status_text());
    return status != ST_OK;
}

static int answers_left;
static void die_after(void *context, const SynthProgress *p) {
    (void)context, (void)p;
    if (answers_left-- == 0) raise(SIGKILL);
}

static void a_killed_run_goes_on_to_the_same_bytes(void **state) {
    (void)state;
    SynthResult result;
    Overrides whole = local("whole"), killed = local("killed");
    pid_t first = fork(); /* models start threads, and a process with threads does not fork well: each run has its own */
    if (first == 0) _exit(say(run(&whole, false, &result)));
    int code;
    assert_int_equal(waitpid(first, &code, 0), first);
    assert_int_equal(code, 0);
    for (int lives = 0; lives < 4; lives++) {
        pid_t child = fork();
        if (child == 0) {
            answers_left = 5 + 9 * lives;
            _exit(say(run_with(&killed, &(SynthConfig){.resume = lives > 0, .on_progress = lives < 3 ? die_after : NULL}, &result)));
        }
        assert_int_equal(waitpid(child, &code, 0), child);
        if (lives < 3) assert_true(WIFSIGNALED(code));
        else assert_int_equal(code, 0);
        if (lives == 1) check_ok(file_append(temp_file(temp_file(dir, "killed"), "requests.jsonl"), "{\"key\":\"torn", 12)); /* as a crash of the machine leaves it */
    }
    check_same("whole", "killed", "rows.jsonl");
    check_same("whole", "killed", "rejected.jsonl");
    check_same("whole", "killed", "requests.jsonl");
}

/* In a process of its own, whose files end at `limit` bytes (0: nowhere); the exit code. */
static int run_on_disk_of(const Overrides *o, size_t limit, bool resume) {
    pid_t child = fork();
    if (child == 0) {
        SynthResult result;
        signal(SIGXFSZ, SIG_IGN);
        if (limit > 0) setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, limit});
        Status status = run(o, resume, &result);
        if (status != ST_OK && limit == 0) say(status);
        _exit(status == ST_OK ? 0 : status_exit_code(status));
    }
    int code;
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFEXITED(code));
    return WEXITSTATUS(code);
}

/* Wherever the disk ends, the run says so and goes on from what it has when there is room again. */
static void a_full_disk_loses_nothing(void **state) {
    (void)state;
    int full = 0, code = 5;
    Overrides whole = remote("few_shot", "well", "", "disk");
    set(&whole, "synth.num_rows=12");
    assert_int_equal(run_on_disk_of(&whole, 0, false), 0);
    for (size_t limit = 1, n = 0; code == 5; limit += limit / 4 + 100, n++) {
        char output[32];
        snprintf(output, sizeof output, "disk-%zu", n);
        Overrides o = remote("few_shot", "well", "", output);
        set(&o, "synth.num_rows=12");
        code = run_on_disk_of(&o, limit, false);
        full += code == 5;
        if (code != 0 && code != 5) fail_msg("exit code %d with files of %zu bytes at most", code, limit);
        int again = run_on_disk_of(&o, 0, true);
        if (again != 0) fail_msg("exit code %d of the run that goes on after files of %zu bytes at most", again, limit);
        check_same("disk", output, "rows.jsonl");
        check_same("disk", output, "rejected.jsonl");
    }
    assert_true(full > 5);
}

/* `make test-long`: rows that the demo's model makes teach it plain English. */
static double exact_match(const char *output, const char *name) {
    char *text = read_output(output, name), *at = strstr(text, "\"exact_match\":");
    assert_non_null(at);
    double value = strtod(at + strlen("\"exact_match\":"), NULL);
    free(text);
    return value;
}

static void rows_of_the_demo_teach_its_task(void **state) {
    (void)state;
    const char *tune = getenv("TUNE");
    char command[512];
    if (!getenv("TEST_LONG")) skip();
    snprintf(command, sizeof command, "sh recipes/synth_demo/synth_demo.sh %s %s >/dev/null 2>&1", tune ? tune : "./tune", temp_file(dir, "demo"));
    assert_int_equal(system(command), 0);
    double before = exact_match("demo", "before.json"), after = exact_match("demo", "after.json");
    print_message("held-out answers exactly right: %.1f %% before, %.1f %% after\n", 100 * before, 100 * after);
    assert_true(before < 0.05);
    assert_true(after > 0.6); /* 77 % were measured */
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_run_goes_on_to_the_same_bytes),
        cmocka_unit_test(a_full_disk_loses_nothing),
        cmocka_unit_test(a_question_that_does_not_fit_is_too_long),
        cmocka_unit_test(a_model_here_compares_choices),
        cmocka_unit_test(few_shot_asks_for_a_prompt_and_answers_it),
        cmocka_unit_test(a_heading_is_dropped),
        cmocka_unit_test(a_field_is_without_its_decoration),
        cmocka_unit_test(a_score_is_what_a_judge_means),
        cmocka_unit_test(a_reply_names_one_label),
        cmocka_unit_test(a_servers_words_become_a_label),
        cmocka_unit_test(labels_that_make_no_sense_are_refused),
        cmocka_unit_test(labels_of_classifications_are_checked),
        cmocka_unit_test(servers_in_trouble_give_the_same_rows),
        cmocka_unit_test(what_stays_down_keeps_what_was_made),
        cmocka_unit_test(a_limit_ends_the_run_and_a_higher_one_goes_on),
        cmocka_unit_test(rates_are_kept),
        cmocka_unit_test(a_log_is_replayed_without_the_server),
        cmocka_unit_test(nonsense_is_counted_until_it_is_too_much),
        cmocka_unit_test(replies_without_candidates_end_a_run),
        cmocka_unit_test(what_is_complete_is_not_refused),
        cmocka_unit_test(replies_that_cannot_be_read_are_refusals),
        cmocka_unit_test(tokens_that_a_server_claims_stay_numbers),
        cmocka_unit_test(seeds_that_are_none_are_named),
        cmocka_unit_test(recipes_that_make_no_sense_are_refused),
        cmocka_unit_test(other_seeds_make_another_run),
        cmocka_unit_test(a_server_behind_tls_shows_who_it_is),
        cmocka_unit_test(presets_make_their_rows),
        cmocka_unit_test(whatever_a_teacher_says_is_taken),
        cmocka_unit_test(no_preset_keeps_empty_answers),
        cmocka_unit_test(only_kept_prompts_are_remembered),
        cmocka_unit_test(neighbours_are_named_by_their_line),
        cmocka_unit_test(rows_pass_the_filters_that_kept_them),
        cmocka_unit_test(given_prompts_are_filtered_first),
        cmocka_unit_test(rewards_see_the_seeds_columns),
        cmocka_unit_test(a_system_message_stays_with_its_rows),
        cmocka_unit_test(evol_does_not_mind_likeness),
        cmocka_unit_test(a_judge_can_be_a_filter),
        cmocka_unit_test(the_best_rows_are_chosen),
        cmocka_unit_test(budgets_that_cannot_be_met_are_refused),
        cmocka_unit_test(a_rubric_is_what_the_judge_reads),
        cmocka_unit_test(a_cut_judge_says_nothing),
        cmocka_unit_test(the_best_of_each_prompt_is_all_that_is_wanted),
        cmocka_unit_test(the_answer_is_not_given_away),
        cmocka_unit_test(rows_are_what_is_trained),
        cmocka_unit_test(rows_of_the_demo_teach_its_task),
    };
    return cmocka_run_group_tests(tests, write_seeds, stop_server);
}
