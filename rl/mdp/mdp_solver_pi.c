/* Policy iteration (Howard 1960): the values of a policy, then in each state the best action by those values, where it is better by more than
 * rounding; else two actions that are as good could take turns for ever. */
#include "rl/mdp/mdp_form.h"

#include <math.h>

Status mdp_solver_pi(MdpWork *work, MdpSolution *solution) {
    const MdpForm *form = work->form;
    (void)solution;
    int64_t *rows = arena_alloc(work->arena, ((size_t)form->n + 1) * sizeof *rows), changed;
    if (!rows) return ST_RESOURCE;
    for (int32_t s = 0; s < form->n; s++) rows[s] = form->home_row && work->iterations == 0 ? form->home_row[s] : -1;
    if (!form->home_row || work->iterations > 0) form_improve(form, work->V, 0, rows);
    do {
        TRY(form_policy_values(form, rows, NULL, form->gamma, work->target, work->V, NULL));
        work->iterations++;
        double margin = fmax(2 * form_rounding(form, work->V), form->n > FORM_DIRECT ? 2 * work->target : 0);
        changed = form_improve(form, work->V, margin, rows);
    } while (changed > 0 && work->iterations < work->limit && !interrupt_requested());
    return ST_OK;
}
