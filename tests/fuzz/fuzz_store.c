/* SPDX-License-Identifier: Apache-2.0 */
/* Any file of tokenised rows: either a failure with a text, or rows whose ids, targets and runs lie in the file and in the vocabulary. A checksum
 * would stop every broken version at the door, so the input lacks it and gets the right one here. */
#include "data/dataset/store.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

enum { VOCAB = 64, HEAD_KEY = 16 };

static const char *write_store(const uint8_t *bytes, size_t len) {
    static char path[64];
    XXH128_hash_t hash = XXH3_128bits(bytes, len);
    snprintf(path, sizeof path, "%s/fuzz_store.%ld.bin", temp_root(), (long)getpid());
    FILE *file = fopen(path, "wb");
    ASSERT(file, "cannot write '%s'", path);
    if (len > 0) fwrite(bytes, 1, len, file);
    fwrite(&hash.low64, sizeof hash.low64, 1, file);
    fwrite(&hash.high64, sizeof hash.high64, 1, file);
    fclose(file);
    return path;
}

static void check_row(const Store *store, size_t i) {
    const StoreRow *row = store_row(store, i);
    const int32_t *ids = store_words(store, row), *targets = ids + (row->own_targets ? row->n : 0), *runs = targets + row->n;
    const int32_t *branches = runs + 2 * row->n_runs;
    int64_t trained = 0;
    for (uint32_t b = 0; b < row->n_branches; b++)
        ASSERT(branches[2 * b] >= 0 && branches[2 * b] < row->n && branches[2 * b + 1] < (int32_t)b, "row %zu has a branch at %d", i,
               (int)branches[2 * b]);
    for (int32_t t = 0; t < row->n; t++) ASSERT(ids[t] >= 0 && ids[t] < VOCAB, "row %zu holds id %d", i, (int)ids[t]);
    for (uint32_t r = 0; r < row->n_runs; r++)
        for (int32_t t = runs[2 * r]; t < runs[2 * r + 1]; t++, trained++)
            ASSERT(t > 0 && t < row->n && targets[t] >= 0 && targets[t] < VOCAB, "row %zu has a target at %d", i, (int)t);
    ASSERT(trained == row->trained, "%lld trained tokens, the table says %d", (long long)trained, (int)row->trained);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    StoreKey key = {0, 0};
    Store *store;
    if (len >= HEAD_KEY + sizeof key) memcpy(&key, bytes + HEAD_KEY, sizeof key);
    const char *path = write_store(bytes, len);
    Status status = store_open(path, &key, VOCAB, &store);
    unlink(path);
    if (status != ST_OK) {
        ASSERT(status == ST_INPUT && !store && status_text()[0], "status %d", (int)status);
        return 0;
    }
    for (size_t i = 0; i < store_count(store); i++) check_row(store, i);
    store_close(store);
    return 0;
}
