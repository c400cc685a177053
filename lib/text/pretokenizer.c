/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts text into the pieces that the model then tokenizes one at a time. */
#include <string.h>

#include "lib/text/tokenizer_parts.h"

typedef enum Behavior { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_MERGED_WITH_PREVIOUS, SPLIT_MERGED_WITH_NEXT, SPLIT_CONTIGUOUS } Behavior;
typedef enum PreKind { PRE_PATTERN, PRE_CLASS, PRE_LENGTH, PRE_BYTES, PRE_METASPACE } PreKind;
enum { STEPS_OF_BERT = 2 };
typedef bool CharClass(uint32_t c);
typedef enum PrependScheme { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS } PrependScheme;
struct PreStep {
    PreKind kind;
    Behavior behavior;
    bool invert;
    Pattern *pattern;      /* PRE_PATTERN; PRE_BYTES: NULL without use_regex; PRE_METASPACE: NULL without split */
    CharClass *char_class; /* PRE_CLASS */
    size_t length;         /* PRE_LENGTH: characters in a piece */
    bool prefix_space;     /* PRE_BYTES */
    bool spelled;          /* PRE_BYTES: write bytes as characters, because more steps follow or the model needs text */
    Slice replacement;     /* PRE_METASPACE */
    PrependScheme scheme;
};

/* GPT-2's pattern, and that of `Whitespace`. */
#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define WHITESPACE_PATTERN "[\\w\\x{200c}\\x{200d}]+|[^\\w\\s\\x{200c}\\x{200d}]+" /* \w of Rust's regex, which includes joiners */

/* ---- cutting one piece ---- */

/* Collects the cuts of a piece and joins them as the behaviour says. It always holds one cut back, because the next one may join it. */
typedef struct Cutter {
    Spans *out;
    Behavior behavior;
    Span held;
    bool holding, held_match, last_match;
} Cutter;

static void cutter_release(Cutter *cutter) {
    if (cutter->holding && cutter->held.start < cutter->held.end) spans_push(cutter->out, cutter->held.start, cutter->held.end);
    cutter->holding = false;
}

static void cutter_hold(Cutter *cutter, Span span, bool match) {
    cutter_release(cutter);
    cutter->held = span;
    cutter->held_match = match;
    cutter->holding = true;
}

static void pretokenizer_cut(Cutter *cutter, size_t start, size_t end, bool match) {
    Span span = {start, end};
    switch (cutter->behavior) {
    case SPLIT_REMOVED:
        if (!match && start < end) spans_push(cutter->out, start, end);
        break;
    case SPLIT_ISOLATED:
        if (start < end) spans_push(cutter->out, start, end);
        break;
    case SPLIT_CONTIGUOUS:
        if (cutter->holding && cutter->held_match == match)
            cutter->held.end = end;
        else
            cutter_hold(cutter, span, match);
        break;
    case SPLIT_MERGED_WITH_PREVIOUS:
        if (match && !cutter->last_match && cutter->holding)
            cutter->held.end = end;
        else
            cutter_hold(cutter, span, match);
        break;
    case SPLIT_MERGED_WITH_NEXT: /* the last of several consecutive matches joins what follows */
        if (!match && cutter->holding && cutter->held_match) {
            cutter->held.end = end;
            cutter->held_match = false;
        } else {
            cutter_hold(cutter, span, match);
        }
        break;
    }
    cutter->last_match = match;
}

static Status cut_by_pattern(const PreStep *step, Encoder *encoder, const Text *text, Span piece, Spans *out) {
    const char *data = text->data + piece.start;
    size_t len = piece.end - piece.start, done = 0, from = 0, start, end;
    Cutter cutter = {.out = out, .behavior = step->behavior};
    bool found, any = false;
    while (from <= len) {
        TRY(pattern_find(step->pattern, &encoder->matcher, data, len, from, &found, &start, &end));
        if (!found) break;
        uint32_t c;
        bool again = any && start == end && end == done; /* an empty match directly after the last match does not count */
        from = end;
        if (again) from = end < len ? end + char_next(data + end, &c) : len + 1;
        if (again) continue;
        if (done < start) pretokenizer_cut(&cutter, piece.start + done, piece.start + start, step->invert);
        pretokenizer_cut(&cutter, piece.start + start, piece.start + end, !step->invert);
        done = end;
        any = true;
    }
    if (done < len) pretokenizer_cut(&cutter, piece.start + done, piece.end, step->invert);
    cutter_release(&cutter);
    return ST_OK;
}

static void cut_by_class(const PreStep *step, const Text *text, Span piece, Spans *out) {
    Cutter cutter = {.out = out, .behavior = step->behavior};
    size_t done = piece.start;
    for (size_t i = piece.start, used; i < piece.end; i += used) {
        uint32_t c;
        used = char_next(text->data + i, &c);
        if (!step->char_class(c)) continue;
        if (done < i) pretokenizer_cut(&cutter, done, i, false);
        pretokenizer_cut(&cutter, i, i + used, true);
        done = i + used;
    }
    if (done < piece.end) pretokenizer_cut(&cutter, done, piece.end, false);
    cutter_release(&cutter);
}

static void cut_by_length(const PreStep *step, const Text *text, Span piece, Spans *out) {
    size_t start = piece.start, chars = 0;
    for (size_t i = piece.start; i < piece.end;) {
        uint32_t c;
        i += char_next(text->data + i, &c);
        if (++chars < step->length && i < piece.end) continue;
        spans_push(out, start, i);
        start = i;
        chars = 0;
    }
}

/* ---- steps that change the text: they write all pieces again, one after the other ---- */

static void put_with_origin_of_first(TextBuffer *buffer, const Text *text, Span piece, const char *bytes, size_t len) {
    uint32_t c;
    buffer_put(buffer, bytes, len, text_origin(text, piece.start, piece.start + char_next(text->data + piece.start, &c)));
}

static void prefix_space(const Text *text, Span piece, TextBuffer *out) {
    if (text->data[piece.start] != ' ') put_with_origin_of_first(out, text, piece, " ", 1);
    buffer_copy(out, text, piece.start, piece.end);
}

static void spell_bytes(const Text *text, Span piece, TextBuffer *out) {
    for (size_t i = piece.start; i < piece.end; i++) {
        char bytes[4];
        size_t n = byte_char((uint8_t)text->data[i], bytes);
        buffer_put(out, bytes, n, text_origin(text, i, i + 1));
    }
}

static void replace_spaces(const PreStep *step, const Text *text, Span piece, TextBuffer *out) {
    Slice mark = step->replacement;
    const char *data = text->data + piece.start;
    size_t len = piece.end - piece.start;
    bool marked = data[0] == ' ' || (len >= mark.len && memcmp(data, mark.data, mark.len) == 0);
    bool first = text_origin(text, piece.start, piece.start).from == 0;
    if (!marked && (step->scheme == PREPEND_ALWAYS || (step->scheme == PREPEND_FIRST && first)))
        put_with_origin_of_first(out, text, piece, mark.data, mark.len);
    for (size_t i = piece.start, end; i < piece.end; i = end) {
        const char *space = memchr(text->data + i, ' ', piece.end - i);
        end = space ? (size_t)(space - text->data) : piece.end;
        buffer_copy(out, text, i, end);
        if (space) buffer_put(out, mark.data, mark.len, text_origin(text, end, end + 1));
        end += space != NULL;
    }
}

typedef void Rewrite(const PreStep *step, const Text *text, Span piece, TextBuffer *out);
static void rewrite_prefix(const PreStep *step, const Text *text, Span piece, TextBuffer *out) { (void)step, prefix_space(text, piece, out); }
static void rewrite_bytes(const PreStep *step, const Text *text, Span piece, TextBuffer *out) { (void)step, spell_bytes(text, piece, out); }

static Status rewrite_pieces(const PreStep *step, Rewrite *rewrite, Encoder *encoder, Text *text, Spans *spans) {
    TextBuffer *out = encoder_buffer(encoder, PAIR_PRETOKENIZER);
    for (size_t i = 0; i < spans->n; i++) {
        size_t start = out->len;
        rewrite(step, text, spans->data[i], out);
        spans->data[i] = (Span){start, out->len};
    }
    return buffer_view(out, text);
}

/* ---- steps ---- */

static Status cut_pieces(const PreStep *step, Encoder *encoder, const Text *text, int *current) {
    const Spans *in = &encoder->spans[*current];
    Spans *out = &encoder->spans[ *current ^= 1];
    out->n = 0;
    for (size_t i = 0; i < in->n; i++) {
        if (step->kind == PRE_CLASS)
            cut_by_class(step, text, in->data[i], out);
        else if (step->kind == PRE_LENGTH)
            cut_by_length(step, text, in->data[i], out);
        else
            TRY(cut_by_pattern(step, encoder, text, in->data[i], out));
    }
    return out->full ? ST_RESOURCE : ST_OK;
}

static Status step_run(const PreStep *step, Encoder *encoder, Text *text, int *current) {
    Spans *spans = &encoder->spans[*current];
    if (step->kind == PRE_BYTES && step->prefix_space) TRY(rewrite_pieces(step, rewrite_prefix, encoder, text, spans));
    if (step->kind == PRE_METASPACE) TRY(rewrite_pieces(step, replace_spaces, encoder, text, spans));
    if (step->kind == PRE_CLASS || step->kind == PRE_LENGTH || step->pattern) TRY(cut_pieces(step, encoder, text, current));
    if (step->spelled) TRY(rewrite_pieces(step, rewrite_bytes, encoder, text, &encoder->spans[*current]));
    return ST_OK;
}

Status pretokenizer_run(const PreTokenizer *pretokenizer, Encoder *encoder, Text *text, const Spans **spans) {
    int current = 0;
    Spans *all = &encoder->spans[0];
    all->n = 0;
    all->full = encoder->spans[1].full = false;
    if (text->len > 0) spans_push(all, 0, text->len);
    if (all->full) return ST_RESOURCE;
    for (size_t i = 0; i < pretokenizer->n; i++) TRY(step_run(&pretokenizer->steps[i], encoder, text, &current));
    *spans = &encoder->spans[current];
    return ST_OK;
}

/* ---- loading ---- */

static Status behavior_read(const Loader *loader, const json_t *node, Behavior missing, Behavior *behavior) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = NULL;
    TRY(json_get_string(node, loader->path, "behavior", &name));
    *behavior = missing;
    if (!name) return ST_OK;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *behavior = (Behavior)i;
        return ST_OK;
    }
    return status_fail(ST_INPUT, "unknown 'behavior' '%s' in '%s'", name, loader->path);
}

static Status split_init(Loader *loader, PreStep *step, const json_t *node) {
    if (!json_is_string(json_object_get(node, "behavior"))) return status_fail(ST_INPUT, "a Split in '%s' has no 'behavior'", loader->path);
    TRY(behavior_read(loader, node, SPLIT_ISOLATED, &step->behavior));
    TRY(part_bool(loader, node, "invert", false, &step->invert));
    return pattern_from_json(loader, json_object_get(node, "pattern"), &step->pattern);
}

static Status whitespace_init(Loader *loader, PreStep *step, const json_t *node) {
    (void)node;
    *step = (PreStep){.kind = PRE_PATTERN, .behavior = SPLIT_REMOVED, .invert = true};
    return pattern_new(loader, WHITESPACE_PATTERN, &step->pattern);
}

static Status whitespace_split_init(Loader *loader, PreStep *step, const json_t *node) {
    (void)loader, (void)node;
    *step = (PreStep){.kind = PRE_CLASS, .behavior = SPLIT_REMOVED, .char_class = char_is_space};
    return ST_OK;
}

static Status digits_init(Loader *loader, PreStep *step, const json_t *node) {
    bool individual;
    TRY(part_bool(loader, node, "individual_digits", false, &individual));
    *step = (PreStep){.kind = PRE_CLASS, .behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, .char_class = char_is_numeric};
    return ST_OK;
}

static Status punctuation_init(Loader *loader, PreStep *step, const json_t *node) {
    *step = (PreStep){.kind = PRE_CLASS, .char_class = char_is_punctuation};
    return behavior_read(loader, node, SPLIT_ISOLATED, &step->behavior);
}

static Status delimiter_init(Loader *loader, PreStep *step, const json_t *node) {
    const char *delimiter;
    *step = (PreStep){.kind = PRE_PATTERN, .behavior = SPLIT_REMOVED};
    TRY(part_char(loader, node, "delimiter", &delimiter));
    return pattern_new_literal(loader, delimiter, &step->pattern);
}

static Status bytes_init(Loader *loader, PreStep *step, const json_t *node) {
    bool use_regex;
    *step = (PreStep){.kind = PRE_BYTES, .behavior = SPLIT_ISOLATED};
    TRY(part_bool(loader, node, "add_prefix_space", true, &step->prefix_space));
    TRY(part_bool(loader, node, "use_regex", true, &use_regex));
    return use_regex ? pattern_new(loader, GPT2_PATTERN, &step->pattern) : ST_OK;
}

/* Older files use `add_prefix_space`, newer ones `prepend_scheme`. */
static Status scheme_read(const Loader *loader, const json_t *node, PrependScheme *scheme) {
    static const char *const names[] = {"never", "first", "always"};
    const char *name = NULL;
    bool prefix;
    TRY(part_bool(loader, node, "add_prefix_space", true, &prefix));
    TRY(json_get_string(node, loader->path, "prepend_scheme", &name));
    *scheme = prefix ? PREPEND_ALWAYS : PREPEND_NEVER;
    if (!name) return ST_OK;
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strcmp(name, names[i]) == 0) return *scheme = (PrependScheme)i, ST_OK;
    return status_fail(ST_INPUT, "unknown 'prepend_scheme' '%s' in '%s'", name, loader->path);
}

static Status metaspace_init(Loader *loader, PreStep *step, const json_t *node) {
    const char *mark;
    bool split;
    *step = (PreStep){.kind = PRE_METASPACE, .behavior = SPLIT_MERGED_WITH_NEXT};
    TRY(part_char(loader, node, "replacement", &mark));
    TRY(scheme_read(loader, node, &step->scheme));
    TRY(part_bool(loader, node, "split", true, &split));
    if (!(step->replacement.data = arena_strdup(loader->arena, mark))) return ST_RESOURCE;
    step->replacement.len = strlen(mark);
    return split ? pattern_new_literal(loader, mark, &step->pattern) : ST_OK;
}

static Status length_init(Loader *loader, PreStep *step, const json_t *node) {
    int64_t length = 5;
    TRY(json_get_int(node, loader->path, "length", &length));
    if (length < 1) return status_fail(ST_INPUT, "wrong 'length' of a FixedLength in '%s': %lld", loader->path, (long long)length);
    *step = (PreStep){.kind = PRE_LENGTH, .length = (size_t)length};
    return ST_OK;
}

static Status step_init(Loader *loader, PreStep *step, const char *type, const json_t *node) {
    static const struct {
        const char *name;
        Status (*init)(Loader *loader, PreStep *step, const json_t *node);
    } kinds[] = {
        {"ByteLevel", bytes_init},
        {"Split", split_init},
        {"Metaspace", metaspace_init},
        {"Digits", digits_init},
        {"Punctuation", punctuation_init},
        {"Whitespace", whitespace_init},
        {"WhitespaceSplit", whitespace_split_init},
        {"CharDelimiterSplit", delimiter_init},
        {"FixedLength", length_init},
    };
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (strcmp(kinds[i].name, type) == 0) return kinds[i].init(loader, step, node);
    return part_unknown(loader, "pre_tokenizer", type);
}

/* BertPreTokenizer becomes two steps. */
static void bert_steps(PreStep *steps, size_t *n) {
    steps[(*n)++] = (PreStep){.kind = PRE_CLASS, .behavior = SPLIT_REMOVED, .char_class = char_is_space};
    steps[(*n)++] = (PreStep){.kind = PRE_CLASS, .behavior = SPLIT_ISOLATED, .char_class = char_is_punctuation};
}

Status pretokenizer_init(Loader *loader, PreTokenizer *pretokenizer, const json_t *node) {
    const json_t **parts;
    size_t n;
    TRY(section_flatten(loader, "pre_tokenizer", node, "pretokenizers", &parts, &n));
    pretokenizer->steps = arena_zero(loader->arena, (n * STEPS_OF_BERT + 1) * sizeof *pretokenizer->steps);
    if (!pretokenizer->steps) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) {
        const char *type;
        TRY(part_string(loader, parts[i], "type", &type));
        if (strcmp(type, "BertPreTokenizer") == 0)
            bert_steps(pretokenizer->steps, &pretokenizer->n);
        else
            TRY(step_init(loader, &pretokenizer->steps[pretokenizer->n++], type, parts[i]));
    }
    for (size_t i = 0; i < pretokenizer->n; i++) {
        PreStep *step = &pretokenizer->steps[i];
        bool raw = i + 1 == pretokenizer->n && loader->tokenizer->model.kind == MODEL_BPE;
        if (step->kind == PRE_BYTES) step->spelled = !raw;
        if (step->kind == PRE_BYTES && raw) pretokenizer->bytes = true;
        if (step->kind == PRE_METASPACE && step->scheme == PREPEND_FIRST) pretokenizer->needs_origins = true;
    }
    return ST_OK;
}
