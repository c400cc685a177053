/* SPDX-License-Identifier: Apache-2.0 */
/* {"prompt","chosen","rejected"}: pairs for preference losses. The prompt may be missing if both answers are full conversations, or texts with a
 * common prefix. It may also be the text of a message that both conversations begin with. Supervised training learns the chosen answer. */
#include "data/formats/conversation.h"
#include "data/formats/formats.h"

#include <stdlib.h>
#include <string.h>

/* "chosen", or "chosen_messages" as in newer files of LLaMA-Factory. */
static const json_t *side(const json_t *row, const char *name, const char *other) {
    const json_t *value = json_object_get(row, name);
    return value ? value : json_object_get(row, other);
}

static bool detect_preference(const json_t *row) { return side(row, "chosen", "chosen_messages") && side(row, "rejected", "rejected_messages"); }

/* {"conversations", "chosen": {"from", "value"}}: the conversation is the prompt, and the answer is one message. */
static Status encode_turn(const json_t *row, const json_t *chosen, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    json_t *turns = NULL, *prompt = NULL, *answer = NULL, *one = json_pack("[O]", chosen);
    Status status = one ? row_list(row, "conversations", &turns) : status_fail(ST_RESOURCE, "out of memory");
    if (status == ST_OK && !turns) status = status_fail(ST_INPUT, "the row lacks 'conversations', the prompt of 'chosen'");
    if (status == ST_OK) status = sharegpt_messages(turns, config->notes, &prompt);
    if (status == ST_OK) status = sharegpt_messages(one, config->notes, &answer);
    if (status == ST_OK) status = encode_answer(row, prompt, answer, config, tokenizer, encoding);
    json_decref(turns);
    json_decref(prompt);
    json_decref(answer);
    json_decref(one);
    return status;
}

static size_t same_messages(const json_t *chosen, const json_t *rejected) {
    size_t same = 0;
    while (same < json_array_size(chosen) && json_equal(json_array_get(chosen, same), json_array_get(rejected, same))) same++;
    return same;
}

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* Compares without white space at both ends. */
static bool same_text(const json_t *a, const json_t *b) {
    const char *x = json_string_value(a), *y = json_string_value(b);
    size_t n = json_string_length(a), m = json_string_length(b);
    for (; n > 0 && is_blank(*x); x++) n--;
    for (; m > 0 && is_blank(*y); y++) m--;
    while (n > 0 && is_blank(x[n - 1])) n--;
    while (m > 0 && is_blank(y[m - 1])) m--;
    return x && y && n == m && memcmp(x, y, n) == 0;
}

/* As in ultrafeedback_binarized: the prompt is the text of a message that both conversations begin with. */
static bool stands_in_both(const json_t *prompt, const json_t *chosen, const json_t *rejected) {
    for (size_t same = json_is_string(prompt) ? same_messages(chosen, rejected) : 0; same > 0; same--)
        if (same_text(json_object_get(json_array_get(chosen, same - 1), "content"), prompt)) return true;
    return false;
}

/* A pair without a separate prompt: the messages that both begin with are the prompt. */
static Status encode_whole(const json_t *row, const json_t *chosen, const json_t *rejected, const DataConfig *config, const Tokenizer *tokenizer,
                           Encoding *encoding) {
    size_t same = same_messages(chosen, rejected);
    if (same > 0 && same == json_array_size(chosen)) same--; /* if the conversations are equal, the last message is still an answer */
    json_t *messages;
    TRY(messages_normalize(chosen, row, config, &messages));
    size_t added = json_array_size(messages) - json_array_size(chosen);
    Status status = encode_messages(messages, same + added, row, config, tokenizer, encoding);
    json_decref(messages);
    return status;
}

/* Anthropic's form: two dialogues as text; the answer is the part that differs, from the last "Assistant:" that both have in common. */
static Status encode_dialogue(const char *chosen, const char *rejected, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    static const char mark[] = "\n\nAssistant:";
    const char *border = NULL;
    size_t same = 0;
    while (chosen[same] && chosen[same] == rejected[same]) same++;
    for (const char *at = chosen; (at = strstr(at, mark)); at++)
        if ((size_t)(at - chosen) + strlen(mark) <= same) border = at + strlen(mark);
    if (!border) {
        status_fail(ST_INPUT, "the row lacks 'prompt', and its texts have no common beginning that ends with \"Assistant:\"");
        return status_hint(ST_INPUT, "expected {\"prompt\", \"chosen\", \"rejected\"}");
    }
    char *prompt = strndup(chosen, (size_t)(border - chosen));
    if (!prompt) return status_fail(ST_RESOURCE, "out of memory");
    Status status = encode_pair(tokenizer, config, prompt, border, encoding);
    free(prompt);
    return status;
}

static Status encode_settled(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    const json_t *prompt = json_object_get(row, "prompt"), *chosen = side(row, "chosen", "chosen_messages"),
                 *rejected = side(row, "rejected", "rejected_messages");
    const char *text, *other;
    if (!chosen || !rejected) return status_fail(ST_INPUT, "the row lacks '%s'", chosen ? "rejected" : "chosen");
    if (json_is_array(chosen) != json_is_array(rejected))
        return status_fail(ST_INPUT, "one of 'chosen' and 'rejected' is a list of messages, the other is not");
    if (json_is_object(chosen)) return encode_turn(row, chosen, config, tokenizer, encoding);
    bool repeats = stands_in_both(prompt, chosen, rejected);
    if (json_is_string(prompt) && json_is_array(chosen) && !repeats)
        return status_hint(
            status_fail(ST_INPUT, "'prompt' is a text, but the full conversations in 'chosen' and 'rejected' do not both begin with it"),
            "leave 'prompt' out, or keep only the answers in both lists");
    if (prompt && !json_is_null(prompt) && !repeats) return encode_answer(row, prompt, chosen, config, tokenizer, encoding);
    if (json_is_array(chosen)) return encode_whole(row, chosen, rejected, config, tokenizer, encoding);
    TRY(row_text(row, "chosen", &text));
    TRY(row_text(row, "rejected", &other));
    TRY(train_on_text(config));
    return encode_dialogue(text, other, config, tokenizer, encoding);
}

static Status encode_row(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    json_t *settled;
    TRY(preference_settle(row, &settled));
    if (config->pairs == PAIRS_REJECTED) preference_swap(settled);
    Status status = encode_settled(settled, config, tokenizer, encoding);
    json_decref(settled);
    return status;
}

static Status question_settled(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids) {
    const json_t *prompt = json_object_get(row, "prompt"), *chosen = side(row, "chosen", "chosen_messages"),
                 *rejected = side(row, "rejected", "rejected_messages");
    bool whole = (!prompt || json_is_null(prompt)) && same_messages(chosen, rejected) > 0;
    if (!whole && !stands_in_both(prompt, chosen, rejected)) return prompt_question(row, config, tokenizer, ids);
    json_t *common = json_array(), *messages;
    for (size_t i = 0; i < same_messages(chosen, rejected); i++) json_array_append(common, json_array_get(chosen, i));
    Status status = messages_normalize(common, row, config, &messages);
    if (status == ST_OK) {
        status = encode_question(messages, row, config, tokenizer, ids);
        json_decref(messages);
    }
    json_decref(common);
    return status;
}

static Status data_preference_question(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids) {
    json_t *settled;
    TRY(preference_settle(row, &settled));
    Status status = question_settled(settled, config, tokenizer, ids);
    json_decref(settled);
    return status;
}

const DataFormat data_format_preference = {
    .name = "preference",
    .help = "{\"prompt\",\"chosen\",\"rejected\"}",
    .detect = detect_preference,
    .encode = encode_row,
    .question = data_preference_question,
    .needs_tokenizer = true,
    .takes_system = true,
};
