/* SPDX-License-Identifier: Apache-2.0 */
/* A growing list of token ids. */
#include "lib/text/text.h"

#include <stdlib.h>
#include <string.h>

static void reserve(Ids *ids, size_t more) {
    if (ids->cap - ids->n >= more) return;
    size_t need;
    bool fits = size_add(ids->n, more, &need) && array_grow(&ids->data, &ids->cap, need, sizeof *ids->data, "ids") == ST_OK;
    ASSERT(fits, "no memory for %zu more ids after %zu", more, ids->n);
}

void ids_push(Ids *ids, int32_t id) {
    reserve(ids, 1);
    ids->data[ids->n++] = id;
}

void ids_append(Ids *ids, const int32_t *data, size_t n) {
    if (n == 0) return;
    reserve(ids, n);
    memcpy(ids->data + ids->n, data, n * sizeof *data);
    ids->n += n;
}

void ids_clear(Ids *ids) { ids->n = 0; }

void ids_release(Ids *ids) {
    free(ids->data);
    *ids = (Ids){0};
}
