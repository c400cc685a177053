/* SPDX-License-Identifier: Apache-2.0 */
/* Any file of separated values: either a failure that names a line, or rows with the header's columns. The first byte says how the file is named. */
#include "data/data.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static Status check_row(void *context, const Row *row) {
    size_t *columns = context;
    if (*columns == 0) *columns = json_object_size(row->json);
    ASSERT(json_object_size(row->json) == *columns && row->line > 1, "%zu columns in line %zu, %zu before", json_object_size(row->json), row->line,
           *columns);
    return ST_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    char path[64];
    snprintf(path, sizeof path, "%s/fuzz_csv.%ld.%s", temp_root(), (long)getpid(),
             len > 0 && bytes[0] == 't'   ? "tsv"
             : len > 0 && bytes[0] == 'z' ? "csv.gz"
                                          : "csv");
    FILE *file = fopen(path, "wb");
    ASSERT(file, "cannot write '%s'", path);
    if (len > 1) fwrite(bytes + 1, 1, len - 1, file);
    fclose(file);
    size_t columns = 0;
    Status status = rows_read(path, check_row, &columns);
    unlink(path);
    ASSERT(status == ST_OK || (status == ST_INPUT && status_text()[0]), "status %d", (int)status);
    return 0;
}
