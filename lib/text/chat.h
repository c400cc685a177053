/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates: the Jinja programs that come with models, run as written.
 *
 *     ChatTemplate *chat;
 *     TRY(chat_template_load("model-dir", NULL, NULL, &chat));
 *     ChatRendering rendering = {0};
 *     TRY(chat_template_render(chat, variables, &(ChatOptions){0}, &rendering));   // {"messages": [...], "add_generation_prompt": true}
 *     chat_rendering_release(&rendering); chat_template_free(chat);
 *
 * Templates run in transformers' environment: trim_blocks, lstrip_blocks, loop controls, {% generation %}, raise_exception, strftime_now, its tojson,
 * an immutable sandbox. `tools` and `documents` are none unless given. Special tokens come from tokenizer_config.json. Expressions mean what Jinja2
 * documents.
 */
#ifndef TUNE_CHAT_H
#define TUNE_CHAT_H

#include "lib/base/file.h"
#include "lib/base/json.h"

typedef struct ChatTemplate ChatTemplate;
typedef struct ChatSpan {
    size_t begin, end;
} ChatSpan; /* bytes of the rendered text */
typedef struct ChatRendering {
    Str text;
    ChatSpan *generated; /* the spans written inside {% generation %}, in order */
    size_t n_generated;
} ChatRendering; /* {0} is empty */
typedef struct ChatOptions {
    const char *now;
} ChatOptions; /* date for strftime_now, YYYY-MM-DD [HH:MM:SS]; NULL = the clock */

bool chat_reads_date(const char *text); /* whether `text` is a date that `now` accepts */

/* Loads the template of a GGUF file, or of a model directory: chat_template.jinja, else chat_template of tokenizer_config.json (a text or a list of
 * named ones: "default", and "tool_use" where tools are given), and additional_chat_templates. adapter: NULL, or the directory of an adapter, whose
 * chat_template.jinja it was trained with; it takes precedence over the model's. override: NULL, the name of a shipped template (chatml, llama3,
 * alpaca, plain) or of one of the model's, or a file; it takes precedence over both. When there is no template, *chat is NULL and the call
 * succeeds. ST_INPUT with line and column for text that is not a template. */
Status chat_template_load(const char *model_dir, const char *adapter, const char *override, ChatTemplate **chat);
/* Whether the directory itself has a chat_template.jinja. Fails as file_find does. */
Status chat_template_find(const char *dir, bool *there);
/* Writes the template to `dir` as its chat_template.jinja, replaces other templates there, and writes the template for tools too where there are
 * two. Includes the defaults, so that the written template renders the same everywhere. ST_RESOURCE; ST_INPUT: the directory's
 * tokenizer_config.json cannot be read. */
Status chat_template_save(const ChatTemplate *chat, const char *dir);
/* Sets values (an object; NULL: none) for variables that renderings do not give, such as enable_thinking. Replaces earlier defaults. ST_INPUT: a
 * name that the template does not use, or that rows or the tokenizer define. */
Status chat_template_set_defaults(ChatTemplate *chat, const json_t *values);
/* For a template without its model: copies into `variables` the special tokens that a row has and the directory does not define. */
void chat_template_set_special(const ChatTemplate *chat, json_t *variables, const json_t *row);
/* Parses a template without special tokens. name: for messages. */
Status chat_template_parse(const char *name, const char *text, size_t len, ChatTemplate **chat);
/* Renders the template. variables: an object. ST_INPUT with template, line and column: the template raises an exception, does something
 * unsupported, runs too long or too deep, or writes too much. Any number of threads may render at once. */
Status chat_template_render(const ChatTemplate *chat, const json_t *variables, const ChatOptions *options, ChatRendering *rendering);
void chat_rendering_release(ChatRendering *rendering);
bool chat_template_names(const ChatTemplate *chat, const char *name); /* whether the template has a variable of this name, loop variables included */
bool chat_template_marks_generation(const ChatTemplate *chat);
/* Appends the text that chat_template_save writes: the defaults, then the template. */
void chat_template_text(const ChatTemplate *chat, bool with_tools, Str *text);
/* The template's text. Both values of with_tools give the same text unless the model has a separate template for tools. */
Slice chat_template_source(const ChatTemplate *chat, bool with_tools);
const char *chat_template_label(const ChatTemplate *chat, bool with_tools); /* for messages: its file or name */
void chat_template_free(ChatTemplate *chat);                                /* NULL is fine */

#endif
