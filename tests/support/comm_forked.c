/* SPDX-License-Identifier: Apache-2.0 */
/* A transport over socket pairs: a message is its tag, its length and its bytes. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/check.h"
#include "tests/support/ranks.h"

struct RankSockets {
    int size;
    int ends[RANKS_MAX][RANKS_MAX]; /* [rank][peer] */
};

RankSockets *rank_sockets_new(int size) {
    RankSockets *sockets = calloc(1, sizeof *sockets);
    assert_non_null(sockets);
    assert_in_range(size, 1, RANKS_MAX);
    sockets->size = size;
    for (int a = 0; a < size; a++)
        for (int b = 0; b < a; b++) {
            int pair[2];
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
            for (int i = 0; i < 2; i++) assert_int_equal(fcntl(pair[i], F_SETFL, O_NONBLOCK), 0);
            sockets->ends[a][b] = pair[0];
            sockets->ends[b][a] = pair[1];
        }
    return sockets;
}

void rank_sockets_keep(RankSockets *sockets, int rank) {
    for (int a = 0; a < sockets->size; a++)
        for (int b = 0; b < sockets->size; b++)
            if (a != b && a != rank) close(sockets->ends[a][b]);
}

void rank_sockets_free(RankSockets *sockets) { free(sockets); }

/* A message that a rank sends or waits for; it lies in the CommRequest. */
typedef struct Pending Pending;
struct Pending {
    Pending *next;
    uint8_t *data;
    uint32_t bytes, at; /* at: bytes that have left, with the head */
    int32_t peer, tag;
    bool done;
};
_Static_assert(sizeof(Pending) <= sizeof((CommRequest){0}.state), "a pending message fits into a request");

typedef struct Head {
    int32_t tag;
    uint32_t bytes;
} Head;

/* A message that arrived before it was asked for */
typedef struct Early {
    struct Early *next;
    int peer, tag;
    uint32_t bytes;
    uint8_t data[];
} Early;

typedef struct Peer {
    int fd; /* -1: gone */
    Pending *first, *last;
    Head head;       /* of the message that arrives now */
    uint32_t at;     /* its bytes so far, with the head */
    Pending *posted; /* where it goes, or: */
    Early *early;
    size_t waiting; /* bytes of its messages that nobody has asked for */
} Peer;

typedef struct Forked {
    CommTransport transport;
    Peer peers[RANKS_MAX];
    Pending *posted, **posted_end;
    Early *early, **early_end;
    int too_long; /* bytes of a message that was longer than expected */
} Forked;

static Pending *pending_of(CommRequest *request) { return (Pending *)(void *)request->state; }

static const char *forked_host(void *state, int rank) {
    const Forked *forked = state;
    return rank < (forked->transport.size + 1) / 2 ? "hostA" : "hostB";
}

static void peer_write(Peer *peer) {
    while (peer->first && peer->fd >= 0) {
        Pending *pending = peer->first;
        const Head head = {pending->tag, pending->bytes};
        const bool in_head = pending->at < sizeof head;
        const void *from = in_head ? (const uint8_t *)&head + pending->at : pending->data + (pending->at - sizeof head);
        const size_t left = in_head ? sizeof head - pending->at : pending->bytes + sizeof head - pending->at;
        const ssize_t n = left ? send(peer->fd, from, left, MSG_NOSIGNAL) : 0;
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n < 0) { /* the other rank is gone: as with MPI, nobody says so */
            pending->done = true;
            peer->first = pending->next;
            continue;
        }
        pending->at += (uint32_t)n;
        if (pending->at == pending->bytes + sizeof head) {
            peer->first = pending->next;
            pending->done = true;
        }
    }
}

/* The first receive that takes a message */
static Pending *posted_take(Forked *forked, int peer, int tag) {
    for (Pending **at = &forked->posted; *at; at = &(*at)->next) {
        Pending *posted = *at;
        if ((posted->peer >= 0 && posted->peer != peer) || posted->tag != tag) continue;
        *at = posted->next;
        if (!*at) forked->posted_end = at;
        return posted;
    }
    return NULL;
}

static void head_arrived(Forked *forked, int rank) {
    Peer *peer = &forked->peers[rank];
    peer->posted = posted_take(forked, rank, peer->head.tag);
    if (peer->posted && peer->head.bytes > peer->posted->bytes) forked->too_long = (int)peer->head.bytes;
    if (!peer->posted || peer->head.bytes > peer->posted->bytes) {
        peer->early = malloc(sizeof *peer->early + peer->head.bytes);
        assert_non_null(peer->early);
        *peer->early = (Early){.peer = rank, .tag = peer->head.tag, .bytes = peer->head.bytes};
        peer->posted = NULL;
    }
}

static void peer_read(Forked *forked, int rank) {
    Peer *peer = &forked->peers[rank];
    while (peer->fd >= 0 && peer->waiting < RANKS_WAITING) {
        const bool in_head = peer->at < sizeof peer->head;
        uint8_t *data = peer->posted ? peer->posted->data : peer->early ? peer->early->data : NULL;
        void *to = in_head ? (uint8_t *)&peer->head + peer->at : data + (peer->at - sizeof peer->head);
        const size_t left = in_head ? sizeof peer->head - peer->at : peer->head.bytes + sizeof peer->head - peer->at;
        const ssize_t n = left ? recv(peer->fd, to, left, 0) : 0;
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n < 0 || (n == 0 && left)) {
            close(peer->fd);
            peer->fd = -1;
            return;
        }
        peer->at += (uint32_t)n;
        if (in_head && peer->at == sizeof peer->head) head_arrived(forked, rank);
        if (peer->at < sizeof peer->head || peer->at < peer->head.bytes + sizeof peer->head) continue;
        Pending *posted = peer->posted ? peer->posted : posted_take(forked, rank, peer->head.tag); /* it may have been asked for meanwhile */
        if (posted && peer->early) {
            if (peer->head.bytes > posted->bytes) forked->too_long = (int)peer->head.bytes;
            memcpy(posted->data, peer->early->data, MIN(peer->head.bytes, posted->bytes));
            free(peer->early);
        }
        if (posted)
            posted->done = true;
        else {
            *forked->early_end = peer->early;
            forked->early_end = &peer->early->next;
            peer->waiting += peer->head.bytes;
        }
        peer->at = 0;
        peer->posted = NULL;
        peer->early = NULL;
    }
}

static void forked_move(Forked *forked) {
    for (int rank = 0; rank < forked->transport.size; rank++) {
        if (rank == forked->transport.rank) continue;
        peer_write(&forked->peers[rank]);
        peer_read(forked, rank);
    }
}

static Status forked_send(void *state, int to, int tag, const void *data, size_t bytes, CommRequest *request) {
    Peer *peer = &((Forked *)state)->peers[to];
    Pending *pending = pending_of(request);
    *pending = (Pending){.data = (uint8_t *)(uintptr_t)data, .bytes = (uint32_t)bytes, .peer = to, .tag = tag, .done = peer->fd < 0};
    if (pending->done) return ST_OK;
    if (peer->first)
        peer->last->next = pending;
    else
        peer->first = pending;
    peer->last = pending;
    peer_write(peer);
    return ST_OK;
}

static Status forked_receive(void *state, int from, int tag, void *data, size_t bytes, CommRequest *request) {
    Forked *forked = state;
    Pending *pending = pending_of(request);
    *pending = (Pending){.data = data, .bytes = (uint32_t)bytes, .peer = from, .tag = tag};
    for (Early **at = &forked->early; *at; at = &(*at)->next) {
        Early *early = *at;
        if ((from >= 0 && early->peer != from) || early->tag != tag) continue;
        if (early->bytes > bytes) return status_fail(ST_RESOURCE, "a message of %u bytes instead of %zu", early->bytes, bytes);
        memcpy(data, early->data, early->bytes);
        *at = early->next;
        if (!*at) forked->early_end = at;
        forked->peers[early->peer].waiting -= early->bytes;
        free(early);
        pending->done = true;
        return ST_OK;
    }
    *forked->posted_end = pending;
    forked->posted_end = &pending->next;
    return ST_OK;
}

static Status forked_done(void *state, CommRequest *request, bool *done) {
    Forked *forked = state;
    if (!pending_of(request)->done) forked_move(forked);
    *done = pending_of(request)->done;
    return forked->too_long ? status_fail(ST_RESOURCE, "a message of %d bytes is too long", forked->too_long) : ST_OK;
}

static void forked_idle(void *state, int microseconds) {
    Forked *forked = state;
    struct pollfd fds[RANKS_MAX];
    nfds_t n = 0;
    for (int rank = 0; rank < forked->transport.size; rank++)
        if (rank != forked->transport.rank && forked->peers[rank].fd >= 0)
            fds[n++] = (struct pollfd){.fd = forked->peers[rank].fd, .events = (short)(POLLIN | (forked->peers[rank].first ? POLLOUT : 0))};
    ppoll(fds, n, &(struct timespec){.tv_nsec = (long)microseconds * 1000}, NULL);
    forked_move(forked);
}

static void forked_close(void *state, Status why) {
    Forked *forked = state;
    (void)why;
    for (int rank = 0; rank < forked->transport.size; rank++) {
        free(forked->peers[rank].early);
        if (rank != forked->transport.rank && forked->peers[rank].fd >= 0) close(forked->peers[rank].fd);
    }
    while (forked->early) {
        Early *next = forked->early->next;
        free(forked->early);
        forked->early = next;
    }
    free(forked);
}

CommTransport *forked_transport(RankSockets *sockets, int rank) {
    Forked *forked = calloc(1, sizeof *forked);
    assert_non_null(forked);
    for (int peer = 0; peer < sockets->size; peer++) forked->peers[peer].fd = peer == rank ? -1 : sockets->ends[rank][peer];
    forked->posted_end = &forked->posted;
    forked->early_end = &forked->early;
    forked->transport = (CommTransport){.rank = rank,
                                        .size = sockets->size,
                                        .state = forked,
                                        .host = forked_host,
                                        .send = forked_send,
                                        .receive = forked_receive,
                                        .done = forked_done,
                                        .idle = forked_idle,
                                        .close = forked_close,
                                        .title = "socket pairs"};
    return &forked->transport;
}
