/* SPDX-License-Identifier: Apache-2.0 */
/* Dialogues stored as one text: "\n\nHuman: ...\n\nAssistant: ...". */
#include "data/formats/row_form.h"

#include <string.h>

json_t *message_new(const char *role, const char *content, size_t len) {
    json_t *text = json_stringn(content, len);
    return text ? json_pack("{s:s, s:o}", "role", role, "content", text) : NULL;
}

/* The speaker whose name and a colon are at `at`; NULL: none. */
static const Speaker *speaker_at(const char *at, const Speaker *speakers, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (text_starts_with(at, speakers[i].name) && at[strlen(speakers[i].name)] == ':') return &speakers[i];
    return NULL;
}

static const char *skip_space(const char *at) { return at + strspn(at, " \n\r\t"); }

/* The start of the next speaker's turn, which follows an empty line; the text's end if there is none. */
static const char *next_turn(const char *at, const Speaker *speakers, size_t n) {
    while ((at = strstr(at, "\n\n"))) {
        const char *name = skip_space(at);
        if (speaker_at(name, speakers, n)) return name;
        at = name > at + 2 ? name - 1 : at + 1;
    }
    return NULL;
}

json_t *dialogue_messages(const char *text, const Speaker *speakers, size_t n_speakers) {
    const char *at = skip_space(text);
    if (!speaker_at(at, speakers, n_speakers)) return NULL;
    json_t *messages = json_array();
    while (at && messages) {
        const Speaker *speaker = speaker_at(at, speakers, n_speakers);
        const char *content = at + strlen(speaker->name) + 1, *next = next_turn(content, speakers, n_speakers);
        content = skip_space(content);
        size_t len = next ? content < next ? (size_t)(next - content) : 0 : strlen(content);
        while (len > 0 && strchr(" \n\r\t", content[len - 1])) len--;
        json_array_append_new(messages, message_new(speaker->role, content, len));
        at = next;
    }
    return messages;
}
