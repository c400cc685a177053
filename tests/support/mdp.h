/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of finite worlds share: an arena that is new for every test, worlds that a builder finishes, solutions that are not refused. */
#ifndef TUNE_TEST_MDP_H
#define TUNE_TEST_MDP_H

#include "rl/mdp/mdp.h"
#include "tests/support/check.h"

extern Arena *test_arena;
int test_arena_make(void **state);
int test_arena_free(void **state);
#define WORLD_TEST(name) cmocka_unit_test_setup_teardown(name, test_arena_make, test_arena_free)

NamedMdp *finished(MdpBuilder *builder);
MdpSolution solved(const NamedMdp *world, const char *method);
double *uniform_policy(const Mdp *mdp);
/* The i-th method that answers with V*, NULL behind the last; lp only where it was built in. */
const char *value_method(size_t i);

#endif
