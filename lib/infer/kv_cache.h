/* SPDX-License-Identifier: Apache-2.0 */
/* The paged key/value cache. A page has the keys and values of KV_PAGE_SIZE tokens for all blocks of a model that keep some (Model.cache_rows). Pages
 * are shared by reference count and copied on write. The state of a sequence (recurrences) belongs to the page of its newest token. Source of the
 * idea: PagedAttention, arXiv 2309.06180.
 *
 *     KvCache *cache;
 *     TRY(kv_cache_new(arena, model, n_pages, &cache));
 *     KvPageList a = {0}, b = {0};
 *     TRY(kv_pages_reserve(cache, &a, 40));             // room for 40 tokens
 *     TRY(kv_pages_share(cache, &a, 40, &b));           // b begins with a's 40 tokens
 *     TRY(kv_pages_write(cache, &b, 40, 41));           // call before writing token 40 of b: makes its page b's own
 *     kv_pages_release(cache, &b);
 */
#ifndef TUNE_KV_CACHE_H
#define TUNE_KV_CACHE_H

#include "lib/model/model.h"

enum { KV_PAGE_SIZE = 32 };       /* tokens */
typedef struct Prefixes Prefixes; /* kv_prefix.h */
typedef struct KvCache {
    KvPages pages;         /* what attention reads */
    SequenceStates states; /* what recurrences read */
    int32_t *references;   /* reference count of each page; 0 = free */
    int32_t *free_list;
    int32_t n_free;
    Prefixes *prefixes;    /* known pages, which are freed when no other page is free; NULL: none */
    int32_t *state_rows;   /* of each page: the row in states.items of the sequence whose newest token is in the page; -1: none */
    int64_t *state_tokens; /* for each row of states.items: how many tokens its state is the state after */
    int32_t *free_states;  /* rows of states.items; as many as pages, since each page has one at most */
    int32_t n_free_states;
} KvCache;
/* The pages of a sequence, in order, each with a reference. {0} is empty; kv_pages_release frees it. */
typedef struct KvPageList {
    int32_t *items; /* numbers of pages */
    int32_t n, cap;
} KvPageList;

/* Bytes of one page and of one state, since each page may be the last one of a sequence. */
size_t kv_page_bytes(const Model *model);
/* Makes a cache in `arena`, which owns it. ST_RESOURCE. */
Status kv_cache_new(Arena *arena, const Model *model, int32_t n_pages, KvCache **cache);
int32_t kv_pages_for(int64_t n_tokens); /* number of pages for so many tokens */
/* Allocates the list's array for n pages. The list keeps its pages and gets no new ones. ST_RESOURCE. */
Status kv_pages_room(KvPageList *list, int32_t n);
void kv_page_drop(KvCache *cache, int32_t page); /* ends one reference to it */
/* Grows the list to hold n_tokens. ST_RESOURCE when no page is free: callers count pages first. */
Status kv_pages_reserve(KvCache *cache, KvPageList *list, int64_t n_tokens);
/* Makes `to`, which is empty, refer to the pages of the first n_tokens of `from`. ST_RESOURCE. */
Status kv_pages_share(KvCache *cache, const KvPageList *from, int64_t n_tokens, KvPageList *to);
/* Call it before tokens begin..end-1 are computed: adds pages for them, and copies those of their pages that other lists refer to. The row
 * kv_state_row then has the state after token begin - 1, which must exist (kv_can_go_on). ST_RESOURCE when no page is free. */
Status kv_pages_write(KvCache *cache, KvPageList *list, int64_t begin, int64_t end);
/* The row of a list of n_tokens tokens in states.items (Segment.state), after kv_pages_write; 0 if the model has no states. */
int32_t kv_state_row(const KvCache *cache, const KvPageList *list, int64_t n_tokens);
/* Whether a sequence can go on from the first n_tokens of the list. False if the model has states and the state after these tokens is not kept. */
bool kv_can_go_on(const KvCache *cache, const KvPageList *list, int64_t n_tokens);
/* Releases the pages after those of the first n_tokens, and returns n_tokens. If no sequence can go on from there (kv_can_go_on), releases all pages
 * and returns 0. */
int64_t kv_pages_truncate(KvCache *cache, KvPageList *list, int64_t n_tokens);
void kv_pages_release(KvCache *cache, KvPageList *list); /* ends the list's references and frees its array */

#endif
