/* SPDX-License-Identifier: Apache-2.0 */
/* Whether memory ran out where no Status says so. */
#include "lib/base/memory.h"
#include "lib/base/str.h"

#include <stdatomic.h>
#include <stdlib.h>

static atomic_size_t wanted; /* by the first call that did not get it; 0: all got what they asked for */

enum { ASIDE = 1024 };
static void *_Atomic aside[ASIDE];
static atomic_size_t aside_taken;

__attribute__((constructor)) static void put_aside(void) {
    for (size_t i = 0; i < ASIDE; i++) atomic_init(&aside[i], malloc(MEMORY_SMALL));
}

void *memory_small(void) {
    size_t i = atomic_load(&aside_taken) < ASIDE ? atomic_fetch_add(&aside_taken, 1) : ASIDE;
    return i < ASIDE ? atomic_exchange(&aside[i], NULL) : NULL;
}

void memory_ran_out(size_t bytes) {
    size_t none = 0;
    atomic_compare_exchange_strong(&wanted, &none, MAX(bytes, (size_t)1));
}

bool memory_is_short(void) { return atomic_load(&wanted) > 0; }

Status memory_check(Status status) {
    size_t bytes = atomic_load(&wanted);
    char words[32];
    if (bytes == 0 || status == ST_RESOURCE) return status;
    status_fail(ST_RESOURCE, "out of memory: %s more cannot be had", format_bytes((double)bytes, words));
    return status_hint(ST_RESOURCE, "free some memory, or use smaller batches, shorter rows or a smaller model");
}

void memory_clear_failure(void) { atomic_store(&wanted, 0); }
