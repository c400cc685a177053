/* SPDX-License-Identifier: Apache-2.0 */
/* Memory-mapped files. Another program may truncate them meanwhile, and reading a missing page would end this one by SIGBUS. The handler maps zeros
 * there instead, and file_check_truncation then fails, so that no result depends on them. */
#include "lib/base/file.h"
#include "lib/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The mapped files, for the signal handler, which takes no lock: begin is 0 while an entry is free or being filled. */
enum { MOST_FILES = 1024 };
typedef struct Place {
    _Atomic(uintptr_t) begin;
    uintptr_t end;
    char *path;
    struct stat info;
    bool watched;
} Place;
static Place places[MOST_FILES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static atomic_int cut_place = -1; /* the mapped file whose bytes were missing first */
static char lost_path[512];       /* its path after it is unmapped; protected by the lock */

/* ---- missing bytes ---- */

static int place_of(uintptr_t address) {
    for (int i = 0; i < MOST_FILES; i++) {
        uintptr_t begin = atomic_load(&places[i].begin);
        if (begin && address >= begin && address < places[i].end) return i;
    }
    return -1;
}

static void on_missing_bytes(int number, siginfo_t *info, void *context) {
    (void)context;
    int errno_before = errno, i = place_of((uintptr_t)info->si_addr), nobody = -1;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)info->si_addr / page * page;
    if (i >= 0) atomic_compare_exchange_strong(&cut_place, &nobody, i);
    bool filled = i >= 0 && mmap((void *)from, places[i].end - from, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    if (!filled) signal(number, SIG_DFL); /* the fault repeats and ends the program as usual */
    errno = errno_before;
}

void file_handle_truncation(void) {
    struct sigaction action = {.sa_sigaction = on_missing_bytes, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
#ifdef __APPLE__
    sigaction(SIGSEGV, &action, NULL); /* some versions of the system report it so */
#endif
}

/* ---- the list of mapped files ---- */

static void add_place(const char *path, const Mapping *mapping, const struct stat *info) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MOST_FILES; i++) {
        Place *place = &places[i];
        if (atomic_load(&place->begin)) continue;
        if (!(place->path = strdup(path))) break;
        place->end = (uintptr_t)mapping->data + mapping->size;
        place->info = *info;
        place->watched = false;
        atomic_store(&place->begin, (uintptr_t)mapping->data);
        break;
    }
    pthread_mutex_unlock(&lock);
}

static void take_place(const Mapping *mapping) {
    pthread_mutex_lock(&lock);
    int i = place_of((uintptr_t)mapping->data);
    if (i >= 0) {
        if (i == atomic_load(&cut_place)) {
            size_t n = MIN(strlen(places[i].path), sizeof lost_path - 1);
            memcpy(lost_path, places[i].path, n);
            lost_path[n] = '\0';
            atomic_store(&cut_place, -1);
        }
        atomic_store(&places[i].begin, 0);
        free(places[i].path);
    }
    pthread_mutex_unlock(&lock);
}

static bool same_time(const struct stat *a, const struct stat *b) {
#ifdef __APPLE__
    return a->st_mtimespec.tv_sec == b->st_mtimespec.tv_sec && a->st_mtimespec.tv_nsec == b->st_mtimespec.tv_nsec;
#else
    return a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
#endif
}

void file_watch_truncation(const Mapping *mapping) {
    pthread_mutex_lock(&lock);
    int i = place_of((uintptr_t)mapping->data);
    if (i >= 0) places[i].watched = true;
    pthread_mutex_unlock(&lock);
}

/* Whether a watched file became shorter: the rest of its last page reads as zeros without a signal. Another process's write is only warned of: the
 * new bytes may equal the old ones, which the user can judge. A new file under the same name does no harm. */
static bool shorter_now(Place *place) {
    struct stat now;
    if (stat(place->path, &now) != 0 || now.st_dev != place->info.st_dev || now.st_ino != place->info.st_ino) return false;
    if (now.st_size < place->info.st_size) return true;
    if (now.st_size == place->info.st_size && same_time(&now, &place->info)) return false;
    place->watched = false;
    log_message(LOG_WARNING, "'%s' was written to by another program while it is in use: if its weights changed, start again", place->path);
    return false;
}

static void look_at_watched(void) {
    for (int i = 0; i < MOST_FILES; i++) {
        int nobody = -1;
        if (!atomic_load(&places[i].begin) || !places[i].watched || !shorter_now(&places[i])) continue;
        places[i].watched = false;
        atomic_compare_exchange_strong(&cut_place, &nobody, i);
    }
}

Status file_check_truncation(void) {
    pthread_mutex_lock(&lock);
    look_at_watched();
    int cut = atomic_load(&cut_place);
    const char *path = cut >= 0 ? places[cut].path : *lost_path ? lost_path : NULL;
    Status status = path ? status_fail(ST_INPUT, "'%s' was truncated by another program while it was in use", path) : ST_OK;
    pthread_mutex_unlock(&lock);
    if (status == ST_OK) return ST_OK;
    return status_hint(status, "results since then cannot be trusted: restore the file, then begin again, or continue with --resume");
}

bool file_ignore_truncation(const Mapping *mapping) {
    pthread_mutex_lock(&lock);
    int i = place_of((uintptr_t)mapping->data);
    bool forgiven = i >= 0 && atomic_compare_exchange_strong(&cut_place, &i, -1);
    pthread_mutex_unlock(&lock);
    return forgiven;
}

/* ---- mapping ---- */

Status file_map(const char *path, Mapping *mapping) {
    *mapping = (Mapping){0};
    if (!path) return ST_RESOURCE;
    int fd = UNTIL_DONE(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)); /* a pipe without a writer would block */
    if (fd < 0) return status_errno(errno, "cannot open '%s'", path);
    struct stat info;
    Status status = ST_OK;
    if (fstat(fd, &info) != 0) {
        status = status_errno(errno, "cannot read '%s'", path);
    } else if (!S_ISREG(info.st_mode)) {
        status = status_fail(ST_INPUT, "cannot read '%s': not a regular file", path);
    } else if (info.st_size > 0) {
        void *data;
        do data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        while (data == MAP_FAILED && errno == EINTR);
        if (data == MAP_FAILED) {
            status = status_errno(errno, "cannot map '%s'", path);
        } else {
            *mapping = (Mapping){data, (size_t)info.st_size};
            add_place(path, mapping, &info);
            status = file_check_pointer(path, data, mapping->size);
            if (status != ST_OK) file_unmap(mapping);
        }
    }
    close(fd);
    return status;
}

void file_drop_pages(const Mapping *mapping, size_t begin, size_t end) {
    /* a page that is still needed is read again */
    size_t page = (size_t)sysconf(_SC_PAGESIZE), first = begin / page * page, last = end / page * page;
    ASSERT(begin <= end && end <= mapping->size, "%zu to %zu of %zu", begin, end, mapping->size);
    if (last > first) madvise((void *)(uintptr_t)(mapping->data + first), last - first, MADV_DONTNEED);
}

void file_unmap(Mapping *mapping) {
    if (mapping->data) {
        take_place(mapping);
        munmap((void *)(uintptr_t)mapping->data, mapping->size);
    }
    *mapping = (Mapping){0};
}
