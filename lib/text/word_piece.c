/* SPDX-License-Identifier: Apache-2.0 */
/* WordPiece: takes the longest token at the beginning of a word, then the longest that continues it, written with a prefix such as "##", and so
 * on. A word that cannot be covered is one unknown token. */
#include <stdlib.h>
#include <string.h>

#include "lib/text/tokenizer_parts.h"

static bool longer_than(const char *word, size_t len, size_t max_chars) {
    if (len <= max_chars) return false;
    size_t chars = 0;
    for (size_t i = 0; i < len; i++) chars += ((uint8_t)word[i] & 0xC0) != 0x80;
    return chars > max_chars;
}

/* End of the longest token that begins at `start`, at the word's beginning or inside it; 0 when there is none. */
static size_t longest_token(const TokenModel *model, const char *word, size_t len, size_t start, int32_t *id) {
    const Trie *trie = &model->trie;
    uint32_t node = start > 0 ? model->inner : 0;
    size_t end = 0;
    if (start > 0 && node == 0 && model->prefix.len > 0) return 0; /* no token begins with the prefix */
    for (size_t i = start; i < len && (node = trie_step(trie, node, (uint8_t)word[i])) != 0; i++) {
        if (trie->ids[node] < 0) continue;
        *id = trie->ids[node];
        end = i + 1;
    }
    return end;
}

Status word_piece_tokenize(const Tokenizer *tokenizer, Encoder *encoder, const char *word, size_t len, size_t *n) {
    const TokenModel *model = &tokenizer->model;
    if (longer_than(word, len, model->max_chars)) return word_is_unknown(model, encoder, word, len, n);
    *n = 0;
    for (size_t start = 0, end; start < len; start = end) {
        int32_t id = -1;
        end = longest_token(model, word, len, start, &id);
        if (end == 0) return word_is_unknown(model, encoder, word, len, n);
        TRY(array_grow(&encoder->tokens, &encoder->tokens_cap, *n + 1, sizeof *encoder->tokens, "tokens"));
        encoder->tokens[(*n)++] = (WordToken){id, (uint32_t)start, (uint32_t)end};
    }
    return ST_OK;
}

static Status trie_read(Loader *loader, TokenModel *model, json_t *vocab) {
    size_t n = 0;
    TrieEntry *entries = malloc((json_object_size(vocab) + 1) * sizeof *entries);
    if (!entries) return status_fail(ST_RESOURCE, "no memory for the vocabulary of '%s'", loader->path);
    const char *token;
    json_t *id;
    json_object_foreach(vocab, token, id) entries[n++] = (TrieEntry){{token, strlen(token)}, (int32_t)json_integer_value(id)};
    Status status = trie_init(loader, &model->trie, entries, n);
    free(entries);
    return status;
}

Status word_piece_init(Loader *loader, TokenModel *model, const json_t *node) {
    int64_t max_chars = 100;
    TRY(json_get_int(node, loader->path, "max_input_chars_per_word", &max_chars));
    if (max_chars < 0) return status_fail(ST_INPUT, "wrong 'max_input_chars_per_word' in '%s': %lld", loader->path, (long long)max_chars);
    model->max_chars = (size_t)max_chars;
    TRY(affix_read(loader, node, "continuing_subword_prefix", &model->prefix));
    TRY(trie_read(loader, model, json_object_get(node, "vocab")));
    model->inner = trie_walk(&model->trie, 0, model->prefix.data, model->prefix.len);
    return ST_OK;
}
