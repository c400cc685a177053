/* SPDX-License-Identifier: Apache-2.0 */
/* An answer, after a byte that chooses its syntax and options. In whatever pieces it comes, the same parts come out: arguments are JSON objects, and
 * what is neither reasoning nor a call is text as it was. */
#include <string.h>

#include "lib/text/tool_calls.h"
#include "tests/support/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static const char *const sources[] = {
    "<|channel|><|message|>",
    "<|tool_call><tool_call|><|channel>thought",
    "[TOOL_CALLS][ARGS][THINK]",
    "[TOOL_CALLS]",
    "List of tools: <|im_start|><think>",
    "<seed:tool_call><function=<seed:think>",
    "<tool_call><arg_key><think>",
    "<tool_call><parameter=<think>",
    "<tool_calls>",
    "<tool_call></tool_call><think>",
    "'{\"name\": \"' \"parameters\": ",
    "none",
};

typedef struct Said {
    Str parts[3], all; /* parts: by kind; all: in order */
    size_t n_calls;
} Said;

static Status said_piece(void *context, const ReplyPiece *piece) {
    Said *said = context;
    ASSERT(piece->kind == REPLY_CALL || piece->text.len > 0, "an empty piece");
    str_append_n(&said->parts[piece->kind], piece->text.data, piece->text.len);
    if (piece->kind != REPLY_CALL) return ST_OK;
    ASSERT(piece->call == said->n_calls, "call %zu after %zu", piece->call, said->n_calls);
    said->n_calls++;
    json_t *arguments = json_of_text(piece->arguments.data, piece->arguments.len, JSON_ALLOW_NUL);
    ASSERT(json_is_object(arguments), "arguments '%.*s'", (int)piece->arguments.len, piece->arguments.data);
    json_decref(arguments);
    str_append_n(&said->parts[REPLY_CALL], piece->name.data, piece->name.len);
    str_append_n(&said->parts[REPLY_CALL], piece->arguments.data, piece->arguments.len);
    return ST_OK;
}

static void say(const ChatTemplate *chat, const ReplyOptions *options, const char *text, size_t len, size_t step, Said *said) {
    Reply *reply;
    *said = (Said){0};
    check_ok(reply_new(chat, options, &reply));
    for (size_t at = 0; at < len; at += step) check_ok(reply_push(reply, text + at, MIN(step, len - at), said_piece, said));
    check_ok(reply_finish(reply, said_piece, said));
    reply_free(reply);
}

static void said_release(Said *said) {
    for (int i = 0; i < 3; i++) str_release(&said->parts[i]);
}

static bool same_text(const Str *a, const Str *b) { return a->len == b->len && memcmp(str_text(a), str_text(b), a->len) == 0; }

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    static ChatTemplate *chats[COUNT_OF(sources)];
    if (len == 0) return 0;
    size_t which = bytes[0] % COUNT_OF(sources);
    bool calls = bytes[0] & 64, split = bytes[0] & 128;
    const char *text = (const char *)bytes + 1;
    if (!chats[which]) {
        char source[256];
        int n = snprintf(source, sizeof source, "{%% raw %%}%s{%% endraw %%}", sources[which]);
        check_ok(chat_template_parse("fuzz", source, (size_t)n, &chats[which]));
    }
    const ReplyOptions options = {.calls = calls, .split_reasoning = split};
    Said whole, bytewise;
    say(chats[which], &options, text, len - 1, len, &whole);
    say(chats[which], &options, text, len - 1, 1, &bytewise);
    for (int i = 0; i < 3; i++)
        ASSERT(same_text(&whole.parts[i], &bytewise.parts[i]), "part %d is '%s' or '%s'", i, str_text(&whole.parts[i]), str_text(&bytewise.parts[i]));
    ASSERT(calls || whole.n_calls == 0, "%zu calls", whole.n_calls);
    ASSERT(split || whole.parts[REPLY_REASONING].len == 0, "reasoning '%s'", str_text(&whole.parts[REPLY_REASONING]));
    if (!calls && !split) ASSERT(whole.parts[0].len == len - 1 && memcmp(str_text(&whole.parts[0]), text, len - 1) == 0, "the text changed");
    said_release(&whole);
    said_release(&bytewise);
    return 0;
}
