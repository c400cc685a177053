/* Sweeps over all states. A sweep reads every entry once, 12 bytes each, and is bound by that; values are gathered from a vector that stays in cache. States are independent of each other, so
 * that threads change nothing. */
#include "rl/mdp_form.h"

#include <math.h>

enum { BLOCK = 1024 };

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

/* Two sums, so that additions do not wait for each other; `n` is a constant where it matters. */
INLINE double expect(const int32_t *next, const double *p, int64_t n, const double *V) {
    double even = 0, odd = 0;
    int64_t k = 0;
    for (; k + 1 < n; k += 2) {
        even += p[k] * V[next[k]];
        odd += p[k + 1] * V[next[k + 1]];
    }
    if (k < n) even += p[k] * V[next[k]];
    return even + odd;
}

INLINE double row_q(const MdpForm *form, int64_t row, int64_t fan, const double *V) {
    int64_t begin = fan ? row * fan : form->begin[row], n = fan ? fan : form->begin[row + 1] - begin;
    return form->reward[row] + form->gamma * expect(form->next + begin, form->probability + begin, n, V);
}

/* Which rows of a state are looked at: all, all with the best one kept in `rows`, or that of `rows` alone. */
typedef enum Look { LOOK_ALL, LOOK_GREEDY, LOOK_POLICY } Look;

/* In a large world values are gathered from all over a vector that the first caches cannot hold, each from a place that only its entry tells: rows that come `near` soon have their values fetched
 * now, and those `far` behind them their entries, in a way that does not push values out of the cache: a sweep reads an entry once. Twice as fast with 10^6 states, and nothing but hints. */
enum { NEAR_ENTRIES = 128, FAR_ENTRIES = 512, LARGE = 1 << 15 };

INLINE void fetch_ahead(const MdpForm *form, Look look, const int64_t *rows, int64_t s, int64_t row, int64_t fan, const double *V) {
#if defined(__GNUC__)
    int64_t near = row + NEAR_ENTRIES / fan, far = row + FAR_ENTRIES / fan;
    if (look == LOOK_POLICY) {
        near = s + NEAR_ENTRIES / fan < form->n ? rows[s + NEAR_ENTRIES / fan] : row;
        far = s + FAR_ENTRIES / fan < form->n ? rows[s + FAR_ENTRIES / fan] : row;
    } else if (far >= form->n_rows) return;
    const int32_t *next = form->next + near * fan;
    for (int64_t k = 0; k < fan; k++) __builtin_prefetch(V + next[k], 0, 3);
    __builtin_prefetch(form->next + far * fan, 0, 0);
    __builtin_prefetch(form->probability + far * fan, 0, 0);
#else
    (void)form, (void)look, (void)rows, (void)s, (void)row, (void)fan, (void)V;
#endif
}

INLINE void change_add(Change *change, double difference) {
    if (difference < change->least) change->least = difference;
    if (difference > change->most) change->most = difference;
}

INLINE void sweep_states(const MdpForm *form, Look look, int64_t *rows, int64_t first, int64_t end, int64_t fan, const double *V, double *new_V, Change *change) {
    bool ahead = fan && form->n >= LARGE;
    for (int64_t s = first; s < end; s++) {
        if (!form_is_live(form, s)) {
            new_V[s] = 0;
            continue;
        }
        int64_t row = look == LOOK_POLICY ? rows[s] : form_first(form, s), last = look == LOOK_POLICY ? row : form_first(form, s + 1) - 1, best_row = row;
        if (ahead) fetch_ahead(form, look, rows, s, row, fan, V);
        double best = row_q(form, row, fan, V);
        for (row++; row <= last; row++) {
            if (ahead) fetch_ahead(form, look, rows, s, row, fan, V);
            double q = row_q(form, row, fan, V);
            if (q > best) {
                best = q;
                best_row = row;
            }
        }
        if (look == LOOK_GREEDY) rows[s] = best_row;
        change_add(change, best - V[s]);
        new_V[s] = best;
    }
}

/* Rows of a few usual lengths have loops of their own. */
INLINE void sweep_block(const MdpForm *form, Look look, int64_t *rows, int64_t first, int64_t end, const double *V, double *new_V, Change *change) {
    switch (form->fan) {
    case 1: sweep_states(form, look, rows, first, end, 1, V, new_V, change); break;
    case 2: sweep_states(form, look, rows, first, end, 2, V, new_V, change); break;
    case 3: sweep_states(form, look, rows, first, end, 3, V, new_V, change); break;
    case 4: sweep_states(form, look, rows, first, end, 4, V, new_V, change); break;
    case 8: sweep_states(form, look, rows, first, end, 8, V, new_V, change); break;
    default: sweep_states(form, look, rows, first, end, 0, V, new_V, change);
    }
}

INLINE Change sweep(const MdpForm *form, Look look, int64_t *rows, const double *V, double *new_V) {
    int64_t blocks = (form->n + BLOCK - 1) / BLOCK;
    double least = (double)INFINITY, most = -(double)INFINITY;
#pragma omp parallel for schedule(dynamic, 4) reduction(min : least) reduction(max : most) if (blocks > 4)
    for (int64_t block = 0; block < blocks; block++) {
        Change change = {(double)INFINITY, -(double)INFINITY};
        sweep_block(form, look, rows, block * BLOCK, MIN(form->n, (block + 1) * BLOCK), V, new_V, &change);
        if (change.least < least) least = change.least;
        if (change.most > most) most = change.most;
    }
    new_V[form->n] = 0;
    return least <= most ? (Change){least, most} : (Change){0, 0};
}

Change form_sweep(const MdpForm *form, const double *V, double *new_V) { return sweep(form, LOOK_ALL, NULL, V, new_V); }
Change form_sweep_greedy(const MdpForm *form, const double *V, double *new_V, int64_t *rows) { return sweep(form, LOOK_GREEDY, rows, V, new_V); }
Change form_sweep_policy(const MdpForm *form, int64_t *rows, const double *V, double *new_V) { return sweep(form, LOOK_POLICY, rows, V, new_V); }

double form_best(const MdpForm *form, int64_t state, const double *V, int64_t *best_row) {
    int64_t row = form_first(form, state), end = form_first(form, state + 1), best = row;
    double value = row_q(form, row, 0, V);
    for (row++; row < end; row++) {
        double q = row_q(form, row, 0, V);
        if (q > value) {
            value = q;
            best = row;
        }
    }
    if (best_row) *best_row = best;
    return value;
}

int64_t form_improve(const MdpForm *form, const double *V, double margin, int64_t *rows) {
    int64_t changed = 0;
#pragma omp parallel for schedule(static, BLOCK) reduction(+ : changed) if (form->n > 4 * BLOCK)
    for (int64_t s = 0; s < form->n; s++) {
        if (!form_is_live(form, s)) continue;
        int64_t best;
        double value = form_best(form, s, V, &best);
        if (rows[s] >= 0 && !(value > row_q(form, rows[s], 0, V) + margin)) continue;
        changed += rows[s] != best;
        rows[s] = best;
    }
    return changed;
}
