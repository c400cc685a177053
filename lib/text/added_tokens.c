/* Added tokens cut the text before anything else: the leftmost, and there the longest, wins. */
#include <stdlib.h>
#include <string.h>

#include "lib/text/tokenizer_parts.h"

static void push(AddedMatches *matches, size_t begin, size_t end, int32_t id) {
    if (begin >= end) return;
    if (matches->n == matches->cap) {
        size_t cap = matches->cap ? matches->cap * 2 : 16;
        AddedMatch *grown = realloc(matches->items, cap * sizeof *grown);
        ASSERT(grown, "out of memory for %zu added tokens", cap);
        matches->items = grown;
        matches->cap = cap;
    }
    matches->items[matches->n++] = (AddedMatch){{begin, end}, id};
}

/* Start of the character that ends before `at`. */
static size_t char_before(const char *text, size_t begin, size_t at) {
    do at--;
    while (at > begin && ((uint8_t)text[at] & 0xc0) == 0x80);
    return at;
}

static bool word_before(const char *text, size_t begin, size_t at) {
    uint32_t c;
    if (at == begin) return false;
    size_t start = char_before(text, begin, at);
    return utf8_decode(text + start, at - start, &c) && is_word_char(c);
}

static bool word_at(const char *text, size_t at, size_t end) {
    uint32_t c;
    return at < end && utf8_decode(text + at, end - at, &c) && is_word_char(c);
}

static size_t spaces_before(const char *text, size_t begin, size_t at) {
    uint32_t c;
    while (at > begin) {
        size_t start = char_before(text, begin, at);
        if (!utf8_decode(text + start, at - start, &c) || !is_white_space(c)) break;
        at = start;
    }
    return at;
}

static size_t spaces_behind(const char *text, size_t at, size_t end) {
    uint32_t c;
    size_t n;
    while (at < end && (n = utf8_decode(text + at, end - at, &c)) && is_white_space(c)) at += n;
    return at;
}

static const AddedToken *token_at(const AddedTokens *added, bool normalized, const char *text, size_t at, size_t end) {
    const AddedToken *longest = NULL;
    for (size_t i = 0; i < added->n; i++) {
        const AddedToken *token = &added->items[i];
        if (token->normalized != normalized || token->len == 0 || token->len > end - at || memcmp(text + at, token->content, token->len) != 0) continue;
        if (!longest || token->len > longest->len) longest = token;
    }
    return longest;
}

void added_tokens_split(const AddedTokens *added, bool normalized, bool literal, const char *text, Range range, AddedMatches *matches) {
    size_t plain = range.begin;
    for (size_t at = range.begin; at < range.end;) {
        const AddedToken *token = added->starts[(uint8_t)text[at]] ? token_at(added, normalized, text, at, range.end) : NULL;
        if (!token) {
            at++;
            continue;
        }
        size_t begin = at, end = at + token->len;
        at = end;
        if (literal && token->special) continue;
        if (token->single_word && (word_before(text, range.begin, begin) || word_at(text, end, range.end))) continue;
        if (token->lstrip) begin = MAX(plain, spaces_before(text, range.begin, begin));
        if (token->rstrip) at = end = spaces_behind(text, end, range.end);
        push(matches, plain, begin, -1);
        push(matches, begin, end, token->id);
        plain = end;
    }
    push(matches, plain, range.end, -1);
}
