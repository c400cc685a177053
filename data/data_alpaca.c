/* {"instruction","input","output"} in the words of Stanford's Alpaca (github.com/tatsu-lab/stanford_alpaca, train.py): the output follows "### Response:" directly. */
#include "data/formats.h"

void alpaca_prompt(const char *instruction, const char *input, Str *text) {
    bool with_input = input && input[0];
    str_append(text, "Below is an instruction that describes a task");
    if (with_input) str_append(text, ", paired with an input that provides further context");
    str_append(text, ". Write a response that appropriately completes the request.\n\n");
    str_printf(text, "### Instruction:\n%s\n\n", instruction);
    if (with_input) str_printf(text, "### Input:\n%s\n\n", input);
    str_append(text, "### Response:");
}

static bool detect_alpaca(const json_t *row) { return json_object_get(row, "instruction") && json_object_get(row, "output"); }

static Status encode_alpaca(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    const char *instruction, *output, *input = "";
    const json_t *given = json_object_get(row, "input");
    TRY(row_text(row, "instruction", &instruction));
    TRY(row_text(row, "output", &output));
    if (given && !json_is_null(given)) TRY(row_text(row, "input", &input));
    Str prompt = {0};
    alpaca_prompt(instruction, input, &prompt);
    Status status = encode_pair(tokenizer, config, str_text(&prompt), output, encoding);
    str_release(&prompt);
    return status;
}

const DataFormat data_format_alpaca = {
    .name = "alpaca",
    .help = "{\"instruction\",\"input\",\"output\"}",
    .detect = detect_alpaca,
    .encode = encode_alpaca,
    .needs_tokenizer = true,
};
