/* SPDX-License-Identifier: Apache-2.0 */
/* {"prompt","completion","label"}: answers with a verdict, wanted or not. Supervised training learns the wanted ones; the others are kept as context
 * without loss, and counted. */
#include "data/formats/conversation.h"
#include "data/formats/formats.h"

#include <string.h>

static bool detect_kto(const json_t *row) {
    bool pair = json_object_get(row, "prompt") && json_object_get(row, "completion") && json_object_get(row, "label");
    return pair || ((json_object_get(row, "messages") || json_object_get(row, "conversations")) && json_is_boolean(json_object_get(row, "label")));
}

/* A full conversation; the label belongs to its last turn. */
static const DataFormat *conversation_format(const json_t *row) {
    return json_object_get(row, "messages") ? &data_format_messages : json_object_get(row, "conversations") ? &data_format_sharegpt : NULL;
}

static Status encode_row(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    const json_t *prompt = json_object_get(row, "prompt"), *completion = json_object_get(row, "completion");
    bool wanted;
    const DataFormat *whole = conversation_format(row);
    if (!whole && (!prompt || !completion)) return status_fail(ST_INPUT, "the row lacks '%s'", prompt ? "completion" : "prompt");
    TRY(row_label(row, &wanted));
    if (whole) {
        DataConfig last = *config;
        if (!last.train_on || strcmp(last.train_on, "auto") == 0) last.train_on = "last";
        TRY(data_format_encode(whole, row, &last, tokenizer, encoding));
    } else {
        TRY(encode_answer(row, prompt, completion, config, tokenizer, encoding));
    }
    if (wanted || config->pairs != NO_PAIRS) return ST_OK;
    for (size_t i = 0; i < encoding->labels.n; i++) encoding->labels.data[i] = LABEL_NONE;
    return ST_OK;
}

static Status data_kto_question(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids) {
    const DataFormat *whole = conversation_format(row);
    return whole ? data_format_question(whole, row, config, tokenizer, ids) : prompt_question(row, config, tokenizer, ids);
}

const DataFormat data_format_kto = {
    .name = "kto",
    .help = "{\"prompt\",\"completion\",\"label\"}",
    .detect = detect_kto,
    .encode = encode_row,
    .question = data_kto_question,
    .needs_tokenizer = true,
    .takes_system = true,
};
