/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks: processes that train one model together. A Comm is a group of them; the world is the group of all. Ranks exchange messages through a
 * transport: MPI, or none in a run of one process. All ranks of a group make the same calls in the same order. A message begins with what it is, so
 * a rank that makes another call is found and named. A wait never hangs: it ends when a rank fails, or gives no sign for too long.
 *
 *     static Status sum_of_all(Comm *comm, float *x, size_t n) {          // the same bits on each rank, for any number of ranks
 *         size_t first[COMM_MAX_RANKS + 1];
 *         comm_parts(comm, n, 16384, first);                              // who adds which elements
 *         const CommSum sum = {COMM_GRADIENTS, "gradients of bucket 3", n, first, .nodes = &x, .sum = x + first[comm_rank(comm)]};
 *         TRY(comm_sum(comm, &sum));                                      // started; more may be started before the end of this one
 *         const CommGather gather = {COMM_GRADIENTS, "sums of bucket 3", x, sizeof *x, first};
 *         TRY(comm_gather(comm, &gather));
 *         return comm_finish(comm);                                       // all that was started has ended
 *     }
 *
 * The comm of a run without a launcher is NULL: comm_rank is 0, comm_size is 1, and comm_poll, comm_phase, comm_close do nothing.
 * A Comm and its groups are used by one thread at a time.
 */
#ifndef TUNE_COMM_H
#define TUNE_COMM_H

#include "lib/base/base.h"
#include "lib/comm/tree_sum.h"

#define COMM_MAX_RANKS 4096
/* Messages are cut into segments of at most so many bytes */
#define COMM_SEGMENT ((size_t)1 << 20)

typedef struct Comm Comm;

/* What bytes are counted as */
typedef enum CommKind {
#define COMM_KIND(name, word) name,
#include "lib/comm/comm_kinds.def"
#undef COMM_KIND
    COMM_N_KINDS
} CommKind;
const char *comm_kind_word(CommKind kind); /* "gradients" */

/* How gradients are summed: a row of reduces.def */
typedef enum CommReduce {
#define REDUCE(name, word, meaning) name,
#include "lib/comm/reduces.def"
#undef REDUCE
    COMM_N_REDUCES
} CommReduce;
const char *comm_reduce_word(CommReduce reduce);             /* "tree" */
bool comm_reduce_find(const char *word, CommReduce *reduce); /* false: there is no such row */

/* ---- a group ---- */

int comm_rank(const Comm *comm);
int comm_size(const Comm *comm);
/* "hostB": the machine of a rank; valid until comm_close. Ranks of one machine have equal texts. */
const char *comm_host(const Comm *comm, int rank);
/* How many ranks of the group are on this rank's machine, and which of them this rank is (0: the first) */
int comm_host_ranks(const Comm *comm, int *which);
CommReduce comm_reduce(const Comm *comm);
/* The group of the ranks with this rank's colour, ordered by (key, rank). All ranks of `parent` call it. The caller calls comm_group_free before
 * the world is closed. ST_RESOURCE: no memory, or a rank failed. */
Status comm_split(Comm *parent, int colour, int key, Comm **group);
void comm_group_free(Comm *group);

/* ---- sums and copies ---- */

/* Which elements of n each rank adds up: rank r those from first[r] to first[r + 1] - 1. Whole units of `unit` elements, as even as possible: unit u
 * of all U belongs to rank floor(u x size / U). With COMM_MASTER all belong to rank 0. first: (size + 1) */
void comm_parts(const Comm *comm, size_t n, size_t unit, size_t *first);

/* The sum over all lanes of the group, each rank its own elements (reduce-scatter). Rank r holds the lanes lanes[r] .. lanes[r + 1] - 1; a rank may
 * hold none. It gives one array of n elements for each node of tree_nodes(lanes[r], lanes[r + 1]), in this order. With COMM_TREE and COMM_MASTER the
 * result is the one of the fixed tree (tree_sum.h) over all lanes, bit for bit. */
typedef struct CommSum {
    CommKind kind;
    const char *name;     /* for messages: "gradients of bucket 3"; copied */
    size_t n;             /* elements of a node */
    const size_t *first;  /* (size + 1): who owns what, see comm_parts; copied */
    const int64_t *lanes; /* (size + 1), copied; NULL: rank r holds lane r. lanes[0] > 0 needs `kept`. */
    float *const *nodes;  /* this rank's arrays, copied; the arrays are valid until the sum has ended, and are overwritten */
    float *sum;           /* gets this rank's elements, first[rank + 1] - first[rank]; may be nodes[0] + first[rank] */
    /* NULL: the tree ends with this sum. Else the counter of this rank's elements, which holds the lanes before lanes[0]: the nodes are pushed, and
     * if `sum` is not NULL the tree ends. tree_levels arrays, copied; NULL: the counter has nothing at this level before and after the sum. */
    float *const *kept;
    bool bf16; /* the nodes are rounded to bf16, and travel as bf16: half the bytes */
} CommSum;
/* Starts a sum. It ends in comm_finish, or in a later comm_wait. ST_RESOURCE: no memory, or a rank failed. */
Status comm_sum(Comm *comm, const CommSum *sum);

/* Copies of all ranks' elements to all ranks (all-gather). x has first[size] elements of `size` bytes; before the call each rank has its own,
 * first[rank] .. first[rank + 1] - 1, afterwards all ranks have all. */
typedef struct CommGather {
    CommKind kind;
    const char *name; /* copied */
    void *x;          /* valid until the gather has ended */
    size_t size;
    const size_t *first; /* (size + 1), copied */
} CommGather;
Status comm_gather(Comm *comm, const CommGather *gather);

/* The number of the operation started last in this group, for comm_wait */
int64_t comm_started(const Comm *comm);
/* Waits until operation `number`, and all before it, have ended. Fails with ST_RESOURCE if a rank made another call, gave no sign for longer than the
 * timeout, or the transport fails; with the status and the text of a rank that failed ("rank 3 (hostB): ..."). After a failure all further calls
 * return the same failure. */
Status comm_wait(Comm *comm, int64_t number);
Status comm_finish(Comm *comm); /* waits for all operations of this group */
/* Moves everything that is under way; cheap if nothing is. To be called often, at the end of each op. A failure shows in the next wait or check. */
void comm_poll(Comm *comm);
/* comm_poll, and the failure if there is one: between parts of long work, so that a rank does not compute for others that have failed. */
Status comm_check(Comm *comm);

/* These wait at once, and are for few bytes. `name` as above. */
/* all: (size, bytes): the bytes of each rank, in the order of ranks. A vote of a step is one call. */
Status comm_gather_small(Comm *comm, const char *name, const void *mine, size_t bytes, void *all);
/* Copies `bytes` bytes from rank `root` to all. */
Status comm_broadcast(Comm *comm, CommKind kind, const char *name, int root, void *data, size_t bytes);
/* One message between two ranks, of any length: the other rank makes the opposite call with the same kind, name and bytes. */
Status comm_send(Comm *comm, CommKind kind, const char *name, int to, const void *data, size_t bytes);
Status comm_receive(Comm *comm, CommKind kind, const char *name, int from, void *data, size_t bytes);

/* Something that has to be equal on all ranks */
typedef struct CommFact {
    const char *what; /* "recipe", "program": for the message; a constant */
    char text[64];    /* its value, or a hash of it */
    Status code;      /* of the failure */
} CommFact;
/* Compares facts of all ranks with those of rank 0. Fails on all ranks alike, with the code of the first fact that differs:
 * "rank 3 (hostB) has another program: tune 0.3.0, rank 0 tune 0.3.1". */
Status comm_agree(Comm *comm, const CommFact *facts, size_t n);
void comm_fact_hash(CommFact *fact, uint64_t hash); /* sets the text */

/* ---- who waits for whom, and failures ---- */

/* What this rank does now: "backward of layer", 17 in step 40. Other ranks name it if they wait for this rank. `phase` is a string literal; `index` is
 * left out if it is negative. Costs three stores. */
void comm_phase(Comm *comm, int64_t step, const char *phase, int64_t index);
/* Tells all ranks that this one fails with `status` and this thread's text, so that they leave too; nothing if the failure came from another rank.
 * To be called before the memory of operations under way is freed; a wait that fails has done it. Returns whether this rank is the one that prints
 * the text: rank 0 if it is there, else the rank that failed. Later calls return the same. */
bool comm_fail(Comm *comm, Status status);

/* Sums over the time since the world was opened, of payload without headers. `sent` of one rank to another is `received` there. Of a sum of the
 * library (COMM_MPI): what it was given for the other rank, in one message. */
typedef struct CommCount {
    uint64_t sent, received;              /* bytes */
    uint64_t sent_segments, got_segments; /* messages of at most COMM_SEGMENT bytes */
} CommCount;
/* Counts of all groups with world rank `peer`; a negative peer: with all ranks */
CommCount comm_count(const Comm *comm, int peer, CommKind kind);
/* Seconds in waits so far, and the rank of the world that was waited for longest (-1: none); `waited_for` may be NULL */
double comm_waited(const Comm *comm, int *waited_for);

/* ---- the world ---- */

/* A message that is under way */
typedef struct CommRequest {
    _Alignas(16) unsigned char state[48]; /* the transport's own */
    void *slot;                           /* the same */
} CommRequest;
/* What moves bytes. Messages from one rank to another with one tag arrive in the order in which they were sent. */
typedef struct CommTransport {
    int rank, size;
    void *state;
    const char *(*host)(void *state, int rank);
    /* Both return at once. The memory stays valid until `done`. from: -1 = any rank. A received message has at most `bytes` bytes. */
    Status (*send)(void *state, int to, int tag, const void *data, size_t bytes, CommRequest *request);
    Status (*receive)(void *state, int from, int tag, void *data, size_t bytes, CommRequest *request);
    /* Whether a message has arrived or has left; also moves all others on */
    Status (*done)(void *state, CommRequest *request, bool *done);
    void (*idle)(void *state, int microseconds); /* sleeps at most so long, less if something arrives */
    /* NULL: there is none. Starts the library's own sum of `n` floats, each rank the elements of `first`, over the ranks of a group. */
    Status (*sum)(void *state, const int *ranks, int n_ranks, int tag, float *x, float *sum, const size_t *first, CommRequest *request);
    /* Ends the transport, and frees it. */
    void (*close)(void *state, Status why);
    bool ends_all;  /* `close` with a failure ends all ranks */
    char title[64]; /* "Open MPI 4.1.4" */
} CommTransport;

typedef struct CommConfig {
    CommReduce reduce;
    double timeout; /* seconds without a sign of a rank until all stop; 0: 300 */
    /* Gets "rank 0 waits for rank 3 (hostB), last sign 12 s ago: backward of layer 17, step 40", at most once in 10 s of a wait. NULL: nothing. */
    void (*warn)(void *data, const char *text);
    void *data;
} CommConfig;
/* Makes the world of a transport, which belongs to it from then on, also after a failure. The caller calls comm_close. */
Status comm_new(CommTransport *transport, const CommConfig *config, Comm **world);
/* Changes what the recipe decides, once it is read. The same on all ranks. */
void comm_configure(Comm *world, const CommConfig *config);
/* Waits until all ranks have come to their end, so that none leaves while another one still saves or fails. To be called before comm_close, unless
 * this rank fails. all: (size, bytes), as of comm_gather_small. interrupted: this rank ends before the work is done; a rank that still works then
 * fails with ST_INTERRUPTED in its next wait. */
Status comm_end(Comm *world, bool interrupted, const void *mine, size_t bytes, void *all);
/* Ends the world. why: ST_OK or ST_INTERRUPTED if all ranks end alike, else all ranks are ended. NULL is fine. */
void comm_close(Comm *world, Status why);
const char *comm_title(const Comm *comm); /* of the transport: "Open MPI 4.1.4"; "" for one process */
CommTransport *comm_self(void);           /* a world of one rank. NULL, with ST_RESOURCE recorded: no memory */

#endif
