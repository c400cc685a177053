/* Normalisers: the text is rewritten before it is cut. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "lib/text/tokenizer_parts.h"

static Status read_one(const json_t *json, const char *where, Arena *arena, Normalizer *normalizer) {
    static const struct { const char *type; int options; } unicode[] = {
        {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
        {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
        {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    };
    const char *type = part_type(json), *content = NULL;
    for (size_t i = 0; i < COUNT_OF(unicode); i++)
        if (!strcmp(type, unicode[i].type)) {
            *normalizer = (Normalizer){.kind = NORMALIZE_UNICODE, .unicode_options = unicode[i].options};
            return ST_OK;
        }
    if (!strcmp(type, "Lowercase")) {
        normalizer->kind = NORMALIZE_LOWERCASE;
        return ST_OK;
    }
    if (!strcmp(type, "Strip")) {
        *normalizer = (Normalizer){.kind = NORMALIZE_STRIP, .left = true, .right = true};
        TRY(json_get_bool(json, where, "strip_left", &normalizer->left));
        return json_get_bool(json, where, "strip_right", &normalizer->right);
    }
    if (!strcmp(type, "Prepend")) {
        normalizer->kind = NORMALIZE_PREPEND;
        TRY(json_get_string(json, where, "prepend", &content));
    } else if (!strcmp(type, "Replace")) {
        normalizer->kind = NORMALIZE_REPLACE;
        TRY(pattern_read(json_object_get(json, "pattern"), where, &normalizer->pattern));
        TRY(json_get_string(json, where, "content", &content));
    } else {
        return unknown_part(where, "normalizer", type);
    }
    if (!content) return status_fail(ST_INPUT, "the normalizer '%s' of '%s' lacks its text", type, where);
    normalizer->content = arena_strdup(arena, content);
    return normalizer->content ? ST_OK : ST_RESOURCE;
}

Status normalizers_read(const json_t *json, const char *where, Arena *arena, Normalizers *normalizers) {
    if (!json || json_is_null(json)) return ST_OK;
    bool sequence = !strcmp(part_type(json), "Sequence");
    const json_t *list = sequence ? json_object_get(json, "normalizers") : NULL;
    if (sequence && !json_is_array(list)) return status_fail(ST_INPUT, "the normalizer sequence of '%s' has no list", where);
    size_t n = sequence ? json_array_size(list) : 1;
    normalizers->items = arena_zero(arena, (n + 1) * sizeof *normalizers->items);
    if (!normalizers->items) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) {
        normalizers->n = i + 1;
        TRY(read_one(sequence ? json_array_get(list, i) : json, where, arena, &normalizers->items[i]));
    }
    return ST_OK;
}

void normalizers_release(Normalizers *normalizers) {
    for (size_t i = 0; i < normalizers->n; i++) pattern_release(&normalizers->items[i].pattern);
}

/* Unicode forms work on stretches that can't interact: from one ASCII character to the next. */
static Status unicode_form(const Normalizer *normalizer, const Passage *in, Passage *out) {
    const char *text = in->bytes.data;
    size_t n = in->bytes.len;
    for (size_t begin = 0; begin < n;) {
        size_t end = begin + 1;
        while (end < n && (uint8_t)text[end] >= 0x80) end++;
        if (end == begin + 1 && (uint8_t)text[begin] < 0x80) {
            passage_copy(out, in, (Range){begin, end});
        } else {
            utf8proc_uint8_t *form = NULL;
            utf8proc_ssize_t size = utf8proc_map((const utf8proc_uint8_t *)text + begin, (utf8proc_ssize_t)(end - begin), &form, (utf8proc_option_t)normalizer->unicode_options);
            if (size < 0) return status_fail(ST_INPUT, "cannot normalise the text at byte %zu: %s", begin, utf8proc_errmsg(size));
            if ((size_t)size == end - begin && memcmp(form, text + begin, (size_t)size) == 0) passage_copy(out, in, (Range){begin, end});
            else passage_add(out, (const char *)form, (size_t)size, passage_origin(in, (Range){begin, end}));
            free(form);
        }
        begin = end;
    }
    return ST_OK;
}

static void lowercase(const Passage *in, Passage *out) {
    const char *text = in->bytes.data;
    for (size_t at = 0; at < in->bytes.len;) {
        uint32_t c;
        size_t n = utf8_decode(text + at, in->bytes.len - at, &c);
        char lower[8];
        size_t size = utf8_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)c), lower);
        if (c == 0x130) size = 1 + utf8_encode(0x307, lower + 1), lower[0] = 'i'; /* the one letter whose small form is two characters */
        passage_add(out, lower, size, passage_origin(in, (Range){at, at + n}));
        at += n;
    }
}

static Status replace(const Normalizer *normalizer, const Passage *in, Passage *out) {
    size_t at = 0, from = 0, len = in->bytes.len;
    while (from <= len) {
        Range match;
        bool found;
        TRY(pattern_find(&normalizer->pattern, in->bytes.data, len, from, &match, &found));
        if (!found) break;
        passage_copy(out, in, (Range){at, match.begin});
        passage_add(out, normalizer->content, strlen(normalizer->content), passage_origin(in, match));
        at = match.end;
        from = match.end;
        if (match.begin == match.end) { /* an empty match: go on behind the next character */
            uint32_t c;
            size_t n = from < len ? utf8_decode(in->bytes.data + from, len - from, &c) : 1;
            from += MAX(n, 1);
        }
    }
    passage_copy(out, in, (Range){at, len});
    return ST_OK;
}

static void strip(const Normalizer *normalizer, const Passage *in, Passage *out) {
    size_t begin = 0, end = in->bytes.len, n;
    uint32_t c;
    while (normalizer->left && begin < end && (n = utf8_decode(in->bytes.data + begin, end - begin, &c)) && is_white_space(c)) begin += n;
    while (normalizer->right && end > begin) {
        size_t start = end - 1;
        while (start > begin && ((uint8_t)in->bytes.data[start] & 0xc0) == 0x80) start--;
        if (!utf8_decode(in->bytes.data + start, end - start, &c) || !is_white_space(c)) break;
        end = start;
    }
    passage_copy(out, in, (Range){begin, end});
}

Status normalizers_run(const Normalizers *normalizers, Passage *passage) {
    for (size_t i = 0; i < normalizers->n; i++) {
        const Normalizer *normalizer = &normalizers->items[i];
        if (passage->bytes.len == 0) return ST_OK;
        Passage out = {.tracked = passage->tracked};
        Status status = ST_OK;
        switch (normalizer->kind) {
        case NORMALIZE_PREPEND: {
            Range first = passage_origin(passage, (Range){0, 1});
            passage_add(&out, normalizer->content, strlen(normalizer->content), (Range){first.begin, first.begin});
            passage_copy(&out, passage, (Range){0, passage->bytes.len});
            break;
        }
        case NORMALIZE_REPLACE: status = replace(normalizer, passage, &out); break;
        case NORMALIZE_UNICODE: status = unicode_form(normalizer, passage, &out); break;
        case NORMALIZE_LOWERCASE: lowercase(passage, &out); break;
        case NORMALIZE_STRIP: strip(normalizer, passage, &out); break;
        }
        Passage old = *passage;
        *passage = out;
        passage_release(&old);
        if (status != ST_OK) return status;
    }
    return ST_OK;
}
