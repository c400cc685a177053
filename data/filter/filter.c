/* SPDX-License-Identifier: Apache-2.0 */
/* Filters of rows: which are on, verdicts, memory; see filter.h. */
#include "lib/base/system.h"
#include "data/filter/filter_kinds.h"

#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const FilterKind *const kinds[] = {
#define FILTER(name) &filter_kind_##name,
#include "data/filter/filters.def"
#undef FILTER
};

typedef struct Entry {
    const char *id, *text;
} Entry; /* a remembered row, as the ledger names it */
typedef struct HashSet {
    XXH128_hash_t *slots;
    size_t n, cap;
} HashSet; /* all zero: an empty slot */

struct Filters {
    Arena *arena;
    FilterConfig config;
    Filter filters[COUNT_OF(kinds)];
    size_t n;
    Entry *entries;
    size_t n_entries, cap_entries;
    HashSet tasks; /* hashes of remembered instances: the instructions, and the full prompts */
    FilterCounts counts[FILTER_BOTH + 1];
    uint64_t fingerprint;
    Filters *tried; /* second copies of the filters with a memory, for rows on trial; NULL: there are none */
};

static Status no_memory(void) { return status_errno(ENOMEM, "cannot filter the rows"); }

/* ---- faults ---- */

static OptionOwner owner_of(const Filter *filter) { return (OptionOwner){"filter", filter->kind->name, filter->config->file}; }

Status filter_refuse(const Filter *filter, int line, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    OptionOwner owner = owner_of(filter);
    return option_refuse(&owner, line, text);
}

double filter_number(const Filter *filter, size_t option) { return filter->options[option].number; }

/* ---- options ---- */

/* Applies an entry of a map of filters; *on: whether the filter is on now. */
static Status read_entry(Filter *filter, const Yaml *node, bool *on) {
    const OptionSpec *options = filter->kind->options;
    OptionOwner owner = owner_of(filter);
    bool truth;
    if (node->kind == YAML_NULL || (yaml_as_bool(node, &truth) && !node->quoted)) {
        *on = node->kind != YAML_NULL && truth;
        return ST_OK;
    }
    *on = true;
    if (node->kind != YAML_MAP)
        return options ? option_read(&owner, &options[0], node, filter->arena, &filter->options[0])
                       : option_refuse(&owner, node->line, "expected true or false");
    for (size_t i = 0; i < node->n; i++) {
        const OptionSpec *option = option_find(options, node->keys[i]);
        if (!option) return option_unknown(&owner, node->keys[i], node->key_lines[i], options, NULL, 0);
        if (node->items[i]->kind != YAML_NULL) TRY(option_read(&owner, option, node->items[i], filter->arena, &filter->options[option - options]));
    }
    return ST_OK;
}

/* ---- opening ---- */

static Status check_names(const Yaml *map, const char *file) {
    const char *names[COUNT_OF(kinds)];
    if (!map || map->kind == YAML_NULL) return ST_OK;
    for (size_t k = 0; k < COUNT_OF(kinds); k++) names[k] = kinds[k]->name;
    if (map->kind != YAML_MAP)
        return status_hint(option_refuse(&(OptionOwner){"wrong value for", "filters", file}, map->line, "expected a map"),
                           "such as filters: {rouge_l: 0.7, refusal: false}");
    for (size_t i = 0; i < map->n; i++) {
        size_t k = 0;
        while (k < COUNT_OF(kinds) && strcmp(names[k], map->keys[i]) != 0) k++;
        if (k < COUNT_OF(kinds)) continue;
        option_refuse(&(OptionOwner){"unknown filter", map->keys[i], file}, map->key_lines[i], "there is no filter of this name");
        return status_hint_nearest(ST_CONFIG, map->keys[i], names, COUNT_OF(names), "there are ");
    }
    return ST_OK;
}

static void hash_more(uint64_t *hash, const void *bytes, size_t n) { *hash = XXH3_64bits_withSeed(bytes, n, *hash); }

/* The settings that an earlier run's memory and verdicts depend on. */
static void add_fingerprint(uint64_t *hash, const Filter *filter) {
    hash_more(hash, filter->kind->name, strlen(filter->kind->name));
    for (size_t i = 0; filter->kind->options && filter->kind->options[i].name; i++) {
        const OptionValue *value = &filter->options[i];
        hash_more(hash, &value->number, sizeof value->number);
        if (value->text) hash_more(hash, value->text, strlen(value->text));
        for (size_t k = 0; k < value->n; k++) hash_more(hash, value->list[k], strlen(value->list[k]));
    }
}

static Status open_filter(Filters *set, const FilterKind *kind) {
    Filter *filter = &set->filters[set->n];
    const Yaml *of_base = set->config.base && !set->config.only ? yaml_get(set->config.base, kind->name) : NULL,
               *own = set->config.filters ? yaml_get(set->config.filters, kind->name) : NULL;
    bool on = kind->on && !set->config.only;
    *filter =
        (Filter){.kind = kind, .info = {kind->name, kind->stage, 0}, .config = &set->config, .arena = set->arena, .n_workers = omp_get_max_threads()};
    options_init(kind->options, filter->options);
    if (of_base) TRY(read_entry(filter, of_base, &on));
    if (own) TRY(read_entry(filter, own, &on));
    if (!on) return ST_OK;
    set->n++; /* the caller closes it from here on */
    add_fingerprint(&set->fingerprint, filter);
    return kind->open ? kind->open(filter) : ST_OK;
}

Status filters_open(const FilterConfig *config, Filters **out) {
    Filters *set = calloc(1, sizeof *set);
    Status status = set && (set->arena = arena_new(0)) ? ST_OK : no_memory();
    _Static_assert(COUNT_OF(kinds) <= FILTER_MOST, "FILTER_MOST is too small");
    *out = set;
    if (set) set->config = *config;
    if (status == ST_OK) status = check_names(config->base, NULL);
    if (status == ST_OK) status = check_names(config->filters, config->file);
    if (status == ST_OK && config->filters && config->filters->kind == YAML_NULL) set->config.filters = NULL;
    for (size_t k = 0; status == ST_OK && k < COUNT_OF(kinds); k++) status = open_filter(set, kinds[k]);
    if (status == ST_OK) return ST_OK;
    filters_close(set);
    *out = NULL;
    return status;
}

void filters_forget_tried(Filters *set) {
    filters_close(set->tried);
    set->tried = NULL;
}

void filters_close(Filters *set) {
    if (!set) return;
    filters_forget_tried(set);
    for (size_t i = 0; i < set->n; i++) {
        if (set->filters[i].kind->close) set->filters[i].kind->close(&set->filters[i]);
        free(set->filters[i].entries);
    }
    free(set->entries);
    free(set->tasks.slots);
    arena_free(set->arena);
    free(set);
}

const FilterInfo *filters_at(const Filters *set, size_t i) { return i < set->n ? &set->filters[i].info : NULL; }
FilterCounts filters_counts(const Filters *set, FilterStage stage) { return set->counts[stage]; }
uint64_t filters_fingerprint(const Filters *set) { return set->fingerprint; }

bool filters_has(const Filters *set, const char *name) {
    for (size_t i = 0; i < set->n; i++)
        if (strcmp(set->filters[i].info.name, name) == 0) return true;
    return false;
}

const char *filters_text(const Filters *set, const char *name, const char *option) {
    for (size_t i = 0; i < set->n; i++) {
        const OptionSpec *found = strcmp(set->filters[i].info.name, name) == 0 ? option_find(set->filters[i].kind->options, option) : NULL;
        if (found) return set->filters[i].options[found - set->filters[i].kind->options].text;
    }
    return NULL;
}

/* ---- memory ---- */

static bool remembers(const Filter *filter, FilterStage stage) { return filter->kind->memory && (filter->info.stage & stage) != 0; }

static bool any_memory(const Filters *set, FilterStage stage) {
    for (size_t i = 0; i < set->n; i++)
        if (remembers(&set->filters[i], stage)) return true;
    return false;
}

static Status add_entry(Filters *set, const FilterRow *row) {
    Str room = {0};
    Slice text = filter_subject(row, "prompt", &room);
    bool good =
        set->n_entries < UINT32_MAX && array_grow(&set->entries, &set->cap_entries, set->n_entries + 1, sizeof *set->entries, "rows") == ST_OK;
    const char *kept = good ? arena_strndup(set->arena, text.data ? text.data : "", text.len) : NULL,
               *id = kept && row->id ? (row->id_stays ? row->id : arena_strdup(set->arena, row->id)) : NULL;
    str_release(&room);
    if (!kept || (row->id && !id)) return no_memory();
    set->entries[set->n_entries++] = (Entry){id, kept};
    return ST_OK;
}

static XXH128_hash_t hash_of(Slice text, uint64_t kind) { return XXH3_128bits_withSeed(text.data ? text.data : "", text.len, kind); }

static XXH128_hash_t *find_hash(const HashSet *hashes, XXH128_hash_t hash) {
    size_t at = (size_t)hash.low64 & (hashes->cap - 1);
    while ((hashes->slots[at].low64 | hashes->slots[at].high64) && !XXH128_isEqual(hashes->slots[at], hash)) at = (at + 1) & (hashes->cap - 1);
    return &hashes->slots[at];
}

static bool has_hash(const HashSet *hashes, XXH128_hash_t hash) { return hashes->cap && XXH128_isEqual(*find_hash(hashes, hash), hash); }

static Status add_hash(HashSet *hashes, XXH128_hash_t hash) {
    if (2 * (hashes->n + 1) > hashes->cap) {
        HashSet wider = {.n = hashes->n, .cap = hashes->cap ? hashes->cap * 2 : 1024};
        if (!(wider.slots = calloc(wider.cap, sizeof *wider.slots))) return no_memory();
        for (size_t i = 0; i < hashes->cap; i++)
            if (hashes->slots[i].low64 | hashes->slots[i].high64) *find_hash(&wider, hashes->slots[i]) = hashes->slots[i];
        free(hashes->slots);
        *hashes = wider;
    }
    XXH128_hash_t *slot = find_hash(hashes, hash);
    hashes->n += !XXH128_isEqual(*slot, hash);
    *slot = hash;
    return ST_OK;
}

enum { TASK, TASK_PROMPT };

static XXH128_hash_t prompt_hash(const FilterRow *row) {
    Str room = {0};
    XXH128_hash_t hash = hash_of(filter_field(row, "prompt", &room), TASK_PROMPT);
    str_release(&room);
    return hash;
}

/* Whether a kept row has the same task with another input. */
static bool of_known_task(const Filters *set, const FilterRow *row) {
    return row->instance && has_hash(&set->tasks, hash_of(row->instruction, TASK)) && !has_hash(&set->tasks, prompt_hash(row));
}

static Status remember_task(Filters *set, const FilterRow *row) {
    if (!row->instance) return ST_OK;
    TRY(add_hash(&set->tasks, hash_of(row->instruction, TASK)));
    return add_hash(&set->tasks, prompt_hash(row));
}

/* Adds the row in `slot` to every memory of the stage. */
static Status filter_remember(Filters *set, FilterStage stage, const FilterRow *row, size_t slot) {
    if (!any_memory(set, stage)) return ST_OK;
    TRY(add_entry(set, row));
    TRY(remember_task(set, row));
    for (size_t i = 0; i < set->n; i++) {
        Filter *filter = &set->filters[i];
        if (!remembers(filter, stage)) continue;
        TRY(array_grow(&filter->entries, &filter->cap_rows, filter->n_rows + 1, sizeof *filter->entries, "rows"));
        TRY(filter->kind->memory->remember(filter, slot));
        filter->entries[filter->n_rows++] = (uint32_t)set->n_entries - 1;
    }
    return ST_OK;
}

/* ---- a block of rows ---- */

typedef struct Judged {
    bool rejected;                        /* rejected by its own text, or by a number */
    FilterMatch matches[COUNT_OF(kinds)]; /* filters with a memory */
    size_t measured_by;                   /* the filter whose number was out of range; n: none */
} Judged;

typedef struct Block {
    Filters *set;
    FilterStage stage;
    const FilterRow *rows;
    FilterVerdict *verdicts;
    size_t n;
    bool remembers; /* rows that are kept */
    Judged judged[FILTER_BLOCK];
    size_t begins[COUNT_OF(kinds)]; /* size of each memory before the block */
} Block;

static void reject(FilterVerdict *verdict, Filter *filter, const FilterResult *finding) {
    verdict->kept = false;
    verdict->reason = filter->info.name;
    verdict->what = finding->what;
    verdict->score = finding->score;
    verdict->nearest_id = finding->nearest_id;
    verdict->nearest_text = finding->nearest_text;
}

static bool filter_rejects(const Filter *filter, const FilterRow *row, FilterResult *finding) {
    if (!filter->kind->each_answer || row->n_answers == 0) return filter->kind->rejects(filter, row, finding);
    FilterRow one = *row;
    for (size_t i = 0; i < row->n_answers; i++) {
        one.completion = row->answers[i];
        if (filter->kind->rejects(filter, &one, finding)) return true;
    }
    return false;
}

/* The first filter that rejects the row without comparing it. */
static void judge_alone(Block *block, size_t r) {
    Filters *set = block->set;
    FilterVerdict *verdict = &block->verdicts[r];
    for (size_t i = 0; i < set->n && !block->judged[r].rejected; i++) {
        Filter *filter = &set->filters[i];
        FilterResult finding = {.score = (double)NAN};
        if (!filter->kind->rejects || !(filter->info.stage & block->stage)) continue;
        block->judged[r].rejected = filter_rejects(filter, &block->rows[r], &finding);
        verdict->scores[i] = finding.score;
        if (block->judged[r].rejected) reject(verdict, filter, &finding);
    }
}

static Status filter_prepare(Block *block, size_t r) {
    Filters *set = block->set;
    for (size_t i = 0; i < set->n; i++) {
        Filter *filter = &set->filters[i];
        if (remembers(filter, block->stage) && filter->kind->memory->prepare) TRY(filter->kind->memory->prepare(filter, &block->rows[r], r));
    }
    return ST_OK;
}

/* Whether the row is too similar to a remembered one; its most similar row so far is in matches. */
static const char *too_much_alike(const Filter *filter, const FilterMatch *match) {
    return match->row == SIZE_MAX ? NULL : filter->kind->memory->rejects(filter, match->score);
}

/* Stops at the first memory that rejects the row. Instances continue, since it is not yet known which similarities count for them. */
static void search_before(Block *block, size_t r, int worker) {
    Filters *set = block->set;
    for (size_t i = 0; i < set->n; i++) {
        const Filter *filter = &set->filters[i];
        if (!remembers(filter, block->stage)) continue;
        filter->kind->memory->search(filter, r, worker, 0, &block->judged[r].matches[i]);
        if (too_much_alike(filter, &block->judged[r].matches[i]) && !block->rows[r].instance) break;
    }
}

/* The task of an instance may still come in its block: then similarity does not count. */
static bool found_before(const Block *block, size_t r) {
    if (block->rows[r].instance) return false;
    for (size_t i = 0; i < block->set->n; i++)
        if (remembers(&block->set->filters[i], block->stage) && too_much_alike(&block->set->filters[i], &block->judged[r].matches[i])) return true;
    return false;
}

/* The numbers of filter i for the remaining rows. */
static Status filter_measure(Block *block, size_t i) {
    Filters *set = block->set;
    Filter *filter = &set->filters[i];
    FilterRow rows[FILTER_BLOCK];
    double values[FILTER_BLOCK];
    size_t places[FILTER_BLOCK], n = 0;
    for (size_t r = 0; r < block->n; r++)
        if (!block->judged[r].rejected && block->judged[r].measured_by == set->n && !found_before(block, r))
            places[n] = r, rows[n++] = block->rows[r];
    if (n == 0) return ST_OK;
    TRY(filter->kind->measure(filter, rows, n, values));
    for (size_t k = 0; k < n; k++) {
        block->verdicts[places[k]].scores[i] = values[k];
        if (isnan(values[k]) || filter->kind->out_of_range(filter, values[k])) block->judged[places[k]].measured_by = i;
    }
    return ST_OK;
}

static Status measure_all(Block *block) {
    for (size_t i = 0; i < block->set->n; i++)
        if (block->set->filters[i].kind->measure && (block->set->filters[i].info.stage & block->stage)) TRY(filter_measure(block, i));
    return ST_OK;
}

/* Decides on a row that no filter rejects by itself; earlier rows of the block are decided. */
static void filter_settle(Block *block, size_t r) {
    Filters *set = block->set;
    FilterVerdict *verdict = &block->verdicts[r];
    bool known_task = of_known_task(set, &block->rows[r]);
    for (size_t i = 0; i < set->n; i++) {
        Filter *filter = &set->filters[i];
        FilterMatch *match = &block->judged[r].matches[i];
        if (!remembers(filter, block->stage) || (known_task && filter->info.stage == FILTER_PROMPT)) continue;
        filter->kind->memory->search(filter, r, 0, block->begins[i], match);
        verdict->scores[i] = match->score;
        const char *what = too_much_alike(filter, match);
        if (!what) continue;
        const Entry *entry = &set->entries[filter->entries[match->row]];
        reject(verdict, filter, &(FilterResult){match->score, what, entry->id, entry->text});
        return;
    }
    size_t by = block->judged[r].measured_by;
    if (by == set->n) return;
    Filter *filter = &set->filters[by];
    double value = verdict->scores[by];
    reject(verdict, filter,
           &(FilterResult){value, isnan(value) ? "no number could be had for it" : filter->kind->out_of_range(filter, value), NULL, NULL});
}

static Status filter_take(Block *block, size_t r) {
    Filters *set = block->set;
    for (size_t i = 0; i < set->n; i++) {
        Filter *filter = &set->filters[i];
        if (remembers(filter, block->stage) && filter->kind->memory->take) TRY(filter->kind->memory->take(filter, &block->rows[r], r));
    }
    return ST_OK;
}

static Status filter_fit(Block *block) {
    for (size_t i = 0; i < block->set->n; i++) {
        Filter *filter = &block->set->filters[i];
        block->begins[i] = filter->n_rows;
        if (remembers(filter, block->stage) && filter->kind->memory->fit) TRY(filter->kind->memory->fit(filter));
    }
    return ST_OK;
}

/* The first failure of the rows, with its text, since each thread has its own. */
typedef struct Fault {
    size_t row;
    Failure failure;
} Fault;

static void note_fault(Fault *fault, size_t r, Status status) {
    if (status == ST_OK || r >= fault->row) return;
    fault->row = r;
    failure_save(&fault->failure, status);
}

/* Judges rows by themselves, in parallel, and prepares those that pass. */
static Status look_at_rows(Block *block) {
    Fault fault = {.row = SIZE_MAX};
    int n = (int)block->n;
#pragma omp parallel for schedule(dynamic, 4) if (n > 1)
    for (int r = 0; r < n; r++) judge_alone(block, (size_t)r);
    for (size_t r = 0; r < block->n; r++)
        if (!block->judged[r].rejected) TRY(filter_take(block, r));
#pragma omp parallel for schedule(dynamic, 4) if (n > 1)
    for (int r = 0; r < n; r++) {
        Status status = block->judged[r].rejected ? ST_OK : filter_prepare(block, (size_t)r);
        if (status != ST_OK) {
#pragma omp critical(filter_fault)
            note_fault(&fault, (size_t)r, status);
        }
    }
    return failure_restore(&fault.failure);
}

static void search_rows(Block *block) {
    int n = (int)block->n, n_workers = block->set->n ? block->set->filters[0].n_workers : 1;
#pragma omp parallel for schedule(dynamic, 4) num_threads(n_workers) if (n > 1)
    for (int r = 0; r < n; r++)
        if (!block->judged[r].rejected) search_before(block, (size_t)r, omp_get_thread_num());
}

static Status run_block(Block *block) {
    Filters *set = block->set;
    for (size_t r = 0; r < block->n; r++) {
        block->verdicts[r] = (FilterVerdict){.kept = true, .score = (double)NAN};
        block->judged[r] = (Judged){.measured_by = set->n};
        for (size_t i = 0; i < FILTER_MOST; i++) block->verdicts[r].scores[i] = (double)NAN;
        for (size_t i = 0; i < set->n; i++) block->judged[r].matches[i] = (FilterMatch){0, SIZE_MAX};
    }
    TRY(look_at_rows(block));
    TRY(filter_fit(block));
    search_rows(block);
    TRY(measure_all(block));
    for (size_t r = 0; r < block->n; r++) {
        if (block->judged[r].rejected) continue;
        filter_settle(block, r);
        if (block->verdicts[r].kept && block->remembers) TRY(filter_remember(set, block->stage, &block->rows[r], r));
    }
    return ST_OK;
}

static void filter_count(Filters *set, FilterStage stage, const FilterVerdict *verdict) {
    set->counts[stage].rows++;
    set->counts[stage].kept += verdict->kept;
    for (size_t i = 0; i < set->n; i++) set->filters[i].info.rejected += verdict->reason == set->filters[i].info.name;
}

static Status filter_run(Filters *set, FilterStage stage, const FilterRow *rows, size_t n, bool remembers, FilterVerdict *verdicts) {
    Block *block = malloc(sizeof *block);
    Status status = block ? ST_OK : no_memory();
    for (size_t at = 0; status == ST_OK && at < n; at += FILTER_BLOCK) {
        *block = (Block){
            .set = set, .stage = stage, .rows = rows + at, .verdicts = verdicts + at, .n = MIN(n - at, (size_t)FILTER_BLOCK), .remembers = remembers};
        status = interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted") : run_block(block);
    }
    free(block);
    return status;
}

Status filters_run(Filters *set, FilterStage stage, const FilterRow *rows, size_t n, FilterVerdict *verdicts) {
    TRY(filter_run(set, stage, rows, n, true, verdicts));
    for (size_t r = 0; r < n; r++) filter_count(set, stage, &verdicts[r]);
    return ST_OK;
}

/* ---- rows on trial ---- */

/* Makes copies of the filters with a memory: the same options, an empty memory. */
static Status open_tried(Filters *set) {
    Filters *tried = calloc(1, sizeof *tried);
    if (!tried || !(tried->arena = arena_new(0))) {
        free(tried);
        return no_memory();
    }
    set->tried = tried;
    for (size_t i = 0; i < set->n; i++) {
        Filter *filter = &tried->filters[tried->n];
        if (!set->filters[i].kind->memory) continue;
        *filter = set->filters[i];
        filter->arena = tried->arena;
        filter->state = NULL;
        filter->entries = NULL;
        filter->n_rows = filter->cap_rows = 0;
        tried->n++;
        if (filter->kind->open) TRY(filter->kind->open(filter));
    }
    return ST_OK;
}

/* Compares a row with the rows tried before it. */
static void filter_join_verdicts(const Filters *set, const FilterVerdict *tried, FilterVerdict *verdict) {
    double scores[FILTER_MOST];
    memcpy(scores, verdict->scores, sizeof scores);
    for (size_t i = 0; i < set->tried->n; i++)
        for (size_t k = 0; k < set->n; k++)
            if (set->filters[k].kind == set->tried->filters[i].kind)
                scores[k] = fmax(scores[k], tried->scores[i]); /* the larger; NaN counts as missing */
    if (!tried->kept) *verdict = *tried;
    memcpy(verdict->scores, scores, sizeof scores);
}

Status filters_try(Filters *set, FilterStage stage, const FilterRow *rows, size_t n, FilterVerdict *verdicts) {
    if (!set->tried) TRY(open_tried(set));
    TRY(filter_run(set, stage, rows, n, false, verdicts));
    for (size_t r = 0; r < n; r++) {
        FilterVerdict among;
        if (verdicts[r].kept) {
            TRY(filter_run(set->tried, stage, &rows[r], 1, true, &among));
            filter_join_verdicts(set, &among, &verdicts[r]);
        }
        filter_count(set, stage, &verdicts[r]);
    }
    return ST_OK;
}

Status filters_remember(Filters *set, FilterStage stage, const FilterRow *rows, size_t n) {
    for (size_t r = 0; r < n && any_memory(set, stage); r++) {
        for (size_t i = 0; i < set->n; i++) {
            Filter *filter = &set->filters[i];
            if (!remembers(filter, stage)) continue;
            if (filter->kind->memory->take) TRY(filter->kind->memory->take(filter, &rows[r], 0));
            if (filter->kind->memory->prepare) TRY(filter->kind->memory->prepare(filter, &rows[r], 0));
        }
        TRY(filter_remember(set, stage, &rows[r], 0));
    }
    return ST_OK;
}

typedef struct Remembering {
    Filters *set;
    FilterStage stage;
    Arena *arena;
} Remembering;

static Status remember_row(void *context, const Row *row) {
    const Remembering *job = context;
    FilterRow read;
    arena_reset(job->arena);
    Status status = filter_row_read(row->json, job->arena, &read);
    if (!read.id) read.id = arena_printf(job->arena, "%s %s %zu", row->file, row->unit, row->line);
    if (status == ST_OK) status = filters_remember(job->set, job->stage, &read, 1);
    return status == ST_OK ? ST_OK : status_prefix(status, "'%s' %s %zu", row->file, row->unit, row->line);
}

Status filters_remember_file(Filters *set, FilterStage stage, const char *path) {
    Remembering job = {set, stage, arena_new(0)};
    Status status = job.arena ? rows_read_as(path, &(RowsConfig){.widen = true}, remember_row, &job) : no_memory();
    arena_free(job.arena);
    return status;
}

/* ---- output ---- */

void filter_write_rejected(const FilterRow *row, const FilterVerdict *verdict, Str *line) {
    JsonWriter w = {.text = *line};
    Str written = {0};
    filter_row_write(row, &written);
    jw_object(&w, NULL);
    jw_raw(&w, "row", str_text(&written));
    jw_string(&w, "reason", verdict->reason);
    jw_string(&w, "what", verdict->what);
    jw_double(&w, "score", verdict->score);
    if (verdict->nearest_text) {
        jw_object(&w, "nearest");
        jw_string(&w, "id", verdict->nearest_id && verdict->nearest_id[0] ? verdict->nearest_id : NULL);
        jw_string(&w, "text", verdict->nearest_text);
        jw_end_object(&w);
    } else {
        jw_null(&w, "nearest");
    }
    jw_end_object(&w);
    str_release(&written);
    *line = w.text;
}

/* ---- the table ---- */

bool filter_help_at(size_t i, FilterHelp *help) {
    if (i >= COUNT_OF(kinds)) return false;
    const OptionSpec *first = kinds[i]->options;
    *help = (FilterHelp){kinds[i]->name, kinds[i]->help, kinds[i]->argument, kinds[i]->on, first && first->kind == OPTION_STRING};
    return true;
}

static void write_option(const OptionSpec *option, bool first, Str *text) {
    str_printf(text, "      %-14s  %s", option->name, option->help); /* two spaces start an entry of a list */
    if (option->kind == OPTION_BOOL)
        str_printf(text, " (%s)", option->value != 0 ? "true" : "false");
    else if (option->kind == OPTION_STRING)
        str_printf(text, "%s%s (%s)", option->choices ? "; " : "", option->choices ? option->choices : "", option->text ? option->text : "null");
    else if (option->kind != OPTION_STRINGS)
        str_printf(text, " (%g)", option->value);
    str_printf(text, "%s\n", first ? "; set by a value alone" : "");
}

void filters_write_help(Str *text) {
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        str_printf(text, "  %s%s: %s\n", kinds[k]->name, kinds[k]->on ? " (on)" : "", kinds[k]->help);
        for (const OptionSpec *option = kinds[k]->options; option && option->name; option++) write_option(option, option == kinds[k]->options, text);
    }
}
