/* SPDX-License-Identifier: Apache-2.0 */
/* The bias of a policy (Howard 1960): its values relative to one state, for a process without end. With g the reward per step,
 *
 *     h = r - g + P h,  h(home) = 0
 *
 * Solves two systems of equations for the way to `home`: a, the reward until arrival, and t, the number of steps. Then g = a(home) / t(home) and h =
 * a - g t. */
#include <math.h>

#include "rl/mdp/mdp_form.h"

static int64_t best_row(const MdpForm *form, const bool *use, int32_t s, const double *h) {
    int64_t best = -1;
    double most = 0;
    for (int64_t row = form_first(form, s); row < form_first(form, s + 1); row++) {
        if (!use[row]) continue;
        double q = form->reward[row] + form_expect(form, row, h);
        if (best >= 0 && q <= most) continue;
        best = row;
        most = q;
    }
    return best;
}

/* A state to which the policy returns: where its most likely steps lead in the end. */
static int32_t find_home(const MdpForm *chain) {
    int32_t s = 0;
    for (int32_t step = 0; step < chain->n; step++) {
        int64_t likeliest = chain->begin[s];
        for (int64_t k = chain->begin[s]; k < chain->begin[s + 1]; k++)
            if (chain->probability[k] > chain->probability[likeliest]) likeliest = k;
        s = chain->next[likeliest];
    }
    return s;
}

/* Makes a form of the best rows by h only, in which a step to *home ends the process; place[s]: the number of state s in it. False when out of
 * memory. */
static bool chain_make(const MdpForm *form, const bool *use, const int32_t *members, int32_t n, const int32_t *place, const double *h, Arena *arena,
                       MdpForm *chain, int32_t *home) {
    int64_t *rows = arena_alloc(arena, (size_t)n * sizeof *rows), *begin = arena_zero(arena, ((size_t)n + 1) * sizeof *begin), entries = 0;
    if (!rows || !begin) return false;
    for (int32_t i = 0; i < n; i++) {
        rows[i] = best_row(form, use, members[i], h);
        entries += form->begin[rows[i] + 1] - form->begin[rows[i]];
    }
    int32_t *next = arena_alloc(arena, (size_t)entries * sizeof *next);
    double *probability = arena_alloc(arena, (size_t)entries * sizeof *probability), *reward = arena_alloc(arena, (size_t)n * sizeof *reward);
    if (!next || !probability || !reward) return false;
    for (int32_t i = 0; i < n; i++) {
        int64_t end = begin[i];
        for (int64_t k = form->begin[rows[i]]; k < form->begin[rows[i] + 1]; k++) {
            if (!(form->probability[k] > 0)) continue;
            next[end] = place[form->next[k]];
            probability[end++] = form->probability[k];
        }
        begin[i + 1] = end;
        reward[i] = form->reward[rows[i]];
    }
    *chain = (MdpForm){.n = n, .n_rows = n, .width = 1, .gamma = 1, .begin = begin, .next = next, .probability = probability, .reward = reward};
    *home = find_home(chain);
    for (int64_t k = 0; k < begin[n]; k++)
        if (next[k] == *home) next[k] = n;
    return true;
}

bool form_policy_bias(const MdpForm *form, const bool *use, const int32_t *members, int32_t n, const int32_t *place, double sweeps, double *h) {
    Arena *arena = arena_new(0);
    MdpForm chain;
    int32_t home = 0;
    bool solved = arena && chain_make(form, use, members, n, place, h, arena, &chain, &home);
    double *a = solved ? form_vector(&chain, arena) : NULL, *t = solved ? form_vector(&chain, arena) : NULL,
           *scratch = solved ? form_vector(&chain, arena) : NULL;
    int64_t *rows = solved ? arena_alloc(arena, (size_t)n * sizeof *rows) : NULL;
    solved = solved && a && t && scratch && rows;
    if (solved) {
        for (int32_t i = 0; i < n; i++) rows[i] = i;
        double left = sweeps;
        solved = form_policy_jump(&chain, rows, 0, &left, a, scratch) == JUMP_SOLVED;
        for (int32_t i = 0; i < n; i++) chain.reward[i] = 1;
        left = sweeps;
        solved = solved && form_policy_jump(&chain, rows, 0, &left, t, scratch) == JUMP_SOLVED && t[home] >= 1;
        double gain = solved ? a[home] / t[home] : 0;
        for (int32_t i = 0; i < n && solved; i++) solved = isfinite(a[i] - gain * t[i]);
        for (int32_t i = 0; i < n && solved; i++) h[members[i]] = i == home ? 0 : a[i] - gain * t[i];
    }
    arena_free(arena);
    return solved;
}
