/* SPDX-License-Identifier: Apache-2.0 */
/* Detects messages that a chat template leaves out: templates write the roles that they have a branch for, and silently skip others. A conversation
 * is rendered once more with a unique mark in place of each message; a missing mark shows a message that the model will never see. Conversations of
 * the same form behave alike, so each form is tried once. */
#include "data/formats/conversation.h"
#include "data/formats/message.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Hashes of forms whose messages are all written. A form that is evicted by another is tried again. */
enum { N_SHAPES = 1024, MARK_SIZE = 32, LONG_ENOUGH = 12 };
struct Shapes {
    _Atomic(uint64_t) known[N_SHAPES];
};

Shapes *shapes_new(void) { return calloc(1, sizeof(Shapes)); }
void shapes_free(Shapes *shapes) { free(shapes); }

static bool word_char(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

/* 'word', "word" or .word */
static bool source_names(Slice source, const char *word) {
    size_t len = strlen(word);
    const char *end = source.data + source.len, *at = source.data;
    for (; len > 0 && (at = memmem(at, (size_t)(end - at), word, len)); at++) {
        char before = at > source.data ? at[-1] : ' ', after = at + len < end ? at[len] : ' ';
        if (((before == '\'' || before == '"') && after == before) || (before == '.' && !word_char(after))) return true;
    }
    return false;
}

bool template_names(const Chat *chat, const char *word) {
    for (int tools = 0; tools < 2 && chat_has_template(chat); tools++)
        if (source_names(chat_template_source(chat->template, tools), word)) return true;
    return false;
}

/* ---- the form of a conversation: all that templates look at, without the content ---- */

static uint64_t add_text(uint64_t hash, const char *text) {
    for (; text && *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001B3u;
    return mix64(hash);
}

static bool is_blank(const char *text) { return text[strspn(text, " \t\r\n")] == '\0'; }

static const char *words_of(const json_t *message, const char *key) {
    const char *words = json_string_value(json_object_get(message, key));
    return words && !is_blank(words) ? words : NULL;
}

/* The names in tools' answers are for OpenAI's API, not for templates. */
static const char *name_of(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && strcmp(role, "tool") != 0 ? words_of(message, "name") : NULL;
}

static uint64_t shape_of(const json_t *messages, size_t n, const json_t *row, bool question) {
    static const char *const keys[] = {"tool_calls", "reasoning_content"};
    json_t *kwargs = json_object_get(row, "chat_template_kwargs");
    char *settings = kwargs ? json_text(kwargs, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    bool tools = json_object_get(row, "tools") || json_object_get(row, "functions");
    uint64_t hash = add_text(1 + question + 2 * tools, settings);
    free(settings);
    for (size_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(messages, i);
        hash = add_text(hash, json_string_value(json_object_get(message, "role")));
        hash = hash * 16 + 2 * (words_of(message, "content") != NULL) + (name_of(message) != NULL);
        for (size_t k = 0; k < COUNT_OF(keys); k++) hash = hash * 2 + (json_object_get(message, keys[k]) != NULL);
    }
    return mix64(hash) | 1; /* 0: an empty slot */
}

static bool is_known(const Shapes *shapes, uint64_t shape) { return atomic_load(&shapes->known[shape % N_SHAPES]) == shape; }

/* ---- marks in place of messages ---- */

static void mark_of(char kind, size_t i, char mark[MARK_SIZE]) { snprintf(mark, MARK_SIZE, "Zq7%c%zue", kind, i); }

/* Copies of messages[0..n-1], each with a mark as its content. */
static json_t *marked_messages(const json_t *messages, size_t n) {
    json_t *list = json_array();
    char mark[MARK_SIZE];
    for (size_t i = 0; i < n && list; i++) {
        json_t *message = json_copy(json_array_get(messages, i));
        mark_of('m', i, mark);
        if (words_of(message, "content")) json_object_set_new(message, "content", json_string(mark));
        mark_of('n', i, mark);
        if (name_of(message)) json_object_set_new(message, "name", json_string(mark));
        json_array_append_new(list, message);
    }
    return list;
}

static bool has_mark(const Str *text, char kind, size_t i) {
    char mark[MARK_SIZE];
    mark_of(kind, i, mark);
    return memmem(str_text(text), text->len, mark, strlen(mark)) != NULL;
}

/* Counts messages whose content is in the text unchanged; few appear there by chance. */
static bool stands_in(const Str *text, const char *words) {
    size_t len = strlen(words);
    while (len > 0 && strchr(" \t\r\n", *words)) words++, len--;
    while (len > 0 && strchr(" \t\r\n", words[len - 1])) len--;
    return len >= LONG_ENOUGH && memmem(str_text(text), text->len, words, len) != NULL;
}

typedef struct Look {
    const Chat *chat;
    const json_t *messages, *row;
    size_t n;
    const char *label; /* of the template */
    RowNotes *notes;
} Look;

/* Templates that write any role also write a misspelt one. */
static void note_unknown_role(const Look *look, size_t i) {
    const char *role = json_string_value(json_object_get(json_array_get(look->messages, i), "role"));
    if (!role || role_known(role) || template_names(look->chat, role)) return;
    const char *nearest = role_nearest(role);
    row_note(look->notes, "with a message of role '%s', which the chat template '%s' does not mention%s%s%s", role, look->label,
             nearest ? ": did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
}

/* Whether any message is left out; each is noted. */
static bool note_lost(const Look *look, const Str *marked, const Str *text, bool *last_lost) {
    bool any = false;
    for (size_t i = 0; i < look->n; i++) {
        const json_t *message = json_array_get(look->messages, i);
        const char *role = json_string_value(json_object_get(message, "role")), *content = words_of(message, "content");
        bool lost = content && !has_mark(marked, 'm', i) && !stands_in(text, content),
             nameless = name_of(message) && !has_mark(marked, 'n', i) && !lost;
        if (lost)
            row_note(look->notes, "with a message of role '%s' whose text the chat template '%s' leaves out: the model does not see it", role,
                     look->label);
        if (!lost) note_unknown_role(look, i);
        if (nameless)
            row_note(look->notes, "with a 'name' of a message of role '%s', which the chat template '%s' does not write", role, look->label);
        any = any || lost || nameless;
        *last_lost = lost;
    }
    return any;
}

static Status last_is_lost(const Look *look) {
    const char *role = json_string_value(json_object_get(json_array_get(look->messages, look->n - 1), "role"));
    status_fail(ST_INPUT, "the chat template '%s' leaves out message %zu of role '%s', which is the question", look->label, look->n, role);
    return status_hint(ST_INPUT, "give it a role that the template knows: usually user, assistant, system, tool");
}

/* Tries a form for the first time, or one that loses messages. */
static Status try_shape(const Look *look, bool question, uint64_t shape, const Str *text) {
    json_t *marked = marked_messages(look->messages, look->n);
    ChatRendering rendering = {0};
    bool last_lost = false;
    Status status = marked ? messages_render(look->chat, marked, look->n, look->row, question, &rendering)
                           : status_fail(ST_RESOURCE, "out of memory for a conversation");
    json_decref(marked);
    if (status == ST_OK && !note_lost(look, &rendering.text, text, &last_lost)) atomic_store(&look->chat->shapes->known[shape % N_SHAPES], shape);
    chat_rendering_release(&rendering);
    if (status == ST_RESOURCE) return status;
    return question && last_lost ? last_is_lost(look) : ST_OK; /* a template that refuses the marks gives no information */
}

Status check_written(const Chat *chat, const json_t *messages, size_t n, const json_t *row, bool question, const Str *text, RowNotes *notes) {
    bool tools = json_object_get(row, "tools") || json_object_get(row, "functions");
    const Look look = {chat, messages, row, n, chat_template_label(chat->template, tools), notes};
    uint64_t shape = shape_of(messages, n, row, question);
    if (n == 0 || (!notes && !question)) return ST_OK;
    if (!is_known(chat->shapes, shape)) return try_shape(&look, question, shape, text);
    for (size_t i = 0; i < n; i++) note_unknown_role(&look, i);
    return ST_OK;
}
