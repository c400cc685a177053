/* A growing list of token ids. */
#include <stdlib.h>
#include <string.h>

#include "lib/text/text.h"

static void reserve(Ids *ids, size_t more) {
    if (ids->n + more <= ids->cap) return;
    size_t cap = MAX(ids->n + more, ids->cap * 2);
    int32_t *grown = realloc(ids->data, cap * sizeof *grown);
    ASSERT(grown, "out of memory for %zu ids", cap);
    ids->data = grown;
    ids->cap = cap;
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
