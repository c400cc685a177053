/* SPDX-License-Identifier: Apache-2.0 */
/* Gauss-Seidel value iteration, in the order of the states and in one thread: each backup sees the newest values. */
#include "rl/mdp/mdp_form.h"

#include <math.h>

Status mdp_solver_gs(MdpWork *work, MdpSolution *solution) {
    const MdpForm *form = work->form;
    (void)solution;
    double change;
    do {
        change = 0;
        for (int32_t s = 0; s < form->n; s++) change = fmax(change, form_set_best(form, s, work->V));
        work->iterations++;
    } while (!work_is_done(work, change));
    return ST_OK;
}
