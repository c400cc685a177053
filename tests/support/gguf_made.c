/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/gguf_made.h"

#include <string.h>

#include "lib/base/gguf.h"
#include "tests/support/check.h"

static void put(Str *out, uint64_t value, size_t size) {
    for (size_t i = 0; i < size; i++) str_append_char(out, (char)(value >> (8 * i)));
}

static void put_text(Str *out, const char *text) {
    put(out, strlen(text), 8);
    str_append(out, text);
}

static void put_key(Made *made, const char *key, GgufType type) {
    put_text(&made->keys, key);
    put(&made->keys, (uint64_t)type, 4);
    made->n_keys++;
}

void made_text(Made *made, const char *key, const char *value) {
    put_key(made, key, GGUF_STRING);
    put_text(&made->keys, value);
}

void made_int(Made *made, const char *key, uint32_t value) {
    put_key(made, key, GGUF_U32);
    put(&made->keys, value, 4);
}

void made_real(Made *made, const char *key, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(made, key, GGUF_F32);
    put(&made->keys, bits, 4);
}

void made_bool(Made *made, const char *key, bool value) {
    put_key(made, key, GGUF_BOOL);
    put(&made->keys, value, 1);
}

void made_texts(Made *made, const char *key, const char *const *values, size_t n) {
    put_key(made, key, GGUF_LIST);
    put(&made->keys, GGUF_STRING, 4);
    put(&made->keys, n, 8);
    for (size_t i = 0; i < n; i++) put_text(&made->keys, values[i]);
}

void made_tensor(Made *made, const char *name, int n_dims, const int64_t *shape, uint32_t type, const void *bytes, size_t size) {
    while (made->data.len % 32) str_append_char(&made->data, 0);
    put_text(&made->tensors, name);
    put(&made->tensors, (uint64_t)n_dims, 4);
    for (int i = n_dims - 1; i >= 0; i--) put(&made->tensors, (uint64_t)shape[i], 8);
    put(&made->tensors, type, 4);
    put(&made->tensors, made->data.len, 8);
    str_append_n(&made->data, bytes, size);
    made->n_tensors++;
}

Str made_finish(Made *made) {
    Str file = {0};
    str_append(&file, "GGUF");
    put(&file, 3, 4);
    put(&file, made->n_tensors, 8);
    put(&file, made->n_keys, 8);
    str_append_n(&file, str_text(&made->keys), made->keys.len);
    str_append_n(&file, str_text(&made->tensors), made->tensors.len);
    while (file.len % 32) str_append_char(&file, 0);
    str_append_n(&file, str_text(&made->data), made->data.len);
    str_release(&made->keys);
    str_release(&made->tensors);
    str_release(&made->data);
    *made = (Made){0};
    return file;
}

const char *made_save(Made *made, const char *dir, const char *name) {
    Str file = made_finish(made);
    const char *path = temp_file(dir, name);
    check_ok(file_write_all(path, file.data, file.len));
    str_release(&file);
    return path;
}
