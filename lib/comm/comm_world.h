/* SPDX-License-Identifier: Apache-2.0 */
/* The world of a Comm: its transport, control messages, signs of life, failures, counts. For the files of lib/comm. */
#ifndef TUNE_COMM_WORLD_H
#define TUNE_COMM_WORLD_H

#include "lib/comm/comm_parts.h"

typedef enum ControlKind {
    CONTROL_SIGN,   /* what a rank does now */
    CONTROL_FAIL,   /* a rank failed, with its text */
    CONTROL_SEEN,   /* rank 0 has the text of a failure, and prints it */
    CONTROL_ASK,    /* a header is not the expected one: what did you send? The text says what the asking rank waits for. */
    CONTROL_ANSWER, /* the text says what was sent */
} ControlKind;

typedef struct Control {
    int32_t kind, from, status, waits_for; /* waits_for: -1: this rank waits for none */
    int64_t step, index, number;           /* number, tag: of the operation that is asked for */
    int64_t tag;
    char text[608], hint[352];
} Control;

/* A control message that has not left yet */
typedef struct Leaving {
    struct Leaving *next;
    CommRequest request;
    Control control;
} Leaving;

typedef struct Sign {
    double at; /* clock_seconds of the latest message of this rank */
    int64_t step, index;
    int waits_for;
    char phase[64];
} Sign;

/* The operations that this rank sent latest, for the answer to a rank that expects another one */
#define SENT_LOG 128
typedef struct Sent {
    int peer, tag;
    uint32_t number;
    CommKind kind;
    uint64_t bytes;
    char name[COMM_NAME];
} Sent;

typedef struct World {
    CommTransport *transport;
    CommConfig config;
    Comm *groups; /* all groups, the world's own included */
    int n_groups; /* ever made */
    /* control messages */
    CommRequest heard;
    Control hearing;
    bool listens;
    Leaving *leaving;
    double signed_at, looked_at, moved_at; /* when this rank sent a sign, looked at control messages, and a message of its works ended */
    Sign *signs;                           /* of each rank */
    /* what this rank does */
    int64_t step, index;
    const char *phase;
    int waits_for; /* -1: it does not wait */
    /* failures */
    Failure failure; /* the first one */
    int failed_rank; /* whose failure it is; -1: none */
    bool seen;       /* rank 0 prints the text */
    bool told;       /* the other ranks know it, and it is decided whether this rank prints it */
    bool prints;
    char answer[608];
    bool answered;
    Sent sent[SENT_LOG];
    size_t n_sent;
    /* counts */
    CommCount (*counts)[COMM_N_KINDS]; /* of each rank */
    double waited, *waited_for;
    double warned_at;
} World;

struct Comm {
    Comm *next;
    World *world;
    int rank, size;
    int *ranks; /* in the world */
    int tag;
    CommWork *first, *last; /* the queue */
    int64_t started, ended;
    uint32_t *sent, *received; /* operations to and from each rank */
};

double sign_interval(const World *world);
/* Keeps the first failure: this thread's status and text. from: the rank that failed. Returns the failure that counts. */
Status world_fail(World *world, int from, Status status);
/* Reads control messages, sends a sign if it is due, and looks at the clocks of silent ranks. */
void control_poll(World *world, bool waiting);
Status control_listen(World *world);
void control_say(World *world, int to, ControlKind kind, int64_t number, int64_t tag, const char *text, const char *hint, Status status);
void control_flush(World *world, double seconds); /* waits until what was said has left */
void control_release(World *world);
/* "rank 3 (hostB)" */
const char *rank_words(const World *world, int rank, char out[96]);
/* "gradients of layers.3 (4194304 bytes)" */
void operation_words(CommKind kind, const char *name, uint64_t bytes, char *out, size_t size);
/* Warns of a rank that is waited for; at most once in 10 s. */
void control_warn(World *world, double since);
/* Fails with what both ranks expected. */
Status control_mismatch(World *world, int from, const char *waits_for, const CommHeader *header, int64_t tag);

#endif
