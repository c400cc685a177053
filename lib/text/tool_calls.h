/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of chat models, taken apart while they come: text, reasoning, and calls of tools in the syntax of the model's family.
 *
 *     TRY(reply_new(chat, &(ReplyOptions){.tools = tools, .prompt = rendered, .calls = true, .split_reasoning = true}, &reply));
 *     TRY(reply_push(reply, piece, len, on_reply, context));     // for each piece of the answer's text
 *     TRY(reply_finish(reply, on_reply, context));
 *     reply_free(reply);
 *
 * The text must have special tokens (GenerateRequest.keep_special), because some families mark calls with them. */
#ifndef TUNE_TOOL_CALLS_H
#define TUNE_TOOL_CALLS_H

#include "lib/text/chat.h"

/* How a family writes a call. */
typedef struct ToolSyntax ToolSyntax;
/* The syntax of a chat template, recognised by the marks that it writes; NULL: the template writes no calls in a known syntax, or chat is NULL. */
const ToolSyntax *tool_syntax_of(const ChatTemplate *chat);
const char *tool_syntax_name(const ToolSyntax *syntax); /* for messages: "hermes", "mistral", ... */
/* The texts around the name and the JSON arguments of a call: open NAME middle ARGUMENTS close. between: what separates two calls; NULL: there is one
 * call only. Special tokens are between two characters U+0001. */
typedef struct ToolJson {
    const char *open, *middle, *close, *between;
} ToolJson;
const ToolJson *tool_syntax_json(const ToolSyntax *syntax); /* NULL: the syntax does not write arguments as JSON */

typedef enum ReplyKind { REPLY_TEXT, REPLY_REASONING, REPLY_CALL } ReplyKind;
typedef struct ReplyPiece {
    ReplyKind kind;
    Slice text;            /* of REPLY_TEXT and REPLY_REASONING: what was added; never a part of a mark or of a character */
    Slice name, arguments; /* of REPLY_CALL, which comes whole: the arguments are the text of a JSON object */
    size_t call;           /* the number of the call, from 0 */
} ReplyPiece;
/* Gets the pieces in their order, valid only during the call. */
typedef Status OnReply(void *context, const ReplyPiece *piece);

typedef struct ReplyOptions {
    const json_t
        *tools;   /* of the request: types of parameters, for syntaxes that write texts without quotes; NULL: unknown. Must outlive the reply */
    Slice prompt; /* the rendered prompt: it may begin the reasoning, or a call. Not needed after reply_new */
    bool calls;   /* take calls apart; otherwise they are text */
    bool split_reasoning; /* reasoning is a piece of its own; otherwise it is text, with its marks */
} ReplyOptions;
typedef struct Reply Reply;
/* chat may be NULL: all is text. ST_RESOURCE. The caller calls reply_free. */
Status reply_new(const ChatTemplate *chat, const ReplyOptions *options, Reply **reply);
/* A call that is not in its family's syntax is text, as it was written. Fails with ST_RESOURCE, or as on_reply does. */
Status reply_push(Reply *reply, const char *text, size_t len, OnReply *on_reply, void *context);
Status reply_finish(Reply *reply, OnReply *on_reply, void *context); /* the answer ends: hands out what was held back */
void reply_free(Reply *reply);                                       /* NULL is fine */

#endif
