/* SPDX-License-Identifier: Apache-2.0 */
/* The libraries and instruction sets for matrix products, for tests that must pass with each of them. */
#ifndef TUNE_TESTS_BACKENDS_H
#define TUNE_TESTS_BACKENDS_H

#include "lib/tensor/tensor.h"
#include "tests/support/check.h"

#include <string.h>

static const char *const libraries[] = {"own", "openblas", "onednn"};
static const char *const isas[] = {"base", "avx2", "avx512", "avx512_widened", "avx512_bf16", "amx"};

/* The largest instruction set that this build and processor support, as an index of `isas`. */
static inline size_t largest_isa(void) {
    size_t most = 0;
    for (size_t i = 0; i < COUNT_OF(isas); i++)
        if (strcmp(isas[i], "avx512_widened") != 0 && cpu_configure(NULL, isas[i]) == ST_OK) most = i;
    return most;
}

/* Calls run() with each library and instruction set that this build and processor support, then restores the defaults. Our own products run with
 * every set. Other libraries choose their instructions themselves, so they run with the smallest and the largest set; under sanitizers only with
 * the largest. With ONE_SET everything runs with the largest alone. */
static inline void for_each_backend(void (*run)(void)) {
    size_t most = largest_isa();
    int ran = 0;
    for (size_t i = 0; i < COUNT_OF(libraries); i++)
        for (size_t j = 0; j < COUNT_OF(isas); j++) {
            bool own = strcmp(libraries[i], "own") == 0;
            if (ONE_SET && j != most) continue;
            if ((!own && j != most && (j > 0 || ALL_OR_FEW(false, true))) || cpu_configure(libraries[i], isas[j]) != ST_OK) continue;
            run();
            ran++;
        }
    assert_true(ran >= 1);
    check_ok(cpu_configure(NULL, NULL));
}

#endif
