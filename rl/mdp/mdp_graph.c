/* SPDX-License-Identifier: Apache-2.0 */
/* With gamma = 1 the Bellman equation alone does not determine the values, and they may be infinite. This depends on the graph of possible
 * transitions, not on the probabilities:
 *
 *   - End components (de Alfaro 1997): sets of states within which some choices of rows stay for ever. If such rows have reward 0, a policy can move
 *     freely, so all states of the set have the same value: the best of leaving from any of them and of staying (0). They are joined into one state.
 *     Otherwise V = V' + constant would solve the equation too, and value iteration could stop there.
 *   - A policy must exist under which every episode ends (or stays with reward 0); else every policy has endless costs.
 *   - In the remaining end components every cycle must have a negative average reward; else rewards grow without bound.
 *
 * Then it is a stochastic shortest path problem (Bertsekas and Tsitsiklis 1991) with a unique solution that every method finds.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/system.h"
#include "rl/mdp/mdp_form.h"

/* Work arrays over states and rows of one form; freed together. */
typedef struct Graph {
    const MdpForm *form;
    int32_t *home; /* (rows): the state of each row */
    int64_t *into; /* (n + 1): rows that lead to state i are from[into[i]] .. */
    int64_t *from;
    bool *use;        /* (rows) */
    int32_t *part;    /* (n): strongly connected component over rows in use */
    int64_t *left;    /* (n): number of rows in use */
    int32_t *stack;   /* (n) */
    int32_t *waiting; /* (n): states whose component is not known yet */
    int64_t *numbers; /* (3 n) for the search */
} Graph;

static void graph_release(Graph *g) {
    free(g->home);
    free(g->into);
    free(g->from);
    free(g->use);
    free(g->part);
    free(g->left);
    free(g->stack);
    free(g->waiting);
    free(g->numbers);
}

static bool goes_on(const MdpForm *form, int64_t k) {
    return form->probability[k] > 0 && form->next[k] < form->n && form_is_nonterminal(form, form->next[k]);
}

static bool may_end(const MdpForm *form, int64_t row) {
    for (int64_t k = form->begin[row]; k < form->begin[row + 1]; k++)
        if (form->probability[k] > 0 && !goes_on(form, k)) return true;
    return form->begin[row] == form->begin[row + 1];
}

static Status graph_init(Graph *g, const MdpForm *form) {
    size_t n = (size_t)form->n + 1, rows = (size_t)form->n_rows + 1, entries = (size_t)form->begin[form->n_rows] + 1;
    *g = (Graph){.form = form,
                 .home = malloc(rows * sizeof *g->home),
                 .into = calloc(n + 1, sizeof *g->into),
                 .from = malloc(entries * sizeof *g->from),
                 .use = malloc(rows),
                 .part = malloc(n * sizeof *g->part),
                 .left = malloc(n * sizeof *g->left),
                 .stack = malloc(n * sizeof *g->stack),
                 .waiting = malloc(n * sizeof *g->waiting),
                 .numbers = malloc(3 * n * sizeof *g->numbers)};
    if (!g->home || !g->into || !g->from || !g->use || !g->part || !g->left || !g->stack || !g->waiting || !g->numbers) {
        graph_release(g);
        return status_fail(ST_RESOURCE, "out of memory for the graph of %d states", (int)form->n);
    }
    for (int32_t s = 0; s < form->n; s++)
        for (int64_t row = form_first(form, s); row < form_first(form, s + 1); row++) g->home[row] = s;
    for (int pass = 0; pass < 2; pass++) { /* first pass: count; second pass: fill */
        for (int64_t row = 0; row < form->n_rows; row++) {
            if (!form_is_nonterminal(form, g->home[row])) continue;
            for (int64_t k = form->begin[row]; k < form->begin[row + 1]; k++)
                if (goes_on(form, k)) {
                    if (pass == 0)
                        g->into[form->next[k] + 1]++;
                    else
                        g->from[g->into[form->next[k]]++] = row;
                }
        }
        if (pass == 0)
            for (int32_t s = 0; s < form->n; s++) g->into[s + 1] += g->into[s];
    }
    memmove(g->into + 1, g->into, (size_t)form->n * sizeof *g->into);
    g->into[0] = 0;
    return ST_OK;
}

/* Takes a row out of use; if its state has no rows left, rows that lead to the state go out of use too. */
static void drop_row(Graph *g, int64_t row) {
    int32_t open = 0;
    g->use[row] = false;
    if (--g->left[g->home[row]] == 0) g->stack[open++] = g->home[row];
    while (open > 0) {
        int32_t s = g->stack[--open];
        for (int64_t i = g->into[s]; i < g->into[s + 1]; i++) {
            int64_t before = g->from[i];
            if (!g->use[before]) continue;
            g->use[before] = false;
            if (--g->left[g->home[before]] == 0) g->stack[open++] = g->home[before];
        }
    }
}

/* Strongly connected components over rows in use (Tarjan 1972, without recursion). */
static void find_parts(Graph *g) {
    const MdpForm *form = g->form;
    int64_t *order = g->numbers, *low = order + form->n, *cursor = low + form->n, count = 0; /* cursor: the next entry to visit */
    int32_t *path = g->stack, *waiting = g->waiting, n_path = 0, n_waiting = 0, parts = 0;
    for (int32_t s = 0; s < form->n; s++) {
        order[s] = -1;
        g->part[s] = -1;
    }
    for (int32_t root = 0; root < form->n; root++) {
        if (order[root] >= 0) continue;
        path[n_path++] = root;
        order[root] = low[root] = count++;
        cursor[root] = form->begin[form_first(form, root)];
        waiting[n_waiting++] = root;
        while (n_path > 0) {
            int32_t s = path[n_path - 1], child = -1;
            int64_t row = form_first(form, s), end = form_first(form, s + 1);
            while (row < end && form->begin[row + 1] <= cursor[s]) row++;
            for (; row < end && child < 0; row++) {
                if (!g->use[row]) {
                    cursor[s] = MAX(cursor[s], form->begin[row + 1]);
                    continue;
                }
                while (cursor[s] < form->begin[row + 1] && child < 0) {
                    int64_t k = cursor[s]++;
                    if (!goes_on(form, k)) continue;
                    int32_t next = form->next[k];
                    if (order[next] < 0)
                        child = next;
                    else if (g->part[next] < 0)
                        low[s] = MIN(low[s], order[next]);
                }
            }
            if (child >= 0) {
                path[n_path++] = child;
                order[child] = low[child] = count++;
                cursor[child] = form->begin[form_first(form, child)];
                waiting[n_waiting++] = child;
                continue;
            }
            n_path--;
            if (n_path > 0) low[path[n_path - 1]] = MIN(low[path[n_path - 1]], low[s]);
            if (low[s] != order[s]) continue;
            do g->part[waiting[--n_waiting]] = parts;
            while (waiting[n_waiting] != s);
            parts++;
        }
    }
}

/* Reduces the rows in use to those of maximal end components; `part` then has the component of each state. */
static void find_end_components(Graph *g) {
    const MdpForm *form = g->form;
    memset(g->left, 0, (size_t)form->n * sizeof *g->left);
    for (int64_t row = 0; row < form->n_rows; row++) g->left[g->home[row]] += g->use[row];
    for (int32_t s = 0; s < form->n; s++) /* rows that lead to states without rows */
        if (g->left[s] == 0)
            for (int64_t i = g->into[s]; i < g->into[s + 1]; i++)
                if (g->use[g->from[i]]) drop_row(g, g->from[i]);
    for (bool changed = true; changed;) {
        changed = false;
        find_parts(g);
        for (int64_t row = 0; row < form->n_rows; row++) {
            if (!g->use[row]) continue;
            bool leaves = false;
            for (int64_t k = form->begin[row]; k < form->begin[row + 1] && !leaves; k++)
                leaves = goes_on(form, k) && g->part[form->next[k]] != g->part[g->home[row]];
            if (!leaves) continue;
            drop_row(g, row);
            changed = true;
        }
    }
}

/* ---- joining ---- */

/* Bound on the rounding error of a row's expected reward, from the row's own outcomes, since rewards elsewhere may be many orders larger. */
static double reward_error(const MdpForm *form, int64_t row) {
    return (double)(form->begin[row + 1] - form->begin[row] + 1) * UNIT_ROUNDOFF * form->row_size[row];
}

static bool earns_nothing(const MdpForm *form, int64_t row) { return fabs(form->reward[row]) <= reward_error(form, row); }

/* The states to join. */
typedef struct Joined {
    const Graph *g;
    int32_t n;         /* number of states after joining */
    int32_t *state_of; /* (states + 1): new state of each old state; the end state stays last */
    int32_t *chain;    /* (states): next old state of the same component, -1 after the last */
} Joined;

/* Links the members of each component, in order. */
static Status chain_parts(Joined *joined, Arena *scratch) {
    const Graph *g = joined->g;
    size_t n = (size_t)g->form->n + 1;
    int32_t *first = arena_alloc(scratch, n * sizeof *first);
    joined->chain = arena_alloc(scratch, n * sizeof *joined->chain);
    if (!first || !joined->chain) return ST_RESOURCE;
    for (int32_t part = 0; part < g->form->n; part++) first[part] = -1;
    for (int32_t s = g->form->n - 1; s >= 0; s--) {
        if (!g->left[s]) continue;
        joined->chain[s] = first[g->part[s]];
        first[g->part[s]] = s;
    }
    return ST_OK;
}

/* In the order of the old states; a component takes the place of its first member. */
static Status number_states(Joined *joined, Arena *arena, Arena *scratch) {
    const Graph *g = joined->g;
    size_t n = (size_t)g->form->n + 1;
    int32_t *of_part = arena_alloc(scratch, n * sizeof *of_part);
    joined->state_of = arena_alloc(arena, n * sizeof *joined->state_of);
    if (!of_part || !joined->state_of) return ST_RESOURCE;
    for (int32_t part = 0; part < g->form->n; part++) of_part[part] = -1;
    for (int32_t s = 0; s < g->form->n; s++) {
        int32_t known = g->left[s] ? of_part[g->part[s]] : -1;
        joined->state_of[s] = known >= 0 ? known : joined->n++;
        if (g->left[s]) of_part[g->part[s]] = joined->state_of[s];
    }
    joined->state_of[g->form->n] = joined->n;
    return ST_OK;
}

/* Rows of a form under construction. */
typedef struct NewRows {
    int64_t *rows, *begin;
    int32_t *next;
    double *probability, *reward, *row_size;
    bool *ended;
    int64_t n, n_entries;
} NewRows;

/* Allocates all rows of the old form plus one per state. */
static Status new_rows_init(NewRows *made, const MdpForm *old) {
    Arena *arena = old->arena;
    size_t n = (size_t)old->n + 1, n_rows = (size_t)old->n_rows + n, entries = (size_t)old->begin[old->n_rows] + 1;
    *made = (NewRows){.rows = arena_zero(arena, (n + 1) * sizeof *made->rows),
                      .begin = arena_zero(arena, (n_rows + 1) * sizeof *made->begin),
                      .next = arena_alloc(arena, entries * sizeof *made->next),
                      .probability = arena_alloc(arena, entries * sizeof *made->probability),
                      .reward = arena_zero(arena, (n_rows + 1) * sizeof *made->reward),
                      .row_size = arena_zero(arena, (n_rows + 1) * sizeof *made->row_size),
                      .ended = arena_zero(arena, n)};
    return made->rows && made->begin && made->next && made->probability && made->reward && made->row_size && made->ended ? ST_OK : ST_RESOURCE;
}

/* Skips rows in use, which stay within the component. *size: the largest of them, for the error bound of staying with reward 0. */
static void copy_rows_out(const Joined *joined, int32_t state, NewRows *made, double *size) {
    const MdpForm *old = joined->g->form;
    for (int64_t r = form_first(old, state); r < form_first(old, state + 1); r++) {
        if (joined->g->use[r]) {
            *size = fmax(*size, old->row_size[r]);
            continue;
        }
        made->begin[made->n] = made->n_entries;
        made->row_size[made->n] = old->row_size[r];
        made->reward[made->n++] = old->reward[r];
        for (int64_t e = old->begin[r]; e < old->begin[r + 1]; e++) {
            made->next[made->n_entries] = joined->state_of[old->next[e]];
            made->probability[made->n_entries++] = old->probability[e];
        }
    }
}

static void fill_new_rows(const Joined *joined, NewRows *made) {
    const Graph *g = joined->g;
    int32_t state = 0;
    for (int32_t s = 0; s < g->form->n; s++) {
        if (joined->state_of[s] != state) continue; /* joined to an earlier state */
        made->rows[state] = made->n;
        made->ended[state] = !form_is_nonterminal(g->form, s);
        double size = 0;
        for (int32_t member = s; member >= 0 && !made->ended[state]; member = g->left[s] ? joined->chain[member] : -1)
            copy_rows_out(joined, member, made, &size);
        if (g->left[s]) { /* the row for staying with reward 0 */
            made->row_size[made->n] = size;
            made->begin[made->n++] = made->n_entries;
        }
        state++;
    }
    made->rows[state] = made->n;
    made->begin[made->n] = made->n_entries;
}

/* Makes the form with each end component in use as one state. */
static Status join_states(const Graph *g, MdpForm *form) {
    Joined joined = {.g = g};
    NewRows made = {0};
    Arena *scratch = arena_new(0);
    Status status = scratch ? chain_parts(&joined, scratch) : status_fail(ST_RESOURCE, "out of memory");
    if (status == ST_OK) status = number_states(&joined, form->arena, scratch);
    if (status == ST_OK) status = new_rows_init(&made, form);
    if (status == ST_OK) {
        fill_new_rows(&joined, &made);
        form->n = joined.n;
        form->n_rows = made.n;
        form->rows = made.rows;
        form->begin = made.begin;
        form->next = made.next;
        form->probability = made.probability;
        form->reward = made.reward;
        form->row_size = made.row_size;
        form->ended = made.ended;
        form->state_of = joined.state_of;
        form->branching = 0;
        form->closed = false;
    }
    arena_free(scratch);
    return status;
}

/* ---- conditions ---- */

/* "state 3", "state 3, state 4 and 17 more": states of the Mdp whose state in the form is marked. */
static void append_states(Str *text, const NamedMdp *world, const MdpForm *form, const bool *marked) {
    int64_t count = 0;
    for (int32_t s = 0; s < world->mdp.n_states; s++) {
        if (!marked[form->state_of ? form->state_of[s] : s]) continue;
        if (++count > 3) continue;
        if (count > 1) str_append(text, ", ");
        mdp_append_state(text, world, s);
    }
    if (count > 3) str_printf(text, " and %lld more", (long long)(count - 3));
}

static Status no_values(const NamedMdp *world, const MdpForm *form, const bool *marked, const char *why) {
    Str text = {0};
    append_states(&text, world, form, marked);
    status_fail(ST_INPUT, "values do not exist with gamma 1: %s %s", why, str_text(&text));
    str_release(&text);
    return status_hint(ST_INPUT, "set gamma below 1, or add what ends an episode: the key terminal, or true at the end of a transition");
}

/* For each state, the row with the largest probability of ending the episode or reaching a state found earlier. `place`: the order in which states
 * were found, from 0. */
static void choose_home_rows(const Graph *g, const bool *within, const int32_t *place, MdpForm *form) {
    for (int32_t s = 0; s < form->n; s++) {
        double best = 0;
        for (int64_t row = form_first(form, s); within[s] && row < form_first(form, s + 1); row++) {
            double likely = form->begin[row] == form->begin[row + 1] ? 1 : 0;
            for (int64_t k = form->begin[row]; k < form->begin[row + 1] && g->use[row]; k++)
                if (!goes_on(form, k) || place[form->next[k]] < place[s]) likely += form->probability[k];
            if (!g->use[row] || likely <= best) continue;
            best = likely;
            form->proper_row[s] = row;
        }
    }
}

/* States from which a policy ends with probability 1: backwards from the end, through rows that never leave the set of such states. */
static Status find_home(const Graph *g, const NamedMdp *world, MdpForm *form) {
    int32_t n = form->n, n_live = 0, n_home = 0, before;
    bool *within = malloc((size_t)n + 1), *home = malloc((size_t)n + 1);
    int32_t *place = calloc((size_t)n + 1, sizeof *place);
    form->proper_row = arena_zero(form->arena, ((size_t)n + 1) * sizeof *form->proper_row);
    Status status = within && home && place && form->proper_row ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    for (int32_t s = 0; s < n && status == ST_OK; s++) n_live += within[s] = form_is_nonterminal(form, s);
    n_home = n_live;
    do {
        if (status != ST_OK) break;
        before = n_home;
        n_home = 0;
        int32_t open = 0;
        memset(home, 0, (size_t)n + 1);
        for (int64_t row = 0; row < form->n_rows; row++) {
            g->use[row] = within[g->home[row]];
            for (int64_t k = form->begin[row]; k < form->begin[row + 1] && g->use[row]; k++) g->use[row] = !goes_on(form, k) || within[form->next[k]];
            if (!g->use[row] || home[g->home[row]] || !may_end(form, row)) continue;
            home[g->home[row]] = true;
            g->stack[open++] = g->home[row];
            n_home++;
        }
        for (int32_t i = 0; i < open; i++) { /* the stack is used as a queue: every state enters once */
            for (int64_t e = g->into[g->stack[i]]; e < g->into[g->stack[i] + 1]; e++) {
                int64_t row = g->from[e];
                int32_t s = g->home[row];
                if (!g->use[row] || home[s]) continue;
                home[s] = true;
                g->stack[open++] = s;
                n_home++;
            }
        }
        memcpy(within, home, (size_t)n);
    } while (n_home < before);
    for (int32_t i = 0; i < n_home && status == ST_OK; i++) place[g->stack[i]] = i;
    if (status == ST_OK) choose_home_rows(g, within, place, form);
    if (status == ST_OK && n_home < n_live) {
        for (int32_t s = 0; s < n; s++) home[s] = form_is_nonterminal(form, s) && !within[s];
        status = no_values(world, form, home, world->mdp.n_actions == 1 ? "rewards go on for ever from" : "no policy ends the episode for sure from");
    }
    free(within);
    free(home);
    free(place);
    return status;
}

/* Bound on the rounding error of a row of state s: of its reward and of its expectation of h. */
static double gain_error(const MdpForm *form, int64_t row, int32_t s, const double *h) {
    double size = form->row_size[row] + fabs(h[s]);
    for (int64_t k = form->begin[row]; k < form->begin[row + 1]; k++) size += form->probability[k] * fabs(h[form->next[k]]);
    return (double)(form->begin[row + 1] - form->begin[row] + 8) * UNIT_ROUNDOFF * size;
}

/* Guaranteed bounds on the best reward per step within one end component, which improve with every sweep from h: relative value iteration with
 * probability 1/2 of staying. The rounding error is added to every row's reward. Where h has converged, states with large rewards, which have the
 * largest rounding errors, then stay below the others and do not determine the bounds. */
typedef struct Gain {
    double low, high;
    bool settled;
} Gain; /* settled: converged to rounding */
static Gain sweep_gain(const Graph *g, const int32_t *members, int32_t n, double *h, double *new_h) {
    const MdpForm *form = g->form;
    Gain gain = {(double)INFINITY, -(double)INFINITY, false};
    double least = (double)INFINITY, base = -(double)INFINITY;
    for (int32_t i = 0; i < n; i++) {
        int32_t s = members[i];
        double best = -(double)INFINITY, low = best, high = best, uncertainty = 0;
        for (int64_t row = form_first(form, s); row < form_first(form, s + 1); row++) {
            if (!g->use[row]) continue;
            double q = form->reward[row] + form_expect(form, row, h), error = gain_error(form, row, s, h);
            low = fmax(low, q - error);
            high = fmax(high, q + error);
            if (q + 2 * error <= best) continue;
            best = q + 2 * error;
            uncertainty = error;
        }
        new_h[s] = 0.5 * (best + h[s]);
        gain.low = fmin(gain.low, low - h[s]);
        gain.high = fmax(gain.high, high - h[s]);
        least = fmin(least, best + uncertainty - h[s]);
        base = fmax(base, new_h[s]);
    }
    gain.settled = gain.high <= least;
    for (int32_t i = 0; i < n; i++) h[members[i]] = new_h[members[i]] - base;
    return gain;
}

/* Whether rows in use of an end component have rewards that are certainly positive, or negative. */
typedef struct Rewards {
    bool gains, costs;
} Rewards;
static Rewards find_rewards(const Graph *g, const int32_t *members, int32_t n) {
    const MdpForm *form = g->form;
    Rewards found = {0};
    for (int32_t i = 0; i < n; i++)
        for (int64_t row = form_first(form, members[i]); row < form_first(form, members[i] + 1); row++) {
            if (!g->use[row] || earns_nothing(form, row)) continue;
            found.gains |= form->reward[row] > 0;
            found.costs |= form->reward[row] < 0;
        }
    return found;
}

/* Result for the best cycle, and the message for all but COSTS. */
typedef enum RoundTrip { COSTS, COMES_TO_NOTHING, GAINS, IS_NOT_CLEAR } RoundTrip;
static const char *const round_trips[] = {
    [COMES_TO_NOTHING] = "rewards and costs can go round without end, summing to nothing, in",
    [GAINS] = "rewards can be collected without end in",
    [IS_NOT_CLEAR] = "rewards and costs can go round without end, and it could not be determined whether that gains anything, in",
};

/* The best policy is found long before h converges, which takes as many sweeps as the square of the longest cycle. So from time to time h is replaced
 * by that policy's bias; the bounds of a sweep hold for any h. */
static RoundTrip round_trip(const Graph *g, const int32_t *members, int32_t n, double *h, double *new_h) {
    enum { FIRST = 64, SWEEPS_OF_ONE = 64 }; /* SWEEPS_OF_ONE: cost of a sweep of all rows with rounding bounds, in sweeps of a policy */
    Gain gain = {0};
    int32_t *place = g->stack; /* unused here */
    for (int32_t i = 0; i < n; i++) {
        h[members[i]] = 0;
        place[members[i]] = i;
    }
    for (int64_t sweep = 0, jump = FIRST; sweep < 1000000 && !gain.settled && !interrupt_requested(); sweep++) {
        if (sweep == jump) {
            form_policy_bias(g->form, g->use, members, n, place, (double)(SWEEPS_OF_ONE * sweep), h);
            jump *= 2;
        }
        gain = sweep_gain(g, members, n, h, new_h);
        if (gain.low > 0) return GAINS;
        if (gain.high < 0) return COSTS;
    }
    return gain.settled ? COMES_TO_NOTHING : IS_NOT_CLEAR;
}

static Status check_component(const Graph *g, const NamedMdp *world, const int32_t *members, int32_t n, double *h, double *new_h, bool *marked) {
    Rewards rewards = find_rewards(g, members, n);
    RoundTrip trip = !rewards.gains ? COSTS : !rewards.costs ? GAINS : round_trip(g, members, n, h, new_h);
    if (trip == COSTS) return ST_OK;
    for (int32_t i = 0; i < n; i++) marked[members[i]] = true;
    return no_values(world, g->form, marked, round_trips[trip]);
}

/* The list of end components, and scratch memory. */
typedef struct Components {
    int32_t *end, *members; /* component i: members[end[i - 1]] .. members[end[i] - 1], empty for unused numbers */
    double *h, *new_h;
    bool *marked; /* (n), all false */
} Components;

static void components_release(Components *c) {
    free(c->end);
    free(c->members);
    free(c->h);
    free(c->marked);
}

static Status components_init(const Graph *g, Components *c) {
    const MdpForm *form = g->form;
    size_t n = (size_t)form->n + 1;
    *c = (Components){
        .end = calloc(n + 1, sizeof *c->end), .members = malloc(n * sizeof *c->members), .h = calloc(2 * n, sizeof *c->h), .marked = calloc(n, 1)};
    if (!c->end || !c->members || !c->h || !c->marked) return status_fail(ST_RESOURCE, "out of memory");
    c->new_h = c->h + n;
    for (int32_t s = 0; s < form->n; s++)
        if (g->left[s]) c->end[g->part[s] + 1]++;
    for (int32_t i = 0; i < form->n; i++) c->end[i + 1] += c->end[i];
    for (int32_t s = 0; s < form->n; s++)
        if (g->left[s]) c->members[c->end[g->part[s]]++] = s;
    return ST_OK;
}

static Status check_gains(Graph *g, const NamedMdp *world) {
    const MdpForm *form = g->form;
    Components c;
    for (int64_t row = 0; row < form->n_rows; row++) g->use[row] = form_is_nonterminal(form, g->home[row]) && !may_end(form, row);
    find_end_components(g);
    Status status = components_init(g, &c);
    for (int32_t part = 0, first = 0; part < form->n && status == ST_OK; first = c.end[part++])
        if (c.end[part] > first) status = check_component(g, world, c.members + first, c.end[part] - first, c.h, c.new_h, c.marked);
    components_release(&c);
    return status;
}

Status form_join(const NamedMdp *world, MdpForm *form) {
    Graph g;
    TRY(graph_init(&g, form));
    bool some = false;
    for (int64_t row = 0; row < form->n_rows; row++)
        g.use[row] = form_is_nonterminal(form, g.home[row]) && earns_nothing(form, row) && !may_end(form, row);
    find_end_components(&g);
    for (int32_t s = 0; s < form->n && !some; s++) some = g.left[s] > 0;
    Status status = ST_OK;
    if (some) {
        status = join_states(&g, form);
        graph_release(&g);
        if (status == ST_OK) status = graph_init(&g, form);
        if (status != ST_OK) return status;
    }
    status = find_home(&g, world, form);
    if (status == ST_OK) status = check_gains(&g, world);
    graph_release(&g);
    return status;
}

/* ---- reward per step ---- */

static Gain find_gain(const Graph *g, const Components *c, int32_t first, int32_t n) {
    enum { SWEEPS = 20000 };
    Gain gain = {-(double)INFINITY, (double)INFINITY, false};
    double near = 0; /* rounding of the component's own rewards: others may be far larger */
    for (int32_t i = 0; i < n; i++) c->h[c->members[first + i]] = 0;
    for (int sweep = 0; sweep < SWEEPS && gain.high - gain.low > near && !gain.settled && !interrupt_requested(); sweep++) {
        Gain now = sweep_gain(g, c->members + first, n, c->h, c->new_h);
        gain = (Gain){fmax(gain.low, now.low), fmin(gain.high, now.high), now.settled};
        if (sweep == 0) near = 1e-9 * fmax(fabs(now.low), fabs(now.high));
    }
    return gain;
}

static Status not_the_same(const Components *c, const NamedMdp *world, const MdpForm *form, int32_t best_part, double most, int32_t part,
                           double least) {
    Str text = {0};
    str_printf(&text, "the best reward per step is not the same everywhere: %.6g in the long run around ", most);
    for (int k = 0; k < 2; k++) {
        int32_t which = k ? part : best_part, first = which ? c->end[which - 1] : 0;
        memset(c->marked, 0, (size_t)form->n);
        for (int32_t i = first; i < c->end[which]; i++) c->marked[c->members[i]] = true;
        if (k) str_printf(&text, ", %.6g around ", least);
        append_states(&text, world, form, c->marked);
    }
    status_fail(ST_INPUT, "%s, from which the first cannot be reached", str_text(&text));
    str_release(&text);
    return status_hint(
        ST_INPUT, "method 'average' finds one number for all states: solve each part as a separate world, or use a gamma below 1 and another method");
}

/* Every state leads to a closed component, which no action leaves. If all closed components earn as much as the best end component, every state can
 * reach that gain; if one earns less, its states cannot. */
static Status compare_gains(Graph *g, const NamedMdp *world, const bool *closed) {
    const MdpForm *form = g->form;
    Components c;
    find_end_components(g);
    Status status = components_init(g, &c);
    double best = -(double)INFINITY, worst = (double)INFINITY, worst_low = worst;
    int32_t best_part = -1, worst_part = -1;
    for (int32_t part = 0, first = 0; part < form->n && status == ST_OK; first = c.end[part++]) {
        if (c.end[part] == first) continue;
        Gain gain = find_gain(g, &c, first, c.end[part] - first);
        if (gain.low > best) best = gain.low, best_part = part;
        if (closed[c.members[first]] && gain.high < worst) worst = gain.high, worst_low = gain.low, worst_part = part;
    }
    double room = 1e-7 * fmax(fabs(worst), fabs(best));
    if (status == ST_OK && worst_part >= 0 && worst + room < best)
        status = not_the_same(&c, world, form, best_part, best, worst_part, 0.5 * (worst_low + worst));
    components_release(&c);
    return status;
}

Status form_check_one_gain(const NamedMdp *world, MdpForm *form) {
    Graph g;
    TRY(graph_init(&g, form));
    bool *leaves = calloc((size_t)form->n + 1, 1), *closed = calloc((size_t)form->n + 1, 1);
    int32_t first = -1, live = 0, of_first = 0;
    Status status = leaves && closed ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    if (status == ST_OK) {
        for (int64_t row = 0; row < form->n_rows; row++) g.use[row] = form_is_nonterminal(form, g.home[row]);
        find_parts(&g);
        for (int64_t row = 0; row < form->n_rows; row++)
            for (int64_t k = form->begin[row]; g.use[row] && k < form->begin[row + 1]; k++)
                if (goes_on(form, k) && g.part[form->next[k]] != g.part[g.home[row]]) leaves[g.part[g.home[row]]] = true;
        for (int32_t s = 0; s < form->n; s++) {
            if (!form_is_nonterminal(form, s)) continue;
            if (first < 0) first = g.part[s];
            live++;
            of_first += g.part[s] == first;
            closed[s] = !leaves[g.part[s]];
        }
        if (of_first < live) status = compare_gains(&g, world, closed);
    }
    free(leaves);
    free(closed);
    graph_release(&g);
    return status;
}
