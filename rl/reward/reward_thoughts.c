/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the thoughts in a completion. */
#include "rl/reward/reward_kinds.h"

#include <string.h>

static const struct {
    const char *open, *close;
} tags[] = {
    {"<think>", "</think>"},         {"<thinking>", "</thinking>"}, {"<thought>", "</thought>"},       {"<thoughts>", "</thoughts>"},
    {"<reasoning>", "</reasoning>"}, {"[THINK]", "[/THINK]"},       {"<seed:think>", "</seed:think>"}, {"<|begin_of_thought|>", "<|end_of_thought|>"},
};

static bool at_tag(const char *at, const char *end, const char *tag) {
    size_t len = strlen(tag);
    return (size_t)(end - at) >= len && memcmp(at, tag, len) == 0;
}

/* Index of the opening or closing tag at `at`; -1: none. */
static int tag_at(const char *at, const char *end, bool *opens) {
    if (*at != '<' && *at != '[') return -1;
    for (size_t i = 0; i < COUNT_OF(tags); i++) {
        *opens = at_tag(at, end, tags[i].open);
        if (*opens || at_tag(at, end, tags[i].close)) return (int)i;
    }
    return -1;
}

/* Whether the chat template has opened the thoughts in the prompt, as those of DeepSeek-R1 and of Qwen's thinking models do. */
static int open_in_prompt(const RewardRow *row) {
    Slice prompt = slice_trim(row->prompt);
    for (size_t i = 0; i < COUNT_OF(tags); i++) {
        size_t len = strlen(tags[i].open);
        if (prompt.len >= len && memcmp(prompt.data + prompt.len - len, tags[i].open, len) == 0) return (int)i;
    }
    return -1;
}

Slice reward_completion_text(const RewardRow *row, Str *room) {
    Slice text = row->completion;
    const char *end = text.data + text.len, *kept = text.data;
    int thinking = open_in_prompt(row);
    bool cut = thinking >= 0, opens;
    str_clear(room);
    for (const char *at = text.data; at < end; at++) {
        int tag = tag_at(at, end, &opens);
        if (tag < 0 || (thinking >= 0 && (opens || tag != thinking))) continue;
        if (opens) str_append_n(room, kept, (size_t)(at - kept));
        if (!opens && thinking < 0) str_clear(room); /* the thoughts began at the start of the completion */
        thinking = opens ? tag : -1;
        kept = at + strlen(opens ? tags[tag].open : tags[tag].close);
        at = kept - 1;
        cut = true;
    }
    if (!cut) return text;
    if (thinking < 0) str_append_n(room, kept, (size_t)(end - kept));
    return (Slice){str_text(room), room->len};
}
