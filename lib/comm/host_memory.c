/* SPDX-License-Identifier: Apache-2.0 */
/* The first rank of a machine makes the file, and grows it in chunks; the others open it by way of /proc, and map it whole. */
#include "lib/comm/host_memory.h"
#include "lib/base/log.h"
#include "lib/base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A chunk is a mapping of the rank that writes. Only what is taken of it has memory. */
#define CHUNK_BYTES ((size_t)64 << 20)
/* Begins the file; also keeps what follows on whole pages */
#define HEAD_BYTES ((size_t)64 << 10)

typedef struct Chunk {
    struct Chunk *next;
    uint8_t *at;
    size_t begin, bytes; /* in the file */
} Chunk;

struct HostMemory {
    Comm *group; /* the ranks of this machine; NULL: after the end */
    int fd;
    bool fills;
    uint8_t *whole; /* of a rank that reads: the whole file, of `size` bytes */
    size_t size;
    Chunk *chunks;     /* of the rank that writes, newest first */
    size_t used, end;  /* in the file: the end of what is taken, and of the chunk */
    uint64_t calls;    /* a hash of their sizes, in order */
    uint64_t expected; /* of a rank that reads: that of the first rank */
};

/* What the first rank says of its file. The mark shows that another rank has opened this file and no other one. */
typedef struct Shared {
    int64_t process;
    int64_t fd; /* -1: there is none */
    uint64_t mark[2];
} Shared;

/* ---- opening ---- */

static int first_of_host(const Comm *comm) {
    int rank = 0;
    while (strcmp(comm_host(comm, rank), comm_host(comm, comm_rank(comm))) != 0) rank++;
    return rank;
}

static void make_file(HostMemory *memory, Shared *shared) {
    *shared = (Shared){.process = getpid(), .fd = -1};
#ifdef MFD_CLOEXEC
    const int fd = memfd_create("tune-weights", MFD_CLOEXEC);
    if (fd < 0) return;
    shared->mark[0] = mix64((uint64_t)shared->process + mix64((uint64_t)(uintptr_t)memory));
    shared->mark[1] = mix64(shared->mark[0] + (uint64_t)fd);
    if (ftruncate(fd, (off_t)HEAD_BYTES) != 0 || pwrite(fd, shared->mark, sizeof shared->mark, 0) != (ssize_t)sizeof shared->mark) {
        close(fd);
        return;
    }
    memory->fd = fd;
    shared->fd = fd;
#endif
}

static void open_file(HostMemory *memory, const Shared *shared) {
    char path[64];
    uint64_t mark[2];
    if (shared->fd < 0) return;
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)shared->process, (long long)shared->fd);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* in another container it may be anything */
    if (fd < 0) return;
    if (pread(fd, mark, sizeof mark, 0) == (ssize_t)sizeof mark && memcmp(mark, shared->mark, sizeof mark) == 0)
        memory->fd = fd;
    else
        close(fd);
}

/* *all: whether each rank of the machine has the file */
static Status share_file(HostMemory *memory, bool *all) {
    const size_t size = (size_t)comm_size(memory->group);
    Shared mine = {.fd = -1}, *files = malloc(size * sizeof *files);
    unsigned char *opened = malloc(size);
    Status status = files && opened ? ST_OK : status_fail(ST_RESOURCE, "no memory for %zu ranks", size);
    if (status == ST_OK && memory->fills) make_file(memory, &mine);
    if (status == ST_OK) status = comm_gather_small(memory->group, "memory of a machine", &mine, sizeof mine, files);
    if (status == ST_OK && !memory->fills) open_file(memory, &files[0]);
    const unsigned char there = memory->fd >= 0;
    if (status == ST_OK) status = comm_gather_small(memory->group, "who opened it", &there, sizeof there, opened);
    *all = status == ST_OK;
    for (size_t rank = 0; status == ST_OK && rank < size; rank++) *all = *all && opened[rank];
    free(files);
    free(opened);
    return status;
}

Status host_memory_new(Comm *comm, HostMemory **result) {
    bool all = false;
    Comm *group;
    *result = NULL;
    if (!comm) return ST_OK;
    TRY(comm_split(comm, first_of_host(comm), comm_rank(comm), &group));
    if (comm_size(group) == 1) {
        comm_group_free(group);
        return ST_OK;
    }
    HostMemory *memory = calloc(1, sizeof *memory);
    if (!memory) {
        comm_group_free(group);
        return status_fail(ST_RESOURCE, "no memory for the frozen weights of a machine");
    }
    *memory = (HostMemory){.group = group, .fd = -1, .fills = comm_rank(group) == 0, .used = HEAD_BYTES, .end = HEAD_BYTES};
    const Status status = share_file(memory, &all);
    if (status == ST_OK && all) {
        *result = memory;
        return ST_OK;
    }
    if (status == ST_OK && memory->fills)
        log_message(LOG_RANK, "the ranks on '%s' cannot share memory: each has its own copy of weights that are converted",
                    comm_host(comm, comm_rank(comm)));
    host_memory_free(memory);
    return status;
}

bool host_memory_fills(const HostMemory *memory) { return memory->fills; }

/* ---- taking ---- */

static void *no_memory(size_t bytes, int error) {
    char size[32];
    status_fail(ST_RESOURCE, "no memory for %s of weights that the ranks of a machine share: %s", format_bytes((double)bytes, size), strerror(error));
    status_hint(ST_RESOURCE,
                "close other programs, start fewer processes on a machine, or keep weights as they are stored (model.dequantize: false)");
    return NULL;
}

/* The place of so many bytes in the file. *chunk: bytes of a new chunk that begins there; 0: they are in the last one. */
static size_t next_place(HostMemory *memory, size_t bytes, size_t *chunk) {
    *chunk = 0;
    if (bytes > memory->end - memory->used) {
        *chunk = MAX(CHUNK_BYTES, (bytes + HEAD_BYTES - 1) / HEAD_BYTES * HEAD_BYTES);
        memory->used = memory->end;
        memory->end += *chunk;
    }
    const size_t place = memory->used;
    memory->used += bytes;
    return place;
}

static bool new_chunk(HostMemory *memory, size_t begin, size_t bytes) {
    Chunk *chunk = malloc(sizeof *chunk);
    if (!chunk) return false;
    if (ftruncate(memory->fd, (off_t)(begin + bytes)) != 0) {
        free(chunk);
        return false;
    }
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, (off_t)begin);
    if (at == MAP_FAILED) {
        free(chunk);
        return false;
    }
    madvise(at, bytes, MADV_HUGEPAGE);
    *chunk = (Chunk){memory->chunks, at, begin, bytes};
    memory->chunks = chunk;
    return true;
}

/* What the first rank has taken */
typedef struct Filled {
    uint64_t size, calls;
} Filled;

/* The first rank calls it at its end, the others when they begin to read. */
static Status tell_filled(HostMemory *memory, Filled *first) {
    const size_t size = (size_t)comm_size(memory->group);
    const Filled mine = {memory->end, memory->calls};
    Filled *all = malloc(size * sizeof *all);
    Status status = all ? ST_OK : status_fail(ST_RESOURCE, "no memory for %zu ranks", size);
    if (status == ST_OK) status = comm_gather_small(memory->group, "weights of a machine", &mine, sizeof mine, all);
    if (status == ST_OK) *first = all[0];
    free(all);
    return status;
}

static Status begin_reading(HostMemory *memory) {
    Filled first;
    TRY(tell_filled(memory, &first));
    void *whole = mmap(NULL, (size_t)first.size, PROT_READ, MAP_SHARED, memory->fd, 0);
    if (whole == MAP_FAILED) {
        no_memory((size_t)first.size, errno);
        return ST_RESOURCE;
    }
    madvise(whole, (size_t)first.size, MADV_HUGEPAGE);
    memory->whole = whole;
    memory->size = (size_t)first.size;
    memory->expected = first.calls;
    return ST_OK;
}

/* The process has these pages from now on, not from the first product on: its memory is measured before that. */
static void *touched(const uint8_t *at, size_t bytes) {
    enum { PAGE = 4096 };
    for (size_t i = 0; i < bytes; i += PAGE) (void)*(const volatile uint8_t *)(at + i);
    return (void *)(uintptr_t)at;
}

void *host_memory_take(HostMemory *memory, size_t bytes) {
    size_t chunk;
    if (bytes > SIZE_MAX / 4) return no_memory(bytes, ENOMEM);
    bytes = MAX((bytes + 63) / 64 * 64, (size_t)64);
    if (!memory->fills && !memory->whole && begin_reading(memory) != ST_OK) return NULL;
    const size_t place = next_place(memory, bytes, &chunk);
    memory->calls = mix64(memory->calls + bytes);
    if (!memory->fills && place + bytes > memory->size) {
        status_fail(ST_RESOURCE, "this rank has other weights than the first one of its machine");
        return NULL;
    }
    if (!memory->fills) return touched(memory->whole + place, bytes);
    if (chunk && !new_chunk(memory, place, chunk)) return no_memory(bytes, errno ? errno : ENOMEM);
    /* Memory that is missing is an error here, and would be a signal when it is written */
    int error;
    do error = posix_fallocate(memory->fd, (off_t)place, (off_t)bytes);
    while (error == EINTR);
    return error ? no_memory(bytes, error) : memory->chunks->at + (place - memory->chunks->begin);
}

Status host_memory_end(HostMemory *memory) {
    Filled first;
    Status status = ST_OK;
    for (const Chunk *chunk = memory->chunks; chunk; chunk = chunk->next) mprotect(chunk->at, chunk->bytes, PROT_READ);
    if (memory->fills)
        status = tell_filled(memory, &first);
    else if (!memory->whole)
        status = begin_reading(memory);
    if (status == ST_OK && !memory->fills && memory->calls != memory->expected)
        status = status_fail(ST_RESOURCE, "this rank has other weights than the first one of its machine");
    comm_group_free(memory->group);
    memory->group = NULL;
    return status;
}

void host_memory_free(HostMemory *memory) {
    if (!memory) return;
    comm_group_free(memory->group);
    while (memory->chunks) {
        Chunk *next = memory->chunks->next;
        munmap(memory->chunks->at, memory->chunks->bytes);
        free(memory->chunks);
        memory->chunks = next;
    }
    if (memory->whole) munmap(memory->whole, memory->size);
    if (memory->fd >= 0) close(memory->fd);
    free(memory);
}
