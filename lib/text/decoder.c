/* SPDX-License-Identifier: Apache-2.0 */
/* Converts ids back to text. The steps form a chain through which tokens pass one at a time, so that decoding a list and decoding a stream are the
 * same code: a step holds back what it cannot decide yet.
 *
 * After a step that joins all tokens (Fuse, ByteLevel) there is only one token. It passes in parts; the first part has `begins` set and the last
 * `ends`. A part never ends inside a character. */
#include <stdlib.h>
#include <string.h>

#include "lib/text/tokenizer_parts.h"

typedef enum DecodeKind {
    DECODE_BYTE_LEVEL,
    DECODE_BYTE_FALLBACK,
    DECODE_FUSE,
    DECODE_STRIP,
    DECODE_REPLACE,
    DECODE_METASPACE,
    DECODE_BPE,
    DECODE_WORD_PIECE,
    DECODE_CTC
} DecodeKind;
struct DecodeStep {
    DecodeKind kind;
    Pattern *pattern; /* DECODE_REPLACE */
    /* DECODE_REPLACE: the replacement; DECODE_STRIP, DECODE_METASPACE: the character; DECODE_BPE: the suffix; DECODE_WORD_PIECE: the prefix;
     * DECODE_CTC: the padding */
    Slice content;
    Slice space;        /* DECODE_CTC: the token that means a space */
    size_t start, stop; /* DECODE_STRIP: maximum number at the start and the end */
    bool prepended;     /* DECODE_METASPACE: marks in the first token are not spaces */
    bool cleanup;       /* DECODE_WORD_PIECE, DECODE_CTC: removes spaces before English punctuation and contractions */
};

/* State of one step: bytes held back, the previous token (DECODE_CTC), the number of tokens so far, and the number of characters stripped from the
 * current token. */
typedef struct StepState {
    Str held, last;
    size_t index, stripped;
    bool stripping;
} StepState;
struct DecodeState {
    const Tokenizer *tokenizer;
    Matcher matcher;
    StepState *steps;
    Str *out;
    Status status;
};

typedef struct Part {
    const char *data;
    size_t len;
    bool begins, ends;
} Part;
static void flow(DecodeState *state, size_t at, Part part);

static void flow_token(DecodeState *state, size_t at, const char *data, size_t len) { flow(state, at, (Part){data, len, true, true}); }

/* ---- steps ---- */

/* Joins all tokens into one: the first part begins it and only the finish ends it. */
static void fuse(DecodeState *state, size_t at, Part part) {
    StepState *step = &state->steps[at];
    flow(state, at + 1, (Part){part.data, part.len, step->index++ == 0, false});
}

static void byte_level(DecodeState *state, size_t at, Part part) {
    StepState *step = &state->steps[at];
    size_t old = step->held.len;
    for (size_t i = 0; i < part.len;) {
        uint32_t c;
        uint8_t byte;
        i += char_next(part.data + i, &c);
        if (byte_of_char(c, &byte)) {
            str_append_char(&step->held, (char)byte);
            continue;
        }
        step->held.len = old; /* a token with a character outside the alphabet is used unchanged */
        str_append_n(&step->held, part.data, part.len);
        break;
    }
    size_t whole = utf8_whole_prefix(str_text(&step->held), step->held.len);
    if (whole == 0) return;
    Str text = {0};
    str_append_lossy(&text, step->held.data, whole);
    fuse(state, at, (Part){text.data, text.len, true, false});
    str_release(&text);
    memmove(step->held.data, step->held.data + whole, step->held.len - whole + 1);
    step->held.len -= whole;
}

static int hex_value(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* A run of byte tokens is decoded as a unit: one invalid byte invalidates the entire run. */
static void bytes_release(DecodeState *state, size_t at) {
    StepState *step = &state->steps[at];
    if (step->held.len == 0) return;
    if (utf8_fault(step->held.data, step->held.len) == step->held.len)
        flow_token(state, at + 1, step->held.data, step->held.len);
    else
        for (size_t i = 0; i < step->held.len; i++) flow_token(state, at + 1, "\xEF\xBF\xBD", 3);
    str_clear(&step->held);
}

static void byte_fallback(DecodeState *state, size_t at, Part part) {
    const char *t = part.data;
    if (part.begins && part.ends && part.len == 6 && memcmp(t, "<0x", 3) == 0 && t[5] == '>' && hex_value(t[3]) >= 0 && hex_value(t[4]) >= 0) {
        str_append_char(&state->steps[at].held, (char)(hex_value(t[3]) << 4 | hex_value(t[4])));
        return;
    }
    bytes_release(state, at);
    flow(state, at + 1, part);
}

/* The characters to strip at the end are held back until the token ends or another character follows. */
static void decoder_strip(DecodeState *state, size_t at, Part part) {
    const DecodeStep *rule = &state->tokenizer->decoder.steps[at];
    StepState *step = &state->steps[at];
    Slice c = rule->content;
    if (part.begins) {
        step->stripped = 0;
        step->stripping = rule->start > 0;
    }
    while (step->stripping && part.len > 0) {
        if (step->stripped == rule->start || part.len < c.len || memcmp(part.data, c.data, c.len) != 0) {
            step->stripping = false;
            break;
        }
        part.data += c.len;
        part.len -= c.len;
        step->stripped++;
    }
    if (rule->stop == 0) {
        flow(state, at + 1, part);
        return;
    }
    str_append_n(&step->held, part.data, part.len);
    size_t tail = step->held.len, n = 0;
    for (; n < rule->stop && tail >= c.len && memcmp(step->held.data + tail - c.len, c.data, c.len) == 0; n++) tail -= c.len;
    flow(state, at + 1, (Part){str_text(&step->held), tail, part.begins, part.ends});
    if (part.ends) tail = step->held.len;
    memmove(step->held.data, step->held.data + tail, step->held.len - tail + 1);
    step->held.len -= tail;
}

static Status replace_all(DecodeState *state, const DecodeStep *rule, const char *data, size_t len, Str *out) {
    size_t done = 0, from = 0, start, end;
    bool found;
    while (from <= len) {
        TRY(pattern_find(rule->pattern, &state->matcher, data, len, from, &found, &start, &end));
        if (!found) break;
        uint32_t c;
        from = end;
        if (start == end) from += end < len ? char_next(data + end, &c) : 1;
        if (start == end && start == done && done > 0) continue;
        str_append_n(out, data + done, start - done);
        str_append_n(out, rule->content.data, rule->content.len);
        done = end;
    }
    str_append_n(out, data + done, len - done);
    return ST_OK;
}

/* A token that arrives in parts can be replaced part by part only if no match spans two parts, that is if the pattern is one character. */
static void replace(DecodeState *state, size_t at, Part part) {
    const DecodeStep *rule = &state->tokenizer->decoder.steps[at];
    StepState *step = &state->steps[at];
    uint32_t c;
    bool local = rule->pattern->literal.len > 0 && char_next(rule->pattern->literal.data, &c) == rule->pattern->literal.len;
    if (!local) {
        str_append_n(&step->held, part.data, part.len);
        if (!part.ends) return;
        part = (Part){str_text(&step->held), step->held.len, true, true};
    }
    Str text = {0};
    Status status = replace_all(state, rule, part.data, part.len, &text);
    if (state->status == ST_OK) state->status = status;
    flow(state, at + 1, (Part){str_text(&text), text.len, part.begins, part.ends});
    str_release(&text);
    str_clear(&step->held);
}

static void metaspace(DecodeState *state, size_t at, Part part) {
    const DecodeStep *rule = &state->tokenizer->decoder.steps[at];
    StepState *step = &state->steps[at];
    Slice mark = rule->content;
    bool first = step->index == 0 && rule->prepended;
    Str text = {0};
    for (size_t i = 0; i < part.len;) {
        const char *hit = memmem(part.data + i, part.len - i, mark.data, mark.len);
        size_t end = hit ? (size_t)(hit - part.data) : part.len;
        str_append_n(&text, part.data + i, end - i);
        if (hit && !first) str_append_char(&text, ' ');
        i = hit ? end + mark.len : end;
    }
    flow(state, at + 1, (Part){str_text(&text), text.len, part.begins, part.ends});
    step->index += part.ends;
    str_release(&text);
}

/* The suffix becomes a space, except in the last token, where it becomes nothing: each token waits for the next one. */
static void bpe_release(DecodeState *state, size_t at, const char *space) {
    Slice suffix = state->tokenizer->decoder.steps[at].content;
    StepState *step = &state->steps[at];
    Str text = {0};
    for (size_t i = 0; i < step->held.len;) {
        const char *hit = suffix.len ? memmem(step->held.data + i, step->held.len - i, suffix.data, suffix.len) : NULL;
        size_t end = hit ? (size_t)(hit - step->held.data) : step->held.len;
        str_append_n(&text, step->held.data + i, end - i);
        if (hit) str_append(&text, space);
        i = hit ? end + suffix.len : end;
    }
    str_clear(&step->held);
    flow_token(state, at + 1, str_text(&text), text.len);
    str_release(&text);
}

static void bpe(DecodeState *state, size_t at, Part part) {
    StepState *step = &state->steps[at];
    if (part.begins && step->index++ > 0) bpe_release(state, at, " ");
    str_append_n(&step->held, part.data, part.len);
}

/* Replaces every `from` with `to`. */
static void text_replace(Str *text, Slice from, const char *to) {
    Str result = {0};
    size_t done = 0;
    for (const char *hit; from.len > 0 && (hit = memmem(str_text(text) + done, text->len - done, from.data, from.len)) != NULL;) {
        size_t at = (size_t)(hit - text->data);
        str_append_n(&result, text->data + done, at - done);
        str_append(&result, to);
        done = at + from.len;
    }
    str_append_n(&result, str_text(text) + done, text->len - done);
    str_release(text);
    *text = result;
}

static void english_cleanup(Str *text) {
    static const char *const pairs[][2] = {{" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
                                           {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < COUNT_OF(pairs); i++) text_replace(text, (Slice){pairs[i][0], strlen(pairs[i][0])}, pairs[i][1]);
}

static void word_piece(DecodeState *state, size_t at, Part part) {
    const DecodeStep *rule = &state->tokenizer->decoder.steps[at];
    StepState *step = &state->steps[at];
    str_append_n(&step->held, part.data, part.len);
    if (!part.ends) return;
    Slice token = {str_text(&step->held), step->held.len};
    bool inside = token.len >= rule->content.len && memcmp(token.data, rule->content.data, rule->content.len) == 0;
    Str text = {0};
    if (step->index++ > 0 && inside)
        token = (Slice){token.data + rule->content.len, token.len - rule->content.len};
    else if (step->index > 1)
        str_append_char(&text, ' ');
    str_append_n(&text, token.data, token.len);
    if (rule->cleanup) english_cleanup(&text);
    flow_token(state, at + 1, str_text(&text), text.len);
    str_release(&text);
    str_clear(&step->held);
}

/* Keeps one of several equal tokens in a row; padding only separates them. */
static void ctc(DecodeState *state, size_t at, Part part) {
    const DecodeStep *rule = &state->tokenizer->decoder.steps[at];
    StepState *step = &state->steps[at];
    str_append_n(&step->held, part.data, part.len);
    if (!part.ends) return;
    bool again = step->index++ > 0 && step->held.len == step->last.len && memcmp(str_text(&step->held), str_text(&step->last), step->held.len) == 0;
    str_clear(&step->last);
    str_append_n(&step->last, str_text(&step->held), step->held.len);
    if (!again) {
        text_replace(&step->held, rule->content, "");
        if (rule->cleanup) {
            english_cleanup(&step->held);
            text_replace(&step->held, rule->space, " ");
        }
        if (step->held.len > 0) flow_token(state, at + 1, step->held.data, step->held.len);
    }
    str_clear(&step->held);
}

/* ---- the chain ---- */

static void flow(DecodeState *state, size_t at, Part part) {
    const Decoder *decoder = &state->tokenizer->decoder;
    if (at == decoder->n) {
        str_append_n(state->out, part.data, part.len);
        return;
    }
    switch (decoder->steps[at].kind) {
    case DECODE_BYTE_LEVEL: byte_level(state, at, part); break;
    case DECODE_BYTE_FALLBACK: byte_fallback(state, at, part); break;
    case DECODE_FUSE: fuse(state, at, part); break;
    case DECODE_STRIP: decoder_strip(state, at, part); break;
    case DECODE_REPLACE: replace(state, at, part); break;
    case DECODE_METASPACE: metaspace(state, at, part); break;
    case DECODE_BPE: bpe(state, at, part); break;
    case DECODE_WORD_PIECE: word_piece(state, at, part); break;
    case DECODE_CTC: ctc(state, at, part); break;
    }
}

/* No more tokens come: each step releases what it holds back, beginning with the first. */
static void flow_end(DecodeState *state) {
    for (size_t at = 0; at < state->tokenizer->decoder.n; at++) {
        StepState *step = &state->steps[at];
        switch (state->tokenizer->decoder.steps[at].kind) {
        case DECODE_BYTE_LEVEL:
        case DECODE_FUSE: {
            Str text = {0};
            str_append_lossy(&text, str_text(&step->held), step->held.len);
            flow(state, at + 1, (Part){str_text(&text), text.len, step->index++ == 0, true});
            str_release(&text);
            break;
        }
        case DECODE_BYTE_FALLBACK: bytes_release(state, at); break;
        case DECODE_BPE:
            if (step->index > 0) bpe_release(state, at, "");
            break;
        default: break;
        }
    }
}

DecodeState *decode_new(const Tokenizer *tokenizer) {
    DecodeState *state = calloc(1, sizeof *state);
    StepState *steps = calloc(tokenizer->decoder.n + 1, sizeof *steps);
    if (!state || !steps) {
        free(state);
        free(steps);
        status_fail(ST_RESOURCE, "no memory to decode tokens");
        return NULL;
    }
    state->tokenizer = tokenizer;
    state->steps = steps;
    return state;
}

void decode_free(DecodeState *state) {
    if (!state) return;
    for (size_t i = 0; i < state->tokenizer->decoder.n; i++) {
        str_release(&state->steps[i].held);
        str_release(&state->steps[i].last);
    }
    matcher_release(&state->matcher);
    free(state->steps);
    free(state);
}

Status decode_push(DecodeState *state, int32_t id, bool skip_special, Str *text) {
    const Tokenizer *tokenizer = state->tokenizer;
    if (!tokenizer_token(tokenizer, id) || (skip_special && tokenizer->added.special[id])) return ST_OK;
    state->out = text;
    if (tokenizer->decoder.missing && state->steps[0].index++ > 0) str_append_char(text, ' ');
    Slice part = tokenizer->vocabulary.tokens[id];
    if (tokenizer->added.decoded && tokenizer->added.decoded[id].data) part = tokenizer->added.decoded[id];
    flow_token(state, 0, part.data, part.len);
    return state->status;
}

Status decode_finish(DecodeState *state, Str *text) {
    state->out = text;
    flow_end(state);
    return state->status;
}

Status tokenizer_decode(const Tokenizer *tokenizer, const int32_t *ids, size_t n, bool skip_special, Str *text) {
    DecodeState *state = decode_new(tokenizer);
    if (!state) return ST_RESOURCE;
    size_t start = text->len;
    Status status = ST_OK;
    for (size_t i = 0; i < n; i++) TRY_GOTO(decode_push(state, ids[i], skip_special, text), done);
    status = decode_finish(state, text);
done:
    if (status != ST_OK && text->data) text->data[text->len = start] = '\0';
    decode_free(state);
    return status;
}

/* ---- bytes of single tokens ---- */

static bool is_one_character(Slice text) {
    uint32_t c;
    return text.len > 0 && char_next(text.data, &c) == text.len;
}

const char *tokenizer_joins(const Tokenizer *tokenizer, bool *strips) {
    const Decoder *decoder = &tokenizer->decoder;
    bool joined = false;
    *strips = false;
    if (decoder->missing) return "no decoder";
    for (size_t i = 0; i < decoder->n; i++) {
        const DecodeStep *step = &decoder->steps[i];
        switch (step->kind) {
        case DECODE_BYTE_LEVEL:
        case DECODE_FUSE: joined = true; break;
        case DECODE_BYTE_FALLBACK: break;
        case DECODE_METASPACE: *strips |= step->prepended; break;
        case DECODE_STRIP:
            if (!joined || step->stop > 0 || step->start > 1 || !slice_is(step->content, " ")) return "Strip";
            *strips |= step->start > 0;
            break;
        case DECODE_REPLACE:
            if (step->pattern->code || !is_one_character(step->pattern->literal)) return "Replace";
            break;
        case DECODE_BPE: return "BPEDecoder";
        case DECODE_WORD_PIECE: return "WordPiece";
        case DECODE_CTC: return "CTC";
        }
    }
    return NULL;
}

static void bytes_of_level(Str *bytes) {
    Str text = {0};
    for (size_t i = 0; i < bytes->len;) {
        uint32_t c;
        uint8_t byte;
        i += char_next(bytes->data + i, &c);
        if (!byte_of_char(c, &byte)) { /* a token with a character outside the alphabet is used unchanged */
            str_release(&text);
            return;
        }
        str_append_char(&text, (char)byte);
    }
    str_release(bytes);
    *bytes = text;
}

void tokenizer_token_bytes(const Tokenizer *tokenizer, int32_t id, Str *bytes) {
    const Decoder *decoder = &tokenizer->decoder;
    if (!tokenizer_token(tokenizer, id)) return;
    Slice part = tokenizer->vocabulary.tokens[id];
    if (tokenizer->added.decoded && tokenizer->added.decoded[id].data) part = tokenizer->added.decoded[id];
    Str text = {0};
    str_append_n(&text, part.data, part.len);
    for (size_t i = 0; i < decoder->n; i++) {
        const DecodeStep *step = &decoder->steps[i];
        if (step->kind == DECODE_BYTE_LEVEL) bytes_of_level(&text);
        if (step->kind == DECODE_METASPACE) text_replace(&text, step->content, " ");
        if (step->kind == DECODE_REPLACE) {
            Str with = {0};
            str_append_n(&with, step->content.data, step->content.len);
            text_replace(&text, step->pattern->literal, str_text(&with));
            str_release(&with);
        }
        const char *t = str_text(&text);
        bool byte = step->kind == DECODE_BYTE_FALLBACK && text.len == 6 && memcmp(t, "<0x", 3) == 0 && t[5] == '>';
        if (byte && hex_value(t[3]) >= 0 && hex_value(t[4]) >= 0) {
            char value = (char)(hex_value(t[3]) << 4 | hex_value(t[4]));
            str_clear(&text);
            str_append_char(&text, value);
            break; /* what follows changes texts, not bytes */
        }
    }
    str_append_n(bytes, str_text(&text), text.len);
    str_release(&text);
}

/* ---- loading ---- */

static Status slice_read(Loader *loader, const char *text, Slice *slice) {
    *slice = (Slice){arena_strdup(loader->arena, text), strlen(text)};
    return slice->data ? ST_OK : ST_RESOURCE;
}

static Status count_read(const Loader *loader, const json_t *node, const char *key, size_t *count) {
    int64_t value = 0;
    TRY(json_get_int(node, loader->path, key, &value));
    if (value < 0) return status_fail(ST_INPUT, "wrong '%s' of a decoder in '%s': %lld", key, loader->path, (long long)value);
    *count = (size_t)value;
    return ST_OK;
}

static Status strip_init(Loader *loader, DecodeStep *step, const json_t *node) {
    const char *text;
    TRY(part_char(loader, node, "content", &text));
    TRY(count_read(loader, node, "start", &step->start));
    TRY(count_read(loader, node, "stop", &step->stop));
    return slice_read(loader, text, &step->content);
}

static Status replace_init(Loader *loader, DecodeStep *step, const json_t *node) {
    const char *text;
    TRY(part_string(loader, node, "content", &text));
    TRY(pattern_from_json(loader, json_object_get(node, "pattern"), &step->pattern));
    return slice_read(loader, text, &step->content);
}

static Status metaspace_init(Loader *loader, DecodeStep *step, const json_t *node) {
    const char *text, *scheme = NULL;
    TRY(part_char(loader, node, "replacement", &text));
    TRY(part_bool(loader, node, "add_prefix_space", true, &step->prepended));
    TRY(json_get_string(node, loader->path, "prepend_scheme", &scheme));
    if (scheme) step->prepended = strcmp(scheme, "never") != 0;
    return slice_read(loader, text, &step->content);
}

static Status suffix_init(Loader *loader, DecodeStep *step, const json_t *node) {
    const char *text = "</w>";
    TRY(json_get_string(node, loader->path, "suffix", &text));
    return slice_read(loader, text, &step->content);
}

static Status word_piece_decoder_init(Loader *loader, DecodeStep *step, const json_t *node) {
    const char *text = "##";
    TRY(json_get_string(node, loader->path, "prefix", &text));
    TRY(part_bool(loader, node, "cleanup", true, &step->cleanup));
    return slice_read(loader, text, &step->content);
}

static Status ctc_init(Loader *loader, DecodeStep *step, const json_t *node) {
    const char *padding = "<pad>", *space = "|";
    TRY(json_get_string(node, loader->path, "pad_token", &padding));
    TRY(json_get_string(node, loader->path, "word_delimiter_token", &space));
    TRY(part_bool(loader, node, "cleanup", true, &step->cleanup));
    TRY(slice_read(loader, padding, &step->content));
    return slice_read(loader, space, &step->space);
}

static Status step_init(Loader *loader, DecodeStep *step, const json_t *node) {
    static const struct {
        const char *name;
        DecodeKind kind;
        Status (*init)(Loader *loader, DecodeStep *step, const json_t *node);
    } kinds[] = {
        {"ByteLevel", DECODE_BYTE_LEVEL, NULL},
        {"ByteFallback", DECODE_BYTE_FALLBACK, NULL},
        {"Fuse", DECODE_FUSE, NULL},
        {"Strip", DECODE_STRIP, strip_init},
        {"Replace", DECODE_REPLACE, replace_init},
        {"Metaspace", DECODE_METASPACE, metaspace_init},
        {"BPEDecoder", DECODE_BPE, suffix_init},
        {"WordPiece", DECODE_WORD_PIECE, word_piece_decoder_init},
        {"CTC", DECODE_CTC, ctc_init},
    };
    const char *type;
    TRY(part_string(loader, node, "type", &type));
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if (strcmp(kinds[i].name, type) != 0) continue;
        step->kind = kinds[i].kind;
        return kinds[i].init ? kinds[i].init(loader, step, node) : ST_OK;
    }
    return part_unknown(loader, "decoder", type);
}

Status decoder_init(Loader *loader, Decoder *decoder, const json_t *node) {
    const json_t **parts;
    TRY(section_flatten(loader, "decoder", node, "decoders", &parts, &decoder->n));
    decoder->steps = arena_zero(loader->arena, (decoder->n + 1) * sizeof *decoder->steps);
    if (!decoder->steps) return ST_RESOURCE;
    decoder->missing = !node || json_is_null(node);
    bool joined = false;
    for (size_t i = 0; i < decoder->n; i++) {
        TRY(step_init(loader, &decoder->steps[i], parts[i]));
        DecodeKind kind = decoder->steps[i].kind;
        if (joined && (kind == DECODE_BYTE_LEVEL || kind == DECODE_BYTE_FALLBACK || kind == DECODE_BPE))
            return status_fail(ST_INPUT, "decoder %zu in '%s' works on single tokens but follows one that joins them all, which is not supported",
                               i + 1, loader->path);
        joined |= kind == DECODE_FUSE || kind == DECODE_BYTE_LEVEL;
    }
    return ST_OK;
}
