/* The tokeniser as a whole: its files are read, and a text goes through the parts in order. */
#include <stdlib.h>
#include <string.h>

#include "lib/text/tokenizer_parts.h"

typedef enum Role { ROLE_BOS, ROLE_EOS, ROLE_PAD, N_ROLES } Role;

struct Tokenizer {
    Arena *arena;
    const char *where;
    Vocab vocab;        /* the model's tokens and the added ones */
    AddedTokens added;
    Normalizers normalizers;
    PreTokenizers pre;
    PostProcessor post;
    Decoders decoders;
    Bpe *bpe;           /* keeps work space and a cache of words: one text at a time */
    bool *special;      /* by id */
    int32_t roles[N_ROLES];
};

/* ---- reading ---- */

static Status read_added(Tokenizer *t, const json_t *list) {
    size_t n = json_array_size(list);
    t->added.items = arena_zero(t->arena, (n + 1) * sizeof *t->added.items);
    if (!t->added.items) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) {
        const json_t *json = json_array_get(list, i);
        AddedToken *token = &t->added.items[i];
        const char *content = NULL;
        int64_t id = -1;
        TRY(json_get_string(json, t->where, "content", &content));
        TRY(json_get_int(json, t->where, "id", &id));
        if (!content || id < 0 || id > (1 << 24)) return status_fail(ST_INPUT, "added token %zu in '%s' lacks its content or a valid id", i, t->where);
        TRY(json_get_bool(json, t->where, "single_word", &token->single_word));
        TRY(json_get_bool(json, t->where, "lstrip", &token->lstrip));
        TRY(json_get_bool(json, t->where, "rstrip", &token->rstrip));
        TRY(json_get_bool(json, t->where, "special", &token->special));
        token->normalized = !token->special;
        TRY(json_get_bool(json, t->where, "normalized", &token->normalized));
        token->content = arena_strdup(t->arena, content);
        if (!token->content) return ST_RESOURCE;
        token->len = strlen(content);
        token->id = (int32_t)id;
        t->added.n = i + 1;
    }
    return ST_OK;
}

/* The model's vocabulary with room for the added tokens; those that are not in it yet are put in. */
static Status join_added(Tokenizer *t, const Vocab *model) {
    int32_t largest = model->n - 1;
    for (size_t i = 0; i < t->added.n; i++) largest = MAX(largest, t->added.items[i].id);
    TRY(vocab_init(&t->vocab, t->arena, (size_t)model->n + t->added.n, largest));
    for (int32_t id = 0; id < model->n; id++)
        if (model->tokens[id]) TRY(vocab_add(&t->vocab, model->tokens[id], model->lengths[id], id, t->where));
    t->special = arena_zero(t->arena, (size_t)t->vocab.n);
    if (!t->special) return ST_RESOURCE;
    for (size_t i = 0; i < t->added.n; i++) {
        const AddedToken *token = &t->added.items[i];
        TRY(vocab_add(&t->vocab, token->content, token->len, token->id, t->where));
        t->special[token->id] |= token->special;
    }
    return ST_OK;
}

/* Tokens that are looked for in normalised text are normalised themselves. */
static Status normalize_added(Tokenizer *t) {
    for (size_t i = 0; i < t->added.n; i++) {
        AddedToken *token = &t->added.items[i];
        if (token->normalized && t->normalizers.n) {
            Passage passage = {0};
            passage_add(&passage, token->content, token->len, (Range){0, 0});
            Status status = normalizers_run(&t->normalizers, &passage);
            token->content = arena_strndup(t->arena, str_text(&passage.bytes), passage.bytes.len);
            token->len = passage.bytes.len;
            passage_release(&passage);
            TRY(status);
            if (!token->content) return ST_RESOURCE;
        }
        if (token->len) t->added.starts[(uint8_t)token->content[0]] = true;
    }
    return ST_OK;
}

static Status read_parts(Tokenizer *t, const json_t *root) {
    static const char *const known[] = {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"};
    const char *key;
    json_t *value;
    if (!json_is_object(root)) return status_fail(ST_INPUT, "'%s' is no JSON object", t->where);
    json_object_foreach((json_t *)root, key, value) {
        bool found = false;
        for (size_t i = 0; i < COUNT_OF(known); i++) found |= !strcmp(key, known[i]);
        if (!found) return unknown_part(t->where, "element", key);
    }
    if (json_is_object(json_object_get(root, "truncation"))) log_message(LOG_WARNING, "the truncation settings of '%s' are not used: rows are cut as the recipe says", t->where);
    TRY(normalizers_read(json_object_get(root, "normalizer"), t->where, t->arena, &t->normalizers));
    TRY(pre_tokenizers_read(json_object_get(root, "pre_tokenizer"), t->where, t->arena, &t->pre));
    Vocab *model = arena_zero(t->arena, sizeof *model);
    t->bpe = arena_zero(t->arena, sizeof *t->bpe);
    if (!model || !t->bpe) return ST_RESOURCE;
    TRY(bpe_read(json_object_get(root, "model"), t->where, t->arena, model, t->pre.byte_level, t->bpe));
    TRY(read_added(t, json_object_get(root, "added_tokens")));
    TRY(join_added(t, model));
    TRY(normalize_added(t));
    TRY(post_processor_read(json_object_get(root, "post_processor"), t->where, &t->vocab, &t->post));
    return decoders_read(json_object_get(root, "decoder"), t->where, t->arena, &t->decoders);
}

/* ---- a directory with vocab.json and merges.txt: the same settings as tokenizer.json would have ---- */

static Status read_merges_file(const char *path, json_t *merges) {
    Lines lines;
    Slice line;
    TRY(lines_open(&lines, path));
    while (lines_next(&lines, &line)) {
        if (line.len == 0 || (lines.number == 1 && line.len >= 8 && !memcmp(line.data, "#version", 8))) continue;
        json_array_append_new(merges, json_stringn(line.data, line.len));
    }
    return lines_close(&lines);
}

static void append_added(json_t *list, const char *content, json_int_t id, const json_t *settings, bool special) {
    json_t *token = json_is_object(settings) ? json_copy((json_t *)settings) : json_object();
    json_object_set_new(token, "content", json_string(content));
    json_object_set_new(token, "id", json_integer(id));
    if (!json_object_get(token, "special")) json_object_set_new(token, "special", json_boolean(special));
    json_array_append_new(list, token);
}

static json_t *collect_added(const json_t *config, const json_t *added, const json_t *vocab) {
    json_t *list = json_array();
    const char *key;
    json_t *value;
    const json_t *settings = json_object_get(config, "added_tokens_decoder");
    json_object_foreach((json_t *)settings, key, value) {
        const char *content = json_string_value(json_object_get(value, "content"));
        if (content) append_added(list, content, strtol(key, NULL, 10), value, true);
    }
    if (json_array_size(list) == 0)
        json_object_foreach((json_t *)added, key, value) if (json_is_integer(value)) append_added(list, key, json_integer_value(value), NULL, true);
    if (json_array_size(list) == 0 && json_object_get(vocab, "<|endoftext|>"))
        append_added(list, "<|endoftext|>", json_integer_value(json_object_get(vocab, "<|endoftext|>")), NULL, true);
    return list;
}

static const char qwen_parts[] =
    "{\"normalizer\": {\"type\": \"NFC\"}, \"decoder\": {\"type\": \"ByteLevel\"}, \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
    "{\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": "
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}}, "
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}}";
static const char gpt2_parts[] = "{\"decoder\": {\"type\": \"ByteLevel\"}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}}";

static Status read_vocab_and_merges(const char *dir, Arena *arena, json_t **root) {
    json_t *vocab = NULL, *config = NULL, *added = NULL, *merges = json_array(), *model = json_object();
    const char *config_path = path_join(arena, dir, "tokenizer_config.json"), *added_path = path_join(arena, dir, "added_tokens.json"), *class = "";
    Status status = ST_OK;
    *root = NULL;
    TRY_GOTO(json_read_file(path_join(arena, dir, "vocab.json"), &vocab), end);
    if (file_exists(config_path)) TRY_GOTO(json_read_file(config_path, &config), end);
    if (file_exists(added_path)) TRY_GOTO(json_read_file(added_path, &added), end);
    TRY_GOTO(read_merges_file(path_join(arena, dir, "merges.txt"), merges), end);
    if (config) TRY_GOTO(json_get_string(config, config_path, "tokenizer_class", &class), end);
    bool qwen = text_starts_with(class, "Qwen2");
    if (!qwen && *class && !text_starts_with(class, "GPT2")) {
        status_fail(ST_INPUT, "cannot tell how the tokenizer class '%s' of '%s' cuts words", class, dir);
        status = status_hint(ST_INPUT, "save the tokenizer as tokenizer.json, which says it");
        goto end;
    }
    TRY_GOTO(json_read_text(qwen ? qwen_parts : gpt2_parts, strlen(qwen ? qwen_parts : gpt2_parts), "built-in parts", root), end);
    json_object_set_new(model, "type", json_string("BPE"));
    json_object_set(model, "vocab", vocab);
    json_object_set(model, "merges", merges);
    json_object_set(*root, "model", model);
    json_object_set_new(*root, "added_tokens", collect_added(config, added, vocab));
end:
    json_decref(vocab);
    json_decref(config);
    json_decref(added);
    json_decref(merges);
    json_decref(model);
    return status;
}

/* ---- which tokens begin and end a text ---- */

static const char *role_text(const json_t *config, const char *key) {
    const json_t *value = json_object_get(config, key);
    return json_is_object(value) ? json_string_value(json_object_get(value, "content")) : json_string_value(value);
}

static Status read_roles(Tokenizer *t, const char *dir) {
    static const char *const files[] = {"tokenizer_config.json", "special_tokens_map.json"};
    static const char *const keys[N_ROLES] = {"bos_token", "eos_token", "pad_token"};
    for (int role = 0; role < N_ROLES; role++) t->roles[role] = -1;
    for (size_t f = 0; f < COUNT_OF(files); f++) {
        const char *path = path_join(t->arena, dir, files[f]);
        json_t *config = NULL;
        if (!path || !file_exists(path)) continue;
        TRY(json_read_file(path, &config));
        for (int role = 0; role < N_ROLES; role++) {
            const char *text = role_text(config, keys[role]);
            if (text && t->roles[role] < 0) t->roles[role] = tokenizer_id(t, text);
        }
        json_decref(config);
    }
    return ST_OK;
}

static Status load_into(Tokenizer *t, const char *path) {
    const char *dir = path, *file = path;
    if (dir_exists(path)) {
        file = path_join(t->arena, path, "tokenizer.json");
        if (file && !file_exists(file) && file_exists(path_join(t->arena, path, "vocab.json"))) file = path_join(t->arena, path, "vocab.json");
    } else {
        size_t len = (size_t)(path_name(path) - path);
        dir = len > 0 ? arena_strndup(t->arena, path, len) : ".";
    }
    if (!file || !dir) return ST_RESOURCE;
    if (!file_exists(file)) {
        status_fail(ST_INPUT, "no tokenizer at '%s'", path);
        return status_hint(ST_INPUT, "a tokenizer is tokenizer.json, or vocab.json with merges.txt, as in a Hugging Face directory");
    }
    json_t *root = NULL;
    t->where = arena_strdup(t->arena, file);
    bool parts = !strcmp(path_name(file), "vocab.json") || !strcmp(path_name(file), "merges.txt");
    Status status = parts ? read_vocab_and_merges(dir, t->arena, &root) : json_read_file(file, &root);
    if (status == ST_OK) status = read_parts(t, root);
    json_decref(root);
    TRY(status);
    return read_roles(t, dir);
}

Status tokenizer_load(const char *path, Tokenizer **tokenizer) {
    *tokenizer = NULL;
    Arena *arena = arena_new(0);
    Tokenizer *t = arena ? arena_zero(arena, sizeof *t) : NULL;
    if (!t) {
        arena_free(arena);
        return status_fail(ST_RESOURCE, "out of memory for a tokenizer");
    }
    t->arena = arena;
    Status status = load_into(t, path);
    if (status == ST_OK) *tokenizer = t;
    else tokenizer_free(t);
    return status;
}

void tokenizer_free(Tokenizer *t) {
    if (!t) return;
    normalizers_release(&t->normalizers);
    pre_tokenizers_release(&t->pre);
    post_processor_release(&t->post);
    decoders_release(&t->decoders);
    if (t->bpe) bpe_release(t->bpe);
    arena_free(t->arena);
}

/* ---- encoding ---- */

typedef struct Encoder {
    const Tokenizer *t;
    bool literal;
    Ids *ids, *offsets;   /* offsets NULL when not wanted */
    AddedMatches outer, inner;
    Ranges words;
    Ids ends;
} Encoder;

static void push_offset(Encoder *e, Range range) {
    if (!e->offsets) return;
    ids_push(e->offsets, (int32_t)range.begin);
    ids_push(e->offsets, (int32_t)range.end);
}

static Status encode_words(Encoder *e, bool first, Passage *passage) {
    TRY(pre_tokenizers_run(&e->t->pre, first, passage, &e->words));
    for (size_t w = 0; w < e->words.n; w++) {
        Range word = e->words.items[w];
        e->ends.n = 0;
        TRY(bpe_encode(e->t->bpe, passage->bytes.data + word.begin, word.end - word.begin, e->ids, e->offsets ? &e->ends : NULL));
        size_t begin = word.begin;
        for (size_t i = 0; i < e->ends.n; i++) {
            size_t end = word.begin + (size_t)e->ends.data[i];
            push_offset(e, passage_origin(passage, (Range){begin, end}));
            begin = end;
        }
    }
    return ST_OK;
}

/* Plain text between two added tokens: normalised, cut at the added tokens that are looked for in normalised text, then word by word. */
static Status encode_plain(Encoder *e, const char *text, Range range) {
    const Tokenizer *t = e->t;
    Passage section = {.tracked = e->offsets != NULL};
    if (section.tracked)
        for (size_t at = range.begin; at < range.end; at++) passage_add(&section, text + at, 1, (Range){at, at + 1});
    else passage_add(&section, text + range.begin, range.end - range.begin, range);
    Status status = normalizers_run(&t->normalizers, &section);
    e->inner.n = 0;
    if (status == ST_OK) added_tokens_split(&t->added, true, e->literal, str_text(&section.bytes), (Range){0, section.bytes.len}, &e->inner);
    for (size_t i = 0; i < e->inner.n && status == ST_OK; i++) {
        const AddedMatch *match = &e->inner.items[i];
        if (match->id >= 0) {
            ids_push(e->ids, match->id);
            push_offset(e, passage_origin(&section, match->range));
            continue;
        }
        Passage piece = {.tracked = section.tracked};
        passage_copy(&piece, &section, match->range);
        status = encode_words(e, range.begin == 0 && i == 0, &piece);
        passage_release(&piece);
    }
    passage_release(&section);
    return status;
}

static Status encode_all(Encoder *e, const char *text, size_t len) {
    added_tokens_split(&e->t->added, false, e->literal, text, (Range){0, len}, &e->outer);
    for (size_t i = 0; i < e->outer.n; i++) {
        AddedMatch match = e->outer.items[i];
        if (match.id < 0) {
            TRY(encode_plain(e, text, match.range));
            continue;
        }
        ids_push(e->ids, match.id);
        push_offset(e, match.range);
    }
    return ST_OK;
}

static void append_special(Encoder *e, const Ids *special) {
    ids_append(e->ids, special->data, special->n);
    for (size_t i = 0; i < special->n; i++) push_offset(e, (Range){0, 0});
}

Status tokenizer_encode_offsets(const Tokenizer *t, const char *text, size_t len, TokenizeFlags flags, Ids *ids, Ids *offsets) {
    if (len > INT32_MAX) return status_fail(ST_INPUT, "a text of %zu bytes is too long", len);
    uint32_t c;
    for (size_t at = 0, n; at < len; at += n) {
        n = (uint8_t)text[at] < 0x80 ? 1 : utf8_decode(text + at, len - at, &c);
        if (n == 0) return status_fail(ST_INPUT, "text is not valid UTF-8 at byte %zu", at);
    }
    Encoder e = {.t = t, .literal = flags & TOKENIZE_LITERAL, .ids = ids, .offsets = offsets};
    if (flags & TOKENIZE_SPECIAL) append_special(&e, &t->post.before);
    Status status = encode_all(&e, text, len);
    if (flags & TOKENIZE_SPECIAL) append_special(&e, &t->post.after);
    free(e.outer.items);
    free(e.inner.items);
    free(e.words.items);
    ids_release(&e.ends);
    return status;
}

Status tokenizer_encode(const Tokenizer *t, const char *text, size_t len, TokenizeFlags flags, Ids *ids) { return tokenizer_encode_offsets(t, text, len, flags, ids, NULL); }

/* ---- decoding and questions ---- */

Status tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t n, bool skip_special, Str *text) {
    Slice *tokens = malloc((n + 1) * sizeof *tokens);
    if (!tokens) return status_fail(ST_RESOURCE, "out of memory for %zu tokens", n);
    size_t kept = 0;
    Status status = ST_OK;
    for (size_t i = 0; i < n && status == ST_OK; i++) {
        const char *token = tokenizer_token(t, ids[i]);
        if (!token) status = status_fail(ST_INPUT, "token id %d is not in the vocabulary of '%s'", ids[i], t->where);
        else if (!skip_special || !t->special[ids[i]]) tokens[kept++] = (Slice){token, t->vocab.lengths[ids[i]]};
    }
    if (status == ST_OK) status = decoders_run(&t->decoders, tokens, kept, text);
    free(tokens);
    return status;
}

int32_t tokenizer_vocab_size(const Tokenizer *t) { return t->vocab.n; }
int32_t tokenizer_id(const Tokenizer *t, const char *token) { return vocab_find(&t->vocab, token, strlen(token)); }
const char *tokenizer_token(const Tokenizer *t, int32_t id) { return id >= 0 && id < t->vocab.n ? t->vocab.tokens[id] : NULL; }
bool tokenizer_is_special(const Tokenizer *t, int32_t id) { return id >= 0 && id < t->vocab.n && t->special[id]; }
int32_t tokenizer_bos(const Tokenizer *t) { return t->roles[ROLE_BOS]; }
int32_t tokenizer_eos(const Tokenizer *t) { return t->roles[ROLE_EOS]; }
int32_t tokenizer_pad(const Tokenizer *t) { return t->roles[ROLE_PAD]; }

static bool holds(const Ids *ids, int32_t id) {
    for (size_t i = 0; i < ids->n; i++)
        if (ids->data[i] == id) return true;
    return false;
}

bool tokenizer_adds_bos(const Tokenizer *t) { return holds(&t->post.before, t->roles[ROLE_BOS]); }
bool tokenizer_adds_eos(const Tokenizer *t) { return holds(&t->post.after, t->roles[ROLE_EOS]); }
