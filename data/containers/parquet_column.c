/* SPDX-License-Identifier: Apache-2.0 */
/* A column of a row group: its pages, and in these the levels and values in all encodings of the format. */
#include "data/containers/parquet.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum {
    PLAIN = 0,
    PLAIN_DICTIONARY = 2,
    RLE = 3,
    BIT_PACKED = 4,
    DELTA_BINARY_PACKED = 5,
    DELTA_LENGTH_BYTE_ARRAY = 6,
    DELTA_BYTE_ARRAY = 7,
    RLE_DICTIONARY = 8,
    BYTE_STREAM_SPLIT = 9
};
enum { UNCOMPRESSED = 0 };
/* Limit for one column in one row: a run of bits can claim any number of entries, each with the same long text. */
#define ROW_LIMIT ((int64_t)1 << 24)
#define ROW_BYTES_LIMIT ((size_t)1 << 30)

static Status page_fail(const PqColumn *column, const char *what) {
    return pq_fail(column->file, column->node, "page at byte %llu: %s", (unsigned long long)column->page_at, what);
}

static unsigned bits_of(int most) {
    unsigned bits = 0;
    for (; most > 0; most >>= 1) bits++;
    return bits;
}

/* ---- dictionary ---- */

static bool split_words(PqColumn *column, const uint8_t *at, const uint8_t *end) {
    for (size_t i = 0; i < column->n_words; i++) {
        if (end - at < 4) return false;
        uint64_t len = pq_little_endian(at, 4);
        at += 4;
        if (len > (uint64_t)(end - at)) return false;
        column->word_slices[i] = (Slice){(const char *)at, len};
        at += len;
    }
    return true;
}

static Status read_dictionary(PqColumn *column, const PqPage *page, const uint8_t *bytes, size_t len) {
    size_t width = column->node->type == PQ_BYTES ? 4 : column->node->width; /* a text takes at least the bytes of its length */
    if (column->words) return page_fail(column, "a second dictionary");
    if (page->encoding != PLAIN && page->encoding != PLAIN_DICTIONARY) return page_fail(column, "expected a dictionary of plain values");
    if (column->node->type == PQ_BOOLEAN) return page_fail(column, "a dictionary of booleans");
    if (page->n_values < 0 || (uint64_t)page->n_values > len / width) return page_fail(column, "its dictionary ends too early");
    column->words = bytes;
    column->n_words = (size_t)page->n_values;
    if (column->node->type != PQ_BYTES) return ST_OK;
    Slice *slices = realloc(column->word_slices, MAX(column->n_words, 1) * sizeof *slices);
    if (!slices) return status_fail(ST_RESOURCE, "out of memory for a dictionary of %zu values", column->n_words);
    column->word_slices = slices;
    return split_words(column, bytes, bytes + len) ? ST_OK : page_fail(column, "its dictionary ends too early");
}

/* ---- pages ---- */

static Status unpack(PqColumn *column, const uint8_t *bytes, size_t len, size_t size, PqBuffer *buffer, const uint8_t **result) {
    int codec = column->chunk->codec;
    const char *fault;
    *result = bytes;
    if (codec == UNCOMPRESSED) return len == size ? ST_OK : page_fail(column, "it is not packed, and has two sizes");
    Status status = pq_unpack(codec, bytes, len, size, buffer, &fault);
    *result = buffer->data;
    if (status != ST_INPUT) return status;
    return pq_fail(column->file, column->node, "page at byte %llu, codec %s: %s", (unsigned long long)column->page_at, pq_codec_name(codec), fault);
}

static Status start_levels(PqColumn *column, PqRuns *runs, int most, const uint8_t **at, const uint8_t *end, int64_t encoding) {
    if (most == 0) return ST_OK;
    if (encoding == BIT_PACKED) return page_fail(column, "levels in the encoding BIT_PACKED are not supported");
    if (encoding != RLE) return page_fail(column, "levels in an unknown encoding");
    if (end - *at < 4) return page_fail(column, "it ends before its levels");
    uint64_t len = pq_little_endian(*at, 4);
    *at += 4;
    if (len > (uint64_t)(end - *at)) return page_fail(column, "its levels are longer than the page");
    *runs = (PqRuns){.at = *at, .end = *at + len, .width = bits_of(most)};
    *at += len;
    return ST_OK;
}

static void start_values(PqColumn *column, const PqPage *page, const uint8_t *at, const uint8_t *end) {
    column->encoding = (int)page->encoding;
    column->values = at;
    column->values_end = end;
    column->started = false;
    column->bit = 0;
}

static Status start_page(PqColumn *column, const PqPage *page, const uint8_t *bytes) {
    const uint8_t *at, *end;
    TRY(unpack(column, bytes, (size_t)page->packed_size, (size_t)page->size, &column->page, &at));
    end = at + page->size;
    TRY(start_levels(column, &column->reps, column->node->max_rep, &at, end, page->rep_encoding));
    TRY(start_levels(column, &column->defs, column->node->max_def, &at, end, page->def_encoding));
    start_values(column, page, at, end);
    return ST_OK;
}

/* Pages of the second version: levels precede the compressed part, and have no length prefix. */
static Status start_page_v2(PqColumn *column, const PqPage *page, const uint8_t *bytes) {
    if (page->rep_size < 0 || page->def_size < 0 || page->rep_size > MIN(page->packed_size, page->size) ||
        page->def_size > MIN(page->packed_size, page->size) - page->rep_size)
        return page_fail(column, "its levels are longer than the page");
    const uint8_t *defs = bytes + page->rep_size, *values = defs + page->def_size, *at;
    size_t levels = (size_t)(page->rep_size + page->def_size), len = (size_t)page->packed_size - levels, size = (size_t)page->size - levels;
    column->reps = (PqRuns){.at = bytes, .end = defs, .width = bits_of(column->node->max_rep)};
    column->defs = (PqRuns){.at = defs, .end = values, .width = bits_of(column->node->max_def)};
    if (page->packed && (len > 0 || size > 0)) {
        TRY(unpack(column, values, len, size, &column->page, &at));
    } else {
        if (len != size) return page_fail(column, "it is not packed, and has two sizes");
        at = values;
    }
    start_values(column, page, at, at + size);
    return ST_OK;
}

static Status take_data_page(PqColumn *column, const PqPage *page, const uint8_t *bytes) {
    if (page->n_values < 0 || page->n_values > column->chunk_left) {
        return pq_fail(column->file, column->node, "page at byte %llu: %lld values, where the column has %lld left",
                       (unsigned long long)column->page_at, (long long)page->n_values, (long long)column->chunk_left);
    }
    column->chunk_left -= page->n_values;
    column->page_left = column->page_values = page->n_values;
    return page->kind == PQ_DATA_PAGE ? start_page(column, page, bytes) : start_page_v2(column, page, bytes);
}

static Status next_page(PqColumn *column) {
    const uint8_t *data = column->file->mapping.data;
    uint64_t end = column->chunk->begin + column->chunk->size;
    PqPage page;
    size_t header;
    file_drop_pages(&column->file->mapping, column->page_at, column->at);
    column->page_at = column->at;
    if (column->at >= end)
        return pq_fail(column->file, column->node, "its pages end at byte %llu, %lld values too early", (unsigned long long)end,
                       (long long)column->chunk_left);
    if (!pq_page_read(data + column->at, end - column->at, &page, &header)) return page_fail(column, "its header is damaged");
    column->at += header;
    if ((uint64_t)page.packed_size > end - column->at) return page_fail(column, "it is longer than its column");
    const uint8_t *bytes = data + column->at;
    column->at += (uint64_t)page.packed_size;
    if (page.has_crc && (uint32_t)crc32(0, bytes, (unsigned)page.packed_size) != page.crc) return page_fail(column, "its checksum is wrong");
    switch (page.kind) {
    case PQ_DATA_PAGE:
    case PQ_DATA_PAGE_V2: return take_data_page(column, &page, bytes);
    case PQ_DICTIONARY_PAGE: {
        const uint8_t *words;
        TRY(unpack(column, bytes, (size_t)page.packed_size, (size_t)page.size, &column->dictionary, &words));
        return read_dictionary(column, &page, words, (size_t)page.size);
    }
    case PQ_INDEX_PAGE: return ST_OK;
    default: return page_fail(column, "a page of an unknown kind");
    }
}

/* ---- entries ---- */

static Status next_level(PqColumn *column, PqRuns *runs, int most, int *level) {
    uint32_t value = 0;
    if (most > 0 && (!pq_runs_next(runs, &value) || value > (uint32_t)most)) return page_fail(column, "its levels are damaged");
    *level = (int)value;
    return ST_OK;
}

Status pq_column_next(PqColumn *column) {
    while (column->page_left == 0) {
        column->ended = column->chunk_left == 0;
        if (column->ended) return ST_OK;
        TRY(next_page(column));
    }
    column->page_left--;
    TRY(next_level(column, &column->reps, column->node->max_rep, &column->rep));
    TRY(next_level(column, &column->defs, column->node->max_def, &column->def));
    column->in_row = column->rep == 0 ? 1 : column->in_row + 1;
    if (column->rep == 0) column->bytes_in_row = 0;
    return column->in_row <= ROW_LIMIT ? ST_OK : page_fail(column, "a row of more than 16777216 values");
}

Status pq_column_start(PqColumn *column, const PqFile *file, const PqNode *node, const PqChunk *chunk) {
    if (column->chunk) file_drop_pages(&file->mapping, column->page_at, column->at); /* the end of the last page */
    *column = (PqColumn){.file = file,
                         .node = node,
                         .chunk = chunk,
                         .at = chunk->begin,
                         .page_at = chunk->begin,
                         .chunk_left = chunk->n_values,
                         .page = column->page,
                         .dictionary = column->dictionary,
                         .scratch = column->scratch,
                         .word_slices = column->word_slices};
    return pq_column_next(column);
}

void pq_column_release(PqColumn *column) {
    free(column->page.data);
    free(column->dictionary.data);
    free(column->scratch.data);
    free(column->word_slices);
    *column = (PqColumn){0};
}

/* ---- values ---- */

static bool scratch_reserve(PqColumn *column, size_t size) {
    if (column->scratch.data && size <= column->scratch.cap) return true;
    uint8_t *data = realloc(column->scratch.data, MAX(size, 64));
    if (data) column->scratch = (PqBuffer){data, MAX(size, 64)};
    return data != NULL;
}

static bool scratch_number(PqColumn *column, uint64_t number, size_t width, Slice *value) {
    if (!scratch_reserve(column, 8)) return false;
    for (size_t i = 0; i < width; i++) column->scratch.data[i] = (uint8_t)(number >> (8 * i));
    *value = (Slice){(const char *)column->scratch.data, width};
    return true;
}

static bool take_bytes(PqColumn *column, uint64_t len, Slice *value) {
    if (len > (uint64_t)(column->values_end - column->values)) return false;
    *value = (Slice){(const char *)column->values, len};
    column->values += len;
    return true;
}

static bool plain_value(PqColumn *column, Slice *value) {
    if (column->node->type == PQ_BOOLEAN) {
        if (column->values == column->values_end) return false;
        uint64_t bit = *column->values >> column->bit & 1;
        column->bit = (column->bit + 1) % 8;
        column->values += column->bit == 0;
        return scratch_number(column, bit, 1, value);
    }
    if (column->node->type != PQ_BYTES) return take_bytes(column, column->node->width, value);
    Slice len;
    return take_bytes(column, 4, &len) && take_bytes(column, pq_little_endian((const uint8_t *)len.data, 4), value);
}

static bool word_value(PqColumn *column, Slice *value) {
    uint32_t index = 0;
    if (column->indices.width > 0 && !pq_runs_next(&column->indices, &index)) return false;
    if (index >= column->n_words) return false;
    size_t width = column->node->width;
    *value = column->node->type == PQ_BYTES ? column->word_slices[index] : (Slice){(const char *)column->words + index * width, width};
    return true;
}

static bool delta_value(PqColumn *column, Slice *value) {
    uint64_t number;
    return pq_deltas_next(&column->lengths, &number) && scratch_number(column, number, column->node->width, value);
}

static bool delta_length_value(PqColumn *column, Slice *value) {
    uint64_t len;
    return pq_deltas_next(&column->lengths, &len) && take_bytes(column, len, value);
}

/* Joins a prefix of the previous value, which is kept in scratch, and a suffix. */
static bool delta_bytes_value(PqColumn *column, Slice *value) {
    uint64_t shared;
    Slice suffix;
    if (!pq_deltas_next(&column->prefixes, &shared) || shared > column->scratch_len || !delta_length_value(column, &suffix)) return false;
    if (!scratch_reserve(column, shared + suffix.len)) return false;
    if (suffix.len > 0) memcpy(column->scratch.data + shared, suffix.data, suffix.len);
    column->scratch_len = shared + suffix.len;
    *value = (Slice){(const char *)column->scratch.data, column->scratch_len};
    return column->node->type == PQ_BYTES || value->len == column->node->width;
}

static bool split_value(PqColumn *column, Slice *value) {
    size_t width = column->node->width;
    if (column->split_at == column->n_split || !scratch_reserve(column, width)) return false;
    for (size_t i = 0; i < width; i++) column->scratch.data[i] = column->values[i * column->n_split + column->split_at];
    column->split_at++;
    *value = (Slice){(const char *)column->scratch.data, width};
    return true;
}

static Status start_indices(PqColumn *column) {
    if (!column->words) return page_fail(column, "values of a dictionary, and there is none");
    if (column->values == column->values_end || *column->values > 32) return page_fail(column, "its values end too early or are damaged");
    column->indices = (PqRuns){.at = column->values + 1, .end = column->values_end, .width = *column->values};
    return ST_OK;
}

static Status start_booleans(PqColumn *column) {
    if (column->values_end - column->values < 4) return page_fail(column, "its values end too early");
    uint64_t len = pq_little_endian(column->values, 4);
    column->values += 4;
    if (len > (uint64_t)(column->values_end - column->values)) return page_fail(column, "its values are longer than the page");
    column->indices = (PqRuns){.at = column->values, .end = column->values + len, .width = 1};
    return ST_OK;
}

/* Starts reading deltas at the page's values and moves past them. */
static Status start_deltas(PqColumn *column, PqDeltas *deltas) {
    if (!pq_deltas_start(deltas, column->values, column->values_end) || deltas->left > (uint64_t)column->page_values)
        return page_fail(column, "its values are damaged");
    const uint8_t *end = pq_deltas_skip(*deltas);
    if (!end) return page_fail(column, "its values end too early");
    column->values = end;
    return ST_OK;
}

static bool encoding_fits(const PqColumn *column) {
    PqType type = column->node->type;
    switch (column->encoding) {
    case RLE: return type == PQ_BOOLEAN;
    case DELTA_BINARY_PACKED: return type == PQ_INT32 || type == PQ_INT64;
    case DELTA_LENGTH_BYTE_ARRAY: return type == PQ_BYTES;
    case DELTA_BYTE_ARRAY: return type == PQ_BYTES || type == PQ_FIXED;
    case BYTE_STREAM_SPLIT: return type != PQ_BYTES && type != PQ_BOOLEAN;
    default: return true;
    }
}

static Status start_encoding(PqColumn *column) {
    if (!encoding_fits(column)) return page_fail(column, "its encoding is not one for values of this type");
    column->started = true;
    switch (column->encoding) {
    case PLAIN: return ST_OK;
    case PLAIN_DICTIONARY:
    case RLE_DICTIONARY: return start_indices(column);
    case RLE: return start_booleans(column);
    case DELTA_BINARY_PACKED:
    case DELTA_LENGTH_BYTE_ARRAY: return start_deltas(column, &column->lengths);
    case DELTA_BYTE_ARRAY:
        column->scratch_len = 0;
        TRY(start_deltas(column, &column->prefixes));
        return start_deltas(column, &column->lengths);
    case BYTE_STREAM_SPLIT:
        column->n_split = (uint64_t)(column->values_end - column->values) / column->node->width;
        column->split_at = 0;
        return ST_OK;
    default:
        return pq_fail(column->file, column->node, "page at byte %llu: values in encoding %d are not supported", (unsigned long long)column->page_at,
                       column->encoding);
    }
}

static bool boolean_value(PqColumn *column, Slice *value) {
    uint32_t bit;
    return pq_runs_next(&column->indices, &bit) && scratch_number(column, bit, 1, value);
}

static bool read_value(PqColumn *column, Slice *value) {
    switch (column->encoding) {
    case PLAIN: return plain_value(column, value);
    case RLE: return boolean_value(column, value);
    case DELTA_BINARY_PACKED: return delta_value(column, value);
    case DELTA_LENGTH_BYTE_ARRAY: return delta_length_value(column, value);
    case DELTA_BYTE_ARRAY: return delta_bytes_value(column, value);
    case BYTE_STREAM_SPLIT: return split_value(column, value);
    default: return word_value(column, value);
    }
}

Status pq_column_value(PqColumn *column, Slice *value) {
    if (!column->started) TRY(start_encoding(column));
    if (!read_value(column, value)) return page_fail(column, "its values end too early or are damaged");
    column->bytes_in_row += value->len;
    return column->bytes_in_row <= ROW_BYTES_LIMIT ? ST_OK : page_fail(column, "a row of more than 1 GiB");
}
