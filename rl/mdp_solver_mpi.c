/* Modified policy iteration (Puterman and Shin 1978): one sweep over all actions finds the policy, a number of sweeps over that policy's rows alone, which are as many times shorter, bring its
 * values nearer. What is missing at the end is added as in value iteration. */
#include "rl/mdp_form.h"

#include <math.h>

static void exchange(MdpWork *work, double **other) {
    double *old = work->V;
    work->V = *other;
    *other = old;
}

/* How far the changes are from being alike, where that is enough, or from none. */
static double what_is_missing(const MdpForm *form, Change change) { return form->closed && form->gamma < 1 ? form->gamma * (change.most - change.least) : change_size(change); }

Status mdp_solver_mpi(MdpWork *work, MdpSolution *solution) {
    const MdpForm *form = work->form;
    (void)solution;
    double *other = form_vector(form, work->arena);
    int64_t *rows = arena_alloc(work->arena, ((size_t)form->n + 1) * sizeof *rows), sweeps = work->options->evaluation_sweeps ? work->options->evaluation_sweeps : 20;
    if (!other || !rows) return ST_RESOURCE;
    while (true) {
        Change change = form_sweep_greedy(form, work->V, other, rows);
        exchange(work, &other);
        work->iterations++;
        if (work_is_done(work, change_size(change))) return ST_OK;
        if (changes_are_alike(form, change, work->target)) {
            add_missing(form, change, work->V);
            return ST_OK;
        }
        double enough = fmax(0.05 * what_is_missing(form, change), 0.1 * work->target); /* values of a policy that will not last need not be exact */
        for (int64_t i = 0; i < sweeps && change_size(change) > 0.1 * work->target; i++) {
            change = form_sweep_policy(form, rows, work->V, other);
            exchange(work, &other);
            if (work->options->evaluation_sweeps || what_is_missing(form, change) > enough) continue;
            if (form->closed && form->gamma < 1) add_missing(form, change, work->V);
            break;
        }
    }
}
