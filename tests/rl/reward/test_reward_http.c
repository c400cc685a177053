/* SPDX-License-Identifier: Apache-2.0 */
/* Rewards by servers. The server is a process of this test on 127.0.0.1 that misbehaves as the path of the url says; it ends with the test, or after
 * two minutes. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/answers.h"
#include "lib/http/http.h"
#include "rl/reward/reward.h"
#include "tests/support/check.h"
#include "tests/support/local_server.h"

/* ---- the server ---- */

static void reward_http_judge(int fd, const Query *query) {
    const char *text = json_string_value(json_object_get(json_array_get(json_object_get(query->body, "messages"), 1), "content"));
    char body[512];
    bool good = text && strcmp(json_string_value(json_object_get(query->body, "model")), "judge-1") == 0 &&
                json_integer_value(json_object_get(query->body, "max_tokens")) == 9;
    const char *completion = text ? strstr(text, "A: ") : NULL;
    if (!good || !completion)
        reply(fd, "400 Bad Request", "", "{\"error\": \"what?\"}");
    else if (strchr(completion, '?'))
        reply(fd, "200 OK", "", "{\"choices\": [{\"message\": {\"content\": \"Step 1: 9\"}, \"finish_reason\": \"length\"}]}");
    else if (strchr(completion, '!'))
        reply(fd, "200 OK", "", "{\"choices\": [{\"message\": {\"content\": \"I can't say.\"}}]}");
    else {
        snprintf(
            body, sizeof body,
            "{\"choices\": [{\"message\": {\"role\": \"assistant\", \"content\": \"%.90s\\nA rating of %zu/5? No. Rating: **%zu** / 20, of 3 points\"}}]}",
            "Clear, 2 mistakes.", strlen(completion), strlen(completion) - 3);
        reply(fd, "200 OK", "", body);
    }
}

static void serve(int fd, Query *query) {
    const char *path = query->path, *text = json_string_value(json_object_get(query->body, "completion"));
    char number[64];
    int before = times_before(path);
    snprintf(number, sizeof number, "%zu", text ? strlen(text) : 0);
    if (strstr(path, "/chat/completions"))
        reward_http_judge(fd, query);
    else if (strcmp(path, "/busy") == 0 && before < 3)
        reply(fd, "429 Too Many Requests", "Retry-After: 1\r\n", "{\"error\": \"slow down\"}");
    else if (strcmp(path, "/shaky") == 0 && before % 3 == 0)
        reply(fd, "500 Internal Server Error", "", "oops");
    else if (strcmp(path, "/cut") == 0 && before % 2 == 0) {
        if (write(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n12", 43) < 0) return;
    } else if (strcmp(path, "/silent") == 0 && before % 2 == 0)
        return;
    else if (strcmp(path, "/never") == 0) {
        if (read(fd, number, 1) < 0) return;
    } /* until the client hangs up */
    else if (strcmp(path, "/down") == 0)
        reply(fd, "503 Service Unavailable", "", "overloaded");
    else if (strcmp(path, "/wait") == 0)
        reply(fd, "429 Too Many Requests", "Retry-After: 86400\r\n", "");
    else if (strcmp(path, "/garbage") == 0)
        reply(fd, "200 OK", "", "well done");
    else if (strcmp(path, "/proxy") == 0 && before < 2)
        reply(fd, "200 OK", "", "<html>please wait</html>");
    else if (strcmp(path, "/moved") == 0)
        reply(fd, "302 Found", "Location: /plain\r\n", "elsewhere");
    else if (strcmp(path, "/key") == 0 && !strstr(query->head, "Authorization: Bearer s3cret\r\n"))
        reply(fd, "401 Unauthorized", "", "who are you?");
    else if (strcmp(path, "/nokey") == 0 && strstr(query->head, "Authorization"))
        reply(fd, "400 Bad Request", "", "a key");
    else if (strcmp(path, "/object") == 0)
        reply(fd, "200 OK", "", "{\"reward\": 2.5, \"toxic\": 0.25}");
    else
        reply(fd, "200 OK", "", number);
}

static int port;

static int start_server(void **state) {
    (void)state;
    port = local_server_start(serve, 120);
    return port == 0;
}

static int stop_server(void **state) {
    (void)state;
    return !local_server_stop();
}

/* ---- this side ---- */

enum { ROWS = 12 };
typedef struct Scored {
    Arena *arena;
    RewardSet *set;
    json_t *columns;
    RewardRow rows[ROWS];
    char texts[ROWS][ROWS + 1];
    const RewardScores *scores;
} Scored;

static const char *secret(void *context, const char *name) {
    (void)context;
    return strcmp(name, "JUDGE_KEY") == 0 ? "s3cret" : NULL;
}

static Status open_path(const char *path, const char *more, Scored *batch) {
    char yaml[1024];
    Yaml *list;
    snprintf(yaml, sizeof yaml, "{type: http, url: 'http://127.0.0.1:%d%s'%s%s}", port, path, more[0] ? ", " : "", more);
    *batch = (Scored){.arena = arena_new(0), .columns = json_pack("{s:s}", "answer", "right")};
    for (int i = 0; i < ROWS; i++) {
        memset(batch->texts[i], 'a', (size_t)i + 1);
        batch->rows[i] = (RewardRow){
            .number = i, .prompt = {"q", 1}, .completion = {batch->texts[i], (size_t)i + 1}, .finish_reason = "stop", .columns = batch->columns};
    }
    check_ok(yaml_read_text(yaml, strlen(yaml), "recipe.yaml", batch->arena, &list));
    return rewards_open(list, "recipe.yaml", &(RewardOptions){.secret = secret}, &batch->set);
}

static void close_batch(Scored *batch) {
    rewards_close(batch->set);
    json_decref(batch->columns);
    arena_free(batch->arena);
}

static void check_lengths(const Scored *batch, const char *what) {
    double wanted[ROWS];
    for (int i = 0; i < ROWS; i++) wanted[i] = i + 1;
    check_close_f64(what, batch->scores->sums, wanted, ROWS, 0, 0);
}

TEST(servers_in_trouble_are_asked_again) {
    static const struct {
        const char *path, *more;
    } cases[] = {
        {"/plain", ""},
        {"/plain", "concurrency: 1"},
        {"/plain", "concurrency: 30, per_second: 1000"},
        {"/busy", "concurrency: 3"},
        {"/shaky", "retries: 20"},
        {"/cut", "retries: 20"},
        {"/silent", "retries: 20"},
        {"/proxy", "concurrency: 1, retries: 2"},
        {"/key", "api_key_env: JUDGE_KEY"},
        {"/nokey", ""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Scored batch;
        print_message("%s %s\n", cases[i].path, cases[i].more);
        check_ok(open_path(cases[i].path, cases[i].more, &batch));
        check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
        check_lengths(&batch, cases[i].path);
        check_ok(rewards_score(batch.set, batch.rows, 0, &batch.scores));
        close_batch(&batch);
    }
}

TEST(what_goes_wrong_is_said_with_the_row) {
    static const struct {
        const char *path, *more, *text, *hint;
        Status status;
    } cases[] = {
        {"/down", "retries: 1", "answers at last with status 503 (2 tries): 'overloaded'", "", ST_RESOURCE},
        {"/never", "retries: 0, timeout: 0.2", "does not answer: ", "", ST_RESOURCE},
        {"/garbage", "retries: 1", "the server answers wrongly: no JSON: 'well done'", "", ST_INPUT},
        {"/moved", "", "status 302 (1 tries): 'elsewhere'", "", ST_RESOURCE},
        {"/wait", "", "asks to wait 86400 s", "", ST_RESOURCE},
        {"/key", "", "status 401", "key may be wrong", ST_RESOURCE},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Scored batch;
        print_message("%s %s\n", cases[i].path, cases[i].more);
        check_ok(open_path(cases[i].path, cases[i].more, &batch));
        check_status(rewards_score(batch.set, batch.rows, ROWS, &batch.scores), cases[i].status);
        check_text("reward 'http', row ");
        check_text(cases[i].text);
        check_contains(status_hint_text(), cases[i].hint);
        close_batch(&batch);
    }
}

/* The replies of all requests together have one limit. Replies to requests that are repeated do not count. */
TEST(replies_have_one_bound_together) {
    Scored batch;
    answers_set_most(80);
    check_ok(open_path("/object", "concurrency: 12", &batch));
    check_status(rewards_score(batch.set, batch.rows, ROWS, &batch.scores), ST_RESOURCE);
    check_text("gives answers of more than 80 B together");
    close_batch(&batch);
    answers_set_most(30); /* "oops" seven times, and twelve numbers */
    check_ok(open_path("/shaky", "retries: 20", &batch));
    check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
    check_lengths(&batch, "/shaky");
    close_batch(&batch);
    answers_set_most(0);
}

/* No message has the user part or the query of a URL, nor the key. */
TEST(secrets_are_in_no_message) {
    char url[256];
    HttpClient *client;
    Str body = {0}, answer = {0};
    size_t at;
    snprintf(url, sizeof url, "http://user:hidden@127.0.0.1:%d/down?token=hidden", port);
    check_ok(http_open(&(HttpOptions){.url = url, .key = "hidden", .concurrency = 1, .timeout = 5}, &client));
    str_append(&body, "{}");
    check_status(http_post_all(client, &body, 1, &answer, &at), ST_RESOURCE);
    check_text("/down'");
    assert_null(strstr(status_text(), "hidden"));
    assert_null(strstr(status_hint_text(), "hidden"));
    http_close(client);
    str_release(&body);
    str_release(&answer);
    check_status(http_open(&(HttpOptions){.url = "ftp://x/y", .concurrency = 1, .timeout = 5}, &client), ST_CONFIG);
    check_status(http_open(&(HttpOptions){.url = "http://x", .key = "a\r\nHost: b", .concurrency = 1, .timeout = 5}, &client), ST_CONFIG);
    assert_null(client);
}

TEST(nobody_listens) {
    int taken = socket(AF_INET, SOCK_STREAM, 0); /* bound, but not listening: connections are refused */
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    assert_int_equal(bind(taken, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(taken, (struct sockaddr *)&address, &size), 0);
    int kept = port;
    port = ntohs(address.sin_port);
    Scored batch;
    check_ok(open_path("/plain", "retries: 1", &batch));
    check_status(rewards_score(batch.set, batch.rows, ROWS, &batch.scores), ST_RESOURCE);
    check_text("(2 tries)");
    close_batch(&batch);
    port = kept;
    close(taken);
}

TEST(a_judge_is_asked_with_the_rubric) {
    static const char rubric[] =
        "model: judge-1, system: Be fair., rubric: '{ {prompt} {answer} {unknown} A: {completion}', max_tokens: 9, range: [0, 20]";
    Scored batch;
    check_ok(open_path("/v1", rubric, &batch));
    check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
    for (int i = 0; i < ROWS; i++) check_close(batch.scores->sums[i], (i + 1) / 20.0, 1e-15);
    close_batch(&batch);
    check_ok(open_path("/v1/chat/completions", "model: judge-1, system: s, rubric: 'A: {completion}', max_tokens: 9", &batch));
    check_status(rewards_score(batch.set, batch.rows, ROWS, &batch.scores), ST_INPUT); /* 11 is beyond 10 */
    check_text("row 10: judge 'judge-1' answers wrongly: it has no rating within 'range'");
    close_batch(&batch);
    check_ok(open_path("/v1/", "model: judge-1, system: s, rubric: 'A: {completion}', max_tokens: 9, range: [0, 20], failed: -3", &batch));
    batch.texts[2][0] = '!';
    check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
    check_close(batch.scores->sums[2], -3, 0);
    batch.texts[2][0] = '?'; /* cut off: it was about to say something else */
    check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
    check_close(batch.scores->sums[2], -3, 0);
    close_batch(&batch);
    check_ok(open_path("/object", "", &batch));
    check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
    assert_string_equal(batch.scores->columns[1].name, "http/toxic");
    check_close(batch.scores->columns[1].values[3], 0.25, 0);
    close_batch(&batch);
}

TEST(recipes_that_make_no_sense_are_refused) {
    static const struct {
        const char *more, *text;
    } cases[] = {
        {"rubric: x", "'rubric' needs 'model'"},
        {"model: m, range: [1, 0]", "wrong value for 'range'"},
        {"api_key_env: NO_SUCH_KEY", "environment variable 'NO_SUCH_KEY' with the server's key is not set"},
        {"concurrency: 0", "'concurrency'"},
        {"api_key: x", "unknown option 'api_key'"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Scored batch;
        check_status(open_path("/plain", cases[i].more, &batch), ST_CONFIG);
        check_text(cases[i].text);
        close_batch(&batch);
    }
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_in_trouble_are_asked_again),
        cmocka_unit_test(what_goes_wrong_is_said_with_the_row),
        cmocka_unit_test(secrets_are_in_no_message),
        cmocka_unit_test(nobody_listens),
        cmocka_unit_test(replies_have_one_bound_together),
        cmocka_unit_test(a_judge_is_asked_with_the_rubric),
        cmocka_unit_test(recipes_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
