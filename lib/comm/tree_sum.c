/* SPDX-License-Identifier: Apache-2.0 */
/* The fixed tree of sums: nodes, and the counter of partial sums. */
#include "lib/comm/tree_sum.h"

#include <string.h>

int tree_nodes(int64_t first, int64_t end, TreeNode *nodes) {
    int n = 0;
    while (first < end) {
        int level = 0;
        while (level + 1 < TREE_LEVELS && first % (INT64_C(2) << level) == 0 && INT64_C(2) << level <= end - first) level++;
        if (nodes) nodes[n] = (TreeNode){first, level};
        first += INT64_C(1) << level;
        n++;
    }
    return n;
}

int tree_levels(int64_t n_lanes) {
    int levels = 0;
    while (levels < TREE_LEVELS && n_lanes >> levels) levels++;
    return levels;
}

/* A block of elements that stays in the first-level cache while it goes up the tree */
#define TREE_BLOCK 1024

static void add_left(const float *restrict left, float *restrict right, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) right[i] = left[i] + right[i];
}

void tree_push(float *const *kept, int64_t lane, int level, const float *x, size_t n) {
    float block[TREE_BLOCK];
    int top = level;
    ASSERT(lane % (INT64_C(1) << level) == 0, "lane %lld, level %d", (long long)lane, level);
    while (lane >> top & 1) top++;
    for (size_t begin = 0; begin < n; begin += TREE_BLOCK) {
        const size_t count = MIN(n - begin, (size_t)TREE_BLOCK);
        memcpy(block, x + begin, count * sizeof *block);
        for (int l = level; l < top; l++) add_left(kept[l] + begin, block, count);
        memcpy(kept[top] + begin, block, count * sizeof *block);
    }
}

void tree_total(float *const *kept, int64_t n_lanes, float *sum, size_t n) {
    float block[TREE_BLOCK];
    int lowest = 0;
    ASSERT(n_lanes > 0, "%lld lanes", (long long)n_lanes);
    while (!(n_lanes >> lowest & 1)) lowest++;
    for (size_t begin = 0; begin < n; begin += TREE_BLOCK) {
        const size_t count = MIN(n - begin, (size_t)TREE_BLOCK);
        memcpy(block, kept[lowest] + begin, count * sizeof *block);
        for (int l = lowest + 1; l < TREE_LEVELS && n_lanes >> l; l++)
            if (n_lanes >> l & 1) add_left(kept[l] + begin, block, count);
        memcpy(sum + begin, block, count * sizeof *block);
    }
}
