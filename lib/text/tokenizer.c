/* SPDX-License-Identifier: Apache-2.0 */
/* Loads a tokenizer, and implements the public calls. Each section of tokenizer.json has a separate file. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/text/gguf_tokenizer.h"
#include "lib/text/tokenizer_parts.h"

/* ---- encoding ---- */

typedef struct Encoding {
    const Tokenizer *tokenizer;
    Encoder *encoder;
    Literal literal;
    Ids *ids, *offsets;
} Encoding;

static void emit(Encoding *e, int32_t id, Origin origin) {
    ids_push(e->ids, id);
    if (!e->offsets) return;
    ids_push(e->offsets, (int32_t)origin.from);
    ids_push(e->offsets, (int32_t)origin.to);
}

/* Encodes text without added tokens. */
static Status encode_plain(Encoding *e, Text text) {
    const Spans *spans;
    TRY(pretokenizer_run(&e->tokenizer->pretokenizer, e->encoder, &text, &spans));
    for (size_t i = 0; i < spans->n; i++) {
        for (size_t start = spans->data[i].start, end = spans->data[i].end, len; start < end; start += len) {
            const WordToken *tokens;
            size_t n;
            len = model_cut(e->tokenizer, text.data + start, end - start);
            TRY(model_tokenize(e->tokenizer, e->encoder, text.data + start, len, &tokens, &n));
            for (size_t k = 0; k < n; k++)
                emit(e, tokens[k].id, e->offsets ? text_origin(&text, start + tokens[k].start, start + tokens[k].end) : (Origin){0, 0});
        }
    }
    return ST_OK;
}

static Text text_part(const Text *text, size_t start, size_t end) {
    return (Text){text->data + start, end - start, text->origins ? text->origins + start : NULL, text->base + start};
}

typedef Status EncodePart(Encoding *e, Text text);

/* Cuts out the tokens of one set and passes the text between them to `part`. */
static Status encode_around(Encoding *e, const AddedSet *set, const Text *text, EncodePart *part) {
    size_t done = 0, from = 0;
    AddedMatch match;
    while (added_find(set, text, from, done, &e->literal, &match)) {
        if (done < match.start) TRY(part(e, text_part(text, done, match.start)));
        /* Otherwise an earlier token has stripped all of its spaces */
        if (match.start < match.end) emit(e, match.token->id, text_origin(text, match.start, match.end));
        done = match.end;
        from = match.resume;
    }
    return done < text->len ? part(e, text_part(text, done, text->len)) : ST_OK;
}

static Status encode_normalized(Encoding *e, Text text) {
    TRY(normalizer_run(&e->tokenizer->normalizer, e->encoder, &text));
    return encode_around(e, &e->tokenizer->added.normalized, &text, encode_plain);
}

static void emit_added(Encoding *e, const Ids *ids) {
    for (size_t i = 0; i < ids->n; i++) emit(e, ids->data[i], (Origin){0, 0});
}

static Status text_tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t len, TokenizeFlags flags, Literal literal, Ids *ids,
                                    Ids *offsets) {
    size_t bad = utf8_fault(text, len);
    if (bad < len) return status_fail(ST_INPUT, "cannot tokenize: byte %zu of the text is not UTF-8 (0x%02X)", bad, (unsigned)(uint8_t)text[bad]);
    if (len > INT32_MAX / 8) return status_fail(ST_INPUT, "cannot tokenize a text of %zu bytes at once: at most %d", len, INT32_MAX / 8);
    Encoding e = {tokenizer, encoder_acquire(tokenizer), literal, ids, offsets};
    if (!e.encoder) return ST_RESOURCE;
    e.encoder->tracked = offsets || literal.n > 0 || tokenizer->pretokenizer.needs_origins;
    size_t n = ids->n, n_offsets = offsets ? offsets->n : 0;
    Text whole = {len > 0 ? text : "", len, NULL, 0};
    if (flags & TOKENIZE_SPECIAL) emit_added(&e, &tokenizer->post.before);
    Status status = encode_around(&e, &tokenizer->added.plain, &whole, encode_normalized);
    if (flags & TOKENIZE_SPECIAL) emit_added(&e, &tokenizer->post.after);
    encoder_return(tokenizer, e.encoder);
    if (status == ST_OK) return ST_OK;
    ids->n = n;
    if (offsets) offsets->n = n_offsets;
    return status;
}

Status tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t len, TokenizeFlags flags, Ids *ids) {
    return text_tokenizer_encode(tokenizer, text, len, flags, (Literal){.all = flags & TOKENIZE_LITERAL}, ids, NULL);
}

Status tokenizer_encode_offsets(const Tokenizer *tokenizer, const char *text, size_t len, TokenizeFlags flags, Ids *ids, Ids *offsets) {
    return text_tokenizer_encode(tokenizer, text, len, flags, (Literal){.all = flags & TOKENIZE_LITERAL}, ids, offsets);
}

Status tokenizer_encode_guarded(const Tokenizer *tokenizer, const char *text, size_t len, const size_t *guards, size_t n, Ids *ids, Ids *offsets) {
    return text_tokenizer_encode(tokenizer, text, len, TOKENIZE_PLAIN, (Literal){.guards = guards, .n = n}, ids, offsets);
}

bool tokenizer_find_special(const Tokenizer *tokenizer, const char *text, size_t len, size_t from, size_t *begin, size_t *end) {
    const AddedSet *sets[] = {&tokenizer->added.plain, &tokenizer->added.normalized};
    const Text whole = {text, len, NULL, 0};
    bool found = false;
    AddedMatch match;
    for (size_t i = 0; i < COUNT_OF(sets); i++)
        for (size_t at = from; added_find(sets[i], &whole, at, at, &(Literal){0}, &match); at = match.resume) {
            size_t start = match.resume - match.token->pattern.len;
            if (!match.token->special || (found && start >= *begin)) continue;
            *begin = start;
            *end = match.resume;
            found = true;
            break;
        }
    return found;
}

/* ---- accessors ---- */

int32_t tokenizer_vocab_size(const Tokenizer *tokenizer) { return tokenizer->vocabulary.size; }
int32_t tokenizer_id(const Tokenizer *tokenizer, const char *token) { return vocabulary_find(&tokenizer->vocabulary, token, strlen(token)); }
const char *tokenizer_token(const Tokenizer *tokenizer, int32_t id) {
    return id >= 0 && id < tokenizer->vocabulary.size ? tokenizer->vocabulary.tokens[id].data : NULL;
}
int32_t tokenizer_difference(const Tokenizer *a, const Tokenizer *b) {
    int32_t n = MIN(tokenizer_vocab_size(a), tokenizer_vocab_size(b));
    for (int32_t id = 0; id < n; id++) {
        const char *one = tokenizer_token(a, id), *other = tokenizer_token(b, id);
        if ((one || other) && !(one && other && strcmp(one, other) == 0)) return id;
    }
    return -1;
}
bool tokenizer_is_special(const Tokenizer *tokenizer, int32_t id) {
    return id >= 0 && id < tokenizer->vocabulary.size && tokenizer->added.special[id];
}
int32_t tokenizer_bos(const Tokenizer *tokenizer) { return tokenizer->bos; }
int32_t tokenizer_eos(const Tokenizer *tokenizer) { return tokenizer->eos; }
int32_t tokenizer_pad(const Tokenizer *tokenizer) { return tokenizer->pad; }
bool tokenizer_adds_bos(const Tokenizer *tokenizer) { return tokenizer->post.before.n > 0 && tokenizer->post.before.data[0] == tokenizer->bos; }

/* ---- loading ---- */

Status part_unknown(const Loader *loader, const char *section, const char *type) {
    return status_fail(ST_INPUT, "cannot use the %s '%s' in '%s': this kind is not supported", section, type, loader->path);
}

Status part_string(const Loader *loader, const json_t *part, const char *key, const char **value) {
    *value = NULL;
    if (!json_is_object(part)) return status_fail(ST_INPUT, "expected an object with '%s' in '%s'", key, loader->path);
    TRY(json_get_string(part, loader->path, key, value));
    return *value ? ST_OK : status_fail(ST_INPUT, "missing '%s' in '%s'", key, loader->path);
}

Status part_bool(const Loader *loader, const json_t *part, const char *key, bool missing, bool *value) {
    *value = missing;
    return json_get_bool(part, loader->path, key, value);
}

Status part_char(const Loader *loader, const json_t *part, const char *key, const char **value) {
    uint32_t c;
    TRY(part_string(loader, part, key, value));
    if (**value && char_next(*value, &c) == strlen(*value)) return ST_OK;
    return status_fail(ST_INPUT, "wrong '%s' in '%s': expected one character, got '%s'", key, loader->path, *value);
}

static Status tokenizer_flatten(Loader *loader, const char *section, const json_t *node, const char *list_key, int depth, const json_t **parts,
                                size_t *n) {
    const char *type;
    TRY(part_string(loader, node, "type", &type));
    if (strcmp(type, "Sequence") != 0) {
        if (parts) parts[*n] = node;
        *n += 1;
        return ST_OK;
    }
    const json_t *list = json_object_get(node, list_key), *item;
    size_t i;
    if (!json_is_array(list)) return status_fail(ST_INPUT, "wrong %s in '%s': a Sequence needs a list '%s'", section, loader->path, list_key);
    if (depth == MAX_SEQUENCE_DEPTH) return status_fail(ST_INPUT, "%s in '%s' is nested too deeply", section, loader->path);
    json_array_foreach(list, i, item) TRY(tokenizer_flatten(loader, section, item, list_key, depth + 1, parts, n));
    return ST_OK;
}

Status section_flatten(Loader *loader, const char *section, const json_t *node, const char *list_key, const json_t ***parts, size_t *n) {
    *parts = NULL;
    *n = 0;
    if (!node || json_is_null(node)) return ST_OK;
    TRY(tokenizer_flatten(loader, section, node, list_key, 0, NULL, n));
    *parts = arena_alloc(loader->arena, (*n + 1) * sizeof **parts);
    if (!*parts) return ST_RESOURCE;
    *n = 0;
    return tokenizer_flatten(loader, section, node, list_key, 0, *parts, n);
}

static Status sections_load(Loader *loader, const json_t *root) {
    Tokenizer *t = loader->tokenizer;
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    if (!json_is_object(model))
        return status_hint(status_fail(ST_INPUT, "'%s' is not a tokenizer: it has no 'model'", loader->path), "give a tokenizer.json, or its folder");
    static const char *const ignored[] = {"truncation", "padding"};
    for (size_t i = 0; i < COUNT_OF(ignored); i++)
        if (json_is_object(json_object_get(root, ignored[i]))) log_message(LOG_WARNING, "'%s' in '%s' is ignored", ignored[i], loader->path);
    TRY(model_check(loader, &t->model, model));
    TRY(vocabulary_init(loader, &t->vocabulary, model, added));
    TRY(normalizer_init(loader, &t->normalizer, json_object_get(root, "normalizer")));
    TRY(pretokenizer_init(loader, &t->pretokenizer, json_object_get(root, "pre_tokenizer")));
    TRY(model_init(loader, &t->model, model));
    TRY(added_tokens_init(loader, &t->added, added));
    TRY(post_processor_init(loader, &t->post, json_object_get(root, "post_processor")));
    return decoder_init(loader, &t->decoder, json_object_get(root, "decoder"));
}

static Tokenizer *tokenizer_new(void) {
    Tokenizer *t = calloc(1, sizeof *t);
    if (t) t->arena = arena_new(0);
    if (t && t->arena) {
        t->bos = t->eos = t->pad = -1;
        return t;
    }
    free(t);
    status_fail(ST_RESOURCE, "no memory for a tokenizer");
    return NULL;
}

void tokenizer_free(Tokenizer *tokenizer) {
    if (!tokenizer) return;
    for (size_t i = 0; i < IDLE_ENCODERS; i++) encoder_free(atomic_load(&tokenizer->idle[i]));
    for (Pattern *p = tokenizer->patterns; p; p = p->next) pcre2_code_free(p->code);
    post_processor_release(&tokenizer->post);
    arena_free(tokenizer->arena);
    free(tokenizer);
}

static Status tokenizer_json_read(const char *file, const char *dir, json_t **root) {
    TRY(json_read_file(file, root));
    return settings_tokens_append(dir, *root);
}

static Status gguf_read(const char *path, json_t **root) {
    TRY(gguf_tokenizer_json(path, root));
    return *root ? ST_OK : status_fail(ST_INPUT, "no tokenizer in '%s'", path);
}

/* Resolves `path`: a file, or a directory with one of two sets of files. `dir`: where to look for further files. */
static Status root_read(const char *path, Str *file, Str *dir, json_t **root) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (gguf_is(path)) {
        str_append(file, path);
        str_append(dir, path);
        return gguf_read(path, root);
    }
    if (dir_exists(path)) {
        str_append(dir, path);
        str_printf(file, "%s/tokenizer.json", path);
        bool there;
        TRY(file_find(str_text(file), &there));
        if (there) return tokenizer_json_read(str_text(file), str_text(dir), root);
    } else {
        str_append_n(dir, slash ? path : ".", slash ? MAX((size_t)(slash - path), (size_t)1) : 1);
        str_append(file, path);
        if (strcmp(name, "vocab.json") != 0 && strcmp(name, "merges.txt") != 0) return tokenizer_json_read(path, str_text(dir), root);
    }
    str_clear(file);
    str_printf(file, "%s/vocab.json", str_text(dir));
    if (!file_exists(str_text(file))) {
        str_clear(file);
        str_printf(file, "%s/tokenizer_config.json", str_text(dir));
    }
    return tokenizer_json_from_files(str_text(dir), root);
}

Status tokenizer_from_json(const json_t *root, const char *name, Tokenizer **tokenizer) {
    Tokenizer *t = *tokenizer = tokenizer_new();
    if (!t) return ST_RESOURCE;
    Loader loader = {t, t->arena, name};
    Status status = sections_load(&loader, root);
    if (status == ST_OK) return ST_OK;
    tokenizer_free(t);
    *tokenizer = NULL;
    return status;
}

Status tokenizer_load(const char *path, Tokenizer **tokenizer) {
    Str file = {0}, dir = {0};
    json_t *root = NULL;
    *tokenizer = NULL;
    Status status = root_read(path, &file, &dir, &root);
    if (status == ST_OK) status = tokenizer_from_json(root, str_text(&file), tokenizer);
    if (status == ST_OK) status = special_tokens_load(*tokenizer, str_text(&dir));
    if (status != ST_OK) {
        tokenizer_free(*tokenizer);
        *tokenizer = NULL;
    }
    json_decref(root);
    str_release(&file);
    str_release(&dir);
    return status;
}

bool tokenizer_in(const char *dir) {
    static const char *const names[] = {"tokenizer.json", "vocab.json"};
    if (gguf_is(dir)) return gguf_tokenizer_in(dir);
    Str path = {0};
    bool there = false;
    for (size_t i = 0; i < COUNT_OF(names) && !there; i++) {
        str_clear(&path);
        str_printf(&path, "%s/%s", dir, names[i]);
        if (file_find(str_text(&path), &there) != ST_OK) there = true; /* tokenizer_load will report the failure */
    }
    str_release(&path);
    json_t *config = NULL;
    if (!there && tokenizer_config_read(dir, &config) == ST_OK) there = config && char_config(config);
    json_decref(config);
    return there;
}

Status tokenizer_load_if_any(const char *dir, Tokenizer **tokenizer) {
    *tokenizer = NULL;
    return tokenizer_in(dir) ? tokenizer_load(dir, tokenizer) : ST_OK;
}
