/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a log of requests, and as a file of seeds: either a failure with a text, or answers and seeds that can be read. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "data/synth/synth_parts.h"
#include "tests/support/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static const char *write_file(const uint8_t *bytes, size_t len) {
    static char path[64];
    snprintf(path, sizeof path, "%s/fuzz_synth.%ld.jsonl", temp_root(), (long)getpid());
    FILE *file = fopen(path, "wb");
    ASSERT(file, "cannot write '%s'", path);
    if (len > 0) fwrite(bytes, 1, len, file);
    fclose(file);
    return path;
}

static void read_log(const char *path) {
    Journal *journal;
    TeacherAnswer answer;
    json_t *line;
    Status status = journal_open(path, true, &journal);
    if (status != ST_OK) {
        ASSERT(status == ST_INPUT && !journal && status_text()[0], "status %d", (int)status);
        return;
    }
    status = journal_find(journal, "0123456789abcdef0123456789abcdef", &line);
    if (status == ST_OK && line && teacher_answer_read(line, &answer) == ST_OK) ASSERT(answer.text, "an answer without a text");
    if (status == ST_OK) json_decref(line);
    status = journal_first(journal, &line);
    if (status == ST_OK) json_decref(line);
    journal_close(journal);
}

static void read_seeds(const char *path) {
    Arena *arena = arena_new(0);
    SynthSeeds seeds;
    Status status = seeds_read(path, NEEDS_INSTRUCTION, false, arena, &seeds);
    ASSERT(status == ST_OK || (status == ST_INPUT && status_text()[0]), "status %d", (int)status);
    for (size_t i = 0; i < seeds.n && status == ST_OK; i++)
        ASSERT(seeds.items[i].instruction[0] && seeds.items[i].id && seeds.items[i].type && strlen(seeds.items[i].prompt) > 0, "seed %zu", i);
    seeds_release(&seeds);
    arena_free(arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    const char *path = write_file(bytes, len);
    read_log(path);
    read_seeds(path);
    unlink(path);
    return 0;
}
