/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/answers.h"
#include "lib/base/system.h"
#include "lib/http/http.h"
#include "lib/base/log.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_CONNECTIONS = 256 };
static const size_t longest_reply = (size_t)64 << 20;
static const double longest_pause = 30, longest_wait = 600;

struct HttpClient {
    CURLM *multi;
    CURL *handles[MOST_CONNECTIONS];
    struct curl_slist *headers;
    HttpOptions options;
    char *url, *shown, *key; /* shown: for messages, without user, password and query */
    char why[MOST_CONNECTIONS][CURL_ERROR_SIZE];
    double next_start; /* earliest start of a request under per_second */
    size_t n_answers;  /* replies so far other than refusals */
    double answered;   /* when the latest answered request was sent */
    size_t n_doubtful; /* refused requests of earlier calls with no answer to a request sent after them */
    double
        /* how many requests of `concurrency` the server accepts at once: halved on "too many requests", raised by one after as many answers */
        at_once;
};

/* One request. `ready`: it does not start before; `slot`: its handle while it runs. PUT_OFF: refused for good with `code`; it counts as a reply once
 * others are answered. */
typedef enum State { WAITS, RUNS, PUT_OFF, DONE } State;
typedef struct Request {
    State state;
    double ready;
    double sent, broken; /* sent: its latest try; broken: when its first try failed, 0 = none did */
    size_t tries, slot;
    size_t answers, at_first; /* the client's n_answers at its latest "too many requests", and at its first try */
    Str *reply;
    size_t *held, own; /* held: bytes of the replies to all requests; own: of this one's */
    long code;
    bool too_long, too_much, no_memory, again; /* again: it was put off once and sent anew when the server answered others */
} Request;

static size_t receive(char *bytes, size_t size, size_t n, void *context) {
    Request *request = context;
    size_t len = size * n;
    request->too_long = request->reply->len + len > longest_reply;
    request->too_much = *request->held + len > answers_most();
    if (request->too_long || request->too_much) return 0;
    request->no_memory = !str_reserve(request->reply, len);
    if (request->no_memory) return 0;
    str_append_n(request->reply, bytes, len);
    *request->held += len;
    request->own += len;
    return len;
}

/* ---- opening ---- */

static char *copy(const char *text, size_t len) {
    Str out = {0};
    str_append_n(&out, text, len);
    return out.data;
}

static char *url_for_messages(const char *url) {
    const char *host = strstr(url, "://") + 3;
    size_t len = strcspn(host, "?#"), path = strcspn(host, "/?#");
    for (size_t i = 0; i < path; i++)
        if (host[i] == '@') return copy(host + i + 1, len - i - 1);
    return copy(url, (size_t)(host - url) + len);
}

/* Uses libcurl's parse of the url, since libcurl decides where the request goes: without user name and port, with numeric addresses in their usual
 * form. */
static bool is_loopback(const char *url) {
    CURLU *parts = curl_url();
    char *host = NULL;
    struct in_addr address;
    bool is = false;
    if (parts && curl_url_set(parts, CURLUPART_URL, url, 0) == CURLUE_OK && curl_url_get(parts, CURLUPART_HOST, &host, 0) == CURLUE_OK)
        is = strcasecmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 ||
             (inet_pton(AF_INET, host, &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
    curl_free(host);
    curl_url_cleanup(parts);
    return is;
}

static bool set_up(HttpClient *client) {
    Str key = {0};
    client->headers = curl_slist_append(NULL, "Content-Type: application/json");
    struct curl_slist *more = client->headers ? curl_slist_append(client->headers, "Expect:") : NULL;
    if (more && client->options.key) {
        str_printf(&key, "Authorization: Bearer %s", client->options.key);
        more = curl_slist_append(client->headers, key.data);
        memset(key.data, 0, key.len);
        str_release(&key);
    }
    client->multi = curl_multi_init();
    bool good = more && client->multi;
    for (size_t i = 0; i < client->options.concurrency && good; i++) {
        CURL *handle = client->handles[i] = curl_easy_init();
        good = handle != NULL;
        if (!good) break;
        curl_easy_setopt(handle, CURLOPT_URL, client->url);
        curl_easy_setopt(handle, CURLOPT_HTTPHEADER, client->headers);
        curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(handle, CURLOPT_TIMEOUT_MS, (long)(client->options.timeout * 1000));
        curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, (long)(MIN(client->options.timeout, 30) * 1000));
        curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, receive);
        curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, client->why[i]);
        curl_easy_setopt(handle, CURLOPT_ACCEPT_ENCODING, "");
        curl_easy_setopt(handle, CURLOPT_SSL_VERIFYPEER, 1L); /* libcurl's default, repeated because the key's safety depends on it */
        curl_easy_setopt(handle, CURLOPT_SSL_VERIFYHOST, 2L);
        curl_easy_setopt(handle, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
        if (client->options.ca_file) curl_easy_setopt(handle, CURLOPT_CAINFO, client->options.ca_file);
        if (client->options.ca_file) curl_easy_setopt(handle, CURLOPT_CAPATH, NULL);
        if (is_loopback(client->url)) curl_easy_setopt(handle, CURLOPT_PROXY, ""); /* loopback never goes through a proxy */
    }
    return good;
}

Status http_open(const HttpOptions *options, HttpClient **out) {
    *out = NULL;
    if ((!text_starts_with(options->url, "http://") && !text_starts_with(options->url, "https://")) || !strstr(options->url, "://")[3])
        return status_fail(ST_CONFIG, "a server's url begins with http:// or https:// and names a host");
    if (options->key && strpbrk(options->key, "\r\n")) return status_fail(ST_CONFIG, "the key for the server has a line break in it");
    ASSERT(options->concurrency >= 1 && options->timeout > 0, "%zu at once, %g s", options->concurrency, options->timeout);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return status_fail(ST_RESOURCE, "cannot use libcurl");
    HttpClient *client = calloc(1, sizeof *client);
    if (!client) return status_errno(ENOMEM, "cannot open a connection");
    client->options = *options;
    client->options.concurrency = MIN(options->concurrency, MOST_CONNECTIONS);
    if (!(client->options.first_pause > 0)) client->options.first_pause = 0.5;
    client->url = copy(options->url, strlen(options->url));
    client->shown = url_for_messages(options->url);
    client->key = options->key ? copy(options->key, strlen(options->key)) : NULL;
    client->at_once = (double)client->options.concurrency;
    if (client->key && text_starts_with(client->url, "http://") && !is_loopback(client->url))
        log_message(LOG_WARNING, "the key for server '%s' is sent unencrypted, so that others on the network can read it: use https", client->shown);
    bool good = set_up(client);
    client->options.key = NULL; /* the caller's copy */
    if (good) {
        *out = client;
        return ST_OK;
    }
    http_close(client);
    return status_errno(ENOMEM, "cannot open a connection");
}

void http_close(HttpClient *client) {
    if (!client) return;
    for (size_t i = 0; i < client->options.concurrency; i++) curl_easy_cleanup(client->handles[i]);
    curl_multi_cleanup(client->multi);
    for (struct curl_slist *header = client->headers; header; header = header->next) memset(header->data, 0, strlen(header->data));
    curl_slist_free_all(client->headers);
    if (client->key) memset(client->key, 0, strlen(client->key));
    free(client->key);
    free(client->url);
    free(client->shown);
    free(client);
    curl_global_cleanup();
}

void http_slow_down(HttpClient *client, double seconds) { client->next_start = MAX(client->next_start, clock_seconds()) + seconds; }

const char *http_name(const HttpClient *client) { return client->shown; }

/* ---- requests ---- */

typedef struct Round {
    HttpClient *client;
    const Str *bodies;
    Request *requests;
    size_t n, n_busy, held, by_slot[MOST_CONNECTIONS];
    bool busy[MOST_CONNECTIONS];
    size_t *at;   /* the request that failed, or that is in progress */
    double until; /* above 0: the call has failed, and running requests may finish until then */
    Failure failed;
    Failure refused; /* the failure of the request that was put off last */
} Round;

static void http_start(Round *round, size_t i, size_t slot) {
    Request *request = &round->requests[i];
    CURL *handle = round->client->handles[slot];
    str_clear(request->reply);
    round->held -= request->own;
    request->own = 0;
    request->state = RUNS;
    request->slot = slot;
    request->sent = clock_seconds();
    if (request->tries++ == 0) request->at_first = round->client->n_answers;
    round->busy[slot] = true;
    round->n_busy++;
    round->by_slot[slot] = i;
    round->client->why[slot][0] = '\0';
    curl_easy_setopt(handle, CURLOPT_WRITEDATA, request);
    curl_easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)round->bodies[i].len);
    curl_easy_setopt(handle, CURLOPT_POSTFIELDS, str_text(&round->bodies[i]));
    curl_multi_add_handle(round->client->multi, handle);
}

static void http_stop(Round *round, size_t slot) {
    curl_multi_remove_handle(round->client->multi, round->client->handles[slot]);
    round->busy[slot] = false;
    round->n_busy--;
}

/* Codes by which a server refuses one request only. */
static bool is_refusal(long code) { return code == 400 || code == 413 || code == 422; }

enum { MOST_IN_A_ROW = 8, MOST_BEFORE_ANY = 1 };

/* Whether so many requests were put off, with no answer to a later one, that the server may be at fault: then no request is started until that is
 * clear. Before the first answer two failed requests are enough; refusals by code do not count there, since they show that the server works. */
static bool too_many_put_off(const Round *round) {
    size_t n = 0, failed = 0;
    for (size_t i = 0; i < round->n; i++) {
        if (round->requests[i].state != PUT_OFF) continue;
        n++;
        failed += !is_refusal(round->requests[i].code);
    }
    return n > MOST_IN_A_ROW || (round->client->n_answers == 0 && failed > MOST_BEFORE_ANY);
}

/* Starts the requests that may start. Returns the seconds until another one may, at most 1. */
static double start_some(Round *round) {
    HttpClient *client = round->client;
    double now = clock_seconds(), wait = 1;
    size_t slot = 0;
    if (too_many_put_off(round)) return wait;
    for (size_t i = 0; i < round->n; i++) {
        Request *request = &round->requests[i];
        if (request->state != WAITS) continue;
        while (slot < client->options.concurrency && round->busy[slot]) slot++;
        if (slot == client->options.concurrency || (double)round->n_busy + 1 > client->at_once) break;
        double ready = MAX(request->ready, client->next_start);
        if (ready > now) {
            wait = MIN(wait, ready - now);
            continue;
        }
        if (client->options.per_second > 0) client->next_start = MAX(client->next_start, now) + 1 / client->options.per_second;
        http_start(round, i, slot);
    }
    return wait;
}

static bool worth_another_try(CURLcode result, long code) {
    switch (result) {
    case CURLE_OK: return code == 408 || code == 425 || code == 429 || code >= 500;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_BAD_CONTENT_ENCODING:
    case CURLE_COULDNT_RESOLVE_PROXY: return true;
    default: return false;
    }
}

/* Records the code and the beginning of the reply, or the connection error. */
static Status give_up(const Round *round, const Request *request, CURLcode result, long code) {
    const char *shown = round->client->shown, *why = round->client->why[request->slot];
    const char *many = request->tries > 1 ? " at last" : "";
    if (request->no_memory) return status_fail(ST_RESOURCE, "out of memory for the answer of server '%s'", shown);
    if (request->too_much) return answers_too_much("server", shown);
    if (request->too_long) return status_fail(ST_RESOURCE, "server '%s' answers with more than %zu MiB", shown, longest_reply >> 20);
    if (result == CURLE_PEER_FAILED_VERIFICATION || result == CURLE_SSL_CACERT_BADFILE) {
        status_fail(ST_RESOURCE, "server '%s' cannot be trusted: %s", shown, why[0] ? why : curl_easy_strerror(result));
        return status_hint(ST_RESOURCE, "nothing was sent to it; to trust a certificate of your own, set 'ca_file' to its PEM file");
    }
    if (result != CURLE_OK)
        status_fail(ST_RESOURCE, "server '%s' does not answer: %s (%zu tries)", shown, why[0] ? why : curl_easy_strerror(result), request->tries);
    else
        status_fail(ST_RESOURCE, "server '%s' answers%s with status %ld (%zu tries): '%.*s'", shown, many, code, request->tries,
                    (int)MIN(request->reply->len, 300), str_text(request->reply));
    if (code == 401 || code == 403) return status_hint(ST_RESOURCE, "the environment variable with its key may be wrong");
    return code == 404 ? status_hint(ST_RESOURCE, "the url may be wrong") : ST_RESOURCE;
}

/* Bytes of one character at this place, as JSON or JSON within JSON escapes it: backslashes and uXXXX, or the character itself. 0: none. */
static size_t escaped(const char *at, size_t len, char *character) {
    size_t n = 0;
    char digits[5] = "", *end;
    while (n < len && at[n] == '\\') n++;
    if (n == 0 || n == len) return 0;
    if (at[n] != 'u') {
        *character = at[n];
        return n + 1;
    }
    if (len - n < 5) return 0;
    memcpy(digits, at + n + 1, 4);
    unsigned long code = strtoul(digits, &end, 16);
    *character = (char)code;
    return end == digits + 4 && code > 0 && code < 0x80 ? n + 5 : 0;
}

/* Bytes of the key at this place, however its characters are escaped; 0: it is not here. */
static size_t key_at(const char *at, size_t len, const char *key) {
    size_t used = 0, n;
    char character;
    for (; *key; key++, used += n) {
        if (used < len && at[used] == *key && *key != '\\')
            n = 1;
        else if ((n = used < len ? escaped(at + used, len - used, &character) : 0) == 0 || character != *key)
            return 0;
    }
    return used;
}

/* Servers that repeat the request must not bring the key into messages and files. */
static void hide_key(const HttpClient *client, bool answer, Str *reply) {
    enum { LEAST_SECRET = 16 }; /* bytes; in an answer, a short key such as "none" or "ollama", common for local servers, is an ordinary word */
    if (!client->key || !*client->key || (answer && strlen(client->key) < LEAST_SECRET)) return;
    for (size_t at = 0, used; at < reply->len; at += MAX(used, 1)) {
        used = reply->data[at] == *client->key || reply->data[at] == '\\' ? key_at(reply->data + at, reply->len - at, client->key) : 0;
        memset(reply->data + at, '*', used);
    }
}

static Status deliver(Round *round, size_t i, long code) {
    const HttpOptions *options = &round->client->options;
    round->requests[i].state = DONE;
    if (round->failed.status == ST_OK) *round->at = i;
    return options->on_reply ? options->on_reply(options->context, i, code) : ST_OK;
}

/* A server that fails at a request may be going down, or may refuse everything from now on. Only an answer to a request sent after the failure
 * disproves that; older ones may still be answered. */
static bool may_be_down(const Round *round, const Request *request) { return round->client->answered <= request->broken; }

/* Delivers the refused requests as replies; all = false: only those after which the server answered a later request. A request at which the server
 * failed (5xx, 408, 429) may have met a server that was down or busy: it is sent once more. */
static Status deliver_put_off(Round *round, bool all) {
    for (size_t i = 0; i < round->n; i++) {
        Request *request = &round->requests[i];
        if (request->state != PUT_OFF || (!all && may_be_down(round, request))) continue;
        if (!request->again && (request->code >= 500 || request->code == 408 || request->code == 429)) {
            size_t answers = round->client->n_answers;
            *request = (Request){.state = WAITS,
                                 .reply = request->reply,
                                 .held = request->held,
                                 .own = request->own,
                                 .at_first = request->at_first,
                                 .answers = answers,
                                 .tries = 1,
                                 .again = true};
            str_clear(request->reply);
        } else
            TRY(deliver(round, i, request->code));
    }
    return ST_OK;
}

/* "Too many requests" concerns the server and all requests; it does not count as a try of this one while others are answered. */
static void slow_down(Round *round, Request *request, double pause) {
    HttpClient *client = round->client;
    double now = clock_seconds();
    if (client->next_start <= now) client->at_once = MAX(client->at_once / 2, 1); /* once for all such replies of the same moment */
    client->next_start = MAX(client->next_start, now + pause);
    if (request->answers != client->n_answers) request->tries = 0;
    request->answers = client->n_answers;
}

/* A wrong key, account or url fails every request. */
static bool is_of_all(long code) { return code == 401 || code == 402 || code == 404 || code == 405 || code == 410; }

/* The server was reached but gave no complete answer to this request. */
static bool hung_up(CURLcode result) {
    return result == CURLE_PARTIAL_FILE || result == CURLE_GOT_NOTHING || result == CURLE_SEND_ERROR || result == CURLE_RECV_ERROR;
}

/* Puts off a request that is not retried: it counts as refused if the server answers others. */
static Status put_off(Round *round, Request *request, CURLcode result, long code) {
    Status status = give_up(round, request, result, code);
    bool its_own = result == CURLE_OK ? code >= 400 && !is_of_all(code) : result == CURLE_OPERATION_TIMEDOUT || hung_up(result);
    if (!round->client->options.takes_refusals || request->too_long || request->too_much || !its_own) return status;
    failure_save(&round->refused, ST_RESOURCE);
    if (result != CURLE_OK) str_clear(request->reply);
    if (request->reply->len == 0) str_append(request->reply, status_text());
    request->code = hung_up(result) ? 500 : code ? code : 408;
    request->state = PUT_OFF;
    return ST_OK;
}

static void note_answer(HttpClient *client, const Request *request) {
    client->n_answers++;
    client->n_doubtful = 0;
    client->answered = MAX(client->answered, request->sent);
    client->at_once = MIN(client->at_once + 1 / client->at_once, (double)client->options.concurrency);
}

static Status finished(Round *round, size_t i, CURLcode result) {
    HttpClient *client = round->client;
    Request *request = &round->requests[i];
    CURL *handle = client->handles[request->slot];
    long code = 0;
    curl_off_t after = 0;
    if (result == CURLE_OK) curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_getinfo(handle, CURLINFO_RETRY_AFTER, &after);
    http_stop(round, request->slot);
    bool answer = code >= 200 && code < 300;
    hide_key(client, answer, request->reply);
    if ((double)after > longest_wait && worth_another_try(result, code))
        return status_fail(ST_RESOURCE, "server '%s' asks to wait %lld s", client->shown, (long long)after);
    if (result == CURLE_OK && answer) {
        note_answer(client, request);
        TRY(deliver(round, i, code));
        return deliver_put_off(round, false);
    }
    if (request->broken == 0) request->broken = clock_seconds();
    double pause = MIN(client->options.first_pause * pow(2, (double)MIN(request->tries, 60) - 1), longest_pause);
    if (after > 0) pause = (double)after;
    if (code == 429 || (code == 503 && after > 0)) slow_down(round, request, pause);
    if (request->too_long || request->too_much || !worth_another_try(result, code) || request->tries > client->options.retries)
        return put_off(round, request, result, code);
    request->ready = clock_seconds() + pause;
    request->state = WAITS;
    return ST_OK;
}

/* Requests in progress may still be answered, and they are paid for. */
static void fail(Round *round, Status status) {
    enum { PATIENCE = 10 };
    if (round->failed.status != ST_OK) return;
    failure_save(&round->failed, status);
    round->until = status == ST_RESOURCE ? clock_seconds() + PATIENCE : 0;
}

static Status go_on(Round *round) {
    CURLM *multi = round->client->multi;
    int running, left;
    double wait = round->failed.status == ST_OK ? start_some(round) : 0.1;
    CURLMcode fault = curl_multi_perform(multi, &running);
    for (CURLMsg *message; fault == CURLM_OK && (message = curl_multi_info_read(multi, &left));) {
        if (message->msg != CURLMSG_DONE) continue;
        for (size_t slot = 0; slot < round->client->options.concurrency; slot++) {
            if (!round->busy[slot] || round->client->handles[slot] != message->easy_handle) continue;
            if (round->failed.status == ST_OK) *round->at = round->by_slot[slot];
            TRY(finished(round, round->by_slot[slot], message->data.result));
            wait = 0;
            break;
        }
    }
    if (fault == CURLM_OK && wait > 0) fault = curl_multi_poll(multi, NULL, 0, (int)(wait * 1000) + 1, NULL);
    if (fault != CURLM_OK) return status_fail(ST_RESOURCE, "cannot talk to server '%s': %s", round->client->shown, curl_multi_strerror(fault));
    return interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted while waiting for server '%s'", round->client->shown) : ST_OK;
}

/* Failures that say nothing about the request: the server, or a proxy in front of it, is in trouble. A time-out (408) does say something when other
 * requests were answered meanwhile. */
static bool is_trouble(const Round *round, const Request *request) {
    long code = request->code;
    return code == 429 || code == 502 || code == 503 || code == 504 || (code == 408 && round->client->n_answers == request->at_first);
}

/* Called when nothing runs and only refused requests are left, or no request may start. If the server answered others, these requests are at fault,
 * unless the server has gone down since. */
static Status http_settle(Round *round) {
    enum { MOST_DOUBTFUL = 1 }; /* with more refusals and no answer since, the server may be at fault; any other failure counts at once */
    HttpClient *client = round->client;
    size_t n = 0, refusals = 0, doubtful = 0;
    bool trouble = false, there = false;
    for (size_t i = round->n; i-- > 0;) {
        const Request *request = &round->requests[i];
        if (request->state != PUT_OFF) continue;
        n++;
        refusals += is_refusal(request->code);
        doubtful += may_be_down(round, request);
        trouble = trouble || is_trouble(round, request) || (may_be_down(round, request) && !is_refusal(request->code));
        *round->at = i;
    }
    trouble = trouble || client->n_doubtful + doubtful > MOST_DOUBTFUL;
    if (!trouble) {
        client->n_doubtful += doubtful;
        return deliver_put_off(round, true);
    }
    if (client->options.still_reachable) TRY(client->options.still_reachable(client->options.context, n == refusals, &there));
    if (!there) return failure_restore(&round->refused);
    client->n_doubtful = 0;
    return deliver_put_off(round, true);
}

static bool is_waiting(const Round *round) {
    for (size_t i = 0; i < round->n; i++)
        if (round->requests[i].state == WAITS) return true;
    return false;
}

static bool goes_on(const Round *round) {
    if (round->failed.status != ST_OK) return round->failed.status == ST_RESOURCE && round->n_busy > 0 && clock_seconds() < round->until;
    return round->n_busy > 0 || (is_waiting(round) && !too_many_put_off(round));
}

Status http_post_all(HttpClient *client, const Str *bodies, size_t n, Str *replies, size_t *at) {
    Round round = {.client = client, .bodies = bodies, .n = n, .requests = calloc(MAX(n, 1), sizeof *round.requests), .at = at};
    *at = 0;
    if (!round.requests) return status_errno(ENOMEM, "cannot ask server '%s'", client->shown);
    for (size_t i = 0; i < n; i++) round.requests[i].reply = &replies[i], round.requests[i].held = &round.held;
    do {
        while (goes_on(&round)) {
            Status status = go_on(&round);
            if (status == ST_INTERRUPTED) round.failed.status = ST_OK; /* the interrupt has priority */
            if (status != ST_OK) fail(&round, status);
        }
        Status status = round.failed.status == ST_OK ? http_settle(&round) : ST_OK;
        if (status != ST_OK) fail(&round, status);
    } while (round.failed.status == ST_OK && is_waiting(&round));
    for (size_t slot = 0; slot < client->options.concurrency; slot++)
        if (round.busy[slot]) http_stop(&round, slot);
    Status status = failure_restore(&round.failed);
    free(round.requests);
    return status;
}

/* ---- a reply as it comes ---- */

typedef struct Streaming {
    CURL *handle;
    HttpPiece *on_piece;
    void *context;
    Str refusal; /* the body of a reply with another status */
    Status status;
} Streaming;

static size_t receive_piece(char *bytes, size_t size, size_t n, void *context) {
    enum { LONGEST_REFUSAL = 4096 };
    Streaming *streaming = context;
    long code = 0;
    (void)size;
    curl_easy_getinfo(streaming->handle, CURLINFO_RESPONSE_CODE, &code);
    if (code >= 200 && code < 300)
        streaming->status = streaming->on_piece(streaming->context, bytes, n);
    else if (streaming->refusal.len < LONGEST_REFUSAL)
        str_append_n(&streaming->refusal, bytes, MIN(n, (size_t)LONGEST_REFUSAL));
    return streaming->status == ST_OK ? n : 0;
}

static int look_for_interrupt(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    (void)context, (void)a, (void)b, (void)c, (void)d;
    return interrupt_requested();
}

Status http_post_stream(HttpClient *client, const Str *body, HttpPiece *on_piece, void *context) {
    CURL *handle = client->handles[0];
    Streaming streaming = {.handle = handle, .on_piece = on_piece, .context = context};
    long code = 0;
    client->why[0][0] = '\0';
    curl_easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->len);
    curl_easy_setopt(handle, CURLOPT_POSTFIELDS, str_text(body));
    curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, receive_piece);
    curl_easy_setopt(handle, CURLOPT_WRITEDATA, &streaming);
    curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, look_for_interrupt);
    CURLcode result = curl_easy_perform(handle);
    curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, receive);
    curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 1L);
    curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &code);
    Status status = streaming.status;
    if (status == ST_OK && result == CURLE_ABORTED_BY_CALLBACK)
        status = status_fail(ST_INTERRUPTED, "interrupted");
    else if (status == ST_OK && result != CURLE_OK)
        status = status_fail(ST_RESOURCE, "no answer from '%s': %s", client->shown, *client->why[0] ? client->why[0] : curl_easy_strerror(result));
    else if (status == ST_OK && (code < 200 || code >= 300)) {
        hide_key(client, false, &streaming.refusal);
        status = status_fail(ST_RESOURCE, "'%s' answers with status %ld: %.1000s", client->shown, code, str_text(&streaming.refusal));
    }
    str_release(&streaming.refusal);
    return status;
}
