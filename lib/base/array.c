/* SPDX-License-Identifier: Apache-2.0 */
/* Growing arrays. The caller's pointer has its own type, so it is copied with memcpy and never written as a void *. */
#include "lib/base/file.h"

#include <stdlib.h>
#include <string.h>

Status array_resize(void *array, size_t n, size_t size, const char *what) {
    void *old, *moved = NULL;
    size_t bytes;
    memcpy(&old, array, sizeof old);
    if (size_mul(n, size, &bytes)) moved = realloc(old, MAX(bytes, (size_t)1)); /* realloc of 0 bytes is implementation-defined */
    if (!moved) return status_fail(ST_RESOURCE, "out of memory for %zu %s", n, what);
    memcpy(array, &moved, sizeof moved);
    return ST_OK;
}

static size_t wider(size_t cap, size_t n) {
    size_t twice = cap <= SIZE_MAX / 2 ? 2 * cap : n;
    return MAX(MAX(n, twice), (size_t)64);
}

Status array_grow(void *array, size_t *cap, size_t n, size_t size, const char *what) {
    if (n <= *cap) return ST_OK;
    size_t room = wider(*cap, n);
    TRY(array_resize(array, room, size, what));
    *cap = room;
    return ST_OK;
}

Status arena_array_grow(Arena *arena, void *array, size_t *cap, size_t n, size_t size) {
    if (n <= *cap) return ST_OK;
    size_t room = wider(*cap, n), bytes;
    void *old, *moved;
    if (!size_mul(room, size, &bytes)) return status_fail(ST_RESOURCE, "out of memory for %zu items of %zu bytes", room, size);
    if (!(moved = arena_alloc(arena, bytes))) return ST_RESOURCE;
    memcpy(&old, array, sizeof old);
    if (*cap) memcpy(moved, old, *cap * size);
    memcpy(array, &moved, sizeof moved);
    *cap = room;
    return ST_OK;
}
