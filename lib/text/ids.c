/* A growing list of token ids. */
#include "lib/text/text.h"

#include <stdlib.h>
#include <string.h>

static void reserve(Ids *ids, size_t more) {
    if (ids->cap - ids->n >= more) return;
    size_t need, bytes, cap = MAX(ids->cap * 2, (size_t)32);
    int32_t *data = NULL;
    if (size_add(ids->n, more, &need) && (cap = MAX(cap, need), size_mul(cap, sizeof *data, &bytes))) data = realloc(ids->data, bytes);
    ASSERT(data, "no memory for %zu more ids after %zu", more, ids->n);
    ids->data = data;
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
