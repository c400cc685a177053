/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers with one token for each character, defined by a tokenizer_config.json with "char_ords" (code points) alone. Ids 0 to 3 are S
 * (separator), E (end), P (padding) and U (unknown), followed by the characters in their order. Source: class CharTokenizer of verl's digit
 * completion task. */
#include "lib/text/tokenizer_parts.h"

static const struct { const char *key, *content; } special[] = {{"sep_token", "S"}, {"eos_token", "E"}, {"pad_token", "P"}, {"unk_token", "U"}};

bool char_config(const json_t *config) { return json_is_array(json_object_get(config, "char_ords")); }

void char_config_complete(json_t *config) {
    for (size_t i = 0; char_config(config) && i < COUNT_OF(special); i++)
        json_object_set_new(config, special[i].key, json_string(special[i].content));
}

static Status vocab_fill(const char *dir, const json_t *ords, json_t *vocab) {
    for (size_t i = 0; i < COUNT_OF(special); i++) json_object_set_new(vocab, special[i].content, json_integer((json_int_t)i));
    size_t i;
    const json_t *ord;
    json_array_foreach(ords, i, ord) {
        json_int_t c = json_is_integer(ord) ? json_integer_value(ord) : -1;
        if (c < 1 || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
            return status_fail(ST_INPUT, "entry %zu of 'char_ords' in tokenizer_config.json of '%s' is no character", i, dir);
        char text[5] = {0};
        utf8_encode((uint32_t)c, text);
        if (json_object_get(vocab, text))
            return status_fail(ST_INPUT, "entry %zu of 'char_ords' in tokenizer_config.json of '%s' is '%s' once more", i, dir, text);
        if (json_object_set_new(vocab, text, json_integer((json_int_t)(i + COUNT_OF(special)))) != 0)
            return status_fail(ST_RESOURCE, "out of memory for the tokenizer of '%s'", dir);
    }
    return ST_OK;
}

Status tokenizer_json_from_chars(const char *dir, const json_t *config, json_t **root) {
    json_t *vocab = json_object(), *added = json_array();
    Status status = vocab_fill(dir, json_object_get(config, "char_ords"), vocab);
    for (size_t i = 0; i < COUNT_OF(special); i++)
        json_array_append_new(
            added, json_pack("{s:I,s:s,s:b,s:b}", "id", (json_int_t)i, "content", special[i].content, "special", true, "normalized", false));
    *root =
        json_pack("{s:{s:s,s:o,s:s},s:o,s:{s:s,s:{s:s},s:s},s:{s:s}}", "model", "type", "WordLevel", "vocab", vocab, "unk_token", "U", "added_tokens",
                  added, "pre_tokenizer", "type", "Split", "pattern", "Regex", "(?s).", "behavior", "Isolated", "decoder", "type", "Fuse");
    if (status == ST_OK && !*root) status = status_fail(ST_RESOURCE, "out of memory for the tokenizer of '%s'", dir);
    return status;
}
