/* SPDX-License-Identifier: Apache-2.0 */
/* Converts preference rows to pairs of token sequences, and pairs to flat batches. Each side is encoded as a complete row, as in supervised training;
 * the common beginning is the prompt. */
#include "lib/model/scalar_head.h"
#include "lib/recipe/rejected.h"
#include "rl/pairs/pairs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "data/formats/formats.h"

typedef struct Loader {
    const PairSource *source;
    DataConfig config;
    Pairs *pairs;
    size_t cap_rows, n_files;
    Encoding sides[2];
    double *labels; /* of the row's steps */
    size_t cap_labels;
    RowNotes notes; /* of the row */
    Str where[PAIR_DROPS];
} Loader;

/* ---- one row as encodings of its sides ---- */

static Status push_ids(const json_t *array, const char *key, const DataConfig *config, Ids *ids) {
    if (!json_is_array(array)) return status_fail(ST_INPUT, array ? "'%s' is no list of token ids" : "the row lacks '%s'", key);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item)) return status_fail(ST_INPUT, "'%s' holds something else than whole numbers at position %zu", key, i);
        if (id < 0 || id >= config->vocab_size)
            return status_fail(ST_INPUT, "token id %lld at position %zu of '%s' is outside of the model's vocabulary of %lld", (long long)id, i, key,
                               (long long)config->vocab_size);
        ids_push(ids, (int32_t)id);
    }
    return ST_OK;
}

static Status read_id_list(const json_t *row, const char *key, const DataConfig *config, Ids *ids) {
    return push_ids(json_object_get(row, key), key, config, ids);
}

/* Rows of ids are used as given. */
static Status encode_ids(const json_t *row, const char *key, const DataConfig *config, Encoding *encoding) {
    TRY(read_id_list(row, "prompt_ids", config, &encoding->ids));
    size_t border = encoding->ids.n;
    TRY(read_id_list(row, key, config, &encoding->ids));
    if (encoding->ids.n == border) return status_fail(ST_INPUT, "'%s' is empty", key);
    for (size_t i = 0; i < encoding->ids.n; i++) ids_push(&encoding->labels, i < border ? LABEL_NONE : encoding->ids.data[i]);
    return ST_OK;
}

static Status drop_row(Loader *loader, PairDrop why, const Row *row) {
    enum { SHOWN = 3 };
    Str *where = &loader->where[why];
    int64_t n = ++loader->pairs->dropped[why];
    if (n <= SHOWN) str_printf(where, "%s%s %s %zu", n > 1 ? ", " : "", row->file, row->unit, row->line);
    if (n == SHOWN + 1) str_append(where, ", ...");
    Rejected *rejected = loader->config.rejected;
    return rejected ? rejected_add(rejected, &(RejectedRow){row->file, row->unit, row->line, row->json}, pair_drop_reason(why)) : ST_OK;
}

static Status check_vocabulary(const Loader *loader, const Ids *ids) {
    for (size_t i = 0; i < ids->n; i++)
        if (ids->data[i] >= loader->config.vocab_size) {
            status_fail(ST_INPUT, "the tokenizer makes id %d, outside of the model's vocabulary of %lld", (int)ids->data[i],
                        (long long)loader->config.vocab_size);
            return status_hint(ST_INPUT, "the tokenizer belongs to another model");
        }
    return ST_OK;
}

static Status no_tokenizer(void) {
    status_fail(ST_INPUT, "the row holds text, and the model directory has no tokenizer");
    return status_hint(ST_INPUT, "rows with ids need none: {\"prompt_ids\", ...}");
}

static Status encode_text(const json_t *row, const char *format, const Loader *loader, Encoding *encoding) {
    if (!loader->source->tokenizer) return no_tokenizer();
    const DataFormat *reader = data_format_find(format);
    /* scores are of the complete conversation, without a generation prompt */
    TRY((loader->source->ends ? data_format_encode : data_format_encode_one)(reader, row, &loader->config, loader->source->tokenizer, encoding));
    return check_vocabulary(loader, &encoding->ids);
}

static Status not_for(const Loader *loader, const char *wanted) {
    status_fail(ST_INPUT, "the row has no %s, which %s needs",
                loader->source->stepwise   ? "steps with labels"
                : loader->source->unpaired ? "completion with a label"
                                           : "chosen and rejected answer",
                loader->source->reader);
    return status_hint(ST_INPUT, "expected %s; data.columns gives these names to other columns, such as {%s: COLUMN}", wanted,
                       loader->source->stepwise   ? "completions"
                       : loader->source->unpaired ? "label"
                                                  : "chosen");
}

static Status encode_pair_row(Loader *loader, const json_t *row) {
    if (json_object_get(row, "prompt_ids")) {
        TRY(encode_ids(row, "chosen_ids", &loader->config, &loader->sides[PAIR_CHOSEN]));
        return encode_ids(row, "rejected_ids", &loader->config, &loader->sides[PAIR_REJECTED]);
    }
    bool newer = json_object_get(row, "chosen_messages") != NULL;
    const char *chosen = newer ? "chosen_messages" : "chosen", *rejected = newer ? "rejected_messages" : "rejected";
    if (!json_object_get(row, chosen) && !json_object_get(row, rejected))
        return not_for(loader, "{\"prompt\", \"chosen\", \"rejected\"}, or {\"prompt_ids\", \"chosen_ids\", \"rejected_ids\"}");
    TRY(encode_text(row, "preference", loader, &loader->sides[PAIR_CHOSEN]));
    json_t *other = json_copy((json_t *)(uintptr_t)row);
    if (!other) return status_fail(ST_RESOURCE, "out of memory");
    preference_swap(other);
    Status status = encode_text(other, "preference", loader, &loader->sides[PAIR_REJECTED]);
    json_decref(other);
    return status;
}

static Status encode_unpaired(Loader *loader, const json_t *row, bool *desirable) {
    bool ids = json_object_get(row, "prompt_ids") != NULL;
    if (!json_object_get(row, "label") ||
        !(ids || json_object_get(row, "completion") || json_object_get(row, "messages") || json_object_get(row, "conversations")))
        return not_for(loader, "{\"prompt\", \"completion\", \"label\": true or false}, or {\"prompt_ids\", \"completion_ids\", \"label\"}");
    TRY(row_label(row, desirable));
    if (ids) return encode_ids(row, "completion_ids", &loader->config, &loader->sides[0]);
    json_t *liked = json_copy((json_t *)(uintptr_t)row); /* supervised training would not train undesirable rows: drop the label */
    if (!liked) return status_fail(ST_RESOURCE, "out of memory");
    json_object_set_new(liked, "label", json_true());
    Status status = encode_text(liked, "kto", loader, &loader->sides[0]);
    json_decref(liked);
    return status;
}

static Status step_ids(const Loader *loader, const json_t *row, Ids *ids, Ids *ends) {
    size_t n;
    TRY(stepwise_count(row, "completions_ids", &n));
    TRY(read_id_list(row, "prompt_ids", &loader->config, ids));
    if (ids->n == 0) return status_fail(ST_INPUT, "'prompt_ids' is empty");
    for (size_t i = 0; i < n; i++) {
        size_t before = ids->n;
        TRY(push_ids(json_array_get(json_object_get(row, "completions_ids"), i), "completions_ids", &loader->config, ids));
        if (ids->n == before) return status_fail(ST_INPUT, "step %zu of 'completions_ids' is empty", i + 1);
        ids_push(ends, (int32_t)ids->n - 1);
    }
    return ST_OK;
}

/* A label belongs to its step's last token. With data.train_on: last only the last label counts. */
static Status label_steps(Loader *loader, const json_t *row, const Ids *ends) {
    Encoding *encoding = &loader->sides[0];
    const char *train_on = loader->config.train_on;
    bool last_only = train_on && strcmp(train_on, "last") == 0;
    if (train_on && !last_only && strcmp(train_on, "auto") != 0)
        return status_fail(ST_CONFIG, "'data.train_on: %s' has no meaning for rows of steps: expected auto or last", train_on);
    if (ends->n > loader->cap_labels) {
        TRY(array_resize(&loader->labels, ends->n, sizeof *loader->labels, "steps of a row"));
        loader->cap_labels = ends->n;
    }
    for (size_t i = 0; i < encoding->ids.n; i++) ids_push(&encoding->labels, LABEL_NONE);
    for (size_t i = 0, n = 0; i < ends->n; i++) {
        double label;
        TRY(stepwise_label(row, i, &label));
        if (last_only && i + 1 < ends->n) continue;
        encoding->labels.data[ends->data[i]] = encoding->ids.data[ends->data[i]];
        loader->labels[n++] = label;
    }
    return ST_OK;
}

static Status encode_steps(Loader *loader, const json_t *row) {
    bool ids = json_object_get(row, "prompt_ids") != NULL;
    if (!json_object_get(row, "labels") || !json_object_get(row, ids ? "completions_ids" : "completions"))
        return not_for(loader,
                       "{\"prompt\", \"completions\": [...], \"labels\": [true, false, ...]}, or {\"prompt_ids\", \"completions_ids\", \"labels\"}");
    Ids ends = {0};
    Status status = ids ? step_ids(loader, row, &loader->sides[0].ids, &ends) : loader->source->tokenizer ? ST_OK : no_tokenizer();
    if (!ids && status == ST_OK) status = stepwise_tokens(row, &loader->config, loader->source->tokenizer, &loader->sides[0].ids, &ends);
    if (status == ST_OK) status = check_vocabulary(loader, &loader->sides[0].ids);
    if (status == ST_OK) status = label_steps(loader, row, &ends);
    ids_release(&ends);
    return status;
}

/* ---- from sides to a row ---- */

static size_t first_trained(const Encoding *encoding) {
    size_t i = 0;
    while (i < encoding->labels.n && encoding->labels.data[i] == LABEL_NONE) i++;
    return i;
}

static size_t common_prompt(const Loader *loader) {
    const Encoding *a = &loader->sides[0], *b = &loader->sides[1];
    size_t most = first_trained(a), n = 0;
    if (loader->source->unpaired) return MIN(most, a->ids.n - 1);
    most = MIN(MIN(most, first_trained(b)), MIN(a->ids.n, b->ids.n) - 1);
    while (n < most && a->ids.data[n] == b->ids.data[n]) n++;
    return n;
}

static Status keep_side(Loader *loader, const Encoding *encoding, size_t from, size_t end, PairSide *side) {
    size_t n = end - from;
    int32_t *ids = arena_alloc(loader->pairs->arena, MAX(n, 1) * sizeof *ids);
    bool *trained = arena_zero(loader->pairs->arena, MAX(n, 1) * sizeof *trained);
    if (!ids || !trained) return ST_RESOURCE;
    memcpy(ids, encoding->ids.data + from, n * sizeof *ids);
    *side = (PairSide){.ids = ids, .trained = trained, .n = (int32_t)n};
    for (size_t i = 0; i < n; i++) {
        trained[i] = encoding->labels.data[from + i] != LABEL_NONE && from + i > 0; /* the very first token has no predecessor that predicts it */
        side->n_trained += trained[i];
    }
    if (side->n_trained == 0) return status_fail(ST_INPUT, "no token of the answer can be trained");
    if (!loader->source->stepwise) return ST_OK;
    double *labels = arena_alloc(loader->pairs->arena, (size_t)side->n_trained * sizeof *labels);
    if (!labels) return ST_RESOURCE;
    memcpy(labels, loader->labels, (size_t)side->n_trained * sizeof *labels); /* a cut removes the last steps */
    side->labels = labels;
    return ST_OK;
}

/* Index after the answer's last token. */
static size_t answer_end(const Loader *loader, const Encoding *encoding, size_t prompt) {
    const PairSource *source = loader->source;
    size_t end = encoding->ids.n;
    if (source->ends && !source->at_turn && !source->stepwise)
        return MAX(scalar_head_end(source->model, encoding->ids.data, end), MIN(prompt + 1, end));
    while (source->ends && end > 1 && encoding->labels.data[end - 1] == LABEL_NONE) end--;
    return end;
}

/* Number of tokens to remove: at the beginning of the prompt, or at the end of each side. */
typedef struct Cut {
    bool drop, cut;
    size_t begin, most;
} Cut;

static Status cut_row(Loader *loader, size_t prompt, Cut *cut) {
    size_t longest = 0, limit = (size_t)MAX(loader->config.max_length, 0);
    const char *how = loader->config.truncation ? loader->config.truncation : "error";
    for (int s = 0; s < (loader->source->unpaired ? 1 : 2); s++) longest = MAX(longest, loader->sides[s].ids.n);
    *cut = (Cut){.most = longest};
    if (limit > 0 && longest > limit) {
        if (strcmp(how, "error") == 0) return row_too_long("row", longest, loader->config.max_length);
        size_t begin = strcmp(how, "keep_end") == 0 ? MIN(prompt, longest - limit) : 0;
        bool starts_late = prompt - begin >= limit; /* nothing would be left of the answers */
        *cut = (Cut){.drop = strcmp(how, "drop") == 0 || starts_late, .cut = true, .begin = begin, .most = begin + limit};
    }
    return cut->drop ? ST_OK : positions_check(cut->most - cut->begin, loader->config.positions);
}

/* Whether the sides up to these ends are the same: such a row has no signal. */
static bool are_same(const Loader *loader, const size_t *ends) {
    const Encoding *sides = loader->sides;
    return !loader->source->unpaired && ends[0] == ends[1] && memcmp(sides[0].ids.data, sides[1].ids.data, ends[0] * sizeof(int32_t)) == 0;
}

static Status read_margin(const json_t *row, double *margin) {
    const json_t *value = json_object_get(row, "margin");
    *margin = value && !json_is_null(value) ? json_number_value(value) : 0;
    if (!value || json_is_null(value) || (json_is_number(value) && isfinite(*margin))) return ST_OK;
    return status_fail(ST_INPUT, "'margin' is not a number");
}

static Status push_row(Loader *loader, const PairRow *row) {
    Pairs *pairs = loader->pairs;
    TRY(array_grow(&pairs->rows, &loader->cap_rows, pairs->n + 1, sizeof *pairs->rows, "rows"));
    pairs->rows[pairs->n++] = *row;
    return ST_OK;
}

static Status keep_row(Loader *loader, const Row *from, PairRow *row) {
    Pairs *pairs = loader->pairs;
    Cut cut;
    size_t ends[2] = {loader->sides[0].ids.n, loader->sides[1].ids.n};
    if (are_same(loader, ends)) return drop_row(loader, PAIR_SAME, from);
    size_t prompt = common_prompt(loader);
    TRY(cut_row(loader, prompt, &cut));
    if (cut.drop) return drop_row(loader, PAIR_TOO_LONG, from);
    for (int s = 0; s < 2; s++) ends[s] = MIN(answer_end(loader, &loader->sides[s], prompt), cut.most);
    if (are_same(loader, ends)) return drop_row(loader, PAIR_SAME, from); /* the same after the cut */
    pairs->cut += cut.cut;
    row->n_prompt = (int32_t)(prompt - cut.begin);
    int32_t *ids = arena_alloc(pairs->arena, (size_t)MAX(row->n_prompt, 1) * sizeof *ids);
    if (!ids) return ST_RESOURCE;
    memcpy(ids, loader->sides[0].ids.data + cut.begin, (size_t)row->n_prompt * sizeof *ids);
    row->prompt = ids;
    for (int s = 0; s < (loader->source->unpaired ? 1 : 2); s++) TRY(keep_side(loader, &loader->sides[s], prompt, ends[s], &row->sides[s]));
    return push_row(loader, row);
}

static Status read_row(Loader *loader, const Row *from) {
    PairRow row = {.file = (uint32_t)loader->n_files - 1, .line = (uint32_t)from->line};
    for (int s = 0; s < 2; s++) {
        ids_clear(&loader->sides[s].ids);
        ids_clear(&loader->sides[s].labels);
        loader->sides[s].after_thought = false;
    }
    const PairSource *source = loader->source;
    PairDrop why = source->stepwise ? PAIR_DROPS : preference_needless(from->json, source->unpaired);
    if (why != PAIR_DROPS) return drop_row(loader, why, from);
    loader->pairs->against += preference_scored_otherwise(from->json);
    TRY(row_weight(from->json, &row.weight));
    TRY(read_margin(from->json, &row.margin));
    if (loader->source->stepwise)
        TRY(encode_steps(loader, from->json));
    else
        TRY(loader->source->unpaired ? encode_unpaired(loader, from->json, &row.desirable) : encode_pair_row(loader, from->json));
    return keep_row(loader, from, &row);
}

/* ---- all rows ---- */

/* The columns determine the format of a row; an explicit data.format must match. */
static Status check_format(const Loader *loader, const char *named) {
    const char *own = loader->source->stepwise ? "stepwise" : loader->source->unpaired ? "kto" : "preference";
    if (!named || strcmp(named, "auto") == 0 || strcmp(named, "ids") == 0 || strcmp(named, own) == 0) return ST_OK;
    status_fail(ST_CONFIG, "'data.format' is %s, and %s learns from rows of format %s", named, loader->source->reader, own);
    return status_hint(ST_CONFIG, "leave it out, or write data.format: %s", own);
}

static Status take_row(void *context, const DataSource *source, const Row *row) {
    Loader *loader = context;
    Pairs *pairs = loader->pairs;
    loader->config.padded = row->padded;
    loader->config.notes = &loader->notes;
    row_notes_clear(&loader->notes);
    TRY(check_format(loader, source->format ? source->format : loader->config.format));
    if (loader->n_files == 0 || pairs->files[loader->n_files - 1].path != row->file) {
        TRY(array_resize(&pairs->files, loader->n_files + 1, sizeof *pairs->files, "names of files"));
        pairs->files[loader->n_files++] = (PairFile){row->file, row->unit};
    }
    TRY(read_row(loader, row));
    row_notes_add(&pairs->table.notes, &loader->notes, row->file, row->unit, row->line);
    return ST_OK;
}

static int32_t length_of(const void *rows, size_t i) { return (int32_t)pair_row_tokens(&((const Pairs *)rows)->rows[i]); }

static void where_is(const void *rows, size_t i, Str *text) { pairs_where(rows, i, text); }

static void pairs_count(Pairs *pairs) {
    pairs->tokens = pairs->trained_tokens = pairs->longest = 0;
    for (size_t i = 0; i < pairs->n; i++) {
        int64_t tokens = pair_row_tokens(&pairs->rows[i]);
        pairs->tokens += tokens;
        pairs->trained_tokens += pairs->rows[i].sides[0].n_trained + pairs->rows[i].sides[1].n_trained;
        pairs->longest = MAX(pairs->longest, tokens);
    }
    pairs->table.n = pairs->n;
    pairs->table.longest = pairs->longest;
    pairs->table.counts.tokens = pairs->tokens;
    pairs->table.row_source = (RowSource){pairs, length_of, where_is};
}

static Status load_all(Loader *loader, const char *key, YamlNode node) {
    Pairs *pairs = loader->pairs;
    SourceReader reader = {.config = &loader->config, .use = ROWS_AS_SCORED, .widen = true, .kept = &pairs->n, .take = take_row, .context = loader};
    TRY(data_sources_read(node, key, &reader, pairs->arena, &pairs->table));
    pairs_count(pairs);
    for (int i = 0; i < PAIR_DROPS; i++)
        if (pairs->dropped[i] > 0 && !(pairs->where[i] = arena_strdup(pairs->arena, str_text(&loader->where[i])))) return ST_RESOURCE;
    return pairs->n > 0 ? ST_OK : pairs_none_left(pairs, key);
}

Status pairs_load(const Recipe *recipe, const char *key, YamlNode node, const PairSource *source, Pairs **result) {
    Loader loader = {.source = source, .config = data_config(recipe, source->model, source->chat), .pairs = calloc(1, sizeof *loader.pairs)};
    *result = NULL;
    if (source->ends && !source->stepwise) loader.config.train_on = "auto"; /* a score is of the complete answer, whatever data.train_on is */
    if (!loader.pairs || !(loader.pairs->arena = arena_new(0))) {
        free(loader.pairs);
        return status_fail(ST_RESOURCE, "out of memory for rows");
    }
    loader.pairs->alone = source->unpaired && !source->stepwise && strcmp(key, "data.train") == 0;
    Status status = load_all(&loader, key, node);
    for (int s = 0; s < 2; s++) {
        encoding_release(&loader.sides[s]);
    }
    free(loader.labels);
    row_notes_release(&loader.notes);
    for (int i = 0; i < PAIR_DROPS; i++) str_release(&loader.where[i]);
    if (status == ST_OK)
        *result = loader.pairs;
    else
        pairs_free(loader.pairs);
    return status;
}

void pairs_free(Pairs *pairs) {
    if (!pairs) return;
    if (pairs->arena) free(pairs->files);
    if (pairs->arena) row_notes_release(&pairs->table.notes);
    arena_free(pairs->arena);
    free(pairs->rows);
    free(pairs);
}

Status pairs_split(Pairs *pairs, double share, uint64_t seed, Pairs **held_out) {
    size_t wanted, kept = 0;
    *held_out = NULL;
    TRY(held_out_count(pairs->n, share, &wanted));
    size_t *begins = pairs->table.source_begins, *whole = arena_zero(pairs->arena, 2 * sizeof *whole), source = 0;
    DataSource *once = arena_zero(pairs->arena, sizeof *once);
    Pairs *out = calloc(1, sizeof *out);
    if (out) out->rows = malloc(wanted * sizeof *out->rows);
    if (!out || !out->rows || !whole || !once) {
        if (out) free(out->rows);
        free(out);
        return status_fail(ST_RESOURCE, "out of memory for rows");
    }
    out->files = pairs->files;
    RngKey key = rng_key(seed, RNG_SHUFFLE, (uint64_t)1 << 52);
    for (size_t i = 0; i < pairs->n; i++) {
        bool taken = rng_permute(key, pairs->n, i) < wanted;
        while (i == begins[source + 1]) begins[++source] = kept; /* sources may begin at the same place */
        if (taken)
            out->rows[out->n++] = pairs->rows[i];
        else
            pairs->rows[kept++] = pairs->rows[i];
    }
    while (source < pairs->table.n_sources) begins[++source] = kept;
    pairs->n = kept;
    whole[1] = out->n;
    out->table = (Dataset){.sources = once, .source_begins = whole, .n_sources = 1};
    pairs_count(pairs);
    pairs_count(out);
    *held_out = out;
    return ST_OK;
}

uint64_t pairs_fingerprint(const Pairs *pairs) {
    uint64_t hash = pairs->n;
    for (size_t i = 0; i < pairs->n; i++) {
        const PairRow *row = &pairs->rows[i];
        double numbers[3] = {row->weight, row->margin, row->desirable};
        hash = XXH3_64bits_withSeed(row->prompt, (size_t)row->n_prompt * sizeof *row->prompt, hash);
        for (int s = 0; s < 2; s++) {
            hash = XXH3_64bits_withSeed(row->sides[s].ids, (size_t)row->sides[s].n * sizeof *row->prompt, hash);
            hash = XXH3_64bits_withSeed(row->sides[s].trained, (size_t)row->sides[s].n * sizeof(bool), hash);
            if (row->sides[s].labels) hash = XXH3_64bits_withSeed(row->sides[s].labels, (size_t)row->sides[s].n_trained * sizeof(double), hash);
        }
        hash = XXH3_64bits_withSeed(numbers, sizeof numbers, hash);
    }
    return hash;
}

void pairs_where(const Pairs *pairs, size_t i, Str *text) {
    const PairFile *file = &pairs->files[pairs->rows[i].file];
    str_printf(text, "%s %s %u", file->path, file->unit, (unsigned)pairs->rows[i].line);
}

int64_t pair_row_tokens(const PairRow *row) { return pair_tokens_with(row, NULL); }

int64_t pair_row_computed(const PairRow *row, bool ends) {
    int64_t n = row->n_prompt;
    for (int s = 0; s < 2; s++) n += MAX(row->sides[s].n - !ends, 0);
    return n;
}

int64_t pair_tokens_with(const PairRow *row, const PairRow *other) {
    return (int64_t)row->n_prompt + (other ? other : row)->sides[0].n + row->sides[1].n;
}

/* ---- batches ---- */

/* Allocates exactly what is needed: the memory plan relies on it. */
static Status pairs_reserve(PairBatch *batch, size_t tokens, size_t segments, size_t branches) {
    if (tokens > batch->cap_tokens) {
        TRY(array_resize(&batch->ids, tokens, sizeof *batch->ids, "tokens of a batch"));
        TRY(array_resize(&batch->rows, tokens, sizeof *batch->rows, "tokens of a batch"));
        TRY(array_resize(&batch->targets, tokens, sizeof *batch->targets, "tokens of a batch"));
        TRY(array_resize(&batch->branch, tokens, sizeof *batch->branch, "tokens of a batch"));
        batch->cap_tokens = tokens;
    }
    if (segments > batch->cap_segments) TRY(array_resize(&batch->segments, segments, sizeof *batch->segments, "segments of a batch"));
    batch->cap_segments = MAX(batch->cap_segments, segments);
    if (branches > batch->cap_branches) {
        TRY(array_resize(&batch->counts, branches, sizeof *batch->counts, "answers of a batch"));
        TRY(array_resize(&batch->ends, branches, sizeof *batch->ends, "answers of a batch"));
        batch->cap_branches = branches;
    }
    return ST_OK;
}

/* Appends one answer after its prompt, whose last row is `prompt_end` - 1. */
static void add_branch(PairBatch *batch, const PairSide *side, int32_t parent, int64_t prompt_begin, int64_t prompt_end, bool ends, int64_t *at,
                       int32_t *n_segments) {
    int64_t branch = batch->n_branches++, length = side->n - !ends;
    batch->counts[branch] = 0;
    for (int32_t t = 0; t < side->n; t++) {
        if (!side->trained[t] || (t == 0 && prompt_begin == prompt_end)) continue;
        batch->rows[batch->n_targets] = (int32_t)(t == 0 ? prompt_end - 1 : *at + t - 1);
        batch->targets[batch->n_targets] = side->ids[t];
        batch->branch[batch->n_targets++] = (int32_t)branch;
        batch->counts[branch]++;
    }
    batch->ends[branch] = (int32_t)(*at + length - 1);
    if (length <= 0) return;
    memcpy(batch->ids + *at, side->ids, (size_t)length * sizeof *side->ids);
    batch->segments[(*n_segments)++] = (Segment){.begin = *at, .end = *at + length, .parent = parent};
    *at += length;
}

static const PairRow *other_row(const Pairs *pairs, const PairBatchOptions *options, size_t i) {
    return options->other_rows ? &pairs->rows[options->other_rows[i]] : NULL;
}

Status pair_batch_build(const Pairs *pairs, const size_t *rows, size_t n, const PairBatchOptions *options, PairBatch *batch) {
    size_t tokens = 0;
    int64_t at = 0;
    int32_t n_segments = 0;
    for (size_t i = 0; i < n; i++) tokens += (size_t)pair_tokens_with(&pairs->rows[rows[i]], other_row(pairs, options, i));
    if (tokens > INT32_MAX) return status_fail(ST_RESOURCE, "a batch of %zu tokens is too large", tokens);
    TRY(pairs_reserve(batch, tokens, 3 * n, 2 * n));
    batch->n_targets = batch->n_branches = 0;
    for (size_t i = 0; i < n; i++) {
        const PairRow *row = &pairs->rows[rows[i]], *other = other_row(pairs, options, i);
        int64_t prompt_begin = at, prompt_end = at + row->n_prompt;
        int32_t parent = -1;
        if (row->n_prompt > 0) {
            memcpy(batch->ids + at, row->prompt, (size_t)row->n_prompt * sizeof *row->prompt);
            parent = n_segments;
            batch->segments[n_segments++] = (Segment){.begin = at, .end = prompt_end, .parent = -1};
            at = prompt_end;
        }
        add_branch(batch, &(other ? other : row)->sides[0], parent, prompt_begin, prompt_end, options->ends, &at, &n_segments);
        add_branch(batch, &row->sides[1], parent, prompt_begin, prompt_end, options->ends, &at, &n_segments);
    }
    batch->model = (ModelBatch){.ids = batch->ids, .layout = {.n_tokens = at, .n_segments = n_segments, .segments = batch->segments}};
    return ST_OK;
}

void pair_batch_release(PairBatch *batch) {
    free(batch->ids);
    free(batch->rows);
    free(batch->targets);
    free(batch->branch);
    free(batch->segments);
    free(batch->counts);
    free(batch->ends);
    *batch = (PairBatch){0};
}
