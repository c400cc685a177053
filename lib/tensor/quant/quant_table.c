/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/tensor/quant/quant_parts.h"

static const QuantFormat formats[] = {
#define QUANT(name, type, block, bytes, help) {#name, type, block, bytes, name##_read, name##_write, help},
#include "lib/tensor/quant/quant_formats.def"
#undef QUANT
};

const QuantFormat *quant_formats(size_t *n) {
    *n = COUNT_OF(formats);
    return formats;
}

const QuantFormat *quant_format_named(const char *name) {
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        if (strcmp(formats[i].name, name) == 0) return &formats[i];
    return NULL;
}

const QuantFormat *quant_format_of_ggml(uint32_t type) {
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        if ((uint32_t)formats[i].ggml_type == type) return &formats[i];
    return NULL;
}
