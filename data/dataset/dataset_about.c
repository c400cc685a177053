/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about a dataset besides its rows: counts and notes, stored with the tokenised rows, and the sentences made of them. */
#include "data/dataset/dataset_parts.h"
#include "data/formats/message.h"
#include "lib/base/work.h"

#include <stdlib.h>
#include <string.h>

/* ---- facts about the dataset ---- */

/* Facts that the table of rows does not contain. */
static const struct {
    const char *name;
    size_t offset;
} count_fields[] = {
#define FIELD(name) \
    { #name, offsetof(DataCounts, name) }
    FIELD(dropped_long), FIELD(cut),       FIELD(dropped_untrained), FIELD(remapped),   FIELD(no_eos),        FIELD(weighted), FIELD(conversations),
    FIELD(with_system),  FIELD(templates), FIELD(unwritten),         FIELD(marked),     FIELD(as_chat),       FIELD(texts),    FIELD(untemplated),
    FIELD(turned),       FIELD(turns),     FIELD(turn_tokens),       FIELD(lost_turns), FIELD(after_thought),
#undef FIELD
};

static int64_t *count_at(DataCounts *counts, size_t field) { return (int64_t *)(void *)((char *)counts + count_fields[field].offset); }

void about_write(Dataset *dataset, const Rejected *rejected, RejectedMark before, JsonWriter *w) {
    jw_object(w, NULL);
    if (rejected) jw_int(w, "rejected", rejected->n - before.n);
    if (rejected) jw_string(w, "rejected_rows", str_text(&rejected->lines) + before.lines);
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

/* Rows that were left out when the dataset was tokenised. */
static Status read_rejected(const json_t *about, Rejected *rejected) {
    int64_t n = 0;
    const char *lines = "";
    TRY(json_get_int(about, "tokenised rows", "rejected", &n));
    TRY(json_get_string(about, "tokenised rows", "rejected_rows", &lines));
    rejected_restore(rejected, n, lines);
    return ST_OK;
}

Status about_read(Dataset *dataset, Rejected *rejected) {
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

/* Equal rows have equal hashes, and different rows almost never do: with ten million rows, in one of 370 000 datasets. The table has a fixed size;
 * each pass handles its share of the hashes. */
Status about_duplicates(const Store *store, int64_t *duplicates) {
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
            uint64_t hash = store_row(store, i)->hash | 1; /* 0 marks an empty slot */
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

/* ---- sentences ---- */

void dataset_where(const Dataset *dataset, size_t example, Str *text) {
    if (dataset->row_source.where) {
        dataset->row_source.where(dataset->row_source.rows, example, text);
        return;
    }
    const Example row = dataset_example(dataset, example);
    const DataFile *file = &dataset->files[row.file];
    str_printf(text, "%s %s %u", file->path, file->unit, (unsigned)row.line);
}

void data_files_report(const Dataset *dataset, void (*say)(void *context, const char *text), void *context) {
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

void data_turns_report(const DataCounts *counts, const char *what, void (*say)(void *context, const char *text), void *context) {
    Str text = {0};
    if (counts->turned == 0) return;
    str_printf(&text,
               "%s: %lld conversation%s trained turn by turn (data.turns), %lld answer%s of %lld token%s including "
               "their prompts; a common prefix is computed once",
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
        {counts->dropped_untrained, "dropped: no trained token was left after truncation", counts->dropped_untrained_rows},
        {counts->untrained, "without a trained token", counts->untrained_rows},
        {counts->duplicates, "the same as an earlier one", NULL},
        {counts->remapped, "whose prompt ends inside a token: that token is trained", NULL},
        {counts->weighted, "with a column 'weight': training multiplies their losses by it, evaluations do not", NULL},
        {counts->after_thought, BEHIND_THOUGHT, NULL},
        {counts->no_eos, "without an end: the tokenizer has no EOS token", NULL},
        {counts->untemplated,
         "of plain texts, used unchanged, without the chat template: data.as: chat makes turns of them, data.as: text confirms plain texts", NULL},
        {counts->unwritten, "with tool calls, tools or reasoning, which the chat template does not write: they are left out", NULL},
    };
    Str text = {0};
    str_printf(&text, "%s: ", what);
    if (context_describe(&counts->beyond, "row is", "rows are", &text)) say(context, str_text(&text));
    str_release(&text);
    if (counts->lost_turns > 0) {
        str_printf(&text, "%s: %lld answer%s of rows that stay left out: with their prompts they are longer than data.max_length", what,
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
    if (counts->notes) row_notes_report(counts->notes, what, say, context);
}
