/* SPDX-License-Identifier: Apache-2.0 */
/* {"prompt"} alone, a text or a list of messages: the prompts of reinforcement learning. It has no answer to imitate. */
#include "data/formats/conversation.h"
#include "data/formats/formats.h"
#include "data/formats/row_form.h"

#include <string.h>

static bool detect_prompt(const json_t *row) { return json_object_get(row, "prompt") && !json_object_get(row, "completion"); }

static Status encode_row(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    (void)config, (void)tokenizer, (void)encoding;
    status_fail(ST_INPUT, "a prompt without an answer has nothing to train on");
    if (columns_hint(row, "completion")) return ST_INPUT;
    return status_hint(ST_INPUT,
                       "rows to train on are {\"prompt\", \"completion\"} or {\"messages\"}; tune rl learns from prompts, by 'reward' and 'rl'");
}

Status prompt_question(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids) {
    const json_t *prompt = json_object_get(row, "prompt");
    const char *text;
    if (!json_is_array(prompt)) {
        if (config->system)
            return status_hint(status_fail(ST_INPUT, "a prompt that is a text cannot have a system message"),
                               "data.as: chat (--as chat) turns it into a message for the chat template");
        TRY(row_text(row, "prompt", &text));
        note_idle_system(row, config);
        return encode_prompt_as(tokenizer, config, text, strlen(text), ids);
    }
    json_t *messages;
    TRY(messages_normalize(prompt, row, config, &messages));
    Status status = encode_question(messages, row, config, tokenizer, ids);
    json_decref(messages);
    return status;
}

const DataFormat data_format_prompt = {
    .name = "prompt",
    .help = "{\"prompt\"}",
    .detect = detect_prompt,
    .encode = encode_row,
    .question = prompt_question,
    .needs_tokenizer = true,
    .takes_system = true,
};
