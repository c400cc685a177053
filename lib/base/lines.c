/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of a text file, packed or not. */
#include "lib/base/file.h"
#include "lib/base/system.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK ((size_t)256 << 10)
#define LINE_LIMIT ((size_t)1 << 30) /* a few packed bytes, or a device, can expand to an endless line */

Status lines_open(Lines *lines, const char *path) {
    *lines = (Lines){0};
    TRY(stream_open(path, &lines->stream));
    Str copy = {0};
    str_append(&copy, path);
    lines->path = copy.data;
    return ST_OK;
}

/* Reads one more chunk after the unread part of the buffer. */
static void lines_fill(Lines *lines) {
    Str *buffer = &lines->buffer;
    if (lines->start > 0) {
        buffer->len -= lines->start;
        memmove(buffer->data, buffer->data + lines->start, buffer->len);
        lines->start = 0;
    }
    if (buffer->len >= CHUNK && interrupt_requested()) {
        lines->status = status_fail(ST_INTERRUPTED, "interrupted while reading '%s'", lines->path);
        return;
    }
    if (buffer->len > LINE_LIMIT) {
        lines->status = status_fail(ST_INPUT, "line %zu of '%s' is longer than 1 GiB", lines->number + 1, lines->path);
        return;
    }
    if (!str_reserve(buffer, CHUNK)) {
        lines->status = status_fail(ST_RESOURCE, "out of memory for line %zu of '%s'", lines->number + 1, lines->path);
        return;
    }
    ptrdiff_t got = stream_read(lines->stream, buffer->data + buffer->len, CHUNK);
    if (got > 0) buffer->len += (size_t)got;
    lines->ended = got == 0;
    if (got < 0) {
        char place[40];
        snprintf(place, sizeof place, " after line %zu", lines->number);
        lines->status = stream_fault(lines->stream, place);
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
    stream_close(lines->stream);
    free(lines->path);
    str_release(&lines->buffer);
    *lines = (Lines){.status = status, .ended = true};
    return status;
}
