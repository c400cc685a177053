/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: either a failure with a text, or a value that is written and read again as the same value. */
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    json_t *root, *again;
    Status status = json_read_text((const char *)bytes, len, "fuzz", &root);
    if (status != ST_OK) {
        ASSERT(status == ST_INPUT && !root && status_text()[0], "status %d", (int)status);
        return 0;
    }
    int64_t whole = 0;
    const char *text = NULL;
    if (json_get_int(root, "fuzz", "a", &whole) == ST_OK && json_get_string(root, "fuzz", "b", &text) == ST_OK && text)
        ASSERT(strlen(text) < len, "b");
    char *dump = json_dumps(root, JSON_ENCODE_ANY | JSON_COMPACT);
    ASSERT(dump, "cannot write what was read: %zu bytes", len);
    status = json_read_text(dump, strlen(dump), "dump", &again);
    ASSERT(status == ST_OK && json_equal(root, again), "'%s' reads differently: %s", dump, status_text());
    free(dump);
    json_decref(root);
    json_decref(again);
    return 0;
}
