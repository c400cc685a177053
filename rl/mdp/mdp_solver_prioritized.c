/* SPDX-License-Identifier: Apache-2.0 */
/* Prioritised sweeping (Moore and Atkeson 1993) with a known Mdp: a heap orders states by the error of their value; the first is updated, then the
 * errors of its predecessors are recomputed. */
#include "lib/base/system.h"
#include "rl/mdp/mdp_form.h"

#include <math.h>

typedef struct Queue {
    int32_t *heap, *place; /* place[s]: of state s in the heap */
    double *off;           /* (n): |TV - V| */
    int32_t n;
} Queue;

static void prioritized_put(Queue *q, int32_t at, int32_t s) {
    q->heap[at] = s;
    q->place[s] = at;
}

/* Moves a state whose `off` has changed to its place in the heap. */
static void move(Queue *q, int32_t s) {
    int32_t at = q->place[s];
    for (; at > 0 && q->off[q->heap[(at - 1) / 2]] < q->off[s]; at = (at - 1) / 2) prioritized_put(q, at, q->heap[(at - 1) / 2]);
    while (2 * (int64_t)at + 1 < q->n) {
        int32_t child = 2 * at + 1;
        if (child + 1 < q->n && q->off[q->heap[child + 1]] > q->off[q->heap[child]]) child++;
        if (q->off[q->heap[child]] <= q->off[s]) break;
        prioritized_put(q, at, q->heap[child]);
        at = child;
    }
    prioritized_put(q, at, s);
}

/* Predecessors of state i: from[into[i]] .. from[into[i + 1] - 1], possibly with repetitions. */
static Status find_sources(const MdpForm *form, Arena *arena, int64_t **into, int32_t **from) {
    *into = arena_zero(arena, ((size_t)form->n + 3) * sizeof **into);
    *from = arena_alloc(arena, ((size_t)form->begin[form->n_rows] + 1) * sizeof **from);
    int32_t *last = arena_alloc(arena, ((size_t)form->n + 1) * sizeof *last);
    if (!*into || !*from || !last) return ST_RESOURCE;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t s = 0; s <= form->n; s++) last[s] = -1;
        for (int32_t s = 0; s < form->n; s++) {
            if (!form_is_nonterminal(form, s)) continue;
            for (int64_t k = form->begin[form_first(form, s)]; k < form->begin[form_first(form, s + 1)]; k++) {
                int32_t next = form->next[k];
                if (!(form->probability[k] > 0) || last[next] == s) continue;
                last[next] = s;
                if (pass == 0)
                    (*into)[next + 2]++;
                else
                    (*from)[(*into)[next + 1]++] = s;
            }
        }
        if (pass == 0)
            for (int32_t s = 0; s <= form->n; s++) (*into)[s + 2] += (*into)[s + 1];
    }
    return ST_OK;
}

static double off_of(const MdpWork *work, int32_t s) {
    return form_is_nonterminal(work->form, s) ? fabs(form_best(work->form, s, work->V, NULL) - work->V[s]) : 0;
}

Status mdp_solver_prioritized(MdpWork *work, MdpSolution *solution) {
    const MdpForm *form = work->form;
    (void)solution;
    size_t n = (size_t)form->n + 1;
    Queue queue = {arena_alloc(work->arena, n * sizeof *queue.heap), arena_alloc(work->arena, n * sizeof *queue.place),
                   arena_alloc(work->arena, n * sizeof *queue.off), 0};
    int64_t *into;
    int32_t *from;
    TRY(find_sources(form, work->arena, &into, &from));
    if (!queue.heap || !queue.place || !queue.off) return ST_RESOURCE;
    for (int32_t s = 0; s < form->n; s++) {
        queue.off[s] = off_of(work, s);
        prioritized_put(&queue, s, s);
        queue.n = s + 1;
        move(&queue, s); /* sifts up */
    }
    if (work->options->max_iterations == 0) work->limit = INT64_MAX;
    double floor = 0;
    for (int64_t i = 0; work->iterations < work->limit && !interrupt_requested(); i++) {
        int32_t s = queue.heap[0];
        if (i % form->n == 0) {
            floor = form_reward_size(form, work->V);
            for (int32_t k = 0; k < form->n; k++) floor = fmax(floor, fabs(work->V[k]));
            floor *= ((double)form->longest + 4) * UNIT_ROUNDOFF;
        }
        if (queue.off[s] <= fmax(work->target, floor)) break;
        work->V[s] = form_best(form, s, work->V, NULL);
        if (!isfinite(work->V[s])) break; /* solve_values reports the overflow */
        work->iterations++;
        queue.off[s] = off_of(work, s); /* it may be its own predecessor */
        move(&queue, s);
        for (int64_t k = into[s]; k < into[s + 1]; k++) {
            queue.off[from[k]] = off_of(work, from[k]);
            move(&queue, from[k]);
        }
    }
    return ST_OK;
}
