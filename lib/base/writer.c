/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are written atomically. */
#include "lib/base/file.h"
#include "lib/base/memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define BUFFER ((size_t)256 << 10)

/* "folder/.NAME.tmp-PID" for "folder/NAME": in the same file system, so that the rename is atomic, and hidden, so that nobody takes it for a
 * result. */
static char *temporary_name(const char *path) {
    Str name = {0};
    const char *last = path_name(path);
    str_append_n(&name, path, (size_t)(last - path));
    str_printf(&name, ".%s.tmp-%ld", last, (long)getpid());
    return name.data;
}

/* A missing folder is a wrong path of the user; any other error is the disk's. */
static Status unwritable(const FileWriter *writer) {
    if (!writer->path) return status_fail(ST_RESOURCE, "out of memory for the name of a file");
    if (writer->error == ENOENT) return status_errno(ENOENT, "cannot write '%s'", writer->path);
    return status_unwritable(writer->error, "cannot write '%s'", writer->path);
}

static void writer_failed(FileWriter *writer, int error) {
    if (writer->error != 0) return;
    writer->error = error;
    writer->status = unwritable(writer);
}

/* Removes temporary files that dead writers of the same name left: their locks are free. true: another writer is alive, apart from `own` (NULL:
 * none). */
static bool remove_leftovers(const char *path, const char *own) {
    bool alive = false;
    Str folder = {0}, begin = {0}, left = {0};
    const char *last = path_name(path);
    str_append_n(&folder, path, (size_t)(last - path));
    str_printf(&begin, ".%s.tmp-", last);
    DIR *dir = opendir(folder.len ? str_text(&folder) : ".");
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        const char *digits = entry->d_name + begin.len;
        if (!text_starts_with(entry->d_name, str_text(&begin)) || !*digits || digits[strspn(digits, "0123456789")]) continue;
        str_clear(&left);
        str_printf(&left, "%s%s", str_text(&folder), entry->d_name);
        if (own && strcmp(entry->d_name, path_name(own)) == 0) continue;
        int fd = UNTIL_DONE(open(str_text(&left), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
        if (fd < 0) continue;
        if (UNTIL_DONE(flock(fd, LOCK_EX | LOCK_NB)) == 0)
            (void)UNTIL_DONE(unlink(str_text(&left)));
        else
            alive = alive || errno == EWOULDBLOCK;
        close(fd);
    }
    if (dir) closedir(dir);
    str_release(&folder);
    str_release(&begin);
    str_release(&left);
    return alive;
}

/* Opens a new file and locks it. EBUSY: a process with the same number is writing it. Another process may delete it as a leftover before it is
 * locked; then the file has no name. */
static int open_new(const char *temporary) {
    struct stat info;
    for (int tries = 0; tries < 100; tries++) {
        int fd = UNTIL_DONE(open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
        if (fd < 0 && errno == EEXIST) errno = EBUSY;
        if (fd < 0) return -1;
        (void)UNTIL_DONE(flock(fd, LOCK_EX | LOCK_NB)); /* a file system without locks only loses the check */
        if (fstat(fd, &info) != 0 || info.st_nlink > 0) return fd;
        close(fd);
    }
    errno = EBUSY;
    return -1;
}

/* A dead process with the same number may have left its file on a file system without locks. No living process has the number, so the file can be
 * removed. */
static int open_own(const char *path, const char *temporary) {
    remove_leftovers(path, NULL);
    int fd = open_new(temporary);
    if (fd >= 0 || errno != EBUSY) return fd;
    int old = UNTIL_DONE(open(temporary, O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
    bool busy = old >= 0 && UNTIL_DONE(flock(old, LOCK_EX | LOCK_NB)) != 0 && errno == EWOULDBLOCK;
    if (old >= 0) close(old);
    if (!busy) (void)UNTIL_DONE(unlink(temporary));
    errno = EBUSY;
    return busy ? -1 : open_new(temporary);
}

Status writer_open(FileWriter *writer, const char *path) {
    *writer = (FileWriter){.fd = -1};
    if (!path) return writer->status = ST_RESOURCE;
    struct stat info;
    bool replaces = file_stat(path, &info) == 0;
    if (replaces && !S_ISREG(info.st_mode)) {
        return writer->status = status_fail(ST_INPUT, "cannot write '%s': %s", path, S_ISDIR(info.st_mode) ? "it is a folder" : "not a regular file");
    }
    Str kept = {0};
    str_append(&kept, path);
    writer->path = kept.data;
    writer->temporary = temporary_name(path);
    writer->buffer = malloc(BUFFER);
    bool ready = writer->path && writer->temporary && writer->buffer;
    if (ready) writer->fd = open_own(path, writer->temporary);
    if (writer->fd >= 0 && replaces) (void)!fchmod(writer->fd, info.st_mode & 0777); /* a private file stays private */
    if (writer->fd >= 0) return ST_OK;
    int error = ready ? errno : ENOMEM;
    writer_failed(writer, error);
    Status status = writer->status;
    if (error == ENOENT) status_hint(status, "the folder does not exist: make it first");
    if (error == EBUSY) {
        status = writer->status = status_hint(status_fail(ST_CONFIG, "two results would be written to '%s'", path), "give each a name of its own");
        writer->temporary[0] = '\0'; /* it belongs to the other process */
    }
    writer_abandon(writer);
    return status;
}

Status writer_alone(FileWriter *writer) {
    if (writer->fd < 0 || !remove_leftovers(writer->path, writer->temporary)) return ST_OK;
    Status status = status_fail(ST_CONFIG, "another process is writing '%s'", writer->path);
    writer_abandon(writer);
    return writer->status = status_hint(status, "wait for it, or choose another output");
}

/* Returns 0 or an errno. */
static int write_all(int fd, const uint8_t *bytes, size_t size) {
    while (size > 0) {
        ssize_t done = write(fd, bytes, MIN(size, (size_t)1 << 30));
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return errno;
        bytes += done;
        size -= (size_t)done;
    }
    return 0;
}

static void write_through(FileWriter *writer, const uint8_t *bytes, size_t size) {
    int error = writer->error == 0 ? write_all(writer->fd, bytes, size) : 0;
    if (error != 0) writer_failed(writer, error);
}

Status writer_flush(FileWriter *writer) {
    write_through(writer, writer->buffer, writer->used);
    writer->used = 0;
    return writer->error != 0 ? unwritable(writer) : writer->status;
}

void writer_write(FileWriter *writer, const void *bytes, size_t size) {
    if (writer->status != ST_OK || size == 0) return;
    writer->written += size;
    writer->crc = (uint32_t)crc32_z(writer->crc, bytes, size);
    if (size > BUFFER - writer->used) writer_flush(writer);
    if (size >= BUFFER) {
        write_through(writer, bytes, size);
    } else {
        memcpy(writer->buffer + writer->used, bytes, size);
        writer->used += size;
    }
}

void writer_printf(FileWriter *writer, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    ASSERT(len >= 0, "format '%s'", format);
    Str text = {0};
    if (!str_reserve(&text, (size_t)len)) {
        writer_failed(writer, ENOMEM);
        return;
    }
    va_start(args, format);
    vsnprintf(text.data, (size_t)len + 1, format, args);
    va_end(args);
    writer_write(writer, text.data, (size_t)len);
    str_release(&text);
}

/* Syncs to the medium: on macOS fsync alone stops at the drive's cache. */
int file_sync(int fd) {
#ifdef F_FULLFSYNC
    if (fcntl(fd, F_FULLFSYNC) == 0) return 0;
#endif
    return UNTIL_DONE(fsync(fd));
}

int file_close(int fd) { return close(fd) == 0 || errno == EINTR ? 0 : -1; }

Status dir_sync_above(const char *path) {
    Str parent = {0};
    const char *last = path_name(path);
    str_append_n(&parent, path, (size_t)(last - path));
    Status status = dir_sync(parent.len > 0 ? parent.data : ".");
    str_release(&parent);
    return status;
}

Status writer_commit(FileWriter *writer) {
    if (writer->fd < 0) return writer->status != ST_OK ? writer->status : status_fail(ST_INPUT, "cannot write: no file is open");
    if (writer->error == 0) writer_flush(writer);
    if (writer->error == 0 && memory_is_short()) writer_failed(writer, memory_error()); /* a text of it may lack something */
    if (writer->error == 0 && file_sync(writer->fd) != 0) writer_failed(writer, errno);
    if (file_close(writer->fd) != 0) writer_failed(writer, errno);
    writer->fd = -1;
    if (writer->error == 0 && UNTIL_DONE(rename(writer->temporary, writer->path)) != 0) writer_failed(writer, errno);
    /* The first failure may be many calls ago, and others may have been recorded since: it is recorded again. */
    Status status = writer->error != 0 ? unwritable(writer) : dir_sync_above(writer->path);
    if (writer->error == 0) writer->temporary[0] = '\0'; /* renamed: nothing to remove */
    writer_abandon(writer);
    writer->status = status;
    return status;
}

/* The number of complete lines in the file, and the bytes that they take. */
static size_t whole_lines(int fd, char *buffer, off_t *bytes) {
    off_t at = 0;
    size_t n = 0;
    *bytes = 0;
    for (ssize_t got; (got = pread(fd, buffer, BUFFER, at)) > 0; at += got)
        for (ssize_t i = 0; i < got; i++)
            if (buffer[i] == '\n') n++, *bytes = at + i + 1;
    return n;
}

size_t writer_keep_lines(FileWriter *writer) {
    Str path = {0};
    off_t bytes;
    if (writer->fd < 0) return 0;
    if (writer->error == 0) write_all(writer->fd, writer->buffer, writer->used); /* as much as fits */
    str_printf(&path, "%s.partial", writer->path);
    size_t n = whole_lines(writer->fd, (char *)writer->buffer, &bytes);
    bool kept = n > 0 && UNTIL_DONE(ftruncate(writer->fd, bytes)) == 0 && file_sync(writer->fd) == 0 &&
                UNTIL_DONE(rename(writer->temporary, str_text(&path))) == 0;
    if (kept) writer->temporary[0] = '\0'; /* renamed: nothing to remove */
    writer_abandon(writer);
    str_release(&path);
    return kept ? n : 0;
}

void writer_abandon(FileWriter *writer) {
    if (writer->fd >= 0) close(writer->fd);
    writer->fd = -1;
    if (writer->temporary && writer->temporary[0]) (void)UNTIL_DONE(unlink(writer->temporary));
    free(writer->path);
    free(writer->temporary);
    free(writer->buffer);
    writer->path = writer->temporary = NULL;
    writer->buffer = NULL;
}

Status file_write_all(const char *path, const void *bytes, size_t size) {
    FileWriter writer;
    TRY(writer_open(&writer, path));
    writer_write(&writer, bytes, size);
    return writer_commit(&writer);
}

Status dir_sync(const char *path) {
    if (!path) return ST_RESOURCE;
    int fd = UNTIL_DONE(open(path, O_RDONLY | O_CLOEXEC));
    if (fd < 0) return status_errno(errno, "cannot open folder '%s'", path);
    /* Some file systems cannot sync a folder and say EINVAL; they keep their own order. */
    Status status = file_sync(fd) == 0 || errno == EINVAL ? ST_OK : status_errno(errno, "cannot sync folder '%s'", path);
    close(fd);
    return status;
}

Status dir_rename(const char *from, const char *to) {
    if (!from || !to) return ST_RESOURCE;
    TRY(memory_check(ST_OK)); /* a path may be truncated */
    if (UNTIL_DONE(rename(from, to)) != 0) return (errno == ENOENT ? status_errno : status_unwritable)(errno, "cannot rename '%s' to '%s'", from, to);
    return dir_sync_above(to);
}
