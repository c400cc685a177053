/* SPDX-License-Identifier: Apache-2.0 */
/* Plain text: one document, or documents with a separator between them. A row is {"text"}; its number is the line where it begins. Memory: one
 * document.
 */
#include "data/containers/containers.h"

#include <string.h>

#define CHUNK ((size_t)256 << 10)
#define DOCUMENT_LIMIT ((size_t)256 << 20) /* limit of a tokenizer's input */

typedef struct Documents {
    RowReader *reader;
    size_t line; /* line of the next document's first byte */
} Documents;

static bool is_line_end(char c) { return c == '\n' || c == '\r'; }

static size_t count_lines(const char *text, size_t len) {
    size_t n = 0;
    for (const char *at = text; (at = memchr(at, '\n', len - (size_t)(at - text))); at++) n++;
    return n;
}

/* With a separator, blank lines around a document are removed; the only document of a file is kept unchanged. */
static Status hand_document(Documents *documents, Slice text) {
    RowReader *reader = documents->reader;
    size_t line = documents->line;
    documents->line += count_lines(text.data, text.len);
    if (is_blank(text) || row_reader_full(reader)) return ST_OK;
    if (reader->config.separator) {
        for (; is_line_end(text.data[0]); text.data++, text.len--) line += text.data[0] == '\n';
        while (is_line_end(text.data[text.len - 1])) text.len--;
    }
    size_t fault = utf8_fault(text.data, text.len);
    if (fault < text.len) {
        fail_at(reader->path, text.data, fault, line, "no UTF-8");
        return row_is_bad(reader, status_hint(ST_INPUT, "save the file with the encoding UTF-8"), line);
    }
    json_t *row = json_object();
    if (row && json_object_set_new_nocheck(row, "text", json_stringn_nocheck(text.data, text.len)) != 0) {
        json_decref(row);
        row = NULL;
    }
    return row_hand_over(reader, row, line);
}

/* The length of the separator at `at`, 0 if it is not there. A line end in the separator also matches \r\n. */
static size_t separator_at(const char *at, const char *end, const char *separator) {
    const char *from = at;
    for (; *separator; separator++, at++) {
        if (*separator == '\n' && end - at > 1 && at[0] == '\r' && at[1] == '\n') at++;
        if (at == end || *at != *separator) return 0;
    }
    return (size_t)(at - from);
}

static const char *find_separator(const char *text, size_t n, const char *separator, size_t *len) {
    for (const char *at = text, *end = text + n; (at = memchr(at, *separator, (size_t)(end - at))); at++)
        if ((*len = separator_at(at, end, separator))) return at;
    return NULL;
}

/* Hands over all documents that end inside `text`; *rest: the start of the remaining text. */
static Status hand_whole_ones(Documents *documents, const Str *text, size_t searched, size_t *rest) {
    const char *separator = documents->reader->config.separator;
    size_t len;
    *rest = 0;
    while (!row_reader_full(documents->reader)) {
        const char *found = find_separator(text->data + searched, text->len - searched, separator, &len);
        if (!found) break;
        size_t end = (size_t)(found - text->data);
        TRY(hand_document(documents, (Slice){text->data + *rest, end - *rest}));
        documents->line += count_lines(found, len);
        *rest = searched = end + len;
    }
    return ST_OK;
}

static Status too_long(const Documents *documents) {
    const RowReader *reader = documents->reader;
    status_fail(ST_INPUT, "cannot read '%s': the document of line %zu is longer than 256 MiB", reader->path, documents->line);
    return status_hint(ST_INPUT,
                       reader->config.separator ? "cut it into several" : "{path: FILE, separator: TEXT} names the text between its documents");
}

static Status read_documents(Documents *documents, ByteStream *stream, Str *text) {
    const char *path = documents->reader->path, *separator = documents->reader->config.separator;
    size_t overlap = separator ? 2 * strlen(separator) : 0; /* if all its line ends are \r\n */
    bool first = true;
    while (!row_reader_full(documents->reader)) {
        if (text->len > DOCUMENT_LIMIT) return too_long(documents);
        if (!str_reserve(text, CHUNK)) return status_fail(ST_RESOURCE, "out of memory for the document of line %zu of '%s'", documents->line, path);
        ptrdiff_t got = stream_read(stream, text->data + text->len, CHUNK);
        if (got < 0) return stream_fault(stream, "");
        if (got == 0) return hand_document(documents, (Slice){str_text(text), text->len});
        size_t searched = text->len > overlap ? text->len - overlap : 0, rest = 0;
        text->len += (size_t)got;
        if (first && text->len >= 3) {
            size_t mark = (size_t)(without_mark((Slice){text->data, text->len}).data - text->data);
            memmove(text->data, text->data + mark, text->len -= mark);
            first = false;
        }
        if (separator) TRY(hand_whole_ones(documents, text, searched, &rest));
        memmove(text->data, text->data + rest, text->len -= rest);
    }
    return ST_OK;
}

static Status read_text(RowReader *reader) {
    Documents documents = {.reader = reader, .line = 1};
    ByteStream *stream;
    Str text = {0};
    if (reader->config.separator && !reader->config.separator[0]) return status_fail(ST_CONFIG, "the separator of '%s' is empty", reader->path);
    TRY(stream_open(reader->path, &stream));
    Status status = read_documents(&documents, stream, &text);
    stream_close(stream);
    str_release(&text);
    return status;
}

const Container container_txt = {.name = "txt", .endings = {".txt"}, .packed = true, .unit = "line", .read = read_text};
