/* SPDX-License-Identifier: Apache-2.0 */
/* Guaranteed bounds on the distance of values from the truth.
 *
 * If V is off by at most e in every state's equation, |TV - V| <= e, and h > 0 satisfies gamma P h <= h - 1 for every row, then |V - V*| <= e max h:
 * T does not raise V + e h, so it is an upper bound of V*, and the greedy policy does not lower V - e h, so it is a lower bound. For gamma < 1, h = 1
 * / (1 - gamma) satisfies the inequality. For gamma = 1, h is the expected number of steps to the end, not under every policy (one that walks into a
 * wall has no end) but under policies that choose among nearly best rows; for the other rows the gap to the best row must be large enough. The error
 * bounds of rounding are added to e and to all inequalities.
 */
#include <math.h>
#include <string.h>

#include "lib/base/system.h"
#include "rl/mdp/mdp_form.h"

static double mdp_certify_largest(const MdpForm *form, const double *V) {
    double most = 0;
    for (int32_t s = 0; s < form->n; s++)
        if (!(fabs(V[s]) <= most)) most = fabs(V[s]);
    return most;
}

/* A sum of k products is off by at most (k + 1) u / (1 - (k + 1) u) times the sum of their sizes (Higham 2002, 3.1), in any order. Two more for gamma
 * and the sum, one each for p, r and gamma, which were rounded when stored, and a few as a safety margin; the row's imbalance covers both
 * interpretations of a sum that is not 1. */
static double rounding_of(const MdpForm *form, double reward_size, double most) {
    double k = (double)form->longest + 12;
    return 1.01 * (k * UNIT_ROUNDOFF + form->imbalance) * (reward_size + form->gamma * most) + 1e-300;
}

static double row_rounding(const MdpForm *form, int64_t row, double most) { return rounding_of(form, form->row_size[row], most); }

double form_reward_size(const MdpForm *form, const double *V) {
    double most = mdp_certify_largest(form, V), size = 0;
    if (!(form->reward_size > 16 * most)) return form->reward_size;
    for (int32_t s = 0; s < form->n; s++) {
        if (!form_is_nonterminal(form, s)) continue;
        int64_t best_row;
        double best = form_best(form, s, V, &best_row), uncertainty = row_rounding(form, best_row, most);
        for (int64_t row = form_first(form, s); row < form_first(form, s + 1); row++)
            if (best - form_q(form, row, V) <= 2 * (uncertainty + row_rounding(form, row, most))) size = fmax(size, form->row_size[row]);
    }
    return size;
}

double form_rounding(const MdpForm *form, const double *V) { return rounding_of(form, form_reward_size(form, V), mdp_certify_largest(form, V)); }

double form_row_rounding(const MdpForm *form, int64_t row, const double *V) {
    double size = 0;
    for (int64_t k = form->begin[row]; k < form->begin[row + 1]; k++) size += form->probability[k] * fabs(V[form->next[k]]);
    return row_rounding(form, row, size);
}

/* Minimum accepted value of the least decrease of h per step, which is 1 up to rounding. */
static const double least_drop = 0.1;

/* h: steps to the end; drop: least decrease of h per step; longest: largest h */
typedef struct Clock {
    double *h;
    double drop, longest;
} Clock;

static double row_room(const MdpForm *form, int64_t row, const double *V, double best) { return best - form_q(form, row, V); }

/* Expected steps to the end under the slowest policy among rows within `near` of the best, by policy iteration. False if it does not end. */
static bool slowest(const MdpForm *form, const double *V, double near, int64_t *rows, const double *ones, Clock *clock) {
    enum { LIMIT = 60 };
    for (int round = 0; round < LIMIT && !interrupt_requested(); round++) {
        if (form_policy_values(form, rows, ones, 1, 1e-3, clock->h, NULL) != ST_OK) return false;
        clock->longest = 0;
        for (int32_t s = 0; s < form->n; s++) {
            if (!form_is_nonterminal(form, s)) continue;
            if (!(clock->h[s] >= 0 && clock->h[s] < 1e12)) return false;
            clock->longest = fmax(clock->longest, clock->h[s]);
        }
        double noise = 1.01 * (((double)form->longest + 4) * UNIT_ROUNDOFF + form->imbalance) * clock->longest;
        int64_t slower = 0;
        clock->drop = (double)INFINITY;
        for (int32_t s = 0; s < form->n; s++) {
            if (!form_is_nonterminal(form, s)) continue;
            double best = form_best(form, s, V, NULL), most = form_expect(form, rows[s], clock->h);
            for (int64_t row = form_first(form, s); row < form_first(form, s + 1); row++) {
                double expected = form_expect(form, row, clock->h);
                if (row_room(form, row, V, best) > near || !(expected > most + 0.25)) continue;
                most = expected;
                rows[s] = row;
                slower++;
            }
            clock->drop = fmin(clock->drop, clock->h[s] - most - noise);
        }
        if (slower == 0) return clock->drop > least_drop;
    }
    return false;
}

/* Checks that for rows that are not near the best one the gap is larger than the change due to h. */
static bool others_have_room(const MdpForm *form, const double *V, double near, double off, const Clock *clock) {
    double scale = off / clock->drop, most = mdp_certify_largest(form, V),
           noise = 1.01 * ((double)form->longest + 4) * UNIT_ROUNDOFF * clock->longest;
    for (int32_t s = 0; s < form->n; s++) {
        if (!form_is_nonterminal(form, s)) continue;
        double best = form_best(form, s, V, NULL);
        for (int64_t row = form_first(form, s); row < form_first(form, s + 1); row++) {
            double room = row_room(form, row, V, best);
            if (room <= near) continue;
            double lost = V[s] - form_q(form, row, V) - row_rounding(form, row, most);
            if (!(lost > scale * (form_expect(form, row, clock->h) - clock->h[s] + noise))) return false;
        }
    }
    return true;
}

/* `off`: the largest residual with rounding. */
static double bound_undiscounted(const MdpForm *form, const double *V, double off) {
    ArenaMark mark = arena_mark(form->arena);
    Clock clock = {.h = form_vector(form, form->arena)};
    int64_t *rows = arena_alloc(form->arena, ((size_t)form->n + 1) * sizeof *rows);
    double *ones = arena_alloc(form->arena, ((size_t)form->n_rows + 1) * sizeof *ones), bound = (double)INFINITY;
    if (clock.h && rows && ones) {
        double size = form_reward_size(form, V) + mdp_certify_largest(form, V);
        for (int64_t row = 0; row < form->n_rows; row++) ones[row] = 1;
        double near = fmax(2 * off, 1e-9 * size);
        do {
            for (int32_t s = 0; s < form->n; s++)
                if (form_is_nonterminal(form, s)) form_best(form, s, V, &rows[s]);
            memset(clock.h, 0, ((size_t)form->n + 1) * sizeof *clock.h);
            if (!slowest(form, V, near, rows, ones, &clock)) break; /* with a larger set of rows it also fails */
            if (others_have_room(form, V, near, off, &clock)) bound = off / clock.drop * clock.longest * (1 + 1e-12);
            near *= 100;
        } while (isinf(bound) && near < size);
    }
    arena_rewind(form->arena, mark);
    return bound;
}

double form_bound_of_change(const MdpForm *form, const double *V, double change) {
    double off = change + form_rounding(form, V);
    if (!isfinite(off)) return (double)INFINITY;
    double shrink = form->gamma * (form->mass * (1 + ((double)form->longest + 2) * UNIT_ROUNDOFF)) * (1 + 2 * UNIT_ROUNDOFF);
    if (form->gamma < 1 && shrink < 1) return off / (1 - shrink) * (1 + 8 * UNIT_ROUNDOFF);
    return bound_undiscounted(form, V, off);
}

double form_bound(const MdpForm *form, const double *V, double *Q) {
    ArenaMark mark = arena_mark(form->arena);
    double *next = form_vector(form, form->arena);
    if (!next) return (double)INFINITY;
    double change = change_size(form_sweep(form, (Sweep){.V = V, .new_V = next, .Q = Q}));
    arena_rewind(form->arena, mark);
    return form_bound_of_change(form, V, change);
}
