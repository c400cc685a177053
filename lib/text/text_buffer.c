/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of an encoder: text between steps, with the part of the original that each byte comes from. */
#include <stdlib.h>
#include <string.h>

#include "lib/text/tokenizer_parts.h"

Origin text_origin(const Text *text, size_t start, size_t end) {
    if (!text->origins) return (Origin){(uint32_t)(text->base + start), (uint32_t)(text->base + end)};
    if (start == end) { /* an empty span between two bytes */
        uint32_t at = start < text->len ? text->origins[start].from : start > 0 ? text->origins[start - 1].to : 0;
        return (Origin){at, at};
    }
    return (Origin){text->origins[start].from, text->origins[end - 1].to};
}

static bool buffer_reserve(TextBuffer *buffer, size_t more) {
    static const char what[] = "bytes of a text";
    size_t need;
    if (!size_add(buffer->len, more, &need) || array_grow(&buffer->data, &buffer->cap, need, 1, what) != ST_OK ||
        (buffer->tracked && array_grow(&buffer->origins, &buffer->origins_cap, need, sizeof *buffer->origins, what) != ST_OK))
        buffer->full = true;
    return !buffer->full;
}

TextBuffer *encoder_buffer(Encoder *encoder, int pair) {
    encoder->current[pair] ^= 1;
    TextBuffer *buffer = &encoder->buffers[pair][encoder->current[pair]];
    buffer->tracked = encoder->tracked;
    buffer->len = 0;
    buffer->full = false;
    return buffer;
}

void buffer_put(TextBuffer *buffer, const char *bytes, size_t len, Origin origin) {
    if (!buffer_reserve(buffer, len)) return;
    if (len > 0) memcpy(buffer->data + buffer->len, bytes, len);
    if (buffer->tracked)
        for (size_t i = 0; i < len; i++) buffer->origins[buffer->len + i] = origin;
    buffer->len += len;
}

void buffer_copy(TextBuffer *buffer, const Text *text, size_t start, size_t end) {
    size_t len = end - start;
    if (len == 0 || !buffer_reserve(buffer, len)) return;
    memcpy(buffer->data + buffer->len, text->data + start, len);
    if (buffer->tracked)
        for (size_t i = 0; i < len; i++) buffer->origins[buffer->len + i] = text_origin(text, start + i, start + i + 1);
    buffer->len += len;
}

Status buffer_view(const TextBuffer *buffer, Text *text) {
    if (buffer->full) return ST_RESOURCE;
    *text = (Text){buffer->data ? buffer->data : "", buffer->len, buffer->tracked ? buffer->origins : NULL, 0};
    return ST_OK;
}

void spans_push(Spans *spans, size_t start, size_t end) {
    if (spans->n == spans->cap && array_grow(&spans->data, &spans->cap, spans->n + 1, sizeof *spans->data, "pieces of a text") != ST_OK) {
        spans->full = true;
        return;
    }
    spans->data[spans->n++] = (Span){start, end};
}

Encoder *encoder_acquire(const Tokenizer *tokenizer) {
    Tokenizer *shared = (Tokenizer *)tokenizer; /* the list of idle encoders is the only part that changes, and it does so atomically */
    for (size_t i = 0; i < IDLE_ENCODERS; i++) {
        Encoder *encoder = atomic_exchange(&shared->idle[i], NULL);
        if (encoder) return encoder;
    }
    Encoder *encoder = calloc(1, sizeof *encoder);
    if (!encoder) status_fail(ST_RESOURCE, "no memory to tokenize");
    return encoder;
}

void encoder_return(const Tokenizer *tokenizer, Encoder *encoder) {
    Tokenizer *shared = (Tokenizer *)tokenizer;
    for (size_t i = 0; i < IDLE_ENCODERS && encoder; i++) {
        Encoder *none = NULL;
        if (atomic_compare_exchange_strong(&shared->idle[i], &none, encoder)) encoder = NULL;
    }
    encoder_free(encoder);
}

void encoder_release(Encoder *encoder) {
    matcher_release(&encoder->matcher);
    for (size_t i = 0; i < 4; i++) {
        free(encoder->buffers[i / 2][i % 2].data);
        free(encoder->buffers[i / 2][i % 2].origins);
    }
    free(encoder->spans[0].data);
    free(encoder->spans[1].data);
    free(encoder->matches.data);
    free(encoder->symbols);
    free(encoder->heap);
    free(encoder->code_points);
    free(encoder->tokens);
    free(encoder->path);
    str_release(&encoder->scratch);
    cache_release(&encoder->cache);
}

void encoder_free(Encoder *encoder) {
    if (!encoder) return;
    encoder_release(encoder);
    free(encoder);
}
