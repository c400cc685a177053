/* SPDX-License-Identifier: Apache-2.0 */
/* Answers taken apart while they come. What could be the beginning of a mark is held back, and so are blanks that a call would follow. */
#include "lib/base/memory.h"
#include "lib/text/tool_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- syntaxes ---- */

struct ToolSyntax {
    const char *name;
    const char *signs[2]; /* the template has one of these and, if it is given, the other one */
    const char *open;     /* begins a call; NULL: the whole answer is one, if it is JSON */
    const char *close;    /* ends it; NULL: the next `open`, or the end of the answer */
    bool harmony;         /* messages with headers, each in a channel */
    CallReader *read;
    const ToolJson *json; /* NULL: arguments are not JSON */
};
static const ToolJson json_apriel = {"<tool_calls>[{\"name\": \"", "\", \"arguments\": ", "}]</tool_calls>", NULL};
static const ToolJson json_hermes = {"\1<tool_call>\1\n{\"name\": \"", "\", \"arguments\": ", "}\n\1</tool_call>\1", "\n"},
                      json_mistral = {"\1[TOOL_CALLS]\1", "\1[ARGS]\1", "", ""}, json_llama = {"{\"name\": \"", "\", \"parameters\": ", "}", NULL},
                      json_harmony = {"\1<|channel|>\1commentary to=functions.", " \1<|constrain|>\1json\1<|message|>\1", "", NULL};
/* In the order in which they are tried: marks of later ones are also in templates of earlier ones. */
static const ToolSyntax syntaxes[] = {
    {"harmony", {"<|channel|>", "<|message|>"}, NULL, NULL, true, calls_of_json, &json_harmony},
    {"gemma", {"<|tool_call>", "<tool_call|>"}, "<|tool_call>", "<tool_call|>", false, calls_of_gemma, NULL},
    {"mistral", {"[TOOL_CALLS]", "[ARGS]"}, "[TOOL_CALLS]", NULL, false, calls_of_mistral, &json_mistral},
    {"mistral-list", {"[TOOL_CALLS]", NULL}, "[TOOL_CALLS]", NULL, false, calls_of_mistral, NULL},
    {"lfm2", {"List of tools: ", "<|im_start|>"}, "<|tool_call_start|>", "<|tool_call_end|>", false, calls_of_python, NULL},
    {"seed", {"<seed:tool_call>", "<function="}, "<seed:tool_call>", "</seed:tool_call>", false, calls_of_xml, NULL},
    {"glm", {"<tool_call>", "<arg_key>"}, "<tool_call>", "</tool_call>", false, calls_of_glm, NULL},
    {"xml", {"<tool_call>", "<parameter="}, "<tool_call>", "</tool_call>", false, calls_of_xml, NULL},
    {"apriel", {"<tool_calls>", NULL}, "<tool_calls>", "</tool_calls>", false, calls_of_json, &json_apriel},
    {"hermes", {"<tool_call>", "</tool_call>"}, "<tool_call>", "</tool_call>", false, calls_of_json, &json_hermes},
    {"llama", {"'{\"name\": \"'", "\"parameters\": "}, "<|python_tag|>", NULL, false, calls_of_python, &json_llama},
};
static const struct {
    const char *open, *close;
} thoughts[] = {{"<|channel>thought", "<channel|>"}, {"[THINK]", "[/THINK]"}, {"<seed:think>", "</seed:think>"}, {"<think>", "</think>"}};

static bool template_has(const ChatTemplate *chat, const char *text) {
    for (int with_tools = 0; with_tools < 2; with_tools++) {
        Slice source = chat_template_source(chat, with_tools);
        if (body_find(source, 0, text) < source.len) return true;
    }
    return false;
}

const ToolSyntax *tool_syntax_of(const ChatTemplate *chat) {
    for (size_t i = 0; chat && i < COUNT_OF(syntaxes); i++)
        if (template_has(chat, syntaxes[i].signs[0]) && (!syntaxes[i].signs[1] || template_has(chat, syntaxes[i].signs[1]))) return &syntaxes[i];
    return NULL;
}

const char *tool_syntax_name(const ToolSyntax *syntax) { return syntax->name; }

const ToolJson *tool_syntax_json(const ToolSyntax *syntax) { return syntax->json; }

/* ---- a reply ---- */

/* IN_HEADER: of a message of harmony. */
typedef enum Mode { IN_TEXT, IN_THOUGHT, IN_CALL, IN_HEADER } Mode;
struct Reply {
    const ToolSyntax *syntax; /* NULL: calls are text */
    const char *think_open, *think_close;
    const json_t *tools;
    bool calls, split;
    bool whole; /* the answer may be a call as a whole (Llama 3) */
    Mode mode, before_call;
    bool begins;  /* blanks at the beginning of the part are left out */
    Str held;     /* not handed out yet */
    size_t tried; /* IN_CALL: where the search for the end goes on */
    Str function; /* IN_CALL of harmony: its name */
    size_t n_calls;
    OnReply *on_reply;
    void *context;
};

static Status reply_hand_out(Reply *r, ReplyKind kind, size_t len) {
    Slice text = {str_text(&r->held), len};
    if (text.len == 0) return ST_OK;
    r->begins = false;
    ReplyPiece piece = {.kind = kind, .text = text};
    return r->on_reply(r->context, &piece);
}

static void reply_drop(Reply *r, size_t len) {
    if (len == 0) return;
    memmove(r->held.data, r->held.data + len, r->held.len - len + 1);
    r->held.len -= len;
    r->tried = 0;
}

static Status reply_give(Reply *r, ReplyKind kind, size_t len) {
    TRY(reply_hand_out(r, kind, len));
    reply_drop(r, len);
    return ST_OK;
}

/* Length without the blanks and line ends at the end. */
static size_t without_blanks(const Str *text, size_t len) {
    while (len > 0 && strchr(" \n\r\t", text->data[len - 1]) && text->data[len - 1]) len--;
    return len;
}

/* Bytes in which none of the marks can still begin. */
static size_t settled_before(const Str *text, const char *const *marks, size_t n) {
    size_t keep = text->len;
    for (size_t i = 0; i < n; i++) {
        size_t len = marks[i] ? strlen(marks[i]) : 0;
        for (size_t k = MIN(len, text->len); k > 0; k--)
            if (memcmp(text->data + text->len - k, marks[i], k) == 0) {
                keep = MIN(keep, text->len - k);
                break;
            }
    }
    return keep;
}

/* The first of the marks; *which: its index. Returns the text's length if there is none. */
static size_t first_mark(const Str *text, const char *const *marks, size_t n, size_t *which) {
    size_t first = text->len;
    for (size_t i = 0; i < n; i++) {
        size_t at = marks[i] ? body_find((Slice){str_text(text), text->len}, 0, marks[i]) : text->len;
        if (at < first) first = at, *which = i;
    }
    return first;
}

static void skip_beginning(Reply *r) {
    size_t n = 0;
    while (r->begins && n < r->held.len && strchr(" \n\r\t", r->held.data[n]) && r->held.data[n]) n++;
    reply_drop(r, n);
}

/* ---- calls ---- */

static Status reply_calls(Reply *r, const Calls *calls) {
    for (size_t i = 0; i < calls->n; i++) {
        const Call *call = &calls->items[i];
        ReplyPiece piece = {.kind = REPLY_CALL,
                            .name = {str_text(&call->name), call->name.len},
                            .arguments = {str_text(&call->arguments), call->arguments.len},
                            .call = r->n_calls++};
        TRY(r->on_reply(r->context, &piece));
    }
    return ST_OK;
}

/* Names of arguments in tags could be such as JSON does not allow. */
static bool arguments_whole(const Calls *calls) {
    bool whole = true;
    for (size_t i = 0; i < calls->n && whole; i++) {
        json_t *json = json_of_text(str_text(&calls->items[i].arguments), calls->items[i].arguments.len, JSON_ALLOW_NUL);
        whole = json_is_object(json);
        json_decref(json);
    }
    return whole;
}

/* Hands out the calls of a body, which ends at `end` of the text held; `after`: where the text goes on. *fits: it is in the syntax. */
static Status read_body(Reply *r, size_t end, size_t after, bool *fits) {
    size_t begin = r->function.len || r->whole ? 0 : strlen(r->syntax->open);
    Calls calls = {0};
    Slice body = {str_text(&r->held) + begin, end - begin};
    if (r->function.len) { /* of harmony: the body has the arguments alone */
        body = body_trim(body);
        Str *out = calls_add(&calls, (Slice){str_text(&r->function), r->function.len});
        if (out) str_append_n(out, body.data, body.len);
    }
    *fits = (r->function.len || r->syntax->read(body, r->tools, &calls)) && arguments_whole(&calls);
    Status status = memory_check(ST_OK);
    if (status == ST_OK && *fits) {
        status = reply_calls(r, &calls);
        reply_drop(r, after);
        r->begins = true;
    }
    calls_release(&calls);
    return status;
}

/* ---- harmony ---- */

static const char *const ends_of_message[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>"};

/* The header of a message says its channel, and the function that it calls. */
static void read_header(Reply *r, size_t end) {
    static const char to[] = "to=functions.";
    Slice header = {str_text(&r->held), end};
    size_t name = body_find(header, 0, to) + strlen(to), last = name;
    bool analysis = body_find(header, 0, "analysis") < header.len;
    while (last < header.len && !strchr(" <", header.data[last])) last++;
    str_clear(&r->function);
    if (r->calls && name < header.len) str_append_n(&r->function, header.data + name, last - name);
    r->mode = r->function.len ? IN_CALL : analysis && r->split ? IN_THOUGHT : IN_TEXT;
    r->before_call = IN_TEXT;
    reply_drop(r, end + strlen("<|message|>"));
}

static Status advance_harmony(Reply *r, bool last, bool *more) {
    size_t which = 0;
    *more = false;
    if (r->mode == IN_HEADER) {
        size_t end = body_find((Slice){str_text(&r->held), r->held.len}, 0, "<|message|>");
        *more = end < r->held.len;
        if (*more) read_header(r, end);
        if (*more || !last) return ST_OK;
        r->mode = IN_TEXT; /* an answer without headers */
    }
    size_t end = first_mark(&r->held, ends_of_message, COUNT_OF(ends_of_message), &which);
    bool found = end < r->held.len;
    ReplyKind kind = r->mode == IN_THOUGHT ? REPLY_REASONING : REPLY_TEXT;
    if (r->mode == IN_CALL) {
        bool fits;
        if (!found && !last) return ST_OK;
        TRY(read_body(r, end, end, &fits));
        if (!fits) TRY(reply_give(r, REPLY_TEXT, end));
    } else {
        TRY(reply_give(r, kind, found || last ? end : settled_before(&r->held, ends_of_message, COUNT_OF(ends_of_message))));
    }
    if (!found) return ST_OK;
    reply_drop(r, strlen(ends_of_message[which]));
    r->mode = IN_HEADER;
    *more = true;
    return ST_OK;
}

/* ---- other syntaxes ---- */

/* Text or reasoning up to the next mark. */
static Status advance_text(Reply *r, bool last, bool *more) {
    bool thought = r->mode == IN_THOUGHT;
    const char *marks[] = {r->calls ? r->syntax->open : NULL, thought ? r->think_close : r->split ? r->think_open : NULL};
    ReplyKind kind = thought ? REPLY_REASONING : REPLY_TEXT;
    size_t which = 0, at = first_mark(&r->held, marks, COUNT_OF(marks), &which);
    *more = at < r->held.len;
    if (!*more) {
        size_t end = settled_before(&r->held, marks, COUNT_OF(marks));
        bool cut = marks[0] || marks[1]; /* a mark may follow blanks */
        return reply_give(r, kind, last ? r->held.len : cut ? without_blanks(&r->held, end) : end);
    }
    TRY(reply_hand_out(r, kind, without_blanks(&r->held, at)));
    reply_drop(r, at);
    r->tried = 0;
    if (which == 0) { /* its mark stays, for a call that turns out to be text */
        r->before_call = r->mode;
        r->mode = IN_CALL;
        r->tried = strlen(marks[0]);
    } else {
        reply_drop(r, strlen(marks[1]));
        r->mode = thought ? IN_TEXT : IN_THOUGHT;
        r->begins = true;
    }
    return ST_OK;
}

/* A call, whose mark is held too. The text of its end may also be in one of its arguments, so each end is tried. */
static Status advance_call(Reply *r, bool last, bool *more) {
    const ToolSyntax *syntax = r->syntax;
    const char *end_mark = syntax->close ? syntax->close : syntax->open;
    Slice held = {str_text(&r->held), r->held.len};
    bool fits = false;
    *more = false;
    for (size_t end; !r->whole && !fits && (end = body_find(held, r->tried, end_mark)) < held.len;) {
        TRY(read_body(r, end, end + (syntax->close ? strlen(end_mark) : 0), &fits));
        if (!fits) r->tried = end + strlen(end_mark);
    }
    if (!fits && !last) {
        size_t tail = strlen(end_mark);
        r->tried = MAX(r->tried, held.len > tail ? held.len - tail : 0);
        return ST_OK;
    }
    if (!fits) TRY(read_body(r, held.len, held.len, &fits));
    r->mode = r->before_call == IN_THOUGHT && !fits ? IN_THOUGHT : IN_TEXT;
    if (!fits) return reply_give(r, r->mode == IN_THOUGHT ? REPLY_REASONING : REPLY_TEXT, r->held.len);
    r->whole = false;
    *more = r->held.len > 0;
    return ST_OK;
}

static Status reply_advance(Reply *r, bool last, bool *more) {
    if (r->syntax && r->syntax->harmony && (r->calls || r->split)) return advance_harmony(r, last, more);
    skip_beginning(r);
    if (r->mode == IN_CALL) return advance_call(r, last, more);
    return advance_text(r, last, more);
}

static Status reply_run(Reply *r, bool last, OnReply *on_reply, void *context) {
    r->on_reply = on_reply;
    r->context = context;
    TRY(memory_check(ST_OK));
    for (bool more = true; more && (r->held.len > 0 || last);) TRY(reply_advance(r, last, &more));
    return ST_OK;
}

Status reply_push(Reply *r, const char *text, size_t len, OnReply *on_reply, void *context) {
    str_append_n(&r->held, text, len);
    if (r->whole && r->mode == IN_TEXT) { /* only a brace begins a call */
        size_t n = 0;
        while (n < r->held.len && strchr(" \n\r\t", r->held.data[n]) && r->held.data[n]) n++;
        if (n == r->held.len) return memory_check(ST_OK);
        r->whole = r->held.data[n] == '{';
        if (r->whole) r->mode = IN_CALL;
    }
    return reply_run(r, false, on_reply, context);
}

Status reply_finish(Reply *r, OnReply *on_reply, void *context) { return reply_run(r, true, on_reply, context); }

/* ---- life ---- */

/* Whether the last `open` in the prompt has no `close` after it. */
static bool is_open(Slice prompt, const char *open, const char *close) {
    size_t last = prompt.len;
    for (size_t at = 0; (at = body_find(prompt, at, open)) < prompt.len; at += strlen(open)) last = at;
    return last < prompt.len && body_find(prompt, last, close) == prompt.len;
}

Status reply_new(const ChatTemplate *chat, const ReplyOptions *options, Reply **reply) {
    Reply *r = calloc(1, sizeof *r);
    *reply = r;
    if (!r) return status_fail(ST_RESOURCE, "out of memory for an answer");
    r->syntax = tool_syntax_of(chat);
    r->calls = options->calls && r->syntax;
    for (size_t i = 0; chat && !r->think_open && i < COUNT_OF(thoughts); i++)
        if (template_has(chat, thoughts[i].open) || template_has(chat, thoughts[i].close)) {
            r->think_open = thoughts[i].open;
            r->think_close = thoughts[i].close;
        }
    bool harmony = r->syntax && r->syntax->harmony;
    r->split = options->split_reasoning && (r->think_open || harmony);
    r->tools = options->tools;
    r->whole = r->calls && r->syntax->read == calls_of_python && r->syntax->json;
    r->mode = IN_TEXT;
    Slice prompt = options->prompt.data ? options->prompt : (Slice){"", 0};
    if (harmony) {
        r->mode = IN_HEADER;
    } else if (r->split && is_open(prompt, r->think_open, r->think_close)) {
        r->mode = IN_THOUGHT;
        r->begins = true;
    }
    return ST_OK;
}

void reply_free(Reply *r) {
    if (!r) return;
    str_release(&r->held);
    str_release(&r->function);
    free(r);
}
