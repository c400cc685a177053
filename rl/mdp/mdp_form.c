/* SPDX-License-Identifier: Apache-2.0 */
/* Converts an Mdp to rows with expected rewards. */
#include "rl/mdp/mdp_form.h"

#include <math.h>

double *form_vector(const MdpForm *form, Arena *arena) { return arena_zero(arena, ((size_t)form->n + 1) * sizeof(double)); }

/* Fills the form, borrowing what it can: an outcome that ends the episode leads to state n. */
static Status redirect_ends(const Mdp *mdp, Arena *arena, MdpForm *form) {
    form->next = mdp->next;
    if (!mdp->ends) return ST_OK;
    int64_t entries = form->begin[form->n_rows];
    int32_t *next = arena_alloc(arena, (size_t)entries * sizeof *next);
    if (!next) return ST_RESOURCE;
    for (int64_t k = 0; k < entries; k++) next[k] = mdp->ends[k] ? mdp->n_states : mdp->next[k];
    form->next = next;
    return ST_OK;
}

/* Sizes of one block of rows; all are maxima, so blocks can be combined in any order. */
typedef struct Sizes {
    double mass, imbalance, reward_size;
    int64_t longest;
    bool closed, even;
} Sizes;

/* Probability of continuing: less than the sum if an outcome ends the episode. */
static double row_mass(const MdpForm *form, const double *probability, const int32_t *next, int64_t n, bool *closed) {
    double mass = 0;
    for (int64_t k = 0; k < n; k++) {
        if (next[k] < form->n && form_is_nonterminal(form, next[k]))
            mass += probability[k];
        else
            *closed = false;
    }
    return mass;
}

static void row_sizes(const Mdp *mdp, MdpForm *form, int64_t row, Sizes *sizes) {
    int64_t begin = form->begin[row], n = form->begin[row + 1] - begin;
    const double *p = mdp->probability + begin, *r = mdp->reward + begin;
    double reward = 0, size = 0, sum = 0;
    for (int64_t k = 0; k < n; k++) {
        reward += p[k] * r[k];
        size += p[k] * fabs(r[k]);
        sum += p[k];
    }
    double mass = form->ended || mdp->ends ? row_mass(form, p, form->next + begin, n, &sizes->closed) : sum;
    form->reward[row] = reward;
    form->row_size[row] = size;
    sizes->mass = MAX(sizes->mass, mass);
    sizes->imbalance = MAX(sizes->imbalance, fabs(sum - 1));
    sizes->reward_size = MAX(sizes->reward_size, size);
    sizes->longest = MAX(sizes->longest, n);
}

static void mdp_form_measure(const Mdp *mdp, MdpForm *form) {
    int64_t size = MIN(1 << 14, form->n / 16 + 1), blocks = (form->n + size - 1) / size;
    Sizes all = {.closed = true, .even = true};
    form->branching = (int32_t)MIN(form->begin[1], INT32_MAX);
#pragma omp parallel for schedule(dynamic) if (form_is_worth_threads(form))
    for (int64_t block = 0; block < blocks; block++) {
        Sizes own = {.closed = true, .even = true};
        for (int64_t s = block * size; s < MIN(form->n, (block + 1) * size); s++) {
            bool live = form_is_nonterminal(form, s);
            for (int64_t row = form_first(form, s); row < form_first(form, s + 1); row++) {
                if (live)
                    row_sizes(mdp, form, row, &own);
                else
                    form->reward[row] = form->row_size[row] = 0;
                if (form->begin[row] != row * form->branching || form->begin[row + 1] - form->begin[row] != form->branching) own.even = false;
            }
        }
#pragma omp critical(mdp_form_sizes)
        {
            all.mass = MAX(all.mass, own.mass);
            all.imbalance = MAX(all.imbalance, own.imbalance);
            all.reward_size = MAX(all.reward_size, own.reward_size);
            all.longest = MAX(all.longest, own.longest);
            all.closed &= own.closed;
            all.even &= own.even;
        }
    }
    form->mass = all.mass;
    form->imbalance = all.imbalance;
    form->reward_size = all.reward_size;
    form->longest = all.longest;
    form->closed = all.closed;
    if (!all.even) form->branching = 0;
}

/* In a world that fits into a cache, loops of constant length are twice as fast: short rows are padded with outcomes of probability 0. */
static Status even_out(MdpForm *form, Arena *arena) {
    enum { SMALL = 1 << 15 };
    int32_t slot = form->longest > 4 ? 8 : (int32_t)form->longest;
    if (form->branching || form->n >= SMALL || form->longest > 8 || form->longest == 0 || form->n_rows * slot > 2 * form->begin[form->n_rows])
        return ST_OK;
    size_t entries = (size_t)form->n_rows * (size_t)slot;
    int64_t *begin = arena_alloc(arena, ((size_t)form->n_rows + 1) * sizeof *begin);
    int32_t *next = arena_alloc(arena, entries * sizeof *next);
    double *probability = arena_alloc(arena, entries * sizeof *probability);
    if (!begin || !next || !probability) return ST_RESOURCE;
    for (int64_t row = 0; row < form->n_rows; row++) {
        int64_t n = form->begin[row + 1] - form->begin[row];
        begin[row] = row * slot;
        for (int64_t k = 0; k < slot; k++) {
            next[row * slot + k] = k < n ? form->next[form->begin[row] + k] : form->n;
            probability[row * slot + k] = k < n ? form->probability[form->begin[row] + k] : 0;
        }
    }
    begin[form->n_rows] = (int64_t)entries;
    form->begin = begin;
    form->next = next;
    form->probability = probability;
    form->branching = slot;
    return ST_OK;
}

/* Drops rows of actions that do not exist in their state: a row without entries would end the episode with reward 0. */
static Status keep_choices(const Mdp *mdp, Arena *arena, MdpForm *form) {
    bool all = true;
    for (int32_t s = 0; s < mdp->n_states && all; s++)
        for (int32_t a = 0; a < mdp->n_actions && all && !mdp->terminal[s]; a++) all = mdp_has(mdp, s, a);
    if (all) return ST_OK;
    int64_t *rows = arena_alloc(arena, ((size_t)form->n + 1) * sizeof *rows), n = 0;
    int64_t *begin = arena_alloc(arena, ((size_t)form->n_rows + 1) * sizeof *begin);
    if (!rows || !begin) return ST_RESOURCE;
    for (int32_t s = 0; s < mdp->n_states; s++) {
        rows[s] = n;
        for (int32_t a = 0; a < mdp->n_actions; a++)
            if (mdp_has(mdp, s, a)) begin[n++] = mdp->begin[(int64_t)s * mdp->n_actions + a];
    }
    rows[form->n] = n;
    begin[n] = mdp->begin[form->n_rows];
    form->rows = rows;
    form->begin = begin;
    form->n_rows = n;
    return ST_OK;
}

Status mdp_form_make(const NamedMdp *world, bool needs_values, Arena *arena, MdpForm *form) {
    const Mdp *mdp = &world->mdp;
    *form = (MdpForm){.n = mdp->n_states,
                      .n_rows = (int64_t)mdp->n_states * mdp->n_actions,
                      .gamma = mdp->gamma,
                      .width = mdp->n_actions,
                      .begin = mdp->begin,
                      .probability = mdp->probability,
                      .arena = arena};
    for (int32_t s = 0; s < mdp->n_states && !form->ended; s++)
        if (mdp->terminal[s]) form->ended = mdp->terminal;
    TRY(keep_choices(mdp, arena, form));
    form->reward = arena_alloc(arena, (size_t)form->n_rows * sizeof *form->reward);
    form->row_size = arena_alloc(arena, (size_t)form->n_rows * sizeof *form->row_size);
    if (!form->reward || !form->row_size) return ST_RESOURCE;
    TRY(redirect_ends(mdp, arena, form));
    mdp_form_measure(mdp, form);
    if (needs_values && mdp->gamma == 1) TRY(form_join(world, form));
    TRY(even_out(form, arena));
    return form_choose_reach(form);
}
