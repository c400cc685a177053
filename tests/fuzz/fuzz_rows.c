/* SPDX-License-Identifier: Apache-2.0 */
/* Any file of rows: either a failure with a text, or examples whose ids and labels the model has. The first byte says how the file is named. */
#include "data/data.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

enum { VOCAB = 258 }; /* of the demo's tokenizer */

static const Tokenizer *demo_tokenizer(void) {
    static Tokenizer *tokenizer;
    if (!tokenizer) check_ok(tokenizer_load("recipes/demo/model", &tokenizer));
    return tokenizer;
}

/* Plainly written: file_write_all would wait for the disk thousands of times. */
static const char *write_rows(const uint8_t *bytes, size_t len) {
    static const struct {
        char kind;
        const char *ending;
    } endings[] = {{'l', "jsonl"}, {'j', "json"}, {'L', "jsonl.gz"}, {'J', "json.gz"}};
    static char path[64];
    size_t kind = 0;
    for (size_t i = 0; i < COUNT_OF(endings); i++)
        if (len > 0 && bytes[0] == endings[i].kind) kind = i;
    snprintf(path, sizeof path, "%s/fuzz_rows.%ld.%s", temp_root(), (long)getpid(), endings[kind].ending);
    FILE *file = fopen(path, "wb");
    ASSERT(file, "cannot write '%s'", path);
    if (len > 1) fwrite(bytes + 1, 1, len - 1, file);
    fclose(file);
    return path;
}

static void check_example(const Dataset *dataset, size_t i) {
    Example example = dataset_example(dataset, i);
    int32_t trained = 0;
    ASSERT(example.n > 0 && example.n <= 64, "row %zu has %d tokens", i, (int)example.n);
    for (int32_t t = 0; t < example.n; t++) {
        int32_t id = example.ids[t], label = example_label(&example, t);
        ASSERT(id >= 0 && id < VOCAB && (label == LABEL_NONE || (label >= 0 && label < VOCAB)), "id %d, label %d", (int)id, (int)label);
        trained += label != LABEL_NONE;
    }
    ASSERT(trained == example.trained, "%d trained tokens, counted %d", (int)trained, (int)example.trained);
    Str where = {0};
    dataset_where(dataset, i, &where);
    str_release(&where);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    static const char *const truncations[] = {"error", "drop", "keep_start", "keep_end"};
    const char *path = write_rows(bytes, len);
    DataConfig config = {.max_length = 64, .vocab_size = VOCAB, .truncation = truncations[len % COUNT_OF(truncations)]};
    Dataset *dataset;
    Status status = dataset_load(&config, &(DataSource){.path = path}, 1, demo_tokenizer(), &dataset);
    unlink(path);
    if (status != ST_OK) {
        ASSERT(status == ST_INPUT && !dataset && status_text()[0], "status %d", (int)status);
        return 0;
    }
    ASSERT(dataset->n > 0 && dataset->counts.trained_tokens > 0, "%zu rows", dataset->n);
    for (size_t i = 0; i < dataset->n; i++) check_example(dataset, i);
    dataset_free(dataset);
    return 0;
}
