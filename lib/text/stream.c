/* Decoding while ids still arrive. The text of a window of ids is compared with what was known of it before; a window begins where a whole character ended, one step back, so
 * that decoders that treat the first token in a special way see the same neighbours as in the whole. */
#include <string.h>

#include "lib/text/text.h"

void stream_init(TextStream *stream, const Tokenizer *tokenizer, bool skip_special) { *stream = (TextStream){.tokenizer = tokenizer, .skip_special = skip_special}; }

/* Appends what ids[prefix..] says beyond ids[prefix..read]; unless `all`, text that may still change (a cut character) is held back. */
static Status advance(TextStream *stream, bool all, Str *text) {
    Str before = {0}, after = {0};
    const int32_t *ids = stream->ids.data + stream->prefix;
    Status status = tokenizer_decode(stream->tokenizer, ids, stream->read - stream->prefix, stream->skip_special, &before);
    if (status == ST_OK) status = tokenizer_decode(stream->tokenizer, ids, stream->ids.n - stream->prefix, stream->skip_special, &after);
    bool whole = all || !text_ends_with(str_text(&after), "\xef\xbf\xbd");
    if (status == ST_OK && whole && after.len > before.len) {
        str_append_n(text, after.data + before.len, after.len - before.len);
        stream->prefix = stream->read;
        stream->read = stream->ids.n;
    }
    str_release(&before);
    str_release(&after);
    return status;
}

Status stream_push(TextStream *stream, int32_t id, Str *text) {
    ids_push(&stream->ids, id);
    return advance(stream, false, text);
}

Status stream_finish(TextStream *stream, Str *text) { return stream->ids.n ? advance(stream, true, text) : ST_OK; }

void stream_release(TextStream *stream) { ids_release(&stream->ids); }
