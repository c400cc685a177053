/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/mdp.h"

#include <string.h>

Arena *test_arena;

int test_arena_make(void **state) {
    (void)state;
    test_arena = arena_new(0);
    return 0;
}

int test_arena_free(void **state) {
    (void)state;
    arena_free(test_arena);
    return 0;
}

NamedMdp *finished(MdpBuilder *builder) {
    NamedMdp *world;
    check_ok(mdp_builder_finish(builder, &world));
    return world;
}

MdpSolution solved(const NamedMdp *world, const char *method) {
    MdpSolution solution;
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.method = method, .world = world}, test_arena, &solution));
    return solution;
}

double *uniform_policy(const Mdp *mdp) {
    size_t n = (size_t)mdp->n_states * (size_t)mdp->n_actions;
    double *policy = arena_alloc(test_arena, n * sizeof *policy);
    for (size_t i = 0; i < n; i++) policy[i] = 1.0 / mdp->n_actions;
    return policy;
}

const char *value_method(size_t i) {
    for (size_t k = 0, seen = 0;; k++) {
        const char *name = mdp_method(k, NULL);
        if (!name) return NULL;
        if (!strcmp(name, "horizon") || !strcmp(name, "average") || (!HAVE_GLPK && !strcmp(name, "lp"))) continue;
        if (seen++ == i) return name;
    }
}
