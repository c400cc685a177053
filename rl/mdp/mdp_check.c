/* SPDX-License-Identifier: Apache-2.0 */
/* What makes a Mdp sound. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "rl/mdp/mdp_parts.h"

#define SUM_TOLERANCE 1e-9 /* decimal numbers that people and programs write, summed */

static void append_name(Str *text, const char *what, const char *const *names, int64_t i) {
    if (names)
        str_printf(text, "%s '%s'", what, names[i]);
    else
        str_printf(text, "%s %lld", what, (long long)i);
}

void mdp_append_state(Str *text, const NamedMdp *world, int64_t state) { append_name(text, "state", world->state_names, state); }
void mdp_append_action(Str *text, const NamedMdp *world, int64_t action) { append_name(text, "action", world->action_names, action); }

/* "line 7: state 'home', action 'left': problem" */
static Status row_fault(const NamedMdp *world, int64_t row, int line, const char *problem) {
    Str text = {0};
    if (line > 0) str_printf(&text, "line %d: ", line);
    mdp_append_state(&text, world, row / world->mdp.n_actions);
    str_append(&text, ", ");
    mdp_append_action(&text, world, row % world->mdp.n_actions);
    status_fail(ST_INPUT, "%s: %s", str_text(&text), problem);
    str_release(&text);
    return ST_INPUT;
}

static Status check_row(const NamedMdp *world, int64_t row, const int *lines) {
    const Mdp *mdp = &world->mdp;
    Str problem = {0};
    double sum = 0;
    int64_t begin = mdp->begin[row], end = mdp->begin[row + 1], k;
    int line = lines && begin < end ? lines[begin] : 0;
    for (k = begin; k < end && !problem.len; k++) {
        double p = mdp->probability[k];
        if (!(p >= 0 && p <= 1 + SUM_TOLERANCE))
            str_printf(&problem, "a probability is %.17g, expected 0 to 1", p);
        else if (!isfinite(mdp->reward[k]))
            str_printf(&problem, "a reward is %g, expected a finite number", mdp->reward[k]);
        else if (mdp->next[k] < 0 || mdp->next[k] >= mdp->n_states)
            str_printf(&problem, "leads to state %d, there are %d", (int)mdp->next[k], (int)mdp->n_states);
        if (problem.len && lines) line = lines[k];
        sum += p;
    }
    bool live = !mdp->terminal[row / mdp->n_actions];
    if (!problem.len && live && begin == end)
        str_append(&problem, "no transitions: the probabilities sum to 0, expected 1");
    else if (!problem.len && live && !(fabs(sum - 1) <= SUM_TOLERANCE))
        str_printf(&problem, "the probabilities sum to %.12g, expected 1", sum);
    if (!problem.len) return ST_OK;
    Status status = row_fault(world, row, line, str_text(&problem));
    str_release(&problem);
    if (live && begin == end)
        return status_hint(status, "every action of a state that is not terminal needs transitions; one that does nothing leads back to its state");
    return status;
}

static Status check_start(const NamedMdp *world) {
    if (!world->start) return ST_OK;
    double sum = 0;
    for (int64_t s = 0; s < world->mdp.n_states; s++) {
        if (!(world->start[s] >= 0 && world->start[s] <= 1 + SUM_TOLERANCE))
            return status_fail(ST_INPUT, "the probability to start in state %lld is %.17g, expected 0 to 1", (long long)s, world->start[s]);
        sum += world->start[s];
    }
    return fabs(sum - 1) <= SUM_TOLERANCE ? ST_OK : status_fail(ST_INPUT, "the probabilities to start sum to %.12g, expected 1", sum);
}

Status mdp_check_lines(const NamedMdp *world, const int *lines) {
    const Mdp *mdp = &world->mdp;
    if (!(mdp->gamma >= 0 && mdp->gamma <= 1)) return status_fail(ST_INPUT, "gamma is %.15g, expected 0 to 1", mdp->gamma);
    int64_t rows = (int64_t)mdp->n_states * mdp->n_actions;
    for (int64_t row = 0; row < rows; row++) TRY(check_row(world, row, lines));
    return check_start(world);
}

Status mdp_check(const NamedMdp *world) { return mdp_check_lines(world, NULL); }

Status mdp_reachable(const NamedMdp *world, bool *reachable) {
    const Mdp *mdp = &world->mdp;
    int32_t *open = malloc((size_t)mdp->n_states * sizeof *open), n_open = 0;
    if (!open) return status_errno(ENOMEM, "cannot walk through %d states", (int)mdp->n_states);
    for (int32_t s = 0; s < mdp->n_states; s++) {
        reachable[s] = world->start ? world->start[s] > 0 : !mdp->terminal[s];
        if (reachable[s]) open[n_open++] = s;
    }
    while (n_open > 0) {
        int64_t s = open[--n_open];
        if (mdp->terminal[s]) continue;
        for (int64_t k = mdp->begin[s * mdp->n_actions]; k < mdp->begin[(s + 1) * mdp->n_actions]; k++) {
            if (!(mdp->probability[k] > 0) || reachable[mdp->next[k]]) continue;
            reachable[mdp->next[k]] = true;
            open[n_open++] = mdp->next[k];
        }
    }
    free(open);
    return ST_OK;
}
