/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a Comm, for the files of lib/comm: a queue of works, and the messages of a work. The first work of the queue is the one under way.
 * Whenever none of its messages is pending, its `turn` is called: it uses what has arrived and posts the next messages, or says that it has ended. */
#ifndef TUNE_COMM_PARTS_H
#define TUNE_COMM_PARTS_H

#include "lib/comm/comm.h"

#define COMM_NAME 80

/* Begins what one rank sends another in an operation; all that follows is payload. */
typedef struct CommHeader {
    uint32_t kind;   /* CommKind, and the operation */
    uint32_t number; /* of the operation between these two ranks, in this direction */
    uint64_t bytes;  /* of the payload */
    uint64_t name;   /* hash of the name */
} CommHeader;
_Static_assert(sizeof(CommHeader) == 24, "the header of a message has 24 bytes");

typedef struct CommPost {
    CommRequest request;
    CommHeader header; /* of a post that is one */
    void *data;
    size_t bytes;
    int peer; /* rank in the group; -1: a sum of the library */
    bool receives, is_header, done;
} CommPost;

typedef enum CommOperation { COMM_OP_SUM, COMM_OP_GATHER, COMM_OP_SMALL, COMM_OP_BROADCAST, COMM_OP_MESSAGE } CommOperation;

typedef struct CommWork CommWork;
/* Called while no message of the work is pending. Sets *ended, or posts messages. */
typedef Status CommTurn(Comm *comm, CommWork *work, bool *ended);
struct CommWork {
    CommWork *next;
    int64_t number;
    CommOperation operation;
    CommKind kind;
    char name[COMM_NAME];
    CommTurn *turn;
    CommPost *posts;
    size_t n_posts, cap_posts, n_pending;
    int64_t round; /* turns so far; for the turn function */
    CommSum sum;   /* the arguments; the arrays are the work's own copies */
    CommGather gather;
    TreeNode *nodes;  /* of all ranks, rank after rank */
    int *node_first;  /* (size + 1): the nodes of rank r are node_first[r] .. node_first[r + 1] - 1 */
    uint8_t *scratch; /* of the turn function */
    const void *mine; /* of a small gather */
    int root;         /* of a broadcast; the other rank of a message */
    bool sends;       /* a message */
};

/* A work with the name and the parts of an operation, not in the queue yet. NULL, with ST_RESOURCE recorded: no memory. */
CommWork *work_new(Comm *comm, CommOperation operation, CommKind kind, const char *name, CommTurn *turn);
void work_free(CommWork *work);
Status work_start(Comm *comm, CommWork *work);     /* appends it to the queue, which owns it from then on */
Status work_room(CommWork *work, size_t posts);    /* room for so many messages of this turn */
Status work_scratch(CommWork *work, size_t bytes); /* work->scratch; freed with the work */

/* Announces all that this rank sends `peer` in this work, or that it receives; nothing for no bytes. */
Status work_announce(Comm *comm, CommWork *work, int peer, size_t sends, size_t receives);
/* One segment, at most COMM_SEGMENT bytes */
Status work_send(Comm *comm, CommWork *work, int peer, const void *data, size_t bytes);
Status work_receive(Comm *comm, CommWork *work, int peer, void *data, size_t bytes);
/* The number of elements of a segment, and its part of a range of elements: *begin counted from `from`. Returns how many elements there are. */
size_t segment_of(size_t from, size_t end, size_t size, int64_t segment, size_t *begin);

/* Starts the library's own sum of floats. Counts what it is given for other ranks; how it moves that is not known. */
Status work_library_sum(Comm *comm, CommWork *work, float *x, float *sum, const size_t *first);
bool comm_has_library_sum(const Comm *comm);

/* The turns of sums and gathers; reduce_*.c */
CommTurn sum_direct, sum_halving, sum_ring, sum_library, gather_direct, gather_ring;
/* Whether the sum is small, and of 2^k ranks with one node each */
bool halving_fits(const Comm *comm, const CommWork *work);

#endif
