/* SPDX-License-Identifier: Apache-2.0 */
/* {"prompt","completion"}: two texts, the completion follows the prompt directly; or two lists of messages, and only the second one is trained. */
#include "data/formats/conversation.h"
#include "data/formats/formats.h"

static bool detect_pair(const json_t *row) {
    return json_object_get(row, "prompt") && json_object_get(row, "completion") && !json_object_get(row, "label");
}

static Status encode_lists(const json_t *row, const json_t *prompt, const json_t *completion, const DataConfig *config, const Tokenizer *tokenizer,
                           Encoding *encoding) {
    json_t *before = NULL, *both = NULL, *whole = json_array();
    Status status = whole ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    DataConfig no_system = *config;
    no_system.system = NULL; /* the prompt has it already */
    if (status == ST_OK) status = messages_normalize(prompt, row, config, &before);
    if (status == ST_OK && (json_array_extend(whole, before) || json_array_extend(whole, (json_t *)(uintptr_t)completion)))
        status = status_fail(ST_INPUT, "'completion' is not a list of messages");
    if (status == ST_OK) status = messages_normalize(whole, NULL, &no_system, &both);
    if (status == ST_OK) status = encode_messages(both, json_array_size(before), row, config, tokenizer, encoding);
    json_decref(before);
    json_decref(both);
    json_decref(whole);
    return status;
}

Status encode_answer(const json_t *row, const json_t *prompt, const json_t *completion, const DataConfig *config, const Tokenizer *tokenizer,
                     Encoding *encoding) {
    if (json_is_array(prompt)) return encode_lists(row, prompt, completion, config, tokenizer, encoding);
    if (!json_is_string(prompt)) return status_fail(ST_INPUT, "'prompt' is neither a text nor a list of messages");
    if (!json_is_string(completion)) return status_fail(ST_INPUT, "the answer to 'prompt' is not a text, but 'prompt' is");
    if (json_contains_nul(prompt)) return status_fail(ST_INPUT, "'prompt' holds a NUL character");
    if (json_contains_nul(completion)) return status_fail(ST_INPUT, "the answer to 'prompt' holds a NUL character");
    TRY(train_on_text(config));
    if (config->system)
        return status_hint(status_fail(ST_CONFIG, "'data.system' needs rows of messages; this row's 'prompt' is a text"),
                           "data.as: chat turns such rows into messages for the chat template");
    note_idle_system(row, config);
    return encode_pair(tokenizer, config, json_string_value(prompt), json_string_value(completion), encoding);
}

static Status encode_row(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    const json_t *prompt = json_object_get(row, "prompt");
    const char *text;
    if (json_is_array(prompt)) return encode_answer(row, prompt, json_object_get(row, "completion"), config, tokenizer, encoding);
    TRY(row_text(row, "prompt", &text));
    TRY(row_text(row, "completion", &text));
    return encode_answer(row, prompt, json_object_get(row, "completion"), config, tokenizer, encoding);
}

const DataFormat data_format_prompt_completion = {
    .name = "prompt_completion",
    .help = "{\"prompt\",\"completion\"}",
    .detect = detect_pair,
    .encode = encode_row,
    .question = prompt_question,
    .needs_tokenizer = true,
    .takes_system = true,
};
