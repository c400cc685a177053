/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations turn by turn: each trained turn becomes a separate text, rendered as when the turn is asked for. */
#include "data/formats/conversation.h"
#include "data/formats/message.h"

#include <stdlib.h>
#include <string.h>

static json_t *first_messages(const json_t *messages, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n && list; i++) json_array_append(list, json_array_get(messages, i));
    return list;
}

/* Appends one text to those of the row. */
static void append_text(const Encoding *text, Encoding *encoding) {
    ids_append(&encoding->ids, text->ids.data, text->ids.n);
    ids_append(&encoding->labels, text->labels.data, text->labels.n);
    ids_push(&encoding->ends, (int32_t)encoding->ids.n);
    encoding->conversation = true;
    encoding->has_system = text->has_system;
    encoding->remapped = encoding->remapped || text->remapped;
    encoding->unwritten = encoding->unwritten || text->unwritten;
    encoding->after_thought = encoding->after_thought || text->after_thought;
    encoding->marked += text->marked;
    encoding->templates += text->templates;
}

/* The last turn of a conversation that begins differently than its prompt: possible if the prompt starts its thought. failed: the failure to return
 * otherwise. */
static Status encode_after_thought(const json_t *messages, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Status failed,
                                   Encoding *encoding) {
    Failure otherwise;
    ChatRendering prompt = {0}, whole = {0};
    Str text = {0};
    size_t end = 0, n = json_array_size(messages);
    failure_save(&otherwise, failed);
    Status status = messages_render(config->chat, messages, n - 1, row, true, &prompt);
    if (status == ST_OK) status = messages_render(config->chat, messages, n, row, false, &whole);
    if (status == ST_OK) status = answer_after_thought(config->chat, messages, &prompt.text, &whole.text, &text, &end);
    if (status == ST_OK && end == 0) status = failure_restore(&otherwise);
    if (status == ST_OK) status = encode_rendered(&text, prompt.text.len, end, messages, config, tokenizer, encoding);
    encoding->after_thought = true;
    chat_rendering_release(&prompt);
    chat_rendering_release(&whole);
    str_release(&text);
    return status;
}

/* Encodes the turn of message `turn` as the last of its conversation. */
static Status encode_turn(const json_t *messages, size_t turn, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer,
                          Encoding *encoding) {
    DataConfig last = *config;
    Encoding text = {0};
    bool broken = false;
    json_t *until = first_messages(messages, turn + 1);
    last.train_on = "last";
    Status status = until ? encode_conversation(until, turn, row, &last, tokenizer, &text, &broken) : status_fail(ST_RESOURCE, "out of memory");
    if (status != ST_OK && broken) status = encode_after_thought(until, row, &last, tokenizer, status, &text);
    if (status == ST_OK && text.ids.n == 0) status = status_fail(ST_INPUT, "the chat template leaves out all of the first %zu messages", turn + 1);
    if (status == ST_OK && text.ids.n > INT32_MAX - encoding->ids.n)
        status = status_hint(status_fail(ST_INPUT, "the conversation has too many tokens to be trained turn by turn"), "data.turns: whole");
    if (status == ST_OK) append_text(&text, encoding);
    encoding_release(&text);
    json_decref(until);
    return status;
}

static Status encode_each(const json_t *messages, size_t n_context, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer,
                          Encoding *encoding) {
    size_t n = json_array_size(messages), last = n;
    bool *trained = calloc(n + 1, sizeof *trained), some = false;
    Status status = trained ? messages_trained(messages, n_context, config, trained) : status_fail(ST_RESOURCE, "out of memory");
    for (size_t i = 0; i < n && status == ST_OK; i++) {
        const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
        if (role && strcmp(role, "assistant") == 0) last = i;
        if (trained[i]) status = encode_turn(messages, i, row, config, tokenizer, encoding);
        some = some || trained[i];
    }
    /* a row whose marks exclude all turns is used, and counted as untrained */
    if (status == ST_OK && !some) status = encode_turn(messages, last, row, config, tokenizer, encoding);
    for (size_t i = 0; i < encoding->labels.n && status == ST_OK && !some; i++) encoding->labels.data[i] = LABEL_NONE;
    free(trained);
    return status;
}

static void turns_forget(Encoding *encoding) {
    Ids ids = encoding->ids, labels = encoding->labels, ends = encoding->ends;
    *encoding = (Encoding){.ids = ids, .labels = labels, .ends = ends, .weight = encoding->weight};
    ids_clear(&encoding->ids);
    ids_clear(&encoding->labels);
}

static Status encode_guarded(const json_t *messages, size_t n_context, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer,
                             Encoding *encoding) {
    const char *turns = config->turns ? config->turns : "whole", *train_on = config->train_on ? config->train_on : "auto";
    bool each = strcmp(turns, "each") == 0, broken = false;
    if (each && strcmp(train_on, "all") == 0)
        return status_hint(status_fail(ST_CONFIG, "'data.turns: each' trains only answers, but 'data.train_on: all' trains everything"),
                           "leave out one of the two");
    if (!each) {
        Status status = encode_conversation(messages, n_context, row, config, tokenizer, encoding, &broken);
        if (status == ST_OK || !broken || strcmp(turns, "auto") != 0 || strcmp(train_on, "all") == 0) return status;
        turns_forget(encoding);
    }
    return encode_each(messages, n_context, row, config, tokenizer, encoding);
}

Status encode_messages(const json_t *messages, size_t n_context, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer,
                       Encoding *encoding) {
    json_t *guarded = tokenizer ? controls_guard(messages, tokenizer, config) : json_incref((json_t *)(uintptr_t)messages);
    if (!guarded) return status_fail(ST_RESOURCE, "out of memory for a conversation");
    json_t *guarded_row;
    Status status = controls_guard_row(row, tokenizer, config, &guarded_row);
    if (status == ST_OK) status = encode_guarded(guarded, n_context, guarded_row, config, tokenizer, encoding);
    json_decref(guarded_row);
    json_decref(guarded);
    return status;
}
