/* SPDX-License-Identifier: Apache-2.0 */
/* What an answer has to look like: tools that it may or must call, the form of its text, biases of tokens; and the constraints that are kept for the
 * next request with the same form. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/formats/conversation.h"
#include "lib/serve/serve_parts.h"

enum { MOST_BIASES = 1024, MOST_TOOLS = 128 };

/* ---- kept constraints: by the text of what they were made from ---- */

struct KeptConstraint {
    KeptConstraint *next;
    char *key;
    Grammar *grammar;
    Constraint *constraint;
    int64_t users;
};

static void constraint_drop(KeptConstraint *kept) {
    constraint_free(kept->constraint);
    grammar_free(kept->grammar);
    free(kept->key);
    free(kept);
}

void constraints_release(Server *server) {
    for (KeptConstraint *kept = server->constraints, *next; kept; kept = next) {
        next = kept->next;
        constraint_drop(kept);
    }
    token_bytes_free(server->token_bytes);
}

void constraint_leave(Server *server, KeptConstraint *kept) {
    if (!kept) return;
    pthread_mutex_lock(&server->lock);
    kept->users--;
    pthread_mutex_unlock(&server->lock);
}

/* Moves it to the front, the latest used. Call it with the lock. */
static KeptConstraint *constraint_find(Server *server, const char *key) {
    for (KeptConstraint **place = &server->constraints; *place; place = &(*place)->next) {
        KeptConstraint *kept = *place;
        if (strcmp(kept->key, key) != 0) continue;
        *place = kept->next;
        kept->next = server->constraints;
        server->constraints = kept;
        kept->users++;
        return kept;
    }
    return NULL;
}

/* Makes room for one more: the one that nobody has used for the longest time goes. False: all are in use. Only the thread of requests adds any. */
static bool constraints_trim(Server *server) {
    int64_t n = 0;
    KeptConstraint **oldest = NULL, *unused = NULL;
    pthread_mutex_lock(&server->lock);
    for (KeptConstraint **place = &server->constraints; *place; place = &(*place)->next, n++)
        if ((*place)->users == 0) oldest = place;
    if (n >= server->max_schemas && oldest) {
        unused = *oldest;
        *oldest = unused->next;
    }
    pthread_mutex_unlock(&server->lock);
    if (unused) constraint_drop(unused);
    return n < server->max_schemas || unused;
}

/* What a constraint is made from. */
typedef struct Form {
    const char *regex;    /* not NULL: texts that match it */
    const char *gbnf;     /* not NULL: texts that follow it */
    const json_t *schema; /* NULL: any object, unless there are tools or a pattern */
    const json_t *tools;  /* not NULL: calls of them */
    const ToolSyntax *syntax;
    const char *tool; /* NULL: any of them */
    bool parallel;
} Form;

static Status form_grammar(const Form *form, Grammar **grammar) {
    if (form->tools) return grammar_tool_calls(form->syntax, form->tools, form->tool, form->parallel, grammar);
    if (form->regex) return grammar_regex(form->regex, strlen(form->regex), grammar);
    if (form->gbnf) return grammar_gbnf(form->gbnf, strlen(form->gbnf), grammar);
    return form->schema ? grammar_json_schema(form->schema, grammar) : grammar_json_object(grammar);
}

static char *form_key(const Form *form) {
    json_t *all =
        json_pack("{s:O?, s:s?, s:s?, s:O?, s:s?, s:s?, s:b}", "schema", form->schema, "regex", form->regex, "gbnf", form->gbnf, "tools", form->tools,
                  "syntax", form->syntax ? tool_syntax_name(form->syntax) : NULL, "tool", form->tool, "parallel", form->parallel);
    char *key = all ? json_text(all, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(all);
    return key;
}

static Status constraint_make(Server *server, const Form *form, char *key, KeptConstraint **result) {
    KeptConstraint *kept = *result = calloc(1, sizeof *kept);
    if (!kept) {
        free(key);
        return status_fail(ST_RESOURCE, "out of memory for the form of an answer");
    }
    kept->key = key;
    kept->users = 1;
    Status status = server->token_bytes ? ST_OK : token_bytes_new(server->config.tokenizer, &server->token_bytes);
    if (status == ST_OK) status = form_grammar(form, &kept->grammar);
    if (status == ST_OK) status = constraint_new(kept->grammar, server->token_bytes, &kept->constraint);
    if (status != ST_OK) {
        constraint_drop(kept);
        *result = NULL;
        return status;
    }
    pthread_mutex_lock(&server->lock);
    kept->next = server->constraints;
    server->constraints = kept;
    pthread_mutex_unlock(&server->lock);
    return ST_OK;
}

/* The constraint of a form, kept or new. Only the thread of requests makes them. param: the field that the form comes from. */
static bool constrain(Exchange *x, const Form *form, const char *param, Answer *answer) {
    Server *server = x->server;
    char *key = form_key(form);
    if (!key) {
        exchange_fail(x, 503, NULL, "out_of_memory", "no memory for the form of an answer");
        return false;
    }
    pthread_mutex_lock(&server->lock);
    answer->constraint = constraint_find(server, key);
    pthread_mutex_unlock(&server->lock);
    if (!answer->constraint && !constraints_trim(server)) {
        free(key);
        if (server->max_schemas == 0) {
            exchange_fail(x, 503, param, "out_of_memory", "there is no memory for forms of answers");
            return false;
        }
        exchange_fail(x, 429, param, "schemas_full", "%lld forms of answers are in work already, as many as memory is kept for: try again later",
                      (long long)server->max_schemas);
        return false;
    }
    Status status = ST_OK;
    if (answer->constraint)
        free(key);
    else
        status = constraint_make(server, form, key, &answer->constraint);
    if (status == ST_OK) answer->request.constraint = answer->constraint->constraint;
    if (status == ST_RESOURCE)
        exchange_fail_status(x, status);
    else if (status != ST_OK)
        exchange_fail(x, 400, param, "unsupported_schema", "%s", status_text());
    return status == ST_OK;
}

/* ---- fields ---- */

bool read_bias(Exchange *x, const json_t *body, Answer *answer) {
    const json_t *map = NULL;
    const char *key;
    json_t *value;
    int64_t vocab = x->server->config.model->config.vocab_size;
    if (!field_object(x, body, "logit_bias", &map)) return false;
    size_t n = json_object_size(map);
    if (n == 0) return true;
    answer->bias = n <= MOST_BIASES ? calloc(n, sizeof *answer->bias) : NULL;
    bool fine = answer->bias != NULL;
    if (fine) json_object_foreach((json_t *)(uintptr_t)map, key, value) {
            char *end;
            long long id = strtoll(key, &end, 10);
            double bias = json_number_value(value);
            fine = fine && *key && !*end && id >= 0 && id < vocab && json_is_number(value) && fabs(bias) <= 100;
            if (fine) answer->bias[answer->request.sample.n_bias++] = (TokenBias){(int32_t)id, bias};
        }
    answer->request.sample.bias = answer->bias;
    if (!fine)
        exchange_fail(x, 400, "logit_bias", "invalid_value", "'logit_bias' must be up to %d numbers from -100 to 100 by token ids from 0 to %lld",
                      MOST_BIASES, (long long)vocab - 1);
    return fine;
}

static bool tools_are_functions(Exchange *x, const json_t *tools) {
    bool fine = json_is_array(tools) && json_array_size(tools) <= MOST_TOOLS;
    for (size_t i = 0; fine && i < json_array_size(tools); i++)
        fine = json_is_string(json_object_get(json_object_get(json_array_get(tools, i), "function"), "name"));
    if (!fine)
        exchange_fail(x, 400, "tools", "invalid_value", "'tools' must be up to %d of {\"type\": \"function\", \"function\": {\"name\": ...}}",
                      MOST_TOOLS);
    return fine;
}

/* A choice is a word, or names one tool. False: x has failed. */
static bool read_choice(Exchange *x, const json_t *body, const char **word, const char **tool) {
    const json_t *choice = json_object_get(body, "tool_choice");
    *word = json_is_string(choice) ? json_string_value(choice) : "auto";
    *tool = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    bool right = !choice || json_is_null(choice) || *tool || (json_is_string(choice) && text_among("none auto required", ' ', *word));
    if (!right)
        exchange_fail(x, 400, "tool_choice", "invalid_value",
                      "'tool_choice' must be none, auto, required, or {\"type\": \"function\", \"function\": {\"name\": ...}}");
    return right;
}

bool read_tools(Exchange *x, json_t *body, const ServedModel *model, Answer *answer) {
    const json_t *tools = json_object_get(body, "tools");
    const char *word, *tool;
    bool parallel = true;
    if (!read_choice(x, body, &word, &tool) || !field_bool(x, body, "parallel_tool_calls", &parallel)) return false;
    if (!tools || json_is_null(tools) || (json_is_array(tools) && json_array_size(tools) == 0)) {
        bool needs = tool || !strcmp(word, "required");
        if (needs) exchange_fail(x, 400, "tool_choice", "invalid_value", "'tool_choice' needs 'tools'");
        return !needs;
    }
    if (!tools_are_functions(x, tools)) return false;
    if (!strcmp(word, "none")) { /* the template does not see them either */
        json_object_del(body, "tools");
        return true;
    }
    const Chat *chat = served_chat(x->server, model);
    const ToolSyntax *syntax = chat ? tool_syntax_of(chat->template) : NULL;
    answer->tools = json_deep_copy(tools);
    answer->calls = syntax != NULL;
    answer->call_bytes = syntax && !strcmp(tool_syntax_name(syntax), "mistral") ? 9 : 24;
    if (!tool && strcmp(word, "required") != 0) return true;
    if (!syntax) {
        exchange_fail(x, 400, "tool_choice", "unsupported_value", "the chat template writes calls in no syntax that this server knows");
        return false;
    }
    return constrain(x, &(Form){.tools = tools, .syntax = syntax, .tool = tool, .parallel = parallel && !tool}, "tools", answer);
}

static bool may_constrain(Exchange *x, const char *param, const Answer *answer) {
    if (x->server->config.tokenizer && !answer->constraint) return true;
    exchange_fail(x, 400, param, "unsupported_value",
                  answer->constraint ? "'%s' and a 'tool_choice' that demands a call, or another form, exclude each other"
                                     : "'%s' needs a tokenizer, and the model has none",
                  param);
    return false;
}

/* A pattern that matches one of the texts; NULL: x has failed. The caller frees it. */
static char *pattern_of_choices(Exchange *x, const json_t *choices) {
    Str pattern = {0};
    bool fine = json_is_array(choices) && json_array_size(choices) > 0;
    for (size_t i = 0; fine && i < json_array_size(choices); i++) {
        const char *text = json_string_value(json_array_get(choices, i));
        fine = text != NULL;
        if (i > 0) str_append_char(&pattern, '|');
        for (const char *c = text; c && *c; c++) {
            if (strchr("^$\\.*+?()[]{}|/", *c)) str_append_char(&pattern, '\\');
            str_append_char(&pattern, *c);
        }
    }
    if (fine && pattern.data) return pattern.data;
    str_release(&pattern);
    exchange_fail(x, 400, "guided_choice", "invalid_value", "'guided_choice' must be a list of texts");
    return NULL;
}

/* vLLM's names, and llama.cpp's `grammar`. */
static bool read_guided(Exchange *x, const json_t *body, Answer *answer) {
    const char *regex = NULL, *gbnf = NULL;
    const json_t *schema = NULL, *choices = json_object_get(body, "guided_choice");
    if (!field_text(x, body, "guided_regex", &regex) || !field_object(x, body, "guided_json", &schema)) return false;
    if (regex && !(may_constrain(x, "guided_regex", answer) && constrain(x, &(Form){.regex = regex}, "guided_regex", answer))) return false;
    if (schema && !(may_constrain(x, "guided_json", answer) && constrain(x, &(Form){.schema = schema}, "guided_json", answer))) return false;
    if (!field_text(x, body, "grammar", &gbnf)) return false;
    if (gbnf && !(may_constrain(x, "grammar", answer) && constrain(x, &(Form){.gbnf = gbnf}, "grammar", answer))) return false;
    if (!choices || json_is_null(choices)) return true;
    char *pattern = may_constrain(x, "guided_choice", answer) ? pattern_of_choices(x, choices) : NULL;
    bool fine = pattern && constrain(x, &(Form){.regex = pattern}, "guided_choice", answer);
    free(pattern);
    return fine;
}

bool read_format(Exchange *x, const json_t *body, Answer *answer) {
    const json_t *format = NULL, *schema = NULL;
    const char *type = "text";
    if (!read_guided(x, body, answer) || !field_object(x, body, "response_format", &format)) return false;
    if (!format) return true;
    if (!field_text(x, format, "type", &type)) return false;
    if (!strcmp(type, "text")) return true;
    if (!strcmp(type, "json_schema")) {
        schema = json_object_get(json_object_get(format, "json_schema"), "schema");
        if (!json_is_object(schema)) {
            exchange_fail(x, 400, "response_format", "invalid_value", "'response_format' needs {\"json_schema\": {\"schema\": {...}}}");
            return false;
        }
    } else if (strcmp(type, "json_object") != 0) {
        exchange_fail(x, 400, "response_format", "invalid_value", "'response_format.type' must be text, json_object or json_schema");
        return false;
    }
    return may_constrain(x, "response_format", answer) && constrain(x, &(Form){.schema = schema}, "response_format", answer);
}

bool read_effort(Exchange *x, json_t *body, const ServedModel *model) {
    const char *effort = NULL;
    const Chat *chat = served_chat(x->server, model);
    if (!field_text(x, body, "reasoning_effort", &effort)) return false;
    if (!effort || !chat || !chat_has_template(chat) || !chat_template_names(chat->template, "reasoning_effort")) return true;
    json_t *kwargs = json_object_get(body, "chat_template_kwargs");
    if (json_is_null(kwargs) || !kwargs) {
        kwargs = json_object();
        json_object_set_new(body, "chat_template_kwargs", kwargs);
    }
    if (json_is_object(kwargs) && !json_object_get(kwargs, "reasoning_effort")) json_object_set_new(kwargs, "reasoning_effort", json_string(effort));
    return true;
}
