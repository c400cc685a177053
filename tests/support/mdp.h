/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of the tests of finite MDPs: an arena for each test, and functions that build and solve MDPs and fail the test on an error. */
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
/* The i-th method that computes V*, NULL after the last one; includes lp only if it is built in. */
const char *value_method(size_t i);

#endif
