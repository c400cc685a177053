/* Lines of a text file, packed or not, of any length. */
#include "lib/base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define CHUNK ((size_t)256 << 10)

Status lines_open(Lines *lines, const char *path) {
    *lines = (Lines){0};
    if (dir_exists(path)) return status_fail(ST_INPUT, "cannot read '%s': it is a folder", path);
    gzFile gz = gzopen(path, "rb");
    if (!gz) return status_errno(errno ? errno : ENOMEM, "cannot open '%s'", path);
    gzbuffer(gz, 128 << 10);
    lines->gz = gz;
    Str copy = {0};
    str_append(&copy, path);
    lines->path = copy.data;
    return ST_OK;
}

/* Reads one more chunk behind what is left of the buffer. */
static void lines_fill(Lines *lines) {
    Str *buffer = &lines->buffer;
    if (lines->start > 0) {
        buffer->len -= lines->start;
        memmove(buffer->data, buffer->data + lines->start, buffer->len);
        lines->start = 0;
    }
    if (!str_reserve(buffer, CHUNK)) {
        lines->status = status_errno(ENOMEM, "cannot read '%s': line %zu is too long", lines->path, lines->number + 1);
        return;
    }
    int got = gzread(lines->gz, buffer->data + buffer->len, (unsigned)CHUNK), code = Z_OK;
    const char *reason = gzerror(lines->gz, &code);
    if (got > 0) buffer->len += (size_t)got;
    if (code == Z_ERRNO) {
        lines->status = status_errno(errno, "cannot read '%s' after line %zu", lines->path, lines->number);
    } else if (got < 0 || code == Z_BUF_ERROR) { /* the latter: packed data that ends too early */
        lines->status = status_fail(ST_INPUT, "cannot unpack '%s' after line %zu: %s", lines->path, lines->number, reason);
    } else if (got == 0) {
        lines->ended = true;
    }
}

bool lines_next(Lines *lines, Slice *line) {
    Str *buffer = &lines->buffer;
    size_t searched = 0;
    char *end = NULL;
    while (lines->status == ST_OK) {
        size_t left = buffer->len - lines->start;
        if (left > searched) end = memchr(buffer->data + lines->start + searched, '\n', left - searched);
        if (end || lines->ended) break;
        searched = left;
        lines_fill(lines);
    }
    if (lines->status != ST_OK || (!end && buffer->len == lines->start)) return false;
    const char *begin = buffer->data + lines->start;
    size_t len = end ? (size_t)(end - begin) : buffer->len - lines->start;
    lines->start += len + (end ? 1 : 0);
    if (len > 0 && begin[len - 1] == '\r') len--;
    lines->number++;
    *line = (Slice){begin, len};
    return true;
}

Status lines_close(Lines *lines) {
    Status status = lines->status;
    if (lines->gz) gzclose_r(lines->gz);
    free(lines->path);
    str_release(&lines->buffer);
    *lines = (Lines){.status = status, .ended = true};
    return status;
}
