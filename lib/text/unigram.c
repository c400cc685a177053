/* SPDX-License-Identifier: Apache-2.0 */
/* Unigram: of all segmentations of a word into tokens, finds the one with the largest sum of log-probabilities (Kudo 2018, arXiv 1804.10959), by
 * Viterbi search over a trie. A character that is not a token costs more than any token; a run of them becomes one unknown token, or the tokens of
 * their bytes. */
#include <math.h>
#include <stdlib.h>

#include "lib/text/tokenizer_parts.h"

static const double UNKNOWN_PENALTY = 10; /* the value of SentencePiece */
enum { UNREACHED = -1 };

/* ---- the best path ---- */

static void path_offer(PathNode *node, double score, size_t start, int32_t id) {
    if (node->at == UINT32_MAX || score > node->score) *node = (PathNode){score, (uint32_t)start, id};
}

static Status best_path(const TokenModel *model, PathNode *path, const char *word, size_t len) {
    const Trie *trie = &model->trie;
    for (size_t i = 0; i <= len; i++) path[i] = (PathNode){0, UINT32_MAX, UNREACHED};
    for (size_t start = 0, used; start < len; start += used) {
        uint32_t c, node = 0;
        bool single = false;
        double score = path[start].score;
        used = char_next(word + start, &c);
        for (size_t i = start; i < len && (node = trie_step(trie, node, (uint8_t)word[i])) != 0; i++) {
            int32_t id = trie->ids[node];
            if (id < 0) continue;
            path_offer(&path[i + 1], model->scores[id] + score, start, id);
            single |= i + 1 == start + used;
        }
        if (single) continue;
        if (model->unk < 0) return status_fail(ST_INPUT, "'%.*s' is not in the vocabulary, which has no 'unk_id'", (int)used, word + start);
        path_offer(&path[start + used], model->unk_score + score, start, model->unk);
    }
    return ST_OK;
}

/* Reverses the path: links to the previous position become links to the next one. */
static void path_turn(PathNode *path, size_t len) {
    PathNode node = path[len];
    for (size_t end = len; end > 0;) {
        size_t start = node.at;
        PathNode before = path[start];
        path[start] = (PathNode){0, (uint32_t)end, node.id};
        node = before;
        end = start;
    }
}

/* ---- from the path to tokens ---- */

static void unknown_put(const TokenModel *model, WordToken *tokens, size_t *n, const char *word, size_t start, size_t end) {
    uint32_t node = trie_walk(&model->trie, 0, word + start, end - start);
    int32_t id = node ? model->trie.ids[node] : -1; /* the text may be a token nevertheless, as "<unk>" is */
    bool all = id < 0 && model->byte_fallback;
    for (size_t i = start; all && i < end; i++) all = model->fallback_ids[(uint8_t)word[i]] >= 0;
    if (!all) {
        tokens[(*n)++] = (WordToken){id >= 0 ? id : model->unk, (uint32_t)start, (uint32_t)end};
        return;
    }
    for (size_t i = start; i < end; i++) tokens[(*n)++] = (WordToken){model->fallback_ids[(uint8_t)word[i]], (uint32_t)i, (uint32_t)i + 1};
}

Status unigram_tokenize(const Tokenizer *tokenizer, Encoder *encoder, const char *word, size_t len, size_t *n) {
    const TokenModel *model = &tokenizer->model;
    TRY(array_grow(&encoder->path, &encoder->path_cap, len + 1, sizeof *encoder->path, "bytes of a text"));
    TRY(array_grow(&encoder->tokens, &encoder->tokens_cap, len, sizeof *encoder->tokens, "tokens"));
    PathNode *path = encoder->path;
    TRY(best_path(model, path, word, len));
    path_turn(path, len);
    *n = 0;
    for (size_t start = 0, end; start < len; start = end) {
        int32_t id = path[start].id;
        end = path[start].at;
        if (id == model->unk) {
            while (end < len && path[end].id == model->unk) end = path[end].at;
            unknown_put(model, encoder->tokens, n, word, start, end);
        } else {
            encoder->tokens[(*n)++] = (WordToken){id, (uint32_t)start, (uint32_t)end};
        }
    }
    return ST_OK;
}

/* ---- loading ---- */

/* "vocab": [["<unk>", 0.0], ["a", -2.5]]; the position in the list is the id. Loading the vocabulary has checked the form. */
static Status scores_read(Loader *loader, TokenModel *model, const json_t *list) {
    size_t i, n = json_array_size(list);
    const json_t *item;
    double *scores = arena_alloc(loader->arena, (n + 1) * sizeof *scores), lowest = (double)INFINITY;
    TrieEntry *entries = malloc((n + 1) * sizeof *entries);
    if (!scores || !entries) {
        free(entries);
        return status_fail(ST_RESOURCE, "no memory for the vocabulary of '%s'", loader->path);
    }
    json_array_foreach(list, i, item) {
        const json_t *token = json_array_get(item, 0);
        entries[i] = (TrieEntry){{json_string_value(token), json_string_length(token)}, (int32_t)i};
        scores[i] = json_number_value(json_array_get(item, 1));
        lowest = MIN(lowest, scores[i]);
    }
    model->scores = scores;
    model->unk_score = lowest - UNKNOWN_PENALTY;
    Status status = trie_init(loader, &model->trie, entries, n);
    free(entries);
    return status;
}

Status unigram_init(Loader *loader, TokenModel *model, const json_t *node) {
    const json_t *list = json_object_get(node, "vocab");
    int64_t unk = -1;
    TRY(json_get_int(node, loader->path, "unk_id", &unk));
    if (unk < -1 || unk >= (int64_t)json_array_size(list))
        return status_fail(ST_INPUT, "wrong 'unk_id' in '%s': %lld, but the vocabulary has %zu tokens", loader->path, (long long)unk,
                           json_array_size(list));
    model->unk = (int32_t)unk;
    TRY(part_bool(loader, node, "byte_fallback", false, &model->byte_fallback));
    byte_tables_fill(&loader->tokenizer->vocabulary, model);
    return scores_read(loader, model, list);
}
