/* SPDX-License-Identifier: Apache-2.0 */
/* A transport that delays, loses and stops, around another one; and runs of a body on several ranks. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/str.h"
#include "lib/base/system.h"
#include "tests/support/check.h"
#include "tests/support/ranks.h"

/* A message on its way into the inner transport */
typedef struct Delayed {
    struct Delayed *next, *older;
    CommRequest inner;
    const void *data;
    size_t bytes;
    int to, tag;
    double due;
    bool sent, lost;
} Delayed;

typedef struct Troubled {
    CommTransport transport, *inner;
    Trouble trouble;
    Delayed *first, **end; /* not sent yet, in order */
    Delayed *newest;       /* of all */
    int n_messages;
    uint64_t draws;
} Troubled;

static const char *troubled_host(void *state, int rank) {
    CommTransport *inner = ((Troubled *)state)->inner;
    return inner->host(inner->state, rank);
}

/* Sends what is due. A message never overtakes one to the same rank. */
static Status troubled_move(Troubled *troubled) {
    CommTransport *inner = troubled->inner;
    const double now = clock_seconds();
    bool waits[RANKS_MAX] = {false};
    for (Delayed **at = &troubled->first; *at;) {
        Delayed *delayed = *at;
        if (waits[delayed->to] || delayed->due > now) {
            waits[delayed->to] = true;
            at = &delayed->next;
            continue;
        }
        *at = delayed->next;
        if (!*at) troubled->end = at;
        delayed->sent = true;
        if (!delayed->lost) TRY(inner->send(inner->state, delayed->to, delayed->tag, delayed->data, delayed->bytes, &delayed->inner));
    }
    return ST_OK;
}

static Status troubled_send(void *state, int to, int tag, const void *data, size_t bytes, CommRequest *request) {
    Troubled *troubled = state;
    const Trouble *trouble = &troubled->trouble;
    const int n = ++troubled->n_messages;
    if (n == trouble->die) raise(SIGKILL);
    if (n == trouble->freeze) {
        nanosleep(&(struct timespec){.tv_sec = (time_t)trouble->seconds}, NULL);
        return status_fail(ST_RESOURCE, "frozen");
    }
    Delayed *delayed = calloc(1, sizeof *delayed);
    assert_non_null(delayed);
    *delayed = (Delayed){.data = data, .bytes = bytes, .to = to, .tag = tag, .lost = trouble->cut && n >= trouble->cut};
    troubled->draws = mix64(troubled->draws + trouble->seed + 1);
    delayed->due = clock_seconds() + (trouble->delay ? 1e-6 * (double)(troubled->draws % (uint64_t)trouble->delay) : 0);
    delayed->older = troubled->newest;
    troubled->newest = delayed;
    *troubled->end = delayed;
    troubled->end = &delayed->next;
    request->slot = delayed;
    return troubled_move(troubled);
}

static Status troubled_receive(void *state, int from, int tag, void *data, size_t bytes, CommRequest *request) {
    CommTransport *inner = ((Troubled *)state)->inner;
    request->slot = NULL;
    return inner->receive(inner->state, from, tag, data, bytes, request);
}

static Status troubled_done(void *state, CommRequest *request, bool *done) {
    Troubled *troubled = state;
    CommTransport *inner = troubled->inner;
    Delayed *delayed = request->slot;
    TRY(troubled_move(troubled));
    if (!delayed) return inner->done(inner->state, request, done);
    *done = false;
    if (!delayed->sent) return ST_OK;
    *done = delayed->lost;
    return delayed->lost ? ST_OK : inner->done(inner->state, &delayed->inner, done);
}

static void troubled_idle(void *state, int microseconds) {
    Troubled *troubled = state;
    troubled->inner->idle(troubled->inner->state, microseconds);
    (void)troubled_move(troubled);
}

static void troubled_close(void *state, Status why) {
    Troubled *troubled = state;
    troubled->inner->close(troubled->inner->state, why);
    while (troubled->newest) {
        Delayed *older = troubled->newest->older;
        free(troubled->newest);
        troubled->newest = older;
    }
    free(troubled);
}

CommTransport *trouble_transport(CommTransport *inner, const Trouble *trouble) {
    Troubled *troubled = calloc(1, sizeof *troubled);
    assert_non_null(troubled);
    troubled->inner = inner;
    troubled->trouble = *trouble;
    troubled->end = &troubled->first;
    troubled->transport = (CommTransport){.rank = inner->rank,
                                          .size = inner->size,
                                          .state = troubled,
                                          .host = troubled_host,
                                          .send = troubled_send,
                                          .receive = troubled_receive,
                                          .done = troubled_done,
                                          .idle = troubled_idle,
                                          .close = troubled_close};
    return &troubled->transport;
}

/* ---- runs ---- */

typedef struct RankStart {
    RankSockets *sockets;
    int rank;
    RankRun *run;
    RankBody *body;
    void *data;
} RankStart;

static Status rank_live(const RankStart *start) {
    RankRun *run = start->run;
    const Trouble none = {0}, *trouble = &run->trouble[start->rank];
    CommTransport *transport = forked_transport(start->sockets, start->rank);
    if (memcmp(trouble, &none, sizeof none) != 0) transport = trouble_transport(transport, trouble);
    Comm *comm;
    Status status = comm_new(transport, &run->config, &comm);
    if (status == ST_OK) status = start->body(comm, start->data);
    run->prints[start->rank] = status != ST_OK && comm_fail(comm, status);
    failure_save(&run->failures[start->rank], status);
    comm_close(comm, status);
    return status;
}

static void *rank_thread(void *start) {
    rank_live(start);
    return NULL;
}

static Status first_failure(int size, const RankRun *run) {
    for (int rank = 0; rank < size; rank++)
        if (run->failures[rank].status != ST_OK) return failure_restore(&run->failures[rank]);
    return ST_OK;
}

Status ranks_run(int size, RankRun *run, RankBody *body, void *data) {
    RankRun plain = {0};
    pthread_t threads[RANKS_MAX];
    RankStart starts[RANKS_MAX];
    if (!run) run = &plain;
    RankSockets *sockets = rank_sockets_new(size);
    for (int rank = 0; rank < size; rank++) {
        starts[rank] = (RankStart){sockets, rank, run, body, data};
        assert_int_equal(pthread_create(&threads[rank], NULL, rank_thread, &starts[rank]), 0);
    }
    for (int rank = 0; rank < size; rank++) assert_int_equal(pthread_join(threads[rank], NULL), 0);
    rank_sockets_free(sockets);
    return first_failure(size, run);
}

/* What a child writes into its pipe */
typedef struct RankResult {
    Failure failure;
    bool prints;
} RankResult;

Status ranks_fork(int size, RankRun *run, RankBody *body, void *data) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    RankSockets *sockets = rank_sockets_new(size);
    int pipes[RANKS_MAX][2];
    pid_t children[RANKS_MAX];
    for (int rank = 0; rank < size; rank++) {
        assert_int_equal(pipe(pipes[rank]), 0);
        children[rank] = fork();
        assert_true(children[rank] >= 0);
        if (children[rank] > 0) {
            close(pipes[rank][1]);
            continue;
        }
        for (size_t i = 0; i < COUNT_OF(faults); i++) signal(faults[i], SIG_DFL); /* else the test program would go on in this process, too */
        rank_sockets_keep(sockets, rank);
        rank_live(&(RankStart){sockets, rank, run, body, data});
        const RankResult result = {run->failures[rank], run->prints[rank]};
        const bool written = write(pipes[rank][1], &result, sizeof result) == (ssize_t)sizeof result;
        _exit(written ? 0 : 1);
    }
    rank_sockets_keep(sockets, -1);
    for (int rank = 0; rank < size; rank++) {
        RankResult result = {.failure = {.status = ST_RESOURCE, .text = "killed"}};
        size_t got = 0;
        for (ssize_t n; got < sizeof result && (n = read(pipes[rank][0], (char *)&result + got, sizeof result - got)) > 0;) got += (size_t)n;
        close(pipes[rank][0]);
        assert_int_equal(waitpid(children[rank], NULL, 0), children[rank]);
        run->failures[rank] = result.failure;
        run->prints[rank] = result.prints;
    }
    rank_sockets_free(sockets);
    return first_failure(size, run);
}
