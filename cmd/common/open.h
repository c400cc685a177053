/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a model with its adapter, tokenizer and chat template, and defines the command-line options for that. */
#ifndef TUNE_OPEN_H
#define TUNE_OPEN_H

#include "cmd/app/options.h"
#include "data/data.h"

typedef struct OpenedModel {
    Model *model;
    Tokenizer *tokenizer; /* NULL when the directory has none */
    Chat *chat;           /* NULL without a tokenizer */
    char *system;         /* the system message that a run was trained with; NULL: none, or not a run */
} OpenedModel;
/* How conversations are rendered: the options --chat-template, --template-kwargs, --now and --system. */
typedef struct ChatChoice {
    const char *chat_template, *now, *system;
    TextList kwargs; /* each "name=value" or "{name: value, ...}" */
} ChatChoice;
/* The option --as of commands that by default read rows of plain text as text. */
#define AS_OPTION(config) \
    { "--as", OPTION_TEXT, &(config).as, "chat|text", "rows of plain text: as turns of the chat template, like data.as: chat, or unchanged (text)" }
/* Opens a model and what belongs to it; close_model frees it all. dir: a model, or the output of a run, which means its trained model, or its base
 * and adapter. adapter may be NULL. choice NULL: the chat template of the adapter, else of the model. */
Status open_model(const char *dir, const char *adapter, const char *compute, const ChatChoice *choice, OpenedModel *opened);
/* The same on all ranks at once (dealt.h), which have the weights once on each machine. */
Status open_model_dealt(const char *dir, const char *adapter, const char *compute, const ChatChoice *choice, OpenedModel *opened);
Status open_chat(const char *dir, const char *adapter, const ChatChoice *choice, OpenedModel *opened);
/* *values: choice->kwargs as a JSON object, a new reference; NULL if there are none. ST_USAGE for a malformed one. */
Status chat_choice_kwargs(const ChatChoice *choice, json_t **values);
const char *chat_choice_first(const ChatChoice *choice); /* the name of the first of these options that was given; NULL: none */
/* ST_USAGE if an option has no effect with this template: it writes no system message, or no date. */
Status chat_choice_check(const ChatChoice *choice, const Chat *chat);
void close_model(OpenedModel *opened);

#define CHAT_OPTIONS(choice)                                                                                                    \
    {"--chat-template", OPTION_TEXT, &(choice).chat_template, "FILE|chatml|llama3|alpaca|plain", "instead of the model's own"}, \
        {"--template-kwargs", OPTION_LIST, &(choice).kwargs, "NAME=VALUE",                                                      \
         "value for the template, such as enable_thinking=false; repeatable, or '{NAME: VALUE, ...}'"},                         \
        {"--system", OPTION_TEXT, &(choice).system, "TEXT", "system message for conversations without one"}, {                  \
        "--now", OPTION_TEXT, &(choice).now, "DATE", "date for templates that write one, YYYY-MM-DD [HH:MM:SS] (today)"         \
    }

#endif
