/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of files of tokenised rows, each named by a hash of its inputs.
 *
 *     if (!cache_applies(files, n_files)) ...
 *     TRY(cache_key(config, sources, n_sources, files, n_files, &key, stamps));
 *     TRY(cache_open(folder, &key, vocab_size, &store));           // NULL: missing or damaged
 *     if (!store) ... store_create(folder, cache_name(&key, name), &key, &writer) ... cache_unchanged(files, n_files, stamps)
 *
 * The key is XXH3-128 over the bytes of all data files and of the tokenizer's folder, and over all settings. It never relies on times or sizes alone,
 * which copies, restores and clocks get wrong. XXH3 is faster than reading the files, every system has a package of it, and 128 bits do not collide
 * by chance; it does not protect against forged rows in the user's own folder. Only the user deletes old files, at any time.
 */
#ifndef TUNE_CACHE_H
#define TUNE_CACHE_H

#include "data/dataset/store.h"

typedef struct FileStamp {
    uint64_t device, inode, size;
    int64_t seconds, nanoseconds;
} FileStamp;
/* False, with a warning, if one of the files is a pipe or similar, since it cannot be read twice: for the key and for its rows. */
bool cache_applies(const DataFile *files, size_t n_files);
/* Reads all files. stamps: n_files, the current state of the files. */
Status cache_key(const DataConfig *config, const DataSource *sources, size_t n_sources, const DataFile *files, size_t n_files, StoreKey *key,
                 FileStamp *stamps);
/* ST_INPUT if a file has changed since the key was made. */
Status cache_unchanged(const DataFile *files, size_t n_files, const FileStamp *stamps);
/* Creates the folder if it is missing, and removes files that killed processes left in it. *store NULL: the rows must be tokenised; a damaged file is
 * a warning. */
Status cache_open(const char *folder, const StoreKey *key, int64_t vocab_size, Store **store);
const char *cache_name(const StoreKey *key, char name[48]);

#endif
