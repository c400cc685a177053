/* SPDX-License-Identifier: Apache-2.0 */
/* Converts messages in the style of other tools to what chat templates expect: names of roles, keys that exclude a turn from training, function
 * calls, and the nulls that Arrow puts into its structs.
 */
#ifndef TUNE_MESSAGE_H
#define TUNE_MESSAGE_H

#include "data/data.h"

#define EMPTY_ANSWER "with an empty answer: only its end token is trained"
#define NO_END "whose chat template writes no special token after an answer: the model does not learn where to stop"
#define BEHIND_THOUGHT                                                                                    \
    "with answers to a prompt that starts a thought, which the chat template leaves out of the finished " \
    "answer: they are trained after their thought, or after an empty one"

/* ---- roles ---- */

/* Maps a known name in any case ("Human", "gpt") to user, assistant, system, tool or developer; gives "function_call" for a turn whose text is a
 * call; NULL: an unknown name. */
const char *role_known(const char *name);
/* The role that a message is rendered with: the standard one, unless the template reads the name itself. Templates without a developer role get a
 * system message. chat NULL or without a template: as for any template. */
const char *role_for(const Chat *chat, const char *name);
/* The standard role closest to a misspelt name; NULL: none is close. */
const char *role_nearest(const char *name);

/* Converts ShareGPT turns, {"from", "value"}, among messages to messages with a role and a content. Their other keys stay, so that keys that are
 * never read are counted. A new list; NULL: out of memory. */
bool has_named_turns(const json_t *list);
json_t *named_turns_open(const json_t *list);

/* ---- marks: keys that say whether a turn is trained ---- */

void marks_copy(const json_t *from, json_t *to);
/* Whether a message is trained: `train: false`, `weight: 0` and the like make it context. ST_INPUT for an invalid value of our own key; that of
 * another tool's key is noted. */
Status marks_read(const json_t *message, size_t number, RowNotes *notes, bool *trained);
bool marks_are_native(const json_t *message); /* one of our keys makes it context, not one that other tools put on every message */
/* Whether the message's `train_detail` excludes bytes begin..end-1 of its content. */
bool marks_leave_out(const json_t *message, size_t begin, size_t end);
/* Notes keys of a message that neither the program nor the chat template reads. */
void message_note_keys(const json_t *message, const Chat *chat, RowNotes *notes);

/* ---- calls of functions ---- */

/* Converts the text of a turn that is a call: one {"name", "arguments"}, or a list of them. A new message. ST_INPUT names the message by its
 * number. */
Status calls_message(const char *text, size_t number, json_t **message);
/* Changes a message that the caller owns: a `function_call` becomes `tool_calls`; these and their arguments are parsed if they are JSON text.
 * ST_INPUT for an invalid call. */
Status calls_open(json_t *message, size_t number, RowNotes *notes);
/* The row's tools, each an object: JSON texts are parsed, and `functions` are the tools if there are no `tools`. A new reference, NULL: there are
 * none. ST_INPUT. */
Status row_tools(const json_t *row, json_t **tools);
/* The row without the nulls that Arrow's structs have because other rows have these members. padded: the row was made of such structs; otherwise only
 * nulls are removed that have no other explanation, as in JSON written by the datasets library. A new reference; NULL: out of memory. */
json_t *row_unpadded(const json_t *row, bool padded);

/* ---- control tokens within messages ---- */

/* Notes the first control token in a text; NULL is fine. */
void note_controls(const char *text, const Tokenizer *tokenizer, const DataConfig *config);
/* The same for a plain text, which may begin with BOS and end with EOS. */
void note_text_controls(const char *text, const Tokenizer *tokenizer, const DataConfig *config);
/* The messages to render: with data.control_tokens: text their control tokens are guarded, otherwise noted. A new reference, NULL: out of memory. */
json_t *controls_guard(const json_t *messages, const Tokenizer *tokenizer, const DataConfig *config);
/* The same for the other parts of a row that templates write: its tools and documents. *guarded: a new reference, NULL if row is. ST_INPUT: they are
 * not lists. */
Status controls_guard_row(const json_t *row, const Tokenizer *tokenizer, const DataConfig *config, json_t **guarded);
/* The positions of guards that were removed from a text. */
typedef struct Guards {
    size_t *at, n, cap;
} Guards;
Status guards_extract(Str *text, Guards *guards);
size_t guards_shift(const Guards *guards, size_t at); /* converts a position in the text with guards to one in the text without them */
void guards_release(Guards *guards);
TokenizeFlags text_flags(const DataConfig *config); /* for a plain text */

/* ---- messages that a template leaves out ---- */

/* Whether the template has this word in quotes or after a dot, as it has keys and roles. */
bool template_names(const Chat *chat, const char *word);
/* Forms of conversations whose messages are all written by the template. */
typedef struct Shapes Shapes;
Shapes *shapes_new(void); /* NULL: out of memory */
void shapes_free(Shapes *shapes);
/* Notes messages that are missing from `text`, the rendering of messages[0..n-1], and roles that the template does not mention. ST_INPUT: a question
 * lost its last message, so it would ask nothing. */
Status check_written(const Chat *chat, const json_t *messages, size_t n, const json_t *row, bool question, const Str *text, RowNotes *notes);

#endif
