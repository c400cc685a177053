/* SPDX-License-Identifier: Apache-2.0 */
/* Any config.json or adapter_config.json ('a' as the first byte): either a failure with a text, or settings that a model can be built from. */
#include "lib/model/adapter.h"
#include "lib/model/model.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static char folder[64];

/* Plainly written: file_write_all would wait for the disk thousands of times. */
static void write_config(const char *name, const uint8_t *bytes, size_t len, char path[512]) {
    snprintf(folder, sizeof folder, "%s/fuzz_config.%ld", temp_root(), (long)getpid());
    mkdir(folder, 0777);
    snprintf(path, 512, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    ASSERT(file, "cannot write '%s'", path);
    if (len > 0) fwrite(bytes, 1, len, file);
    fclose(file);
}

static void check_model(const ModelConfig *config) {
    ASSERT(config->hidden_size > 0 && config->vocab_size > 0 && config->num_hidden_layers > 0, "width %lld", (long long)config->hidden_size);
    ASSERT(config->num_attention_heads > 0 && config->num_key_value_heads > 0 && config->head_dim > 0, "heads %lld",
           (long long)config->num_attention_heads);
    ASSERT(config->num_attention_heads % config->num_key_value_heads == 0, "%lld heads", (long long)config->num_attention_heads);
}

static void check_adapter(const LoraConfig *config) {
    ASSERT(config->rank > 0 && config->dropout >= 0 && config->dropout < 1, "rank %lld", (long long)config->rank);
    for (size_t i = 0; i < config->n_rank_pattern; i++) ASSERT(config->rank_values[i] > 0, "rank of '%s'", config->rank_keys[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    char path[512];
    bool adapter = len > 0 && bytes[0] == 'a';
    ModelConfig model;
    LoraConfig lora;
    const char *base; /* read with all the other fields of a LoraConfig */
    Arena *arena = arena_new(0);
    write_config(adapter ? "adapter_config.json" : "config.json", bytes + adapter, len - adapter, path);
    Status status = adapter ? adapter_config_read(folder, arena, &lora) : model_config_read(folder, arena, &model);
    if (status == ST_OK && adapter) {
        check_adapter(&lora);
        status = adapter_base(folder, arena, &base);
    }
    unlink(path);
    rmdir(folder);
    ASSERT(status == ST_OK || (status == ST_INPUT && status_text()[0]), "status %d: %s", (int)status, status_text());
    if (status == ST_OK && !adapter) check_model(&model);
    arena_free(arena);
    return 0;
}
