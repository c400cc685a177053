/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations to tokens: messages in OpenAI's form are rendered with the model's chat template, and the trained parts are located in the result.
 *
 * An assistant's turn is trained from the end of its generation prompt through its end-of-turn token. If the template marks the model's output with
 * {% generation %}, exactly the marked text is trained. Otherwise the border is found by rendering the conversation up to the turn. If the template
 * then renders that part differently than within the full conversation (it is not prefix-preserving), training would use a prompt that never occurs
 * in use, so this is an error.
 *
 * data.turns: each makes a separate text of each trained turn: the conversation up to and including it, rendered as when the turn is asked for, so
 * without those parts of earlier turns that the template drops. auto does so only where rendering the full conversation causes the error above.
 */
#ifndef TUNE_CONVERSATION_H
#define TUNE_CONVERSATION_H

#include "data/data.h"

/* A model's template, prepared for rows. */
struct Chat {
    ChatTemplate *template; /* NULL: the model has no template */
    struct Shapes *shapes;  /* see message.h */
    char *now;              /* fixed date for strftime_now; NULL = today */
    int32_t end_of_turn;    /* the special token that ends an assistant's turn; -1 = none */
    char *end_text;         /* its text in the rendering */
    char *model_dir;        /* for messages */
};

/* `messages` in the form that templates take. The row's system text, or config->system, is inserted if there is no system message; parts of text are
 * joined; arguments of tool calls become objects; roles get the names that templates know. row NULL: the messages belong to no row. A new array.
 * ST_INPUT: no list of messages with a role and a content. */
Status messages_normalize(const json_t *messages, const json_t *row, const DataConfig *config, json_t **normal);
/* The system text that a row has in a separate column; NULL: none. ST_INPUT. */
Status row_system(const json_t *row, const char **system);
/* Notes a system text next to a prompt that is a text, since such a prompt has no system message. */
void note_idle_system(const json_t *row, const DataConfig *config);
/* A copy of a list of messages as transformers passes it to a template: without keys that are null, and with reasoning under the names that templates
 * read. Nothing else changes. NULL: out of memory. */
json_t *messages_for_template(const json_t *messages);
/* Renders messages[0..n-1] with the row's tools, documents and chat_template_kwargs. */
Status messages_render(const Chat *chat, const json_t *messages, size_t n, const json_t *row, bool generation_prompt, ChatRendering *rendering);
/* The text that the template writes before the first message's own words. */
Status first_turn_prompt(const Chat *chat, const json_t *messages, const json_t *row, ChatRendering *prompt);
/* Encodes a normalised conversation; assistant messages from index `n_context` on are trained as config->train_on says: as one text, or turn by
 * turn. */
Status encode_messages(const json_t *messages, size_t n_context, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer,
                       Encoding *encoding);
/* The same as one text. broken: it failed because the template is not prefix-preserving. */
Status encode_conversation(const json_t *messages, size_t n_context, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer,
                           Encoding *encoding, bool *broken);
/* The tokens of the last message's turn, bytes begin..end-1 of `text`, preceded by the tokens of the text before it. */
Status encode_rendered(const Str *text, size_t begin, size_t end, const json_t *messages, const DataConfig *config, const Tokenizer *tokenizer,
                       Encoding *encoding);
/* The end of the last end-of-turn text from `begin` on; without one, the end of the last character that is no white space. */
size_t turn_end(const Chat *chat, const Str *text, size_t begin);
/* For a `prompt` that starts a thought or leaves an empty one, where `whole`, the conversation with the last message, has none at this place: appends
 * the prompt and the answer that continues it to `text`; *end: the end of the answer's turn, which begins at prompt->len. *end 0: the prompt does not
 * end in a thought. ST_INPUT: the prompt rules a thought out, and the message has one. */
Status answer_after_thought(const Chat *chat, const json_t *messages, const Str *prompt, const Str *whole, Str *text, size_t *end);
/* Sets trained[i] for each message. ST_INPUT: no message can be trained, or one of the row's marks is invalid. */
Status messages_trained(const json_t *messages, size_t n_context, const DataConfig *config, bool *trained);
/* The ids of the prompt: everything up to the last assistant turn if that ends the conversation, otherwise everything; plus the generation prompt. */
Status encode_question(const json_t *messages, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids);
/* A format of conversations consists of the function that turns its rows into normalised messages (a new array). */
typedef Status ReadMessages(const json_t *row, const DataConfig *config, json_t **messages);
Status conversation_encode(ReadMessages *read, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding);
Status conversation_question(ReadMessages *read, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids);
/* Converts turns in ShareGPT's form to messages. A new array. */
Status sharegpt_messages(const json_t *turns, RowNotes *notes, json_t **messages);
/* A list, or a string that encodes one as JSON, as in the columns of some datasets; *list is a new reference, NULL if the column is missing or
 * null.
 */
Status row_list(const json_t *row, const char *key, json_t **list);

#endif
