/* SPDX-License-Identifier: Apache-2.0 */
/* Synthetic rows from servers that fail, wait, bill, or cannot be trusted; what is told of keys. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "lib/http/http.h"
#include "tests/support/check.h"
#include "tests/support/synth_world.h"

TEST(servers_in_trouble_give_the_same_rows) {
    static const char *const paths[] = {"shaky", "cut", "garbled", "schema", "slow", "busy", "encoding", "limited"};
    SynthResult result;
    Overrides well = remote("few_shot", "well", "", "well");
    set(&well, "synth.num_rows=4");
    check_ok(run(&well, false, &result));
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        print_message("%s\n", paths[i]);
        const char *more = strcmp(paths[i], "slow") == 0 ? "timeout: 1" : strcmp(paths[i], "limited") == 0 ? "retries: 0" : "";
        Overrides o = remote("few_shot", paths[i], more, paths[i]);
        set(&o, "synth.num_rows=4");
        check_ok(run(&o, false, &result));
        check_same("well", paths[i], "rows.jsonl");
        check_same("well", paths[i], "rejected.jsonl");
    }
}

/* A question that the server will not hear costs that question alone; words that repeat the key do not bring it into files. */
TEST(what_is_forbidden_is_refused) {
    SynthResult result;
    Overrides o = remote("few_shot", "forbids", "api_key_env: TEACHER_KEY, retries: 0", "forbids");
    set(&o, "synth.num_rows=10");
    check_ok(run(&o, false, &result));
    char *log = read_output("forbids", "requests.jsonl");
    assert_true(has(log, "nothing of this for Bearer ******"));
    assert_false(has(log, "s3cret"));
    free(log);
    assert_int_equal(count_lines("forbids", "requests.jsonl"), result.requests);
}

/* Nor do those that spell it in JSON's escapes, or in JSON within JSON. */
TEST(a_key_that_is_escaped_is_hidden) {
    SynthResult result;
    Overrides o = remote("few_shot", "tells", "api_key_env: LONG_KEY, retries: 0", "tells");
    set(&o, "synth.num_rows=10");
    check_ok(run(&o, false, &result));
    char *log = read_output("tells", "requests.jsonl");
    check_contains(log, "It is ***");
    check_contains(log, ", so keep it.");
    assert_false(has(log, "defghi"));
    free(log);
}

static void synth_note(void *context, LogLevel level, const char *text) { str_printf(context, "%d %s\n", (int)level, text); }

/* Who reads along gets the key of plain http; names that only begin as this machine's are others'. */
TEST(a_key_goes_into_plain_http_with_a_warning) {
    static const char *const away[] = {"http://localhost.evil.com/v1", "http://127.evil.com/v1", "http://127.0.0.1@evil.com/v1",
                                       "http://10.0.0.1:80/v1"},
                             *const here[] = {"http://localhost:1/v1", "http://LOCALHOST/v1",    "http://127.8.0.1/v1",
                                              "http://[::1]:8/v1",     "http://me@127.0.0.1/v1", "https://evil.com/v1"};
    Str said = {0};
    HttpClient *client;
    log_set_sink(synth_note, &said, LOG_WARNING);
    for (size_t i = 0; i < COUNT_OF(here); i++) {
        check_ok(http_open(&(HttpOptions){.url = here[i], .key = "k", .concurrency = 1, .timeout = 1}, &client));
        http_close(client);
    }
    assert_string_equal(str_text(&said), "");
    for (size_t i = 0; i < COUNT_OF(away); i++) {
        str_clear(&said);
        check_ok(http_open(&(HttpOptions){.url = away[i], .key = "k", .concurrency = 1, .timeout = 1}, &client));
        http_close(client);
        check_contains(str_text(&said), "is sent unencrypted");
        str_clear(&said);
        check_ok(http_open(&(HttpOptions){.url = away[i], .concurrency = 1, .timeout = 1}, &client));
        http_close(client);
        assert_string_equal(str_text(&said), "");
    }
    log_set_sink(NULL, NULL, LOG_WARNING);
    str_release(&said);
}

/* A late question is asked once more; a server that asks to wait for an hour is not waited for. */
TEST(what_is_late_is_asked_again) {
    SynthResult result;
    Overrides o = remote("few_shot", "sleeps", "timeout: 1, retries: 0", "sleeps"), patient = remote("few_shot", "patient", "retries: 0", "patient");
    set(&o, "synth.num_rows=10");
    check_ok(run(&o, false, &result));
    char *log = read_output("sleeps", "requests.jsonl");
    assert_false(has(log, "does not answer"));
    free(log);
    check_status(run(&patient, false, &result), ST_RESOURCE);
    check_text("asks to wait 3600 s");
}

/* Replies that cannot be read are paid for as well, each time. */
TEST(what_is_billed_is_counted) {
    SynthResult result;
    Overrides o = remote("few_shot", "billed", "retries: 1", "billed");
    set(&o, "synth.num_rows=10");
    check_ok(run(&o, false, &result));
    char *log = read_output("billed", "requests.jsonl");
    int64_t refused = 0;
    for (const char *at = log; (at = strstr(at, "no choices[0].message.content")); at++) refused++;
    free(log);
    assert_true(refused > 0);
    assert_int_equal(result.prompt_tokens / 1000000, 2 * refused);
}

TEST(what_stays_down_keeps_what_was_made) {
    static const struct {
        const char *path, *more, *text;
        Status status;
    } cases[] = {
        {"down", "retries: 1", "status 503 (2 tries)", ST_RESOURCE},
        {"nonsense", "retries: 1", "answers wrongly (2 tries): no choices[0].message.content: '[1, 2]'", ST_RESOURCE},
        {"key", "", "status 401", ST_RESOURCE},
        {"key", "api_key_env: NO_SUCH_KEY", "environment variable 'NO_SUCH_KEY' with the teacher's key is not set", ST_CONFIG},
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
    check_ok(run(&o, true, &result)); /* a finished run is left unchanged */
    assert_true(result.already_finished);
}

/* Writes n seeds; those from `bad` on have the word BAD. */
static void write_questions(size_t n, size_t bad) {
    Str seeds = {0};
    for (size_t i = 0; i < n; i++) str_printf(&seeds, "{\"prompt\": \"Say %zu%s.\"}\n", i, i >= bad ? " BAD" : "");
    temp_text(dir, "questions.jsonl", seeds.data);
    str_release(&seeds);
}

/* Whatever a server says from some request on, to all: nothing of what it did not answer counts as refused, and another start asks for it again. A
 * batch of one question shows it as one of many does. */
TEST(what_ends_is_gone_on_with) {
    static const struct {
        const char *path, *batch, *text;
    } cases[] = {
        {"ends-500", "synth.batch=24", "status 500"},    {"ends-401", "synth.batch=24", "status 401"},
        {"ends-404", "synth.batch=24", "status 404"},    {"ends-html", "synth.batch=24", "answers wrongly (1 tries): no JSON: '<html>hello</html>'"},
        {"ends-500-one", "synth.batch=1", "status 500"}, {"ends-html-one", "synth.batch=1", "answers wrongly"},
        {"ends-400", "synth.batch=24", "status 400"},
    };
    SynthResult result;
    write_questions(24, 24);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char output[32];
        snprintf(output, sizeof output, "end-%zu", i);
        Overrides o = remote("answer", cases[i].path, "retries: 0, concurrency: 4", output),
                  well = remote("answer", "well", "retries: 0, concurrency: 4", output), *both[] = {&o, &well};
        for (size_t k = 0; k < COUNT_OF(both); k++) {
            set(both[k], "synth.seeds=%s", temp_file(dir, "questions.jsonl"));
            set(both[k], "%s", cases[i].batch);
            set(both[k], "synth.num_rows=24");
        }
        check_status(run(&o, false, &result), ST_RESOURCE);
        check_text(cases[i].text);
        check_ok(run(&well, true, &result));
        if (strcmp(cases[i].batch, "synth.batch=24") == 0) assert_int_equal(result.refused, 0);
        assert_true(result.rows >= 23);
    }
}

/* Unreadable replies that end a run were paid for: each start of it counts them, and those before. */
TEST(what_was_billed_stays_counted) {
    SynthResult result;
    write_questions(24, 24);
    Overrides o = remote("answer", "ends-billed", "retries: 0, concurrency: 4", "spent"),
              well = remote("answer", "well", "retries: 0, concurrency: 4", "spent"), *both[] = {&o, &well};
    for (size_t k = 0; k < COUNT_OF(both); k++) {
        set(both[k], "synth.seeds=%s", temp_file(dir, "questions.jsonl"));
        set(both[k], "synth.batch=24");
        set(both[k], "synth.num_rows=24");
    }
    for (int starts = 0; starts < 2; starts++) {
        check_status(run(&o, starts > 0, &result), ST_RESOURCE);
        check_text("answers wrongly");
    }
    set(&well, "synth.max_tokens=28000000");
    check_status(run(&well, true, &result), ST_RESOURCE);
    check_text("'synth.max_tokens' is reached");
    well.n--;
    check_ok(run(&well, true, &result));
    assert_int_equal(result.rows, 24);
    assert_int_equal(result.prompt_tokens, 2 * (13 + 1) * 1000000 + 24 * 100); /* 13 questions, and the one that was answered, asked again */
    assert_int_equal(result.tokens, 2 * (13 + 1) * 7 + 24 * 10);
}

/* One that the server fails at for ever, while it answers others, costs itself alone. */
TEST(what_fails_for_ever_is_refused) {
    SynthResult result;
    Overrides o = remote("few_shot", "fails", "retries: 1, concurrency: 2", "fails");
    set(&o, "synth.num_rows=10");
    check_ok(run(&o, false, &result));
    assert_int_equal(result.rows, 10);
    assert_true(result.refused > 0);
}

/* If no questions remain after failing ones, an answered question is asked once more, to distinguish refused questions from a server that is down.
 * This works for any number of them, and if the answered question was in another batch. */
TEST(what_fails_at_the_end_is_refused) {
    static const struct {
        const char *path, *limit;
        size_t n, bad;
    } cases[] = {
        {"bad-500", "synth.max_tokens=null", 8, 3},  {"bad-500", "synth.max_tokens=null", 24, 19}, {"bad-400", "synth.max_tokens=null", 24, 19},
        {"bad-503", "synth.max_tokens=90000", 9, 1}, {"bad-cut", "synth.max_tokens=null", 8, 1},   {"bad-late", "synth.max_tokens=null", 8, 2},
    };
    SynthResult result;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char output[32];
        snprintf(output, sizeof output, "last-%zu", i);
        write_questions(cases[i].n, cases[i].n - cases[i].bad);
        Overrides o = remote("answer", cases[i].path, "retries: 0, concurrency: 4, timeout: 1", output);
        set(&o, "synth.seeds=%s", temp_file(dir, "questions.jsonl"));
        set(&o, "synth.batch=24");
        set(&o, "%s", cases[i].limit);
        set(&o, "synth.num_rows=%zu", cases[i].n);
        check_ok(run(&o, false, &result));
        assert_int_equal(result.rows, cases[i].n - cases[i].bad);
        assert_int_equal(result.refused, cases[i].bad);
    }
}

/* All that met a server while it was down are asked again when it is back, as the question shows that was answered before. */
TEST(what_met_a_pause_is_asked_again) {
    SynthResult result;
    write_questions(20, 20);
    Overrides o = remote("answer", "pauses", "retries: 0, concurrency: 1", "pauses");
    set(&o, "synth.seeds=%s", temp_file(dir, "questions.jsonl"));
    set(&o, "synth.batch=20");
    set(&o, "synth.num_rows=20");
    check_ok(run(&o, false, &result));
    assert_int_equal(result.rows, 20);
    assert_int_equal(result.refused, 0);
}

/* A resumed run without answers of its own uses a question that the earlier run has got an answer to. */
TEST(what_was_answered_before_is_asked_again) {
    SynthResult result;
    write_questions(6, 5);
    Overrides o = remote("answer", "bad-503", "retries: 0, concurrency: 1", "known");
    set(&o, "synth.seeds=%s", temp_file(dir, "questions.jsonl"));
    set(&o, "synth.num_rows=6");
    set(&o, "synth.max_requests=5");
    check_status(run(&o, false, &result), ST_RESOURCE);
    o.n--;
    set(&o, "synth.max_requests=null");
    check_ok(run(&o, true, &result));
    assert_int_equal(result.replayed, 5);
    assert_int_equal(result.refused, 1);
}

TEST(replies_that_cannot_be_read_are_refusals) {
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
    assert_true(has(rows, "\"Tell it all now.\\\\u0000 And more.\"") && has(rows, "\"nul\""));
    free(rows);
    rejected = read_output("nul", "rejected.jsonl");
    assert_true(has(rejected, "\"nul\""));
    free(rejected);
    rows = read_output("nul", "rows.jsonl");
    assert_false(has(rows, "Tell it all now."));
    free(rows);
}

TEST(tokens_that_a_server_claims_stay_numbers) {
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

/* ---- TLS ---- */

/* Prints its port, then answers over TLS, and records the requests. */
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
    str_printf(
        &command,
        "cd '%s' && openssl req -x509 -newkey rsa:2048 -nodes -keyout %s.key -out %s.pem -days 2 -subj /CN=tune-test -addext subjectAltName=%s >/dev/null 2>&1",
        folder, name, name, host);
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

/* Nothing goes to a server whose certificate is not trusted, or is another host's: not the key, not a question. With ca_file it is one like any
 * other. The key is nowhere on the disk. */
TEST(a_server_behind_tls_shows_who_it_is) {
    static const struct {
        const char *certificate, *ca_file, *text;
    } cases[] = {
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
        if (cases[i].ca_file)
            set(&o, "synth.teacher={url: 'https://127.0.0.1:%d/v1', model: m, api_key_env: TEACHER_KEY, retries: 1, ca_file: '%s'}", tls_port,
                temp_file(folder, cases[i].ca_file));
        else
            set(&o, "synth.teacher={url: 'https://127.0.0.1:%d/v1', model: m, api_key_env: TEACHER_KEY, retries: 1}", tls_port);
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

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_in_trouble_give_the_same_rows),
        cmocka_unit_test(what_is_forbidden_is_refused),
        cmocka_unit_test(a_key_that_is_escaped_is_hidden),
        cmocka_unit_test(a_key_goes_into_plain_http_with_a_warning),
        cmocka_unit_test(what_is_late_is_asked_again),
        cmocka_unit_test(what_is_billed_is_counted),
        cmocka_unit_test(what_stays_down_keeps_what_was_made),
        cmocka_unit_test(what_ends_is_gone_on_with),
        cmocka_unit_test(what_was_billed_stays_counted),
        cmocka_unit_test(what_fails_for_ever_is_refused),
        cmocka_unit_test(what_fails_at_the_end_is_refused),
        cmocka_unit_test(what_met_a_pause_is_asked_again),
        cmocka_unit_test(what_was_answered_before_is_asked_again),
        cmocka_unit_test(replies_that_cannot_be_read_are_refusals),
        cmocka_unit_test(tokens_that_a_server_claims_stay_numbers),
        cmocka_unit_test(a_server_behind_tls_shows_who_it_is),
    };
    return cmocka_run_group_tests(tests, write_seeds, stop_server);
}
