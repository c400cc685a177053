/* SPDX-License-Identifier: Apache-2.0 */
/* Whether memory, or an answer of the file system, was missing where no Status says so. */
#include "lib/base/memory.h"
#include "lib/base/str.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_size_t wanted; /* bytes of the first call that failed; 0: none failed */

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

static atomic_int unanswered; /* errno of the first look at a file that was not answered; -1 while its path is written down */
static char unanswered_path[1024];

void memory_no_answer(int error, const char *path) {
    int none = 0;
    if (!atomic_compare_exchange_strong(&unanswered, &none, -1)) return;
    size_t n = MIN(strlen(path), sizeof unanswered_path - 1);
    memcpy(unanswered_path, path, n);
    unanswered_path[n] = '\0';
    atomic_store(&unanswered, error > 0 ? error : EIO);
}

int memory_error(void) {
    int error = atomic_load(&unanswered);
    return atomic_load(&wanted) > 0 ? ENOMEM : error < 0 ? EIO : error;
}

bool memory_is_short(void) { return memory_error() != 0; }

static Status no_answer(int error) {
    status_errno(error, "cannot look for '%s'", error > 0 ? unanswered_path : "a file");
    return *status_hint_text() ? ST_RESOURCE
                               : status_hint(ST_RESOURCE, "the disk, or the server that holds it, does not answer: try again when it does");
}

Status memory_check(Status status) {
    size_t bytes = atomic_load(&wanted);
    char words[32];
    int error = atomic_load(&unanswered);
    if (status == ST_RESOURCE || memory_error() == 0) return status;
    if (bytes == 0) return no_answer(error < 0 ? EIO : error);
    status_fail(ST_RESOURCE, "out of memory: %s more cannot be allocated", format_bytes((double)bytes, words));
    return status_hint(ST_RESOURCE, "free some memory, or use smaller batches, shorter rows or a smaller model");
}

void memory_clear_failure(void) {
    atomic_store(&wanted, 0);
    atomic_store(&unanswered, 0);
}
