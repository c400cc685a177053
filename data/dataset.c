/* SPDX-License-Identifier: Apache-2.0 */
/* Rows to examples: formats, limits, what is dropped, cut or double. Rows are read one after the other, tokenised in blocks by all threads, and
 * appended in their order. */
#include "data/branches.h"

#include "lib/base/work.h"
#include "data/cache.h"
#include "data/formats/formats.h"
#include "data/formats/message.h"
#include "data/formats/row_form.h"
#include "data/store.h"
#include "lib/train/rejected.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

DataConfig data_config(const Recipe *recipe, const ModelConfig *model, const Chat *chat) {
    return (DataConfig){
        .format = recipe->data_format,
        .train_on = recipe->data_train_on,
        .system = recipe->data_system,
        .step_separator = recipe->data_step_separator,
        .as = recipe->data_as,
        .columns = recipe->data_columns,
        .plain_control = recipe->data_control_tokens && strcmp(recipe->data_control_tokens, "text") == 0,
        .chat = chat,
        .max_length = recipe->data_max_length,
        .truncation = recipe->data_truncation,
        .vocab_size = model->vocab_size,
        .positions = model->learned_positions ? model->max_position_embeddings : 0,
        .context = context_count(model),
        .cache = recipe->data_cache,
        .scratch = recipe->output,
        .rejected = recipe->rejected,
        .tokenizer = recipe->model_path,
        .program = recipe->program,
    };
}

/* ---- one row ---- */

enum { BLOCK_ROWS = 1024, BLOCK_BYTES = 8 << 20, SPARE_WORDS = 64 << 10, PLACES_SHOWN = 8 };
typedef enum Outcome { ROW_KEPT, ROW_TOO_LONG, ROW_UNTRAINED, ROW_NEEDLESS } Outcome;

/* A row on its way to tokens. */
typedef struct Slot {
    json_t *json;
    size_t line;
    uint32_t file;
    const DataFormat *format;
    Encoding encoding;
    TextSpan *texts; /* what stays of each of its texts: n_texts */
    size_t n_texts, cap_texts;
    Joined joined; /* several of them */
    Ids words;     /* as in the store */
    StoreRow row;
    RowFound found;
    Outcome outcome;
    bool cut;
    int32_t lost_turns;
    Failure failure; /* of another thread */
    RowNotes notes;
    bool padded;
} Slot;

typedef struct Loader {
    Dataset *dataset;
    const DataConfig *config;
    const Tokenizer *tokenizer;
    RowForm form;
    const DataFormat *format;  /* of the current file; NULL until its first row */
    const char *wanted_format; /* NULL = by the first row */
    uint32_t file;
    int64_t rows_read; /* of the current source */
    struct BadRows {
        int64_t n;
        Failure first;
    } * bad;                 /* of each source, with config->rejected */
    RejectedMark before;     /* where these rows begin in config->rejected */
    Slot *slots;             /* the block: BLOCK_ROWS, of which n_slots wait */
    size_t n_slots, waiting; /* waiting: bytes of their texts, about */
    int64_t n_encoded;       /* rows of earlier blocks */
    uint64_t read, to_read;  /* bytes of the files' lines, and of all files; 0 = not known, as of packed ones */
    StoreWriter *writer;
} Loader;

static Status unknown_format(const json_t *row) {
    Str keys = {0}, known = {0};
    columns_list(row, &keys);
    data_formats_list(&known);
    status_fail(ST_INPUT, "cannot tell the format of a row with %s", keys.len ? str_text(&keys) : "no columns");
    columns_example(row, &known);
    status_hint(ST_INPUT, "known are %s", str_text(&known));
    str_release(&keys);
    str_release(&known);
    return ST_INPUT;
}

static Status no_such_format(const char *name) {
    Str known = {0};
    for (size_t i = 0; data_format_at(i); i++) str_printf(&known, "%s%s", i ? ", " : "", data_format_at(i)->name);
    status_fail(ST_CONFIG, "unknown format '%s'", name);
    status_hint(ST_CONFIG, "known are %s", str_text(&known));
    str_release(&known);
    return ST_CONFIG;
}

static Status choose_format(Loader *loader, const json_t *row) {
    if (loader->wanted_format) {
        loader->format = data_format_find(loader->wanted_format);
        if (!loader->format) return no_such_format(loader->wanted_format);
    }
    if (!loader->format) loader->format = data_format_of(row);
    if (!loader->format) return unknown_format(row);
    if (!loader->dataset->format) loader->dataset->format = loader->format->name;
    if (loader->format->needs_tokenizer && !loader->tokenizer) {
        Tokenizer *none; /* loading says which file is missing, and what to do */
        if (loader->config->tokenizer && tokenizer_load(loader->config->tokenizer, &none) != ST_OK)
            return status_prefix(ST_INPUT, "rows of format %s need a tokenizer", loader->format->name);
        status_fail(ST_INPUT, "rows of format %s need a tokenizer, and the model has none", loader->format->name);
        return status_hint(ST_INPUT, "rows of format ids need none");
    }
    if (loader->config->system && !loader->format->takes_system)
        return status_fail(ST_CONFIG, "'data.system' has no place in rows of format %s", loader->format->name);
    return ST_OK;
}

static Status check_labels(const DataConfig *config, const Encoding *encoding) {
    for (size_t i = 0; i < encoding->labels.n; i++) {
        int32_t label = encoding->labels.data[i];
        if (label != LABEL_NONE && (label < 0 || (config->vocab_size > 0 && label >= config->vocab_size)))
            return status_fail(ST_INPUT, "label %d at position %zu is neither %d nor in the model's vocabulary of %lld", (int)label, i, LABEL_NONE,
                               (long long)config->vocab_size);
    }
    return ST_OK;
}

/* What stays of a text that is too long; nothing: it is dropped. */
static Status truncate_text(const DataConfig *config, Slot *slot, TextSpan *text) {
    size_t n = text->end - text->begin, most = (size_t)config->max_length;
    const char *how = config->truncation ? config->truncation : "error";
    if (config->max_length <= 0 || n <= most) return ST_OK;
    if (strcmp(how, "error") == 0) return row_too_long("row", n, config->max_length);
    if (strcmp(how, "drop") == 0) {
        slot->outcome = ROW_TOO_LONG;
        text->end = text->begin;
        return ST_OK;
    }
    if (strcmp(how, "keep_end") == 0) {
        text->begin = text->end - most;
    } else {
        text->end = text->begin + most;
    }
    slot->cut = true;
    return ST_OK;
}

static bool trains(const Encoding *encoding, const TextSpan *text) {
    for (size_t i = text->begin + 1; i < text->end; i++)
        if (encoding->labels.data[i] != LABEL_NONE) return true;
    return false;
}

/* What stays of the row's texts. One of several of which nothing trained is left is not asked for. */
static Status truncate_row(const DataConfig *config, Slot *slot) {
    const Encoding *encoding = &slot->encoding;
    size_t n = MAX(encoding->ends.n, (size_t)1);
    TRY(array_grow(&slot->texts, &slot->cap_texts, n, sizeof *slot->texts, "texts of a row"));
    slot->n_texts = 0;
    for (size_t i = 0, begin = 0, end; i < n; i++, begin = end) {
        end = encoding->ends.n ? (size_t)encoding->ends.data[i] : encoding->ids.n;
        TextSpan text = {begin, end};
        TRY(truncate_text(config, slot, &text));
        TRY(positions_check(text.end - text.begin, config->positions));
        bool lost = encoding->ends.n && text.end - text.begin < end - begin && encoding->weight > 0 && !trains(encoding, &text);
        slot->lost_turns += lost;
        if (text.end > text.begin && !lost) slot->texts[slot->n_texts++] = text;
    }
    if (slot->n_texts > 0) slot->outcome = ROW_KEPT;
    if (slot->n_texts == 0 && slot->cut) slot->outcome = ROW_UNTRAINED;
    return ST_OK;
}

static Status weigh_row(const json_t *row, Encoding *encoding) {
    TRY(row_weight(row, &encoding->weight));
    for (size_t i = 0; encoding->weight == 0 && i < encoding->labels.n; i++) encoding->labels.data[i] = LABEL_NONE;
    return ST_OK;
}

/* What is trained of a row that lies as in the store. Nothing comes before the first token, so it is never trained. */
static void pack_tokens(Slot *slot, const int32_t *ids, const int32_t *labels, int32_t n) {
    bool own = false;
    StoreRow *row = &slot->row;
    *row = (StoreRow){.weight = slot->encoding.weight, .file = slot->file, .line = (uint32_t)slot->line, .n = n, .depth = n};
    for (int32_t t = 1; t < n && !own; t++) own = labels[t] != LABEL_NONE && labels[t] != ids[t];
    row->own_targets = own;
    ids_clear(&slot->words);
    ids_append(&slot->words, ids, (size_t)n);
    if (own) ids_append(&slot->words, labels, (size_t)n);
    if (own) slot->words.data[n] = LABEL_NONE;
    for (int32_t t = 1; t < n; t++) {
        if (labels[t] == LABEL_NONE) continue;
        int32_t from = t;
        while (t < n && labels[t] != LABEL_NONE) t++;
        ids_push(&slot->words, from);
        ids_push(&slot->words, t);
        row->trained += t - from;
        row->n_runs++;
    }
}

/* One text as it is, several as a tree; texts that all go on from one another are one again. */
static Status pack_row(Slot *slot) {
    const Encoding *encoding = &slot->encoding;
    Joined *joined = &slot->joined;
    if (slot->n_texts == 1) {
        TextSpan text = slot->texts[0];
        pack_tokens(slot, encoding->ids.data + text.begin, encoding->labels.data + text.begin, (int32_t)(text.end - text.begin));
    } else {
        for (size_t i = 0; i < slot->n_texts; i++) encoding->labels.data[slot->texts[i].begin] = LABEL_NONE;
        TRY(branches_join(slot->texts, slot->n_texts, &encoding->ids, &encoding->labels, joined));
        pack_tokens(slot, joined->ids.data, joined->labels.data, (int32_t)joined->ids.n);
        slot->row.depth = joined->depth;
        slot->row.n_branches = joined->branches.n > 2 ? (uint32_t)joined->branches.n / 2 : 0;
        if (slot->row.n_branches > 0) ids_append(&slot->words, joined->branches.data, joined->branches.n);
    }
    slot->row.hash = XXH3_64bits(slot->words.data, slot->words.n * sizeof *slot->words.data);
    return ST_OK;
}

/* What a policy is asked: no token of it is trained. */
static Status encode_prompt_row(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding) {
    TRY(row_question(row, config, tokenizer, &encoding->ids));
    for (size_t i = 0; i < encoding->ids.n; i++) ids_push(&encoding->labels, LABEL_NONE);
    encoding->weight = 1;
    encoding->conversation =
        json_is_array(json_object_get(row, "prompt")) || json_object_get(row, "messages") || json_object_get(row, "conversations");
    return ST_OK;
}

static void clear_encoding(Encoding *encoding) {
    Ids ids = encoding->ids, labels = encoding->labels, ends = encoding->ends;
    *encoding = (Encoding){.ids = ids, .labels = labels, .ends = ends};
    ids_clear(&encoding->ids);
    ids_clear(&encoding->labels);
    ids_clear(&encoding->ends);
}

static Status encode_row(const Loader *loader, Slot *slot) {
    DataConfig own = *loader->config;
    const DataConfig *config = &own;
    Encoding *encoding = &slot->encoding;
    clear_encoding(encoding);
    slot->cut = false;
    slot->lost_turns = 0;
    slot->outcome = ROW_KEPT;
    row_notes_clear(&slot->notes);
    own.notes = &slot->notes;
    own.padded = slot->padded;
    TRY(row_turn(&loader->form, slot->format, &slot->json, &slot->found));
    bool needless = config->pairs != NO_PAIRS && preference_needless(slot->json, slot->format == &data_format_kto) != PAIR_DROPS;
    if (needless) slot->outcome = ROW_NEEDLESS;
    if (needless) return ST_OK;
    if (config->prompts)
        TRY(encode_prompt_row(slot->json, config, loader->tokenizer, encoding));
    else
        TRY(data_format_encode(slot->format, slot->json, config, loader->tokenizer, encoding));
    if (encoding->ids.n == 0) return status_fail(ST_INPUT, "the row has no tokens");
    if (encoding->ids.n > INT32_MAX) return status_fail(ST_INPUT, "the row has too many tokens");
    TRY(ids_check(&encoding->ids, config->vocab_size));
    TRY(check_labels(config, encoding));
    if (!config->prompts) TRY(weigh_row(slot->json, encoding));
    TRY(truncate_row(config, slot));
    if (slot->n_texts > 0) TRY(pack_row(slot));
    if (slot->cut && slot->outcome == ROW_KEPT && slot->row.trained == 0 && !config->prompts) slot->outcome = ROW_UNTRAINED;
    return ST_OK;
}

/* ---- blocks of rows ---- */

static Status fail_in_file(const Loader *loader, Status status, uint32_t file, size_t line) {
    const DataFile *at = &loader->dataset->files[file];
    return status == ST_OK || status == ST_RESOURCE ? status : status_prefix(status, "'%s' %s %zu", at->path, at->unit, line);
}

static void encode_slot(const Loader *loader, Slot *slot) {
    if (slot->failure.status != ST_OK) return; /* no row at all */
    Status status = encode_row(loader, slot);
    if (status != ST_OK) failure_keep(&slot->failure, status);
}

/* The row is left out, or its failure is that of the file. */
static Status reject_slot(Loader *loader, Slot *slot) {
    const DataFile *file = &loader->dataset->files[slot->file];
    Status status = failure_say(&slot->failure);
    if (!rejected_takes(loader->config->rejected, status)) return fail_in_file(loader, status, slot->file, slot->line);
    struct BadRows *bad = &loader->bad[file->source];
    if (bad->n++ == 0) bad->first = slot->failure;
    slot->failure = (Failure){0};
    return rejected_add(loader->config->rejected, &(RejectedRow){file->path, file->unit, slot->line, slot->json}, status_text());
}

static Status keep_slot(Loader *loader, Slot *slot) {
    DataCounts *counts = &loader->dataset->counts;
    if (slot->failure.status != ST_OK) return reject_slot(loader, slot);
    counts->cut += slot->cut && slot->outcome == ROW_KEPT;
    counts->dropped_long += slot->outcome == ROW_TOO_LONG;
    counts->dropped_untrained += slot->outcome == ROW_UNTRAINED;
    if (slot->outcome == ROW_UNTRAINED && loader->dataset->n_lost < PLACES_SHOWN)
        loader->dataset->lost[loader->dataset->n_lost++] = (struct RowPlace){slot->file, (uint32_t)slot->line};
    if (slot->outcome != ROW_KEPT) return ST_OK;
    counts->remapped += slot->encoding.remapped;
    counts->no_eos += slot->encoding.no_eos;
    counts->unwritten += slot->encoding.unwritten;
    counts->behind_thought += slot->encoding.behind_thought;
    counts->conversations += slot->encoding.conversation;
    counts->with_system += slot->encoding.has_system;
    counts->marked += slot->encoding.marked;
    counts->templates += slot->encoding.templates;
    counts->weighted += slot->encoding.weight != 1;
    row_found_count(&slot->found, counts);
    if (slot->encoding.ends.n > 0) {
        counts->turned++;
        counts->turns += (int64_t)slot->n_texts;
        counts->lost_turns += slot->lost_turns;
        for (size_t i = 0; i < slot->n_texts; i++) counts->turn_tokens += (int64_t)(slot->texts[i].end - slot->texts[i].begin);
    }
    DataFile *file = &loader->dataset->files[slot->file];
    row_notes_add(&loader->dataset->notes, &slot->notes, file->path, file->unit, slot->line);
    file->rows++;
    return store_append(loader->writer, &slot->row, slot->words.data);
}

static void release_tokens(Slot *slot) {
    encoding_release(&slot->encoding);
    joined_release(&slot->joined);
    ids_release(&slot->words);
}

/* Memory for one huge row is not kept for all that follow. */
static void clear_slot(Slot *slot) {
    json_decref(slot->json);
    slot->json = NULL;
    if (slot->encoding.ids.n <= SPARE_WORDS) return;
    release_tokens(slot);
}

static Status flush_block(Loader *loader) {
    int64_t n = (int64_t)loader->n_slots;
    Status status = ST_OK;
#pragma omp parallel for schedule(dynamic, 4)
    for (int64_t i = 0; i < n; i++) {
        encode_slot(loader, &loader->slots[i]);
        if (loader->to_read)
            work_at_bytes("reading and tokenising rows", MIN(loader->read, loader->to_read), loader->to_read);
        else
            work_at("reading and tokenising rows", (uint64_t)(loader->n_encoded + i), 0);
    }
    loader->n_encoded += n;
    for (int64_t i = 0; i < n; i++) {
        if (status == ST_OK) status = keep_slot(loader, &loader->slots[i]);
        clear_slot(&loader->slots[i]);
    }
    loader->n_slots = loader->waiting = 0;
    return status;
}

/* Bytes of text in a row, about: so that a block of rows takes no more memory when they are long. */
static size_t json_weight(const json_t *value) {
    size_t sum = sizeof(json_t);
    const char *key;
    json_t *item;
    if (json_is_string(value)) sum += json_string_length(value);
    for (size_t i = 0; i < json_array_size(value); i++) sum += json_weight(json_array_get(value, i));
    json_object_foreach((json_t *)(uintptr_t)value, key, item) sum += json_weight(item);
    return sum;
}

static Status next_slot(Loader *loader, const Row *row, json_t *json) {
    Slot *slot = &loader->slots[loader->n_slots++];
    slot->json = json;
    slot->line = row->line;
    slot->file = loader->file;
    slot->format = loader->format;
    slot->padded = row->padded;
    loader->waiting += json_weight(json);
    return loader->n_slots == BLOCK_ROWS || loader->waiting >= BLOCK_BYTES ? flush_block(loader) : ST_OK;
}

/* A line that is no row, or a row whose form is not known: its failure stands in this thread. Takes `json`. */
static Status take_failed(Loader *loader, const Row *row, json_t *json) {
    failure_keep(&loader->slots[loader->n_slots].failure, ST_INPUT);
    loader->dataset->files[loader->file].unit = row->unit;
    return next_slot(loader, row, json);
}

static Status take_bad(void *context, const Row *row) {
    json_t *text = json_stringn(row->text.data ? row->text.data : "", row->text.len); /* NULL where it is no UTF-8 */
    return take_failed(context, row, text);
}

static Status take_row(void *context, const Row *row) {
    Loader *loader = context;
    DataFile *file = &loader->dataset->files[loader->file];
    const char *shape;
    json_t *json;
    file->unit = row->unit;
    loader->read += row->text.len + 1;
    if (row->line > UINT32_MAX) return status_fail(ST_INPUT, "'%s' has more than %lld rows", row->file, (long long)UINT32_MAX);
    Status shaped = row_shape(&loader->form, row->json, &json, &shape);
    if (rejected_takes(loader->config->rejected, shaped)) return take_failed(loader, row, json_incref(row->json));
    TRY(fail_in_file(loader, shaped, loader->file, row->line));
    if (!loader->format) {
        Status chosen = choose_format(loader, json);
        file->shape = shape;
        if (rejected_takes(loader->config->rejected, chosen)) return take_failed(loader, row, json);
        if (chosen != ST_OK) json_decref(json);
        TRY(fail_in_file(loader, chosen, loader->file, row->line));
    }
    file->format = loader->format->name;
    loader->rows_read++;
    return next_slot(loader, row, json);
}

/* Rows that were read before the failure may hold one themselves, which then comes first. */
static Status flush_before(Loader *loader, Status failed) {
    Failure failure;
    failure_keep(&failure, failed);
    TRY(flush_block(loader));
    return failure_say(&failure);
}

static Status read_file(Loader *loader, uint32_t number) {
    const DataFile *file = &loader->dataset->files[number];
    const DataSource *source = &loader->dataset->sources[file->source];
    const char *format = source->format ? source->format : loader->config->format;
    if (number == 0 || file->source != file[-1].source) loader->rows_read = 0;
    if (source->max_rows > 0 && loader->rows_read >= source->max_rows) return ST_OK;
    loader->wanted_format = format && strcmp(format, "auto") != 0 ? format : NULL;
    loader->format = NULL;
    loader->file = number;
    if (number == 0 || file->source != file[-1].source) TRY(row_form_begin(&loader->form, source));
    RowsConfig how = {.max_rows = source->max_rows > 0 ? source->max_rows - loader->rows_read : 0,
                      .separator = source->separator,
                      .widen = true,
                      .bad = loader->config->rejected ? take_bad : NULL};
    return rows_read_as(file->path, &how, take_row, loader);
}

/* One of which every row is bad is another file than was meant. */
static Status check_sources(const Loader *loader) {
    const Dataset *dataset = loader->dataset;
    for (size_t s = 0; s < dataset->n_sources; s++) {
        int64_t kept = 0;
        for (size_t i = 0; i < dataset->n_files; i++)
            if (dataset->files[i].source == s) kept += dataset->files[i].rows;
        if (loader->bad[s].n > 0 && kept == 0) return no_good_row(dataset->sources[s].path, loader->bad[s].n, &loader->bad[s].first);
    }
    return ST_OK;
}

/* Where each row is a line of a plain file, and all of them are read. */
static uint64_t bytes_of_lines(const Dataset *dataset) {
    uint64_t all = 0;
    for (size_t i = 0; i < dataset->n_files; i++) {
        struct stat info;
        bool lines = text_ends_with(dataset->files[i].path, ".jsonl") && dataset->sources[dataset->files[i].source].max_rows <= 0;
        if (!lines || stat(dataset->files[i].path, &info) != 0) return 0;
        all += (uint64_t)info.st_size;
    }
    return all;
}

static Status read_files(Loader *loader) {
    Status status = ST_OK;
    loader->to_read = bytes_of_lines(loader->dataset);
    for (size_t i = 0; i < loader->dataset->n_files && status == ST_OK; i++) status = read_file(loader, (uint32_t)i);
    TRY(status == ST_OK ? flush_block(loader) : flush_before(loader, status));
    if (loader->bad) TRY(check_sources(loader));
    return row_form_end(&loader->form);
}

/* ---- what is known about the whole ---- */

/* What the table of rows does not tell. */
static const struct {
    const char *name;
    size_t offset;
} count_fields[] = {
#define FIELD(name) \
    { #name, offsetof(DataCounts, name) }
    FIELD(dropped_long), FIELD(cut),       FIELD(dropped_untrained), FIELD(remapped),   FIELD(no_eos),         FIELD(weighted), FIELD(conversations),
    FIELD(with_system),  FIELD(templates), FIELD(unwritten),         FIELD(marked),     FIELD(as_chat),        FIELD(texts),    FIELD(untemplated),
    FIELD(turned),       FIELD(turns),     FIELD(turn_tokens),       FIELD(lost_turns), FIELD(behind_thought),
#undef FIELD
};

static int64_t *count_at(DataCounts *counts, size_t field) { return (int64_t *)(void *)((char *)counts + count_fields[field].offset); }

static void write_about(const Loader *loader, JsonWriter *w) {
    Dataset *dataset = loader->dataset;
    const Rejected *rejected = loader->config->rejected;
    jw_object(w, NULL);
    if (rejected) jw_int(w, "rejected", rejected->n - loader->before.n);
    if (rejected) jw_string(w, "rejected_rows", str_text(&rejected->lines) + loader->before.lines);
    for (size_t i = 0; i < COUNT_OF(count_fields); i++) jw_int(w, count_fields[i].name, *count_at(&dataset->counts, i));
    jw_array(w, "lost");
    for (size_t i = 0; i < dataset->n_lost; i++) {
        jw_int(w, NULL, dataset->lost[i].file);
        jw_int(w, NULL, dataset->lost[i].line);
    }
    jw_end_array(w);
    row_notes_write(&dataset->notes, w);
    jw_array(w, "files");
    for (size_t i = 0; i < dataset->n_files; i++) {
        jw_object(w, NULL);
        jw_string(w, "unit", dataset->files[i].unit);
        jw_string(w, "format", dataset->files[i].format);
        jw_string(w, "shape", dataset->files[i].shape);
        jw_int(w, "rows", dataset->files[i].rows);
        jw_end_object(w);
    }
    jw_end_array(w);
    jw_end_object(w);
}

static Status read_about_file(const json_t *about, DataFile *file, Arena *arena) {
    const char *unit = NULL, *format = NULL, *shape = NULL;
    TRY(json_get_string(about, "tokenised rows", "unit", &unit));
    TRY(json_get_string(about, "tokenised rows", "format", &format));
    TRY(json_get_string(about, "tokenised rows", "shape", &shape));
    TRY(json_get_int(about, "tokenised rows", "rows", &file->rows));
    if (file->rows > 0 && (!unit || !format)) return status_fail(ST_INPUT, "tokenised rows: a file lacks its format");
    if (unit && !(file->unit = arena_strdup(arena, unit))) return ST_RESOURCE;
    if (format && !(file->format = arena_strdup(arena, format))) return ST_RESOURCE;
    if (shape && !(file->shape = arena_strdup(arena, shape))) return ST_RESOURCE;
    return ST_OK;
}

static Status read_lost(const json_t *list, Dataset *dataset) {
    for (size_t i = 0; i + 1 < json_array_size(list) && dataset->n_lost < PLACES_SHOWN; i += 2) {
        json_int_t file = json_integer_value(json_array_get(list, i)), line = json_integer_value(json_array_get(list, i + 1));
        if (file < 0 || (size_t)file >= dataset->n_files || line < 0 || line > UINT32_MAX || !dataset->files[file].unit)
            return status_fail(ST_INPUT, "tokenised rows: row %zu that was lost is nowhere", i / 2 + 1);
        dataset->lost[dataset->n_lost++] = (struct RowPlace){(uint32_t)file, (uint32_t)line};
    }
    return ST_OK;
}

/* Rows that were left out when the others were tokenised. */
static Status read_rejected(const json_t *about, Rejected *rejected) {
    int64_t n = 0;
    const char *lines = "";
    TRY(json_get_int(about, "tokenised rows", "rejected", &n));
    TRY(json_get_string(about, "tokenised rows", "rejected_rows", &lines));
    rejected_again(rejected, n, lines);
    return ST_OK;
}

static Status read_about(Dataset *dataset, Rejected *rejected) {
    Slice text = store_about(dataset->store);
    json_t *about;
    TRY(json_read_text(text.data, text.len, "tokenised rows", &about));
    const json_t *files = json_object_get(about, "files");
    Status status = json_array_size(files) == dataset->n_files
                        ? ST_OK
                        : status_fail(ST_INPUT, "tokenised rows: %zu files instead of %zu", json_array_size(files), dataset->n_files);
    for (size_t i = 0; status == ST_OK && i < COUNT_OF(count_fields); i++)
        status = json_get_int(about, "tokenised rows", count_fields[i].name, count_at(&dataset->counts, i));
    for (size_t i = 0; status == ST_OK && i < dataset->n_files; i++)
        status = read_about_file(json_array_get(files, i), &dataset->files[i], dataset->arena);
    if (status == ST_OK) status = read_lost(json_object_get(about, "lost"), dataset);
    if (status == ST_OK) status = row_notes_read(about, &dataset->notes);
    if (status == ST_OK && rejected) status = read_rejected(about, rejected);
    json_decref(about);
    return status;
}

/* Equal rows have equal hashes, and others hardly ever: with ten million rows once in 370 000 datasets. The table has a fixed size; each pass takes
 * its share of the hashes. */
static Status count_duplicates(const Store *store, int64_t *duplicates) {
    enum { SLOTS = 1 << 22 };
    size_t n = store_count(store), size = 16, passes = n / (SLOTS / 2) + 1;
    while (size < 2 * n && size < SLOTS) size *= 2;
    uint64_t *slots = malloc(size * sizeof *slots);
    if (!slots) return status_fail(ST_RESOURCE, "out of memory for %zu rows", n);
    *duplicates = 0;
    for (size_t pass = 0; pass < passes; pass++) {
        size_t filled = 0;
        memset(slots, 0, size * sizeof *slots);
        for (size_t i = 0; i < n; i++) {
            if (i % 1024 == 0) work_at("looking for equal rows", pass * n + i, passes * n);
            uint64_t hash = store_row(store, i)->hash | 1; /* 0 is an empty slot */
            if ((hash >> 32) % passes != pass) continue;
            size_t slot = (size_t)(hash >> 1) & (size - 1);
            while (slots[slot] && slots[slot] != hash) slot = (slot + 1) & (size - 1);
            *duplicates += slots[slot] == hash;
            if (!slots[slot] && ++filled < size) slots[slot] = hash;
        }
    }
    work_end("looking for equal rows");
    free(slots);
    return ST_OK;
}

static Status check_not_empty(const Dataset *dataset) {
    const DataCounts *counts = &dataset->counts;
    if (counts->trained_tokens > 0 || (dataset->prompts && dataset->n > 0)) return ST_OK;
    const char *path = dataset->sources[0].path;
    if (dataset->n > 0) return status_fail(ST_INPUT, "no token of the %zu row%s in '%s' is trained", dataset->n, plural((int64_t)dataset->n), path);
    if (counts->dropped_long + counts->dropped_untrained == 0) return status_fail(ST_INPUT, "'%s' holds no rows", path);
    status_fail(ST_INPUT, "no row of '%s' is left: %lld are longer than max_length, %lld lost all that is trained when they were cut", path,
                (long long)counts->dropped_long, (long long)counts->dropped_untrained);
    return status_hint(ST_INPUT, "raise data.max_length");
}

/* ---- which rows of the store are the dataset's ---- */

/* Rows held out before row `at` of the store. */
static size_t taken_before(const Dataset *dataset, uint64_t at) {
    size_t low = 0, high = dataset->n_taken;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (dataset->taken[middle] < at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static size_t store_index(const Dataset *dataset, size_t i) {
    if (!dataset->taken) return i;
    if (dataset->held_out) return (size_t)dataset->taken[i];
    size_t low = 0, high = dataset->n_taken; /* how many of those held out come before: taken[k] - k others come before taken[k] */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (dataset->taken[middle] - middle <= i) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return i + low;
}

static const StoreRow *row_at(const Dataset *dataset, size_t i) { return store_row(dataset->store, store_index(dataset, i)); }

static void append_place(const Dataset *dataset, uint32_t file, uint32_t line, Str *text) {
    str_printf(text, "%s%s %s %u", text->len ? ", " : "", dataset->files[file].path, dataset->files[file].unit, (unsigned)line);
}

/* Keeps the text in the arena, with what is left unsaid; NULL when there is nothing to say. */
static const char *keep_places(Str *text, int64_t n, Arena *arena) {
    if (n > PLACES_SHOWN) str_printf(text, " and %lld more", (long long)n - PLACES_SHOWN);
    const char *kept = text->len > 0 ? arena_strdup(arena, str_text(text)) : NULL;
    str_release(text);
    return kept;
}

static void count_rows(Dataset *dataset, Arena *arena) {
    DataCounts *counts = &dataset->counts;
    Str untrained = {0}, lost = {0};
    counts->rows = (int64_t)dataset->n;
    counts->tokens = counts->trained_tokens = counts->untrained = 0;
    counts->beyond = dataset->context;
    dataset->longest = 0;
    for (size_t i = 0; i < dataset->n; i++) {
        const StoreRow *row = row_at(dataset, i);
        counts->tokens += row->n;
        context_add(&counts->beyond, row->depth);
        counts->trained_tokens += row->trained;
        if (row->trained == 0 && !dataset->prompts && counts->untrained++ < PLACES_SHOWN) append_place(dataset, row->file, row->line, &untrained);
        dataset->longest = MAX(dataset->longest, row->n);
    }
    for (size_t i = 0; i < dataset->n_lost; i++) append_place(dataset, dataset->lost[i].file, dataset->lost[i].line, &lost);
    counts->untrained_rows = keep_places(&untrained, counts->untrained, arena);
    counts->dropped_untrained_rows = keep_places(&lost, counts->dropped_untrained, arena);
}

/* Rows come in the order of files, and files in the order of sources. */
static Status check_files(const Dataset *dataset) {
    int64_t expected = 0, in_file = 0;
    size_t file = 0, n = store_count(dataset->store);
    for (size_t i = 0; i <= n; i++) {
        uint32_t at = i < n ? store_row(dataset->store, i)->file : (uint32_t)dataset->n_files;
        if (at < file || (i < n && at >= dataset->n_files)) return status_fail(ST_INPUT, "tokenised rows: their files do not come in order");
        for (; file < at; file++, in_file = 0) {
            expected = dataset->files[file].rows;
            if (in_file != expected)
                return status_fail(ST_INPUT, "tokenised rows: %lld of file %zu instead of %lld", (long long)in_file, file + 1, (long long)expected);
        }
        in_file++;
    }
    return ST_OK;
}

static void find_sources(Dataset *dataset) {
    size_t at = 0;
    for (size_t s = 0, f = 0; s < dataset->n_sources; s++) {
        dataset->source_begins[s] = at;
        for (; f < dataset->n_files && dataset->files[f].source == s; f++) at += (size_t)dataset->files[f].rows;
    }
    dataset->source_begins[dataset->n_sources] = at;
}

static Status finish_dataset(Dataset *dataset) {
    dataset->n = store_count(dataset->store);
    dataset->counts.notes = &dataset->notes;
    TRY(check_files(dataset));
    find_sources(dataset);
    count_rows(dataset, dataset->arena);
    for (size_t i = 0; i < dataset->n_files && !dataset->format; i++)
        if (dataset->files[i].rows > 0) dataset->format = dataset->files[i].format;
    return check_not_empty(dataset);
}

/* ---- whole datasets ---- */

static Status expand_sources(Dataset *dataset) {
    size_t cap = dataset->n_sources;
    DataFile *files = arena_alloc(dataset->arena, cap * sizeof *files);
    if (!files) return ST_RESOURCE;
    for (size_t s = 0; s < dataset->n_sources; s++) {
        const char **paths;
        size_t n;
        TRY(rows_expand(dataset->sources[s].path, dataset->arena, &paths, &n));
        if (dataset->n_files + n + dataset->n_sources > cap) {
            cap = 2 * (dataset->n_files + n + dataset->n_sources);
            DataFile *grown = arena_alloc(dataset->arena, cap * sizeof *grown);
            if (!grown) return ST_RESOURCE;
            memcpy(grown, files, dataset->n_files * sizeof *grown);
            files = grown;
        }
        for (size_t i = 0; i < n; i++) files[dataset->n_files++] = (DataFile){.path = paths[i], .source = (uint32_t)s};
    }
    dataset->files = files;
    return ST_OK;
}

/* `folder`, or the nearest above it that exists. */
static const char *existing_folder(const char *folder, Arena *arena) {
    char *path = arena_strdup(arena, folder);
    while (path && !dir_exists(path)) {
        char *slash = strrchr(path, '/');
        if (!slash) return ".";
        if (slash == path) return "/";
        *slash = '\0';
    }
    return path;
}

static Status create_nameless(const DataConfig *config, Arena *arena, StoreWriter **writer) {
    const char *folder = config->scratch ? existing_folder(config->scratch, arena) : NULL;
    bool writable = folder && access(folder, W_OK) == 0; /* a read-only file system says so, too */
    return store_create(writable ? folder : "/tmp", NULL, NULL, writer);
}

static void release_block(Loader *loader) {
    for (size_t i = 0; loader->slots && i < BLOCK_ROWS; i++) {
        clear_slot(&loader->slots[i]);
        release_tokens(&loader->slots[i]);
        free(loader->slots[i].texts);
        row_notes_release(&loader->slots[i].notes);
    }
    free(loader->slots);
}

static Status tokenise(Loader *loader, const FileStamp *stamps) {
    Dataset *dataset = loader->dataset;
    JsonWriter about = {0};
    loader->slots = calloc(BLOCK_ROWS, sizeof *loader->slots);
    loader->before = rejected_mark(loader->config->rejected);
    loader->bad = loader->config->rejected ? arena_zero(dataset->arena, dataset->n_sources * sizeof *loader->bad) : NULL;
    bool room = loader->slots && (loader->bad || !loader->config->rejected);
    Status status = room ? read_files(loader) : status_fail(ST_RESOURCE, "out of memory");
    work_end("reading and tokenising rows");
    release_block(loader);
    if (status == ST_OK && stamps) status = cache_unchanged(dataset->files, dataset->n_files, stamps);
    if (status != ST_OK) {
        store_abandon(loader->writer);
        return status;
    }
    write_about(loader, &about);
    status = store_finish(loader->writer, str_text(&about.text), about.text.len, &dataset->store);
    jw_release(&about);
    return status;
}

static Status load_cached(Loader *loader) {
    Dataset *dataset = loader->dataset;
    const DataConfig *config = loader->config;
    FileStamp *stamps = arena_alloc(dataset->arena, dataset->n_files * sizeof *stamps);
    StoreKey key;
    char name[48];
    if (!stamps) return ST_RESOURCE;
    TRY(cache_key(config, dataset->sources, dataset->n_sources, dataset->files, dataset->n_files, &key, stamps));
    TRY(cache_open(config->cache, &key, config->vocab_size, &dataset->store));
    dataset->cached = dataset->store != NULL;
    if (dataset->cached) return read_about(dataset, config->rejected);
    TRY(store_create(config->cache, cache_name(&key, name), &key, &loader->writer));
    return tokenise(loader, stamps);
}

static Status load_rows(Loader *loader) {
    TRY(expand_sources(loader->dataset));
    if (loader->config->cache && cache_applies(loader->dataset->files, loader->dataset->n_files)) {
        TRY(load_cached(loader));
    } else {
        TRY(create_nameless(loader->config, loader->dataset->arena, &loader->writer));
        TRY(tokenise(loader, NULL));
    }
    TRY(finish_dataset(loader->dataset));
    loader->dataset->plain_as = row_form_says(&loader->form, &loader->dataset->counts);
    return count_duplicates(loader->dataset->store, &loader->dataset->counts.duplicates);
}

Status dataset_load(const DataConfig *config, const DataSource *sources, size_t n_sources, const Tokenizer *tokenizer, Dataset **result) {
    *result = NULL;
    Dataset *dataset = calloc(1, sizeof *dataset);
    if (!dataset || !(dataset->arena = arena_new(0))) {
        free(dataset);
        return status_fail(ST_RESOURCE, "out of memory for the rows");
    }
    Loader loader = {
        .dataset = dataset, .config = config, .tokenizer = tokenizer, .form = row_form(config, config->prompts ? ROWS_ASKED : ROWS_TRAINED)};
    Status status = ST_RESOURCE;
    dataset->context = config->context;
    dataset->prompts = config->prompts;
    dataset->n_sources = n_sources;
    dataset->sources = arena_alloc(dataset->arena, n_sources * sizeof *sources);
    dataset->source_begins = arena_zero(dataset->arena, (n_sources + 1) * sizeof *dataset->source_begins);
    dataset->lost = arena_alloc(dataset->arena, PLACES_SHOWN * sizeof *dataset->lost);
    if (dataset->sources && dataset->source_begins && dataset->lost) {
        memcpy(dataset->sources, sources, n_sources * sizeof *sources);
        profile_lap(NULL);
        status = load_rows(&loader);
        profile_lap("data");
    }
    row_form_release(&loader.form);
    if (status != ST_OK) {
        dataset_free(dataset);
        return status;
    }
    *result = dataset;
    return ST_OK;
}

void dataset_free(Dataset *dataset) {
    if (!dataset) return;
    if (dataset->arena) {
        row_notes_release(&dataset->notes);
        store_close(dataset->store);
        arena_free(dataset->arena);
    }
    free(dataset);
}

Example dataset_example(const Dataset *dataset, size_t i) {
    const StoreRow *row = row_at(dataset, i);
    const int32_t *ids = store_words(dataset->store, row), *targets = ids + (row->own_targets ? row->n : 0);
    return (Example){
        .ids = ids,
        .targets = targets,
        .runs = (const TokenRun *)(const void *)(targets + row->n),
        .branches = (const Branch *)(const void *)(targets + row->n + 2 * (size_t)row->n_runs),
        .n = row->n,
        .n_runs = (int32_t)row->n_runs,
        .n_branches = (int32_t)row->n_branches,
        .trained = row->trained,
        .depth = row->depth,
        .file = row->file,
        .line = row->line,
        .weight = row->weight,
        .hash = row->hash,
    };
}

int32_t dataset_length(const Dataset *dataset, size_t i) {
    return dataset->other.length ? dataset->other.length(dataset->other.rows, i) : row_at(dataset, i)->n;
}

int64_t dataset_tokens(const Dataset *dataset, const size_t *examples, size_t n) {
    int64_t tokens = 0;
    for (size_t i = 0; i < n; i++) tokens += dataset_length(dataset, examples[i]);
    return tokens;
}

uint64_t dataset_fingerprint(const Dataset *dataset) {
    uint64_t hash = dataset->n;
    for (size_t i = 0; i < dataset->n; i++) {
        if (i % 1024 == 0) work_at("looking at every row", i, dataset->n);
        const StoreRow *row = row_at(dataset, i);
        uint64_t parts[3] = {hash, row->hash};
        memcpy(&parts[2], &row->weight, sizeof row->weight);
        hash = XXH3_64bits(parts, sizeof parts);
    }
    work_end("looking at every row");
    return hash;
}

int32_t example_label(const Example *example, int32_t t) {
    for (int32_t i = 0; i < example->n_runs && example->runs[i].begin <= t; i++)
        if (t < example->runs[i].end) return example->targets[t];
    return LABEL_NONE;
}

/* ---- rows held out ---- */

/* A part's own counts, and where its sources are. */
static void settle_part(Dataset *part, const size_t *begins, Arena *arena) {
    for (size_t s = 0; s <= part->n_sources; s++) {
        size_t taken = taken_before(part, begins[s]);
        part->source_begins[s] = part->held_out ? taken : begins[s] - taken;
    }
    count_rows(part, arena);
}

Status held_out_count(size_t n, double share, size_t *wanted) {
    if (n < 2)
        return status_hint(status_fail(ST_INPUT, "'data.eval_split' cannot hold out rows: there %s only %zu", n == 1 ? "is" : "are", n),
                           "name a file in data.eval, or leave data.eval_split out");
    *wanted = MIN(MAX((size_t)(share * (double)n + 0.5), (size_t)1), n - 1);
    return ST_OK;
}

Status dataset_split(Dataset *dataset, double share, uint64_t seed, Dataset **held_out) {
    *held_out = NULL;
    ASSERT(!dataset->taken, "rows are held out once, %zu are already", dataset->n_taken);
    size_t wanted, n_begins = dataset->n_sources + 1;
    TRY(held_out_count(dataset->n, share, &wanted));
    uint64_t *taken = arena_alloc(dataset->arena, wanted * sizeof *taken);
    size_t *begins = arena_alloc(dataset->arena, n_begins * sizeof *begins), *part_begins = arena_alloc(dataset->arena, n_begins * sizeof *begins);
    DataSource *sources = arena_alloc(dataset->arena, dataset->n_sources * sizeof *sources);
    Dataset *part = calloc(1, sizeof *part);
    if (!taken || !begins || !part_begins || !sources || !part) {
        free(part);
        return status_fail(ST_RESOURCE, "out of memory for %zu rows", wanted);
    }
    RngKey key = rng_key(seed, RNG_SHUFFLE, (uint64_t)1 << 55); /* apart from the epochs' orders */
    for (size_t i = 0, n = dataset->n; i < n; i++)
        if (rng_permute(key, n, i) < wanted) taken[dataset->n_taken++] = i;
    memcpy(begins, dataset->source_begins, n_begins * sizeof *begins);
    for (size_t s = 0; s < dataset->n_sources; s++) {
        sources[s] = dataset->sources[s];
        sources[s].weight = 1;
    }
    *part = (Dataset){.n = wanted,
                      .format = dataset->format,
                      .plain_as = dataset->plain_as,
                      .sources = sources,
                      .source_begins = part_begins,
                      .n_sources = dataset->n_sources,
                      .files = dataset->files,
                      .n_files = dataset->n_files,
                      .cached = dataset->cached,
                      .prompts = dataset->prompts,
                      .context = dataset->context,
                      .store = dataset->store,
                      .taken = taken,
                      .n_taken = wanted,
                      .held_out = true};
    dataset->taken = taken;
    dataset->n -= wanted;
    settle_part(dataset, begins, dataset->arena);
    settle_part(part, begins, dataset->arena);
    *held_out = part;
    return ST_OK;
}

/* ---- what is said about it ---- */

void dataset_where(const Dataset *dataset, size_t example, Str *text) {
    if (dataset->other.where) {
        dataset->other.where(dataset->other.rows, example, text);
        return;
    }
    const StoreRow *row = row_at(dataset, example);
    const DataFile *file = &dataset->files[row->file];
    str_printf(text, "%s %s %u", file->path, file->unit, (unsigned)row->line);
}

void data_files_say(const Dataset *dataset, void (*say)(void *context, const char *text), void *context) {
    enum { SHOWN = 20 };
    int64_t rest = 0;
    for (size_t i = 0; i < dataset->n_files; i++) {
        const DataFile *file = &dataset->files[i];
        if (i >= SHOWN) rest += file->rows;
        if (i >= SHOWN) continue;
        Str text = {0};
        str_printf(&text, "%s: %s", file->path, file->format ? file->format : "empty");
        if (file->shape) str_printf(&text, " of %s", file->shape);
        str_printf(&text, ": %lld %s", (long long)file->rows, file->rows == 1 ? "row" : "rows");
        say(context, str_text(&text));
        str_release(&text);
    }
    if (dataset->n_files <= SHOWN) return;
    char text[128];
    snprintf(text, sizeof text, "and %zu more files with %lld rows", dataset->n_files - SHOWN, (long long)rest);
    say(context, text);
}

void data_turns_say(const DataCounts *counts, const char *what, void (*say)(void *context, const char *text), void *context) {
    Str text = {0};
    if (counts->turned == 0) return;
    str_printf(&text,
               "%s: %lld conversation%s trained turn by turn (data.turns), %lld answer%s of %lld token%s with what they are asked with; what several "
               "begin with is computed once",
               what, (long long)counts->turned, counts->turned == 1 ? " is" : "s are", (long long)counts->turns, plural(counts->turns),
               (long long)counts->turn_tokens, plural(counts->turn_tokens));
    say(context, str_text(&text));
    str_release(&text);
}

void data_counts_warn(const DataCounts *counts, const char *what, void (*say)(void *context, const char *text), void *context) {
    const struct {
        int64_t n;
        const char *text, *rows;
    } odd[] = {
        {counts->dropped_long, "dropped: longer than data.max_length", NULL},
        {counts->cut, "cut to data.max_length", NULL},
        {counts->dropped_untrained, "dropped: nothing trained was left after the cut", counts->dropped_untrained_rows},
        {counts->untrained, "without a trained token", counts->untrained_rows},
        {counts->duplicates, "the same as an earlier one", NULL},
        {counts->remapped, "whose prompt ends inside a token: that token is trained", NULL},
        {counts->weighted, "with a column 'weight': training multiplies their losses by it, evaluations do not", NULL},
        {counts->behind_thought, BEHIND_THOUGHT, NULL},
        {counts->no_eos, "without an end: the tokenizer has no EOS token", NULL},
        {counts->untemplated,
         "of plain texts, taken as they stand, without the chat template: data.as: chat makes turns of them, data.as: text says that it is meant",
         NULL},
        {counts->unwritten, "with tool calls, tools or reasoning, which the chat template does not write: they are left out", NULL},
    };
    Str text = {0};
    str_printf(&text, "%s: ", what);
    if (context_describe(&counts->beyond, "row is", "rows are", &text)) say(context, str_text(&text));
    str_release(&text);
    if (counts->lost_turns > 0) {
        str_printf(&text, "%s: %lld answer%s of rows that stay left out: with what they are asked with, they are longer than data.max_length", what,
                   (long long)counts->lost_turns, plural(counts->lost_turns));
        say(context, str_text(&text));
        str_release(&text);
    }
    for (size_t i = 0; i < COUNT_OF(odd); i++) {
        if (odd[i].n == 0) continue;
        str_printf(&text, "%s: %lld %s %s", what, (long long)odd[i].n, odd[i].n == 1 ? "row" : "rows", odd[i].text);
        if (odd[i].rows) str_printf(&text, " (%s)", odd[i].rows);
        say(context, str_text(&text));
        str_release(&text);
    }
    if (counts->notes) row_notes_say(counts->notes, what, say, context);
}
