/* SPDX-License-Identifier: Apache-2.0 */
/* {"input_ids","labels"}: tokens as given, nothing is added. Labels are in place (not shifted), -100 = not trained; without labels every token is
 * trained. Tokens with "attention_mask" 0 are padding and are left out, since no batch is padded here. */
#include "data/formats/formats.h"

#include <string.h>

static const json_t *row_ids(const json_t *row) {
    const json_t *ids = json_object_get(row, "input_ids");
    return ids ? ids : json_object_get(row, "ids");
}

static bool detect_ids(const json_t *row) { return json_is_array(row_ids(row)); }

static Status read_ids(const json_t *array, const char *key, Ids *ids) {
    if (!json_is_array(array)) return status_fail(ST_INPUT, "'%s' is not a list of token ids", key);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        json_int_t value = json_integer_value(item);
        if (!json_is_integer(item)) return status_fail(ST_INPUT, "'%s' holds something else than whole numbers at position %zu", key, i);
        if (value < INT32_MIN || value > INT32_MAX)
            return status_fail(ST_INPUT, "'%s' has %lld at position %zu, which is not a token id", key, (long long)value, i);
        ids_push(ids, (int32_t)value);
    }
    return ST_OK;
}

/* Tokens first..end-1 are the row; zeros before and after them are padding. */
static Status find_padding(const json_t *mask, size_t n, size_t *first, size_t *end) {
    *first = 0;
    *end = n;
    if (!mask || json_is_null(mask)) return ST_OK;
    if (!json_is_array(mask) || json_array_size(mask) != n)
        return status_fail(ST_INPUT, "'attention_mask' is not a list of as many numbers as 'input_ids', %zu", n);
    while (*first < n && json_integer_value(json_array_get(mask, *first)) == 0) ++*first;
    while (*end > *first && json_integer_value(json_array_get(mask, *end - 1)) == 0) --*end;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(mask, i);
        bool seen = i >= *first && i < *end;
        if (!json_is_integer(item) || json_integer_value(item) != seen)
            return status_fail(ST_INPUT, "'attention_mask' is not one run of 1 with only 0 before and after it: position %zu", i);
    }
    return ST_OK;
}

static void cut_ids(Ids *ids, size_t first, size_t end) {
    memmove(ids->data, ids->data + first, (end - first) * sizeof *ids->data);
    ids->n = end - first;
}

static Status read_row(const json_t *row, const DataConfig *config, Encoding *encoding) {
    if (!row_ids(row)) return status_fail(ST_INPUT, "the row lacks 'input_ids'");
    TRY(read_ids(row_ids(row), "input_ids", &encoding->ids));
    const json_t *labels = json_object_get(row, "labels");
    bool all = config->train_on && strcmp(config->train_on, "all") == 0;
    if (labels && !json_is_null(labels) && !all) {
        TRY(read_ids(labels, "labels", &encoding->labels));
    } else {
        ids_append(&encoding->labels, encoding->ids.data, encoding->ids.n);
    }
    if (encoding->labels.n != encoding->ids.n)
        return status_fail(ST_INPUT, "'labels' has %zu entries, 'input_ids' has %zu", encoding->labels.n, encoding->ids.n);
    size_t first, end;
    TRY(find_padding(json_object_get(row, "attention_mask"), encoding->ids.n, &first, &end));
    if (end - first == encoding->ids.n) return ST_OK;
    cut_ids(&encoding->ids, first, end);
    cut_ids(&encoding->labels, first, end);
    return ST_OK;
}

static Status encode_ids(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    (void)tokenizer;
    TRY(train_on_whole(config, "ids are trained by their labels, or whole"));
    return read_row(row, config, encoding);
}

/* The tokens before the first trained one. */
static Status data_ids_question(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids) {
    Encoding encoding = {0};
    size_t n = 0;
    bool labelled = json_is_array(json_object_get(row, "labels"));
    (void)tokenizer;
    Status status = read_row(row, config, &encoding);
    while (n < encoding.ids.n && !(labelled && encoding.labels.data[n] != LABEL_NONE)) n++;
    if (status == ST_OK) ids_append(ids, encoding.ids.data, n);
    ids_release(&encoding.ids);
    ids_release(&encoding.labels);
    return status;
}

const DataFormat data_format_ids = {
    .name = "ids",
    .help = "{\"input_ids\",\"labels\"}",
    .detect = detect_ids,
    .encode = encode_ids,
    .question = data_ids_question,
};
