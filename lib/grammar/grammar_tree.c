/* SPDX-License-Identifier: Apache-2.0 */
/* Trees of expressions, of patterns and of grammars in GBNF; a program is built from their end. */
#include "lib/grammar/grammar_parts.h"

#include <stdlib.h>

Status node_new(Tree *tree, NodeKind kind, Node **node) {
    *node = calloc(1, sizeof **node);
    if (!*node) return status_fail(ST_RESOURCE, "out of memory for a pattern");
    (*node)->kind = kind;
    (*node)->made_before = tree->made;
    tree->made = *node;
    return ST_OK;
}

void node_add(Node *node, Node *part) {
    part->before = node->last;
    node->last = part;
}

void tree_release(Tree *tree) {
    for (Node *node = tree->made, *before; node; node = before) {
        before = node->made_before;
        charset_release(&node->set);
        free(node);
    }
}

static int32_t build_repeat(Tree *tree, Builder *b, const Node *node, bool json, int32_t next) {
    int32_t at = next;
    if (node->most < 0) {
        at = build_split(b, 0, next);
        build_join(b, at, build_node(tree, b, node->last, json, at));
    }
    for (int64_t i = node->least; i < node->most && b->status == ST_OK; i++) at = build_split(b, build_node(tree, b, node->last, json, at), next);
    for (int64_t i = 0; i < node->least && b->status == ST_OK; i++) at = build_node(tree, b, node->last, json, at);
    return at;
}

int32_t build_node(Tree *tree, Builder *b, const Node *node, bool json, int32_t next) {
    int32_t at = node->kind == NODE_CHOICE ? 0 : next;
    switch (node->kind) {
    case NODE_SET: return build_charset(b, &node->set, json, next);
    case NODE_REPEAT: return build_repeat(tree, b, node, json, next);
    case NODE_RULE: return build_call(b, node->rule, true, next);
    case NODE_SEQUENCE:
        for (const Node *part = node->last; part; part = part->before) at = build_node(tree, b, part, json, at);
        break;
    case NODE_CHOICE:
        for (const Node *way = node->last; way; way = way->before) {
            int32_t of_way = build_node(tree, b, way, json, next);
            at = way == node->last ? of_way : build_split(b, of_way, at);
        }
        break;
    case NODE_BEGIN:
    case NODE_END: tree->misplaced = true; break;
    }
    return at;
}
