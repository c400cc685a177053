/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: either a failure with a text, or metadata, a tokenizer, a configuration and tensors that lie inside them. */
#include "tests/support/check.h"

#include "lib/base/gguf.h"
#include "lib/model/gguf/gguf_model.h"
#include "lib/model/weight_file.h"
#include "lib/text/gguf_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void failed(Status status) { ASSERT((status == ST_INPUT || status == ST_RESOURCE) && status_text()[0], "status %d", (int)status); }

static void read_metadata(const uint8_t *bytes, size_t len) {
    Gguf *gguf;
    json_t *json;
    Status status = gguf_parse(bytes, len, "fuzz", &gguf);
    if (status != ST_OK) {
        failed(status);
        return;
    }
    for (size_t i = 0; i < gguf->n_values; i++) {
        status = gguf_json(gguf, &gguf->values[i], &json);
        if (status != ST_OK) failed(status);
        json_decref(json);
        ASSERT(gguf_find(gguf, gguf->values[i].key) == &gguf->values[i], "'%s' is not found", gguf->values[i].key);
    }
    status = gguf_tokenizer_build(gguf, &json);
    if (status != ST_OK) failed(status);
    json_decref(json);
    status = gguf_config_build(gguf, &json);
    if (status != ST_OK) failed(status);
    json_decref(json);
    gguf_close(gguf);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    WeightFile *file;
    read_metadata(bytes, len);
    if (len < 4 || bytes[0] != 'G') return 0; /* the other kind of file has its own entry */
    Status status = weight_file_parse(bytes, len, "fuzz", &file);
    if (status != ST_OK) {
        failed(status);
        return 0;
    }
    for (size_t i = 0; i < file->n; i++) {
        const StoredTensor *tensor = &file->tensors[i];
        ASSERT(weight_file_find(file, tensor->name) == tensor, "tensor '%s' is not found", tensor->name);
        if (tensor->count == 0) continue;
        stored_get(tensor, 0); /* the address sanitizer watches both ends */
        stored_get(tensor, tensor->count - 1);
    }
    weight_file_close(file);
    return 0;
}
