/* SPDX-License-Identifier: Apache-2.0 */
/* Any Parquet file: either a failure with a text, or rows that all have the same columns. */
#include "data/data.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static Status check_row(void *context, const Row *row) {
    size_t *columns = context;
    if (*columns == 0) *columns = json_object_size(row->json);
    ASSERT(json_object_size(row->json) == *columns && *columns > 0, "%zu columns in row %zu, %zu before", json_object_size(row->json), row->line,
           *columns);
    return ST_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    char path[64];
    snprintf(path, sizeof path, "%s/fuzz_parquet.%ld.parquet", temp_root(), (long)getpid());
    FILE *file = fopen(path, "wb");
    ASSERT(file, "cannot write '%s'", path);
    if (len > 0) fwrite(bytes, 1, len, file);
    fclose(file);
    size_t columns = 0;
    Status status = rows_read_some(path, 1000, check_row, &columns);
    unlink(path);
    ASSERT(status == ST_OK || (status == ST_INPUT && status_text()[0]), "status %d: %s", (int)status, status_text());
    return 0;
}
