/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a chosen allocation of any program fail: malloc, calloc, realloc, aligned_alloc, posix_memalign, and mmap of memory or of a file. */
#include "tests/faults/shim.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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

void alloc_begin(void) {
    const char *path = getenv("FAULT_STACKS");
    void *frame;
    trigger_set(&trigger, getenv("FAULT_ALLOC"));
    if (!path) return;
    backtrace(&frame, 1); /* loads the library that it needs */
    stacks = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

void alloc_tell(int file) { dprintf(file, "alloc %ld\n", atomic_load(&trigger.calls)); }

static bool fails(void) {
    if (!fault_watching()) return false;
    bool now = trigger_next(&trigger);
    if (stacks >= 0) note_stack();
    if (now) errno = ENOMEM;
    return now;
}

void *malloc(size_t size) { return fails() ? NULL : __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return fails() ? NULL : __libc_calloc(n, size); }
void *realloc(void *block, size_t size) { return fails() ? NULL : __libc_realloc(block, size); }
void *aligned_alloc(size_t alignment, size_t size) { return fails() ? NULL : __libc_memalign(alignment, size); }

int posix_memalign(void **block, size_t alignment, size_t size) {
    void *made = fails() ? NULL : __libc_memalign(alignment, size);
    if (made) *block = made;
    return made ? 0 : ENOMEM;
}

void *mmap(void *at, size_t size, int protection, int flags, int file, off_t offset) {
    if (fails()) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}
