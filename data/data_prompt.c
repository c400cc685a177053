/* {"prompt"} alone, a text or a list of messages: what models are asked in reinforcement learning. There is nothing in it to imitate. */
#include "data/formats.h"

static bool detect_prompt(const json_t *row) { return json_object_get(row, "prompt") && !json_object_get(row, "completion"); }

static Status encode_row(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    (void)row, (void)config, (void)tokenizer, (void)encoding;
    status_fail(ST_INPUT, "a prompt without an answer has nothing to train on");
    return status_hint(ST_INPUT, "tune generate answers prompts; rows to train on are {\"prompt\", \"completion\"} or {\"messages\"}");
}

const DataFormat data_format_prompt = {
    .name = "prompt",
    .help = "{\"prompt\"}",
    .detect = detect_prompt,
    .encode = encode_row,
};
