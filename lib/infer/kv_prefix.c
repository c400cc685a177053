/* SPDX-License-Identifier: Apache-2.0 */
/* Known pages of the key/value cache: a table by hashes of their tokens, and a list of those that nobody uses.
 *
 * Whoever uses a page uses all pages before it, and leaves them last page first. So in the list, which is in order of leaving, a page comes before
 * the page that it follows: the first of the list is followed by no known page, and can be freed. */
#include "lib/infer/kv_prefix.h"

#include <string.h>

enum { NONE = -1 };

typedef struct KnownPage {
    uint64_t hash;
    PrefixFamily family;
    int32_t before;       /* the known page before it; NONE: it is the first */
    int32_t next;         /* of its bucket */
    int32_t older, newer; /* of the list, if nobody uses it */
    int32_t users;
} KnownPage;

_Static_assert(sizeof(KnownPage) + 2 * sizeof(int32_t) + KV_PAGE_SIZE * sizeof(int32_t) <= PREFIX_BYTES, "the buckets are at most twice the pages");

struct Prefixes {
    KvCache *cache;
    bool keeps;
    KnownPage *pages; /* by page; only those of known pages are set */
    int32_t *ids;     /* KV_PAGE_SIZE for each page */
    int32_t *buckets;
    uint64_t n_buckets; /* a power of two */
    int32_t oldest, newest;
    int64_t n_kept, n_shared;
};

Prefixes *prefixes_new(Arena *arena, KvCache *cache, bool keeps) {
    size_t n_pages = (size_t)cache->pages.n_pages;
    Prefixes *p = arena_zero(arena, sizeof *p);
    if (!p) return NULL;
    *p = (Prefixes){.cache = cache, .keeps = keeps, .n_buckets = 1, .oldest = NONE, .newest = NONE};
    while (p->n_buckets < n_pages) p->n_buckets *= 2;
    p->pages = arena_alloc(arena, n_pages * sizeof *p->pages);
    p->ids = arena_alloc(arena, n_pages * KV_PAGE_SIZE * sizeof *p->ids);
    p->buckets = arena_alloc(arena, p->n_buckets * sizeof *p->buckets);
    if (!p->pages || !p->ids || !p->buckets) return NULL;
    for (size_t i = 0; i < p->n_buckets; i++) p->buckets[i] = NONE;
    cache->prefixes = p;
    return p;
}

/* ---- the table ---- */

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static uint64_t hash_of(const PrefixFamily *family, int32_t before, const int32_t *ids) {
    uint64_t hash = mix(mix((uint64_t)(uintptr_t)family->model, family->is_long), (uint64_t)(uint32_t)before);
    for (int i = 0; i < KV_PAGE_SIZE; i++) hash = mix(hash, (uint64_t)(uint32_t)ids[i]);
    return hash;
}

static int32_t *bucket_of(const Prefixes *p, uint64_t hash) { return &p->buckets[hash & (p->n_buckets - 1)]; }

/* The known page of these tokens after page `before`, or NONE. */
static int32_t page_find(const Prefixes *p, const PrefixFamily *family, int32_t before, const int32_t *ids) {
    uint64_t hash = hash_of(family, before, ids);
    for (int32_t page = *bucket_of(p, hash); page != NONE; page = p->pages[page].next) {
        const KnownPage *its = &p->pages[page];
        if (its->hash == hash && its->before == before && its->family.model == family->model && its->family.is_long == family->is_long &&
            memcmp(p->ids + (int64_t)page * KV_PAGE_SIZE, ids, KV_PAGE_SIZE * sizeof *ids) == 0)
            return page;
    }
    return NONE;
}

/* The table refers to the page, as lists do. */
static void page_insert(Prefixes *p, const PrefixFamily *family, int32_t before, const int32_t *ids, int32_t page) {
    uint64_t hash = hash_of(family, before, ids);
    int32_t *bucket = bucket_of(p, hash);
    p->pages[page] = (KnownPage){.hash = hash, .family = *family, .before = before, .next = *bucket, .older = NONE, .newer = NONE};
    memcpy(p->ids + (int64_t)page * KV_PAGE_SIZE, ids, KV_PAGE_SIZE * sizeof *ids);
    *bucket = page;
    p->cache->references[page]++;
}

static void page_remove(Prefixes *p, int32_t page) {
    int32_t *at = bucket_of(p, p->pages[page].hash);
    while (*at != page) at = &p->pages[*at].next;
    *at = p->pages[page].next;
    kv_page_drop(p->cache, page);
}

/* ---- users ---- */

static void list_append(Prefixes *p, int32_t page) {
    p->pages[page].older = p->newest;
    p->pages[page].newer = NONE;
    *(p->newest == NONE ? &p->oldest : &p->pages[p->newest].newer) = page;
    p->newest = page;
    p->n_kept++;
}

static void list_take(Prefixes *p, int32_t page) {
    KnownPage *its = &p->pages[page];
    *(its->older == NONE ? &p->oldest : &p->pages[its->older].newer) = its->newer;
    *(its->newer == NONE ? &p->newest : &p->pages[its->newer].older) = its->older;
    p->n_kept--;
}

/* A known page that is not new. */
static bool page_use(Prefixes *p, int32_t page) {
    int32_t users = p->pages[page].users++;
    if (users == 0) list_take(p, page);
    p->n_shared += users == 1;
    return users == 0;
}

int64_t prefix_find(const Prefixes *p, const PrefixFamily *family, const int32_t *ids, int64_t n_ids, int64_t *unused) {
    int64_t n = 0;
    int32_t page = NONE;
    *unused = 0;
    for (; (n + 1) * KV_PAGE_SIZE <= n_ids && (page = page_find(p, family, page, ids + n * KV_PAGE_SIZE)) != NONE; n++)
        *unused += p->pages[page].users == 0;
    return n;
}

Status prefix_take(Prefixes *p, const PrefixFamily *family, const int32_t *ids, int64_t n, KvPageList *pages) {
    ASSERT(pages->n == 0, "a list of %d pages", pages->n);
    TRY(kv_pages_room(pages, (int32_t)n));
    for (int32_t page = NONE; pages->n < n; pages->n++) {
        page = page_find(p, family, page, ids + (int64_t)pages->n * KV_PAGE_SIZE);
        ASSERT(page != NONE, "page %d of %lld is not known", pages->n, (long long)n);
        page_use(p, page);
        p->cache->references[page]++;
        pages->items[pages->n] = page;
    }
    return ST_OK;
}

int64_t prefix_add(Prefixes *p, const PrefixFamily *family, const int32_t *ids, int64_t n, int64_t end, KvPageList *pages) {
    int64_t newly = 0;
    for (int64_t i = n; i < end; i++) {
        int32_t before = i > 0 ? pages->items[i - 1] : NONE, own = pages->items[i], known = page_find(p, family, before, ids + i * KV_PAGE_SIZE);
        if (known == NONE) {
            page_insert(p, family, before, ids + i * KV_PAGE_SIZE, own);
            p->pages[own].users = 1;
            newly++;
            continue;
        }
        newly += page_use(p, known);
        if (known == own) continue;
        pages->items[i] = known;
        p->cache->references[known]++;
        kv_page_drop(p->cache, own);
    }
    return newly;
}

int64_t prefix_leave(Prefixes *p, const KvPageList *pages, int64_t n, int64_t end) {
    int64_t unused = 0;
    for (int64_t i = end; i-- > n;) {
        int32_t page = pages->items[i], users = --p->pages[page].users;
        ASSERT(users >= 0, "page %d has no user", page);
        p->n_shared -= users == 1;
        if (users > 0) continue;
        unused++;
        list_append(p, page);
        if (!p->keeps) (void)prefix_evict(p);
    }
    return unused;
}

/* ---- pages that nobody uses ---- */

static void page_free(Prefixes *p, int32_t page) {
    list_take(p, page);
    page_remove(p, page);
}

bool prefix_evict(Prefixes *p) {
    if (p->oldest == NONE) return false;
    page_free(p, p->oldest);
    return true;
}

void prefix_forget(Prefixes *p, const void *model) {
    for (int32_t page = p->oldest, next; page != NONE; page = next) {
        next = p->pages[page].newer;
        if (p->pages[page].family.model == model) page_free(p, page);
    }
}

int64_t prefix_kept(const Prefixes *p) { return p->n_kept; }
int64_t prefix_shared(const Prefixes *p) { return p->n_shared; }
