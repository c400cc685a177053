/* Post-processors: the special tokens around a text. */
#include <string.h>

#include "lib/text/tokenizer_parts.h"

static Status push_ids(const json_t *ids, const char *where, Ids *out) {
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX) return status_fail(ST_INPUT, "the post-processor of '%s' has an id that is none", where);
        ids_push(out, (int32_t)json_integer_value(id));
    }
    return ST_OK;
}

static Status read_template(const json_t *json, const char *where, PostProcessor *post) {
    const json_t *list = json_object_get(json, "single"), *specials = json_object_get(json, "special_tokens");
    bool behind = false;
    if (!json_is_array(list)) return status_fail(ST_INPUT, "the template of '%s' has no list 'single'", where);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i), *special = json_object_get(item, "SpecialToken");
        if (json_object_get(item, "Sequence")) {
            if (behind) return status_fail(ST_INPUT, "the template of '%s' has the text twice", where);
            behind = true;
            continue;
        }
        const char *name = json_string_value(json_object_get(special, "id"));
        const json_t *ids = name ? json_object_get(json_object_get(specials, name), "ids") : NULL;
        if (!json_is_array(ids)) return status_fail(ST_INPUT, "the template of '%s' names '%s', which is not among its special tokens", where, name ? name : "?");
        TRY(push_ids(ids, where, behind ? &post->after : &post->before));
    }
    return behind ? ST_OK : status_fail(ST_INPUT, "the template of '%s' has no place for the text", where);
}

/* BERT's and RoBERTa's: {"cls": ["<s>", 0], "sep": ["</s>", 2]}. */
static Status read_cls_sep(const json_t *json, const char *where, PostProcessor *post) {
    const json_t *cls = json_array_get(json_object_get(json, "cls"), 1), *sep = json_array_get(json_object_get(json, "sep"), 1);
    if (!json_is_integer(cls) || !json_is_integer(sep)) return status_fail(ST_INPUT, "the post-processor of '%s' lacks 'cls' or 'sep'", where);
    ids_push(&post->before, (int32_t)json_integer_value(cls));
    ids_push(&post->after, (int32_t)json_integer_value(sep));
    return ST_OK;
}

static Status check_ids(const Ids *ids, const char *where, const Vocab *vocab) {
    for (size_t i = 0; i < ids->n; i++)
        if (ids->data[i] >= vocab->n || !vocab->tokens[ids->data[i]]) return status_fail(ST_INPUT, "the post-processor of '%s' adds id %d, which is not in the vocabulary", where, ids->data[i]);
    return ST_OK;
}

Status post_processor_read(const json_t *json, const char *where, const Vocab *vocab, PostProcessor *post) {
    if (!json || json_is_null(json)) return ST_OK;
    const char *type = part_type(json);
    if (!strcmp(type, "ByteLevel")) return ST_OK; /* trims offsets only */
    if (!strcmp(type, "Sequence")) {
        const json_t *list = json_object_get(json, "processors");
        for (size_t i = 0; i < json_array_size(list); i++) {
            if (!strcmp(part_type(json_array_get(list, i)), "Sequence")) return unknown_part(where, "post-processor", "Sequence in a Sequence");
            TRY(post_processor_read(json_array_get(list, i), where, vocab, post));
        }
        return ST_OK;
    }
    if (!strcmp(type, "TemplateProcessing")) TRY(read_template(json, where, post));
    else if (!strcmp(type, "RobertaProcessing") || !strcmp(type, "BertProcessing")) TRY(read_cls_sep(json, where, post));
    else return unknown_part(where, "post-processor", type);
    TRY(check_ids(&post->before, where, vocab));
    return check_ids(&post->after, where, vocab);
}

void post_processor_release(PostProcessor *post) {
    ids_release(&post->before);
    ids_release(&post->after);
}
