/* SPDX-License-Identifier: Apache-2.0 */
/* Where a pipeline is cut: dynamic programming over layers. */
#include <math.h>

#include "lib/plan/plan_cost.h"

/* Equal sums that were added in another order differ in their last digits. */
#define SAME 1e-9

/* least[s * (layers + 1) + i]: the smallest largest stage when layers i.. are divided over s stages. */
static void least_of(const double *before, int64_t layers, double last, int64_t p, double *least) {
    const int64_t width = layers + 1;
    for (int64_t i = 0; i <= layers; i++) least[width + i] = i < layers ? before[layers] - before[i] + last : (double)INFINITY;
    for (int64_t s = 2; s <= p; s++)
        for (int64_t i = 0; i <= layers; i++) {
            double best = (double)INFINITY;
            for (int64_t end = i + 1; end <= layers - (s - 1); end++) best = fmin(best, fmax(before[end] - before[i], least[(s - 1) * width + end]));
            least[s * width + i] = best;
        }
}

Status stages_balance(const double *cost, int64_t layers, double last, int64_t p, Arena *arena, int64_t *counts, double *balance) {
    if (p < 1 || p > layers) {
        status_fail(ST_CONFIG, "pipeline %lld: the model has %lld layers", (long long)p, (long long)layers);
        return status_hint(ST_CONFIG, "at most one stage a layer");
    }
    ArenaMark mark = arena_mark(arena);
    const int64_t width = layers + 1;
    double *before = arena_zero(arena, (size_t)width * sizeof *before), *least = arena_alloc(arena, (size_t)((p + 1) * width) * sizeof *least);
    if (!before || !least) return ST_RESOURCE;
    for (int64_t i = 0; i < layers; i++) before[i + 1] = before[i] + cost[i];
    least_of(before, layers, last, p, least);
    const double largest = least[p * width], limit = largest * (1 + SAME);
    int64_t first = 0;
    for (int64_t s = p; s > 1; s--) { /* the shortest stage after which the rest still fits */
        int64_t end = first + 1;
        while (!(least[(s - 1) * width + end] <= limit)) end++;
        counts[p - s] = end - first;
        first = end;
    }
    counts[p - 1] = layers - first;
    if (balance) *balance = (before[layers] + last) / (double)p / largest;
    arena_rewind(arena, mark);
    return ST_OK;
}

/* ---- PipeDream ---- */

typedef struct Partition {
    const double *time, *weights, *output; /* time, weights: sums of the layers before */
    const LinkSpeed *link;
    int64_t layers, ranks;
    double *best;                 /* [j * (ranks + 1) + r]: layers 0..j on r ranks */
    int64_t *cut, *ranks_of_last; /* the last stage's first layer and ranks */
} Partition;

static double stage_seconds(const Partition *partition, int64_t first, int64_t last, int64_t ranks) {
    double work = partition->time[last + 1] - partition->time[first], bytes = partition->weights[last + 1] - partition->weights[first];
    return fmax(work, message_ring((double)ranks, partition->link, bytes)) / (double)ranks;
}

static void partition_at(Partition *partition, int64_t j, int64_t r) {
    const int64_t width = partition->ranks + 1, at = j * width + r;
    partition->best[at] = stage_seconds(partition, 0, j, r);
    partition->cut[at] = 0;
    partition->ranks_of_last[at] = r;
    for (int64_t i = 0; i < j; i++)
        for (int64_t last = 1; last < r; last++) {
            double boundary = 2 * (partition->link->latency + partition->output[i] / partition->link->bytes_per_second),
                   slowest = fmax(fmax(partition->best[i * width + r - last], boundary), stage_seconds(partition, i + 1, j, last));
            if (slowest >= partition->best[at]) continue;
            partition->best[at] = slowest;
            partition->cut[at] = i + 1;
            partition->ranks_of_last[at] = last;
        }
}

static double *sums_of(const double *values, int64_t n, Arena *arena) {
    double *sums = arena_zero(arena, (size_t)(n + 1) * sizeof *sums);
    for (int64_t i = 0; sums && i < n; i++) sums[i + 1] = sums[i] + values[i];
    return sums;
}

Status stages_pipedream(const double *time, const double *weights, const double *output, int64_t layers, int64_t ranks, const LinkSpeed *link,
                        Arena *arena, PipedreamPlan *plan) {
    const size_t cells = (size_t)(layers * (ranks + 1));
    Partition partition = {.time = sums_of(time, layers, arena),
                           .weights = sums_of(weights, layers, arena),
                           .output = output,
                           .link = link,
                           .layers = layers,
                           .ranks = ranks,
                           .best = arena_zero(arena, cells * sizeof(double)),
                           .cut = arena_zero(arena, cells * sizeof(int64_t)),
                           .ranks_of_last = arena_zero(arena, cells * sizeof(int64_t))};
    PipedreamStage *stages = arena_zero(arena, (size_t)layers * sizeof *stages);
    if (!partition.time || !partition.weights || !partition.best || !partition.cut || !partition.ranks_of_last || !stages) return ST_RESOURCE;
    for (int64_t j = 0; j < layers; j++)
        for (int64_t r = 1; r <= ranks; r++) partition_at(&partition, j, r);
    *plan = (PipedreamPlan){.seconds = partition.best[(layers - 1) * (ranks + 1) + ranks]};
    for (int64_t j = layers - 1, r = ranks; j >= 0;) {
        int64_t at = j * (ranks + 1) + r, first = partition.cut[at];
        stages[plan->n++] = (PipedreamStage){first, j + 1 - first, partition.ranks_of_last[at]};
        r -= partition.ranks_of_last[at];
        j = first - 1;
    }
    for (int64_t i = 0; i < plan->n / 2; i++) {
        PipedreamStage other = stages[i];
        stages[i] = stages[plan->n - 1 - i];
        stages[plan->n - 1 - i] = other;
    }
    plan->stages = stages;
    plan->noam = (ranks + stages[0].ranks - 1) / stages[0].ranks;
    return ST_OK;
}
