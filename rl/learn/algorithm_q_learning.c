/* SPDX-License-Identifier: Apache-2.0 */
/* Q-learning: learns the optimal policy's values while following an exploring policy. Sources: Watkins 1989; Sutton & Barto 6.5. */
#include "rl/learn/table.h"

/* Q(S,A) += alpha [R + gamma max_a Q(S',a) - Q(S,A)] */
static void q_learning_learn(Learner *learner, const Step *step) {
    Tabular *t = learner->self;
    learn_toward(t, &t->Q, step->S, step->A, step->R + step->gamma * value_best(t, step->S_next));
}

static Status q_learning_open(Learner *learner) { return tabular_open(learner, sizeof(Tabular), ACTION_VALUES); }

const Algorithm algorithm_q_learning = {
    .name = "q_learning",
    .help = "Q-learning on a table or tiles (Watkins 1989)",
    .keys = KEYS_OF_TABLES KEYS_OF_EXPLORING KEYS_OF_STEP_SIZES,
    .open = q_learning_open,
    .learn = q_learning_learn,
    .policy = tabular_policy,
    .list_state = tabular_list_state,
    OF_A_TABLE,
};
