/* SPDX-License-Identifier: Apache-2.0 */
/* Apache Parquet: assembles rows from columns, with any nesting of lists, structures and maps (the record assembly of Google's Dremel paper, by
 * recursion over the tree of columns). Memory: the footer, and of the current row group a page and the dictionary of each column. */
#include "data/containers/containers.h"
#include "data/containers/parquet.h"

#include <stdlib.h>
#include <string.h>

typedef struct Assembly {
    RowReader *reader;
    PqFile file;
    PqColumn *columns; /* one for each leaf */
    size_t row;        /* of the file, from 1 */
    bool is_bad;       /* the current row, if bad rows are skipped */
    Failure why;       /* its first fault */
} Assembly;

static Status row_fail(const Assembly *assembly, const PqNode *node, const char *what) {
    return pq_fail(&assembly->file, node, "row %zu: %s", assembly->row, what);
}

/* An invalid value: the row is bad, and reading continues with the next column. Contradictory data is a fault of the file. */
static Status value_fail(Assembly *assembly, const PqNode *node, const char *what) {
    Status failed = row_fail(assembly, node, what);
    if (!assembly->reader->config.bad) return failed;
    if (!assembly->is_bad) failure_save(&assembly->why, failed);
    assembly->is_bad = true;
    return ST_OK;
}

static Status out_of_memory(const Assembly *assembly) {
    return status_fail(ST_RESOURCE, "out of memory for row %zu of '%s'", assembly->row, assembly->file.path);
}

/* Whether the entries of all leaves below a node say that it is present. */
static Status parquet_has_node(const Assembly *assembly, const PqNode *node, bool *there) {
    const PqColumn *columns = &assembly->columns[node->first_leaf];
    *there = columns[0].def >= node->max_def;
    for (size_t i = 1; i < node->n_leaves; i++)
        if ((columns[i].def >= node->max_def) != *there) return row_fail(assembly, node, "its columns do not agree");
    return ST_OK;
}

/* Whether the next entries of all leaves below a repeated node are another item of the same list. */
static Status look_again(const Assembly *assembly, const PqNode *node, bool *more) {
    const PqColumn *columns = &assembly->columns[node->first_leaf];
    *more = !columns[0].ended && columns[0].rep >= node->max_rep;
    for (size_t i = 0; i < node->n_leaves; i++) {
        bool another = !columns[i].ended && columns[i].rep >= node->max_rep;
        if (another != *more || (another && columns[i].rep > node->max_rep)) return row_fail(assembly, node, "its columns do not agree");
    }
    return ST_OK;
}

static Status skip(Assembly *assembly, const PqNode *node) {
    for (size_t i = 0; i < node->n_leaves; i++) TRY(pq_column_next(&assembly->columns[node->first_leaf + i]));
    return ST_OK;
}

static Status read_leaf(Assembly *assembly, const PqNode *node, json_t **value) {
    PqColumn *column = &assembly->columns[node->first_leaf];
    Slice bytes;
    const char *fault;
    TRY(pq_column_value(column, &bytes));
    *value = pq_json(node, bytes, &fault);
    if (*value && node->meaning == PQ_TEXT && node->parent == assembly->file.root) {
        json_decref(*value);
        *value = cell_value(node->name, bytes.data, bytes.len, &fault);
    }
    if (fault) {
        TRY(value_fail(assembly, node, fault));
        *value = json_null();
    }
    return *value ? pq_column_next(column) : out_of_memory(assembly);
}

static Status read_field(Assembly *assembly, const PqNode *node, json_t **value);
static Status read_inside(Assembly *assembly, const PqNode *node, json_t **value);

static Status read_item(Assembly *assembly, const PqNode *repeated, json_t **item) {
    return repeated->item_inside ? read_field(assembly, repeated->children[0], item) : read_inside(assembly, repeated, item);
}

static Status add_item(Assembly *assembly, const PqNode *repeated, json_t *list) {
    json_t *item = NULL;
    Status status = read_item(assembly, repeated, &item);
    if (status != ST_OK) {
        json_decref(item);
        return status;
    }
    return json_array_append_new(list, item) == 0 ? ST_OK : out_of_memory(assembly);
}

/* Adds a pair of a map to an object; keys that are no text were refused before. */
static Status add_pair(Assembly *assembly, const PqNode *pair, json_t *object) {
    json_t *key = NULL, *value = NULL;
    Status status = read_field(assembly, pair->children[0], &key);
    if (status == ST_OK && pair->n_children == 2) status = read_field(assembly, pair->children[1], &value);
    const char *name = json_string_value(key);
    bool whole = name && strlen(name) == json_string_length(key);
    if (status == ST_OK && !whole) status = value_fail(assembly, pair, "a key that is null or holds a NUL character");
    if (status == ST_OK && whole && json_object_get(object, name)) status = value_fail(assembly, pair, "a key that is there twice");
    if (status == ST_OK && whole && json_object_set_nocheck(object, name, value ? value : json_null()) != 0) status = out_of_memory(assembly);
    json_decref(key);
    json_decref(value);
    return status;
}

/* Adds all items of a repeated node to `whole` with `add`. */
static Status read_repeated(Assembly *assembly, const PqNode *repeated, Status (*add)(Assembly *assembly, const PqNode *repeated, json_t *whole),
                            json_t *whole) {
    bool more;
    if (!whole) return out_of_memory(assembly);
    TRY(parquet_has_node(assembly, repeated, &more));
    if (!more) return skip(assembly, repeated);
    while (more) {
        TRY(add(assembly, repeated, whole));
        TRY(look_again(assembly, repeated, &more));
    }
    return ST_OK;
}

static bool is_object(const PqNode *map) {
    const PqNode *key = map->children[0]->children[0];
    return key->type == PQ_BYTES && key->repetition != PQ_REPEATED;
}

static Status read_struct(Assembly *assembly, const PqNode *node, json_t *object) {
    if (!object) return out_of_memory(assembly);
    for (size_t i = 0; i < node->n_children; i++) {
        json_t *value = NULL;
        Status status = read_field(assembly, node->children[i], &value);
        if (status == ST_OK && json_object_set_nocheck(object, node->children[i]->name, value) != 0) status = out_of_memory(assembly);
        json_decref(value);
        TRY(status);
    }
    return json_object_size(object) == node->n_children ? ST_OK : row_fail(assembly, node, "two columns of the same name");
}

/* The value of a node that is present. On failure *value may be incomplete; the caller releases it. */
static Status read_inside(Assembly *assembly, const PqNode *node, json_t **value) {
    if (node->type != PQ_GROUP) return read_leaf(assembly, node, value);
    if (node->meaning == PQ_LIST || (node->meaning == PQ_MAP && !is_object(node)))
        return read_repeated(assembly, node->children[0], add_item, *value = json_array());
    if (node->meaning == PQ_MAP) return read_repeated(assembly, node->children[0], add_pair, *value = json_object());
    return read_struct(assembly, node, *value = json_object());
}

static Status read_field(Assembly *assembly, const PqNode *node, json_t **value) {
    bool there = true;
    if (node->repetition == PQ_REPEATED) return read_repeated(assembly, node, add_item, *value = json_array());
    if (node->repetition == PQ_OPTIONAL) TRY(parquet_has_node(assembly, node, &there));
    if (there) return read_inside(assembly, node, value);
    *value = json_null();
    return skip(assembly, node);
}

/* Every column must be at the start of a row; `more`: whether there is another row. */
static Status look_for_row(const Assembly *assembly, bool more) {
    for (size_t i = 0; i < assembly->file.n_leaves; i++) {
        const PqColumn *column = &assembly->columns[i];
        if (column->ended == more)
            return row_fail(assembly, column->node, more ? "the column ends too early" : "the column continues after the last row of its group");
        if (more && column->rep != 0) return row_fail(assembly, column->node, "the row begins in the middle of a list");
    }
    return ST_OK;
}

/* Shows the row with nulls for values that could not be read. */
static Status tell_bad(Assembly *assembly, const json_t *row) {
    RowReader *reader = assembly->reader;
    char *text = json_text(row, JSON_COMPACT);
    reader->text = (Slice){text, text ? strlen(text) : 0};
    Status status = row_is_bad(reader, failure_restore(&assembly->why), assembly->row);
    reader->text = (Slice){0};
    free(text);
    return status;
}

static Status read_row(Assembly *assembly) {
    json_t *row = json_object();
    Status status = look_for_row(assembly, true);
    assembly->is_bad = false;
    if (status == ST_OK) status = read_struct(assembly, assembly->file.root, row);
    if (status == ST_OK && !assembly->is_bad) return row_hand_over(assembly->reader, row, assembly->row);
    if (status == ST_OK) status = tell_bad(assembly, row);
    json_decref(row);
    return status;
}

static Status read_group(Assembly *assembly, const PqGroup *group) {
    const PqFile *file = &assembly->file;
    if (group->n_rows == 0) return ST_OK;
    for (size_t i = 0; i < file->n_leaves; i++) TRY(pq_column_start(&assembly->columns[i], file, file->leaves[i], &group->chunks[i]));
    for (int64_t i = 0; i < group->n_rows; i++) {
        if (row_reader_full(assembly->reader)) return ST_OK;
        assembly->row++;
        TRY(read_row(assembly));
    }
    return look_for_row(assembly, false);
}

static Status read_parquet(RowReader *reader) {
    reader->padded = true;
    Assembly assembly = {.reader = reader};
    TRY(pq_open(&assembly.file, reader->path));
    assembly.columns = calloc(assembly.file.n_leaves, sizeof *assembly.columns);
    Status status = assembly.columns ? ST_OK : status_fail(ST_RESOURCE, "out of memory for the columns of '%s'", reader->path);
    for (size_t i = 0; i < assembly.file.n_groups && status == ST_OK && !row_reader_full(reader); i++)
        status = read_group(&assembly, &assembly.file.groups[i]);
    for (size_t i = 0; assembly.columns && i < assembly.file.n_leaves; i++) pq_column_release(&assembly.columns[i]);
    free(assembly.columns);
    pq_close(&assembly.file);
    return status;
}

const Container container_parquet = {.name = "parquet", .endings = {".parquet"}, .unit = "row", .read = read_parquet};
