/* Exact solutions: every method and its certified bound against all policies in long double; worlds with published values; what has no values; finite
 * horizons, reward per step. */
#include "rl/mdp/mdp_form.h"
#include "tests/support/check.h"

#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Arena *arena; /* anew for every test */

static int setup(void **state) {
    (void)state;
    arena = arena_new(0);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    arena_free(arena);
    return 0;
}

static NamedMdp *finished(MdpBuilder *builder) {
    NamedMdp *world;
    check_ok(mdp_builder_finish(builder, &world));
    return world;
}

static MdpSolution solved(const NamedMdp *world, const char *method) {
    MdpSolution solution;
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.method = method, .world = world}, arena, &solution));
    return solution;
}

static double *uniform_policy(const Mdp *mdp) {
    size_t n = (size_t)mdp->n_states * (size_t)mdp->n_actions;
    double *policy = arena_alloc(arena, n * sizeof *policy);
    for (size_t i = 0; i < n; i++) policy[i] = 1.0 / mdp->n_actions;
    return policy;
}

/* Methods that answer with V*; lp only where it was built in. */
static const char *value_method(size_t i) {
    for (size_t k = 0, seen = 0;; k++) {
        const char *name = mdp_method(k, NULL);
        if (!name) return NULL;
        if (!strcmp(name, "horizon") || !strcmp(name, "average") || (!HAVE_GLPK && !strcmp(name, "lp"))) continue;
        if (seen++ == i) return name;
    }
}

/* ---- the truth: all deterministic policies in long double ---- */

enum { MAX_STATES = 6, MAX_ACTIONS = 3 };
typedef enum Existence { EXISTS, UNBOUNDED, NONE, CANCELS } Existence;

typedef struct Chain {
    int n;
    long double p[MAX_STATES][MAX_STATES], r[MAX_STATES];
    bool live[MAX_STATES], ends[MAX_STATES];
} Chain;

static Chain chain_of(const Mdp *mdp, const int *actions) {
    Chain chain = {.n = mdp->n_states};
    for (int s = 0; s < chain.n; s++) {
        chain.live[s] = !mdp->terminal[s];
        int64_t row = (int64_t)s * mdp->n_actions + actions[s];
        for (int64_t k = mdp->begin[row]; chain.live[s] && k < mdp->begin[row + 1]; k++) {
            long double p = (long double)mdp->probability[k];
            chain.r[s] += p * (long double)mdp->reward[k];
            if (mdp->terminal[mdp->next[k]] || (mdp->ends && mdp->ends[k]))
                chain.ends[s] |= p > 0;
            else
                chain.p[s][mdp->next[k]] += p;
        }
    }
    return chain;
}

/* Solves the equations of the states in `in`; the others have the value 0. */
static void chain_values(const Chain *chain, const bool *in, long double gamma, long double *V) {
    long double a[MAX_STATES][MAX_STATES + 1] = {{0}};
    int n = chain->n;
    for (int s = 0; s < n; s++) {
        for (int t = 0; t < n; t++) a[s][t] = (s == t) - (in[s] && in[t] ? gamma * chain->p[s][t] : 0);
        a[s][n] = in[s] ? chain->r[s] : 0;
    }
    for (int c = 0; c < n; c++) {
        int pivot = c;
        for (int s = c; s < n; s++)
            if (fabsl(a[s][c]) > fabsl(a[pivot][c])) pivot = s;
        for (int k = 0; k <= n; k++) {
            long double keep = a[c][k];
            a[c][k] = a[pivot][k];
            a[pivot][k] = keep;
        }
        for (int s = 0; s < n; s++) {
            if (s == c || a[s][c] == 0) continue;
            long double factor = a[s][c] / a[c][c];
            for (int k = c; k <= n; k++) a[s][k] -= factor * a[c][k];
        }
    }
    for (int s = 0; s < n; s++) V[s] = a[s][n] / a[s][s];
}

/* V of a policy with gamma 1: infinite where a closed class that is reached earns or costs something on average. */
static bool undiscounted_values(const Chain *chain, long double *V, bool *cancels) {
    int n = chain->n;
    bool reach[MAX_STATES][MAX_STATES], transient[MAX_STATES] = {0};
    long double infinite[MAX_STATES] = {0};
    for (int s = 0; s < n; s++)
        for (int t = 0; t < n; t++) reach[s][t] = s == t || chain->p[s][t] > 0;
    for (int k = 0; k < n; k++)
        for (int s = 0; s < n; s++)
            for (int t = 0; t < n; t++) reach[s][t] |= reach[s][k] && reach[k][t];
    for (int s = 0; s < n; s++) {
        transient[s] = false;
        for (int t = 0; t < n && chain->live[s]; t++) transient[s] |= reach[s][t] && (!reach[t][s] || chain->ends[t]);
    }
    for (int s = 0; s < n; s++) { /* mean reward of the class of s after many steps */
        if (transient[s] || !chain->live[s]) continue;
        bool earns = false;
        for (int t = 0; t < n; t++) earns |= reach[s][t] && chain->r[t] != 0;
        if (!earns) continue;
        long double x[MAX_STATES][MAX_STATES], y[MAX_STATES][MAX_STATES], gain = 0;
        for (int t = 0; t < n; t++)
            for (int u = 0; u < n; u++) x[t][u] = 0.5L * chain->p[t][u] + (t == u ? 0.5L : 0);
        for (int i = 0; i < 24; i++) { /* 2^24 steps; rows are kept at the sum 1 */
            for (int t = 0; t < n; t++) {
                long double sum = 0;
                for (int u = 0; u < n; u++) {
                    y[t][u] = 0;
                    for (int k = 0; k < n; k++) y[t][u] += x[t][k] * x[k][u];
                    sum += y[t][u];
                }
                for (int u = 0; u < n && sum > 0; u++) y[t][u] /= reach[s][t] ? sum : 1;
            }
            memcpy(x, y, sizeof x);
        }
        for (int t = 0; t < n; t++) gain += x[s][t] * chain->r[t];
        if (fabsl(gain) < 1e-9L) *cancels = true;
        infinite[s] = gain;
    }
    chain_values(chain, transient, 1, V);
    bool unbounded = false;
    for (int s = 0; s < n; s++)
        for (int t = 0; t < n; t++) {
            if (!chain->live[s] || !reach[s][t] || infinite[t] == 0) continue;
            if (infinite[t] > 0) unbounded = true;
            V[s] = -(long double)INFINITY;
        }
    return unbounded;
}

static Existence true_values(const Mdp *mdp, long double *best) {
    int actions[MAX_STATES] = {0};
    bool unbounded = false, cancels = false;
    for (int s = 0; s < mdp->n_states; s++) best[s] = -(long double)INFINITY;
    while (true) {
        Chain chain = chain_of(mdp, actions);
        long double V[MAX_STATES];
        if (mdp->gamma < 1)
            chain_values(&chain, chain.live, (long double)mdp->gamma, V);
        else
            unbounded |= undiscounted_values(&chain, V, &cancels);
        for (int s = 0; s < mdp->n_states; s++) best[s] = fmaxl(best[s], V[s]);
        int s = 0;
        while (s < mdp->n_states && ++actions[s] == mdp->n_actions) actions[s++] = 0;
        if (s == mdp->n_states) break;
    }
    if (cancels) return CANCELS;
    if (unbounded) return UNBOUNDED;
    for (int s = 0; s < mdp->n_states; s++)
        if (isinf(best[s])) return NONE;
    return EXISTS;
}

typedef struct Draws {
    RngKey key;
    uint64_t next;
} Draws;
static int64_t below(Draws *draws, int64_t n) { return (int64_t)rng_below(draws->key, draws->next++, (uint64_t)n); }
static double uniform(Draws *draws) { return rng_uniform(draws->key, draws->next++); }

/* `tame`: rewards small whole numbers, many of them 0, so that wandering for nothing and costs both happen. `ends`: episodes may end. */
static NamedMdp *random_world_that(uint64_t seed, double gamma, bool tame, bool ends) {
    Draws draws = {rng_key(seed, RNG_TEST, tame), 0};
    int64_t n = 1 + below(&draws, MAX_STATES - 1), actions = 1 + below(&draws, MAX_ACTIONS), terminals = ends ? below(&draws, n) : 0;
    double scale = tame ? 1 : pow(10, (double)below(&draws, 7) - 2);
    MdpBuilder *builder = mdp_builder_new(n, actions, gamma);
    for (int64_t s = n - terminals; s < n; s++) mdp_builder_terminal(builder, s);
    for (int64_t s = 0; s < n - terminals; s++)
        for (int64_t a = 0; a < actions; a++) {
            int64_t fan = 1 + below(&draws, 3);
            double p[3], sum = 0;
            for (int64_t k = 0; k < fan; k++) sum += p[k] = 0.05 + uniform(&draws);
            for (int64_t k = 0; k < fan; k++) {
                double reward = tame ? (double)(below(&draws, 3) == 0 ? below(&draws, 4) - 2 : 0) : scale * (uniform(&draws) - 0.5);
                mdp_builder_add(builder, s, a, below(&draws, n), p[k] / sum, reward, below(&draws, 8) == 0 && ends);
            }
        }
    return finished(builder);
}

static NamedMdp *random_world(uint64_t seed, double gamma, bool tame) { return random_world_that(seed, gamma, tame, true); }

static double largest(const long double *V, int n) {
    double most = 1e-3;
    for (int s = 0; s < n; s++) most = fmax(most, (double)fabsl(V[s]));
    return most;
}

static void check_bound(const char *what, uint64_t seed, const MdpSolution *solution, const long double *truth, int n, double wanted) {
    long double off = 0;
    for (int s = 0; s < n; s++) off = fmaxl(off, fabsl((long double)solution->V[s] - truth[s]));
    if (off > (long double)solution->bound + 16 * LDBL_EPSILON * fmaxl(1, largest(truth, n))) /* the truth is computed too */
        fail_msg("%s, world %llu: off by %.3Lg, certified %.3g", what, (unsigned long long)seed, off, solution->bound);
    if (solution->bound > wanted)
        fail_msg("%s, world %llu: certified %.3g only, off by %.3Lg, wanted %.3g", what, (unsigned long long)seed, solution->bound, off, wanted);
}

static void check_bound_of_q(const char *what, const Mdp *mdp, const MdpSolution *solution, const long double *truth) {
    for (int64_t row = 0; row < (int64_t)mdp->n_states * mdp->n_actions; row++) {
        if (mdp->terminal[row / mdp->n_actions]) continue;
        long double q = 0;
        for (int64_t k = mdp->begin[row]; k < mdp->begin[row + 1]; k++) {
            bool ended = (mdp->ends && mdp->ends[k]) || mdp->terminal[mdp->next[k]];
            q += (long double)mdp->probability[k] * ((long double)mdp->reward[k] + (ended ? 0 : (long double)mdp->gamma * truth[mdp->next[k]]));
        }
        long double off = fabsl((long double)solution->Q[row] - q);
        if (off > (long double)solution->q_bound)
            fail_msg("%s, row %lld: Q is off by %.3Lg, certified %.3g", what, (long long)row, off, solution->q_bound);
    }
}

TEST(bounds_hold_for_every_method) {
    if (LDBL_MANT_DIG <= DBL_MANT_DIG) skip();
    static const double gammas[] = {0, 0.5, 0.9, 0.99, 0.999};
    for (uint64_t seed = 0; seed < 60; seed++) {
        double gamma = gammas[seed % COUNT_OF(gammas)];
        NamedMdp *world = random_world(seed, gamma, seed % 3 == 0);
        long double truth[MAX_STATES];
        assert_int_equal(true_values(&world->mdp, truth), EXISTS);
        const char *method;
        for (size_t i = 0; (method = value_method(i)); i++) {
            MdpSolution solution = solved(world, method);
            check_bound(method, seed, &solution, truth, world->mdp.n_states, 1e-12 + 1e-14 / (1 - gamma) * largest(truth, world->mdp.n_states) * 2);
            check_bound_of_q(method, &world->mdp, &solution, truth);
        }
        named_mdp_free(world);
    }
}

/* Stopped anywhere on the way, what is certified still holds. */
TEST(bounds_hold_when_stopped_early) {
    if (LDBL_MANT_DIG <= DBL_MANT_DIG) skip();
    for (uint64_t seed = 0; seed < 40; seed++) {
        NamedMdp *world = random_world(seed, seed % 2 ? 0.95 : 1, false);
        long double truth[MAX_STATES];
        if (true_values(&world->mdp, truth) == EXISTS) {
            const char *method;
            for (size_t i = 0; (method = value_method(i)); i++)
                for (int64_t limit = 1; limit < 40; limit += 6) {
                    MdpSolution solution;
                    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.method = method, .max_iterations = limit}, arena, &solution));
                    check_bound(method, seed, &solution, truth, world->mdp.n_states, (double)INFINITY);
                }
        }
        named_mdp_free(world);
    }
}

TEST(undiscounted_values_are_found_or_refused) {
    if (LDBL_MANT_DIG <= DBL_MANT_DIG) skip();
    int counts[4] = {0};
    for (uint64_t seed = 0; seed < 400; seed++) {
        NamedMdp *world = random_world(seed, 1, seed % 4 != 0);
        long double truth[MAX_STATES];
        Existence existence = true_values(&world->mdp, truth);
        counts[existence]++;
        const char *method;
        for (size_t i = 0; (method = value_method(i)) && existence != CANCELS; i++) {
            MdpSolution solution;
            Status status = mdp_solve(&world->mdp, &(MdpOptions){.method = method}, arena, &solution);
            if (status != (existence == EXISTS ? ST_OK : ST_INPUT))
                fail_msg("%s, world %llu: existence %d, status %d: %s", method, (unsigned long long)seed, (int)existence, (int)status,
                         status == ST_OK ? "" : status_text());
            if (status == ST_OK)
                check_bound(method, seed, &solution, truth, world->mdp.n_states, 1e-9 * largest(truth, world->mdp.n_states));
            else
                check_text("values do not exist");
        }
        named_mdp_free(world);
    }
    for (int i = 0; i < 3; i++) assert_true(counts[i] > 8);
}

/* ---- policies, steps to go and rewards per step, in long double too ---- */

static double *random_policy(const Mdp *mdp, uint64_t seed) {
    double *policy = arena_alloc(arena, (size_t)(mdp->n_states * mdp->n_actions) * sizeof *policy);
    Draws draws = {rng_key(seed, RNG_TEST, 2), 0};
    for (int64_t s = 0; s < mdp->n_states; s++) {
        double *p = policy + s * mdp->n_actions, sum = 0;
        for (int32_t a = 0; a < mdp->n_actions; a++) sum += p[a] = below(&draws, 3) ? uniform(&draws) : 0;
        for (int32_t a = 0; a < mdp->n_actions; a++) p[a] = sum > 0 ? p[a] / sum : a == 0;
    }
    return policy;
}

/* States first..first + n - 1 under the policy; what follows them has the values V. */
static Chain chain_under(const Mdp *mdp, const double *policy, int first, int n, const long double *V) {
    Chain chain = {.n = n};
    for (int s = 0; s < n; s++) {
        chain.live[s] = !mdp->terminal[first + s];
        for (int64_t row = (int64_t)(first + s) * mdp->n_actions; chain.live[s] && row < (int64_t)(first + s + 1) * mdp->n_actions; row++)
            for (int64_t k = mdp->begin[row]; k < mdp->begin[row + 1]; k++) {
                long double p = (long double)policy[row] * (long double)mdp->probability[k];
                int next = mdp->next[k] - first;
                chain.r[s] += p * (long double)mdp->reward[k];
                if (mdp->terminal[mdp->next[k]] || (mdp->ends && mdp->ends[k]))
                    chain.ends[s] |= p > 0;
                else if (next < n)
                    chain.p[s][next] += p;
                else
                    chain.r[s] += (long double)mdp->gamma * p * V[mdp->next[k]];
            }
    }
    return chain;
}

TEST(bounds_hold_for_policies) {
    if (LDBL_MANT_DIG <= DBL_MANT_DIG) skip();
    static const double gammas[] = {0, 0.5, 0.9, 0.99, 0.999, 1};
    int counts[2] = {0};
    for (uint64_t seed = 0; seed < 300; seed++) {
        double gamma = gammas[seed % COUNT_OF(gammas)];
        NamedMdp *world = random_world(seed, gamma, seed % 5 == 0);
        const Mdp *mdp = &world->mdp;
        double *policy = random_policy(mdp, seed);
        long double truth[MAX_STATES];
        bool cancels = false, exists = true;
        Chain chain = chain_under(mdp, policy, 0, mdp->n_states, NULL);
        if (gamma < 1)
            chain_values(&chain, chain.live, (long double)gamma, truth);
        else
            exists = !undiscounted_values(&chain, truth, &cancels);
        for (int s = 0; s < mdp->n_states; s++) exists = exists && !isinf(truth[s]);
        MdpSolution solution;
        Status status = mdp_evaluate(mdp, policy, &(MdpOptions){0}, arena, &solution);
        if (!cancels) check_status(status, exists ? ST_OK : ST_INPUT);
        if (!cancels && exists) {
            assert_string_equal(solution.method, "direct");
            check_bound("direct", seed, &solution, truth, mdp->n_states,
                        1e-12 + (gamma < 1 ? 2e-14 / (1 - gamma) : 1e-9) * largest(truth, mdp->n_states));
        }
        if (gamma == 1) counts[exists]++;
        named_mdp_free(world);
    }
    assert_true(counts[0] > 8 && counts[1] > 8);
}

/* Small worlds one behind the other, more states than are solved directly: a tenth of what happens in one leads on to the next, so the truth is found
 * from the last one on. */
static NamedMdp *row_of_worlds(uint64_t seed, double gamma, int *first, int *n_worlds) {
    enum { ROOM = FORM_DIRECT + MAX_STATES };
    NamedMdp *worlds[ROOM];
    first[0] = *n_worlds = 0;
    for (int i = 0; first[i] <= FORM_DIRECT; i++, ++*n_worlds) {
        worlds[i] = random_world(seed * ROOM + (uint64_t)i, gamma, false);
        first[i + 1] = first[i] + worlds[i]->mdp.n_states;
    }
    MdpBuilder *builder = mdp_builder_new(first[*n_worlds], MAX_ACTIONS, gamma);
    for (int i = 0; i < *n_worlds; i++) {
        const Mdp *mdp = &worlds[i]->mdp;
        double stays = i + 1 < *n_worlds ? 0.9 : 1;
        for (int64_t s = 0; s < mdp->n_states; s++) {
            if (mdp->terminal[s]) mdp_builder_terminal(builder, first[i] + s);
            for (int64_t a = 0; a < MAX_ACTIONS && !mdp->terminal[s]; a++) {
                int64_t row = s * mdp->n_actions + a % mdp->n_actions;
                for (int64_t k = mdp->begin[row]; k < mdp->begin[row + 1]; k++)
                    mdp_builder_add(builder, first[i] + s, a, first[i] + mdp->next[k], stays * mdp->probability[k], mdp->reward[k],
                                    mdp->ends && mdp->ends[k]);
                if (stays < 1) mdp_builder_add(builder, first[i] + s, a, first[i + 1], 0.1, 0, false);
            }
        }
        named_mdp_free(worlds[i]);
    }
    return finished(builder);
}

TEST(bounds_hold_for_policies_by_iteration) {
    if (LDBL_MANT_DIG <= DBL_MANT_DIG) skip();
    static const double gammas[] = {0.5, 0.9, 0.99, 0.999};
    for (uint64_t seed = 0; seed < 8; seed++) {
        int first[FORM_DIRECT + MAX_STATES + 1], n_worlds;
        double gamma = gammas[seed % COUNT_OF(gammas)];
        NamedMdp *world = row_of_worlds(seed, gamma, first, &n_worlds);
        const Mdp *mdp = &world->mdp;
        double *policy = random_policy(mdp, seed);
        long double *truth = arena_alloc(arena, (size_t)mdp->n_states * sizeof *truth);
        for (int i = n_worlds; i-- > 0;) {
            Chain chain = chain_under(mdp, policy, first[i], first[i + 1] - first[i], truth);
            chain_values(&chain, chain.live, (long double)gamma, truth + first[i]);
        }
        static const double tolerances[] = {0, 1e-3};
        for (size_t i = 0; i < COUNT_OF(tolerances); i++) {
            MdpSolution solution;
            check_ok(mdp_evaluate(mdp, policy, &(MdpOptions){.tolerance = tolerances[i]}, arena, &solution));
            assert_string_equal(solution.method, "iterative");
            check_bound("iterative", seed, &solution, truth, mdp->n_states,
                        fmax(tolerances[i], 1e-12 + 2e-14 / (1 - gamma) * largest(truth, mdp->n_states)));
        }
        named_mdp_free(world);
    }
}

TEST(bounds_hold_for_horizons) {
    enum { STEPS = 60 };
    if (LDBL_MANT_DIG <= DBL_MANT_DIG) skip();
    static const double gammas[] = {0, 0.9, 0.999, 1};
    for (uint64_t seed = 0; seed < 100; seed++) {
        NamedMdp *world = random_world(seed, gammas[seed % COUNT_OF(gammas)], seed % 3 == 0);
        const Mdp *mdp = &world->mdp;
        int64_t steps = 1 + (int64_t)(seed * 7 % STEPS);
        long double truth[(STEPS + 1) * MAX_STATES] = {0};
        for (int64_t t = steps; t-- > 0;)
            for (int64_t s = 0; s < mdp->n_states; s++) {
                long double *V = truth + t * mdp->n_states, *after_it = V + mdp->n_states;
                for (int64_t a = 0; a < mdp->n_actions && !mdp->terminal[s]; a++) {
                    long double q = 0;
                    for (int64_t row = s * mdp->n_actions + a, k = mdp->begin[row]; k < mdp->begin[row + 1]; k++) {
                        bool over = mdp->terminal[mdp->next[k]] || (mdp->ends && mdp->ends[k]);
                        q += (long double)mdp->probability[k] *
                             ((long double)mdp->reward[k] + (over ? 0 : (long double)mdp->gamma * after_it[mdp->next[k]]));
                    }
                    V[s] = a == 0 ? q : fmaxl(V[s], q);
                }
            }
        MdpSolution solution;
        check_ok(mdp_solve(mdp, &(MdpOptions){.horizon = steps}, arena, &solution));
        check_bound("horizon", seed, &solution, truth, mdp->n_states, 1e-12 + 1e-13 * (double)steps * largest(truth, (int)steps * mdp->n_states));
        solution.V = solution.step_V; /* of all steps */
        check_bound("horizon, each step", seed, &solution, truth, (int)steps * mdp->n_states, (double)INFINITY);
        named_mdp_free(world);
    }
}

/* The most that a closed class of the chain earns a step: by what comes between two visits of its first state, over their distance. */
static long double best_class(const Chain *chain) {
    Chain time = *chain;
    int n = chain->n;
    bool reach[MAX_STATES][MAX_STATES];
    long double best = -(long double)INFINITY;
    for (int s = 0; s < n; s++) time.r[s] = 1;
    for (int s = 0; s < n; s++)
        for (int t = 0; t < n; t++) reach[s][t] = s == t || chain->p[s][t] > 0;
    for (int k = 0; k < n; k++)
        for (int s = 0; s < n; s++)
            for (int t = 0; t < n; t++) reach[s][t] |= reach[s][k] && reach[k][t];
    for (int s = 0; s < n; s++) {
        bool closed = true, others[MAX_STATES];
        for (int t = 0; t < n; t++) closed = closed && (!reach[s][t] || reach[t][s]);
        for (int t = 0; t < n; t++) others[t] = reach[s][t] && t != s;
        if (!closed) continue;
        long double earned[MAX_STATES], taken[MAX_STATES], reward = chain->r[s], steps = 1;
        chain_values(chain, others, 1, earned);
        chain_values(&time, others, 1, taken);
        for (int t = 0; t < n; t++) reward += others[t] ? chain->p[s][t] * earned[t] : 0;
        for (int t = 0; t < n; t++) steps += others[t] ? chain->p[s][t] * taken[t] : 0;
        best = fmaxl(best, reward / steps);
    }
    return best;
}

/* Where there is one best reward per step it is that of the best class of any policy. */
TEST(bounds_hold_for_rewards_per_step) {
    if (LDBL_MANT_DIG <= DBL_MANT_DIG) skip();
    int found = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        NamedMdp *world = random_world_that(seed, 0.9, seed % 3 == 0, false);
        const Mdp *mdp = &world->mdp;
        int actions[MAX_STATES] = {0};
        long double truth = -(long double)INFINITY, most = 0;
        for (int s = 0; s < mdp->n_states;) {
            Chain chain = chain_of(mdp, actions);
            truth = fmaxl(truth, best_class(&chain));
            for (s = 0; s < mdp->n_states; s++) most = fmaxl(most, fabsl(chain.r[s]));
            for (s = 0; s < mdp->n_states && ++actions[s] == mdp->n_actions; s++) actions[s] = 0;
        }
        for (int64_t limit = 0; limit < 40; limit += 13) {
            MdpSolution solution;
            Status status = mdp_solve(mdp, &(MdpOptions){.method = "average", .max_iterations = limit}, arena, &solution);
            if (status != ST_OK) {
                check_text("in the long run around");
                break;
            }
            found += limit == 0;
            solution.V = &solution.gain;
            check_bound("average", seed, &solution, &truth, 1, limit ? (double)INFINITY : 1e-12 + 1e-13 * (double)most);
        }
        named_mdp_free(world);
    }
    assert_true(found > 100);
}

/* GLPK's values are good to nine digits, and here those of a policy that is not quite the best: the answer is no worse than policy iteration's. */
TEST(linear_programs_are_exact_to_rounding) {
    enum { SIDE = 28 };
    if (!HAVE_GLPK) skip();
    Str spec = {0};
    str_append(&spec, "FrozenLake-v1:desc=");
    for (int place = 0; place < SIDE * SIDE; place++) {
        if (place > 0 && place % SIDE == 0) str_append_char(&spec, '/');
        str_append_char(&spec, place == 0 ? 'S' : place == SIDE * SIDE - 1 ? 'G' : 'F');
    }
    str_append(&spec, ",success_rate=0.8,reward_schedule=-1/-1/-1,gamma=1");
    NamedMdp *world;
    MdpSolution lp, pi;
    check_ok(mdp_open(str_text(&spec), &world));
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.method = "lp", .world = world}, arena, &lp));
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.method = "pi", .world = world}, arena, &pi));
    assert_true(lp.bound < 1e-10 && pi.bound < 1e-10);
    check_close_f64("V", lp.V, pi.V, SIDE * SIDE, 2e-11, 0);
    assert_memory_equal(lp.policy, pi.policy, SIDE * SIDE * sizeof *lp.policy);
    named_mdp_free(world);
    str_release(&spec);
}

/* Three outcomes of a third each, which may be the state itself: 1 - 1/3 - 1/3 - 1/3 is not 0. Some way ends it. */
static NamedMdp *world_of_thirds(uint64_t seed) {
    static const double rewards[] = {-0.1, -1, -10, -100};
    Draws draws = {rng_key(seed, RNG_TEST, 0), 0};
    int64_t n = 5 + below(&draws, 16);
    MdpBuilder *builder = mdp_builder_new(n, 3, 1);
    for (int64_t s = 0; s < n; s++)
        for (int64_t a = 0; a < 3; a++)
            for (int i = 0; i < 3; i++) {
                int64_t next = a > 0 && below(&draws, 2) ? s : MIN(s + 1 + below(&draws, 2), n - 1);
                mdp_builder_add(builder, s, a, next, 1.0 / 3, rewards[below(&draws, 4)], s == n - 1 && a == 0);
            }
    return finished(builder);
}

/* What is left of sums of thirds, and chances of 1e-300, at which GLPK would end the process. */
TEST(linear_programs_take_any_numbers) {
    if (!HAVE_GLPK) skip();
    for (uint64_t seed = 0; seed < 100; seed++) {
        NamedMdp *world = world_of_thirds(seed);
        MdpSolution lp = solved(world, "lp"), pi = solved(world, "pi");
        check_close_f64("V", lp.V, pi.V, world->mdp.n_states, lp.bound + pi.bound, 0);
        named_mdp_free(world);
    }
    static const struct {
        int64_t next;
        double reward;
        int64_t rare;
        double rare_reward;
    } rows[] = {{2, 0, 3, 2}, {1, 3, 1, 2}, {1, 0, 2, -1}, {0, 0, 0, -3}, {2, 0, 0, 3}, {1, -2, 1, 1}, {3, 2, 3, 2}, {2, 1, 3, 0}};
    MdpBuilder *builder = mdp_builder_new(4, 2, 0.999);
    for (int64_t i = 0; i < (int64_t)COUNT_OF(rows); i++) {
        mdp_builder_add(builder, i / 2, i % 2, rows[i].rare, 1e-300, rows[i].rare_reward, false);
        mdp_builder_add(builder, i / 2, i % 2, rows[i].next, 1, rows[i].reward, false);
    }
    NamedMdp *world = finished(builder);
    check_close_f64("V", solved(world, "lp").V, solved(world, "pi").V, 4, 1e-6, 0);
    named_mdp_free(world);
}

/* ---- published values ---- */

static NamedMdp *opened(const char *spec, double gamma) {
    NamedMdp *world;
    check_ok(mdp_open(spec, &world));
    world->mdp.gamma = gamma;
    return world;
}

static json_t *expected(const char *file) {
    char path[512];
    json_t *root;
    if (!shared_path(file, path, sizeof path)) skip();
    check_ok(json_read_file(path, &root));
    return root;
}

static void check_values(const char *what, const double *got, const json_t *want, double tolerance) {
    size_t n = json_array_size(want);
    double *values = arena_alloc(arena, n * sizeof *values);
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++) values[i] = json_number_value(json_array_get(want, i));
    check_close_f64(what, got, values, n, tolerance, 0);
}

static void check_lake(const char *spec, const json_t *want) {
    static const char *const gammas[] = {"0.9", "0.95", "0.99", "1.0"};
    for (size_t i = 0; i < COUNT_OF(gammas); i++) {
        NamedMdp *world = opened(spec, atof(gammas[i]));
        char key[64];
        snprintf(key, sizeof key, "V*_gamma_%s", gammas[i]);
        const char *method;
        for (size_t m = 0; (method = value_method(m)); m++) {
            MdpSolution solution = solved(world, method);
            check_values(key, solution.V, json_object_get(want, key), 1e-11); /* twelve digits are given */
            assert_true(solution.bound < 1e-11);
            snprintf(key, sizeof key, "greedy_gamma_%s", gammas[i]);
            const json_t *greedy = json_object_get(want, key);
            for (int32_t s = 0; greedy && s < 16; s++)
                if (!world->mdp.terminal[s]) assert_int_equal(solution.policy[s], json_integer_value(json_array_get(greedy, (size_t)s)));
            snprintf(key, sizeof key, "V*_gamma_%s", gammas[i]);
        }
        snprintf(key, sizeof key, "V_uniform_gamma_%s", gammas[i]);
        if (json_object_get(want, key)) {
            MdpSolution solution;
            check_ok(mdp_evaluate(&world->mdp, uniform_policy(&world->mdp), &(MdpOptions){0}, arena, &solution));
            check_values(key, solution.V, json_object_get(want, key), 1e-11);
            assert_true(solution.bound < 1e-11);
        }
        named_mdp_free(world);
    }
}

TEST(lakes_and_cliffs_are_as_published) {
    json_t *root = expected("data/rl/expected.json");
    const json_t *lake = json_object_get(root, "FrozenLake"), *cliff = json_object_get(root, "CliffWalking");
    check_lake("FrozenLake-v1", json_object_get(lake, "4x4_slippery"));
    check_lake("FrozenLake-v1:is_slippery=false", json_object_get(lake, "4x4_deterministic"));
    NamedMdp *world = opened("CliffWalking-v1", 0.99);
    MdpSolution solution = solved(world, "vi");
    for (int32_t s = 0; s < 37; s++)
        check_close(solution.V[s], json_number_value(json_array_get(json_object_get(cliff, "V*_gamma_0.99"), (size_t)s)),
                    1e-9); /* the rest is never entered */
    world->mdp.gamma = 1;
    solution = solved(world, "gs");
    for (int32_t s = 0; s < 37; s++)
        check_close(solution.V[s], json_number_value(json_array_get(json_object_get(cliff, "V*_gamma_1"), (size_t)s)), 1e-9);
    named_mdp_free(world);
    json_decref(root);
}

TEST(lake_q_values_are_the_reference_programs) {
    json_t *root = expected("golden/rl/frozenlake.json");
    NamedMdp *world = opened("FrozenLake-v1", 0.99);
    MdpSolution solution = solved(world, NULL);
    const json_t *want = json_object_get(root, "optimal_q_slippery_gamma_0.99");
    for (int32_t s = 0; s < 16; s++)
        if (!world->mdp.terminal[s]) check_values("Q", solution.Q + 4 * s, json_array_get(want, (size_t)s), 1e-9);
    named_mdp_free(world);
    json_decref(root);
}

/* Steps, ends and rewards of Gymnasium's Taxi; from the 300 states an episode may begin in the best return is 7.93 on average. */
TEST(taxi_is_solved) {
    json_t *root = expected("golden/rl/taxi.json");
    const json_t *next = json_object_get(root, "next_state"), *reward = json_object_get(root, "reward"), *done = json_object_get(root, "done"),
                 *starts = json_object_get(root, "initial_states");
    MdpBuilder *builder = mdp_builder_new(500, 6, 1);
    for (size_t s = 0; s < 500; s++)
        for (size_t a = 0; a < 6; a++)
            mdp_builder_add(builder, (int64_t)s, (int64_t)a, json_integer_value(json_array_get(json_array_get(next, s), a)), 1,
                            json_number_value(json_array_get(json_array_get(reward, s), a)),
                            json_integer_value(json_array_get(json_array_get(done, s), a)));
    NamedMdp *world = finished(builder);
    static const double gammas[] = {1, 0.99, 0.9}, means[] = {7.93, 6.327464, -1.263323};
    for (size_t g = 0; g < COUNT_OF(gammas); g++) {
        world->mdp.gamma = gammas[g];
        const char *method;
        for (size_t m = 0; (method = value_method(m)); m++) {
            MdpSolution solution = solved(world, method);
            double sum = 0;
            for (size_t i = 0; i < json_array_size(starts); i++) sum += solution.V[json_integer_value(json_array_get(starts, i))];
            check_close(sum / 300, means[g], gammas[g] == 1 ? 1e-9 : 6e-7);
            assert_true(solution.bound < 1e-10);
        }
    }
    named_mdp_free(world);
    json_decref(root);
}

/* Sutton and Barto, example 4.1: a 4x4 grid with two ends, -1 a step. */
static NamedMdp *small_grid(void) {
    MdpBuilder *builder = mdp_builder_new(16, 4, 1);
    static const int down[] = {-1, 0, 1, 0}, right[] = {0, 1, 0, -1};
    mdp_builder_terminal(builder, 0);
    mdp_builder_terminal(builder, 15);
    for (int s = 1; s < 15; s++)
        for (int a = 0; a < 4; a++) {
            int row = s / 4 + down[a], column = s % 4 + right[a];
            bool inside = row >= 0 && row < 4 && column >= 0 && column < 4;
            mdp_builder_add(builder, s, a, inside ? row * 4 + column : s, 1, -1, false);
        }
    return finished(builder);
}

TEST(sweeps_are_the_books) {
    static const double random_walk[] = {0, -14, -20, -22, -14, -18, -20, -20, -20, -20, -18, -14, -22, -20, -14, 0},
                        best[] = {0, -1, -2, -3, -1, -2, -3, -2, -2, -3, -2, -1, -3, -2, -1, 0};
    static const struct {
        int64_t k;
        double V[5];
    } sweeps[] = {{1, {-1, -1, -1, -1, -1}}, {2, {-1.75, -2, -2, -2, -2}}, {3, {-2.4375, -2.9375, -3, -2.875, -3}}};
    static const double in_place[] = {0, -1, -1.25, -1.3125, -1, -1.5, -1.6875, -1.75};
    NamedMdp *world = small_grid();
    MdpSolution solution;
    check_ok(mdp_evaluate(&world->mdp, uniform_policy(&world->mdp), &(MdpOptions){0}, arena, &solution));
    check_close_f64("V of the random policy", solution.V, random_walk, 16, 1e-12, 0);
    check_close(solution.Q[4 * 11 + 2], -1, 1e-12);
    check_close(solution.Q[4 * 7 + 2], -15, 1e-12);
    assert_true(solution.bound < 1e-10);
    solution = solved(world, "pi");
    check_close_f64("V*", solution.V, best, 16, 1e-12, 0);
    assert_int_equal(solution.policy[0], -1);
    assert_int_equal(solution.policy[5], 0); /* up and left are as good: the lower one */
    Mdp process;
    check_ok(mdp_under_policy(&world->mdp, uniform_policy(&world->mdp), world, arena, &process));
    for (size_t i = 0; i < COUNT_OF(sweeps); i++) {
        check_ok(mdp_solve(&process, &(MdpOptions){.method = "vi", .max_iterations = sweeps[i].k}, arena, &solution));
        const double got[] = {solution.V[1], solution.V[2], solution.V[3], solution.V[5], solution.V[6]};
        check_close_f64("V after k sweeps", got, sweeps[i].V, 5, 1e-15, 0);
        assert_int_equal(solution.iterations, sweeps[i].k);
    }
    check_ok(mdp_solve(&process, &(MdpOptions){.method = "gs", .max_iterations = 1}, arena, &solution));
    check_close_f64("V after one sweep in place", solution.V, in_place, 8, 1e-15, 0);
    named_mdp_free(world);
}

/* pymdptoolbox's two examples, with the values that its own stopping rules lead to where these are sweeps of the same method. */
static NamedMdp *forest(double gamma) {
    MdpBuilder *builder = mdp_builder_new(3, 2, gamma);
    static const double wait_reward[] = {0, 0, 4}, cut_reward[] = {0, 1, 2};
    for (int s = 0; s < 3; s++) {
        mdp_builder_add(builder, s, 0, 0, 0.1, wait_reward[s], false);
        mdp_builder_add(builder, s, 0, MIN(s + 1, 2), 0.9, wait_reward[s], false);
        mdp_builder_add(builder, s, 1, 0, 1, cut_reward[s], false);
    }
    return finished(builder);
}

static NamedMdp *small_example(double gamma) {
    MdpBuilder *builder = mdp_builder_new(2, 2, gamma);
    static const double p[2][2][2] = {{{.5, .5}, {.8, .2}}, {{0, 1}, {.1, .9}}}, r[2][2] = {{5, 10}, {-1, 2}};
    for (int a = 0; a < 2; a++)
        for (int s = 0; s < 2; s++)
            for (int t = 0; t < 2; t++) mdp_builder_add(builder, s, a, t, p[a][s][t], r[s][a], false);
    return finished(builder);
}

static MdpSolution after(const NamedMdp *world, const char *method, int64_t iterations) {
    MdpSolution solution;
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.method = method, .max_iterations = iterations}, arena, &solution));
    return solution;
}

TEST(toolbox_examples_are_reproduced) {
    NamedMdp *world = forest(0.9), *other = small_example(0.9);
    const char *method;
    for (size_t i = 0; (method = value_method(i)); i++) {
        check_close_f64("forest", solved(world, method).V, ((const double[]){26.244, 29.484, 33.484}), 3, 1e-11, 0);
        check_close_f64("forest Q", solved(world, method).Q, ((const double[]){26.244, 23.6196, 29.484, 24.6196, 33.484, 25.6196}), 6, 1e-11, 0);
        check_close_f64("small", solved(other, method).V, ((const double[]){42.44186046511628, 36.04651162790698}), 2, 1e-11, 0);
        assert_int_equal(solved(other, method).policy[0], 1);
        assert_int_equal(solved(other, method).policy[1], 0);
    }
    check_close_f64("vi, 4 sweeps", after(world, "vi", 4).V, ((const double[]){5.05197, 8.29197, 12.29197}), 3, 1e-12, 0);
    check_close_f64("gs, 34 sweeps", after(world, "gs", 34).V, ((const double[]){25.5833879767579, 28.830654635546928, 32.83065463554693}), 3, 1e-9,
                    0);
    MdpSolution stopped;
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.method = "mpi", .max_iterations = 3, .evaluation_sweeps = 10}, arena, &stopped));
    check_close_f64("mpi, 3 improvements", stopped.V, ((const double[]){21.81408652334702, 25.054086523347017, 29.054086523347017}), 3, 1e-9, 0);
    assert_true(stopped.bound >= 26.244 - 21.81408652334702); /* and it is said how far that is from the truth */
    /* Its relative values have V(last) = reward per step, which it takes for the least change of a sweep; ours have V(first) = 0 and the middle
     * between least and greatest. */
    MdpSolution average = after(other, "average", 29);
    double least = average.gain - average.bound;
    check_close_f64("small average, 29 sweeps", ((const double[]){average.V[0] - average.V[1] + least, least}),
                    ((const double[]){10, 3.885235246411831}), 2, 1e-9, 0);
    check_close_f64("small vi, 26 sweeps", after(other, "vi", 26).V, ((const double[]){40.048625392716815, 33.65371175967546}), 2, 1e-9, 0);
    world->mdp.gamma = 0.96;
    check_close_f64("vi, 4 sweeps, gamma .96", after(world, "vi", 4).V, ((const double[]){5.93215488, 9.38815488, 13.38815488}), 3, 1e-12, 0);
    check_close_f64("gamma .96", solved(world, NULL).V, ((const double[]){74.6496, 78.1056, 82.1056}), 3, 1e-10, 0);
    check_close_f64("gs, 64 sweeps, gamma .96", after(world, "gs", 64).V, ((const double[]){69.98910821400665, 73.46560194552877, 77.46560194552877}),
                    3, 1e-9, 0);
    world->mdp.gamma = 0.99;
    check_close_f64("gamma .99", solved(world, NULL).V, ((const double[]){317.5524, 321.1164, 325.1164}), 3, 1e-10, 0);
    named_mdp_free(world);
    named_mdp_free(other);
}

TEST(horizons_go_backwards) {
    NamedMdp *world = forest(0.9);
    MdpSolution solution;
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.horizon = 3}, arena, &solution));
    check_close_f64("V", solution.step_V, ((const double[]){2.6973, 5.9373, 9.9373, .81, 3.24, 7.24, 0, 1, 4, 0, 0, 0}), 12, 1e-14, 0);
    assert_memory_equal(solution.step_policy, ((const int32_t[]){0, 0, 0, 0, 0, 0, 0, 1, 0}), 9 * sizeof(int32_t));
    check_close_f64("V now", solution.V, solution.step_V, 3, 0, 0);
    assert_true(solution.bound < 1e-13 && solution.bound > 0 && solution.horizon == 3);
    world->mdp.gamma = 1; /* nothing needs to end */
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.horizon = 2000}, arena, &solution));
    check_close(solution.V[0] / 2000, 3.24, 0.01);
    check_status(mdp_solve(&world->mdp, &(MdpOptions){.method = "horizon"}, arena, &solution), ST_USAGE);
    check_status(mdp_solve(&world->mdp, &(MdpOptions){.method = "vi", .horizon = 4}, arena, &solution), ST_USAGE);
    named_mdp_free(world);
}

/* Where the best reward per step depends on where it begins there is no one number. States 0 and 1 lead to each other and earn `first`, 2 and 3 the
 * same with `second`; 4 may go to either pair, and 0 to 4 where there is a way back. */
static NamedMdp *two_pairs(double first, double second, bool way_back) {
    MdpBuilder *builder = mdp_builder_new(5, 2, 1);
    for (int a = 0; a < 2; a++) {
        mdp_builder_add(builder, 0, a, a && way_back ? 4 : 1, 1, first, false);
        mdp_builder_add(builder, 1, a, 0, 1, first, false);
        mdp_builder_add(builder, 2, a, 3, 1, second, false);
        mdp_builder_add(builder, 3, a, 2, 1, second, false);
        mdp_builder_add(builder, 4, a, a ? 2 : 0, 1, 0, false);
    }
    return finished(builder);
}

TEST(several_rewards_per_step_are_an_error) {
    static const struct {
        double first, second;
        bool way_back;
        const char *text;
    } cases[] = {
        {1, 2, false, "2 in the long run around state 2, state 3, 1 around state 0, state 1, from where there is no way to the first"},
        {3, 2, true, "3 in the long run around state 0, state 1, state 4, 2 around state 2, state 3, from where"},
        {1, 2, true, NULL},
        {2, 2, false, NULL},
        {-1, -1, false, NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        NamedMdp *world = two_pairs(cases[i].first, cases[i].second, cases[i].way_back);
        MdpSolution solution;
        Status status = mdp_solve(&world->mdp, &(MdpOptions){.method = "average"}, arena, &solution);
        check_status(status, cases[i].text ? ST_INPUT : ST_OK);
        if (cases[i].text)
            check_text(cases[i].text);
        else
            check_close(solution.gain, MAX(cases[i].first, cases[i].second), 1e-12);
        named_mdp_free(world);
    }
}

TEST(reward_per_step_is_bounded_too) {
    NamedMdp *world = forest(0.9), *other = small_example(0.9);
    MdpSolution solution = solved(world, "average");
    check_close(solution.gain, 3.24, 1e-12);
    assert_true(fabs(solution.gain - 3.24) <= solution.bound && solution.bound < 1e-12);
    check_close(solution.V[0], 0, 0);
    check_close(solution.Q[1], -3.24, 1e-11); /* of cutting at once: back where it was, nothing earned */
    solution = solved(other, "average");
    check_close(solution.gain, 7 / 1.8, 1e-12);
    named_mdp_free(world);
    named_mdp_free(other);

    MdpBuilder *builder = mdp_builder_new(2, 1, 1); /* periodic: 0 and 1 in turns */
    mdp_builder_add(builder, 0, 0, 1, 1, 3, false);
    mdp_builder_add(builder, 1, 0, 0, 1, -1, false);
    world = finished(builder);
    solution = solved(world, "average");
    check_close(solution.gain, 1, 1e-12);
    check_close(solution.V[1], -2, 1e-11);
    named_mdp_free(world);
    world = small_grid();
    check_status(mdp_solve(&world->mdp, &(MdpOptions){.method = "average"}, arena, &solution), ST_INPUT);
    check_text("state 1 the episode can end");
    named_mdp_free(world);
}

/* ---- gamma 1 ---- */

/* Two rooms between which one may walk for nothing; one door costs 5 behind a gift of 3, another gives 2. Value iteration from anywhere would believe
 * in the gift alone. */
TEST(wandering_for_nothing_earns_nothing) {
    MdpBuilder *builder = mdp_builder_new(4, 2, 1);
    mdp_builder_terminal(builder, 3);
    mdp_builder_add(builder, 0, 0, 1, 1, 0, false);
    mdp_builder_add(builder, 0, 1, 2, 1, 3, false);
    mdp_builder_add(builder, 1, 0, 0, 1, 0, false);
    mdp_builder_add(builder, 1, 1, 3, 1, -1, false);
    mdp_builder_add(builder, 2, 0, 3, 1, -5, false);
    mdp_builder_add(builder, 2, 1, 3, 1, -6, false);
    NamedMdp *world = finished(builder);
    const char *method;
    for (size_t i = 0; (method = value_method(i)); i++) {
        MdpSolution solution = solved(world, method);
        check_close_f64(method, solution.V, ((const double[]){0, 0, -5, 0}), 4, 1e-12, 0);
        assert_true(solution.bound < 1e-11);
    }
    world->mdp.reward[3] = 2; /* through the other door */
    check_close_f64("a door that pays", solved(world, NULL).V, ((const double[]){2, 2, -5, 0}), 4, 1e-12, 0);
    named_mdp_free(world);
}

/* What is next to nothing beside the world's largest reward is no nothing; nor is it lost in what rounding makes of that one. */
TEST(small_costs_count_beside_large_ones) {
    MdpBuilder *builder = mdp_builder_new(2, 3, 1);
    mdp_builder_terminal(builder, 1);
    mdp_builder_add(builder, 0, 0, 0, 1, -1, false);
    mdp_builder_add(builder, 0, 1, 1, 1, -1000, false);
    mdp_builder_add(builder, 0, 2, 1, 1, -1e16, false);
    NamedMdp *world = finished(builder);
    const char *method;
    for (size_t i = 0; (method = value_method(i)); i++) {
        MdpSolution solution = solved(world, method);
        check_close_f64(method, solution.V, ((const double[]){-1000, 0}), 2, 1e-9, 0);
        assert_true(solution.bound < 1e-9);
    }
    world->mdp.reward[0] = 1;
    MdpSolution solution;
    check_status(mdp_solve(&world->mdp, &(MdpOptions){0}, arena, &solution), ST_INPUT);
    check_text("rewards can be had without end in state 0");
    named_mdp_free(world);
}

/* Nor do they hide, from any method, what other actions differ by: one that costs 1e15, and one that costs or brings it and is the best. */
TEST(large_rewards_hide_no_difference) {
    MdpBuilder *builder = mdp_builder_new(4, 3, 0.9);
    mdp_builder_terminal(builder, 3);
    for (int a = 0; a < 3; a++) {
        mdp_builder_add(builder, 0, a, a == 1 ? 1 : 3, 1, ((const double[]){0.2, 0, -1e15})[a], false);
        mdp_builder_add(builder, 1, a, 3, 1, 1, false);
        if (a > 0) mdp_builder_add(builder, 2, a, 3, 1, -1, false);
    }
    for (int i = 0; i < 2; i++) mdp_builder_add(builder, 2, 0, 3, 0.5, -1, false);
    NamedMdp *world = finished(builder);
    double *lot = world->mdp.reward + world->mdp.begin[6];
    const char *method;
    for (int round = 0; round < 3; round++) {
        if (round == 1) lot[0] = 1e15, lot[1] = -1e15;
        world->mdp.gamma = round == 2 ? 1 : 0.9;
        for (size_t i = 0; (method = value_method(i)); i++) {
            MdpSolution solution = solved(world, method);
            check_close_f64(method, solution.V, ((const double[]){world->mdp.gamma, 1, round ? 0 : -1, 0}), 4, 1e-12, 0);
            if (round == 0) assert_true(solution.bound < 1e-12);
        }
    }
    named_mdp_free(world);
}

/* V need not know how a choice is rounded that is far below the best; Q does. */
TEST(far_rewards_count_for_q) {
    MdpBuilder *builder = mdp_builder_new(2, 2, 1);
    mdp_builder_terminal(builder, 1);
    mdp_builder_add(builder, 0, 0, 1, 1, 0.1, false);
    mdp_builder_add(builder, 0, 1, 1, 1. / 3, -1e15, false);
    mdp_builder_add(builder, 0, 1, 0, 2. / 3, -1e15, false);
    NamedMdp *world = finished(builder);
    const char *method;
    for (size_t i = 0; (method = value_method(i)); i++) {
        MdpSolution solution = solved(world, method);
        assert_true(solution.bound < 1e-14 && solution.q_bound < 2);
        check_bound_of_q(method, &world->mdp, &solution, (const long double[]){0.1L, 0});
    }
    MdpSolution solution;
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.horizon = 2}, arena, &solution));
    assert_true(solution.q_bound < 2);
    check_bound_of_q("horizon", &world->mdp, &solution, (const long double[]){0.1L, 0});
    named_mdp_free(world);
}

/* A policy to begin with is one that most likely ends: another's equations may be singular, or have the wrong solution. */
TEST(unlikely_ends_are_not_relied_on) {
    MdpBuilder *builder = mdp_builder_new(2, 2, 1);
    mdp_builder_terminal(builder, 1);
    mdp_builder_add(builder, 0, 0, 0, 1, -1, false);
    mdp_builder_add(builder, 0, 0, 1, 1e-17, 0, false);
    mdp_builder_add(builder, 0, 1, 1, 1, -2, false);
    NamedMdp *world = finished(builder);
    const char *method;
    for (int more = 0; more < 2; more++) {
        for (size_t i = 0; (method = value_method(i)); i++) {
            MdpSolution solution = solved(world, method);
            check_close_f64(method, solution.V, ((const double[]){-2, 0}), 2, 1e-9, 0);
            assert_true(solution.bound < 1e-8);
        }
        world->mdp.probability[0] = 1 + 1e-10; /* as much as a sum may be off */
    }
    named_mdp_free(world);
}

/* Two rooms; going from one to the other and back earns `gain`, the second room's other way back costs so much that `gain` is lost beside it. */
static NamedMdp *round_trip(double gain, double detour) {
    MdpBuilder *builder = mdp_builder_new(3, 3, 1);
    mdp_builder_terminal(builder, 2);
    mdp_builder_add(builder, 0, 0, 1, 1, 1, false);
    mdp_builder_add(builder, 0, 1, 2, 1, 0, false);
    mdp_builder_add(builder, 0, 2, 1, 1, detour, false);
    mdp_builder_add(builder, 1, 0, 0, 1, gain - 1, false);
    mdp_builder_add(builder, 1, 1, 2, 1, 0, false);
    mdp_builder_add(builder, 1, 2, 0, 1, detour, false);
    return finished(builder);
}

TEST(round_trips_are_judged_by_what_they_take) {
    static const struct {
        double gain, detour;
        const char *fault;
    } trips[] = {
        {-1e-6, -1e7, NULL},
        {-1, -1e14, NULL},
        {0.5, -1e14, "rewards can be had without end in state 0, state 1"},
        {0, -1e14, "summing to nothing, in state 0, state 1"},
    };
    for (size_t i = 0; i < COUNT_OF(trips); i++) {
        NamedMdp *world = round_trip(trips[i].gain, trips[i].detour);
        MdpSolution solution;
        const char *method;
        for (size_t m = 0; (method = value_method(m)); m++) {
            check_status(mdp_solve(&world->mdp, &(MdpOptions){.method = method}, arena, &solution), trips[i].fault ? ST_INPUT : ST_OK);
            if (trips[i].fault)
                check_text(trips[i].fault);
            else
                check_close_f64(method, solution.V, ((const double[]){1, 0, 0}), 3, 1e-12, 0);
        }
        named_mdp_free(world);
    }
}

/* Once around earns `gain` in all, in rewards of -9 to 9; from everywhere one may leave for nothing. best: what is earned on the way, at most. */
static NamedMdp *long_round_trip(int n, double gain, double *best) {
    MdpBuilder *builder = mdp_builder_new(n + 1, 2, 1);
    double *rewards = arena_alloc(arena, (size_t)n * sizeof *rewards), sum = 0;
    mdp_builder_terminal(builder, n);
    for (int s = 0; s < n; s++) {
        rewards[s] = s + 1 < n ? (double)rng_below(rng_key(5, RNG_TEST, 0), (uint64_t)s, 19) - 9 : -sum;
        sum += rewards[s];
    }
    rewards[0] += gain;
    for (int s = 0; s < n; s++) {
        mdp_builder_add(builder, s, 0, (s + 1) % n, 1, rewards[s], false);
        mdp_builder_add(builder, s, 1, n, 1, 0, false);
        best[s] = sum = 0;
        for (int k = 0; k < n; k++) {
            sum += rewards[(s + k) % n];
            best[s] = fmax(best[s], sum);
        }
    }
    best[n] = 0;
    return finished(builder);
}

/* As many sweeps as the square of its length would not tell: beside what is earned on the way, once around comes to next to nothing. */
TEST(long_round_trips_are_judged_too) {
    enum { LENGTH = 1100 };
    static const struct {
        int n;
        double gain;
        const char *fault;
    } trips[] = {
        {LENGTH, -1e-3, NULL},
        {LENGTH, 1e-3, "rewards can be had without end in state 0, state 1"},
        {LENGTH, 0, "summing to nothing, in state 0, state 1"},
        {200, 0, "summing to nothing, in state 0, state 1"},
    };
    double *best = arena_alloc(arena, (LENGTH + 1) * sizeof *best);
    for (size_t i = 0; i < COUNT_OF(trips); i++) {
        NamedMdp *world = long_round_trip(trips[i].n, trips[i].gain, best);
        MdpSolution solution;
        check_status(mdp_solve(&world->mdp, &(MdpOptions){0}, arena, &solution), trips[i].fault ? ST_INPUT : ST_OK);
        if (trips[i].fault)
            check_text(trips[i].fault);
        else
            check_close_f64("V", solution.V, best, trips[i].n + 1, 1e-8, 0);
        named_mdp_free(world);
    }
    MdpBuilder *builder = mdp_builder_new(LENGTH, 2, 0.9); /* and their reward per step is found */
    double sum = 0;
    for (int s = 0; s < LENGTH; s++) {
        double reward = (double)rng_below(rng_key(6, RNG_TEST, 0), (uint64_t)s, 19) - 9;
        mdp_builder_add(builder, s, 0, (s + 1) % LENGTH, 1, reward, false);
        mdp_builder_add(builder, s, 1, s, 1, -5, false);
        sum += reward;
    }
    NamedMdp *world = finished(builder);
    MdpSolution solution = solved(world, "average");
    check_close(solution.gain, sum / LENGTH, 1e-11);
    assert_true(solution.bound < 1e-11 && solution.iterations < 1000);
    named_mdp_free(world);
}

/* What everyone pays who goes through a room is not what staying outside costs. */
TEST(dear_rooms_hide_no_cost) {
    MdpBuilder *builder = mdp_builder_new(3, 3, 1);
    mdp_builder_terminal(builder, 2);
    for (int a = 0; a < 3; a++) {
        mdp_builder_add(builder, 0, a, 1, 1, -1e12, false);
        mdp_builder_add(builder, 1, a, a == 2 ? 2 : a, 1, ((const double[]){1, -1e-9, -1})[a], false);
    }
    NamedMdp *world = finished(builder);
    check_close_f64("V", solved(world, "pi").V, ((const double[]){-1e12 - 1, -1, 0}), 3, 1e-12, 1e-15);
    world->mdp.reward[4] = 1e-9;
    MdpSolution solution;
    check_status(mdp_solve(&world->mdp, &(MdpOptions){0}, arena, &solution), ST_INPUT);
    named_mdp_free(world);
}

TEST(missing_values_are_said) {
    MdpBuilder *builder = mdp_builder_new(3, 1, 1);
    static const char *const names[] = {"home", "mill", "end"}, *const actions[] = {"go"};
    mdp_builder_names(builder, names, actions);
    mdp_builder_terminal(builder, 2);
    mdp_builder_add(builder, 0, 0, 2, 1, 1, false);
    mdp_builder_add(builder, 1, 0, 1, 1, 1, false);
    NamedMdp *world = finished(builder);
    MdpSolution solution;
    check_status(mdp_solve(&world->mdp, &(MdpOptions){.world = world}, arena, &solution), ST_INPUT);
    check_text("state 'mill'");
    check_contains(status_hint_text(), "gamma below 1");
    check_status(mdp_evaluate(&world->mdp, uniform_policy(&world->mdp), &(MdpOptions){.world = world}, arena, &solution), ST_INPUT);
    check_text("rewards go on for ever from state 'mill'");
    world->mdp.reward[1] = 0;
    check_ok(mdp_evaluate(&world->mdp, uniform_policy(&world->mdp), &(MdpOptions){.world = world}, arena, &solution));
    check_close_f64("V", solution.V, ((const double[]){1, 0, 0}), 3, 1e-15, 0);
    named_mdp_free(world);

    builder = mdp_builder_new(2, 2, 1);
    mdp_builder_terminal(builder, 1);
    mdp_builder_add(builder, 0, 0, 1, 1, 0, false);
    mdp_builder_add(builder, 0, 1, 0, 1, 0.5, false);
    world = finished(builder);
    check_status(mdp_solve(&world->mdp, &(MdpOptions){0}, arena, &solution), ST_INPUT);
    check_text("without end in state 0");
    world->mdp.gamma = 0.5;
    check_close(solved(world, NULL).V[0], 1, 1e-12);
    named_mdp_free(world);
}

/* ---- policies, names, threads ---- */

TEST(policies_are_checked) {
    NamedMdp *world = forest(0.9);
    MdpSolution solution;
    double policy[] = {1, 0, 0, 1, 1, 0};
    check_ok(mdp_evaluate(&world->mdp, policy, &(MdpOptions){0}, arena, &solution));
    check_close_f64("V of (0, 1, 0)", solution.V, ((const double[]){4.47513812154696, 5.02762430939227, 23.17243384704857}), 3, 1e-12, 0);
    check_close(solution.Q[3], solution.V[1], 1e-12);
    policy[2] = 0.25;
    check_status(mdp_evaluate(&world->mdp, policy, &(MdpOptions){0}, arena, &solution), ST_INPUT);
    check_text("state 1: the policy's probabilities sum to 1.25");
    policy[2] = -1;
    policy[3] = 2;
    check_status(mdp_evaluate(&world->mdp, policy, &(MdpOptions){0}, arena, &solution), ST_INPUT);
    check_status(mdp_solve(&world->mdp, &(MdpOptions){.method = "v1"}, arena, &solution), ST_USAGE);
    check_text("unknown method 'v1'");
    check_contains(status_hint_text(), "'vi'");
    named_mdp_free(world);
}

TEST(shares_of_time_add_up) {
    NamedMdp *world = small_example(0.9);
    double share[16], sum = 0;
    check_ok(mdp_stationary(world, (const double[]){0, 1, 1, 0}, share));
    check_close_f64("share", share, ((const double[]){4.0 / 9, 5.0 / 9}), 2, 1e-13, 0);
    named_mdp_free(world);
    world = small_grid();
    check_ok(mdp_stationary(world, uniform_policy(&world->mdp), share));
    for (int s = 0; s < 16; s++) sum += share[s];
    check_close(sum, 1, 1e-13);
    check_close(share[1], share[14], 1e-13);
    check_close(share[0], 0, 0);
    named_mdp_free(world);
}

/* A world of one action with these outcomes; `width` of them a state. */
static NamedMdp *chain_world(int64_t n, int width, void (*outcome)(int64_t s, int i, int64_t *next, double *probability), int64_t start,
                             int64_t terminal) {
    MdpBuilder *builder = mdp_builder_new(n, 1, 0.9);
    for (int64_t s = 0; s < n; s++)
        for (int i = 0; i < width && s != terminal; i++) {
            int64_t next = 0;
            double probability = 0;
            outcome(s, i, &next, &probability);
            if (probability > 0) mdp_builder_add(builder, s, 0, next, probability, 0, false);
        }
    if (start >= 0) mdp_builder_start(builder, start, 1);
    if (terminal >= 0) mdp_builder_terminal(builder, terminal);
    return finished(builder);
}

static void ring(int64_t s, int i, int64_t *next, double *p) { /* once around, alike in all 5001 states: as periodic as can be */
    *next = (s + 1) % 5001;
    *p = i == 0;
}

static void drift(int64_t s, int i, int64_t *next, double *p) { /* 3000 states, more to the left: shares 4^-s */
    *next = i ? MIN(s + 1, 2999) : MAX(s - 1, 0);
    *p = i ? 0.2 : 0.8;
}

/* Left and right alike, until one of the ends is reached, where it stays, or goes to and fro: 0; 1999 and 2000 */
static void two_ends(int64_t s, int i, int64_t *next, double *p) {
    *next = s == 0 ? 0 : s == 1999 ? 2000 : s == 2000 ? 1999 : i ? s + 1 : s - 1;
    *p = s == 0 || s >= 1999 ? i == 0 : 0.5;
}

/* Two crowds of 200, one step in 10^12 from the first to the other, one in 3 10^12 back */
static void apart(int64_t s, int i, int64_t *next, double *p) {
    int64_t half = s / 200, away = half ? 333 : 1000;
    *next = i == 9 ? s + (half ? -200 : 200) : half * 200 + (s * 7 + i * 31) % 200;
    *p = i == 9 ? 1e-15 * (double)away : (1 - 1e-15 * (double)away) / 9;
}

static void crowd(int64_t s, int i, int64_t *next, double *p) { /* 3000 states, anywhere; the last one ends the episode */
    *next = (int64_t)rng_below(rng_key(3, RNG_TEST, 0), (uint64_t)(8 * s + i), 3000);
    *p = 1.0 / 4;
}

static void crowds_apart(int64_t s, int i, int64_t *next, double *p) { /* too large for elimination, too slow for steps */
    int64_t half = s / 4000;
    *next = i == 4 ? (s + 4000) % 8000 : half * 4000 + (int64_t)rng_below(rng_key(3, RNG_TEST, 0), (uint64_t)(8 * s + i), 4000);
    *p = i == 4 ? 1e-13 * (double)(1 + half) : (1 - 1e-13 * (double)(1 + half)) / 4;
}

TEST(shares_of_large_chains) {
    double *share = arena_alloc(arena, 8000 * sizeof *share), *next = arena_zero(arena, 3000 * sizeof *next), again = 0, off = 0;
    NamedMdp *world = chain_world(5001, 1, ring, 7, -1);
    check_ok(mdp_stationary(world, uniform_policy(&world->mdp), share));
    for (int s = 0; s < 5001; s++) assert_true(fabs(share[s] * 5001 - 1) < 1e-10);
    named_mdp_free(world);
    world = chain_world(3000, 2, drift, 2999, -1);
    check_ok(mdp_stationary(world, uniform_policy(&world->mdp), share));
    for (int s = 0; s < 400; s++) assert_true(fabs(share[s] / (0.75 * pow(0.25, s)) - 1) < 1e-12);
    named_mdp_free(world);
    world = chain_world(2001, 2, two_ends, 500, -1);
    check_ok(mdp_stationary(world, uniform_policy(&world->mdp), share));
    check_close(share[0], 1499.0 / 1999, 1e-12);
    check_close(share[1999], 250.0 / 1999, 1e-12);
    check_close(share[2000], 250.0 / 1999, 1e-12);
    check_close(share[500], 0, 0);
    named_mdp_free(world);
    world = chain_world(400, 10, apart, -1, -1);
    check_ok(mdp_stationary(world, uniform_policy(&world->mdp), share));
    for (int s = 0; s < 200; s++) again += share[s];
    check_close(again, 333.0 / 1333, 1e-12);
    named_mdp_free(world);
    world = chain_world(3000, 4, crowd, -1, 2999);
    check_ok(mdp_stationary(world, uniform_policy(&world->mdp), share));
    const Mdp *mdp = &world->mdp;
    again = 0;
    for (int s = 0; s < 2999; s++)
        for (int64_t k = mdp->begin[s]; k < mdp->begin[s + 1]; k++) {
            if (mdp->next[k] == 2999)
                again += share[s] * mdp->probability[k];
            else
                next[mdp->next[k]] += share[s] * mdp->probability[k];
        }
    for (int s = 0; s < 2999; s++) off += fabs(next[s] + again / 2999 - share[s]);
    assert_true(off < 1e-12 && again > 1e-5);
    named_mdp_free(world);
    world = chain_world(8000, 5, crowds_apart, -1, -1);
    assert_int_equal(mdp_stationary(world, uniform_policy(&world->mdp), share), ST_NUMERIC);
    assert_non_null(strstr(status_text(), "8000 states"));
    named_mdp_free(world);
}

/* A large random world without ends, and one with them. */
static Mdp large_world(int32_t n, int32_t actions, int32_t fan, double gamma, bool ends) {
    size_t entries = (size_t)n * (size_t)actions * (size_t)fan;
    Mdp mdp = {.n_states = n,
               .n_actions = actions,
               .gamma = gamma,
               .begin = arena_alloc(arena, ((size_t)n * (size_t)actions + 1) * sizeof(int64_t)),
               .next = arena_alloc(arena, entries * sizeof(int32_t)),
               .probability = arena_alloc(arena, entries * sizeof(double)),
               .reward = arena_alloc(arena, entries * sizeof(double)),
               .terminal = arena_zero(arena, (size_t)n)};
    RngKey key = rng_key(7, RNG_TEST, 0);
    for (int64_t row = 0; row <= (int64_t)n * actions; row++) mdp.begin[row] = row * fan;
    for (size_t k = 0; k < entries; k++) {
        mdp.next[k] = (int32_t)rng_below(key, 3 * k, (uint64_t)n);
        mdp.probability[k] = 1.0 / fan;
        mdp.reward[k] = rng_uniform(key, 3 * k + 1);
    }
    if (ends) mdp.terminal[0] = true;
    return mdp;
}

TEST(threads_change_no_bit) {
    static const char *const methods[] = {"vi", "mpi", "gs", "pi"};
    int threads = omp_get_max_threads();
    for (int ends = 0; ends < 2; ends++) {
        Mdp mdp = large_world(12000, 3, 4, 0.95, ends);
        for (size_t m = 0; m < COUNT_OF(methods); m++) {
            MdpSolution one, many;
            omp_set_num_threads(1);
            check_ok(mdp_solve(&mdp, &(MdpOptions){.method = methods[m]}, arena, &one));
            omp_set_num_threads(3);
            check_ok(mdp_solve(&mdp, &(MdpOptions){.method = methods[m]}, arena, &many));
            assert_memory_equal(one.V, many.V, 12000 * sizeof(double));
            assert_memory_equal(one.policy, many.policy, 12000 * sizeof(int32_t));
            assert_true(one.bound < 1e-11 && one.iterations == many.iterations);
        }
    }
    omp_set_num_threads(threads);
}

/* Where values fit into no near cache, entries are swept in another order: what comes of it is the same but for rounding, with rows of unequal
 * length, ends, and any number of threads; a world whose states lead to their neighbours is left as it is. */
TEST(tiles_change_only_rounding) {
    enum { N = 300000, ACTIONS = 2, FAN = 3 };
    int threads = omp_get_max_threads();
    for (int ends = 0; ends < 2; ends++) {
        Mdp mdp = large_world(N, ACTIONS, FAN, 0.9, ends);
        int64_t k = 0;
        for (int64_t row = 0; row < ACTIONS * N && ends; row++) { /* every seventh row has one entry */
            int64_t from = mdp.begin[row], n = row % 7 == 0 ? 1 : FAN;
            mdp.begin[row] = k;
            for (int64_t i = 0; i < n; i++, k++) {
                mdp.next[k] = mdp.next[from + i];
                mdp.reward[k] = mdp.reward[from + i];
                mdp.probability[k] = 1.0 / (double)n;
            }
        }
        if (ends) mdp.begin[ACTIONS * N] = k;
        NamedMdp world = {.mdp = mdp};
        MdpForm plain, tiled;
        check_ok(mdp_form_make(&world, true, arena, &plain));
        tiled = plain;
        assert_true(form_gains_by_tiles(&plain, 2 << 20) && !form_gains_by_tiles(&plain, 1 << 20) && !form_gains_by_tiles(&plain, 0));
        check_ok(form_tile(&tiled));
        assert_non_null(tiled.tiles);
        double *V = form_vector(&plain, arena), *one = form_vector(&plain, arena), *many = form_vector(&plain, arena),
               *apart = form_vector(&plain, arena);
        double *Q = arena_alloc(arena, sizeof(double) * ACTIONS * N), *apart_Q = arena_alloc(arena, sizeof(double) * ACTIONS * N);
        for (int64_t s = 0; s < N; s++) V[s] = rng_uniform(rng_key(8, RNG_TEST, 0), (uint64_t)s);
        if (ends) V[0] = 0;
        Change expected = form_sweep(&plain, (Sweep){.V = V, .new_V = apart, .Q = apart_Q}),
               change = form_sweep(&tiled, (Sweep){.V = V, .new_V = one, .Q = Q});
        assert_true(fabs(change.least - expected.least) < 1e-14 && fabs(change.most - expected.most) < 1e-14);
        double off = 0;
        for (int64_t row = 0; row < ACTIONS * N; row++) off = fmax(off, fabs(Q[row] - apart_Q[row]));
        for (int64_t s = 0; s <= N; s++) off = fmax(off, fabs(one[s] - apart[s]));
        assert_true(off < 1e-14);
        omp_set_num_threads(threads + 1);
        tiled.tiles = NULL;
        check_ok(form_tile(&tiled));
        form_sweep(&tiled, (Sweep){.V = V, .new_V = many});
        assert_memory_equal(one, many, (N + 1) * sizeof(double));
        omp_set_num_threads(threads);
        MdpSolution vi, mpi;
        check_ok(mdp_solve(&mdp, &(MdpOptions){.method = "vi", .tolerance = 1e-10}, arena, &vi));
        check_ok(mdp_solve(&mdp, &(MdpOptions){.method = "mpi", .tolerance = 1e-10}, arena, &mpi));
        assert_true(vi.bound <= 1e-10 && mpi.bound <= 1e-10);
        for (int64_t s = 0; s < N; s++) assert_true(fabs(vi.V[s] - mpi.V[s]) <= 2e-10);
        if (ends) continue;
        for (int64_t i = 0; i < (int64_t)N * ACTIONS * FAN; i++) mdp.next[i] = (int32_t)(i / (ACTIONS * FAN));
        MdpForm near;
        check_ok(mdp_form_make(&world, true, arena, &near));
        assert_false(form_gains_by_tiles(&near, 2 << 20));
    }
}

/* A form that no world of equal rows gives: the state in the middle has `widest` actions, one none, the others 1 or 3; rows have 0 to 4 entries,
 * among them the first and the last value and the end; and for many rows after each other all but a few lead to the same few values, so that tiles
 * have long gaps. */
static MdpForm odd_form(int32_t n, int64_t widest) {
    int64_t most = 3 * (int64_t)n + widest, row = 0, k = 0, *rows = arena_alloc(arena, ((size_t)n + 1) * sizeof *rows),
            *begin = arena_alloc(arena, ((size_t)most + 1) * sizeof *begin);
    int32_t *next = arena_alloc(arena, 4 * (size_t)most * sizeof *next);
    double *probability = arena_alloc(arena, 4 * (size_t)most * sizeof *probability), *reward = arena_alloc(arena, (size_t)most * sizeof *reward);
    bool *ended = arena_zero(arena, (size_t)n);
    RngKey key = rng_key(9, RNG_TEST, 0);
    ended[7] = true;
    for (int32_t s = 0; s < n; s++) {
        rows[s] = row;
        for (int64_t last = row + (ended[s] ? 0 : s == n / 2 ? widest : s % 11 ? 1 : 3); row < last; row++) {
            bool alike = row % 200000 < 90000 && row % 4999;
            begin[row] = k;
            for (int64_t i = row % 5; i > 0; i--, k++) {
                uint64_t at = (uint64_t)(5 * row + i);
                next[k] = alike           ? 100000 + (int32_t)rng_below(key, at, 16)
                          : row % 97 == 0 ? 0
                          : row % 89 == 0 ? n - (int32_t)(i % 2)
                                          : (int32_t)rng_below(key, at, (uint64_t)n);
                probability[k] = 0.2 * rng_uniform(key, at + 3);
            }
            reward[row] = rng_uniform(key, (uint64_t)row);
        }
    }
    rows[n] = row;
    begin[row] = k;
    return (MdpForm){.n = n,
                     .n_rows = row,
                     .gamma = 0.9,
                     .ended = ended,
                     .rows = rows,
                     .begin = begin,
                     .next = next,
                     .probability = probability,
                     .reward = reward,
                     .arena = arena};
}

TEST(tiles_of_odd_shapes) {
    enum { N = 300000, MOST = 1 << 16 }; /* MOST: rows that a tile has room for */
    static const int threads[] = {1, 2, 3, 9};
    int before = omp_get_max_threads();
    for (int64_t widest = MOST - 1; widest <= MOST + 1; widest++) {
        MdpForm form = odd_form(N, widest);
        double *V = form_vector(&form, arena), *apart = form_vector(&form, arena), *first = NULL;
        double *apart_Q = arena_alloc(arena, (size_t)form.n_rows * sizeof *apart_Q), *Q = arena_alloc(arena, (size_t)form.n_rows * sizeof *Q);
        for (int64_t s = 0; s < N; s++) V[s] = s == 7 ? 0 : rng_uniform(rng_key(8, RNG_TEST, 0), (uint64_t)s);
        Change expected = form_sweep(&form, (Sweep){.V = V, .new_V = apart, .Q = apart_Q});
        for (size_t t = 0; t < COUNT_OF(threads); t++) {
            omp_set_num_threads(threads[t]);
            form.tiles = NULL;
            check_ok(form_tile(&form));
            assert_int_equal(form.tiles != NULL, widest <= MOST);
            if (!form.tiles) continue;
            double *tiled = form_vector(&form, arena), off = 0;
            for (int round = 0; round < 2; round++) { /* nothing is left over from the first */
                Change change = form_sweep(&form, (Sweep){.V = V, .new_V = tiled, .Q = Q});
                assert_true(fabs(change.least - expected.least) < 1e-14 && fabs(change.most - expected.most) < 1e-14);
            }
            for (int64_t row = 0; row < form.n_rows; row++) off = fmax(off, fabs(Q[row] - apart_Q[row]));
            for (int64_t s = 0; s <= N; s++) off = fmax(off, fabs(tiled[s] - apart[s]));
            assert_true(off < 1e-14);
            if (first)
                assert_memory_equal(first, tiled, (N + 1) * sizeof(double));
            else
                first = tiled;
        }
    }
    omp_set_num_threads(before);
}

/* Worlds above the size from which entries are fetched ahead, with rows of equal and of unequal length: modified policy iteration, which copies rows,
 * against sweeps state by state. */
TEST(methods_agree_on_large_worlds) {
    enum { N = 40000 };
    for (int kind = 0; kind < 4; kind++) { /* 1: rows of 1 to 5 entries; 2: one of 300 besides, so that nothing is copied; 3: an end */
        Mdp mdp = large_world(N, 2, kind ? 5 : 8, 0.9, kind == 3);
        int64_t k = 0;
        for (int64_t row = 0; row < 2 * N && kind; row++) {
            int64_t from = mdp.begin[row], n = kind == 2 && row == 77 ? 300 : row < 200 && kind == 2 ? 1 : 1 + row % 5;
            mdp.begin[row] = k;
            for (int64_t i = 0; i < n; i++, k++) {
                mdp.next[k] = mdp.next[from + i];
                mdp.reward[k] = mdp.reward[from + i];
                mdp.probability[k] = 1.0 / (double)n;
            }
        }
        if (kind) mdp.begin[2 * N] = k;
        MdpSolution gs, fast;
        check_ok(mdp_solve(&mdp, &(MdpOptions){.method = "gs", .tolerance = 1e-9}, arena, &gs));
        check_ok(mdp_solve(&mdp, &(MdpOptions){.method = "mpi", .tolerance = 1e-9}, arena, &fast));
        assert_true(gs.bound <= 1e-9 && fast.bound <= 1e-9);
        double off = 0, q_off = 0;
        for (int64_t s = 0; s < N; s++) {
            off = fmax(off, fabs(gs.V[s] - fast.V[s]));
            q_off = fmax(q_off, fmax(fabs(gs.Q[2 * s] - fast.Q[2 * s]), fabs(gs.Q[2 * s + 1] - fast.Q[2 * s + 1])));
            assert_true(mdp.terminal[s] ? fast.policy[s] == -1 : fast.Q[2 * s + fast.policy[s]] >= fmax(fast.Q[2 * s], fast.Q[2 * s + 1]) - 1e-12);
        }
        assert_true(off <= gs.bound + fast.bound && q_off <= gs.bound + fast.bound);
    }
}

/* A random walk of 3001 states, left and right alike, +1 at the right end: V is a straight line, and sweeps would need millions of steps. */
TEST(large_systems_are_solved_without_sweeps) {
    enum { N = 3001 };
    MdpBuilder *builder = mdp_builder_new(N + 2, 1, 1);
    mdp_builder_terminal(builder, 0);
    mdp_builder_terminal(builder, N + 1);
    for (int64_t s = 1; s <= N; s++) {
        mdp_builder_add(builder, s, 0, s - 1, 0.5, 0, false);
        mdp_builder_add(builder, s, 0, s + 1, 0.5, s == N ? 1 : 0, false);
    }
    NamedMdp *world = finished(builder);
    MdpSolution solution;
    check_ok(mdp_evaluate(&world->mdp, uniform_policy(&world->mdp), &(MdpOptions){.tolerance = 1e-6}, arena, &solution));
    double off = 0;
    for (int64_t s = 1; s <= N; s++) off = fmax(off, fabs(solution.V[s] - (double)s / (N + 1)));
    assert_true(off <= solution.bound);
    assert_true(solution.bound < 1e-6);
    named_mdp_free(world);
}

/* The default method for so many states, on what mixes so slowly that sweeps alone would take a quarter of a million. V is a straight line. */
TEST(slow_chains_take_few_iterations) {
    static const char *const specs[] = {"RandomWalk:states=1100", "RandomWalk:states=3000", "RandomWalk:states=3000,gamma=0.999999",
                                        "RandomWalk:states=20000"};
    for (size_t c = 0; c < COUNT_OF(specs); c++) {
        NamedMdp *world;
        MdpSolution fast, exact;
        check_ok(mdp_open(specs[c], &world));
        check_ok(mdp_solve(&world->mdp, &(MdpOptions){0}, arena, &fast));
        assert_string_equal(fast.method, "mpi");
        assert_true(fast.iterations < 100);
        assert_true(fast.bound < 1e-6);
        check_ok(mdp_solve(&world->mdp, &(MdpOptions){.method = "pi"}, arena, &exact));
        check_close_f64(specs[c], fast.V, exact.V, (size_t)world->mdp.n_states, fast.bound + exact.bound, 0);
        named_mdp_free(world);
    }
}

/* The same where neighbours' numbers lie far apart, so that the equations are no band. */
TEST(slow_chains_in_any_order) {
    enum { N = 1501, STEP = 601 };
    MdpBuilder *builder = mdp_builder_new(N, 1, 1);
    mdp_builder_terminal(builder, 0);
    for (int64_t s = 1; s < N; s++) {
        mdp_builder_add(builder, s * STEP % N, 0, (s - 1) * STEP % N, 0.5, 0, false);
        mdp_builder_add(builder, s * STEP % N, 0, (s + 1) % N * STEP % N, 0.5, s == N - 1, false);
    }
    NamedMdp *world = finished(builder);
    MdpSolution solution;
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){0}, arena, &solution));
    assert_string_equal(solution.method, "mpi");
    assert_true(solution.iterations < 10000 && solution.bound < 1e-6);
    for (int64_t s = 1; s < N; s++) check_close(solution.V[s * STEP % N], (double)s / N, solution.bound);
    named_mdp_free(world);
}

static double *deterministic(const Mdp *mdp, const int32_t *actions) {
    double *policy = arena_zero(arena, (size_t)mdp->n_states * (size_t)mdp->n_actions * sizeof *policy);
    assert_non_null(policy);
    for (int32_t s = 0; s < mdp->n_states; s++)
        if (actions[s] >= 0) policy[s * mdp->n_actions + actions[s]] = 1;
    return policy;
}

/* On ice that does not slip the lowest of the best actions is to stay at the wall; with rewards for each step there is no such thing, nor in a world
 * where to stay is best. */
TEST(policies_that_go_nowhere_are_told) {
    static const struct {
        const char *spec;
        bool attains;
    } cases[] = {{"FrozenLake-v1:is_slippery=false,gamma=1", false},
                 {"FrozenLake-v1:gamma=1", true},
                 {"CliffWalking-v1:gamma=1", true},
                 {"Gridworld4x4:gamma=1", true},
                 {"Gambler:gamma=1", true},
                 {"FrozenLake8x8-v1:is_slippery=false,gamma=1", false},
                 {"FrozenLake-v1:is_slippery=false,gamma=0.9", true}};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        NamedMdp *world;
        MdpSolution best, earned;
        check_ok(mdp_open(cases[c].spec, &world));
        check_ok(mdp_solve(&world->mdp, &(MdpOptions){0}, arena, &best));
        if (best.policy_attains != cases[c].attains)
            fail_msg("%s: the policy %s", cases[c].spec, best.policy_attains ? "attains" : "does not attain");
        assert_true(best.policy_attains == !best.attaining);
        check_ok(
            mdp_evaluate(&world->mdp, deterministic(&world->mdp, best.attaining ? best.attaining : best.policy), &(MdpOptions){0}, arena, &earned));
        check_close_f64(cases[c].spec, earned.V, best.V, (size_t)world->mdp.n_states, 1e-9, 0);
        if (!best.policy_attains) {
            check_ok(mdp_evaluate(&world->mdp, deterministic(&world->mdp, best.policy), &(MdpOptions){0}, arena, &earned));
            double less = 0;
            for (int32_t s = 0; s < world->mdp.n_states; s++) less = fmax(less, best.V[s] - earned.V[s]);
            assert_true(less > 1e-3);
        }
        named_mdp_free(world);
    }
    MdpBuilder *builder = mdp_builder_new(3, 2, 1); /* state 0: stay for nothing, or lose; state 1: win and come to state 0 */
    mdp_builder_terminal(builder, 2);
    mdp_builder_add(builder, 0, 0, 0, 1, 0, false);
    mdp_builder_add(builder, 0, 1, 2, 1, -1, false);
    mdp_builder_add(builder, 1, 0, 0, 1, 2, false);
    mdp_builder_add(builder, 1, 1, 2, 1, 0, false);
    NamedMdp *world = finished(builder);
    MdpSolution best;
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){0}, arena, &best));
    assert_true(best.policy_attains && !best.attaining && best.V[1] == 2);
    named_mdp_free(world);
}

TEST(full_memory_is_a_status) {
    NamedMdp *world = small_grid();
    const char *method;
    for (size_t i = 0; (method = value_method(i)); i++)
        for (long n = 1;; n++) {
            MdpSolution solution;
            arena_fail_at(n);
            Status status = mdp_solve(&world->mdp, &(MdpOptions){.method = method}, arena, &solution);
            arena_fail_at(0);
            if (status == ST_OK && !isinf(solution.bound)) break; /* where only the certificate found no room, nothing is certain */
            assert_true(status == ST_OK || status == ST_RESOURCE);
        }
    named_mdp_free(world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define ENTRY(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        ENTRY(bounds_hold_for_every_method),
        ENTRY(bounds_hold_when_stopped_early),
        ENTRY(undiscounted_values_are_found_or_refused),
        ENTRY(bounds_hold_for_policies),
        ENTRY(bounds_hold_for_policies_by_iteration),
        ENTRY(bounds_hold_for_horizons),
        ENTRY(bounds_hold_for_rewards_per_step),
        ENTRY(lakes_and_cliffs_are_as_published),
        ENTRY(lake_q_values_are_the_reference_programs),
        ENTRY(taxi_is_solved),
        ENTRY(sweeps_are_the_books),
        ENTRY(toolbox_examples_are_reproduced),
        ENTRY(horizons_go_backwards),
        ENTRY(reward_per_step_is_bounded_too),
        ENTRY(several_rewards_per_step_are_an_error),
        ENTRY(wandering_for_nothing_earns_nothing),
        ENTRY(small_costs_count_beside_large_ones),
        ENTRY(large_rewards_hide_no_difference),
        ENTRY(far_rewards_count_for_q),
        ENTRY(unlikely_ends_are_not_relied_on),
        ENTRY(round_trips_are_judged_by_what_they_take),
        ENTRY(long_round_trips_are_judged_too),
        ENTRY(dear_rooms_hide_no_cost),
        ENTRY(missing_values_are_said),
        ENTRY(policies_are_checked),
        ENTRY(shares_of_time_add_up),
        ENTRY(shares_of_large_chains),
        ENTRY(threads_change_no_bit),
        ENTRY(tiles_change_only_rounding),
        ENTRY(tiles_of_odd_shapes),
        ENTRY(methods_agree_on_large_worlds),
        ENTRY(large_systems_are_solved_without_sweeps),
        ENTRY(slow_chains_take_few_iterations),
        ENTRY(slow_chains_in_any_order),
        ENTRY(policies_that_go_nowhere_are_told),
        ENTRY(linear_programs_are_exact_to_rounding),
        ENTRY(linear_programs_take_any_numbers),
        ENTRY(full_memory_is_a_status),
#undef ENTRY
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
