/* {"prompt","completion"}: the answer follows the prompt directly. */
#include "data/formats.h"

static bool detect_pair(const json_t *row) { return json_object_get(row, "prompt") && json_object_get(row, "completion"); }

static Status encode_row(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    const char *prompt, *completion;
    TRY(row_text(row, "prompt", &prompt));
    TRY(row_text(row, "completion", &completion));
    return encode_pair(tokenizer, config, prompt, completion, encoding);
}

const DataFormat data_format_prompt_completion = {
    .name = "prompt_completion",
    .help = "{\"prompt\",\"completion\"}",
    .detect = detect_pair,
    .encode = encode_row,
    .needs_tokenizer = true,
};
