/* SPDX-License-Identifier: Apache-2.0 */
/* Any MDP file: either a failure that names the file, or a world that mdp_check finds sound. The first byte says whether it is YAML or JSON. */
#include "rl/mdp/mdp.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    char path[64];
    snprintf(path, sizeof path, "%s/fuzz_mdp.%ld.%s", temp_root(), (long)getpid(), len > 0 && bytes[0] == 'j' ? "json" : "yaml");
    FILE *file = fopen(path, "wb");
    ASSERT(file, "cannot write '%s'", path);
    if (len > 1) fwrite(bytes + 1, 1, len - 1, file);
    fclose(file);
    NamedMdp *world;
    Status status = mdp_open(path, &world);
    unlink(path);
    if (status == ST_OK) {
        ASSERT(mdp_check(world) == ST_OK, "%s", status_text());
    } else {
        ASSERT(!world && (status == ST_INPUT || status == ST_RESOURCE) && status_text()[0], "status %d: %s", (int)status, status_text());
    }
    named_mdp_free(world);
    return 0;
}
