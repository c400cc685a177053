/* SPDX-License-Identifier: Apache-2.0 */
/* A quantization_config in the first line, then a safetensors file: either a failure with a text, or weights whose values and codes lie inside the
 * file. The base that a run with model.quantize keeps is such a directory: with bitsandbytes' tensors, or with blocks (seed ggml). */
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"

#include "lib/model/quantized/quantized.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static bool refused(Status status) {
    ASSERT(status == ST_OK || status == ST_INPUT || status == ST_RESOURCE, "status %d", (int)status);
    ASSERT(status == ST_OK || status_text()[0], "no text");
    return status != ST_OK;
}

/* The address sanitizer watches both ends of codes and statistics. */
static void read_ends(const StoredTensor *tensor) {
    Arena *arena = arena_new(0);
    Packing *packing;
    float value;
    stored_get(tensor, 0);
    stored_get(tensor, tensor->count - 1);
    if (tensor->pack && !refused(tensor->pack(tensor->parts, &(CodeRoom){.arena = arena}, &packing))) {
        packing->read(packing, 0, 1, &value);
        packing->read(packing, tensor->count - 1, 1, &value);
        const int64_t n = packing->matrices ? tensor->shape[0] : 0;
        if (n > 0) packing->matrices[0]->read(packing->matrices[0], 0, 1, &value);
        if (n > 0) packing->matrices[n - 1]->read(packing->matrices[n - 1], tensor->count / n - 1, 1, &value);
    }
    arena_free(arena);
}

static void read_weights(const json_t *settings, const uint8_t *bytes, size_t len) {
    WeightFile *file;
    if (refused(weight_file_parse(bytes, len, "fuzz", &file))) return;
    if (!refused(quantized_join_as(file, "fuzz", settings)))
        for (size_t i = 0; i < file->n; i++) {
            ASSERT(weight_file_find(file, file->tensors[i].name) == &file->tensors[i], "tensor '%s' is not found", file->tensors[i].name);
            if (file->tensors[i].count > 0) read_ends(&file->tensors[i]);
        }
    weight_file_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    const uint8_t *newline = len ? memchr(bytes, '\n', len) : NULL;
    json_t *settings;
    if (!newline) return 0;
    const size_t first = (size_t)(newline - bytes) + 1;
    uint8_t *file = malloc(MAX(len - first, (size_t)1)); /* a file begins at an aligned address */
    if (file && json_read_text((const char *)bytes, first - 1, "settings", &settings) == ST_OK) {
        memcpy(file, bytes + first, len - first);
        if (json_is_object(settings)) read_weights(settings, file, len - first);
        json_decref(settings);
    }
    free(file);
    return 0;
}
