/* SPDX-License-Identifier: Apache-2.0 */
/* Control tokens within messages: the text "<|im_end|>" in a message ends its turn, since every tokenizer reads it so. Such texts are counted. With
 * data.control_tokens: text they are kept as plain words: a guard, a character that no text contains, is inserted into them before the template is
 * rendered, and removed from the rendered text, where its position is recorded. */
#include "data/formats/conversation.h"
#include "data/formats/message.h"

#include <stdlib.h>
#include <string.h>

static const char GUARD[] = "\xEF\xB7\x90"; /* U+FDD0, a noncharacter */
enum { GUARD_SIZE = sizeof GUARD - 1 };

void note_controls(const char *text, const Tokenizer *tokenizer, const DataConfig *config) {
    size_t begin, end, len = text ? strlen(text) : 0;
    if (!config->notes || config->plain_control || !tokenizer || len == 0) return;
    if (!tokenizer_find_special(tokenizer, text, len, 0, &begin, &end)) return;
    row_note(config->notes, "with '%.*s' in its text, which becomes the control token; data.control_tokens: text keeps it as plain words",
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

/* In messages, all texts but the roles, which templates compare. */
static bool is_role(const char *key, bool message) { return message && strcmp(key, "role") == 0; }

/* messages: the value is a list of messages. */
static void note_texts(const json_t *value, bool messages, bool message, const Tokenizer *tokenizer, const DataConfig *config) {
    const char *key;
    json_t *item;
    note_controls(json_string_value(value), tokenizer, config);
    for (size_t i = 0; i < json_array_size(value); i++) note_texts(json_array_get(value, i), false, messages, tokenizer, config);
    json_object_foreach((json_t *)(uintptr_t)value, key, item) {
        note_controls(key, tokenizer, config);
        if (!is_role(key, message)) note_texts(item, false, false, tokenizer, config);
    }
}

static bool guard_bytes(const char *bytes, size_t len, const Tokenizer *tokenizer, Str *guarded) {
    size_t at = 0, begin, end;
    while (tokenizer_find_special(tokenizer, bytes, len, at, &begin, &end)) {
        str_append_n(guarded, bytes + at, begin - at);
        str_append(guarded, GUARD);
        str_append_n(guarded, bytes + begin, end - begin);
        at = end;
    }
    if (at > 0) str_append_n(guarded, bytes + at, len - at);
    return at > 0;
}

static json_t *guard_text(const json_t *text, const Tokenizer *tokenizer) {
    Str guarded = {0};
    bool any = guard_bytes(json_string_value(text), json_string_length(text), tokenizer, &guarded);
    json_t *own = any ? json_stringn_nocheck(str_text(&guarded), guarded.len) : json_incref((json_t *)(uintptr_t)text);
    str_release(&guarded);
    return own;
}

static json_t *guard_value(const json_t *value, bool messages, bool message, const Tokenizer *tokenizer);

static json_t *guard_object(const json_t *object, bool message, const Tokenizer *tokenizer) {
    json_t *own = json_object(), *item;
    const char *key;
    Str name = {0};
    json_object_foreach((json_t *)(uintptr_t)object, key, item) {
        str_clear(&name);
        const char *guarded = guard_bytes(key, strlen(key), tokenizer, &name) ? str_text(&name) : key;
        json_object_set_new_nocheck(own, guarded, is_role(key, message) ? json_incref(item) : guard_value(item, false, false, tokenizer));
    }
    str_release(&name);
    return own;
}

/* A new reference: a changed copy if there is a control token in the value. */
static json_t *guard_value(const json_t *value, bool messages, bool message, const Tokenizer *tokenizer) {
    if (json_is_string(value)) return guard_text(value, tokenizer);
    if (json_is_object(value)) return guard_object(value, message, tokenizer);
    if (!json_is_array(value)) return json_incref((json_t *)(uintptr_t)value);
    json_t *own = json_array();
    for (size_t i = 0; i < json_array_size(value); i++) json_array_append_new(own, guard_value(json_array_get(value, i), false, messages, tokenizer));
    return own;
}

json_t *controls_guard(const json_t *messages, const Tokenizer *tokenizer, const DataConfig *config) {
    if (config->plain_control) return guard_value(messages, true, false, tokenizer);
    note_texts(messages, true, false, tokenizer, config);
    return json_incref((json_t *)(uintptr_t)messages);
}

static bool is_written(const Chat *chat, const char *key) {
    Slice template = chat_has_template(chat) ? chat_template_source(chat->template, true) : (Slice){0};
    return template.len > 0 && memmem(template.data, template.len, key, strlen(key));
}

/* Replaces the row's own value; a JSON text is parsed first. */
static Status guard_column(const char *key, json_t *list, const Tokenizer *tokenizer, const DataConfig *config, json_t *row) {
    if (!list) return ST_OK;
    if (is_written(config->chat, key)) note_texts(list, false, false, tokenizer, config);
    json_t *own = config->plain_control ? guard_value(list, false, false, tokenizer) : json_incref(list);
    json_decref(list);
    return own && json_object_set_new(row, key, own) == 0 ? ST_OK : status_fail(ST_RESOURCE, "out of memory for '%s'", key);
}

Status controls_guard_row(const json_t *row, const Tokenizer *tokenizer, const DataConfig *config, json_t **guarded) {
    json_t *tools = NULL, *documents = NULL;
    *guarded = NULL;
    if (!row) return ST_OK;
    if (!(*guarded = json_copy((json_t *)(uintptr_t)row))) return status_fail(ST_RESOURCE, "out of memory for a row");
    Status status = tokenizer ? row_tools(row, &tools) : ST_OK;
    if (status == ST_OK) status = guard_column("tools", tools, tokenizer, config, *guarded);
    if (status == ST_OK && tokenizer) status = row_list(row, "documents", &documents);
    if (status == ST_OK) status = guard_column("documents", documents, tokenizer, config, *guarded);
    if (status == ST_OK) return ST_OK;
    json_decref(*guarded);
    *guarded = NULL;
    return status;
}

Status guards_extract(Str *text, Guards *guards) {
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
