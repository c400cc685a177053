/* SPDX-License-Identifier: Apache-2.0 */
/* See rank_inputs.h. */
#include "lib/train/rank_inputs.h"
#include "lib/base/file.h"

#include <stdio.h>
#include <xxhash.h>

/* A hash of tokenizer.json; 0: the model has none */
static Status tokenizer_hash(const Recipe *recipe, uint64_t *hash) {
    char path[4096];
    Mapping file;
    *hash = 0;
    snprintf(path, sizeof path, "%s/tokenizer.json", recipe->model_path);
    if (!file_exists(path)) return ST_OK;
    TRY(file_map(path, &file));
    *hash = XXH3_64bits(file.data, file.size);
    file_unmap(&file);
    return ST_OK;
}

Status rank_inputs_agree(Comm *comm, const Recipe *recipe, const TaskInput inputs[TASK_MAX_INPUTS]) {
    CommFact facts[1 + TASK_MAX_INPUTS] = {{"tokenizer in model.path", "", ST_INPUT}};
    uint64_t hash;
    size_t n = 1;
    if (comm_size(comm) == 1) return ST_OK;
    TRY(tokenizer_hash(recipe, &hash));
    comm_fact_hash(&facts[0], hash);
    for (size_t i = 0; i < TASK_MAX_INPUTS && inputs[i].key; i++, n++) {
        facts[n] = (CommFact){inputs[i].key, "", ST_INPUT};
        comm_fact_hash(&facts[n], inputs[i].fingerprint);
    }
    Status status = comm_agree(comm, facts, n);
    if (status == ST_INPUT) status_hint(status, "the files have the same names on all hosts, but other contents: copy them again");
    return status;
}
