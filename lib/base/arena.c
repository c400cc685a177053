/* SPDX-License-Identifier: Apache-2.0 */
/* Arenas. An arena is a short chain of blocks, each as large as all before it. A reset keeps the blocks, so that later rounds use the same pages and
 * do not ask the kernel: clearing a new gigabyte takes a tenth of a second. */
#include "lib/base/arena.h"
#include "lib/base/str.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#endif
#ifdef ARENA_ASAN
/* Bytes that are not allocated, and those freed by a reset, are poisoned for the address sanitizer. */
#include <sanitizer/asan_interface.h>
#define BYTES_CLOSE(bytes, size) ASAN_POISON_MEMORY_REGION(bytes, size)
#define BYTES_OPEN(bytes, size) ASAN_UNPOISON_MEMORY_REGION(bytes, size)
#else
#define BYTES_CLOSE(bytes, size) ((void)(bytes), (void)(size))
#define BYTES_OPEN(bytes, size) ((void)(bytes), (void)(size))
#endif

#define ALIGNMENT ((size_t)64)
#define FIRST_BLOCK ((size_t)32 << 10)
#define SMALL_PAGE ((size_t)4 << 10) /* of blocks from malloc; blocks of at least a huge page are mapped */
#define MAX_SPARE ((size_t)1 << 30)  /* a new block exceeds the need by at most this */

typedef struct Block Block;
struct Block {
    Block *next;
    uint8_t *bytes;
    size_t used, capacity;
    size_t touched; /* the most that was ever used */
};

struct Arena {
    bool refused;              /* the system had no memory for it once */
    const BlockSource *source; /* of the blocks; NULL: the host */
    Arena *other;              /* with the memory that does not come from the host; NULL: none was asked for */
    Block *first, *current;    /* blocks after `current` are empty; both NULL when there is none */
    size_t limit, before;      /* before: bytes used in the blocks before `current` */
    size_t peak, held;         /* held: the capacities of all blocks */
};

static atomic_long allocations_to_failure;

void arena_fail_at(long n) { atomic_store(&allocations_to_failure, n); }

static bool failure_is_due(void) { return atomic_load(&allocations_to_failure) > 0 && atomic_fetch_sub(&allocations_to_failure, 1) == 1; }

void *pages_map(size_t size) {
    uint8_t *raw = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    size_t head = (HUGE_PAGE - (uintptr_t)raw % HUGE_PAGE) % HUGE_PAGE;
    if (head > 0) munmap(raw, head);
    if (head < HUGE_PAGE) munmap(raw + head + size, HUGE_PAGE - head);
#ifdef MADV_HUGEPAGE
    madvise(raw + head, size, MADV_HUGEPAGE); /* advice: kernels without huge pages refuse it, which is fine */
#endif
    return raw + head;
}

void pages_unmap(void *pages, size_t size) { munmap(pages, size); }

static Block *block_new(const BlockSource *source, size_t capacity) {
    Block *block = malloc(sizeof *block);
    if (!block) return NULL;
    *block = (Block){.capacity = capacity};
    if (source) {
        block->bytes = source->take(source, capacity);
    } else if (capacity >= HUGE_PAGE) {
        block->bytes = pages_map(capacity);
    } else {
        block->bytes = aligned_alloc(ALIGNMENT, capacity);
    }
    if (!block->bytes) {
        free(block);
        return NULL;
    }
    if (!source) BYTES_CLOSE(block->bytes, capacity);
    return block;
}

static void block_free(const BlockSource *source, Block *block) {
    if (!source) BYTES_OPEN(block->bytes, block->capacity);
    if (source) {
        source->give_back(source, block->bytes, block->capacity);
    } else if (block->capacity >= HUGE_PAGE) {
        pages_unmap(block->bytes, block->capacity);
    } else {
        free(block->bytes);
    }
    free(block);
}

/* The capacity of a block for `need` bytes: whole huge pages from 2 MiB on. False when it overflows. */
static bool capacity_round(size_t need, size_t *capacity) {
    size_t unit = need >= HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
    if (!size_add(need, unit - 1, capacity)) return false;
    *capacity -= *capacity % unit;
    return *capacity <= SIZE_MAX - HUGE_PAGE;
}

/* Adds the block at the end and makes it current. */
static void block_append(Arena *arena, Block *block) {
    arena->held += block->capacity;
    if (arena->current) {
        arena->before += arena->current->used;
        arena->current->next = block;
    } else {
        arena->first = block;
    }
    arena->current = block;
}

/* Appends an empty block. */
static bool arena_grow(Arena *arena, size_t need) {
    size_t least, wanted;
    if (!capacity_round(need, &least) || !capacity_round(MAX(need, MAX(FIRST_BLOCK, MIN(arena->held, MAX_SPARE))), &wanted)) return false;
    Block *block = block_new(arena->source, wanted);
    if (!block && wanted > least) block = block_new(arena->source, least);
    if (block) block_append(arena, block);
    return block != NULL;
}

static void arena_release_blocks(Arena *arena) {
    for (Block *block = arena->first, *next; block; block = next) {
        next = block->next;
        block_free(arena->source, block);
    }
    arena->first = arena->current = NULL;
    arena->before = arena->held = 0;
}

Arena *arena_new(size_t limit) {
    Arena *arena = calloc(1, sizeof *arena);
    if (arena) arena->limit = limit;
    if (arena && arena_grow(arena, FIRST_BLOCK)) return arena;
    free(arena);
    status_errno(ENOMEM, "cannot get memory to work in");
    return NULL;
}

/* The part of the arena with memory of `source`. NULL when memory runs out. */
static Arena *arena_other(Arena *arena, const BlockSource *source) {
    if (!arena->other && (arena->other = calloc(1, sizeof *arena))) *arena->other = (Arena){.source = source, .limit = arena->limit};
    ASSERT(!arena->other || arena->other->source == source, "an arena with memory of two devices");
    return arena->other;
}

void arena_free(Arena *arena) {
    if (!arena) return;
    arena_free(arena->other);
    arena_release_blocks(arena);
    free(arena);
}

size_t arena_used(const Arena *arena) {
    return arena->before + (arena->current ? arena->current->used : 0) + (arena->other ? arena_used(arena->other) : 0);
}
size_t arena_peak(const Arena *arena) { return arena->peak; }

static size_t whole_pages(size_t capacity, size_t touched) {
    size_t page = capacity >= HUGE_PAGE ? HUGE_PAGE : SMALL_PAGE;
    return (touched + page - 1) / page * page;
}

size_t arena_resident(const Arena *arena) {
    size_t bytes = arena->other ? arena_resident(arena->other) : 0;
    for (const Block *block = arena->first; block; block = block->next) bytes += whole_pages(block->capacity, block->touched);
    return bytes;
}

size_t arena_pages(size_t bytes) { return whole_pages(bytes, bytes); }

void arena_reserve(Arena *arena, size_t bytes) {
    ASSERT(arena_used(arena) == 0, "%zu bytes of an arena are in use", arena_used(arena));
    size_t capacity;
    if (arena->first && !arena->first->next && arena->first->capacity >= bytes) return;
    Block *block = capacity_round(MAX(bytes, FIRST_BLOCK), &capacity) ? block_new(arena->source, capacity) : NULL;
    if (!block) return;
    arena_release_blocks(arena);
    arena->first = arena->current = block;
    arena->held = block->capacity;
}

void arena_reserve_from(Arena *arena, const BlockSource *source, size_t bytes) {
    Arena *part = source ? arena_other(arena, source) : arena;
    if (part) arena_reserve(part, bytes);
}

void arena_expect(Arena *arena, size_t bytes) {
    size_t capacity;
    while (arena->current && arena->current->next) {
        arena->before += arena->current->used;
        arena->current = arena->current->next;
    }
    if (arena->current && arena->current->capacity - arena->current->used >= bytes) return;
    Block *block = capacity_round(MAX(bytes, FIRST_BLOCK), &capacity) ? block_new(NULL, capacity) : NULL;
    if (block) block_append(arena, block);
}

size_t arena_rounded(size_t size) {
    size_t rounded;
    if (!size_add(MAX(size, 1), ALIGNMENT - 1, &rounded)) return SIZE_MAX;
    return rounded - rounded % ALIGNMENT;
}

static void *arena_full(const Arena *arena, size_t size) {
    char wanted[32], used[32], limit[32];
    format_bytes((double)size, wanted);
    format_bytes((double)arena_used(arena), used);
    if (arena->limit > 0) {
        status_fail(ST_RESOURCE, "out of memory: %s more do not fit, %s of the allowed %s are in use", wanted, used,
                    format_bytes((double)arena->limit, limit));
    } else {
        status_fail(ST_RESOURCE, "out of memory: %s more cannot be allocated, %s are in use", wanted, used);
    }
    status_hint(ST_RESOURCE, "use smaller batches, shorter rows or a smaller model, or free some memory");
    return NULL;
}

/* *is_zero: the memory is fresh from the system, so nobody has written to it. */
static uint8_t *arena_take(Arena *arena, size_t size, bool *is_zero) {
    size_t rounded = arena_rounded(size);
    if (rounded == SIZE_MAX) return arena_full(arena, size);
    if (failure_is_due()) {
        arena->refused = true;
        return arena_full(arena, size);
    }
    if (arena->limit > 0 && rounded > arena->limit - MIN(arena->limit, arena_used(arena))) return arena_full(arena, size);
    while (arena->current && rounded > arena->current->capacity - arena->current->used && arena->current->next) {
        arena->before += arena->current->used;
        arena->current = arena->current->next;
    }
    if (!arena->current || rounded > arena->current->capacity - arena->current->used) {
        if (!arena_grow(arena, rounded)) {
            arena->refused = true;
            return arena_full(arena, size);
        }
    }
    Block *block = arena->current;
    uint8_t *bytes = block->bytes + block->used;
    *is_zero = block->capacity >= HUGE_PAGE && block->used >= block->touched;
    block->used += rounded;
    block->touched = MAX(block->touched, block->used);
    arena->peak = MAX(arena->peak, arena_used(arena));
    if (!arena->source) BYTES_OPEN(bytes, size);
    return bytes;
}

bool arena_refused(const Arena *arena) { return arena->refused || (arena->other && arena->other->refused); }

void *arena_alloc(Arena *arena, size_t size) {
    bool is_zero;
    void *bytes = arena_take(arena, size, &is_zero);
#ifdef TUNE_POISON
    if (bytes) memset(bytes, 0xFF, size);
#endif
    return bytes;
}

void *arena_alloc_from(Arena *arena, const BlockSource *source, size_t size) {
    bool is_zero;
    if (!source) return arena_alloc(arena, size);
    size_t rounded = arena_rounded(size);
    Arena *other = arena_other(arena, source);
    if (!other || (arena->limit > 0 && rounded > arena->limit - MIN(arena->limit, arena_used(arena)))) return arena_full(arena, size);
    void *bytes = arena_take(other, size, &is_zero);
    arena->peak = MAX(arena->peak, arena_used(arena));
    return bytes;
}

/* New pages are not cleared: the thread that first writes to one gets it in its own part of the machine's memory, and the threads do so in
 * parallel. */
void *arena_zero(Arena *arena, size_t size) {
    bool is_zero;
    void *bytes = arena_take(arena, size, &is_zero);
    return bytes && !is_zero ? memset(bytes, 0, size) : bytes;
}

char *arena_strndup(Arena *arena, const char *text, size_t len) {
    size_t size;
    if (!size_add(len, 1, &size)) return arena_full(arena, len);
    char *copy = arena_alloc(arena, size);
    if (!copy) return NULL;
    if (len > 0) memcpy(copy, text, len);
    copy[len] = '\0';
    return copy;
}

char *arena_strdup(Arena *arena, const char *text) { return arena_strndup(arena, text, strlen(text)); }

char *arena_printf(Arena *arena, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    ASSERT(len >= 0, "format '%s'", format);
    char *text = arena_alloc(arena, (size_t)len + 1);
    if (!text) return NULL;
    va_start(args, format);
    vsnprintf(text, (size_t)len + 1, format, args);
    va_end(args);
    return text;
}

ArenaMark arena_mark(const Arena *arena) {
    ArenaMark mark = {.block = arena->current, .used = arena->current ? arena->current->used : 0};
    const Block *other = arena->other ? arena->other->current : NULL;
    if (other) mark.other_block = arena->other->current, mark.other_used = other->used;
    return mark;
}

void arena_rewind(Arena *arena, ArenaMark mark) {
    Block *kept = mark.block ? mark.block : arena->first;
    arena->before = 0;
    for (Block *block = arena->first; block && block != kept; block = block->next) arena->before += block->used;
    arena->current = kept;
    for (Block *block = kept; block; block = block->next) {
        size_t used = block == kept ? mark.used : 0;
        if (!arena->source) BYTES_CLOSE(block->bytes + used, block->capacity - used);
        block->used = used;
    }
    if (arena->other) arena_rewind(arena->other, (ArenaMark){.block = mark.other_block, .used = mark.other_used});
}

void arena_reset(Arena *arena) { arena_rewind(arena, (ArenaMark){0}); }
