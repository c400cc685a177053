/* SPDX-License-Identifier: Apache-2.0 */
/* Modified policy iteration (Puterman and Shin 1978): one sweep over all actions finds the policy, then several cheaper sweeps over that policy's
 * rows improve its values. The end is extrapolated as in value iteration. If sweeps converge too slowly, the policy's equations are solved. */
#include "rl/mdp/mdp_form.h"

#include <math.h>

static void exchange(MdpWork *work, double **other) {
    double *old = work->V;
    work->V = *other;
    *other = old;
}

/* The spread of the changes if extrapolation applies, else their size. */
static double what_is_missing(const MdpForm *form, Change change) {
    return form->closed && form->gamma < 1 ? form->gamma * (change.most - change.least) : change_size(change);
}

/* Accuracy wanted for the values of an intermediate policy: half of the change expected from the next improvement, extrapolated from the last two.
 * `before` is INFINITY at first. Close to the target, a few more sweeps of the policy's rows make the next improvement the last. */
static double enough_after(const MdpWork *work, double missing, double before) {
    double part = isinf(before) ? 0.3 : 0.5 * missing / before, enough = fmin(fmax(part, 0.005), 0.5) * missing;
    return enough < 10 * work->target ? work->target : enough;
}

/* Estimated number of further improvements, if each shrinks the error as the last one did. */
static double improvements_left(const MdpWork *work, double missing, double before) {
    if (!(missing < before)) return (double)(work->limit - work->iterations);
    return log(fmax(missing / work->target, 1)) / log(before / missing);
}

/* Whether no row is better than the policy's by more than rounding. Then the policy's exact values finish the work, while sweeps would take long to
 * settle the last digits. */
static bool is_settled(const MdpWork *work, const int64_t *rows) {
    return form_count_better(work->form, work->V, (Margin){.least = 2 * work->target, .times = 1}, rows) == 0;
}

Status mdp_solver_mpi(MdpWork *work, MdpSolution *solution) {
    const MdpForm *form = work->form;
    enum { SLOW = 50 };
    (void)solution;
    double *other = form_vector(form, work->arena), missing = (double)INFINITY, found_before = missing;
    bool counted = work->options->evaluation_sweeps > 0;
    int64_t sweeps = counted ? work->options->evaluation_sweeps : 20, next_jump = work->iterations + 3, pause = 3;
    double in_jumps = 0; /* cost of jumps in sweeps, at most the number of sweeps so far */
    FormPolicy policy;
    ActionElimination elimination;
    if (!other) return ST_RESOURCE;
    TRY(form_policy_init(form, work->arena, &policy));
    TRY(elimination_init(form, work->Q, work->arena, &elimination));
    while (true) {
        /* whether this is likely the last sweep, which also computes Q */
        bool begun = work->iterations > 0 || form->proper_row, last = missing <= work->target;
        Sweep sweep = {.V = begun ? work->V : NULL, .new_V = other, .policy = &policy, .Q = last ? work->Q : NULL};
        Change change = last ? form_sweep(form, sweep) : form_sweep_eliminating(form, sweep, &elimination);
        work->iterations++;
        if (last && change_size(change) <= work->target) {
            work->change = change_size(change);
            return ST_OK;
        }
        exchange(work, &other);
        if (work_is_done(work, change_size(change))) return ST_OK;
        if (changes_are_alike(form, change, work->target)) {
            add_missing(form, change, work->V);
            return ST_OK;
        }
        double found = what_is_missing(form, change), enough = enough_after(work, found, found_before),
               left = improvements_left(work, found, found_before);
        found_before = found;
        missing = (double)INFINITY;
        double budget = (double)sweeps * fmin(left, (double)work->iterations) - in_jumps;
        if (!counted && left > SLOW && budget > 0 && work->iterations >= next_jump) {
            FormJump jump = form_policy_jump(form, policy.rows, work->target, &budget, work->V, other);
            if (jump != JUMP_SOLVED) pause *= 2;
            next_jump = work->iterations + pause;
            in_jumps += budget;
            if (jump == JUMP_SOLVED && is_settled(work, policy.rows)) return ST_OK;
            if (jump != JUMP_NONE) continue;
        }
        for (int64_t i = 0; i < sweeps && (counted || missing > enough); i++) {
            change = form_sweep_policy(form, &policy, work->V, other);
            exchange(work, &other);
            missing = what_is_missing(form, change);
        }
        if (!counted && form->closed && form->gamma < 1) add_missing(form, change, work->V);
    }
}
