/* SPDX-License-Identifier: Apache-2.0 */
/* Certified bounds: every method, horizons, rewards per step and policies against all policies in long double; linear programs. */
#include "rl/mdp/mdp_form.h"
#include "tests/support/check.h"
#include "tests/support/mdp.h"

#include <float.h>
#include <math.h>
#include <string.h>

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

static double mdp_bounds_largest(const long double *V, int n) {
    double most = 1e-3;
    for (int s = 0; s < n; s++) most = fmax(most, (double)fabsl(V[s]));
    return most;
}

static void check_bound(const char *what, uint64_t seed, const MdpSolution *solution, const long double *truth, int n, double wanted) {
    long double off = 0;
    for (int s = 0; s < n; s++) off = fmaxl(off, fabsl((long double)solution->V[s] - truth[s]));
    if (off > (long double)solution->bound + 16 * LDBL_EPSILON * fmaxl(1, (long double)mdp_bounds_largest(truth, n))) /* the truth is computed too */
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
            check_bound(method, seed, &solution, truth, world->mdp.n_states,
                        1e-12 + 1e-14 / (1 - gamma) * mdp_bounds_largest(truth, world->mdp.n_states) * 2);
            check_bound_of_q(method, &world->mdp, &solution, truth);
        }
        named_mdp_free(world);
    }
}

/* Certified bounds are true wherever the iteration is stopped. */
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
                    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.method = method, .max_iterations = limit}, test_arena, &solution));
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
            Status status = mdp_solve(&world->mdp, &(MdpOptions){.method = method}, test_arena, &solution);
            if (status != (existence == EXISTS ? ST_OK : ST_INPUT))
                fail_msg("%s, world %llu: existence %d, status %d: %s", method, (unsigned long long)seed, (int)existence, (int)status,
                         status == ST_OK ? "" : status_text());
            if (status == ST_OK)
                check_bound(method, seed, &solution, truth, world->mdp.n_states, 1e-9 * mdp_bounds_largest(truth, world->mdp.n_states));
            else
                check_text("values do not exist");
        }
        named_mdp_free(world);
    }
    for (int i = 0; i < 3; i++) assert_true(counts[i] > 8);
}

/* ---- policies, steps to go and rewards per step, in long double too ---- */

static double *random_policy(const Mdp *mdp, uint64_t seed) {
    double *policy = arena_alloc(test_arena, (size_t)(mdp->n_states * mdp->n_actions) * sizeof *policy);
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
        Status status = mdp_evaluate(mdp, policy, &(MdpOptions){0}, test_arena, &solution);
        if (!cancels) check_status(status, exists ? ST_OK : ST_INPUT);
        if (!cancels && exists) {
            assert_string_equal(solution.method, "direct");
            check_bound("direct", seed, &solution, truth, mdp->n_states,
                        1e-12 + (gamma < 1 ? 2e-14 / (1 - gamma) : 1e-9) * mdp_bounds_largest(truth, mdp->n_states));
        }
        if (gamma == 1) counts[exists]++;
        named_mdp_free(world);
    }
    assert_true(counts[0] > 8 && counts[1] > 8);
}

/* A chain of small MDPs, with more states than are solved directly. A tenth of the probability of each leads to the next, so the true values are
 * computed from the last one backwards. */
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
        long double *truth = arena_alloc(test_arena, (size_t)mdp->n_states * sizeof *truth);
        for (int i = n_worlds; i-- > 0;) {
            Chain chain = chain_under(mdp, policy, first[i], first[i + 1] - first[i], truth);
            chain_values(&chain, chain.live, (long double)gamma, truth + first[i]);
        }
        static const double tolerances[] = {0, 1e-3};
        for (size_t i = 0; i < COUNT_OF(tolerances); i++) {
            MdpSolution solution;
            check_ok(mdp_evaluate(mdp, policy, &(MdpOptions){.tolerance = tolerances[i]}, test_arena, &solution));
            assert_string_equal(solution.method, "iterative");
            check_bound("iterative", seed, &solution, truth, mdp->n_states,
                        fmax(tolerances[i], 1e-12 + 2e-14 / (1 - gamma) * mdp_bounds_largest(truth, mdp->n_states)));
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
        check_ok(mdp_solve(mdp, &(MdpOptions){.horizon = steps}, test_arena, &solution));
        check_bound("horizon", seed, &solution, truth, mdp->n_states,
                    1e-12 + 1e-13 * (double)steps * mdp_bounds_largest(truth, (int)steps * mdp->n_states));
        solution.V = solution.step_V; /* of all steps */
        check_bound("horizon, each step", seed, &solution, truth, (int)steps * mdp->n_states, (double)INFINITY);
        named_mdp_free(world);
    }
}

/* The largest reward per step of a closed class of the chain: the expected reward between two visits of its first state divided by their expected
 * distance. */
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
            Status status = mdp_solve(mdp, &(MdpOptions){.method = "average", .max_iterations = limit}, test_arena, &solution);
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
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.method = "lp", .world = world}, test_arena, &lp));
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.method = "pi", .world = world}, test_arena, &pi));
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
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.horizon = 2}, test_arena, &solution));
    assert_true(solution.q_bound < 2);
    check_bound_of_q("horizon", &world->mdp, &solution, (const long double[]){0.1L, 0});
    named_mdp_free(world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        WORLD_TEST(bounds_hold_for_every_method),
        WORLD_TEST(bounds_hold_when_stopped_early),
        WORLD_TEST(undiscounted_values_are_found_or_refused),
        WORLD_TEST(bounds_hold_for_policies),
        WORLD_TEST(bounds_hold_for_policies_by_iteration),
        WORLD_TEST(bounds_hold_for_horizons),
        WORLD_TEST(bounds_hold_for_rewards_per_step),
        WORLD_TEST(far_rewards_count_for_q),
        WORLD_TEST(linear_programs_are_exact_to_rounding),
        WORLD_TEST(linear_programs_take_any_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
