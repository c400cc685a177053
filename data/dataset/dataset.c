/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets: tokenised or loaded from the cache, their examples, held-out rows. */
#include "data/branches.h"
#include "data/dataset/cache.h"
#include "data/dataset/dataset_parts.h"
#include "lib/base/work.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

DataConfig data_config(const Recipe *recipe, const ModelConfig *model, const Chat *chat) {
    return (DataConfig){
        .format = recipe->data_format,
        .train_on = data_train_on_text(recipe->data_train_on),
        .system = recipe->data_system,
        .step_separator = recipe->data_step_separator,
        .as = data_as_text(recipe->data_as),
        .columns = recipe->data_columns,
        .plain_control = recipe->data_control_tokens == DATA_CONTROL_TOKENS_TEXT,
        .chat = chat,
        .max_length = recipe->data_max_length,
        .truncation = data_truncation_text(recipe->data_truncation),
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

static Status check_not_empty(const Dataset *dataset) {
    const DataCounts *counts = &dataset->counts;
    if (counts->trained_tokens > 0 || (dataset->prompts && dataset->n > 0)) return ST_OK;
    const char *path = dataset->sources[0].path;
    if (dataset->n > 0) return status_fail(ST_INPUT, "no token of the %zu row%s in '%s' is trained", dataset->n, plural((int64_t)dataset->n), path);
    if (counts->dropped_long + counts->dropped_untrained == 0) return status_fail(ST_INPUT, "'%s' holds no rows", path);
    status_fail(ST_INPUT, "no row of '%s' is left: %lld are longer than data.max_length, %lld have no trained token within it", path,
                (long long)counts->dropped_long, (long long)counts->dropped_untrained);
    return status_hint(ST_INPUT, "raise data.max_length");
}

/* ---- rows of the store that belong to the dataset ---- */

/* The number of held-out rows before row `at` of the store. */
static size_t taken_before(const Dataset *dataset, uint64_t at) {
    size_t low = 0, high = dataset->n_held_out_rows;
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
    size_t low = 0, high = dataset->n_held_out_rows; /* the number of held-out rows that come before: taken[k] - k others come before taken[k] */
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

/* Copies the text to the arena, with a note on what was omitted; NULL if the text is empty. */
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

/* Rows are in the order of files, and files in the order of sources. */
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

/* ---- loading ---- */

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

/* `folder`, or its nearest parent that exists. */
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
    bool writable = folder && UNTIL_DONE(access(folder, W_OK)) == 0; /* a read-only file system reports this, too */
    return store_create(writable ? folder : "/tmp", NULL, NULL, writer);
}

static Status tokenise(Loader *loader, const FileStamp *stamps) {
    Dataset *dataset = loader->dataset;
    JsonWriter about = {0};
    Status status = loader_read(loader);
    if (status == ST_OK && stamps) status = cache_unchanged(dataset->files, dataset->n_files, stamps);
    if (status != ST_OK) {
        store_abandon(loader->writer);
        return status;
    }
    about_write(dataset, loader->config->rejected, loader->before, &about);
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
    if (dataset->cached) return about_read(dataset, config->rejected);
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
    loader->dataset->plain_as = row_form_describe(&loader->form, &loader->dataset->counts);
    return about_duplicates(loader->dataset->store, &loader->dataset->counts.duplicates);
}

Status dataset_load(const DataConfig *config, const DataSource *sources, size_t n_sources, const Tokenizer *tokenizer, Dataset **result) {
    *result = NULL;
    Dataset *dataset = calloc(1, sizeof *dataset);
    if (!dataset || !(dataset->arena = arena_new(0))) {
        free(dataset);
        return status_fail(ST_RESOURCE, "out of memory for the rows");
    }
    Loader loader = {
        .dataset = dataset, .config = config, .tokenizer = tokenizer, .form = row_form(config, config->prompts ? ROWS_AS_PROMPTS : ROWS_AS_EXAMPLES)};
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
    return dataset->row_source.length ? dataset->row_source.length(dataset->row_source.rows, i) : row_at(dataset, i)->n;
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

/* ---- held-out rows ---- */

/* Sets the counts and source borders of a part. */
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
    ASSERT(!dataset->taken, "rows are held out once, %zu are already", dataset->n_held_out_rows);
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
    RngKey key = rng_key(seed, RNG_SHUFFLE, (uint64_t)1 << 55); /* a random stream separate from the epochs' orders */
    for (size_t i = 0, n = dataset->n; i < n; i++)
        if (rng_permute(key, n, i) < wanted) taken[dataset->n_held_out_rows++] = i;
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
                      .n_held_out_rows = wanted,
                      .held_out = true};
    dataset->taken = taken;
    dataset->n -= wanted;
    settle_part(dataset, begins, dataset->arena);
    settle_part(part, begins, dataset->arena);
    *held_out = part;
    return ST_OK;
}
