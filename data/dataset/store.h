/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenised rows in one file that is mapped, so memory does not grow with their number: written once, from the first row to the last, then read in
 * any order.
 *
 *     StoreWriter *writer;
 *     TRY(store_create(folder, NULL, NULL, &writer));             // a file without a name: it is gone with the process
 *     TRY(store_append(writer, &row, words));                     // for each row
 *     TRY(store_finish(writer, about, strlen(about), &store));
 *     const StoreRow *first = store_row(store, 0);
 *
 * The file: magic, key; each row's words (int32: n ids, n targets when they are not the ids, n_runs pairs begin, end of what is trained, n_branches
 * pairs begin, parent); one StoreRow for each row; a text about the whole; a foot with the sizes, and XXH3-128 over all bytes before it. Numbers are
 * little-endian. A cache is made of such files with names, see cache.h.
 */
#ifndef TUNE_STORE_H
#define TUNE_STORE_H

#include "data/data.h"

/* An entry of the table, as it is in the file. */
typedef struct StoreRow {
    uint64_t offset; /* of the row's words, bytes from the start of the file */
    uint64_t hash;   /* XXH3-64 of the words */
    double weight;
    uint32_t file, line;
    int32_t n, trained;           /* tokens; those with a target, without the first, which nothing predicts */
    uint32_t n_runs, own_targets; /* own_targets: 1 when targets follow the ids */
    uint32_t n_branches;          /* see Example */
    int32_t depth;                /* tokens of its longest text */
} StoreRow;
typedef struct StoreKey {
    uint64_t low, high;
} StoreKey;
typedef struct Store Store;
typedef struct StoreWriter StoreWriter;

/* A new file in `folder`; name NULL: one without a name, and without a checksum. ST_RESOURCE: the disk is full. ST_INPUT: the folder cannot be
 * written to. */
Status store_create(const char *folder, const char *name, const StoreKey *key, StoreWriter **writer);
/* Sets row->offset; the other fields are the caller's. A failure sticks. */
Status store_append(StoreWriter *writer, StoreRow *row, const int32_t *words);
/* Ends the file, puts a named one in its place (synced, renamed: whole or not at all), maps it, and frees the writer, also on failure. */
Status store_finish(StoreWriter *writer, const char *about, size_t about_len, Store **store);
void store_abandon(StoreWriter *writer); /* nothing is left on the disk; NULL is fine */

/* Maps a file that store_finish named. Everything is checked: key, checksum, and each row's words (ids and targets below `vocab_size` when that is
 * above 0). ST_INPUT says what is wrong. */
Status store_open(const char *path, const StoreKey *key, int64_t vocab_size, Store **store);
void store_close(Store *store); /* NULL is fine */
size_t store_count(const Store *store);
Slice store_about(const Store *store);
/* Valid until store_close. Pages that were looked at are given back from time to time: they count as this process's memory although the system may
 * take them at any time. */
const StoreRow *store_row(const Store *store, size_t i);
const int32_t *store_words(const Store *store, const StoreRow *row);
size_t store_words_count(const StoreRow *row);

#endif
