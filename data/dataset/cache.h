/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of files of tokenised rows, each named by what it was made of.
 *
 *     if (!cache_applies(files, n_files)) ...
 *     TRY(cache_key(config, sources, n_sources, files, n_files, &key, stamps));
 *     TRY(cache_open(folder, &key, vocab_size, &store));           // NULL: not there, or not whole
 *     if (!store) ... store_create(folder, cache_name(&key, name), &key, &writer) ... cache_unchanged(files, n_files, stamps)
 *
 * The key is XXH3-128 over the bytes of all data files and of the tokenizer's folder and over all settings: never over times or sizes alone, which
 * copies, restores and clocks get wrong. XXH3 reads faster than memory gives, is in every system's packages, and 128 bits don't meet by chance; it is
 * no protection against somebody who forges rows in one's own folder. Nobody deletes old files but the user, who may do so at any time.
 */
#ifndef TUNE_CACHE_H
#define TUNE_CACHE_H

#include "data/dataset/store.h"

typedef struct FileStamp {
    uint64_t device, inode, size;
    int64_t seconds, nanoseconds;
} FileStamp;
/* False, with a warning: one of the files is a pipe or the like, which cannot be read for the key and once more for its rows. */
bool cache_applies(const DataFile *files, size_t n_files);
/* Reads all files. stamps: n_files, what the files are now. */
Status cache_key(const DataConfig *config, const DataSource *sources, size_t n_sources, const DataFile *files, size_t n_files, StoreKey *key,
                 FileStamp *stamps);
/* ST_INPUT when a file is not the one that the key was made of. */
Status cache_unchanged(const DataFile *files, size_t n_files, const FileStamp *stamps);
/* Makes the folder when it is missing, and removes what killed processes left in it. *store NULL: rows must be tokenised; a file that is there and
 * not whole is warned of. */
Status cache_open(const char *folder, const StoreKey *key, int64_t vocab_size, Store **store);
const char *cache_name(const StoreKey *key, char name[48]);

#endif
