/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/gguf_tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "lib/text/tokenizer_parts.h"

#define SPACE "\xE2\x96\x81"   /* U+2581, which stands for a space in vocabularies of SentencePiece */
enum { LONGEST_PIECE = 4096 }; /* bytes of a token that merges make; SentencePiece's default are 16 characters */
typedef enum TokenType { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_UNUSED, TOKEN_BYTE } TokenType;

/* ---- pre-tokenizers by name ---- */

typedef struct PreKind {
    bool nfc, ignore_merges, adds_bos;
    const char *json;
} PreKind;
typedef enum PreKindId {
#define PRE_KIND(kind, nfc, ignore_merges, adds_bos, json) PRE_KIND_##kind,
#define PRE(name, kind)
#include "lib/text/gguf_pre.def"
#undef PRE_KIND
#undef PRE
    N_PRE_KINDS
} PreKindId;
static const struct {
    const char *name;
    PreKindId kind;
} pre_names[] = {
#define PRE_KIND(kind, nfc, ignore_merges, adds_bos, json)
#define PRE(name, kind) {name, PRE_KIND_##kind},
#include "lib/text/gguf_pre.def"
#undef PRE_KIND
#undef PRE
};

static const PreKind *pre_kinds(void) {
#define PRE_KIND(kind, nfc, ignore_merges, adds_bos, json) {nfc, ignore_merges, adds_bos, json},
#define PRE(name, kind)
    static const PreKind kinds[N_PRE_KINDS] = {
#include "lib/text/gguf_pre.def"
    };
#undef PRE_KIND
#undef PRE
    return kinds;
}

static Status find_pre(Gguf *gguf, const PreKind **pre) {
    const char *name = "default";
    TRY(gguf_text(gguf, "tokenizer.ggml.pre", &name));
    for (size_t i = 0; i < COUNT_OF(pre_names); i++)
        if (strcmp(pre_names[i].name, name) == 0) {
            *pre = &pre_kinds()[pre_names[i].kind];
            return ST_OK;
        }
    status_fail(ST_INPUT, "cannot use the tokenizer in '%s': its 'tokenizer.ggml.pre' is '%s', which says how text is cut and is not known",
                gguf->files[0].path, name);
    return status_hint(ST_INPUT, "take the Hugging Face directory that the file was made from, or a file that a newer converter made");
}

/* ---- the vocabulary ---- */

typedef struct Words {
    Gguf *gguf;
    size_t n;
    const char **tokens; /* by id */
    TokenType *types;
    json_t *vocab, *added; /* sections of tokenizer.json */
} Words;

/* A list of n elements, or NULL if the key is missing. */
static Status find_list(const Gguf *gguf, const char *key, GgufType type, size_t n, const GgufValue **list) {
    *list = gguf_find(gguf, key);
    if (!*list) return ST_OK;
    bool texts = (*list)->type == GGUF_STRING;
    if (!(*list)->list || texts != (type == GGUF_STRING))
        return status_fail(ST_INPUT, "wrong type of metadata '%s' in '%s': expected a list of %s", key, gguf->files[0].path,
                           type == GGUF_STRING ? "texts" : "numbers");
    if (n == 0 || (*list)->n == n) return ST_OK;
    return status_fail(ST_INPUT, "metadata '%s' in '%s' has %llu elements for %zu tokens", key, gguf->files[0].path, (unsigned long long)(*list)->n,
                       n);
}

static Status add_token(Words *words, size_t id, Slice text, TokenType type) {
    const char *path = words->gguf->files[0].path;
    if (memchr(text.data, 0, text.len) || utf8_fault(text.data, text.len) < text.len)
        return status_fail(ST_INPUT, "token %zu in '%s' is no text in UTF-8", id, path);
    const char *token = arena_strndup(words->gguf->arena, text.data, text.len);
    if (!token) return ST_RESOURCE;
    words->tokens[id] = token;
    words->types[id] = type;
    if (json_object_get(words->vocab, token)) return status_fail(ST_INPUT, "token %zu in '%s' is '%s' once more", id, path, token);
    json_object_set_new(words->vocab, token, json_integer((json_int_t)id));
    bool special = type == TOKEN_CONTROL || type == TOKEN_UNKNOWN;
    if (special || type == TOKEN_USER_DEFINED)
        json_array_append_new(words->added, json_pack("{s:I,s:s,s:b,s:b,s:b,s:b,s:b}", "id", (json_int_t)id, "content", token, "single_word", false,
                                                      "lstrip", false, "rstrip", false, "normalized", false, "special", special));
    return ST_OK;
}

static TokenType type_at(const GgufValue *types, uint64_t i) {
    double type = types ? gguf_number_at(types, i) : TOKEN_NORMAL;
    return type >= TOKEN_NORMAL && type <= TOKEN_BYTE ? (TokenType)(int)type : TOKEN_NORMAL;
}

static Status read_words(Words *words) {
    Gguf *gguf = words->gguf;
    const GgufValue *tokens, *types;
    TRY(find_list(gguf, "tokenizer.ggml.tokens", GGUF_STRING, 0, &tokens));
    if (!tokens || tokens->n == 0) return status_fail(ST_INPUT, "'%s' has a tokenizer without 'tokenizer.ggml.tokens'", gguf->files[0].path);
    if (tokens->n > MAX_TOKEN_ID) return status_fail(ST_INPUT, "'%s' has %llu tokens", gguf->files[0].path, (unsigned long long)tokens->n);
    words->n = (size_t)tokens->n;
    TRY(find_list(gguf, "tokenizer.ggml.token_type", GGUF_I32, words->n, &types));
    words->tokens = arena_alloc(gguf->arena, words->n * sizeof *words->tokens);
    words->types = arena_alloc(gguf->arena, words->n * sizeof *words->types);
    words->vocab = json_object();
    words->added = json_array();
    if (!words->tokens || !words->types || !words->vocab || !words->added) return status_fail(ST_RESOURCE, "no memory for a tokenizer");
    const uint8_t *at = tokens->data;
    for (size_t i = 0; i < words->n; i++) TRY(add_token(words, i, gguf_next_text(tokens, &at), type_at(types, i)));
    return ST_OK;
}

/* The token of an id in the metadata; NULL: the key is missing, or -1. */
static Status named_token(const Words *words, const char *key, const char **token) {
    int64_t id = -1;
    *token = NULL;
    TRY(gguf_int(words->gguf, key, &id));
    if (id < 0 || id == UINT32_MAX) return ST_OK;
    if ((uint64_t)id >= words->n)
        return status_fail(ST_INPUT, "metadata '%s' in '%s' is %lld of %zu tokens", key, words->gguf->files[0].path, (long long)id, words->n);
    *token = words->tokens[id];
    return ST_OK;
}

/* ---- merges ---- */

static Status own_merges(const Words *words, json_t **merges) {
    const GgufValue *list;
    TRY(find_list(words->gguf, "tokenizer.ggml.merges", GGUF_STRING, 0, &list));
    if (!list) return status_fail(ST_INPUT, "'%s' has a tokenizer without 'tokenizer.ggml.merges'", words->gguf->files[0].path);
    return gguf_json(words->gguf, list, merges);
}

typedef struct ScoredMerge {
    double score;
    const char *token;
    size_t left; /* bytes of the first part */
    int32_t ids[2];
    size_t order; /* of the token */
} ScoredMerge;

/* By falling score, then by token, then by the ids of the parts. */
static int by_score(const void *a, const void *b) {
    const ScoredMerge *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    if (x->ids[0] != y->ids[0]) return x->ids[0] < y->ids[0] ? -1 : 1;
    return (x->ids[1] > y->ids[1]) - (x->ids[1] < y->ids[1]);
}

typedef struct MergeList {
    ScoredMerge *items;
    size_t n, cap;
} MergeList;

/* The id of a token that merges may have as a part; -1: there is none. part: scratch. */
static int32_t part_id(const Words *words, const char *text, size_t len, Str *part) {
    str_clear(part);
    str_append_n(part, text, len);
    const json_t *id = json_object_get(words->vocab, str_text(part));
    return id ? (int32_t)json_integer_value(id) : -1;
}

static Status split_token(const Words *words, size_t id, double score, Str *part, MergeList *list) {
    const char *token = words->tokens[id];
    size_t len = strlen(token);
    uint32_t c;
    if (len > LONGEST_PIECE)
        return status_fail(ST_INPUT, "token %zu in '%s' has %zu bytes, more than %d", id, words->gguf->files[0].path, len, LONGEST_PIECE);
    for (size_t at = len ? char_next(token, &c) : 0; at < len; at += char_next(token + at, &c)) {
        int32_t left = part_id(words, token, at, part), right = left < 0 ? -1 : part_id(words, token + at, len - at, part);
        if (right < 0) continue;
        TRY(array_grow(&list->items, &list->cap, list->n + 1, sizeof *list->items, "merges of a tokenizer"));
        list->items[list->n++] = (ScoredMerge){score, token, at, {left, right}, id};
    }
    return ST_OK;
}

static Status collect_merges(const Words *words, const GgufValue *scores, MergeList *list) {
    Str part = {0};
    Status status = ST_OK;
    for (size_t i = 0; i < words->n && status == ST_OK; i++) {
        double score = gguf_number_at(scores, i);
        if (score != score) status = status_fail(ST_INPUT, "the score of token %zu in '%s' is no number", i, words->gguf->files[0].path);
        if (words->types[i] == TOKEN_NORMAL && status == ST_OK) status = split_token(words, i, score, &part, list);
    }
    str_release(&part);
    return status;
}

static Status scored_merges(const Words *words, json_t **merges) {
    const GgufValue *scores;
    MergeList list = {0};
    TRY(find_list(words->gguf, "tokenizer.ggml.scores", GGUF_F32, words->n, &scores));
    if (!scores) return status_fail(ST_INPUT, "'%s' has a tokenizer without 'tokenizer.ggml.scores'", words->gguf->files[0].path);
    Status status = collect_merges(words, scores, &list);
    if (status == ST_OK && list.n) qsort(list.items, list.n, sizeof *list.items, by_score);
    *merges = status == ST_OK ? json_array() : NULL;
    for (size_t i = 0; i < list.n && status == ST_OK; i++) {
        const ScoredMerge *merge = &list.items[i];
        json_array_append_new(*merges, json_pack("[s%,s]", merge->token, merge->left, merge->token + merge->left));
    }
    free(list.items);
    return status;
}

/* ---- sections of tokenizer.json ---- */

/* Adds BOS and EOS around a text. */
static Status add_post_processor(const Words *words, bool bos, bool eos, json_t *root) {
    const char *first = NULL, *last = NULL;
    TRY(gguf_bool(words->gguf, "tokenizer.ggml.add_bos_token", &bos));
    TRY(gguf_bool(words->gguf, "tokenizer.ggml.add_eos_token", &eos));
    if (bos) TRY(named_token(words, "tokenizer.ggml.bos_token_id", &first));
    if (eos) TRY(named_token(words, "tokenizer.ggml.eos_token_id", &last));
    if (!first && !last) return ST_OK;
    json_t *single = json_array(), *special = json_object();
    const char *const around[2] = {first, last};
    for (int i = 0; i < 2; i++) {
        if (around[i]) {
            json_array_append_new(single, json_pack("{s:{s:s,s:i}}", "SpecialToken", "id", around[i], "type_id", 0));
            json_object_set_new(
                special, around[i],
                json_pack("{s:s,s:[O],s:[s]}", "id", around[i], "ids", json_object_get(words->vocab, around[i]), "tokens", around[i]));
        }
        if (i == 0) json_array_append_new(single, json_pack("{s:{s:s,s:i}}", "Sequence", "id", "A", "type_id", 0));
    }
    json_object_set_new(root, "post_processor",
                        json_pack("{s:s,s:o,s:o}", "type", "TemplateProcessing", "single", single, "special_tokens", special));
    return ST_OK;
}

static Status byte_level(Words *words, json_t **root) {
    const PreKind *pre = NULL;
    json_t *merges = NULL;
    TRY(find_pre(words->gguf, &pre));
    TRY(own_merges(words, &merges));
    json_t *cut = json_of_text(pre->json, strlen(pre->json), 0); /* NULL without memory: then json_pack fails, and releases the others */
    *root = json_pack("{s:O, s:o, s:{s:s, s:b}, s:{s:s, s:b, s:O, s:o}}", "added_tokens", words->added, "pre_tokenizer", cut, "decoder", "type",
                      "ByteLevel", "add_prefix_space", true, "model", "type", "BPE", "ignore_merges", pre->ignore_merges, "vocab", words->vocab,
                      "merges", merges);
    if (!*root) return status_fail(ST_RESOURCE, "no memory for the tokenizer of '%s'", words->gguf->files[0].path);
    if (pre->nfc) json_object_set_new(*root, "normalizer", json_pack("{s:s}", "type", "NFC"));
    return add_post_processor(words, pre->adds_bos, false, *root);
}

static json_t *space_decoder(bool prefix) {
    json_t *steps = json_pack("[{s:s,s:{s:s},s:s},{s:s},{s:s}]", "type", "Replace", "pattern", "String", SPACE, "content", " ", "type",
                              "ByteFallback", "type", "Fuse");
    if (prefix) json_array_append_new(steps, json_pack("{s:s,s:s,s:i,s:i}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
    return json_pack("{s:s,s:o}", "type", "Sequence", "decoders", steps);
}

static json_t *space_normalizer(bool prefix) {
    json_t *steps = json_array();
    if (prefix) json_array_append_new(steps, json_pack("{s:s,s:s}", "type", "Prepend", "prepend", SPACE));
    json_array_append_new(steps, json_pack("{s:s,s:{s:s},s:s}", "type", "Replace", "pattern", "String", " ", "content", SPACE));
    return json_pack("{s:s,s:o}", "type", "Sequence", "normalizers", steps);
}

static Status sentence_piece(Words *words, json_t **root) {
    bool prefix = true;
    const char *unknown;
    json_t *merges = NULL;
    TRY(gguf_bool(words->gguf, "tokenizer.ggml.add_space_prefix", &prefix));
    TRY(named_token(words, "tokenizer.ggml.unknown_token_id", &unknown));
    TRY(scored_merges(words, &merges));
    *root = json_pack("{s:O, s:o, s:o, s:{s:s, s:s?, s:b, s:b, s:O, s:o}}", "added_tokens", words->added, "normalizer", space_normalizer(prefix),
                      "decoder", space_decoder(prefix), "model", "type", "BPE", "unk_token", unknown, "fuse_unk", true, "byte_fallback", true,
                      "vocab", words->vocab, "merges", merges);
    if (!*root) return status_fail(ST_RESOURCE, "no memory for the tokenizer of '%s'", words->gguf->files[0].path);
    return add_post_processor(words, true, false, *root);
}

/* ---- the files ---- */

static Status model_name(Gguf *gguf, const char **name) {
    *name = NULL;
    TRY(gguf_text(gguf, "tokenizer.ggml.model", name));
    if (*name && (strcmp(*name, "none") == 0 || strcmp(*name, "no_vocab") == 0)) *name = NULL;
    return ST_OK;
}

static bool has_tokenizer(Gguf *gguf) {
    const char *name;
    return model_name(gguf, &name) != ST_OK || name; /* the failure is reported when the tokenizer is made */
}

static void words_release(Words *words) {
    json_decref(words->vocab);
    json_decref(words->added);
}

Status gguf_tokenizer_build(Gguf *gguf, json_t **root) {
    const char *name;
    Words words = {.gguf = gguf};
    *root = NULL;
    TRY(model_name(gguf, &name));
    if (!name) return ST_OK;
    bool bytes = strcmp(name, "gpt2") == 0, pieces = strcmp(name, "llama") == 0;
    if (!bytes && !pieces) {
        status_fail(ST_INPUT, "cannot use the tokenizer in '%s': its 'tokenizer.ggml.model' is '%s'", gguf->files[0].path, name);
        return status_hint(ST_INPUT, "known: gpt2 (byte-level BPE) and llama (SentencePiece BPE)");
    }
    Status status = read_words(&words);
    if (status == ST_OK) status = bytes ? byte_level(&words, root) : sentence_piece(&words, root);
    if (status != ST_OK) {
        json_decref(*root);
        *root = NULL;
    }
    words_release(&words);
    return status;
}

/* tokenizer.chat_template, and those of tokenizer.chat_templates by name. */
static Status add_templates(Gguf *gguf, json_t *settings) {
    const char *main_template = NULL, *more = NULL;
    const GgufValue *names = gguf_find(gguf, "tokenizer.chat_templates");
    TRY(gguf_text(gguf, "tokenizer.chat_template", &main_template));
    if (!names || !names->list || names->type != GGUF_STRING) {
        if (main_template) json_object_set_new(settings, "chat_template", json_string(main_template));
        return ST_OK;
    }
    json_t *list = json_array();
    if (main_template) json_array_append_new(list, json_pack("{s:s,s:s}", "name", "default", "template", main_template));
    const uint8_t *at = names->data;
    for (uint64_t i = 0; i < names->n; i++) {
        Slice name = gguf_next_text(names, &at);
        const char *key = arena_printf(gguf->arena, "tokenizer.chat_template.%.*s", (int)MIN(name.len, (size_t)256), name.data);
        if (!key) continue;
        more = NULL;
        Status status = gguf_text(gguf, key, &more);
        if (status != ST_OK) {
            json_decref(list);
            return status;
        }
        json_t *label = more ? json_string(strrchr(key, '.') + 1) : NULL;
        if (label) json_array_append_new(list, json_pack("{s:o,s:s}", "name", label, "template", more));
    }
    json_object_set_new(settings, "chat_template", list);
    return ST_OK;
}

static Status add_settings(Words *words, json_t *settings) {
    static const struct {
        const char *key, *name;
    } tokens[] = {
        {"tokenizer.ggml.bos_token_id", "bos_token"},     {"tokenizer.ggml.eos_token_id", "eos_token"},
        {"tokenizer.ggml.unknown_token_id", "unk_token"}, {"tokenizer.ggml.seperator_token_id", "sep_token"},
        {"tokenizer.ggml.padding_token_id", "pad_token"}, {"tokenizer.ggml.mask_token_id", "mask_token"},
    };
    for (size_t i = 0; i < COUNT_OF(tokens); i++) {
        const char *token;
        TRY(named_token(words, tokens[i].key, &token));
        if (token) json_object_set_new(settings, tokens[i].name, json_string(token));
    }
    return add_templates(words->gguf, settings);
}

static Status build_settings(Gguf *gguf, json_t **settings) {
    Words words = {.gguf = gguf};
    *settings = json_pack("{s:s}", "tokenizer_class", "PreTrainedTokenizerFast");
    if (!*settings) return status_fail(ST_RESOURCE, "no memory for the tokenizer of '%s'", gguf->files[0].path);
    if (!has_tokenizer(gguf)) return ST_OK;
    Status status = read_words(&words);
    if (status == ST_OK) status = add_settings(&words, *settings);
    words_release(&words);
    if (status == ST_OK) return ST_OK;
    json_decref(*settings);
    *settings = NULL;
    return status;
}

/* ---- by path ---- */

bool gguf_tokenizer_in(const char *path) {
    Gguf *gguf;
    bool there = gguf_open(path, &gguf) != ST_OK || has_tokenizer(gguf);
    gguf_close(gguf);
    return there;
}

Status gguf_tokenizer_json(const char *path, json_t **root) {
    Gguf *gguf;
    *root = NULL;
    TRY(gguf_open(path, &gguf));
    Status status = gguf_tokenizer_build(gguf, root);
    gguf_close(gguf);
    return status;
}

Status gguf_tokenizer_settings(const char *path, json_t **settings) {
    Gguf *gguf;
    *settings = NULL;
    TRY(gguf_open(path, &gguf));
    Status status = build_settings(gguf, settings);
    gguf_close(gguf);
    return status;
}
