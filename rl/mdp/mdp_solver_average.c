/* SPDX-License-Identifier: Apache-2.0 */
/* Relative value iteration (White 1963): the best reward per step lies between the least and the greatest change of a sweep with gamma 1 (Odoni
 * 1969). If the process is periodic these do not converge; then it is made lazy: it stays with probability 1/2. A long cycle still takes as many
 * sweeps as the square of its length, so now and then the bias of the current policy is computed (mdp_bias.c). */
#include "lib/base/log.h"
#include "lib/base/system.h"
#include "rl/mdp/mdp_form.h"

#include <math.h>
#include <string.h>

static Status check_goes_on(const MdpWork *work) {
    const Mdp *mdp = &work->world->mdp;
    for (int64_t row = 0; row < (int64_t)mdp->n_states * mdp->n_actions; row++) {
        if (mdp->terminal[row / mdp->n_actions]) continue;
        for (int64_t k = mdp->begin[row]; k < mdp->begin[row + 1]; k++) {
            if (!(mdp->probability[k] > 0) || (!mdp->terminal[mdp->next[k]] && !(mdp->ends && mdp->ends[k]))) continue;
            Str text = {0};
            mdp_append_state(&text, work->world, row / mdp->n_actions);
            status_fail(ST_INPUT, "reward per step needs a process without end, but from %s the episode can end", str_text(&text));
            str_release(&text);
            return status_hint(ST_INPUT, "replace the end by a transition to the start, or use another method");
        }
    }
    return ST_OK;
}

/* Arguments of form_policy_bias: every row is in use. */
typedef struct Members {
    bool *use;
    int32_t *list, *place;
    int32_t n;
} Members;

static Status members_init(const MdpForm *form, Arena *arena, Members *members) {
    size_t n = (size_t)form->n + 1;
    *members = (Members){.use = arena_alloc(arena, (size_t)form->n_rows + 1),
                         .list = arena_alloc(arena, n * sizeof *members->list),
                         .place = arena_alloc(arena, n * sizeof *members->place)};
    if (!members->use || !members->list || !members->place) return ST_RESOURCE;
    memset(members->use, true, (size_t)form->n_rows + 1);
    for (int32_t s = 0; s < form->n; s++) {
        if (!form_is_nonterminal(form, s)) continue;
        members->place[s] = members->n;
        members->list[members->n++] = s;
    }
    return ST_OK;
}

Status mdp_solver_average(MdpWork *work, MdpSolution *solution) {
    enum { PATIENCE = 100, STUCK = 100000, FIRST_JUMP = 256 };
    TRY(check_goes_on(work));
    MdpForm form = *work->form;
    TRY(form_check_one_gain(work->world, &form));
    form.gamma = 1;
    double *next = form_vector(&form, work->arena), *h = work->V, span, best = (double)INFINITY, slow = 1;
    double target = work->options->tolerance > 0 ? work->options->tolerance : 1e-12;
    int32_t base = 0;
    int64_t since = 0, jump = FIRST_JUMP;
    Members members;
    if (!next) return ST_RESOURCE;
    TRY(members_init(&form, work->arena, &members));
    while (base + 1 < form.n && !form_is_nonterminal(&form, base)) base++;
    do {
        if (work->iterations >= jump) {
            double sweeps = (double)work->iterations * (double)form.n_rows / (double)MAX(members.n, 1); /* in sweeps of one row per state */
            if (form_policy_bias(&form, members.use, members.list, members.n, members.place, sweeps, h)) {
                best = (double)INFINITY;
                since = 0;
            }
            jump *= 2;
        }
        Change change = form_sweep(&form, (Sweep){.V = h, .new_V = next});
        work->iterations++;
        span = change.most - change.least;
        solution->gain = 0.5 * change.most + 0.5 * change.least;
        solution->bound = 0.5 * span * (1 + 4 * UNIT_ROUNDOFF) + form_rounding(&form, h);
        since++;
        if (span < 0.999 * best) best = span, since = 0; /* regardless of the number of sweeps */
        if (since > PATIENCE && slow == 1) {
            slow = 0.5;
            since = 0;
            best = (double)INFINITY;
        }
        double down = h[base] + slow * (next[base] - h[base]);
        for (int32_t s = 0; s < form.n; s++)
            if (form_is_nonterminal(&form, s)) h[s] += slow * (next[s] - h[s]) - down;
    } while (0.5 * span > target && span > 2 * form_rounding(&form, h) && since < STUCK && work->iterations < work->limit && !interrupt_requested());
    if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
    if (since >= STUCK)
        log_message(LOG_WARNING, "method 'average' makes no more progress: the bound is %.2g, and %.2g was wanted", solution->bound, target);
    bool finite = isfinite(solution->gain);
    for (int32_t s = 0; s < form.n; s++) finite = finite && isfinite(h[s]);
    return finite ? ST_OK : values_overflow();
}
