/* SPDX-License-Identifier: Apache-2.0 */
/* Asking servers over HTTP: several requests at once, each retried with growing pauses, not more than so many a second (libcurl's multi interface).
 *
 *     TRY(http_open(&(HttpOptions){.url = url, .key = key, .concurrency = 8, .retries = 5, .timeout = 60}, &client));
 *     Status status = http_post_all(client, bodies, 3, replies, &at);     // all, or the first that failed for good
 *     http_close(client);
 */
#ifndef TUNE_HTTP_H
#define TUNE_HTTP_H

#include "lib/base/file.h"

/* url: http or https, whose certificate has to be valid, and of that host. ca_file: PEM file of the certificates that are trusted instead of the
 * system's, NULL = these; a path that stays. key: sent as "Authorization: Bearer KEY", NULL = none; it is copied, cleared at the end, and in no
 * message, nor is what a url holds before its @ or behind its ?; replies that repeat it, also in JSON's escapes, have * instead; that it goes through
 * plain http to another machine is a warning. concurrency: requests at once, from 1.
 * retries: how often one is sent again after a refused or broken connection, a time-out, 408, 425, 429 or 5xx. timeout: seconds for one try.
 * per_second: requests started in a second, 0 = no limit. first_pause: seconds before the first retry, doubled for each further one up to 30; a
 * server's Retry-After (at most 600 s) goes before. 429 (and 503 with Retry-After) makes all requests wait and fewer run at once, and counts as a try
 * only where nothing else was answered in between. on_reply (NULL: none) is called as each reply is whole, in any order, with its status code; it may
 * end all by returning a status. takes_refusals: what the server refuses for good is a reply too, when others that were sent after that are answered,
 * or were answered before and nothing says that the server is in trouble. What it failed at (5xx, no answer in time, a connection that it broke off)
 * is asked anew when others are answered, and counts then. In trouble it is by 429, 502, 503, 504; by two requests in a row, whatever they meet; by
 * one that meets something else than 400, 413 and 422, and no answer since. Nothing is started behind eight in a row. No answer in time has the
 * code 408, a connection that was broken off 500. Then still_reachable (NULL: it is not) is asked, which may ask something with this client, as
 * nothing runs: *there true lets what was refused count, else the call fails. refusals: only 400, 413 and 422 were met. 401, 402, 404, 405 and 410
 * concern all requests: the first one ends all. */
typedef struct HttpOptions {
    const char *url, *key, *ca_file;
    size_t concurrency, retries;
    double timeout, per_second, first_pause;
    Status (*on_reply)(void *context, size_t i, long code);
    Status (*still_reachable)(void *context, bool refusals, bool *there);
    void *context;
    bool takes_refusals;
} HttpOptions;
typedef struct HttpClient HttpClient;
/* ST_CONFIG: a url that is none, or not http. */
Status http_open(const HttpOptions *options, HttpClient **client);
void http_close(HttpClient *client); /* NULL is fine */
/* POSTs n JSON texts; the body of reply i (status 200 to 299) is added to replies[i]. Redirects are not followed. ST_RESOURCE: one failed for good:
 * *at is its index; what runs already may end within 10 s, the others are given up. ST_INTERRUPTED when asked to stop. */
Status http_post_all(HttpClient *client, const Str *bodies, size_t n, Str *replies, size_t *at);
/* No further request is started for so many seconds, counted from when the next one might have been: for limits that only the replies show. */
void http_slow_down(HttpClient *client, double seconds);
const char *http_name(const HttpClient *client); /* the url as messages show it */

#endif
