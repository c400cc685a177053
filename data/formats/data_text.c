/* SPDX-License-Identifier: Apache-2.0 */
/* {"text"}: every token is trained but the first, which has no context. */
#include "data/formats/formats.h"

#include <string.h>

static bool detect_text(const json_t *row) { return json_is_string(json_object_get(row, "text")); }

static Status encode_text(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    const char *text;
    TRY(train_on_whole(config, "text are trained whole"));
    TRY(row_text(row, "text", &text));
    return encode_pair(tokenizer, config, "", text, encoding);
}

static Status data_text_question(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids) {
    const char *text;
    TRY(row_text(row, "text", &text));
    return encode_prompt_as(tokenizer, config, text, strlen(text), ids);
}

const DataFormat data_format_text = {
    .name = "text",
    .help = "{\"text\"}",
    .detect = detect_text,
    .encode = encode_text,
    .question = data_text_question,
    .needs_tokenizer = true,
};
