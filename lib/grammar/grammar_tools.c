/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of tools in the syntax of a model, with arguments that the parameters of the tool accept. */
#include "lib/grammar/grammar_parts.h"

#include <string.h>

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";

/* A text of ToolJson: what is between two U+0001 is a special token. Built from its end. */
static int32_t build_marked(Builder *b, const char *text, int32_t next) {
    for (size_t end = strlen(text); end > 0;) {
        bool mark = text[end - 1] == '\1';
        end -= mark;
        size_t begin = end;
        while (begin > 0 && text[begin - 1] != '\1') begin--;
        next = mark ? build_special(b, text + begin, end - begin, next) : build_text(b, text + begin, end - begin, next);
        end = begin - (mark && begin > 0);
    }
    return next;
}

typedef struct ToolBuilder {
    Builder *b;
    const ToolJson *json;
    int32_t after; /* where it goes on after a call */
} ToolBuilder;

static Status build_arguments(ToolBuilder *t, const json_t *parameters, int32_t next, int32_t *start) {
    if (!parameters || (json_is_object(parameters) && json_object_size(parameters) == 0)) {
        *start = build_any_object(t->b, next);
        return t->b->status;
    }
    SchemaBuilder s;
    Status status = schema_open(&s, t->b, parameters);
    if (status == ST_OK) status = schema_build(&s, parameters, next, start);
    if (status == ST_OK) status = schema_finish(&s);
    schema_release(&s);
    return status;
}

static Status build_tool(ToolBuilder *t, const json_t *tool, const char *name, int32_t *start) {
    const json_t *function = json_object_get(tool, "function");
    if (!function) function = tool;
    const char *own = json_string_value(json_object_get(function, "name"));
    *start = 0;
    if (!own) return status_fail(ST_INPUT, "a tool has no name");
    if (name && strcmp(own, name) != 0) return ST_OK;
    if (!*own || own[strspn(own, letters)])
        return status_fail(ST_INPUT, "the name of the tool '%s' must have letters, digits, '_', '-' and '.' only", own);
    int32_t close = build_marked(t->b, t->json->close, t->after), arguments;
    Status status = build_arguments(t, json_object_get(function, "parameters"), close, &arguments);
    if (status != ST_OK) return status_prefix(status, "the parameters of the tool '%s'", own);
    int32_t called = build_text(t->b, own, strlen(own), build_marked(t->b, t->json->middle, arguments));
    *start = build_marked(t->b, t->json->open, called);
    return t->b->status;
}

static Status build_tools(ToolBuilder *t, const json_t *tools, const char *name, int32_t *start) {
    *start = 0;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        int32_t way = 0;
        TRY(build_tool(t, json_array_get(tools, i), name, &way));
        *start = *start && way ? build_split(t->b, way, *start) : MAX(*start, way);
    }
    if (*start) return t->b->status;
    return name ? status_fail(ST_INPUT, "there is no tool '%s'", name) : status_fail(ST_INPUT, "there are no tools to call");
}

Status grammar_tool_calls(const ToolSyntax *syntax, const json_t *tools, const char *name, bool parallel, Grammar **grammar) {
    const ToolJson *json = tool_syntax_json(syntax);
    Builder b;
    *grammar = NULL;
    if (!json) {
        status_fail(ST_INPUT, "a call cannot be required: the syntax '%s' of the model's chat template does not write arguments as JSON",
                    tool_syntax_name(syntax));
        return status_hint(ST_INPUT, "let the model choose: tool_choice auto");
    }
    int32_t start = 0;
    if (builder_open(&b, "tools") == ST_OK) {
        int32_t end = build_return(&b);
        bool again = parallel && json->between;
        ToolBuilder t = {.b = &b, .json = json, .after = again ? build_split(&b, 0, end) : end};
        Status status = build_tools(&t, tools, name, &start);
        if (again) build_join(&b, t.after, build_marked(&b, json->between, start));
        if (b.status == ST_OK) b.status = status;
    }
    return builder_finish(&b, start, grammar);
}
