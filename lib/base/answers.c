/* SPDX-License-Identifier: Apache-2.0 */
/* The limit on answers that are in memory at one time. */
#include "lib/base/answers.h"
#include "lib/base/str.h"

#include <stdatomic.h>

static atomic_size_t set; /* 0: the default */

size_t answers_most(void) {
    size_t bytes = atomic_load(&set);
    return bytes ? bytes : (size_t)1 << 30;
}

void answers_set_most(size_t bytes) { atomic_store(&set, bytes); }

Status answers_too_much(const char *who, const char *name) {
    char words[32];
    status_fail(ST_RESOURCE, "%s '%s' gives answers of more than %s together", who, name, format_bytes((double)answers_most(), words));
    return status_hint(ST_RESOURCE, "let it give shorter answers, or send it fewer requests at a time");
}
