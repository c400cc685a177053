/* SPDX-License-Identifier: Apache-2.0 */
/* decontaminate: rows that share a run of n words with a text of evaluation (13, as in GPT-3: arXiv 2005.14165, appendix C), in any column; case and
 * punctuation are ignored. An evaluation text with fewer words is compared in full, unless it is very short. Runs that many evaluation rows share are
 * boilerplate of the task, and are ignored. */
#include "data/filter/filter_kinds.h"
#include "data/filter/word_grams.h"

#include <errno.h>
#include <stdlib.h>
#include <xxhash.h>

enum { FILES, NGRAM, LEAST };
static const OptionSpec options[] = {
    [FILES] = {"files", OPTION_STRINGS, .help = "files of evaluation, rows of any columns"},
    [NGRAM] = {"n", OPTION_WHOLE, .value = WORD_GRAM, .low = 2, .high = 63, .help = "words in a row"},
    [LEAST] = {"min", OPTION_WHOLE, .value = 8, .low = 1, .high = 63, .help = "fewest words of a text that is compared in full"},
    {0},
};
enum { COMMON = 10 }; /* a gram shared by so many evaluation rows, and by a tenth of them, is boilerplate */

typedef struct Item {
    const char *id, *text;
} Item; /* an evaluation row; text: its longest string in words */
typedef struct Gram {
    uint64_t hash;
    uint32_t item, last, n;
} Gram; /* n: number of rows that contain it, 0 = empty slot; item, last: the first and last of them */
typedef struct GramTable {
    Gram *slots;
    size_t n, cap;
} GramTable;
typedef struct Grams {
    GramTable grams, rows; /* rows: hashes of full rows, to skip repeated ones */
    Item *items;
    size_t n_items, cap_items;
    uint64_t lengths; /* bit L: there are grams of L words */
    Words words;      /* of the current text */
} Grams;

static Status no_memory(void) { return status_errno(ENOMEM, "cannot keep the rows of evaluation"); }

/* ---- grams of words ---- */

static Gram *gram_slot(const GramTable *table, uint64_t hash) {
    size_t at = hash & (table->cap - 1);
    while (table->slots[at].n && table->slots[at].hash != hash) at = (at + 1) & (table->cap - 1);
    return &table->slots[at];
}

static bool make_room(GramTable *table) {
    if (2 * (table->n + 1) <= table->cap) return true;
    GramTable wider = {.n = table->n, .cap = table->cap ? table->cap * 2 : 4096};
    if (!(wider.slots = calloc(wider.cap, sizeof *wider.slots))) return false;
    for (size_t i = 0; i < table->cap; i++)
        if (table->slots[i].n) *gram_slot(&wider, table->slots[i].hash) = table->slots[i];
    free(table->slots);
    *table = wider;
    return true;
}

/* Counts one more evaluation row that contains the gram. */
static bool count_gram(GramTable *table, uint64_t hash, uint32_t item) {
    if (!make_room(table)) return false;
    Gram *slot = gram_slot(table, hash);
    if (slot->n == 0) {
        *slot = (Gram){hash, item, item, 1};
        table->n++;
    } else if (slot->last != item) {
        slot->last = item;
        slot->n++;
    }
    return true;
}

static bool add_gram(void *context, uint64_t hash) {
    Grams *grams = context;
    return count_gram(&grams->grams, hash, (uint32_t)grams->n_items);
}

/* ---- the files of evaluation ---- */

typedef struct Reading {
    Filter *filter;
    Grams *grams;
    Str folded;
    size_t most_words;
    Slice longest;
    uint64_t whole;
} Reading;

static Status add_text(Reading *reading, Slice text) {
    Grams *grams = reading->grams;
    size_t n = (size_t)filter_number(reading->filter, NGRAM);
    text_fold(text, &reading->folded);
    grams->words.n = 0;
    if (!words_add((Slice){str_text(&reading->folded), reading->folded.len}, &grams->words)) return no_memory();
    size_t n_words = grams->words.n;
    if (n_words < MIN(n, (size_t)filter_number(reading->filter, LEAST))) return ST_OK;
    if (n_words > reading->most_words) {
        reading->most_words = n_words;
        reading->longest = text;
    }
    size_t length = MIN(n, n_words);
    grams->lengths |= (uint64_t)1 << length;
    return words_each_gram(grams->words.hashes, n_words, length, add_gram, grams) ? ST_OK : no_memory();
}

/* Visits every string of the row, at any depth. */
static Status each_string(Reading *reading, const json_t *value, Status (*call)(Reading *reading, Slice text)) {
    const char *key;
    json_t *item;
    size_t i;
    if (json_is_string(value)) return call(reading, (Slice){json_string_value(value), json_string_length(value)});
    if (json_is_array(value)) json_array_foreach(value, i, item) TRY(each_string(reading, item, call));
    if (json_is_object(value)) json_object_foreach((json_t *)(uintptr_t)value, key, item) TRY(each_string(reading, item, call));
    return ST_OK;
}

static Status hash_text(Reading *reading, Slice text) {
    reading->whole = XXH3_64bits_withSeed(text.data, text.len, reading->whole);
    return ST_OK;
}

static Status read_row(void *context, const Row *row) {
    Reading *reading = context;
    Grams *grams = reading->grams;
    Arena *arena = reading->filter->arena;
    reading->most_words = 0;
    reading->whole = 0;
    reading->longest = (Slice){"", 0};
    TRY(each_string(reading, row->json, hash_text));
    if (grams->n_items >= UINT32_MAX || !make_room(&grams->rows)) return no_memory();
    TRY(array_grow(&grams->items, &grams->cap_items, grams->n_items + 1, sizeof *grams->items, "rows of evaluation"));
    if (gram_slot(&grams->rows, reading->whole)->n > 0) return ST_OK;
    if (!count_gram(&grams->rows, reading->whole, 0)) return no_memory();
    TRY(each_string(reading, row->json, add_text));
    Item item = {arena_printf(arena, "%s %s %zu", row->file, row->unit, row->line),
                 arena_strndup(arena, reading->longest.data, reading->longest.len)};
    if (!item.id || !item.text) return ST_RESOURCE;
    grams->items[grams->n_items++] = item;
    return ST_OK;
}

static Status filter_decontaminate_open(Filter *filter) {
    const OptionValue *files = &filter->options[FILES];
    Grams *grams = filter->state = calloc(1, sizeof *grams);
    Reading reading = {.filter = filter, .grams = grams};
    Status status = grams ? ST_OK : no_memory();
    if (status == ST_OK && files->n == 0)
        status = status_hint(filter_refuse(filter, 0, "it needs files of evaluation"), "such as decontaminate: [test.jsonl]");
    for (size_t f = 0; status == ST_OK && f < files->n; f++) {
        const char **paths;
        size_t n;
        status = rows_expand(files->list[f], filter->arena, &paths, &n);
        for (size_t i = 0; status == ST_OK && i < n; i++) status = rows_read(paths[i], read_row, &reading);
    }
    str_release(&reading.folded);
    return status;
}

static void filter_decontaminate_close(Filter *filter) {
    Grams *grams = filter->state;
    if (!grams) return;
    free(grams->grams.slots);
    free(grams->rows.slots);
    free(grams->items);
    words_release(&grams->words);
    free(grams);
}

/* ---- rows ---- */

typedef struct Search {
    const Grams *grams;
    size_t common, n, n_found;
    const Item *first;
} Search;

static bool find_gram(void *context, uint64_t hash) {
    Search *search = context;
    const Gram *slot = gram_slot(&search->grams->grams, hash);
    bool found = slot->n > 0 && slot->n < search->common;
    search->n++;
    search->n_found += found;
    if (found && !search->first) search->first = &search->grams->items[slot->item];
    return true;
}

static bool filter_decontaminate_rejects(const Filter *filter, const FilterRow *row, FilterResult *finding) {
    const Grams *grams = filter->state;
    Str room = {0}, folded = {0};
    Words words = {0};
    Slice text = filter_field(row, row->completion.data ? "row" : "prompt", &room);
    Search search = {.grams = grams, .common = MAX((size_t)COMMON, grams->n_items / 10)};
    text_fold(text, &folded);
    if (grams->grams.n > 0 && words_add((Slice){str_text(&folded), folded.len}, &words))
        for (size_t n = 1; n < 64; n++)
            if (grams->lengths >> n & 1) words_each_gram(words.hashes, words.n, n, find_gram, &search);
    if (search.n > 0) finding->score = (double)search.n_found / (double)search.n;
    if (search.first) *finding = (FilterResult){finding->score, "it shares words in a row with evaluation", search.first->id, search.first->text};
    words_release(&words);
    str_release(&room);
    str_release(&folded);
    return search.first != NULL;
}

const FilterKind filter_kind_decontaminate = {.name = "decontaminate",
                                              .help = "rows that share 13 words in a row with files of evaluation",
                                              .argument = "[FILE, ...]",
                                              .stage = FILTER_BOTH,
                                              .options = options,
                                              .open = filter_decontaminate_open,
                                              .close = filter_decontaminate_close,
                                              .rejects = filter_decontaminate_rejects};
