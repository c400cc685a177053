/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of an Mdp. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "lib/base/log.h"
#include "rl/mdp/mdp_parts.h"

#define SUM_TOLERANCE 1e-9 /* error of sums of decimal numbers written by people and programs */
#define ROUNDED 1e-4       /* error of probabilities rounded to a few digits, such as 0.333333 */

static void append_name(Str *text, const char *what, const char *const *names, int64_t i) {
    if (names)
        str_printf(text, "%s '%s'", what, names[i]);
    else
        str_printf(text, "%s %lld", what, (long long)i);
}

void mdp_append_state(Str *text, const NamedMdp *world, int64_t state) { append_name(text, "state", world->state_names, state); }
void mdp_append_action(Str *text, const NamedMdp *world, int64_t action) { append_name(text, "action", world->action_names, action); }

/* Messages about a chain do not mention its action. */
static void append_choice(Str *text, const NamedMdp *world, int64_t row) {
    mdp_append_state(text, world, row / world->mdp.n_actions);
    if (world->is_chain) return;
    str_append(text, ", ");
    mdp_append_action(text, world, row % world->mdp.n_actions);
}

/* "line 7: state 'home', action 'left': problem" */
static Status row_fault(const NamedMdp *world, int64_t row, int line, const char *problem) {
    Str text = {0};
    if (line > 0) str_printf(&text, "line %d: ", line);
    append_choice(&text, world, row);
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
    const char *hint = "an action that the state does not have is left out";
    bool live = begin < end && !mdp->terminal[row / mdp->n_actions];
    if (!problem.len && live && !(fabs(sum - 1) <= SUM_TOLERANCE)) {
        str_printf(&problem, "the probabilities sum to %.12g, expected 1", sum);
        if (sum > 0) hint = fabs(sum - 1) < 0.02 ? "write thirds and the like as fractions: 1/3" : NULL;
    } else {
        hint = NULL;
    }
    if (!problem.len) return ST_OK;
    Status status = row_fault(world, row, line, str_text(&problem));
    str_release(&problem);
    return hint ? status_hint(status, "%s", hint) : status;
}

Status mdp_fail_no_transitions(const NamedMdp *world, int64_t state) {
    Str text = {0};
    mdp_append_state(&text, world, state);
    status_fail(ST_INPUT, "%s has no transitions and is not terminal", str_text(&text));
    str_release(&text);
    return status_hint(ST_INPUT, "list it under terminal where episodes end there, or give it a transition");
}

/* A state has the actions with outcomes, and must have at least one. */
static Status check_choices(const NamedMdp *world) {
    const Mdp *mdp = &world->mdp;
    for (int64_t s = 0; s < mdp->n_states; s++)
        if (!mdp->terminal[s] && mdp->begin[s * mdp->n_actions] == mdp->begin[(s + 1) * mdp->n_actions]) return mdp_fail_no_transitions(world, s);
    return ST_OK;
}

/* ---- rounded or unused parts of a file ---- */

static void divide(double *numbers, int64_t n, double by) {
    for (int64_t i = 0; i < n; i++) numbers[i] /= by;
}

/* Whether the error of a sum is more than that of decimal numbers, but explained by rounding to a few digits. */
static bool is_rounded(double sum) { return fabs(sum - 1) > SUM_TOLERANCE && fabs(sum - 1) <= ROUNDED; }

static double sum_of(const double *numbers, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += numbers[i];
    return sum;
}

/* Divides probabilities rounded to a few digits by their sum, and counts such rows. */
static void mend_sums(NamedMdp *world, const int *lines) {
    Mdp *mdp = &world->mdp;
    int64_t rows = (int64_t)mdp->n_states * mdp->n_actions, count = 0, first = 0;
    double first_sum = 1;
    for (int64_t row = 0; row < rows; row++) {
        int64_t begin = mdp->begin[row], n = mdp->begin[row + 1] - begin;
        double sum = sum_of(mdp->probability + begin, n);
        if (mdp->terminal[row / mdp->n_actions] || !is_rounded(sum)) continue;
        divide(mdp->probability + begin, n, sum);
        if (count++ > 0) continue;
        first = row;
        first_sum = sum;
    }
    if (count == 0) return;
    Str text = {0};
    append_choice(&text, world, first);
    log_message(LOG_WARNING, "line %d: %s: the probabilities sum to %.9g, and are divided by that%s; write 1/3 where a third is meant",
                lines[mdp->begin[first]], str_text(&text), first_sum,
                count > 1 ? arena_printf(world->arena, ", as are those of %lld more", (long long)count - 1) : "");
    str_release(&text);
}

static void mend_start(NamedMdp *world) {
    double sum = world->start ? sum_of(world->start, world->mdp.n_states) : 1;
    if (!is_rounded(sum)) return;
    divide(world->start, world->mdp.n_states, sum);
    log_message(LOG_WARNING, "the probabilities of start states sum to %.9g, and are divided by that", sum);
}

static void tell_unused(const NamedMdp *world, const int *lines) {
    const Mdp *mdp = &world->mdp;
    int64_t count = 0, first = -1;
    for (int64_t s = 0; s < mdp->n_states; s++) {
        int64_t begin = mdp->begin[s * mdp->n_actions], end = mdp->begin[(s + 1) * mdp->n_actions];
        if (!mdp->terminal[s] || begin == end) continue;
        if (first < 0) first = s;
        count += end - begin;
    }
    if (count == 0) return;
    Str text = {0};
    mdp_append_state(&text, world, first);
    log_message(LOG_WARNING, "line %d: %s is terminal: an episode ends there, and %lld transition%s of terminal states %s not used",
                lines[mdp->begin[first * mdp->n_actions]], str_text(&text), (long long)count, plural(count), count == 1 ? "is" : "are");
    str_release(&text);
}

/* Actions without transitions: miscounted, or with forgotten transitions. */
static Status tell_unknown_actions(const NamedMdp *world) {
    const Mdp *mdp = &world->mdp;
    bool *known = calloc((size_t)mdp->n_actions, 1);
    if (!known) return status_errno(ENOMEM, "cannot look through %d actions", (int)mdp->n_actions);
    int64_t count = 0, first = -1;
    for (int64_t row = 0; row < (int64_t)mdp->n_states * mdp->n_actions; row++)
        if (mdp->begin[row] < mdp->begin[row + 1] && !mdp->terminal[row / mdp->n_actions]) known[row % mdp->n_actions] = true;
    for (int64_t a = mdp->n_actions - 1; a >= 0; a--)
        if (!known[a]) count++, first = a;
    free(known);
    if (count == 0 || count == mdp->n_actions) return ST_OK;
    Str text = {0};
    mdp_append_action(&text, world, first);
    log_message(LOG_WARNING, "no state has %s%s: no transition names it", str_text(&text),
                count > 1 ? arena_printf(world->arena, " and %lld more", (long long)count - 1) : "");
    str_release(&text);
    return ST_OK;
}

Status mdp_settle_file(NamedMdp *world, const int *lines) {
    mend_sums(world, lines);
    mend_start(world);
    tell_unused(world, lines);
    return tell_unknown_actions(world);
}

static Status check_start(const NamedMdp *world) {
    if (!world->start) return ST_OK;
    double sum = 0;
    for (int64_t s = 0; s < world->mdp.n_states; s++) {
        if (!(world->start[s] >= 0 && world->start[s] <= 1 + SUM_TOLERANCE))
            return status_fail(ST_INPUT, "the probability of starting in state %lld is %.17g, expected 0 to 1", (long long)s, world->start[s]);
        sum += world->start[s];
    }
    return fabs(sum - 1) <= SUM_TOLERANCE ? ST_OK : status_fail(ST_INPUT, "the probabilities of start states sum to %.12g, expected 1", sum);
}

Status mdp_check_lines(const NamedMdp *world, const int *lines) {
    const Mdp *mdp = &world->mdp;
    if (!(mdp->gamma >= 0 && mdp->gamma <= 1)) return status_fail(ST_INPUT, "gamma is %.15g, expected 0 to 1", mdp->gamma);
    int64_t rows = (int64_t)mdp->n_states * mdp->n_actions;
    for (int64_t row = 0; row < rows; row++) TRY(check_row(world, row, lines));
    TRY(check_choices(world));
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
