/* SPDX-License-Identifier: Apache-2.0 */
/* The paged key/value cache. */
#include "lib/infer/kv_cache.h"

#include <stdlib.h>
#include <string.h>

static int64_t row_width(const Model *model) { return model->config.num_key_value_heads * model->config.head_dim; }

size_t kv_page_bytes(const Model *model) {
    return dtype_bytes(model->compute, 2 * model->config.num_hidden_layers * KV_PAGE_SIZE * row_width(model));
}

/* Places keys and values after all headers, so that pages that no token uses are never touched. */
static Status make_tensors(Arena *arena, const Model *model, KvPages *pages) {
    int64_t shape[2] = {(int64_t)pages->n_pages * KV_PAGE_SIZE, row_width(model)};
    for (int layer = 0; layer < pages->n_layers; layer++) {
        pages->k[layer] = tensor_header(arena, model->device, model->compute, 2, shape);
        pages->v[layer] = tensor_header(arena, model->device, model->compute, 2, shape);
        if (!pages->k[layer] || !pages->v[layer]) return ST_RESOURCE;
    }
    for (int layer = 0; layer < pages->n_layers; layer++) {
        TRY(tensor_allocate(pages->k[layer], arena));
        TRY(tensor_allocate(pages->v[layer], arena));
    }
    return ST_OK;
}

Status kv_cache_new(Arena *arena, const Model *model, int32_t n_pages, KvCache **result) {
    int n_layers = (int)model->config.num_hidden_layers;
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
    return make_tensors(arena, model, &cache->pages);
}

int32_t kv_pages_for(int64_t n_tokens) { return (int32_t)((n_tokens + KV_PAGE_SIZE - 1) / KV_PAGE_SIZE); }

static Status list_room(KvPageList *list, int32_t n) {
    if (n <= list->cap) return ST_OK;
    int32_t cap = MAX(n, list->cap * 2);
    TRY(array_resize(&list->items, (size_t)cap, sizeof *list->items, "pages of the key/value cache"));
    list->cap = cap;
    return ST_OK;
}

static Status take_page(KvCache *cache, int32_t *page) {
    if (cache->n_free == 0) return status_fail(ST_RESOURCE, "the key/value cache is full: %d pages", cache->pages.n_pages);
    *page = cache->free_list[--cache->n_free];
    cache->references[*page] = 1;
    return ST_OK;
}

static void drop_page(KvCache *cache, int32_t page) {
    ASSERT(cache->references[page] > 0, "page %d is free already", page);
    if (--cache->references[page] == 0) cache->free_list[cache->n_free++] = page;
}

Status kv_pages_reserve(KvCache *cache, KvPageList *list, int64_t n_tokens) {
    int32_t wanted = kv_pages_for(n_tokens);
    TRY(list_room(list, wanted));
    while (list->n < wanted) {
        TRY(take_page(cache, &list->items[list->n]));
        list->n++;
    }
    return ST_OK;
}

Status kv_pages_share(KvCache *cache, const KvPageList *from, int64_t n_tokens, KvPageList *to) {
    int32_t n = kv_pages_for(n_tokens);
    ASSERT(to->n == 0 && n <= from->n, "sharing %d of %d pages into a list of %d", n, from->n, to->n);
    TRY(list_room(to, n));
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
}

Status kv_pages_write(KvCache *cache, KvPageList *list, int64_t begin, int64_t end) {
    TRY(kv_pages_reserve(cache, list, end));
    for (int32_t i = (int32_t)(begin / KV_PAGE_SIZE); i < kv_pages_for(end); i++) {
        int32_t page = list->items[i], own = -1;
        if (cache->references[page] == 1) continue;
        TRY(take_page(cache, &own));
        copy_page(cache, page, own);
        drop_page(cache, page);
        list->items[i] = own;
    }
    return ST_OK;
}

void kv_pages_truncate(KvCache *cache, KvPageList *list, int64_t n_tokens) {
    while (list->n > kv_pages_for(n_tokens)) drop_page(cache, list->items[--list->n]);
}

void kv_pages_release(KvCache *cache, KvPageList *list) {
    for (int32_t i = 0; i < list->n; i++) drop_page(cache, list->items[i]);
    free(list->items);
    *list = (KvPageList){0};
}
