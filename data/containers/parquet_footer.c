/* SPDX-License-Identifier: Apache-2.0 */
/* Parquet's footer and page headers: structures in Thrift's compact protocol, the tree of columns, the places of their pages. */
#include "data/containers/parquet.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 64, MAX_WIDTH = 1 << 20, MAX_SCALE = 100 };

/* ---- Thrift, compact protocol ---- */

typedef enum ThriftType { T_STOP, T_TRUE, T_FALSE, T_BYTE, T_I16, T_I32, T_I64, T_DOUBLE, T_BINARY, T_LIST, T_SET, T_MAP, T_STRUCT } ThriftType;
typedef struct Thrift {
    const uint8_t *at, *end;
    bool bad;
} Thrift; /* once true, every read gives zero or nothing */
typedef struct Field {
    int64_t id;
    int type;
} Field;

static uint64_t thrift_varint(Thrift *thrift) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && thrift->at < thrift->end; shift += 7) {
        uint8_t byte = *thrift->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return thrift->bad ? 0 : value;
    }
    thrift->bad = true;
    return 0;
}

static uint8_t thrift_byte(Thrift *thrift) {
    if (thrift->bad || thrift->at == thrift->end) {
        thrift->bad = true;
        return 0;
    }
    return *thrift->at++;
}

static int64_t thrift_zigzag(Thrift *thrift) {
    uint64_t raw = thrift_varint(thrift);
    return (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
}

/* The next field of a structure, after `field`, which starts as {0}; false at the end of the structure. */
static bool thrift_field(Thrift *thrift, Field *field) {
    uint8_t head = thrift_byte(thrift);
    if (thrift->bad || head == T_STOP) return false;
    field->type = head & 0x0F;
    field->id = head >> 4 ? field->id + (head >> 4) : (int16_t)thrift_zigzag(thrift);
    return !thrift->bad;
}

static int64_t thrift_int(Thrift *thrift, Field field) {
    if (field.type == T_BYTE) return (int8_t)thrift_byte(thrift);
    if (field.type >= T_I16 && field.type <= T_I64) return thrift_zigzag(thrift);
    thrift->bad = true;
    return 0;
}

static Slice thrift_binary(Thrift *thrift, Field field) {
    uint64_t len = thrift_varint(thrift);
    if (field.type != T_BINARY || thrift->bad || len > (size_t)(thrift->end - thrift->at)) {
        thrift->bad = true;
        return (Slice){"", 0};
    }
    thrift->at += len;
    return (Slice){(const char *)thrift->at - len, len};
}

/* The length of a list; each item takes at least a byte. */
static size_t thrift_list(Thrift *thrift, Field field, int *item_type) {
    uint8_t head = thrift_byte(thrift);
    uint64_t n = head >> 4 == 15 ? thrift_varint(thrift) : head >> 4;
    *item_type = head & 0x0F;
    if ((field.type != T_LIST && field.type != T_SET) || n > (size_t)(thrift->end - thrift->at)) thrift->bad = true;
    return thrift->bad ? 0 : (size_t)n;
}

static void thrift_skip(Thrift *thrift, Field field, int depth);

static void skip_item(Thrift *thrift, int type, int depth) {
    if (type == T_TRUE || type == T_FALSE) {
        thrift_byte(thrift);
    } else {
        thrift_skip(thrift, (Field){0, type}, depth);
    }
}

static void skip_map(Thrift *thrift, int depth) {
    uint64_t n = thrift_varint(thrift);
    uint8_t types = n > 0 ? thrift_byte(thrift) : 0;
    for (uint64_t i = 0; i < n && !thrift->bad; i++) {
        skip_item(thrift, types >> 4, depth);
        skip_item(thrift, types & 0x0F, depth);
    }
}

static void skip_list(Thrift *thrift, Field field, int depth) {
    int type;
    size_t n = thrift_list(thrift, field, &type);
    for (size_t i = 0; i < n && !thrift->bad; i++) skip_item(thrift, type, depth);
}

static void thrift_skip(Thrift *thrift, Field field, int depth) {
    if (depth > MAX_DEPTH) thrift->bad = true;
    if (thrift->bad) return;
    switch (field.type) {
    case T_TRUE:
    case T_FALSE: return;
    case T_BYTE: thrift_byte(thrift); return;
    case T_I16:
    case T_I32:
    case T_I64: thrift_varint(thrift); return;
    case T_DOUBLE:
        for (int i = 0; i < 8; i++) thrift_byte(thrift);
        return;
    case T_BINARY: thrift_binary(thrift, field); return;
    case T_LIST:
    case T_SET: skip_list(thrift, field, depth + 1); return;
    case T_MAP: skip_map(thrift, depth + 1); return;
    case T_STRUCT:
        for (Field inner = {0}; thrift_field(thrift, &inner);) thrift_skip(thrift, inner, depth + 1);
        return;
    default: thrift->bad = true;
    }
}

/* Enters a field that must be a structure. */
static bool thrift_struct(Thrift *thrift, Field field) {
    if (field.type != T_STRUCT) thrift->bad = true;
    return !thrift->bad;
}

/* ---- page headers ---- */

static void read_data_header(Thrift *thrift, Field outer, PqPage *page) {
    if (!thrift_struct(thrift, outer)) return;
    for (Field field = {0}; thrift_field(thrift, &field);) {
        switch (field.id) {
        case 1: page->n_values = thrift_int(thrift, field); break;
        case 2: page->encoding = thrift_int(thrift, field); break;
        case 3: page->def_encoding = thrift_int(thrift, field); break;
        case 4: page->rep_encoding = thrift_int(thrift, field); break;
        default: thrift_skip(thrift, field, 0);
        }
    }
}

static void read_dictionary_header(Thrift *thrift, Field outer, PqPage *page) {
    if (!thrift_struct(thrift, outer)) return;
    for (Field field = {0}; thrift_field(thrift, &field);) {
        switch (field.id) {
        case 1: page->n_values = thrift_int(thrift, field); break;
        case 2: page->encoding = thrift_int(thrift, field); break;
        default: thrift_skip(thrift, field, 0);
        }
    }
}

static void read_data_header_v2(Thrift *thrift, Field outer, PqPage *page) {
    if (!thrift_struct(thrift, outer)) return;
    for (Field field = {0}; thrift_field(thrift, &field);) {
        switch (field.id) {
        case 1: page->n_values = thrift_int(thrift, field); break;
        case 4: page->encoding = thrift_int(thrift, field); break;
        case 5: page->def_size = thrift_int(thrift, field); break;
        case 6: page->rep_size = thrift_int(thrift, field); break;
        case 7: page->packed = field.type == T_TRUE; break;
        default: thrift_skip(thrift, field, 0);
        }
    }
}

bool pq_page_read(const uint8_t *at, size_t len, PqPage *page, size_t *header_size) {
    Thrift thrift = {at, at + len, false};
    *page = (PqPage){.kind = -1, .size = -1, .packed_size = -1, .n_values = -1, .encoding = -1, .packed = true};
    for (Field field = {0}; thrift_field(&thrift, &field);) {
        switch (field.id) {
        case 1: page->kind = thrift_int(&thrift, field); break;
        case 2: page->size = thrift_int(&thrift, field); break;
        case 3: page->packed_size = thrift_int(&thrift, field); break;
        case 4:
            page->crc = (uint32_t)thrift_int(&thrift, field);
            page->has_crc = true;
            break;
        case 5: read_data_header(&thrift, field, page); break;
        case 7: read_dictionary_header(&thrift, field, page); break;
        case 8: read_data_header_v2(&thrift, field, page); break;
        default: thrift_skip(&thrift, field, 0);
        }
    }
    *header_size = (size_t)(thrift.at - at);
    return !thrift.bad && page->size >= 0 && page->packed_size >= 0 && page->size <= INT32_MAX && page->packed_size <= INT32_MAX;
}

/* ---- the footer as stored ---- */

typedef struct Element {
    int64_t type, width, repetition, n_children, converted, scale, logical, unit, bits;
    bool is_signed, utc;
    Slice name;
} Element;
typedef struct Chunk {
    int64_t type, codec, n_values, size, data_at, dictionary_at;
    bool elsewhere, encrypted, described;
} Chunk;

static void read_unit(Thrift *thrift, Field outer, Element *element) {
    if (!thrift_struct(thrift, outer)) return;
    for (Field field = {0}; thrift_field(thrift, &field);) {
        element->unit = field.id;
        thrift_skip(thrift, field, 0);
    }
}

/* Parameters of DECIMAL (scale), TIME and TIMESTAMP (in UTC, unit), INTEGER (bits, signed). */
static void read_logical_parameters(Thrift *thrift, Field outer, Element *element) {
    if (!thrift_struct(thrift, outer)) return;
    for (Field field = {0}; thrift_field(thrift, &field);) {
        if (outer.id == 5 && field.id == 1) {
            element->scale = thrift_int(thrift, field);
        } else if ((outer.id == 7 || outer.id == 8) && field.id == 1) {
            element->utc = field.type == T_TRUE;
        } else if ((outer.id == 7 || outer.id == 8) && field.id == 2) {
            read_unit(thrift, field, element);
        } else if (outer.id == 10 && field.id == 2) {
            element->is_signed = field.type == T_TRUE;
        } else {
            thrift_skip(thrift, field, 0);
        }
    }
}

static void read_logical(Thrift *thrift, Field outer, Element *element) {
    if (!thrift_struct(thrift, outer)) return;
    for (Field field = {0}; thrift_field(thrift, &field);) {
        element->logical = field.id;
        read_logical_parameters(thrift, field, element);
    }
}

static void read_element(Thrift *thrift, Element *element) {
    *element = (Element){.type = -1, .repetition = PQ_REQUIRED, .converted = -1, .is_signed = true};
    for (Field field = {0}; thrift_field(thrift, &field);) {
        switch (field.id) {
        case 1: element->type = thrift_int(thrift, field); break;
        case 2: element->width = thrift_int(thrift, field); break;
        case 3: element->repetition = thrift_int(thrift, field); break;
        case 4: element->name = thrift_binary(thrift, field); break;
        case 5: element->n_children = thrift_int(thrift, field); break;
        case 6: element->converted = thrift_int(thrift, field); break;
        case 7: element->scale = thrift_int(thrift, field); break;
        case 10: read_logical(thrift, field, element); break;
        default: thrift_skip(thrift, field, 0);
        }
    }
}

static void read_chunk_description(Thrift *thrift, Field outer, Chunk *chunk) {
    if (!thrift_struct(thrift, outer)) return;
    chunk->described = true;
    for (Field field = {0}; thrift_field(thrift, &field);) {
        switch (field.id) {
        case 1: chunk->type = thrift_int(thrift, field); break;
        case 4: chunk->codec = thrift_int(thrift, field); break;
        case 5: chunk->n_values = thrift_int(thrift, field); break;
        case 7: chunk->size = thrift_int(thrift, field); break;
        case 9: chunk->data_at = thrift_int(thrift, field); break;
        case 11: chunk->dictionary_at = thrift_int(thrift, field); break;
        default: thrift_skip(thrift, field, 0);
        }
    }
}

static void read_chunk(Thrift *thrift, Chunk *chunk) {
    *chunk = (Chunk){.type = -1, .codec = -1, .n_values = -1, .size = -1, .data_at = -1};
    for (Field field = {0}; thrift_field(thrift, &field);) {
        switch (field.id) {
        case 1:
            chunk->elsewhere = true;
            thrift_skip(thrift, field, 0);
            break;
        case 3: read_chunk_description(thrift, field, chunk); break;
        case 8:
        case 9:
            chunk->encrypted = true;
            thrift_skip(thrift, field, 0);
            break;
        default: thrift_skip(thrift, field, 0);
        }
    }
}

/* ---- the tree of columns ---- */

typedef struct Footer {
    PqFile *file;
    uint64_t begin; /* position of the footer in the file: pages precede it */
    Thrift thrift;
    Element *schema;
    size_t n_elements, next;
    int64_t n_rows;
} Footer;

static void append_path(Str *path, const PqNode *node) {
    if (node->parent && node->parent->parent) {
        append_path(path, node->parent);
        str_append_char(path, '.');
    }
    str_printf(path, "%.60s", node->name);
}

Status pq_fail(const PqFile *file, const PqNode *node, const char *format, ...) {
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    Str path = {0};
    if (node) append_path(&path, node);
    if (node) {
        status_fail(ST_INPUT, "cannot read '%s': column '%s': %s", file->path, str_text(&path), what);
    } else {
        status_fail(ST_INPUT, "cannot read '%s': %s", file->path, what);
    }
    str_release(&path);
    return ST_INPUT;
}

static void set_time(PqNode *node, PqMeaning meaning, const Element *element) {
    node->meaning = meaning;
    node->utc = element->utc;
    node->scale = element->unit == 3 ? 9 : element->unit == 2 ? 6 : 3;
}

static void set_converted(PqNode *node, const Element *element) {
    switch (element->converted) {
    case 0:                                 /* UTF8 */
    case 4: node->meaning = PQ_TEXT; break; /* ENUM */
    case 1:
    case 2: node->meaning = PQ_MAP; break;
    case 3: node->meaning = PQ_LIST; break;
    case 5: node->meaning = PQ_DECIMAL; break;
    case 6: node->meaning = PQ_DATE; break;
    case 7: set_time(node, PQ_TIME, &(Element){.unit = 1}); break;
    case 8: set_time(node, PQ_TIME, &(Element){.unit = 2}); break;
    case 9: set_time(node, PQ_TIMESTAMP, &(Element){.unit = 1, .utc = true}); break;
    case 10: set_time(node, PQ_TIMESTAMP, &(Element){.unit = 2, .utc = true}); break;
    case 11:
    case 12:
    case 13:
    case 14: node->meaning = PQ_UNSIGNED; break;
    case 19: node->meaning = PQ_JSON; break;
    default: break;
    }
}

/* The meaning of the values: by the logical type, or else by the older converted type. */
static void set_meaning(PqNode *node, const Element *element) {
    node->scale = (int)element->scale;
    switch (element->logical) {
    case 1:                                 /* STRING */
    case 4: node->meaning = PQ_TEXT; break; /* ENUM */
    case 2: node->meaning = PQ_MAP; break;
    case 3: node->meaning = PQ_LIST; break;
    case 5: node->meaning = PQ_DECIMAL; break;
    case 6: node->meaning = PQ_DATE; break;
    case 7: set_time(node, PQ_TIME, element); break;
    case 8: set_time(node, PQ_TIMESTAMP, element); break;
    case 10: node->meaning = element->is_signed ? PQ_PLAIN : PQ_UNSIGNED; break;
    case 12: node->meaning = PQ_JSON; break;
    case 14: node->meaning = PQ_UUID; break;
    case 15: node->meaning = PQ_FLOAT16; break;
    default: set_converted(node, element);
    }
}

/* Whether values of this physical type can have that meaning; otherwise they are read as stored. */
static bool meaning_fits(const PqNode *node) {
    bool whole = node->type == PQ_INT32 || node->type == PQ_INT64, bytes = node->type == PQ_BYTES;
    switch (node->meaning) {
    case PQ_TEXT:
    case PQ_JSON: return bytes;
    case PQ_LIST: return node->type == PQ_GROUP && node->n_children == 1 && node->children[0]->repetition == PQ_REPEATED;
    case PQ_MAP:
        return node->type == PQ_GROUP && node->n_children == 1 && node->children[0]->repetition == PQ_REPEATED &&
               (node->children[0]->n_children == 1 || node->children[0]->n_children == 2);
    case PQ_DECIMAL: return whole || bytes || node->type == PQ_FIXED;
    case PQ_DATE: return node->type == PQ_INT32;
    case PQ_TIME:
    case PQ_UNSIGNED: return whole;
    case PQ_TIMESTAMP: return node->type == PQ_INT64;
    case PQ_UUID: return node->type == PQ_FIXED && node->width == 16;
    case PQ_FLOAT16: return node->type == PQ_FIXED && node->width == 2;
    default: return true;
    }
}

/* LogicalTypes.md, "Lists", backward compatibility: is the repeated group the item itself, or does it contain the item? */
static bool holds_item(const PqNode *list, const PqNode *repeated) {
    if (repeated->type != PQ_GROUP || repeated->n_children != 1 || repeated->children[0]->repetition == PQ_REPEATED) return false;
    size_t len = strlen(list->name);
    bool tuple = strncmp(repeated->name, list->name, len) == 0 && strcmp(repeated->name + len, "_tuple") == 0;
    return strcmp(repeated->name, "array") != 0 && !tuple;
}

static Status set_type(const PqFile *file, PqNode *node, const Element *element) {
    static const uint8_t widths[] = {
        [PQ_BOOLEAN] = 1, [PQ_INT32] = 4, [PQ_INT64] = 8, [PQ_INT96] = 12, [PQ_FLOAT] = 4, [PQ_DOUBLE] = 8, [PQ_FIXED] = 0};
    if (element->n_children > 0) {
        node->type = PQ_GROUP;
        return ST_OK;
    }
    if (element->type < PQ_BOOLEAN || element->type > PQ_FIXED) return pq_fail(file, node, "it has neither a known type nor columns inside");
    node->type = (PqType)element->type;
    node->width = widths[node->type];
    if (node->type != PQ_FIXED) return ST_OK;
    if (element->width < 1 || element->width > MAX_WIDTH) return pq_fail(file, node, "a width of %lld bytes", (long long)element->width);
    node->width = (size_t)element->width;
    return ST_OK;
}

static Status build_node(Footer *footer, const PqNode *parent, int depth, PqNode **result);

static Status build_children(Footer *footer, PqNode *node, size_t n, int depth) {
    if (n > footer->n_elements - footer->next) return pq_fail(footer->file, node, "the footer names %zu columns inside, and ends before", n);
    node->children = arena_alloc(footer->file->arena, n * sizeof *node->children);
    if (!node->children) return ST_RESOURCE;
    for (; node->n_children < n; node->n_children++) TRY(build_node(footer, node, depth + 1, &node->children[node->n_children]));
    return ST_OK;
}

static Status build_node(Footer *footer, const PqNode *parent, int depth, PqNode **result) {
    PqFile *file = footer->file;
    if (depth > MAX_DEPTH || footer->next >= footer->n_elements) return pq_fail(file, NULL, "its footer nests columns too deeply or ends among them");
    const Element *element = &footer->schema[footer->next++];
    PqNode *node = arena_zero(file->arena, sizeof *node);
    if (!node || !(node->name = arena_strndup(file->arena, element->name.data ? element->name.data : "", element->name.len))) return ST_RESOURCE;
    *result = node;
    if (strlen(node->name) != element->name.len || utf8_fault(node->name, element->name.len) < element->name.len)
        return pq_fail(file, NULL, "the name of column %zu is not a text", footer->next - 1);
    if (element->repetition < PQ_REQUIRED || element->repetition > PQ_REPEATED || element->scale < 0 || element->scale > MAX_SCALE)
        return pq_fail(file, NULL, "the footer's description of column '%.60s' is damaged", node->name);
    node->parent = parent;
    node->repetition = parent ? (PqRepetition)element->repetition : PQ_REQUIRED;
    node->max_def = parent ? parent->max_def + (node->repetition != PQ_REQUIRED) : 0;
    node->max_rep = parent ? parent->max_rep + (node->repetition == PQ_REPEATED) : 0;
    node->first_leaf = file->n_leaves;
    TRY(set_type(file, node, element));
    if (node->type == PQ_GROUP) {
        TRY(build_children(footer, node, (size_t)element->n_children, depth));
    } else {
        file->leaves[file->n_leaves++] = node;
    }
    node->n_leaves = file->n_leaves - node->first_leaf;
    set_meaning(node, element);
    if (!meaning_fits(node)) node->meaning = PQ_PLAIN;
    if (node->meaning == PQ_LIST) node->children[0]->item_inside = holds_item(node, node->children[0]);
    return ST_OK;
}

static Status build_tree(Footer *footer, Field field) {
    PqFile *file = footer->file;
    int type;
    size_t n = thrift_list(&footer->thrift, field, &type);
    if (type != T_STRUCT || n < 2) return pq_fail(file, NULL, "its footer names no columns");
    footer->schema = arena_alloc(file->arena, n * sizeof *footer->schema);
    file->leaves = arena_alloc(file->arena, n * sizeof *file->leaves);
    if (!footer->schema || !file->leaves) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) read_element(&footer->thrift, &footer->schema[i]);
    footer->n_elements = n;
    if (footer->thrift.bad) return pq_fail(file, NULL, "its footer is damaged");
    TRY(build_node(footer, NULL, 0, &file->root));
    if (file->root->type != PQ_GROUP || footer->next != n) return pq_fail(file, NULL, "the columns in its footer do not form one tree");
    return ST_OK;
}

/* ---- row groups ---- */

static Status keep_chunk(const Footer *footer, const PqNode *node, const Chunk *stored, PqChunk *chunk) {
    const PqFile *file = footer->file;
    if (stored->encrypted) return pq_fail(file, node, "it is encrypted");
    if (stored->elsewhere) return pq_fail(file, node, "it lies in another file");
    if (!stored->described || stored->type != (int64_t)node->type) return pq_fail(file, node, "the footer gives it two types");
    *chunk = (PqChunk){.begin = footer->begin};
    if (stored->n_values == 0) return ST_OK; /* without rows there may be no pages, and offsets without a meaning */
    bool dictionary_first = stored->dictionary_at > 0 && stored->dictionary_at < stored->data_at;
    int64_t begin = dictionary_first ? stored->dictionary_at : stored->data_at;
    if (begin < 4 || stored->size < 0 || (uint64_t)begin > footer->begin || (uint64_t)stored->size > footer->begin - (uint64_t)begin ||
        stored->n_values < 0)
        return pq_fail(file, node, "the footer puts it at byte %lld, %lld bytes long, and pages end at byte %llu", (long long)begin,
                       (long long)stored->size, (unsigned long long)footer->begin);
    if (stored->codec < 0 || stored->codec > INT32_MAX) return pq_fail(file, node, "the footer is damaged: codec %lld", (long long)stored->codec);
    *chunk = (PqChunk){.n_values = stored->n_values, .begin = (uint64_t)begin, .size = (uint64_t)stored->size, .codec = (int)stored->codec};
    return ST_OK;
}

static Status read_chunks(Footer *footer, Field field, PqGroup *group) {
    PqFile *file = footer->file;
    int type;
    size_t n = thrift_list(&footer->thrift, field, &type);
    if (n != file->n_leaves || type != T_STRUCT) return pq_fail(file, NULL, "a row group has %zu columns, the file has %zu", n, file->n_leaves);
    group->chunks = arena_alloc(file->arena, n * sizeof *group->chunks);
    if (!group->chunks) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) {
        Chunk stored;
        read_chunk(&footer->thrift, &stored);
        if (footer->thrift.bad) return pq_fail(file, NULL, "its footer is damaged");
        TRY(keep_chunk(footer, file->leaves[i], &stored, &group->chunks[i]));
    }
    return ST_OK;
}

static Status read_group(Footer *footer, PqGroup *group) {
    *group = (PqGroup){.n_rows = -1};
    for (Field field = {0}; thrift_field(&footer->thrift, &field);) {
        if (field.id == 1 && !group->chunks) {
            TRY(read_chunks(footer, field, group));
        } else if (field.id == 3) {
            group->n_rows = thrift_int(&footer->thrift, field);
        } else {
            thrift_skip(&footer->thrift, field, 0);
        }
    }
    bool whole = !footer->thrift.bad && group->n_rows >= 0 && group->chunks;
    return whole ? ST_OK : pq_fail(footer->file, NULL, "a row group in its footer is damaged");
}

static Status read_groups(Footer *footer, Field field) {
    PqFile *file = footer->file;
    int type;
    size_t n = thrift_list(&footer->thrift, field, &type);
    if (!file->root || (n > 0 && type != T_STRUCT)) return pq_fail(file, NULL, "its footer is damaged");
    file->groups = arena_alloc(file->arena, MAX(n, 1) * sizeof *file->groups);
    if (!file->groups) return ST_RESOURCE;
    for (; file->n_groups < n; file->n_groups++) TRY(read_group(footer, &file->groups[file->n_groups]));
    return ST_OK;
}

static Status check_rows(const Footer *footer) {
    uint64_t sum = 0;
    for (size_t i = 0; i < footer->file->n_groups; i++) sum += (uint64_t)footer->file->groups[i].n_rows;
    if (footer->n_rows >= 0 && sum == (uint64_t)footer->n_rows) return ST_OK;
    return pq_fail(footer->file, NULL, "its footer counts %lld rows, its row groups %llu", (long long)footer->n_rows, (unsigned long long)sum);
}

static Status read_footer(Footer *footer) {
    PqFile *file = footer->file;
    footer->n_rows = -1;
    for (Field field = {0}; thrift_field(&footer->thrift, &field);) {
        switch (field.id) {
        case 2:
            if (file->root) return pq_fail(file, NULL, "its footer is damaged");
            TRY(build_tree(footer, field));
            break;
        case 3: footer->n_rows = thrift_int(&footer->thrift, field); break;
        case 4:
            if (file->groups) return pq_fail(file, NULL, "its footer is damaged");
            TRY(read_groups(footer, field));
            break;
        case 8: return pq_fail(file, NULL, "it is encrypted");
        default: thrift_skip(&footer->thrift, field, 0);
        }
    }
    if (footer->thrift.bad || !file->root || !file->groups) return pq_fail(file, NULL, "its footer is damaged");
    return check_rows(footer);
}

static Status find_footer(PqFile *file, Footer *footer) {
    const uint8_t *data = file->mapping.data;
    size_t size = file->mapping.size;
    if (size < 4 || (memcmp(data, "PAR1", 4) != 0 && memcmp(data, "PARE", 4) != 0))
        return pq_fail(file, NULL, "it is not a Parquet file: expected 'PAR1' at its beginning");
    if (size >= 12 && memcmp(data + size - 4, "PARE", 4) == 0) return pq_fail(file, NULL, "it is encrypted");
    if (size < 12 || memcmp(data + size - 4, "PAR1", 4) != 0) {
        pq_fail(file, NULL, "expected 'PAR1' in the last 4 of its %zu bytes", size);
        return status_hint(ST_INPUT, "it was cut short or not written to its end");
    }
    uint64_t len = pq_little_endian(data + size - 8, 4);
    if (len > size - 12) return pq_fail(file, NULL, "a footer of %llu bytes in a file of %zu", (unsigned long long)len, size);
    footer->begin = size - 8 - len;
    footer->thrift = (Thrift){data + footer->begin, data + size - 8, false};
    return ST_OK;
}

Status pq_open(PqFile *file, const char *path) {
    *file = (PqFile){.path = path};
    Footer footer = {.file = file};
    Status status = file_map(path, &file->mapping);
    if (status == ST_OK) status = find_footer(file, &footer);
    if (status == ST_OK && !(file->arena = arena_new(0))) status = status_fail(ST_RESOURCE, "out of memory for the footer of '%s'", path);
    if (status == ST_OK) status = read_footer(&footer);
    if (status != ST_OK) pq_close(file);
    return status;
}

void pq_close(PqFile *file) {
    arena_free(file->arena);
    file_unmap(&file->mapping);
    *file = (PqFile){0};
}
