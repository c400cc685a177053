/* SPDX-License-Identifier: Apache-2.0 */
/* http: a server that gets a request for each row. Without `model` the request is the row as JSON, and the answer is that of a reward program (a
 * number, or an object with "reward"). With `model` the server is an OpenAI-compatible judge: the request is the rubric with {prompt}, {completion}
 * and the data row's columns filled in, and the reward is the rating in its answer (data/rating.h), scaled from `range` to 0..1. */
#include "data/rating.h"
#include "lib/http/http.h"
#include "rl/reward/reward_kinds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_PAUSE 0.5 /* seconds before the request is repeated after an unreadable reply; doubled each time */
#define LONGEST_PAUSE 30

enum { URL, MODEL, RUBRIC, SYSTEM, RANGE, MAX_TOKENS, KEY_ENV, CONCURRENCY, RETRIES, TIMEOUT, PER_SECOND, FAILED };
static const char usual_rubric[] =
    "Rate the answer to the question on a scale from 0 (useless) to 10 (perfect): is it right, helpful and clear? End with the rating as a number on a line of its own.\n\n"
    "Question:\n{prompt}\n\nAnswer:\n{completion}";
static const OptionSpec options[] = {
    [URL] = {.name = "url", .kind = OPTION_STRING, .required = true}, /* for a judge: up to /v1 */
    [MODEL] = {.name = "model", .kind = OPTION_STRING},
    [RUBRIC] = {.name = "rubric", .kind = OPTION_STRING, .text = usual_rubric},
    [SYSTEM] = {.name = "system", .kind = OPTION_STRING},
    [RANGE] = {.name = "range", .kind = OPTION_YAML}, /* [lowest, highest] of the judge's scale; default [0, 10] */
    [MAX_TOKENS] = {.name = "max_tokens", .kind = OPTION_WHOLE, .value = 512, .low = 1, .high = 1e6},
    [KEY_ENV] = {.name = "api_key_env", .kind = OPTION_STRING},
    [CONCURRENCY] = {.name = "concurrency", .kind = OPTION_WHOLE, .value = 4, .low = 1, .high = 256},
    [RETRIES] = {.name = "retries", .kind = OPTION_WHOLE, .value = 5, .low = 0, .high = 100},
    [TIMEOUT] = {.name = "timeout", .kind = OPTION_NUMBER, .value = 60, .low = 0.01, .high = 86400},
    [PER_SECOND] = {.name = "per_second", .kind = OPTION_NUMBER, .low = 0, .high = 1e6}, /* limit of requests, 0 = none */
    [FAILED] = {.name = "failed", .kind = OPTION_NUMBER}, /* reward of a row for which the judge gave no rating; not given: the run stops */
    {0},
};

typedef struct Server {
    HttpClient *client;
    double low, high;
} Server;

static void reward_http_close(Reward *reward) {
    Server *server = reward->state;
    if (server) http_close(server->client);
}

static Status read_range(Reward *reward, Server *server) {
    const Yaml *range = reward->options[RANGE].node;
    server->low = 0, server->high = 10;
    if (!range) return ST_OK;
    bool good = range->kind == YAML_LIST && range->n == 2 && yaml_as_double(range->items[0], &server->low) &&
                yaml_as_double(range->items[1], &server->high) && server->low < server->high;
    return good ? ST_OK : reward_refuse(reward, range, "wrong value for 'range': expected [lowest, highest]");
}

static Status find_key(const Reward *reward, const char **key) {
    const char *name = reward->options[KEY_ENV].text;
    const RewardOptions *context = reward->context;
    *key = name && context->secret ? context->secret(context->context, name) : NULL;
    return !name || context->check_only || (*key && **key)
               ? ST_OK
               : reward_refuse(reward, reward->options[KEY_ENV].node, "the environment variable '%s' with the server's key is not set", name);
}

static Status reward_http_open(Reward *reward) {
    static const int of_judges[] = {RUBRIC, SYSTEM, RANGE, MAX_TOKENS, FAILED};
    OptionValue *o = reward->options;
    Server *server = reward->state = arena_zero(reward->arena, sizeof *server);
    const char *key, *url = o[URL].text;
    if (!server) return ST_RESOURCE;
    for (size_t i = 0; i < COUNT_OF(of_judges) && !o[MODEL].text; i++)
        if (o[of_judges[i]].node) return reward_refuse(reward, o[of_judges[i]].node, "'%s' needs 'model'", options[of_judges[i]].name);
    TRY(read_range(reward, server));
    TRY(find_key(reward, &key));
    if (o[MODEL].text && !text_ends_with(url, "/chat/completions") &&
        !(url = arena_printf(reward->arena, "%s%schat/completions", url, text_ends_with(url, "/") ? "" : "/")))
        return ST_RESOURCE;
    HttpOptions http = {.url = url,
                        .key = key,
                        .concurrency = (size_t)o[CONCURRENCY].number,
                        .retries = (size_t)o[RETRIES].number,
                        .timeout = o[TIMEOUT].number,
                        .per_second = o[PER_SECOND].number};
    Status status = http_open(&http, &server->client);
    if (status != ST_CONFIG) return status;
    char why[256];
    snprintf(why, sizeof why, "%s", status_text());
    return reward_refuse(reward, o[URL].node, "%s", why);
}

/* ---- requests ---- */

/* {name} is the prompt, the completion or a column; other braces are copied. */
static Status fill_in(const RewardRow *row, const char *rubric, Str *out) {
    Str name = {0}, room = {0};
    Status status = ST_OK;
    while (*rubric && status == ST_OK) {
        size_t len = *rubric == '{' ? strcspn(rubric + 1, "{}") : 0;
        str_clear(&name);
        if (len) str_append_n(&name, rubric + 1, len);
        const json_t *value = len && rubric[len + 1] == '}' ? json_object_get(row->columns, str_text(&name)) : NULL;
        Slice text = {0};
        if (len && rubric[len + 1] == '}' && strcmp(str_text(&name), "prompt") == 0)
            text = row->prompt;
        else if (len && rubric[len + 1] == '}' && strcmp(str_text(&name), "completion") == 0)
            text = row->completion;
        else if (value)
            status = reward_answer_text(value, str_text(&name), &room, &text);
        else {
            str_append_char(out, *rubric++);
            continue;
        }
        if (text.len) str_append_n(out, text.data, text.len);
        rubric += len + 2;
    }
    str_release(&name);
    str_release(&room);
    return status;
}

static void add_message(JsonWriter *w, const char *role, const char *text, size_t len) {
    jw_object(w, NULL);
    jw_string(w, "role", role);
    jw_string_n(w, "content", text, len);
    jw_end_object(w);
}

static Status write_question(const Reward *reward, const RewardRow *row, Str *body) {
    const OptionValue *o = reward->options;
    if (!o[MODEL].text) {
        reward_write_row(row, body);
        return ST_OK;
    }
    Str text = {0};
    JsonWriter w = {0};
    Status status = fill_in(row, o[RUBRIC].text, &text);
    jw_object(&w, NULL);
    jw_string(&w, "model", o[MODEL].text);
    jw_array(&w, "messages");
    if (o[SYSTEM].text) add_message(&w, "system", o[SYSTEM].text, strlen(o[SYSTEM].text));
    add_message(&w, "user", str_text(&text), text.len);
    jw_end_array(&w);
    jw_int(&w, "temperature", 0);
    jw_int(&w, "max_tokens", (int64_t)o[MAX_TOKENS].number);
    jw_end_object(&w);
    *body = w.text;
    str_release(&text);
    return status;
}

/* ---- replies ---- */

static Status wrong_judgement(const Reward *reward, const char *problem, const char *text, size_t len) {
    return status_fail(ST_INPUT, "judge '%s' answers wrongly: %s: '%.*s%s'", reward->options[MODEL].text, problem, (int)MIN(len, 300), text,
                       len > 300 ? "..." : "");
}

static Status read_judgement(const Reward *reward, const Str *reply, double *value) {
    const Server *server = reward->state;
    json_t *root = json_parse(str_text(reply), reply->len, JSON_REJECT_DUPLICATES, NULL);
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0),
                 *content = json_object_get(json_object_get(choice, "message"), "content");
    const char *reason = json_string_value(json_object_get(choice, "finish_reason"));
    /* a truncated answer may have gone on to say something else */
    bool cut = reason && (strcmp(reason, "length") == 0 || strcmp(reason, "content_filter") == 0);
    Slice text = {json_string_value(content), json_string_length(content)};
    double rating = text.data && !cut ? rating_of(text.data, server->low, server->high) : (double)NAN;
    Status status = ST_OK;
    bool silent = choice && !text.data && (!content || json_is_null(content)); /* a judge truncated while thinking */
    if (!text.data && !(silent && reward->options[FAILED].node))
        status = wrong_judgement(reward, "no choices[0].message.content", str_text(reply), reply->len);
    else if (!isnan(rating))
        *value = (rating - server->low) / (server->high - server->low);
    else if (reward->options[FAILED].node)
        *value = reward->options[FAILED].number;
    else
        status = wrong_judgement(reward, cut ? "it was cut off" : "it has no rating within 'range'", text.data, text.len);
    json_decref(root);
    return status;
}

static Status read_reply(Reward *reward, const Str *reply, size_t row, double *value) {
    if (reward->options[MODEL].text) return read_judgement(reward, reply, value);
    return reward_read_answer(reward, "the server", (Slice){str_text(reply), reply->len}, row, value);
}

/* A proxy's error page or half a body may be readable on another try. A readable reply is final. */
static bool is_readable(const Reward *reward, const Str *reply) {
    json_t *root = json_parse(str_text(reply), reply->len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
    const json_t *message = json_object_get(json_array_get(json_object_get(root, "choices"), 0), "message");
    bool readable = root && (!reward->options[MODEL].text || json_is_string(json_object_get(message, "content")));
    json_decref(root);
    return readable;
}

/* Gets the reply; repeats the request while the reply is unreadable and tries are left. */
static Status read_or_ask(Reward *reward, const Str *body, Str *reply, size_t row, double *value) {
    Server *server = reward->state;
    int64_t retries = (int64_t)reward->options[RETRIES].number;
    size_t at;
    for (int64_t tries = 0; tries < retries && !is_readable(reward, reply); tries++) {
        http_slow_down(server->client, MIN(FIRST_PAUSE * pow(2, (double)tries), LONGEST_PAUSE));
        str_clear(reply);
        TRY(http_post_all(server->client, body, 1, reply, &at));
    }
    return read_reply(reward, reply, row, value);
}

static Status score_all(Reward *reward, const RewardRow *rows, size_t n, double *values) {
    const Server *server = reward->state;
    Str *bodies = calloc(MAX(n, 1), sizeof *bodies), *replies = calloc(MAX(n, 1), sizeof *replies);
    size_t at = 0;
    Status status = bodies && replies ? ST_OK : status_fail(ST_RESOURCE, "out of memory for %zu rows", n);
    for (size_t i = 0; i < n && status == ST_OK; i++) status = write_question(reward, &rows[at = i], &bodies[i]);
    if (status == ST_OK) status = http_post_all(server->client, bodies, n, replies, &at);
    for (size_t i = 0; i < n && status == ST_OK; i++) status = read_or_ask(reward, &bodies[at = i], &replies[i], i, &values[i]);
    for (size_t i = 0; i < n && bodies && replies; i++) {
        str_release(&bodies[i]);
        str_release(&replies[i]);
    }
    free(bodies);
    free(replies);
    return status == ST_OK || n == 0 ? status : reward_at_row(status, reward, &rows[at]);
}

const RewardKind reward_kind_http = {"http", options, .abstains = true, .open = reward_http_open, .close = reward_http_close, .score_all = score_all};
