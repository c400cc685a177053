/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations to tokens; see conversation.h. */
#include "data/formats/conversation.h"

#include <stdlib.h>
#include <string.h>

/* ---- messages in the form that templates take ---- */

static const char *role_of(const json_t *message) { return json_string_value(json_object_get(message, "role")); }
static bool is_role(const json_t *message, const char *role) { return role_of(message) && strcmp(role_of(message), role) == 0; }

/* [{"type": "text", "text": ...}, ...] as one string. */
static Status join_parts(const json_t *parts, size_t number, json_t **content) {
    Str text = {0};
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i),
                     *words = json_is_string(part) ? part : json_object_get(part, json_object_get(part, "text") ? "text" : "value");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!json_is_string(words) || (type && strcmp(type, "text") != 0)) {
            str_release(&text);
            return status_fail(ST_INPUT, "message %zu has a part of type '%s', where only text is supported", number, type ? type : "?");
        }
        str_append_n(&text, json_string_value(words), json_string_length(words));
    }
    *content = json_stringn(str_text(&text), text.len);
    str_release(&text);
    return *content ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
}

/* OpenAI's API has arguments as a string of JSON; templates write them themselves and expect the object. */
static void open_arguments(json_t *message) {
    json_t *calls = json_object_get(message, "tool_calls"), *call, *copy;
    size_t i;
    if (!json_is_array(calls)) return;
    copy = json_deep_copy(calls);
    json_array_foreach(copy, i, call) {
        json_t *function = json_object_get(call, "function") ? json_object_get(call, "function") : call,
               *arguments = json_object_get(function, "arguments");
        if (!json_is_string(arguments)) continue;
        json_t *object = json_loadb(json_string_value(arguments), json_string_length(arguments), JSON_REJECT_DUPLICATES, NULL);
        if (json_is_object(object)) json_object_set(function, "arguments", object);
        json_decref(object);
    }
    json_object_set_new(message, "tool_calls", copy);
}

/* Reasoning goes by three names in data; templates read the first, those of gpt-oss the second. As transformers does: the first that is not null
 * fills them. */
static void fill_reasoning(json_t *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *reasoning = NULL;
    for (size_t i = 0; i < COUNT_OF(names) && (!reasoning || json_is_null(reasoning)); i++) reasoning = json_object_get(message, names[i]);
    if (!reasoning || json_is_null(reasoning)) return;
    json_incref(reasoning); /* one of the two may be where it is held */
    json_object_set(message, "reasoning_content", reasoning);
    if (!json_object_get(message, "thinking")) json_object_set(message, "thinking", reasoning);
    json_decref(reasoning);
}

/* A key that is null is none, as in transformers: templates would write the word, or ask for its length. */
static void drop_nulls(json_t *message) {
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(message, next, key, value) {
        if (json_is_null(value)) json_object_del(message, key);
    }
}

static json_t *template_message(const json_t *given) {
    json_t *message = json_copy((json_t *)(uintptr_t)given);
    drop_nulls(message);
    fill_reasoning(message);
    return message;
}

json_t *messages_for_template(const json_t *messages) {
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(messages) && list; i++) {
        if (json_array_append_new(list, template_message(json_array_get(messages, i))) == 0) continue;
        json_decref(list);
        list = NULL;
    }
    return list;
}

static Status normalize_message(const json_t *given, size_t number, json_t **message) {
    if (!json_is_object(given)) return status_fail(ST_INPUT, "message %zu is no object with 'role' and 'content'", number);
    if (!json_is_string(json_object_get(given, "role"))) return status_fail(ST_INPUT, "message %zu has no 'role', or one that is no text", number);
    const json_t *content = json_object_get(given, "content"), *calls = json_object_get(given, "tool_calls");
    bool called = json_array_size(calls) > 0;
    if (!json_is_string(content) && !json_is_array(content) && !(called && (!content || json_is_null(content))))
        return status_fail(ST_INPUT, "'content' of message %zu (%s) is %s", number, role_of(given),
                           content && !json_is_null(content) ? "no text" : "missing");
    if (json_holds_nul(given)) return status_fail(ST_INPUT, "message %zu (%s) holds a NUL character", number, role_of(given));
    if (json_holds_wide(given))
        return status_hint(
            status_fail(ST_INPUT, "message %zu (%s) holds a number beyond 64 bits, which would not be written as it stands", number, role_of(given)),
            "make it a text");
    *message = template_message(given);
    if (!*message) return status_fail(ST_RESOURCE, "out of memory");
    open_arguments(*message);
    if (!json_is_array(content)) return ST_OK;
    json_t *joined;
    TRY(join_parts(content, number, &joined));
    json_object_set_new(*message, "content", joined);
    return ST_OK;
}

Status messages_normalize(const json_t *messages, const char *system, json_t **normal) {
    if (!json_is_array(messages)) return status_fail(ST_INPUT, "the messages are no list");
    if (json_array_size(messages) == 0)
        return status_hint(status_fail(ST_INPUT, "the conversation is empty"), "expected a list of {\"role\": ..., \"content\": ...}");
    json_t *list = json_array();
    Status status = list ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    bool has_system = is_role(json_array_get(messages, 0), "system") || is_role(json_array_get(messages, 0), "developer");
    if (status == ST_OK && system && !has_system && json_array_append_new(list, json_pack("{s:s, s:s}", "role", "system", "content", system)) != 0)
        status = status_fail(ST_INPUT, "the system message is not valid UTF-8");
    for (size_t i = 0; i < json_array_size(messages) && status == ST_OK; i++) {
        json_t *message = NULL;
        status = normalize_message(json_array_get(messages, i), i + 1, &message);
        if (status == ST_OK)
            json_array_append_new(list, message);
        else
            json_decref(message);
    }
    if (status == ST_OK)
        *normal = list;
    else
        json_decref(list);
    return status;
}

Status row_list(const json_t *row, const char *key, json_t **list) {
    json_t *value = json_object_get(row, key);
    *list = NULL;
    if (!value || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0)) return ST_OK;
    if (json_is_string(value))
        *list = json_loadb(json_string_value(value), json_string_length(value), JSON_REJECT_DUPLICATES, NULL);
    else
        *list = json_incref(value);
    if (json_is_array(*list)) return ST_OK;
    json_decref(*list);
    *list = NULL;
    return status_fail(ST_INPUT, "'%s' is no list", key);
}

/* ---- rendering ---- */

static Status set_list(json_t *variables, const json_t *row, const char *key) {
    json_t *list;
    TRY(row_list(row, key, &list));
    if (list) json_object_set_new(variables, key, list);
    return json_holds_nul(list) ? status_fail(ST_INPUT, "'%s' holds a NUL character", key) : ST_OK;
}

Status messages_render(const Chat *chat, const json_t *messages, size_t n, const json_t *row, bool generation_prompt, ChatRendering *rendering) {
    json_t *variables = json_object(), *part = json_array(), *more = json_object_get(row, "chat_template_kwargs");
    Status status = variables && part ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    if (status == ST_OK && json_holds_nul(more)) status = status_fail(ST_INPUT, "'chat_template_kwargs' holds a NUL character");
    for (size_t i = 0; i < n && status == ST_OK; i++) json_array_append(part, json_array_get(messages, i));
    if (status == ST_OK && json_is_object(more)) json_object_update(variables, more);
    if (status == ST_OK) json_object_set(variables, "messages", part);
    if (status == ST_OK) json_object_set_new(variables, "add_generation_prompt", json_boolean(generation_prompt));
    if (status == ST_OK) status = set_list(variables, row, "tools");
    if (status == ST_OK) status = set_list(variables, row, "documents");
    if (status == ST_OK) status = chat_template_render(chat->template, variables, &(ChatOptions){.now = chat->now}, rendering);
    json_decref(variables);
    json_decref(part);
    return status;
}

/* ---- the template of a model ---- */

/* What the template writes behind an assistant's answer tells the token that ends its turn. */
static Status find_end_of_turn(Chat *chat, const Tokenizer *tokenizer) {
    static const char answer[] = "Zq7";
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "a", "role", "assistant", "content", answer);
    ChatRendering rendering = {0};
    Ids ids = {0}, offsets = {0};
    Status status = messages ? messages_render(chat, messages, 2, NULL, false, &rendering) : status_fail(ST_RESOURCE, "out of memory");
    const char *text = str_text(&rendering.text), *last = NULL;
    for (const char *at = text; status == ST_OK && (at = strstr(at, answer)); at++) last = at;
    if (last) {
        last += strlen(answer);
        status = tokenizer_encode_offsets(tokenizer, last, strlen(last), TOKENIZE_PLAIN, &ids, &offsets);
        for (size_t i = 0; i < ids.n && status == ST_OK && chat->end_of_turn < 0; i++) {
            size_t begin = (size_t)offsets.data[2 * i], end = (size_t)offsets.data[2 * i + 1];
            if (!tokenizer_is_special(tokenizer, ids.data[i]) || end <= begin) continue;
            chat->end_of_turn = ids.data[i];
            chat->end_text = strndup(last + begin, end - begin);
        }
    }
    json_decref(messages);
    chat_rendering_release(&rendering);
    ids_release(&ids);
    ids_release(&offsets);
    return status == ST_INPUT ? ST_OK : status; /* a template may refuse so short a conversation: then it has no end of turn that we know of */
}

Status chat_open(const char *model_dir, const char *adapter, const char *override, const char *now, const Tokenizer *tokenizer, Chat **result) {
    Chat *chat = calloc(1, sizeof *chat);
    *result = NULL;
    if (!chat) return status_fail(ST_RESOURCE, "out of memory");
    chat->end_of_turn = -1;
    chat->model_dir = strdup(model_dir);
    chat->now = now ? strdup(now) : NULL;
    Status status = chat_template_load(model_dir, adapter, override, &chat->template);
    if (status == ST_OK && chat->template && tokenizer) status = find_end_of_turn(chat, tokenizer);
    if (status == ST_OK)
        *result = chat;
    else
        chat_close(chat);
    return status;
}

void chat_close(Chat *chat) {
    if (!chat) return;
    chat_template_free(chat->template);
    free(chat->now);
    free(chat->end_text);
    free(chat->model_dir);
    free(chat);
}

bool chat_writes_date(const Chat *chat) {
    static const char name[] = "strftime_now";
    bool dated = false;
    for (int with_tools = 0; with_tools < 2 && chat_has_template(chat); with_tools++) {
        Slice source = chat_template_source(chat->template, with_tools);
        dated = dated || memmem(source.data, source.len, name, strlen(name));
    }
    return dated;
}

Status chat_check_now(const Recipe *recipe, const Chat *chat) {
    if (chat_writes_date(chat)) return ST_OK;
    return recipe_unread(recipe, "data.now", "leave it out", "does nothing: %s",
                         chat_has_template(chat) ? "the chat template writes no date" : "the model has no chat template");
}

Status chat_set_now(Chat *chat, const char *now) {
    char *copy = strdup(now);
    if (!copy) return status_fail(ST_RESOURCE, "out of memory");
    free(chat->now);
    chat->now = copy;
    return ST_OK;
}

const char *chat_end_text(const Chat *chat) { return chat ? chat->end_text : NULL; }

Status chat_probe(const Chat *chat, Str *text) {
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "a", "role", "assistant", "content", "b");
    ChatRendering rendering = {0};
    Status status = messages ? messages_render(chat, messages, 2, NULL, false, &rendering) : status_fail(ST_RESOURCE, "out of memory");
    if (status == ST_OK) str_append_n(text, str_text(&rendering.text), rendering.text.len);
    json_decref(messages);
    chat_rendering_release(&rendering);
    return status;
}

int32_t chat_end_of_turn(const Chat *chat) { return chat ? chat->end_of_turn : -1; }
bool chat_has_template(const Chat *chat) { return chat && chat->template; }

static Status need_template(const DataConfig *config, const Tokenizer *tokenizer) {
    if (!tokenizer) return status_fail(ST_INPUT, "rows of messages need a tokenizer, and the model has none");
    if (chat_has_template(config->chat)) return ST_OK;
    status_fail(ST_INPUT, "rows of messages need a chat template, and the model has none");
    return status_hint(ST_INPUT, "name one: model.chat_template (--chat-template), a file or one of chatml, llama3, alpaca, plain");
}

/* ---- which text is trained ---- */

typedef struct Span {
    size_t begin, end;
    size_t message;
} Span; /* bytes of the rendered text */
typedef struct Spans {
    Span *items;
    size_t n;
} Spans;

/* `train: false`, `weight: 0` or `loss_weight: 0`: context. */
static Status message_trained(const json_t *message, size_t number, bool *trained) {
    const json_t *train = json_object_get(message, "train"),
                 *weight = json_object_get(message, json_object_get(message, "weight") ? "weight" : "loss_weight");
    *trained = true;
    if (train && !json_is_null(train)) {
        if (!json_is_boolean(train)) return status_fail(ST_INPUT, "'train' of message %zu is neither true nor false", number);
        *trained = json_is_true(train);
    }
    if (weight && !json_is_null(weight)) {
        double value = json_number_value(weight);
        if (!json_is_number(weight) || (value != 0 && value != 1)) return status_fail(ST_INPUT, "'weight' of message %zu is neither 0 nor 1", number);
        *trained = *trained && value == 1;
    }
    return ST_OK;
}

static size_t common_prefix(const Str *a, const Str *b) {
    size_t n = 0;
    while (n < a->len && n < b->len && a->data[n] == b->data[n]) n++;
    return n;
}

static Status not_prefix(const Str *part, const Str *whole, size_t at, size_t n_messages) {
    enum { BEFORE = 24, AFTER = 32 };
    size_t from = at > BEFORE ? at - BEFORE : 0;
    Str alone = {0}, within = {0};
    str_append_json(&alone, part->data + from, MIN(part->len - from, (size_t)(BEFORE + AFTER)));
    str_append_json(&within, whole->data + from, MIN(whole->len - from, (size_t)(BEFORE + AFTER)));
    status_fail(ST_INPUT, "the chat template is not prefix-preserving: %zu messages alone give %s where the whole conversation has %s", n_messages,
                str_text(&alone), str_text(&within));
    status_hint(
        ST_INPUT,
        "data.train_on: last asks less of a template, all nothing; or take one that marks the answers with {%% generation %%} (model.chat_template)");
    str_release(&alone);
    str_release(&within);
    return ST_INPUT;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* Behind the last end-of-turn text from `begin` on; without one, behind the last that is no white space. */
static size_t turn_end(const Chat *chat, const Str *text, size_t begin) {
    size_t len = chat->end_text ? strlen(chat->end_text) : 0;
    for (size_t at = text->len; len > 0 && at >= begin + len; at--)
        if (memcmp(text->data + at - len, chat->end_text, len) == 0) return at;
    size_t end = text->len;
    while (end > begin && is_space(text->data[end - 1])) end--;
    return end;
}

/* The turn of message i: from behind the prompt that asks for it to its end of turn, both checked to be what the whole conversation has. */
static Status find_turn(const Chat *chat, const json_t *messages, size_t i, const json_t *row, const Str *whole, Span *span) {
    ChatRendering prompt = {0}, answered = {0};
    bool last = i + 1 == json_array_size(messages);
    Status status = i == 0 ? first_turn_prompt(chat, messages, row, &prompt) : messages_render(chat, messages, i, row, true, &prompt);
    if (status == ST_OK && !last) status = messages_render(chat, messages, i + 1, row, false, &answered);
    if (status == ST_OK) {
        const Str *text = last ? whole : &answered.text;
        size_t same = common_prefix(&prompt.text, whole), same_answered = common_prefix(text, whole);
        *span = (Span){prompt.text.len, 0, i};
        if (same < prompt.text.len) {
            status = not_prefix(&prompt.text, whole, same, i);
        } else {
            span->end = turn_end(chat, text, span->begin);
            if (same_answered < span->end) status = not_prefix(text, whole, same_answered, i + 1);
        }
    }
    chat_rendering_release(&prompt);
    chat_rendering_release(&answered);
    return status;
}

/* Of the marks that the template made, those of trained messages: one mark belongs to each assistant's message. */
static Status marked_spans(const json_t *messages, const ChatRendering *whole, const bool *trained, Spans *spans) {
    size_t n_assistants = 0, n_trained = 0, k = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        bool assistant = is_role(json_array_get(messages, i), "assistant");
        n_assistants += assistant;
        n_trained += trained[i];
    }
    if (whole->n_generated != n_assistants && n_trained != n_assistants) {
        status_fail(ST_INPUT, "the chat template marks %zu parts as generated, but the conversation has %zu assistant messages", whole->n_generated,
                    n_assistants);
        return status_hint(ST_INPUT, "without one mark a message, only all of them can be trained: data.train_on: assistant");
    }
    if (whole->n_generated != n_assistants) {
        for (size_t i = 0; i < whole->n_generated; i++)
            spans->items[spans->n++] = (Span){whole->generated[i].begin, whole->generated[i].end, SIZE_MAX};
        return ST_OK;
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        if (!is_role(json_array_get(messages, i), "assistant")) continue;
        if (trained[i]) spans->items[spans->n++] = (Span){whole->generated[k].begin, whole->generated[k].end, i};
        k++;
    }
    return ST_OK;
}

/* Which messages are trained: trained[i]. */
static Status choose_messages(const json_t *messages, size_t n_context, const DataConfig *config, bool *trained) {
    const char *train_on = config->train_on ? config->train_on : "auto";
    size_t n = json_array_size(messages), last = n;
    for (size_t i = 0; i < n; i++) {
        trained[i] = false;
        if (!is_role(json_array_get(messages, i), "assistant")) continue;
        last = i;
        if (i >= n_context) TRY(message_trained(json_array_get(messages, i), i + 1, &trained[i]));
    }
    if (last == n || last < n_context)
        return status_hint(status_fail(ST_INPUT, "no message of the conversation is the assistant's, so there is nothing to train"),
                           "data.train_on: all trains everything");
    if (last + 1 < n && (is_role(json_array_get(messages, n - 1), "user") || is_role(json_array_get(messages, n - 1), "human"))) {
        status_fail(ST_INPUT, "the conversation ends with message %zu of the user, which nothing answers", n);
        return status_hint(ST_INPUT, "expected an assistant's message at the end");
    }
    for (size_t i = 0; i < last && strcmp(train_on, "last") == 0; i++) trained[i] = false;
    return ST_OK;
}

static Status find_spans(const json_t *messages, size_t n_context, const json_t *row, const DataConfig *config, const ChatRendering *whole,
                         Spans *spans) {
    size_t n = json_array_size(messages);
    bool *trained = calloc(n, sizeof *trained);
    spans->items = calloc(n + whole->n_generated, sizeof *spans->items);
    Status status = trained && spans->items ? choose_messages(messages, n_context, config, trained) : status_fail(ST_RESOURCE, "out of memory");
    if (status == ST_OK && chat_template_marks_generation(config->chat->template)) {
        status = marked_spans(messages, whole, trained, spans);
    } else {
        for (size_t i = 0; i < n && status == ST_OK; i++)
            if (trained[i]) status = find_turn(config->chat, messages, i, row, &whole->text, &spans->items[spans->n++]);
    }
    free(trained);
    return status;
}

/* data.train_on: all trains everything but the answers that are marked as context. */
static Status find_context(const json_t *messages, const json_t *row, const DataConfig *config, const ChatRendering *whole, Spans *spans) {
    size_t n = json_array_size(messages);
    spans->items = calloc(n, sizeof *spans->items);
    if (!spans->items) return status_fail(ST_RESOURCE, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(messages, i);
        bool trained;
        TRY(message_trained(message, i + 1, &trained));
        if (trained) continue;
        if (!is_role(message, "assistant"))
            return status_fail(ST_INPUT, "message %zu (%s) is marked as context, which only answers can be with data.train_on: all", i + 1,
                               role_of(message));
        TRY(find_turn(config->chat, messages, i, row, &whole->text, &spans->items[spans->n++]));
    }
    return ST_OK;
}

/* ---- text to tokens ---- */

/* Trained tokens that are none of the message's own words: what the template adds to a turn. */
static bool is_templates(const Str *text, const Span *span, const json_t *messages, size_t begin, size_t end) {
    const char *content = json_string_value(json_object_get(json_array_get(messages, span->message), "content"));
    size_t len = content ? strlen(content) : 0;
    while (len > 0 && is_space(*content)) content++, len--;
    while (len > 0 && is_space(content[len - 1])) len--;
    if (len == 0 || len > span->end - span->begin) return false;
    const char *found = memmem(text->data + span->begin, span->end - span->begin, content, len);
    size_t at = found ? (size_t)(found - text->data) : 0;
    return found && (end <= at || begin >= at + len);
}

/* A token that straddles the border is predicted from what stands before it, so it belongs to the turn. */
static void mark_span(const Str *text, const Span *span, const json_t *messages, const Ids *offsets, Encoding *encoding) {
    bool first = true;
    for (size_t i = 0; i < encoding->ids.n; i++) {
        size_t begin = (size_t)offsets->data[2 * i], end = (size_t)offsets->data[2 * i + 1];
        if (end <= span->begin || begin >= span->end || end <= begin) continue;
        if (first && begin < span->begin) encoding->remapped = true;
        first = false;
        encoding->labels.data[i] = encoding->ids.data[i];
        encoding->marked++;
        encoding->templates += is_templates(text, span, messages, begin, end);
    }
}

static void clear_span(const Span *span, const Ids *offsets, Encoding *encoding) {
    for (size_t i = 0; i < encoding->ids.n; i++)
        if ((size_t)offsets->data[2 * i + 1] > span->begin && (size_t)offsets->data[2 * i] < span->end) encoding->labels.data[i] = LABEL_NONE;
}

static bool names(Slice template, const char *word) { return memmem(template.data, template.len, word, strlen(word)) != NULL; }

static bool is_something(const json_t *value) {
    return json_array_size(value) > 0 || json_object_size(value) > 0 || (json_is_string(value) && json_string_length(value) > 0);
}

/* Whether the row has what its template never asks for. One that names it may still leave it out, as some do with the reasoning of earlier turns:
 * that is its choice. */
static bool passes_over(const Chat *chat, const json_t *messages, const json_t *row) {
    json_t *tools = NULL;
    (void)row_list(row, "tools", &tools); /* a text may hold an empty list; what is none is refused where it is rendered */
    bool has_tools = is_something(tools);
    json_decref(tools);
    Slice template = chat_template_source(chat->template, has_tools);
    if (has_tools && !names(template, "tools")) return true;
    bool writes_calls = names(template, "tool_calls"), writes_reasoning = names(template, "reasoning") || names(template, "thinking");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        if (!writes_calls && is_something(json_object_get(message, "tool_calls"))) return true;
        if (!writes_reasoning && is_something(json_object_get(message, "reasoning_content"))) return true;
    }
    return false;
}

Status encode_messages(const json_t *messages, size_t n_context, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer,
                       Encoding *encoding) {
    ChatRendering whole = {0};
    Spans spans = {0};
    Ids offsets = {0};
    bool all = config->train_on && strcmp(config->train_on, "all") == 0;
    TRY(need_template(config, tokenizer));
    encoding->conversation = true;
    encoding->unwritten = passes_over(config->chat, messages, row);
    encoding->has_system = is_role(json_array_get(messages, 0), "system") || is_role(json_array_get(messages, 0), "developer");
    Status status = messages_render(config->chat, messages, json_array_size(messages), row, false, &whole);
    if (status == ST_OK)
        status = all ? find_context(messages, row, config, &whole, &spans) : find_spans(messages, n_context, row, config, &whole, &spans);
    if (status == ST_OK)
        status = tokenizer_encode_offsets(tokenizer, str_text(&whole.text), whole.text.len, TOKENIZE_PLAIN, &encoding->ids, &offsets);
    for (size_t i = 0; i < encoding->ids.n && status == ST_OK; i++) ids_push(&encoding->labels, all ? encoding->ids.data[i] : LABEL_NONE);
    for (size_t i = 0; i < spans.n && status == ST_OK; i++) {
        if (all)
            clear_span(&spans.items[i], &offsets, encoding);
        else
            mark_span(&whole.text, &spans.items[i], messages, &offsets, encoding);
    }
    chat_rendering_release(&whole);
    ids_release(&offsets);
    free(spans.items);
    return status;
}

Status encode_question(const json_t *messages, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids) {
    ChatRendering rendering = {0};
    size_t n = json_array_size(messages);
    TRY(need_template(config, tokenizer));
    if (n > 0 && is_role(json_array_get(messages, n - 1), "assistant")) n--;
    if (n == 0) return status_fail(ST_INPUT, "the conversation has nothing to answer");
    Status status = messages_render(config->chat, messages, n, row, true, &rendering);
    if (status == ST_OK) status = tokenizer_encode(tokenizer, str_text(&rendering.text), rendering.text.len, TOKENIZE_PLAIN, ids);
    chat_rendering_release(&rendering);
    return status;
}

/* ---- rows that are conversations ---- */

Status conversation_encode(ReadMessages *read, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    json_t *messages;
    TRY(read(row, config, &messages));
    Status status = encode_messages(messages, 0, row, config, tokenizer, encoding);
    json_decref(messages);
    return status;
}

Status conversation_question(ReadMessages *read, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids) {
    json_t *messages;
    TRY(read(row, config, &messages));
    Status status = encode_question(messages, row, config, tokenizer, ids);
    json_decref(messages);
    return status;
}
