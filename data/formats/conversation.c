/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations to tokens; see conversation.h. */
#include "data/formats/conversation.h"
#include "data/formats/message.h"

#include <stdlib.h>
#include <string.h>

/* ---- messages in the form that templates take ---- */

static const char *role_of(const json_t *message) { return json_string_value(json_object_get(message, "role")); }
static bool is_something(const json_t *value) {
    return json_array_size(value) > 0 || json_object_size(value) > 0 || (json_is_string(value) && json_string_length(value) > 0);
}
static bool is_role(const json_t *message, const char *role) { return role_of(message) && strcmp(role_of(message), role) == 0; }

/* Joins [{"type": "text", "text": ...}, ...] to one string. */
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

/* Reasoning has three names in data; templates read the first, those of gpt-oss the second. As in transformers, the first that is not null fills
 * both. */
static void fill_reasoning(json_t *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *reasoning = NULL;
    for (size_t i = 0; i < COUNT_OF(names) && (!reasoning || json_is_null(reasoning)); i++) reasoning = json_object_get(message, names[i]);
    if (!reasoning || json_is_null(reasoning)) return;
    json_incref(reasoning); /* either of the two may have it */
    json_object_set(message, "reasoning_content", reasoning);
    if (!json_object_get(message, "thinking")) json_object_set(message, "thinking", reasoning);
    json_decref(reasoning);
}

/* A key that is null counts as missing, as in transformers: otherwise templates would write the word "null", or ask for its length. */
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

/* Sets the role to the name that templates know. */
static void name_role(json_t *message, const DataConfig *config) {
    const char *given = role_of(message), *role = role_for(config->chat, given);
    if (strcmp(given, role) == 0) return;
    row_note(config->notes, "with a message of role '%s', which is read as '%s'", given, role);
    json_object_set_new(message, "role", json_string(role));
}

static Status check_message(const json_t *given, size_t number) {
    if (!json_is_object(given)) return status_fail(ST_INPUT, "message %zu is not an object with 'role' and 'content'", number);
    if (!json_is_string(json_object_get(given, "role")))
        return status_hint(
            status_fail(ST_INPUT, "message %zu has no 'role', or one that is not a text", number),
            "a message is {\"role\": \"user\" or \"assistant\", \"content\": ...}, or {\"from\": \"human\" or \"gpt\", \"value\": ...}");
    if (json_contains_nul(given)) return status_fail(ST_INPUT, "message %zu (%s) holds a NUL character", number, role_of(given));
    if (!json_contains_wide(given)) return ST_OK;
    status_fail(ST_INPUT, "message %zu (%s) contains a number beyond 64 bits, which would be written with another value", number, role_of(given));
    return status_hint(ST_INPUT, "write it as a text");
}

static Status check_content(const json_t *message, size_t number) {
    const json_t *content = json_object_get(message, "content");
    bool called = json_array_size(json_object_get(message, "tool_calls")) > 0;
    if (json_is_string(content) || json_is_array(content) || (called && !content)) return ST_OK;
    status_fail(ST_INPUT, "'content' of message %zu (%s) is %s", number, role_of(message), content ? "not a text" : "missing");
    return status_hint(ST_INPUT, "a message is {\"role\": ..., \"content\": ...}; data.on_bad_row: skip leaves such rows out");
}

/* Converts a turn whose text is a call to a message with calls. */
static Status open_call_turn(json_t **message, size_t number) {
    const char *content = json_string_value(json_object_get(*message, "content"));
    json_t *call;
    if (strcmp(role_of(*message), "function_call") != 0 || !content) return ST_OK;
    TRY(calls_message(content, number, &call));
    marks_copy(*message, call);
    json_decref(*message);
    *message = call;
    return ST_OK;
}

static Status normalize_message(const json_t *given, size_t number, const DataConfig *config, json_t **message) {
    TRY(check_message(given, number));
    if (config->notes) message_note_keys(given, config->chat, config->notes);
    *message = template_message(given);
    if (!*message) return status_fail(ST_RESOURCE, "out of memory");
    name_role(*message, config);
    TRY(open_call_turn(message, number));
    TRY(calls_open(*message, number, config->notes));
    TRY(check_content(*message, number));
    const json_t *content = json_object_get(*message, "content");
    if (!json_is_array(content)) return ST_OK;
    json_t *joined;
    TRY(join_parts(content, number, &joined));
    json_object_set_new(*message, "content", joined);
    return ST_OK;
}

Status row_system(const json_t *row, const char **system) {
    static const char *const names[] = {"system", "system_prompt", "system_message"};
    *system = NULL;
    for (size_t i = 0; i < COUNT_OF(names) && !*system; i++) {
        const json_t *value = json_object_get(row, names[i]);
        if (json_contains_nul(value)) return status_fail(ST_INPUT, "'%s' holds a NUL character", names[i]);
        if (json_string_length(value) > 0) *system = json_string_value(value);
    }
    return ST_OK;
}

void note_idle_system(const json_t *row, const DataConfig *config) {
    const char *system = NULL;
    if (config->notes && row_system(row, &system) == ST_OK && system)
        row_note(config->notes, "with a column 'system' and a prompt that is a text: the column is ignored");
}

/* The system message to insert: the row's, or else the recipe's. */
static Status front_system(const json_t *messages, const json_t *row, const DataConfig *config, const char **system) {
    const json_t *first = json_array_get(messages, 0);
    const char *role = role_of(first) ? role_known(role_of(first)) : NULL;
    bool has_system = role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
    TRY(row_system(row, system));
    if (!*system && is_something(json_object_get(row, "system")))
        row_note(config->notes, "with a column 'system' that is not a text: it is left out");
    const char *own = json_string_value(json_object_get(first, "content"));
    if (has_system && *system && (!own || strcmp(own, *system) != 0))
        row_note(config->notes, "with a system message and another system text in a separate column: the message is used");
    if (!*system) *system = config->system;
    if (has_system) *system = NULL;
    return ST_OK;
}

static Status normalize_list(const json_t *messages, const json_t *row, const DataConfig *config, json_t **normal) {
    const char *system;
    if (!json_is_array(messages)) return status_fail(ST_INPUT, "the messages are not a list");
    if (json_array_size(messages) == 0)
        return status_hint(status_fail(ST_INPUT, "the conversation is empty"), "expected a list of {\"role\": ..., \"content\": ...}");
    TRY(front_system(messages, row, config, &system));
    if (json_array_size(json_object_get(row, "functions")) > 0 && !is_something(json_object_get(row, "tools")))
        row_note(config->notes, "with 'functions', which are read as 'tools'");
    json_t *list = json_array();
    Status status = list ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    if (status == ST_OK && system && json_array_append_new(list, json_pack("{s:s, s:s}", "role", "system", "content", system)) != 0)
        status = status_fail(ST_INPUT, "the system message is not valid UTF-8");
    for (size_t i = 0; i < json_array_size(messages) && status == ST_OK; i++) {
        json_t *message = NULL;
        status = normalize_message(json_array_get(messages, i), i + 1, config, &message);
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

Status messages_normalize(const json_t *messages, const json_t *row, const DataConfig *config, json_t **normal) {
    if (!has_named_turns(messages)) return normalize_list(messages, row, config, normal);
    json_t *opened = named_turns_open(messages);
    Status status = opened ? normalize_list(opened, row, config, normal) : status_fail(ST_RESOURCE, "out of memory for a conversation");
    json_decref(opened);
    return status;
}

Status row_list(const json_t *row, const char *key, json_t **list) {
    json_t *value = json_object_get(row, key);
    *list = NULL;
    if (!value || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0)) return ST_OK;
    if (json_is_string(value))
        *list = json_parse(json_string_value(value), json_string_length(value), JSON_REJECT_DUPLICATES, NULL);
    else
        *list = json_incref(value);
    if (json_is_array(*list)) return ST_OK;
    json_decref(*list);
    *list = NULL;
    return status_fail(ST_INPUT, "'%s' is not a list", key);
}

/* ---- rendering ---- */

static Status set_tools(json_t *variables, const json_t *row) {
    json_t *tools;
    TRY(row_tools(row, &tools));
    if (tools) json_object_set_new(variables, "tools", tools);
    return json_contains_nul(tools) ? status_fail(ST_INPUT, "'tools' holds a NUL character") : ST_OK;
}

static Status set_list(json_t *variables, const json_t *row, const char *key) {
    json_t *list;
    TRY(row_list(row, key, &list));
    if (list) json_object_set_new(variables, key, list);
    return json_contains_nul(list) ? status_fail(ST_INPUT, "'%s' holds a NUL character", key) : ST_OK;
}

/* The row's own values for the template: an object, or a text that encodes one, as in columns of Parquet and CSV. */
static Status set_kwargs(json_t *variables, const json_t *row) {
    static const char key[] = "chat_template_kwargs";
    json_t *value = json_object_get(row, key), *object = NULL;
    if (!value || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0)) return ST_OK;
    if (json_is_string(value))
        object = json_parse(json_string_value(value), json_string_length(value), JSON_REJECT_DUPLICATES, NULL);
    else
        object = json_incref(value);
    Status status = ST_OK;
    if (!json_is_object(object))
        status = status_hint(status_fail(ST_INPUT, "'%s' is not an object", key), "expected {\"enable_thinking\": false} or the like");
    else if (json_contains_nul(object))
        status = status_fail(ST_INPUT, "'%s' holds a NUL character", key);
    else
        json_object_update(variables, object);
    json_decref(object);
    return status;
}

/* 'user', 'assistant', ...: the roles of the first messages. */
static void list_roles(const json_t *messages, Str *roles) {
    for (size_t i = 0; i < json_array_size(messages) && roles->len < 80; i++)
        str_printf(roles, "%s'%s'", i ? ", " : "", role_of(json_array_get(messages, i)));
}

/* If a template refuses messages, the reason is a role that it does not know, or the order of roles. */
static Status conversation_refused(const json_t *messages, const json_t *row) {
    Str roles = {0};
    if (*status_hint_text()) return ST_INPUT;
    list_roles(messages, &roles);
    status_hint(ST_INPUT, "the conversation's roles are %s; change them, or name another template: model.chat_template (--chat-template)%s",
                str_text(&roles), row ? "; data.on_bad_row: skip leaves such rows out" : "");
    str_release(&roles);
    return ST_INPUT;
}

Status messages_render(const Chat *chat, const json_t *messages, size_t n, const json_t *row, bool generation_prompt, ChatRendering *rendering) {
    json_t *variables = json_object(), *part = json_array();
    Status status = variables && part ? set_kwargs(variables, row) : status_fail(ST_RESOURCE, "out of memory");
    for (size_t i = 0; i < n && status == ST_OK; i++) json_array_append(part, json_array_get(messages, i));
    if (status == ST_OK) json_object_set(variables, "messages", part);
    if (status == ST_OK) json_object_set_new(variables, "add_generation_prompt", json_boolean(generation_prompt));
    if (status == ST_OK) status = set_tools(variables, row);
    if (status == ST_OK) status = set_list(variables, row, "documents");
    if (status == ST_OK) {
        status = chat_template_render(chat->template, variables, &(ChatOptions){.now = chat->now}, rendering);
        if (status == ST_INPUT) status = conversation_refused(part, row);
    }
    json_decref(variables);
    json_decref(part);
    return status;
}

/* ---- the template of a model ---- */

/* The text that the template writes after an assistant's answer shows which token ends the turn. */
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
    return status == ST_INPUT ? ST_OK : status; /* a template may refuse so short a conversation: then the end of turn is unknown */
}

Status chat_open(const char *model_dir, const char *adapter, const char *override, const char *now, const Tokenizer *tokenizer, Chat **result) {
    Chat *chat = calloc(1, sizeof *chat);
    *result = NULL;
    if (!chat) return status_fail(ST_RESOURCE, "out of memory");
    chat->end_of_turn = -1;
    chat->model_dir = strdup(model_dir);
    chat->now = now ? strdup(now) : NULL;
    chat->shapes = shapes_new();
    Status status = chat->shapes ? chat_template_load(model_dir, adapter, override, &chat->template) : status_fail(ST_RESOURCE, "out of memory");
    if (status == ST_OK && chat->template && tokenizer) status = find_end_of_turn(chat, tokenizer);
    if (status == ST_OK)
        *result = chat;
    else
        chat_close(chat);
    return status;
}

Status chat_set_kwargs(Chat *chat, const json_t *values, const Tokenizer *tokenizer) {
    if (json_object_size(values) == 0) return ST_OK;
    if (!chat_has_template(chat)) {
        status_fail(ST_INPUT, "there is no chat template to use '%s'", json_object_iter_key(json_object_iter((json_t *)(uintptr_t)values)));
        return status_hint(ST_INPUT, "leave it out, or name a template: model.chat_template (--chat-template)");
    }
    TRY(chat_template_set_defaults(chat->template, values));
    free(chat->end_text);
    chat->end_text = NULL;
    chat->end_of_turn = -1;
    return tokenizer ? find_end_of_turn(chat, tokenizer) : ST_OK;
}

Status chat_open_recipe(const Recipe *recipe, const Tokenizer *tokenizer, Chat **chat) {
    json_t *values;
    TRY(chat_open(recipe->model_path, recipe->model_adapter, recipe->model_chat_template, recipe->data_now, tokenizer, chat));
    TRY(recipe_template_kwargs(recipe, &values));
    Status status = chat_set_kwargs(*chat, values, tokenizer);
    json_decref(values);
    return status == ST_INPUT ? status_prefix(ST_CONFIG, "'data.template_kwargs'") : status;
}

void chat_close(Chat *chat) {
    if (!chat) return;
    chat_template_free(chat->template);
    shapes_free(chat->shapes);
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
    bool broken; /* the template renders a part alone differently than within the full conversation */
} Spans;

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
    status_hint(ST_INPUT, "data.turns: each (tune sft) trains each answer after its own prompt, data.train_on: last only the "
                          "last one, all everything; or use a template that marks the answers with {%% generation %%} "
                          "(model.chat_template)");
    str_release(&alone);
    str_release(&within);
    return ST_INPUT;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

size_t turn_end(const Chat *chat, const Str *text, size_t begin) {
    size_t len = chat->end_text ? strlen(chat->end_text) : 0;
    for (size_t at = text->len; len > 0 && at >= begin + len; at--)
        if (memcmp(text->data + at - len, chat->end_text, len) == 0) return at;
    size_t end = text->len;
    while (end > begin && is_space(text->data[end - 1])) end--;
    return end;
}

/* The turn of message i: from the end of its generation prompt to its end of turn. Both are checked against the full conversation. */
static Status find_turn(const Chat *chat, const json_t *messages, size_t i, const json_t *row, const Str *whole, Spans *spans) {
    ChatRendering prompt = {0}, answered = {0};
    Span *span = &spans->items[spans->n++];
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
        spans->broken = status != ST_OK;
    }
    chat_rendering_release(&prompt);
    chat_rendering_release(&answered);
    return status;
}

/* Selects the trained messages from the template's marks; each assistant message has one mark. */
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
        return status_hint(ST_INPUT, "unless each message has one mark, only all of them can be trained: data.train_on: assistant");
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

/* An answer without words teaches the model to say nothing. */
static void note_empty(const json_t *message, RowNotes *notes) {
    const char *content = json_string_value(json_object_get(message, "content"));
    bool says = is_something(json_object_get(message, "tool_calls")) || is_something(json_object_get(message, "reasoning_content"));
    if (!says && (!content || content[strspn(content, " \t\r\n")] == '\0')) row_note(notes, EMPTY_ANSWER);
}

static Status no_answer(const json_t *messages) {
    Str roles = {0};
    list_roles(messages, &roles);
    status_fail(ST_INPUT, "no message of the conversation is the assistant's, so there is nothing to train");
    status_hint(ST_INPUT,
                "its roles are %s: rename the one that answers to 'assistant' (gpt, model and bot are known, too); "
                "data.train_on: all trains everything",
                str_text(&roles));
    str_release(&roles);
    return ST_INPUT;
}

Status messages_trained(const json_t *messages, size_t n_context, const DataConfig *config, bool *trained) {
    const char *train_on = config->train_on ? config->train_on : "auto";
    size_t n = json_array_size(messages), last = n;
    for (size_t i = 0; i < n; i++) {
        trained[i] = false;
        if (!is_role(json_array_get(messages, i), "assistant")) continue;
        last = i;
        if (i >= n_context) TRY(marks_read(json_array_get(messages, i), i + 1, config->notes, &trained[i]));
        if (trained[i]) note_empty(json_array_get(messages, i), config->notes);
    }
    if (last == n || last < n_context) return no_answer(messages);
    if (last + 1 < n && is_role(json_array_get(messages, n - 1), "user")) {
        status_fail(ST_INPUT, "the conversation ends with message %zu of the user, which has no answer", n);
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
    Status status = trained && spans->items ? messages_trained(messages, n_context, config, trained) : status_fail(ST_RESOURCE, "out of memory");
    if (status == ST_OK && chat_template_marks_generation(config->chat->template)) {
        status = marked_spans(messages, whole, trained, spans);
    } else {
        for (size_t i = 0; i < n && status == ST_OK; i++)
            if (trained[i]) status = find_turn(config->chat, messages, i, row, &whole->text, spans);
    }
    if (status == ST_OK && config->chat->end_of_turn < 0) row_note(config->notes, NO_END);
    free(trained);
    return status;
}

/* data.train_on: all trains everything but answers that are marked as context. */
static Status find_context(const json_t *messages, const json_t *row, const DataConfig *config, const ChatRendering *whole, Spans *spans) {
    size_t n = json_array_size(messages);
    spans->items = calloc(n, sizeof *spans->items);
    if (!spans->items) return status_fail(ST_RESOURCE, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(messages, i);
        bool trained;
        TRY(marks_read(message, i + 1, config->notes, &trained));
        if (trained && is_role(message, "assistant")) note_empty(message, config->notes);
        if (json_object_get(message, "train_detail")) row_note(config->notes, "with a 'train_detail', which data.train_on: all does not read");
        bool answer = is_role(message, "assistant");
        if (!trained && !answer && !marks_are_native(message))
            row_note(config->notes, "with a message of role '%s' that is marked as context, which data.train_on: all trains", role_of(message));
        if (trained || (!answer && !marks_are_native(message))) continue;
        if (!answer)
            return status_fail(ST_INPUT, "message %zu (%s) is marked as context, but with data.train_on: all only answers can be", i + 1,
                               role_of(message));
        TRY(find_turn(config->chat, messages, i, row, &whole->text, spans));
    }
    return ST_OK;
}

/* ---- text to tokens ---- */

/* The position of a message's text in its turn: `at` and `len` in the rendered text, from byte `lead` of the message's text; len 0: the turn does not
 * contain it unchanged. */
typedef struct Words {
    size_t at, len, lead;
} Words;
typedef struct Turn {
    Span span;
    const json_t *message;
    Words answer, thought;
} Turn;

static Words find_words(const Str *text, const Span *span, const json_t *message, const char *key) {
    const char *own = json_string_value(json_object_get(message, key)), *found = NULL;
    size_t len = own ? strlen(own) : 0, lead = 0;
    while (lead < len && is_space(own[lead])) lead++;
    while (len > lead && is_space(own[len - 1])) len--;
    len -= lead;
    if (len > 0 && len <= span->end - span->begin) found = memmem(text->data + span->begin, span->end - span->begin, own + lead, len);
    return found ? (Words){(size_t)(found - text->data), len, lead} : (Words){0};
}

/* As in the text without guards. */
static void shift_words(const Guards *guards, Words *words) {
    size_t end = guards_shift(guards, words->at + words->len);
    words->at = guards_shift(guards, words->at);
    words->len = words->len > 0 ? end - words->at : 0;
}

static void shift_turn(const Guards *guards, Turn *turn) {
    turn->span.begin = guards_shift(guards, turn->span.begin);
    turn->span.end = guards_shift(guards, turn->span.end);
    shift_words(guards, &turn->answer);
    shift_words(guards, &turn->thought);
}

static bool is_within(const Words *words, size_t begin, size_t end) { return words->len > 0 && end > words->at && begin < words->at + words->len; }

/* Counts trained tokens that belong to neither the thought nor the answer of the message: what the template adds to a turn. */
static bool is_templates(const Turn *turn, size_t begin, size_t end) {
    return turn->answer.len > 0 && !is_within(&turn->answer, begin, end) && !is_within(&turn->thought, begin, end);
}

/* Whether the message's train_detail excludes this part from training. */
static bool is_left_out(const Turn *turn, size_t begin, size_t end) {
    const Words *words = &turn->answer;
    if (!is_within(words, begin, end)) return false;
    size_t from = MAX(begin, words->at) - words->at, to = MIN(end, words->at + words->len) - words->at;
    return marks_leave_out(turn->message, words->lead + from, words->lead + to);
}

/* A token that straddles the border is predicted from the text before the border, so it belongs to the turn. */
static void mark_turn(const Turn *turn, const Ids *offsets, Encoding *encoding) {
    bool first = true;
    for (size_t i = 0; i < encoding->ids.n; i++) {
        size_t begin = (size_t)offsets->data[2 * i], end = (size_t)offsets->data[2 * i + 1];
        if (end <= turn->span.begin || begin >= turn->span.end || end <= begin) continue;
        if (first && begin < turn->span.begin) encoding->remapped = true;
        first = false;
        if (is_left_out(turn, begin, end)) continue;
        encoding->labels.data[i] = encoding->ids.data[i];
        encoding->marked++;
        encoding->templates += is_templates(turn, begin, end);
    }
}

static void clear_span(const Span *span, const Ids *offsets, Encoding *encoding) {
    for (size_t i = 0; i < encoding->ids.n; i++)
        if ((size_t)offsets->data[2 * i + 1] > span->begin && (size_t)offsets->data[2 * i] < span->end) encoding->labels.data[i] = LABEL_NONE;
}

static bool names(Slice template, const char *word) { return memmem(template.data, template.len, word, strlen(word)) != NULL; }

/* Whether the row has a part that its template never mentions. A template that mentions it may still leave it out, as some do with the reasoning of
 * earlier turns: that is the template's choice. */
static bool passes_over(const Chat *chat, const json_t *messages, const json_t *row) {
    json_t *tools = NULL;
    (void)row_tools(row, &tools); /* a text may encode an empty list; rendering refuses any other text */
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

/* The tokens of a rendered text, which may have guards, and which of them are trained; with `all` the spans are those that are not trained. */
static Status encode_turns(const Str *rendered, Turn *turns, size_t n, bool all, bool guarded, const Tokenizer *tokenizer, Encoding *encoding) {
    Ids offsets = {0};
    Guards guards = {0};
    Str text = {0};
    str_append_n(&text, str_text(rendered), rendered->len);
    Status status = guarded ? guards_extract(&text, &guards) : ST_OK;
    for (size_t i = 0; i < n; i++) shift_turn(&guards, &turns[i]);
    if (status == ST_OK) status = tokenizer_encode_guarded(tokenizer, str_text(&text), text.len, guards.at, guards.n, &encoding->ids, &offsets);
    for (size_t i = 0; i < encoding->ids.n && status == ST_OK; i++) ids_push(&encoding->labels, all ? encoding->ids.data[i] : LABEL_NONE);
    for (size_t i = 0; i < n && status == ST_OK; i++) {
        if (all)
            clear_span(&turns[i].span, &offsets, encoding);
        else
            mark_turn(&turns[i], &offsets, encoding);
    }
    ids_release(&offsets);
    guards_release(&guards);
    str_release(&text);
    return status;
}

static Status encode_spans(const Str *text, const Spans *spans, const json_t *messages, const DataConfig *config, const Tokenizer *tokenizer,
                           Encoding *encoding) {
    bool all = config->train_on && strcmp(config->train_on, "all") == 0;
    Turn *turns = calloc(spans->n + 1, sizeof *turns);
    if (!turns) return status_fail(ST_RESOURCE, "out of memory");
    for (size_t i = 0; i < spans->n; i++) {
        const json_t *message = json_array_get(messages, spans->items[i].message);
        turns[i] = (Turn){spans->items[i], message, find_words(text, &spans->items[i], message, "content"),
                          find_words(text, &spans->items[i], message, "reasoning_content")};
    }
    Status status = encode_turns(text, turns, spans->n, all, config->plain_control, tokenizer, encoding);
    free(turns);
    return status;
}

Status encode_rendered(const Str *text, size_t begin, size_t end, const json_t *messages, const DataConfig *config, const Tokenizer *tokenizer,
                       Encoding *encoding) {
    Span span = {begin, end, json_array_size(messages) - 1};
    return encode_spans(text, &(Spans){.items = &span, .n = 1}, messages, config, tokenizer, encoding);
}

Status encode_conversation(const json_t *messages, size_t n_context, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer,
                           Encoding *encoding, bool *broken) {
    ChatRendering whole = {0};
    Spans spans = {0};
    bool all = config->train_on && strcmp(config->train_on, "all") == 0;
    *broken = false;
    TRY(need_template(config, tokenizer));
    encoding->conversation = true;
    encoding->unwritten = passes_over(config->chat, messages, row);
    encoding->has_system = is_role(json_array_get(messages, 0), "system") || is_role(json_array_get(messages, 0), "developer");
    Status status = messages_render(config->chat, messages, json_array_size(messages), row, false, &whole);
    if (status == ST_OK) status = check_written(config->chat, messages, json_array_size(messages), row, false, &whole.text, config->notes);
    if (status == ST_OK)
        status = all ? find_context(messages, row, config, &whole, &spans) : find_spans(messages, n_context, row, config, &whole, &spans);
    if (status == ST_OK) status = encode_spans(&whole.text, &spans, messages, config, tokenizer, encoding);
    *broken = spans.broken;
    chat_rendering_release(&whole);
    free(spans.items);
    return status;
}

Status encode_question(const json_t *messages, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids) {
    ChatRendering rendering = {0};
    Guards guards = {0};
    size_t n = json_array_size(messages);
    TRY(need_template(config, tokenizer));
    if (n > 0 && is_role(json_array_get(messages, n - 1), "assistant")) n--;
    if (n == 0) return status_fail(ST_INPUT, "the conversation has no message to answer");
    json_t *guarded = controls_guard(messages, tokenizer, config), *own = NULL;
    Status status = guarded ? controls_guard_row(row, tokenizer, config, &own) : status_fail(ST_RESOURCE, "out of memory");
    if (status == ST_OK) status = messages_render(config->chat, guarded, n, own, true, &rendering);
    if (status == ST_OK) status = check_written(config->chat, guarded, n, own, true, &rendering.text, config->notes);
    if (status == ST_OK && config->plain_control) status = guards_extract(&rendering.text, &guards);
    if (status == ST_OK) status = tokenizer_encode_guarded(tokenizer, str_text(&rendering.text), rendering.text.len, guards.at, guards.n, ids, NULL);
    json_decref(guarded);
    json_decref(own);
    guards_release(&guards);
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
