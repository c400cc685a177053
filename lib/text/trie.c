/* SPDX-License-Identifier: Apache-2.0 */
/* A trie of tokens: one hash table of all edges, so that a step is one lookup. */
#include <stdlib.h>
#include <string.h>

#include "lib/text/tokenizer_parts.h"

enum { MAX_NODES = 1 << 24 };

static int entry_order(const void *a, const void *b) {
    const TrieEntry *x = a, *y = b;
    int order = memcmp(x->token.data, y->token.data, MIN(x->token.len, y->token.len));
    if (order) return order;
    if (x->token.len != y->token.len) return x->token.len > y->token.len ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

static TrieEdge *edge_slot(const Trie *trie, uint32_t key) {
    size_t slot = (key * 0x9E3779B97F4A7C15u) >> 24 & (trie->n_slots - 1);
    while (trie->edges[slot].to != 0 && trie->edges[slot].key != key) slot = (slot + 1) & (trie->n_slots - 1);
    return &trie->edges[slot];
}

uint32_t trie_step(const Trie *trie, uint32_t node, uint8_t byte) { return edge_slot(trie, node << 8 | byte)->to; }

uint32_t trie_walk(const Trie *trie, uint32_t node, const char *text, size_t len) {
    for (size_t i = 0; i < len; i++)
        if ((node = trie_step(trie, node, (uint8_t)text[i])) == 0) return 0;
    return node;
}

/* Number of leading bytes that a sorted entry shares with the one before it; each further byte is a new node. */
static size_t common_length(Slice a, Slice b) {
    size_t n = 0;
    while (n < a.len && n < b.len && a.data[n] == b.data[n]) n++;
    return n;
}

Status trie_init(Loader *loader, Trie *trie, TrieEntry *entries, size_t n) {
    size_t n_nodes = 1;
    qsort(entries, n, sizeof *entries, entry_order);
    for (size_t i = 0; i < n; i++) n_nodes += entries[i].token.len - (i > 0 ? common_length(entries[i - 1].token, entries[i].token) : 0);
    if (n_nodes > MAX_NODES)
        return status_fail(ST_INPUT, "the vocabulary of '%s' is too large: its tokens have %zu distinct prefixes, more than the limit of %d",
                           loader->path, n_nodes, MAX_NODES);
    for (trie->n_slots = 16; trie->n_slots < 2 * n_nodes;) trie->n_slots *= 2;
    trie->edges = arena_zero(loader->arena, trie->n_slots * sizeof *trie->edges);
    trie->ids = arena_alloc(loader->arena, n_nodes * sizeof *trie->ids);
    if (!trie->edges || !trie->ids) return ST_RESOURCE;
    memset(trie->ids, 0xFF, n_nodes * sizeof *trie->ids);
    uint32_t next = 1;
    for (size_t i = 0; i < n; i++) {
        uint32_t node = 0;
        for (size_t k = 0; k < entries[i].token.len; k++) {
            uint32_t key = node << 8 | (uint8_t)entries[i].token.data[k];
            TrieEdge *edge = edge_slot(trie, key);
            if (edge->to == 0) *edge = (TrieEdge){key, next++};
            node = edge->to;
        }
        trie->ids[node] = entries[i].id;
    }
    return ST_OK;
}
