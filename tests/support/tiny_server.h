/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of the tests of the server: the demo's tiny model, and a server of it in a thread of the test, one at a time.
 *
 *     tiny_start_usual();
 *     HttpAnswer answer = tiny_ask("/v1/completions", "{\"prompt\": \"1\"}");
 *     assert_int_equal(answer.status, 200);
 *     http_answer_release(&answer);
 *     tiny_stop();
 */
#ifndef TUNE_TINY_SERVER_H
#define TUNE_TINY_SERVER_H

#include "lib/serve/serve.h"
#include "tests/support/check.h"
#include "tests/support/http_client.h"

extern const char tiny_dir[];
extern Model *tiny_model;
extern Tokenizer *tiny_tokenizer;
extern Chat *tiny_chat;
extern Server *tiny_server; /* between tiny_start and tiny_stop */

int tiny_set_up(void **state); /* set-up and tear-down of a group of tests, with test_folder */
int tiny_clean_up(void **state);

ServeConfig tiny_config(void); /* the usual one */
/* Return when the server answers. */
void tiny_start(const ServeConfig *config);
void tiny_start_usual(void);
/* Waits for running answers; fails the test if the server has failed. */
void tiny_stop(void);

HttpAnswer tiny_ask(const char *path, const char *body); /* by POST */
/* Sends text as it is on a new connection. Returns its socket, which the caller closes. */
int tiny_send(const char *text);
/* The value of a line of /metrics; -1: there is none. The second one waits for a value, at most 30 s. */
double tiny_metric(const char *name);
void tiny_wait_for(const char *name, double value);
json_t *choice_at(const HttpAnswer *answer, size_t i); /* borrowed from the answer */
/* Releases the answer. Fails unless it is an error of this status with these parts; NULL: any. */
void check_refusal(HttpAnswer answer, int status, const char *code, const char *param);

#endif
