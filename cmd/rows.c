/* Rows of a .jsonl file as token ids, for the commands that use a model. */
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"

/* BOS where the post-processor adds it and the text does not begin with it; EOS never. */
static Status prompt_ids(const Tokenizer *tokenizer, const char *text, size_t len, Ids *ids) {
    int32_t bos = tokenizer_bos(tokenizer);
    size_t start = ids->n;
    TRY(tokenizer_encode(tokenizer, text, len, TOKENIZE_PLAIN, ids));
    if (bos < 0 || !tokenizer_adds_bos(tokenizer) || (ids->n > start && ids->data[start] == bos)) return ST_OK;
    ids_push(ids, bos);
    memmove(ids->data + start + 1, ids->data + start, (ids->n - start - 1) * sizeof *ids->data);
    ids->data[start] = bos;
    return ST_OK;
}

static Status text_member(const json_t *row, const char *key, const Tokenizer *tokenizer, const char **text, size_t *len) {
    const json_t *value = json_object_get(row, key);
    if (!json_is_string(value)) return status_fail(ST_INPUT, "'%s' is no string", key);
    if (!tokenizer) {
        status_fail(ST_INPUT, "'%s' is text, and the model directory has no tokenizer", key);
        return status_hint(ST_INPUT, "rows with ids need none: {\"ids\": [...]}");
    }
    *text = json_string_value(value);
    *len = json_string_length(value);
    return ST_OK;
}

static Status given_ids(const json_t *array, Ids *ids) {
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *id = json_array_get(array, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX) return status_fail(ST_INPUT, "element %zu of 'ids' is no token id", i);
        ids_push(ids, (int32_t)json_integer_value(id));
    }
    return ids->n ? ST_OK : status_fail(ST_INPUT, "'ids' is empty");
}

static Status row_ids(const json_t *row, const Tokenizer *tokenizer, bool prompt_only, Ids *ids, size_t *n_prompt) {
    const char *text;
    size_t len;
    *n_prompt = 0;
    if (json_is_array(json_object_get(row, "ids"))) return given_ids(json_object_get(row, "ids"), ids);
    if (json_object_get(row, "messages")) {
        status_fail(ST_INPUT, "rows of messages need a chat template, which this version does not run");
        return status_hint(ST_INPUT, "give the rendered text as {\"prompt\": ...} or its ids as {\"ids\": ...}");
    }
    if (json_object_get(row, "prompt")) {
        TRY(text_member(row, "prompt", tokenizer, &text, &len));
        TRY(prompt_ids(tokenizer, text, len, ids));
        *n_prompt = ids->n;
        if (prompt_only || !json_object_get(row, "completion")) return ST_OK;
        const char *completion;
        size_t completion_len;
        TRY(text_member(row, "completion", tokenizer, &completion, &completion_len));
        /* The whole is tokenised as one text: a token may span the border. */
        Str whole = {0};
        str_append_n(&whole, text, len);
        str_append_n(&whole, completion, completion_len);
        ids_clear(ids);
        Status status = prompt_ids(tokenizer, str_text(&whole), whole.len, ids);
        str_release(&whole);
        return status;
    }
    if (json_object_get(row, "text")) {
        TRY(text_member(row, "text", tokenizer, &text, &len));
        return prompt_ids(tokenizer, text, len, ids);
    }
    status_fail(ST_INPUT, "a row without 'ids', 'prompt' or 'text'");
    return status_hint(ST_INPUT, "rows are {\"ids\": [...]}, {\"prompt\": ...}, {\"prompt\": ..., \"completion\": ...} or {\"text\": ...}");
}

Status text_ids(const Tokenizer *tokenizer, const char *text, size_t len, Ids *ids) { return prompt_ids(tokenizer, text, len, ids); }

static Status check_ids(const Ids *ids, const ModelConfig *model) {
    for (size_t i = 0; i < ids->n; i++)
        if (ids->data[i] < 0 || ids->data[i] >= model->vocab_size) {
            status_fail(ST_INPUT, "unknown token id %d, the model's vocabulary has %lld", ids->data[i], (long long)model->vocab_size);
            return status_hint(ST_INPUT, "the row was made with another tokenizer");
        }
    if (model->learned_positions && (int64_t)ids->n > model->max_position_embeddings)
        return status_fail(ST_INPUT, "the row has %zu tokens, more than the %lld that the model has positions for", ids->n, (long long)model->max_position_embeddings);
    return ST_OK;
}

static Status read_row(TokenRows *rows, const Tokenizer *tokenizer, bool prompt_only, const ModelConfig *model, Slice line, const char *file, size_t number) {
    Str where = {0};
    TokenRow row = {0};
    str_printf(&where, "%s line %zu", file, number);
    Status status = json_read_text(line.data, line.len, str_text(&where), &row.json);
    if (status == ST_OK) {
        status = json_is_object(row.json) ? row_ids(row.json, tokenizer, prompt_only, &row.ids, &row.n_prompt) : status_fail(ST_INPUT, "a row that is no JSON object");
        if (status == ST_OK) status = check_ids(&row.ids, model);
        if (status != ST_OK) status_prefix(status, "%s", str_text(&where));
    }
    str_release(&where);
    if (status == ST_OK && rows->n == rows->cap) {
        size_t cap = rows->cap ? rows->cap * 2 : 64;
        TokenRow *grown = realloc(rows->items, cap * sizeof *grown);
        if (!grown) status = status_fail(ST_RESOURCE, "out of memory for %zu rows", cap);
        else rows->items = grown, rows->cap = cap;
    }
    if (status == ST_OK) {
        rows->items[rows->n++] = row;
        return ST_OK;
    }
    json_decref(row.json);
    ids_release(&row.ids);
    return status;
}

Status token_rows_read(const char *file, const Tokenizer *tokenizer, bool prompt_only, const ModelConfig *model, TokenRows *rows) {
    Lines lines;
    Slice line;
    Status status = ST_OK;
    *rows = (TokenRows){0};
    TRY(lines_open(&lines, file));
    while (status == ST_OK && lines_next(&lines, &line))
        if (line.len) status = read_row(rows, tokenizer, prompt_only, model, line, file, lines.number);
    Status closed = lines_close(&lines);
    if (status == ST_OK) status = closed;
    if (status == ST_OK && rows->n == 0) status = status_fail(ST_INPUT, "'%s' has no rows", file);
    if (status != ST_OK) token_rows_release(rows);
    return status;
}

void token_rows_release(TokenRows *rows) {
    for (size_t i = 0; i < rows->n; i++) {
        json_decref(rows->items[i].json);
        ids_release(&rows->items[i].ids);
    }
    free(rows->items);
    *rows = (TokenRows){0};
}

/* ---- results: lines to stdout, or to a file that appears when all of it is there ---- */

Status result_open(ResultFile *result, const char *path) {
    *result = (ResultFile){.to_file = path != NULL};
    return path ? writer_open(&result->writer, path) : ST_OK;
}

void result_line(ResultFile *result, const Str *line) {
    if (result->to_file) {
        writer_write(&result->writer, str_text(line), line->len);
        writer_write(&result->writer, "\n", 1);
    } else {
        print_text(str_text(line), line->len);
        print_text("\n", 1);
    }
}

Status result_close(ResultFile *result, Status status) {
    if (!result->to_file) return status;
    if (status == ST_OK) return writer_commit(&result->writer);
    writer_abandon(&result->writer);
    return status;
}
