/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of the key/value cache whose tokens are known: full ones, by their tokens, the known page before, and what computed them. A sequence that
 * begins in the same way takes them instead of computing them. Pages count their users; those that nobody uses are kept until their memory is needed.
 *
 *     int64_t n = prefix_find(prefixes, &family, ids, n_ids, &unused);
 *     TRY(prefix_take(prefixes, &family, ids, n, pages));               // `pages` begins with n known pages
 *     prefix_add(prefixes, &family, ids, n, end, pages);                // after more was computed: the first `end` pages are known
 *     prefix_leave(prefixes, pages, 0, end);                            // the sequence no longer uses them
 */
#ifndef TUNE_KV_PREFIX_H
#define TUNE_KV_PREFIX_H

#include "lib/infer/kv_cache.h"

/* What the keys and values of a token depend on, in addition to the tokens up to it. */
typedef struct PrefixFamily {
    const void *model;
    bool is_long; /* its rope's angles are those of long sequences */
} PrefixFamily;

enum { PREFIX_BYTES = 4 * KV_PAGE_SIZE + 64 }; /* upper bound of what is known of a page */
/* In `arena`, which owns it. The cache takes pages from it when none is free. keeps: for pages that nobody uses; otherwise they are freed at once.
 * NULL: out of memory, recorded. */
Prefixes *prefixes_new(Arena *arena, KvCache *cache, bool keeps);
/* Number of known pages with which a sequence of these tokens begins. *unused: how many of them nobody uses. */
int64_t prefix_find(const Prefixes *prefixes, const PrefixFamily *family, const int32_t *ids, int64_t n_ids, int64_t *unused);
/* Makes `pages`, which is empty, refer to the first n known pages of these tokens, and uses them. ST_RESOURCE: uses none. */
Status prefix_take(Prefixes *prefixes, const PrefixFamily *family, const int32_t *ids, int64_t n, KvPageList *pages);
/* Makes pages n..end-1 of a sequence known, which uses the n known ones before, and uses them. Where other pages with these tokens are known, they
 * replace the sequence's own in the list. Returns the number of pages in use that nobody used before. */
int64_t prefix_add(Prefixes *prefixes, const PrefixFamily *family, const int32_t *ids, int64_t n, int64_t end, KvPageList *pages);
/* Ends the use of known pages n..end-1 of a sequence. Returns how many of them nobody uses now. */
int64_t prefix_leave(Prefixes *prefixes, const KvPageList *pages, int64_t n, int64_t end);
/* Frees the page that nobody has used for the longest time. False: every known page is in use. */
bool prefix_evict(Prefixes *prefixes);
/* Frees all pages of a model. None may be in use. */
void prefix_forget(Prefixes *prefixes, const void *model);
int64_t prefix_kept(const Prefixes *prefixes);   /* known pages that nobody uses */
int64_t prefix_shared(const Prefixes *prefixes); /* known pages with several users */

#endif
