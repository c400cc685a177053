/* SPDX-License-Identifier: Apache-2.0 */
/* Changes a text before it is cut: Unicode forms, replacements, case. Each step reads one buffer and writes the other. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "lib/text/tokenizer_parts.h"

typedef enum NormKind {
    NORM_FORM,
    NORM_LOWERCASE,
    NORM_STRIP,
    NORM_PREPEND,
    NORM_REPLACE,
    NORM_MAP,
    NORM_IDEOGRAPHS,
    NORM_CHARSMAP,
    NORM_BYTES
} NormKind;
typedef uint32_t CharMap(uint32_t c); /* maps a character to another one, or to DROPPED */
enum { DROPPED = 0x7FFFFFFF, STEPS_OF_BERT = 5 };
struct NormStep {
    NormKind kind;
    bool compose, compatible; /* NORM_FORM */
    bool left, right;         /* NORM_STRIP */
    Slice content;            /* NORM_PREPEND, NORM_REPLACE */
    Pattern *pattern;         /* NORM_REPLACE */
    CharMap *map;             /* NORM_MAP */
    Charsmap *charsmap;       /* NORM_CHARSMAP */
};

/* ---- steps ---- */

static void normalizer_strip(const NormStep *step, Text *text) {
    uint32_t c;
    size_t start = 0, used;
    while (step->left && start < text->len && (used = char_next(text->data + start, &c), char_is_space(c))) start += used;
    while (step->right && text->len > start && (used = char_last(text->data, text->len, &c), char_is_space(c))) text->len -= used;
    text->data += start;
    text->len -= start;
    text->base += start;
    if (text->origins) text->origins += start;
}

static void prepend(const NormStep *step, const Text *text, TextBuffer *out) {
    uint32_t c;
    buffer_put(out, step->content.data, step->content.len, text_origin(text, 0, char_next(text->data, &c)));
    buffer_copy(out, text, 0, text->len);
}

static Status replace(const NormStep *step, Encoder *encoder, const Text *text, TextBuffer *out) {
    size_t done = 0, from = 0, start, end;
    bool found;
    while (from <= text->len) {
        TRY(pattern_find(step->pattern, &encoder->matcher, text->data, text->len, from, &found, &start, &end));
        if (!found) break;
        uint32_t c;
        from = end;
        if (start == end && start < text->len)
            from += char_next(text->data + start, &c);
        else if (start == end)
            from++;
        if (start == end && start == done && done > 0) continue; /* no match in the empty string between two matches */
        buffer_copy(out, text, done, start);
        buffer_put(out, step->content.data, step->content.len, text_origin(text, start, end));
        done = end;
    }
    buffer_copy(out, text, done, text->len);
    return ST_OK;
}

static void put_char(TextBuffer *out, uint32_t c, Origin origin) {
    char bytes[4];
    buffer_put(out, bytes, utf8_encode(c, bytes), origin);
}

/* Copies unchanged text in runs: `done` is the end of the text that has been copied. */
static void put_changed(const Text *text, size_t *done, size_t start, size_t end, const uint32_t *chars, size_t n, TextBuffer *out) {
    buffer_copy(out, text, *done, start);
    for (size_t i = 0; i < n; i++) put_char(out, chars[i], text_origin(text, start, end));
    *done = end;
}

static void lowercase(const Text *text, TextBuffer *out) {
    size_t done = 0;
    for (size_t i = 0, used; i < text->len; i += used) {
        uint32_t c, lower[2] = {'i', 0x307}; /* lower case of U+0130, the only letter that becomes two */
        used = char_next(text->data + i, &c);
        if (c != 0x130) lower[0] = c < 128 ? c + (c >= 'A' && c <= 'Z') * 32u : (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
        if (lower[0] != c) put_changed(text, &done, i, i + used, lower, c == 0x130 ? 2 : 1, out);
    }
    buffer_copy(out, text, done, text->len);
}

static uint32_t map_accents(uint32_t c) { return char_is_mark(c) ? DROPPED : c; }
static uint32_t map_bert_accents(uint32_t c) { return char_is_nonspacing(c) ? DROPPED : c; }

static uint32_t map_bert_clean(uint32_t c) {
    if (c == '\t' || c == '\n' || c == '\r') return ' ';
    /* other control characters too, though some of them count as spaces */
    if (c == 0 || c == REPLACEMENT_CHARACTER || char_is_other(c)) return DROPPED;
    return char_is_space(c) ? ' ' : c;
}

/* The rules of SentencePiece's nmt_nfkc other than composition: drops control characters and turns unusual spaces into plain ones. */
static uint32_t map_nmt(uint32_t c) {
    if ((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F) return DROPPED;
    if (c == '\t' || c == '\n' || c == '\f' || c == '\r' || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 ||
        c == 0x2581 || c == 0xFEFF || c == REPLACEMENT_CHARACTER)
        return ' ';
    return c;
}

static void map_chars(const NormStep *step, const Text *text, TextBuffer *out) {
    size_t done = 0;
    for (size_t i = 0, used; i < text->len; i += used) {
        uint32_t c, mapped;
        used = char_next(text->data + i, &c);
        mapped = step->map(c);
        if (mapped != c) put_changed(text, &done, i, i + used, &mapped, mapped != DROPPED, out);
    }
    buffer_copy(out, text, done, text->len);
}

/* BERT puts spaces around each ideograph. */
static bool is_ideograph(uint32_t c) {
    static const uint32_t blocks[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
                                         {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
    for (size_t i = 0; i < COUNT_OF(blocks); i++)
        if (c >= blocks[i][0] && c <= blocks[i][1]) return true;
    return false;
}

static void space_ideographs(const Text *text, TextBuffer *out) {
    size_t done = 0;
    for (size_t i = 0, used; i < text->len; i += used) {
        uint32_t c;
        used = char_next(text->data + i, &c);
        if (c >= 0x3400 && is_ideograph(c)) put_changed(text, &done, i, i + used, (const uint32_t[]){' ', c, ' '}, 3, out);
    }
    buffer_copy(out, text, done, text->len);
}

static void spell_bytes(const Text *text, TextBuffer *out) {
    for (size_t i = 0; i < text->len; i++) {
        char bytes[4];
        size_t n = byte_char((uint8_t)text->data[i], bytes);
        buffer_put(out, bytes, n, text_origin(text, i, i + 1));
    }
}

/* ---- Unicode normalisation forms, one cluster at a time, so that each result has an origin ---- */

/* Whether nothing before the character can change together with it. */
static bool starts_cluster(uint32_t c, bool compatible) {
    if (c < 0x300) return true;
    if (c >= 0x1160 && c <= 0x11FF) return false; /* Hangul vowels and final consonants compose with the letter before them */
    if (compatible && ((c >= 0x3130 && c <= 0x318F) || (c >= 0xFF9E && c <= 0xFFDC))) return false;
    return !char_is_mark(c) && utf8proc_get_property((utf8proc_int32_t)c)->combining_class == 0;
}

static bool form_is_given(const NormStep *step, const Text *text) {
    uint8_t limit = step->compose && !step->compatible ? 0xCC : 0x80; /* characters below U+0300 are composed already */
    for (size_t i = 0; i < text->len; i++)
        if ((uint8_t)text->data[i] >= limit) return false;
    return true;
}

static uint8_t combining_class(int32_t c) { return (uint8_t)utf8proc_get_property(c)->combining_class; }

static int class_order(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts each run of marks by class, stably. Runs are short, but the sort must not be quadratic for hostile input. */
static Status marks_order(Encoder *encoder, int32_t *c, size_t n) {
    for (size_t i = 0, end; i < n; i = end + 1) {
        bool ordered = true;
        for (end = i; end < n && combining_class(c[end]) > 0; end++)
            if (end > i && combining_class(c[end - 1]) > combining_class(c[end])) ordered = false;
        if (ordered) continue;
        size_t run = end - i;
        TRY(array_grow(&encoder->heap, &encoder->heap_cap, 2 * run, sizeof *encoder->heap, "marks of a text"));
        uint64_t *keys = encoder->heap;
        for (size_t k = 0; k < run; k++) {
            keys[k] = (uint64_t)combining_class(c[i + k]) << 32 | k;
            keys[run + k] = (uint64_t)c[i + k];
        }
        qsort(keys, run, sizeof *keys, class_order);
        for (size_t k = 0; k < run; k++) c[i + k] = (int32_t)keys[run + (uint32_t)keys[k]];
    }
    return ST_OK;
}

static Status form_cluster(const NormStep *step, Encoder *encoder, const Text *text, size_t start, size_t end, TextBuffer *out) {
    enum { LONGEST_DECOMPOSITION = 32 };
    utf8proc_option_t options = (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (step->compatible ? UTF8PROC_COMPAT : 0));
    size_t n = 0;
    int last_boundary = 0;
    for (size_t i = start; i < end;) {
        uint32_t c;
        i += char_next(text->data + i, &c);
        TRY(array_grow(&encoder->code_points, &encoder->code_points_cap, n + LONGEST_DECOMPOSITION, sizeof *encoder->code_points,
                       "characters of a text"));
        utf8proc_ssize_t got = utf8proc_decompose_char((utf8proc_int32_t)c, encoder->code_points + n, LONGEST_DECOMPOSITION, options, &last_boundary);
        ASSERT(got >= 0 && got <= LONGEST_DECOMPOSITION, "U+%04X becomes %td characters", (unsigned)c, (ptrdiff_t)got);
        n += (size_t)got;
    }
    TRY(marks_order(encoder, encoder->code_points, n));
    if (step->compose)
        n = (size_t)utf8proc_normalize_utf32(encoder->code_points, (utf8proc_ssize_t)n, (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    uint32_t base;
    size_t used = char_next(text->data + start, &base);
    bool kept = n > 0 && (uint32_t)encoder->code_points[0] == base && start + used < end; /* then the base and its marks have separate origins */
    if (kept) buffer_copy(out, text, start, start + used);
    Origin origin = text_origin(text, kept ? start + used : start, end);
    for (size_t i = kept; i < n; i++) put_char(out, (uint32_t)encoder->code_points[i], origin);
    return ST_OK;
}

static Status form(const NormStep *step, Encoder *encoder, const Text *text, TextBuffer *out) {
    size_t plain = 0, start = 0; /* [plain, start) is ASCII that needs nothing; [start, i) is the cluster so far */
    for (size_t i = 0, used; i <= text->len; i += used) {
        uint32_t c = 0;
        used = i < text->len ? char_next(text->data + i, &c) : 1;
        if (i < text->len && !starts_cluster(c, step->compatible)) continue;
        if (i - start > 1) {
            buffer_copy(out, text, plain, start);
            TRY(form_cluster(step, encoder, text, start, i, out));
            plain = i;
        }
        start = i;
    }
    buffer_copy(out, text, plain, text->len);
    return ST_OK;
}

static bool changes_nothing(const NormStep *step, Encoder *encoder, const Text *text) {
    if (text->len == 0) return true;
    if (step->kind == NORM_FORM) return form_is_given(step, text);
    size_t start, end;
    bool found = true;
    return step->kind == NORM_REPLACE && !step->pattern->code &&
           pattern_find(step->pattern, &encoder->matcher, text->data, text->len, 0, &found, &start, &end) == ST_OK && !found;
}

Status normalizer_run(const Normalizer *normalizer, Encoder *encoder, Text *text) {
    /* limit, because a few steps of "a" -> "aaaaaaaaaa" would fill any memory */
    const size_t given = text->len, most = ((size_t)64 << 20) + 64 * given;
    for (size_t i = 0; i < normalizer->n; i++) {
        const NormStep *step = &normalizer->steps[i];
        if (step->kind == NORM_STRIP) {
            normalizer_strip(step, text);
            continue;
        }
        if (changes_nothing(step, encoder, text)) continue;
        TextBuffer *out = encoder_buffer(encoder, PAIR_NORMALIZER);
        switch (step->kind) {
        case NORM_FORM: TRY(form(step, encoder, text, out)); break;
        case NORM_LOWERCASE: lowercase(text, out); break;
        case NORM_PREPEND: prepend(step, text, out); break;
        case NORM_REPLACE: TRY(replace(step, encoder, text, out)); break;
        case NORM_MAP: map_chars(step, text, out); break;
        case NORM_IDEOGRAPHS: space_ideographs(text, out); break;
        case NORM_CHARSMAP: charsmap_run(step->charsmap, text, out); break;
        case NORM_BYTES: spell_bytes(text, out); break;
        case NORM_STRIP: break;
        }
        if (out->len > most) return status_fail(ST_INPUT, "the tokenizer's normalizer makes more than %zu bytes of %zu", most, given);
        TRY(buffer_view(out, text));
    }
    return ST_OK;
}

/* ---- loading ---- */

static Status content_read(Loader *loader, const json_t *node, const char *key, Slice *content) {
    const char *text;
    TRY(part_string(loader, node, key, &text));
    content->data = arena_strdup(loader->arena, text);
    content->len = strlen(text);
    return content->data ? ST_OK : ST_RESOURCE;
}

/* BertNormalizer becomes several steps. */
static Status bert_read(Loader *loader, NormStep *steps, size_t *n, const json_t *node) {
    bool clean, ideographs, lowercase, strip_accents;
    TRY(part_bool(loader, node, "clean_text", true, &clean));
    TRY(part_bool(loader, node, "handle_chinese_chars", true, &ideographs));
    TRY(part_bool(loader, node, "lowercase", true, &lowercase));
    TRY(part_bool(loader, node, "strip_accents", lowercase, &strip_accents));
    if (clean) steps[(*n)++] = (NormStep){.kind = NORM_MAP, .map = map_bert_clean};
    if (ideographs) steps[(*n)++] = (NormStep){.kind = NORM_IDEOGRAPHS};
    if (strip_accents) steps[(*n)++] = (NormStep){.kind = NORM_FORM};
    if (strip_accents) steps[(*n)++] = (NormStep){.kind = NORM_MAP, .map = map_bert_accents};
    if (lowercase) steps[(*n)++] = (NormStep){.kind = NORM_LOWERCASE};
    return ST_OK;
}

static Status step_init(Loader *loader, NormStep *step, const char *type, const json_t *node) {
    static const struct {
        const char *name;
        NormStep step;
    } plain[] = {
        {"NFC", {.kind = NORM_FORM, .compose = true}},
        {"NFKC", {.kind = NORM_FORM, .compose = true, .compatible = true}},
        {"NFD", {.kind = NORM_FORM}},
        {"NFKD", {.kind = NORM_FORM, .compatible = true}},
        {"Lowercase", {.kind = NORM_LOWERCASE}},
        {"StripAccents", {.kind = NORM_MAP, .map = map_accents}},
        {"ByteLevel", {.kind = NORM_BYTES}},
        {"Strip", {.kind = NORM_STRIP}},
        {"Prepend", {.kind = NORM_PREPEND}},
        {"Replace", {.kind = NORM_REPLACE}},
        {"Nmt", {.kind = NORM_MAP, .map = map_nmt}},
        {"Precompiled", {.kind = NORM_CHARSMAP}},
    };
    size_t i = 0;
    while (i < COUNT_OF(plain) && strcmp(plain[i].name, type) != 0) i++;
    if (i == COUNT_OF(plain)) return part_unknown(loader, "normalizer", type);
    *step = plain[i].step;
    switch (step->kind) {
    case NORM_STRIP: TRY(part_bool(loader, node, "strip_left", true, &step->left)); return part_bool(loader, node, "strip_right", true, &step->right);
    case NORM_PREPEND: return content_read(loader, node, "prepend", &step->content);
    case NORM_REPLACE:
        TRY(content_read(loader, node, "content", &step->content));
        return pattern_from_json(loader, json_object_get(node, "pattern"), &step->pattern);
    case NORM_CHARSMAP: return charsmap_new(loader, node, &step->charsmap);
    default: return ST_OK;
    }
}

Status normalizer_init(Loader *loader, Normalizer *normalizer, const json_t *node) {
    const json_t **parts;
    size_t n;
    TRY(section_flatten(loader, "normalizer", node, "normalizers", &parts, &n));
    normalizer->steps = arena_zero(loader->arena, (n * STEPS_OF_BERT + 1) * sizeof *normalizer->steps);
    if (!normalizer->steps) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) {
        const char *type;
        TRY(part_string(loader, parts[i], "type", &type));
        if (strcmp(type, "BertNormalizer") == 0)
            TRY(bert_read(loader, normalizer->steps, &normalizer->n, parts[i]));
        else
            TRY(step_init(loader, &normalizer->steps[normalizer->n++], type, parts[i]));
    }
    return ST_OK;
}
