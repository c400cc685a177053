/* SPDX-License-Identifier: Apache-2.0 */
/* {"instruction","input","output"} in the prompt of Stanford's Alpaca (github.com/tatsu-lab/stanford_alpaca, train.py): the output follows "###
 * Response:" directly. A `system` text replaces the opening sentence; `history`, a list of [instruction, response], comes first as rounds of the same
 * form. */
#include "data/formats/formats.h"

static void append_round(const char *instruction, const char *input, Str *text) {
    str_printf(text, "### Instruction:\n%s\n\n", instruction);
    if (input && input[0]) str_printf(text, "### Input:\n%s\n\n", input);
    str_append(text, "### Response:");
}

static void append_opening(const char *system, bool with_input, Str *text) {
    if (system && system[0]) {
        str_printf(text, "%s\n\n", system);
        return;
    }
    str_append(text, "Below is an instruction that describes a task");
    if (with_input) str_append(text, ", paired with an input that provides further context");
    str_append(text, ". Write a response that appropriately completes the request.\n\n");
}

Status alpaca_rounds(const json_t *history, size_t *n) {
    *n = json_array_size(history);
    if (!history || json_is_null(history)) return ST_OK;
    if (!json_is_array(history)) return status_fail(ST_INPUT, "'history' is not a list of [instruction, response]");
    for (size_t i = 0; i < *n; i++) {
        const json_t *round = json_array_get(history, i), *question = json_array_get(round, 0), *answer = json_array_get(round, 1);
        if (json_array_size(round) != 2 || !json_is_string(question) || !json_is_string(answer))
            return status_fail(ST_INPUT, "round %zu of 'history' is no [instruction, response]", i + 1);
        if (json_contains_nul(round)) return status_fail(ST_INPUT, "round %zu of 'history' holds a NUL character", i + 1);
    }
    return ST_OK;
}

static Status append_history(const json_t *history, Str *text) {
    size_t n;
    TRY(alpaca_rounds(history, &n));
    for (size_t i = 0; i < n; i++) {
        const json_t *round = json_array_get(history, i);
        append_round(json_string_value(json_array_get(round, 0)), NULL, text);
        str_printf(text, "%s\n\n", json_string_value(json_array_get(round, 1)));
    }
    return ST_OK;
}

static bool detect_alpaca(const json_t *row) { return json_object_get(row, "instruction") != NULL; }

/* A column that may be missing, null or empty. */
static Status optional_text(const json_t *row, const char *key, const char **text) {
    const json_t *given = json_object_get(row, key);
    *text = "";
    return given && !json_is_null(given) ? row_text(row, key, text) : ST_OK;
}

static Status append_prompt(const json_t *row, const DataConfig *config, Str *prompt) {
    const char *instruction, *input, *system;
    TRY(row_text(row, "instruction", &instruction));
    TRY(optional_text(row, "input", &input));
    TRY(optional_text(row, "system", &system));
    append_opening(system[0] || !config->system ? system : config->system, input[0], prompt);
    TRY(append_history(json_object_get(row, "history"), prompt));
    append_round(instruction, input, prompt);
    return ST_OK;
}

/* For data.as: chat, row_turns.c converts such a row. */
static bool is_turns(const json_t *row) { return json_is_array(json_object_get(row, "prompt")); }

static Status data_alpaca_question(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids) {
    Str prompt = {0};
    if (is_turns(row)) return prompt_question(row, config, tokenizer, ids);
    Status status = append_prompt(row, config, &prompt);
    if (status == ST_OK) status = encode_prompt_as(tokenizer, config, str_text(&prompt), prompt.len, ids);
    str_release(&prompt);
    return status;
}

static Status encode_alpaca(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    const char *output;
    if (is_turns(row)) return encode_answer(row, json_object_get(row, "prompt"), json_object_get(row, "completion"), config, tokenizer, encoding);
    TRY(train_on_text(config));
    TRY(row_text(row, "output", &output));
    Str prompt = {0};
    Status status = append_prompt(row, config, &prompt);
    if (status == ST_OK) status = encode_pair(tokenizer, config, str_text(&prompt), output, encoding);
    str_release(&prompt);
    return status;
}

const DataFormat data_format_alpaca = {
    .name = "alpaca",
    .help = "{\"instruction\",\"input\",\"output\"}",
    .detect = detect_alpaca,
    .encode = encode_alpaca,
    .question = data_alpaca_question,
    .needs_tokenizer = true,
    .takes_system = true,
};
