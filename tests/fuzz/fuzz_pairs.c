/* SPDX-License-Identifier: Apache-2.0 */
/* Any file of preference rows, paired or not (KTO): either a failure with a text, or batches whose ids the model has. The first byte says which, the
 * second how long rows are treated. */
#include "rl/pairs/pairs.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

enum { VOCAB = 258 }; /* of the demo's tokenizer */

typedef struct World {
    Tokenizer *tokenizer;
    Chat *chat;
    Recipe *recipes[4];
    ModelConfig model;
} World;

static const World *world(void) {
    static const char *const truncations[] = {"error", "drop", "keep_start", "keep_end"};
    static World made;
    if (made.tokenizer) return &made;
    check_ok(tokenizer_load("recipes/demo/model", &made.tokenizer));
    check_ok(chat_open("recipes/demo/model", NULL, "chatml", "2026-01-01", made.tokenizer, &made.chat));
    made.model = (ModelConfig){.vocab_size = VOCAB};
    for (size_t i = 0; i < COUNT_OF(truncations); i++) {
        char truncation[64];
        snprintf(truncation, sizeof truncation, "data.truncation=%s", truncations[i]);
        const char *overrides[] = {"data.max_length=64", truncation};
        check_ok(recipe_read(NULL, overrides, COUNT_OF(overrides), &made.recipes[i]));
    }
    return &made;
}

/* Plainly written: file_write_all would wait for the disk thousands of times. */
static const char *write_rows(const uint8_t *bytes, size_t len) {
    static char path[64];
    snprintf(path, sizeof path, "%s/fuzz_pairs.%ld.jsonl", temp_root(), (long)getpid());
    FILE *file = fopen(path, "wb");
    ASSERT(file, "cannot write '%s'", path);
    fwrite(bytes, 1, len, file);
    fclose(file);
    return path;
}

static void check_batch(const Pairs *pairs, bool unpaired) {
    PairBatch batch = {0};
    for (size_t i = 0; i < pairs->n; i++) {
        size_t other = (i + 1) % pairs->n;
        check_ok(pair_batch_build(pairs, &i, 1, &(PairBatchOptions){.other_rows = unpaired ? &other : NULL}, &batch));
        for (int64_t t = 0; t < batch.model.layout.n_tokens; t++) ASSERT(batch.ids[t] >= 0 && batch.ids[t] < VOCAB, "id %d", (int)batch.ids[t]);
        for (int64_t k = 0; k < batch.n_targets; k++) {
            ASSERT(batch.targets[k] >= 0 && batch.targets[k] < VOCAB, "target %d", (int)batch.targets[k]);
            ASSERT(batch.rows[k] >= 0 && batch.rows[k] < batch.model.layout.n_tokens, "row %d of %lld", (int)batch.rows[k],
                   (long long)batch.model.layout.n_tokens);
        }
        ASSERT(dataset_length(&pairs->table, i) <= 128, "row %zu has %d tokens", i, (int)dataset_length(&pairs->table, i));
    }
    pair_batch_release(&batch);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    const World *w = world();
    if (len < 2) return 0;
    bool unpaired = bytes[0] == 'k';
    const Recipe *recipe = w->recipes[bytes[1] % 4];
    const char *path = write_rows(bytes + 2, len - 2);
    const Yaml file = {.kind = YAML_SCALAR, .text = path};
    PairSource source = {.model = &w->model, .tokenizer = w->tokenizer, .chat = w->chat, .unpaired = unpaired, .reader = "the test"};
    Pairs *pairs, *held_out = NULL;
    Status status = pairs_load(recipe, "data.train", &file, &source, &pairs);
    unlink(path);
    if (status != ST_OK) {
        ASSERT(status == ST_INPUT && !pairs && status_text()[0], "status %d", (int)status);
        return 0;
    }
    ASSERT(pairs->n > 0 && pairs->trained_tokens > 0, "%zu rows", pairs->n);
    if (pairs->n > 1) check_ok(pairs_split(pairs, 0.3, 7, &held_out));
    check_batch(pairs, unpaired);
    if (held_out) check_batch(held_out, unpaired);
    pairs_free(held_out);
    pairs_free(pairs);
    return 0;
}
