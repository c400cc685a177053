/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of weights, gradients, states and activations by formulas. */
#include <math.h>

#include "lib/plan/plan_cost.h"

const char *const plan_shard_names[N_SHARDS] = {"none", "optimizer", "gradients", "weights"};
const StateBytes plan_paper = {.weights = 2, .gradients = 2, .master = 4, .optimizer = 8};
const StateBytes plan_program = {.weights = 4, .gradients = 4, .master = 0, .optimizer = 8};
const StateBytes plan_program_bf16 = {.weights = 2, .gradients = 4, .master = 4, .optimizer = 8, .converted = true};

double plan_state_bytes(const StateBytes *bytes, PlanShard shard, double psi, double ranks) {
    double whole = 0, divided = bytes->master + bytes->optimizer;
    bool gathered = shard != SHARD_NONE && shard != SHARD_WEIGHTS;
    if (gathered || !bytes->converted) *(shard >= SHARD_WEIGHTS ? &divided : &whole) += bytes->weights;
    *(shard >= SHARD_GRADIENTS ? &divided : &whole) += bytes->gradients;
    return shard == SHARD_NONE ? (whole + divided) * psi : whole * psi + divided * psi / ranks;
}

double plan_lane_bytes(PlanShard shard, double psi, double lanes, double ranks) {
    if (shard >= SHARD_GRADIENTS) return 4 * psi / ranks * ceil(log2(fmax(lanes, 1)));
    return 4 * psi * ceil(log2(fmax(lanes / ranks, 1)));
}

double plan_paper_activations(double tokens, double rows, double hidden, double heads, double tensor, bool sequence, PaperKeep recompute) {
    double sbh = tokens * rows * hidden, scores = 5 * heads * tokens / hidden;
    if (recompute == PAPER_FULL) return 2 * sbh;
    if (recompute == PAPER_SELECTIVE) scores = 0;
    return sequence || tensor == 1 ? sbh * (34 + scores) / tensor : sbh * (10 + (24 + scores) / tensor);
}
