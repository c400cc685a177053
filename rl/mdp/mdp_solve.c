/* SPDX-License-Identifier: Apache-2.0 */
/* Solving: makes the form, runs a method, certifies the result, and maps the answer back to the Mdp's states. */
#include <math.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/system.h"
#include "lib/base/work.h"
#include "rl/mdp/mdp_form.h"

#define TIE 1e-12 /* actions within this distance of the best are ties; the lowest is taken */
#define DEFAULT_TOLERANCE 1e-12

static const MdpSolver solvers[] = {
#define MDP_SOLVER(name, answer, help) {#name, help, answer, mdp_solver_##name},
#include "rl/mdp/mdp_solvers.def"
#undef MDP_SOLVER
};

const char *mdp_method(size_t i, const char **help) {
    if (i >= COUNT_OF(solvers)) return NULL;
    if (help) *help = solvers[i].help;
    return solvers[i].name;
}

static Status find_solver(const char *name, const MdpSolver **solver) {
    const char *names[COUNT_OF(solvers)];
    for (size_t i = 0; i < COUNT_OF(solvers); i++) {
        names[i] = solvers[i].name;
        if (strcmp(name, names[i]) != 0) continue;
        *solver = &solvers[i];
        return ST_OK;
    }
    status_fail(ST_USAGE, "unknown method '%s'", name);
    return status_hint_nearest(ST_USAGE, name, names, COUNT_OF(names), "methods are ");
}

Status values_overflow(void) { return status_fail(ST_NUMERIC, "values grow beyond what a double holds"); }

static double mdp_solve_largest(const double *V, int32_t n) {
    double most = 0;
    for (int32_t s = 0; s < n; s++)
        if (isfinite(V[s])) most = fmax(most, fabs(V[s]));
    return most;
}

bool work_is_done(const MdpWork *work, double change) {
    const MdpForm *form = work->form;
    work_at("solving, sweeps", (uint64_t)work->iterations, 0);
    if (work->iterations >= work->limit || interrupt_requested() || change <= work->target) return true;
    if (change > 1e-6 * form->reward_size && work->iterations % 256 != 0) return false; /* most likely still far above rounding */
    double rounding = ((double)form->longest + 4) * UNIT_ROUNDOFF;
    if (change <= rounding * mdp_solve_largest(work->V, form->n)) return true;
    /* form_reward_size is the expensive part */
    return change <= rounding * form->reward_size && change <= rounding * form_reward_size(form, work->V);
}

bool changes_are_alike(const MdpForm *form, Change change, double target) {
    return form->closed && form->gamma < 1 && form->gamma * (change.most - change.least) <= target;
}

void add_missing(const MdpForm *form, Change change, double *V) {
    double missing = form->gamma / (1 - form->gamma) * 0.5 * (change.least + change.most);
    for (int32_t s = 0; s < form->n; s++)
        if (form_is_nonterminal(form, s)) V[s] += missing;
}

/* ---- the answer ---- */

static void spread(const Mdp *mdp, const MdpForm *form, const double *form_V, double *V) {
    for (int32_t s = 0; s < mdp->n_states; s++) V[s] = form_V[form->state_of ? form->state_of[s] : s];
}

/* r + gamma sum p V of one (s, a). */
static double q_of(const Mdp *mdp, int64_t row, const double *V) {
    double reward = 0, value = 0;
    for (int64_t k = mdp->begin[row]; k < mdp->begin[row + 1]; k++) {
        reward += mdp->probability[k] * mdp->reward[k];
        if (!(mdp->ends && mdp->ends[k]) && !mdp->terminal[mdp->next[k]]) value += mdp->probability[k] * V[mdp->next[k]];
    }
    return reward + mdp->gamma * value;
}

void mdp_fill_q(const Mdp *mdp, const double *V, double *Q) {
#pragma omp parallel for schedule(static, 1024) if (mdp->n_states > 4096)
    for (int64_t s = 0; s < mdp->n_states; s++)
        for (int64_t a = 0; a < mdp->n_actions; a++)
            Q[s * mdp->n_actions + a] = mdp->terminal[s] ? 0 : mdp_has(mdp, s, a) ? q_of(mdp, s * mdp->n_actions + a, V) : -(double)INFINITY;
}

void mdp_greedy(const Mdp *mdp, const double *Q, int32_t *policy) {
#pragma omp parallel for schedule(static, 1024) if (mdp->n_states > 4096)
    for (int64_t s = 0; s < mdp->n_states; s++) {
        const double *q = Q + s * mdp->n_actions;
        double best = q[0];
        for (int32_t a = 1; a < mdp->n_actions; a++) best = MAX(best, q[a]);
        policy[s] = -1;
        for (int32_t a = 0; a < mdp->n_actions && !mdp->terminal[s] && policy[s] < 0; a++)
            if (q[a] >= best - TIE) policy[s] = a;
    }
}

/* Error bound of Q computed from a V whose error is at most `bound`. It includes the rounding of actions far below the best. `reward`, `value`: the
 * largest ones; `longest`: number of outcomes. */
static double bound_of_q(double gamma, double bound, int64_t longest, double reward, double value) {
    double rounding = (double)(longest + 4) * UNIT_ROUNDOFF * (reward + gamma * value) + 1e-300; /* the last term covers underflow */
    return gamma * (1 + 1e-9) * bound + rounding;                                                /* 1e-9: tolerance of the sum of probabilities */
}

static Status answer_alloc(const Mdp *mdp, Arena *arena, bool with_policy, MdpSolution *solution) {
    size_t n = (size_t)mdp->n_states;
    solution->V = arena_alloc(arena, n * sizeof(double));
    solution->Q = arena_alloc(arena, n * (size_t)mdp->n_actions * sizeof(double));
    if (with_policy) solution->policy = arena_alloc(arena, n * sizeof(int32_t));
    return solution->V && solution->Q && (!with_policy || solution->policy) ? ST_OK : ST_RESOURCE;
}

/* ---- solving ---- */

/* The |TV - V| at which the bound is likely to be within the tolerance. */
static double first_target(const MdpForm *form, double tolerance) {
    double shrink = form->gamma * form->mass;
    return 0.25 * tolerance * (shrink < 1 ? 1 - shrink : 1e-2);
}

/* A method stops at a target residual, then the certificate computes the bound. If the bound is too large, and rounding is not the reason, the method
 * continues to a smaller residual. */
static Status solve_values(const MdpSolver *solver, MdpWork *work, double tolerance, MdpSolution *solution) {
    enum { ROUNDS = 6 };
    const MdpForm *form = work->form;
    if (form->proper_row && work->limit > 0 &&
        (solver->solve == mdp_solver_mpi || solver->solve == mdp_solver_pi)) /* these must start from a policy that has values */
        TRY(form_policy_values(form, form->proper_row, NULL, form->gamma, 1e-3 * form->reward_size, work->V, NULL));
    solution->bound = (double)INFINITY;
    for (int round = 0; round < ROUNDS; round++) {
        work->change = -1;
        TRY(solver->solve(work, solution));
        work_end("solving, sweeps");
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
        for (int32_t s = 0; s < form->n; s++)
            if (!isfinite(work->V[s])) return values_overflow();
        double before = solution->bound;
        solution->bound = work->change >= 0 ? form_bound_of_change(form, work->V, work->change) : form_bound(form, work->V, work->Q);
        if (solution->bound <= tolerance || work->iterations >= work->limit || solution->bound > 0.5 * before) break;
        work->target *= isfinite(solution->bound) ? 0.5 * tolerance / solution->bound : 1e-3;
        if (work->target <= 2 * UNIT_ROUNDOFF * form_reward_size(form, work->V)) break;
    }
    return ST_OK;
}

/* Other methods only sweep, and may stop far from the limit. */
static bool solves_equations(const MdpSolver *solver) {
    return solver->solve == mdp_solver_pi || solver->solve == mdp_solver_mpi || solver->solve == mdp_solver_lp;
}

/* Warns if the bound is larger than the tolerance, or if there is no bound. */
static void warn_of_bound(const MdpWork *work, const MdpSolver *solver, double tolerance, const MdpSolution *solution) {
    if (work->iterations < work->limit && isinf(solution->bound))
        log_message(LOG_WARNING, "method '%s' has found no bound: these values may be far from the truth; %s", solver->name,
                    solves_equations(solver) ? "with a smaller gamma there is one"
                                             : "method pi may come nearer, and with a smaller gamma there is a bound");
    if (work->iterations < work->limit || solution->bound <= tolerance) return;
    log_message(LOG_WARNING, "method '%s' stopped at its limit of %lld iteration%s: the bound is %.2g, and %.2g was wanted; %s", solver->name,
                (long long)work->limit, plural(work->limit), solution->bound, tolerance,
                work->options->max_iterations                                  ? "raise --max-iterations"
                : solver->answer == ANSWER_VALUES && !solves_equations(solver) ? "use method pi or mpi, or a larger --tolerance"
                                                                               : "use a larger --tolerance");
}

static Status mdp_solve_by_method(const MdpSolver *solver, MdpWork *work, MdpForm *form, double tolerance, MdpSolution *solution) {
    const Mdp *mdp = &work->world->mdp;
    TRY(mdp_form_make(work->world, solver->answer == ANSWER_VALUES, work->arena, form));
    work->form = form;
    work->target = first_target(form, tolerance);
    work->V = form_vector(form, work->arena);
    if (!work->V) return ST_RESOURCE;
    if (solver->answer == ANSWER_VALUES) {
        if (!form->rows) work->Q = solution->Q;
        TRY(solve_values(solver, work, tolerance, solution));
    } else
        TRY(solver->solve(work, solution));
    solution->iterations = work->iterations;
    if (solver->answer != ANSWER_AVERAGE)
        solution->q_bound = bound_of_q(form->gamma, solution->bound, form->longest, form->reward_size, mdp_solve_largest(work->V, form->n));
    if (solver->answer == ANSWER_HORIZON) return ST_OK;
    warn_of_bound(work, solver, tolerance, solution);
    spread(mdp, form, work->V, solution->V);
    if (work->Q && isfinite(solution->bound)) return ST_OK; /* the certificate has filled Q */
    Mdp per_step = *mdp;
    if (solver->answer == ANSWER_AVERAGE) per_step.gamma = 1;
    mdp_fill_q(&per_step, solution->V, solution->Q);
    for (int64_t i = 0; solution->gain != 0 && i < (int64_t)mdp->n_states * mdp->n_actions; i++)
        if (!mdp->terminal[i / mdp->n_actions]) solution->Q[i] -= solution->gain;
    return ST_OK;
}

static Status check_options(const MdpOptions *options, const MdpSolver *solver) {
    if (options->tolerance < 0) return status_fail(ST_USAGE, "a tolerance is above 0, not %g", options->tolerance);
    if (options->max_iterations < 0 || options->evaluation_sweeps < 0)
        return status_fail(ST_USAGE, "the numbers of iterations and sweeps are 1 or more");
    if (options->evaluation_sweeps > 0 && strcmp(solver->name, "mpi") != 0)
        return status_fail(ST_USAGE, "method '%s' has no sweeps between improvements: they belong to mpi", solver->name);
    if (solver->answer == ANSWER_HORIZON && options->horizon < 1)
        return status_hint(status_fail(ST_USAGE, "method 'horizon' needs a number of steps, 1 or more"), "--horizon N");
    if (solver->answer != ANSWER_HORIZON && options->horizon != 0) return status_fail(ST_USAGE, "method '%s' has no horizon", solver->name);
    return ST_OK;
}

/* The Mdp with names for messages. */
static NamedMdp named(const Mdp *mdp, const NamedMdp *names) {
    NamedMdp world = names ? *names : (NamedMdp){0};
    world.mdp = *mdp;
    return world;
}

Status mdp_solve(const Mdp *mdp, const MdpOptions *options, Arena *arena, MdpSolution *solution) {
    const MdpSolver *solver = NULL;
    const char *method = options->method ? options->method : options->horizon ? "horizon" : mdp->n_states <= FORM_DIRECT ? "pi" : "mpi";
    TRY(find_solver(method, &solver));
    TRY(check_options(options, solver));
    *solution = (MdpSolution){.method = solver->name, .bound = (double)INFINITY, .q_bound = (double)INFINITY};
    TRY(answer_alloc(mdp, arena, true, solution));
    NamedMdp world = named(mdp, options->world);
    MdpForm form;
    Arena *scratch = arena_new(0);
    if (!scratch) return ST_RESOURCE;
    MdpWork work = {.world = &world,
                    .options = options,
                    .limit = options->max_iterations ? options->max_iterations : 10000000,
                    .arena = scratch,
                    .answer_arena = arena};
    Status status = mdp_solve_by_method(solver, &work, &form, options->tolerance > 0 ? options->tolerance : DEFAULT_TOLERANCE, solution);
    arena_free(scratch);
    if (status != ST_OK) return status;
    if (solver->answer != ANSWER_HORIZON) mdp_greedy(mdp, solution->Q, solution->policy);
    solution->policy_attains = true;
    return solver->answer == ANSWER_VALUES && mdp->gamma == 1 ? mdp_attain(mdp, arena, solution) : ST_OK;
}

/* ---- evaluating a policy ---- */

static Status check_policy(const Mdp *mdp, const double *policy, const NamedMdp *world) {
    for (int64_t s = 0; s < mdp->n_states; s++) {
        double sum = 0, least = 0;
        int64_t missing = -1;
        for (int64_t a = 0; a < mdp->n_actions; a++) {
            sum += policy[s * mdp->n_actions + a];
            if (!(policy[s * mdp->n_actions + a] >= least)) least = policy[s * mdp->n_actions + a];
            if (policy[s * mdp->n_actions + a] > 0 && !mdp_has(mdp, s, a)) missing = a;
        }
        if (mdp->terminal[s] || (least >= 0 && fabs(sum - 1) <= 1e-9 && missing < 0)) continue;
        Str text = {0};
        mdp_append_state(&text, world, s);
        if (missing >= 0) {
            str_append(&text, ": the policy takes ");
            mdp_append_action(&text, world, missing);
            status_fail(ST_INPUT, "%s, which that state does not have", str_text(&text));
        } else if (least >= 0)
            status_fail(ST_INPUT, "%s: the policy's probabilities sum to %.12g, expected 1", str_text(&text), sum);
        else
            status_fail(ST_INPUT, "%s: the policy has the probability %g, expected 0 to 1", str_text(&text), least);
        str_release(&text);
        return ST_INPUT;
    }
    return ST_OK;
}

Status mdp_induced_chain(const Mdp *mdp, const double *policy, const NamedMdp *names, Arena *arena, Mdp *process) {
    NamedMdp world = named(mdp, names);
    int64_t entries = 0;
    TRY(check_policy(mdp, policy, &world));
    for (int64_t row = 0; row < (int64_t)mdp->n_states * mdp->n_actions; row++)
        if (!mdp->terminal[row / mdp->n_actions] && policy[row] > 0) entries += mdp->begin[row + 1] - mdp->begin[row];
    size_t n = (size_t)entries;
    *process = (Mdp){.n_states = mdp->n_states,
                     .n_actions = 1,
                     .gamma = mdp->gamma,
                     .terminal = mdp->terminal,
                     .begin = arena_zero(arena, ((size_t)mdp->n_states + 1) * sizeof(int64_t)),
                     .next = arena_alloc(arena, n * sizeof(int32_t)),
                     .probability = arena_alloc(arena, n * sizeof(double)),
                     .reward = arena_alloc(arena, n * sizeof(double)),
                     .ends = mdp->ends ? arena_alloc(arena, n) : NULL};
    if (!process->begin || !process->next || !process->probability || !process->reward || (mdp->ends && !process->ends)) return ST_RESOURCE;
    int64_t k = 0;
    for (int64_t s = 0; s < mdp->n_states; s++) {
        process->begin[s] = k;
        for (int64_t row = s * mdp->n_actions; row < (s + 1) * mdp->n_actions && !mdp->terminal[s]; row++) {
            if (!(policy[row] > 0)) continue;
            for (int64_t e = mdp->begin[row]; e < mdp->begin[row + 1]; e++, k++) {
                process->next[k] = mdp->next[e];
                process->probability[k] = policy[row] * mdp->probability[e];
                process->reward[k] = mdp->reward[e];
                if (mdp->ends) process->ends[k] = mdp->ends[e];
            }
        }
    }
    process->begin[mdp->n_states] = k;
    return ST_OK;
}

static Status mdp_solve_evaluate(const Mdp *process, const MdpOptions *options, Arena *scratch, MdpSolution *solution) {
    NamedMdp world = named(process, options->world);
    double tolerance = options->tolerance > 0 ? options->tolerance : DEFAULT_TOLERANCE;
    MdpForm form;
    TRY(mdp_form_make(&world, true, scratch, &form));
    double *V = form_vector(&form, scratch);
    int64_t *rows = arena_alloc(scratch, ((size_t)form.n + 1) * sizeof *rows);
    if (!V || !rows) return ST_RESOURCE;
    for (int64_t s = 0; s < form.n; s++) rows[s] = form.proper_row ? form.proper_row[s] : form_first(&form, s);
    TRY(form_policy_values(&form, rows, NULL, form.gamma, first_target(&form, tolerance), V, &solution->iterations));
    if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
    for (int32_t s = 0; s < form.n; s++)
        if (!isfinite(V[s])) return values_overflow();
    solution->bound = form_bound(&form, V, NULL);
    if (isinf(solution->bound))
        log_message(LOG_WARNING, "no bound was found: these values may be far from the truth; with a smaller gamma there is one");
    spread(process, &form, V, solution->V);
    return ST_OK;
}

/* Counts all actions: those with the largest rewards need not be in the policy. */
static double bound_of_policy_q(const Mdp *mdp, const MdpSolution *solution) {
    double reward = 0;
    int64_t longest = 0, n_rows = (int64_t)mdp->n_states * mdp->n_actions;
    for (int64_t row = 0; row < n_rows; row++) longest = MAX(longest, mdp->begin[row + 1] - mdp->begin[row]);
    for (int64_t k = 0; k < mdp->begin[n_rows]; k++) reward = fmax(reward, fabs(mdp->reward[k]));
    return bound_of_q(mdp->gamma, solution->bound, longest, reward, mdp_solve_largest(solution->V, mdp->n_states));
}

Status mdp_evaluate(const Mdp *mdp, const double *policy, const MdpOptions *options, Arena *arena, MdpSolution *solution) {
    *solution = (MdpSolution){.method = mdp->n_states <= FORM_DIRECT ? "direct" : "iterative", .bound = (double)INFINITY};
    TRY(answer_alloc(mdp, arena, false, solution));
    Arena *scratch = arena_new(0);
    if (!scratch) return ST_RESOURCE;
    Mdp process;
    Status status = mdp_induced_chain(mdp, policy, options->world, scratch, &process);
    if (status == ST_OK) status = mdp_solve_evaluate(&process, options, scratch, solution);
    arena_free(scratch);
    if (status != ST_OK) return status;
    mdp_fill_q(mdp, solution->V, solution->Q);
    solution->q_bound = bound_of_policy_q(mdp, solution);
    return ST_OK;
}
