/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a chosen allocation of any program fail: malloc, calloc, realloc, aligned_alloc, posix_memalign, and mmap of memory or of a file. */
#include "tests/faults/shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static Trigger trigger;

/* Reports each call stack once. */
enum { DEPTH = 8, OURS = 2, STACKS = 1 << 16 };
static int stacks = -1; /* descriptor of FAULT_STACKS */

static void note_stack(void) {
    static _Thread_local bool inside;
    static uint64_t seen[STACKS];
    void *frames[DEPTH + OURS];
    uint64_t hash = 14695981039346656037u;
    if (stacks < 0 || inside) return;
    inside = true;
    int n = backtrace(frames, DEPTH + OURS);
    for (int i = OURS; i < n; i++) hash = (hash ^ (uint64_t)(uintptr_t)frames[i]) * 1099511628211u;
    size_t at = hash % STACKS;
    while (seen[at] && seen[at] != hash) at = (at + 1) % STACKS;
    if (!seen[at]) dprintf(stacks, "%ld\n", atomic_load(&trigger.calls));
    seen[at] = hash;
    inside = false;
}

static int failed = -1; /* descriptor of FAULT_FAILED */

/* Names the file of the code that `caller` belongs to, in place of the one before. */
static void note_failed(const void *caller) {
    char line[128];
    Dl_info info;
    const char *name = dladdr(caller, &info) && info.dli_fname ? info.dli_fname : "?";
    if (strrchr(name, '/')) name = strrchr(name, '/') + 1;
    int n = snprintf(line, sizeof line, "%-100.100s\n", name);
    ssize_t written = pwrite(failed, line, (size_t)n, 0);
    (void)written;
}

void alloc_begin(void) {
    const char *path = getenv("FAULT_STACKS"), *failed_path = getenv("FAULT_FAILED");
    void *frame;
    trigger_set(&trigger, getenv("FAULT_ALLOC"));
    if (failed_path) failed = open(failed_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (!path) return;
    backtrace(&frame, 1); /* loads the library that it needs */
    stacks = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

void alloc_tell(int file) { dprintf(file, "alloc %ld\n", atomic_load(&trigger.calls)); }

static bool fails(const void *caller) {
    if (!fault_watching()) return false;
    bool now = trigger_next(&trigger);
    if (stacks >= 0) note_stack();
    if (now && failed >= 0) note_failed(caller);
    if (now) errno = ENOMEM;
    return now;
}
#define FAILS() fails(__builtin_return_address(0))

void *malloc(size_t size) { return FAILS() ? NULL : __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return FAILS() ? NULL : __libc_calloc(n, size); }
void *realloc(void *block, size_t size) { return FAILS() ? NULL : __libc_realloc(block, size); }
void *aligned_alloc(size_t alignment, size_t size) { return FAILS() ? NULL : __libc_memalign(alignment, size); }

int posix_memalign(void **block, size_t alignment, size_t size) {
    void *made = FAILS() ? NULL : __libc_memalign(alignment, size);
    if (made) *block = made;
    return made ? 0 : ENOMEM;
}

void *mmap(void *at, size_t size, int protection, int flags, int file, off_t offset) {
    if (FAILS()) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}
