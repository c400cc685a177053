/* SPDX-License-Identifier: Apache-2.0 */
/* Any file of prompts: either a failure with a text, or ids that the model has. The first byte says how long rows are treated. */
#include "rl/text/prompts.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

enum { VOCAB = 258, LONGEST = 48 }; /* VOCAB: of the demo's tokenizer */

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
        char truncation[64], longest[64];
        snprintf(truncation, sizeof truncation, "data.truncation=%s", truncations[i]);
        snprintf(longest, sizeof longest, "data.max_length=%d", LONGEST);
        const char *overrides[] = {longest, truncation};
        check_ok(recipe_read(NULL, overrides, COUNT_OF(overrides), &made.recipes[i]));
    }
    return &made;
}

/* Plainly written: file_write_all would wait for the disk thousands of times. */
static const char *write_rows(const uint8_t *bytes, size_t len) {
    static char path[64];
    snprintf(path, sizeof path, "%s/fuzz_prompts.%ld.jsonl", temp_root(), (long)getpid());
    FILE *file = fopen(path, "wb");
    ASSERT(file, "cannot write '%s'", path);
    fwrite(bytes, 1, len, file);
    fclose(file);
    return path;
}

static void check_prompts(const PromptSet *set, const Recipe *recipe) {
    ASSERT(set->n > 0, "no prompts and no failure");
    for (size_t i = 0; i < set->n; i++) {
        const Ids *ids = &prompts_at(set, recipe, (int64_t)i)->ids;
        ASSERT(ids->n > 0 && ids->n <= LONGEST, "%zu tokens", ids->n);
        for (size_t t = 0; t < ids->n; t++) ASSERT(ids->data[t] >= 0 && ids->data[t] < VOCAB, "id %d", (int)ids->data[t]);
    }
    prompts_fingerprint(set);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    const World *w = world();
    if (len < 1) return 0;
    const Recipe *recipe = w->recipes[bytes[0] % 4];
    const char *path = write_rows(bytes + 1, len - 1);
    const Yaml file = {.kind = YAML_SCALAR, .text = path};
    PromptSet set;
    Status status = prompts_read(&file, "data.train", recipe, &w->model, w->chat, w->tokenizer, &set);
    unlink(path);
    if (status == ST_OK)
        check_prompts(&set, recipe);
    else
        ASSERT(status == ST_INPUT && status_text()[0], "status %d", (int)status);
    prompts_free(&set);
    return 0;
}
