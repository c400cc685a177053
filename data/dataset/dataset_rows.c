/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenises the rows of files into the store: formats, limits, rows dropped or truncated. Rows are read in order, tokenised in blocks by all threads,
 * and appended in their order. */
#include "data/branches.h"
#include "data/dataset/dataset_parts.h"
#include "data/formats/formats.h"
#include "lib/base/memory.h"
#include "lib/base/work.h"
#include "lib/recipe/rejected.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

/* ---- one row ---- */

enum { BLOCK_ROWS = 1024, BLOCK_BYTES = 8 << 20, SPARE_WORDS = 64 << 10 };
typedef enum Outcome { ROW_KEPT, ROW_TOO_LONG, ROW_UNTRAINED, ROW_NEEDLESS } Outcome;

/* A row that is being tokenised. */
struct Slot {
    json_t *json;
    size_t line;
    uint32_t file;
    const DataFormat *format;
    Encoding encoding;
    TextSpan *texts; /* the kept part of each of its texts: n_texts */
    size_t n_texts, cap_texts;
    Joined joined; /* the row has several texts */
    Ids words;     /* as in the store */
    StoreRow row;
    RowFound found;
    Outcome outcome;
    bool cut;
    int32_t lost_turns;
    Failure failure; /* the failure, recorded in another thread */
    RowNotes notes;
    bool padded;
};

static Status unknown_format(const json_t *row) {
    Str keys = {0}, known = {0};
    columns_list(row, &keys);
    data_formats_list(&known);
    status_fail(ST_INPUT, "cannot detect the format of a row with %s", keys.len ? str_text(&keys) : "no columns");
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
        Tokenizer *none; /* loading reports the missing file, with a hint */
        if (loader->config->tokenizer && tokenizer_load(loader->config->tokenizer, &none) != ST_OK)
            return status_prefix(ST_INPUT, "rows of format %s need a tokenizer", loader->format->name);
        status_fail(ST_INPUT, "rows of format %s need a tokenizer, and the model has none", loader->format->name);
        return status_hint(ST_INPUT, "rows of format ids need none");
    }
    if (loader->config->system && !loader->format->takes_system)
        return status_fail(ST_CONFIG, "'data.system' does not apply to rows of format %s", loader->format->name);
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

/* Truncates a text that is too long; an empty result means that it is dropped. */
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

/* Truncates the row's texts. If a row has several texts, those without a trained token are dropped. */
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

/* Finds the trained tokens of a row that is laid out as in the store. The first token has no context, so it is never trained. */
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

/* A single text is stored unchanged, several as a tree; texts that all continue one another become a single text again. */
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

/* A prompt for a policy: no token of it is trained. */
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
    if (status != ST_OK) failure_save(&slot->failure, status);
}

/* Either the row is left out, or its failure becomes that of the file. */
static Status reject_slot(Loader *loader, Slot *slot) {
    const DataFile *file = &loader->dataset->files[slot->file];
    Status status = failure_restore(&slot->failure);
    if (!rejected_accepts(loader->config->rejected, status)) return fail_in_file(loader, status, slot->file, slot->line);
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
    counts->after_thought += slot->encoding.after_thought;
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
    TRY(memory_check(ST_OK)); /* the row's tokens may be incomplete */
    return store_append(loader->writer, &slot->row, slot->words.data);
}

static void release_tokens(Slot *slot) {
    encoding_release(&slot->encoding);
    joined_release(&slot->joined);
    ids_release(&slot->words);
}

/* Frees the memory of a huge row, so that it is not kept for the rows that follow. */
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

/* The approximate bytes of text in a row; they limit a block of rows, so that long rows take no more memory. */
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

/* Handles an invalid row, or one of unknown form, with the failure of this thread. Takes `json`. */
static Status take_failed(Loader *loader, const Row *row, json_t *json) {
    failure_save(&loader->slots[loader->n_slots].failure, ST_INPUT);
    loader->dataset->files[loader->file].unit = row->unit;
    return next_slot(loader, row, json);
}

static Status take_bad(void *context, const Row *row) {
    json_t *text = json_stringn(row->text.data ? row->text.data : "", row->text.len); /* NULL if it is no UTF-8 */
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
    if (rejected_accepts(loader->config->rejected, shaped)) return take_failed(loader, row, json_incref(row->json));
    TRY(fail_in_file(loader, shaped, loader->file, row->line));
    if (!loader->format) {
        Status chosen = choose_format(loader, json);
        file->shape = shape;
        if (rejected_accepts(loader->config->rejected, chosen)) return take_failed(loader, row, json);
        if (chosen != ST_OK) json_decref(json);
        TRY(fail_in_file(loader, chosen, loader->file, row->line));
    }
    file->format = loader->format->name;
    loader->rows_read++;
    return next_slot(loader, row, json);
}

/* An earlier row of the block may have a failure of its own, which is then reported first. */
static Status flush_before(Loader *loader, Status failed) {
    Failure failure;
    failure_save(&failure, failed);
    TRY(flush_block(loader));
    return failure_restore(&failure);
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

/* If every row is bad, the file is probably not the intended one. */
static Status check_sources(const Loader *loader) {
    const Dataset *dataset = loader->dataset;
    for (size_t s = 0; s < dataset->n_sources; s++) {
        int64_t kept = 0;
        for (size_t i = 0; i < dataset->n_files; i++)
            if (dataset->files[i].source == s) kept += dataset->files[i].rows;
        if (loader->bad[s].n > 0 && kept == 0) return fail_no_valid_row(dataset->sources[s].path, loader->bad[s].n, &loader->bad[s].first);
    }
    return ST_OK;
}

/* Only if each row is a line of an uncompressed file, and all rows are read. */
static uint64_t bytes_of_lines(const Dataset *dataset) {
    uint64_t all = 0;
    for (size_t i = 0; i < dataset->n_files; i++) {
        struct stat info;
        bool lines = text_ends_with(dataset->files[i].path, ".jsonl") && dataset->sources[dataset->files[i].source].max_rows <= 0;
        if (!lines || file_stat(dataset->files[i].path, &info) != 0) return 0;
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

static void release_block(Loader *loader) {
    for (size_t i = 0; loader->slots && i < BLOCK_ROWS; i++) {
        clear_slot(&loader->slots[i]);
        release_tokens(&loader->slots[i]);
        free(loader->slots[i].texts);
        row_notes_release(&loader->slots[i].notes);
    }
    free(loader->slots);
}

Status loader_read(Loader *loader) {
    const Dataset *dataset = loader->dataset;
    loader->slots = calloc(BLOCK_ROWS, sizeof *loader->slots);
    loader->before = rejected_mark(loader->config->rejected);
    loader->bad = loader->config->rejected ? arena_zero(dataset->arena, dataset->n_sources * sizeof *loader->bad) : NULL;
    bool room = loader->slots && (loader->bad || !loader->config->rejected);
    Status status = room ? read_files(loader) : status_fail(ST_RESOURCE, "out of memory");
    work_end("reading and tokenising rows");
    release_block(loader);
    return status;
}
