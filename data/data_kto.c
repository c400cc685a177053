/* {"prompt","completion","label"}: answers that were liked or not. Supervised training takes those that were; the others are kept as context without loss, and counted. */
#include "data/conversation.h"
#include "data/formats.h"

static bool detect_kto(const json_t *row) { return json_object_get(row, "prompt") && json_object_get(row, "completion") && json_object_get(row, "label"); }

static Status encode_row(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    const json_t *prompt = json_object_get(row, "prompt"), *completion = json_object_get(row, "completion"), *label = json_object_get(row, "label");
    if (!prompt || !completion) return status_fail(ST_INPUT, "the row lacks '%s'", prompt ? "completion" : "prompt");
    if (!json_is_boolean(label) && !json_is_integer(label)) return status_fail(ST_INPUT, "'label' is neither true nor false");
    TRY(encode_answer(row, prompt, completion, config, tokenizer, encoding));
    if (json_is_true(label) || json_integer_value(label) == 1) return ST_OK;
    for (size_t i = 0; i < encoding->labels.n; i++) encoding->labels.data[i] = LABEL_NONE;
    return ST_OK;
}

const DataFormat data_format_kto = {
    .name = "kto",
    .help = "{\"prompt\",\"completion\",\"label\"}",
    .detect = detect_kto,
    .encode = encode_row,
    .question = prompt_question,
    .needs_tokenizer = true,
    .takes_system = true,
};
