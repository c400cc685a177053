/* SPDX-License-Identifier: Apache-2.0 */
/* Finite horizon: backward induction from the last step. Works for any gamma. */
#include "lib/base/system.h"
#include "rl/mdp/mdp_form.h"

#include <math.h>
#include <string.h>

Status mdp_solver_horizon(MdpWork *work, MdpSolution *solution) {
    const Mdp *mdp = &work->world->mdp;
    const MdpForm *form = work->form;
    size_t n = (size_t)mdp->n_states, steps = (size_t)work->options->horizon, size;
    if (!size_mul(n * sizeof(double), steps + 1, &size) || size > memory_available() / 2)
        return status_fail(ST_RESOURCE, "values of %zu steps of %zu states do not fit into memory", steps, n);
    solution->step_V = arena_zero(work->answer_arena, size);
    solution->step_policy = arena_alloc(work->answer_arena, steps * n * sizeof(int32_t));
    if (!solution->step_V || !solution->step_policy) return ST_RESOURCE;
    double off = 0;
    solution->bound = 0;
    for (size_t t = steps; t-- > 0 && !interrupt_requested();) {
        double *V = solution->step_V + t * n, *after = V + n;
        memcpy(work->V, after, n * sizeof(double));
        mdp_fill_q(mdp, after, solution->Q);
        mdp_greedy(mdp, solution->Q, solution->step_policy + t * n);
        for (size_t s = 0; s < n; s++) {
            const double *q = solution->Q + s * (size_t)mdp->n_actions;
            V[s] = q[0];
            for (int32_t a = 1; a < mdp->n_actions; a++) V[s] = fmax(V[s], q[a]);
            if (!isfinite(V[s])) return values_overflow();
        }
        off = form->gamma * form->mass * (1 + 1e-9) * off + form_rounding(form, work->V);
        solution->bound = fmax(solution->bound, off);
        work->iterations++;
    }
    if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
    solution->horizon = work->options->horizon;
    memcpy(solution->V, solution->step_V, n * sizeof(double));
    memcpy(solution->policy, solution->step_policy, n * sizeof(int32_t));
    return ST_OK;
}
