/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes ids as they arrive. */
#include "lib/text/tokenizer_parts.h"

void stream_init(TextStream *stream, const Tokenizer *tokenizer, bool skip_special) {
    *stream = (TextStream){.tokenizer = tokenizer, .skip_special = skip_special};
}

Status stream_push(TextStream *stream, int32_t id, Str *text) {
    if (!stream->state && !(stream->state = decode_new(stream->tokenizer))) return ST_RESOURCE;
    return decode_push(stream->state, id, stream->skip_special, text);
}

Status stream_finish(TextStream *stream, Str *text) {
    if (!stream->state) return ST_OK;
    Status status = decode_finish(stream->state, text);
    stream_release(stream);
    return status;
}

void stream_release(TextStream *stream) {
    decode_free(stream->state);
    stream->state = NULL;
}
