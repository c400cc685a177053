/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a model's chat template, selects one of several, and renders it. */
#include "lib/text/chat.h"

#include <stdlib.h>
#include <string.h>

#include "lib/text/jinja.h"
#include "lib/text/tokenizer_parts.h"

static const char TEMPLATE_FILE[] = "chat_template.jinja", CONFIG_FILE[] = "tokenizer_config.json", MORE[] = "additional_chat_templates",
                  TOOLS_FILE[] = "tool_use.jinja";

typedef struct Program {
    const char *name;  /* name of the template in the model: "default", "tool_use" */
    const char *label; /* for messages: its file */
    char *source;
    size_t len;
    NodeList body;
    Slice *names; /* names used as plain variables: not attributes, not filters */
    size_t n_names;
    bool marks_generation;
    struct Program *next;
} Program;

struct ChatTemplate {
    Arena *arena;
    Pool pool;
    Program *programs;
    const Program *normal, *tools;
    json_t *special;  /* bos_token and the like */
    json_t *defaults; /* values of variables that a rendering does not give; NULL: none */
};

/* ---- shipped templates; {% generation %} marks the answers, so that training covers exactly them ---- */

static const struct {
    const char *name, *source;
} shipped[] = {
    {"chatml",
     "{% for message in messages %}<|im_start|>{{ message.role }}\n"
     "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% else %}{{ message.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
     "{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}"},
    {"llama3",
     "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>{{ '\\n\\n' }}"
     "{% if message.role == 'assistant' %}{% generation %}{{ message.content | trim }}<|eot_id|>{% endgeneration %}{% else %}{{ message.content | trim }}<|eot_id|>{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>{{ '\\n\\n' }}{% endif %}"},
    {"alpaca",
     "{{ bos_token }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}Below is an instruction that describes a task. Write a response that appropriately completes "
     "the request.{% endif %}{% for message in messages %}{% if message.role == 'user' %}{{ '\\n\\n### Instruction:\\n' + message.content + '\\n\\n### Response:' }}"
     "{% elif message.role == 'assistant' %}{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}"
     "{% elif message.role != 'system' %}{{ raise_exception('the alpaca template has no role ' + message.role) }}{% endif %}{% endfor %}"},
    {"plain",
     "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}{{ '\\n' }}"
     "{% else %}{{ message.content }}{{ '\\n' }}{% endif %}{% endfor %}"},
};

/* ---- construction ---- */

static Status template_new(ChatTemplate **result) {
    Arena *arena = arena_new(0);
    ChatTemplate *chat = arena ? arena_zero(arena, sizeof *chat) : NULL;
    if (!chat) {
        arena_free(arena);
        return status_fail(ST_RESOURCE, "out of memory for a chat template");
    }
    chat->arena = chat->pool.arena = arena;
    *result = chat;
    return ST_OK;
}

void chat_template_free(ChatTemplate *chat) {
    if (!chat) return;
    json_decref(chat->special);
    json_decref(chat->defaults);
    arena_free(chat->arena);
}

/* Converts line ends to \n and removes a final one, which is not a part of the template. */
static size_t unify_lines(char *text, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\r' && i + 1 < len && text[i + 1] == '\n') continue;
        text[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (n > 0 && text[n - 1] == '\n') n--;
    text[n] = '\0';
    return n;
}

static Status find_names(ChatTemplate *chat, Program *program) {
    TokenList tokens = {0};
    Status status = jinja_lex(program->label, program->source, program->len, &chat->pool, &tokens);
    program->names = status == ST_OK ? arena_alloc(chat->arena, (tokens.n + 1) * sizeof *program->names) : NULL;
    for (size_t i = 0; program->names && i < tokens.n; i++) {
        const Token *before = i > 0 ? &tokens.items[i - 1] : NULL;
        bool value = !before || before->type != TOKEN_OPERATOR || (!slice_is(before->text, ".") && !slice_is(before->text, "|"));
        if (tokens.items[i].type == TOKEN_NAME && value) program->names[program->n_names++] = tokens.items[i].text;
    }
    free(tokens.items);
    return status == ST_OK && !program->names ? ST_RESOURCE : status;
}

static Status add_program(ChatTemplate *chat, const char *name, const char *label, const char *text, size_t len) {
    if (!name || !label) return ST_RESOURCE;
    size_t bad = utf8_fault(text, len);
    if (len > JINJA_MAX_SOURCE) return status_fail(ST_INPUT, "chat template '%s' has %zu bytes, more than %d", label, len, JINJA_MAX_SOURCE);
    if (bad < len) return status_fail(ST_INPUT, "chat template '%s' is not valid UTF-8 at byte %zu", label, bad);
    Program *program = arena_zero(chat->arena, sizeof *program);
    if (!program) return ST_RESOURCE;
    program->name = arena_strdup(chat->arena, name);
    program->label = arena_strdup(chat->arena, label);
    program->source = arena_strndup(chat->arena, text, len);
    if (!program->name || !program->label || !program->source) return ST_RESOURCE;
    program->len = unify_lines(program->source, len);
    program->next = chat->programs;
    chat->programs = program;
    TRY(jinja_parse(program->label, program->source, program->len, &chat->pool, &program->body, &program->marks_generation));
    return find_names(chat, program);
}

static const Program *find_program(const ChatTemplate *chat, const char *name) {
    for (const Program *p = chat->programs; p; p = p->next)
        if (strcmp(p->name, name) == 0) return p;
    return NULL;
}

static Status add_file(ChatTemplate *chat, const char *name, const char *path) {
    Str text = {0};
    TRY(file_read(path, JINJA_MAX_SOURCE, &text));
    Status status = add_program(chat, name, path, str_text(&text), text.len);
    str_release(&text);
    return status;
}

/* ---- a model's directory ---- */

static const char *special_text(const json_t *value) {
    return json_is_string(value) ? json_string_value(value) : json_string_value(json_object_get(value, "content"));
}

static const char *const special_names[] = {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

/* bos_token and the like, as strings. */
static void take_special(ChatTemplate *chat, const json_t *config) {
    for (size_t i = 0; i < COUNT_OF(special_names); i++) {
        const char *name = special_names[i], *text = special_text(json_object_get(config, name));
        if (text && !json_object_get(chat->special, name)) json_object_set_new(chat->special, name, json_string(text));
    }
}

void chat_template_set_special(const ChatTemplate *chat, json_t *variables, const json_t *row) {
    for (size_t i = 0; i < COUNT_OF(special_names); i++) {
        const char *name = special_names[i];
        json_t *given = json_object_get(row, name);
        if (given && !json_object_get(chat->special, name) && !json_object_get(variables, name)) json_object_set(variables, name, given);
    }
}

static Status read_config(ChatTemplate *chat, const char *dir, const char *name, json_t **config) {
    const char *path = path_join(chat->arena, dir, name);
    *config = NULL;
    if (!path) return ST_RESOURCE;
    bool there;
    TRY(file_find(path, &there));
    if (!there) return ST_OK;
    TRY(json_read_file(path, config));
    if (!json_is_object(*config)) return ST_OK;
    char_config_complete(*config);
    take_special(chat, *config);
    return ST_OK;
}

/* Reads chat_template of tokenizer_config.json: a text, or [{"name", "template"}]. */
static Status add_config_templates(ChatTemplate *chat, const char *path, const json_t *value) {
    if (!value || json_is_null(value)) return ST_OK;
    if (json_is_string(value))
        return find_program(chat, "default") ? ST_OK : add_program(chat, "default", path, json_string_value(value), json_string_length(value));
    if (!json_is_array(value)) return status_fail(ST_INPUT, "'chat_template' of '%s' is neither a text nor a list of named ones", path);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i), *name = json_object_get(item, "name"), *text = json_object_get(item, "template");
        if (!json_is_string(name) || !json_is_string(text))
            return status_fail(ST_INPUT, "template %zu of '%s' lacks 'name' or 'template'", i + 1, path);
        if (find_program(chat, json_string_value(name))) continue; /* a file with that name takes precedence */
        TRY(add_program(chat, json_string_value(name), arena_printf(chat->arena, "%s: %s", path, json_string_value(name)), json_string_value(text),
                        json_string_length(text)));
    }
    return ST_OK;
}

static Status add_more(ChatTemplate *chat, const char *dir) {
    const char *folder = path_join(chat->arena, dir, MORE);
    char **names = NULL;
    size_t n = 0;
    bool is_file;
    TRY(file_find(folder, &is_file));
    if (!dir_exists(folder)) return ST_OK;
    Status status = dir_list(folder, chat->arena, &names, &n);
    for (size_t i = 0; i < n && status == ST_OK; i++)
        if (text_ends_with(names[i], ".jinja"))
            status =
                add_file(chat, arena_strndup(chat->arena, names[i], strlen(names[i]) - strlen(".jinja")), path_join(chat->arena, folder, names[i]));
    return status;
}

static Status load_directory(ChatTemplate *chat, const char *dir) {
    json_t *config = NULL, *map = NULL;
    const char *file = path_join(chat->arena, dir, TEMPLATE_FILE), *config_path = path_join(chat->arena, dir, CONFIG_FILE);
    chat->special = json_object();
    Status status = file && config_path && chat->special ? read_config(chat, dir, CONFIG_FILE, &config) : ST_RESOURCE;
    if (status == ST_OK) status = read_config(chat, dir, "special_tokens_map.json", &map);
    bool there = false;
    if (status == ST_OK) status = file_find(file, &there);
    if (there) status = add_file(chat, "default", file);
    if (status == ST_OK && !there) status = add_config_templates(chat, config_path, json_object_get(config, "chat_template"));
    if (status == ST_OK) status = add_more(chat, dir);
    json_decref(config);
    json_decref(map);
    return status;
}

static Status no_such(const ChatTemplate *chat, const char *override) {
    const char *names[64];
    size_t n = 0;
    for (size_t i = 0; i < COUNT_OF(shipped); i++) names[n++] = shipped[i].name;
    for (const Program *p = chat->programs; p && n < COUNT_OF(names); p = p->next) names[n++] = p->name;
    status_fail(ST_INPUT, "'%s' is neither a file nor the name of a chat template", override);
    return status_hint_nearest(ST_INPUT, override, names, n, "there are ");
}

static Status chat_template_choose(ChatTemplate *chat, const char *override) {
    if (!override) {
        chat->normal = find_program(chat, "default");
        chat->tools = find_program(chat, "tool_use");
        if (!chat->normal && chat->programs && !chat->programs->next) chat->normal = chat->programs;
        return ST_OK;
    }
    for (size_t i = 0; i < COUNT_OF(shipped) && !chat->normal; i++)
        if (strcmp(shipped[i].name, override) == 0) {
            TRY(add_program(chat, override, override, shipped[i].source, strlen(shipped[i].source)));
            chat->normal = chat->programs;
        }
    if (!chat->normal) chat->normal = find_program(chat, override);
    if (!chat->normal && file_exists(override)) {
        TRY(add_file(chat, override, override));
        chat->normal = chat->programs;
    }
    return chat->normal ? ST_OK : no_such(chat, override);
}

Status chat_template_find(const char *dir, bool *there) {
    Str path = {0};
    str_printf(&path, "%s/%s", dir, TEMPLATE_FILE);
    Status status = file_find(str_text(&path), there);
    str_release(&path);
    return status;
}

/* Adds the template for tools of an adapter that was trained with two templates. */
static Status add_tools(ChatTemplate *chat, const char *adapter) {
    const char *folder = path_join(chat->arena, adapter, MORE), *file = folder ? path_join(chat->arena, folder, TOOLS_FILE) : NULL;
    bool there;
    if (!file) return ST_RESOURCE;
    TRY(file_find(file, &there));
    if (!there) return ST_OK;
    TRY(add_file(chat, file, file));
    chat->tools = chat->programs;
    return ST_OK;
}

Status chat_template_load(const char *model_dir, const char *adapter, const char *override, ChatTemplate **result) {
    ChatTemplate *chat;
    bool kept = false;
    *result = NULL;
    if (adapter && !override) TRY(chat_template_find(adapter, &kept));
    TRY(template_new(&chat));
    if (kept) override = path_join(chat->arena, adapter, TEMPLATE_FILE);
    Status status = kept && !override ? ST_RESOURCE : load_directory(chat, model_dir);
    if (status == ST_OK) status = chat_template_choose(chat, override);
    if (status == ST_OK && kept) status = add_tools(chat, adapter);
    if (status == ST_OK && chat->normal)
        *result = chat;
    else
        chat_template_free(chat);
    return status;
}

Status chat_template_parse(const char *name, const char *text, size_t len, ChatTemplate **result) {
    ChatTemplate *chat;
    *result = NULL;
    TRY(template_new(&chat));
    Status status = add_program(chat, name, name, text, len);
    chat->normal = chat->programs;
    if (status == ST_OK)
        *result = chat;
    else
        chat_template_free(chat);
    return status;
}

/* Removes the template from tokenizer_config.json: llama.cpp's converter prefers it to the file, which transformers and tune prefer. */
static Status remove_from_config(const char *path) {
    json_t *config;
    bool there;
    TRY(file_find(path, &there));
    if (!there) return ST_OK;
    TRY(json_read_file(path, &config));
    char *text = json_object_del(config, "chat_template") == 0 ? json_text(config, JSON_INDENT(2)) : NULL;
    Status status = text ? file_write_all(path, text, strlen(text)) : ST_OK; /* there was no template */
    free(text);
    json_decref(config);
    return status;
}

static Status save_text(const ChatTemplate *chat, bool with_tools, const char *file) {
    Str text = {0};
    chat_template_text(chat, with_tools, &text);
    str_append_char(&text, '\n'); /* readers remove this line end */
    Status status = file_write_all(file, text.data, text.len);
    str_release(&text);
    return status;
}

Status chat_template_save(const ChatTemplate *chat, const char *dir) {
    Arena *arena = arena_new(0);
    if (!arena) return ST_RESOURCE;
    const char *file = path_join(arena, dir, TEMPLATE_FILE), *others = path_join(arena, dir, MORE);
    const char *config = path_join(arena, dir, CONFIG_FILE), *tools = others ? path_join(arena, others, TOOLS_FILE) : NULL;
    Status status = file && config && tools ? dir_remove(others) : ST_RESOURCE;
    if (status == ST_OK) status = remove_from_config(config);
    if (status == ST_OK) status = save_text(chat, false, file);
    if (status == ST_OK && chat->tools) status = dir_make(others);
    if (status == ST_OK && chat->tools) status = save_text(chat, true, tools);
    arena_free(arena);
    return status;
}

bool chat_template_marks_generation(const ChatTemplate *chat) { return chat->normal->marks_generation; }

static const Program *program_for(const ChatTemplate *chat, bool with_tools) { return with_tools && chat->tools ? chat->tools : chat->normal; }

Slice chat_template_source(const ChatTemplate *chat, bool with_tools) {
    const Program *program = program_for(chat, with_tools);
    return (Slice){program->source, program->len};
}

const char *chat_template_label(const ChatTemplate *chat, bool with_tools) { return program_for(chat, with_tools)->label; }

/* ---- defaults for all renderings ---- */

static bool program_names(const Program *program, const char *name) {
    for (size_t i = 0; program && i < program->n_names; i++)
        if (slice_is(program->names[i], name)) return true;
    return false;
}

bool chat_template_names(const ChatTemplate *chat, const char *name) { return program_names(chat->normal, name) || program_names(chat->tools, name); }

static Status check_default(const ChatTemplate *chat, const char *name) {
    static const char *const rows[] = {"messages", "tools", "documents", "add_generation_prompt"};
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (strcmp(rows[i], name) == 0)
            return status_fail(ST_INPUT, "each row gives '%s' to the chat template, so it can't have one value for all rows", name);
    for (size_t i = 0; i < COUNT_OF(special_names); i++)
        if (strcmp(special_names[i], name) == 0) return status_fail(ST_INPUT, "the tokenizer gives '%s' to the chat template", name);
    if (chat_template_names(chat, name)) return ST_OK;
    status_fail(ST_INPUT, "'%s' has no effect: chat template '%s' does not use it", name, chat->normal->label);
    return status_hint(ST_INPUT, "read the template for the names that it uses");
}

Status chat_template_set_defaults(ChatTemplate *chat, const json_t *values) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)values, name, value) TRY(check_default(chat, name));
    json_t *defaults = json_object_size(values) ? json_deep_copy(values) : NULL;
    if (json_object_size(values) && !defaults) return status_fail(ST_RESOURCE, "out of memory for a chat template");
    json_decref(chat->defaults);
    chat->defaults = defaults;
    return ST_OK;
}

/* Writes a real so that it stays one: 2.0 must not become an integer. */
static void append_real(Str *text, double value) {
    size_t begin = text->len;
    str_append_double(text, value);
    if (!strpbrk(text->data + begin, ".e")) str_append(text, ".0");
}

/* Writes a value as a literal of the template language, whose strings and numbers are JSON's. */
static void append_literal(Str *text, const json_t *value) {
    const char *key, *between = "";
    json_t *item;
    size_t i;
    if (json_is_object(value)) {
        str_append_char(text, '{');
        json_object_foreach((json_t *)(uintptr_t)value, key, item) {
            str_append(text, between);
            str_append_json(text, key, strlen(key));
            str_append(text, ": ");
            append_literal(text, item);
            between = ", ";
        }
        str_append_char(text, '}');
    } else if (json_is_array(value)) {
        str_append_char(text, '[');
        json_array_foreach(value, i, item) {
            str_append(text, between);
            append_literal(text, item);
            between = ", ";
        }
        str_append_char(text, ']');
    } else if (json_is_string(value)) {
        str_append_json(text, json_string_value(value), json_string_length(value));
    } else if (json_is_real(value)) {
        append_real(text, json_real_value(value));
    } else if (json_is_integer(value)) {
        str_printf(text, "%lld", (long long)json_integer_value(value));
    } else {
        str_append(text, json_is_true(value) ? "true" : json_is_false(value) ? "false" : "none");
    }
}

/* The line of defaults ends with a newline, which trim_blocks removes together with the block: the template's text still begins a line. */
void chat_template_text(const ChatTemplate *chat, bool with_tools, Str *text) {
    Slice source = chat_template_source(chat, with_tools);
    const char *name;
    json_t *value;
    json_object_foreach(chat->defaults, name, value) {
        str_printf(text, "{%% if %s is not defined %%}{%% set %s = ", name, name);
        append_literal(text, value);
        str_append(text, " %}{% endif %}");
    }
    if (chat->defaults) str_append_char(text, '\n');
    str_append_n(text, source.data, source.len);
}

/* ---- rendering ---- */

static void set_variables(Jinja *j, const json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) jinja_set(j, (Slice){key, strlen(key)}, v_from_json(j, value));
}

Status chat_template_render(const ChatTemplate *chat, const json_t *variables, const ChatOptions *options, ChatRendering *rendering) {
    bool with_tools = chat->tools && json_array_size(json_object_get(variables, "tools")) > 0;
    const Program *program = with_tools ? chat->tools : chat->normal;
    Arena *arena = arena_new(JINJA_MAX_MEMORY);
    if (!arena) return status_fail(ST_RESOURCE, "out of memory for a chat template");
    *rendering = (ChatRendering){0};
    Jinja j = {.name = program->label,
               .source = program->source,
               .source_len = program->len,
               .pool = {.arena = arena},
               .out = &rendering->text,
               .now = options->now};
    jinja_set(&j, (Slice){"tools", 5}, v_none());
    jinja_set(&j, (Slice){"documents", 9}, v_none());
    jinja_set(&j, (Slice){"add_generation_prompt", 21}, v_bool(false));
    set_variables(&j, chat->special);
    set_variables(&j, chat->defaults);
    set_variables(&j, variables);
    jinja_run(&j, &program->body);
    if (j.status != ST_OK && arena_refused(arena)) j.status = status_fail(ST_RESOURCE, "out of memory for a chat template");
    arena_free(arena);
    rendering->n_generated = j.n_generated;
    rendering->generated = j.generated;
    if (j.status != ST_OK) chat_rendering_release(rendering);
    return j.status;
}

void chat_rendering_release(ChatRendering *rendering) {
    str_release(&rendering->text);
    free(rendering->generated);
    *rendering = (ChatRendering){0};
}
