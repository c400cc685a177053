/* SPDX-License-Identifier: Apache-2.0 */
/* With gamma 1 a policy of best actions may earn less than V: if waiting costs nothing, waiting is as good as going on, but a policy that always
 * waits never arrives. A policy earns V if from every state it moves, with some probability, closer to an end, or to states of value 0 in which it
 * can stay for reward 0. */
#include "rl/mdp/mdp_parts.h"

#include <math.h>

typedef struct Way {
    const Mdp *mdp;
    const bool *allowed;   /* (rows) */
    int32_t *action;       /* (n): the action with which each state makes progress; -1: not found, or terminal */
    bool *settled;         /* (n): terminal, or known to make progress */
    int64_t *begin, *rows; /* (n + 1), (entries): allowed rows that lead to a state */
    int32_t *queue;        /* (n) */
} Way;

static bool leads(const Mdp *mdp, int64_t k) { return mdp->probability[k] > 0 && !(mdp->ends && mdp->ends[k]); }

/* Whether the row's expected reward is 0 up to rounding, as in mdp_graph.c; so is that of a fair bet. */
static bool stays_for_nothing(const Way *way, int64_t row) {
    const Mdp *mdp = way->mdp;
    double sum = 0, size = 0;
    for (int64_t k = mdp->begin[row]; k < mdp->begin[row + 1]; k++) {
        if (!(mdp->probability[k] > 0)) continue;
        if (leads(mdp, k) && !way->settled[mdp->next[k]]) return false;
        sum += mdp->probability[k] * mdp->reward[k];
        size += mdp->probability[k] * fabs(mdp->reward[k]);
    }
    return fabs(sum) <= (double)(mdp->begin[row + 1] - mdp->begin[row] + 1) * UNIT_ROUNDOFF * size;
}

/* Settles the largest set of states with value 0 in which every state has an allowed row with reward 0 that stays in the set. */
static void settle_idle(const Way *way, const double *V, double tolerance) {
    const Mdp *mdp = way->mdp;
    for (int32_t s = 0; s < mdp->n_states; s++) way->settled[s] = mdp->terminal[s] || fabs(V[s]) <= tolerance;
    for (bool changed = true; changed;) {
        changed = false;
        for (int32_t s = 0; s < mdp->n_states; s++) {
            if (!way->settled[s] || mdp->terminal[s]) continue;
            way->action[s] = -1;
            for (int32_t a = 0; a < mdp->n_actions && way->action[s] < 0; a++) {
                int64_t row = (int64_t)s * mdp->n_actions + a;
                if (way->allowed[row] && stays_for_nothing(way, row)) way->action[s] = a;
            }
            if (way->action[s] >= 0) continue;
            way->settled[s] = false;
            changed = true;
        }
    }
}

static Status index_rows(Way *way, Arena *arena) {
    const Mdp *mdp = way->mdp;
    int64_t n_rows = (int64_t)mdp->n_states * mdp->n_actions;
    way->begin = arena_zero(arena, ((size_t)mdp->n_states + 2) * sizeof *way->begin);
    if (!way->begin) return ST_RESOURCE;
    for (int64_t row = 0; row < n_rows; row++)
        for (int64_t k = mdp->begin[row]; way->allowed[row] && k < mdp->begin[row + 1]; k++) way->begin[mdp->next[k] + 2] += leads(mdp, k);
    for (int32_t s = 0; s <= mdp->n_states; s++) way->begin[s + 1] += way->begin[s];
    way->rows = arena_alloc(arena, ((size_t)way->begin[mdp->n_states + 1] + 1) * sizeof *way->rows);
    if (!way->rows) return ST_RESOURCE;
    for (int64_t row = 0; row < n_rows; row++)
        for (int64_t k = mdp->begin[row]; way->allowed[row] && k < mdp->begin[row + 1]; k++)
            if (leads(mdp, k)) way->rows[way->begin[mdp->next[k] + 1]++] = row;
    return ST_OK;
}

static bool ends_sometimes(const Mdp *mdp, int64_t row) {
    for (int64_t k = mdp->begin[row]; k < mdp->begin[row + 1]; k++)
        if (mdp->probability[k] > 0 && mdp->ends && mdp->ends[k]) return true;
    return false;
}

/* Backwards breadth-first search from the settled states. True if it reaches every state. */
static bool go_back(const Way *way) {
    const Mdp *mdp = way->mdp;
    int64_t n = 0;
    for (int32_t s = 0; s < mdp->n_states; s++) {
        for (int32_t a = 0; a < mdp->n_actions && !way->settled[s]; a++) {
            int64_t row = (int64_t)s * mdp->n_actions + a;
            if (!way->allowed[row] || !ends_sometimes(mdp, row)) continue;
            way->action[s] = a;
            way->settled[s] = true;
        }
        if (way->settled[s]) way->queue[n++] = s;
    }
    for (int64_t i = 0; i < n; i++) {
        for (int64_t k = way->begin[way->queue[i]]; k < way->begin[way->queue[i] + 1]; k++) {
            int32_t from = (int32_t)(way->rows[k] / mdp->n_actions);
            if (way->settled[from]) continue;
            way->action[from] = (int32_t)(way->rows[k] % mdp->n_actions);
            way->settled[from] = true;
            way->queue[n++] = from;
        }
    }
    return n == mdp->n_states;
}

static Status find_way(Way *way, const double *V, double tolerance, Arena *scratch, bool *found) {
    size_t n = (size_t)way->mdp->n_states;
    way->settled = arena_zero(scratch, n);
    way->queue = arena_alloc(scratch, n * sizeof *way->queue);
    if (!way->settled || !way->queue) return ST_RESOURCE;
    for (size_t s = 0; s < n; s++) way->action[s] = -1;
    settle_idle(way, V, tolerance);
    TRY(index_rows(way, scratch));
    *found = go_back(way);
    return ST_OK;
}

static void allow(const Mdp *mdp, const MdpSolution *solution, double near, bool *allowed) {
    for (int32_t s = 0; s < mdp->n_states; s++) {
        const double *q = solution->Q + (int64_t)s * mdp->n_actions;
        for (int32_t a = 0; a < mdp->n_actions; a++)
            allowed[(int64_t)s * mdp->n_actions + a] =
                !mdp->terminal[s] && (near < 0 ? a == solution->policy[s] : q[a] >= q[solution->policy[s]] - near);
    }
}

static Status attain(const Mdp *mdp, Arena *arena, Arena *scratch, MdpSolution *solution) {
    size_t n = (size_t)mdp->n_states;
    bool *allowed = arena_alloc(scratch, n * (size_t)mdp->n_actions), found;
    int32_t *action = arena_alloc(arena, n * sizeof *action);
    if (!allowed || !action) return ST_RESOURCE;
    double size = 0;
    for (size_t s = 0; s < n; s++) size = fmax(size, fabs(solution->V[s]));
    double near = 1e-9 * fmin(1, size); /* relative where all values are small */
    if (isfinite(solution->bound)) near = fmax(near, 2 * solution->bound);
    Way way = {.mdp = mdp, .allowed = allowed, .action = action};
    allow(mdp, solution, -1, allowed);
    TRY(find_way(&way, solution->V, near, scratch, &found));
    solution->policy_attains = found;
    if (found) return ST_OK;
    allow(mdp, solution, near, allowed);
    TRY(find_way(&way, solution->V, near, scratch, &found));
    if (found) solution->attaining = action;
    return ST_OK;
}

Status mdp_attain(const Mdp *mdp, Arena *arena, MdpSolution *solution) {
    Arena *scratch = arena_new(0);
    if (!scratch) return ST_RESOURCE;
    Status status = attain(mdp, arena, scratch, solution);
    arena_free(scratch);
    return status;
}
