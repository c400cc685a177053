/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations to tokens: messages in OpenAI's form, rendered by the model's chat template, with what is trained found in the rendered text.
 *
 * An assistant's turn is trained from behind its generation prompt through its end-of-turn token. Where the template marks what the model writes with
 * {% generation %}, exactly that is trained. Else the border is found by rendering the conversation up to it: a template that then writes something
 * else than in the whole conversation trains what it will never be asked for, which is an error.
 *
 * data.turns: each makes a text of each trained turn instead: the conversation up to and including it, as the template renders it when the turn is
 * asked for, so what it drops of earlier turns is dropped. auto does so where the whole conversation is such an error.
 */
#ifndef TUNE_CONVERSATION_H
#define TUNE_CONVERSATION_H

#include "data/data.h"

/* A model's template, ready for its rows. */
struct Chat {
    ChatTemplate *template; /* NULL: the model has none */
    struct Shapes *shapes;  /* see message.h */
    char *now;              /* fixed date for strftime_now; NULL = today */
    int32_t end_of_turn;    /* the special token that ends an assistant's turn; -1 = none */
    char *end_text;         /* its text in the rendering */
    char *model_dir;        /* for messages */
};

/* `messages` in the form that templates take: the row's system text, or config->system, in front where there is no system message, parts of text
 * joined, arguments of tool calls as objects, roles under the names that templates know. row NULL: they are of no row. A new array. ST_INPUT: what is
 * no list of messages with a role and a content. */
Status messages_normalize(const json_t *messages, const json_t *row, const DataConfig *config, json_t **normal);
/* The system text that a row has in a column of its own; NULL: none. ST_INPUT. */
Status row_system(const json_t *row, const char **system);
/* Notes a system text beside a prompt that is a text, which has no place for it. */
void note_idle_system(const json_t *row, const DataConfig *config);
/* A list of messages as transformers hands it to a template, and no more: without keys that are null, reasoning under the names that templates read.
 * A new list; NULL: no memory. */
json_t *messages_for_template(const json_t *messages);
/* Renders messages[0..n-1] with the row's tools, documents and chat_template_kwargs. */
Status messages_render(const Chat *chat, const json_t *messages, size_t n, const json_t *row, bool generation_prompt, ChatRendering *rendering);
/* What the template writes in front of a first message's own words. */
Status first_turn_prompt(const Chat *chat, const json_t *messages, const json_t *row, ChatRendering *prompt);
/* A whole conversation, normalised; assistants from message `n_context` on are trained as config->train_on says: as one text, or turn by turn. */
Status encode_messages(const json_t *messages, size_t n_context, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer,
                       Encoding *encoding);
/* The same as one text. broken: it fails since the template is not prefix-preserving. */
Status encode_conversation(const json_t *messages, size_t n_context, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer,
                           Encoding *encoding, bool *broken);
/* Tokens of the last message's turn, bytes begin..end-1 of `text`, behind what stands before it. */
Status encode_rendered(const Str *text, size_t begin, size_t end, const json_t *messages, const DataConfig *config, const Tokenizer *tokenizer,
                       Encoding *encoding);
/* Behind the last end-of-turn text from `begin` on; without one, behind the last that is no white space. */
size_t turn_end(const Chat *chat, const Str *text, size_t begin);
/* Where `prompt` asks for the last message with a thought that it begins, or leaves empty, and `whole`, the conversation with it, has none there:
 * prompt and answer as they follow on one another, appended to `text`; *end: of the answer's turn, which begins at prompt->len. *end 0: the prompt
 * ends in no thought. ST_INPUT: it asks for none, and the message has one. */
Status answer_after_thought(const Chat *chat, const json_t *messages, const Str *prompt, const Str *whole, Str *text, size_t *end);
/* Which messages are trained: trained[i]. ST_INPUT: none can be, or one of the row's marks is wrong. */
Status messages_trained(const json_t *messages, size_t n_context, const DataConfig *config, bool *trained);
/* The ids that ask for an answer: everything up to the last assistant's turn if it ends the conversation, else everything, with the generation
 * prompt. */
Status encode_question(const json_t *messages, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids);
/* What a format of conversations is made of: how its rows become normalised messages (a new array). */
typedef Status ReadMessages(const json_t *row, const DataConfig *config, json_t **messages);
Status conversation_encode(ReadMessages *read, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding);
Status conversation_question(ReadMessages *read, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids);
/* Turns in ShareGPT's form as messages. A new array. */
Status sharegpt_messages(const json_t *turns, RowNotes *notes, json_t **messages);
/* A list, or a string that holds one as JSON, as some datasets keep their columns; *list is a new reference, NULL when the column is missing or null.
 */
Status row_list(const json_t *row, const char *key, json_t **list);

#endif
