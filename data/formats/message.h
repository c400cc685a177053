/* SPDX-License-Identifier: Apache-2.0 */
/* What messages of other tools look like, in the words of chat templates: names of roles, keys that keep a turn out of training, calls of functions,
 * and the nulls with which Arrow fills its structs.
 */
#ifndef TUNE_MESSAGE_H
#define TUNE_MESSAGE_H

#include "data/data.h"

#define EMPTY_ANSWER "with an empty answer: nothing but an end is trained"
#define NO_END "whose chat template writes no special token after an answer: the model does not learn where to stop"
#define BEHIND_THOUGHT                                                                                                                            \
    "with answers that the chat template writes without the thought that it asks for them with: they are trained behind it, and one that has no " \
    "thought behind an empty one"

/* ---- roles ---- */

/* user, assistant, system, tool or developer for one of their known names in any case ("Human", "gpt"); "function_call" for a turn whose text is a
 * call; NULL: not known. */
const char *role_known(const char *name);
/* The role that a message is rendered with: the known one, unless the template knows the name itself. Templates without a developer get a system
 * message. chat NULL or without a template: as of any template. */
const char *role_for(const Chat *chat, const char *name);
/* The standard role that may be meant by a misspelt name; NULL: none is near. */
const char *role_nearest(const char *name);

/* Turns of ShareGPT's, {"from", "value"}, among messages. Opened they have a role and a content; their other keys stay, so that what nothing reads is
 * counted. A new list; NULL: no memory. */
bool has_named_turns(const json_t *list);
json_t *named_turns_open(const json_t *list);

/* ---- marks: keys that say whether a turn is trained ---- */

void marks_copy(const json_t *from, json_t *to);
/* Whether a message is to be trained: `train: false`, `weight: 0` and the like make it context. ST_INPUT for a mark of ours that says neither; one
 * under another tool's name is noted. */
Status marks_read(const json_t *message, size_t number, RowNotes *notes, bool *trained);
bool marks_are_native(const json_t *message); /* it is context by a mark of ours, not by one that other tools put on every message */
/* Whether bytes begin..end-1 of the message's content, as they stand in it, are to be left out by its `train_detail`. */
bool marks_leave_out(const json_t *message, size_t begin, size_t end);
/* Notes keys of a message that nothing reads, the chat template included. */
void message_note_keys(const json_t *message, const Chat *chat, RowNotes *notes);

/* ---- calls of functions ---- */

/* The text of a turn that is a call: one {"name", "arguments"}, or a list of them. A new message. ST_INPUT naming it by its number. */
Status calls_message(const char *text, size_t number, json_t **message);
/* In place, of a message that is the caller's own: a `function_call` becomes `tool_calls`, which are opened where they are a text, and so are their
 * arguments. ST_INPUT for what is no call. */
Status calls_open(json_t *message, size_t number, RowNotes *notes);
/* The row's tools, each an object: texts of JSON are opened, `functions` are the tools where there are no `tools`. A new reference, NULL: there are
 * none. ST_INPUT. */
Status row_tools(const json_t *row, json_t **tools);
/* The row without the nulls of members that Arrow's structs have because other rows have them. padded: it was made of such structs; else it is looked
 * for nulls that only they explain, as in what datasets writes as JSON. A new reference; NULL: no memory. */
json_t *row_unpadded(const json_t *row, bool padded);

/* ---- control tokens in what people wrote ---- */

/* Notes the first that stands in a text; NULL is fine. */
void note_controls(const char *text, const Tokenizer *tokenizer, const DataConfig *config);
/* The same of a text that is no conversation, which may begin with BOS and end with EOS. */
void note_text_controls(const char *text, const Tokenizer *tokenizer, const DataConfig *config);
/* The messages as they are rendered: with data.control_tokens: text control tokens are guarded, else noted. A new reference, NULL: no memory. */
json_t *controls_guard(const json_t *messages, const Tokenizer *tokenizer, const DataConfig *config);
/* The same for what else of a row templates write, its tools and documents. *guarded: a new reference, NULL where row is. ST_INPUT: these are no
 * lists. */
Status controls_guard_row(const json_t *row, const Tokenizer *tokenizer, const DataConfig *config, json_t **guarded);
/* Where guards were in a text, from which they are taken. */
typedef struct Guards {
    size_t *at, n, cap;
} Guards;
Status guards_extract(Str *text, Guards *guards);
size_t guards_shift(const Guards *guards, size_t at); /* a place in the text before, as one in the text after */
void guards_release(Guards *guards);
TokenizeFlags text_flags(const DataConfig *config); /* of a text that is no conversation */

/* ---- what a template does not write ---- */

/* in quotes or behind a dot, as of a key or a role */
bool template_names(const Chat *chat, const char *word);
/* Forms of conversations of which a template is known to write all messages. */
typedef struct Shapes Shapes;
Shapes *shapes_new(void); /* NULL: no memory */
void shapes_free(Shapes *shapes);
/* Notes messages of which nothing stands in `text`, which messages[0..n-1] were rendered as, and roles that the template does not name. A question
 * whose last message is lost asks for nothing: ST_INPUT. */
Status check_written(const Chat *chat, const json_t *messages, size_t n, const json_t *row, bool question, const Str *text, RowNotes *notes);

#endif
