/* Rows to examples: formats, limits, what is dropped, cut or double. */
#include "data/formats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

DataConfig data_config(const Recipe *recipe, const ModelConfig *model, const Chat *chat) {
    return (DataConfig){
        .format = recipe->data_format,
        .train_on = recipe->data_train_on,
        .system = recipe->data_system,
        .chat = chat,
        .max_length = recipe->data_max_length,
        .truncation = recipe->data_truncation,
        .vocab_size = model->vocab_size,
        .positions = model->learned_positions ? model->max_position_embeddings : 0,
    };
}

/* ---- sources ---- */

static Status source_scalar(const Yaml *node, const char *key, const char **path) {
    if (node->kind != YAML_SCALAR || node->text[0] == '\0') return status_fail(ST_CONFIG, "wrong value for '%s': expected a file, or a list of files", key);
    *path = node->text;
    return ST_OK;
}

static Status source_number(const Yaml *node, const char *key, const char *name, int64_t *value) {
    if (!yaml_as_int(node, value) || *value < 1) return status_fail(ST_CONFIG, "wrong value for '%s' of '%s': expected a whole number of at least 1", name, key);
    return ST_OK;
}

static Status source_map(const Yaml *node, const char *key, DataSource *source) {
    static const char *const names[] = {"path", "format", "weight", "max_rows"};
    for (size_t i = 0; i < node->n; i++) {
        const char *name = node->keys[i];
        const Yaml *value = node->items[i];
        double weight;
        if (strcmp(name, "path") == 0) {
            TRY(source_scalar(value, key, &source->path));
        } else if (strcmp(name, "format") == 0) {
            TRY(source_scalar(value, key, &source->format));
            if (strcmp(source->format, "auto") != 0 && !data_format_find(source->format))
                return status_fail(ST_CONFIG, "unknown format '%s' in '%s' line %d", source->format, key, node->key_lines[i]);
        } else if (strcmp(name, "max_rows") == 0) {
            TRY(source_number(value, key, name, &source->max_rows));
        } else if (strcmp(name, "weight") != 0) {
            const char *near = text_nearest(name, names, COUNT_OF(names));
            status_fail(ST_CONFIG, "unknown key '%s' in '%s' line %d", name, key, node->key_lines[i]);
            return near ? status_hint(ST_CONFIG, "did you mean '%s'?", near) : ST_CONFIG;
        } else if (!yaml_as_double(value, &weight) || weight < 1 || weight > 1) {
            return status_hint(status_fail(ST_CONFIG, "'weight' of '%s' line %d comes with a later version", key, node->key_lines[i]), "the value that works is 1");
        }
    }
    return source->path ? ST_OK : status_fail(ST_CONFIG, "an entry of '%s' lacks 'path'", key);
}

Status data_sources(const Yaml *node, const char *key, Arena *arena, DataSource **sources, size_t *n) {
    bool list = node && node->kind == YAML_LIST;
    *n = list ? node->n : 1;
    if (!node || node->kind == YAML_NULL || *n == 0) return status_hint(status_fail(ST_CONFIG, "'%s' is missing", key), "name a file of rows: %s: rows.jsonl", key);
    *sources = arena_zero(arena, *n * sizeof **sources);
    if (!*sources) return ST_RESOURCE;
    for (size_t i = 0; i < *n; i++) {
        const Yaml *item = list ? node->items[i] : node;
        if (item->kind == YAML_MAP) {
            TRY(source_map(item, key, &(*sources)[i]));
        } else {
            TRY(source_scalar(item, key, &(*sources)[i].path));
        }
    }
    return ST_OK;
}

/* ---- one row ---- */

typedef struct Loader {
    Dataset *dataset;
    const DataConfig *config;
    const Tokenizer *tokenizer;
    const DataFormat *format;  /* of the current file; NULL until its first row */
    const char *wanted_format; /* NULL = by the first row */
    uint32_t file;
    size_t cap;
    Encoding encoding;
} Loader;

static Status unknown_format(const Row *row) {
    Str keys = {0}, known = {0};
    const char *key;
    json_t *value;
    json_object_foreach(row->json, key, value) str_printf(&keys, "%s'%s'", keys.len ? ", " : "", key);
    for (size_t i = 0; data_format_at(i); i++) str_printf(&known, "%s%s", i ? ", " : "", data_format_at(i)->help);
    status_fail(ST_INPUT, "cannot tell the format of a row with %s", keys.len ? str_text(&keys) : "no columns");
    status_hint(ST_INPUT, "known are %s", str_text(&known));
    str_release(&keys);
    str_release(&known);
    return ST_INPUT;
}

static Status choose_format(Loader *loader, const Row *row) {
    if (loader->wanted_format) {
        loader->format = data_format_find(loader->wanted_format);
        if (!loader->format) return status_fail(ST_CONFIG, "unknown format '%s'", loader->wanted_format);
    }
    for (size_t i = 0; !loader->format && data_format_at(i); i++)
        if (data_format_at(i)->detect(row->json)) loader->format = data_format_at(i);
    if (!loader->format) return unknown_format(row);
    if (!loader->dataset->format) loader->dataset->format = loader->format->name;
    if (loader->format->needs_tokenizer && !loader->tokenizer) {
        status_fail(ST_INPUT, "rows of format %s need a tokenizer, and the model has none", loader->format->name);
        return status_hint(ST_INPUT, "rows of format ids need none");
    }
    if (loader->config->system && !loader->format->takes_system) return status_fail(ST_CONFIG, "'data.system' has no place in rows of format %s", loader->format->name);
    return ST_OK;
}

static Status check_ids(const DataConfig *config, const Encoding *encoding) {
    for (size_t i = 0; i < encoding->ids.n; i++) {
        int32_t id = encoding->ids.data[i], label = encoding->labels.data[i];
        if (id < 0 || (config->vocab_size > 0 && id >= config->vocab_size))
            return status_fail(ST_INPUT, "token id %d at position %zu is outside of the model's vocabulary of %lld", (int)id, i, (long long)config->vocab_size);
        if (label != LABEL_NONE && (label < 0 || (config->vocab_size > 0 && label >= config->vocab_size)))
            return status_fail(ST_INPUT, "label %d at position %zu is neither %d nor in the model's vocabulary of %lld", (int)label, i, LABEL_NONE, (long long)config->vocab_size);
    }
    return ST_OK;
}

/* The tokens begin..end-1 that stay of a row that is too long; end = 0: none do. */
static Status truncate_row(Loader *loader, size_t *begin, size_t *end) {
    size_t n = loader->encoding.ids.n, most = (size_t)loader->config->max_length;
    DataCounts *counts = &loader->dataset->counts;
    const char *how = loader->config->truncation ? loader->config->truncation : "error";
    *begin = 0;
    *end = n;
    if (loader->config->max_length <= 0 || n <= most) return ST_OK;
    if (strcmp(how, "error") == 0) {
        status_fail(ST_INPUT, "the row has %zu tokens, more than the %zu of 'data.max_length'", n, most);
        return status_hint(ST_INPUT, "raise data.max_length, or choose data.truncation: drop, keep_start or keep_end");
    }
    if (strcmp(how, "drop") == 0) {
        counts->dropped_long++;
        *end = 0;
        return ST_OK;
    }
    if (strcmp(how, "keep_end") == 0) {
        *begin = n - most;
    } else {
        *end = most;
    }
    counts->cut++;
    return ST_OK;
}

static Status add_example(Loader *loader, const Example *example) {
    Dataset *dataset = loader->dataset;
    if (dataset->n == loader->cap) {
        size_t cap = loader->cap ? loader->cap * 2 : 1024;
        Example *grown = realloc(dataset->examples, cap * sizeof *grown);
        if (!grown) return status_fail(ST_RESOURCE, "out of memory for %zu rows", cap);
        dataset->examples = grown;
        loader->cap = cap;
    }
    dataset->examples[dataset->n++] = *example;
    dataset->longest = MAX(dataset->longest, example->n);
    dataset->counts.rows++;
    dataset->counts.tokens += example->n;
    dataset->counts.trained_tokens += example->trained;
    dataset->counts.untrained += example->trained == 0;
    return ST_OK;
}

/* Copies what stays; nothing comes before the first token, so it is never trained. */
static Status keep_row(Loader *loader, const Row *row, size_t begin, size_t end) {
    const Encoding *encoding = &loader->encoding;
    size_t n = end - begin;
    bool cut = n < encoding->ids.n;
    int32_t trained = 0;
    for (size_t i = begin + 1; i < end; i++) trained += encoding->labels.data[i] != LABEL_NONE;
    if (cut && trained == 0) {
        loader->dataset->counts.dropped_untrained++;
        return ST_OK;
    }
    int32_t *ids = arena_alloc(loader->dataset->arena, 2 * n * sizeof *ids);
    if (!ids) return ST_RESOURCE;
    memcpy(ids, encoding->ids.data + begin, n * sizeof *ids);
    memcpy(ids + n, encoding->labels.data + begin, n * sizeof *ids);
    ids[n] = LABEL_NONE;
    loader->dataset->counts.remapped += encoding->remapped;
    loader->dataset->counts.no_eos += encoding->no_eos;
    loader->dataset->counts.weighted += encoding->weight != 1;
    return add_example(loader, &(Example){.ids = ids, .labels = ids + n, .n = (int32_t)n, .trained = trained, .file = loader->file, .row = (uint32_t)row->line, .weight = encoding->weight});
}

static Status weigh_row(const json_t *row, Encoding *encoding) {
    TRY(row_weight(row, &encoding->weight));
    for (size_t i = 0; encoding->weight == 0 && i < encoding->labels.n; i++) encoding->labels.data[i] = LABEL_NONE;
    return ST_OK;
}

static Status encode_row(Loader *loader, const Row *row) {
    Encoding *encoding = &loader->encoding;
    size_t begin, end;
    ids_clear(&encoding->ids);
    ids_clear(&encoding->labels);
    encoding->remapped = encoding->no_eos = false;
    encoding->templates = 0;
    if (!loader->format) TRY(choose_format(loader, row));
    loader->dataset->sources[loader->file].unit = row->unit;
    TRY(loader->format->encode(row->json, loader->config, loader->tokenizer, encoding));
    if (encoding->ids.n == 0) return status_fail(ST_INPUT, "the row has no tokens");
    if (encoding->ids.n > INT32_MAX) return status_fail(ST_INPUT, "the row has too many tokens");
    TRY(check_ids(loader->config, encoding));
    TRY(weigh_row(row->json, encoding));
    TRY(truncate_row(loader, &begin, &end));
    if (loader->config->positions > 0 && end - begin > (size_t)loader->config->positions) {
        status_fail(ST_INPUT, "the row has %zu tokens, more than the %lld that the model has positions for", end - begin, (long long)loader->config->positions);
        return status_hint(ST_INPUT, "lower data.max_length to that, with data.truncation: drop, keep_start or keep_end");
    }
    return end > begin ? keep_row(loader, row, begin, end) : ST_OK;
}

static Status load_row(void *context, const Row *row) {
    Status status = encode_row(context, row);
    return status == ST_OK || status == ST_RESOURCE ? status : status_prefix(status, "'%s' %s %zu", row->file, row->unit, row->line);
}

/* ---- doubles ---- */

static uint64_t example_hash(const Example *example) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a over ids and labels, which lie side by side */
    for (int32_t i = 0; i < 2 * example->n; i++) hash = (hash ^ (uint32_t)example->ids[i]) * 1099511628211u;
    return hash ^ (hash >> 29);
}

static bool examples_equal(const Example *a, const Example *b) {
    return a->n == b->n && memcmp(a->ids, b->ids, 2 * (size_t)a->n * sizeof *a->ids) == 0;
}

static Status count_duplicates(Dataset *dataset) {
    size_t size = 16;
    while (size < 2 * dataset->n) size *= 2;
    size_t *slots = calloc(size, sizeof *slots); /* example number + 1 */
    if (!slots) return status_fail(ST_RESOURCE, "out of memory for %zu rows", dataset->n);
    for (size_t i = 0; i < dataset->n; i++) {
        size_t slot = example_hash(&dataset->examples[i]) & (size - 1);
        while (slots[slot] && !examples_equal(&dataset->examples[slots[slot] - 1], &dataset->examples[i])) slot = (slot + 1) & (size - 1);
        dataset->counts.duplicates += slots[slot] != 0;
        if (!slots[slot]) slots[slot] = i + 1;
    }
    free(slots);
    return ST_OK;
}

/* ---- whole datasets ---- */

static Status check_not_empty(const Dataset *dataset) {
    const DataCounts *counts = &dataset->counts;
    if (counts->trained_tokens > 0) return ST_OK;
    const char *path = dataset->sources[0].path;
    if (dataset->n > 0) return status_fail(ST_INPUT, "no token of the %zu rows in '%s' is trained", dataset->n, path);
    if (counts->dropped_long + counts->dropped_untrained == 0) return status_fail(ST_INPUT, "'%s' holds no rows", path);
    status_fail(ST_INPUT, "no row of '%s' is left: %lld are longer than max_length, %lld lost all that is trained when they were cut", path, (long long)counts->dropped_long,
                (long long)counts->dropped_untrained);
    return status_hint(ST_INPUT, "raise data.max_length");
}

static Status load_sources(Loader *loader, const DataSource *sources, size_t n_sources) {
    const char *wanted = loader->config->format;
    for (size_t i = 0; i < n_sources; i++) {
        const char *format = sources[i].format ? sources[i].format : wanted;
        loader->wanted_format = format && strcmp(format, "auto") != 0 ? format : NULL;
        loader->format = NULL;
        loader->file = (uint32_t)i;
        TRY(rows_read_some(sources[i].path, sources[i].max_rows, load_row, loader));
    }
    TRY(check_not_empty(loader->dataset));
    return count_duplicates(loader->dataset);
}

Status dataset_load(const DataConfig *config, const DataSource *sources, size_t n_sources, const Tokenizer *tokenizer, Dataset **result) {
    *result = NULL;
    Dataset *dataset = calloc(1, sizeof *dataset);
    if (!dataset || !(dataset->arena = arena_new(0))) {
        free(dataset);
        return status_fail(ST_RESOURCE, "out of memory for the rows");
    }
    Loader loader = {.dataset = dataset, .config = config, .tokenizer = tokenizer};
    Status status = ST_RESOURCE;
    dataset->n_sources = n_sources;
    dataset->sources = arena_alloc(dataset->arena, n_sources * sizeof *sources);
    if (dataset->sources) {
        memcpy(dataset->sources, sources, n_sources * sizeof *sources);
        status = load_sources(&loader, sources, n_sources);
    }
    ids_release(&loader.encoding.ids);
    ids_release(&loader.encoding.labels);
    if (status != ST_OK) {
        dataset_free(dataset);
        return status;
    }
    *result = dataset;
    return ST_OK;
}

void dataset_free(Dataset *dataset) {
    if (!dataset) return;
    arena_free(dataset->arena);
    free(dataset->examples);
    free(dataset);
}

static void recount(Dataset *dataset) {
    DataCounts *counts = &dataset->counts;
    counts->rows = counts->tokens = counts->trained_tokens = counts->untrained = 0;
    dataset->longest = 0;
    for (size_t i = 0; i < dataset->n; i++) {
        const Example *example = &dataset->examples[i];
        counts->rows++;
        counts->tokens += example->n;
        counts->trained_tokens += example->trained;
        counts->untrained += example->trained == 0;
        dataset->longest = MAX(dataset->longest, example->n);
    }
}

Status dataset_split(Dataset *dataset, double share, uint64_t seed, Dataset **held_out) {
    *held_out = NULL;
    if (dataset->n < 2) return status_fail(ST_INPUT, "cannot hold out rows: there is only %zu", dataset->n);
    size_t taken = (size_t)(share * (double)dataset->n + 0.5), kept = 0;
    taken = MIN(MAX(taken, (size_t)1), dataset->n - 1);
    Dataset *part = calloc(1, sizeof *part);
    Example *examples = malloc(taken * sizeof *examples);
    if (!part || !examples) {
        free(part);
        free(examples);
        return status_fail(ST_RESOURCE, "out of memory for %zu rows", taken);
    }
    *part = (Dataset){.examples = examples, .format = dataset->format, .sources = dataset->sources, .n_sources = dataset->n_sources};
    RngKey key = rng_key(seed, RNG_SHUFFLE, (uint64_t)1 << 55); /* apart from the epochs' orders */
    for (size_t i = 0; i < dataset->n; i++) {
        if (rng_permute(key, dataset->n, i) < taken) {
            examples[part->n++] = dataset->examples[i];
        } else {
            dataset->examples[kept++] = dataset->examples[i];
        }
    }
    dataset->n = kept;
    recount(dataset);
    recount(part);
    *held_out = part;
    return ST_OK;
}

void dataset_where(const Dataset *dataset, size_t example, Str *text) {
    const Example *at = &dataset->examples[example];
    const DataSource *source = &dataset->sources[at->file];
    str_printf(text, "%s %s %u", source->path, source->unit, (unsigned)at->row);
}

void data_counts_warn(const DataCounts *counts, const char *what, void (*say)(void *context, const char *text), void *context) {
    const struct { int64_t n; const char *text; } odd[] = {
        {counts->dropped_long, "dropped: longer than data.max_length"},
        {counts->cut, "cut to data.max_length"},
        {counts->dropped_untrained, "dropped: nothing trained was left after the cut"},
        {counts->untrained, "without a trained token"},
        {counts->duplicates, "the same as an earlier one"},
        {counts->remapped, "whose prompt ends inside a token: that token is trained"},
        {counts->weighted, "whose losses are multiplied by the column 'weight'"},
        {counts->no_eos, "without an end: the tokenizer has no EOS token"},
    };
    for (size_t i = 0; i < COUNT_OF(odd); i++) {
        if (odd[i].n == 0) continue;
        char text[256];
        snprintf(text, sizeof text, "%s: %lld %s %s", what, (long long)odd[i].n, odd[i].n == 1 ? "row" : "rows", odd[i].text);
        say(context, text);
    }
}
