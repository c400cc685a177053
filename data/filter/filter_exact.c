/* SPDX-License-Identifier: Apache-2.0 */
/* exact: the same text as an earlier row, ignoring case, white space, forms of quotes and of Unicode characters, and final full stops, ! and ?; other
 * input of the question, such as tools, must be the same to the byte. Both are compared by 128-bit hashes. */
#include "data/filter/filter_kinds.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { ON };
static const OptionSpec options[] = {
    [ON] = {"on", OPTION_STRING, .text = "prompt", .choices = FILTER_FIELDS,
            .help = "what must differ: a prompt includes its system message, its tools and earlier turns; a row also "
                    "includes labels and reasoning"},
    {0},
};

typedef struct Known {
    XXH128_hash_t hash;
    size_t row;
} Known; /* row + 1; 0: empty slot */
typedef struct Texts {
    Known *slots;
    size_t n, cap;
    XXH128_hash_t block[FILTER_BLOCK];
    bool empty[FILTER_BLOCK];
} Texts;

static Status no_memory(void) { return status_errno(ENOMEM, "cannot keep the texts of all rows"); }

static Status filter_exact_open(Filter *filter) {
    filter->info.stage = filter_on(filter->options[ON].text);
    return (filter->state = calloc(1, sizeof(Texts))) ? ST_OK : no_memory();
}

static void filter_exact_close(Filter *filter) {
    Texts *texts = filter->state;
    if (texts) free(texts->slots);
    free(texts);
}

/* The same question differs under another system message, or with other tools or earlier turns; and a row with another label is another row. */
static uint64_t surroundings(const FilterRow *row, const char *on) {
    const Slice parts[] = {row->system, row->context, row->rest};
    size_t n = strcmp(on, "completion") == 0 ? 0 : strcmp(on, "row") == 0 ? 3 : 2;
    uint64_t hash = 0;
    for (size_t i = 0; i < n; i++)
        if (parts[i].len > 0) hash = XXH3_64bits_withSeed(parts[i].data, parts[i].len, hash + i);
    return hash;
}

static Status filter_exact_prepare(Filter *filter, const FilterRow *row, size_t slot) {
    Texts *texts = filter->state;
    Str room = {0}, folded = {0};
    Slice text = filter_subject(row, filter->options[ON].text, &room);
    if (text.data) text_fold(text, &folded);
    while (folded.len > 0 && strchr(".!? ", folded.data[folded.len - 1])) folded.len--;
    texts->empty[slot] = folded.len == 0;
    texts->block[slot] = XXH3_128bits_withSeed(str_text(&folded), folded.len, surroundings(row, filter->options[ON].text));
    str_release(&room);
    str_release(&folded);
    return ST_OK;
}

static Known *filter_exact_find(const Texts *texts, XXH128_hash_t hash) {
    size_t at = (size_t)hash.low64 & (texts->cap - 1);
    while (texts->slots[at].row && !XXH128_isEqual(texts->slots[at].hash, hash)) at = (at + 1) & (texts->cap - 1);
    return &texts->slots[at];
}

static void filter_exact_search(const Filter *filter, size_t slot, int worker, size_t from, FilterMatch *best) {
    const Texts *texts = filter->state;
    (void)worker;
    if (texts->cap == 0 || texts->empty[slot]) return;
    const Known *known = filter_exact_find(texts, texts->block[slot]);
    if (known->row > from && best->row == SIZE_MAX) *best = (FilterMatch){1, known->row - 1};
}

static const char *filter_exact_alike(const Filter *filter, double score) {
    (void)filter;
    return score >= 1 ? "equal to an earlier row, apart from case, white space, quotes and a full stop" : NULL;
}

static Status grow_texts(Texts *texts) {
    Texts wider = {.cap = texts->cap ? texts->cap * 2 : 1024};
    if (!(wider.slots = calloc(wider.cap, sizeof *wider.slots))) return no_memory();
    for (size_t i = 0; i < texts->cap; i++)
        if (texts->slots[i].row) *filter_exact_find(&wider, texts->slots[i].hash) = texts->slots[i];
    free(texts->slots);
    texts->slots = wider.slots;
    texts->cap = wider.cap;
    return ST_OK;
}

static Status filter_exact_remember(Filter *filter, size_t slot) {
    Texts *texts = filter->state;
    if (2 * (texts->n + 1) > texts->cap) TRY(grow_texts(texts));
    Known *known = filter_exact_find(texts, texts->block[slot]);
    if (known->row) return ST_OK;
    *known = (Known){texts->block[slot], filter->n_rows + 1};
    texts->n++;
    return ST_OK;
}

static const FilterMemory memory = {
    .prepare = filter_exact_prepare, .search = filter_exact_search, .rejects = filter_exact_alike, .remember = filter_exact_remember};
const FilterKind filter_kind_exact = {.name = "exact",
                                      .help = "rows that equal an earlier one, ignoring case, white space, kinds of quotes, and . ! ? at the end",
                                      .argument = "true",
                                      .on = true,
                                      .stage = FILTER_PROMPT,
                                      .options = options,
                                      .open = filter_exact_open,
                                      .close = filter_exact_close,
                                      .memory = &memory};
