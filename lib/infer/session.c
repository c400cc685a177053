/* SPDX-License-Identifier: Apache-2.0 */
/* What a conversation keeps from call to call: its tokens, and the pages of their keys and values. */
#include <stdlib.h>

#include "lib/infer/generator_parts.h"

struct Session {
    const Model *model;
    Arena *arena;
    KvCache *cache;
    KvPageList pages;
    Ids ids;
    int64_t max_tokens;
}; /* pages hold ids */

Status session_new(const Model *model, int64_t max_tokens, Session **result) {
    Session *session = calloc(1, sizeof *session);
    *result = NULL;
    if (!session) return status_fail(ST_RESOURCE, "out of memory");
    session->model = model;
    session->max_tokens = max_tokens;
    session->arena = arena_new(0);
    /* One more: the last page of a prompt is copied when its answer begins */
    Status status = session->arena ? kv_cache_new(session->arena, model, kv_pages_for(max_tokens) + 1, &session->cache)
                                   : status_fail(ST_RESOURCE, "out of memory for the key/value cache");
    if (status == ST_OK)
        *result = session;
    else
        session_free(session);
    return status;
}

void session_free(Session *session) {
    if (!session) return;
    free(session->pages.items);
    ids_release(&session->ids);
    arena_free(session->arena);
    free(session);
}

int64_t session_max_tokens(const Session *session) { return session->max_tokens; }

KvCache *session_cache(Session *session) { return session->cache; }

/* The pages of the beginning that the new prompt shares with what was said; its last token is always computed, for its logits. */
int64_t session_resume(Session *session, const Prompt *prompt, KvPageList *pages) {
    size_t same = 0, most = is_long(session->model, (int64_t)session->ids.n) == is_long(session->model, (int64_t)prompt->n) ? session->ids.n : 0;
    while (same < most && same + 1 < prompt->n && session->ids.data[same] == prompt->ids[same]) same++;
    int64_t kept = kv_pages_truncate(session->cache, &session->pages, (int64_t)same);
    *pages = session->pages;
    session->pages = (KvPageList){0};
    ids_clear(&session->ids);
    return kept;
}

/* Takes over the pages of the first `cached` tokens of prompt and completion. */
void session_keep(Session *session, const Prompt *prompt, const Ids *completion, int64_t cached, KvPageList *pages) {
    size_t n = (size_t)cached;
    ids_clear(&session->ids);
    ids_append(&session->ids, prompt->ids, MIN(n, prompt->n));
    if (n > prompt->n) ids_append(&session->ids, completion->data, MIN(n - prompt->n, completion->n));
    session->pages = *pages;
    *pages = (KvPageList){0};
}
