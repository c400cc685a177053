/* SPDX-License-Identifier: Apache-2.0 */
/* Value iteration: V becomes TV. If no row ends an episode, the remaining error is known once the changes of all states are nearly equal: it is
 * added, so the changes need not become small. */
#include "lib/base/system.h"
#include "rl/mdp/mdp_form.h"

/* Tiles save more than action elimination does. */
static Status vi_tile(MdpWork *work) {
    MdpForm *form = arena_alloc(work->arena, sizeof *form);
    if (!form) return ST_RESOURCE;
    *form = *work->form;
    work->form = form;
    return !form->tiles && form_gains_by_tiles(form, near_cache_bytes()) ? form_tile(form) : ST_OK;
}

Status mdp_solver_vi(MdpWork *work, MdpSolution *solution) {
    (void)solution;
    TRY(vi_tile(work));
    const MdpForm *form = work->form;
    double *other = form_vector(form, work->arena);
    ActionElimination elimination;
    if (!other) return ST_RESOURCE;
    TRY(elimination_init(form, form->tiles ? NULL : work->Q, work->arena, &elimination));
    while (true) {
        Change change = form_sweep_eliminating(form, (Sweep){.V = work->V, .new_V = other}, &elimination);
        double *old = work->V;
        work->V = other;
        other = old;
        work->iterations++;
        if (work_is_done(work, change_size(change))) return ST_OK;
        if (!changes_are_alike(form, change, work->target)) continue;
        add_missing(form, change, work->V);
        return ST_OK;
    }
}
