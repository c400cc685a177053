/* SPDX-License-Identifier: Apache-2.0 */
/* Entire files: read, append, truncate, copy. */
#include "lib/base/file.h"
#include "lib/base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK ((size_t)256 << 10)

Status file_find(const char *path, bool *there) {
    struct stat info;
    char target[1024];
    *there = file_exists(path);
    if (!path) return ST_RESOURCE;
    if (file_stat(path, &info) == 0) return ST_OK;
    int error = errno;
    ssize_t len = readlink(path, target, sizeof target);
    if (len < 0) return ST_OK;
    status_errno(error, "cannot read '%s', a link to '%.*s'", path, (int)len, target);
    return status_hint(ST_INPUT, "cp -RL copies a folder of links with their targets");
}

Status file_check_pointer(const char *path, const void *bytes, size_t n) {
    static const char mark[] = "version https://git-lfs.github.com/spec/";
    if (n < sizeof mark - 1 || memcmp(bytes, mark, sizeof mark - 1) != 0) return ST_OK;
    status_fail(ST_INPUT, "cannot read '%s': it is a Git-LFS pointer, in place of a file that was not downloaded", path);
    return status_hint(ST_INPUT, "git lfs pull, in the folder of that repository, downloads it");
}

Status file_read(const char *path, size_t limit, Str *text) {
    if (!path) return ST_RESOURCE;
    str_clear(text);
    ByteStream *stream;
    TRY(stream_open(path, &stream));
    Status status = ST_OK;
    while (status == ST_OK) {
        size_t room = MIN(CHUNK, limit - text->len + 1); /* one byte more than allowed shows that there is more */
        if (!str_reserve(text, room)) {
            status = status_errno(ENOMEM, "cannot read '%s'", path);
            break;
        }
        ptrdiff_t got = stream_read(stream, text->data + text->len, room);
        if (got < 0) {
            status = stream_fault(stream, "");
        } else if (got == 0) {
            break;
        } else if ((size_t)got > limit - text->len) {
            char words[32];
            status = status_fail(ST_INPUT, "cannot read '%s': longer than %s", path, format_bytes((double)limit, words));
        } else {
            text->len += (size_t)got;
            text->data[text->len] = '\0';
        }
    }
    stream_close(stream);
    if (status != ST_OK) str_clear(text);
    return status;
}

/* Writes all bytes; returns 0 or an errno. */
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

Status file_refuse_link(const char *path) {
    status_fail(ST_RESOURCE, "cannot write '%s': it is a link", path);
    return status_hint(ST_RESOURCE, "the link's target would be overwritten: remove the link, or choose another output");
}

Status file_append(const char *path, const void *bytes, size_t size) {
    if (!path) return ST_RESOURCE;
    TRY(memory_check(ST_OK)); /* the text may be incomplete */
    int fd = UNTIL_DONE(open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (fd < 0 && errno == ELOOP) return file_refuse_link(path);
    if (fd < 0) return status_unwritable(errno, "cannot open '%s' for writing", path);
    struct stat info;
    bool sized = fstat(fd, &info) == 0;
    int error = sized ? write_all(fd, bytes, size) : errno;
    bool cut_failed = sized && error != 0 && UNTIL_DONE(ftruncate(fd, info.st_size)) != 0;
    if (file_close(fd) != 0 && error == 0) { /* all is written, but may not be kept: the caller may append it again */
        error = errno;
        cut_failed = file_truncate(path, (uint64_t)info.st_size) != ST_OK;
    }
    if (error == 0) return ST_OK;
    Status status = status_unwritable(error, "cannot append to '%s'", path);
    return cut_failed ? status_hint(status, "its last line may be cut short") : status;
}

Status file_truncate(const char *path, uint64_t size) {
    if (!path) return ST_RESOURCE;
    TRY(memory_check(ST_OK)); /* the size may follow from what is not known */
    int fd = UNTIL_DONE(open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
    if (fd < 0 && errno == ELOOP) return file_refuse_link(path);
    if (fd < 0) return status_errno(errno, "cannot open '%s' for writing", path);
    struct stat info;
    Status status = ST_OK;
    if (fstat(fd, &info) != 0) {
        status = status_unwritable(errno, "cannot cut '%s'", path);
    } else if ((uint64_t)info.st_size < size) {
        status = status_fail(ST_INPUT, "cannot cut '%s' to %llu bytes: it has only %llu", path, (unsigned long long)size,
                             (unsigned long long)info.st_size);
    } else if (UNTIL_DONE(ftruncate(fd, (off_t)size)) != 0 || file_sync(fd) != 0) {
        status = status_unwritable(errno, "cannot cut '%s'", path);
    }
    close(fd);
    return status;
}

Status file_copy(const char *from, const char *to) {
    if (!from || !to) return ST_RESOURCE;
    int fd = UNTIL_DONE(open(from, O_RDONLY | O_CLOEXEC));
    if (fd < 0) return status_errno(errno, "cannot open '%s'", from);
    uint8_t *chunk = malloc(CHUNK);
    FileWriter writer = {.fd = -1};
    Status status = chunk ? writer_open(&writer, to) : status_errno(ENOMEM, "cannot copy '%s'", from);
    while (status == ST_OK) {
        ssize_t got = read(fd, chunk, CHUNK);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) status = status_errno(errno, "cannot read '%s'", from);
        if (got <= 0) break;
        writer_write(&writer, chunk, (size_t)got);
        status = writer.status;
    }
    if (status == ST_OK || writer.status != ST_OK) {
        if (chunk) status = writer_commit(&writer);
    } else {
        writer_abandon(&writer);
    }
    free(chunk);
    close(fd);
    return status;
}
