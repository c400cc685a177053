/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of a file, unpacked while reading: gzip (RFC 1952, any number of members) and zstd (RFC 8878, any number of frames). Unlike zlib's gzread, it
 * checks what follows the last member: a file that was cut between members, or that has other bytes appended, is an error. */
#include "lib/base/file.h"
#include "lib/base/system.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#define CHUNK ((size_t)128 << 10)

typedef enum Packing { PLAIN, GZIP, ZSTD } Packing;

struct ByteStream {
    int fd;
    char *path;
    Packing packing;
    z_stream zlib;
    ZSTD_DCtx *zstd;
    bool inside;      /* within a member or frame */
    bool padding;     /* zeros after the last member: tape blocks, as gzip allows */
    bool ended;       /* the file has no more bytes */
    int error;        /* errno of a failed read */
    char reason[160]; /* why it cannot be unpacked; "" if it can */
    size_t at, len;   /* the unread part of `chunk` */
    uint8_t chunk[CHUNK];
};

/* Reads more bytes after the unread part of the chunk. */
static void refill(ByteStream *stream) {
    if (stream->at > 0) {
        stream->len -= stream->at;
        memmove(stream->chunk, stream->chunk + stream->at, stream->len);
        stream->at = 0;
    }
    while (!stream->ended && stream->len < CHUNK) {
        ssize_t got = read(stream->fd, stream->chunk + stream->len, CHUNK - stream->len);
        if (got < 0 && errno == EINTR && !interrupt_requested()) continue; /* a pipe may never have more */
        if (got < 0) stream->error = errno;
        if (got > 0) stream->len += (size_t)got;
        stream->ended = got <= 0;
    }
}

static bool has_magic(const ByteStream *stream, const void *magic, size_t len) {
    return stream->len - stream->at >= len && memcmp(stream->chunk + stream->at, magic, len) == 0;
}
static bool gzip_begins(const ByteStream *stream) { return has_magic(stream, "\x1f\x8b", 2); }
static bool zstd_begins(const ByteStream *stream) { return has_magic(stream, "\x28\xb5\x2f\xfd", 4); }

static Status start_unpacking(ByteStream *stream) {
    stream->packing = gzip_begins(stream) ? GZIP : zstd_begins(stream) ? ZSTD : PLAIN;
    bool named_gzip = text_ends_with(stream->path, ".gz"), named_zstd = text_ends_with(stream->path, ".zst");
    if (stream->packing == PLAIN && stream->error == 0 && (named_gzip || named_zstd))
        return status_fail(ST_INPUT, "cannot unpack '%s': expected %s data as its name says, %s", stream->path, named_gzip ? "gzip" : "zstd",
                           stream->len > 0 ? "it begins otherwise" : "it is empty");
    if (stream->packing == GZIP && inflateInit2(&stream->zlib, MAX_WBITS + 16) != Z_OK)
        return status_errno(ENOMEM, "cannot unpack '%s'", stream->path);
    if (stream->packing == ZSTD && !(stream->zstd = ZSTD_createDCtx())) return status_errno(ENOMEM, "cannot unpack '%s'", stream->path);
    stream->inside = stream->packing != PLAIN;
    return ST_OK;
}

Status stream_open(const char *path, ByteStream **result) {
    *result = NULL;
    if (!path) return ST_RESOURCE;
    if (dir_exists(path)) return status_fail(ST_INPUT, "cannot read '%s': it is a folder", path);
    int fd;
    do fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR && !interrupt_requested());
    if (fd < 0 && errno == EINTR) return status_fail(ST_INTERRUPTED, "interrupted while opening '%s'", path); /* a pipe without a writer */
    if (fd < 0) return status_errno(errno, "cannot open '%s'", path);
    ByteStream *stream = malloc(sizeof *stream);
    if (!stream) {
        close(fd);
        return status_errno(ENOMEM, "cannot open '%s'", path);
    }
    memset(stream, 0, offsetof(ByteStream, chunk));
    stream->fd = fd;
    Str copy = {0};
    str_append(&copy, path);
    stream->path = copy.data;
    refill(stream);
    Status status = file_check_pointer(path, stream->chunk, stream->len);
    if (status == ST_OK) status = start_unpacking(stream);
    if (status != ST_OK) {
        stream_close(stream);
        return status;
    }
    *result = stream;
    return ST_OK;
}

void stream_close(ByteStream *stream) {
    if (!stream) return;
    if (stream->packing == GZIP) inflateEnd(&stream->zlib);
    ZSTD_freeDCtx(stream->zstd);
    close(stream->fd);
    free(stream->path);
    free(stream);
}

/* Both unpackers write to `out`, take bytes from the chunk and return how many they wrote; `inside` says whether a member or frame is still open. */

static size_t inflate_some(ByteStream *stream, void *out, size_t size) {
    z_stream *zlib = &stream->zlib;
    zlib->next_in = stream->chunk + stream->at;
    zlib->avail_in = (unsigned)(stream->len - stream->at);
    zlib->next_out = out;
    zlib->avail_out = (unsigned)size;
    int code = inflate(zlib, Z_NO_FLUSH);
    stream->at = stream->len - zlib->avail_in;
    stream->inside = code != Z_STREAM_END;
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
        snprintf(stream->reason, sizeof stream->reason, "damaged gzip data: %s", zlib->msg ? zlib->msg : zError(code));
    return size - zlib->avail_out;
}

static size_t decompress_some(ByteStream *stream, void *out, size_t size) {
    ZSTD_inBuffer input = {stream->chunk + stream->at, stream->len - stream->at, 0};
    ZSTD_outBuffer output = {out, size, 0};
    size_t code = ZSTD_decompressStream(stream->zstd, &output, &input);
    stream->at += input.pos;
    stream->inside = code != 0;
    if (ZSTD_isError(code)) snprintf(stream->reason, sizeof stream->reason, "damaged zstd data: %s", ZSTD_getErrorName(code));
    return output.pos;
}

/* Moves to the next member, padding or the end. False when there is nothing more to unpack. */
static bool next_member(ByteStream *stream) {
    if (stream->len - stream->at < 4) refill(stream);
    if (stream->packing == GZIP) {
        while (stream->at < stream->len && stream->chunk[stream->at] == 0) {
            stream->at++;
            stream->padding = true;
            if (stream->at == stream->len) refill(stream);
        }
    }
    if (stream->at == stream->len) return false;
    if (stream->packing == GZIP && !stream->padding && gzip_begins(stream)) {
        inflateReset(&stream->zlib);
    } else if (stream->packing == GZIP) {
        snprintf(stream->reason, sizeof stream->reason, "something else follows the gzip data");
        return false;
    }
    stream->inside = true;
    return true;
}

static size_t copy_some(ByteStream *stream, void *out, size_t size) {
    size_t n = MIN(size, stream->len - stream->at);
    memcpy(out, stream->chunk + stream->at, n);
    stream->at += n;
    return n;
}

static bool failed(const ByteStream *stream) { return stream->error != 0 || stream->reason[0] != '\0'; }

ptrdiff_t stream_read(ByteStream *stream, void *bytes, size_t size) {
    size = MIN(size, (size_t)1 << 30);
    for (size_t got = 0; !failed(stream);) {
        if (stream->packing != PLAIN && !stream->inside && !next_member(stream)) break;
        if (stream->at == stream->len) refill(stream);
        bool dry = stream->at == stream->len;
        if (stream->packing == PLAIN) {
            got = copy_some(stream, bytes, size);
        } else {
            got = stream->packing == GZIP ? inflate_some(stream, bytes, size) : decompress_some(stream, bytes, size);
        }
        if (got > 0) return (ptrdiff_t)got;
        if (dry && stream->inside && !failed(stream)) snprintf(stream->reason, sizeof stream->reason, "it ends too early");
        if (dry) break;
    }
    return failed(stream) ? -1 : 0;
}

Status stream_fault(const ByteStream *stream, const char *place) {
    if (stream->error == EINTR) return status_fail(ST_INTERRUPTED, "interrupted while reading '%s'%s", stream->path, place);
    if (stream->error != 0) return status_errno(stream->error, "cannot read '%s'%s", stream->path, place);
    return status_fail(ST_INPUT, "cannot unpack '%s'%s: %s", stream->path, place, stream->reason);
}
