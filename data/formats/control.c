/* SPDX-License-Identifier: Apache-2.0 */
/* Control tokens in what people wrote: the words "<|im_end|>" within a message end its turn, as every tokenizer reads them. Here they are counted, and
 * kept as words where data.control_tokens says so: a character that no text has goes in front of them before the template is rendered, and out again
 * behind, where it leaves its place. */
#include "data/formats/message.h"

#include <stdlib.h>
#include <string.h>

static const char GUARD[] = "\xEF\xB7\x90"; /* U+FDD0, a noncharacter */
enum { GUARD_SIZE = sizeof GUARD - 1 };

void note_controls(const char *text, const Tokenizer *tokenizer, const DataConfig *config) {
    size_t begin, end, len = text ? strlen(text) : 0;
    if (!config->notes || config->plain_control || !tokenizer || len == 0) return;
    if (!tokenizer_find_special(tokenizer, text, len, 0, &begin, &end)) return;
    row_note(config->notes, "with '%.*s' in its words, which becomes the control token; data.control_tokens: text keeps it as words",
             (int)(end - begin), text + begin);
}

static bool is_token(const Tokenizer *tokenizer, int32_t id, const char *text, size_t len) {
    const char *token = tokenizer_token(tokenizer, id);
    return token && strlen(token) == len && memcmp(token, text, len) == 0;
}

void note_text_controls(const char *text, const Tokenizer *tokenizer, const DataConfig *config) {
    size_t begin, end, len = strlen(text), from = 0;
    if (!config->notes || config->plain_control) return;
    while (tokenizer_find_special(tokenizer, text, len, from, &begin, &end)) {
        bool whole_begin = begin == 0 && is_token(tokenizer, tokenizer_bos(tokenizer), text, end),
             whole_end = end == len && is_token(tokenizer, tokenizer_eos(tokenizer), text + begin, end - begin);
        if (!whole_begin && !whole_end) {
            note_controls(text + begin, tokenizer, config);
            return;
        }
        from = end;
    }
}

/* All texts of a message but its role. */
static void note_texts(const json_t *value, const Tokenizer *tokenizer, const DataConfig *config) {
    const char *key;
    json_t *item;
    note_controls(json_string_value(value), tokenizer, config);
    for (size_t i = 0; i < json_array_size(value); i++) note_texts(json_array_get(value, i), tokenizer, config);
    json_object_foreach((json_t *)(uintptr_t)value, key, item) if (strcmp(key, "role") != 0) note_texts(item, tokenizer, config);
}

static json_t *guard_text(const json_t *text, const Tokenizer *tokenizer) {
    const char *bytes = json_string_value(text);
    size_t len = json_string_length(text), at = 0, begin, end;
    Str guarded = {0};
    while (tokenizer_find_special(tokenizer, bytes, len, at, &begin, &end)) {
        str_append_n(&guarded, bytes + at, begin - at);
        str_append(&guarded, GUARD);
        str_append_n(&guarded, bytes + begin, end - begin);
        at = end;
    }
    if (at == 0) return NULL;
    str_append_n(&guarded, bytes + at, len - at);
    json_t *json = json_stringn_nocheck(str_text(&guarded), guarded.len);
    str_release(&guarded);
    return json;
}

/* In place: texts of a value that is the caller's own. */
static void guard_texts(json_t *value, const Tokenizer *tokenizer) {
    const char *key;
    json_t *item;
    size_t i;
    json_array_foreach(value, i, item) {
        json_t *text = json_is_string(item) ? guard_text(item, tokenizer) : NULL;
        if (text) json_array_set_new(value, i, text);
        if (!text) guard_texts(item, tokenizer);
    }
    json_object_foreach(value, key, item) {
        if (strcmp(key, "role") == 0) continue;
        json_t *text = json_is_string(item) ? guard_text(item, tokenizer) : NULL;
        if (text) json_object_set_new(value, key, text); /* of a key that is there: the loop goes on */
        if (!text) guard_texts(item, tokenizer);
    }
}

json_t *controls_guard(const json_t *messages, const Tokenizer *tokenizer, const DataConfig *config) {
    if (!config->plain_control) {
        note_texts(messages, tokenizer, config);
        return json_incref((json_t *)(uintptr_t)messages);
    }
    json_t *own = json_deep_copy(messages);
    guard_texts(own, tokenizer);
    return own;
}

Status guards_take(Str *text, Guards *guards) {
    size_t to = 0;
    for (size_t from = 0; from < text->len;) {
        if (text->len - from >= GUARD_SIZE && memcmp(text->data + from, GUARD, GUARD_SIZE) == 0) {
            TRY(array_grow(&guards->at, &guards->cap, guards->n + 1, sizeof *guards->at, "control tokens"));
            guards->at[guards->n++] = to;
            from += GUARD_SIZE;
        } else {
            text->data[to++] = text->data[from++];
        }
    }
    if (guards->n > 0) text->data[text->len = to] = '\0';
    return ST_OK;
}

size_t guards_shift(const Guards *guards, size_t at) {
    size_t before = 0;
    while (before < guards->n && guards->at[before] + before * GUARD_SIZE < at) before++;
    return at - before * GUARD_SIZE;
}

void guards_release(Guards *guards) {
    free(guards->at);
    *guards = (Guards){0};
}

TokenizeFlags text_flags(const DataConfig *config) { return config->plain_control ? TOKENIZE_LITERAL : TOKENIZE_PLAIN; }
