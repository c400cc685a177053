/* SPDX-License-Identifier: Apache-2.0 */
/* Template kwargs of a request or a recipe: an object of any values, for templates that test, print, count and walk through them. They are refused
 * with a message, or the template renders, or it fails with a place. */
#include <string.h>

#include "lib/text/chat.h"
#include "tests/support/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static const char *const sources[] = {
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}",
    "{{ reasoning_effort | default('medium') | upper }} {{ kwargs | tojson }} {{ kwargs.a.b if kwargs.a is mapping else kwargs }}",
    "{% for k, v in kwargs | items %}{{ k }}={{ v | string | trim }}{{ loop.index }}\n{% endfor %}{{ enable_thinking ~ reasoning_effort }}",
    "{% set n = namespace(x=0) %}{% for i in range(kwargs | int) %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}{{ kwargs | length }}",
};

static void check_render(const ChatTemplate *chat, const json_t *variables) {
    ChatRendering rendering = {0};
    Status status = chat_template_render(chat, variables, &(ChatOptions){.now = "2025-01-15"}, &rendering);
    ASSERT(status == ST_OK || (status == ST_INPUT && strstr(status_text(), " line ")), "status %d: %s", (int)status, status_text());
    ASSERT(utf8_fault(str_text(&rendering.text), rendering.text.len) == rendering.text.len, "no UTF-8");
    chat_rendering_release(&rendering);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    json_t *kwargs;
    if (json_read_text((const char *)bytes, len, "kwargs", &kwargs) != ST_OK) return 0;
    for (size_t i = 0; i < COUNT_OF(sources); i++) {
        ChatTemplate *chat;
        json_t *variables = json_pack("{s:[{s:s, s:s}], s:b}", "messages", "role", "user", "content", "Hi", "add_generation_prompt", true);
        check_ok(chat_template_parse("fuzz", sources[i], strlen(sources[i]), &chat));
        Status status = chat_template_set_defaults(chat, kwargs);
        ASSERT(status == ST_OK || (status == ST_INPUT && status_text()[0]), "status %d", (int)status);
        check_render(chat, variables);
        if (json_is_object(kwargs)) json_object_update_missing(variables, kwargs);
        json_object_set(variables, "kwargs", kwargs);
        check_render(chat, variables);
        json_decref(variables);
        chat_template_free(chat);
    }
    json_decref(kwargs);
    return 0;
}
