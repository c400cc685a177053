/* SPDX-License-Identifier: Apache-2.0 */
/* Any template either fails with a place, or renders valid UTF-8 with its marked parts in order within the text, and renders the same again. */
#include "lib/text/chat.h"
#include "tests/support/check.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static const char variables_text[] =
    "{\"s\": \"Hello, W\\u00f6rld\", \"n\": -3, \"f\": 2.5, \"none\": null, \"l\": [3, \"a\", [1], null], \"d\": {\"a\": 1, \"items\": [], \"\\u00e9\": {\"b\": true}},"
    " \"messages\": [{\"role\": \"system\", \"content\": \"be good\"}, {\"role\": \"user\", \"content\": \"hi \\ud83d\\ude42\"}, {\"role\": \"assistant\", \"content\": \" yo\\n\","
    " \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": [1, 2]}}}]}], \"tools\": [{\"type\": \"function\"}], \"bos_token\": \"<s>\"}";

static const json_t *variables(void) {
    static json_t *object;
    if (!object) object = json_loads(variables_text, 0, NULL);
    ASSERT(object, "the variables are no JSON");
    return object;
}

static void check_rendering(const ChatRendering *rendering) {
    const char *text = str_text(&rendering->text);
    uint32_t c;
    for (size_t at = 0, n; at < rendering->text.len; at += n) {
        n = utf8_decode(text + at, rendering->text.len - at, &c);
        ASSERT(n > 0, "no UTF-8 at byte %zu of %zu", at, rendering->text.len);
    }
    for (size_t i = 0; i < rendering->n_generated; i++) {
        ChatSpan span = rendering->generated[i];
        ASSERT(span.begin <= span.end && span.end <= rendering->text.len, "part %zu is %zu..%zu of %zu bytes", i, span.begin, span.end,
               rendering->text.len);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    const ChatOptions options = {.now = "2025-01-15 12:00:00"};
    ChatTemplate *chat;
    ChatRendering first = {0}, second = {0};
    Status status = chat_template_parse("fuzz", (const char *)bytes, len, &chat);
    if (status != ST_OK) {
        ASSERT(status == ST_INPUT && !chat && status_text()[0], "status %d", (int)status);
        return 0;
    }
    status = chat_template_render(chat, variables(), &options, &first);
    if (status == ST_OK) {
        check_rendering(&first);
        status = chat_template_render(chat, variables(), &options, &second);
        ASSERT(status == ST_OK && second.text.len == first.text.len && memcmp(str_text(&first.text), str_text(&second.text), first.text.len) == 0,
               "two renderings differ");
        chat_rendering_release(&second);
    } else {
        ASSERT(status == ST_INPUT && strstr(status_text(), "chat template 'fuzz' line "), "status %d: %s", (int)status, status_text());
        ASSERT(!first.text.data && !first.generated, "a failed rendering left something behind");
    }
    chat_rendering_release(&first);
    chat_template_free(chat);
    return 0;
}
