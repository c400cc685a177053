/* SPDX-License-Identifier: Apache-2.0 */
/* Maps strings to ids and back: the model's vocabulary together with the added tokens. */
#include <string.h>

#include "lib/base/log.h"
#include "lib/text/tokenizer_parts.h"

/* Hashes eight bytes at a time by multiplication; the last, overlapping eight cover the remainder. */
uint64_t bytes_hash(const char *bytes, size_t len) {
    uint64_t hash = len * 0x9E3779B97F4A7C15u, word;
    for (; len > 8; bytes += 8, len -= 8) {
        memcpy(&word, bytes, 8);
        hash = (hash ^ word) * 0xD6E8FEB86659FD93u;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, bytes, len);
    hash = (hash ^ word) * 0xD6E8FEB86659FD93u;
    return hash ^ hash >> 29;
}

static size_t slot_of(const Vocabulary *v, const char *text, size_t len) {
    size_t slot = bytes_hash(text, len) & (v->n_slots - 1);
    while (v->slots[slot] >= 0) {
        Slice token = v->tokens[v->slots[slot]];
        if (token.len == len && memcmp(token.data, text, len) == 0) break;
        slot = (slot + 1) & (v->n_slots - 1);
    }
    return slot;
}

int32_t vocabulary_find(const Vocabulary *v, const char *text, size_t len) { return v->slots[slot_of(v, text, len)]; }

int32_t vocabulary_find_own(const Vocabulary *v, const char *text, size_t len) {
    int32_t id = vocabulary_find(v, text, len);
    return id >= 0 && v->added[id / 8] >> id % 8 & 1 ? -1 : id;
}

static Status id_check(const Loader *loader, const char *token, const json_t *id) {
    if (!json_is_integer(id)) return status_fail(ST_INPUT, "wrong id of token '%s' in '%s': not an integer", token, loader->path);
    json_int_t value = json_integer_value(id);
    if (value >= 0 && value <= MAX_TOKEN_ID) return ST_OK;
    return status_fail(ST_INPUT, "wrong id of token '%s' in '%s': %lld, expected 0 to %d", token, loader->path, (long long)value, MAX_TOKEN_ID);
}

/* Adds the size of the token's copy to `bytes`, and makes `size` exceed its id. */
static void vocabulary_measure(size_t len, int32_t id, size_t *n, size_t *bytes, int32_t *size) {
    *n += 1;
    *bytes += len + 1;
    *size = MAX(*size, id + 1);
}

static Status token_put(const Loader *loader, Vocabulary *v, char **store, const char *token, size_t len, int32_t id) {
    size_t slot = slot_of(v, token, len);
    if (v->slots[slot] == id) return ST_OK;
    if (v->slots[slot] >= 0)
        return status_fail(ST_INPUT, "token '%s' in '%s' has two ids: %d and %d", token, loader->path, (int)v->slots[slot], (int)id);
    if (v->tokens[id].data)
        return status_fail(ST_INPUT, "id %d in '%s' belongs to two tokens: '%s' and '%s'", (int)id, loader->path, v->tokens[id].data, token);
    memcpy(*store, token, len + 1);
    v->tokens[id] = (Slice){*store, len};
    v->slots[slot] = id;
    *store += len + 1;
    return ST_OK;
}

static Status tables_new(Loader *loader, Vocabulary *v, size_t n, size_t bytes, char **store) {
    v->n_slots = 16;
    while (v->n_slots < 2 * n) v->n_slots *= 2;
    v->tokens = arena_zero(loader->arena, ((size_t)v->size + 1) * sizeof *v->tokens);
    v->slots = arena_alloc(loader->arena, v->n_slots * sizeof *v->slots);
    v->added = arena_zero(loader->arena, (size_t)v->size / 8 + 1);
    *store = arena_alloc(loader->arena, bytes + 1);
    if (!v->tokens || !v->slots || !v->added || !*store) return ST_RESOURCE;
    memset(v->slots, 0xFF, v->n_slots * sizeof *v->slots);
    return ST_OK;
}

/* Reads and checks the content and id of an added token; id -1: the file has none. */
static Status added_read(const Loader *loader, const json_t *item, const char **content, int32_t *id) {
    if (!json_is_object(item)) return status_fail(ST_INPUT, "wrong 'added_tokens' in '%s': not an object", loader->path);
    TRY(part_string(loader, item, "content", content));
    *id = -1;
    if (!json_object_get(item, "id")) return ST_OK;
    TRY(id_check(loader, *content, json_object_get(item, "id")));
    *id = (int32_t)json_integer_value(json_object_get(item, "id"));
    return ST_OK;
}

/* The model's vocabulary is {"token": id, ..}, or the Unigram model's [["token", score], ..]. Two passes: the first measures, the second stores. */
typedef struct Sizes {
    size_t n, bytes;
} Sizes;

static Status pair_read(const Loader *loader, const json_t *item, size_t i, Slice *token) {
    const json_t *text = json_array_get(item, 0);
    if (i > MAX_TOKEN_ID || json_array_size(item) != 2 || !json_is_string(text) || !json_is_number(json_array_get(item, 1)))
        return status_fail(ST_INPUT, "wrong token %zu in 'vocab' of '%s': expected [token, score]", i, loader->path);
    *token = (Slice){json_string_value(text), json_string_length(text)};
    return ST_OK;
}

static Status list_measure(const Loader *loader, Vocabulary *v, const json_t *list, Sizes *sizes) {
    size_t i;
    const json_t *item;
    Slice token;
    json_array_foreach(list, i, item) {
        TRY(pair_read(loader, item, i, &token));
        vocabulary_measure(token.len, (int32_t)i, &sizes->n, &sizes->bytes, &v->size);
    }
    return ST_OK;
}

/* A token may be in the list twice: a lookup finds the later id, and both ids have the text. */
static Status list_put(const Loader *loader, Vocabulary *v, const json_t *list, char **store) {
    size_t i;
    const json_t *item;
    Slice token;
    json_array_foreach(list, i, item) {
        TRY(pair_read(loader, item, i, &token));
        v->slots[slot_of(v, token.data, token.len)] = -1;
        TRY(token_put(loader, v, store, token.data, token.len, (int32_t)i));
    }
    return ST_OK;
}

static Status map_measure(const Loader *loader, Vocabulary *v, json_t *map, Sizes *sizes) {
    const char *token;
    json_t *id;
    json_object_foreach(map, token, id) {
        TRY(id_check(loader, token, id));
        vocabulary_measure(strlen(token), (int32_t)json_integer_value(id), &sizes->n, &sizes->bytes, &v->size);
    }
    return ST_OK;
}

static Status map_put(const Loader *loader, Vocabulary *v, json_t *map, char **store) {
    const char *token;
    json_t *id;
    json_object_foreach(map, token, id) TRY(token_put(loader, v, store, token, strlen(token), (int32_t)json_integer_value(id)));
    return ST_OK;
}

static bool is_models(const Vocabulary *v, int32_t id) { return v->tokens[id].data && !(v->added[id / 8] >> id % 8 & 1); }

/* Assigns ids to added tokens. moved: number of tokens whose id in the file differs; of the first of them the text, the file's id and the assigned
 * id. */
typedef struct IdGiver {
    size_t n_model, moved;
    int32_t last, from, to;
    const char *token;
} IdGiver;

/* A token that the model does not have gets the next id, whatever the file says, as in tokenizers 0.23.3: it is above those of the added tokens so
 * far (`last`) and not below the number of the model's tokens. If that id belongs to the model, whose ids then have gaps, the id in the file is
 * used. */
static int32_t choose_id(IdGiver *giver, const Vocabulary *v, const char *token, int32_t id) {
    int32_t next = MAX((int32_t)giver->n_model, giver->last + 1);
    if (id == next || (id >= 0 && is_models(v, id))) return id; /* the caller reports two tokens with one id */
    if (id >= 0 && v->tokens[next].data && !v->tokens[id].data) return id;
    while (v->tokens[next].data) next++;
    if (id >= 0 && giver->moved++ == 0) {
        giver->token = token;
        giver->from = id;
        giver->to = next;
    }
    return next;
}

/* Stores one token of the list of added tokens. */
static Status added_put(const Loader *loader, Vocabulary *v, const json_t *item, IdGiver *giver, char **store) {
    const char *token;
    int32_t id;
    TRY(added_read(loader, item, &token, &id));
    size_t len = strlen(token);
    int32_t own = vocabulary_find(v, token, len);
    if (own < 0) id = choose_id(giver, v, token, id);
    if (own < 0) v->added[id / 8] |= (uint8_t)(1u << id % 8);
    if (id < 0) id = own;
    giver->last = MAX(giver->last, id);
    return token_put(loader, v, store, token, len, id);
}

static void warn_of_moved(const Loader *loader, const IdGiver *giver) {
    if (giver->moved == 0) return;
    log_message(LOG_WARNING,
                "%zu added token%s of '%s' get other ids than it says, as in the tokenizers library, which leaves no gaps: '%s' gets %d, not %d",
                giver->moved, plural((int64_t)giver->moved), loader->path, giver->token, (int)giver->to, (int)giver->from);
}

Status vocabulary_init(Loader *loader, Vocabulary *v, const json_t *model, const json_t *added) {
    json_t *tokens = json_object_get(model, "vocab"), *item;
    bool list = loader->tokenizer->model.kind == MODEL_UNIGRAM;
    Sizes sizes = {0};
    const char *token;
    size_t i;
    int32_t id;
    if (list ? !json_is_array(tokens) : !json_is_object(tokens))
        return status_fail(ST_INPUT, "wrong 'vocab' in '%s': expected %s", loader->path,
                           list ? "a list of tokens and scores" : "an object of tokens and ids");
    if (added && !json_is_null(added) && !json_is_array(added))
        return status_fail(ST_INPUT, "wrong 'added_tokens' in '%s': expected a list", loader->path);
    TRY(list ? list_measure(loader, v, tokens, &sizes) : map_measure(loader, v, tokens, &sizes));
    size_t n_model = sizes.n, n_added = json_array_size(added);
    if (n_added > MAX_TOKEN_ID || n_model > MAX_TOKEN_ID) return status_fail(ST_INPUT, "'%s' has too many tokens", loader->path);
    v->size = MAX(v->size, (int32_t)n_model);
    json_array_foreach(added, i, item) {
        TRY(added_read(loader, item, &token, &id));
        vocabulary_measure(strlen(token), id, &sizes.n, &sizes.bytes, &v->size);
    }
    v->size += (int32_t)n_added; /* no assigned id is higher */
    char *store;
    TRY(tables_new(loader, v, sizes.n, sizes.bytes, &store));
    TRY(list ? list_put(loader, v, tokens, &store) : map_put(loader, v, tokens, &store));
    IdGiver giver = {.n_model = n_model, .last = -1};
    json_array_foreach(added, i, item) TRY(added_put(loader, v, item, &giver, &store));
    warn_of_moved(loader, &giver);
    while (v->size > 0 && !v->tokens[v->size - 1].data) v->size--;
    return ST_OK;
}
