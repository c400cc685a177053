/* SPDX-License-Identifier: Apache-2.0 */
/* Whether memory ran out where no Status says so. */
#include "lib/base/memory.h"
#include "lib/base/str.h"

#include <stdatomic.h>

static atomic_size_t wanted; /* by the first call that did not get it; 0: all got what they asked for */

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

void memory_forgive(void) { atomic_store(&wanted, 0); }
