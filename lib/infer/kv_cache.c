/* SPDX-License-Identifier: Apache-2.0 */
/* The paged key/value cache. */
#include "lib/infer/kv_cache.h"
#include "lib/infer/kv_prefix.h"

#include <stdlib.h>
#include <string.h>

static DType state_dtype(const Model *model) { return model->compute == DT_F64 ? DT_F64 : DT_F32; }

size_t kv_page_bytes(const Model *model) {
    int64_t numbers = 0;
    for (int i = 0; i < model->n_cache_rows; i++) numbers += model->cache_rows[i].keys + model->cache_rows[i].values;
    size_t bytes = dtype_bytes(model->compute, KV_PAGE_SIZE * numbers);
    for (int i = 0; i < model->n_states; i++) bytes += dtype_bytes(state_dtype(model), model->state_widths[i]);
    return bytes;
}

static Tensor *rows_new(Arena *arena, const Model *model, const KvPages *pages, int64_t width) {
    return tensor_header(arena, model->device, model->compute, 2, (int64_t[]){(int64_t)pages->n_pages * KV_PAGE_SIZE, width});
}

/* Places keys and values after all headers, so that pages that no token uses are never touched. */
static Status make_tensors(Arena *arena, const Model *model, KvPages *pages) {
    for (int layer = 0; layer < pages->n_layers; layer++) {
        pages->k[layer] = rows_new(arena, model, pages, model->cache_rows[layer].keys);
        int64_t values = model->cache_rows[layer].values; /* 0: values are made from the keys */
        pages->v[layer] = values ? rows_new(arena, model, pages, values) : pages->k[layer];
        if (!pages->k[layer] || !pages->v[layer]) return ST_RESOURCE;
    }
    for (int layer = 0; layer < pages->n_layers; layer++) {
        TRY(tensor_allocate(pages->k[layer], arena));
        if (pages->v[layer] != pages->k[layer]) TRY(tensor_allocate(pages->v[layer], arena));
    }
    return ST_OK;
}

static Status make_states(Arena *arena, const Model *model, KvCache *cache) {
    SequenceStates *states = &cache->states;
    const int32_t n_pages = cache->pages.n_pages;
    if (model->n_states == 0) return ST_OK;
    states->items = arena_alloc(arena, (size_t)model->n_states * sizeof *states->items);
    cache->state_rows = arena_alloc(arena, (size_t)n_pages * sizeof *cache->state_rows);
    cache->state_tokens = arena_zero(arena, (size_t)n_pages * sizeof *cache->state_tokens);
    cache->free_states = arena_alloc(arena, (size_t)n_pages * sizeof *cache->free_states);
    if (!states->items || !cache->state_rows || !cache->state_tokens || !cache->free_states) return ST_RESOURCE;
    for (int32_t page = 0; page < n_pages; page++) cache->state_rows[page] = -1;
    for (int32_t row = n_pages; row-- > 0;) cache->free_states[cache->n_free_states++] = row;
    for (; states->n < model->n_states; states->n++) {
        const int64_t shape[2] = {n_pages, model->state_widths[states->n]};
        if (!(states->items[states->n] = tensor_new(arena, model->device, state_dtype(model), 2, shape))) return ST_RESOURCE;
    }
    return ST_OK;
}

Status kv_cache_new(Arena *arena, const Model *model, int32_t n_pages, KvCache **result) {
    int n_layers = model->n_cache_rows;
    KvCache *cache = *result = arena_zero(arena, sizeof *cache);
    if (!cache) return ST_RESOURCE;
    cache->pages = (KvPages){.page_size = KV_PAGE_SIZE,
                             .n_pages = n_pages,
                             .n_layers = n_layers,
                             .k = arena_alloc(arena, (size_t)n_layers * sizeof *cache->pages.k),
                             .v = arena_alloc(arena, (size_t)n_layers * sizeof *cache->pages.v)};
    cache->references = arena_zero(arena, (size_t)n_pages * sizeof *cache->references);
    cache->free_list = arena_alloc(arena, (size_t)n_pages * sizeof *cache->free_list);
    if (!cache->pages.k || !cache->pages.v || !cache->references || !cache->free_list) return ST_RESOURCE;
    for (int32_t i = n_pages; i-- > 0;) cache->free_list[cache->n_free++] = i;
    TRY(make_tensors(arena, model, &cache->pages));
    return make_states(arena, model, cache);
}

int32_t kv_pages_for(int64_t n_tokens) { return (int32_t)((n_tokens + KV_PAGE_SIZE - 1) / KV_PAGE_SIZE); }

Status kv_pages_room(KvPageList *list, int32_t n) {
    if (n <= list->cap) return ST_OK;
    int32_t cap = MAX(n, list->cap * 2);
    TRY(array_resize(&list->items, (size_t)cap, sizeof *list->items, "pages of the key/value cache"));
    list->cap = cap;
    return ST_OK;
}

/* ---- states: a sequence has one, at the page of its newest token ---- */

static int32_t take_state(KvCache *cache) {
    ASSERT(cache->n_free_states > 0, "%d pages have more states than pages", cache->pages.n_pages);
    return cache->free_states[--cache->n_free_states];
}

static void drop_state(KvCache *cache, int32_t page) {
    if (cache->states.n == 0 || cache->state_rows[page] < 0) return;
    cache->free_states[cache->n_free_states++] = cache->state_rows[page];
    cache->state_rows[page] = -1;
}

static void copy_state(KvCache *cache, int32_t from, int32_t to) {
    int32_t *rows = cache->state_rows;
    if (cache->states.n == 0 || rows[from] < 0) return;
    rows[to] = take_state(cache);
    cache->state_tokens[rows[to]] = cache->state_tokens[rows[from]];
    for (int i = 0; i < cache->states.n; i++) {
        const Tensor *states = cache->states.items[i];
        const int64_t width = tensor_width(states);
        Tensor old = tensor_part(states, rows[from] * width, width), own = tensor_part(states, rows[to] * width, width);
        tensor_device(states)->copy(&old, &own);
    }
}

int32_t kv_state_row(const KvCache *cache, const KvPageList *list, int64_t n_tokens) {
    if (cache->states.n == 0) return 0;
    int32_t row = cache->state_rows[list->items[(n_tokens - 1) / KV_PAGE_SIZE]];
    ASSERT(row >= 0, "a sequence of %lld tokens has no state", (long long)n_tokens);
    return row;
}

bool kv_can_go_on(const KvCache *cache, const KvPageList *list, int64_t n_tokens) {
    if (cache->states.n == 0 || n_tokens == 0) return true;
    int32_t row = cache->state_rows[list->items[(n_tokens - 1) / KV_PAGE_SIZE]];
    return row >= 0 && cache->state_tokens[row] == n_tokens;
}

/* From the page of token begin - 1 to that of token end - 1. A page that other sequences read keeps its own. */
static void carry_state(KvCache *cache, const KvPageList *list, int64_t begin, int64_t end) {
    int32_t *rows = cache->state_rows;
    if (cache->states.n == 0 || begin == end) return;
    int32_t to = list->items[(end - 1) / KV_PAGE_SIZE], from = begin > 0 ? list->items[(begin - 1) / KV_PAGE_SIZE] : -1;
    ASSERT(kv_can_go_on(cache, list, begin), "the state after %lld tokens is gone", (long long)begin);
    if (from != to) drop_state(cache, to);
    if (from < 0) {
        rows[to] = take_state(cache);
    } else if (from != to && cache->references[from] > 1) {
        copy_state(cache, from, to);
    } else if (from != to) {
        rows[to] = rows[from];
        rows[from] = -1;
    }
    cache->state_tokens[rows[to]] = end;
}

/* ---- pages ---- */

static Status take_page(KvCache *cache, int32_t *page) {
    while (cache->n_free == 0 && cache->prefixes && prefix_evict(cache->prefixes)) {}
    if (cache->n_free == 0) return status_fail(ST_RESOURCE, "the key/value cache is full: %d pages", cache->pages.n_pages);
    *page = cache->free_list[--cache->n_free];
    cache->references[*page] = 1;
    return ST_OK;
}

void kv_page_drop(KvCache *cache, int32_t page) {
    ASSERT(cache->references[page] > 0, "page %d is free already", page);
    if (--cache->references[page] > 0) return;
    cache->free_list[cache->n_free++] = page;
    drop_state(cache, page);
}

Status kv_pages_reserve(KvCache *cache, KvPageList *list, int64_t n_tokens) {
    int32_t wanted = kv_pages_for(n_tokens);
    TRY(kv_pages_room(list, wanted));
    while (list->n < wanted) {
        TRY(take_page(cache, &list->items[list->n]));
        list->n++;
    }
    return ST_OK;
}

Status kv_pages_share(KvCache *cache, const KvPageList *from, int64_t n_tokens, KvPageList *to) {
    int32_t n = kv_pages_for(n_tokens);
    ASSERT(to->n == 0 && n <= from->n, "sharing %d of %d pages into a list of %d", n, from->n, to->n);
    TRY(kv_pages_room(to, n));
    for (; to->n < n; to->n++) {
        to->items[to->n] = from->items[to->n];
        cache->references[from->items[to->n]]++;
    }
    return ST_OK;
}

static void copy_page(KvCache *cache, int32_t from, int32_t to) {
    for (int layer = 0; layer < cache->pages.n_layers; layer++) {
        Tensor *const both[] = {cache->pages.k[layer], cache->pages.v[layer]};
        for (int i = 0; i < 2; i++) {
            int64_t size = KV_PAGE_SIZE * tensor_width(both[i]);
            Tensor old = tensor_part(both[i], from * size, size), own = tensor_part(both[i], to * size, size);
            tensor_device(both[i])->copy(&old, &own);
        }
    }
    copy_state(cache, from, to);
}

Status kv_pages_write(KvCache *cache, KvPageList *list, int64_t begin, int64_t end) {
    TRY(kv_pages_reserve(cache, list, end));
    for (int32_t i = (int32_t)(begin / KV_PAGE_SIZE); i < kv_pages_for(end); i++) {
        int32_t page = list->items[i], own = -1;
        if (cache->references[page] == 1) continue;
        TRY(take_page(cache, &own));
        copy_page(cache, page, own);
        kv_page_drop(cache, page);
        list->items[i] = own;
    }
    carry_state(cache, list, begin, end);
    return ST_OK;
}

int64_t kv_pages_truncate(KvCache *cache, KvPageList *list, int64_t n_tokens) {
    if (!kv_can_go_on(cache, list, n_tokens)) n_tokens = 0;
    while (list->n > kv_pages_for(n_tokens)) kv_page_drop(cache, list->items[--list->n]);
    return n_tokens;
}

void kv_pages_release(KvCache *cache, KvPageList *list) {
    for (int32_t i = 0; i < list->n; i++) kv_page_drop(cache, list->items[i]);
    free(list->items);
    *list = (KvPageList){0};
}
