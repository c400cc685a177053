/* SPDX-License-Identifier: Apache-2.0 */
/* A growing list of token ids. */
#include "lib/base/memory.h"
#include "lib/text/text.h"

#include <stdlib.h>
#include <string.h>

static bool ids_reserve(Ids *ids, size_t more) {
    if (ids->cap - ids->n >= more) return true;
    size_t need;
    bool fits = size_add(ids->n, more, &need) && array_grow(&ids->data, &ids->cap, need, sizeof *ids->data, "ids") == ST_OK;
    if (!fits) memory_ran_out(more <= SIZE_MAX / sizeof *ids->data ? more * sizeof *ids->data : more);
    return fits;
}

void ids_push(Ids *ids, int32_t id) {
    if (!ids_reserve(ids, 1)) return;
    ids->data[ids->n++] = id;
}

void ids_append(Ids *ids, const int32_t *data, size_t n) {
    if (n == 0 || !ids_reserve(ids, n)) return;
    memcpy(ids->data + ids->n, data, n * sizeof *data);
    ids->n += n;
}

void ids_clear(Ids *ids) { ids->n = 0; }

void ids_release(Ids *ids) {
    free(ids->data);
    *ids = (Ids){0};
}
