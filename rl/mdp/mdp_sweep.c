/* SPDX-License-Identifier: Apache-2.0 */
/* Sweeps over all states. A sweep reads every entry once, 12 bytes each, and is limited by memory bandwidth; values are gathered from a vector that
 * stays in cache. States are independent of each other, so results do not depend on the number of threads. */
#include "lib/base/system.h"
#include "rl/mdp/mdp_form.h"

#include <math.h>
#include <omp.h>

enum { BLOCK = 1024, LINE = 8 /* doubles per cache line */ };

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

/* Two sums, so that additions do not wait for each other; `n` is a compile-time constant where speed matters. */
INLINE double expect(const int32_t *next, const double *p, int64_t n, const double *V) {
    double even = 0, odd = 0;
    int64_t k = 0;
    for (; k + 3 < n; k += 4) {
        even += p[k] * V[next[k]];
        odd += p[k + 1] * V[next[k + 1]];
        even += p[k + 2] * V[next[k + 2]];
        odd += p[k + 3] * V[next[k + 3]];
    }
    for (; k + 1 < n; k += 2) {
        even += p[k] * V[next[k]];
        odd += p[k + 1] * V[next[k + 1]];
    }
    if (k < n) even += p[k] * V[next[k]];
    return even + odd;
}

/* Entries of a row: first index and number. */
INLINE int64_t row_begin(const MdpForm *form, int64_t row, int64_t branching) { return branching ? row * branching : form->begin[row]; }
INLINE int64_t row_length(const MdpForm *form, int64_t row, int64_t branching) {
    return branching ? branching : form->begin[row + 1] - form->begin[row];
}

INLINE double row_q(const MdpForm *form, int64_t row, int64_t branching, const double *V) {
    int64_t begin = row_begin(form, row, branching);
    return form->reward[row] + form->gamma * expect(form->next + begin, form->probability + begin, row_length(form, row, branching), V);
}

/* In a large world values are gathered from random places of a vector that does not fit into the near caches. So the values of rows some entries
 * ahead are prefetched, and rows further ahead are prefetched themselves into the second-level cache. (Non-temporal prefetch of rows made sweeps 2.4
 * times as slow on one processor, a Xeon with AMX, and slightly faster on another, a Zen 3.) The best cache level for values differs: a Zen 4 ignores
 * most hints for the first level (26.5 ms per sweep of 32 million entries, 21 with the second); on a Zen 5 the first level is faster (12.2 and
 * 15.0). */
enum { LARGE = 1 << 15 };
typedef struct Reach {
    int64_t near, far;
    bool second;
} Reach; /* prefetch distance in entries; whether values go to the second-level cache only */
static const Reach reaches[] = {{48, 512, false}, {192, 1024, true}};

/* The same distances in rows; near 0: no prefetch. */
typedef Reach Ahead;

static Ahead ahead_of(const MdpForm *form, const double *V) {
    int64_t entries = form->begin[form->n_rows];
    if (!V || form->n < LARGE || entries < form->n_rows) return (Ahead){0};
    Reach reach = reaches[form->reach];
    return (Ahead){1 + reach.near * form->n_rows / entries, 1 + reach.far * form->n_rows / entries, reach.second};
}

INLINE void fetch_ahead(const MdpForm *form, Ahead ahead, const bool *eliminated, int64_t row, int64_t branching, const double *V) {
#if defined(__GNUC__)
    int64_t near = row + ahead.near, far = row + ahead.far;
    if (far >= form->n_rows) return;
    if (!eliminated || !eliminated[near]) {
        const int32_t *next = form->next + row_begin(form, near, branching);
        int64_t n = row_length(form, near, branching);
        if (ahead.second)
            for (int64_t k = 0; k < n; k++) __builtin_prefetch(V + next[k], 0, 2);
        else
            for (int64_t k = 0; k < n; k++) __builtin_prefetch(V + next[k], 0, 3);
    }
    if (row % LINE == 0) __builtin_prefetch(form->reward + far, 0, 1);
    if (eliminated && eliminated[far]) return;
    int64_t begin = row_begin(form, far, branching);
    __builtin_prefetch(form->next + begin, 0, 1);
    __builtin_prefetch(form->probability + begin, 0, 1);
#else
    (void)form, (void)ahead, (void)eliminated, (void)row, (void)branching, (void)V;
#endif
}

/* Copies a row of `state`, padded with outcomes of probability 0; writes nothing if it is that row already. */
INLINE void take_row(const MdpForm *form, int64_t row, int64_t state, int64_t branching, FormPolicy *policy) {
    if (policy->rows[state] == row) return;
    policy->rows[state] = row;
    if (!policy->next) return;
    int64_t begin = row_begin(form, row, branching), n = row_length(form, row, branching), slot = branching ? branching : policy->form.branching;
    policy->form.reward[state] = form->reward[row];
    for (int64_t k = 0; k < slot; k++) {
        policy->next[state * slot + k] = k < n ? form->next[begin + k] : form->n;
        policy->probability[state * slot + k] = k < n ? form->probability[begin + k] : 0;
    }
}

/* The form and the sweep are passed by value: the compiler knows that stores to vectors cannot change them, and keeps them in registers. */
INLINE Change sweep_states(MdpForm form, Sweep sweep, Ahead ahead, int64_t first, int64_t end, int64_t branching) {
    const double *V = sweep.V;
    Change change = {(double)INFINITY, -(double)INFINITY};
    for (int64_t s = first; s < end; s++) {
        int64_t row = form_first(&form, s), last = form_first(&form, s + 1) - 1, best_row = -1;
        if (!form_is_nonterminal(&form, s)) {
            for (; sweep.Q && row <= last; row++) sweep.Q[row] = 0;
            sweep.new_V[s] = 0;
            continue;
        }
        double best = 0;
        for (; row <= last; row++) {
            if (ahead.near) fetch_ahead(&form, ahead, sweep.eliminated, row, branching, V);
            if (sweep.eliminated && sweep.eliminated[row]) continue;
            double q = V ? row_q(&form, row, branching, V) : form.reward[row];
            if (sweep.Q) sweep.Q[row] = q;
            if (best_row < 0 || q > best) {
                best = q;
                best_row = row;
            }
        }
        if (sweep.policy) take_row(&form, best_row, s, branching, sweep.policy);
        double difference = best - (V ? V[s] : 0);
        change.least = MIN(change.least, difference);
        change.most = MAX(change.most, difference);
        sweep.new_V[s] = best;
    }
    return change;
}

/* Separate loops for a few common row lengths, and for sweeps that compute only values. */
static Change sweep_block(const MdpForm *form, Sweep sweep, Ahead ahead, int64_t first, int64_t end) {
    if (!sweep.Q && !sweep.policy && !sweep.eliminated && form->branching == 8)
        return sweep_states(*form, (Sweep){.V = sweep.V, .new_V = sweep.new_V}, ahead, first, end, 8);
    switch (form->branching) {
    case 1: return sweep_states(*form, sweep, ahead, first, end, 1);
    case 2: return sweep_states(*form, sweep, ahead, first, end, 2);
    case 3: return sweep_states(*form, sweep, ahead, first, end, 3);
    case 4: return sweep_states(*form, sweep, ahead, first, end, 4);
    case 8: return sweep_states(*form, sweep, ahead, first, end, 8);
    default: return sweep_states(*form, sweep, ahead, first, end, 0);
    }
}

bool form_is_worth_threads(const MdpForm *form) { return form->begin[form->n_rows] >= 4096 + 1024 * (int64_t)omp_get_max_threads(); }

/* Sweeps the states from `first` on. */
static Change sweep_range(const MdpForm *form, Sweep sweep, int64_t first, int64_t end) {
    Ahead ahead = ahead_of(form, sweep.V);
    if (!form_is_worth_threads(form)) return sweep_block(form, sweep, ahead, first, end);
    int64_t size = MIN(BLOCK, (end - first) / 64 + 1), blocks = (end - first + size - 1) / size;
    double least = (double)INFINITY, most = -(double)INFINITY;
#pragma omp parallel for schedule(dynamic, 4) reduction(min : least) reduction(max : most)
    for (int64_t block = 0; block < blocks; block++) {
        Change change = sweep_block(form, sweep, ahead, first + block * size, MIN(end, first + (block + 1) * size));
        if (change.least < least) least = change.least;
        if (change.most > most) most = change.most;
    }
    return (Change){least, most};
}

/* Times consecutive parts of the world in turn, so that none is in a cache; expected rewards serve as values, which are all in the third-level cache
 * after the first turn. */
Status form_choose_reach(MdpForm *form) {
    enum { ROUNDS = 4, PART = 1 << 20, KINDS = COUNT_OF(reaches) };
    int64_t entries = form->begin[form->n_rows], states = PART * (int64_t)form->n / MAX(entries, (int64_t)1) + 1;
    if (form->n < LARGE || form->n_rows <= form->n || states * ROUNDS * KINDS > form->n) return ST_OK;
    double *scratch = arena_alloc(form->arena, (size_t)states * ROUNDS * KINDS * sizeof *scratch), best[KINDS];
    if (!scratch) return ST_RESOURCE;
    for (int64_t part = 0; part < ROUNDS * KINDS; part++) {
        int kind = form->reach = (int)(part % KINDS);
        double start = clock_seconds();
        sweep_range(form, (Sweep){.V = form->reward, .new_V = scratch}, part * states, (part + 1) * states);
        double seconds = clock_seconds() - start;
        if (part < 2 * KINDS || seconds < best[kind]) best[kind] = seconds;
    }
    form->reach = 0;
    for (int kind = 1; kind < KINDS; kind++)
        if (best[kind] < best[form->reach]) form->reach = kind;
    return ST_OK;
}

Change form_sweep(const MdpForm *form, Sweep sweep) {
    Change change = {(double)INFINITY, -(double)INFINITY};
    if (form->tiles && sweep.V && !sweep.eliminated && !sweep.policy)
        change = form_sweep_tiles(form, sweep, change);
    else
        change = sweep_range(form, sweep, 0, form->n);
    sweep.new_V[form->n] = 0;
    return change.least <= change.most ? change : (Change){0, 0};
}

Status form_policy_init(const MdpForm *form, Arena *arena, FormPolicy *policy) {
    int64_t slot = form->branching ? form->branching : form->longest;
    size_t n = (size_t)form->n, entries = n * (size_t)slot;
    *policy = (FormPolicy){.rows = arena_alloc(arena, (n + 1) * sizeof *policy->rows)};
    if (!policy->rows) return ST_RESOURCE;
    for (size_t s = 0; s < n; s++) policy->rows[s] = -1;
    /* Row lengths differ too much: use the rows in place */
    if (slot > INT32_MAX || (double)entries * (double)form->n_rows > 2 * (double)form->begin[form->n_rows] * (double)n) return ST_OK;
    int64_t *begin = arena_alloc(arena, (n + 1) * sizeof *begin);
    double *reward = arena_alloc(arena, (n + 1) * sizeof *reward);
    policy->next = arena_alloc(arena, (entries + 1) * sizeof *policy->next);
    policy->probability = arena_alloc(arena, (entries + 1) * sizeof *policy->probability);
    if (!begin || !reward || !policy->next || !policy->probability) return ST_RESOURCE;
    for (size_t s = 0; s <= n; s++) begin[s] = (int64_t)s * slot;
    policy->form = *form;
    policy->form.n_rows = form->n;
    policy->form.rows = NULL;
    policy->form.tiles = NULL;
    policy->form.width = 1;
    policy->form.begin = begin;
    policy->form.branching = (int32_t)slot;
    policy->form.next = policy->next;
    policy->form.probability = policy->probability;
    policy->form.reward = reward;
    policy->form.row_size = NULL;
    return ST_OK;
}

static Change sweep_in_place(const MdpForm *form, const int64_t *rows, const double *V, double *new_V) {
    double least = (double)INFINITY, most = -(double)INFINITY;
#pragma omp parallel for schedule(static, BLOCK) reduction(min : least) reduction(max : most) if (form->n > 4 * BLOCK)
    for (int64_t s = 0; s < form->n; s++) {
        new_V[s] = form_is_nonterminal(form, s) ? row_q(form, rows[s], 0, V) : 0;
        if (!form_is_nonterminal(form, s)) continue;
        if (new_V[s] - V[s] < least) least = new_V[s] - V[s];
        if (new_V[s] - V[s] > most) most = new_V[s] - V[s];
    }
    new_V[form->n] = 0;
    return least <= most ? (Change){least, most} : (Change){0, 0};
}

Change form_sweep_policy(const MdpForm *form, const FormPolicy *policy, const double *V, double *new_V) {
    return policy->next ? form_sweep(&policy->form, (Sweep){.V = V, .new_V = new_V}) : sweep_in_place(form, policy->rows, V, new_V);
}

/* ---- action elimination ---- */

Status elimination_init(const MdpForm *form, double *Q, Arena *arena, ActionElimination *elimination) {
    *elimination = (ActionElimination){.Q = Q, .uncertainty = (double)INFINITY, .used = (double)INFINITY};
    if (!Q) return ST_OK;
    elimination->eliminated = arena_zero(arena, (size_t)form->n_rows + 1);
    return elimination->eliminated ? ST_OK : ST_RESOURCE;
}

static double doubt_after(const MdpForm *form, Change change) {
    double shrink = form->closed ? form->gamma : form->gamma * form->mass, least = form->closed ? change.least : MIN(change.least, 0),
           most = form->closed ? change.most : MAX(change.most, 0);
    return shrink < 1 ? form->gamma * (most - least) / (1 - shrink) : (double)INFINITY;
}

static void leave_out(const MdpForm *form, const double *V, const ActionElimination *elimination) {
    const double *Q = elimination->Q, uncertainty = elimination->uncertainty;
    bool *eliminated = elimination->eliminated; /* local copies: the compiler must assume that stores through `elimination` change its pointers */
#pragma omp parallel for schedule(static, BLOCK) if (form->n > 4 * BLOCK)
    for (int64_t s = 0; s < form->n; s++) {
        double least = V[s] - uncertainty;
        int64_t end = form_first(form, s + 1);
        for (int64_t row = form_first(form, s); row < end; row++) eliminated[row] |= Q[row] < least;
    }
}

/* Elimination costs a little, so it runs only when the uncertainty is much smaller than at the last time. */
Change form_sweep_eliminating(const MdpForm *form, Sweep sweep, ActionElimination *elimination) {
    bool narrow = elimination->uncertainty < form->reward_size && elimination->uncertainty < 0.25 * elimination->used;
    sweep.eliminated = isfinite(elimination->used) ? elimination->eliminated : NULL;
    if (narrow) sweep.Q = elimination->Q;
    Change change = form_sweep(form, sweep);
    elimination->uncertainty = elimination->Q ? doubt_after(form, change) : (double)INFINITY;
    if (!narrow) return change;
    elimination->used = elimination->uncertainty;
    leave_out(form, sweep.new_V, elimination);
    return change;
}

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

double form_set_best(const MdpForm *form, int64_t state, double *V) {
    if (!form_is_nonterminal(form, state)) return 0;
    double old = V[state];
    V[state] = form_best(form, state, V, NULL);
    return fabs(V[state] - old);
}

/* The first best row of a state if that is better than `row` by the margin, else `row`. */
static int64_t better_row(const MdpForm *form, int64_t state, int64_t row, const double *V, Margin margin) {
    int64_t best;
    double value = form_best(form, state, V, &best);
    if (row < 0) return best;
    double more = value - row_q(form, row, 0, V);
    return more > margin.least && more > margin.times * (form_row_rounding(form, row, V) + form_row_rounding(form, best, V)) ? best : row;
}

int64_t form_improve(const MdpForm *form, const double *V, Margin margin, int64_t *rows) {
    int64_t changed = 0;
#pragma omp parallel for schedule(static, BLOCK) reduction(+ : changed) if (form->n > 4 * BLOCK)
    for (int64_t s = 0; s < form->n; s++) {
        if (!form_is_nonterminal(form, s)) continue;
        int64_t row = better_row(form, s, rows[s], V, margin);
        changed += rows[s] != row;
        rows[s] = row;
    }
    return changed;
}

int64_t form_count_better(const MdpForm *form, const double *V, Margin margin, const int64_t *rows) {
    int64_t better = 0;
#pragma omp parallel for schedule(static, BLOCK) reduction(+ : better) if (form->n > 4 * BLOCK)
    for (int64_t s = 0; s < form->n; s++)
        if (form_is_nonterminal(form, s)) better += better_row(form, s, rows[s], V, margin) != rows[s];
    return better;
}
