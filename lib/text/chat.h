/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates: the Jinja programs that models bring along, run as they are.
 *
 *     ChatTemplate *chat;
 *     TRY(chat_template_load("model-dir", NULL, NULL, &chat));
 *     ChatRendering rendering = {0};
 *     TRY(chat_template_render(chat, variables, &(ChatOptions){0}, &rendering));   // {"messages": [...], "add_generation_prompt": true}
 *     chat_rendering_release(&rendering); chat_template_free(chat);
 *
 * Templates are run as transformers runs them: trim_blocks, lstrip_blocks, loop controls, {% generation %}, raise_exception, strftime_now, its
 * tojson, an immutable sandbox; `tools` and `documents` are none unless given, special tokens come from tokenizer_config.json. What expressions mean
 * is what Jinja2 documents.
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
    ChatSpan *generated; /* what stood in {% generation %}, in order */
    size_t n_generated;
} ChatRendering; /* {0} is empty */
typedef struct ChatOptions {
    const char *now;
} ChatOptions; /* date for strftime_now, YYYY-MM-DD [HH:MM:SS]; NULL = the clock */

bool chat_reads_date(const char *text); /* it is a date that `now` takes */

/* The template of a model directory: chat_template.jinja, else chat_template of tokenizer_config.json, a text or a list of named ones ("default";
 * "tool_use" where tools are given), and additional_chat_templates. adapter: NULL, or the directory of one, whose chat_template.jinja it was trained
 * with and comes before the model's. override: NULL, the name of a shipped one (chatml, llama3, alpaca, plain) or of one of the model's, or a file;
 * it comes before both. *chat is NULL, and that is no failure, when there is none. ST_INPUT with line and column for what is no template. */
Status chat_template_load(const char *model_dir, const char *adapter, const char *override, ChatTemplate **chat);
/* Whether the directory has a chat_template.jinja of its own. Fails as file_find. */
Status chat_template_find(const char *dir, bool *there);
/* Puts the template into `dir`, as its chat_template.jinja and instead of others of its model, with the one for tools beside it where there are two.
 * Defaults are part of what is written, so that it renders the same everywhere. ST_RESOURCE; ST_INPUT: its tokenizer_config.json cannot be read. */
Status chat_template_save(const ChatTemplate *chat, const char *dir);
/* Values (an object; NULL: none) of variables that renderings do not give: enable_thinking and the like. They take the place of those before.
 * ST_INPUT: a name that the template does not have, or that rows or the tokenizer give a value. */
Status chat_template_set_defaults(ChatTemplate *chat, const json_t *values);
/* Special tokens that the directory names none of, of a row that has them, into `variables`: for a template without its model. */
void chat_template_set_special(const ChatTemplate *chat, json_t *variables, const json_t *row);
/* A template alone, without special tokens. name: for messages. */
Status chat_template_parse(const char *name, const char *text, size_t len, ChatTemplate **chat);
/* variables: an object. ST_INPUT with template, line and column: what the template refuses (raise_exception) or can't do, and what runs too long, too
 * deep or writes too much. Any number of threads may render at once. */
Status chat_template_render(const ChatTemplate *chat, const json_t *variables, const ChatOptions *options, ChatRendering *rendering);
void chat_rendering_release(ChatRendering *rendering);
bool chat_template_names(const ChatTemplate *chat, const char *name); /* it has a variable of this name, or a loop's */
bool chat_template_marks_generation(const ChatTemplate *chat);
/* Appends what chat_template_save writes: the template's text, its defaults in front. */
void chat_template_text(const ChatTemplate *chat, bool with_tools, Str *text);
/* The template's text; the same for both when there is one for rows with tools too */
Slice chat_template_source(const ChatTemplate *chat, bool with_tools);
const char *chat_template_label(const ChatTemplate *chat, bool with_tools); /* for messages: its file or name */
void chat_template_free(ChatTemplate *chat);                                /* NULL is fine */

#endif
