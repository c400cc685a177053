/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations to tokens: messages in OpenAI's form, rendered by the model's chat template, with what is trained found in the rendered text.
 *
 * An assistant's turn is trained from behind its generation prompt through its end-of-turn token. Where the template marks what the model writes with
 * {% generation %}, exactly that is trained. Else the border is found by rendering the conversation up to it: a template that then writes something
 * else than in the whole conversation trains what it will never be asked for, which is an error.
 */
#ifndef TUNE_CONVERSATION_H
#define TUNE_CONVERSATION_H

#include "data/data.h"

/* A model's template, ready for its rows. */
struct Chat {
    ChatTemplate *template; /* NULL: the model has none */
    char *now;              /* fixed date for strftime_now; NULL = today */
    int32_t end_of_turn;    /* the special token that ends an assistant's turn; -1 = none */
    char *end_text;         /* its text in the rendering */
    char *model_dir;        /* for messages */
};

/* `messages` in the form that templates take: config->system in front where there is no system message, parts of text joined, arguments of tool calls
 * as objects. A new array. ST_INPUT: what is no list of messages with a role and a content. */
Status messages_normalize(const json_t *messages, const char *system, json_t **normal);
/* A list of messages as transformers hands it to a template, and no more: without keys that are null, reasoning under the names that templates read.
 * A new list; NULL: no memory. */
json_t *messages_for_template(const json_t *messages);
/* Renders messages[0..n-1] with the row's tools, documents and chat_template_kwargs. */
Status messages_render(const Chat *chat, const json_t *messages, size_t n, const json_t *row, bool generation_prompt, ChatRendering *rendering);
/* What the template writes in front of a first message's own words. */
Status first_turn_prompt(const Chat *chat, const json_t *messages, const json_t *row, ChatRendering *prompt);
/* A whole conversation, normalised; assistants from message `n_context` on are trained as config->train_on says. */
Status encode_messages(const json_t *messages, size_t n_context, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer,
                       Encoding *encoding);
/* The ids that ask for an answer: everything up to the last assistant's turn if it ends the conversation, else everything, with the generation
 * prompt. */
Status encode_question(const json_t *messages, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids);
/* What a format of conversations is made of: how its rows become normalised messages (a new array). */
typedef Status ReadMessages(const json_t *row, const DataConfig *config, json_t **messages);
Status conversation_encode(ReadMessages *read, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding);
Status conversation_question(ReadMessages *read, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids);
/* The turns of a row in ShareGPT's form, with its `system` in front, as messages. A new array. */
Status sharegpt_messages(const json_t *row, const json_t *turns, json_t **messages);
/* A list, or a string that holds one as JSON, as some datasets keep their columns; *list is a new reference, NULL when the column is missing or null.
 */
Status row_list(const json_t *row, const char *key, json_t **list);

#endif
