/* SPDX-License-Identifier: Apache-2.0 */
/* The shim is active from the beginning of main to its end, in the first process only: it disturbs neither the start and end of libraries nor
 * programs that this one starts. */
#include "tests/faults/shim.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_bool watching;
static pid_t owner;

bool fault_watching(void) { return atomic_load(&watching) && getpid() == owner; }

void trigger_set(Trigger *trigger, const char *said) {
    char *end;
    if (!said) return;
    trigger->first = strtol(said, &end, 10);
    trigger->after = *end;
}

bool trigger_next(Trigger *trigger) {
    long n = atomic_fetch_add(&trigger->calls, 1) + 1;
    if (trigger->first == 0 || n < trigger->first) return false;
    return n == trigger->first || trigger->after == '-' || (trigger->after == '~' && (n - trigger->first) % 2 == 0);
}

static void tell(const char *path) {
    int file = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
    if (file < 0) return;
    alloc_tell(file);
    files_tell(file);
    close(file);
}

static void forget_environment(void) {
    static const char *const names[] = {"LD_PRELOAD", "FAULT_ALLOC", "FAULT_FILES", "FAULT_COUNT", "FAULT_STACKS", "FAULT_ROOT", "FAULT_LOG"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
}

typedef int Main(int argc, char **argv, char **environment);
static Main *real_main;

static int watched_main(int argc, char **argv, char **environment) {
    const char *said = getenv("FAULT_COUNT");
    char *count = said ? strdup(said) : NULL;
    alloc_begin();
    files_begin();
    journal_begin();
    forget_environment();
    owner = getpid();
    atomic_store(&watching, true);
    int code = real_main(argc, argv, environment);
    fflush(NULL); /* the program's streams may still have bytes to write */
    atomic_store(&watching, false);
    tell(count);
    return code;
}

int __libc_start_main(Main *main, int argc, char **argv, void (*init)(void), void (*fini)(void), void (*rtld_fini)(void), void *stack_end);
int __libc_start_main(Main *main, int argc, char **argv, void (*init)(void), void (*fini)(void), void (*rtld_fini)(void), void *stack_end) {
    int (*start)(Main *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
    void *found = dlsym(RTLD_NEXT, "__libc_start_main");
    memcpy(&start, &found, sizeof start);
    real_main = main;
    return start(watched_main, argc, argv, init, fini, rtld_fini, stack_end);
}
