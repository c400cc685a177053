/* SPDX-License-Identifier: Apache-2.0 */
/* The table of row formats, and the code they share: text to tokens with BOS, EOS and the border between prompt and answer. */
#include "lib/base/memory.h"
#include "data/formats/formats.h"

#include <string.h>

#include "data/formats/conversation.h"
#include "data/formats/message.h"
#include "data/formats/row_form.h"

static const DataFormat *const formats[] = {
#define DATASET(name) &data_format_##name,
#include "data/datasets.def"
#undef DATASET
};

const DataFormat *data_format_at(size_t i) { return i < COUNT_OF(formats) ? formats[i] : NULL; }

const DataFormat *data_format_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        if (strcmp(formats[i]->name, name) == 0) return formats[i];
    return NULL;
}

Status data_format_encode(const DataFormat *format, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    json_t *own = row_unpadded(row, config->padded);
    if (!own) return status_fail(ST_RESOURCE, "out of memory for a row");
    Status status = format->read_messages ? conversation_encode(format->read_messages, own, config, tokenizer, encoding)
                                          : format->encode(own, config, tokenizer, encoding);
    json_decref(own);
    return memory_check(status);
}

Status data_format_encode_one(const DataFormat *format, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    DataConfig by_turns = *config;
    by_turns.turns = "auto";
    TRY(data_format_encode(format, row, &by_turns, tokenizer, encoding));
    size_t n = encoding->ends.n;
    ids_clear(&encoding->ends);
    if (encoding->after_thought) row_note(config->notes, BEHIND_THOUGHT);
    if (n <= 1) return ST_OK;
    status_fail(ST_INPUT, "the row trains %zu answers, and the chat template renders an earlier one differently than when it is generated", n);
    return status_hint(ST_INPUT, "data.train_on: last trains only the last one; or use a template that renders all of them alike "
                                 "(model.chat_template); data.on_bad_row: skip leaves such rows out");
}

Status data_format_question(const DataFormat *format, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids) {
    json_t *own = row_unpadded(row, config->padded);
    if (!own) return status_fail(ST_RESOURCE, "out of memory for a row");
    Status status = format->read_messages ? conversation_question(format->read_messages, own, config, tokenizer, ids)
                                          : format->question(own, config, tokenizer, ids);
    json_decref(own);
    return status;
}

const DataFormat *data_format_of(const json_t *row) {
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        if (formats[i]->detect(row)) return formats[i];
    return NULL;
}

void encoding_release(Encoding *encoding) {
    ids_release(&encoding->ids);
    ids_release(&encoding->labels);
    ids_release(&encoding->ends);
}

void data_formats_list(Str *text) {
    for (size_t i = 0; i < COUNT_OF(formats); i++) str_printf(text, "%s%s", i ? ", " : "", formats[i]->help);
}

static Status find_format(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, const DataFormat **format) {
    *format = data_format_of(row);
    if (*format && (tokenizer || !(*format)->needs_tokenizer)) return ST_OK;
    if (*format) {
        status_fail(ST_INPUT, "the row holds text, and the model directory has no tokenizer");
        return status_hint(ST_INPUT,
                           "copy tokenizer.json of the model, or of its base, into its directory; rows with ids need none: {\"ids\": [...]}");
    }
    Str known = {0};
    data_formats_list(&known);
    status_fail(ST_INPUT, "cannot detect the row's format from its columns");
    if (config->as) columns_example(row, &known); /* it belongs to the recipe */
    status_hint(ST_INPUT, "known are %s", str_text(&known));
    str_release(&known);
    return ST_INPUT;
}

Status row_question(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids) {
    const DataFormat *format;
    TRY(find_format(row, config, tokenizer, &format));
    return data_format_question(format, row, config, tokenizer, ids);
}

/* The conversation that a row has as a list; a new one in *messages, NULL: it has none. */
static Status row_conversation(const json_t *row, json_t **messages) {
    json_t *list = json_object_get(row, "messages"), *turns = json_object_get(row, "conversations");
    *messages = NULL;
    if (!turns) turns = json_object_get(row, "conversation");
    if (json_is_array(json_object_get(row, "prompt"))) list = json_object_get(row, "prompt");
    if (!json_is_array(list)) return json_is_array(turns) ? sharegpt_messages(turns, NULL, messages) : ST_OK;
    *messages = has_named_turns(list) ? named_turns_open(list) : json_copy(list);
    return *messages ? ST_OK : status_fail(ST_RESOURCE, "out of memory for a conversation");
}

static bool has_role(const json_t *message, const char *role) {
    const char *given = json_string_value(json_object_get(message, "role")), *known = given ? role_known(given) : NULL;
    return known && strcmp(known, role) == 0;
}

/* The name of a conversation's messages, and the row's system text before them. */
static Status name_messages(const json_t *row, json_t *messages) {
    const char *system;
    TRY(row_system(row, &system));
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        const char *given = json_string_value(json_object_get(message, "role")), *role = given ? role_for(NULL, given) : NULL;
        if (!role || strcmp(role, given) == 0) continue;
        json_t *named = json_copy(message);
        if (!named) return status_fail(ST_RESOURCE, "out of memory for a conversation");
        json_object_set_new(named, "role", json_string(role));
        json_array_set_new(messages, i, named);
    }
    const json_t *first = json_array_get(messages, 0);
    if (system && !has_role(first, "system") && !has_role(first, "developer"))
        json_array_insert_new(messages, 0, json_pack("{s:s, s:s}", "role", "system", "content", system));
    return ST_OK;
}

Status row_question_messages(const json_t *row, json_t **messages) {
    Status status = row_conversation(row, messages);
    size_t n = json_array_size(*messages);
    if (status == ST_OK && n > 0 && has_role(json_array_get(*messages, n - 1), "assistant")) json_array_remove(*messages, n - 1);
    if (status == ST_OK && *messages) status = name_messages(row, *messages);
    if (status == ST_OK) return ST_OK;
    json_decref(*messages);
    *messages = NULL;
    return status;
}

/* A prompt that is a list, and the answer to it. */
static Status prompt_messages(const json_t *row, const DataConfig *config, json_t **messages) {
    json_t *prompt = json_object_get(row, "prompt"), *answer = json_object_get(row, "completion");
    json_t *whole = json_is_array(prompt) ? json_copy(prompt) : NULL;
    if (!json_is_array(prompt)) return ST_OK;
    if (!whole || (json_is_array(answer) && json_array_extend(whole, answer) != 0))
        return status_fail(ST_RESOURCE, "out of memory for a conversation");
    Status status = messages_normalize(whole, row, config, messages);
    json_decref(whole);
    return status;
}

static const DataFormat *first_format(const json_t *row) {
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        if (formats[i]->detect(row)) return formats[i];
    return NULL;
}

static Status conversation_messages(const json_t *row, const DataConfig *config, json_t **messages) {
    const DataFormat *format = first_format(row);
    if (format && format->read_messages) return format->read_messages(row, config, messages);
    return format ? prompt_messages(row, config, messages) : ST_OK;
}

Status row_messages(const json_t *row, const DataConfig *config, json_t **messages) {
    const DataFormat *format = first_format(row);
    bool turned = config->as && strcmp(config->as, "chat") == 0 && format && turns_are_plain(row, format);
    json_t *turns;
    *messages = NULL;
    if (!turned) return conversation_messages(row, config, messages);
    TRY(turns_make(row, format, &turns));
    Status status = conversation_messages(turns, config, messages);
    json_decref(turns);
    return status;
}

/* Tokenises a prompt and its completion as one text, without the EOS of training: a token may span the border. */
static Status whole_text(const char *prompt, const char *completion, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids) {
    Str whole = {0};
    str_append(&whole, prompt);
    str_append(&whole, completion);
    Status status = encode_prompt_as(tokenizer, config, str_text(&whole), whole.len, ids);
    str_release(&whole);
    return status;
}

Status row_whole(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids) {
    const DataFormat *format;
    const char *prompt, *completion = "";
    TRY(find_format(row, config, tokenizer, &format));
    if (strcmp(format->name, "text") == 0) return data_format_question(format, row, config, tokenizer, ids);
    const char *answer = strcmp(format->name, "preference") == 0 ? "chosen" : "completion";
    if (json_is_string(json_object_get(row, "prompt")) && !json_is_array(json_object_get(row, answer))) {
        TRY(row_text(row, "prompt", &prompt));
        if (json_object_get(row, answer)) TRY(row_text(row, answer, &completion));
        return whole_text(prompt, completion, config, tokenizer, ids);
    }
    if (strcmp(format->name, "prompt") == 0) return data_format_question(format, row, config, tokenizer, ids);
    DataConfig all = *config;
    Encoding encoding = {0};
    all.train_on = "all";
    all.turns = NULL;
    Status status = data_format_encode(format, row, &all, tokenizer, &encoding);
    if (status == ST_OK) ids_append(ids, encoding.ids.data, encoding.ids.n);
    encoding_release(&encoding);
    return status;
}

Status row_text(const json_t *row, const char *key, const char **text) {
    const json_t *value = json_object_get(row, key);
    if (!value) {
        status_fail(ST_INPUT, "the row lacks '%s'", key);
        (void)columns_hint(row, key);
        return ST_INPUT;
    }
    if (json_is_array(value)) {
        status_fail(ST_INPUT, "'%s' is a list", key);
        return status_hint(ST_INPUT, "lists of messages are read in rows of messages, prompt_completion, preference and kto; here it must be a text");
    }
    if (!json_is_string(value)) return status_fail(ST_INPUT, "'%s' is not a text", key);
    *text = json_string_value(value);
    if (strlen(*text) != json_string_length(value)) return status_fail(ST_INPUT, "'%s' holds a NUL character", key);
    return ST_OK;
}

Status row_weight(const json_t *row, double *weight) {
    const json_t *value = json_object_get(row, "weight");
    *weight = 1;
    if (!value || json_is_null(value)) return ST_OK;
    *weight = json_number_value(value);
    if (json_is_number(value) && *weight >= 0 && *weight <= 1e6) return ST_OK;
    status_fail(ST_INPUT, "'weight' is not a number from 0 to 1e6");
    return status_hint(ST_INPUT, "it multiplies the losses of the row's tokens; rename the column if it means something else");
}

Status train_on_text(const DataConfig *config) {
    if (!config->train_on || strcmp(config->train_on, "auto") == 0 || strcmp(config->train_on, "completion") == 0 ||
        strcmp(config->train_on, "all") == 0)
        return ST_OK;
    status_fail(ST_CONFIG, "'data.train_on' is %s, but the row has no messages", config->train_on);
    return status_hint(ST_CONFIG, "rows of a prompt and an answer take completion or all");
}

Status train_on_whole(const DataConfig *config, const char *rows) {
    if (!config->train_on || strcmp(config->train_on, "auto") == 0 || strcmp(config->train_on, "all") == 0) return ST_OK;
    return status_fail(ST_CONFIG, "'data.train_on' is %s, but rows of format %s", config->train_on, rows);
}

/* Inserts BOS before ids[begin..] if the post-processor would, and if the text does not begin with it. */
static bool needs_bos(const Tokenizer *tokenizer, const Ids *ids, size_t begin) {
    int32_t bos = tokenizer_bos(tokenizer);
    return tokenizer_adds_bos(tokenizer) && bos >= 0 && !(ids->n > begin && ids->data[begin] == bos);
}

static void insert_bos(const Tokenizer *tokenizer, Ids *ids, size_t begin) {
    size_t n = ids->n;
    ids_push(ids, 0);
    if (ids->n == n) return; /* if memory runs out, it counts as known */
    memmove(ids->data + begin + 1, ids->data + begin, (ids->n - begin - 1) * sizeof *ids->data);
    ids->data[begin] = tokenizer_bos(tokenizer);
}

static Status encode_begun(const Tokenizer *tokenizer, TokenizeFlags flags, const char *text, size_t len, Ids *ids) {
    size_t begin = ids->n;
    TRY(tokenizer_encode(tokenizer, text, len, flags, ids));
    if (needs_bos(tokenizer, ids, begin)) insert_bos(tokenizer, ids, begin);
    return ST_OK;
}

Status encode_prompt(const Tokenizer *tokenizer, const char *text, size_t len, Ids *ids) {
    return encode_begun(tokenizer, TOKENIZE_PLAIN, text, len, ids);
}

Status encode_prompt_as(const Tokenizer *tokenizer, const DataConfig *config, const char *text, size_t len, Ids *ids) {
    note_text_controls(text, tokenizer, config);
    return encode_begun(tokenizer, text_flags(config), text, len, ids);
}

/* The first token that ends after `prompt_len` bytes of the text. A token that straddles the border is predicted from the prompt, so it belongs to
 * the answer. */
static Status border_by_offsets(const Tokenizer *tokenizer, const DataConfig *config, const Str *whole, size_t prompt_len, size_t *border) {
    Ids ids = {0}, offsets = {0};
    Status status = tokenizer_encode_offsets(tokenizer, str_text(whole), whole->len, text_flags(config), &ids, &offsets);
    size_t i = 0;
    while (status == ST_OK && i < ids.n && (size_t)offsets.data[2 * i + 1] <= prompt_len) i++;
    *border = i + needs_bos(tokenizer, &ids, 0);
    ids_release(&ids);
    ids_release(&offsets);
    return status;
}

/* The index of the answer's first token in the ids of the joined text. */
static Status find_border(const Tokenizer *tokenizer, const DataConfig *config, const char *prompt, const Str *whole, Encoding *encoding,
                          size_t *border) {
    Ids ids = {0};
    size_t len = strlen(prompt);
    Status status = encode_prompt_as(tokenizer, config, prompt, len, &ids);
    bool prefix = ids.n <= encoding->ids.n && (ids.n == 0 || memcmp(ids.data, encoding->ids.data, ids.n * sizeof *ids.data) == 0);
    *border = ids.n;
    ids_release(&ids);
    if (status != ST_OK || prefix) return status;
    encoding->remapped = true;
    return border_by_offsets(tokenizer, config, whole, len, border);
}

static void append_eos(const Tokenizer *tokenizer, Encoding *encoding) {
    int32_t eos = tokenizer_eos(tokenizer);
    const Ids *ids = &encoding->ids;
    encoding->no_eos = eos < 0;
    if (eos >= 0 && !(ids->n > 0 && ids->data[ids->n - 1] == eos)) ids_push(&encoding->ids, eos);
}

Status encode_pair(const Tokenizer *tokenizer, const DataConfig *config, const char *prompt, const char *completion, Encoding *encoding) {
    Str whole = {0};
    if (completion[strspn(completion, " \t\r\n")] == '\0') row_note(config->notes, EMPTY_ANSWER);
    str_append(&whole, prompt);
    str_append(&whole, completion);
    size_t border = 0;
    bool all = config->train_on && strcmp(config->train_on, "all") == 0;
    Status status = encode_prompt_as(tokenizer, config, str_text(&whole), whole.len, &encoding->ids);
    if (status == ST_OK && !all) status = find_border(tokenizer, config, prompt, &whole, encoding, &border);
    str_release(&whole);
    if (status != ST_OK) return status;
    append_eos(tokenizer, encoding);
    for (size_t i = 0; i < encoding->ids.n; i++) ids_push(&encoding->labels, i >= border ? encoding->ids.data[i] : LABEL_NONE);
    return ST_OK;
}
