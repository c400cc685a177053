/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as the name of an environment or as rl.env of a recipe: either a failure that is named, or an environment that can be stepped. Any lines
 * as the answers of a program that is one: the same. The first byte says which: '!' answers, '{' or '[' a recipe, else a name. */
#include "rl/env/env.h"
#include "tests/support/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_failure(Status status) { ASSERT(status_text()[0], "status %d without a text", (int)status); }

static void fuzz_env_play(Env *env) {
    size_t n = (size_t)(env->copies * env->action.size);
    double *actions = calloc(n, sizeof *actions);
    ASSERT(actions, "%zu actions", n);
    Status status = env_reset(env, 1);
    for (int t = 0; t < 3 && status == ST_OK; t++) {
        status = env_step(env, actions, t < 2);
        for (int64_t c = 0; c < env->copies && status == ST_OK && env->observation.n; c++)
            ASSERT(env->observations[c] >= 0 && env->observations[c] < (double)env->observation.n, "observation %g of %lld", env->observations[c],
                   (long long)env->observation.n);
    }
    if (status != ST_OK) check_failure(status);
    free(actions);
    env_free(env);
}

/* The program says the bytes whatever it is asked. Starting it, and again after each crash, takes most of the time: one input of 64 is tried. */
static void answers(const uint8_t *bytes, size_t len) {
    static unsigned calls;
    char path[64];
    if (calls++ % 64) return;
    Env *env;
    snprintf(path, sizeof path, "%s/fuzz_env.%ld", temp_root(), (long)getpid());
    check_ok(file_write_all(path, bytes, len));
    const char *argv[] = {"cat", path};
    Status status = env_new_command(argv, COUNT_OF(argv), 2, 0.1, &env); /* pauses before restarts are no longer */
    if (status == ST_OK)
        fuzz_env_play(env);
    else
        check_failure(status);
    unlink(path);
}

static void recipe(const char *text) {
    Arena *arena = arena_new(0);
    Yaml *node;
    Env *env;
    /* No program is started that chance names */
    bool runs = yaml_read_text(text, strlen(text), "fuzz", arena, &node) == ST_OK && !(node->kind == YAML_MAP && yaml_get(node, "command"));
    Status status = runs ? env_from_recipe(node, 2, &env) : ST_OK;
    if (runs && status == ST_OK)
        fuzz_env_play(env);
    else if (runs)
        check_failure(status);
    arena_free(arena);
}

static void name(const char *text) {
    Env *env;
    Status status = env_new(text, 2, &env);
    if (status == ST_OK)
        fuzz_env_play(env);
    else
        check_failure(status);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    signal(SIGPIPE, SIG_IGN);
    char *text = calloc(len + 1, 1);
    ASSERT(text, "%zu bytes", len);
    if (len) memcpy(text, bytes, len);
    bool long_walk = strstr(text, "states"); /* as long as memory allows */
    if (text[0] == '!')
        answers(bytes + 1, len - 1);
    else if (!long_walk && (text[0] == '{' || text[0] == '['))
        recipe(text);
    else if (!long_walk)
        name(text);
    free(text);
    return 0;
}
