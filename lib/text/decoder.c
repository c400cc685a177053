/* Decoders: from tokens back to text, a list of pieces that each step rewrites. */
#include <stdlib.h>
#include <string.h>

#include "lib/text/tokenizer_parts.h"

static Status read_one(const json_t *json, const char *where, Arena *arena, Decoder *decoder) {
    const char *type = part_type(json), *content = "";
    if (!strcmp(type, "ByteLevel")) {
        decoder->kind = DECODE_BYTE_LEVEL;
    } else if (!strcmp(type, "ByteFallback")) {
        decoder->kind = DECODE_BYTE_FALLBACK;
    } else if (!strcmp(type, "Fuse")) {
        decoder->kind = DECODE_FUSE;
    } else if (!strcmp(type, "Replace")) {
        decoder->kind = DECODE_REPLACE;
        TRY(pattern_read(json_object_get(json, "pattern"), where, &decoder->pattern));
        TRY(json_get_string(json, where, "content", &content));
    } else if (!strcmp(type, "Strip")) {
        decoder->kind = DECODE_STRIP;
        TRY(json_get_string(json, where, "content", &content));
        TRY(json_get_int(json, where, "start", &decoder->start));
        TRY(json_get_int(json, where, "stop", &decoder->stop));
    } else if (!strcmp(type, "Metaspace")) {
        PrependScheme scheme;
        decoder->kind = DECODE_METASPACE;
        content = "\xe2\x96\x81";
        TRY(json_get_string(json, where, "replacement", &content));
        if (!prepend_scheme_read(json, &scheme)) return unknown_part(where, "prepend scheme", json_string_value(json_object_get(json, "prepend_scheme")));
        decoder->drop_first = scheme != PREPEND_NEVER;
    } else if (!strcmp(type, "BPEDecoder")) {
        decoder->kind = DECODE_BPE;
        content = "</w>";
        TRY(json_get_string(json, where, "suffix", &content));
    } else {
        return unknown_part(where, "decoder", type);
    }
    decoder->content = arena_strdup(arena, content);
    return decoder->content ? ST_OK : ST_RESOURCE;
}

Status decoders_read(const json_t *json, const char *where, Arena *arena, Decoders *decoders) {
    decoders->none = !json || json_is_null(json);
    if (decoders->none) return ST_OK;
    bool sequence = !strcmp(part_type(json), "Sequence");
    const json_t *list = sequence ? json_object_get(json, "decoders") : NULL;
    if (sequence && !json_is_array(list)) return status_fail(ST_INPUT, "the decoder sequence of '%s' has no list", where);
    size_t n = sequence ? json_array_size(list) : 1;
    decoders->items = arena_zero(arena, (n + 1) * sizeof *decoders->items);
    if (!decoders->items) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) {
        decoders->n = i + 1;
        TRY(read_one(sequence ? json_array_get(list, i) : json, where, arena, &decoders->items[i]));
    }
    return ST_OK;
}

void decoders_release(Decoders *decoders) {
    for (size_t i = 0; i < decoders->n; i++) pattern_release(&decoders->items[i].pattern);
}

/* ---- pieces: one buffer, cut into pieces ---- */

typedef struct Pieces { Str bytes; size_t *ends; size_t n, cap; } Pieces;

static void end_piece(Pieces *pieces) {
    if (pieces->n == pieces->cap) {
        size_t cap = pieces->cap ? pieces->cap * 2 : 64;
        size_t *grown = realloc(pieces->ends, cap * sizeof *grown);
        ASSERT(grown, "out of memory for %zu pieces", cap);
        pieces->ends = grown;
        pieces->cap = cap;
    }
    pieces->ends[pieces->n++] = pieces->bytes.len;
}

static Slice piece_at(const Pieces *pieces, size_t i) {
    size_t begin = i ? pieces->ends[i - 1] : 0;
    return (Slice){str_text(&pieces->bytes) + begin, pieces->ends[i] - begin};
}

/* Adds bytes; those that make no whole character become U+FFFD, one for each longest part of a character that can't be completed. */
static void add_lossy(Str *out, const char *bytes, size_t len) {
    for (size_t at = 0; at < len;) {
        uint32_t c;
        size_t n = utf8_decode(bytes + at, len - at, &c);
        if (n) {
            str_append_n(out, bytes + at, n);
            at += n;
            continue;
        }
        uint8_t lead = (uint8_t)bytes[at];
        size_t wanted = lead >= 0xf0 && lead <= 0xf4 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 && lead < 0xe0 ? 2 : 1;
        if (lead > 0xf4) wanted = 1;
        n = 1;
        while (n < wanted && at + n < len) {
            uint8_t b = (uint8_t)bytes[at + n], low = 0x80, high = 0xbf;
            if (n == 1 && lead == 0xe0) low = 0xa0;
            if (n == 1 && lead == 0xed) high = 0x9f;
            if (n == 1 && lead == 0xf0) low = 0x90;
            if (n == 1 && lead == 0xf4) high = 0x8f;
            if (b < low || b > high) break;
            n++;
        }
        str_append(out, "\xef\xbf\xbd");
        at += n;
    }
}

static void byte_level(const Pieces *in, Pieces *out) {
    Str bytes = {0};
    for (size_t i = 0; i < in->n; i++) {
        Slice piece = piece_at(in, i);
        size_t start = bytes.len;
        for (size_t at = 0; at < piece.len;) {
            uint32_t c;
            size_t n = utf8_decode(piece.data + at, piece.len - at, &c);
            int byte = n ? char_to_byte(c) : -1;
            if (byte < 0) { /* an added token that is no byte-level text is taken as it is */
                bytes.len = start;
                str_append_n(&bytes, piece.data, piece.len);
                break;
            }
            str_append_char(&bytes, (char)byte);
            at += n;
        }
    }
    add_lossy(&out->bytes, str_text(&bytes), bytes.len);
    end_piece(out);
    str_release(&bytes);
}

static Status replace(const Decoder *decoder, const Pieces *in, Pieces *out) {
    for (size_t i = 0; i < in->n; i++) {
        Slice piece = piece_at(in, i);
        size_t at = 0;
        for (;;) {
            Range match;
            bool found;
            TRY(pattern_find(&decoder->pattern, piece.data, piece.len, at, &match, &found));
            if (!found || match.begin == match.end) break;
            str_append_n(&out->bytes, piece.data + at, match.begin - at);
            str_append(&out->bytes, decoder->content);
            at = match.end;
        }
        str_append_n(&out->bytes, piece.data + at, piece.len - at);
        end_piece(out);
    }
    return ST_OK;
}

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

static int fallback_byte(Slice piece) {
    if (piece.len != 6 || memcmp(piece.data, "<0x", 3) != 0 || piece.data[5] != '>') return -1;
    int high = hex_digit(piece.data[3]), low = hex_digit(piece.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static void flush_bytes(Str *bytes, Pieces *out) {
    if (bytes->len == 0) return;
    bool valid = true;
    uint32_t c;
    for (size_t at = 0, n; valid && at < bytes->len; at += n) {
        n = utf8_decode(bytes->data + at, bytes->len - at, &c);
        valid = n > 0;
    }
    if (valid) {
        str_append_n(&out->bytes, bytes->data, bytes->len);
        end_piece(out);
    }
    for (size_t i = 0; !valid && i < bytes->len; i++) {
        str_append(&out->bytes, "\xef\xbf\xbd");
        end_piece(out);
    }
    str_clear(bytes);
}

static void byte_fallback(const Pieces *in, Pieces *out) {
    Str bytes = {0};
    for (size_t i = 0; i < in->n; i++) {
        Slice piece = piece_at(in, i);
        int byte = fallback_byte(piece);
        if (byte >= 0) {
            str_append_char(&bytes, (char)byte);
            continue;
        }
        flush_bytes(&bytes, out);
        str_append_n(&out->bytes, piece.data, piece.len);
        end_piece(out);
    }
    flush_bytes(&bytes, out);
    str_release(&bytes);
}

static void strip(const Decoder *decoder, const Pieces *in, Pieces *out) {
    size_t unit = strlen(decoder->content);
    for (size_t i = 0; i < in->n; i++) {
        Slice piece = piece_at(in, i);
        for (int64_t k = 0; unit && k < decoder->start && piece.len >= unit && !memcmp(piece.data, decoder->content, unit); k++) piece.data += unit, piece.len -= unit;
        for (int64_t k = 0; unit && k < decoder->stop && piece.len >= unit && !memcmp(piece.data + piece.len - unit, decoder->content, unit); k++) piece.len -= unit;
        str_append_n(&out->bytes, piece.data, piece.len);
        end_piece(out);
    }
}

static void metaspace(const Decoder *decoder, const Pieces *in, Pieces *out) {
    size_t unit = strlen(decoder->content);
    for (size_t i = 0; i < in->n; i++) {
        Slice piece = piece_at(in, i);
        for (size_t at = 0; at < piece.len;) {
            bool mark = piece.len - at >= unit && !memcmp(piece.data + at, decoder->content, unit);
            if (!mark) str_append_char(&out->bytes, piece.data[at]);
            else if (i > 0 || !decoder->drop_first) str_append_char(&out->bytes, ' ');
            at += mark ? unit : 1;
        }
        end_piece(out);
    }
}

static void end_of_word(const Decoder *decoder, const Pieces *in, Pieces *out) {
    size_t unit = strlen(decoder->content);
    for (size_t i = 0; i < in->n; i++) {
        Slice piece = piece_at(in, i);
        for (size_t at = 0; at < piece.len;) {
            bool mark = unit && piece.len - at >= unit && !memcmp(piece.data + at, decoder->content, unit);
            if (!mark) str_append_char(&out->bytes, piece.data[at]);
            else if (i + 1 < in->n) str_append_char(&out->bytes, ' ');
            at += mark ? unit : 1;
        }
        end_piece(out);
    }
}

static Status run_one(const Decoder *decoder, const Pieces *in, Pieces *out) {
    switch (decoder->kind) {
    case DECODE_BYTE_LEVEL: byte_level(in, out); break;
    case DECODE_REPLACE: return replace(decoder, in, out);
    case DECODE_BYTE_FALLBACK: byte_fallback(in, out); break;
    case DECODE_FUSE:
        str_append_n(&out->bytes, str_text(&in->bytes), in->bytes.len);
        end_piece(out);
        break;
    case DECODE_STRIP: strip(decoder, in, out); break;
    case DECODE_METASPACE: metaspace(decoder, in, out); break;
    case DECODE_BPE: end_of_word(decoder, in, out); break;
    }
    return ST_OK;
}

Status decoders_run(const Decoders *decoders, const Slice *tokens, size_t n, Str *text) {
    Pieces pieces = {0}, next = {0};
    Status status = ST_OK;
    for (size_t i = 0; i < n; i++) {
        if (decoders->none && i > 0) str_append_char(&pieces.bytes, ' ');
        str_append_n(&pieces.bytes, tokens[i].data, tokens[i].len);
        end_piece(&pieces);
    }
    for (size_t i = 0; i < decoders->n && status == ST_OK; i++) {
        str_clear(&next.bytes);
        next.n = 0;
        status = run_one(&decoders->items[i], &pieces, &next);
        Pieces old = pieces;
        pieces = next;
        next = old;
    }
    if (status == ST_OK) str_append_n(text, str_text(&pieces.bytes), pieces.bytes.len);
    str_release(&pieces.bytes);
    str_release(&next.bytes);
    free(pieces.ends);
    free(next.ends);
    return status;
}
