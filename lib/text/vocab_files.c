/* SPDX-License-Identifier: Apache-2.0 */
/* The other files of a tokenizer: vocab.json and merges.txt of older models, and the settings that name bos, eos and pad. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/text/tokenizer_parts.h"

#define QWEN2_PATTERN \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Reads an object from DIR/NAME; NULL when there is no such file. */
static Status object_read(const char *dir, const char *name, json_t **object) {
    Str path = {0};
    *object = NULL;
    str_printf(&path, "%s/%s", dir, name);
    bool there;
    Status status = file_find(str_text(&path), &there);
    if (there) status = json_read_file(str_text(&path), object);
    if (*object && !json_is_object(*object)) {
        json_decref(*object);
        *object = NULL;
        status = status_fail(ST_INPUT, "'%s' is not a JSON object", str_text(&path));
    }
    str_release(&path);
    return status;
}

Status tokenizer_config_read(const char *dir, json_t **config) {
    TRY(object_read(dir, "tokenizer_config.json", config));
    if (*config) char_config_complete(*config);
    return ST_OK;
}

/* A special token is written as a string or as {"content": ..}. */
static const char *token_content(const json_t *object, const char *key) {
    const json_t *token = json_object_get(object, key);
    return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}

static Status merges_read(const char *dir, json_t *merges) {
    Str path = {0};
    Lines lines;
    Slice line;
    str_printf(&path, "%s/merges.txt", dir);
    Status status = lines_open(&lines, str_text(&path));
    str_release(&path);
    if (status != ST_OK) return status;
    while (lines_next(&lines, &line)) {
        bool comment = lines.number == 1 && line.len >= 8 && memcmp(line.data, "#version", 8) == 0;
        if (line.len == 0 || comment) continue;
        json_t *merge = json_stringn(line.data, line.len);
        if (merge && json_array_append_new(merges, merge) == 0) continue;
        Status wrong = merge ? ST_RESOURCE : ST_INPUT;
        status_fail(wrong, "line %zu of merges.txt in '%s' is not UTF-8", lines.number, dir);
        (void)!lines_close(&lines);
        return wrong;
    }
    return lines_close(&lines);
}

static bool listed(const json_t *list, const char *content) {
    size_t i;
    const json_t *item;
    json_array_foreach(list, i, item) if (strcmp(json_string_value(json_object_get(item, "content")), content) == 0) return true;
    return false;
}

static void token_add(json_t *list, const char *content, json_int_t id, bool special) {
    if (!listed(list, content))
        json_array_append_new(list, json_pack("{s:I,s:s,s:b,s:b}", "id", id, "content", content, "special", special, "normalized", !special));
}

/* "added_tokens_decoder": {"151643": {"content": ..}} of newer settings. */
static Status decoder_tokens_read(const char *dir, const json_t *config, json_t *list) {
    const char *key;
    json_t *entry;
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, entry) {
        json_int_t id = 0;
        size_t digits = strspn(key, "0123456789");
        if (digits == 0 || digits > 9 || key[digits] || !json_is_string(json_object_get(entry, "content")))
            return status_fail(ST_INPUT, "wrong 'added_tokens_decoder' entry '%s' in tokenizer_config.json of '%s'", key, dir);
        for (size_t i = 0; i < digits; i++) id = id * 10 + (key[i] - '0');
        json_t *token = json_copy(entry);
        json_object_set_new(token, "id", json_integer(id));
        json_array_append_new(list, token);
    }
    return ST_OK;
}

/* "added_tokens.json": {"<|im_start|>": 151644} of older models. */
static Status plain_tokens_read(const char *dir, json_t *list) {
    json_t *object, *id;
    const char *content;
    TRY(object_read(dir, "added_tokens.json", &object));
    Status status = ST_OK;
    json_object_foreach(object, content, id) {
        if (!json_is_integer(id))
            status = status_fail(ST_INPUT, "wrong id of '%s' in added_tokens.json of '%s'", content, dir);
        else
            token_add(list, content, json_integer_value(id), true);
    }
    json_decref(object);
    return status;
}

/* Adds the tokens that the settings call special and that the vocabulary has. */
static void special_tokens_add(const json_t *settings, const json_t *vocab, json_t *list) {
    static const char *const keys[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        const char *content = token_content(settings, keys[i]);
        const json_t *id = content ? json_object_get(vocab, content) : NULL;
        if (json_is_integer(id)) token_add(list, content, json_integer_value(id), true);
    }
}

static Status added_read(const char *dir, const json_t *config, const json_t *map, const json_t *vocab, json_t *list) {
    TRY(decoder_tokens_read(dir, config, list));
    TRY(plain_tokens_read(dir, list));
    special_tokens_add(config, vocab, list);
    special_tokens_add(map, vocab, list);
    const json_t *end = json_object_get(vocab, "<|endoftext|>"); /* GPT-2's special token, which its files need not name */
    if (json_is_integer(end)) token_add(list, "<|endoftext|>", json_integer_value(end), true);
    return ST_OK;
}

/* Builds the sections in which GPT-2 and Qwen2 differ. */
static json_t *sections_pack(bool qwen2, bool prefix_space, json_t *model, json_t *added) {
    if (!qwen2)
        return json_pack("{s:o,s:o,s:{s:s,s:b,s:b},s:{s:s}}", "model", model, "added_tokens", added, "pre_tokenizer", "type", "ByteLevel",
                         "add_prefix_space", prefix_space, "use_regex", true, "decoder", "type", "ByteLevel");
    return json_pack("{s:o,s:o,s:{s:s},s:{s:s,s:[{s:s,s:{s:s},s:s},{s:s,s:b,s:b}]},s:{s:s}}", "model", model, "added_tokens", added, "normalizer",
                     "type", "NFC", "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex", QWEN2_PATTERN,
                     "behavior", "Isolated", "type", "ByteLevel", "add_prefix_space", prefix_space, "use_regex", false, "decoder", "type",
                     "ByteLevel");
}

static json_t *bos_template(const char *bos, json_int_t id) {
    return json_pack("{s:s,s:[{s:{s:s,s:i}},{s:{s:s,s:i}}],s:{s:{s:[I]}}}", "type", "TemplateProcessing", "single", "SpecialToken", "id", bos,
                     "type_id", 0, "Sequence", "id", "A", "type_id", 0, "special_tokens", bos, "ids", id);
}

static Status assemble(const char *dir, const json_t *config, const json_t *map, json_t *vocab, json_t **root) {
    const char *class = "GPT2Tokenizer", *bos = token_content(config, "bos_token");
    bool prefix_space = false, add_bos = false;
    TRY(json_get_string(config, "tokenizer_config.json", "tokenizer_class", &class));
    TRY(json_get_bool(config, "tokenizer_config.json", "add_prefix_space", &prefix_space));
    TRY(json_get_bool(config, "tokenizer_config.json", "add_bos_token", &add_bos));
    bool qwen2 = text_starts_with(class, "Qwen2Tokenizer");
    if (!qwen2 && !text_starts_with(class, "GPT2Tokenizer") && !text_starts_with(class, "PreTrainedTokenizer"))
        return status_hint(status_fail(ST_INPUT, "cannot use the tokenizer class '%s' in '%s' without a tokenizer.json", class, dir),
                           "save it again with a recent transformers, which writes tokenizer.json");
    json_t *added = json_array(), *merges = json_array();
    Status status = added_read(dir, config, map, vocab, added);
    if (status == ST_OK) status = merges_read(dir, merges);
    if (status != ST_OK) {
        json_decref(added);
        json_decref(merges);
        return status;
    }
    json_t *model = json_pack("{s:s,s:O,s:o}", "type", "BPE", "vocab", vocab, "merges", merges);
    *root = sections_pack(qwen2, prefix_space, model, added);
    const json_t *id = bos ? json_object_get(vocab, bos) : NULL;
    if (*root && add_bos && json_is_integer(id)) json_object_set_new(*root, "post_processor", bos_template(bos, json_integer_value(id)));
    return *root ? ST_OK : status_fail(ST_RESOURCE, "no memory for the tokenizer of '%s'", dir);
}

/* The most common unsupported file is SentencePiece's. */
static Status no_tokenizer(const char *dir) {
    Str path = {0};
    str_printf(&path, "%s/tokenizer.model", dir);
    bool piece = file_exists(str_text(&path));
    str_release(&path);
    status_fail(ST_INPUT, "no tokenizer in '%s': it lacks tokenizer.json", dir);
    if (piece)
        return status_hint(
            ST_INPUT,
            "its tokenizer.model is SentencePiece's, which is not supported: python3 -c \"from transformers import AutoTokenizer as T; "
            "T.from_pretrained('%s').save_pretrained('%s')\" writes a tokenizer.json into the same directory",
            dir, dir);
    return status_hint(ST_INPUT, "copy tokenizer.json of this model, or of its base model, into it; vocab.json and merges.txt work too");
}

Status tokenizer_json_from_files(const char *dir, json_t **root) {
    json_t *config = NULL, *map = NULL, *vocab = NULL;
    *root = NULL;
    Status status = tokenizer_config_read(dir, &config);
    if (status == ST_OK) status = object_read(dir, "special_tokens_map.json", &map);
    if (status == ST_OK) status = object_read(dir, "vocab.json", &vocab);
    json_t *settings = config ? json_incref(config) : json_object();
    if (status == ST_OK && vocab)
        status = assemble(dir, settings, map, vocab, root);
    else if (status == ST_OK && char_config(settings))
        status = tokenizer_json_from_chars(dir, settings, root);
    else if (status == ST_OK)
        status = no_tokenizer(dir);
    json_decref(settings);
    json_decref(config);
    json_decref(map);
    json_decref(vocab);
    return status;
}

/* ---- tokens that only the settings have ---- */

/* The list of added tokens, and their texts as keys of an object. */
typedef struct AddedList {
    json_t *list, *texts;
} AddedList;

static void list_append(AddedList *added, json_t *token, const char *content) {
    json_object_del(token, "id"); /* the tokenizer assigns the next id */
    json_object_set_new(added->texts, content, json_true());
    json_array_append(added->list, token);
}

static int by_id(const void *a, const void *b) {
    json_int_t x = json_integer_value(json_object_get(*(json_t *const *)a, "id")), y = json_integer_value(json_object_get(*(json_t *const *)b, "id"));
    return (x > y) - (x < y);
}

/* Appends the tokens in the order of their ids. */
static Status decoder_tokens_append(const char *dir, const json_t *config, AddedList *added) {
    json_t *tokens = json_array();
    Status status = decoder_tokens_read(dir, config, tokens);
    size_t n = json_array_size(tokens);
    json_t **sorted = calloc(n + 1, sizeof *sorted);
    if (status == ST_OK && !sorted) status = status_fail(ST_RESOURCE, "no memory for the tokenizer of '%s'", dir);
    for (size_t i = 0; i < n && sorted; i++) sorted[i] = json_array_get(tokens, i);
    if (status == ST_OK) qsort(sorted, n, sizeof(json_t *), by_id);
    for (size_t i = 0; i < n && status == ST_OK; i++) {
        const char *content = json_string_value(json_object_get(sorted[i], "content"));
        if (!json_object_get(added->texts, content)) list_append(added, sorted[i], content);
    }
    free(sorted);
    json_decref(tokens);
    return status;
}

/* Appends a special token that the settings name: as written there, or as a plain one. */
static void named_token_append(const json_t *token, AddedList *added) {
    const char *content = json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    if (!content || !*content || json_object_get(added->texts, content)) return;
    json_t *own = json_is_object(token) ? json_copy((json_t *)(uintptr_t)token) : json_pack("{s:s, s:b}", "content", content, "normalized", false);
    json_object_set_new(own, "special", json_true());
    list_append(added, own, content);
    json_decref(own);
}

/* Appends bos, eos and the like, then further tokens from lists and objects. */
static void named_tokens_append(const json_t *config, const json_t *map, AddedList *added) {
    static const char *const keys[] = {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
    const char *name;
    json_t *token;
    size_t n;
    for (size_t i = 0; i < COUNT_OF(keys); i++) named_token_append(json_object_get(json_object_get(config, keys[i]) ? config : map, keys[i]), added);
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        const json_t *list = json_object_get(json_object_get(config, lists[i]) ? config : map, lists[i]);
        json_array_foreach(list, n, token) named_token_append(token, added);
        json_object_foreach((json_t *)(uintptr_t)list, name, token) named_token_append(token, added);
    }
}

static Status settings_append(const char *dir, AddedList *added) {
    json_t *config = NULL, *map = NULL;
    Status status = tokenizer_config_read(dir, &config);
    if (status == ST_OK) status = object_read(dir, "special_tokens_map.json", &map);
    if (status == ST_OK) status = decoder_tokens_append(dir, config, added);
    if (status == ST_OK) named_tokens_append(config, map, added);
    json_decref(config);
    json_decref(map);
    return status;
}

Status settings_tokens_append(const char *dir, json_t *root) {
    json_t *given = json_object_get(root, "added_tokens");
    if (!json_is_object(root) || (given && !json_is_null(given) && !json_is_array(given))) return ST_OK; /* the loader reports these */
    AddedList added = {json_is_array(given) ? json_incref(given) : json_array(), json_object()};
    size_t i;
    const json_t *item;
    json_array_foreach(added.list, i, item) {
        const char *content = json_string_value(json_object_get(item, "content"));
        if (content) json_object_set_new(added.texts, content, json_true());
    }
    Status status = settings_append(dir, &added);
    if (json_array_size(added.list) > 0) json_object_set(root, "added_tokens", added.list);
    json_decref(added.list);
    json_decref(added.texts);
    return status;
}

/* The id that the settings name, else the one that special_tokens_map.json names. */
static int32_t special_id(const Tokenizer *tokenizer, const json_t *config, const json_t *map, const char *key) {
    const char *content = json_object_get(config, key) ? token_content(config, key) : token_content(map, key);
    int32_t id = content ? tokenizer_id(tokenizer, content) : -1;
    if (content && id < 0) log_message(LOG_WARNING, "'%s' is '%s', which is not in the vocabulary", key, content);
    return id;
}

Status special_tokens_load(Tokenizer *tokenizer, const char *dir) {
    json_t *config = NULL, *map = NULL;
    Status status = tokenizer_config_read(dir, &config);
    if (status == ST_OK) status = object_read(dir, "special_tokens_map.json", &map);
    if (status == ST_OK) {
        tokenizer->bos = special_id(tokenizer, config, map, "bos_token");
        tokenizer->eos = special_id(tokenizer, config, map, "eos_token");
        tokenizer->pad = special_id(tokenizer, config, map, "pad_token");
    }
    json_decref(config);
    json_decref(map);
    return status;
}
