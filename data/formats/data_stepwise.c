/* SPDX-License-Identifier: Apache-2.0 */
/* {"prompt","completions":[...],"labels":[...]}: an answer in steps, each labelled right or wrong, for process reward models. Supervised training
 * learns answers whose steps are all right; the others are kept as context without loss, and counted. */
#include "data/formats/conversation.h"
#include "data/formats/formats.h"
#include "data/formats/message.h"

#include <string.h>

static bool detect_stepwise(const json_t *row) {
    return json_object_get(row, "prompt") && json_is_array(json_object_get(row, "completions")) && json_is_array(json_object_get(row, "labels"));
}

Status stepwise_label(const json_t *row, size_t i, double *label) {
    const json_t *value = json_array_get(json_object_get(row, "labels"), i);
    *label = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
    if ((json_is_boolean(value) || json_is_number(value)) && *label >= 0 && *label <= 1) return ST_OK;
    status_fail(ST_INPUT, "label %zu of 'labels' is neither true nor false", i + 1);
    return status_hint(ST_INPUT, "a number from 0 to 1 is the probability that the step is right");
}

Status stepwise_count(const json_t *row, const char *steps, size_t *n) {
    const json_t *list = json_object_get(row, steps), *labels = json_object_get(row, "labels");
    *n = json_array_size(list);
    if (!json_is_array(list) || !json_is_array(labels))
        return status_fail(ST_INPUT, "the row lacks '%s', a list", json_is_array(list) ? "labels" : steps);
    if (*n == 0) return status_fail(ST_INPUT, "'%s' is empty", steps);
    size_t n_labels = json_array_size(labels);
    if (n_labels == *n) return ST_OK;
    return status_fail(ST_INPUT, "%zu step%s in '%s' and %zu label%s", *n, plural((int64_t)*n), steps, n_labels, plural((int64_t)n_labels));
}

static const char *separator_of(const DataConfig *config) { return config->step_separator ? config->step_separator : "\n"; }

static Status step_text(const json_t *row, size_t i, const char **text) {
    *text = json_string_value(json_array_get(json_object_get(row, "completions"), i));
    if (!*text) return status_fail(ST_INPUT, "step %zu of 'completions' is not a text", i + 1);
    if (json_contains_nul(json_array_get(json_object_get(row, "completions"), i)))
        return status_fail(ST_INPUT, "step %zu of 'completions' holds a NUL character", i + 1);
    return **text ? ST_OK : status_fail(ST_INPUT, "step %zu of 'completions' is empty", i + 1);
}

/* Steps and separators are tokenised separately, as in TRL's PRMTrainer, so a step has the same tokens at any place. */
Status stepwise_tokens(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids, Ids *ends) {
    const char *separator = separator_of(config), *text;
    size_t n;
    TRY(stepwise_count(row, "completions", &n));
    TRY(prompt_question(row, config, tokenizer, ids));
    if (ids->n == 0) return status_fail(ST_INPUT, "'prompt' is empty");
    for (size_t i = 0; i < n; i++) {
        TRY(step_text(row, i, &text));
        TRY(tokenizer_encode(tokenizer, text, strlen(text), text_flags(config), ids));
        TRY(tokenizer_encode(tokenizer, separator, strlen(separator), TOKENIZE_PLAIN, ids));
        ids_push(ends, (int32_t)ids->n - 1);
    }
    return ST_OK;
}

static Status encode_row(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    Str text = {0};
    const char *step;
    size_t n;
    double label = 1, worst = 1;
    Status status = stepwise_count(row, "completions", &n);
    for (size_t i = 0; status == ST_OK && i < n; i++) {
        status = step_text(row, i, &step);
        if (status == ST_OK) status = stepwise_label(row, i, &label);
        if (status == ST_OK) str_printf(&text, "%s%s", i ? separator_of(config) : "", step);
        worst = MIN(worst, label);
    }
    json_t *prompt = json_object_get(row, "prompt"), *answer = NULL;
    if (status == ST_OK)
        answer = json_is_array(prompt) ? json_pack("[{s:s, s:s}]", "role", "assistant", "content", str_text(&text)) : json_string(str_text(&text));
    if (status == ST_OK)
        status = answer ? encode_answer(row, prompt, answer, config, tokenizer, encoding) : status_fail(ST_RESOURCE, "out of memory");
    json_decref(answer);
    str_release(&text);
    for (size_t i = 0; worst < 0.5 && i < encoding->labels.n; i++) encoding->labels.data[i] = LABEL_NONE;
    return status;
}

const DataFormat data_format_stepwise = {
    .name = "stepwise",
    .help = "{\"prompt\",\"completions\":[...],\"labels\":[...]}",
    .detect = detect_stepwise,
    .encode = encode_row,
    .question = prompt_question,
    .needs_tokenizer = true,
    .takes_system = true,
};
