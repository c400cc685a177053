/* SPDX-License-Identifier: Apache-2.0 */
/* Time of messages: latency (alpha) and bytes per second (beta) of a link. */
#include <math.h>

#include "lib/plan/plan_cost.h"

static double rounds(double ranks) { return ceil(log2(ranks)); }

double message_sent(double ranks, double n) { return 2 * (ranks - 1) / ranks * n; }

double message_ring(double ranks, const LinkSpeed *link, double n) {
    return 2 * (ranks - 1) * link->latency + message_sent(ranks, n) / link->bytes_per_second;
}

double message_halving(double ranks, const LinkSpeed *link, double n) {
    return ranks > 1 ? 2 * rounds(ranks) * link->latency + message_sent(ranks, n) / link->bytes_per_second : 0;
}

double message_tree(double ranks, const LinkSpeed *link, double n) {
    return ranks > 1 ? 2 * rounds(ranks) * (link->latency + n / link->bytes_per_second) : 0;
}

double message_master(double ranks, const LinkSpeed *link, double n) { return 2 * (ranks - 1) * (link->latency + n / link->bytes_per_second); }

double message_two_levels(double hosts, double inside, const LinkSpeed *inner, const LinkSpeed *outer, double share, double n) {
    LinkSpeed shared = {outer->bytes_per_second / share, outer->latency};
    return message_ring(inside, inner, n) + message_ring(hosts, &shared, n / inside);
}

double message_exposed(const double *ready, const double *cost, size_t n, double end) {
    double through = 0;
    for (size_t i = 0; i < n; i++) through = fmax(through, ready[i]) + cost[i];
    return fmax(through - end, 0);
}

/* ---- speed-up and roofline ---- */

double speedup_amdahl(double f, double n) { return 1 / ((1 - f) + f / n); }

double speedup_gustafson(double f, double n) { return (1 - f) + f * n; }

/* 1 / S = 1 - f (1 - 1 / n) is linear in f. */
double speedup_fit(const double *ranks, const double *speedups, size_t n) {
    double xx = 0, xy = 0;
    for (size_t i = 0; i < n; i++) {
        double x = 1 - 1 / ranks[i], y = 1 - 1 / speedups[i];
        xx += x * x;
        xy += x * y;
    }
    return xx > 0 ? fmin(fmax(xy / xx, 0), 1) : (double)NAN;
}

double roofline_seconds(double work, double bytes, double rate, double bandwidth) { return fmax(work / rate, bytes / bandwidth); }
