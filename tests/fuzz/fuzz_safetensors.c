/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: either a failure with a text, or tensors that lie inside them and are found by their names. */
#include "tests/support/check.h"

#include "lib/model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    WeightFile *set;
    Status status = weight_file_parse(bytes, len, "fuzz", &set);
    if (status != ST_OK) {
        ASSERT(status == ST_INPUT && !set && status_text()[0], "status %d", (int)status);
        return 0;
    }
    for (size_t i = 0; i < set->n; i++) {
        const StoredTensor *tensor = &set->tensors[i];
        int64_t count = tensor->count;
        ASSERT(tensor->data >= bytes && (size_t)(tensor->data - bytes) + tensor->bytes <= len, "tensor '%s' of %zu bytes", tensor->name,
               tensor->bytes);
        ASSERT(weight_file_find(set, tensor->name) == tensor, "tensor '%s' is not found", tensor->name);
        if (count == 0) continue;
        stored_get(tensor, 0); /* the address sanitizer watches both ends */
        stored_get(tensor, count - 1);
    }
    weight_file_close(set);
    return 0;
}
