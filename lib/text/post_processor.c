/* SPDX-License-Identifier: Apache-2.0 */
/* The ids that are added before and after those of a text. */
#include <string.h>

#include "lib/text/tokenizer_parts.h"

static Status id_push(const Loader *loader, const char *token, json_int_t id, Ids *ids) {
    const Vocabulary *vocabulary = &loader->tokenizer->vocabulary;
    if (id < 0 || id >= vocabulary->size || !vocabulary->tokens[id].data)
        return status_fail(ST_INPUT, "post_processor of '%s' adds token '%s' with id %lld, which is not in the vocabulary", loader->path, token,
                           (long long)id);
    ids_push(ids, (int32_t)id);
    return ST_OK;
}

/* Appends the ids of a template's special token. */
static Status special_push(Loader *loader, const json_t *specials, const char *name, Ids *ids) {
    const json_t *list = json_object_get(json_object_get(specials, name), "ids"), *id;
    size_t i;
    if (!json_is_array(list))
        return status_fail(ST_INPUT, "post_processor of '%s' uses '%s', which is not in its 'special_tokens'", loader->path, name);
    json_array_foreach(list, i, id) {
        if (!json_is_integer(id)) return status_fail(ST_INPUT, "wrong ids of '%s' in the post_processor of '%s'", name, loader->path);
        TRY(id_push(loader, name, json_integer_value(id), ids));
    }
    return ST_OK;
}

static Status template_wrong(const Loader *loader) {
    return status_fail(ST_INPUT, "wrong 'single' template in the post_processor of '%s': expected special tokens and the sequence A once",
                       loader->path);
}

/* Appends the ids before and after the sequence A to `before` and `after`. */
static Status template_read(Loader *loader, const json_t *node, Ids *before, Ids *after) {
    const json_t *single = json_object_get(node, "single"), *piece;
    size_t i, sequences = 0;
    if (!json_is_array(single)) return template_wrong(loader);
    json_array_foreach(single, i, piece) {
        const json_t *special = json_object_get(piece, "SpecialToken"), *sequence = json_object_get(piece, "Sequence");
        const json_t *name = json_object_get(special ? special : sequence, "id");
        if (!json_is_string(name)) return template_wrong(loader);
        if (special)
            TRY(special_push(loader, json_object_get(node, "special_tokens"), json_string_value(name), sequences ? after : before));
        else if (strcmp(json_string_value(name), "A") != 0 || sequences++ > 0)
            return template_wrong(loader);
    }
    return sequences == 1 ? ST_OK : template_wrong(loader);
}

/* {"sep": ["</s>", 2], "cls": ["<s>", 0]} */
static Status bert_read(Loader *loader, const json_t *node, Ids *before, Ids *after) {
    static const char *const keys[] = {"cls", "sep"};
    for (int i = 0; i < 2; i++) {
        const json_t *pair = json_object_get(node, keys[i]);
        if (json_array_size(pair) != 2 || !json_is_string(json_array_get(pair, 0)) || !json_is_integer(json_array_get(pair, 1)))
            return status_fail(ST_INPUT, "wrong '%s' in the post_processor of '%s': expected [token, id]", keys[i], loader->path);
        TRY(id_push(loader, json_string_value(json_array_get(pair, 0)), json_integer_value(json_array_get(pair, 1)), i == 0 ? before : after));
    }
    return ST_OK;
}

static Status part_read(Loader *loader, const json_t *node, Ids *before, Ids *after) {
    const char *type;
    TRY(part_string(loader, node, "type", &type));
    if (strcmp(type, "ByteLevel") == 0) return ST_OK; /* only trims offsets */
    if (strcmp(type, "TemplateProcessing") == 0) return template_read(loader, node, before, after);
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) return bert_read(loader, node, before, after);
    return part_unknown(loader, "post_processor", type);
}

/* Each element adds around the result of the elements before it. */
Status post_processor_init(Loader *loader, PostProcessor *processor, const json_t *node) {
    const json_t **parts;
    size_t n;
    TRY(section_flatten(loader, "post_processor", node, "processors", &parts, &n));
    for (size_t i = 0; i < n; i++) {
        Ids before = {0};
        Status status = part_read(loader, parts[i], &before, &processor->after);
        ids_append(&before, processor->before.data, processor->before.n);
        ids_release(&processor->before);
        processor->before = before;
        TRY(status);
    }
    return ST_OK;
}

void post_processor_release(PostProcessor *processor) {
    ids_release(&processor->before);
    ids_release(&processor->after);
}
