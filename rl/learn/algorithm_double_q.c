/* SPDX-License-Identifier: Apache-2.0 */
/* Double Q-learning: one table selects the best action, the other evaluates it, which removes the bias of the maximum of noisy values. Sources: van
 * Hasselt 2010; Sutton & Barto 6.7. */
#include "rl/learn/table.h"

typedef struct DoubleQ {
    Tabular t;
    Values Q2;
} DoubleQ;

/* A coin: Q1(S,A) += alpha [R + gamma Q2(S', argmax_a Q1(S',a)) - Q1(S,A)], or the same with the tables exchanged. */
static void double_q_learn(Learner *learner, const Step *step) {
    DoubleQ *self = learner->self;
    Tabular *t = &self->t;
    bool heads = draw(t) < 0.5;
    Values *chooses = heads ? &t->Q : &self->Q2, *judges = heads ? &self->Q2 : &t->Q;
    int64_t best = best_action(chooses, step->S_next, t->q);
    learn_toward(t, chooses, step->S, step->A, step->R + step->gamma * value_of(judges, step->S_next, best));
}

static Status double_q_open(Learner *learner) {
    TRY(tabular_open(learner, sizeof(DoubleQ), ACTION_VALUES));
    DoubleQ *self = learner->self;
    self->t.Q2 = &self->Q2;
    return values_new(learner, self->t.A, &self->Q2);
}

static void double_q_policy(Learner *learner, StateList *states) {
    const DoubleQ *self = learner->self;
    tabular_policy(learner, states);
    values_list_state(states, "Q2", &self->Q2);
}

static void double_q_list_state(Learner *learner, StateList *states) {
    const DoubleQ *self = learner->self;
    tabular_list_state(learner, states);
    values_list_visits(states, "visits2", &self->Q2);
}

const Algorithm algorithm_double_q = {
    .name = "double_q",
    .help = "double Q-learning on tables or tiles (van Hasselt 2010)",
    .keys = KEYS_OF_TABLES KEYS_OF_EXPLORING KEYS_OF_STEP_SIZES,
    .open = double_q_open,
    .learn = double_q_learn,
    .policy = double_q_policy,
    .list_state = double_q_list_state,
    OF_A_TABLE,
};
