/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/locked_device.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct Span Span;
struct Span {
    Span *next;
    uint8_t *begin;
    size_t size;
};

/* Threads of a generator call kernels at the same time: pages are open while one of them is in a call. */
static struct {
    pthread_mutex_t lock;
    Span *spans;
    int calls;
    size_t bytes;
    const char *fault;
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void spans_protect(int access) {
    for (Span *span = memory.spans; span; span = span->next)
        if (mprotect(span->begin, span->size, access) != 0) abort();
}

static void call_begin(void) {
    pthread_mutex_lock(&memory.lock);
    if (memory.calls++ == 0) spans_protect(PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&memory.lock);
}

static void call_end(void) {
    pthread_mutex_lock(&memory.lock);
    if (--memory.calls == 0) spans_protect(PROT_NONE);
    pthread_mutex_unlock(&memory.lock);
}

/* Names the device, and lets the fault happen again without this handler. */
static void explain(int number, siginfo_t *info, void *context) {
    static const char words[] = "the host touched memory of the device 'locked' without tensor_upload or tensor_download\n";
    (void)context;
    for (const Span *span = memory.spans; span; span = span->next)
        if ((uintptr_t)info->si_addr - (uintptr_t)span->begin < span->size && write(STDERR_FILENO, words, sizeof words - 1) < 0) break;
    signal(number, SIG_DFL);
}

/* ---- memory ---- */

static void *span_take(const BlockSource *source, size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (size + page - 1) / page * page;
    Span *span = malloc(sizeof *span);
    uint8_t *pages = span ? mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    (void)source;
    if (pages == MAP_FAILED) {
        free(span);
        return NULL;
    }
    memset(pages, 0xff, whole); /* NaN: memory of a device is not cleared */
    pthread_mutex_lock(&memory.lock);
    *span = (Span){memory.spans, pages, whole};
    memory.spans = span;
    memory.bytes += size;
    if (memory.calls == 0 && mprotect(pages, whole, PROT_NONE) != 0) abort();
    pthread_mutex_unlock(&memory.lock);
    return pages;
}

static void span_give_back(const BlockSource *source, void *block, size_t size) {
    (void)source;
    pthread_mutex_lock(&memory.lock);
    Span **at = &memory.spans, *span;
    while (*at && (*at)->begin != block) at = &(*at)->next;
    if (!(span = *at)) abort();
    *at = span->next;
    memory.bytes -= size;
    munmap(span->begin, span->size);
    free(span);
    pthread_mutex_unlock(&memory.lock);
}

size_t locked_bytes(void) { return memory.bytes; }

/* ---- transfers ---- */

void locked_fail(const char *reason) { memory.fault = reason; }

static Status locked_synchronise(const Device *device) {
    return memory.fault ? status_fail(ST_RESOURCE, "the device '%s' failed: %s", device->name, memory.fault) : ST_OK;
}

static Status locked_transfer(const Device *device, void *to, const void *from, size_t bytes) {
    TRY(locked_synchronise(device));
    call_begin();
    memcpy(to, from, bytes);
    call_end();
    return ST_OK;
}

/* ---- kernels ---- */

#define KERNEL(name, arguments, values)   \
    static void locked_##name arguments { \
        call_begin();                     \
        device_cpu()->name values;        \
        call_end();                       \
    }
#include "lib/tensor/kernels.def"
#undef KERNEL

/* A layout without the arrays of the host, so that a kernel that reads them fails. */
typedef struct OnDevice {
    AttentionArgs args;
    Layout layout;
} OnDevice;

static const AttentionArgs *on_device(const AttentionArgs *args, OnDevice *copy) {
    *copy = (OnDevice){*args, *args->layout};
    copy->layout.segments = NULL;
    copy->layout.pages = NULL;
    copy->layout.lengths = NULL;
    copy->args.layout = &copy->layout;
    return &copy->args;
}

static void strict_kv_store(const AttentionArgs *args, const Tensor *k, const Tensor *v) {
    OnDevice copy;
    locked_kv_store(on_device(args, &copy), k, v);
}

static void strict_attention(const AttentionArgs *args, const Tensor *q, const Tensor *k, const Tensor *v, Tensor *y, Tensor *logsumexp) {
    OnDevice copy;
    locked_attention(on_device(args, &copy), q, k, v, y, logsumexp);
}

static void strict_attention_backward(const AttentionArgs *args, const Tensor *q, const Tensor *k, const Tensor *v, const Tensor *y,
                                      const Tensor *logsumexp, const Tensor *dy, const double beta[3], Tensor *dq, Tensor *dk, Tensor *dv) {
    OnDevice copy;
    locked_attention_backward(on_device(args, &copy), q, k, v, y, logsumexp, dy, beta, dq, dk, dv);
}

const Device *device_locked(void) {
    static const BlockSource source = {span_take, span_give_back};
    static Device locked, planner;
    struct sigaction action = {.sa_sigaction = explain, .sa_flags = SA_SIGINFO};
    if (locked.name) return &locked;
    sigaction(SIGSEGV, &action, NULL);
    locked = *device_cpu();
    planner = *device_cpu()->planner;
    planner.planned = &locked;
    locked.name = "locked";
    locked.host_memory = false;
    locked.source = &source;
    locked.upload = locked.download = locked_transfer;
    locked.synchronise = locked_synchronise;
    locked.planner = &planner;
#define KERNEL(name, arguments, values) locked.name = locked_##name;
#include "lib/tensor/kernels.def"
#undef KERNEL
    locked.kv_store = strict_kv_store;
    locked.attention = strict_attention;
    locked.attention_backward = strict_attention_backward;
    return &locked;
}
