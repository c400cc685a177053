/* SPDX-License-Identifier: Apache-2.0 */
/* {"messages": [{"role", "content"}, ...]}: OpenAI's form, rendered by the model's chat template. The row's `tools`, `documents` and
 * `chat_template_kwargs` are passed to the template. */
#include "data/formats/conversation.h"
#include "data/formats/formats.h"

static bool detect_messages(const json_t *row) { return json_object_get(row, "messages") != NULL; }

static Status read_messages(const json_t *row, const DataConfig *config, json_t **messages) {
    json_t *given;
    TRY(row_list(row, "messages", &given));
    if (!given) return status_fail(ST_INPUT, "the row lacks 'messages'");
    Status status = messages_normalize(given, row, config, messages);
    json_decref(given);
    return status;
}

const DataFormat data_format_messages = {
    .name = "messages",
    .help = "{\"messages\"}",
    .detect = detect_messages,
    .read_messages = read_messages,
    .needs_tokenizer = true,
    .takes_system = true,
};
