/* SPDX-License-Identifier: Apache-2.0 */
/* A log of all changes to the files below FAULT_ROOT, one record per operation, in order. Each opening of a file has a number:
 *   open NUMBER made|there cut|whole PATH        write NUMBER AT BYTES, the bytes in a line of their own        size NUMBER BYTES
 *   sync NUMBER      mkdir PATH      remove PATH      rename PATH TAB PATH      link PATH TAB PATH
 * If threads write at the same time, the log has one of the possible orders. */
#include "tests/faults/shim.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { DESCRIPTORS = 4096 };
static char root[2048];
static size_t root_len;
static int log_fd = -1, opened;
static int number[DESCRIPTORS]; /* by descriptor; 0: not below FAULT_ROOT */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void journal_begin(void) {
    const char *folder = getenv("FAULT_ROOT"), *path = getenv("FAULT_LOG");
    if (!folder || !path) return;
    root_len = (size_t)snprintf(root, sizeof root, "%s/", folder);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    log_fd = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 1000); /* above the program's own descriptors */
    syscall(SYS_close, fd);
}

bool journal_is_kept(void) { return log_fd >= 0; }

static void put(const void *bytes, size_t size) {
    for (const char *at = bytes; size > 0;) {
        ssize_t n = syscall(SYS_write, log_fd, at, size);
        if (n <= 0) abort();
        at += n;
        size -= (size_t)n;
    }
}

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...) {
    char text[8192];
    va_list args;
    va_start(args, format);
    int len = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    put(text, (size_t)len);
}

/* The path below the root: "" for the root itself, NULL outside of it. */
static const char *below(const char *path) {
    if (log_fd < 0 || !fault_watching()) return NULL;
    if (strncmp(path, root, root_len) == 0) return path + root_len;
    return strlen(path) == root_len - 1 && strncmp(path, root, root_len - 1) == 0 ? "" : NULL;
}

static int number_of(int fd) { return log_fd >= 0 && fault_watching() && fd >= 0 && fd < DESCRIPTORS ? number[fd] : 0; }

void journal_open(int fd, const char *path, bool made, bool cut) {
    const char *name = below(path);
    if (!name || fd >= DESCRIPTORS) return;
    pthread_mutex_lock(&lock);
    number[fd] = ++opened;
    say("open %d %s %s %s\n", number[fd], made ? "made" : "there", cut ? "cut" : "whole", name);
    pthread_mutex_unlock(&lock);
}

void journal_close(int fd) {
    if (number_of(fd)) number[fd] = 0;
}

void journal_write(int fd, const void *bytes, size_t size, off_t at) {
    if (!number_of(fd)) return;
    pthread_mutex_lock(&lock);
    if (at < 0) at = lseek(fd, 0, SEEK_CUR) - (off_t)size;
    say("write %d %lld %zu\n", number[fd], (long long)at, size);
    put(bytes, size);
    put("\n", 1);
    pthread_mutex_unlock(&lock);
}

void journal_size(int fd, off_t size) {
    if (!number_of(fd)) return;
    pthread_mutex_lock(&lock);
    say("size %d %lld\n", number[fd], (long long)size);
    pthread_mutex_unlock(&lock);
}

void journal_sync(int fd) {
    if (!number_of(fd)) return;
    pthread_mutex_lock(&lock);
    say("sync %d\n", number[fd]);
    pthread_mutex_unlock(&lock);
}

void journal_name(const char *what, const char *path, const char *to) {
    const char *name = below(path), *other = to ? below(to) : NULL;
    if (!name || (to && !other)) return;
    pthread_mutex_lock(&lock);
    say("%s %s%s%s\n", what, name, other ? "\t" : "", other ? other : "");
    pthread_mutex_unlock(&lock);
}
