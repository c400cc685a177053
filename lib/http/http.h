/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP client: several requests at once, each retried with growing pauses, at a limited rate (libcurl's multi interface).
 *
 *     TRY(http_open(&(HttpOptions){.url = url, .key = key, .concurrency = 8, .retries = 5, .timeout = 60}, &client));
 *     Status status = http_post_all(client, bodies, 3, replies, &at);     // all, or the first that failed for good
 *     http_close(client);
 */
#ifndef TUNE_HTTP_H
#define TUNE_HTTP_H

#include "lib/base/file.h"

/* How a client asks its server. Refused requests, with takes_refusals: a request that the server refuses for good counts as a reply
 *   - once a request that was sent after it is answered, or
 *   - if others were answered before it and nothing shows that the server is in trouble.
 * A request that the server failed at (5xx, no answer in time, a broken connection) is first sent once more when others are answered.
 * The server is in trouble after 429, 502, 503 or 504; after two refused requests in a row; and after one refusal other than 400, 413 and 422 with no
 * answer since. After eight refusals in a row no request is started. Before the call fails, still_reachable may decide. */
typedef struct HttpOptions {
    const char *url; /* http or https; the certificate must be valid and be that host's */
    /* Sent as "Authorization: Bearer KEY"; NULL = none. Copied, and cleared at the end. It appears in no message, nor does the part of the url before
     * its @ or after its ?. Replies that repeat the key, also in JSON's escapes, have * in its place. Sending it through plain http to another
     * machine is a warning. */
    const char *key;
    const char *ca_file; /* PEM file of the certificates to trust instead of the system's; NULL = those. Not copied */
    size_t concurrency;  /* requests at once, from 1 */
    /* How often a request is sent again after a refused or broken connection, a time-out, 408, 425, 429 or 5xx. 429 (and 503 with Retry-After) makes
     * all requests wait and fewer run at once; it counts as a try only if no other request was answered in between. */
    size_t retries;
    double timeout;    /* seconds for one try */
    double per_second; /* requests started in a second; 0 = no limit */
    /* Seconds before the first retry, doubled for each further one up to 30; a server's Retry-After (at most 600 s) has priority. */
    double first_pause;
    /* Called once for each complete reply, in any order, with its status code: 408 for no answer in time, 500 for a broken connection. A failure that
     * it returns ends the call. NULL = none. */
    Status (*on_reply)(void *context, size_t i, long code);
    /* Called while nothing runs, and may send a request with this client. *there true: the refused requests count as replies; else the call fails.
     * refusals: all of them were 400, 413 or 422. NULL: the server is not reachable. */
    Status (*still_reachable)(void *context, bool refusals, bool *there);
    void *context;       /* of both functions */
    bool takes_refusals; /* see above. 401, 402, 404, 405 and 410 concern all requests: the first one ends the call */
} HttpOptions;
typedef struct HttpClient HttpClient;
/* Creates a client; the caller calls http_close. ST_CONFIG: not an http or https url. */
Status http_open(const HttpOptions *options, HttpClient **client);
void http_close(HttpClient *client); /* NULL is fine */
/* POSTs n JSON texts and appends the body of reply i (status 200 to 299) to replies[i]. Redirects are not followed. ST_RESOURCE: request *at failed
 * for good; requests in progress get up to 10 s to end, the others are abandoned. ST_INTERRUPTED: the user interrupted. */
Status http_post_all(HttpClient *client, const Str *bodies, size_t n, Str *replies, size_t *at);
/* POSTs one JSON text and hands over the body of the reply (status 200 to 299) piece by piece as it comes, without retries. A failure of on_piece
 * ends the call. ST_RESOURCE: no such reply, or it broke off; the text has what the server said. ST_INTERRUPTED. */
typedef Status HttpPiece(void *context, const char *bytes, size_t n);
Status http_post_stream(HttpClient *client, const Str *body, HttpPiece *on_piece, void *context);
/* Delays the next request by so many seconds, counted from when it could have started: for limits that only the replies show. */
void http_slow_down(HttpClient *client, double seconds);
const char *http_name(const HttpClient *client); /* the url as messages show it */

#endif
