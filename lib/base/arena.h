/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: sizes that do not overflow, whole pages, arenas, arrays that grow. */
#ifndef TUNE_ARENA_H
#define TUNE_ARENA_H

#include "lib/base/base.h"

/* Multiplies and adds sizes that may come from a file; false when the result does not fit. */
bool size_mul(size_t a, size_t b, size_t *result) WARN_UNUSED;
bool size_add(size_t a, size_t b, size_t *result) WARN_UNUSED;

/* Memory given by the system alone, and given back to it whole. Aligned to huge pages, which need fewer translations while a training step streams
 * over them. `size`: a multiple of HUGE_PAGE. NULL when it can't be had. */
#define HUGE_PAGE ((size_t)2 << 20)
void *pages_map(size_t size);
void pages_unmap(void *pages, size_t size);

/* A lifetime: everything allocated from it lives until its reset or release; nobody frees single pieces. Not thread-safe. */
typedef struct Arena Arena;
/* `limit`: bytes the arena may hold at most, 0 = no limit. NULL, which is recorded as ST_RESOURCE, when even the first block is not to be had. */
Arena *arena_new(size_t limit);
void arena_free(Arena *arena); /* NULL is fine */
/* `size` bytes aligned to 64, not cleared (filled with 0xFF bytes - NaN - when built with TUNE_POISON). NULL when full: the failure is recorded as
 * ST_RESOURCE. */
void *arena_alloc(Arena *arena, size_t size);
void *arena_zero(Arena *arena, size_t size); /* the same, cleared */
char *arena_strdup(Arena *arena, const char *text);
char *arena_strndup(Arena *arena, const char *text, size_t len);
char *arena_printf(Arena *arena, const char *format, ...) PRINTF_LIKE(2, 3);
void arena_reset(Arena *arena); /* forgets all, keeps the memory for the next round */
typedef struct ArenaMark {
    void *block;
    size_t used;
} ArenaMark;
ArenaMark arena_mark(const Arena *arena);        /* what is allocated after it ... */
void arena_rewind(Arena *arena, ArenaMark mark); /* ... is forgotten here */
size_t arena_used(const Arena *arena);           /* bytes in use */
size_t arena_peak(const Arena *arena);           /* the most that was ever in use, bytes */
/* What it holds of the machine's memory once all that it handed out was written to: whole pages of every block, bytes */
size_t arena_resident(const Arena *arena);
/* What one block of it holds of them when so many bytes are in use */
size_t arena_pages(size_t bytes);
/* Of an arena that has nothing in use: one block for the next so many bytes. Blocks that came one by one end in gaps, where something larger than in
 * the rounds before found no room. It takes no memory before it is written to; where it can't be had, all stays as it is. */
void arena_reserve(Arena *arena, size_t bytes);
/* The same of an arena in use: the next so many bytes, each allocation rounded up by arena_rounded, come from one block, of which no more than
 * arena_pages of them are touched */
void arena_expect(Arena *arena, size_t bytes);
size_t arena_rounded(size_t size); /* SIZE_MAX when it overflows */
/* For tests: the n-th allocation from now (counting from 1) over all arenas fails; 0 = none. */
void arena_fail_at(long n);

/* Arrays with room for more than is in them. `array` is the address of the array's pointer (NULL at first), `size` that of an item, `what` names the
 * items in the message ("tokens of a batch"). ST_RESOURCE, also where n x size does not fit: the array stays as it was. */
Status array_resize(void *array, size_t n, size_t size, const char *what); /* of malloc's: exactly n */
/* Of malloc's: n at least; where it grows, to twice *cap at least, so pushing stays cheap */
Status array_grow(void *array, size_t *cap, size_t n, size_t size, const char *what);
Status arena_array_grow(Arena *arena, void *array, size_t *cap, size_t n, size_t size); /* the same in an arena, where the old array stays behind */

#endif
