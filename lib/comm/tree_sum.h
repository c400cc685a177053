/* SPDX-License-Identifier: Apache-2.0 */
/* The fixed tree of a sum over lanes. Its bits depend on the lanes alone, and not on who holds them: neighbours are added in pairs that are aligned
 * at powers of two, and a node without right half is its left half. 5 lanes: ((0 + 1) + (2 + 3)) + 4. A lane without a value is -0.0 in all
 * elements, since x + -0.0 is x for every x, also for -0.0.
 *
 * The serial form is a counter of partial sums. After the lanes 0 .. j - 1 it keeps one sum for each bit that is set in j: bit l is a node of
 * 2^l lanes. So `j` says all about `kept`.
 *
 *     float *kept[TREE_LEVELS];                              // tree_levels(n_lanes) arrays of n elements
 *     for (int64_t j = 0; j < n_lanes; j++) tree_push(kept, j, 0, lane[j], n);
 *     tree_total(kept, n_lanes, sum, n);
 */
#ifndef TUNE_TREE_SUM_H
#define TUNE_TREE_SUM_H

#include "lib/base/base.h"

#define TREE_LEVELS 63

/* An aligned node: the lanes lane .. lane + 2^level - 1, where `lane` is a multiple of 2^level */
typedef struct TreeNode {
    int64_t lane;
    int level;
} TreeNode;
/* The largest aligned nodes whose lanes are first .. end - 1, in order; at most 2 x TREE_LEVELS. Returns how many there are; `nodes` may be NULL. */
int tree_nodes(int64_t first, int64_t end, TreeNode *nodes);
/* The number of arrays that a counter of n_lanes lanes needs: kept[0] .. kept[tree_levels - 1] */
int tree_levels(int64_t n_lanes);
/* Adds the next node, x: (n), to the counter that holds the lanes before it. Its first lane is `lane`. x may be kept[level]. */
void tree_push(float *const *kept, int64_t lane, int level, const float *x, size_t n);
/* The sum of all lanes from 0 to n_lanes - 1, at least one, into sum: (n), which may be any of the arrays */
void tree_total(float *const *kept, int64_t n_lanes, float *sum, size_t n);

#endif
