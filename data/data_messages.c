/* {"messages": [{"role", "content"}, ...]}: OpenAI's form, rendered by the model's chat template. `tools`, `documents` and `chat_template_kwargs` beside it go to the template. */
#include "data/conversation.h"
#include "data/formats.h"

static bool detect_messages(const json_t *row) { return json_object_get(row, "messages") != NULL; }

static Status encode_row(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    json_t *given, *messages;
    TRY(row_list(row, "messages", &given));
    if (!given) return status_fail(ST_INPUT, "the row lacks 'messages'");
    Status status = messages_normalize(given, config->system, &messages);
    json_decref(given);
    TRY(status);
    status = encode_messages(messages, 0, row, config, tokenizer, encoding);
    json_decref(messages);
    return status;
}

const DataFormat data_format_messages = {
    .name = "messages",
    .help = "{\"messages\"}",
    .detect = detect_messages,
    .encode = encode_row,
    .needs_tokenizer = true,
    .takes_system = true,
};
