/* SPDX-License-Identifier: Apache-2.0 */
/* The transport of an MPI library, compiled once for each library into a plug-in of its own. Messages are bytes; only `sum` knows numbers. */
#include <mpi.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/comm/comm_plugin.h"

_Static_assert(sizeof(MPI_Request) <= sizeof((CommRequest){0}.state), "a request of MPI fits into a CommRequest");

/* The communicator of a group, for the library's own sums */
typedef struct MpiGroup {
    struct MpiGroup *next;
    int tag;
    MPI_Comm comm;
    int *counts;
} MpiGroup;

typedef struct Mpi {
    CommTransport transport;
    CommHostCalls calls;
    char (*hosts)[MPI_MAX_PROCESSOR_NAME];
    CommRequest *listening; /* a receive from any rank, which nobody completes at the end */
    MpiGroup *groups;
} Mpi;

static MPI_Request *request_of(CommRequest *request) { return (MPI_Request *)(void *)request->state; }

static Status mpi_check(const Mpi *mpi, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int len;
    if (code == MPI_SUCCESS) return ST_OK;
    MPI_Error_string(code, text, &len);
    return mpi->calls.fail(ST_RESOURCE, "MPI cannot %s: %s", what, text);
}

static const char *mpi_host(void *state, int rank) { return ((const Mpi *)state)->hosts[rank]; }

static Status mpi_send(void *state, int to, int tag, const void *data, size_t bytes, CommRequest *request) {
    return mpi_check(state, MPI_Isend(data, (int)bytes, MPI_BYTE, to, tag, MPI_COMM_WORLD, request_of(request)), "send");
}

static Status mpi_receive(void *state, int from, int tag, void *data, size_t bytes, CommRequest *request) {
    Mpi *mpi = state;
    if (from < 0) mpi->listening = request;
    return mpi_check(mpi, MPI_Irecv(data, (int)bytes, MPI_BYTE, from < 0 ? MPI_ANY_SOURCE : from, tag, MPI_COMM_WORLD, request_of(request)),
                     "receive");
}

static Status mpi_done(void *state, CommRequest *request, bool *done) {
    int flag = 0;
    const int code = MPI_Test(request_of(request), &flag, MPI_STATUS_IGNORE);
    *done = flag != 0;
    return mpi_check(state, code, "end a message");
}

static void mpi_idle(void *state, int microseconds) {
    (void)state;
    nanosleep(&(struct timespec){.tv_nsec = microseconds * 1000L}, NULL);
}

/* ---- the library's own sum ---- */

static Status group_open(Mpi *mpi, const int *ranks, int n_ranks, int tag, MpiGroup **group) {
    for (*group = mpi->groups; *group; *group = (*group)->next)
        if ((*group)->tag == tag) return ST_OK;
    MpiGroup *made = calloc(1, sizeof *made);
    int *counts = calloc((size_t)n_ranks, sizeof *counts);
    if (!made || !counts) {
        free(made);
        free(counts);
        return mpi->calls.fail(ST_RESOURCE, "no memory for a group of %d ranks", n_ranks);
    }
    MPI_Group all, some;
    Status status = mpi_check(mpi, MPI_Comm_group(MPI_COMM_WORLD, &all), "make a group");
    if (status == ST_OK) status = mpi_check(mpi, MPI_Group_incl(all, n_ranks, ranks, &some), "make a group");
    if (status == ST_OK) status = mpi_check(mpi, MPI_Comm_create_group(MPI_COMM_WORLD, some, tag, &made->comm), "make a group");
    if (status == ST_OK) status = mpi_check(mpi, MPI_Comm_set_errhandler(made->comm, MPI_ERRORS_RETURN), "make a group");
    if (status != ST_OK) {
        free(made);
        free(counts);
        return status;
    }
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    made->tag = tag;
    made->counts = counts;
    made->next = mpi->groups;
    mpi->groups = *group = made;
    return ST_OK;
}

static Status mpi_sum(void *state, const int *ranks, int n_ranks, int tag, float *x, float *sum, const size_t *first, CommRequest *request) {
    Mpi *mpi = state;
    MpiGroup *group;
    Status status = group_open(mpi, ranks, n_ranks, tag, &group);
    if (status != ST_OK) return status;
    for (int rank = 0; rank < n_ranks; rank++) {
        const size_t n = first[rank + 1] - first[rank];
        if (n > INT_MAX) return mpi->calls.fail(ST_RESOURCE, "MPI cannot add %zu numbers at once", n);
        group->counts[rank] = (int)n;
    }
    return mpi_check(mpi, MPI_Ireduce_scatter(x, sum, group->counts, MPI_FLOAT, MPI_SUM, group->comm, request_of(request)), "add");
}

/* ---- start and end ---- */

static void mpi_free(Mpi *mpi) {
    while (mpi->groups) {
        MpiGroup *next = mpi->groups->next;
        free(mpi->groups->counts);
        free(mpi->groups);
        mpi->groups = next;
    }
    free(mpi->hosts);
    free(mpi);
}

/* After a failure there may be messages that nobody takes, for which MPI_Finalize would wait. */
static void mpi_close(void *state, Status why) {
    Mpi *mpi = state;
    if (why != ST_OK && why != ST_INTERRUPTED) {
        fflush(NULL);
        MPI_Abort(MPI_COMM_WORLD, mpi->calls.exit_code(why));
    }
    if (mpi->listening && *request_of(mpi->listening) != MPI_REQUEST_NULL) {
        MPI_Cancel(request_of(mpi->listening));
        MPI_Wait(request_of(mpi->listening), MPI_STATUS_IGNORE);
    }
    for (MpiGroup *group = mpi->groups; group; group = group->next) MPI_Comm_free(&group->comm);
    MPI_Finalize();
    mpi_free(mpi);
}

/* "Open MPI v4.1.4, package: ..." or "MPICH Version:\t4.0.2\n..." as "Open MPI 4.1.4" or "MPICH 4.0.2" */
static void library_title(char *title, size_t size) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int len;
    MPI_Get_library_version(text, &len);
    text[strcspn(text, ",\n")] = '\0';
    const char *digits = text + strcspn(text, "0123456789");
    const size_t words = strncmp(text, "MPICH", 5) == 0 ? 5 : strncmp(text, "Open MPI", 8) == 0 ? 8 : strcspn(text, " :");
    snprintf(title, size, "%.*s %.*s", (int)words, text, (int)strcspn(digits, " \t-"), digits);
}

Status comm_plugin_open_1(const CommHostCalls *calls, CommTransport **transport) {
    int given, size;
    char own[MPI_MAX_PROCESSOR_NAME] = "";
    *transport = NULL;
    Mpi *mpi = calloc(1, sizeof *mpi);
    if (!mpi) return calls->fail(ST_RESOURCE, "no memory for MPI");
    mpi->calls = *calls;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given) != MPI_SUCCESS) {
        free(mpi);
        return calls->fail(ST_RESOURCE, "MPI cannot start");
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    mpi->hosts = calloc((size_t)size, sizeof *mpi->hosts);
    mpi->transport = (CommTransport){.size = size,
                                     .state = mpi,
                                     .host = mpi_host,
                                     .send = mpi_send,
                                     .receive = mpi_receive,
                                     .done = mpi_done,
                                     .idle = mpi_idle,
                                     .sum = mpi_sum,
                                     .close = mpi_close,
                                     .ends_all = true};
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi->transport.rank);
    library_title(mpi->transport.title, sizeof mpi->transport.title);
    MPI_Get_processor_name(own, &(int){0});
    Status status = mpi->hosts ? ST_OK : calls->fail(ST_RESOURCE, "no memory for %d ranks", size);
    if (status == ST_OK)
        status = mpi_check(mpi, MPI_Allgather(own, sizeof own, MPI_CHAR, mpi->hosts, sizeof own, MPI_CHAR, MPI_COMM_WORLD), "tell the hosts");
    if (status != ST_OK) {
        MPI_Abort(MPI_COMM_WORLD, calls->exit_code(status));
        mpi_free(mpi);
        return status;
    }
    *transport = &mpi->transport;
    return ST_OK;
}
