/* SPDX-License-Identifier: Apache-2.0 */
/* Apache Parquet, the part that reading needs: footer, columns, values. All sizes and counts of a file are checked before they are used; failures
 * name the file, the column and the page.
 *
 *     PqFile file;
 *     TRY(pq_open(&file, "rows.parquet"));
 *     PqColumn column = {0};
 *     TRY(pq_column_start(&column, &file, file.leaves[0], &file.groups[0].chunks[0]));
 *     while (!column.ended) {
 *         Slice value;
 *         if (column.def == column.node->max_def) TRY(pq_column_value(&column, &value));
 *         TRY(pq_column_next(&column));
 *     }
 *     pq_column_release(&column);
 *     pq_close(&file);
 *
 * Source: the format's specification (parquet-format: README, Encodings.md, LogicalTypes.md, parquet.thrift); checked against files of pyarrow. */
#ifndef TUNE_PARQUET_H
#define TUNE_PARQUET_H

#include "lib/base/file.h"
#include "lib/base/json.h"

/* ---- footer ---- */

/* Numbers as in parquet.thrift; PQ_GROUP: no leaf */
typedef enum PqType { PQ_BOOLEAN, PQ_INT32, PQ_INT64, PQ_INT96, PQ_FLOAT, PQ_DOUBLE, PQ_BYTES, PQ_FIXED, PQ_GROUP } PqType;
typedef enum PqRepetition { PQ_REQUIRED, PQ_OPTIONAL, PQ_REPEATED } PqRepetition;
typedef enum PqMeaning {
    PQ_PLAIN,
    PQ_TEXT,
    PQ_JSON,
    PQ_LIST,
    PQ_MAP,
    PQ_DECIMAL,
    PQ_DATE,
    PQ_TIME,
    PQ_TIMESTAMP,
    PQ_UNSIGNED,
    PQ_UUID,
    PQ_FLOAT16
} PqMeaning;

typedef struct PqNode PqNode;
struct PqNode {
    const char *name;
    const PqNode *parent; /* NULL: the root */
    PqRepetition repetition;
    PqType type;
    PqMeaning meaning;
    size_t width;         /* bytes of a value, 0 if they vary */
    int scale;            /* decimal places of PQ_DECIMAL; decimal places of the seconds of PQ_TIME and PQ_TIMESTAMP */
    bool utc;             /* PQ_TIMESTAMP */
    bool item_inside;     /* the repeated group of a PQ_LIST: the item is its only child, not the group itself */
    int max_def, max_rep; /* levels of a value that is present; of an item of this repeated field */
    size_t n_children, first_leaf, n_leaves;
    PqNode **children;
};
typedef struct PqChunk {
    int64_t n_values;
    uint64_t begin, size;
    int codec;
} PqChunk; /* the pages of a column in a row group: bytes of the file */
typedef struct PqGroup {
    int64_t n_rows;
    PqChunk *chunks;
} PqGroup; /* n_leaves chunks */
typedef struct PqFile {
    const char *path;
    Mapping mapping;
    Arena *arena;
    PqNode *root;
    const PqNode **leaves;
    size_t n_leaves, n_groups;
    PqGroup *groups;
} PqFile;
/* Maps the file and reads its footer. `path` is borrowed. ST_INPUT: not Parquet, truncated, encrypted, or a contradictory footer. */
Status pq_open(PqFile *file, const char *path);
void pq_close(PqFile *file);
/* "cannot read 'PATH': column 'a.b': what". */
Status pq_fail(const PqFile *file, const PqNode *node, const char *format, ...) PRINTF_LIKE(3, 4);

typedef enum PqPageKind { PQ_DATA_PAGE, PQ_INDEX_PAGE, PQ_DICTIONARY_PAGE, PQ_DATA_PAGE_V2 } PqPageKind;
typedef struct PqPage {
    int64_t kind, size, packed_size; /* uncompressed bytes, and bytes in the file */
    bool has_crc, packed;            /* packed: of PQ_DATA_PAGE_V2 */
    uint32_t crc;
    int64_t n_values, encoding, def_encoding, rep_encoding, def_size, rep_size;
} PqPage;
/* Reads a page's header from the bytes at `at`; false if it is invalid. *header_size: its bytes. */
bool pq_page_read(const uint8_t *at, size_t len, PqPage *page, size_t *header_size);

/* ---- packed integers ---- */

uint64_t pq_little_endian(const uint8_t *bytes, size_t n); /* n up to 8 */

/* Runs of a repeated value, and of bit-packed values (Encodings.md, RLE = 3). */
typedef struct PqRuns {
    const uint8_t *at, *end;
    unsigned width, bit;
    uint64_t left;
    uint32_t value;
    bool packed;
} PqRuns;
bool pq_runs_next(PqRuns *runs, uint32_t *value); /* false: the bytes are used up or wrong */

/* Differences in blocks (DELTA_BINARY_PACKED = 5); sums wrap around. */
typedef struct PqDeltas {
    const uint8_t *at, *end, *widths, *mini_end;
    uint64_t per_mini, n_minis, mini, left_in_mini, left; /* left: values not read yet, over all blocks */
    uint64_t min_delta, value;
    unsigned width, bit;
    bool first;
} PqDeltas;
bool pq_deltas_start(PqDeltas *deltas, const uint8_t *at, const uint8_t *end);
bool pq_deltas_next(PqDeltas *deltas, uint64_t *value);
/* Skips all remaining values to find what follows them; NULL if the bytes are wrong. */
const uint8_t *pq_deltas_skip(PqDeltas deltas);

/* ---- columns ---- */

typedef struct PqBuffer {
    uint8_t *data;
    size_t cap;
} PqBuffer;
/* Decompresses `len` bytes to exactly `size`. ST_INPUT: *fault says why, no failure is recorded. ST_RESOURCE. */
Status pq_unpack(int codec, const uint8_t *bytes, size_t len, size_t size, PqBuffer *buffer, const char **fault);
const char *pq_codec_name(int codec);

/* The entries of a column in one row group, in order: levels, and a value if def is the node's max_def. Memory: one page and the dictionary. */
typedef struct PqColumn {
    const PqFile *file;
    const PqNode *node;
    const PqChunk *chunk;
    bool ended;           /* there is no current entry */
    int rep, def;         /* levels of the current entry */
    int64_t in_row;       /* entries of the current row so far */
    size_t bytes_in_row;  /* and their values' */
    uint64_t at, page_at; /* of the file: next page, current page */
    int64_t chunk_left, page_left, page_values;
    PqRuns reps, defs;
    /* values of the current page */
    int encoding;
    bool started;
    const uint8_t *values, *values_end;
    unsigned bit;
    PqRuns indices;
    PqDeltas lengths, prefixes;
    uint64_t split_at, n_split;
    PqBuffer page, dictionary, scratch;
    size_t scratch_len;
    const uint8_t *words; /* dictionary: n_words values of the node's width, or slices */
    Slice *word_slices;
    size_t n_words;
} PqColumn;
/* {0} before the first chunk; later chunks of the same file reuse the memory */
Status pq_column_start(PqColumn *column, const PqFile *file, const PqNode *node, const PqChunk *chunk);
Status pq_column_next(PqColumn *column);
/* The current entry's value as its bytes, little endian as in PLAIN (a boolean: one byte); call it once an entry. Valid until the next call for this
 * column. */
Status pq_column_value(PqColumn *column, Slice *value);
void pq_column_release(PqColumn *column);

/* ---- values ---- */

/* A value as JSON: times and dates in ISO 8601, decimals as exact text, bytes that are no text in base64, NaN and infinities as null. NULL: *fault
 * says why. */
json_t *pq_json(const PqNode *node, Slice value, const char **fault);

#endif
