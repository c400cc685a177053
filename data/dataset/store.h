/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenised rows in one file that is mapped, so memory does not grow with their number: written once, from the first row to the last, then read in
 * any order.
 *
 *     StoreWriter *writer;
 *     TRY(store_create(folder, NULL, NULL, &writer));             // an unnamed file, which vanishes with the process
 *     TRY(store_append(writer, &row, words));                     // for each row
 *     TRY(store_finish(writer, about, strlen(about), &store));
 *     const StoreRow *first = store_row(store, 0);
 *
 * The file: magic, key; each row's words (int32: n ids, n targets if they differ from the ids, n_runs pairs begin, end of trained runs, n_branches
 * pairs begin, parent); one StoreRow for each row; a text about the dataset; a foot with the sizes, and XXH3-128 over all bytes before it. Numbers
 * are little-endian. A cache consists of named files of this form, see cache.h.
 */
#ifndef TUNE_STORE_H
#define TUNE_STORE_H

#include "data/data.h"

/* An entry of the table, as stored in the file. */
typedef struct StoreRow {
    uint64_t offset; /* position of the row's words, in bytes from the start of the file */
    uint64_t hash;   /* XXH3-64 of the words */
    double weight;
    uint32_t file, line;
    int32_t n, trained;           /* number of tokens; number of tokens with a target, without the first token, which nothing predicts */
    uint32_t n_runs, own_targets; /* own_targets: 1 if targets follow the ids */
    uint32_t n_branches;          /* see Example */
    int32_t depth;                /* tokens of its longest text */
} StoreRow;
typedef struct StoreKey {
    uint64_t low, high;
} StoreKey;
typedef struct Store Store;
typedef struct StoreWriter StoreWriter;

/* Creates a file in `folder`; name NULL: an unnamed one, without a checksum. ST_RESOURCE: the disk is full. ST_INPUT: the folder is not writable. */
Status store_create(const char *folder, const char *name, const StoreKey *key, StoreWriter **writer);
/* Sets row->offset; the caller sets the other fields. After a failure all later calls fail. */
Status store_append(StoreWriter *writer, StoreRow *row, const int32_t *words);
/* Ends the file, moves a named one to its place (synced and renamed, so that it is complete or missing), maps it, and frees the writer, also on
 * failure. */
Status store_finish(StoreWriter *writer, const char *about, size_t about_len, Store **store);
void store_abandon(StoreWriter *writer); /* leaves nothing on the disk; NULL is fine */

/* Maps a file that store_finish named. Checks everything: key, checksum, and each row's words (ids and targets below `vocab_size` if that is above
 * 0). ST_INPUT says what is wrong. */
Status store_open(const char *path, const StoreKey *key, int64_t vocab_size, Store **store);
void store_close(Store *store); /* NULL is fine */
size_t store_count(const Store *store);
Slice store_about(const Store *store);
/* Valid until store_close. Pages that were read are released from time to time: they count as this process's memory although the system may reclaim
 * them at any time. */
const StoreRow *store_row(const Store *store, size_t i);
const int32_t *store_words(const Store *store, const StoreRow *row);
size_t store_words_count(const StoreRow *row);

#endif
