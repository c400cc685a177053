/* SPDX-License-Identifier: Apache-2.0 */
/* The world of one rank: it has nobody to send to. */
#include "lib/comm/comm.h"

#include <stdlib.h>
#include <string.h>

static const char *self_host(void *state, int rank) {
    (void)state, (void)rank;
    return "this machine";
}

static Status self_refuse(void) { return status_fail(ST_RESOURCE, "a message to another rank in a run of one rank"); }

static Status self_send(void *state, int to, int tag, const void *data, size_t bytes, CommRequest *request) {
    (void)state, (void)to, (void)tag, (void)data, (void)bytes, (void)request;
    return self_refuse();
}

static Status self_receive(void *state, int from, int tag, void *data, size_t bytes, CommRequest *request) {
    (void)state, (void)from, (void)tag, (void)data, (void)bytes, (void)request;
    return self_refuse();
}

static Status self_done(void *state, CommRequest *request, bool *done) {
    (void)state, (void)request;
    *done = true;
    return ST_OK;
}

static void self_idle(void *state, int microseconds) { (void)state, (void)microseconds; }
static void self_close(void *state, Status why) {
    (void)why;
    free(state);
}

CommTransport *comm_self(void) {
    CommTransport *transport = calloc(1, sizeof *transport);
    if (!transport) {
        status_fail(ST_RESOURCE, "no memory for a run of one rank");
        return NULL;
    }
    *transport = (CommTransport){.size = 1,
                                 .state = transport,
                                 .host = self_host,
                                 .send = self_send,
                                 .receive = self_receive,
                                 .done = self_done,
                                 .idle = self_idle,
                                 .close = self_close};
    return transport;
}
