/* SPDX-License-Identifier: Apache-2.0 */
/* Finds where the first message's own words begin if it is an assistant message. */
#include "data/formats/conversation.h"

#include <stdlib.h>
#include <string.h>

/* A copy of the message with another content and reasoning. */
static bool first_turn_say(json_t *message, const char *words) {
    static const char *const thoughts[] = {"reasoning_content", "thinking", "reasoning"};
    bool said = json_object_set_new(message, "content", json_string(words)) == 0;
    for (size_t i = 0; i < COUNT_OF(thoughts); i++)
        if (json_object_get(message, thoughts[i])) said &= json_object_set_new(message, thoughts[i], json_string(words)) == 0;
    return said;
}

/* A copy of the conversation with other words in its first message. */
static Status render_with(const Chat *chat, const json_t *messages, const json_t *row, const char *words, ChatRendering *rendering) {
    json_t *copy = json_copy((json_t *)(uintptr_t)messages), *first = json_copy(json_array_get(messages, 0));
    bool made = copy && first && first_turn_say(first, words) && json_array_set(copy, 0, first) == 0;
    Status status = made ? messages_render(chat, copy, json_array_size(copy), row, false, rendering) : status_fail(ST_RESOURCE, "out of memory");
    json_decref(first);
    json_decref(copy);
    return status;
}

/* No message comes before it, so no generation prompt can be rendered for it: some templates fail without messages, others leave out their default
 * system message. Instead the conversation is rendered with different words in it; the common prefix of the renderings is the prompt. */
Status first_turn_prompt(const Chat *chat, const json_t *messages, const json_t *row, ChatRendering *prompt) {
    ChatRendering other = {0};
    TRY(render_with(chat, messages, row, "Zq7", prompt));
    Status status = render_with(chat, messages, row, "Kx4", &other);
    size_t same = 0;
    while (same < prompt->text.len && same < other.text.len && prompt->text.data[same] == other.text.data[same]) same++;
    prompt->text.len = same;
    if (prompt->text.data) prompt->text.data[same] = '\0';
    chat_rendering_release(&other);
    return status;
}
