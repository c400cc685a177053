/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks for tests: a transport over socket pairs, whose ranks are processes or threads, and a transport that makes trouble.
 *
 *     static Status body(Comm *comm, void *data) { ... return comm_finish(comm); }
 *     check_ok(ranks_run(4, NULL, body, &data));                  // four threads; fails with the text of the first rank that failed
 */
#ifndef TUNE_RANKS_H
#define TUNE_RANKS_H

#include "lib/comm/comm.h"

#define RANKS_MAX 8
/* Bytes of messages that lie with a rank before it asks for them, at most, but for the last one: as with MPI, long ones stay with their sender.
 * Messages after them wait too, also those of control. */
#define RANKS_WAITING (2 << 20)

/* Socket pairs between all ranks, made before the ranks are. Ranks below size / 2 are on hostA, the others on hostB. */
typedef struct RankSockets RankSockets;
RankSockets *rank_sockets_new(int size); /* fails the test without descriptors */
void rank_sockets_free(RankSockets *sockets);
void rank_sockets_keep(RankSockets *sockets, int rank);          /* in a child: closes the ends of all other ranks; -1: of all */
CommTransport *forked_transport(RankSockets *sockets, int rank); /* closes the ends of this rank when it is closed */

/* What goes wrong. Messages are counted over all ranks to which this rank sends. */
typedef struct Trouble {
    uint64_t seed;
    int delay;  /* each message leaves up to so many microseconds later */
    int freeze; /* this rank sleeps for `seconds` at its n-th message, and then fails; 0: never */
    double seconds;
    int cut; /* messages from the n-th on are lost; 0: none */
    int die; /* SIGKILL at the n-th message; 0: never */
} Trouble;
/* Wraps a transport, which belongs to the result from then on. */
CommTransport *trouble_transport(CommTransport *inner, const Trouble *trouble);

typedef Status RankBody(Comm *comm, void *data);
typedef struct RankRun {
    CommConfig config;
    Trouble trouble[RANKS_MAX]; /* of each rank; all zero: none */
    /* results */
    Failure failures[RANKS_MAX];
    bool prints[RANKS_MAX]; /* what comm_fail returned */
} RankRun;
/* Runs `body` on `size` ranks, which are threads. run NULL: the tree, no trouble. Returns the failure of the first rank that failed. */
Status ranks_run(int size, RankRun *run, RankBody *body, void *data);
/* The same in processes. A process that was killed has failed with ST_RESOURCE and the text "killed". */
Status ranks_fork(int size, RankRun *run, RankBody *body, void *data);

#endif
