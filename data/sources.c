/* What data.train and data.eval say: files, and how each is read. */
#include "data/formats/formats.h"

#include <string.h>

static Status source_text(const Yaml *node, const char *key, const char **text) {
    if (node->kind != YAML_SCALAR || node->text[0] == '\0')
        return status_fail(ST_CONFIG, "wrong value for '%s': expected a file, or a list of files", key);
    *text = node->text;
    return ST_OK;
}

static Status source_rows(const Yaml *node, const char *key, const char *name, int64_t *value) {
    if (!yaml_as_int(node, value) || *value < 1)
        return status_fail(ST_CONFIG, "wrong value for '%s' of '%s': expected a whole number of at least 1", name, key);
    return ST_OK;
}

static Status source_weight(const Yaml *node, const char *key, double *weight) {
    if (yaml_as_double(node, weight) && *weight >= 0.001 && *weight <= 1000) return ST_OK;
    status_fail(ST_CONFIG, "wrong value for 'weight' of '%s': expected a number from 0.001 to 1000", key);
    return status_hint(ST_CONFIG, "it says how often an epoch takes each row: 2 is twice, 0.5 every second epoch");
}

/* line: in the recipe; 0: from the command line. */
static Status unknown(const char *what, const char *name, const char *key, int line) {
    if (line > 0) return status_fail(ST_CONFIG, "unknown %s '%s' in '%s' line %d", what, name, key, line);
    return status_fail(ST_CONFIG, "unknown %s '%s' in '%s' on the command line", what, name, key);
}

static Status source_entry(const Yaml *value, const char *key, const char *name, int line, DataSource *source) {
    static const char *const names[] = {"path", "format", "separator", "weight", "max_rows"};
    if (strcmp(name, "path") == 0) return source_text(value, key, &source->path);
    if (strcmp(name, "separator") == 0) return source_text(value, key, &source->separator);
    if (strcmp(name, "max_rows") == 0) return source_rows(value, key, name, &source->max_rows);
    if (strcmp(name, "weight") == 0) return source_weight(value, key, &source->weight);
    if (strcmp(name, "format") == 0) {
        TRY(source_text(value, key, &source->format));
        if (strcmp(source->format, "auto") == 0 || data_format_find(source->format)) return ST_OK;
        return unknown("format", source->format, key, line);
    }
    const char *near = text_nearest(name, names, COUNT_OF(names));
    unknown("key", name, key, line);
    return near ? status_hint(ST_CONFIG, "did you mean '%s'?", near) : ST_CONFIG;
}

static Status source_map(const Yaml *node, const char *key, DataSource *source) {
    for (size_t i = 0; i < node->n; i++) TRY(source_entry(node->items[i], key, node->keys[i], node->key_lines[i], source));
    return source->path ? ST_OK : status_fail(ST_CONFIG, "an entry of '%s' lacks 'path'", key);
}

Status data_sources(const Yaml *node, const char *key, Arena *arena, DataSource **sources, size_t *n) {
    bool list = node && node->kind == YAML_LIST;
    *n = list ? node->n : 1;
    if (!node || node->kind == YAML_NULL || *n == 0)
        return status_hint(status_fail(ST_CONFIG, "'%s' is missing", key), "name a file of rows: %s: rows.jsonl", key);
    *sources = arena_zero(arena, *n * sizeof **sources);
    if (!*sources) return ST_RESOURCE;
    for (size_t i = 0; i < *n; i++) {
        const Yaml *item = list ? node->items[i] : node;
        if (item->kind == YAML_MAP) {
            TRY(source_map(item, key, &(*sources)[i]));
        } else {
            TRY(source_text(item, key, &(*sources)[i].path));
        }
        TRY(dataset_info_resolve(arena, &(*sources)[i]));
    }
    return ST_OK;
}
