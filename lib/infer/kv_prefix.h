/* SPDX-License-Identifier: Apache-2.0 */
/* Known pages: full pages of the key/value cache that can be found by their tokens, the known page before them, and what computed them. A sequence
 * that begins with the same tokens uses known pages instead of computing its own. A known page counts the sequences that use it. Without users it is
 * kept until its memory is needed.
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

enum { PREFIX_BYTES = 4 * KV_PAGE_SIZE + 64 }; /* upper bound of the bytes in `arena` for each page */
/* Makes the table of the cache's known pages in `arena`, which owns it, and sets cache->prefixes: when no page is free, the cache evicts known ones.
 * keeps: pages without users are kept; false: they are freed at once. NULL: out of memory, recorded. */
Prefixes *prefixes_new(Arena *arena, KvCache *cache, bool keeps);
/* Number of known pages with which a sequence of these tokens begins. *unused: how many of them have no user. */
int64_t prefix_find(const Prefixes *prefixes, const PrefixFamily *family, const int32_t *ids, int64_t n_ids, int64_t *unused);
/* Makes `pages`, which is empty, refer to the first n known pages of these tokens, all of which must be known, and counts a user of each. After
 * ST_RESOURCE nothing is changed. */
Status prefix_take(Prefixes *prefixes, const PrefixFamily *family, const int32_t *ids, int64_t n, KvPageList *pages);
/* Makes pages n..end-1 of `pages` known, and counts a user of each; the n pages before must be known and used by this sequence. Where another page
 * with these tokens is known, it replaces the sequence's own in the list. Returns how many of these pages had no user before. */
int64_t prefix_add(Prefixes *prefixes, const PrefixFamily *family, const int32_t *ids, int64_t n, int64_t end, KvPageList *pages);
/* Counts one user less of known pages n..end-1 of a sequence. Returns how many of them have no user now. */
int64_t prefix_leave(Prefixes *prefixes, const KvPageList *pages, int64_t n, int64_t end);
/* Frees the page that has had no user for the longest time. False: every known page has a user. */
bool prefix_evict(Prefixes *prefixes);
/* Frees all known pages of a model. None may have a user. */
void prefix_forget(Prefixes *prefixes, const void *model);
int64_t prefix_kept(const Prefixes *prefixes);   /* known pages without a user */
int64_t prefix_shared(const Prefixes *prefixes); /* known pages with several users */

#endif
