/* SPDX-License-Identifier: Apache-2.0 */
/* Correlations in a step's completions: of length and reward, and between the parts of the reward. Like advantages, they are computed within the
 * group of a prompt, so that differences between prompts have no effect. */
#include "rl/text/text_run.h"

#include <math.h>

enum { LENGTH, REWARD, PARTS };

/* Multiplies parts by the sign of their weight, so that larger is always better. The recipe's rewards are the first columns and the only ones with a
 * weight. */
static int count_parts(const RewardScores *scores) {
    if (!scores) return 0; /* only an environment's rewards */
    int n = 0;
    while (n < CORRELATED_PARTS && (size_t)n < scores->n_columns && scores->columns[n].weight != 0) n++;
    return n > 1 ? n : 0;
}

static double number_of(const Experience *e, const RewardScores *scores, int which, int64_t i) {
    if (which == LENGTH) return (double)experience_trained(e, i);
    if (which == REWARD) return e->rewards[i];
    const RewardColumn *part = &scores->columns[which - PARTS];
    return part->weight > 0 ? part->values[i] : -part->values[i];
}

/* Adds the numbers of one group; a group with a missing number (NaN) is skipped. */
static void add_pair(Correlations *c, const Experience *e, const RewardScores *scores, int x, int y, int64_t begin, int64_t end) {
    double n = (double)(end - begin), mean_x = 0, mean_y = 0, xy = 0, xx = 0, yy = 0;
    for (int64_t i = begin; i < end; i++) {
        mean_x += number_of(e, scores, x, i) / n;
        mean_y += number_of(e, scores, y, i) / n;
    }
    for (int64_t i = begin; i < end; i++) {
        double dx = number_of(e, scores, x, i) - mean_x, dy = number_of(e, scores, y, i) - mean_y;
        xy += dx * dy;
        xx += dx * dx;
        yy += dy * dy;
    }
    if (isnan(xx + yy)) return;
    c->of[x][y].xy += xy;
    c->of[x][y].xx += xx;
    c->of[x][y].yy += yy;
}

static Status name_pairs(TextRl *rl, const RewardScores *scores, int n) {
    if (n == 0 || rl->names.pairs[0][1]) return ST_OK;
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++)
            if (!(rl->names.pairs[i][k] = arena_printf(rl->arena, "reward_correlation/%s:%s", scores->columns[i].name, scores->columns[k].name)))
                return ST_RESOURCE;
    return ST_OK;
}

Status text_correlations_add(TextRl *rl, const Experience *e, const RewardScores *scores, Correlations *c) {
    int parts = count_parts(scores);
    int64_t size = e->group_size > 1 ? e->group_size : e->n; /* groups of one: compare all completions with each other */
    TRY(name_pairs(rl, scores, parts));
    for (int64_t begin = 0; begin < e->n; begin += size) {
        add_pair(c, e, scores, LENGTH, REWARD, begin, begin + size);
        for (int x = PARTS; x < PARTS + parts; x++)
            for (int y = x + 1; y < PARTS + parts; y++) add_pair(c, e, scores, x, y, begin, begin + size);
    }
    return ST_OK;
}

/* The rounding error of equal numbers is not a difference. */
static double correlation(const Correlations *c, int x, int y) {
    double xx = c->of[x][y].xx, yy = c->of[x][y].yy;
    return xx > 1e-20 && yy > 1e-20 ? c->of[x][y].xy / sqrt(xx * yy) : (double)NAN;
}

void text_correlations_report(const TextRl *rl, const Correlations *c, Metrics *metrics) {
    metric_set(metrics, "length_reward_correlation", correlation(c, LENGTH, REWARD));
    for (int x = 0; x < CORRELATED_PARTS; x++)
        for (int y = x + 1; y < CORRELATED_PARTS; y++)
            if (rl->names.pairs[x][y]) metric_set(metrics, rl->names.pairs[x][y], correlation(c, PARTS + x, PARTS + y));
}
