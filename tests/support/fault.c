/* SPDX-License-Identifier: Apache-2.0 */
/* Makes memory run out at a chosen place of any program: loaded before it by LD_PRELOAD (tests/cli/faults.sh), on Linux with glibc.
 *   FAULT_ALLOC=n     the n-th allocation of the process fails: malloc, calloc, realloc, aligned_alloc, posix_memalign, anonymous mmap
 *   FAULT_ALLOC=n-    so do all that follow
 *   FAULT_COUNT=FILE  the number of allocations is written there at the end
 * Counted from the beginning of main to its end: libraries that start and end by themselves are not judged. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
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

static atomic_long calls;
static long first; /* 0: none fails */
static bool all_after;
static atomic_bool counting;

static bool fails(void) {
    if (!atomic_load(&counting)) return false;
    long n = atomic_fetch_add(&calls, 1) + 1;
    bool now = first > 0 && (all_after ? n >= first : n == first);
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
    if ((flags & MAP_ANONYMOUS) && fails()) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}

/* ---- from main to its end ---- */

typedef int Main(int argc, char **argv, char **environment);
static Main *real_main;

static void tell(void) {
    const char *path = getenv("FAULT_COUNT");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
    if (file < 0) return;
    dprintf(file, "%ld\n", atomic_load(&calls));
    close(file);
}

static int counted_main(int argc, char **argv, char **environment) {
    const char *said = getenv("FAULT_ALLOC");
    char *end;
    if (said) {
        first = strtol(said, &end, 10);
        all_after = *end == '-';
    }
    atomic_store(&counting, true);
    int code = real_main(argc, argv, environment);
    atomic_store(&counting, false);
    tell();
    return code;
}

int __libc_start_main(Main *main, int argc, char **argv, void (*init)(void), void (*fini)(void), void (*rtld_fini)(void), void *stack_end);
int __libc_start_main(Main *main, int argc, char **argv, void (*init)(void), void (*fini)(void), void (*rtld_fini)(void), void *stack_end) {
    int (*start)(Main *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
    void *found = dlsym(RTLD_NEXT, "__libc_start_main");
    memcpy(&start, &found, sizeof start);
    real_main = main;
    return start(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}
