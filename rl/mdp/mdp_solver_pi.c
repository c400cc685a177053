/* SPDX-License-Identifier: Apache-2.0 */
/* Policy iteration (Howard 1960): computes the values of a policy, then takes in each state the best action by those values if it is better by more
 * than rounding; otherwise two equally good actions could alternate for ever. The margin uses the rounding of the two actions, not of the whole
 * world: a single huge reward elsewhere would hide real differences. */
#include "lib/base/system.h"
#include "rl/mdp/mdp_form.h"

#include <math.h>

static double total(const MdpForm *form, const double *V) {
    double sum = 0;
    for (int32_t s = 0; s < form->n; s++) sum += V[s];
    return sum;
}

Status mdp_solver_pi(MdpWork *work, MdpSolution *solution) {
    const MdpForm *form = work->form;
    (void)solution;
    int64_t *rows = arena_alloc(work->arena, ((size_t)form->n + 1) * sizeof *rows), changed;
    Margin margin = {.least = form->n > FORM_DIRECT ? 2 * work->target : 0, .times = 1};
    double before = -(double)INFINITY;
    if (!rows) return ST_RESOURCE;
    for (int32_t s = 0; s < form->n; s++) rows[s] = form->proper_row && work->iterations == 0 ? form->proper_row[s] : -1;
    if (!form->proper_row || work->iterations > 0) form_improve(form, work->V, (Margin){0}, rows);
    do {
        TRY(form_policy_values(form, rows, NULL, form->gamma, work->target, work->V, NULL));
        work->iterations++;
        double now = total(form, work->V);
        if (!(now > before)) margin.times *= 2; /* the improvement was rounding of the equations: a larger margin ends the iteration */
        before = now;
        changed = form_improve(form, work->V, margin, rows);
    } while (changed > 0 && work->iterations < work->limit && !interrupt_requested());
    return ST_OK;
}
