/* SPDX-License-Identifier: Apache-2.0 */
/* Converts a piece of text to ids: the kinds of models, and the cache of words that is checked first. */
#include <stdlib.h>
#include <string.h>

#include "lib/text/tokenizer_parts.h"

enum { CACHED_WORD = 64, CACHE_WORDS = 1 << 17, CACHE_KEYS = 1 << 19, CACHE_TOKENS = 1 << 18 };

/* ---- words that are one token ---- */

Status word_is_token(Encoder *encoder, int32_t id, size_t len, size_t *n) {
    TRY(array_grow(&encoder->tokens, &encoder->tokens_cap, 1, sizeof *encoder->tokens, "tokens"));
    encoder->tokens[0] = (WordToken){id, 0, (uint32_t)len};
    *n = 1;
    return ST_OK;
}

Status word_is_unknown(const TokenModel *model, Encoder *encoder, const char *word, size_t len, size_t *n) {
    if (model->unk >= 0) return word_is_token(encoder, model->unk, len, n);
    int shown = (int)MIN(len, (size_t)40);
    if (model->unk_missing)
        return status_fail(ST_INPUT, "'%.*s' is not known, and 'unk_token' '%s' is not in the vocabulary", shown, word, model->unk_missing);
    return status_fail(ST_INPUT, "'%.*s' is not in the vocabulary, which has no 'unk_token'", shown, word);
}

static Status word_level_tokenize(const Tokenizer *tokenizer, Encoder *encoder, const char *word, size_t len, size_t *n) {
    int32_t id = vocabulary_find_own(&tokenizer->vocabulary, word, len);
    return id >= 0 ? word_is_token(encoder, id, len, n) : word_is_unknown(&tokenizer->model, encoder, word, len, n);
}

/* ---- kinds ---- */

typedef Status ModelInit(Loader *loader, TokenModel *model, const json_t *node);
typedef Status WordTokenize(const Tokenizer *tokenizer, Encoder *encoder, const char *word, size_t len, size_t *n);
static const struct {
    const char *name;
    ModelInit *init;
    WordTokenize *tokenize;
} kinds[] = {
    [MODEL_BPE] = {"BPE", bpe_init, bpe_tokenize},
    [MODEL_UNIGRAM] = {"Unigram", unigram_init, unigram_tokenize},
    [MODEL_WORD_PIECE] = {"WordPiece", word_piece_init, word_piece_tokenize},
    [MODEL_WORD_LEVEL] = {"WordLevel", NULL, word_level_tokenize},
};

/* ---- the cache: earlier results for words ---- */

static bool cache_init(WordCache *cache) {
    cache->words = calloc(CACHE_WORDS, sizeof *cache->words);
    cache->keys = malloc(CACHE_KEYS);
    cache->tokens = malloc(CACHE_TOKENS * sizeof *cache->tokens);
    if (cache->words && cache->keys && cache->tokens) return true;
    cache_release(cache);
    return false;
}

void cache_release(WordCache *cache) {
    free(cache->words);
    free(cache->keys);
    free(cache->tokens);
    *cache = (WordCache){0};
}

/* The entry of the word, or the free entry for it (len 0). */
static CachedWord *cache_slot(const WordCache *cache, uint64_t hash, const char *word, size_t len) {
    size_t slot = hash & (CACHE_WORDS - 1);
    for (;; slot = (slot + 1) & (CACHE_WORDS - 1)) {
        CachedWord *entry = &cache->words[slot];
        if (entry->len == 0 || (entry->hash == hash && entry->len == len && memcmp(cache->keys + entry->key, word, len) == 0)) return entry;
    }
}

/* A full cache is emptied: frequent words return at once. */
static void cache_put(WordCache *cache, CachedWord *entry, uint64_t hash, const char *word, size_t len, const WordToken *tokens, size_t n) {
    if (cache->n_words >= CACHE_WORDS / 2 || CACHE_KEYS - cache->n_keys < len || CACHE_TOKENS - cache->n_tokens < n) {
        memset(cache->words, 0, CACHE_WORDS * sizeof *cache->words);
        cache->n_words = cache->n_keys = cache->n_tokens = 0;
        entry = cache_slot(cache, hash, word, len);
    }
    *entry = (CachedWord){hash, (uint32_t)cache->n_keys, (uint32_t)len, (uint32_t)cache->n_tokens, (uint32_t)n};
    memcpy(cache->keys + cache->n_keys, word, len);
    if (n > 0) memcpy(cache->tokens + cache->n_tokens, tokens, n * sizeof *tokens);
    cache->n_keys += len;
    cache->n_tokens += n;
    cache->n_words++;
}

Status model_tokenize(const Tokenizer *tokenizer, Encoder *encoder, const char *word, size_t len, const WordToken **tokens, size_t *n) {
    WordCache *cache = &encoder->cache;
    bool cached = len <= CACHED_WORD && (cache->words || cache_init(cache));
    uint64_t hash = 0;
    CachedWord *entry = NULL;
    if (cached) {
        hash = bytes_hash(word, len);
        entry = cache_slot(cache, hash, word, len);
        if (entry->len > 0) {
            *tokens = cache->tokens + entry->first;
            *n = entry->n;
            return ST_OK;
        }
    }
    TRY(kinds[tokenizer->model.kind].tokenize(tokenizer, encoder, word, len, n));
    *tokens = encoder->tokens;
    if (cached) cache_put(cache, entry, hash, word, len, *tokens, *n);
    return ST_OK;
}

/* ---- loading ---- */

Status affix_read(Loader *loader, const json_t *node, const char *key, Slice *affix) {
    const char *text = "";
    TRY(json_get_string(node, loader->path, key, &text));
    affix->data = arena_strdup(loader->arena, text);
    affix->len = strlen(text);
    return affix->data ? ST_OK : ST_RESOURCE;
}

static Status unk_read(Loader *loader, TokenModel *model, const json_t *node) {
    const char *text = NULL;
    model->unk = -1;
    TRY(json_get_string(node, loader->path, "unk_token", &text));
    if (!text) return ST_OK;
    model->unk = vocabulary_find(&loader->tokenizer->vocabulary, text, strlen(text));
    if (model->unk < 0 && !(model->unk_missing = arena_strdup(loader->arena, text))) return ST_RESOURCE;
    return ST_OK;
}

/* Files from before 2021 have no type, but each kind has members that no other kind has. */
static const char *type_guess(const json_t *node) {
    if (json_object_get(node, "merges")) return "BPE";
    if (json_object_get(node, "continuing_subword_prefix")) return "WordPiece";
    return json_is_array(json_object_get(node, "vocab")) ? "Unigram" : NULL;
}

Status model_check(Loader *loader, TokenModel *model, const json_t *node) {
    const char *type = NULL;
    TRY(json_get_string(node, loader->path, "type", &type));
    if (!type) type = type_guess(node);
    if (!type) return status_fail(ST_INPUT, "the model in '%s' has no 'type'", loader->path);
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if (strcmp(kinds[i].name, type) != 0) continue;
        model->kind = (ModelKind)i;
        return ST_OK;
    }
    return part_unknown(loader, "model", type);
}

Status model_init(Loader *loader, TokenModel *model, const json_t *node) {
    TRY(unk_read(loader, model, node));
    return kinds[model->kind].init ? kinds[model->kind].init(loader, model, node) : ST_OK;
}
