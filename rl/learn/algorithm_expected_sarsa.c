/* SPDX-License-Identifier: Apache-2.0 */
/* Expected Sarsa: Sarsa with the expectation over the next action instead of a sample. Source: Sutton & Barto 6.6. */
#include "rl/learn/table.h"

/* Q(S,A) += alpha [R + gamma sum_a pi(a|S') Q(S',a) - Q(S,A)] */
static void expected_sarsa_learn(Learner *learner, const Step *step) {
    Tabular *t = learner->self;
    learn_toward(t, &t->Q, step->S, step->A, step->R + step->gamma * value_expected(t, step->S_next));
}

static Status expected_sarsa_open(Learner *learner) { return tabular_open(learner, sizeof(Tabular), ACTION_VALUES); }

const Algorithm algorithm_expected_sarsa = {
    .name = "expected_sarsa",
    .help = "Expected Sarsa on a table or tiles (van Seijen et al. 2009)",
    .keys = KEYS_OF_TABLES KEYS_OF_EXPLORING KEYS_OF_STEP_SIZES,
    .open = expected_sarsa_open,
    .learn = expected_sarsa_learn,
    .policy = tabular_policy,
    .list_state = tabular_list_state,
    OF_A_TABLE,
};
