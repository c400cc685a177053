/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a model with its adapter, tokenizer and chat template, and the options that say how. */
#ifndef TUNE_OPEN_H
#define TUNE_OPEN_H

#include "cmd/app/options.h"
#include "data/data.h"

/* A model with its adapter and tokenizer, as most commands open it. */
typedef struct OpenedModel {
    Model *model;
    Tokenizer *tokenizer; /* NULL when the directory has none */
    Chat *chat;           /* NULL without a tokenizer */
    char *system;         /* of a run: the system message that it was trained with; NULL: none */
} OpenedModel;
/* How conversations are rendered: what most commands take as --chat-template, --template-kwargs, --now and --system. */
typedef struct ChatChoice {
    const char *chat_template, *now, *system;
    TextList kwargs; /* each "name=value" or "{name: value, ...}" */
} ChatChoice;
/* How rows of plain texts are read, of commands that read them as text unless told otherwise. */
#define AS_OPTION(config)                                                                                        \
    {                                                                                                            \
        "--as", OPTION_TEXT, &(config).as, "chat|text",                                                          \
            "rows of plain texts: as turns of the chat template, as data.as: chat does, or as they stand (text)" \
    }
/* dir: of a model, or the output of a run, which stands for its model, or for its base with its adapter. Choice NULL: the template of the adapter
 * (which may be NULL), else the model's own */
Status open_model(const char *dir, const char *adapter, const char *compute, const ChatChoice *choice, OpenedModel *opened);
Status open_chat(const char *dir, const char *adapter, const ChatChoice *choice, OpenedModel *opened);
/* choice->kwargs as an object, a new reference; NULL: none. ST_USAGE for what is no such text. */
Status chat_choice_kwargs(const ChatChoice *choice, json_t **values);
const char *chat_choice_first(const ChatChoice *choice); /* the name of an option that was given; NULL: none */
/* ST_USAGE for an option of the choice that does nothing with this template: a system message that it does not write, a date. */
Status chat_choice_check(const ChatChoice *choice, const Chat *chat);
void close_model(OpenedModel *opened);

#define CHAT_OPTIONS(choice)                                                                                                    \
    {"--chat-template", OPTION_TEXT, &(choice).chat_template, "FILE|chatml|llama3|alpaca|plain", "instead of the model's own"}, \
        {"--template-kwargs", OPTION_LIST, &(choice).kwargs, "NAME=VALUE",                                                      \
         "for the template, as enable_thinking=false; also several, or '{NAME: VALUE, ...}'"},                                  \
        {"--system", OPTION_TEXT, &(choice).system, "TEXT", "system message of conversations without one"}, {                   \
        "--now", OPTION_TEXT, &(choice).now, "DATE", "for templates that write the date, YYYY-MM-DD [HH:MM:SS]; today"          \
    }

#endif
