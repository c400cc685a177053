/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: sizes that do not overflow, whole pages, arenas, growing arrays. */
#ifndef TUNE_ARENA_H
#define TUNE_ARENA_H

#include "lib/base/base.h"

/* Multiply or add sizes that may come from a file. Return false when the result does not fit. */
bool size_mul(size_t a, size_t b, size_t *result) WARN_UNUSED;
bool size_add(size_t a, size_t b, size_t *result) WARN_UNUSED;

/* Maps `size` bytes (a multiple of HUGE_PAGE) straight from the system; pages_unmap returns all of them. They are aligned to huge pages, which need
 * fewer address translations while a training step streams over them. NULL when there is no memory. */
#define HUGE_PAGE ((size_t)2 << 20)
void *pages_map(size_t size);
void pages_unmap(void *pages, size_t size);

/* An arena: everything allocated from it lives until the arena is reset or freed; single pieces are not freed. Not thread-safe. */
typedef struct Arena Arena;
/* Creates an arena of at most `limit` bytes, 0 = no limit. The caller calls arena_free. NULL, with ST_RESOURCE recorded, when the first block cannot
 * be allocated. */
Arena *arena_new(size_t limit);
void arena_free(Arena *arena); /* NULL is fine */
/* Returns `size` bytes aligned to 64. They are not cleared; a build with TUNE_POISON fills them with 0xFF (NaN). NULL, with ST_RESOURCE recorded,
 * when the arena is full. */
void *arena_alloc(Arena *arena, size_t size);
/* Tells whether an allocation failed because the system had no memory, and not because of the arena's limit. */
bool arena_refused(const Arena *arena);
void *arena_zero(Arena *arena, size_t size); /* like arena_alloc, but cleared */
/* Where memory comes from that is not the host's. The arena never reads or writes it. */
typedef struct BlockSource BlockSource;
struct BlockSource {
    void *(*take)(const BlockSource *source, size_t size); /* aligned to 64; NULL: there is no memory */
    void (*give_back)(const BlockSource *source, void *block, size_t size);
};
/* Like arena_alloc, with memory of `source`; NULL: the host's. It lives as long as the arena's other memory, and counts with it. An arena has at
 * most one such source. */
void *arena_alloc_from(Arena *arena, const BlockSource *source, size_t size);
char *arena_strdup(Arena *arena, const char *text);
char *arena_strndup(Arena *arena, const char *text, size_t len);
char *arena_printf(Arena *arena, const char *format, ...) PRINTF_LIKE(2, 3);
void arena_reset(Arena *arena); /* frees everything in the arena and keeps its memory for the next round */
typedef struct ArenaMark {
    void *block;
    size_t used;
    void *other_block; /* of the memory from a BlockSource */
    size_t other_used;
} ArenaMark;
ArenaMark arena_mark(const Arena *arena);        /* the current position */
void arena_rewind(Arena *arena, ArenaMark mark); /* frees everything allocated after `mark` */
size_t arena_used(const Arena *arena);           /* bytes in use */
size_t arena_peak(const Arena *arena);           /* the largest number of bytes ever in use */
/* Resident bytes of the arena once everything that it handed out was written to: whole pages of every block */
size_t arena_resident(const Arena *arena);
/* Resident bytes of one block with so many bytes in use */
size_t arena_pages(size_t bytes);
/* Reserves one block for the next so many bytes in an arena that has nothing in use. Blocks that came one by one end in gaps where a larger
 * allocation does not fit. The block takes no physical memory until it is written to; without memory for it nothing changes. */
void arena_reserve(Arena *arena, size_t bytes);
void arena_reserve_from(Arena *arena, const BlockSource *source, size_t bytes); /* the same for memory of `source`; NULL: the host's */
/* Like arena_reserve, for an arena in use: the next so many bytes, each allocation rounded up by arena_rounded, come from one block. No more than
 * arena_pages of them are touched. */
void arena_expect(Arena *arena, size_t bytes);
size_t arena_rounded(size_t size); /* the size that an allocation takes; SIZE_MAX when it overflows */
/* For tests: the n-th allocation from now, counting from 1 over all arenas, fails; 0 = none does. */
void arena_fail_at(long n);

/* Growing arrays. `array` is the address of the array's pointer (NULL at first), `size` is the size of an item, `what` names the items in the message
 * ("tokens of a batch"). ST_RESOURCE when there is no memory or n x size overflows: the array stays unchanged. */
Status array_resize(void *array, size_t n, size_t size, const char *what); /* from malloc: exactly n items */
/* From malloc: at least n items. The capacity at least doubles when it grows, so that appending is cheap. */
Status array_grow(void *array, size_t *cap, size_t n, size_t size, const char *what);
/* The same in an arena; the old array stays allocated until the arena is reset. */
Status arena_array_grow(Arena *arena, void *array, size_t *cap, size_t n, size_t size);

#endif
