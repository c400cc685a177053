/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the texts of a row into a tree; see branches.h. */
#include "data/branches.h"

#include <stdlib.h>
#include <string.h>

/* ---- texts to a tree ---- */

/* Tokens begin..end-1 of the joined texts, which follow the parent's tokens. */
typedef struct TreeNode {
    size_t begin, end;
    int32_t parent, n_children;
    int32_t branch, depth; /* set by lay_node; depth: tokens of the text from its start to the end of this node */
} TreeNode;
typedef struct Tree {
    TreeNode *nodes;
    int32_t n;
    const Ids *ids, *labels;
    Joined *joined;
} Tree;

static int32_t add_node(Tree *tree, size_t begin, size_t end, int32_t parent) {
    if (parent >= 0) tree->nodes[parent].n_children++;
    tree->nodes[tree->n] = (TreeNode){.begin = begin, .end = end, .parent = parent};
    return tree->n++;
}

/* Keeps the first `kept` tokens in the node. The rest becomes a child, which takes over all children of the node. */
static void split_node(Tree *tree, int32_t node, size_t kept) {
    TreeNode *whole = &tree->nodes[node];
    size_t border = whole->begin + kept, end = whole->end;
    int32_t n_children = whole->n_children, tail;
    whole->end = border;
    whole->n_children = 0;
    tail = add_node(tree, border, end, node);
    for (int32_t i = 0; i < tail; i++)
        if (tree->nodes[i].parent == node) tree->nodes[i].parent = tail;
    tree->nodes[tail].n_children = n_children;
}

/* Finds the child of `parent` with the longest common prefix with tokens at..limit-1; *same: the length of that prefix. */
static int32_t find_child(const Tree *tree, int32_t parent, size_t at, size_t limit, size_t *same) {
    int32_t best = -1;
    *same = 0;
    for (int32_t i = 0; i < tree->n; i++) {
        const TreeNode *node = &tree->nodes[i];
        size_t n = 0, most = MIN(node->end - node->begin, limit - at);
        if (node->parent != parent) continue;
        while (n < most && tree->ids->data[node->begin + n] == tree->ids->data[at + n]) n++;
        if (n > *same) *same = n, best = i;
    }
    return best;
}

static void add_text(Tree *tree, TextSpan text) {
    int32_t parent = -1;
    size_t at = text.begin, limit = text.begin + 1, same;
    while (limit < text.end && tree->labels->data[limit] == LABEL_NONE) limit++;
    while (at < limit) {
        int32_t child = find_child(tree, parent, at, limit, &same);
        if (child < 0) break;
        if (same < tree->nodes[child].end - tree->nodes[child].begin) split_node(tree, child, same);
        at += same;
        parent = child;
    }
    if (at < text.end) add_node(tree, at, text.end, parent);
}

/* Appends a node. An only child continues its parent's branch, which is the last one. */
static void lay_node(Tree *tree, int32_t number) {
    Joined *joined = tree->joined;
    TreeNode *node = &tree->nodes[number];
    const TreeNode *parent = node->parent >= 0 ? &tree->nodes[node->parent] : NULL;
    size_t n = node->end - node->begin;
    node->depth = (int32_t)n + (parent ? parent->depth : 0);
    node->branch = parent && parent->n_children == 1 ? parent->branch : (int32_t)(joined->branches.n / 2);
    if ((size_t)node->branch == joined->branches.n / 2) {
        ids_push(&joined->branches, (int32_t)joined->ids.n);
        ids_push(&joined->branches, parent ? parent->branch : -1);
    }
    ids_append(&joined->ids, tree->ids->data + node->begin, n);
    ids_append(&joined->labels, tree->labels->data + node->begin, n);
    joined->depth = MAX(joined->depth, node->depth);
}

/* Lays the nodes depth first, so that each is followed by its descendants. stack: space for all nodes. */
static void lay_tree(Tree *tree, int32_t *stack) {
    int32_t waiting = 0, number = -1;
    do {
        if (number >= 0) lay_node(tree, number);
        for (int32_t i = tree->n; i-- > 0;)
            if (tree->nodes[i].parent == number) stack[waiting++] = i;
        number = waiting > 0 ? stack[--waiting] : -1;
    } while (number >= 0);
}

Status branches_join(const TextSpan *texts, size_t n, const Ids *ids, const Ids *labels, Joined *joined) {
    TreeNode *nodes = malloc((2 * n + 1) * sizeof *nodes);
    int32_t *stack = malloc((2 * n + 1) * sizeof *stack);
    Tree tree = {.nodes = nodes, .ids = ids, .labels = labels, .joined = joined};
    Status status = nodes && stack ? ST_OK : status_fail(ST_RESOURCE, "out of memory for %zu texts of a row", n);
    ids_clear(&joined->ids);
    ids_clear(&joined->labels);
    ids_clear(&joined->branches);
    joined->depth = 0;
    for (size_t i = 0; i < n && status == ST_OK; i++) add_text(&tree, texts[i]);
    if (status == ST_OK) lay_tree(&tree, stack);
    free(nodes);
    free(stack);
    return status;
}

void joined_release(Joined *joined) {
    ids_release(&joined->ids);
    ids_release(&joined->labels);
    ids_release(&joined->branches);
}

/* ---- a tree to texts ---- */

static int32_t branch_end(const Example *example, int32_t branch) {
    return branch + 1 < example->n_branches ? example->branches[branch + 1].begin : example->n;
}

static bool goes_on(const Example *example, int32_t branch) {
    for (int32_t i = branch + 1; i < example->n_branches; i++)
        if (example->branches[i].parent == branch) return true;
    return false;
}

int32_t example_texts(const Example *example) {
    int32_t n = 0;
    for (int32_t i = 0; i < example->n_branches; i++) n += !goes_on(example, i);
    return MAX(n, 1);
}

static void append_tokens(const Example *example, int32_t begin, int32_t end, bool labelled, Ids *ids, Ids *labels) {
    ids_append(ids, example->ids + begin, (size_t)(end - begin));
    for (int32_t t = begin; t < end; t++) ids_push(labels, labelled ? example_label(example, t) : LABEL_NONE);
}

/* Branches are in the order of the first text that uses them, so branches up to `told` belong to an earlier text. */
void example_text(const Example *example, int32_t k, Ids *ids, Ids *labels) {
    int32_t last = 0, told = -1, depth = 0;
    if (example->n_branches == 0) {
        append_tokens(example, 0, example->n, true, ids, labels);
        return;
    }
    for (int32_t i = 0, n = 0; i < example->n_branches && n <= k; i++) {
        if (goes_on(example, i)) continue;
        if (n++ < k)
            told = i;
        else
            last = i;
    }
    for (int32_t up = last; (up = example->branches[up].parent) >= 0;) depth++;
    for (; depth >= 0; depth--) {
        int32_t branch = last;
        for (int32_t i = 0; i < depth; i++) branch = example->branches[branch].parent;
        append_tokens(example, example->branches[branch].begin, branch_end(example, branch), branch > told, ids, labels);
    }
}

int32_t example_before(const Example *example, int32_t t) {
    for (int32_t i = 0; i < example->n_branches && example->branches[i].begin <= t; i++) {
        if (example->branches[i].begin < t) continue;
        int32_t parent = example->branches[i].parent;
        return parent < 0 ? -1 : branch_end(example, parent) - 1;
    }
    return t - 1;
}
