/* SPDX-License-Identifier: Apache-2.0 */
/* Sarsa: learns the values of its own policy, exploration included; one step, n steps, or with eligibility traces. Source: Sutton & Barto 6.4, 7.2,
 * 10.1, 12.7. */
#include "rl/learn/table.h"

/* Q(S,A) += alpha [R + gamma Q(S',A') - Q(S,A)], A': what is done next
 * n steps: the same of the state n steps back, toward G = R + gamma R' + ... + gamma^n Q(S_n,A_n)
 * Sarsa(lambda): delta = R + gamma Q(S',A') - Q(S,A); z = gamma lambda z + x(S,A); w += alpha delta z */
static void sarsa_learn(Learner *learner, const Step *step) { steps_learn(learner, step, step->A, next_action(learner->self, step)); }

static Status sarsa_open(Learner *learner) { return steps_open(learner, ACTION_VALUES); }

const Algorithm algorithm_sarsa = {
    .name = "sarsa",
    .help = "Sarsa on a table or tiles: one step, n steps (rl.n_step) or traces (rl.lambda)",
    .keys = KEYS_OF_TABLES KEYS_OF_EXPLORING KEYS_OF_STEP_SIZES "n_step lambda traces",
    .open = sarsa_open,
    .learn = sarsa_learn,
    .policy = tabular_policy,
    .list_state = steps_list_state,
    OF_A_TABLE,
};
