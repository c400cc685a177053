/* SPDX-License-Identifier: Apache-2.0 */
/* Answers to a prompt that starts a thought: many templates end the prompt with "<think>", or with an empty thought if the model is not to think, and
 * render the finished answer without it. In use the model continues such a prompt, so training puts the answer after it, too. */
#include "data/formats/conversation.h"

#include <string.h>

typedef struct Thought {
    const char *open, *close, *before, *after;
} Thought;
static const Thought thoughts[] = {
#define THOUGHT(...) {__VA_ARGS__},
#include "data/formats/thoughts.def"
#undef THOUGHT
};

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

static Slice trim(Slice text) {
    while (text.len > 0 && is_space(text.data[0])) text.data++, text.len--;
    while (text.len > 0 && is_space(text.data[text.len - 1])) text.len--;
    return text;
}

static bool ends_with(Slice text, const char *end) {
    Slice wanted = trim((Slice){end, strlen(end)});
    return text.len >= wanted.len && memcmp(text.data + text.len - wanted.len, wanted.data, wanted.len) == 0;
}

static bool begins_with(Slice text, const char *begin) {
    Slice wanted = trim((Slice){begin, strlen(begin)});
    return text.len >= wanted.len && memcmp(text.data, wanted.data, wanted.len) == 0;
}

static const char *thoughts_find(Slice text, const char *word) { return text.len ? memmem(text.data, text.len, word, strlen(word)) : NULL; }

/* The thought at the end of the prompt, and whether it is ended. NULL: none. */
static const Thought *thought_of(const Str *prompt, bool *ended) {
    Slice text = trim((Slice){prompt->data, prompt->len});
    for (size_t i = 0; i < COUNT_OF(thoughts); i++) {
        *ended = ends_with(text, thoughts[i].close);
        if (*ended || ends_with(text, thoughts[i].open)) return &thoughts[i];
    }
    return NULL;
}

/* `at`, or the start of the prompt's last `mark` that extends over it: a "<" alone is no common part of both texts. */
static size_t before_mark(const Str *prompt, size_t at, const char *mark) {
    size_t len = strlen(mark);
    for (size_t begin = prompt->len; begin-- > 0;)
        if (begin + len <= prompt->len && memcmp(prompt->data + begin, mark, len) == 0) return begin < at && at < begin + len ? begin : at;
    return at;
}

/* The message's own thought, from its content or its reasoning. Empty: none. */
static Slice own_thought(const json_t *message, const Thought *kind) {
    const char *content = json_string_value(json_object_get(message, "content"));
    const char *reasoning = json_string_value(json_object_get(message, "reasoning_content"));
    Slice text = {content ? content : "", content ? strlen(content) : 0};
    const char *close = thoughts_find(text, kind->close);
    if (!close) return reasoning ? trim((Slice){reasoning, strlen(reasoning)}) : (Slice){"", 0};
    text = trim((Slice){text.data, (size_t)(close - text.data)});
    if (begins_with(text, kind->open)) {
        size_t n = trim((Slice){kind->open, strlen(kind->open)}).len;
        text = trim((Slice){text.data + n, text.len - n});
    }
    return text;
}

/* The length of the longest suffix of `asked` that is a prefix of the answer: text that the template writes in both. */
static size_t overlap(Slice asked, Slice answer) {
    for (size_t n = MIN(asked.len, answer.len); n > 0; n--)
        if (memcmp(asked.data + asked.len - n, answer.data, n) == 0) return n;
    return 0;
}

/* Appends the answer that continues a started thought. If the template leaves the thought out, the row's thought is added. */
static void finish_thought(const Thought *kind, const json_t *message, Slice answer, Str *text) {
    if (!thoughts_find(answer, kind->close)) {
        Slice thought = own_thought(message, kind);
        str_append_n(text, thought.data, thought.len);
        str_printf(text, "%s%s", kind->before, kind->close);
        if (answer.len > 0 && !is_space(answer.data[0])) str_append(text, kind->after);
    }
    str_append_n(text, answer.data, answer.len);
}

static Status unwanted_thought(size_t number) {
    status_fail(ST_INPUT, "the chat template asks for an answer without a thought, but message %zu has one", number);
    return status_hint(ST_INPUT, "let it ask for one with the template's own variable, such as data.template_kwargs: {enable_thinking: true}, or "
                                 "chat_template_kwargs in the row; or remove the thought");
}

Status answer_after_thought(const Chat *chat, const json_t *messages, const Str *prompt, const Str *whole, Str *text, size_t *end) {
    size_t same = 0, number = json_array_size(messages), turn;
    const json_t *message = json_array_get(messages, number - 1);
    bool ended;
    const Thought *kind = thought_of(prompt, &ended);
    *end = 0;
    if (!kind) return ST_OK;
    while (same < prompt->len && same < whole->len && prompt->data[same] == whole->data[same]) same++;
    same = before_mark(prompt, before_mark(prompt, same, kind->open), kind->close);
    turn = turn_end(chat, whole, same);
    Slice asked = {prompt->data + same, prompt->len - same}, answer = {whole->data + same, turn - same};
    if (ended && own_thought(message, kind).len > 0) return unwanted_thought(number);
    str_append_n(text, prompt->data, prompt->len);
    if (ended) {
        size_t twice = overlap(asked, answer);
        str_append_n(text, answer.data + twice, answer.len - twice);
    } else {
        finish_thought(kind, message, answer, text);
    }
    *end = text->len;
    str_append_n(text, whole->data + turn, whole->len - turn);
    return ST_OK;
}
