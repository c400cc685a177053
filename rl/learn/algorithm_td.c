/* SPDX-License-Identifier: Apache-2.0 */
/* Temporal-difference learning of a given policy's values V: one step, n steps, or TD(lambda). Sources: Sutton 1988; Sutton &
 * Barto 6.1, 7.1, 12.2, 12.5. */
#include "rl/learn/table.h"

/* V(S) += alpha [R + gamma V(S') - V(S)]
 * n steps: the same of the state n steps back, toward G = R + gamma R' + ... + gamma^n V(S_n)
 * TD(lambda): delta = R + gamma V(S') - V(S); z = gamma lambda z + x(S); w += alpha delta z */
static void td_learn(Learner *learner, const Step *step) { steps_learn(learner, step, 0, 0); }

static Status td_open(Learner *learner) { return steps_open(learner, STATE_VALUES); }

const Algorithm algorithm_td = {
    .name = "td",
    .help = "values of a given policy by TD(0), n-step TD (rl.n_step) or TD(lambda) (rl.lambda)",
    .keys = KEYS_OF_TABLES KEYS_OF_STEP_SIZES "n_step lambda traces policy",
    .open = td_open,
    .learn = td_learn,
    .policy = tabular_policy,
    .list_state = steps_list_state,
    OF_A_TABLE,
};
