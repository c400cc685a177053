/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the n-th call on files fail, do a part of its work, or be the last one of the process. FAULT_FILES=KIND:n; n-: the n-th call and all later
 * ones; n~: every second call from the n-th on:
 *   EIO     any call fails
 *   ENOSPC  a call that needs disk space fails
 *   EMFILE  a call that needs a descriptor fails
 *   EINTR   a call that may wait is interrupted
 *   short   a read or a write transfers half of its bytes
 *   kill    SIGKILL before a call that changes a file
 *   torn    SIGKILL in the middle of a write
 * Streams (fopen) use these calls too. Standard error is left alone, since it has the error message. */
#include "tests/faults/shim.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- which call gets which fault ---- */

enum { ANY = 1, ROOM = 2, DESCRIPTOR = 4, WAITS = 8, BYTES = 16, CHANGES = 32, WRITES = 64 };
enum { SHORT = -1, KILL = -2, TORN = -3 };
typedef struct Kind {
    const char *name;
    int meets, what; /* what: an errno, or one of the above */
    Trigger trigger;
} Kind;
static Kind kinds[] = {{"EIO", ANY, EIO, {0}},       {"ENOSPC", ROOM, ENOSPC, {0}}, {"EMFILE", DESCRIPTOR, EMFILE, {0}}, {"EINTR", WAITS, EINTR, {0}},
                       {"short", BYTES, SHORT, {0}}, {"kill", CHANGES, KILL, {0}},  {"torn", WRITES, TORN, {0}}};
enum { KINDS = sizeof kinds / sizeof *kinds };

void files_tell(int file) {
    for (int i = 0; i < KINDS; i++) dprintf(file, "%s %ld\n", kinds[i].name, atomic_load(&kinds[i].trigger.calls));
}

static void end(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* The fault of this call: 0 (none), an errno, SHORT or TORN. Each kind counts the calls to which it applies. */
static int fate(int of) {
    int what = 0;
    for (int i = 0; fault_watching() && i < KINDS; i++)
        if ((of & kinds[i].meets) && trigger_next(&kinds[i].trigger)) what = kinds[i].what;
    if (what == KILL) end();
    return what;
}

static bool refused(int of) {
    int what = fate(of);
    if (what > 0) errno = what;
    return what > 0;
}

/* Files of /proc and /sys are on no disk. */
static bool is_on_a_disk(const char *path) { return strncmp(path, "/proc/", 6) != 0 && strncmp(path, "/sys/", 5) != 0; }

/* Files and folders count; pipes, sockets and standard error do not. */
static bool counts(int fd) {
    struct stat info;
    struct statfs system;
    if (fd == STDERR_FILENO || syscall(SYS_newfstatat, fd, "", &info, AT_EMPTY_PATH) != 0 || !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)))
        return false;
    if (syscall(SYS_fstatfs, fd, &system) != 0) return true;
    return system.f_type != PROC_SUPER_MAGIC && system.f_type != SYSFS_MAGIC && system.f_type != CGROUP_SUPER_MAGIC &&
           system.f_type != CGROUP2_SUPER_MAGIC;
}

#define NEXT(pointer, name)                       \
    do {                                          \
        void *found_ = dlsym(RTLD_NEXT, name);    \
        memcpy(&pointer, &found_, sizeof found_); \
    } while (0)

/* ---- descriptors ---- */

static bool is_there(int dir, const char *path) { return syscall(SYS_faccessat, dir, path, F_OK) == 0; }

static int open_at(int dir, const char *path, int flags, int mode) {
    bool writes = flags & (O_CREAT | O_TRUNC);
    if (refused(DESCRIPTOR | (is_on_a_disk(path) ? ANY | WAITS : 0) | (writes ? ROOM | CHANGES : 0))) return -1;
    bool was = is_there(dir, path);
    int fd = (int)syscall(SYS_openat, dir, path, flags, mode);
    if (fd >= 0 && (flags & O_TMPFILE) != O_TMPFILE) journal_open(fd, path, !was, flags & O_TRUNC);
    return fd;
}

static int mode_of(int flags, va_list more) { return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, int) : 0; }

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = mode_of(flags, more);
    va_end(more);
    return open_at(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) __attribute__((alias("open")));

int openat(int dir, const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = mode_of(flags, more);
    va_end(more);
    return open_at(dir, path, flags, mode);
}
int openat64(int dir, const char *path, int flags, ...) __attribute__((alias("openat")));

int mkostemp(char *path, int flags) {
    int (*real)(char *, int);
    NEXT(real, "mkostemp");
    if (refused(ANY | DESCRIPTOR | ROOM | CHANGES | WAITS)) return -1;
    int fd = real(path, flags);
    if (fd >= 0) journal_open(fd, path, true, false);
    return fd;
}

int close(int fd) {
    int what = counts(fd) ? fate(ANY | ROOM | WAITS) : 0; /* Linux closes it in any case */
    journal_close(fd);
    if (syscall(SYS_close, fd) != 0) return -1;
    if (what > 0) errno = what;
    return what > 0 ? -1 : 0;
}

static size_t part(size_t size, int what) { return what == SHORT && size > 1 ? size / 2 : size; }

ssize_t read(int fd, void *bytes, size_t size) {
    int what = counts(fd) ? fate(ANY | WAITS | BYTES) : 0;
    if (what > 0) return errno = what, -1;
    return syscall(SYS_read, fd, bytes, part(size, what));
}

ssize_t pread(int fd, void *bytes, size_t size, off_t at) {
    int what = counts(fd) ? fate(ANY | WAITS | BYTES) : 0;
    if (what > 0) return errno = what, -1;
    return syscall(SYS_pread64, fd, bytes, part(size, what), at);
}
ssize_t pread64(int fd, void *bytes, size_t size, off_t at) __attribute__((alias("pread")));

/* at: -1: the current position of the descriptor */
static ssize_t write_at(int fd, const void *bytes, size_t size, off_t at) {
    int what = counts(fd) ? fate(ANY | ROOM | WAITS | BYTES | CHANGES | (size > 1 ? WRITES : 0)) : 0;
    if (what > 0) return errno = what, -1;
    size_t asked = what == TORN ? size / 2 : part(size, what);
    ssize_t done = at < 0 ? syscall(SYS_write, fd, bytes, asked) : syscall(SYS_pwrite64, fd, bytes, asked, at);
    if (what == TORN) end();
    if (done > 0) journal_write(fd, bytes, (size_t)done, at);
    return done;
}

ssize_t write(int fd, const void *bytes, size_t size) { return write_at(fd, bytes, size, -1); }
ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) { return write_at(fd, bytes, size, at); }
ssize_t pwrite64(int fd, const void *bytes, size_t size, off_t at) __attribute__((alias("pwrite")));

int ftruncate(int fd, off_t size) {
    if (counts(fd) && refused(ANY | ROOM | WAITS | CHANGES)) return -1;
    int code = (int)syscall(SYS_ftruncate, fd, size);
    if (code == 0) journal_size(fd, size);
    return code;
}
int ftruncate64(int fd, off_t size) __attribute__((alias("ftruncate")));

int fsync(int fd) {
    if (counts(fd) && refused(ANY | ROOM | WAITS | CHANGES)) return -1;
    if (!journal_is_kept()) return 0; /* only the shim makes writes shorter, and power.c knows the full ones */
    journal_sync(fd);
    return 0;
}
int fdatasync(int fd) __attribute__((alias("fsync")));

int flock(int fd, int how) { return refused(WAITS) ? -1 : (int)syscall(SYS_flock, fd, how); }

/* ---- names ---- */

static int named(const char *what, int code, const char *path, const char *to) {
    if (code == 0) journal_name(what, path, to);
    return code;
}

enum { NAMES = ANY | ROOM | WAITS | CHANGES };

int mkdir(const char *path, mode_t mode) { return refused(NAMES) ? -1 : named("mkdir", (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode), path, NULL); }

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    return refused(NAMES) ? -1 : named("rename", (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags), from, to);
}
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_dir, const char *from, int to_dir, const char *to) { return renameat2(from_dir, from, to_dir, to, 0); }

int link(const char *from, const char *to) {
    return refused(NAMES) ? -1 : named("link", (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0), from, to);
}

int unlink(const char *path) {
    return refused(ANY | WAITS | CHANGES) ? -1 : named("remove", (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0), path, NULL);
}

int rmdir(const char *path) {
    return refused(ANY | WAITS | CHANGES) ? -1 : named("remove", (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR), path, NULL);
}

int remove(const char *path) {
    struct stat info;
    bool folder = syscall(SYS_newfstatat, AT_FDCWD, path, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode);
    return folder ? rmdir(path) : unlink(path);
}

/* ---- looking for files ---- */

int stat(const char *path, struct stat *info) {
    return refused(is_on_a_disk(path) ? ANY : 0) ? -1 : (int)syscall(SYS_newfstatat, AT_FDCWD, path, info, 0);
}
int lstat(const char *path, struct stat *info) {
    return refused(is_on_a_disk(path) ? ANY : 0) ? -1 : (int)syscall(SYS_newfstatat, AT_FDCWD, path, info, AT_SYMLINK_NOFOLLOW);
}
int fstat(int fd, struct stat *info) { return counts(fd) && refused(ANY) ? -1 : (int)syscall(SYS_newfstatat, fd, "", info, AT_EMPTY_PATH); }
int access(const char *path, int mode) { return refused(is_on_a_disk(path) ? ANY : 0) ? -1 : (int)syscall(SYS_faccessat, AT_FDCWD, path, mode); }
ssize_t readlink(const char *path, char *to, size_t size) {
    return refused(is_on_a_disk(path) ? ANY : 0) ? -1 : syscall(SYS_readlinkat, AT_FDCWD, path, to, size);
}

char *realpath(const char *path, char *to) {
    char *(*real)(const char *, char *);
    NEXT(real, "realpath");
    return refused(ANY) ? NULL : real(path, to);
}

DIR *opendir(const char *path) {
    DIR *(*real)(const char *);
    NEXT(real, "opendir");
    return refused(ANY | DESCRIPTOR) ? NULL : real(path);
}

struct dirent *readdir(DIR *dir) {
    struct dirent *(*real)(DIR *);
    NEXT(real, "readdir");
    return refused(ANY) ? NULL : real(dir);
}

int nftw(const char *path, __nftw_func_t visit, int descriptors, int flags) {
    int (*real)(const char *, __nftw_func_t, int, int);
    NEXT(real, "nftw");
    return refused(ANY | DESCRIPTOR) ? -1 : real(path, visit, descriptors, flags);
}

int statvfs(const char *path, struct statvfs *disk) {
    int (*real)(const char *, struct statvfs *);
    NEXT(real, "statvfs");
    return refused(ANY) ? -1 : real(path, disk);
}

int pipe2(int ends[2], int flags) { return refused(DESCRIPTOR) ? -1 : (int)syscall(SYS_pipe2, ends, flags); }
int pipe(int ends[2]) { return pipe2(ends, 0); }
int socket(int domain, int type, int protocol) { return refused(DESCRIPTOR) ? -1 : (int)syscall(SYS_socket, domain, type, protocol); }
int socketpair(int domain, int type, int protocol, int ends[2]) {
    return refused(DESCRIPTOR) ? -1 : (int)syscall(SYS_socketpair, domain, type, protocol, ends);
}

/* ---- the same with the size of their memory, as _FORTIFY_SOURCE calls them ---- */

int __open_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
ssize_t __read_chk(int fd, void *bytes, size_t size, size_t room);
ssize_t __pread_chk(int fd, void *bytes, size_t size, off_t at, size_t room);
ssize_t __readlink_chk(const char *path, char *to, size_t size, size_t room);
char *__realpath_chk(const char *path, char *to, size_t room);

int __open_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __openat_2(int dir, const char *path, int flags) { return open_at(dir, path, flags, 0); }
ssize_t __read_chk(int fd, void *bytes, size_t size, size_t room) { return size <= room ? read(fd, bytes, size) : (abort(), -1); }
ssize_t __pread_chk(int fd, void *bytes, size_t size, off_t at, size_t room) { return size <= room ? pread(fd, bytes, size, at) : (abort(), -1); }
ssize_t __readlink_chk(const char *path, char *to, size_t size, size_t room) { return size <= room ? readlink(path, to, size) : (abort(), -1); }
char *__realpath_chk(const char *path, char *to, size_t room) { return room >= PATH_MAX ? realpath(path, to) : (abort(), NULL); }

/* ---- streams, which use the calls above ---- */

enum { STREAMS = 1024 };
static FILE *streams[STREAMS]; /* by descriptor */

static ssize_t stream_read(void *fd, char *bytes, size_t size) { return read((int)(intptr_t)fd, bytes, size); }

static ssize_t stream_write(void *fd, const char *bytes, size_t size) {
    size_t done = 0;
    for (ssize_t n = 0; done < size && (n = write((int)(intptr_t)fd, bytes + done, size - done)) >= 0;) done += (size_t)n;
    return (ssize_t)done; /* less than size: an error for stdio */
}

static int stream_seek(void *fd, off64_t *at, int from) {
    off64_t now = lseek((int)(intptr_t)fd, *at, from);
    if (now >= 0) *at = now;
    return now >= 0 ? 0 : -1;
}

static int stream_close(void *fd) {
    streams[(intptr_t)fd] = NULL;
    return close((int)(intptr_t)fd);
}

FILE *fdopen(int fd, const char *mode) {
    if (fd < 0 || fd >= STREAMS) return errno = EMFILE, NULL;
    return streams[fd] = fopencookie((void *)(intptr_t)fd, mode, (cookie_io_functions_t){stream_read, stream_write, stream_seek, stream_close});
}

FILE *fopen(const char *path, const char *mode) {
    bool both = strchr(mode, '+');
    int flags = strchr(mode, 'e') ? O_CLOEXEC : 0;
    if (mode[0] == 'r') flags |= both ? O_RDWR : O_RDONLY;
    if (mode[0] == 'w') flags |= (both ? O_RDWR : O_WRONLY) | O_CREAT | O_TRUNC;
    if (mode[0] == 'a') flags |= (both ? O_RDWR : O_WRONLY) | O_CREAT | O_APPEND;
    int fd = open(path, flags, 0666);
    FILE *file = fd >= 0 ? fdopen(fd, mode) : NULL;
    if (fd >= 0 && !file) close(fd);
    return file;
}
FILE *fopen64(const char *path, const char *mode) __attribute__((alias("fopen")));

int fileno(FILE *file) {
    int (*real)(FILE *);
    for (int fd = 0; fd < STREAMS; fd++)
        if (streams[fd] == file) return fd;
    NEXT(real, "fileno");
    return real(file);
}

void files_begin(void) {
    const char *said = getenv("FAULT_FILES"), *colon = said ? strchr(said, ':') : NULL;
    for (int i = 0; i < KINDS; i++)
        if (colon && strlen(kinds[i].name) == (size_t)(colon - said) && strncmp(kinds[i].name, said, (size_t)(colon - said)) == 0)
            trigger_set(&kinds[i].trigger, colon + 1);
}
